//! The schema of a service in the database: its tables, their creation and migration, and their maintenance.
//!
//! | module | contents |
//! |---|---|
//! | [`shape`] | pure: a table as statements |
//! | [`wanted`] | pure: from layouts to the tables of a database |
//! | `plan` | pure: from existing to wanted tables; versions and steps |
//! | `sql` | a session |
//! | `catalog` | the existing tables |
//! | [`meta`] | the table `meta`, and the check when a store is opened |
//! | [`dbinit`] | create, migrate, reset |
//! | `views` | views for auditors |
//! | [`maintain`] | periodic maintenance: days of queues, statistics, writers |
//! | `upkeep` | a thread for maintenance and replication lag |
//! | [`replication`] | a publication for auditors, and its lag |
//! | `prepared` | parts of commits over several nodes that nobody has ended |
//! | [`citus`] | distribution over several nodes |

pub(crate) mod catalog;
pub mod citus;
pub mod dbinit;
mod error;
pub mod maintain;
pub mod meta;
pub(crate) mod plan;
pub(crate) mod prepared;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod readiness;
mod reindex;
pub mod replication;
pub mod shape;
pub(crate) mod sql;
mod upkeep;
pub(crate) mod views;
pub mod wanted;

use std::hash::Hasher;

use batzen_store::TableDef;
use siphasher::sip::SipHasher24;

pub use dbinit::{DbinitOptions, DbinitReport};
pub use error::SchemaError;
pub(crate) use meta::Meta;
pub use meta::lock_key;
pub use plan::{HISTORY, History, Step, StepChange};
pub use sql::{Row, Sql};
pub(crate) use upkeep::Upkeep;

use crate::layout::Layout;

/// The layouts of a service's tables.
pub(crate) fn layouts(
    tables: &[&'static TableDef],
    schema: &str,
    partitions: u16,
) -> Result<Vec<Layout>, SchemaError> {
    let layout = |def: &&'static TableDef| {
        Layout::new(def, schema, partitions).map_err(|error| SchemaError::Refused(error.to_string()))
    };
    tables.iter().map(layout).collect()
}

/// Checks that the schema fits this program, and reads `meta`, when a store is opened. Two queries.
///
/// # Errors
/// The reason why it does not fit, and the command that helps.
pub fn check(sql: &mut dyn Sql, schema: &str, tables: &[&'static TableDef]) -> Result<Meta, SchemaError> {
    let wanted = wanted::tables(&layouts(tables, schema, 0)?);
    meta::check(sql, schema, &wanted, &HISTORY)
}

/// A checksum of a text, used to detect changes.
fn fingerprint(text: &str) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(text.as_bytes());
    format!("batzen {:016x}", hasher.finish())
}

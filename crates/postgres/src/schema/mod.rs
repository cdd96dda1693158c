//! The schema of a service in the database: its tables, how they are made and changed, and what is done for them beside the
//! data path.
//!
//! | module | what |
//! |---|---|
//! | [`shape`] | pure: a table as statements |
//! | [`wanted`] | pure: from layouts to the tables of a database |
//! | [`plan`] | pure: from the tables that are there to those that are wanted; versions and steps |
//! | [`sql`] | a session |
//! | [`catalog`] | what is there |
//! | [`meta`] | what a schema says of itself, and the check that an opening makes |
//! | [`dbinit`] | create, migrate, reset |
//! | [`views`] | views for auditors |
//! | [`maintain`] | days of queues, statistics, writers: from time to time |
//! | `upkeep` | a thread that does both for a service |
//! | [`replication`] | a publication for auditors, and its lag |
//! | [`citus`] | distribution over several nodes |

pub mod catalog;
pub mod citus;
pub mod dbinit;
mod error;
pub mod maintain;
pub mod meta;
pub mod plan;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod readiness;
mod reindex;
pub mod replication;
pub mod shape;
pub mod sql;
mod upkeep;
pub mod views;
pub mod wanted;

use std::hash::Hasher;

use batzen_store::TableDef;
use siphasher::sip::SipHasher24;

pub use dbinit::{DbinitOptions, DbinitReport, Session};
pub use error::SchemaError;
pub use meta::{Meta, lock_key};
pub use plan::{HISTORY, History, Step, StepChange};
pub use sql::{Row, Sql};
pub use upkeep::Upkeep;

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

/// Checks that the database is what this program works with, and reads what it says of itself: for whoever opens it. Two
/// queries.
///
/// # Errors
/// What is wrong, and what to type.
pub fn check(sql: &mut dyn Sql, schema: &str, tables: &[&'static TableDef]) -> Result<Meta, SchemaError> {
    let wanted = wanted::tables(&layouts(tables, schema, 0)?);
    meta::check(sql, schema, &wanted, &HISTORY)
}

/// Marks a text, so that a change of it is seen.
fn fingerprint(text: &str) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(text.as_bytes());
    format!("batzen {:016x}", hasher.finish())
}

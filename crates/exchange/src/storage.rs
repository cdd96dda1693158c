//! Where an exchange keeps its rows, and the one way to open that: for the service, its worker programs and its tools.
//!
//! | `[exchange] DB` | where | who may have it open |
//! |---|---|---|
//! | `embedded` (default) | a directory, `[exchangedb-embedded] DIR` | one process; worker programs hand their work to it |
//! | `postgres` | a database, `[exchangedb-postgres] CONFIG` | any number of services, workers and tools |

use std::path::PathBuf;

use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::ALL;

/// Where the rows are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In a directory of this machine.
    Embedded {
        /// The directory; created if it is missing.
        dir: PathBuf,
    },
    /// In a PostgreSQL database that was prepared with `dbinit`.
    Postgres {
        /// How to connect, such as `postgres:///exchange`.
        url: String,
    },
}

impl StoreConfig {
    /// Whether several processes may have it open at once.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    /// The directory of an embedded store.
    #[must_use]
    pub const fn dir(&self) -> Option<&PathBuf> {
        match self {
            Self::Embedded { dir } => Some(dir),
            Self::Postgres { .. } => None,
        }
    }
}

/// Opens the store of an exchange, for so many lanes that commit at the same time.
///
/// # Errors
/// [`StoreError::InUse`] if another process has an embedded store open; whatever keeps the database from being used, with what
/// to type.
pub fn open(config: &StoreConfig, lanes: usize) -> Result<Store, StoreError> {
    match config {
        StoreConfig::Embedded { dir } => {
            // It has one journal, in which commits are put in order anyway.
            EmbeddedStore::open(dir, ALL, Options::default()).map(Store::new)
        }
        StoreConfig::Postgres { .. } => {
            let _ = lanes;
            Err(StoreError::Backend("this program was built without PostgreSQL".into()))
        }
    }
}

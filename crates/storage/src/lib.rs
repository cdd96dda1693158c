//! Where a service keeps its rows, and the one way to open that: for the services, their worker programs and their tools.
//!
//! | `DB` in the service's section | where | who may have it open |
//! |---|---|---|
//! | `embedded` (default) | a directory | one process |
//! | `postgres` | a schema of a database, `[SERVICEdb-postgres] CONFIG` | see [`Service::sharing`] |

mod postgres;

use std::path::PathBuf;

use batzen_config::{Config, ConfigError};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, StoreError, TableDef};

/// Whether several processes may have a service's rows open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They may: what a process knows beside the rows is kept in step.
    Shared,
    /// One only: it keeps in memory what others would change behind its back.
    Exclusive,
}

/// A service, as far as its rows are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Its name, which is that of its schema in a database.
    pub schema: &'static str,
    /// Its tables.
    pub tables: &'static [&'static TableDef],
    /// Who may have them open in a database.
    pub sharing: Sharing,
}

/// The exchange.
pub const EXCHANGE: Service =
    Service { schema: "exchange", tables: batzen_tables::exchange::ALL, sharing: Sharing::Shared };
/// The bank, which is the only one to hand out the numbers of transactions.
pub const BANK: Service =
    Service { schema: "bank", tables: batzen_tables::bank::ALL, sharing: Sharing::Exclusive };
/// The same with a ledger in its store.
pub const BANK_WITH_LEDGER: Service = Service { tables: batzen_tables::bank::ALL_WITH_LEDGER, ..BANK };
/// A ledger, whose balances are in its process.
pub const LEDGER: Service =
    Service { schema: "ledger", tables: batzen_tables::ledger::ALL, sharing: Sharing::Exclusive };
/// The switch, which is the only one to decide on a participant's limit.
pub const SWITCH: Service =
    Service { schema: "switch", tables: batzen_tables::switch::ALL, sharing: Sharing::Exclusive };

/// Where the rows are. Neither `Display` nor `Debug` shows a password.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process: they end with it.
    Memory,
    /// In a directory of this machine.
    Embedded {
        /// The directory; created if it is missing.
        dir: PathBuf,
    },
    /// In a PostgreSQL database.
    Postgres {
        /// How to connect, such as `postgres:///exchange`. It may have a password: never shown.
        url: String,
    },
}

impl StoreConfig {
    /// A directory, or memory if there is none.
    #[must_use]
    pub fn in_directory(dir: Option<PathBuf>) -> Self {
        dir.map_or(Self::Memory, |dir| Self::Embedded { dir })
    }

    /// What the configuration of a service says about a database: none if it chooses none.
    ///
    /// # Errors
    /// An unknown `DB`, or `postgres` without an address.
    pub fn database_of(ini: &Config, service: &str) -> Result<Option<Self>, ConfigError> {
        match ini.text(service, "DB") {
            None | Some("embedded") => Ok(None),
            Some("postgres") => {
                let url = ini.require::<String>(&format!("{service}db-postgres"), "CONFIG")?;
                Ok(Some(Self::Postgres { url }))
            }
            Some(_) => Err(ini.invalid(service, "DB", "embedded or postgres")),
        }
    }

    /// The directory of an embedded store.
    #[must_use]
    pub const fn dir(&self) -> Option<&PathBuf> {
        match self {
            Self::Embedded { dir } => Some(dir),
            Self::Memory | Self::Postgres { .. } => None,
        }
    }

    /// Whether it is in a database, which other processes and machines reach.
    #[must_use]
    pub const fn is_database(&self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    /// Whether it ends with the process.
    #[must_use]
    pub const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// For a part of the service that has rows of its own: a directory below, or the same database.
    #[must_use]
    pub fn part(&self, name: &str) -> Self {
        match self {
            Self::Embedded { dir } => Self::Embedded { dir: dir.join(name) },
            other => other.clone(),
        }
    }

    /// Makes what is missing before a service is opened the first time or by a newer program: in a database, its schema with
    /// its tables. Repeating it changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached, or has a schema of another program.
    pub fn prepare(&self, service: &Service) -> Result<(), StoreError> {
        match self {
            // These make what they need when they are opened.
            Self::Memory | Self::Embedded { .. } => Ok(()),
            Self::Postgres { url } => postgres::prepare(url, service),
        }
    }

    /// Opens the rows of a service, for so many threads that commit at the same time.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has them and they cannot be shared; whatever keeps them from being read, with
    /// what to type.
    pub fn open(&self, service: &Service, writers: usize) -> Result<Store, StoreError> {
        match self {
            Self::Memory => Ok(Store::new(MemoryBackend::new())),
            // It has one journal, in which commits are put in order anyway.
            Self::Embedded { dir } => {
                EmbeddedStore::open(dir, service.tables, Options::default()).map(Store::new)
            }
            Self::Postgres { url } => postgres::open(url, service, writers),
        }
    }
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Without what is in front of the address: user and password.
impl std::fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Embedded { dir } => dir.display().fmt(f),
            // The other way to write it, words with values, may have the password anywhere.
            Self::Postgres { url } => {
                let end = url.split_once("://").map_or("", |(_, end)| end);
                let end = end.rsplit_once('@').map_or(end, |(_, end)| end);
                write!(f, "postgres://{}", end.split('?').next().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_chooses_once() {
        let chosen =
            |text: &str| StoreConfig::database_of(&Config::parse(text).expect("a configuration"), "bank");
        assert_eq!(chosen("[bank]\nDB = embedded\n").expect("a choice"), None);
        assert_eq!(chosen("").expect("the default"), None);
        let url = "postgres:///money".to_owned();
        let text = format!("[bank]\nDB = postgres\n[bankdb-postgres]\nCONFIG = {url}\n");
        assert_eq!(chosen(&text).expect("a choice"), Some(StoreConfig::Postgres { url }));
        assert!(chosen("[bank]\nDB = postgres\n").is_err());
        assert!(chosen("[bank]\nDB = paper\n").is_err());
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = |url: &str| StoreConfig::Postgres { url: url.to_owned() }.to_string();
        assert_eq!(shown("postgres://me:secret@db:5432/money?sslmode=require"), "postgres://db:5432/money");
        assert_eq!(shown("postgres:///money"), "postgres:///money");
        assert_eq!(shown("host=db password=secret"), "postgres://");
        let debug =
            format!("{:?}", StoreConfig::Postgres { url: "postgres://me:secret@db/money".to_owned() });
        assert!(!debug.contains("secret"), "{debug}");
    }

    #[test]
    fn memory_and_directories_open() {
        let store = StoreConfig::Memory.open(&LEDGER, 1).expect("memory");
        store.close().expect("closing memory");
    }
}

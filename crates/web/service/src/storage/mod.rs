//! Where a service keeps its rows, and the only way to open them: for services, worker programs and tools.
//!
//! | `DB` in the service's section | where | who may have it open |
//! |---|---|---|
//! | `embedded` (default) | a directory | one process |
//! | `postgres` | a schema of a database, `[SERVICEdb-postgres] CONFIG` | see [`Service::sharing`] |
//!
//! `[SERVICEdb-embedded] INDEX_MEMORY_MIB` limits the memory for index entries of a directory's store. With
//! `[exchangedb-postgres] CITUS_DIRECT = NO`, an exchange on a Citus cluster commits through its coordinator only.

mod postgres;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use batzen_config::{Config, ConfigError};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, StoreError, TableDef};

/// The memory for the index entries of an embedded store, unless the configuration says otherwise.
pub(crate) const INDEX_MEMORY_MIB_DEFAULT: u64 = 1_024;
/// The range that may be configured: with less, entries would be written to disk all the time; nobody has
/// more.
const INDEX_MEMORY_MIB: RangeInclusive<u64> = 16..=1 << 20;

/// Permission for several processes to have a service's rows open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They may: the processes keep their caches in step.
    Shared,
    /// Only one: it caches rows and would not see the changes of others.
    Exclusive,
}

/// The facts that the storage has to know about a service.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Its name, also that of its schema in a database.
    pub schema: &'static str,
    /// Its tables.
    pub tables: &'static [&'static TableDef],
    /// Number of processes that may have them open in a database.
    pub sharing: Sharing,
}

/// The exchange.
pub const EXCHANGE: Service =
    Service { schema: "exchange", tables: batzen_tables::exchange::ALL, sharing: Sharing::Shared };
/// The bank. Exclusive, because it numbers transactions in memory.
pub const BANK: Service =
    Service { schema: "bank", tables: batzen_tables::bank::ALL, sharing: Sharing::Exclusive };
/// The same with a ledger in its store.
pub const BANK_WITH_LEDGER: Service = Service { tables: batzen_tables::bank::ALL_WITH_LEDGER, ..BANK };
/// A ledger, whose balances are in its process.
pub const LEDGER: Service =
    Service { schema: "ledger", tables: batzen_tables::ledger::ALL, sharing: Sharing::Exclusive };
/// The switch. Exclusive, because it checks limits in memory.
pub const SWITCH: Service =
    Service { schema: "switch", tables: batzen_tables::switch::ALL, sharing: Sharing::Exclusive };

/// The merchant backend.
pub const MERCHANT: Service =
    Service { schema: "merchant", tables: batzen_tables::merchant::ALL, sharing: Sharing::Shared };

/// The auditor.
pub const AUDITOR: Service =
    Service { schema: "auditor", tables: batzen_tables::auditor::ALL, sharing: Sharing::Shared };

/// The auditor's copy of an exchange's rows. Exclusive, because one process follows the exchange.
pub const AUDITOR_COPY: Service = Service {
    schema: "auditor_copy",
    tables: batzen_tables::auditor::copy::ALL,
    sharing: Sharing::Exclusive,
};

/// Where the rows are. Neither `Display` nor `Debug` shows a password.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process; they are lost when it ends.
    Memory,
    /// In a directory of this machine.
    Embedded {
        /// The directory; created if it is missing.
        dir: PathBuf,
        /// The memory for index entries, in MiB. Older entries are on disk only.
        index_memory_mib: u64,
    },
    /// In a PostgreSQL database.
    Postgres {
        /// The database's address, such as `postgres:///exchange`. May contain a password, so it is never
        /// shown.
        url: String,
        /// On a Citus cluster: whether what concerns shards goes straight to their workers. Otherwise it goes through the
        /// coordinator, as everything else.
        citus_direct: bool,
    },
}

impl StoreConfig {
    /// A directory.
    #[must_use]
    pub const fn embedded(dir: PathBuf) -> Self {
        Self::Embedded { dir, index_memory_mib: INDEX_MEMORY_MIB_DEFAULT }
    }

    /// A directory, or memory if there is none.
    #[must_use]
    pub fn in_directory(dir: Option<PathBuf>) -> Self {
        dir.map_or(Self::Memory, Self::embedded)
    }

    /// A database.
    #[must_use]
    pub const fn postgres(url: String) -> Self {
        Self::Postgres { url, citus_direct: true }
    }

    /// The same with the memory for index entries that a service's configuration says. It matters only to a
    /// directory.
    ///
    /// # Errors
    /// A number that is out of bounds.
    pub fn with_index_memory(self, ini: &Config, service: &str) -> Result<Self, ConfigError> {
        let section = format!("{service}db-embedded");
        match (self, ini.number_in(&section, "INDEX_MEMORY_MIB", INDEX_MEMORY_MIB)?) {
            (Self::Embedded { dir, .. }, Some(index_memory_mib)) => {
                Ok(Self::Embedded { dir, index_memory_mib })
            }
            (other, _) => Ok(other),
        }
    }

    /// The same with the way to the shards of a Citus cluster that a service's configuration says. It matters only to a
    /// database.
    ///
    /// # Errors
    /// Neither YES nor NO.
    pub fn with_citus_direct(self, ini: &Config, service: &str) -> Result<Self, ConfigError> {
        let section = format!("{service}db-postgres");
        match (self, ini.get(&section, "CITUS_DIRECT")?) {
            (Self::Postgres { url, .. }, Some(citus_direct)) => Ok(Self::Postgres { url, citus_direct }),
            (other, _) => Ok(other),
        }
    }

    /// Reads a service's database from its configuration; `None` if it names none.
    ///
    /// # Errors
    /// An unknown `DB`, or `postgres` without an address.
    pub fn database_of(ini: &Config, service: &str) -> Result<Option<Self>, ConfigError> {
        match ini.text(service, "DB") {
            None | Some("embedded") => Ok(None),
            Some("postgres") => {
                let url = ini.require::<String>(&format!("{service}db-postgres"), "CONFIG")?;
                Ok(Some(Self::postgres(url)))
            }
            Some(_) => Err(ini.invalid(service, "DB", "embedded or postgres")),
        }
    }

    /// The directory of an embedded store.
    #[must_use]
    pub const fn dir(&self) -> Option<&PathBuf> {
        match self {
            Self::Embedded { dir, .. } => Some(dir),
            Self::Memory | Self::Postgres { .. } => None,
        }
    }

    /// Returns whether the rows are in a database, which other processes and machines can reach.
    #[must_use]
    pub const fn is_database(&self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    /// Returns whether the rows are lost when the process ends.
    #[must_use]
    pub const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// The storage of a part of the service that has its own rows: a subdirectory, or the same database.
    #[must_use]
    pub fn part(&self, name: &str) -> Self {
        match self {
            Self::Embedded { dir, index_memory_mib } => {
                Self::Embedded { dir: dir.join(name), index_memory_mib: *index_memory_mib }
            }
            other => other.clone(),
        }
    }

    /// Prepares the storage before a service opens it for the first time, or in a newer version: creates or
    /// migrates the schema in a database. Idempotent.
    ///
    /// # Errors
    /// The database cannot be reached, or its schema belongs to another program.
    pub fn prepare(&self, service: &Service) -> Result<(), StoreError> {
        match self {
            // These are created when they are opened.
            Self::Memory | Self::Embedded { .. } => Ok(()),
            Self::Postgres { url, .. } => postgres::prepare(url, service),
        }
    }

    /// Opens the rows of a service for `writers` threads that commit at the same time.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has them open and they cannot be shared; otherwise why they
    /// cannot be read, with the command that helps.
    pub fn open(&self, service: &Service, writers: usize) -> Result<Store, StoreError> {
        match self {
            Self::Memory => Ok(Store::new(MemoryBackend::new())),
            // Any number of threads may commit to these.
            Self::Embedded { dir, index_memory_mib } => {
                let options = Options { index_hot_bytes: index_memory_mib << 20, ..Options::default() };
                EmbeddedStore::open(dir, service.tables, options).map(Store::new)
            }
            Self::Postgres { url, citus_direct } => postgres::open(url, *citus_direct, service, writers),
        }
    }

    /// Opens the rows of a service for a command that only reads. In a directory it changes nothing, not even if the
    /// service was killed or is older; so the directory may be read-only.
    ///
    /// # Errors
    /// As [`StoreConfig::open`].
    pub fn open_to_read(&self, service: &Service) -> Result<Store, StoreError> {
        match self {
            Self::Embedded { dir, index_memory_mib } => {
                let options = Options { index_hot_bytes: index_memory_mib << 20, ..Options::default() };
                EmbeddedStore::open_to_read(dir, service.tables, options).map(Store::new)
            }
            Self::Memory | Self::Postgres { .. } => self.open(service, 1),
        }
    }
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The address without user and password.
impl std::fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Embedded { dir, .. } => dir.display().fmt(f),
            // The `key=value` form may have the password anywhere.
            Self::Postgres { url, .. } => {
                let end = url.split_once("://").map_or("", |(_, end)| end);
                let end = end.rsplit_once('@').map_or(end, |(_, end)| end);
                write!(f, "postgres://{}", end.split('?').next().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use batzen_store::{ChangeSet, CommitOutcome};
    use batzen_tables::exchange::{AccountId, AccountKey, CursorRow, Cursors};

    use super::*;

    #[test]
    fn configuration_chooses_the_storage() {
        let chosen =
            |text: &str| StoreConfig::database_of(&Config::parse(text).expect("a configuration"), "bank");
        assert_eq!(chosen("[bank]\nDB = embedded\n").expect("a choice"), None);
        assert_eq!(chosen("").expect("the default"), None);
        let url = "postgres:///money".to_owned();
        let text = format!("[bank]\nDB = postgres\n[bankdb-postgres]\nCONFIG = {url}\n");
        assert_eq!(chosen(&text).expect("a choice"), Some(StoreConfig::postgres(url)));
        assert!(chosen("[bank]\nDB = postgres\n").is_err());
        assert!(chosen("[bank]\nDB = paper\n").is_err());
    }

    #[test]
    fn the_way_to_shards_of_citus_is_configured() {
        let database = || StoreConfig::postgres("postgres:///money".to_owned());
        let read = |place: StoreConfig, value: &str| {
            let text = format!("[exchangedb-postgres]\nCITUS_DIRECT = {value}\n");
            place.with_citus_direct(&Config::parse(&text).expect("a configuration"), "exchange")
        };
        let with = |citus_direct| StoreConfig::Postgres { url: "postgres:///money".to_owned(), citus_direct };
        assert_eq!(database(), with(true));
        assert_eq!(database().with_citus_direct(&Config::default(), "exchange").expect("none"), with(true));
        assert_eq!(read(database(), "NO").expect("a word"), with(false));
        assert_eq!(read(with(false), "YES").expect("a word"), with(true));
        assert!(read(database(), "perhaps").is_err());
        assert_eq!(read(StoreConfig::Memory, "NO").expect("memory"), StoreConfig::Memory);
    }

    #[test]
    fn memory_for_index_entries_is_configured() {
        let read = |text: &str| {
            let ini = Config::parse(text).expect("a configuration");
            StoreConfig::embedded("/data".into()).with_index_memory(&ini, "bank")
        };
        let with = |index_memory_mib| StoreConfig::Embedded { dir: "/data".into(), index_memory_mib };
        assert_eq!(read("").expect("the default"), with(1_024));
        let configured = read("[bankdb-embedded]\nINDEX_MEMORY_MIB = 64\n").expect("a number");
        assert_eq!(configured, with(64));
        assert_eq!(configured.part("ledger").to_string(), "/data/ledger");
        assert!(matches!(configured.part("ledger"), StoreConfig::Embedded { index_memory_mib: 64, .. }));
        let other = read("[exchangedb-embedded]\nINDEX_MEMORY_MIB = 64\n").expect("of another service");
        assert_eq!(other, with(1_024));
        for wrong in ["15", "1048577", "1 GiB", "-1", ""] {
            let text = format!("[bankdb-embedded]\nINDEX_MEMORY_MIB = {wrong}\n");
            assert!(read(&text).is_err(), "{wrong}");
        }
        let ini = Config::parse("[bankdb-embedded]\nINDEX_MEMORY_MIB = 64\n").expect("a configuration");
        let memory = StoreConfig::Memory.with_index_memory(&ini, "bank").expect("memory");
        assert_eq!(memory, StoreConfig::Memory);
        // The default is the store's own.
        assert_eq!(Options::default().index_hot_bytes, INDEX_MEMORY_MIB_DEFAULT << 20);
    }

    #[test]
    fn index_entries_that_exceed_the_memory_are_on_disk_only() {
        let memory_of = |index_memory_mib| {
            let dir = tempfile::tempdir().expect("a directory");
            let place = StoreConfig::Embedded { dir: dir.path().to_owned(), index_memory_mib };
            let store = place.open(&EXCHANGE, 1).expect("a store");
            let mut changes = ChangeSet::new();
            for number in 0..1_000_u64 {
                let key = AccountKey { account: AccountId::of_payto(&format!("payto://void/{number}")) };
                changes.insert::<Cursors>(&key, &CursorRow { bank_row: number });
            }
            assert_eq!(store.commit(&changes).expect("a commit"), CommitOutcome::Committed);
            store.checkpoint().expect("a checkpoint");
            let stats = store.stats();
            assert!(stats.index_files > 0 && stats.index_file_bytes > 0, "{stats:?}");
            store.close().expect("closing");
            stats.index_bytes
        };
        let (none, enough) = (memory_of(0), memory_of(INDEX_MEMORY_MIB_DEFAULT));
        // A thousand entries of 16 bytes; filters need about two for each.
        assert!(none + 12_000 < enough, "{none} {enough}");
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = |url: &str| StoreConfig::postgres(url.to_owned()).to_string();
        assert_eq!(shown("postgres://me:secret@db:5432/money?sslmode=require"), "postgres://db:5432/money");
        assert_eq!(shown("postgres:///money"), "postgres:///money");
        assert_eq!(shown("host=db password=secret"), "postgres://");
        let debug = format!("{:?}", StoreConfig::postgres("postgres://me:secret@db/money".to_owned()));
        assert!(!debug.contains("secret"), "{debug}");
    }

    #[test]
    fn reading_changes_nothing_in_a_directory() {
        let files = |dir: &std::path::Path| {
            let entries =
                std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
            let mut files: Vec<_> =
                entries.map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect();
            files.sort();
            files
        };
        let dir = tempfile::tempdir().expect("a directory");
        let place = StoreConfig::embedded(dir.path().join("store"));
        assert!(place.open_to_read(&EXCHANGE).is_err(), "it creates no store");
        let store = place.open(&EXCHANGE, 1).expect("a store");
        let key = AccountKey { account: AccountId([1; 8]) };
        let mut changes = ChangeSet::new();
        changes.insert::<Cursors>(&key, &CursorRow { bank_row: 7 });
        assert_eq!(store.commit(&changes).expect("a commit"), CommitOutcome::Committed);
        assert!(matches!(place.open_to_read(&EXCHANGE), Err(StoreError::InUse(_))), "while it is open");
        // The process ends without closing it.
        drop(store);
        let before = files(&dir.path().join("store"));
        let [one, two] = [(); 2].map(|()| place.open_to_read(&EXCHANGE).expect("readers share it"));
        for store in [&one, &two] {
            assert_eq!(store.get::<Cursors>(&key).expect("a row").map(|found| found.row.bank_row), Some(7));
        }
        assert!(matches!(place.open(&EXCHANGE, 1), Err(StoreError::InUse(_))), "while it is read");
        one.close().expect("closing");
        two.close().expect("closing");
        drop((one, two));
        assert!(files(&dir.path().join("store")) == before, "nothing has changed");
        place.open(&EXCHANGE, 1).expect("the store opens").close().expect("closing");
    }

    #[test]
    fn memory_and_directories_open() {
        let store = StoreConfig::Memory.open(&LEDGER, 1).expect("memory");
        store.close().expect("closing memory");
    }
}

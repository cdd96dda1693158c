//! The wallet file: SQLite, one row per record, one transaction per step.
//!
//! Records are JSON beside a few columns for viewing and sorting. The file is read once, when it is opened.
//! After that it follows the state in memory, change set by change set, each synced before anything is sent.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};
use zeroize::Zeroizing;

use crate::core::state::{Change, WalletState};

/// Version of the tables. `MIGRATIONS` has each step to it.
pub(crate) const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// Statements that migrate from version n to n + 1.
const MIGRATIONS: [&str; 3] = [
    "
    CREATE TABLE exchanges (
        base_url TEXT PRIMARY KEY NOT NULL,
        record TEXT NOT NULL
    ) STRICT;
    CREATE TABLE operations (
        id INTEGER PRIMARY KEY NOT NULL,
        exchange TEXT NOT NULL REFERENCES exchanges (base_url) DEFERRABLE INITIALLY DEFERRED,
        kind TEXT NOT NULL,
        created_s INTEGER NOT NULL,
        finished_s INTEGER,
        record TEXT NOT NULL
    ) STRICT;
    CREATE INDEX operations_open ON operations (id) WHERE finished_s IS NULL;
    CREATE TABLE coins (
        coin_pub TEXT PRIMARY KEY NOT NULL,
        exchange TEXT NOT NULL REFERENCES exchanges (base_url) DEFERRABLE INITIALLY DEFERRED,
        operation INTEGER NOT NULL REFERENCES operations (id) DEFERRABLE INITIALLY DEFERRED,
        status TEXT NOT NULL,
        remaining TEXT NOT NULL,
        record TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
",
    "
    CREATE TABLE evidence (
        id INTEGER PRIMARY KEY NOT NULL,
        exchange TEXT NOT NULL,
        operation INTEGER,
        first_seen_s INTEGER NOT NULL,
        settled_s INTEGER,
        record TEXT NOT NULL
    ) STRICT;
",
    "
    CREATE TABLE orders (
        merchant TEXT NOT NULL,
        order_id TEXT NOT NULL,
        created_s INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (merchant, order_id)
    ) STRICT, WITHOUT ROWID;
",
];

/// Marks the file as a Batzen wallet in SQLite's header (\"Btzn\").
const APPLICATION_ID: i32 = 0x4274_7a6e;

/// Errors of the wallet file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite failed.
    #[error("the wallet file failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file could not be opened or created.
    #[error("cannot open {path}: {source}")]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// Another process uses this wallet.
    #[error("{0} is in use by another process; wait for it or stop it (reading commands work meanwhile)")]
    InUse(PathBuf),
    /// The file is not a wallet file.
    #[error("{0} is not a wallet file")]
    NotAWallet(PathBuf),
    /// A newer version wrote the file.
    #[error("{path} has format {found}, this version knows formats up to {known}; use a newer version")]
    TooNew {
        /// Path of the file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this version knows.
        known: u32,
    },
    /// A record does not parse.
    #[error("damaged record in table {table}: {reason}; restore a backup")]
    Damaged {
        /// The table.
        table: &'static str,
        /// Reason.
        reason: String,
    },
    /// The wallet was opened for reading only.
    #[error("the wallet is open read-only")]
    ReadOnly,
}

/// An open wallet file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    read_only: bool,
    /// Locked while the store is open: one writer at a time.
    _lock: Option<File>,
}

impl Store {
    /// Opens or creates the file for writing, readable by its owner only.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let open_error = |source| StoreError::Open { path: path.to_owned(), source };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            create_private_dir(parent).map_err(open_error)?;
        }
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = private_file(Path::new(&lock_path)).map_err(open_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(open_error(source)),
        }
        // SQLite gives its journal files the mode of the database file, so this protects them too.
        drop(private_file(path).map_err(open_error)?);
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        Self::prepare(connection, path, Some(lock))
    }

    /// Opens an existing file for reading, even while another process writes to it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let store = Self { connection, read_only: true, _lock: None };
        let version = store.check_identity(path)?;
        if version != SCHEMA_VERSION {
            return Err(StoreError::TooNew { path: path.to_owned(), found: version, known: SCHEMA_VERSION });
        }
        Ok(store)
    }

    fn prepare(connection: Connection, path: &Path, lock: Option<File>) -> Result<Self, StoreError> {
        connection.busy_timeout(Duration::from_secs(5))?;
        let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        debug_assert!(mode == "wal" || mode == "memory");
        // FULL: with a write-ahead log, each commit is synced before it returns.
        connection.execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON; PRAGMA trusted_schema = OFF;",
        )?;
        // A process killed during a commit's sync leaves a commit that SQLite shows but that a power loss
        // would remove. A checkpoint syncs the log, then the file.
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        let mut store = Self { connection, read_only: false, _lock: lock };
        let version = store.check_identity(path)?;
        store.migrate(version)?;
        Ok(store)
    }

    fn check_identity(&self, path: &Path) -> Result<u32, StoreError> {
        let identity: i32 = self.connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let version: u32 = self.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let tables: u32 =
            self.connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if identity != APPLICATION_ID && (identity != 0 || version != 0 || tables != 0) {
            return Err(StoreError::NotAWallet(path.to_owned()));
        }
        if version > SCHEMA_VERSION {
            return Err(StoreError::TooNew { path: path.to_owned(), found: version, known: SCHEMA_VERSION });
        }
        Ok(version)
    }

    fn migrate(&mut self, from: u32) -> Result<(), StoreError> {
        for (step, statements) in MIGRATIONS.iter().enumerate().skip(from as usize) {
            let transaction = self.connection.transaction()?;
            transaction.execute_batch(statements)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", step as u32 + 1)?;
            transaction.commit()?;
        }
        Ok(())
    }

    /// Reads all records of the file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if a record does not parse.
    pub(crate) fn load(&self) -> Result<WalletState, StoreError> {
        let mut state = WalletState::default();
        for table in ["exchanges", "operations", "coins", "evidence", "orders"] {
            let mut statement = self.connection.prepare(&format!("SELECT record FROM {table}"))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let record = Zeroizing::new(row.get::<_, String>(0)?);
                let damaged =
                    |error: serde_json::Error| StoreError::Damaged { table, reason: error.to_string() };
                let change = match table {
                    "exchanges" => Change::Exchange(serde_json::from_str(&record).map_err(damaged)?),
                    "operations" => Change::Operation(serde_json::from_str(&record).map_err(damaged)?),
                    "evidence" => Change::Evidence(serde_json::from_str(&record).map_err(damaged)?),
                    "orders" => Change::Order(serde_json::from_str(&record).map_err(damaged)?),
                    _ => Change::Coin(serde_json::from_str(&record).map_err(damaged)?),
                };
                state.apply(change);
            }
        }
        Ok(state)
    }

    /// Writes `changes` in one transaction. They are on disk when this returns.
    ///
    /// # Errors
    /// If SQLite fails. Then the file contains none of them.
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        let transaction = self.connection.transaction()?;
        for change in changes {
            match change {
                Change::Exchange(exchange) => {
                    let record = to_text(exchange);
                    transaction
                        .prepare_cached(
                            "INSERT INTO exchanges (base_url, record) VALUES (?1, ?2)
                             ON CONFLICT (base_url) DO UPDATE SET record = ?2",
                        )?
                        .execute(params![exchange.base_url, *record])?;
                }
                Change::Operation(operation) => {
                    let record = to_text(operation);
                    transaction
                        .prepare_cached(
                            "INSERT INTO operations (id, exchange, kind, created_s, finished_s, record)
                             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                             ON CONFLICT (id) DO UPDATE SET finished_s = ?5, record = ?6",
                        )?
                        .execute(params![
                            operation.id as i64,
                            operation.exchange,
                            operation.kind.name(),
                            operation.created.as_secs().unwrap_or(0) as i64,
                            operation.finished.map(|time| time.as_secs().unwrap_or(0) as i64),
                            *record
                        ])?;
                }
                Change::Coin(coin) => {
                    let record = to_text(coin);
                    transaction
                        .prepare_cached(
                            "INSERT INTO coins (coin_pub, exchange, operation, status, remaining, record)
                             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                             ON CONFLICT (coin_pub) DO UPDATE SET status = ?4, remaining = ?5, record = ?6",
                        )?
                        .execute(params![
                            coin.coin_pub.to_string(),
                            coin.exchange,
                            coin.source.operation() as i64,
                            format!("{:?}", coin.status).to_lowercase(),
                            coin.remaining.to_string(),
                            *record
                        ])?;
                }
                Change::Evidence(evidence) => {
                    let record = to_text(evidence);
                    transaction
                        .prepare_cached(
                            "INSERT INTO evidence (id, exchange, operation, first_seen_s, settled_s, record)
                             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                             ON CONFLICT (id) DO UPDATE SET settled_s = ?5, record = ?6",
                        )?
                        .execute(params![
                            evidence.id as i64,
                            evidence.exchange,
                            evidence.operation.map(|id| id as i64),
                            evidence.first_seen.as_secs().unwrap_or(0) as i64,
                            evidence.settled.map(|time| time.as_secs().unwrap_or(0) as i64),
                            *record
                        ])?;
                }
                Change::Order(order) => {
                    let record = to_text(order);
                    transaction
                        .prepare_cached(
                            "INSERT INTO orders (merchant, order_id, created_s, record)
                             VALUES (?1, ?2, ?3, ?4)
                             ON CONFLICT (merchant, order_id) DO UPDATE SET record = ?4",
                        )?
                        .execute(params![
                            order.merchant_base_url,
                            order.order_id,
                            order.created.as_secs().unwrap_or(0) as i64,
                            *record
                        ])?;
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn to_text(record: &impl serde::Serialize) -> Zeroizing<String> {
    Zeroizing::new(
        serde_json::to_string(record).expect("records have texts as keys and no floating-point numbers"),
    )
}

/// Opens or creates a file that only its owner can read.
fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn create_private_dir(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(store: &Store, pragma: &str) -> i64 {
        store.connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).unwrap()
    }

    /// Everything that a step has answered must survive a power loss. SQLite promises that under this
    /// setting.
    #[test]
    fn commits_are_synced() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("wallet.db")).unwrap();
        let mode: String = store.connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        assert_eq!(number(&store, "synchronous"), 2, "FULL");
        assert_eq!(number(&store, "foreign_keys"), 1);
        assert_eq!(number(&store, "secure_delete"), 1);
        assert_eq!(number(&store, "trusted_schema"), 0);
    }

    /// Files of earlier versions are migrated when they are opened, and keep their records.
    #[test]
    fn files_of_earlier_versions_are_migrated() {
        for version in 1..MIGRATIONS.len() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("wallet.db");
            {
                let connection = Connection::open(&path).unwrap();
                for statements in &MIGRATIONS[..version] {
                    connection.execute_batch(statements).unwrap();
                }
                connection.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
                connection.pragma_update(None, "user_version", version as u32).unwrap();
                connection
                    .execute("INSERT INTO exchanges VALUES ('https://exchange/', '{\"kept\": true}')", [])
                    .unwrap();
            }
            let store = Store::open(&path).unwrap();
            assert_eq!(number(&store, "user_version"), i64::from(SCHEMA_VERSION));
            for (table, rows) in [("exchanges", 1), ("operations", 0), ("evidence", 0), ("orders", 0)] {
                let query = format!("SELECT count(*) FROM {table}");
                let count: u32 = store.connection.query_row(&query, [], |row| row.get(0)).unwrap();
                assert_eq!(count, rows, "{table} from version {version}");
            }
        }
    }

    /// Commits of a killed process are in the file itself, synced, before the next process answers anything.
    #[test]
    fn opening_syncs_the_log_of_a_killed_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let killed = Store::open(&path("wallet.db")).unwrap();
        killed.connection.execute("INSERT INTO exchanges VALUES ('https://exchange/', '{}')", []).unwrap();
        for suffix in ["", "-wal"] {
            std::fs::copy(path(&format!("wallet.db{suffix}")), path(&format!("next.db{suffix}"))).unwrap();
        }
        let next = Store::open(&path("next.db")).unwrap();
        // The file without its write-ahead log.
        std::fs::copy(path("next.db"), path("alone.db")).unwrap();
        let alone = Store::open(&path("alone.db")).unwrap();
        let count = |store: &Store| -> u32 {
            store.connection.query_row("SELECT count(*) FROM exchanges", [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count(&next), count(&alone)), (1, 1));
    }
}

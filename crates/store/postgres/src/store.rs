//! Opening the backend, and its implementation of the trait.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use batzen_metrics::{Histogram, Page};
use batzen_store::{
    Backend, ChangeSet, CommitOutcome, FrozenRows, RawRecord, RawRow, Read, ReadAnswer, Result, StoreError,
    StoreStats, Subscriber, TableDef,
};

use crate::Target;
use crate::citus::recover::Recovery;
use crate::database::Database;
use crate::listen::{Listener, take_lock};
use crate::options::{PgOptions, Sharing};
use crate::schema::{self, Upkeep};
use crate::sizes::sizes;

/// Opens a store whose schema `dbinit` has created.
///
/// # Errors
/// [`StoreError::Unavailable`] if the server cannot be reached, [`StoreError::InUse`] if another process has
/// the store exclusively, [`StoreError::Backend`] if the schema is missing or has another version; the
/// message contains the command that helps.
pub fn open(options: &PgOptions) -> Result<PostgresStore> {
    let application = format!("batzen-{}", options.schema);
    let target = Target::parse(&options.url)?.application(&application).read_write();
    let mut connection = crate::Connection::open_session(&target)?;
    let meta = schema::check(&mut connection, &options.schema, options.tables)?;
    drop(connection);
    let mut database = Database::new(target, options.clone(), &meta)?;
    // The session of a killed process ends a moment later.
    let until = Instant::now() + options.away_max;
    let mut locked = loop {
        match take_lock(&database)? {
            (locked, true) => break locked,
            (_, false) if Instant::now() > until => {
                let what = format!("schema {} of {}", options.schema, database.target.database());
                return Err(StoreError::InUse(what.into()));
            }
            (_, false) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    // The first read was before the lock was taken, so dbinit may have run in between.
    if !database.is_ours(&mut locked)? {
        return Err(StoreError::Unavailable("the schema was changed while it was opened".into()));
    }
    database.refresh_placement(&mut locked)?;
    if options.sharing == Sharing::Exclusive {
        database.take_over(&mut locked)?;
    }
    let database = Arc::new(database);
    let listener = Listener::start(Arc::clone(&database), locked)?;
    let upkeep = Upkeep::start(&database.target, &options.schema, options.tables);
    let upkeep = upkeep.map_err(|error| StoreError::Backend(format!("start a thread: {error}")))?;
    let recovery = match &database.citus {
        Some(_) => Recovery::start(&database).map(Some),
        None => Ok(None),
    };
    let recovery = recovery.map_err(|error| StoreError::Backend(format!("start a thread: {error}")))?;
    Ok(PostgresStore { database, listener, upkeep, _recovery: recovery })
}

/// A store in a PostgreSQL database. Created by [`open`].
pub struct PostgresStore {
    database: Arc<Database>,
    listener: Listener,
    upkeep: Upkeep,
    /// Ends with the store.
    _recovery: Option<Recovery>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "schema {} of {:?}", self.database.options.schema, self.database.target)
    }
}

impl PostgresStore {
    fn one(&self, read: Read) -> Result<ReadAnswer> {
        let mut answers = self.database.read_many(&[read])?;
        Ok(answers.pop().expect("one answer for one read"))
    }
}

/// The round trips that are measured: the shortest is without the first one's set-up and without other work.
const ROUND_TRIPS: usize = 8;

impl Backend for PostgresStore {
    fn get_many(&self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<Vec<Option<RawRow>>> {
        match self.one(Read::Rows { table, keys: keys.to_vec() })? {
            ReadAnswer::Rows(rows) => Ok(rows),
            _ => unreachable!("answers are of the kind of their reads"),
        }
    }

    fn lookup_many(
        &self,
        table: &'static TableDef,
        index: u8,
        values: &[Vec<u8>],
    ) -> Result<Vec<Vec<RawRecord>>> {
        match self.one(Read::Groups { table, index, values: values.to_vec() })? {
            ReadAnswer::Groups(groups) => Ok(groups),
            _ => unreachable!("answers are of the kind of their reads"),
        }
    }

    fn range(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
        descending: bool,
    ) -> Result<Vec<RawRecord>> {
        let (from, to) = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
        match self.one(Read::Range { table, index, from, to, limit, descending })? {
            ReadAnswer::Range(rows) => Ok(rows),
            _ => unreachable!("answers are of the kind of their reads"),
        }
    }

    fn read_many(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        self.database.read_many(reads)
    }

    fn positions(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.database.positions(table, index, from, to, visit)
    }

    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()> {
        self.database.freeze(&[table])?.scan(table, visit)
    }

    fn freeze(&self, tables: &[&'static TableDef]) -> Result<Box<dyn FrozenRows>> {
        Ok(Box::new(self.database.freeze(tables)?))
    }

    fn count(&self, table: &'static TableDef) -> Result<u64> {
        self.database.count_rows(table)
    }

    fn count_estimate(&self, table: &'static TableDef) -> Result<u64> {
        let sizes = sizes(&self.database)?;
        sizes.rows.get(&table.id).copied().map_or_else(|| self.database.count_rows(table), Ok)
    }

    fn vshard(&self, shard_key: &[u8]) -> u16 {
        self.database.vshard_of(shard_key)
    }

    fn lane(&self, shard_key: &[u8], lanes: usize) -> usize {
        self.database.lane(self.database.vshard_of(shard_key), lanes)
    }

    fn lanes_wanted(&self) -> Option<usize> {
        self.database.nodes_with_shards()
    }

    fn round_trip(&self) -> Option<Duration> {
        let measure = |connection: &mut crate::Connection| {
            let mut shortest = Duration::MAX;
            for _ in 0..ROUND_TRIPS {
                let begun = Instant::now();
                connection.query_text("SELECT 1")?;
                shortest = shortest.min(begun.elapsed());
            }
            Ok(shortest)
        };
        self.database.with_reader(measure).ok()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn notify(&self, topics: &[String]) {
        self.listener.notify(topics);
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.listener.subscribe(subscriber);
    }

    /// Asks the server for a value.
    fn check_writable(&self) -> Result<()> {
        let in_recovery = self.database.with_reader(|connection| {
            let rows = connection.query_text("SELECT pg_is_in_recovery()")?;
            Ok(rows.first().and_then(|row| row.first()?.as_deref()) == Some("t"))
        })?;
        if in_recovery {
            return Err(StoreError::Unavailable("the server is a standby, which is read-only".into()));
        }
        Ok(())
    }

    fn write_metrics(&self, page: &mut Page) {
        self.database.counters.write(page);
        self.upkeep.write_metrics(page);
        let connections = self.database.connections();
        page.gauge(
            "batzen_postgres_connections",
            "Connections to PostgreSQL that read or commit",
            connections,
        );
    }

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        self.database.commit(changes)
    }

    /// The latest sizes from the server; `None` if there are none yet.
    fn stats(&self) -> StoreStats {
        let database = &self.database;
        let sizes = sizes(database).unwrap_or_default();
        let (_, waited_ns) = database.counters.commit_times.reading();
        StoreStats {
            rows: sizes.rows.values().sum(),
            commits_total: database.counters.commits.get(),
            changes_total: database.counters.changes.get(),
            sync_us_total: waited_ns / 1_000,
            disk_bytes: sizes.bytes,
            live_bytes: sizes.bytes,
            ..StoreStats::default()
        }
    }

    fn sync_times(&self) -> Option<&Histogram> {
        Some(&self.database.counters.commit_times)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.database.closed.store(true, Ordering::Release);
        self.database.drop_connections();
        Ok(())
    }
}

//! The opened database: its tables' statements, its connections, and how long to wait for an unreachable
//! server.

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batzen_store::{DecodeError, Result, StoreError, TableDef};
use siphasher::sip::SipHasher24;

use crate::citus::clock::Clock;
use crate::citus::direct::{self, Direct};
use crate::citus::placement::Shard;
use crate::citus::{self, Citus};
use crate::client::{Connection, PgError, ServerError, Statement, Target};
use crate::counters::Counters;
use crate::layout::{Layout, quoted};
use crate::options::{PgOptions, Sharing};
use crate::pool::Pool;
use crate::schema::citus::{CLOCK_SHIFT, CLOCKS, WRITERS};
use crate::schema::meta::EPOCH_COUNT;
use crate::schema::{Meta, lock_key};
use crate::sizes::Known;
use crate::statements::{Dialect, SESSION, Statements};
use crate::writer::Writer;

/// A connection is replaced after this many pipelines or this time: the server's memory for it grows with
/// use, and plans that were made when tables were small should be made again.
const USES_MAX: u64 = 100_000;
const AGE_MAX: Duration = Duration::from_secs(600);

/// The first wait before another attempt. Each further one is twice as long, up to the last.
const WAIT_FIRST: Duration = Duration::from_millis(2);
const WAIT_LAST: Duration = Duration::from_millis(250);

/// Number of times that a transaction that conflicted with another one is run again.
const RETRIES_MAX: u32 = 20;

/// Number of commits that may go through the coordinator of a Citus cluster at a time.
const CITUS_WRITERS: usize = 16;

/// Time that a statement that normally takes milliseconds may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Statements that belong to no table.
pub(crate) struct Texts {
    /// The oldest running transaction as of the snapshot.
    pub(crate) horizon: Statement,
    /// The snapshot's oldest and next transaction, followed by each one running in this database.
    pub(crate) transactions: String,
    pub(crate) writer: Statement,
    pub(crate) fence: String,
    /// The start of the condition that leads to a row in `writers`.
    pub(crate) of_writer: String,
}

pub(crate) struct Database {
    pub target: Target,
    pub options: PgOptions,
    tables: Vec<Statements>,
    sip_key: [u8; 16],
    pub(crate) serial_base: i64,
    /// Marks the versions of this store.
    pub tag: u32,
    pub texts: Texts,
    readers: Pool<Connection>,
    pub writers: Pool<Writer>,
    pub counters: Arc<Counters>,
    pub closed: Arc<AtomicBool>,
    /// A condition on `meta` that holds as long as the schema is the one that was opened.
    identity: String,
    /// The row in `writers` of an exclusive store's owner, and its epoch, which another process increases to
    /// take over the store.
    pub owner: Option<(i64, i64)>,
    /// Set permanently once another process has taken over an exclusive store, or the schema is no longer the
    /// one that was opened.
    pub lost: Arc<AtomicBool>,
    /// Readings of the shards' clocks that this process has seen.
    pub clock: Arc<Clock>,
    /// The state for distributed tables, if they are distributed.
    pub citus: Option<Citus<Self>>,
    /// The state for the way to one shard of such tables, if this is one.
    pub direct: Option<Direct>,
    /// The latest known sizes of the tables.
    pub sizes: Known,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "schema {} of {:?}", self.options.schema, self.target)
    }
}

impl Database {
    pub(crate) fn new(target: Target, options: PgOptions, meta: &Meta) -> Result<Self> {
        let schema = quoted(&options.schema);
        let dialect = if meta.citus { Dialect::Citus } else { Dialect::Plain };
        let mut tables = options
            .tables
            .iter()
            .map(|def| {
                let layout = Layout::new(def, &options.schema, meta.partitions);
                layout.map(|layout| Statements::of(layout, dialect))
            })
            .collect::<Result<Vec<_>>>()?;
        tables.sort_by_key(|statements| statements.layout.def.id);
        let citus = meta.citus.then(|| Citus::new(&options.schema));
        let texts = Texts {
            horizon: Statement::new("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint".into()),
            transactions: "SELECT pg_snapshot_xmin(s)::text, pg_snapshot_xmax(s)::text FROM pg_current_snapshot() s \
                UNION ALL SELECT (a.query = '<insufficient privilege>')::text, a.backend_xid::text FROM pg_stat_activity a \
                WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() \
                AND (a.backend_xid IS NOT NULL OR a.query = '<insufficient privilege>') \
                UNION ALL SELECT 'false', p.transaction::text FROM pg_prepared_xacts p WHERE p.database = current_database()"
                .into(),
            writer: Statement::new(format!(
                "WITH done AS (UPDATE {schema}.writers SET batch = $1::bigint, seen = now() WHERE writer_id = $2::bigint AND \
                 epoch = $3::bigint RETURNING 1) SELECT {schema}.expect(count(*), 1, 'BZ002') FROM done"
            )),
            fence: format!("UPDATE {schema}.writers SET epoch = epoch + 1, seen = now()"),
            of_writer: String::new(),
        };
        let mut hasher = SipHasher24::new();
        hasher.write(&meta.store_id);
        // It must never equal the mark of unknown versions.
        let tag = u32::try_from(hasher.finish() >> 33).expect("31 bits") | 1 << 31;
        let identity = format!(
            "FROM {schema}.meta WHERE store_id = '\\x{:032x}' AND schema_version = {}",
            u128::from_be_bytes(meta.store_id),
            meta.schema_version
        );
        Ok(Self {
            target,
            identity,
            tables,
            sip_key: meta.sip_key,
            serial_base: meta.serial_base,
            tag,
            texts,
            readers: Pool::new(options.readers),
            // On Citus, there are more lanes than the caller knew.
            writers: Pool::new(options.writers.max(if citus.is_some() { CITUS_WRITERS } else { 0 })),
            counters: Arc::new(Counters::new()),
            closed: Arc::default(),
            owner: None,
            lost: Arc::default(),
            sizes: Known::default(),
            clock: Arc::default(),
            citus,
            direct: None,
            options,
        })
    }

    /// The way to a shard of these tables that does not go through the coordinator; `None` if there is none.
    fn way_to(&self, place: u16, shard: &Shard) -> Option<Arc<Self>> {
        // The owner of an exclusive store proves with each commit in the coordinator that it is still the owner.
        if !self.options.at_shards || self.options.sharing == Sharing::Exclusive {
            return None;
        }
        let direct = Direct::new(&self.options.schema, shard)?;
        let number = format!("{} << {}", Direct::number(&self.options.schema, shard)?, CLOCK_SHIFT);
        let tables = self.tables.iter().map(|statements| {
            let layout = statements.layout.at_shard(&shard.tables)?;
            Some(Statements::numbered(layout, Dialect::Shard, &number))
        });
        let tables = tables.collect::<Option<Vec<_>>>()?;
        let schema = quoted(&self.options.schema);
        let texts = Texts {
            horizon: self.texts.horizon.clone(),
            transactions: self.texts.transactions.clone(),
            writer: self.texts.writer.clone(),
            fence: format!("UPDATE {schema}.{WRITERS} SET epoch = epoch + 1, seen = now()"),
            of_writer: format!("vshard = {} AND ", direct.vshard),
        };
        Some(Arc::new(Self {
            target: self.target.at(&shard.host, shard.port),
            options: self.options.clone(),
            tables,
            sip_key: self.sip_key,
            serial_base: self.serial_base + citus::serial_of_place(Some(place)),
            tag: self.tag,
            texts,
            readers: Pool::new(self.options.readers),
            writers: Pool::new(self.options.writers),
            counters: Arc::clone(&self.counters),
            closed: Arc::clone(&self.closed),
            identity: self.identity.clone(),
            owner: None,
            lost: Arc::clone(&self.lost),
            clock: Arc::clone(&self.clock),
            citus: None,
            direct: Some(direct),
            sizes: Known::default(),
        }))
    }

    /// Reads again where the shards are, if the tables are distributed.
    pub(crate) fn refresh_placement(&self, connection: &mut Connection) -> std::result::Result<(), PgError> {
        let Some(citus) = &self.citus else { return Ok(()) };
        citus.refresh(connection, &|place, shard| self.way_to(place, shard), &|way: &Self| {
            !way.direct().has_moved()
        })?;
        let text = format!("SELECT max(number) FROM {}.{}", quoted(&self.options.schema), CLOCKS);
        let rows = connection.query_text(&text)?;
        let number = rows.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
        self.clock.saw(number.ok_or_else(|| PgError::protocol("shards without clocks: run dbinit --citus"))?);
        Ok(())
    }

    pub(crate) fn statements(&self, table: &TableDef) -> Result<&Statements> {
        let at = self.tables.binary_search_by_key(&table.id, |statements| statements.layout.def.id);
        let unknown = || StoreError::Backend(format!("the store was not opened with table {}", table.name));
        at.map(|at| &self.tables[at]).map_err(|_| unknown())
    }

    pub(crate) fn tables(&self) -> &[Statements] {
        &self.tables
    }

    pub(crate) fn vshard(&self, table: &TableDef, key: &[u8]) -> u16 {
        self.vshard_of(table.shard_key(key))
    }

    pub(crate) fn vshard_of(&self, shard_key: &[u8]) -> u16 {
        batzen_store::vshard(&self.sip_key, shard_key)
    }

    /// The statements for the shard to which this connection leads.
    pub(crate) fn direct(&self) -> &Direct {
        self.direct.as_ref().expect("it is the way to a shard")
    }

    /// Returns whether the tables are distributed.
    pub(crate) fn is_distributed(&self) -> bool {
        self.citus.is_some() || self.direct.is_some()
    }

    /// Takes note of the serial of a row that was read.
    pub(crate) fn saw(&self, serial: u64) {
        if self.is_distributed() {
            self.clock.saw_serial(serial.cast_signed() - self.serial_base);
        }
    }

    /// The entry of a value in a hash index.
    pub(crate) fn hash(&self, value: &[u8]) -> i64 {
        let mut hasher = SipHasher24::new_with_key(&self.sip_key);
        hasher.write(value);
        hasher.finish().cast_signed()
    }

    /// A new connection that is set up for the statements.
    pub(crate) fn connect(&self) -> std::result::Result<Connection, PgError> {
        let mut connection = Connection::open(&self.target)?;
        connection.set_timeout(ANSWER_MAX);
        // Overrides settings of the role or the database: a session may be idle while it waits for work. (A
        // server that is read-only by default is one that others have fenced off.)
        let session = if self.citus.is_some() { citus::SESSION } else { SESSION };
        // By itself, so that it counts for the next one.
        connection.script("SET statement_timeout = 0")?;
        connection.script(&format!(
            "{session}; SET default_transaction_deferrable = off; SET array_nulls = on; \
             SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN \
             ('lock_timeout', 'transaction_timeout', 'idle_session_timeout')"
        ))?;
        if let Some(direct) = &self.direct {
            connection.script(direct::SESSION)?;
            direct.check_node(&mut connection)?;
        }
        Ok(connection)
    }

    /// Returns whether a connection is due for replacement.
    pub(crate) fn is_worn(&self, connection: &Connection) -> bool {
        connection.uses >= USES_MAX || connection.opened.elapsed() >= AGE_MAX
    }

    /// Reads on a connection of the pool. Retries until the deadline while the server is unreachable.
    pub(crate) fn with_reader<T>(
        &self,
        mut read: impl FnMut(&mut Connection) -> std::result::Result<T, PgError>,
    ) -> Result<T> {
        let mut patience = self.patience();
        loop {
            if self.lost.load(Ordering::Acquire) {
                return Err(self.is_lost());
            }
            let mut place = self.readers.take(patience.until).ok_or_else(no_connection)?;
            let attempt = match place.item.take().filter(|connection| !self.is_worn(connection)) {
                Some(connection) => Ok(connection),
                // One snapshot for the whole pipeline, and no accidental writes.
                None => self.connect().and_then(|mut connection| {
                    connection.script(
                        "SET default_transaction_isolation = 'repeatable read'; SET default_transaction_read_only = on; \
                         SET statement_timeout = '60s'",
                    )?;
                    Ok(connection)
                }),
            };
            let result = attempt.and_then(|mut connection| {
                let statements = connection.statements;
                let result = read(&mut connection);
                self.count(&connection, statements);
                if connection.is_broken() {
                    // The connection is lost, or its plans are outdated: use a new one.
                    self.counters.reconnects.inc();
                } else {
                    place.item = Some(connection);
                }
                result
            });
            // Return the place to the pool before waiting.
            drop(place);
            let error = match result {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if error.is_away() {
                // The server has ended the idle connections, too.
                self.readers.clear();
            }
            patience.wait(error)?;
        }
    }

    pub(crate) fn count(&self, connection: &Connection, statements_before: u64) {
        self.counters.statements.add(connection.statements - statements_before);
        self.counters.round_trips.inc();
    }

    /// The ways to single shards.
    fn ways(&self) -> Vec<Arc<Self>> {
        let nodes = self.citus.as_ref().map(Citus::nodes);
        nodes.iter().flat_map(|nodes| nodes.ways.iter().flatten().cloned()).collect()
    }

    pub(crate) fn drop_connections(&self) {
        self.readers.clear();
        self.writers.clear();
        self.ways().iter().for_each(|way| way.drop_connections());
    }

    pub(crate) fn connections(&self) -> usize {
        let ways: usize = self.ways().iter().map(|way| way.connections()).sum();
        self.readers.len() + self.writers.len() + ways
    }

    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience {
            database: self,
            until: Instant::now() + self.options.away_max,
            wait: WAIT_FIRST,
            retries: 0,
        }
    }

    /// Makes this process the only one that writes: a previous owner that has not yet noticed the loss of the
    /// lock can no longer write. Runs in the session that holds the lock, so that no other process does the
    /// same.
    pub(crate) fn take_over(&mut self, locked: &mut Connection) -> Result<()> {
        locked.script(&self.texts.fence)?;
        self.owner = Some(self.register_row(locked)?.ok_or_else(|| self.is_lost())?);
        Ok(())
    }

    /// Adds a row to `writers` and returns its number and epoch. `None` if this process no longer owns the
    /// store.
    ///
    /// Epochs start at a random number, so that a writer of a dropped schema never mistakes another writer's
    /// row for its own.
    pub(crate) fn register_row(
        &self,
        connection: &mut Connection,
    ) -> std::result::Result<Option<(i64, i64)>, PgError> {
        let schema = quoted(&self.options.schema);
        let node = self.options.node.replace('\'', "''");
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch)
            .map_err(|error| PgError::protocol(format!("no random numbers: {error}")))?;
        let epoch = i64::from_be_bytes(epoch) & !EPOCH_COUNT;
        // Do not register while dbinit runs, because it deletes all earlier writers.
        let is_allowed = match self.options.sharing {
            Sharing::Shared => {
                format!("pg_try_advisory_xact_lock_shared({})", lock_key(&self.options.schema))
            }
            Sharing::Exclusive => "true".to_owned(),
        };
        if self.citus.is_some() {
            return self.register_on_citus(connection, epoch, &is_allowed, &node);
        }
        if let Some(direct) = &self.direct {
            let registered = self.register_at_shard(connection, direct.vshard, epoch, &node);
            return registered.inspect_err(|error| direct.note(error));
        }
        // As long as the owner's row is unchanged, no other process has taken over the store. The lock on the
        // row prevents a takeover meanwhile.
        let owned =
            self.owner.map(|owner| format!(" FROM {} FOR SHARE", self.owner_row(owner))).unwrap_or_default();
        let rows = connection.query_text(&format!(
            "SELECT {is_allowed}, EXISTS (SELECT {}); INSERT INTO {schema}.writers (epoch, batch, node, seen) \
             SELECT {epoch}, 0, '{node}', now(){owned} RETURNING writer_id",
            self.identity
        ))?;
        let is_true = |at: usize| rows.first()?.get(at)?.as_deref().map(|text| text == "t");
        match (is_true(0), is_true(1)) {
            (Some(true), Some(true)) => {}
            (Some(false), _) => return Err(dbinit_runs()),
            _ => return Ok(None),
        }
        let Some(row) = rows.get(1) else { return Ok(None) };
        writer_id(row).map(|id| Some((id, epoch)))
    }

    /// As [`Database::register_row`]: Citus does not lock rows in a statement that inserts others.
    fn register_on_citus(
        &self,
        connection: &mut Connection,
        epoch: i64,
        is_allowed: &str,
        node: &str,
    ) -> std::result::Result<Option<(i64, i64)>, PgError> {
        let schema = quoted(&self.options.schema);
        connection.script("BEGIN")?;
        let rows = connection.query_text(&format!("SELECT {is_allowed}"))?;
        if rows.first().and_then(|row| row.first()?.as_deref()) != Some("t") {
            connection.script("ROLLBACK")?;
            return Err(dbinit_runs());
        }
        let mut conditions = vec![format!("SELECT 1 {}", self.identity)];
        conditions
            .extend(self.owner.map(|owner| format!("SELECT 1 FROM {} FOR SHARE", self.owner_row(owner))));
        for condition in conditions {
            if connection.query_text(&condition)?.is_empty() {
                connection.script("ROLLBACK")?;
                return Ok(None);
            }
        }
        let rows = connection.query_text(&format!(
            "INSERT INTO {schema}.writers (epoch, batch, node, seen) VALUES ({epoch}, 0, '{node}', now()) RETURNING writer_id"
        ))?;
        connection.script("COMMIT")?;
        rows.first().map_or(Ok(None), |row| writer_id(row).map(|id| Some((id, epoch))))
    }

    /// As [`Database::register_row`], beside the rows of a shard. The lock of dbinit is in the coordinator, where this
    /// process holds its own.
    fn register_at_shard(
        &self,
        connection: &mut Connection,
        vshard: u16,
        epoch: i64,
        node: &str,
    ) -> std::result::Result<Option<(i64, i64)>, PgError> {
        if !self.is_ours(connection)? {
            return Ok(None);
        }
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|error| PgError::protocol(format!("no random numbers: {error}")))?;
        let id = i64::from_be_bytes(id) & i64::MAX;
        connection.script(&format!(
            "INSERT INTO {}.{} (vshard, writer_id, epoch, batch, node, seen) VALUES ({vshard}, {id}, {epoch}, 0, '{node}', now())",
            quoted(&self.options.schema),
            WRITERS
        ))?;
        Ok(Some((id, epoch)))
    }

    fn owner_row(&self, (id, epoch): (i64, i64)) -> String {
        let schema = quoted(&self.options.schema);
        format!("{schema}.writers o WHERE o.writer_id = {id} AND o.epoch = {epoch}")
    }

    /// Returns whether the store is still the one that was opened, and no other process has taken it over.
    /// Otherwise it is lost permanently.
    pub(crate) fn is_ours(&self, connection: &mut Connection) -> std::result::Result<bool, PgError> {
        let owned = self.owner.map(|owner| format!(" AND EXISTS (SELECT 1 FROM {})", self.owner_row(owner)));
        let text = format!("SELECT EXISTS (SELECT 1 {}){}", self.identity, owned.unwrap_or_default());
        let rows = connection.query_text(&text)?;
        let is_ours = rows.first().and_then(|row| row.first()?.as_deref()) == Some("t");
        if !is_ours {
            self.is_lost();
        }
        Ok(is_ours)
    }

    /// Records that this process no longer owns the store, and tells its owner once.
    pub(crate) fn is_lost(&self) -> StoreError {
        let what = match self.options.sharing {
            Sharing::Exclusive => "another process has taken over the store",
            Sharing::Shared => "dbinit has changed or reset the schema: start this program again",
        };
        let error = StoreError::Stopped(what.into());
        if !self.lost.swap(true, Ordering::AcqRel)
            && !self.is_closed()
            && let Some(on_lost) = self.options.on_lost
        {
            on_lost(&error);
        }
        error
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

fn dbinit_runs() -> PgError {
    PgError::Server(Box::new(ServerError {
        severity: "ERROR".into(),
        code: "57P03".into(),
        message: "dbinit is changing the schema".into(),
        ..ServerError::default()
    }))
}

/// The number of a new writer, from the row that the database returned.
fn writer_id(row: &[Option<String>]) -> std::result::Result<i64, PgError> {
    let id = row.first().and_then(|id| id.as_ref()?.parse().ok());
    id.ok_or_else(|| PgError::protocol("the new writer has no number"))
}

/// All connections stayed in use until the deadline.
pub(crate) fn no_connection() -> StoreError {
    StoreError::Unavailable("no connection to the database became free".into())
}

/// The remaining time and number of attempts for one task.
pub(crate) struct Patience<'a> {
    database: &'a Database,
    /// The deadline.
    pub(crate) until: Instant,
    wait: Duration,
    retries: u32,
}

impl Patience<'_> {
    /// Waits before another attempt, or returns the error if there is none left.
    pub(crate) fn wait(&mut self, error: PgError) -> Result<()> {
        if error.is_retryable() {
            self.database.counters.retries.inc();
        }
        if error.is_retryable() || error.is_schema_change() {
            self.retries += 1;
            if self.retries > RETRIES_MAX {
                return Err(error.into());
            }
        } else if !error.is_away() {
            return Err(error.into());
        }
        self.wait_whatever(&error)
    }

    /// Waits before another attempt after any error, for tasks whose outcome would otherwise be unknown.
    pub(crate) fn wait_whatever(&mut self, error: &PgError) -> Result<()> {
        if Instant::now() + self.wait > self.until {
            return Err(StoreError::Unavailable(error.to_string()));
        }
        // Random, so that processes do not all retry at the same moment.
        let mut random = [0];
        let _ = getrandom::fill(&mut random);
        std::thread::sleep(self.wait.mul_f64(0.5 + f64::from(random[0]) / 512.0));
        self.wait = (self.wait * 2).min(WAIT_LAST);
        Ok(())
    }
}

pub(crate) fn bind_error(table: &'static TableDef, source: DecodeError) -> StoreError {
    StoreError::Decode { table: table.name, source }
}

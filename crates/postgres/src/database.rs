//! The opened database: its tables' statements, its connections, and how long one waits for a server that is away.

use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batzen_store::{DecodeError, Result, StoreError, TableDef};
use siphasher::sip::SipHasher24;

use crate::commit::Writer;
use crate::connection::{Connection, Statement};
use crate::counters::Counters;
use crate::layout::{Layout, quoted};
use crate::pool::Pool;
use crate::schema::Meta;
use crate::sizes::Known;
use crate::statements::{SESSION, Statements};
use crate::{PgError, PgOptions, Target};

/// A connection is replaced after so many pipelines or this time: the server's memory of each grows with use, and plans that
/// were made when tables were small are made anew.
const USES_MAX: u64 = 100_000;
const AGE_MAX: Duration = Duration::from_secs(600);

/// The first wait before another attempt; each further one is twice as long, up to the last.
const WAIT_FIRST: Duration = Duration::from_millis(2);
const WAIT_LAST: Duration = Duration::from_millis(250);

/// How often a transaction that met another one is run again.
const RETRIES_MAX: u32 = 20;

/// How long a statement may take that ought to take milliseconds.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Texts that belong to no table.
pub(crate) struct Texts {
    /// The oldest transaction under way as of the snapshot.
    pub horizon: Statement,
    /// The snapshot's oldest and next transaction; then each one under way in this database.
    pub transactions: String,
    pub writer: Statement,
    pub fence: String,
}

pub(crate) struct Database {
    pub target: Target,
    pub options: PgOptions,
    tables: Vec<Statements>,
    sip_key: [u8; 16],
    pub serial_base: i64,
    /// Marks the versions of this store.
    pub tag: u32,
    pub texts: Texts,
    readers: Pool<Connection>,
    pub writers: Pool<Writer>,
    pub counters: Counters,
    pub closed: AtomicBool,
    /// The row in `writers` that says whose an exclusive store is: another process that takes it over raises its epoch.
    pub owner: Option<i64>,
    /// Set for good when another process has taken an exclusive store over.
    pub lost: AtomicBool,
    /// What the tables held lately.
    pub sizes: Known,
}

impl Database {
    pub fn new(target: Target, options: PgOptions, meta: &Meta) -> Result<Self> {
        let schema = quoted(&options.schema);
        let mut tables = options
            .tables
            .iter()
            .map(|def| Layout::new(def, &options.schema, meta.partitions).map(Statements::new))
            .collect::<Result<Vec<_>>>()?;
        tables.sort_by_key(|statements| statements.layout.def.id);
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
        };
        let mut hasher = SipHasher24::new();
        hasher.write(&meta.store_id);
        // Never the mark of versions that mean nothing.
        let tag = u32::try_from(hasher.finish() >> 33).expect("31 bits") | 1 << 31;
        Ok(Self {
            target,
            tables,
            sip_key: meta.sip_key,
            serial_base: meta.serial_base,
            tag,
            texts,
            readers: Pool::new(options.readers),
            writers: Pool::new(options.writers),
            counters: Counters::new(),
            closed: AtomicBool::new(false),
            owner: None,
            lost: AtomicBool::new(false),
            sizes: Known::default(),
            options,
        })
    }

    pub fn statements(&self, table: &TableDef) -> Result<&Statements> {
        let at = self.tables.binary_search_by_key(&table.id, |statements| statements.layout.def.id);
        let unknown = || StoreError::Backend(format!("the store was not opened with table {}", table.name));
        at.map(|at| &self.tables[at]).map_err(|_| unknown())
    }

    pub fn tables(&self) -> &[Statements] {
        &self.tables
    }

    pub fn vshard(&self, table: &TableDef, key: &[u8]) -> u16 {
        self.vshard_of(table.shard_key(key))
    }

    pub fn vshard_of(&self, shard_key: &[u8]) -> u16 {
        batzen_store::vshard(&self.sip_key, shard_key)
    }

    /// The entry of a value in a hash index.
    pub fn hash(&self, value: &[u8]) -> i64 {
        let mut hasher = SipHasher24::new_with_key(&self.sip_key);
        hasher.write(value);
        hasher.finish().cast_signed()
    }

    /// A new connection that is set up for the statements.
    pub fn connect(&self) -> std::result::Result<Connection, PgError> {
        let mut connection = Connection::open(&self.target)?;
        connection.set_timeout(ANSWER_MAX);
        connection.script(SESSION)?;
        Ok(connection)
    }

    /// Whether a connection has been used enough.
    pub fn is_worn(&self, connection: &Connection) -> bool {
        connection.uses >= USES_MAX || connection.opened.elapsed() >= AGE_MAX
    }

    /// Reads on a connection of the pool, again and again while the server is away, up to the deadline.
    pub fn with_reader<T>(
        &self,
        mut read: impl FnMut(&mut Connection) -> std::result::Result<T, PgError>,
    ) -> Result<T> {
        let mut patience = self.patience();
        loop {
            let mut place = self.readers.take();
            let attempt = match place.item.take().filter(|connection| !self.is_worn(connection)) {
                Some(connection) => Ok(connection),
                // One snapshot for a whole pipeline, and no writing by mistake.
                None => self.connect().and_then(|mut connection| {
                    connection.script(
                        "SET default_transaction_isolation = 'repeatable read'; SET default_transaction_read_only = on; \
                         SET statement_timeout = '60s'",
                    )?;
                    Ok(connection)
                }),
            };
            let error = match attempt {
                Ok(mut connection) => {
                    let statements = connection.statements;
                    let result = read(&mut connection);
                    self.count(&connection, statements);
                    let is_broken = connection.is_broken();
                    if !is_broken {
                        place.item = Some(connection);
                    }
                    drop(place);
                    match result {
                        Ok(value) => return Ok(value),
                        // Lost, or its plans are out of date: a new one does it.
                        Err(error) if is_broken && !matches!(error, PgError::Protocol(_)) => {
                            self.counters.reconnects.inc();
                            error
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            patience.wait(error)?;
        }
    }

    pub fn count(&self, connection: &Connection, statements_before: u64) {
        self.counters.statements.add(connection.statements - statements_before);
        self.counters.round_trips.inc();
    }

    pub fn drop_connections(&self) {
        self.readers.clear();
        self.writers.clear();
    }

    pub fn connections(&self) -> usize {
        self.readers.len() + self.writers.len()
    }

    pub fn patience(&self) -> Patience<'_> {
        Patience {
            database: self,
            until: Instant::now() + self.options.away_max,
            wait: WAIT_FIRST,
            retries: 0,
        }
    }

    /// Makes this process the only one that writes: whoever had the store before, and has not noticed yet that it lost the
    /// lock, writes no more.
    pub fn take_over(&mut self) -> Result<()> {
        let mut connection = self.connect()?;
        connection.script(&self.texts.fence)?;
        self.owner = Some(self.register_row(&mut connection)?.ok_or_else(|| self.is_lost())?);
        Ok(())
    }

    /// Adds a row to `writers`; none if another process has taken the store over.
    pub fn register_row(&self, connection: &mut Connection) -> std::result::Result<Option<i64>, PgError> {
        let schema = quoted(&self.options.schema);
        let node = self.options.node.replace('\'', "''");
        // As long as the owner's row is as it was made, nobody has taken the store over; nor does meanwhile.
        let owned =
            |id| format!(" FROM {schema}.writers o WHERE o.writer_id = {id} AND o.epoch = 0 FOR SHARE");
        let owned = self.owner.map(owned).unwrap_or_default();
        let rows = connection.query_text(&format!(
            "INSERT INTO {schema}.writers (epoch, batch, node, seen) SELECT 0, 0, '{node}', now(){owned} RETURNING writer_id"
        ))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let id = row.first().and_then(|id| id.as_ref()?.parse().ok());
        id.map(Some).ok_or_else(|| PgError::protocol("a writer without a number"))
    }

    /// Notes that another process has taken the store over.
    pub fn is_lost(&self) -> StoreError {
        self.lost.store(true, Ordering::Release);
        StoreError::Stopped("another process has taken the store over".into())
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// What is left of the time and attempts for one piece of work.
pub(crate) struct Patience<'a> {
    database: &'a Database,
    until: Instant,
    wait: Duration,
    retries: u32,
}

impl Patience<'_> {
    /// Waits before another attempt, or gives up with what went wrong.
    pub fn wait(&mut self, error: PgError) -> Result<()> {
        let stale_plan = matches!(error.code(), Some("0A000" | "26000"));
        if error.is_retryable() || stale_plan {
            self.database.counters.retries.inc();
            self.retries += 1;
            if self.retries > RETRIES_MAX {
                return Err(error.into());
            }
        } else if !error.is_away() {
            return Err(error.into());
        }
        if Instant::now() + self.wait > self.until {
            return Err(StoreError::Unavailable(error.to_string()));
        }
        // Not all at the same moment.
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

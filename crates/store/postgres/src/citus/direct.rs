//! Straight to the node of a shard: a commit or a read whose rows are all in one shard needs neither the
//! coordinator nor Citus' planner. It names the tables of the shard itself, on the node that has them.
//!
//! A shard may be moved to another node at any time. Citus moves it under a lock that each statement shares which
//! Citus itself routes to the shard, until its transaction ends. So a commit first takes its share of that lock. From then
//! on the shard stays where it is, and the next statement makes sure that it is here. A read makes sure of it in its
//! snapshot. See docs/decisions/0025-straight-to-the-shard.md.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::PgError;
use crate::citus::clock::Clock;
use crate::citus::fence_key;
use crate::citus::placement::Shard;
use crate::client::{Connection, Statement};
use crate::layout::quoted;
use crate::schema::citus::{CLOCKS, WRITERS};

/// The settings that such a session needs besides those of a session of plain PostgreSQL.
pub(crate) const SESSION: &str = "SET citus.enable_manual_changes_to_shards = on";

/// SQLSTATE: the shard is not on this node.
const NOT_HERE: &str = "BZ003";

/// The place in a commit of the statement that returns the clock's number.
const CLOCK: usize = 2;

/// Number of statements bring that a further shard of the node into a commit; the last returns its clock's number.
const STATEMENTS_OF_ANOTHER: usize = 2;

/// `ShareLock` of PostgreSQL, in the numbers of Citus' function.
const SHARE_LOCK: u8 = 5;

/// The state that a commit or read at a shard needs besides the statements of its tables.
#[derive(Debug)]
pub(crate) struct Direct {
    /// The first virtual shard of the shard.
    pub(crate) vshard: u16,
    /// The number of the node.
    pub(crate) group: i32,
    /// Counts the shards on this node that are this one.
    pub(crate) here: Statement,
    begin: Statement,
    /// Keeps the shard where it is until the transaction ends.
    hold: Statement,
    /// Makes sure that the shard is here and the writer known, and moves the clock.
    enter: Statement,
    /// As `enter`, for another shard than the writer's.
    enter_another: Statement,
    set: Statement,
    pub(super) commit: Statement,
    fence: i64,
    moved: AtomicBool,
}

impl Direct {
    /// `None` if a table is missing.
    pub(crate) fn new(schema: &str, shard: &Shard) -> Option<Self> {
        let name = quoted(schema);
        let writers = quoted(shard.tables.get(WRITERS)?);
        let clocks = quoted(shard.tables.get(CLOCKS)?);
        let here = format!(
            "SELECT count(*) FROM pg_dist_placement WHERE shardid = {} AND groupid = {}",
            shard.id, shard.group
        );
        let moved = format!(
            "moved AS (UPDATE {name}.{clocks} SET number = greatest(number + 1, $1::bigint) WHERE vshard = {} RETURNING number)",
            shard.vshard
        );
        let entered = format!("(SELECT number FROM moved), {name}.expect(({here}), 1, '{NOT_HERE}')");
        Some(Self {
            vshard: shard.vshard,
            group: shard.group,
            begin: Statement::new("BEGIN".into()),
            hold: Statement::new(format!(
                "SELECT lock_shard_metadata({SHARE_LOCK}, ARRAY[{}::bigint])",
                shard.id
            )),
            // Whoever wants to see all nodes at one moment closes the fence.
            enter: Statement::new(format!(
                "WITH {moved}, done AS (UPDATE {name}.{writers} SET batch = $2::bigint, seen = now() WHERE writer_id = $3::bigint AND \
                 epoch = $4::bigint RETURNING 1) SELECT {entered}, {name}.expect((SELECT count(*) FROM done), 1, 'BZ002'), \
                 pg_advisory_xact_lock_shared($5::bigint)"
            )),
            enter_another: Statement::new(format!("WITH {moved} SELECT {entered}")),
            set: Statement::new(format!(
                "UPDATE {name}.{clocks} SET number = $1::bigint WHERE vshard = {}",
                shard.vshard
            )),
            here: Statement::new(here),
            commit: Statement::new("COMMIT".into()),
            fence: fence_key(schema),
            moved: AtomicBool::new(false),
        })
    }

    /// The clock's number in statements of a transaction that has moved it.
    pub(crate) fn number(schema: &str, shard: &Shard) -> Option<String> {
        let clocks = quoted(shard.tables.get(CLOCKS)?);
        Some(format!("(SELECT number FROM {}.{clocks} WHERE vshard = {})", quoted(schema), shard.vshard))
    }

    /// Returns whether the shard was found to be elsewhere. Then nothing that was attempted here has taken
    /// effect.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    /// Takes note of an error that says that the shard is elsewhere: its tables are gone, or left over.
    pub(crate) fn note(&self, error: &PgError) {
        if matches!(error.code(), Some(NOT_HERE | "42P01")) {
            self.moved.store(true, Ordering::Release);
        }
    }

    /// Makes sure that a new connection leads to the node: addresses may have been exchanged.
    pub(crate) fn check_node(&self, connection: &mut Connection) -> Result<(), PgError> {
        let rows = connection.query_text("SELECT groupid FROM pg_dist_local_group")?;
        let group = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
        if group == Some(self.group) {
            return Ok(());
        }
        self.moved.store(true, Ordering::Release);
        Err(PgError::protocol(format!("this is not node {} of the Citus cluster", self.group)))
    }

    /// Checks that the answer to [`Direct::here`] says that the shard is here. If not, takes note of it.
    pub(crate) fn is_here(&self, shards: i64) -> Result<(), PgError> {
        if shards == 1 {
            return Ok(());
        }
        self.moved.store(true, Ordering::Release);
        Err(PgError::protocol("the shard is on another node"))
    }

    /// Begins a commit on this node, for this shard, which has the writer, and others. Returns the numbers of their
    /// clocks, which belong to the commit from now on.
    pub(crate) fn begin(
        &self,
        connection: &mut Connection,
        writer: [i64; 3],
        others: &[&Self],
        clock: &Clock,
    ) -> Result<Vec<i64>, PgError> {
        self.queue(connection, writer, others, clock);
        run(connection, others.len(), clock)
    }

    /// Queues what precedes the rows of this shard, which has the writer, and of others on the same node.
    pub(super) fn queue(
        &self,
        connection: &mut Connection,
        writer: [i64; 3],
        others: &[&Self],
        clock: &Clock,
    ) {
        connection.queue(&self.begin, |_| {});
        connection.queue(&self.hold, |_| {});
        connection.queue(&self.enter, |params| {
            [clock.next()].iter().chain(&writer).chain([&self.fence]).for_each(|value| params.int8(*value));
        });
        for other in others {
            connection.queue(&other.hold, |_| {});
            connection.queue(&other.enter_another, |params| params.int8(clock.next()));
        }
    }

    /// Queues the clock's last move in a commit over several shards: to the number that all of them get.
    pub(crate) fn queue_number(&self, connection: &mut Connection, number: i64) {
        connection.queue(&self.set, |params| params.int8(number));
    }
}

/// Runs the pipeline and returns the numbers of the clocks of one shard and so many others.
pub(super) fn run(connection: &mut Connection, others: usize, clock: &Clock) -> Result<Vec<i64>, PgError> {
    let clocks: Vec<usize> = (0..=others).map(|other| CLOCK + other * STATEMENTS_OF_ANOTHER).collect();
    let mut numbers = Vec::with_capacity(clocks.len());
    connection.run(&mut |statement, mut columns| {
        if clocks.contains(&statement) {
            numbers.push(columns.int8()?);
        }
        Ok(())
    })?;
    numbers.iter().for_each(|number| clock.saw(*number));
    Ok(numbers)
}

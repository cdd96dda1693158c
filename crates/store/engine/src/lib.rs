//! The batching pipeline: prefetch, execute, commit.
//!
//! Every change of money state goes through the same three steps, one batch at a time:
//!
//! 1. **Prefetch**: the commands that queued up while the last batch was committing form the next one. Each
//!    names the rows that it may touch in a [`Plan`]. A few bulk reads load them into a [`WorkingSet`].
//! 2. **Execute**: [`Rules::execute`] applies the commands one after the other to those rows in memory. No
//!    I/O, no clock, no randomness. A refused command leaves no trace: its changes are rolled back.
//! 3. **Commit**: all changed rows become durable in one transaction. Only then is any command of the batch
//!    answered.
//!
//! Under light load a batch is one command (low latency); under heavy load it grows by itself (high
//! throughput). While clients are served, background work ([`Rules::is_background`]) runs in portions, so
//! that a batch takes only a few milliseconds.
//!
//! A service can have several [`Lanes`]: they execute on several cores, and while one waits for its commit,
//! another executes. Each command goes to the lane of its owner's virtual shard. Other lanes, and other nodes
//! on a database, commit at any time. A batch that changes a row which has changed since it was read is
//! executed again.
//!
//! Every lane is a [`Lane`], also that of a machine whose state is in memory: it takes part in each batch
//! ([`Rules::join`]) and has work of its own ([`Rules::due_in`]).
//!
//! This crate knows neither money nor HTTP. Invariants: a row is read from the store at most once a batch;
//! nothing mutable is kept between batches; no answer leaves before the commit of its batch has returned.

mod command;
mod continued;
mod evidence;
mod fair_queue;
mod inbox;
mod inline;
mod lane;
mod lanes;
mod metrics;
mod pace;
mod pool;
mod queue;
mod readers;
mod slot;
mod submit;
mod turn_end;
mod working_set;

pub use command::{Command, Count};
pub use continued::Continued;
pub use inline::{InlineQueue, PendingAnswer};
pub use lane::{Batcher, Lane, LaneOptions};
pub use lanes::{LANES_MAX, Lanes};
pub use metrics::{LaneMetrics, Stage};
pub use pool::{Collector, CollectorOptions, CpuPool, PoolBusy, WorkSnapshot, run_blocking, run_long};
pub use readers::{Length, Readers};
pub use slot::Ticket;
pub use submit::SubmitError;
pub use working_set::{Plan, WorkingSet};

use std::pin::Pin;
use std::time::Duration;

use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Store, StoreError};
use tokio::time::Instant;

/// The money rules of one service: pure, deterministic functions over rows. A service with many kinds of commands lets
/// each [carry its rule](trait@Command).
pub trait Rules: Send + Sync + 'static {
    /// A command. It contains everything that the rule needs and that is random or depends on the clock (a
    /// noreveal index, a wtid).
    type Command: Send + 'static;
    /// The answer to a command that took effect, now or (an idempotent repetition) before.
    type Answer: Send + 'static;
    /// Why a command was refused. A refused command changes nothing.
    type Refusal: Send + 'static;

    /// Names every row and group of rows that `execute` may read or write for this command.
    fn plan(&self, command: &Self::Command, plan: &mut Plan);

    /// Applies one command. On `Err` every change that it made is rolled back.
    fn execute(
        &self,
        rows: &mut WorkingSet,
        command: &Self::Command,
        now: Timestamp,
    ) -> Result<Self::Answer, Self::Refusal>;

    /// The size of a command in events, by which [`LaneOptions`] limits queue and batches.
    fn events(&self, _command: &Self::Command) -> usize {
        1
    }

    /// Completes a command with what depends on the order of execution (a running number) or on the moment.
    /// The lane's thread calls it for each command of a batch, in their order, and again if a failed batch is
    /// repeated.
    fn prepare(&self, _command: &mut Self::Command) {}

    /// Returns whether only a worker waits for the answer to this command. While clients are served, only a
    /// few such commands share a batch.
    fn is_background(&self, _command: &Self::Command) -> bool {
        false
    }

    /// The shard key of the command's owner (a coin, a reserve). Commands of one owner go through one lane, in order. A
    /// command without an owner goes through the first lane. Order matters for speed, not for safety: a lane that is
    /// overtaken by another executes its batch again.
    fn owner<'a>(&self, _command: &'a Self::Command) -> Option<&'a [u8]> {
        None
    }

    /// Calls `visit` with the shard keys of other owners whose rows the command changes. If they are in other parts of
    /// the database, its commit is a costly one, and it goes through a lane for such commands.
    fn other_owners<'a>(&self, _command: &'a Self::Command, _visit: &mut dyn FnMut(&'a [u8])) {}

    /// Updates what the rules keep in memory besides rows, if another process may have added something whose
    /// absence caused this refusal. Returns whether something was missing; then the batch is executed again.
    fn learn(&self, _refusal: &Self::Refusal, _store: &Store) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Lets another machine take part in a batch, after all its commands were executed. It may change
    /// verdicts, and rows that the commands have planned. The rows that it returns become durable in the
    /// batch's own commit.
    ///
    /// # Errors
    /// When the machine cannot decide. The batch fails and has no effect.
    fn join<'a>(
        &'a self,
        _rows: &mut WorkingSet,
        _verdicts: &mut [Result<Self::Answer, Self::Refusal>],
        _now: Timestamp,
    ) -> Result<Option<Box<dyn Joined + 'a>>, StoreError> {
        Ok(None)
    }

    /// Called with the changes of a batch once they are durable, before any of its commands is answered. For
    /// running sums.
    fn committed(&self, _changes: &ChangeSet) {}

    /// Called with the answer to each command of a batch once it is durable, in their order, before the
    /// command is answered. Called by the lane's thread, so it must not wait.
    fn decided(&self, _command: &Self::Command, _answer: &Self::Answer) {}

    /// Called when another writer has changed rows of a batch first, before the batch is executed again.
    fn overtaken(&self) {}

    /// The time until work of the machine behind the rules is due. The lane then calls [`Rules::run_due`],
    /// unless a command comes earlier.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Does the work that is due, durably.
    ///
    /// # Errors
    /// When the store fails. The lane calls it again after a pause.
    fn run_due(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns whether a refusal must be completed with [`Rules::evidence`] before it is answered.
    fn needs_evidence(&self, _refusal: &Self::Refusal) -> bool {
        false
    }

    /// Returns whether a completed refusal has a long history, one that takes many times longer to read than
    /// others. Further histories of the same owner ([`Rules::owner`]) are then read separately from the short
    /// ones, and only a few of them may wait.
    fn is_evidence_long(&self, _refusal: &Self::Refusal) -> bool {
        false
    }

    /// Completes a refusal with the history that proves it, read after the batch's commit.
    ///
    /// Other commands are executed meanwhile, and one of them may have removed the reason (for example, a
    /// refund filled the coin again). Answer [`Evidence::Rerun`] when the history does not prove the refusal,
    /// and [`Evidence::Torn`] when it contradicts itself; the command is then executed again. After a few
    /// such rounds, the history is read between two batches, when nothing changes; torn evidence then counts
    /// as complete.
    fn evidence(
        &self,
        _command: &Self::Command,
        _refusal: &mut Self::Refusal,
        _store: &Store,
    ) -> Result<Evidence, StoreError> {
        Ok(Evidence::Complete)
    }
}

/// The part of a batch that another machine decided, see [`Rules::join`]. If it is dropped without
/// [`Joined::committed`], it has no effect.
pub trait Joined {
    /// The rows to commit together with those of the batch. Called once.
    fn changes(&mut self) -> ChangeSet;

    /// Called when the batch is durable, before its commands are answered.
    fn committed(self: Box<Self>);
}

/// Judgement of the history read for a refused command, see [`Rules::evidence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Answer the refusal.
    Complete,
    /// The reason no longer exists: execute the command again in the next batch.
    Rerun,
    /// Something was committed between the reads: execute the command again, too.
    Torn,
}

/// Source of the current time, so that tests and simulators can supply their own.
pub trait Clock: Send + Sync + 'static {
    /// The current time, in microseconds since the epoch.
    fn now(&self) -> Timestamp;
}

impl<F: Fn() -> Timestamp + Send + Sync + 'static> Clock for F {
    fn now(&self) -> Timestamp {
        self()
    }
}

/// Source of random bytes, so that tests and simulators can supply their own.
pub trait Entropy: Send + Sync + 'static {
    /// Fills a buffer with random bytes.
    fn fill(&self, bytes: &mut [u8]);
}

impl<F: Fn(&mut [u8]) + Send + Sync + 'static> Entropy for F {
    fn fill(&self, bytes: &mut [u8]) {
        self(bytes);
    }
}

/// The passing of time on a clock that never steps, so that simulators can supply their own.
pub trait Timers: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Instant;

    /// Resolves at this time.
    fn sleep_until(&self, end: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The timers of the tokio runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeTimers;

impl Timers for RuntimeTimers {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, end: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep_until(end))
    }
}

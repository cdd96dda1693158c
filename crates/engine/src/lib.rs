//! The batching pipeline: prefetch, execute, commit.
//!
//! Every change of money state goes through the same three steps, a batch at a time:
//!
//! 1. **Prefetch**: the commands that queued up while the last batch was committing form the next one. Each names
//!    the rows that it may touch in a [`Plan`]; they are loaded in a few bulk reads into a [`WorkingSet`].
//! 2. **Execute**: [`Rules::execute`] applies the commands one after the other to those rows in memory. No I/O, no
//!    clock, no randomness. A refused command leaves no trace: its changes are rolled back.
//! 3. **Commit**: all changed rows become durable in one transaction. Only then is any command of the batch answered.
//!
//! Under light load a batch is one command (low latency); under heavy load it grows by itself (high throughput). While
//! clients are served, background work ([`Rules::is_background`]) comes in such portions that a batch takes few milliseconds.
//!
//! A store in this process has one lane. On a database [`Lanes`] are several: while one waits for its commit, another executes.
//! Each command goes to the lane of its owner's virtual shard. Other lanes and other nodes commit at any time; whoever changes a
//! row that has changed since it was read executes again.
//!
//! This crate knows neither money nor HTTP. Invariants: a row is read from the store at most once a batch; nothing
//! mutable is kept between batches; no answer leaves before the commit of its batch has returned.

mod docket;
mod inbox;
mod lane;
mod lanes;
mod machine_lane;
mod metrics;
mod pace;
mod pool;
mod prover;
mod readers;
mod slot;
mod turn_end;
mod working_set;

pub use lane::{Batcher, EngineError, Lane, LaneOptions};
pub use lanes::{LANES_MAX, Lanes};
pub use machine_lane::{LaneMachine, LaneRefusal, MachineLane, MachineLaneMetrics, MachineLaneOptions};
pub use metrics::{LaneMetrics, LaneSnapshot};
pub use pool::{Collector, CollectorOptions, CpuPool, PoolBusy, TURN_NS, WorkSnapshot, run_long};
pub use readers::{Length, Readers};
pub use slot::Ticket;
pub use working_set::{Plan, WorkingSet};

use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Store, StoreError};

/// The money rules of one service: pure, deterministic functions over rows.
pub trait Rules: Send + Sync + 'static {
    /// What is asked for. It carries everything random or clocked that the rule needs (a noreveal index, a wtid).
    type Command: Send + 'static;
    /// The answer to a command that took effect, now or (idempotent repetition) before.
    type Outcome: Send + 'static;
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
    ) -> Result<Self::Outcome, Self::Refusal>;

    /// Whether nobody waits for the answer to this command but a worker: a batch with other commands takes in few of them.
    fn is_background(&self, _command: &Self::Command) -> bool {
        false
    }

    /// The shard key that owns what this command is about (a coin, a reserve): commands of one owner go through one lane, in
    /// their order. None: nobody owns it, it goes through the first lane. Order is a matter of speed, not of safety: a lane
    /// that is overtaken by another one executes again.
    fn shard_key<'a>(&self, _command: &'a Self::Command) -> Option<&'a [u8]> {
        None
    }

    /// Brings up to date what the rules keep in memory beside rows and what may have caused this refusal, because another
    /// process added it: whether something was missing, so that the batch is worth executing again.
    fn learn(&self, _refusal: &Self::Refusal, _store: &Store) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Has another machine decide, as a part of a batch, on what its commands have come to: asked when all are executed. It may
    /// change verdicts, and rows that the commands have planned; what it gives back becomes durable in the batch's own commit.
    ///
    /// # Errors
    /// When it cannot decide: the batch fails, and nothing of it has taken place.
    fn join<'a>(
        &'a self,
        _rows: &mut WorkingSet,
        _verdicts: &mut [Result<Self::Outcome, Self::Refusal>],
        _now: Timestamp,
    ) -> Result<Option<Box<dyn Joined + 'a>>, StoreError> {
        Ok(None)
    }

    /// Is told what a batch has changed, once that is durable and before any of its commands is answered: for running sums.
    fn committed(&self, _changes: &ChangeSet) {}

    /// Whether a refusal has to be completed with [`Rules::evidence`] before it is answered.
    fn needs_evidence(&self, _refusal: &Self::Refusal) -> bool {
        true
    }

    /// Whether a completed refusal has a long history: one that takes many times as long to read as others. Further ones of the same
    /// owner ([`Rules::shard_key`]) are read apart from the short ones then, and few of them may wait.
    fn is_evidence_long(&self, _refusal: &Self::Refusal) -> bool {
        false
    }

    /// Completes a refusal with the history that proves it, read after the batch's commit.
    ///
    /// Other commands are executed meanwhile, and one of them may have removed the reason (a refund filled the coin
    /// again): answer [`Evidence::Rerun`] when the history does not prove the refusal, [`Evidence::Torn`] when it does not
    /// agree with itself, and the command is executed again. After a few such rounds the history is read between two
    /// batches, where nothing changes; then torn evidence counts as complete.
    fn evidence(
        &self,
        _command: &Self::Command,
        _refusal: &mut Self::Refusal,
        _store: &Store,
    ) -> Result<Evidence, StoreError> {
        Ok(Evidence::Complete)
    }
}

/// A part of a batch that was decided beside its rows, see [`Rules::join`]. Dropped without [`Joined::committed`], it has not
/// taken place.
pub trait Joined {
    /// The rows to be committed with those of the batch. Asked once.
    fn changes(&mut self) -> ChangeSet;

    /// The batch is durable. Its commands are answered after this.
    fn committed(self: Box<Self>);
}

/// Whether the history read for a refused command supports the refusal, see [`Rules::evidence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Answer the refusal.
    Complete,
    /// The reason is gone: execute the command again in the next batch.
    Rerun,
    /// Something was committed between the reads: execute the command again as well.
    Torn,
}

/// Source of the present time, so that tests and simulators can supply their own.
pub trait Clock: Send + Sync + 'static {
    /// The present time, in microseconds since the epoch.
    fn now(&self) -> Timestamp;
}

impl<F: Fn() -> Timestamp + Send + Sync + 'static> Clock for F {
    fn now(&self) -> Timestamp {
        self()
    }
}

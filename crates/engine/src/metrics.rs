//! Counters of a lane: what the operator needs to see whether batching works.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of one lane since its start. Cheap to update, read with [`LaneMetrics::snapshot`].
#[derive(Debug, Default)]
pub struct LaneMetrics {
    batches: AtomicU64,
    commands: AtomicU64,
    refusals: AtomicU64,
    reruns: AtomicU64,
    conflicts: AtomicU64,
    rejected: AtomicU64,
    queued: AtomicU64,
    batch_commands_max: AtomicU64,
    prefetch_ns: AtomicU64,
    execute_ns: AtomicU64,
    commit_ns: AtomicU64,
}

/// A reading of [`LaneMetrics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Batches committed.
    pub batches: u64,
    /// Commands executed (refused ones included, repeated executions not).
    pub commands: u64,
    /// Commands refused by a rule.
    pub refusals: u64,
    /// Commands executed again because their evidence no longer proved the refusal.
    pub reruns: u64,
    /// Batches run again because another node had inserted one of their rows.
    pub conflicts: u64,
    /// Commands turned away because the queue was full.
    pub rejected: u64,
    /// Commands waiting at the moment of the reading.
    pub queued: u64,
    /// Largest batch so far, in commands.
    pub batch_commands_max: u64,
    /// Time spent loading rows, in nanoseconds.
    pub prefetch_ns: u64,
    /// Time spent in the rules, in nanoseconds.
    pub execute_ns: u64,
    /// Time spent making changes durable, in nanoseconds.
    pub commit_ns: u64,
}

impl LaneMetrics {
    pub(crate) fn enqueued(&self) {
        self.queued.fetch_add(1, Relaxed);
    }

    pub(crate) fn dequeued(&self, count: u64) {
        self.queued.fetch_sub(count, Relaxed);
    }

    pub(crate) fn rejected(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Relaxed);
    }

    pub(crate) fn rerun(&self) {
        self.reruns.fetch_add(1, Relaxed);
    }

    pub(crate) fn batch(&self, commands: u64, refusals: u64, stages: [Duration; 3]) {
        self.batches.fetch_add(1, Relaxed);
        self.commands.fetch_add(commands, Relaxed);
        self.refusals.fetch_add(refusals, Relaxed);
        self.batch_commands_max.fetch_max(commands, Relaxed);
        for (counter, spent) in [&self.prefetch_ns, &self.execute_ns, &self.commit_ns].into_iter().zip(stages)
        {
            counter.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    /// Reads all counters (each by itself; they need not belong to one instant).
    pub fn snapshot(&self) -> LaneSnapshot {
        LaneSnapshot {
            batches: self.batches.load(Relaxed),
            commands: self.commands.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
            reruns: self.reruns.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            queued: self.queued.load(Relaxed),
            batch_commands_max: self.batch_commands_max.load(Relaxed),
            prefetch_ns: self.prefetch_ns.load(Relaxed),
            execute_ns: self.execute_ns.load(Relaxed),
            commit_ns: self.commit_ns.load(Relaxed),
        }
    }
}

//! Metrics of a lane, from which an operator can see whether batching works.
//!
//! All lanes count in the same way. The `/metrics` page of a service shows the counters that matter for its
//! lane, under its own names.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use batzen_metrics::{Counter, Gauge, Histogram, Page};

/// Metrics of one lane, or of all lanes of a service together, since its start. Cheap to update.
#[derive(Debug)]
pub struct LaneMetrics {
    commands: Counter,
    refusals: Counter,
    reruns: Counter,
    conflicts: Counter,
    rejected: Counter,
    failed_commands: Counter,
    failed_batches: Counter,
    /// One bit for each lane that is serving clients.
    serves_clients: AtomicU64,
    /// Waiting events. For most lanes a command is one event.
    waiting: AtomicU64,
    lanes: Gauge,
    queue_limit: Gauge,
    batch_limit: Gauge,
    batch_commands_max: AtomicU64,
    batch_commands: Histogram,
    batch_events: Histogram,
    batch_times: Histogram,
    /// Indexed by [`Stage`].
    stages: [Histogram; 3],
}

/// A stage of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Loading rows.
    Prefetch,
    /// Applying the rules.
    Execute,
    /// Making the changes durable.
    Commit,
}

impl Default for LaneMetrics {
    fn default() -> Self {
        Self {
            commands: Counter::default(),
            refusals: Counter::default(),
            reruns: Counter::default(),
            conflicts: Counter::default(),
            rejected: Counter::default(),
            failed_commands: Counter::default(),
            failed_batches: Counter::default(),
            serves_clients: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            lanes: Gauge::default(),
            queue_limit: Gauge::default(),
            batch_limit: Gauge::default(),
            batch_commands_max: AtomicU64::new(0),
            batch_commands: Histogram::of_counts(),
            batch_events: Histogram::of_counts(),
            batch_times: Histogram::of_times(),
            stages: std::array::from_fn(|_| Histogram::of_times()),
        }
    }
}

/// A reading of [`LaneMetrics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Batches committed.
    pub batches: u64,
    /// Commands executed, including refused ones but not repeated executions.
    pub commands: u64,
    /// Commands refused by a rule.
    pub(crate) refusals: u64,
    /// Commands executed again because their evidence no longer proved the refusal.
    pub reruns: u64,
    /// Batches run again because another node or lane had changed one of their rows (lost races).
    pub conflicts: u64,
    /// Commands turned away because the queue was full.
    pub rejected: u64,
    /// Commands waiting at the moment of the reading.
    pub queued: u64,
    /// Largest batch so far, in commands.
    pub(crate) batch_commands_max: u64,
    /// Time spent loading rows, in nanoseconds.
    pub prefetch_ns: u64,
    /// Time spent in the rules, in nanoseconds.
    pub execute_ns: u64,
    /// Time spent making changes durable, in nanoseconds.
    pub commit_ns: u64,
}

impl LaneMetrics {
    /// Notes the number of lanes, and the limits of the queues together and of a batch.
    pub(crate) fn limits(&self, lanes: usize, queue_commands_max: usize, batch_commands_max: usize) {
        self.lanes.set(lanes as u64);
        self.queue_limit.set(queue_commands_max as u64);
        self.batch_limit.set(batch_commands_max as u64);
    }

    pub(crate) fn enqueued(&self, events: u64) {
        self.waiting.fetch_add(events, Relaxed);
    }

    pub(crate) fn dequeued(&self, events: u64) {
        self.waiting.fetch_sub(events, Relaxed);
    }

    pub(crate) fn served_clients(&self, lane: usize, does: bool) {
        let bit = 1 << (lane % 64);
        if does {
            self.serves_clients.fetch_or(bit, Relaxed);
        } else {
            self.serves_clients.fetch_and(!bit, Relaxed);
        }
    }

    /// Returns whether clients' commands arrived shortly before the latest batch. Background work then leaves
    /// them room.
    pub fn serves_clients(&self) -> bool {
        self.serves_clients.load(Relaxed) != 0
    }

    /// Counts a command that was turned away because too much was waiting.
    pub fn rejected(&self) {
        self.rejected.inc();
    }

    pub(crate) fn failed_command(&self) {
        self.failed_commands.inc();
    }

    pub(crate) fn failed_batch(&self) {
        self.failed_batches.inc();
    }

    pub(crate) fn batch_time(&self, time: Duration) {
        self.batch_times.time(time);
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.inc();
    }

    pub(crate) fn rerun(&self) {
        self.reruns.inc();
    }

    pub(crate) fn batch(&self, commands: u64, events: u64, refusals: u64, stages: [Duration; 3]) {
        self.commands.add(commands);
        self.batch_events.count(events);
        self.refusals.add(refusals);
        self.batch_commands_max.fetch_max(commands, Relaxed);
        self.batch_commands.count(commands);
        for (histogram, spent) in self.stages.iter().zip(stages) {
            histogram.time(spent);
        }
    }

    /// Waiting events. For most lanes a command is one event.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// Commands that were turned away because too much was waiting.
    #[must_use]
    pub const fn rejections(&self) -> &Counter {
        &self.rejected
    }

    /// Batches that were not committed.
    #[must_use]
    pub const fn failed_batches(&self) -> &Counter {
        &self.failed_batches
    }

    /// Commands in a batch.
    #[must_use]
    pub const fn batch_commands(&self) -> &Histogram {
        &self.batch_commands
    }

    /// Events in a batch.
    #[must_use]
    pub const fn batch_events(&self) -> &Histogram {
        &self.batch_events
    }

    /// Time of a batch, from taking its commands to the end of its commit.
    #[must_use]
    pub const fn batch_times(&self) -> &Histogram {
        &self.batch_times
    }

    /// Time of a batch in one stage.
    #[must_use]
    pub const fn stage_times(&self, stage: Stage) -> &Histogram {
        &self.stages[stage as usize]
    }

    /// Reads all counters, one after the other, so they may be from slightly different moments.
    pub fn snapshot(&self) -> LaneSnapshot {
        let [prefetch_ns, execute_ns, commit_ns] = self.stages.each_ref().map(|stage| stage.reading().1);
        LaneSnapshot {
            batches: self.batch_commands.reading().0,
            commands: self.commands.get(),
            refusals: self.refusals.get(),
            reruns: self.reruns.get(),
            conflicts: self.conflicts.get(),
            rejected: self.rejected.get(),
            queued: self.waiting(),
            batch_commands_max: self.batch_commands_max.load(Relaxed),
            prefetch_ns,
            execute_ns,
            commit_ns,
        }
    }

    /// Writes `batzen_lane_*`.
    pub fn write(&self, page: &mut Page) {
        page.count("batzen_lane_commands_total", "Commands decided", &self.commands);
        page.count("batzen_lane_refusals_total", "Commands refused by a rule", &self.refusals);
        page.count("batzen_lane_reruns_total", "Commands executed again for their evidence", &self.reruns);
        page.count(
            "batzen_lane_conflicts_total",
            "Batches run again because others changed their rows first",
            &self.conflicts,
        );
        page.count(
            "batzen_lane_rejected_total",
            "Commands not accepted because the queue was full",
            &self.rejected,
        );
        page.count(
            "batzen_lane_failed_total",
            "Commands not decided because the store could not be read or written",
            &self.failed_commands,
        );
        page.gauge(
            "batzen_lanes",
            "Lanes, whose times are added up in batzen_lane_stage_seconds",
            self.lanes.get(),
        );
        page.gauge("batzen_lane_queued", "Commands waiting", self.waiting());
        page.gauge("batzen_lane_queue_limit", "Commands that may wait", self.queue_limit.get());
        page.gauge("batzen_lane_batch_limit", "Commands that one batch may have", self.batch_limit.get());
        page.histogram("batzen_lane_batch_commands", "Commands in a committed batch", &self.batch_commands);
        page.histograms(
            "batzen_lane_stage_seconds",
            "Time of a batch in each stage: loading rows, rules, making durable",
            "stage",
            ["prefetch", "execute", "commit"].into_iter().zip(&self.stages),
        );
    }
}

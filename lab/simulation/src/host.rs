//! A process with a store on a simulated disk: its start, its messages, its end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use batzen_protocol::Timestamp;
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, Store, StoreError, TableDef};

use crate::drive::{Drive, Mount, directory};
use crate::message::{Context, Event, Message, ProcessId, Timer};
use crate::swarm::{Bug, SECOND};

/// Why a run ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The checker has found a bug.
    Wrong(String),
    /// A store has found a misdirected write and refuses to work, as it must.
    Detected(String),
}

impl Stop {
    /// A failure.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }
}

/// The start of each error of a store that has found damage.
pub(crate) const DAMAGE: &str = "corrupt data in ";

/// Returns whether a message contains the error of a store that has found damage.
#[must_use]
pub fn names_damage(text: &str) -> bool {
    text.contains(DAMAGE)
}

/// The result of a step.
pub type Step<T = ()> = Result<T, Stop>;

struct Opened {
    backend: Arc<EmbeddedStore>,
    is_broken: Arc<AtomicBool>,
}

/// The common part of all services.
pub struct Host {
    place: ProcessId,
    drive: Drive,
    tables: &'static [&'static TableDef],
    opened: Option<Opened>,
    /// Number of its starts.
    pub incarnation: u32,
    /// Received messages that wait for the next batch.
    pub inbox: Vec<Message>,
    /// When its process started, by its own clock.
    pub began: Timestamp,
    is_scheduled: bool,
    clock_offset: i64,
    checkpoints: u64,
    /// Whether it died within a call to the disk.
    has_died_within: bool,
    /// Whether it depends on writes that the previous process never synced: a power loss now is the hardest
    /// test of recovery.
    is_fragile: bool,
    /// The disk before the last batch, for [`Bug::AnswerBeforeCommit`].
    before_batch: Option<SimDisk>,
}

impl Host {
    /// A machine with an empty disk.
    #[must_use]
    pub fn new(place: ProcessId, seed: u64, tables: &'static [&'static TableDef]) -> Self {
        Self {
            place,
            drive: Drive::new(seed),
            tables,
            opened: None,
            incarnation: 0,
            inbox: Vec::new(),
            began: Timestamp::ZERO,
            is_scheduled: false,
            clock_offset: 0,
            checkpoints: 0,
            has_died_within: false,
            is_fragile: false,
            before_batch: None,
        }
    }

    /// Its disk.
    #[must_use]
    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// Returns whether its process runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.opened.is_some()
    }

    /// The time on its clock.
    #[must_use]
    pub fn clock(&self, context: &Context) -> Timestamp {
        Timestamp::from_micros(context.now.saturating_add_signed(self.clock_offset))
    }

    /// Sets its clock to this many microseconds before or after the true time.
    pub fn step_clock(&mut self, offset: i64) {
        self.clock_offset = offset;
    }

    /// Starts: opens the store. `None` if the process died during recovery; it starts again later.
    ///
    /// # Errors
    /// When the store does not open.
    pub fn open(&mut self, context: &mut Context) -> Step<Option<Store>> {
        assert!(self.opened.is_none(), "a process begins once");
        self.incarnation += 1;
        let is_broken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_broken);
        let options = Options {
            disk: Arc::new(Mount::new(&self.drive)),
            segment_bytes_first: 4 << 10,
            segment_bytes_max: 16 << 10,
            checkpoint_bytes: 24 << 10,
            compaction_step_bytes: 8 << 10,
            full_pause: Duration::ZERO,
            background: false,
            on_fatal: Arc::new(move |_| flag.store(true, Ordering::SeqCst)),
            identity: Some([7; 32]),
            ..Options::default()
        };
        if context.has(Bug::RecoveryWithoutSync) && self.incarnation > 1 {
            self.drive.skip_syncs(true);
        }
        let opened = EmbeddedStore::open(Path::new(&directory()), self.tables, options);
        self.drive.skip_syncs(false);
        match opened {
            Ok(backend) => {
                let backend = Arc::new(backend);
                let store = Store::shared(Arc::clone(&backend) as Arc<dyn Backend>);
                self.opened = Some(Opened { backend, is_broken });
                self.began = self.clock(context);
                let gap = context.random.between(200, 2_000) * SECOND;
                context.wake(self.place, self.incarnation, gap, Timer::Maintain);
                context.say(&format!("{:?} is up", self.place));
                Ok(Some(store))
            }
            Err(error) if self.drive.is_dead() => {
                self.has_died_within = true;
                context.marks.meet("crash.within_recovery");
                context.say(&format!("{:?} dies while it recovers: {error}", self.place));
                self.die(context);
                Ok(None)
            }
            Err(error @ (StoreError::Corrupt { .. } | StoreError::Format { .. })) => {
                Err(self.refused(context, &error))
            }
            Err(error) => {
                // The disk fails or is full, which is temporary.
                context.say(&format!("{:?} cannot begin: {error}", self.place));
                self.die(context);
                Ok(None)
            }
        }
    }

    /// The store cannot be read. This is correct after a misdirected write, and a bug otherwise.
    pub fn refused(&self, context: &mut Context, error: &dyn std::fmt::Display) -> Stop {
        let text = format!("{:?}: {error}", self.place);
        context.say(&text);
        if self.drive.was_misdirected() {
            context.marks.meet("disk.misdirected_write_found");
            Stop::Detected(text)
        } else {
            Stop::Wrong(text)
        }
    }

    /// Returns whether the process died in its last call to the disk. If so, removes it and schedules its
    /// restart.
    pub fn has_died(&mut self, context: &mut Context) -> bool {
        if self.drive.was_full() {
            context.marks.meet("disk.full");
        }
        if self.drive.is_newly_misdirected() {
            context.marks.meet("disk.misdirected_write");
            context.say(&format!("{:?}: a write was misdirected", self.place));
        }
        let Some(opened) = &self.opened else { return true };
        if self.drive.is_dead() {
            self.has_died_within = true;
            context.marks.meet("crash.within_commit");
        } else if opened.is_broken.load(Ordering::SeqCst) {
            context.marks.meet("disk.write_failed");
        } else {
            return false;
        }
        self.die(context);
        true
    }

    /// The process has ended; it starts again after a while.
    pub fn die(&mut self, context: &mut Context) {
        self.opened = None;
        self.inbox.clear();
        self.is_scheduled = false;
        context.marks.meet(match self.place {
            ProcessId::Exchange => "crash.exchange",
            ProcessId::Bank => "crash.bank",
            ProcessId::Shop => "crash.shop",
            _ => "crash.ledger",
        });
        context.say(&format!("{:?} is down", self.place));
        let pause = context.random.between(1, 900) * SECOND;
        context.caused.push((if context.is_active { pause } else { SECOND }, Event::Restart(self.place)));
    }

    /// Returns whether it depends on writes that the previous process never synced.
    #[must_use]
    pub const fn is_fragile(&self) -> bool {
        self.is_fragile
    }

    /// Prepares the disk for the next process: a kill or a power loss.
    pub fn revive(&mut self, context: &mut Context) {
        let mut power_loss = context.random.chance(context.swarm.power_losses);
        if std::mem::take(&mut self.is_fragile) && context.is_active {
            power_loss |= context.random.chance(500);
        }
        if let Some(before) = self.before_batch.take() {
            // The answers were not durable yet.
            self.drive.put_back(before);
            power_loss = true;
        }
        self.is_fragile = std::mem::take(&mut self.has_died_within) && !power_loss;
        context.marks.meet(if power_loss { "crash.power_loss" } else { "crash.process_kill" });
        context.say(if power_loss { "after a power loss" } else { "after a kill" });
        self.drive.revive(power_loss);
        if context.is_active && context.random.chance(context.swarm.crash_twice) {
            self.drive.die_at(context.random.between(1, 8));
        }
    }

    /// A message arrives; the next batch handles it.
    pub fn arrive(&mut self, context: &mut Context, message: Message) {
        if !self.is_up() {
            context.marks.meet("message.to_dead_process");
            return;
        }
        self.inbox.push(message);
        self.schedule(context);
    }

    /// Schedules a batch to run soon.
    pub fn schedule(&mut self, context: &mut Context) {
        if !std::mem::replace(&mut self.is_scheduled, true) {
            let after = context.random.between(500, context.swarm.gather);
            context.wake(self.place, self.incarnation, after, Timer::Batch);
        }
    }

    /// Takes the received messages.
    pub fn take_inbox(&mut self, context: &mut Context) -> Vec<Message> {
        self.is_scheduled = false;
        if self.inbox.len() > 1 {
            context.marks.meet("batch.several");
        }
        std::mem::take(&mut self.inbox)
    }

    /// Records that a batch starts.
    pub fn before_batch(&mut self, context: &Context) {
        if context.has(Bug::AnswerBeforeCommit) && self.place == ProcessId::Exchange {
            self.before_batch = Some(self.drive.snapshot());
        }
    }

    /// Does the work of the store's background thread.
    ///
    /// # Errors
    /// If it finds damage. Work that failed for another reason is done later.
    pub fn maintain(&mut self, context: &mut Context) -> Step {
        let Some(opened) = &self.opened else { return Ok(()) };
        let maintained = opened.backend.maintain();
        if let Err(error @ StoreError::Corrupt { .. }) = maintained
            && !self.drive.is_dead()
        {
            return Err(self.refused(context, &error));
        }
        let checkpoints = opened.backend.stats().checkpoints_total;
        if checkpoints > self.checkpoints {
            context.marks.meet("store.checkpoint");
        }
        self.checkpoints = checkpoints;
        if !self.has_died(context) {
            let gap = context.random.between(200, 2_000) * if context.is_active { 1 } else { 8 };
            context.wake(self.place, self.incarnation, gap * SECOND, Timer::Maintain);
        }
        Ok(())
    }

    /// Handles a store error that is not damage.
    pub fn note_failure(&self, context: &mut Context, error: &StoreError) -> Step {
        match error {
            StoreError::Full(_) => {
                context.marks.meet("disk.full_refused");
                context.say(&format!("{:?}: the disk is full", self.place));
                Ok(())
            }
            StoreError::Corrupt { .. } => Err(self.refused(context, error)),
            error => {
                context.say(&format!("{:?}: {error}", self.place));
                Ok(())
            }
        }
    }
}

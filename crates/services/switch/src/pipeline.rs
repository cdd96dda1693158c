//! The lane of the switch: it numbers messages for the outbox, and passes on the consequences of decisions.
//!
//! Requests and the ledger's answers share batches, so that each round needs only one commit:
//!
//! ```text
//!  requests ─▶ ┌──────┐ intents ─▶ clearing ─▶ ledger
//!              │ lane │                          │
//!   answers ─▶ └──────┘ ◀────────────────────────┘
//!                 │ told, deadlines
//!                 ▼
//!           senders, expiry
//! ```
//!
//! The queue of requests is limited. Internal commands (answers of the ledger, deliveries) are always
//! accepted: the number of admitted requests bounds theirs.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use batzen_engine::{Command as _, LaneMetrics, LaneOptions, Plan, Rules, SubmitError, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::switch::Outbox;

use crate::clock::SwitchClock;
use crate::rules::{Command, Consequences, Decided, Intent, Refusal, Stamp, SwitchRules};

/// The decision on a command, or the reason why there is none.
pub type Verdict = Result<Decided, SubmitError>;

/// Receives the consequences of decided commands. Called by the lane's thread, so it must not block.
pub trait Follow: Send + Sync + 'static {
    /// Returns whether so many intents await the ledger that requests are refused.
    fn is_full(&self) -> bool;
    /// These intents are written. They belong together.
    fn intended(&self, intents: &[Intent]);
    /// These participants have new messages.
    fn told(&self, participants: &[u32]);
    /// A deadline at this time, in milliseconds since 1970.
    fn deadline(&self, millis: u64);
}

/// A command with its stamp, which is empty until the lane calls [`Rules::prepare`].
type Stamped = (Stamp, Command);

/// The rules with what depends on the order of execution.
struct LaneRules {
    /// Without a stamp.
    rules: SwitchRules,
    clock: SwitchClock,
    /// The number of the next message.
    next_number: AtomicU64,
    follow: Arc<dyn Follow>,
}

impl LaneRules {
    fn at(&self, stamp: Stamp) -> SwitchRules {
        SwitchRules { stamp, ..self.rules }
    }
}

impl Rules for LaneRules {
    type Command = Stamped;
    type Answer = Consequences;
    type Refusal = Refusal;

    fn plan(&self, (stamp, command): &Stamped, plan: &mut Plan) {
        command.plan(&self.at(*stamp), plan);
    }

    fn execute(&self, rows: &mut WorkingSet, (stamp, command): &Stamped, _: Timestamp) -> Decided {
        command.execute(&self.at(*stamp), rows, Timestamp::from_micros(stamp.micros))
    }

    fn events(&self, (_, command): &Stamped) -> usize {
        command.events()
    }

    fn prepare(&self, (stamp, command): &mut Stamped) {
        stamp.number = self.next_number.fetch_add(command.events() as u64, Relaxed);
        stamp.micros = (self.clock)();
    }

    fn decided(&self, _: &Stamped, outcome: &Consequences) {
        if !outcome.intents.is_empty() {
            self.follow.intended(&outcome.intents);
        }
        if !outcome.told.is_empty() {
            self.follow.told(&outcome.told);
        }
        if let Some(millis) = outcome.deadline {
            self.follow.deadline(millis);
        }
    }
}

/// A handle on the lane. Clones share it.
#[derive(Clone)]
pub struct Lane {
    lane: batzen_engine::Lane<LaneRules>,
    follow: Arc<dyn Follow>,
}

impl Lane {
    /// Starts the lane, in which at most `requests_max` requests may wait.
    ///
    /// # Errors
    /// When the outbox cannot be read.
    pub fn start(
        rules: SwitchRules,
        store: Store,
        clock: SwitchClock,
        requests_max: usize,
        follow: Arc<dyn Follow>,
    ) -> Result<Self, StoreError> {
        let mut first_number = 1;
        store.scan::<Outbox>(|found| {
            first_number = first_number.max(found.key.number + 1);
            ControlFlow::Continue(())
        })?;
        let options = LaneOptions { queue_commands_max: requests_max, ..LaneOptions::default() };
        let whole_seconds = {
            let clock = Arc::clone(&clock);
            move || Timestamp::from_micros(clock())
        };
        let next_number = AtomicU64::new(first_number);
        let rules = Arc::new(LaneRules { rules, clock, next_number, follow: Arc::clone(&follow) });
        let lane = batzen_engine::Lane::start(rules, store, Arc::new(whole_seconds), options);
        Ok(Self { lane, follow })
    }

    /// Decides a command. Returns after it is durable.
    ///
    /// # Errors
    /// [`SubmitError`]: it was not decided.
    pub async fn submit(&self, command: impl Into<Command>) -> Verdict {
        if self.follow.is_full() {
            self.metrics().rejected();
            return Err(SubmitError::Overloaded);
        }
        self.lane.submit((Stamp::default(), command.into())).await
    }

    /// Submits an internal command. It is repeated until the store accepts it, even if the future is dropped.
    pub fn submit_internal(&self, command: Command) -> impl Future<Output = Verdict> + Send + use<> {
        self.lane.submit_internal((Stamp::default(), command))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.lane.store()
    }

    /// The lane's metrics.
    #[must_use]
    pub fn metrics(&self) -> &LaneMetrics {
        self.lane.metrics()
    }

    /// Closes the lane: submitted commands are decided, later ones are refused. Not for async threads.
    pub fn close(&self) {
        self.lane.stop();
    }
}

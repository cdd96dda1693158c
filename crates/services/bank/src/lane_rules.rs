//! The rules together with a ledger that shares the bank's store, if it does. Then one batch contains both
//! decisions on a movement of money, by rules and ledger, and one commit makes ledger transfer and
//! transaction durable. The intent exists only within the batch. Only withdrawals, which take two steps, and
//! ledgers elsewhere need intents that outlive it.

use std::sync::Arc;

use batzen_engine::{Joined, Lane, LaneOptions, Plan, Rules, WorkingSet};
use batzen_ledger_service::store::{DurableLedger, Joint};
use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Store, StoreError};
use batzen_tables::bank::Origin;

use crate::BankConfig;
use crate::chart::Chart;
use crate::events::{BATCH_MAX, Events, require_accounts};
use crate::rules::{Answer, BankRules, Command, Finished, Intent, Refusal};
use crate::wakes::Booked;

/// The rules of the bank's lane.
pub(crate) struct BankLaneRules {
    pub(crate) rules: BankRules,
    /// The ledger in the same store.
    pub(crate) joint: Option<JointLedger>,
}

/// A ledger in the bank's store.
pub(crate) struct JointLedger {
    pub(crate) ledger: Arc<DurableLedger>,
    pub(crate) chart: Chart,
    pub(crate) booked: Booked,
}

impl JointLedger {
    /// The ledger of a bank, if it is in its store.
    pub(crate) fn of(
        own: Option<&Arc<DurableLedger>>,
        is_joint: bool,
        chart: Chart,
        booked: &Booked,
    ) -> Option<Self> {
        let ledger = own.filter(|_| is_joint)?;
        Some(Self { ledger: Arc::clone(ledger), chart, booked: Arc::clone(booked) })
    }
}

impl BankLaneRules {
    /// Starts the lane of a bank.
    pub(crate) fn lane(
        rules: BankRules,
        store: &Store,
        config: &BankConfig,
        joint: Option<JointLedger>,
    ) -> Lane<Self> {
        let options = LaneOptions { batch_commands_max: BATCH_MAX, ..LaneOptions::default() };
        let lane_rules = Arc::new(Self { rules, joint });
        Lane::start(lane_rules, store.clone(), Arc::clone(&config.clock), options)
    }
}

/// The verdicts of a batch.
struct Decided<'a> {
    ledger: Box<Joint>,
    booked: &'a Booked,
    finished: Vec<(Box<Intent>, Finished)>,
}

/// Returns whether the ledger decides on such an intent within the batch that writes it.
fn is_decided_at_once(origin: Origin) -> bool {
    matches!(origin, Origin::Transfer | Origin::Incoming | Origin::Payment | Origin::Bonus)
}

impl Rules for BankLaneRules {
    type Command = Command;
    type Answer = Answer;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        self.rules.plan(command, plan);
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Answer, Refusal> {
        self.rules.execute(rows, command, now)
    }

    fn join<'a>(
        &'a self,
        rows: &mut WorkingSet,
        verdicts: &mut [Result<Answer, Refusal>],
        now: Timestamp,
    ) -> Result<Option<Box<dyn Joined + 'a>>, StoreError> {
        let Some(JointLedger { ledger, chart, booked }) = &self.joint else { return Ok(None) };
        let mut places = Vec::new();
        let mut intents = Vec::new();
        for (place, verdict) in verdicts.iter_mut().enumerate() {
            if matches!(verdict, Ok(Answer::Intended(intent)) if is_decided_at_once(intent.key.origin()))
                && let Ok(Answer::Intended(intent)) = std::mem::replace(verdict, Ok(Answer::Registered))
            {
                places.push(place);
                intents.push(intent);
            }
        }
        if intents.is_empty() {
            return Ok(None);
        }
        let events = Events::of(chart, intents.iter().map(|intent| &**intent));
        let mut ledger = Box::new(ledger.join(now.as_micros().saturating_mul(1000))?);
        let accounts = events.accounts();
        if !accounts.is_empty() {
            require_accounts(&accounts, &ledger.create_accounts(&accounts)?);
        }
        let results = ledger.create_transfers(&events.transfers())?;
        let mut finished = Vec::with_capacity(intents.len());
        for ((place, intent), verdict) in places.into_iter().zip(intents).zip(events.verdicts(&results)) {
            let Ok(verdict) = verdict else {
                // An answer that cannot be interpreted leaves the intent open, for an operator to examine.
                verdicts[place] = Ok(Answer::Intended(intent));
                continue;
            };
            let booked = self.rules.finish(rows, &intent, verdict, now);
            verdicts[place] = booked.result.clone();
            finished.push((intent, booked));
        }
        Ok(Some(Box::new(Decided { ledger, booked, finished })))
    }
}

impl Joined for Decided<'_> {
    fn changes(&mut self) -> ChangeSet {
        self.ledger.changes()
    }

    fn committed(self: Box<Self>) {
        let Self { ledger, booked, finished } = *self;
        ledger.committed();
        for (intent, finished) in finished {
            booked(&intent, &finished);
        }
    }
}

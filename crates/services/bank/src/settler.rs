//! The bank's intents, for its ledger outbox.

use std::ops::ControlFlow;
use std::sync::Arc;

use batzen_engine::Lane;
use batzen_ledger::{Account, Booking, Intents, Outbox, OutboxQueue, OutboxTask, RetryingLedger, Sent};
use batzen_store::{Store, StoreError};
use batzen_tables::bank::BankIntents;

pub(crate) use batzen_ledger::answered;

use crate::chart::{Chart, LedgerMismatch, Verdict};
use crate::events::{BATCH_MAX, Events, require_accounts};
use crate::lane_rules::BankLaneRules;
use crate::rules::{Answer, Finish, Finished, Intent, Refusal, TypedCommand};
use crate::wakes::Booked;

/// The most intents that are between the moment before they are written and the moment after they are booked.
/// Further ones are refused before anything is written.
const INTENTS_MAX: usize = 16_384;

/// Intents booked by one command.
const FINISH_MAX: usize = 512;

/// The answer to the command that wrote an intent.
pub(crate) type Settled = Result<Result<Answer, Refusal>, Unsettled>;

/// Why an intent stays open.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Unsettled {
    /// The service ends, or the ledger takes long.
    #[error("the ledger has not answered yet")]
    Waiting,
    /// The ledger contradicts the books.
    #[error(transparent)]
    LedgerMismatch(#[from] LedgerMismatch),
}

/// The ledger outbox of a bank.
pub(crate) type Settler = Outbox<BankOutbox>;

/// The bank's side of the outbox.
pub(crate) struct BankOutbox {
    chart: Chart,
    lane: Lane<BankLaneRules>,
    booked: Booked,
}

impl BankOutbox {
    pub(crate) fn start(
        ledger: RetryingLedger,
        chart: Chart,
        lane: Lane<BankLaneRules>,
        booked: Booked,
    ) -> (Settler, OutboxTask) {
        let (settler, queue): (_, OutboxQueue<Self>) = Outbox::new(INTENTS_MAX);
        (settler, queue.serve(Self { chart, lane, booked }, ledger))
    }
}

impl Intents for BankOutbox {
    type Intent = Intent;
    type Answer = Result<Verdict, LedgerMismatch>;
    type Booked = Settled;

    const ROUND_INTENTS_MAX: usize = BATCH_MAX;

    async fn ask(&self, ledger: &RetryingLedger, round: &[Sent<Intent>]) -> Vec<Self::Answer> {
        let events = Events::of(&self.chart, round.iter().map(|sent| &sent.intent));
        let accounts = events.accounts();
        if !accounts.is_empty() {
            create_accounts(ledger, accounts).await;
        }
        events.verdicts(&ledger.create_transfers(events.transfers()).await)
    }

    fn book(&self, round: Vec<(Intent, Self::Answer)>) -> Booking<Settled> {
        let mut results: Vec<Option<Settled>> = Vec::with_capacity(round.len());
        let (mut places, mut known) = (Vec::with_capacity(round.len()), Vec::with_capacity(round.len()));
        for (place, (intent, verdict)) in round.into_iter().enumerate() {
            results.push(None);
            match verdict {
                Ok(verdict) => {
                    places.push(place);
                    known.push((intent, verdict));
                }
                Err(strange) => {
                    tracing::error!(%strange, origin = ?intent.key.origin(), "a movement of money stays open");
                    results[place] = Some(Err(strange.into()));
                }
            }
        }
        // The parts share a batch of the lane.
        let parts = known.chunks(FINISH_MAX).map(|part| {
            let part: Arc<[(Intent, Verdict)]> = part.into();
            let finished = self.lane.submit_internal(Finish(Arc::clone(&part)).into());
            (part, finished)
        });
        let (parts, booked) = (parts.collect::<Vec<_>>(), Arc::clone(&self.booked));
        Box::pin(async move {
            let mut places = places.into_iter();
            for (part, finished) in parts {
                let finished: Vec<Finished> = match finished.await {
                    Ok(Ok(answer)) => Finish::answer(answer),
                    Ok(Err(refusal)) => panic!("the rules refused to book the ledger's answers: {refusal}"),
                    // The lane has ended, and the next start repeats it.
                    Err(_) => break,
                };
                for (((intent, _), finished), place) in part.iter().zip(finished).zip(&mut places) {
                    booked(intent, &finished);
                    results[place] = Some(Ok(finished.result));
                }
            }
            results
        })
    }
}

/// Creates ledger accounts. Existing ones stay unchanged.
///
/// # Panics
/// If the ledger has other accounts under their ids.
pub(crate) async fn create_accounts(ledger: &RetryingLedger, events: Vec<Account>) {
    let results = ledger.create_accounts(events.clone()).await;
    require_accounts(&events, &results);
}

/// Repeats intents that an earlier process has left open. Returns how many there were.
///
/// # Errors
/// If the store cannot be read, or the ledger contradicts it. Does not return while the ledger does not
/// answer.
pub(crate) async fn settle_left_open(settler: &Settler, store: &Store) -> Result<usize, RecoveryError> {
    let store = store.clone();
    let read = move || {
        let mut open = Vec::new();
        store.scan::<BankIntents>(|found| {
            if found.row.is_open {
                open.push(vec![Intent::left_open(found.key, found.row)]);
            }
            ControlFlow::Continue(())
        })?;
        Ok::<_, StoreError>(open)
    };
    let open = tokio::task::spawn_blocking(read).await.expect("reading does not panic")?;
    let results = settler.repeat(open).await;
    let count = results.len();
    for settled in results {
        // A refusal is a result too: the client learns it when it asks again.
        let _ = settled.unwrap_or(Err(Unsettled::Waiting))?;
    }
    Ok(count)
}

/// Why open intents could not be settled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ledger(#[from] Unsettled),
}

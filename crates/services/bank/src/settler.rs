//! Passes intents to the ledger and the ledger's answers to the books, many at a time.
//!
//! Intents that arrive while the ledger works on a batch form the next one. A batch is repeated under the
//! same ids until it is answered. Its answers are booked while the next one is under way. An intent that the
//! ledger never answers stays open in the store, and the next start repeats it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use batzen_engine::{Lane, SubmitError};
use batzen_ledger::{Ledger, LedgerError};
use batzen_store::{Store, StoreError};
use batzen_tables::bank::{BankIntents, Origin};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::chart::{Chart, LedgerMismatch, Verdict};
use crate::events::{BATCH_MAX, Events, require_accounts};
use crate::lane_rules::BankLaneRules;
use crate::rules::{Answer, Command, Finish, Finished, Intent, Refusal, TypedCommand};

/// The most intents that are between the moment before they are written and the moment after they are booked.
/// Further ones are refused before anything is written.
pub(crate) const INTENTS_MAX: usize = 16_384;

/// Intents booked by one command.
const FINISH_MAX: usize = 512;

/// Pauses between repetitions, doubling.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

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

struct Job {
    intent: Intent,
    answer: oneshot::Sender<Settled>,
    /// Returned when the intent is booked.
    _place: OwnedSemaphorePermit,
}

/// The task behind a [`Settler`].
pub(crate) struct Settling {
    task: tokio::task::JoinHandle<()>,
    abort: tokio::task::AbortHandle,
}

impl Settling {
    /// Waits until everything is booked, at most until `deadline`. The rest stays open in the store.
    pub(crate) async fn end(self, deadline: tokio::time::Instant) {
        let Self { mut task, abort } = self;
        if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
            tracing::warn!("the ledger does not answer: open intents are repeated at the next start");
            abort.abort();
            let _ = task.await;
        }
    }
}

/// Called for every booked intent, to wake waiting polls.
pub(crate) type Booked = Arc<dyn Fn(&Intent, &Finished) + Send + Sync>;

/// Access to the ledger. Clones share it.
#[derive(Clone)]
pub(crate) struct Settler {
    queue: mpsc::Sender<Job>,
    places: Arc<Semaphore>,
}

impl Settler {
    /// Starts the task. It ends when the last handle is dropped and everything is booked.
    pub(crate) fn start(
        ledger: Arc<dyn Ledger>,
        chart: Chart,
        lane: Lane<BankLaneRules>,
        booked: Booked,
    ) -> (Self, Settling) {
        let (queue, jobs) = mpsc::channel(INTENTS_MAX);
        let work = tokio::spawn(run(jobs, ledger, chart, lane, booked));
        let abort = work.abort_handle();
        let task = tokio::spawn(async move {
            // After a broken assertion the state cannot be trusted.
            if work.await.is_err_and(|error| error.is_panic()) {
                tracing::error!("the ledger contradicts the books: the process ends");
                std::process::abort();
            }
        });
        (Self { queue, places: Arc::new(Semaphore::new(INTENTS_MAX)) }, Settling { task, abort })
    }

    /// Reserves a place for an intent that is about to be written. `None`: too many are under way.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Intents under way.
    pub(crate) fn open(&self) -> usize {
        INTENTS_MAX - self.places.available_permits()
    }

    /// Settles a written intent, even if nobody waits for the answer.
    pub(crate) async fn settle(&self, intent: Intent, place: OwnedSemaphorePermit) -> Settled {
        let (answer, receiver) = oneshot::channel();
        let job = Job { intent, answer, _place: place };
        self.queue.send(job).await.map_err(|_| Unsettled::Waiting)?;
        receiver.await.unwrap_or(Err(Unsettled::Waiting))
    }

    /// Repeats intents that an earlier process has left open.
    ///
    /// # Errors
    /// If the store cannot be read, or the ledger contradicts it. Does not return while the ledger does not
    /// answer.
    pub(crate) async fn settle_left_open(&self, store: &Store) -> Result<usize, RecoveryError> {
        let store = store.clone();
        let read = move || {
            let mut open = Vec::new();
            store.scan::<BankIntents>(|found| {
                if found.row.is_open {
                    open.push(Intent::left_open(found.key, found.row));
                }
                std::ops::ControlFlow::Continue(())
            })?;
            Ok::<_, StoreError>(open)
        };
        let open = tokio::task::spawn_blocking(read).await.expect("reading does not panic")?;
        let count = open.len();
        let mut waiting = Vec::with_capacity(count);
        for intent in open {
            let place = Arc::clone(&self.places).acquire_owned().await.expect("places are never closed");
            let settler = self.clone();
            waiting.push(tokio::spawn(async move { settler.settle(intent, place).await }));
        }
        for settled in waiting {
            // A refusal is a result too: the client learns it when it asks again.
            let _ = settled.await.expect("settling does not panic")?;
        }
        Ok(count)
    }
}

/// Why open intents could not be settled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ledger(#[from] Unsettled),
}

async fn run(
    mut jobs: mpsc::Receiver<Job>,
    ledger: Arc<dyn Ledger>,
    chart: Chart,
    lane: Lane<BankLaneRules>,
    booked: Booked,
) {
    let mut booking = tokio::task::JoinSet::new();
    loop {
        let mut batch = Vec::new();
        if jobs.recv_many(&mut batch, BATCH_MAX).await == 0 {
            break;
        }
        let verdicts = ask(ledger.as_ref(), &chart, &batch).await;
        let (lane, booked) = (lane.clone(), Arc::clone(&booked));
        booking.spawn(async move { book(&lane, &booked, batch, verdicts).await });
        while let Some(done) = booking.try_join_next() {
            done.expect("booking does not panic");
        }
    }
    booking.join_all().await;
}

/// Asks the ledger until it answers.
async fn ask(ledger: &dyn Ledger, chart: &Chart, batch: &[Job]) -> Vec<Result<Verdict, LedgerMismatch>> {
    let events = Events::of(chart, batch.iter().map(|job| &job.intent));
    let accounts = events.accounts();
    if !accounts.is_empty() {
        create_accounts(ledger, accounts).await;
    }
    let transfers = events.transfers();
    events.verdicts(&answered(|| ledger.create_transfers(transfers.clone())).await)
}

/// Creates ledger accounts. Existing ones stay unchanged.
///
/// # Panics
/// If the ledger has other accounts under their ids.
pub(crate) async fn create_accounts(ledger: &dyn Ledger, events: Vec<batzen_ledger::Account>) {
    let results = answered(|| ledger.create_accounts(events.clone())).await;
    require_accounts(&events, &results);
}

/// Repeats a request until it is answered.
pub(crate) async fn answered<T, F: Future<Output = Result<T, LedgerError>>>(
    mut request: impl FnMut() -> F,
) -> T {
    let mut pause = PAUSE_MIN;
    loop {
        let error = match request().await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        if pause >= PAUSE_MAX || !matches!(error, LedgerError::Busy(_)) {
            tracing::warn!(%error, "a request to the ledger failed; retrying");
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Books the answers and passes them on.
async fn book(
    lane: &Lane<BankLaneRules>,
    booked: &Booked,
    batch: Vec<Job>,
    verdicts: Vec<Result<Verdict, LedgerMismatch>>,
) {
    let mut known = Vec::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for (Job { intent, answer, _place }, verdict) in batch.into_iter().zip(verdicts) {
        match verdict {
            Ok(verdict) => {
                known.push((intent, verdict));
                waiting.push((answer, _place));
            }
            Err(strange) => {
                tracing::error!(%strange, origin = ?intent.key.origin(), "a movement of money stays open");
                let _ = answer.send(Err(strange.into()));
            }
        }
    }
    let mut waiting = waiting.into_iter();
    while !known.is_empty() {
        let rest = known.split_off(known.len().min(FINISH_MAX));
        let part: Arc<[(Intent, Verdict)]> = std::mem::replace(&mut known, rest).into();
        let Some(finished) = finish(lane, &part).await else { return };
        for (((intent, _), finished), (answer, _place)) in part.iter().zip(finished).zip(&mut waiting) {
            booked(intent, &finished);
            let _ = answer.send(Ok(finished.result));
        }
    }
}

/// Books the answers of one command. `None`: the lane has ended, and the next start repeats it.
async fn finish(lane: &Lane<BankLaneRules>, part: &Arc<[(Intent, Verdict)]>) -> Option<Vec<Finished>> {
    let mut pause = PAUSE_MIN;
    loop {
        match lane.submit(Finish(Arc::clone(part)).into()).await {
            Ok(Ok(answer)) => return Some(Finish::answer(answer)),
            Ok(Err(refusal)) => panic!("the rules refused to book the ledger's answers: {refusal}"),
            Err(SubmitError::Stopped) => return None,
            // Retried until it succeeds: a full store gets space again, and the ledger has already moved the money.
            Err(error) => tracing::warn!(%error, "cannot book the ledger's answers yet; retrying"),
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Whether the command may write an intent.
pub(crate) fn moves_money(command: &Command) -> bool {
    !matches!(
        command,
        Command::Open(_) | Command::SetPassword(_) | Command::CreateWithdrawal(_) | Command::Finish(_)
    )
}

/// Whether an intent ends a withdrawal operation.
pub(crate) fn ends_operation(origin: Origin) -> bool {
    matches!(origin, Origin::Withdrawal | Origin::Release)
}

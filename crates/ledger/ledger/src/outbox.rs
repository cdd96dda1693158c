//! The outbox of a service whose money is in a ledger.
//!
//! A service records an *intent* to move money in the same commit as its reason. Then the outbox sends the
//! transfers of the intent, under ids that are derived from it, and the service books the ledger's answer.
//!
//! Intents that arrive while the ledger works on some form the next round. A request is repeated until it is
//! answered. Answers are booked while the next round is under way. An intent that the ledger never answers
//! stays open in the service's store, and the next start repeats it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::RetryingLedger;

/// The intents of a service.
pub trait Intents: Send + Sync + 'static {
    /// A durable intent.
    type Intent: Send + Sync + 'static;
    /// The ledger's answer to an intent.
    type Answer: Send + 'static;
    /// The result of an intent, as booked.
    type Booked: Send + 'static;

    /// A round accepts no further intents once it has this many.
    const ROUND_INTENTS_MAX: usize;

    /// Sends the transfers of a round. Returns an answer for each intent, in their order.
    fn ask(
        &self,
        ledger: &RetryingLedger,
        round: &[Sent<Self::Intent>],
    ) -> impl Future<Output = Vec<Self::Answer>> + Send;

    /// Begins to book answers before it returns, so that rounds are booked in their order. The future ends
    /// when they are durable, with a result for each intent. None: the intent stays open.
    fn book(&self, round: Vec<(Self::Intent, Self::Answer)>) -> Booking<Self::Booked>;
}

/// The future of [`Intents::book`].
pub type Booking<B> = Pin<Box<dyn Future<Output = Vec<Option<B>>> + Send>>;

/// An intent in a round.
#[derive(Clone, Copy, Debug)]
pub struct Sent<T> {
    /// The intent.
    pub intent: T,
    /// Whether an earlier run of the service has left it open, and may have sent its transfers.
    pub is_repeated: bool,
}

/// A place for an intent in an outbox, until it is booked.
pub struct OutboxPlace(Arc<Places>);

struct Places {
    taken: AtomicUsize,
    max: usize,
    /// Signals that all places are free.
    idle: Notify,
}

impl Places {
    fn take(self: &Arc<Self>) -> OutboxPlace {
        self.taken.fetch_add(1, SeqCst);
        OutboxPlace(Arc::clone(self))
    }

    /// Waits until all places are free.
    async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.taken.load(SeqCst) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for OutboxPlace {
    fn drop(&mut self) {
        if self.0.taken.fetch_sub(1, SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

struct Job<I: Intents> {
    sent: Sent<I::Intent>,
    /// None for an intent that an earlier run has left open.
    place: Option<OutboxPlace>,
    /// The receiver of the result, if somebody waits for it.
    answer: Option<oneshot::Sender<I::Booked>>,
}

/// Intents that belong into one round.
type Group<I> = Vec<Job<I>>;

/// A handle on an outbox. Clones share it.
pub struct Outbox<I: Intents> {
    groups: mpsc::UnboundedSender<Group<I>>,
    places: Arc<Places>,
}

impl<I: Intents> Clone for Outbox<I> {
    fn clone(&self) -> Self {
        Self { groups: self.groups.clone(), places: Arc::clone(&self.places) }
    }
}

impl<I: Intents> Outbox<I> {
    /// Creates an outbox with places for `intents_max` intents. Nothing is sent before [`OutboxQueue::serve`].
    #[must_use]
    pub fn new(intents_max: usize) -> (Self, OutboxQueue<I>) {
        let (groups, queue) = mpsc::unbounded_channel();
        let places = Arc::new(Places { taken: AtomicUsize::new(0), max: intents_max, idle: Notify::new() });
        (Self { groups, places: Arc::clone(&places) }, OutboxQueue { groups: queue, places })
    }

    /// Intents that have a place.
    #[must_use]
    pub fn open(&self) -> usize {
        self.places.taken.load(SeqCst)
    }

    /// Returns whether all places are taken. Refuse commands that would write an intent, before they write
    /// it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open() >= self.places.max
    }

    /// Takes a place for an intent that is about to be written.
    #[must_use]
    pub fn place(&self) -> Option<OutboxPlace> {
        let place = self.places.take();
        (place.0.taken.load(SeqCst) <= place.0.max).then_some(place)
    }

    /// Sends a written intent. Waits until it is booked; it is booked even if nobody waits. None: it stays
    /// open.
    pub async fn settle(&self, intent: I::Intent, place: OutboxPlace) -> Option<I::Booked> {
        let (answer, booked) = oneshot::channel();
        let (sent, place) = (Sent { intent, is_repeated: false }, Some(place));
        self.push(vec![Job { sent, place, answer: Some(answer) }]);
        booked.await.ok()
    }

    /// Sends written intents in one round, whether there are places or not.
    pub fn send(&self, intents: impl IntoIterator<Item = I::Intent>) {
        let job = |intent| Job {
            sent: Sent { intent, is_repeated: false },
            place: Some(self.places.take()),
            answer: None,
        };
        self.push(intents.into_iter().map(job).collect());
    }

    /// Sends intents that an earlier run has left open; each group goes into one round. They take no places.
    /// The future has their results; dropping it has no effect on them.
    pub fn repeat(
        &self,
        groups: Vec<Vec<I::Intent>>,
    ) -> impl Future<Output = Vec<Option<I::Booked>>> + Send + use<I> {
        let mut waiting = Vec::new();
        for group in groups {
            let job = |intent| {
                let (answer, booked) = oneshot::channel();
                waiting.push(booked);
                Job { sent: Sent { intent, is_repeated: true }, place: None, answer: Some(answer) }
            };
            self.push(group.into_iter().map(job).collect());
        }
        async move {
            let mut results = Vec::with_capacity(waiting.len());
            for booked in waiting {
                results.push(booked.await.ok());
            }
            results
        }
    }

    fn push(&self, group: Group<I>) {
        // While the service ends nobody receives it: the intents stay open.
        let _ = self.groups.send(group);
    }
}

/// The intents that wait to be sent.
pub struct OutboxQueue<I: Intents> {
    groups: mpsc::UnboundedReceiver<Group<I>>,
    places: Arc<Places>,
}

impl<I: Intents> OutboxQueue<I> {
    /// Starts to send. Must be called within a tokio runtime. After a broken assertion the process ends,
    /// since its books can no longer be trusted.
    #[must_use]
    pub fn serve(self, intents: I, ledger: RetryingLedger) -> OutboxTask {
        let Self { groups, places } = self;
        let work = tokio::spawn(run(intents, ledger, groups));
        let abort = work.abort_handle();
        let task = tokio::spawn(async move {
            if work.await.is_err_and(|error| error.is_panic()) {
                tracing::error!("the ledger contradicts the books: aborting");
                std::process::abort();
            }
        });
        OutboxTask { task, abort, places }
    }
}

/// The task of an outbox.
pub struct OutboxTask {
    task: JoinHandle<()>,
    abort: AbortHandle,
    places: Arc<Places>,
}

impl OutboxTask {
    /// Waits until everything is booked, at most until `deadline`. The rest stays open in the service's
    /// store.
    pub async fn end(self, deadline: tokio::time::Instant) {
        let Self { task, abort, places } = self;
        if tokio::time::timeout_at(deadline, places.idle()).await.is_err() {
            tracing::warn!("the ledger does not answer: open intents are repeated at the next start");
        }
        abort.abort();
        let _ = task.await;
    }
}

async fn run<I: Intents>(intents: I, ledger: RetryingLedger, mut groups: mpsc::UnboundedReceiver<Group<I>>) {
    let mut booking = JoinSet::new();
    while let Some(mut jobs) = groups.recv().await {
        while jobs.len() < I::ROUND_INTENTS_MAX
            && let Ok(more) = groups.try_recv()
        {
            jobs.extend(more);
        }
        let (round, waiting): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|Job { sent, place, answer }| (sent, (place, answer))).unzip();
        let answers = intents.ask(&ledger, &round).await;
        assert_eq!(answers.len(), round.len(), "each intent has an answer");
        let booked = intents.book(round.into_iter().map(|sent| sent.intent).zip(answers).collect());
        booking.spawn(async move {
            for ((place, answer), booked) in waiting.into_iter().zip(booked.await) {
                if let (Some(answer), Some(booked)) = (answer, booked) {
                    // The client may have given up.
                    let _ = answer.send(booked);
                }
                drop(place);
            }
        });
        while let Some(done) = booking.try_join_next() {
            done.expect("booking does not panic");
        }
    }
    booking.join_all().await;
}

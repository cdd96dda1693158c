//! The task of a client whose server is a cluster with a client library of its own.
//!
//! Such a library sends one message of a session at a time and repeats it until it is answered. It queues whatever it
//! is given, without a limit, and has a thread and buffers of many megabytes for each session. So all callers share one
//! session here: requests gather in `Inner`, which limits them, and the library never holds more
//! than the few frames under way.
//!
//! The task has a thread of its own, because callers in several runtimes share it.

use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::LedgerError;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::state::{Inner, Request};
use crate::net::frame::Kind;

/// Interval at which the task checks for a silent cluster.
const TICK: Duration = Duration::from_millis(500);
/// A cluster that owes an answer for this long is reported as away.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Opens sessions of a cluster.
pub trait Cluster: Send + 'static {
    /// The cluster's name and address, for messages.
    fn name(&self) -> &str;

    /// Opens a session, without waiting for the cluster.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the address is malformed; others if the system lacks resources.
    fn open(&self) -> Result<Box<dyn Session>, LedgerError>;
}

/// A session. It repeats a request until the cluster answers, and executes it once. Dropping the session abandons
/// requests without an answer.
pub trait Session: Send {
    /// Sends a request, with the bodies of [`crate::net::frame`] in both directions.
    fn request(&self, kind: Kind, body: &[u8]) -> BoxFuture<'static, Result<Vec<u8>, SessionError>>;
}

/// Why a session gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The cluster ended the session. The request may or may not have taken effect; another session repeats it.
    #[error("the cluster ended the session: {0}")]
    Ended(String),
    /// The cluster serves no session of this program, because of its version or its options.
    #[error("{0}")]
    Refused(String),
    /// The cluster cannot answer this request; others are not affected.
    #[error(transparent)]
    Failed(LedgerError),
}

/// The end of a session.
enum End {
    /// The client was dropped.
    Closed,
    /// Another session has to repeat the requests under way.
    Lost(String),
    /// The same, but requests cannot wait for it.
    Away,
    Refused(String),
}

type Opened = oneshot::Sender<Result<(), LedgerError>>;

/// Starts the task. The receiver gets its first answer, or the reason why there will be none.
pub(super) fn start<C: Cluster>(
    inner: Arc<Inner>,
    cluster: C,
) -> Result<oneshot::Receiver<Result<(), LedgerError>>, LedgerError> {
    let no_thread = |error: std::io::Error| LedgerError::Busy(format!("cannot start a thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(no_thread)?;
    let (opened, result) = oneshot::channel();
    let task = move || {
        let driver =
            Driver { inner, cluster, opened: Some(opened), last_good: Instant::now(), is_reported: false };
        runtime.block_on(driver.run());
    };
    std::thread::Builder::new().name("ledger-cluster".to_owned()).spawn(task).map_err(no_thread)?;
    Ok(result)
}

struct Driver<C> {
    inner: Arc<Inner>,
    cluster: C,
    /// Until the first answer.
    opened: Option<Opened>,
    /// When the cluster last answered or owed nothing.
    last_good: Instant,
    /// Whether a warning says that the cluster is unreachable.
    is_reported: bool,
}

impl<C: Cluster> Driver<C> {
    /// Runs until the client is dropped.
    async fn run(mut self) {
        let mut backoff = self.inner.options.backoff_min;
        while !self.inner.is_closed() {
            let opened_at = Instant::now();
            let end = match self.cluster.open() {
                Ok(session) => self.serve(session.as_ref()).await,
                Err(LedgerError::Refused(reason)) => End::Refused(reason),
                Err(error) => End::Lost(error.to_string()),
            };
            self.inner.disconnected();
            let name = self.cluster.name();
            match end {
                End::Closed => break,
                End::Away => self.give_up(),
                End::Lost(reason) => {
                    tracing::warn!(reason, "lost the session with {name}; opening another");
                    if self.silent_for() >= self.inner.options.retry_for {
                        self.give_up();
                    }
                }
                End::Refused(reason) => {
                    let error = LedgerError::Refused(format!("{name}: {reason}"));
                    if let Some(opened) = self.opened.take() {
                        // The caller may have given up.
                        let _ = opened.send(Err(error));
                        break;
                    }
                    tracing::error!(%error, "trying again");
                    self.inner.give_up(&error.to_string());
                }
            }
            if self.last_good > opened_at {
                backoff = self.inner.options.backoff_min;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(self.inner.options.backoff_max);
        }
        self.inner.disconnected();
        self.inner.give_up("the client was shut down");
    }

    /// Passes requests on and answers back, until the session ends.
    async fn serve(&mut self, session: &dyn Session) -> End {
        let (requests, mut waiting) = mpsc::unbounded_channel::<Request>();
        let mut under_way = FuturesUnordered::new();
        // The first request has no caller: it registers the session and shows that the cluster is there.
        under_way.push(numbered(None, session.request(Kind::Ping, &[])));
        let mut is_live = false;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some((number, answer)) = under_way.next(), if !under_way.is_empty() => {
                    let answer = match answer {
                        Ok(body) => Ok(body.into()),
                        Err(SessionError::Failed(error)) => Err(error),
                        Err(SessionError::Ended(reason)) => return End::Lost(reason),
                        Err(SessionError::Refused(reason)) => return End::Refused(reason),
                    };
                    self.is_good();
                    match number {
                        Some(number) => self.inner.answered(number, answer),
                        None => {
                            is_live = true;
                            self.inner.cluster_is_there(requests.clone());
                            if let Some(opened) = self.opened.take() {
                                // The caller may have given up.
                                let _ = opened.send(answer.map(|_| ()));
                            }
                        }
                    }
                }
                Some(Request { number, kind, body }) = waiting.recv() => {
                    under_way.push(numbered(Some(number), session.request(kind, &body)));
                }
                () = self.inner.wake.notified() => if self.inner.is_closed() { return End::Closed },
                _ = tick.tick() => {
                    if under_way.is_empty() {
                        self.last_good = Instant::now();
                    } else if self.is_away() {
                        if is_live {
                            return End::Away;
                        }
                        self.give_up();
                    }
                }
            }
        }
    }

    fn is_good(&mut self) {
        self.last_good = Instant::now();
        if std::mem::take(&mut self.is_reported) {
            tracing::info!("{} answers again", self.cluster.name());
        }
    }

    /// Reports a silent cluster once. True: its callers have waited long enough.
    fn is_away(&mut self) -> bool {
        let silent = self.silent_for();
        if silent >= REPORT_AFTER && !std::mem::replace(&mut self.is_reported, silent >= REPORT_AFTER) {
            tracing::warn!("{} does not answer; requests wait for it", self.cluster.name());
        }
        silent >= self.inner.options.retry_for
    }

    /// Time for which the cluster has owed an answer. The process may have stood still before it sent a request.
    fn silent_for(&self) -> Duration {
        self.inner.owed_since().map_or(self.last_good, |since| since.max(self.last_good)).elapsed()
    }

    fn give_up(&self) {
        let seconds = self.silent_for().as_secs();
        self.inner.give_up(&format!("{} has not answered for {seconds} s", self.cluster.name()));
    }
}

async fn numbered<T>(number: Option<u64>, answer: impl Future<Output = T>) -> (Option<u64>, T) {
    (number, answer.await)
}

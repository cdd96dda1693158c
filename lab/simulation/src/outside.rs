//! The outside of a process for code that waits: its requests to other processes, and its sleeps.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use batzen_engine::Timers;
use batzen_http::client::{Bytes, Request, Response, Transport};
use batzen_wallet::core::http::HttpResponse;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request, and where its answer goes.
pub(crate) type Sent = (Request<Bytes>, oneshot::Sender<HttpResponse>);
/// The end of a sleep, in microseconds of simulated time, and who sleeps.
pub(crate) type Sleep = (u64, oneshot::Sender<()>);

#[derive(Default)]
struct Waiting {
    sent: Vec<Sent>,
    sleeps: Vec<Sleep>,
}

/// The outside of a process. The simulation takes what its tasks wait for, and answers.
#[derive(Clone, Default)]
pub(crate) struct Outside {
    waiting: Arc<Mutex<Waiting>>,
    /// The simulated time, in microseconds.
    now: Arc<AtomicU64>,
}

/// The instant at which simulated time is zero. Only differences count.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Outside {
    /// Sets the simulated time.
    pub(crate) fn set_now(&self, micros: u64) {
        self.now.store(micros, Relaxed);
    }

    /// Takes the requests and sleeps that have begun since the last call.
    pub(crate) fn take(&self) -> (Vec<Sent>, Vec<Sleep>) {
        let mut waiting = self.waiting();
        (std::mem::take(&mut waiting.sent), std::mem::take(&mut waiting.sleeps))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timers for Outside {
    fn now(&self) -> Instant {
        *ORIGIN + Duration::from_micros(self.now.load(Relaxed))
    }

    fn sleep_until(&self, end: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let outside = self.clone();
        Box::pin(async move {
            // Rounded up: a sleep that ended before its instant would begin again without end.
            let end = u64::try_from((end - *ORIGIN).as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
            if end <= outside.now.load(Relaxed) {
                return;
            }
            let (sender, receiver) = oneshot::channel();
            outside.waiting().sleeps.push((end, sender));
            if receiver.await.is_err() {
                // The process has ended.
                std::future::pending::<()>().await;
            }
        })
    }
}

impl Transport for Outside {
    fn carry(
        &self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, String>> + Send>> {
        let outside = self.clone();
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            outside.waiting().sent.push((request, sender));
            let answer: HttpResponse = receiver.await.map_err(|_| "no answer in time".to_owned())?;
            let mut response = Response::new(Bytes::from(answer.body));
            *response.status_mut() = answer.status.try_into().expect("processes answer with HTTP statuses");
            Ok(response)
        })
    }
}

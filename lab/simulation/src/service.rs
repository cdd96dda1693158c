//! The real exchange in this thread: its API is called with a request, and its commands are decided as one batch
//! whenever the simulation says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use batzen_engine::{Batcher, Clock, Entropy, InlineQueue, PendingAnswer, SubmitError};
use batzen_exchange::api::api;
use batzen_exchange::app;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::core::Surroundings;
use batzen_exchange::error::StartError;
use batzen_exchange::rules::{Answer, Command, ExchangeRules, Refusal};
use batzen_http::client::{
    Bytes, Client, ClientOptions, Request as SentRequest, Response as Received, Transport,
};
use batzen_http::{Method as ServedMethod, Request, Response, header};
use batzen_protocol::Timestamp;
use batzen_service::Api;
use batzen_signer::SecurityModules;
use batzen_store::{Store, StoreError};
use batzen_wallet::core::http::{Context as HttpContext, HttpRequest, HttpResponse, Method};

use crate::keys::EXCHANGE_URL;
use crate::outside::Outside;
use crate::random::Random;

/// The rules' answer to a command.
pub(crate) type Verdict = Result<Answer, Refusal>;

/// A clock that shows what it is set to.
#[derive(Clone)]
pub(crate) struct SetClock(Arc<AtomicU64>);

impl SetClock {
    /// A clock that shows this time.
    pub(crate) fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// Sets it.
    pub(crate) fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Relaxed);
    }

    /// The time that it shows.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Relaxed))
    }

    fn shared(&self) -> Arc<dyn Clock> {
        let shown = self.clone();
        Arc::new(move || shown.now())
    }
}

/// Work in progress, such as a request.
pub(crate) struct Call<T = Response>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Call<T> {
    /// Work that has not begun yet.
    pub(crate) fn new(work: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        Self(work)
    }

    /// Continues until it is done or waits for a batch.
    pub(crate) fn poll(&mut self) -> Option<T> {
        poll_once(&mut self.0)
    }
}

/// Random bytes of a process.
pub(crate) fn entropy(random: Random) -> Arc<dyn Entropy> {
    let random = Mutex::new(random);
    Arc::new(move |bytes: &mut [u8]| random.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes))
}

/// A request as a service below this base URL gets it.
pub(crate) fn local(request: &HttpRequest, base_url: &str) -> Request {
    let method = match request.method {
        Method::Get => ServedMethod::GET,
        Method::Post => ServedMethod::POST,
        Method::Delete => ServedMethod::DELETE,
    };
    let path = request.url.strip_prefix(base_url).unwrap_or_default();
    Request::local(method, &format!("/{path}"), request.body.clone().unwrap_or_default())
}

/// A request of a service as messages carry it.
pub(crate) fn sent_to(context: HttpContext, request: SentRequest<Bytes>) -> HttpRequest {
    let (parts, body) = request.into_parts();
    let is_post = parts.method == ServedMethod::POST;
    HttpRequest {
        method: if is_post { Method::Post } else { Method::Get },
        body: is_post.then(|| body.to_vec()),
        ..HttpRequest::get(context, parts.uri.to_string())
    }
}

pub(crate) fn poll_once<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// An answer as the wallet's driver hands it over.
pub(crate) fn served(response: Response) -> HttpResponse {
    let text = |name| response.header(&name).map(str::to_owned);
    HttpResponse {
        status: response.status,
        etag: text(header::ETAG),
        content_type: text(header::CONTENT_TYPE),
        retry_after_s: text(header::RETRY_AFTER).and_then(|seconds| seconds.parse().ok()),
        body: response.body.to_vec(),
    }
}

/// An exchange without threads.
pub(crate) struct Service {
    pub(crate) app: Arc<app::Exchange>,
    api: Api<app::Exchange>,
    queue: InlineQueue<ExchangeRules>,
    batcher: Batcher<ExchangeRules>,
    clock: SetClock,
    /// Where its workers' requests and sleeps go.
    pub(crate) outside: Outside,
}

impl Service {
    /// Starts over a store. Everything random comes from `random`.
    pub(crate) fn start(
        config: ExchangeConfig,
        modules: Arc<SecurityModules>,
        store: Store,
        now: Timestamp,
        random: Random,
    ) -> Result<Self, StartError> {
        let clock = SetClock::at(now);
        let outside = Outside::default();
        let surroundings = Surroundings {
            clock: clock.shared(),
            lease_clock: clock.shared(),
            timers: Arc::new(outside.clone()),
            entropy: entropy(random),
            transport: Some(Arc::new(outside.clone())),
            attributes_key: Some([5; 64].into()),
        };
        let (app, queue) = app::Exchange::inline(config, store.clone(), modules, surroundings)?;
        let rules = Arc::clone(&app.core.rules);
        let batcher = Batcher::with_metrics(rules, store, Arc::clone(queue.metrics()));
        Ok(Self { api: api(Arc::clone(&app)), app, queue, batcher, clock, outside })
    }

    /// Sets the clock.
    pub(crate) fn set_clock(&self, now: Timestamp) {
        self.clock.set(now);
    }

    /// Begins to answer a request.
    pub(crate) fn call(&self, request: &HttpRequest) -> Call {
        let mut sent = local(request, EXCHANGE_URL);
        if let Some(purse_sig) = &request.purse_sig {
            let text = purse_sig.to_string().parse().expect("base32 is visible");
            sent.head.headers.insert("taler-purse-signature", text);
        }
        if let Some((_, token)) = &request.basic_auth {
            let text = format!("Bearer {token}").parse().expect("a token is visible");
            sent.head.headers.insert("authorization", text);
        }
        self.begin(sent)
    }

    fn begin(&self, request: Request) -> Call {
        let api = self.api.clone();
        Call(Box::pin(async move { api.answer(request).await }))
    }

    /// Returns whether commands wait for a batch.
    pub(crate) fn has_waiting(&self) -> bool {
        self.queue.metrics().waiting() > 0
    }

    /// Takes the commands that wait for a batch.
    pub(crate) fn take(&self) -> Vec<(Command, PendingAnswer<ExchangeRules>)> {
        self.queue.take()
    }

    /// Decides commands as one batch.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn decide(&self, commands: &[Command]) -> Result<Vec<Verdict>, StoreError> {
        let now = self.clock.now();
        self.batcher.run(commands, &move || now)
    }

    /// Runs batches until a future is ready. `look` sees their commands.
    ///
    /// # Panics
    /// When the future waits for something else than a batch.
    fn complete<T>(&self, future: impl Future<Output = T> + Send, mut look: impl FnMut(&Command)) -> T {
        let mut future: Pin<Box<dyn Future<Output = T> + Send + '_>> = Box::pin(future);
        loop {
            if let Some(value) = poll_once(&mut future) {
                return value;
            }
            let waiting = self.take();
            assert!(!waiting.is_empty(), "handlers wait only for batches");
            let (commands, answers): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            commands.iter().for_each(&mut look);
            match self.decide(&commands) {
                Ok(verdicts) => {
                    answers.into_iter().zip(verdicts).for_each(|(answer, verdict)| answer.send(Ok(verdict)));
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for answer in answers {
                        answer.send(Err(SubmitError::Store(Arc::clone(&error))));
                    }
                }
            }
        }
    }

    /// Answers a request at once.
    pub(crate) fn answer(&self, request: &HttpRequest) -> HttpResponse {
        self.answer_and(request, |_| {})
    }

    /// The same. `look` sees the commands on their way.
    pub(crate) fn answer_and(&self, request: &HttpRequest, look: impl FnMut(&Command)) -> HttpResponse {
        served(self.complete(self.call(request).0, look))
    }

    /// Runs work that sends requests to this exchange.
    pub(crate) fn serve<T, F: Future<Output = T> + Send>(&self, work: impl FnOnce(Client) -> F) -> T {
        let direct = Arc::new(Direct(self.api.clone()));
        let client =
            Client::over(direct, &ClientOptions::default()).expect("the user agent is a header value");
        self.complete(work(client), |_| {})
    }
}

/// Carries requests to the API without a network.
struct Direct(Api<app::Exchange>);

impl Transport for Direct {
    fn carry(
        &self,
        request: SentRequest<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Received<Bytes>, String>> + Send>> {
        let (parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let request = Request::local(parts.method, target, body);
        let api = self.0.clone();
        Box::pin(async move {
            let response = api.answer(request).await;
            let mut received = Received::new(response.body);
            *received.status_mut() = response.status.try_into().expect("handlers answer with HTTP statuses");
            Ok(received)
        })
    }
}

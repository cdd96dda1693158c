//! The network between wallets and services: it loses answers, changes them, and stops at points where a process
//! could be killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use batzen_crypto::ShortHash;
use batzen_exchange::core::Core;
use batzen_exchange::workers::wirewatch;
use batzen_http::client::{Client, ClientError, ClientOptions};
use batzen_protocol::api::errors::KycRequired;
use batzen_wallet::core::http::{HttpRequest, HttpResponse, Method};
use batzen_wallet::transport::{ResponseFuture, Transport, TransportError};
use serde::Serialize;
use serde_json::{Value, json};

use super::shop::BACKEND;
use super::{EXCHANGE, SECOND, Terms, World};

/// Limit of an answer, besides the time of a long poll.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Codes of the exchange's answers that prove an attempt to spend a coin twice.
const CONFLICTS: [u64; 4] = [1012, 1206, 1501, 1858];

/// Answers a request instead of the service, or passes it on.
type Instead = Box<dyn FnMut(&HttpRequest) -> Option<HttpResponse> + Send>;
/// Changes an answer on its way.
type Change = Box<dyn FnMut(&HttpRequest, HttpResponse) -> HttpResponse + Send>;

pub(super) fn client() -> Client {
    Client::new(&ClientOptions::default()).expect("an HTTP client")
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A service behind a name.
#[derive(Clone)]
struct Route {
    /// The URL that reaches it.
    url: String,
    /// An exchange, which is told of transfers at the bank.
    exchange: Option<Arc<Core>>,
}

/// Connections of wallets, and the faults in them.
pub struct Network {
    client: Client,
    routes: Mutex<BTreeMap<String, Route>>,
    terms: Mutex<Terms>,
    /// Batches of withdrawals that were executed.
    batches: Mutex<BTreeSet<Vec<u8>>>,
    log: Mutex<Vec<String>>,
    conflicts: AtomicU64,
    /// Names of the exchanges with the shop's names for them.
    aliases: Mutex<Vec<(&'static str, String)>>,
    instead: Mutex<Option<Instead>>,
    change: Mutex<Option<Change>>,
    broken: Mutex<Option<(String, u16)>>,
    /// Counts down at every point where a process could be killed. At zero the request hangs forever.
    fuse: AtomicI64,
    dead: tokio::sync::Notify,
    /// If not zero, every n-th answer is lost.
    pub lose_every: AtomicU64,
    /// Number of the wallets' requests so far.
    pub sent: AtomicU64,
}

impl Network {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            client: client(),
            routes: Mutex::default(),
            terms: Mutex::default(),
            batches: Mutex::default(),
            log: Mutex::default(),
            conflicts: AtomicU64::new(0),
            aliases: Mutex::default(),
            instead: Mutex::default(),
            change: Mutex::default(),
            broken: Mutex::default(),
            fuse: AtomicI64::new(0),
            dead: tokio::sync::Notify::new(),
            lose_every: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        })
    }

    /// Requests to `name` go to the service at `url` from now on.
    pub(super) fn connect(&self, name: &str, url: &str, exchange: Option<Arc<Core>>) {
        lock(&self.routes).insert(name.to_owned(), Route { url: url.to_owned(), exchange });
    }

    /// Requests to the shop go to the backend at `url`, which knows the exchanges by these names.
    pub(super) fn connect_shop(&self, url: &str, exchanges: impl Iterator<Item = String>) {
        self.connect(BACKEND, url, None);
        *lock(&self.aliases) = [EXCHANGE, SECOND].into_iter().zip(exchanges).collect();
    }

    pub(super) fn set_terms(&self, terms: Terms) {
        *lock(&self.terms) = terms;
    }

    /// Answers requests instead of the services, where `instead` has an answer. The service does not see these
    /// requests.
    pub fn answer_instead(&self, instead: impl FnMut(&HttpRequest) -> Option<HttpResponse> + Send + 'static) {
        *lock(&self.instead) = Some(Box::new(instead));
    }

    /// Changes the answers of the services on their way.
    pub fn change_answers(
        &self,
        change: impl FnMut(&HttpRequest, HttpResponse) -> HttpResponse + Send + 'static,
    ) {
        *lock(&self.change) = Some(Box::new(change));
    }

    /// Carries all answers unchanged from now on.
    pub fn be_honest(&self) {
        *lock(&self.instead) = None;
        *lock(&self.change) = None;
    }

    /// Answers requests whose path contains `part` with a status without body.
    pub fn break_path(&self, part: &str, status: u16) {
        *lock(&self.broken) = Some((part.to_owned(), status));
    }

    /// Repairs what [`Network::break_path`] broke.
    pub fn repair(&self) {
        *lock(&self.broken) = None;
    }

    /// Requests so far, as `GET path`.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.log).clone()
    }

    /// Number of requests so far whose path ends so.
    pub fn count(&self, end: &str) -> usize {
        lock(&self.log).iter().filter(|path| path.ends_with(end)).count()
    }

    /// Number of the exchanges' answers that proved an attempt to spend a coin twice.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::SeqCst)
    }

    /// Kills the process at the `n`-th point from now.
    pub(crate) fn set_fuse(&self, n: i64) {
        self.fuse.store(n, Ordering::SeqCst);
    }

    /// Waits until the process is killed.
    pub(crate) async fn died(&self) {
        self.dead.notified().await;
    }

    async fn point(&self) {
        if self.fuse.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.dead.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// Reports transfers at the bank to the exchanges.
    pub(super) async fn deliver(&self) {
        let routes: Vec<Route> = lock(&self.routes).values().cloned().collect();
        for core in routes.into_iter().filter_map(|route| route.exchange) {
            wirewatch::run_until_idle(&core).await.expect("the worker runs");
        }
    }

    /// Lets the service answer, or whoever lies in its name.
    pub async fn answer(&self, request: &HttpRequest) -> Result<HttpResponse, TransportError> {
        let lie = lock(&self.instead).as_mut().and_then(|instead| instead(request));
        let answer = match lie {
            Some(lie) => return Ok(lie),
            None => self.serve(request).await?,
        };
        Ok(match lock(&self.change).as_mut() {
            Some(change) => change(request, answer),
            None => answer,
        })
    }

    /// The answer of the service.
    pub(super) async fn serve(&self, request: &HttpRequest) -> Result<HttpResponse, TransportError> {
        let (route, target) = self.route(&request.url);
        let path = target.split('?').next().unwrap_or_default().to_owned();
        lock(&self.log).push(format!("{} {path}", request.method.name()));
        if let Some((part, status)) = &*lock(&self.broken)
            && path.contains(part.as_str())
        {
            return Ok(HttpResponse { status: *status, ..HttpResponse::default() });
        }
        if route.exchange.is_some()
            && let Some(refusal) = self.refuse_batch(&path, request)
        {
            return Ok(refusal);
        }
        let mut answer = self.forward(request, format!("{}{target}", route.url)).await?;
        if path.contains("/tips/") {
            answer.body = self.renamed(&answer.body, false);
        }
        if route.exchange.is_some() {
            self.observe(&path, request, &answer);
        } else if path.ends_with("/confirm")
            || path.starts_with("taler-bank-integration/withdrawal-operation/")
        {
            self.deliver().await;
        }
        Ok(answer)
    }

    /// The service at a URL, and what is asked of it.
    fn route(&self, url: &str) -> (Route, String) {
        let alias = lock(&self.aliases)
            .iter()
            .find_map(|(name, alias)| Some(format!("{name}{}", url.strip_prefix(alias.as_str())?)));
        let url = alias.as_deref().unwrap_or(url);
        let found = lock(&self.routes)
            .iter()
            .find_map(|(name, route)| Some((route.clone(), url.strip_prefix(name.as_str())?.to_owned())));
        found.unwrap_or_else(|| panic!("{url}: an unknown host"))
    }

    /// Answer of an older exchange to a batch.
    fn refuse_batch(&self, path: &str, request: &HttpRequest) -> Option<HttpResponse> {
        let terms = *lock(&self.terms);
        let is_withdrawal = path.ends_with("/batch-withdraw");
        if !terms.has_batch && (is_withdrawal || path == "batch-deposit") {
            return Some(error(404, 21, &json!({})));
        }
        let is_known = |body: &Vec<u8>| lock(&self.batches).contains(body);
        let is_repeated = is_withdrawal && request.body.as_ref().is_some_and(is_known);
        (terms.refuses_batch_repetition && is_repeated).then(|| error(409, 1175, &json!({})))
    }

    /// A body with other names of the exchanges. Contracts keep theirs, because they are signed; wallets know the
    /// exchanges in them by their keys.
    fn renamed(&self, body: &[u8], is_for_shop: bool) -> Vec<u8> {
        let mut text = String::from_utf8_lossy(body).into_owned();
        for (name, alias) in lock(&self.aliases).iter() {
            text = if is_for_shop { text.replace(name, alias) } else { text.replace(alias.as_str(), name) };
        }
        text.into_bytes()
    }

    fn observe(&self, path: &str, request: &HttpRequest, answer: &HttpResponse) {
        if answer.status == 409 {
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if body["code"].as_u64().is_some_and(|code| CONFLICTS.contains(&code)) {
                self.conflicts.fetch_add(1, Ordering::SeqCst);
            }
        }
        if let (200, true, Some(body)) = (answer.status, path.ends_with("/batch-withdraw"), &request.body) {
            lock(&self.batches).insert(body.clone());
        }
    }

    async fn forward(&self, request: &HttpRequest, url: String) -> Result<HttpResponse, TransportError> {
        let mut call = match request.method {
            Method::Get => self.client.get(url),
            Method::Post => self.client.post(url),
            Method::Delete => self.client.call(batzen_http::client::Method::DELETE, url),
        }
        .timeout(TIMEOUT + Duration::from_millis(request.poll_ms))
        .header("accept", request.accept);
        if let Some((user, password)) = &request.basic_auth {
            call = call.basic_auth(user, password);
        }
        if let Some(purse_sig) = &request.purse_sig {
            call = call.header("taler-purse-signature", &purse_sig.to_string());
        }
        if let Some(body) = &request.body {
            let is_for_shop = request.url.starts_with(BACKEND);
            let body = if is_for_shop { self.renamed(body, true) } else { body.clone() };
            call = call.body("application/json", body);
        }
        if request.url.starts_with(BACKEND) {
            call = call.header("x-forwarded-host", "shop.test");
        }
        let failed =
            |error: ClientError| TransportError { url: request.url.clone(), reason: error.to_string() };
        let reply = call.send().await.map_err(failed)?;
        Ok(HttpResponse {
            status: reply.status,
            etag: reply.header("etag").map(str::to_owned),
            content_type: reply.header("content-type").map(str::to_owned),
            retry_after_s: reply.retry_after().map(|pause| pause.as_secs()),
            body: reply.body.into(),
        })
    }
}

impl Transport for Network {
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a> {
        Box::pin(async move {
            // Killed after the records were written and before anything was sent.
            self.point().await;
            let response = self.answer(request).await?;
            // Killed after the request was done, with the answer lost.
            self.point().await;
            let sent = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
            let lose_every = self.lose_every.load(Ordering::SeqCst);
            if lose_every > 0 && sent.is_multiple_of(lose_every) {
                return Err(TransportError { url: request.url.clone(), reason: "lost".to_owned() });
            }
            Ok(response)
        })
    }
}

/// Makes the exchange ask who its customer is before it issues coins or credits a reserve, or lets it find the customer
/// identified.
pub fn require_identification(world: &World, is_required: bool) {
    world.network.answer_instead(move |request| {
        let path = request.url.split('?').next().unwrap_or_default();
        let is_held = ["withdraw", "/merge", "/purse"].iter().any(|end| path.ends_with(end));
        if path.contains("/kyc-check/") {
            let body = if is_required { br#"{"kyc_url":"http://kyc.test/"}"#.to_vec() } else { Vec::new() };
            let status = if is_required { 202 } else { 204 };
            return Some(HttpResponse { status, body, ..HttpResponse::default() });
        }
        let required = KycRequired { h_payto: ShortHash::ZERO, requirement_row: 7 };
        (is_required && is_held && request.method == Method::Post).then(|| error(451, 1028, &required))
    });
}

/// An error answer with further members.
pub fn error(status: u16, code: u32, extra: &impl Serialize) -> HttpResponse {
    let extra = serde_json::to_value(extra).expect("JSON");
    let body = batzen_protocol::ErrorBody::with(batzen_protocol::ErrorCode::from_u32(code), extra);
    let body = serde_json::to_vec(&body).expect("JSON");
    HttpResponse { status, body, ..HttpResponse::default() }
}

/// An answer with another status.
pub fn with_status(answer: HttpResponse, status: u16) -> HttpResponse {
    HttpResponse { status, ..answer }
}

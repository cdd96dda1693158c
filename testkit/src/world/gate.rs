//! A port of this machine under which a backend reaches an exchange, and the faults behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_http::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};
use batzen_wallet::core::http::{Context, HttpRequest, HttpResponse, Method};
use serde_json::{Value, json};

use super::network::{Network, error, lock};

/// The pause between two looks whether an answer is still held.
const HELD_POLL: Duration = Duration::from_millis(10);

/// Faults and lies.
#[derive(Default)]
struct Faults {
    /// Answers instead of the exchange's, by the beginning of `METHOD /path`.
    answers: BTreeMap<String, (u16, Value)>,
    /// The beginnings of requests whose answers are held.
    held: Vec<String>,
    /// Members of the key list that are replaced.
    keys: BTreeMap<&'static str, Value>,
    /// Requests so far.
    asked: Vec<String>,
    /// Whether the exchange does not answer.
    is_away: bool,
    /// The exchange fails after so many coins of each payment.
    stop_after: Option<usize>,
    /// Coins that were deposited since then, by contract.
    coins: BTreeMap<String, BTreeSet<String>>,
}

impl Faults {
    /// The answer instead of the exchange's, if there is one.
    fn answer(&mut self, line: &str, body: &[u8]) -> Option<HttpResponse> {
        self.asked.push(line.to_owned());
        let told = self.answers.iter().filter(|(start, _)| line.starts_with(start.as_str()));
        if let Some((_, (status, body))) = told.max_by_key(|(start, _)| start.len()) {
            let body = serde_json::to_vec(body).expect("JSON");
            let content_type = Some("application/json".to_owned());
            return Some(HttpResponse { status: *status, content_type, body, ..HttpResponse::default() });
        }
        if self.is_away {
            return Some(HttpResponse { status: 503, ..HttpResponse::default() });
        }
        let limit = self.stop_after?;
        if line == "POST /batch-deposit" {
            // An older exchange, which is asked for each coin.
            return Some(error(404, 21, &json!({})));
        }
        let coin = line.strip_prefix("POST /coins/")?.strip_suffix("/deposit")?;
        let body: Value = serde_json::from_slice(body).ok()?;
        let coins = self.coins.entry(body["h_contract_terms"].as_str()?.to_owned()).or_default();
        if coins.len() < limit {
            coins.insert(coin.to_owned());
        }
        (!coins.contains(coin)).then(|| HttpResponse { status: 503, ..HttpResponse::default() })
    }
}

/// A port under which a backend reaches an exchange.
pub struct Gate {
    /// Base URL.
    pub url: String,
    faults: Arc<Mutex<Faults>>,
    drain: Drain,
}

struct Endpoint {
    /// The exchange's name in the network.
    name: &'static str,
    network: Arc<Network>,
    faults: Arc<Mutex<Faults>>,
}

impl Handler for Endpoint {
    async fn handle(&self, request: Request) -> Response {
        let head = &request.head;
        let query = head.raw_query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        let url = format!("{}{}{query}", self.name, head.path.trim_start_matches('/'));
        let mut ask = HttpRequest::get(Context::Info, url);
        if head.method == batzen_http::Method::POST {
            (ask.method, ask.body) = (Method::Post, Some(request.body.to_vec()));
        }
        let told = lock(&self.faults).answer(&format!("{} {}", head.method, head.path), &request.body);
        let mut answer = match told {
            Some(told) => told,
            None => match self.network.serve(&ask).await {
                Ok(answer) => answer,
                Err(_) => HttpResponse { status: 502, ..HttpResponse::default() },
            },
        };
        // Served, and then held on its way back.
        let line = format!("{} {}", head.method, head.path);
        while lock(&self.faults).held.iter().any(|start| line.starts_with(start)) {
            tokio::time::sleep(HELD_POLL).await;
        }
        if head.path == "/keys" && answer.status == 200 {
            let mut keys: Value = serde_json::from_slice(&answer.body).expect("JSON");
            for (name, value) in &lock(&self.faults).keys {
                keys[name] = value.clone();
            }
            answer.body = serde_json::to_vec(&keys).expect("JSON");
        }
        Response::bytes(answer.status, &answer.content_type.unwrap_or_default(), answer.body)
    }
}

impl Gate {
    /// Opens a port to the exchange with this name in the network.
    pub async fn open(network: &Arc<Network>, name: &'static str) -> Self {
        let listen = Listen::Tcp { host: Some("127.0.0.1".to_owned()), port: 0, share_port: false };
        let server = Server::bind(listen).await.expect("a port");
        let url = format!("http://127.0.0.1:{}/", server.bound().port().expect("a TCP port"));
        let (faults, drain) = (Arc::new(Mutex::new(Faults::default())), Drain::new());
        let endpoint = Endpoint { name, network: Arc::clone(network), faults: Arc::clone(&faults) };
        tokio::spawn(server.serve(Arc::new(endpoint), ServerOptions::default(), drain.clone()));
        Self { url, faults, drain }
    }

    /// Answers requests that begin so (`METHOD /path`) instead of the exchange.
    pub fn answer(&self, start: &str, status: u16, body: Value) {
        lock(&self.faults).answers.insert(start.to_owned(), (status, body));
    }

    /// Replaces a member of the list of keys.
    pub fn replace_in_keys(&self, member: &'static str, value: Value) {
        lock(&self.faults).keys.insert(member, value);
    }

    /// Holds the answers to requests that begin so, until [`Gate::recover`]. The exchange serves them.
    pub fn hold(&self, start: &str) {
        lock(&self.faults).held.push(start.to_owned());
    }

    /// Lets the exchange answer again.
    pub fn recover(&self) {
        let mut faults = lock(&self.faults);
        faults.answers.clear();
        faults.held.clear();
    }

    /// Number of the requests so far that begin so (`METHOD /path`).
    pub fn count(&self, start: &str) -> usize {
        lock(&self.faults).asked.iter().filter(|asked| asked.starts_with(start)).count()
    }

    /// Makes the exchange unreachable, or reachable again.
    pub(crate) fn set_away(&self, is_away: bool) {
        lock(&self.faults).is_away = is_away;
    }

    /// Returns whether the exchange is unreachable.
    pub(crate) fn is_away(&self) -> bool {
        lock(&self.faults).is_away
    }

    /// Makes the exchange fail after this number of coins of each payment, or work again.
    pub(crate) fn set_stop_after(&self, coins: Option<usize>) {
        let mut faults = lock(&self.faults);
        (faults.stop_after, faults.coins) = (coins, BTreeMap::new());
    }

    /// The number of coins of each payment after which the exchange fails.
    pub(crate) fn stop_after(&self) -> Option<usize> {
        lock(&self.faults).stop_after
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.drain.trigger();
    }
}

//! A switch with participants that record the messages they receive.
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_http::{Drain, Handler, Listen, Method, Request, Response, Server, ServerOptions};
use batzen_ledger::{Ledger, MemoryLedger};
use batzen_protocol::calendar::format_ms;
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use batzen_switch::clearing::Balances;
use batzen_switch::fulfilment::condition_of;
use batzen_switch::rules::Change;
use batzen_switch::treasury::Funds;
use batzen_switch::values::{currency_number, format_hash, format_uuid, parse_amount};
use batzen_switch::{Delivery, Forwarding, Operator, RunningSwitch, Switch, SwitchConfig};
use serde_json::{Value, json};

/// A clock that tests move: microseconds.
pub(crate) struct TestClock(AtomicU64);

impl TestClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_800_000_000_000_000)))
    }
    pub(crate) fn millis(&self) -> u64 {
        self.0.load(Ordering::SeqCst) / 1000
    }
    pub(crate) fn forward(&self, millis: u64) {
        self.0.fetch_add(millis * 1000, Ordering::SeqCst);
    }
}

impl TestClock {
    /// Every reading is later than the previous one.
    fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

pub(crate) fn memory_ledger(clock: &Arc<TestClock>) -> Arc<MemoryLedger> {
    let clock = Arc::clone(clock);
    Arc::new(MemoryLedger::new(move || clock.0.load(Ordering::SeqCst) * 1000))
}

/// A callback as received.
#[derive(Clone, Debug)]
pub(crate) struct Callback {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Callback {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
    pub(crate) fn error_code(&self) -> String {
        self.json()["errorInformation"]["errorCode"].as_str().unwrap_or("").to_owned()
    }
}

#[derive(Default)]
struct Recorder {
    callbacks: Mutex<Vec<Callback>>,
    /// Statuses to answer with first.
    statuses: Mutex<Vec<u16>>,
}

impl Handler for Recorder {
    async fn handle(&self, request: Request) -> Response {
        let status = self.statuses.lock().unwrap().pop().unwrap_or(200);
        if status == 200 {
            let headers = request.headers.iter();
            let headers = headers.map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned())).collect();
            let callback = Callback {
                method: request.method.to_string(),
                path: request.path.clone(),
                headers,
                body: request.body.to_vec(),
            };
            self.callbacks.lock().unwrap().push(callback);
        }
        Response::empty(status)
    }
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..12_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("timed out waiting for {what}");
}

/// A participant that records its callbacks.
pub(crate) struct Fsp {
    pub name: String,
    pub url: String,
    recorder: Arc<Recorder>,
    drain: Drain,
}

impl Fsp {
    pub(crate) async fn start(name: &str) -> Self {
        let server = Server::bind(Listen::tcp(Some("127.0.0.1".to_owned()), 0)).await.unwrap();
        let url = format!("http://127.0.0.1:{}", server.port());
        let (recorder, drain) = (Arc::new(Recorder::default()), Drain::new());
        tokio::spawn(server.serve(Arc::clone(&recorder), ServerOptions::default(), drain.clone()));
        Self { name: name.to_owned(), url, recorder, drain }
    }

    /// Answers the next callbacks with these statuses, the last first.
    pub(crate) fn answer_with(&self, statuses: &[u16]) {
        *self.recorder.statuses.lock().unwrap() = statuses.to_vec();
    }

    pub(crate) fn callbacks(&self) -> Vec<Callback> {
        self.recorder.callbacks.lock().unwrap().clone()
    }

    /// The callbacks about a transfer, once there are `count` of them.
    pub(crate) async fn about(&self, id: u128, count: usize) -> Vec<Callback> {
        let text = format_uuid(id);
        let concerns = |callback: &Callback| {
            callback.path.contains(&text) || String::from_utf8_lossy(&callback.body).contains(&text)
        };
        self.wait(&text, count, concerns).await
    }

    /// The callbacks that concern something, once there are `count` of them.
    pub(crate) async fn wait(
        &self,
        what: &str,
        count: usize,
        concerns: impl Fn(&Callback) -> bool,
    ) -> Vec<Callback> {
        let found = || -> Vec<Callback> { self.callbacks().into_iter().filter(&concerns).collect() };
        eventually(what, async || found().len() >= count).await;
        let found = found();
        let all = self.callbacks();
        assert!(found.len() >= count, "{} has not been told {count} times of {what}: {all:?}", self.name);
        found
    }
}

impl Drop for Fsp {
    fn drop(&mut self) {
        self.drain.trigger();
    }
}

/// The most lookups and quotes that may wait for one participant, and its connections for them.
pub(crate) const FORWARDING_QUEUE: usize = 64;
pub(crate) const FORWARDING_CONNECTIONS: usize = 4;

pub(crate) const CURRENCY: &str = "EUR";

pub(crate) fn currency() -> u32 {
    currency_number(CURRENCY).unwrap()
}

pub(crate) fn amount(text: &str) -> u128 {
    parse_amount(text).unwrap()
}

pub(crate) fn config(clock: &Arc<TestClock>) -> SwitchConfig {
    SwitchConfig {
        operators: vec![Operator::new("alice", "token-a"), Operator::new("bob", "token-b")],
        delivery: Delivery {
            pause: Duration::from_millis(2),
            pause_max: Duration::from_millis(20),
            ..Delivery::default()
        },
        forwarding: Forwarding {
            queue: FORWARDING_QUEUE,
            connections: FORWARDING_CONNECTIONS,
            timeout: Duration::from_secs(20),
            pause: Duration::from_millis(2),
            ..Forwarding::default()
        },
        clock: {
            let clock = Arc::clone(clock);
            Arc::new(move || clock.now())
        },
        ..SwitchConfig::default()
    }
}

/// An item of a bulk.
pub(crate) fn item(id: u128, amount: &str, fulfilment: &[u8; 32]) -> Value {
    json!({
        "transferId": format_uuid(id), "transferAmount": { "currency": CURRENCY, "amount": amount },
        "ilpPacket": "AYIBgQAAAAAAAASwNGxldmVsb25lLmRmc3AxLm1lci45",
        "condition": format_hash(&condition_of(fulfilment)),
    })
}

/// A payee's answer to a bulk.
pub(crate) fn answer(results: Vec<Value>) -> Value {
    json!({
        "bulkTransferState": "COMPLETED", "completedTimestamp": "2026-11-21T15:00:00.000Z",
        "individualTransferResults": results,
    })
}

/// A switch over a memory store and a memory ledger, with its participants.
pub(crate) struct Scene {
    pub clock: Arc<TestClock>,
    pub switch: RunningSwitch,
    pub fsps: Vec<Fsp>,
    pub client: Client,
    pub store: Store,
    pub next_id: AtomicU64,
}

impl Scene {
    /// Participants `fsp1` and so on, each with liquidity and cap of 1,000.
    pub(crate) async fn new(participants: usize) -> Self {
        let clock = TestClock::new();
        let ledger = memory_ledger(&clock);
        Self::over(participants, clock, ledger).await
    }

    pub(crate) async fn over(participants: usize, clock: Arc<TestClock>, ledger: Arc<dyn Ledger>) -> Self {
        let store = Store::new(MemoryBackend::new());
        let switch = Switch::start_on(config(&clock), store.clone(), ledger).await.unwrap();
        let mut fsps = Vec::new();
        for place in 1..=participants {
            fsps.push(Fsp::start(&format!("fsp{place}")).await);
        }
        let client = Client::new(&ClientOptions::default()).unwrap();
        let scene = Self { clock, switch, fsps, client, store, next_id: AtomicU64::new(1) };
        let service = scene.switch.service();
        service.apply(&Change::Accounts { name: None, currency: currency() }).await.unwrap();
        for place in 0..participants {
            scene.onboard(place, "1000", "1000").await;
        }
        scene
    }

    pub(crate) async fn onboard(&self, place: usize, ndc: &str, liquidity: &str) {
        let service = self.switch.service();
        let name = self.fsps[place].name.clone();
        let currency = currency();
        let create = Change::Accounts { name: Some(name.clone()), currency };
        let number = u32::try_from(service.apply(&create).await.unwrap()).unwrap();
        let endpoint = Change::Endpoint {
            name: name.clone(),
            endpoint: "FSPIOP_CALLBACK_URL".to_owned(),
            url: self.fsps[place].url.clone(),
        };
        service.apply(&endpoint).await.unwrap();
        let limit = Change::Limit { name, currency, ndc: amount(ndc), alarm_percentage: None, initial: true };
        service.apply(&limit).await.unwrap();
        self.funds_in(number, liquidity).await;
    }

    pub(crate) fn funds(&self, participant: u32, text: &str) -> Funds {
        Funds {
            id: self.id(),
            participant,
            currency: currency(),
            amount: amount(text),
            reason: "test".to_owned(),
            reference: "bank-1".to_owned(),
            operator: "alice".to_owned(),
        }
    }

    pub(crate) async fn funds_in(&self, participant: u32, text: &str) {
        let funds = self.funds(participant, text);
        self.switch.service().deposit(&funds).await.unwrap();
    }

    /// A new id: a UUID.
    pub(crate) fn id(&self) -> u128 {
        let number = self.next_id.fetch_add(1, Ordering::SeqCst);
        (0xabcd_u128 << 112) | (4 << 76) | (0b10 << 62) | u128::from(number)
    }

    pub(crate) fn body(
        &self,
        id: u128,
        payer: usize,
        payee: usize,
        amount: &str,
        fulfilment: &[u8; 32],
    ) -> Value {
        json!({
            "transferId": format_uuid(id), "payerFsp": self.fsps[payer].name, "payeeFsp": self.fsps[payee].name,
            "amount": { "currency": CURRENCY, "amount": amount },
            "ilpPacket": "AYIBgQAAAAAAAASwNGxldmVsb25lLmRmc3AxLm1lci45", "condition": format_hash(&condition_of(fulfilment)),
            "expiration": format_ms(self.clock.millis() + 30_000),
        })
    }

    /// A bulk from `fsp1` to `fsp2`.
    pub(crate) fn bulk(&self, id: u128, items: Vec<Value>) -> Value {
        json!({
            "bulkTransferId": format_uuid(id), "bulkQuoteId": format_uuid(id), "payerFsp": "fsp1",
            "payeeFsp": "fsp2", "individualTransfers": items,
            "expiration": format_ms(self.clock.millis() + 30_000),
        })
    }

    /// Sends a message as a participant does.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        source: &str,
        destination: &str,
        body: &[u8],
    ) -> Reply {
        let media = "application/vnd.interoperability.transfers+json;version=1.1";
        let media =
            if path.starts_with("bulk") { media.replace("transfers", "bulkTransfers") } else { media.into() };
        self.client
            .call(method, format!("{}{path}", self.switch.fsp_url()))
            .header("accept", &media)
            .header("date", "Sat, 21 Nov 2026 15:00:00 GMT")
            .header("fspiop-source", source)
            .header("fspiop-destination", destination)
            .header("fspiop-signature", "{\"signature\":\"abc\"}")
            .body(&media, body.to_vec())
            .send()
            .await
            .unwrap()
    }

    pub(crate) async fn prepare(&self, payer: usize, payee: usize, body: &Value) -> u16 {
        let (from, to) = (&self.fsps[payer].name, &self.fsps[payee].name);
        self.send(Method::POST, "transfers", from, to, body.to_string().as_bytes()).await.status
    }

    pub(crate) async fn fulfil(
        &self,
        id: u128,
        payee: usize,
        payer: usize,
        state: &str,
        fulfilment: &[u8; 32],
    ) -> u16 {
        let body = json!({
            "fulfilment": format_hash(fulfilment), "transferState": state,
            "completedTimestamp": "2026-11-21T15:00:00.000Z",
        });
        let (from, to) = (&self.fsps[payee].name, &self.fsps[payer].name);
        let path = format!("transfers/{}", format_uuid(id));
        self.send(Method::PUT, &path, from, to, body.to_string().as_bytes()).await.status
    }

    pub(crate) async fn refuse(&self, id: u128, payee: usize, payer: usize, code: &str) -> u16 {
        let body = json!({ "errorInformation": { "errorCode": code, "errorDescription": "no" } });
        let (from, to) = (&self.fsps[payee].name, &self.fsps[payer].name);
        let path = format!("transfers/{}/error", format_uuid(id));
        self.send(Method::PUT, &path, from, to, body.to_string().as_bytes()).await.status
    }

    pub(crate) async fn balances(&self, participant: u32) -> Balances {
        self.switch.service().balances(participant, currency()).await
    }

    /// Makes a whole transfer, until it is committed.
    pub(crate) async fn transfer(&self, payer: usize, payee: usize, amount: &str) -> u128 {
        let id = self.id();
        let fulfilment = [7; 32];
        assert_eq!(self.prepare(payer, payee, &self.body(id, payer, payee, amount, &fulfilment)).await, 202);
        self.fsps[payee].about(id, 1).await;
        assert_eq!(self.fulfil(id, payee, payer, "COMMITTED", &fulfilment).await, 200);
        let told = self.fsps[payer].about(id, 1).await;
        assert_eq!(told[0].json()["transferState"], "COMMITTED");
        id
    }

    /// Sends a request as an operator does.
    pub(crate) async fn admin(&self, method: Method, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let mut call = self
            .client
            .call(method.clone(), format!("{}{path}", self.switch.admin_url()))
            .header("authorization", &format!("Bearer {token}"));
        if method != Method::GET {
            call = call.json(body);
        }
        let reply = call.send().await.unwrap();
        (reply.status, serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
    }
}

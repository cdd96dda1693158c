//! A real exchange on 127.0.0.1 with a test clock.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_exchange::config::{CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig};
use batzen_exchange::service::{RunningExchange, StartOptions};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::api::exchange::{FutureKeys, KeysResponse};
use batzen_protocol::{Currency, Duration, Money, Timestamp};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

/// 20 November 2026.
pub(super) const START_SECS: u64 = 1_795_132_800;
pub(super) const PAYTO: &str = "payto://x-taler-bank/localhost/2?receiver-name=2";

/// A clock that moves only when the test moves it.
#[derive(Clone)]
pub(super) struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START_SECS * 1_000_000)))
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    pub(super) fn advance(&self, duration: Duration) {
        self.0.fetch_add(duration.as_micros(), Ordering::SeqCst);
    }

    pub(super) fn set_back(&self, duration: Duration) {
        self.0.fetch_sub(duration.as_micros(), Ordering::SeqCst);
    }
}

pub(super) fn money(hundredths: u32) -> Money {
    Money::from_units(u128::from(hundredths) * 1_000_000).unwrap()
}

/// Two denominations, RSA and CS, with few keys.
pub(super) fn config(directory: &Path) -> ExchangeConfig {
    let currency = Currency::new("TESTKUDOS").unwrap();
    let fees = CoinFees { withdraw: money(1), deposit: money(2), refresh: money(3), refund: money(1) };
    let gateway = GatewayConfig { url: "http://127.0.0.1:1/".into(), auth: GatewayAuth::None };
    let mut config = ExchangeConfig::local(currency, directory, 0)
        .with_coin("COIN_A", money(100), fees, CipherConfig::Rsa { bits: 1024 })
        .with_coin("COIN_B", money(500), CoinFees::FREE, CipherConfig::Cs)
        .with_account("EXCHANGE-ACCOUNT-1", PAYTO, gateway);
    config.crypto_threads = 2;
    config
}

/// The same for an operator who signs on another machine.
pub(super) fn operated(directory: &Path, master: &EddsaPrivateKey) -> ExchangeConfig {
    ExchangeConfig { standalone: None, master_public_key: Some(master.public_key()), ..config(directory) }
}

pub(super) struct Site {
    pub directory: TempDir,
    pub clock: TestClock,
    pub running: RunningExchange,
    pub client: Client,
}

pub(super) async fn start(config: ExchangeConfig, clock: &TestClock) -> RunningExchange {
    let now = clock.clone();
    let options =
        StartOptions { clock: Arc::new(move || now.now()), workers: false, ..StartOptions::default() };
    RunningExchange::start(config, options).await.unwrap()
}

impl Site {
    /// A stand-alone exchange that is ready.
    pub(super) async fn standalone() -> Self {
        Self::with(config).await
    }

    pub(super) async fn with(make: impl FnOnce(&Path) -> ExchangeConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let running = start(make(directory.path()), &clock).await;
        running.ready().await.unwrap();
        Self { directory, clock, running, client: Client::new(&ClientOptions::default()).unwrap() }
    }

    /// An exchange that waits for the signatures of this master key.
    pub(super) async fn operated(master: &EddsaPrivateKey) -> Self {
        Self::with(|directory| operated(directory, master)).await
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running.base_url())
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    pub(super) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut call = self.client.get(self.url(path));
        for (name, value) in headers {
            call = call.header(name, value);
        }
        call.send().await.unwrap()
    }

    /// The status and the error code (0 if there is none) of the answer.
    pub(super) async fn post(&self, path: &str, body: &impl Serialize) -> (u16, u32) {
        let reply = self.client.post_json(self.url(path), body).await.unwrap();
        assert_eq!(reply.status == 204, reply.body.is_empty(), "{path}: {reply:?}");
        (reply.status, code(&reply))
    }

    pub(super) async fn keys(&self) -> KeysResponse {
        self.get("keys").await.ok().unwrap()
    }

    pub(super) async fn future_keys(&self) -> FutureKeys {
        self.get("management/keys").await.ok().unwrap()
    }

    pub(super) fn master_pub(&self) -> EddsaPublicKey {
        self.running.app().core.master_public_key
    }

    /// Moves the clock and waits for a round of key maintenance.
    pub(super) async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
        self.settle().await;
    }

    /// Waits for a full round of key maintenance.
    pub(super) async fn settle(&self) {
        self.running.app().keeper().round().await.unwrap();
    }

    pub(super) async fn stop(self) -> (TempDir, TestClock) {
        self.running.shutdown().await.unwrap();
        (self.directory, self.clock)
    }
}

/// The error code of an answer, 0 if there is none.
pub(super) fn code(reply: &Reply) -> u32 {
    reply.code().map_or(0, batzen_protocol::ErrorCode::to_u32)
}

/// A copy of a JSON object with one member replaced.
pub(super) fn with(body: &impl Serialize, member: &str, value: Value) -> Value {
    let mut body = serde_json::to_value(body).unwrap();
    body[member] = value;
    body
}

/// A copy without a member.
pub(super) fn without(body: &impl Serialize, member: &str) -> Value {
    let mut body = serde_json::to_value(body).unwrap();
    body.as_object_mut().unwrap().remove(member).unwrap();
    body
}

//! A real exchange on 127.0.0.1 with a test clock.

use std::path::Path;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_exchange::config::{CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig};
use batzen_exchange::offline;
use batzen_exchange::service::RunningExchange;
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::api::exchange::{FutureKeys, KeysResponse, ManagementKeysRequest};
use batzen_protocol::{Currency, Duration, Money};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

pub(super) use crate::api::world::with;
use crate::running::start_ready;
pub(super) use crate::running::{START_SECS, TestClock, start};

pub(super) const PAYTO: &str = "payto://x-taler-bank/localhost/2?receiver-name=2";

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

impl Site {
    /// A stand-alone exchange that is ready.
    pub(super) async fn standalone() -> Self {
        Self::with(config).await
    }

    pub(super) async fn with(make: impl FnOnce(&Path) -> ExchangeConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let running = start_ready(make(directory.path()), &clock).await;
        Self { directory, clock, running, client: Client::new(&ClientOptions::default()).unwrap() }
    }

    /// An exchange that waits for the signatures of this master key.
    pub(super) async fn operated(master: &EddsaPrivateKey) -> Self {
        Self::with(|directory| operated(directory, master)).await
    }

    /// The same with its keys signed.
    pub(super) async fn signed(master: &EddsaPrivateKey) -> Self {
        let site = Self::operated(master).await;
        site.sign_keys(master).await;
        site
    }

    /// The signatures that the exchange's new keys wait for.
    pub(super) async fn key_signatures(&self, master: &EddsaPrivateKey) -> ManagementKeysRequest {
        let signatures = offline::sign_keys(master, &self.future_keys().await).unwrap();
        ManagementKeysRequest { denom_sigs: signatures.denom_sigs, signkey_sigs: signatures.signkey_sigs }
    }

    /// Signs the exchange's new keys.
    pub(super) async fn sign_keys(&self, master: &EddsaPrivateKey) {
        let request = self.key_signatures(master).await;
        assert_eq!(self.post("management/keys", &request).await, (204, 0));
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

/// A copy without a member.
pub(super) fn without(body: &impl Serialize, member: &str) -> Value {
    let mut body = serde_json::to_value(body).unwrap();
    body.as_object_mut().unwrap().remove(member).unwrap();
    body
}

//! A running auditor, and an exchange whose keys are at hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_auditor::{AuditorConfig, ListenConfig, RunningAuditor};
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::Timestamp;
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::signatures::SignedMessage;
use batzen_tables::auditor::DepositConfirmations;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const NOW_S: u64 = 1_800_000_000;
const DAY_S: u64 = 86_400;

/// An exchange's keys.
pub(crate) struct Exchange {
    pub master: EddsaPrivateKey,
    pub online: EddsaPrivateKey,
}

impl Exchange {
    pub(crate) fn new() -> Self {
        Self { master: EddsaPrivateKey::generate(), online: EddsaPrivateKey::generate() }
    }

    pub(crate) fn master_pub(&self) -> EddsaPublicKey {
        self.master.public_key()
    }

    /// A confirmation that differs from those with other numbers.
    pub(crate) fn confirmation(&self, number: u64) -> DepositConfirmationRequest {
        let (zero_sig, hash) =
            (self.master.sign(b""), |n: u64| batzen_crypto::hash::sha512(&n.to_le_bytes()));
        let mut coin = [0; 32];
        coin[..8].copy_from_slice(&number.to_le_bytes());
        self.signed(DepositConfirmationRequest {
            h_contract_terms: hash(number),
            h_policy: HashCode::from_bytes([0; 64]),
            h_wire: hash(u64::MAX - number),
            exchange_timestamp: Timestamp::from_secs(NOW_S - 1),
            refund_deadline: Timestamp::from_secs(NOW_S + 60),
            wire_deadline: Timestamp::from_secs(NOW_S + 120),
            amount_without_fee: "KUDOS:4.99".parse().unwrap(),
            coin_pub: EddsaPublicKey::from_bytes(coin),
            merchant_pub: EddsaPublicKey::from_bytes([9; 32]),
            exchange_sig: zero_sig,
            exchange_pub: self.online.public_key(),
            master_pub: self.master_pub(),
            ep_start: Timestamp::from_secs(NOW_S - DAY_S),
            ep_expire: Timestamp::from_secs(NOW_S + DAY_S),
            ep_end: Timestamp::from_secs(NOW_S + 1_000 * DAY_S),
            master_sig: zero_sig,
        })
    }

    /// The same with signatures on what it says now.
    pub(crate) fn signed(&self, mut body: DepositConfirmationRequest) -> DepositConfirmationRequest {
        body.exchange_sig = body.confirmation().sign(&self.online);
        body.master_sig = body.validity().sign(&self.master);
        body
    }
}

/// A running auditor, its directory and its clock.
pub(crate) struct Auditor {
    pub running: RunningAuditor,
    pub config: AuditorConfig,
    pub client: Client,
    pub now: Arc<AtomicU64>,
    pub dir: TempDir,
}

impl Auditor {
    pub(crate) async fn start() -> Self {
        Self::with(|_| ()).await
    }

    /// With a configuration that is changed.
    pub(crate) async fn with(change: impl FnOnce(&mut AuditorConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = Arc::new(AtomicU64::new(NOW_S));
        let clock = Arc::clone(&now);
        let mut config = AuditorConfig {
            place: ListenConfig::Tcp { host: Some("127.0.0.1".to_owned()), port: 0 },
            clock: Arc::new(move || Timestamp::from_secs(clock.load(Ordering::SeqCst))),
            ..AuditorConfig::new("KUDOS".parse().unwrap(), dir.path())
        };
        config.create_key().unwrap();
        change(&mut config);
        let running = RunningAuditor::start(config.clone()).await.unwrap();
        let client = Client::new(&ClientOptions::default()).unwrap();
        Self { running, config, client, now, dir }
    }

    /// With an exchange that is audited.
    pub(crate) async fn of(exchange: &Exchange) -> Self {
        let auditor = Self::start().await;
        auditor.audit(exchange).await;
        auditor
    }

    pub(crate) async fn audit(&self, exchange: &Exchange) {
        let master_pub = exchange.master_pub();
        self.books(move |books| books.add_exchange(master_pub, "https://exchange.example/").unwrap()).await;
    }

    /// Uses the rows as a program does while the service runs.
    pub(crate) async fn books<T: Send + 'static>(
        &self,
        work: impl FnOnce(&batzen_auditor::books::Books) -> T + Send + 'static,
    ) -> T {
        let config = self.config.clone();
        let run = move || {
            let books = batzen_auditor::books::Books::open(&config).unwrap();
            let result = work(&books);
            books.close().unwrap();
            result
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    /// Stops the service, and leaves its configuration and files.
    pub(crate) async fn stop(self) -> (AuditorConfig, TempDir) {
        self.running.shutdown().await.unwrap();
        (self.config, self.dir)
    }

    pub(crate) async fn restart(self) -> Self {
        let Self { running, config, client, now, dir } = self;
        running.shutdown().await.unwrap();
        let running = RunningAuditor::start(config.clone()).await.unwrap();
        Self { running, config, client, now, dir }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.running.bound().port().unwrap())
    }

    pub(crate) async fn send(&self, method: &str, path: &str) -> Reply {
        self.client.call(method.parse().unwrap(), self.url(path)).send().await.unwrap()
    }

    pub(crate) async fn put(&self, body: &impl serde::Serialize) -> Reply {
        let call = self.client.call("PUT".parse().unwrap(), self.url("deposit-confirmation"));
        call.json(body).send().await.unwrap()
    }

    /// Shows a confirmation, which is refused.
    pub(crate) async fn refused(&self, body: &impl serde::Serialize) -> (u16, u64) {
        let reply = self.put(body).await;
        let error: Value = reply.json().unwrap();
        (reply.status, error["code"].as_u64().unwrap())
    }

    pub(crate) fn stored(&self) -> usize {
        self.running.store().all::<DepositConfirmations>().unwrap().len()
    }
}

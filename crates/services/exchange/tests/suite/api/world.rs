//! A real exchange on 127.0.0.1, with a test clock, and with credits that need no bank.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_exchange::app::Exchange;
use batzen_exchange::config::{
    AgeRestrictionConfig, CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig,
};
use batzen_exchange::keys::load_or_create_eddsa;
use batzen_exchange::offline;
use batzen_exchange::rules::Answer;
use batzen_exchange::service::RunningExchange;
use batzen_exchange::workers::aggregator;
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::api::exchange::{Denomination, KeysResponse, ReserveBalance};
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use batzen_tables::exchange::AccountId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{TestClock, book, credit, start_ready};

/// The exchange's account.
pub(crate) const PAYTO: &str = "payto://x-taler-bank/localhost/2?receiver-name=2";
/// The account that pays into reserves.
pub(crate) const CUSTOMER: &str = "payto://x-taler-bank/localhost/customer?receiver-name=Customer";
/// The account that deposits are paid to.
pub(crate) const MERCHANT: &str = "payto://x-taler-bank/localhost/merchant?receiver-name=Merchant";
/// Values of the denominations: RSA and CS, without and with age restriction. All except the free ones cost
/// 0.01 to withdraw, 0.02 to deposit, 0.03 to melt and 0.01 to refund.
pub(crate) const RSA_8: &str = "8";
pub(crate) const RSA_1: &str = "1";
pub(crate) const CS_5: &str = "5";
pub(crate) const CS_FREE: &str = "0.5";
pub(crate) const RSA_AGE_4: &str = "4";
pub(crate) const CS_AGE_2: &str = "2";

pub(crate) fn m(text: &str) -> Money {
    text.parse().unwrap()
}

pub(crate) fn currency() -> Currency {
    Currency::new("TESTKUDOS").unwrap()
}

pub(crate) fn amount(text: &str) -> Amount {
    m(text).of(currency())
}

pub(crate) fn config(directory: &Path) -> ExchangeConfig {
    let fees = CoinFees { withdraw: m("0.01"), deposit: m("0.02"), refresh: m("0.03"), refund: m("0.01") };
    let gateway = GatewayConfig { url: "http://127.0.0.1:1/".into(), auth: GatewayAuth::None };
    let rsa = CipherConfig::Rsa { bits: 1024 };
    let mut config = ExchangeConfig::local(currency(), directory, 0)
        .with_coin("COIN_RSA_8", m(RSA_8), fees, rsa)
        .with_coin("COIN_RSA_1", m(RSA_1), fees, rsa)
        .with_coin("COIN_CS_5", m(CS_5), fees, CipherConfig::Cs)
        .with_coin("COIN_CS_FREE", m(CS_FREE), CoinFees::FREE, CipherConfig::Cs)
        .with_coin("COIN_RSA_AGE_4", m(RSA_AGE_4), fees, rsa)
        .with_coin("COIN_CS_AGE_2", m(CS_AGE_2), fees, CipherConfig::Cs)
        .with_account("EXCHANGE-ACCOUNT-1", PAYTO, gateway);
    for coin in &mut config.coins {
        coin.duration_withdraw = Duration::from_days(7);
        coin.duration_spend = Duration::from_days(30);
        coin.duration_legal = Duration::from_days(60);
        coin.age_restricted = coin.section.contains("AGE");
    }
    config.age_restriction = AgeRestrictionConfig::parse(AgeRestrictionConfig::DEFAULT_GROUPS);
    config.signkey_duration = Duration::from_days(2 * 365);
    config.crypto_threads = 2;
    let fees = &mut config.standalone.as_mut().unwrap().fees;
    fees.history = m("0.05");
    fees.wire = m("0.1");
    fees.closing = m("0.1");
    config
}

/// A denomination as published.
#[derive(Clone, Debug)]
pub(crate) struct Denom {
    pub h: HashCode,
    pub terms: Denomination,
}

impl Denom {
    /// Returns the cost to withdraw one of its coins.
    pub(crate) fn cost(&self) -> Money {
        self.terms.value.money().checked_add(self.terms.fee_withdraw.money()).unwrap()
    }
}

/// The number of an amount whose currency is known.
pub(crate) trait InCurrency {
    fn money(&self) -> Money;
}

impl InCurrency for Amount {
    fn money(&self) -> Money {
        self.money
    }
}

pub(crate) struct Site {
    pub running: RunningExchange,
    pub clock: TestClock,
    pub client: Client,
    /// As published at the start or at the last [`Site::refresh_keys`].
    pub keys: KeysResponse,
    bank_row: AtomicU64,
    _directory: TempDir,
}

impl Site {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut ExchangeConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let mut config = config(directory.path());
        change(&mut config);
        let running = start_ready(config, &clock).await;
        let client = Client::new(&ClientOptions::default()).unwrap();
        let keys = client.get(format!("{}keys", running.base_url())).send().await.unwrap().ok().unwrap();
        Self { running, clock, client, keys, bank_row: AtomicU64::new(0), _directory: directory }
    }

    pub(crate) fn app(&self) -> &Arc<Exchange> {
        self.running.app()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    // --- HTTP ---

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running.base_url())
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> Reply {
        self.client.post_json(self.url(path), body).await.unwrap()
    }

    /// Posts a request that must be accepted.
    pub(crate) async fn ok<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> T {
        let reply = self.post(path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", text(&reply));
        reply.json().unwrap()
    }

    /// Posts a request that must be refused, and checks the answer's status, code and shape.
    pub(crate) async fn refused(&self, path: &str, body: &impl Serialize, status: u16, code: u32) -> Reply {
        let reply = self.post(path, body).await;
        is_error(&reply, status, code);
        reply
    }

    /// The value of a counter on the metrics page.
    pub(crate) async fn metric(&self, name: &str, kind: &str) -> u64 {
        let page = self.get("metrics").await;
        let start = format!("{name}{{type=\"{kind}\"}} ");
        let page = text(&page);
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start}in {page}")).trim().parse().unwrap()
    }

    // --- Money and reserves ---

    /// Pretends that the bank reported a transfer to a reserve.
    pub(crate) async fn credit(&self, reserve_pub: EddsaPublicKey, money: &str) {
        let bank_row = self.bank_row.fetch_add(1, Ordering::SeqCst) + 1;
        let credit = credit(bank_row, reserve_pub, m(money), CUSTOMER, self.now());
        let (core, command) = (&self.app().core, book(AccountId::of_payto(PAYTO), credit));
        let Ok(Answer::Credits(credited)) = core.submit(command).await.unwrap() else {
            panic!("credits are booked");
        };
        core.notices.reserves_credited(&credited.reserves);
    }

    /// A new reserve with money in it.
    pub(crate) async fn reserve(&self, money: &str) -> EddsaPrivateKey {
        let key = EddsaPrivateKey::generate();
        self.credit(key.public_key(), money).await;
        key
    }

    pub(crate) async fn balance(&self, reserve_pub: &EddsaPublicKey) -> Money {
        let reply = self.get(&format!("reserves/{reserve_pub}")).await;
        reply.ok::<ReserveBalance>().unwrap().balance.money()
    }

    pub(crate) async fn aggregate(&self) {
        aggregator::run_until_idle(&self.app().core).await.unwrap();
    }

    // --- Keys and time ---

    pub(crate) async fn refresh_keys(&mut self) {
        self.keys = self.get("keys").await.ok().unwrap();
    }

    /// The denomination of this value that can be withdrawn now.
    pub(crate) fn denom(&self, value: &str) -> Denom {
        let now = self.now();
        let found = self.keys.denoms.iter().find(|denom| {
            denom.value.money() == m(value) && denom.stamp_start <= now && now <= denom.stamp_expire_withdraw
        });
        let terms = found.expect("published").clone();
        Denom { h: terms.denom_pub.h_denom_pub(), terms }
    }

    /// A denomination of this value that is not valid yet. Moves the clock until there is one.
    pub(crate) async fn future_denom(&mut self, value: &str) -> Denom {
        self.advance(Duration::from_secs(6 * 86_400 + 43_200)).await;
        let now = self.now();
        let mut denoms = self.keys.denoms.iter();
        let found = denoms.find(|denom| denom.value.money() == m(value) && denom.stamp_start > now);
        let terms = found.expect("keys exist a day ahead").clone();
        Denom { h: terms.denom_pub.h_denom_pub(), terms }
    }

    /// Moves the clock, waits for a round of key maintenance, and reads the keys again.
    pub(crate) async fn advance(&mut self, duration: Duration) {
        self.clock.advance(duration);
        self.app().keeper().round().await.unwrap();
        self.refresh_keys().await;
    }

    /// Revokes a denomination with the master key.
    pub(crate) async fn revoke(&mut self, denom: &Denom) {
        let file = self.app().core.config.standalone.as_ref().unwrap().master_priv_file.clone();
        let master = load_or_create_eddsa(&file).unwrap();
        let operation = offline::revoke_denomination(&master, denom.h);
        offline::upload(&self.client, self.running.base_url(), &operation).await.unwrap();
        self.app().keeper().round().await.unwrap();
        self.refresh_keys().await;
    }
}

/// A copy of a body with a change that its type might not allow.
pub(crate) fn edited(body: &impl Serialize, edit: impl FnOnce(&mut Value)) -> Value {
    let mut body = serde_json::to_value(body).unwrap();
    edit(&mut body);
    body
}

/// A copy of a body with one member replaced.
pub(crate) fn with(body: &impl Serialize, member: &str, value: Value) -> Value {
    edited(body, |body| body[member] = value)
}

impl Site {
    /// Posts all requests at once; the answers are in the same order.
    pub(crate) async fn at_once(&self, requests: Vec<(String, Value)>) -> Vec<Reply> {
        let calls: Vec<_> = requests
            .into_iter()
            .map(|(path, body)| {
                let (client, url) = (self.client.clone(), self.url(&path));
                tokio::spawn(async move { client.post_json(url, &body).await.unwrap() })
            })
            .collect();
        let mut replies = Vec::with_capacity(calls.len());
        for call in calls {
            replies.push(call.await.unwrap());
        }
        replies
    }
}

pub(crate) fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

/// Asserts an error with a hint. Evidence is checked elsewhere.
pub(crate) fn is_error(reply: &Reply, status: u16, code: u32) {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    assert_eq!(
        (reply.status, body["code"].as_u64()),
        (status, Some(u64::from(code))),
        "{}: {}",
        reply.url,
        text(reply)
    );
    assert!(body["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{}", text(reply));
}

pub(crate) fn detail(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    body["detail"].as_str().unwrap_or_default().to_owned()
}

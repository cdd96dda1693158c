//! A small world in the test's process: the real exchange and the real bank with memory stores, a clock that a test
//! sets, and a network that can lose, delay and change what is sent.
//!
//! Wallets know the services by the names [`EXCHANGE`] and [`BANK`]; [`Network`] carries their requests to the ports
//! on which the services listen.

mod books;
mod gate;
mod keys;
mod kills;
mod network;
mod shop;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration as StdDuration;

use batzen_bank::{Bank, BankConfig, PasswordCost, RunningBank};
use batzen_crypto::{Cipher, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_exchange::app::Exchange;
use batzen_exchange::config::{
    AgeRestrictionConfig, CipherConfig, CoinFees, DocumentsConfig, ExchangeConfig, GatewayAuth, GatewayConfig,
};
use batzen_exchange::keys::Denom;
use batzen_exchange::offline;
use batzen_exchange::service::{RunningExchange, StartOptions};
use batzen_exchange::workers::expire;
use batzen_protocol::api::errors::DenominationUnusable;
use batzen_protocol::api::exchange::{MeltRequest, SignKey};
use batzen_protocol::api::offline::OfflineOperation;
use batzen_protocol::signatures::{
    ExchangeAffirmDenomExpired, MasterSigningKeyValidity, OperationName, SignedMessage, WalletCoinMelt,
};
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use batzen_signer::SigningKey;
use batzen_tables::exchange::{RecoupCredits, Reserves};
use batzen_wallet::core::SeededEntropy;
use batzen_wallet::core::http::{Context, HttpRequest, HttpResponse};
use batzen_wallet::transport::Transport;
use batzen_wallet::{Clock, Coin, WalletOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use books::{check_books, check_history, check_no_loss, check_settled};
pub use gate::Gate;
pub use kills::{kill_at_every_point, open_wallet};
pub(crate) use network::Network;
pub use network::{error, require_identification, with_status};
pub use shop::{MERCHANT, Shop};

/// Base URL of the exchange.
pub const EXCHANGE: &str = "http://exchange.test/";
/// Base URL of a second exchange.
pub const SECOND: &str = "http://second.test/";
/// Base URL of the bank.
pub const BANK: &str = "http://bank.test/";
/// Begin of every test.
pub const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Name of the first exchange, and its user name at the bank.
const FIRST: (&str, &str) = (EXCHANGE, "exchange");

/// An amount in the currency of the world, such as `KUDOS:5`.
pub fn amount(text: &str) -> Amount {
    text.parse().expect("an amount")
}

pub(crate) fn currency() -> Currency {
    "KUDOS".parse().expect("a currency")
}

fn cents(n: u64) -> Money {
    Money::from_units(u128::from(n) * 1_000_000).expect("a small amount")
}

/// Denominations with age groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ages {
    /// None.
    Without,
    /// Beside those without age groups.
    Beside,
    /// No others.
    Only,
}

/// Terms of the exchange: fees and values, in units of 0.01, and properties of older exchanges.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Withdrawal fee of each coin.
    pub fee_withdraw: u64,
    /// Deposit fee of each coin.
    pub fee_deposit: u64,
    /// Fee of each melt.
    pub fee_refresh: u64,
    /// Refund fee of each coin.
    pub fee_refund: u64,
    /// Whether it serves batches.
    pub has_batch: bool,
    /// Whether it refuses repeated batches of withdrawals.
    pub refuses_batch_repetition: bool,
    /// Denominations with age groups.
    pub ages: Ages,
    /// Fee for a purse that a reserve creates.
    pub fee_purse: u64,
    /// Wire fee of every transfer.
    pub fee_wire: u64,
    /// Values of the coins.
    pub values: &'static [u64],
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            fee_withdraw: 1,
            fee_deposit: 1,
            fee_refresh: 1,
            fee_refund: 1,
            has_batch: true,
            refuses_batch_repetition: false,
            ages: Ages::Without,
            fee_purse: 0,
            fee_wire: 2,
            values: &[800, 400, 200, 100, 10],
        }
    }
}

/// A clock that moves only on request.
#[derive(Debug)]
pub struct TestClock(AtomicU64);

impl TestClock {
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A running exchange with its files.
pub struct Site {
    running: Option<RunningExchange>,
    pub terms: Terms,
    /// Its user name at the bank.
    user: &'static str,
    _directory: TempDir,
}

impl Site {
    /// Starts an exchange that publishes `base_url` and uses this bank.
    async fn start(
        terms: Terms,
        (base_url, user): (&str, &'static str),
        bank: &RunningBank,
        clock: &Arc<TestClock>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), terms, (base_url, user), bank);
        keys::copy_to(&config, directory.path()).await;
        let clock = Arc::clone(clock);
        let options =
            StartOptions { clock: Arc::new(move || clock.now()), workers: false, ..StartOptions::default() };
        let running = RunningExchange::start(config, options).await.expect("an exchange");
        running.ready().await.expect("keys");
        Self { running: Some(running), terms, user, _directory: directory }
    }

    fn running(&self) -> &RunningExchange {
        self.running.as_ref().expect("it runs until it is dropped")
    }

    /// The shared parts of the service.
    pub(crate) fn app(&self) -> &Arc<Exchange> {
        self.running().app()
    }

    /// The URL that reaches it.
    fn local_url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.running().bound().port().expect("a TCP port"))
    }

    pub fn master_pub(&self) -> EddsaPublicKey {
        self.app().core.master_public_key
    }

    pub(crate) fn master(&self) -> EddsaPrivateKey {
        let config = self.app().core.config.standalone.as_ref().expect("a stand-alone exchange");
        batzen_exchange::keys::load_or_create_eddsa(&config.master_priv_file).expect("a key file")
    }

    /// Another signing key with the times of a listed one, which the master key has signed, too.
    pub fn other_signkey(&self, listed: SignKey) -> SignKey {
        let key = EddsaPrivateKey::generate().public_key();
        let SignKey { stamp_start: start, stamp_expire: expire, stamp_end: end, .. } = listed;
        let message = MasterSigningKeyValidity { start, expire, end, signkey_pub: key };
        SignKey { key, master_sig: message.sign(&self.master()), ..listed }
    }

    /// Uploads what the master key has signed, and waits for its effect.
    async fn manage(&self, operations: &[OfflineOperation]) {
        for operation in operations {
            offline::upload(&network::client(), &self.local_url(), operation).await.expect("it is accepted");
        }
        self.app().keeper().round().await.expect("a round of key maintenance");
    }

    /// Revokes denominations. Each gets a new key.
    pub async fn revoke(&self, is_it: impl Fn(&Denom) -> bool) {
        let keys = self.app().keys();
        let now = self.app().core.now();
        let found = keys
            .denoms()
            .iter()
            .filter(|denom| !denom.revoked && now <= denom.expire_withdraw && is_it(denom));
        let master = self.master();
        let operations: Vec<_> =
            found.map(|denom| offline::revoke_denomination(&master, denom.h_denom_pub)).collect();
        assert!(!operations.is_empty(), "there is something to revoke");
        self.manage(&operations).await;
    }

    /// Revokes one of the denominations that can be withdrawn now: that with the given number, counted from zero.
    pub async fn revoke_coin(&self, number: usize) {
        let (keys, now) = (self.app().keys(), self.app().core.now());
        let mut offered: Vec<_> =
            keys.denoms().iter().filter(|denom| !denom.revoked && now <= denom.expire_withdraw).collect();
        offered.sort_by_key(|denom| (denom.public.cipher() == Cipher::Cs, std::cmp::Reverse(denom.value)));
        let h_denom_pub = offered[number].h_denom_pub;
        self.revoke(|denom| denom.h_denom_pub == h_denom_pub).await;
    }

    /// Balances of all reserves.
    pub fn reserves(&self) -> BTreeMap<EddsaPublicKey, Money> {
        let found = self.app().core.store.all::<Reserves>().expect("the store is readable");
        found.into_iter().map(|found| (found.key.reserve_pub, found.row.balance)).collect()
    }

    /// Number of the coins that were paid back to reserves.
    pub fn recoups(&self) -> usize {
        self.app().core.store.all::<RecoupCredits>().expect("the store is readable").len()
    }

    /// The online signing key, with which a test forges statements of the exchange.
    pub fn signer(&self) -> Forger {
        let modules = self.app().custody.modules().expect("the keys are in this process");
        Forger(modules.signing_keys().pop().expect("a signing key"))
    }

    /// Revokes the online signing key. It gets a new one.
    pub async fn revoke_signing_key(&self) {
        let key = self.app().keys().online_key().expect("a signing key").public_key();
        self.manage(&[offline::revoke_signkey(&self.master(), key)]).await;
    }
}

/// The exchange's signing key in the hands of a test.
#[derive(Clone)]
pub struct Forger(Arc<SigningKey>);

impl Forger {
    pub fn exchange_pub(&self) -> EddsaPublicKey {
        self.0.signer.public_key()
    }

    /// Signs a message of the exchange.
    pub fn sign(&self, message: &impl SignedMessage) -> EddsaSignature {
        message.sign_with(&self.0.signer)
    }

    /// The signed statement that a denomination cannot be used.
    pub fn unusable(
        &self,
        h_denom_pub: &HashCode,
        oper: &str,
        code: u32,
        timestamp: Timestamp,
    ) -> HttpResponse {
        let message = ExchangeAffirmDenomExpired {
            timestamp,
            operation: OperationName::new(oper),
            h_denom_pub: *h_denom_pub,
        };
        let statement = DenominationUnusable {
            oper: oper.to_owned(),
            timestamp,
            h_denom_pub: *h_denom_pub,
            exchange_pub: self.exchange_pub(),
            exchange_sig: self.sign(&message),
        };
        error(410, code, &statement)
    }
}

impl Drop for Site {
    /// Its threads end with it, even while the test goes on.
    fn drop(&mut self) {
        if let (Some(running), Ok(runtime)) = (self.running.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(running.shutdown());
        }
    }
}

/// A wallet's environment.
pub struct World {
    pub exchange: Site,
    bank: Option<RunningBank>,
    /// The clock of all services and wallets.
    pub clock: Arc<TestClock>,
    /// Carries all requests of wallets.
    pub network: Arc<Network>,
}

impl World {
    /// A world whose exchange has the default terms.
    pub async fn new() -> Self {
        Self::with(Terms::default()).await
    }

    /// A world whose exchange has these terms.
    pub async fn with(terms: Terms) -> Self {
        let clock = Arc::new(TestClock(AtomicU64::new(START.as_micros())));
        let of_bank = Arc::clone(&clock);
        let config = BankConfig {
            http_port: 0,
            hostname: "bank.test".to_owned(),
            base_url: Some(BANK.to_owned()),
            suggested_exchange: Some(EXCHANGE.to_owned()),
            allow_repeated_reserve_pub: true,
            password_cost: PasswordCost::LEAST,
            dashboard: false,
            clock: Arc::new(move || of_bank.now()),
            ..BankConfig::new(currency())
        };
        let bank = Bank::start(config).await.expect("a bank");
        let exchange = Site::start(terms, FIRST, &bank, &clock).await;
        let network = Network::new();
        network.connect(BANK, &format!("http://{}/", bank.addr), None);
        let world = Self { exchange, bank: Some(bank), clock, network };
        world.connect();
        world.register(world.exchange.user).await;
        world
    }

    fn connect(&self) {
        let url = self.exchange.local_url();
        self.network.connect(EXCHANGE, &url, Some(Arc::clone(&self.exchange.app().core)));
        self.network.set_terms(self.exchange.terms);
    }

    /// Starts a second exchange, under the name [`SECOND`].
    pub async fn second(&self, terms: Terms) -> Site {
        let site = Site::start(terms, (SECOND, "second"), self.bank(), &self.clock).await;
        self.register(site.user).await;
        self.network.connect(SECOND, &site.local_url(), Some(Arc::clone(&site.app().core)));
        site
    }

    /// Replaces the exchange by one with another master key.
    pub async fn replace_exchange(&mut self) {
        self.exchange = Site::start(self.exchange.terms, FIRST, self.bank(), &self.clock).await;
        self.connect();
    }

    fn bank(&self) -> &RunningBank {
        self.bank.as_ref().expect("it runs until it is dropped")
    }

    /// The surroundings of a wallet whose secrets follow from `seed`.
    pub fn options(&self, seed: u64) -> WalletOptions {
        WalletOptions {
            transport: Arc::clone(&self.network) as Arc<dyn Transport>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Box::new(SeededEntropy::new(seed)),
            attempts: 3,
            first_backoff: StdDuration::from_millis(1),
        }
    }

    /// Sets the time. The exchange creates and publishes the keys that it then needs.
    pub async fn set_time(&self, time: Timestamp) {
        self.clock.set(time);
        self.exchange.app().keeper().round().await.expect("a round of key maintenance");
    }

    /// Refunds purses that have expired.
    pub async fn expire_purses(&self) {
        expire::run_until_idle(&self.exchange.app().core).await.expect("the worker runs");
    }

    async fn ask_bank(&self, path: &str, body: &Value) -> Value {
        let url = format!("{BANK}taler-bank-access/{path}");
        let answer = self.network.answer(&HttpRequest::post(Context::Bank, url, body)).await;
        let answer = answer.expect("the bank answers");
        assert!(answer.status < 300, "{path}: {}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    async fn register(&self, user: &str) {
        self.ask_bank("testing/register", &json!({ "username": user, "password": "x" })).await;
    }

    /// Transfers money to a reserve of the exchange.
    pub async fn credit(&self, reserve_pub: EddsaPublicKey, amount: Amount) {
        self.credit_at(&self.exchange, reserve_pub, amount).await;
    }

    /// Transfers money to a reserve of another exchange.
    pub async fn credit_at(&self, site: &Site, reserve_pub: EddsaPublicKey, amount: Amount) {
        let url = format!("{BANK}taler-wire-gateway/{}/admin/add-incoming", site.user);
        let body = json!({
            "amount": amount, "reserve_pub": reserve_pub,
            "debit_account": "payto://x-taler-bank/bank.test/user?receiver-name=user",
        });
        let answer = self.network.answer(&HttpRequest::post(Context::Bank, url, &body)).await;
        assert_eq!(answer.expect("the bank answers").status, 200);
        self.network.deliver().await;
    }

    /// The history with which the exchange proves that less than the whole value of a coin is left.
    pub async fn coin_history(&self, coin: &Coin) -> Vec<Value> {
        let keys = self.exchange.app().keys();
        let denom = keys.find_denomination(&coin.h_denom_pub).expect("a denomination of the exchange");
        let age_commitment_hash = coin.h_age().expect("a commitment");
        let message = WalletCoinMelt {
            refresh_commitment: HashCode::from_bytes([9; 64]),
            h_denom_pub: coin.h_denom_pub,
            h_age_commitment: age_commitment_hash.unwrap_or(ShortHash::ZERO),
            amount_with_fee: denom.value.of(currency()),
            melt_fee: denom.fee_refresh.of(currency()),
        };
        let request = MeltRequest {
            denom_pub_hash: coin.h_denom_pub,
            denom_sig: coin.denom_sig.clone(),
            confirm_sig: message.sign(&coin.coin_priv),
            value_with_fee: message.amount_with_fee,
            rc: message.refresh_commitment,
            age_commitment_hash,
            rms: None,
            coin_pub: None,
        };
        let url = format!("{}coins/{}/melt", self.exchange.local_url(), coin.coin_pub);
        let reply = network::client().post_json(url, &request).await.expect("the exchange answers");
        assert_eq!(reply.status, 409, "the whole value is left");
        let proof: Value = reply.json().expect("JSON");
        proof["history"].as_array().expect("a history").clone()
    }

    /// Begins a withdrawal at the bank, as the user does on the bank's page. Returns its URI.
    pub async fn create_bank_operation(&self, amount: Amount) -> String {
        self.register("user").await;
        let created = self.ask_bank("accounts/user/withdrawals", &json!({ "amount": amount })).await;
        created["taler_withdraw_uri"].as_str().expect("a URI").to_owned()
    }

    /// Confirms a withdrawal at the bank, as the user does on the bank's page.
    pub async fn confirm_at_bank(&self, uri: &str) {
        let id = uri.rsplit('/').next().expect("an operation");
        self.ask_bank(&format!("accounts/user/withdrawals/{id}/confirm"), &json!({})).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let (Some(bank), Ok(runtime)) = (self.bank.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(bank.shutdown());
        }
    }
}

fn config(
    directory: &Path,
    terms: Terms,
    (base_url, user): (&str, &str),
    bank: &RunningBank,
) -> ExchangeConfig {
    let documents = directory.join("terms");
    std::fs::create_dir_all(documents.join("en")).expect("a directory");
    std::fs::write(documents.join("en").join("tos-1.txt"), "Be nice.").expect("a file");
    let payto = bank.payto(user);
    let gateway = GatewayConfig {
        url: format!("http://{}/taler-wire-gateway/{user}/", bank.addr),
        auth: GatewayAuth::None,
    };
    let mut config =
        ExchangeConfig::local(currency(), directory, 0).with_account("exchange-account-1", &payto, gateway);
    base_url.clone_into(&mut config.base_url);
    config.store = batzen_exchange::storage::StoreConfig::Memory;
    config.terms = DocumentsConfig { directory: Some(documents), etag: "tos-1".to_owned() };
    config.crypto_threads = 1;
    config.dashboard = false;
    config.idle_reserve_expiration = Duration::from_days(28);
    let fees = CoinFees {
        withdraw: cents(terms.fee_withdraw),
        deposit: cents(terms.fee_deposit),
        refresh: cents(terms.fee_refresh),
        refund: cents(terms.fee_refund),
    };
    for (name, cipher) in [("rsa", CipherConfig::Rsa { bits: 1024 }), ("cs", CipherConfig::Cs)] {
        for with_ages in [false, true] {
            let is_offered = match terms.ages {
                Ages::Without => !with_ages,
                Ages::Beside => true,
                Ages::Only => with_ages,
            };
            for value in terms.values.iter().filter(|_| is_offered) {
                let kind = if with_ages { "age" } else { "plain" };
                config =
                    config.with_coin(&format!("coin_{name}_{kind}_{value}"), cents(*value), fees, cipher);
                config.coins.last_mut().expect("just added").age_restricted = with_ages;
            }
        }
    }
    for coin in &mut config.coins {
        coin.duration_withdraw = Duration::from_days(7);
        coin.duration_spend = Duration::from_days(93);
        coin.duration_legal = Duration::from_days(300);
    }
    if terms.ages != Ages::Without {
        config.age_restriction = AgeRestrictionConfig::parse(AgeRestrictionConfig::DEFAULT_GROUPS);
    }
    let published = &mut config.standalone.as_mut().expect("it is local").fees;
    published.wire = cents(terms.fee_wire);
    published.closing = cents(2);
    published.purse = cents(terms.fee_purse);
    published.purse_account_limit = 5;
    config
}

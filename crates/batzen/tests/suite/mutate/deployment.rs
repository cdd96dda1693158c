//! A bank, an exchange, a shop's backend and an auditor. Clients of all kinds use them before they are attacked, and
//! afterwards.

use std::path::Path;
use std::sync::atomic::Ordering;

use batzen_crypto::EddsaPrivateKey;
use batzen_signer::channel::{Connect, load_key};
use serde_json::{Value, json};

use crate::common::setup::{CS, RSA, coin, keygen, master_key, merchant_config, shared_config, wait_for};
use crate::common::{Service, batzen, free_port, must, run as run_program, stderr, stdout};
use crate::mutate::answer::Errors;
use crate::mutate::campaign::{Plan, Watched, run};
use crate::mutate::feed::{self, Relay};
use crate::mutate::proxy::Proxy;
use crate::mutate::pump::Listener;
use crate::mutate::seeds::{Seed, Seeds};
use crate::mutate::shop::Shop;
use crate::mutate::{recorded, routes};

pub(super) const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
/// The endpoints that none of the configured identity providers uses.
const REFUSED: [&str; 2] = ["GET /kyc-webhook/:provider", "POST /kyc-webhook/:provider"];

/// A service behind a proxy.
pub(super) struct Node {
    name: &'static str,
    port: u16,
    pub proxy: Proxy,
    service: Option<Service>,
}

impl Node {
    fn new(name: &'static str) -> Self {
        let port = free_port();
        Self { name, port, proxy: Proxy::start(port), service: None }
    }

    fn start(&mut self, dir: &Path, words: &[&str], ready: &str) {
        self.service = Some(Service::start(dir, self.name, words));
        wait_for(self.port, ready);
    }
}

pub(super) struct Deployment {
    dir: tempfile::TempDir,
    pub bank: Node,
    pub exchange: Node,
    pub merchant: Node,
    pub auditor: Node,
    feed_port: u16,
    relay: Relay,
    /// A key of an auditor whom the exchange knows.
    stranger: EddsaPrivateKey,
    master: String,
}

impl Deployment {
    /// Starts all, signs what the exchange needs, and has clients use everything.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let [bank, exchange, merchant, auditor] = ["bank", "exchange", "merchant", "auditor"].map(Node::new);
        let offline = path("offline.conf");
        std::fs::write(&offline, common_config(&dir.path().join("offline"), &exchange.proxy.url())).unwrap();
        let master = master_key(&must(&["exchange", "offline", "-c", &offline, "setup"]));
        let keys = ["feed.key", "auditor.key", "stranger.key"].map(|name| {
            keygen(&path(name));
            load_key(&dir.path().join(name)).unwrap()
        });
        let feed_port = free_port();
        let [feed_key, auditor_key, stranger] = keys;
        let relay = Relay::start(feed_port, feed_key, auditor_key);
        let mut deployment =
            Self { dir, bank, exchange, merchant, auditor, feed_port, relay, stranger, master };
        deployment.start_bank_and_exchange();
        // Before others have coins of these denominations.
        deployment.revoke();
        deployment.start_auditor();
        deployment.start_merchant();
        deployment
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn public(&self, name: &str) -> String {
        load_key(&self.dir.path().join(name)).unwrap().public_key().to_string()
    }

    fn start_bank_and_exchange(&mut self) {
        let (data, port, exchange_url) =
            (self.path("bank"), self.bank.port.to_string(), self.exchange.proxy.url());
        let words = ["bank", "serve", "--currency", "KUDOS", "--signup-bonus", "KUDOS:1000"];
        let words = [&words[..], &["--exchange", &exchange_url, "--data", &data, "--port", &port]].concat();
        self.bank.start(self.dir.path(), &words, "/taler-bank-integration/config");
        let officer = must(&["exchange", "kyc", "officer", "ann", "--token-file", &self.path("officer")]);
        let text = format!(
            "{}PORT = {}\nBIND_TO = 127.0.0.1\nMASTER_PUBLIC_KEY = {}\n\
             AGGREGATOR_IDLE_SLEEP_INTERVAL = 1 s\n\
             [exchange-account-1]\nPAYTO_URI = {PAYTO}\nENABLE_CREDIT = YES\nENABLE_DEBIT = YES\n\
             [exchange-accountcredentials-1]\nWIRE_GATEWAY_URL = {}taler-wire-gateway/exchange/\n\
             [exchange-feed]\nLISTEN = tcp://127.0.0.1:{}\nKEY_FILE = {}\nAUDITORS = {}, {}\nHOLD_MIB = 64\n\
             {}{officer}",
            common_config(&self.dir.path().join("home"), &exchange_url),
            self.exchange.port,
            self.master,
            self.bank.proxy.url(),
            self.feed_port,
            self.path("feed.key"),
            self.public("auditor.key"),
            self.public("stranger.key"),
            crate::mutate::identity::config(),
        );
        let config = self.path("exchange.conf");
        std::fs::write(&config, text).unwrap();
        self.exchange.start(self.dir.path(), &["exchange", "serve", "-c", &config], "/management/keys");
        let auditor = "0".repeat(52);
        for steps in [
            &["download", "sign", "upload"][..],
            &["enable-account", PAYTO, "upload"],
            &["wire-fee", "now", "x-taler-bank", "KUDOS:0", "KUDOS:0", "upload"],
            &["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"],
            &["enable-auditor", &auditor, "http://localhost/", "auditor", "upload"],
            &["disable-auditor", &auditor, "upload"],
            &["enable-account", OTHER_PAYTO, "upload"],
            &["disable-account", OTHER_PAYTO, "upload"],
            &["extensions", "sign", "upload"],
        ] {
            self.offline(steps);
        }
        ["/keys", "/wire"].iter().for_each(|page| wait_for(self.exchange.port, page));
    }

    /// Starts the auditor, who follows the exchange through the relay, and approves its denominations.
    fn start_auditor(&mut self) {
        let text = format!(
            "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n[paths]\nTALER_DATA_HOME = {}\n\
             [auditor]\nBASE_URL = {url}\nPORT = {}\nBIND_TO = 127.0.0.1\n\
             [exchange]\nBASE_URL = {exchange_url}\nMASTER_PUBLIC_KEY = {}\n\
             [auditor-feed]\nEXCHANGE = tcp://127.0.0.1:{}\nEXCHANGE_KEY = {}\nKEY_FILE = {}\nCOMPARE_INTERVAL = 2 s\n\
             [exchange-account-1]\nPAYTO_URI = {PAYTO}\n\
             [exchange-accountcredentials-1]\nWIRE_GATEWAY_URL = {}taler-wire-gateway/exchange/\n",
            self.path("auditor"),
            self.auditor.port,
            self.master,
            self.relay.port,
            self.public("feed.key"),
            self.path("auditor.key"),
            self.bank.proxy.url(),
            url = self.auditor.proxy.url(),
            exchange_url = self.exchange.proxy.url(),
        );
        let config = self.path("auditor.conf");
        std::fs::write(&config, text).unwrap();
        must(&["auditor", "init", "-c", &config]);
        let key = must(&["auditor", "offline", "-c", &config, "setup"]);
        self.auditor.start(self.dir.path(), &["auditor", "serve", "-c", &config], "/ready");
        must(&["auditor", "exchange", "add", &self.master, &self.exchange.proxy.url(), "-c", &config]);
        self.offline(&["enable-auditor", key.trim(), &self.auditor.proxy.url(), "auditor", "upload"]);
        must(&["auditor", "offline", "-c", &config, "download", "sign", "upload"]);
    }

    fn start_merchant(&mut self) {
        let exchange = self.exchange.proxy.url();
        let more = "DEPOSIT_CONFIRMATION_SHARE = 100\nWEBHOOK_NETWORKS = 127.0.0.0/8\n\
                    EXCHANGE_NETWORKS = 127.0.0.0/8 ::1\n";
        let trusted = [(exchange.as_str(), self.master.as_str())];
        let config = merchant_config(self.dir.path(), self.merchant.port, &trusted, more);
        self.merchant.start(self.dir.path(), &["merchant", "serve", "-c", &config], "/ready");
    }

    pub(super) fn offline(&self, steps: &[&str]) {
        must(&[&["exchange", "offline", "-c", &self.path("offline.conf")][..], steps].concat());
    }

    /// The headers of a customer who is logged in on the bank's page.
    fn web_session(&self) -> [(&'static str, String); 3] {
        let body = json!({"username": "first", "password": "secret"});
        let seed = Seed::new("POST", "/web/login").header("Sec-Fetch-Site", "same-origin").json(&body);
        let answer = self.bank.proxy.ask(seed);
        let cookie = answer.header("set-cookie").and_then(|cookie| cookie.split(';').next()).unwrap();
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        let csrf = body["csrf"].as_str().unwrap();
        [
            ("Cookie", cookie.to_owned()),
            ("X-CSRF-Token", csrf.to_owned()),
            ("Sec-Fetch-Site", "same-origin".to_owned()),
        ]
    }

    /// Runs a command of a wallet, which must succeed.
    #[track_caller]
    pub(super) fn wallet(&self, name: &str, words: &[&str]) -> Value {
        let file = self.path(name);
        let output = batzen().args(["wallet", "--wallet", &file, "--json"]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    pub(super) fn withdraw(&self, name: &str, amount: &str, cipher: &str) {
        let bank = self.bank.proxy.url();
        let words = ["withdraw", "--yes", "--bank", &bank, "--user", name, "--password", "secret"];
        let more = ["--amount", amount, "--cipher", cipher, "--wait", "120"];
        self.wallet(name, &[&words[..], &more].concat());
    }

    pub(super) fn pay(&self, name: &str, amount: &str) {
        let zoe = "payto://x-taler-bank/localhost/zoe?receiver-name=zoe";
        self.wallet(name, &["deposit", "--yes", amount, zoe]);
    }

    /// Serves honest clients of every kind, with accounts and a shop of this name.
    fn serve(&self, name: &str, shop: &'static str) {
        self.withdraw(name, "KUDOS:30", "any");
        self.pay(name, "KUDOS:2.5");
        self.pay_each_other(name);
        self.identify();
        Shop::open(self, shop).sell(name);
    }

    /// The auditor has followed the exchange until now, and finds nothing.
    fn audit(&self, before: &Value) -> Value {
        let report = Seed::new("GET", "/audit.json");
        let is_clean = |report: &Value| {
            report["ok"] == true && report["without_bank"].is_null() && report["sheet"] != *before
        };
        self.auditor.proxy.until(&report, is_clean)["sheet"].clone()
    }

    /// Waits until the auditor has confirmed an epoch of the exchange's published debts.
    fn confirm_debts(&self) {
        let config = self.path("auditor.conf");
        let deadline = std::time::Instant::now() + crate::common::PATIENCE;
        loop {
            let output = run_program(&["auditor", "liabilities", "-c", &config, "--json"]);
            let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let confirmed = outcome["confirmed"].as_array().and_then(|epochs| epochs.first()?.as_u64());
            if let Some(epoch) = confirmed {
                self.auditor.proxy.send(Seed::new("GET", &format!("/liabilities/{epoch}")));
                return;
            }
            assert!(std::time::Instant::now() < deadline, "{}{}", stdout(&output), stderr(&output));
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// Requests to the exchange of all clients before.
    fn exchange_seeds(&self) -> Seeds {
        let table = batzen_exchange::api::endpoints();
        let mut seeds = Seeds::recorded(table, &self.exchange.proxy, &REFUSED);
        recorded::add(&mut seeds, "exchange");
        seeds
    }

    fn auditor_seeds(&self) -> Seeds {
        let table = batzen_auditor::endpoints();
        self.auditor.proxy.visit(&routes::of(table.clone()), "", &[]);
        Seeds::recorded(table, &self.auditor.proxy, &[])
    }

    /// Sends the bank what no client has sent yet, among it orders to pay out the exchange's money.
    fn bank_seeds(&self) -> Seeds {
        let bank = &self.bank.proxy;
        bank.send(Seed::new("POST", "/web/register").json(&json!({"username": "eve", "password": "secret"})));
        let session = self.web_session();
        let with_session =
            |seed: Seed| session.iter().fold(seed, |seed, (name, value)| seed.header(name, value));
        bank.send(with_session(Seed::new("GET", "/web/account?before=5")));
        let payment = json!({"id": "0".repeat(26), "to": "zoe", "amount": "KUDOS:0.01", "text": "x"});
        bank.send(with_session(Seed::new("POST", "/web/payments").json(&payment)));
        let basic = |seed: Seed| seed.header("Authorization", "Basic Zmlyc3Q6c2VjcmV0");
        let withdrawals = "/taler-bank-access/accounts/first/withdrawals";
        let begun = bank.send(basic(Seed::new("POST", withdrawals).json(&json!({"amount": "KUDOS:1"}))));
        let withdrawal = format!("{withdrawals}/{}", begun["withdrawal_id"].as_str().unwrap());
        bank.send(basic(Seed::new("GET", &withdrawal)));
        bank.send(basic(Seed::new("POST", &format!("{withdrawal}/abort")).json(&json!({}))));
        for end in ["confirm", "abort"] {
            let wish = json!({"amount": "KUDOS:1"});
            let begun = bank.send(with_session(Seed::new("POST", "/web/withdrawals").json(&wish)));
            let id = begun["id"].as_str().unwrap_or_else(|| panic!("{begun}"));
            let (page, wtid) = (format!("/web/withdrawals/{id}"), EddsaPrivateKey::generate().public_key());
            bank.send(with_session(Seed::new("GET", &page)));
            let chosen = json!({"reserve_pub": wtid, "selected_exchange": PAYTO});
            let operation = format!("/taler-bank-integration/withdrawal-operation/{id}");
            bank.send(Seed::new("POST", &operation).json(&chosen));
            bank.send(Seed::new("GET", &operation));
            bank.send(with_session(Seed::new("POST", &format!("{page}/{end}")).json(&json!({}))));
        }
        let wtid = EddsaPrivateKey::generate().public_key().to_string();
        let mut transfer = json!({
            "request_uid": format!("{wtid}{}", &wtid[..51]), "amount": "KUDOS:0.01",
            "exchange_base_url": "http://localhost/", "wtid": wtid,
            "credit_account": "payto://x-taler-bank/localhost/eve?receiver-name=eve",
        });
        let mut credit = json!({
            "reserve_pub": wtid, "amount": "KUDOS:0.01",
            "debit_account": "payto://x-taler-bank/localhost/eve?receiver-name=eve",
        });
        for base in ["/taler-wire-gateway/exchange", "/exchange"] {
            bank.send(Seed::new("POST", &format!("{base}/transfer")).json(&transfer));
            bank.send(Seed::new("POST", &format!("{base}/admin/add-incoming")).json(&credit));
            let other = EddsaPrivateKey::generate().public_key().to_string();
            transfer["request_uid"] = json!(format!("{other}{}", &other[..51]));
            (transfer["wtid"], credit["reserve_pub"]) = (json!(other), json!(other));
            for target in ["history/incoming?delta=5", "history/outgoing?delta=-5", "config"] {
                bank.send(Seed::new("GET", &format!("{base}/{target}")));
            }
        }
        let account = Seed::new("GET", "/taler-bank-access/accounts/first");
        bank.send(basic(account));
        bank.visit(&routes::of(batzen_bank::endpoints()), "", &[]);
        let other = self.web_session();
        let leaving = Seed::new("POST", "/web/logout").json(&json!({}));
        bank.send(other.iter().fold(leaving, |seed, (name, value)| seed.header(name, value)));
        let mut seeds = Seeds::recorded(batzen_bank::endpoints(), bank, &[]);
        recorded::add(&mut seeds, "bank");
        seeds
    }

    /// Sends a service the requests of its share.
    fn attack(&mut self, service: &'static str, seeds: Seeds) {
        let log = self.dir.path().join(format!("{service}.log"));
        let nodes = [&mut self.bank, &mut self.exchange, &mut self.merchant, &mut self.auditor];
        let node = nodes.into_iter().find(|node| node.name == service).unwrap();
        let address = ([127, 0, 0, 1], node.port).into();
        let listeners = [Listener { address, errors: Errors::CodeOrPage, seeds }];
        let service = node.service.as_mut().unwrap();
        run(&Plan::new(node.name), &listeners, &mut Watched { service, log });
    }

    /// Sends the exchange the requests of a hostile auditor. From then on, the messages of the other one arrive unchanged.
    fn attack_feed(&mut self) {
        let connect = Connect::new(
            &self.stranger,
            vec![load_key(&self.dir.path().join("feed.key")).unwrap().public_key()],
        );
        let log = self.dir.path().join("exchange.log");
        let service = self.exchange.service.as_mut().unwrap();
        feed::attack(&Plan::new("feed"), self.feed_port, &connect.unwrap(), &mut Watched { service, log });
        self.relay.changes.store(false, Ordering::Relaxed);
        let changed = self.relay.changed.load(Ordering::Relaxed);
        println!("{changed} messages between exchange and auditor were changed");
        assert!(
            changed > 0 || std::env::var_os("BATZEN_MUTATE_REPLAY").is_some(),
            "no message between exchange and auditor was changed"
        );
    }

    /// Ends all services cleanly, and checks their books.
    fn close(self) {
        let path = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        for node in [self.merchant, self.auditor, self.exchange, self.bank] {
            let (status, _) = node.service.unwrap().terminate();
            let log = std::fs::read_to_string(path(&format!("{}.log", node.name))).unwrap();
            let panic = log.lines().find(|line| line.contains("panicked at"));
            assert!(status.success() && panic.is_none(), "{}: {status} {panic:?}", node.name);
        }
        let totals = must(&["exchange", "totals", "-c", &path("exchange.conf")]);
        assert!(totals.contains("the books add up"), "{totals}");
        for store in ["home/exchange/store", "bank", "merchant"] {
            let verified = must(&["store", "verify", &path(store)]);
            assert!(verified.contains("sound"), "{store}: {verified}");
        }
    }
}

/// An account that the exchange has had once.
const OTHER_PAYTO: &str = "payto://x-taler-bank/localhost/former?receiver-name=former";

/// The options that exchange and offline tool share. Section `[exchange]` is the last.
fn common_config(home: &Path, url: &str) -> String {
    let coins = [("one", "1", CS), ("small", "0.1", RSA), ("cent", "0.01", CS), ("two", "2", RSA)];
    let coins = coins.map(|(name, value, cipher)| coin(name, value, "0.01", cipher)).concat();
    format!(
        "{}[exchange-extension-age_restriction]\nENABLED = YES\n\
         [exchange-liabilities]\nEPOCH = 1 s\nSETTLING = 0 s\n{coins}[exchange]\nBASE_URL = {url}\n",
        shared_config(home),
    )
}

#[test]
fn deployment_survives_mutation() {
    let mut deployment = Deployment::new();
    deployment.serve("first", "default");
    deployment.use_reserves();
    deployment.confirm_debts();
    let shop = Shop::seeds(&deployment);
    let sheet = deployment.audit(&Value::Null);
    let (exchange, auditor) = (deployment.exchange_seeds(), deployment.auditor_seeds());
    // Meanwhile the auditor follows an exchange whose messages are changed.
    deployment.relay.changes.store(true, Ordering::Relaxed);
    deployment.attack("exchange", exchange);
    deployment.attack("merchant", shop);
    deployment.attack("auditor", auditor);
    deployment.attack_feed();
    deployment.serve("second", "second");
    deployment.audit(&sheet);
    let bank = deployment.bank_seeds();
    deployment.attack("bank", bank);
    deployment.withdraw("third", "KUDOS:11", "any");
    deployment.pay("third", "KUDOS:2.5");
    deployment.close();
}

//! Signers as real processes: an exchange without private keys, set up by the offline tool as an operator does it, with two
//! signers of which one is killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

#[allow(dead_code, reason = "a part of it")]
#[path = "crash/coins.rs"]
mod coins;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, ExchangeWithdrawValues, PlanchetMasterSecret};
use batzen_http::gateway::{AddIncomingRequest, GatewayAuth, WireGatewayClient};
use batzen_http::{Client, ClientOptions, Reply};
use batzen_protocol::api::exchange::{BlindSignature, CsrWithdrawRequest, KeysResponse, WithdrawValues};
use coins::{CURRENCY, Coin, Contract, Denom, Planchet, Shop, money};
use common::setup::wait_for;
use common::{PATIENCE, Service, run, stderr, stdout};
use serde::Serialize;
use serde_json::Value;

const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";

/// Runs the program, which must succeed, and gives what it prints.
fn must(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output).trim().to_owned()
}

fn coin_section(name: &str, value: &str, cipher: &str) -> String {
    format!(
        "[coin_{name}]\nVALUE = KUDOS:{value}\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\n\
         DURATION_LEGAL = 3 years\nFEE_WITHDRAW = KUDOS:0\nFEE_DEPOSIT = KUDOS:0.01\nFEE_REFRESH = KUDOS:0\n\
         FEE_REFUND = KUDOS:0.01\n{cipher}\n"
    )
}

/// What exchange, signers and offline tool have in common.
fn common_config(home: &Path) -> String {
    format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n\
         [paths]\nTALER_DATA_HOME = {home}\nTALER_RUNTIME_DIR = {home}/run\n\
         [taler-exchange-secmod-rsa]\nLOOKAHEAD_SIGN = 1 day\n[taler-exchange-secmod-cs]\nLOOKAHEAD_SIGN = 1 day\n\
         [taler-exchange-secmod-eddsa]\nLOOKAHEAD_SIGN = 1 day\n{}{}",
        coin_section("one", "1", "CIPHER = CS"),
        coin_section("two", "2", "CIPHER = RSA\nRSA_KEYSIZE = 1024"),
        home = home.display(),
    )
}

/// A place for everything: three machines' directories, and the offline one.
struct Place {
    dir: tempfile::TempDir,
    ports: [u16; 2],
    metrics: [u16; 2],
    exchange_port: u16,
    bank_port: u16,
    client: Client,
    signer_keys: [String; 2],
    master: String,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let key = |name: &str| must(&["signer", "keygen", &path(&format!("{name}/static.key"))]);
        let signer_keys = [key("signer-0"), key("signer-1")];
        let node_key = key("node");
        let again = must(&["signer", "keygen", &path("node/static.key")]);
        assert_eq!(again, node_key, "a key that is there stays");

        let exchange_port = common::free_port();
        let offline = path("offline.conf");
        let config = format!(
            "{}[exchange]\nBASE_URL = http://localhost:{exchange_port}/\n",
            common_config(&dir.path().join("offline"))
        );
        std::fs::write(&offline, config).unwrap();
        let setup: Value =
            serde_json::from_str(&must(&["exchange", "offline", "-c", &offline, "setup"])).unwrap();
        let text = setup.to_string();
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let master = words.find(|word| word.len() == 52).unwrap().to_owned();

        let ports = [common::free_port(), common::free_port()];
        let metrics = [common::free_port(), common::free_port()];
        for own in 0..2 {
            let other = 1 - own;
            let role = ["primary", "follower"][own];
            let home = dir.path().join(format!("signer-{own}"));
            let text = format!(
                "{}[exchange]\nMASTER_PUBLIC_KEY = {master}\n\
                 [signer]\nLISTEN = tcp://127.0.0.1:{}\nKEY_FILE = {}/static.key\nROLE = {role}\n\
                 HTTP = 127.0.0.1:{}\n\
                 [signer-node-one]\nPUBLIC_KEY = {node_key}\n\
                 [signer-peer-other]\nPUBLIC_KEY = {}\nADDRESS = tcp://127.0.0.1:{}\n",
                common_config(&home),
                ports[own],
                home.display(),
                metrics[own],
                signer_keys[other],
                ports[other],
            );
            std::fs::write(dir.path().join(format!("signer-{own}.conf")), text).unwrap();
        }
        let client = Client::new(&ClientOptions::default()).unwrap();
        let bank_port = common::free_port();
        let place = Self { dir, ports, metrics, exchange_port, bank_port, client, signer_keys, master };
        std::fs::write(place.path("node.conf"), place.node_config(&place.signer_keys.join(", "))).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The exchange's configuration, with these keys expected of its signers.
    fn node_config(&self, signer_keys: &str) -> String {
        format!(
            "{}[exchange]\nPORT = {port}\nBASE_URL = http://localhost:{port}/\nBIND_TO = 127.0.0.1\n\
             MASTER_PUBLIC_KEY = {}\nSIGNERS = tcp://127.0.0.1:{}, tcp://127.0.0.1:{}\n\
             SIGNER_PUBLIC_KEYS = {signer_keys}\nSIGNER_KEY_FILE = {}\n\
             [exchange-account-1]\nPAYTO_URI = {PAYTO}\nENABLE_CREDIT = YES\nENABLE_DEBIT = YES\n\
             [exchange-accountcredentials-1]\n\
             WIRE_GATEWAY_URL = http://localhost:{}/taler-wire-gateway/exchange/\n",
            common_config(&self.path("node")),
            self.master,
            self.ports[0],
            self.ports[1],
            self.text("node/static.key"),
            self.bank_port,
            port = self.exchange_port,
        )
    }

    fn start_signer(&self, number: usize) -> Service {
        let name = format!("signer-{number}");
        let config = self.text(&format!("{name}.conf"));
        let service = Service::start(self.dir.path(), &name, &["signer", "serve", "-c", &config]);
        wait_for(self.metrics[number], "/metrics");
        service
    }

    fn start_exchange(&self) -> Service {
        let config = self.text("node.conf");
        Service::start(self.dir.path(), "exchange", &["exchange", "serve", "-c", &config])
    }

    /// Bank and exchange, with everything signed as an operator would.
    fn open(&self) -> (Service, Service) {
        let (data, port) = (self.text("bank"), self.bank_port.to_string());
        let bank = ["bank", "serve", "--currency", "KUDOS", "--data", &data, "--port", &port];
        let bank = Service::start(self.dir.path(), "bank", &bank);
        wait_for(self.bank_port, "/taler-bank-integration/config");
        let exchange = self.start_exchange();
        wait_for(self.exchange_port, "/management/keys");
        self.sign_new_keys();
        for steps in [
            &["enable-account", PAYTO, "upload"][..],
            &["wire-fee", "now", "x-taler-bank", "KUDOS:0", "KUDOS:0", "upload"],
            &["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"],
        ] {
            self.offline(steps);
        }
        wait_for(self.exchange_port, "/keys");
        wait_for(self.exchange_port, "/wire");
        (bank, exchange)
    }

    fn offline(&self, steps: &[&str]) {
        let config = self.text("offline.conf");
        must(&[&["exchange", "offline", "-c", &config][..], steps].concat());
    }

    fn sign_new_keys(&self) {
        self.offline(&["download", "sign", "upload"]);
    }

    fn url(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", self.exchange_port)
    }

    async fn keys(&self) -> KeysResponse {
        self.client.get_json(self.url("keys")).await.unwrap().ok().unwrap()
    }

    /// What `signer status --json` says.
    fn status(&self, number: usize) -> Value {
        let config = self.text(&format!("signer-{number}.conf"));
        let output = run(&["signer", "status", "-c", &config, "--json"]);
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    }

    /// Waits until the signers agree.
    fn wait_same_keys(&self, ask: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.status(ask)["same_keys"] != true {
            assert!(Instant::now() < deadline, "{:#}", self.status(ask));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    async fn reserve(&self, amount: &str) -> EddsaPrivateKey {
        let key = EddsaPrivateKey::generate();
        let url = format!("http://localhost:{}/taler-wire-gateway/exchange/", self.bank_port);
        let bank = WireGatewayClient::new(self.client.clone(), &url, GatewayAuth::None);
        let request = AddIncomingRequest {
            reserve_pub: key.public_key(),
            amount: money(amount).of(CURRENCY),
            debit_account: "payto://x-taler-bank/localhost/ann?receiver-name=ann".into(),
        };
        bank.add_incoming(&request).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        let url = self.url(&format!("reserves/{}", key.public_key()));
        while self.client.get_json(&url).await.unwrap().status != 200 {
            assert!(Instant::now() < deadline, "a credit does not arrive at the exchange");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        key
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Reply {
        self.client.post_json(self.url(path), body).await.unwrap()
    }

    /// Withdraws a coin, which is verified.
    async fn withdraw(&self, reserve: &EddsaPrivateKey, denom: &Arc<Denom>) -> Coin {
        let master = PlanchetMasterSecret::generate();
        let mut values = ExchangeWithdrawValues::Rsa;
        if denom.is_cs() {
            let request = CsrWithdrawRequest { nonce: master.cs_nonce(), denom_pub_hash: denom.hash };
            let reply = self.post("csr-withdraw", &request).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            values = reply.ok::<WithdrawValues>().unwrap().ewv;
        }
        let planchet = Planchet::new(&master, Arc::clone(denom), &values);
        let path = format!("reserves/{}/withdraw", reserve.public_key());
        let reply = self.post(&path, &planchet.request(reserve)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let signature: BlindSignature = reply.ok().unwrap();
        planchet.finish(&signature.ev_sig)
    }

    async fn withdraw_and_pay(&self, reserve: &EddsaPrivateKey, denom: &Arc<Denom>, shop: &Shop) {
        let coin = self.withdraw(reserve, denom).await;
        let body = coin.deposit(shop, &Contract::due(), denom.value);
        let reply = self.post(&format!("coins/{}/deposit", coin.key_pub), &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Withdraws and pays until told to end; every request must be answered as on a quiet day.
    async fn load(self: Arc<Self>, ends: Arc<AtomicBool>, done: Arc<AtomicU64>) {
        let denoms = Denom::offered(&self.client, &self.url("")).await;
        let shop = Shop::new("bakery");
        let reserve = self.reserve("2000").await;
        while !ends.load(Ordering::Acquire) {
            for denom in &denoms {
                self.withdraw_and_pay(&reserve, denom, &shop).await;
                done.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// Waits until so many payments more are made.
async fn go_on(done: &AtomicU64, more: u64, load: &mut tokio::task::JoinSet<()>) {
    let (target, deadline) = (done.load(Ordering::Acquire) + more, Instant::now() + PATIENCE);
    while done.load(Ordering::Acquire) < target {
        if let Some(ended) = load.try_join_next() {
            ended.unwrap();
        }
        assert!(Instant::now() < deadline, "payments have come to a halt");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn names_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        names.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            names.extend(names_below(&entry.path()));
        }
    }
    names
}

/// The exchange has no private key of the modules: no file is open, and there is none below its directory.
fn assert_no_private_keys(place: &Place, exchange: &Service) {
    let open = format!("/proc/{}/fd", exchange.child.id());
    for entry in std::fs::read_dir(open).unwrap().map(Result::unwrap) {
        // Closed meanwhile, maybe.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        assert!(!target.to_string_lossy().contains("secmod"), "{} is open", target.display());
    }
    for name in names_below(&place.path("node")) {
        assert!(!name.contains("secmod"), "{name}");
    }
    assert!(names_below(&place.path("signer-0")).iter().any(|name| name.contains("secmod")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_without_private_keys_goes_on_when_a_signer_is_killed() {
    let place = Arc::new(Place::new());
    let mut signers = [Some(place.start_signer(0)), Some(place.start_signer(1))];
    let (bank, mut exchange) = place.open();
    assert_no_private_keys(&place, &exchange);
    place.wait_same_keys(0);

    let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..4 {
        load.spawn(Arc::clone(&place).load(Arc::clone(&ends), Arc::clone(&done)));
    }
    go_on(&done, 20, &mut load).await;

    // The primary dies, payments go on with the follower.
    signers[0].take().unwrap().kill_9();
    go_on(&done, 40, &mut load).await;
    let status = place.status(1);
    assert_eq!(status["signers"][0]["status"]["role"], "follower");
    assert!(status["signers"][1]["error"].is_string(), "{status:#}");

    // It is promoted; the other one comes back, sees that, and follows.
    let config = place.text("signer-1.conf");
    assert!(must(&["signer", "promote", "-c", &config]).contains("primary now"));
    signers[0] = Some(place.start_signer(0));
    let deadline = Instant::now() + PATIENCE;
    while place.status(0)["signers"][0]["status"]["role"] != "follower" {
        assert!(Instant::now() < deadline, "{:#}", place.status(0));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    place.wait_same_keys(0);

    // The one in use ends as an operator ends it; no request fails.
    let (status, _) = signers[1].take().unwrap().terminate();
    assert!(status.success(), "{status}");
    go_on(&done, 40, &mut load).await;
    signers[1] = Some(place.start_signer(1));
    place.wait_same_keys(1);

    // The exchange shows what it went through.
    let page = place.client.get(place.url("metrics")).send().await.unwrap();
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    for name in ["batzen_signer_client_connected 1", "batzen_signer_client_items_total{kind=\"rsa\"}"] {
        assert!(page.contains(name), "{name} is missing");
    }
    let url = format!("http://127.0.0.1:{}/metrics", place.metrics[0]);
    let page = place.client.get(url).send().await.unwrap();
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    for name in ["batzen_signer_keys{kind=\"cs\"} 1", "batzen_signer_items_total{kind=\"eddsa\"}"] {
        assert!(page.contains(name), "{name} is missing");
    }

    ends.store(true, Ordering::Release);
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
    assert_no_private_keys(&place, &exchange);

    // A revoked key is destroyed by all signers, and another is made.
    let denoms = Denom::offered(&place.client, &place.url("")).await;
    let revoked = denoms.iter().find(|denom| !denom.is_cs()).unwrap();
    place.offline(&["revoke-denomination", &revoked.hash.to_string(), "upload"]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        // While the new key is being made there is nothing to download.
        let _ =
            run(&["exchange", "offline", "-c", &place.text("offline.conf"), "download", "sign", "upload"]);
        let keys = place.keys().await;
        let offers = keys.denoms.iter().filter(|denom| denom.denom_pub.h_denom_pub() != revoked.hash);
        if offers.count() == 2 && keys.denoms.len() == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "no key takes the place of the revoked one");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    place.wait_same_keys(0);
    let reserve = place.reserve("10").await;
    for denom in &Denom::offered(&place.client, &place.url("")).await {
        place.withdraw_and_pay(&reserve, denom, &Shop::new("bakery")).await;
    }

    // No signer: what needs one is refused with 503, and works again when one is back.
    for signer in &mut signers {
        signer.take().unwrap().kill_9();
    }
    let cs = denoms.iter().find(|denom| denom.is_cs()).unwrap();
    let nonce = PlanchetMasterSecret::generate().cs_nonce();
    let request = CsrWithdrawRequest { nonce, denom_pub_hash: cs.hash };
    let reply = place.post("csr-withdraw", &request).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    exchange.assert_runs();
    let signer = place.start_signer(1);
    let reserve = place.reserve("10").await;
    for denom in &Denom::offered(&place.client, &place.url("")).await {
        place.withdraw_and_pay(&reserve, denom, &Shop::new("bakery")).await;
    }
    for service in [exchange, bank, signer] {
        assert!(service.terminate().0.success());
    }
}

/// A signer that is not the expected one is not spoken to, and a node that is not listed gets nothing.
#[test]
fn wrong_keys_are_refused_on_both_sides() {
    let place = Place::new();
    let signer = place.start_signer(0);

    // The exchange expects another signer.
    let stranger = must(&["signer", "keygen", &place.text("stranger.key")]);
    std::fs::write(place.path("node.conf"), place.node_config(&stranger)).unwrap();
    let exchange = place.start_exchange();
    wait_until(|| log(&place, "exchange").contains("no signer answers"));
    assert_ne!(common::setup::get(place.exchange_port, "/management/keys"), 200);
    drop(exchange);

    // The signer does not know this exchange.
    let config = place.node_config(&place.signer_keys.join(", "));
    let config = config.replace(&place.text("node/static.key"), &place.text("stranger.key"));
    std::fs::write(place.path("node.conf"), config).unwrap();
    let exchange = place.start_exchange();
    wait_until(|| log(&place, "signer-0").contains("a handshake has failed"));
    assert_ne!(common::setup::get(place.exchange_port, "/management/keys"), 200);
    drop(exchange);

    // With the right keys on both sides it works.
    std::fs::write(place.path("node.conf"), place.node_config(&place.signer_keys.join(" "))).unwrap();
    let exchange = place.start_exchange();
    wait_for(place.exchange_port, "/management/keys");

    // A stand-alone exchange has its master key at hand: that and signers exclude each other.
    let config = place.node_config(&place.signer_keys[0]) + "[exchange-standalone]\nENABLED = YES\n";
    std::fs::write(place.path("both.conf"), config).unwrap();
    let output = run(&["exchange", "serve", "-c", &place.text("both.conf")]);
    assert!(!output.status.success() && stderr(&output).contains("SIGNERS"), "{}", stderr(&output));
    for service in [exchange, signer] {
        assert!(service.terminate().0.success());
    }
}

fn log(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.path(&format!("{name}.log"))).unwrap_or_default()
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Supervisors start key helpers by their names, and expect programs that run until they are told to end.
#[test]
fn key_helpers_say_where_the_keys_are_and_end_when_told() {
    let place = Place::new();
    for (config, hint) in [("node.conf", "signer serve"), ("offline.conf", "exchange's service")] {
        let name = format!("helper-{config}");
        let mut service =
            Service::start(place.dir.path(), &name, &["signer", "helper", "-c", &place.text(config)]);
        wait_until(|| log(&place, &name).contains(hint));
        service.assert_runs();
        assert!(service.terminate().0.success());
    }
}

//! A bank and an exchange, used by wallets and by the offline tool before they are attacked, and by a wallet
//! afterwards.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::setup::wait_for;
use crate::common::{Service, batzen, free_port, must, run as run_program, stderr, stdout};
use crate::mutate::answer::Errors;
use crate::mutate::campaign::{Plan, Watched, run};
use crate::mutate::proxy::Proxy;
use crate::mutate::pump::Listener;
use crate::mutate::seeds::{Seed, Seeds};
use crate::mutate::{recorded, routes};

const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";

struct Deployment {
    dir: tempfile::TempDir,
    bank_port: u16,
    exchange_port: u16,
    /// The addresses that clients use, which are those of the proxies.
    bank_url: String,
    bank: Service,
    exchange: Service,
    bank_proxy: Proxy,
    exchange_proxy: Proxy,
}

impl Deployment {
    /// Starts both, signs what the exchange needs, and has wallets withdraw, pay and recoup.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let [bank_port, exchange_port, bank_proxy_port, exchange_proxy_port] =
            std::array::from_fn(|_| free_port());
        let (bank_url, exchange_url) = (
            format!("http://localhost:{bank_proxy_port}/"),
            format!("http://localhost:{exchange_proxy_port}/"),
        );
        let offline = path("offline.conf");
        std::fs::write(&offline, common_config(&dir.path().join("offline"), &exchange_url)).unwrap();
        let text = must(&["exchange", "offline", "-c", &offline, "setup"]);
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let master = words.find(|word| word.len() == 52).unwrap().to_owned();
        let config = path("exchange.conf");
        let text = format!(
            "{}PORT = {exchange_port}\nBIND_TO = 127.0.0.1\nMASTER_PUBLIC_KEY = {master}\n\
             [exchange-account-1]\nPAYTO_URI = {PAYTO}\nENABLE_CREDIT = YES\nENABLE_DEBIT = YES\n\
             [exchange-accountcredentials-1]\nWIRE_GATEWAY_URL = {bank_url}taler-wire-gateway/exchange/\n",
            common_config(&dir.path().join("home"), &exchange_url),
        );
        std::fs::write(&config, text).unwrap();
        let (bank_proxy, exchange_proxy) =
            (Proxy::start(bank_proxy_port, bank_port), Proxy::start(exchange_proxy_port, exchange_port));
        let (data, port) = (path("bank"), bank_port.to_string());
        let bank = Service::start(
            dir.path(),
            "bank",
            &[
                &["bank", "serve", "--currency", "KUDOS", "--signup-bonus", "KUDOS:1000"][..],
                &["--exchange", &exchange_url, "--data", &data, "--port", &port][..],
            ]
            .concat(),
        );
        wait_for(bank_port, "/taler-bank-integration/config");
        let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
        wait_for(exchange_port, "/management/keys");
        let deployment =
            Self { dir, bank_port, exchange_port, bank_url, bank, exchange, bank_proxy, exchange_proxy };
        deployment.sign();
        wait_for(exchange_port, "/keys");
        wait_for(exchange_port, "/wire");
        for (wallet, cipher) in [("rsa", "rsa"), ("cs", "cs")] {
            deployment.withdraw(wallet, cipher);
            deployment.pay(wallet, "KUDOS:2.5");
        }
        deployment.revoke();
        deployment.drain();
        deployment
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn offline(&self, steps: &[&str]) {
        must(&[&["exchange", "offline", "-c", &self.path("offline.conf")][..], steps].concat());
    }

    fn sign(&self) {
        let auditor = "0".repeat(52);
        for steps in [
            &["download", "sign", "upload"][..],
            &["enable-account", PAYTO, "upload"],
            &["wire-fee", "now", "x-taler-bank", "KUDOS:0", "KUDOS:0", "upload"],
            &["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"],
            &["enable-auditor", &auditor, "http://localhost/", "auditor", "upload"],
            &["disable-auditor", &auditor, "upload"],
        ] {
            self.offline(steps);
        }
    }

    /// Orders a payment of profit. It is refused if nothing was earned yet, but the request is one to mutate all the same.
    fn drain(&self) {
        let offline = ["exchange", "offline", "-c", &self.path("offline.conf")];
        let order = ["drain", "KUDOS:0.01", "exchange-account-1", PAYTO, "upload"];
        let output = run_program(&[&offline[..], &order].concat());
        let refused = stderr(&output).contains("only profit can be paid out");
        assert!(output.status.success() || refused, "{}", stderr(&output));
    }

    /// Revokes a denomination and an online key, which wallets notice.
    fn revoke(&self) {
        let keys: Value = serde_json::from_str(&self.get("/keys")).unwrap();
        let denoms = stdout(&run_program(&["wallet", "--wallet", &self.path("rsa"), "--json", "coins"]));
        let coins: Value = serde_json::from_str(&denoms).unwrap_or_default();
        let mut hashes = Vec::new();
        texts(&coins, &mut hashes);
        let hash = hashes.iter().find(|text| text.len() == 103).expect("a coin names its denomination");
        self.offline(&["revoke-denomination", hash, "upload"]);
        let key = keys["signkeys"][0]["key"].as_str().expect("keys name the online key");
        self.offline(&["revoke-signkey", key, "upload"]);
        // Without a signed online key the exchange cannot answer `/keys`, so its new key must exist before it
        // can be signed.
        for kind in ["future_denoms", "future_signkeys"] {
            self.wait_for_future(kind);
        }
        self.offline(&["download", "sign", "upload"]);
        wait_for(self.exchange_port, "/keys");
        let wallet = self.path("rsa");
        let _ = run_program(&["wallet", "--wallet", &wallet, "--yes", "exchanges", "update"]);
        let _ = run_program(&["wallet", "--wallet", &wallet, "--yes", "run"]);
    }

    /// Waits until the exchange has created keys that the master key has not signed.
    fn wait_for_future(&self, kind: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let keys: Value = serde_json::from_str(&self.get("/management/keys")).unwrap();
            if keys[kind].as_array().is_some_and(|keys| !keys.is_empty()) {
                return;
            }
            assert!(Instant::now() < deadline, "no {kind}");
            sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = call(self.exchange_port, &request);
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }

    /// The headers of a customer who is logged in on the bank's page.
    fn web_session(&self) -> [(&'static str, String); 3] {
        let body = json!({"username": "rsa", "password": "secret"}).to_string();
        let request = format!(
            "POST /web/login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = call(self.bank_port, &request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        let cookie = head.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie:"));
        let cookie =
            cookie.unwrap_or_else(|| panic!("{answer}")).split([' ', ';']).nth(1).unwrap_or_default();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        let csrf = body["csrf"].as_str().unwrap_or_else(|| panic!("{answer}"));
        [
            ("Cookie", cookie.to_owned()),
            ("X-CSRF-Token", csrf.to_owned()),
            ("Sec-Fetch-Site", "same-origin".to_owned()),
        ]
    }

    fn wallet(&self, name: &str, arguments: &[&str]) -> std::process::Output {
        let file = self.path(name);
        batzen().args(["wallet", "--wallet", &file, "--yes", "--json"]).args(arguments).output().unwrap()
    }

    fn withdraw(&self, name: &str, cipher: &str) {
        let output = self.wallet(
            name,
            &[
                &["withdraw", "--bank", &self.bank_url, "--user", name, "--password", "secret"][..],
                &["--amount", "KUDOS:11", "--cipher", cipher, "--wait", "120"],
            ]
            .concat(),
        );
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    }

    fn pay(&self, name: &str, amount: &str) {
        let output =
            self.wallet(name, &["deposit", amount, "payto://x-taler-bank/localhost/zoe?receiver-name=zoe"]);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    }

    fn exchange_seeds(&self) -> Seeds {
        let mut seeds = Seeds::new(routes::exchange());
        self.exchange_proxy.seeds().into_iter().for_each(|seed| seeds.add(seed));
        recorded::add(&mut seeds, "exchange");
        println!("made of their patterns alone: {}", seeds.without_seed().join(", "));
        seeds.complete();
        seeds
    }

    fn bank_seeds(&self) -> Seeds {
        let mut seeds = Seeds::new(routes::bank());
        self.bank_proxy.seeds().into_iter().for_each(|seed| seeds.add(seed));
        recorded::add(&mut seeds, "bank");
        let account = json!({"username": "rsa", "password": "secret"});
        seeds.add(Seed::new("POST", "/web/login").json(&account));
        seeds.add(Seed::new("POST", "/web/register").json(&json!({"username": "eve", "password": "secret"})));
        seeds.add(Seed::new("POST", "/taler-bank-access/testing/register").json(&account));
        let session = self.web_session();
        let with_session =
            |seed: Seed| session.iter().fold(seed, |seed, (name, value)| seed.header(name, value));
        seeds.add(Seed::new("POST", "/web/logout").json(&json!({})));
        seeds.add(with_session(Seed::new("GET", "/web/account?before=5")));
        let payment = json!({"payto_uri": PAYTO, "amount": "KUDOS:0.01", "subject": "x", "request_id": "1"});
        seeds.add(with_session(Seed::new("POST", "/web/payments").json(&payment)));
        seeds.add(with_session(Seed::new("POST", "/web/withdrawals").json(&json!({"amount": "KUDOS:1"}))));
        for account in ["rsa", "cs", "nobody"] {
            let credentials = ["cnNhOnNlY3JldA==", "Y3M6c2VjcmV0"][usize::from(account == "cs")];
            let target = format!("/taler-bank-access/accounts/{account}");
            seeds.add(Seed::new("GET", &target).header("Authorization", &format!("Basic {credentials}")));
        }
        let wtid = "0123456789ABCDEFGHJKMNPQRSTVWXYZ0123456789ABCDEFGHJK";
        let transfer = json!({
            "request_uid": wtid.repeat(2), "amount": "KUDOS:0.01", "exchange_base_url": "http://localhost/",
            "wtid": wtid, "credit_account": "payto://x-taler-bank/localhost/rsa?receiver-name=rsa",
        });
        seeds.add(Seed::new("POST", "/taler-wire-gateway/exchange/transfer").json(&transfer));
        let credit = json!({
            "reserve_pub": wtid, "amount": "KUDOS:0.01",
            "debit_account": "payto://x-taler-bank/localhost/rsa?receiver-name=rsa",
        });
        seeds.add(Seed::new("POST", "/taler-wire-gateway/exchange/admin/add-incoming").json(&credit));
        for (direction, delta) in [("incoming", 5), ("outgoing", -5), ("incoming", 20)] {
            for base in ["/taler-wire-gateway/exchange", "/exchange"] {
                let target = format!("{base}/history/{direction}?delta={delta}&start=3");
                seeds.add(Seed::new("GET", &target));
            }
        }
        println!("made of their patterns alone: {}", seeds.without_seed().join(", "));
        seeds.complete();
        seeds
    }

    /// Wallets are served, and all books balance.
    fn prove(self) {
        self.withdraw("late", "any");
        self.pay("late", "KUDOS:2.5");
        for (name, service) in [("exchange", self.exchange), ("bank", self.bank)] {
            let (status, _) = service.terminate();
            assert!(status.success(), "{name} ended with {status}");
        }
        let path = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        let totals = run_program(&["exchange", "totals", "-c", &path("exchange.conf")]);
        let text = stdout(&totals);
        assert!(totals.status.success() && text.contains("the books add up"), "{text}{}", stderr(&totals));
        for store in ["home/exchange/store", "bank"] {
            let verify = run_program(&["store", "verify", &path(store)]);
            let text = stdout(&verify);
            assert!(verify.status.success() && text.contains("sound"), "{store}: {text}{}", stderr(&verify));
        }
    }
}

/// Sends a request whose answer ends the connection.
fn call(port: u16, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}

/// The options that exchange and offline tool share. Section `[exchange]` is the last.
fn common_config(home: &Path, url: &str) -> String {
    let coin = |name: &str, value: &str, cipher: &str| {
        format!(
            "[coin_{name}]\nVALUE = KUDOS:{value}\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\n\
             DURATION_LEGAL = 3 years\nFEE_WITHDRAW = KUDOS:0\nFEE_DEPOSIT = KUDOS:0.01\nFEE_REFRESH = KUDOS:0\n\
             FEE_REFUND = KUDOS:0.01\n{cipher}\n"
        )
    };
    format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n\
         [paths]\nTALER_DATA_HOME = {home}\nTALER_RUNTIME_DIR = {home}/run\n\
         [taler-exchange-secmod-rsa]\nLOOKAHEAD_SIGN = 1 day\n[taler-exchange-secmod-cs]\nLOOKAHEAD_SIGN = 1 day\n\
         [taler-exchange-secmod-eddsa]\nLOOKAHEAD_SIGN = 1 day\n\
         [exchange-liabilities]\nEPOCH = 1 s\nSETTLING = 0 s\n{}{}{}{}\
         [exchange]\nBASE_URL = {url}\n",
        coin("one", "1", "CIPHER = CS"),
        coin("small", "0.1", "CIPHER = RSA\nRSA_KEYSIZE = 1024"),
        coin("cent", "0.01", "CIPHER = CS"),
        coin("two", "2", "CIPHER = RSA\nRSA_KEYSIZE = 1024"),
        home = home.display(),
    )
}

#[test]
fn exchange_survives_mutation() {
    let plan = Plan::new("exchange");
    let mut deployment = Deployment::new();
    let address = ([127, 0, 0, 1], deployment.exchange_port).into();
    let listeners = [Listener { address, errors: Errors::Code, seeds: deployment.exchange_seeds() }];
    let log = deployment.dir.path().join("exchange.log");
    run(&plan, &listeners, &mut Watched { service: &mut deployment.exchange, log });
    deployment.prove();
}

#[test]
fn bank_survives_mutation() {
    let plan = Plan::new("bank");
    let mut deployment = Deployment::new();
    let address = ([127, 0, 0, 1], deployment.bank_port).into();
    let listeners = [Listener { address, errors: Errors::Code, seeds: deployment.bank_seeds() }];
    let log = deployment.dir.path().join("bank.log");
    run(&plan, &listeners, &mut Watched { service: &mut deployment.bank, log });
    deployment.prove();
}

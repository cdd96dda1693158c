//! The bank's page in a browser, as a customer uses it on a telephone.

use crate::common;

use std::path::Path;
use std::time::Instant;

use batzen_http_client::{Client, ClientOptions};
use common::browser::Browser;
use common::{PATIENCE, Service, free_port};
use serde_json::{Value, json};

struct Bank {
    dir: tempfile::TempDir,
    _service: Service,
    base: String,
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Bank {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, data) = (free_port().to_string(), dir.path().join("bank"));
        let arguments = ["--signup-bonus", "KUDOS:100", "--debt-limit", "KUDOS:0", "--port", &port];
        let arguments = [&["bank", "serve", "--data", data.to_str().unwrap()][..], &arguments].concat();
        let mut service = Service::start(dir.path(), "bank", &arguments);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async { Client::new(&ClientOptions::default()).unwrap() });
        let base = format!("http://localhost:{port}/");
        let deadline = Instant::now() + PATIENCE;
        while runtime.block_on(client.get(base.as_str()).send()).is_err() {
            service.assert_runs();
            assert!(Instant::now() < deadline, "the bank does not start");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { dir, _service: service, base, runtime, client }
    }

    fn post(&self, path: &str, body: &Value) {
        let reply = self.runtime.block_on(self.client.post_json(format!("{}{path}", self.base), body));
        let reply = reply.unwrap();
        assert!((200..300).contains(&reply.status), "{path}: {}", reply.status);
    }

    /// What a wallet does with the URI of a withdrawal.
    fn select(&self, uri: &str, reserve: u8) {
        let wopid = uri.rsplit('/').next().unwrap();
        let reserve_pub = batzen_crypto::EddsaPublicKey::from_bytes([reserve; 32]);
        let selected_exchange = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
        let body = json!({"reserve_pub": reserve_pub.to_string(), "selected_exchange": selected_exchange});
        self.post(&format!("taler-bank-integration/withdrawal-operation/{wopid}"), &body);
    }
}

/// Fills a form in, and sends it.
fn send(browser: &Browser, form: &str, fields: &[(&str, &str)], button: &str) {
    for (name, value) in fields {
        let value = json!(value);
        browser.run(&format!("document.querySelector('#{form} [name={name}]').value = {value}"));
    }
    browser.run(&format!("document.querySelector('#{form} {button}').click()"));
}

fn until_text(browser: &Browser, id: &str, text: &str) {
    browser.until(&format!("document.getElementById('{id}').innerText.includes({})", json!(text)));
}

#[test]
fn a_customer_signs_up_pays_and_withdraws() {
    let bank = Bank::start();
    for name in ["ann", "exchange"] {
        bank.post("taler-bank-access/testing/register", &json!({"username": name, "password": "x"}));
    }
    let browser = Browser::start();
    let pictures = bank.dir.path().to_owned();
    browser.resize(390, 844, true);
    browser.open(&bank.base);
    browser.until("!document.getElementById('door').hidden");
    assert_eq!(browser.overflow(), 0.0, "a phone would have to scroll sideways");
    browser.screenshot(&pictures.join("bank-door.png"));
    send(&browser, "login", &[("username", "joe"), ("password", "secret")], "[name=register]");
    until_text(&browser, "balance", "100 KUDOS");
    until_text(&browser, "lines", "Welcome bonus");
    // No script can read who is logged in.
    assert_eq!(browser.run("return document.cookie"), json!(""));

    let text = "<b>tea</b> & cake";
    send(&browser, "pay", &[("to", "ann"), ("amount", "30,5"), ("text", text)], "button");
    until_text(&browser, "balance", "69.5 KUDOS");
    until_text(&browser, "lines", text);
    until_text(&browser, "message", "Sent 30.5 KUDOS to ann");
    send(&browser, "pay", &[("to", "ann"), ("amount", "70")], "button");
    until_text(&browser, "message", "not enough money");
    until_text(&browser, "balance", "69.5 KUDOS");

    let withdraw = |amount: &str, reserve: u8, picture: &str| {
        send(&browser, "withdraw", &[("amount", amount)], "button");
        browser.until("document.querySelector('#qr path') && !document.getElementById('operation').hidden");
        let uri = browser.run("return document.getElementById('uri').href");
        let uri = uri.as_str().unwrap();
        assert!(uri.starts_with("taler+http://withdraw/localhost:"), "{uri}");
        assert_eq!(browser.overflow(), 0.0, "a phone would have to scroll sideways");
        browser.screenshot(&pictures.join(format!("bank-{picture}-qr.png")));
        bank.select(uri, reserve);
        browser.until("!document.getElementById('confirm').hidden");
        until_text(&browser, "step", &format!("{amount} KUDOS go to exchange"));
        browser.screenshot(&pictures.join(format!("bank-{picture}-confirm.png")));
    };
    withdraw("20", 1, "first");
    browser.run("document.getElementById('confirm').click()");
    until_text(&browser, "message", "on its way to the wallet");
    until_text(&browser, "balance", "49.5 KUDOS");
    until_text(&browser, "lines", "E-cash withdrawal at exchange");
    withdraw("9", 2, "second");
    // The wallet's choice sets the money aside.
    browser.open(&bank.base);
    until_text(&browser, "reserved", "9 KUDOS of this is set aside");
    send(&browser, "pay", &[("to", "ann"), ("amount", "41")], "button");
    until_text(&browser, "message", "not enough money");
    withdraw("5", 3, "third");
    browser.run("document.getElementById('abort').click()");
    until_text(&browser, "message", "was cancelled");
    until_text(&browser, "balance", "49.5 KUDOS");

    browser.dark(true);
    browser.screenshot(&pictures.join("bank-phone-dark.png"));
    browser.dark(false);
    browser.resize(1280, 900, false);
    assert_eq!(browser.overflow(), 0.0);
    browser.screenshot(&pictures.join("bank-desktop.png"));
    browser.run("document.getElementById('logout').click()");
    browser.until("!document.getElementById('door').hidden");
    browser.open(&bank.base);
    browser.until("!document.getElementById('door').hidden");
    browser.until("document.getElementById('balance').closest('section').hidden");
    // Refusals are answers, which the console notes; nothing else is.
    let said: Vec<String> = browser.console().into_iter().filter(|line| !line.contains("409")).collect();
    assert!(said.is_empty(), "the console says {said:?}");
    if let Some(dir) = std::env::var_os("BATZEN_PICTURES") {
        for name in ["door", "first-qr", "first-confirm", "phone-dark", "desktop"] {
            let file = format!("bank-{name}.png");
            std::fs::copy(pictures.join(&file), Path::new(&dir).join(&file)).unwrap();
        }
    }
}

//! The bank's page in a browser, as a customer uses it on a phone.

use crate::common;

use std::time::Instant;

use batzen_http::client::{Client, ClientOptions};
use common::browser::Browser;
use common::{PATIENCE, Service, free_port};
use serde_json::{Value, json};

struct Bank {
    _dir: tempfile::TempDir,
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
        Self { _dir: dir, _service: service, base, runtime, client }
    }

    fn post(&self, path: &str, body: &Value) {
        let reply = self.runtime.block_on(self.client.post_json(format!("{}{path}", self.base), body));
        let reply = reply.unwrap();
        assert!((200..300).contains(&reply.status), "{path}: {}", reply.status);
    }

    /// Selects an exchange and a reserve, as a wallet does with the URI of a withdrawal.
    fn select(&self, uri: &str, reserve: u8) {
        let wopid = uri.rsplit('/').next().unwrap();
        let reserve_pub = batzen_crypto::EddsaPublicKey::from_bytes([reserve; 32]);
        let selected_exchange = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
        let body = json!({"reserve_pub": reserve_pub.to_string(), "selected_exchange": selected_exchange});
        self.post(&format!("taler-bank-integration/withdrawal-operation/{wopid}"), &body);
    }
}

/// Fills in a form and submits it.
fn send(browser: &Browser, form: &str, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        let value = json!(value);
        browser.run(&format!("document.querySelector('#{form} [name={name}]').value = {value}"));
    }
    click(browser, &format!("#{form} button[type=submit]"));
}

fn click(browser: &Browser, selector: &str) {
    // A busy page ignores clicks.
    browser.until(&format!("!document.querySelector('{selector}').hasAttribute('aria-disabled')"));
    browser.run(&format!("document.querySelector('{selector}').click()"));
}

fn until_text(browser: &Browser, id: &str, text: &str) {
    browser.until(&format!("document.getElementById('{id}')?.innerText.includes({})", json!(text)));
}

fn until_shown(browser: &Browser, id: &str) {
    browser.until(&format!("document.getElementById('{id}').offsetParent"));
}

/// The error is shown beside its field, which is marked for screen readers and has the focus.
fn until_error(browser: &Browser, field: &str, text: &str) {
    until_text(browser, &format!("{field}-error"), text);
    let input = format!("document.getElementById('{field}')");
    let told = format!(
        "return {input}.getAttribute('aria-invalid') === 'true' && document.activeElement === {input}
         && {input}.getAttribute('aria-describedby').split(' ').includes('{field}-error')"
    );
    assert_eq!(browser.run(&told), json!(true), "{field}");
}

#[test]
fn a_customer_signs_up_pays_and_withdraws() {
    let bank = Bank::start();
    for name in ["ann", "exchange"] {
        bank.post("taler-bank-access/testing/register", &json!({"username": name, "password": "x"}));
    }
    let browser = Browser::start();
    browser.resize(390, 844, true);
    browser.open(&bank.base);
    until_shown(&browser, "door");
    assert!(browser.run("return document.body.innerText").as_str().unwrap().contains("Play money"));
    browser.audit("bank-login");
    sign_up(&bank, &browser);
    pay(&browser);
    withdraw(&bank, &browser);

    click(&browser, "#logout");
    until_shown(&browser, "door");
    browser.open(&bank.base);
    until_shown(&browser, "door");
    browser.until("document.getElementById('balance').closest('section').hidden");
    // The console logs refused requests; it must not log anything else.
    let is_refusal = |line: &String| line.contains("responded with a status of 4");
    let said: Vec<String> = browser.console().into_iter().filter(|line| !is_refusal(line)).collect();
    assert!(said.is_empty(), "the console says {said:?}");
}

fn sign_up(bank: &Bank, browser: &Browser) {
    send(browser, "login", &[("username", ""), ("password", "secret")]);
    until_error(browser, "login-name", "Enter the name");
    send(browser, "login", &[("username", "nobody"), ("password", "secret")]);
    until_error(browser, "login-password", "wrong");
    click(browser, "#to-signup");
    until_shown(browser, "entry");
    until_text(browser, "entry", "A new account starts with 100.00 KUDOS");
    send(browser, "signup", &[("username", "joe"), ("password", "secret"), ("again", "other")]);
    until_error(browser, "signup-again", "differ");
    browser.audit("bank-signup");
    send(browser, "signup", &[("username", "ann"), ("password", "secret"), ("again", "secret")]);
    until_error(browser, "signup-name", "taken");
    send(browser, "signup", &[("username", "joe")]);
    until_text(browser, "balance", "100.00 KUDOS");
    until_text(browser, "lines", "Welcome bonus");
    // No script can read who is logged in.
    assert_eq!(browser.run("return document.cookie"), json!(""));
    // Without permission to write to the clipboard, the address is selected instead.
    click(browser, "[data-copy=payto]");
    browser.until("/Copied|Selected/.test(document.getElementById('message').innerText)");
    let selected =
        browser.run("return document.activeElement.value.slice(document.activeElement.selectionStart)");
    assert_eq!(selected, json!("payto://x-taler-bank/localhost/joe?receiver-name=joe"), "{}", bank.base);
}

fn pay(browser: &Browser) {
    send(browser, "pay", &[("to", "ann"), ("amount", "nothing")]);
    until_error(browser, "pay-amount", "such as 12.50");
    let text = "<b>tea</b> & cake";
    send(browser, "pay", &[("to", "ann"), ("amount", "30,5"), ("text", text)]);
    until_shown(browser, "review");
    for (id, wanted) in [
        ("review-to", "ann"),
        ("review-amount", "30.50 KUDOS"),
        ("review-text", text),
        ("review-left", "69.50 KUDOS"),
    ] {
        until_text(browser, id, wanted);
    }
    browser.audit("bank-review");
    // No money has moved yet.
    until_text(browser, "balance", "100.00 KUDOS");
    click(browser, "#change");
    until_shown(browser, "pay");
    click(browser, "#pay button[type=submit]");
    until_shown(browser, "review");
    click(browser, "#send");
    until_text(browser, "message", "Sent 30.50 KUDOS to ann");
    until_text(browser, "balance", "69.50 KUDOS");
    until_text(browser, "lines", text);
    for (to, amount, field, problem) in [
        ("ann", "70", "pay-amount", "not enough money"),
        ("nobody", "1", "pay-to", "no such account"),
        ("joe", "1", "pay-to", "your own account"),
    ] {
        send(browser, "pay", &[("to", to), ("amount", amount)]);
        until_shown(browser, "review");
        click(browser, "#send");
        until_error(browser, field, problem);
    }
    until_text(browser, "balance", "69.50 KUDOS");
}

fn withdraw(bank: &Bank, browser: &Browser) {
    let begin = |amount: &str, reserve: u8, is_audited: bool| {
        send(browser, "withdraw", &[("amount", amount)]);
        browser.until("document.querySelector('#qr path') && !document.getElementById('operation').hidden");
        let uri = browser.run("return document.getElementById('uri').href");
        let uri = uri.as_str().unwrap();
        assert!(uri.starts_with("taler+http://withdraw/localhost:"), "{uri}");
        assert_eq!(browser.run("return document.getElementById('uri-text').value"), json!(uri));
        if is_audited {
            browser.audit("bank-withdrawal");
        }
        bank.select(uri, reserve);
        until_shown(browser, "confirm");
        until_text(browser, "step", &format!("{amount}.00 KUDOS go to exchange"));
        if is_audited {
            browser.audit("bank-confirmation");
        }
    };
    begin("20", 1, true);
    click(browser, "#confirm");
    until_text(browser, "message", "on its way to the wallet");
    until_text(browser, "balance", "49.50 KUDOS");
    until_text(browser, "lines", "E-cash withdrawal at exchange");
    begin("9", 2, false);
    // When the wallet selects the exchange, the money is set aside.
    browser.open(&bank.base);
    until_text(browser, "reserved", "9.00 KUDOS of this is set aside");
    send(browser, "pay", &[("to", "ann"), ("amount", "41")]);
    until_shown(browser, "review");
    click(browser, "#send");
    until_error(browser, "pay-amount", "not enough money");
    begin("5", 3, false);
    click(browser, "#abort");
    until_text(browser, "message", "was cancelled");
    until_text(browser, "balance", "49.50 KUDOS");
    browser.audit("bank-account");
}

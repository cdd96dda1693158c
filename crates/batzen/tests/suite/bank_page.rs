//! The bank's page in a browser, as a customer uses it on a phone.

use crate::common;

use std::time::Instant;

use common::browser::Browser;
use common::http::Http;
use common::{PATIENCE, Service, free_port};
use serde_json::{Value, json};

struct Bank {
    _dir: tempfile::TempDir,
    _service: Service,
    base: String,
    http: Http,
}

impl Bank {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, data) = (free_port().to_string(), dir.path().join("bank"));
        let arguments = ["--signup-bonus", "KUDOS:100", "--debt-limit", "KUDOS:0", "--port", &port];
        let arguments = [&["bank", "serve", "--data", data.to_str().unwrap()][..], &arguments].concat();
        let mut service = Service::start(dir.path(), "bank", &arguments);
        let http = Http::new();
        let base = format!("http://localhost:{port}/");
        let deadline = Instant::now() + PATIENCE;
        while http.wait(http.client.get(base.as_str()).send()).is_err() {
            service.assert_runs();
            assert!(Instant::now() < deadline, "the bank does not start");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { _dir: dir, _service: service, base, http }
    }

    fn post(&self, path: &str, body: &Value) {
        let call = self.http.client.post_json(format!("{}{path}", self.base), body);
        let reply = self.http.wait(call).unwrap();
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
    browser.click(&format!("#{form} button[type=submit]"));
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
    browser.until_shown("door");
    assert!(browser.run("return document.body.innerText").as_str().unwrap().contains("Play money"));
    browser.audit("bank-login");
    sign_up(&bank, &browser);
    pay(&browser);
    withdraw(&bank, &browser);

    browser.click("#logout");
    browser.until_shown("door");
    browser.open(&bank.base);
    browser.until_shown("door");
    browser.until("document.getElementById('balance').closest('section').hidden");
    browser.assert_quiet();
}

fn sign_up(bank: &Bank, browser: &Browser) {
    send(browser, "login", &[("username", ""), ("password", "secret")]);
    browser.until_error("login-name", "Enter the name");
    send(browser, "login", &[("username", "nobody"), ("password", "secret")]);
    browser.until_error("login-password", "wrong");
    browser.click("#to-signup");
    browser.until_shown("entry");
    browser.until_text("entry", "A new account starts with 100.00 KUDOS");
    send(browser, "signup", &[("username", "joe"), ("password", "secret"), ("again", "other")]);
    browser.until_error("signup-again", "differ");
    browser.audit("bank-signup");
    send(browser, "signup", &[("username", "ann"), ("password", "secret"), ("again", "secret")]);
    browser.until_error("signup-name", "taken");
    send(browser, "signup", &[("username", "joe")]);
    browser.until_text("balance", "100.00 KUDOS");
    browser.until_text("lines", "Welcome bonus");
    // No script can read who is logged in.
    assert_eq!(browser.run("return document.cookie"), json!(""));
    // Without permission to write to the clipboard, the address is selected instead.
    browser.click("[data-copy=payto]");
    browser.until("/Copied|Selected/.test(document.getElementById('message').innerText)");
    let selected =
        browser.run("return document.activeElement.value.slice(document.activeElement.selectionStart)");
    assert_eq!(selected, json!("payto://x-taler-bank/localhost/joe?receiver-name=joe"), "{}", bank.base);
}

fn pay(browser: &Browser) {
    send(browser, "pay", &[("to", "ann"), ("amount", "nothing")]);
    browser.until_error("pay-amount", "such as 12.50");
    let text = "<b>tea</b> & cake";
    send(browser, "pay", &[("to", "ann"), ("amount", "30,5"), ("text", text)]);
    browser.until_shown("review");
    for (id, wanted) in [
        ("review-to", "ann"),
        ("review-amount", "30.50 KUDOS"),
        ("review-text", text),
        ("review-left", "69.50 KUDOS"),
    ] {
        browser.until_text(id, wanted);
    }
    browser.audit("bank-review");
    // No money has moved yet.
    browser.until_text("balance", "100.00 KUDOS");
    browser.click("#change");
    browser.until_shown("pay");
    browser.click("#pay button[type=submit]");
    browser.until_shown("review");
    browser.click("#send");
    browser.until_text("message", "Sent 30.50 KUDOS to ann");
    browser.until_text("balance", "69.50 KUDOS");
    browser.until_text("lines", text);
    for (to, amount, field, problem) in [
        ("ann", "70", "pay-amount", "not enough money"),
        ("nobody", "1", "pay-to", "no such account"),
        ("joe", "1", "pay-to", "your own account"),
    ] {
        send(browser, "pay", &[("to", to), ("amount", amount)]);
        browser.until_shown("review");
        browser.click("#send");
        browser.until_error(field, problem);
    }
    browser.until_text("balance", "69.50 KUDOS");
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
        browser.until_shown("confirm");
        browser.until_text("step", &format!("{amount}.00 KUDOS go to exchange"));
        if is_audited {
            browser.audit("bank-confirmation");
        }
    };
    begin("20", 1, true);
    browser.click("#confirm");
    browser.until_text("message", "on its way to the wallet");
    browser.until_text("balance", "49.50 KUDOS");
    browser.until_text("lines", "E-cash withdrawal at exchange");
    begin("9", 2, false);
    // When the wallet selects the exchange, the money is set aside.
    browser.open(&bank.base);
    browser.until_text("reserved", "9.00 KUDOS of this is set aside");
    send(browser, "pay", &[("to", "ann"), ("amount", "41")]);
    browser.until_shown("review");
    browser.click("#send");
    browser.until_error("pay-amount", "not enough money");
    begin("5", 3, false);
    browser.click("#abort");
    browser.until_text("message", "was cancelled");
    browser.until_text("balance", "49.50 KUDOS");
    browser.audit("bank-account");
}

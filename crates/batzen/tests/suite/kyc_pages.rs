//! A customer and two officers in a browser: a withdrawal that stops, the form, the officers' page, and the wallet
//! that goes on by itself. Another customer goes to an identity provider.

use crate::common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::browser::Browser;
use common::setup::{config_with, wait_for};
use common::{PATIENCE, Service, batzen, free_port, run, stderr, stdout};
use serde_json::{Value, json};

/// The limits of unidentified customers: they withdraw less than 5.
const LIMITS: &str = "\
[kyc-legitimization-coins]
OPERATION_TYPE = withdraw
THRESHOLD = KUDOS:5
TIMEFRAME = 1 day
REQUIRED_CHECKS = name
[kyc-provider-clerk]
LOGIC = manual
USER_TYPE = individual
PROVIDED_CHECKS = name
KYC_MANUAL_VALIDITY = 1 year
";

/// The same with a provider whose page is the bank's.
const LOGIN: &str = "\
[kyc-legitimization-coins]
OPERATION_TYPE = withdraw
THRESHOLD = KUDOS:5
TIMEFRAME = 1 day
REQUIRED_CHECKS = name
[kyc-provider-login]
LOGIC = oauth2
USER_TYPE = individual
PROVIDED_CHECKS = name
KYC_OAUTH2_VALIDITY = 1 year
KYC_OAUTH2_LOGIN_URL = {BANK}
KYC_OAUTH2_AUTH_URL = {BANK}token
KYC_OAUTH2_INFO_URL = {BANK}info
KYC_OAUTH2_POST_URL = {BANK}
KYC_OAUTH2_CLIENT_ID = exchange
KYC_OAUTH2_CLIENT_SECRET = secret
";

struct Site {
    dir: tempfile::TempDir,
    bank: String,
    exchange: String,
    _services: [Service; 2],
}

impl Site {
    fn start(limits: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (bank_port, exchange_port) = (free_port(), free_port());
        let mut limits = limits.replace("{BANK}", &format!("http://localhost:{bank_port}/"));
        for name in ["alice", "bob"] {
            let file = dir.path().join(name);
            let made = run(&["exchange", "kyc", "officer", name, "--token-file", file.to_str().unwrap()]);
            assert!(made.status.success(), "{}", stderr(&made));
            limits.push_str(&stdout(&made));
        }
        let config = config_with(dir.path(), (bank_port, bank_port), exchange_port, &limits);
        let bank = Service::start(dir.path(), "bank", &["bank", "serve", "--config", &config]);
        wait_for(bank_port, "/taler-bank-integration/config");
        let url = |port| format!("http://localhost:{port}/");
        let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "--config", &config]);
        wait_for(exchange_port, "/keys");
        Self { dir, bank: url(bank_port), exchange: url(exchange_port), _services: [bank, exchange] }
    }

    fn token(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap().trim().to_owned()
    }

    fn wallet(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = batzen();
        let file = self.dir.path().join("zoe.db");
        command.arg("wallet").arg("--wallet").arg(file).args(arguments);
        command
    }

    fn officer(&self, arguments: &[&str], name: &str) -> Value {
        let file = self.dir.path().join(name);
        let access = ["--exchange", &self.exchange, "--token-file", file.to_str().unwrap(), "--json"];
        let output = run(&[&["exchange", "kyc"][..], arguments, &access].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    }
}

/// The page that the wallet names when a withdrawal is stopped.
fn page_of(site: &Site, path: &str) -> String {
    let arguments = ["withdraw", "--exchange", &site.exchange, "--amount", "KUDOS:8", "--bank", &site.bank];
    let log = site.dir.path().join("withdrawing");
    // The wallet is closed meanwhile; the money stays in the reserve.
    let at_once = ["--user", "zoe", "--password", "zoe", "--yes", "--wait", "0"];
    let begun = site.wallet(&[&arguments[..], &at_once].concat()).output().unwrap();
    std::fs::write(&log, &begun.stderr).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ran = site.wallet(&["run", "--once"]).output().unwrap();
        let words = stdout(&ran) + &stderr(&ran);
        if let Some(url) = words.split_whitespace().find(|word| word.contains(path)) {
            return url.to_owned();
        }
        let log = std::fs::read_to_string(site.dir.path().join("withdrawing")).unwrap_or_default();
        assert!(Instant::now() < deadline, "the withdrawal was not stopped: {words}{log}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn fill_in(browser: &Browser, name: &str) {
    let answers = [
        ("full_name", name),
        ("birthdate", "1990-02-03"),
        ("address", "Marktgasse 1, Bern"),
        ("country", "Switzerland"),
        ("nationality", "Swiss"),
        ("document_number", "X1234567"),
    ];
    for (field, value) in answers {
        browser.run(&format!("document.getElementById('{field}').value = {}", json!(value)));
    }
    browser.run("document.querySelector('#form button').click()");
}

fn log_in(browser: &Browser, site: &Site, token: &str) {
    browser.open(&format!("{}kyc-officer", site.exchange));
    browser.run(&format!("document.getElementById('token').value = {}", json!(token)));
    browser.run("document.querySelector('#login button').click()");
}

fn until_note(browser: &Browser, text: &str) {
    browser.until(&format!("document.getElementById('note').innerText.includes({})", json!(text)));
}

fn decide(browser: &Browser, verb: &str, reason: &str) {
    browser.until("document.querySelector('.case')");
    browser.run(&format!("document.querySelector('.case input').value = {}", json!(reason)));
    let button =
        format!("[...document.querySelectorAll('.case button')].find(b => b.innerText === {})", json!(verb));
    browser.run(&format!("{button}.click()"));
}

#[test]
fn a_stopped_customer_is_identified_in_the_browser_and_the_wallet_goes_on() {
    let site = Site::start(LIMITS);
    let page = page_of(&site, "/kyc-form/");

    let browser = Browser::start();
    browser.resize(390, 844, true);
    browser.open(&page.replace("token=", "token=X"));
    until_note(&browser, "not valid");
    browser.open(&page);
    browser.until("document.getElementById('form').offsetParent");
    browser.audit("kyc-form");
    // The browser itself asks for what is missing.
    browser.run("document.querySelector('#form button').click()");
    assert_eq!(browser.run("return document.querySelector('#form :invalid').id"), json!("full_name"));
    fill_in(&browser, "Zoe <b>Example</b>");
    until_note(&browser, "An officer of the exchange will decide");
    browser.audit("kyc-submitted");

    browser.resize(1280, 900, false);
    log_in(&browser, &site, "guess");
    until_note(&browser, "Not logged in");
    log_in(&browser, &site, &site.token("alice"));
    browser.until("document.querySelector('.case')");
    // What the customer has entered is text, whatever it looks like.
    assert_eq!(browser.run("return document.querySelector('.case b') === null"), json!(true));
    assert!(browser.run("return document.body.innerText").as_str().unwrap().contains("Zoe <b>Example</b>"));
    browser.audit("kyc-officer");
    decide(&browser, "Approve", "");
    until_note(&browser, "say why");
    decide(&browser, "Reject", "not a name");
    until_note(&browser, "Rejected");

    browser.open(&page);
    until_note(&browser, "could not confirm");
    fill_in(&browser, "Zoe Example");
    until_note(&browser, "will decide");
    log_in(&browser, &site, &site.token("bob"));
    decide(&browser, "Approve", "saw the passport");
    until_note(&browser, "Approved");
    assert_eq!(site.officer(&["cases"], "alice"), json!([]));

    let mut finished = site.wallet(&["run", "--timeout", "60"]).stdout(Stdio::null()).spawn().unwrap();
    assert!(finished.wait().unwrap().success());
    let balance = stdout(&site.wallet(&["balance"]).output().unwrap());
    assert!(balance.contains("KUDOS:8"), "{balance}");
    browser.open(&page);
    until_note(&browser, "You are identified");
    let is_refusal = |line: &String| line.contains("responded with a status of 4");
    let said: Vec<String> = browser.console().into_iter().filter(|line| !is_refusal(line)).collect();
    assert!(said.is_empty(), "the console says {said:?}");
}

#[test]
fn a_customer_sees_the_account_before_the_provider() {
    let site = Site::start(LOGIN);
    let page = page_of(&site, "/kyc-login/");
    let browser = Browser::start();
    browser.resize(390, 844, true);
    browser.open(&page);
    let text = browser.run("return document.body.innerText");
    let text = text.as_str().unwrap();
    assert!(text.contains("payto://x-taler-bank/localhost/zoe") && text.contains(&site.exchange), "{text}");
    browser.audit("kyc-login");
    browser.run("document.querySelector('form button').click()");
    browser.until(&format!("location.href.startsWith({})", json!(site.bank)));
    assert_eq!(browser.run("return location.search.includes('redirect_uri=')"), json!(true));
}

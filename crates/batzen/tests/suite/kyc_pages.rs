//! A customer and two officers in a browser: a withdrawal that stops, the form, the officers' page, and the wallet
//! that goes on by itself. Another customer goes to an identity provider.

use crate::common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::browser::Browser;
use common::setup::config_with;
use common::site::Site;
use common::{PATIENCE, Service, batzen, must, must_json, stderr, stdout};
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

/// An exchange with limits and two officers.
struct Office {
    site: Site,
    bank: String,
    exchange: String,
    _services: [Service; 2],
}

impl Office {
    fn start(limits: &str) -> Self {
        let site = Site::configured(|dir, bank_port, exchange_port| {
            let mut limits = limits.replace("{BANK}", &format!("http://localhost:{bank_port}/"));
            for name in ["alice", "bob"] {
                let file = dir.join(name);
                let officer = ["exchange", "kyc", "officer", name, "--token-file"];
                limits.push_str(&must(&[&officer[..], &[file.to_str().unwrap()]].concat()));
            }
            config_with(dir, (bank_port, bank_port), exchange_port, &limits)
        });
        let services = [site.start_bank(), site.start_exchange()];
        Self { bank: site.bank_url(), exchange: site.exchange_url(), site, _services: services }
    }

    fn token(&self, name: &str) -> String {
        std::fs::read_to_string(self.site.path(name)).unwrap().trim().to_owned()
    }

    fn wallet(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = batzen();
        command.arg("wallet").arg("--wallet").arg(self.site.path("zoe.db")).args(arguments);
        command
    }

    fn officer(&self, arguments: &[&str], name: &str) -> Value {
        let file = self.site.path(name);
        let access = ["--exchange", &self.exchange, "--token-file", file.to_str().unwrap(), "--json"];
        must_json(&[&["exchange", "kyc"][..], arguments, &access].concat())
    }
}

/// The page that the wallet names when a withdrawal is stopped.
fn page_of(office: &Office, path: &str) -> String {
    let arguments =
        ["withdraw", "--exchange", &office.exchange, "--amount", "KUDOS:8", "--bank", &office.bank];
    let log = office.site.path("withdrawing");
    // The wallet is closed meanwhile; the money stays in the reserve.
    let at_once = ["--user", "zoe", "--password", "zoe", "--yes", "--wait", "0"];
    let begun = office.wallet(&[&arguments[..], &at_once].concat()).output().unwrap();
    std::fs::write(&log, &begun.stderr).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ran = office.wallet(&["run", "--once"]).output().unwrap();
        let words = stdout(&ran) + &stderr(&ran);
        if let Some(url) = words.split_whitespace().find(|word| word.contains(path)) {
            return url.to_owned();
        }
        let log = std::fs::read_to_string(office.site.path("withdrawing")).unwrap_or_default();
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

fn log_in(browser: &Browser, office: &Office, token: &str) {
    browser.open(&format!("{}kyc-officer", office.exchange));
    browser.run(&format!("document.getElementById('token').value = {}", json!(token)));
    browser.run("document.querySelector('#login button').click()");
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
    let office = Office::start(LIMITS);
    let page = page_of(&office, "/kyc-form/");

    let browser = Browser::start();
    browser.resize(390, 844, true);
    browser.open(&page.replace("token=", "token=X"));
    browser.until_text("note", "not valid");
    browser.open(&page);
    browser.until("document.getElementById('form').offsetParent");
    browser.audit("kyc-form");
    // The browser itself asks for what is missing.
    browser.run("document.querySelector('#form button').click()");
    assert_eq!(browser.run("return document.querySelector('#form :invalid').id"), json!("full_name"));
    fill_in(&browser, "Zoe <b>Example</b>");
    browser.until_text("note", "An officer of the exchange will decide");
    browser.audit("kyc-submitted");

    browser.resize(1280, 900, false);
    log_in(&browser, &office, "guess");
    browser.until_text("note", "Not logged in");
    log_in(&browser, &office, &office.token("alice"));
    browser.until("document.querySelector('.case')");
    // What the customer has entered is text, whatever it looks like.
    assert_eq!(browser.run("return document.querySelector('.case b') === null"), json!(true));
    assert!(browser.run("return document.body.innerText").as_str().unwrap().contains("Zoe <b>Example</b>"));
    browser.audit("kyc-officer");
    decide(&browser, "Approve", "");
    browser.until_text("note", "say why");
    decide(&browser, "Reject", "not a name");
    browser.until_text("note", "Rejected");

    browser.open(&page);
    browser.until_text("note", "could not confirm");
    fill_in(&browser, "Zoe Example");
    browser.until_text("note", "will decide");
    log_in(&browser, &office, &office.token("bob"));
    decide(&browser, "Approve", "saw the passport");
    browser.until_text("note", "Approved");
    assert_eq!(office.officer(&["cases"], "alice"), json!([]));

    let mut finished = office.wallet(&["run", "--timeout", "60"]).stdout(Stdio::null()).spawn().unwrap();
    assert!(finished.wait().unwrap().success());
    let balance = stdout(&office.wallet(&["balance"]).output().unwrap());
    assert!(balance.contains("KUDOS:8"), "{balance}");
    browser.open(&page);
    browser.until_text("note", "You are identified");
    browser.assert_quiet();
}

#[test]
fn a_customer_sees_the_account_before_the_provider() {
    let office = Office::start(LOGIN);
    let page = page_of(&office, "/kyc-login/");
    let browser = Browser::start();
    browser.resize(390, 844, true);
    browser.open(&page);
    let text = browser.run("return document.body.innerText");
    let text = text.as_str().unwrap();
    assert!(text.contains("payto://x-taler-bank/localhost/zoe") && text.contains(&office.exchange), "{text}");
    browser.audit("kyc-login");
    browser.run("document.querySelector('form button').click()");
    browser.until(&format!("location.href.startsWith({})", json!(office.bank)));
    assert_eq!(browser.run("return location.search.includes('redirect_uri=')"), json!(true));
}

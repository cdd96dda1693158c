//! Identification of customers: by an OAuth 2.0 provider who knows everybody, and by a form on which an officer decides.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::Amount;
use batzen_protocol::canonical::plain_hash;
use batzen_protocol::signatures::{SignedMessage, WalletAccountSetup, WalletReserveAttestDetails};
use serde_json::{Value, json};

use crate::crash::coins::now;
use crate::mutate::deployment::Deployment;
use crate::mutate::seeds::Seed;

/// Starts a provider whose every answer is both a token and an identity.
fn provider() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let body = json!({
        "access_token": "token", "token_type": "bearer", "status": "success",
        "data": {"id": "7", "full_name": "Ann"},
    })
    .to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // Requests are small enough to arrive at once.
            if stream.read(&mut [0; 8 << 10]).is_ok() {
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    port
}

/// The limits: with much in a wallet, its owner has to log in, and with more, to fill in a form.
pub(super) fn config() -> String {
    let url = format!("http://127.0.0.1:{}/", provider());
    format!(
        "[kyc-legitimization-rich]\nOPERATION_TYPE = balance\nTHRESHOLD = KUDOS:100000\nREQUIRED_CHECKS = login\n\
         [kyc-legitimization-richer]\nOPERATION_TYPE = balance\nTHRESHOLD = KUDOS:200000\nREQUIRED_CHECKS = form\n\
         [kyc-provider-login]\nLOGIC = oauth2\nUSER_TYPE = individual\nPROVIDED_CHECKS = login\n\
         KYC_OAUTH2_VALIDITY = forever\nKYC_OAUTH2_LOGIN_URL = {url}\nKYC_OAUTH2_AUTH_URL = {url}\n\
         KYC_OAUTH2_INFO_URL = {url}\nKYC_OAUTH2_POST_URL = {url}\nKYC_OAUTH2_CLIENT_ID = x\n\
         KYC_OAUTH2_CLIENT_SECRET = x\n\
         [kyc-provider-clerk]\nLOGIC = manual\nUSER_TYPE = individual\nPROVIDED_CHECKS = form\n\
         KYC_MANUAL_VALIDITY = 1 year\n"
    )
}

/// The value of a parameter in a URL.
fn parameter(url: &str, name: &str) -> String {
    let url = url.replace("%3D", "=").replace("%3F", "?");
    let (_, rest) = url.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("{name}: {url}"));
    rest.chars().take_while(char::is_ascii_alphanumeric).collect()
}

/// The path and query of a URL.
fn target(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    &rest[rest.find('/').unwrap()..]
}

impl Deployment {
    /// A customer with a rich wallet is identified in both ways.
    pub(super) fn identify(&self) {
        let exchange = &self.exchange.proxy;
        let key = EddsaPrivateKey::generate();
        let holds = |amount: &str| {
            let threshold: Amount = amount.parse().unwrap();
            let body = json!({
                "balance": threshold, "reserve_pub": key.public_key(),
                "reserve_sig": WalletAccountSetup { threshold }.sign(&key),
            });
            Seed::new("POST", "/kyc-wallet").json(&body)
        };
        let url_for = |amount: &str| {
            let required: Value = serde_json::from_slice(&exchange.ask(holds(amount)).body).unwrap();
            let account = required["h_payto"].as_str().unwrap_or_else(|| panic!("{required}"));
            let check = format!("/kyc-check/{}/{account}/individual", required["requirement_row"]);
            let begun = exchange.send(Seed::new("GET", &check));
            begun["kyc_url"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned()
        };
        exchange.send(holds("KUDOS:1"));
        self.log_in(&url_for("KUDOS:150000"));
        exchange.send(holds("KUDOS:150000"));
        self.fill_in(&url_for("KUDOS:250000"));
        exchange.send(holds("KUDOS:250000"));
        self.attest(&key);
    }

    /// Presses the button of the page, and follows the way to the provider and back.
    fn log_in(&self, url: &str) {
        let page = self.exchange.proxy.ask(Seed::new("GET", target(url)));
        let cookie = page.header("set-cookie").and_then(|cookie| cookie.split(';').next()).unwrap();
        let html = String::from_utf8_lossy(&page.body).replace("&amp;", "&");
        let action = html.split_once("action=\"").unwrap().1.split_once('"').unwrap().0;
        let button = format!("{}{action}", target(url).split_once('?').unwrap().0);
        let sent = self.exchange.proxy.ask(Seed::new("POST", &button).header("Cookie", cookie));
        let state = parameter(sent.header("refresh").unwrap(), "state");
        let back = format!("/kyc-proof/kyc-provider-login?state={state}&code=code");
        self.exchange.proxy.send(Seed::new("GET", &back).header("Cookie", cookie));
    }

    /// Fills in the form, and approves it as an officer.
    fn fill_in(&self, url: &str) {
        let exchange = &self.exchange.proxy;
        let account = parameter(url, "account");
        exchange.send(Seed::new("GET", target(url)));
        exchange.send(Seed::new("GET", &target(url).replace('?', "/state?")));
        let body = json!({
            "account": account, "token": parameter(url, "token"),
            "attributes": {
                "full_name": "Ann Example", "birthdate": "1990-02-03", "address": "Marktgasse 1, Bern",
                "country": "Switzerland", "nationality": "Swiss", "document_number": "X1234567",
            },
        });
        exchange.send(Seed::new("POST", "/kyc-form/kyc-provider-clerk").json(&body));
        let token = std::fs::read_to_string(self.path("officer")).unwrap();
        let officer = |seed: Seed| seed.header("Authorization", &format!("Bearer {}", token.trim()));
        exchange.send(officer(Seed::new("GET", "/kyc-officer/cases")));
        let seen = exchange.send(officer(Seed::new("GET", &format!("/kyc-officer/accounts/{account}"))));
        let cases = seen["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["case"].is_string()).unwrap_or_else(|| panic!("{seen}"));
        let wish = json!({
            "h_payto": account, "provider": case["provider"], "case": case["case"], "approved": true,
            "reason": "saw the passport",
        });
        exchange.send(officer(Seed::new("POST", "/kyc-officer/decisions").json(&wish)));
    }

    /// The exchange confirms what it knows about the owner of a reserve.
    fn attest(&self, key: &EddsaPrivateKey) {
        let (time, path) = (now(), format!("/reserves-attest/{}", key.public_key()));
        let sign = |details: &Value| {
            let h_details = plain_hash(details).unwrap();
            WalletReserveAttestDetails { request_timestamp: time, h_details }.sign(key)
        };
        let seconds = time.as_micros() / 1_000_000;
        let signature = sign(&json!([]));
        let target = format!("{path}?request_timestamp={seconds}&reserve_sig={signature}");
        self.exchange.proxy.send(Seed::new("GET", &target));
        let details = json!(["full_name"]);
        let body = json!({ "request_timestamp": time, "details": details, "reserve_sig": sign(&details) });
        self.exchange.proxy.send(Seed::new("POST", &path).json(&body));
    }
}

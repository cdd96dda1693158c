//! Identification of customers as wallets, their users' browsers and officers see it.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, ShortHash, hash};
use batzen_exchange::config::{ExchangeConfig, KycLogicConfig, KycOfficerConfig, KycProviderConfig};
use batzen_exchange::reads::kyc;
use batzen_exchange::rules::{KycProvider, KycRule, KycUserType};
use batzen_http::client::Reply;
use batzen_http::{Head, Method};
use batzen_protocol::api::exchange::{DepositPending, KycDone, KycRedirect, KycWalletRequest};
use batzen_protocol::canonical::plain_hash;
use batzen_protocol::payto::{PaytoUri, h_payto};
use batzen_protocol::signatures::{
    ExchangeAccountSetupSuccess, ExchangeReserveAttestDetails, MerchantTrackTransaction, SignedMessage,
    WalletAccountSetup, WalletReserveAttestDetails,
};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::exchange::KycOperation;
use serde_json::{Value, json};

use crate::api::provider;
use crate::api::wallet::*;
use crate::api::world::*;
use crate::oauth::OAuthProvider;

fn limit(config: &mut ExchangeConfig, operation: KycOperation, threshold: &str) {
    let timeframe = Duration::from_days(1);
    let checks = vec!["name".to_owned()];
    config.kyc.rules.rules.push(KycRule { operation, checks, threshold: m(threshold), timeframe });
}

fn add(config: &mut ExchangeConfig, (rules, provider): (KycProvider, KycProviderConfig)) {
    config.kyc.rules.providers.push(rules);
    config.kyc.providers.push(provider);
}

/// A site whose customers are identified by an OAuth 2.0 provider.
pub(super) async fn site(limits: &[(KycOperation, &str)]) -> (Site, OAuthProvider) {
    let (provider, provider_config) = provider::start().await;
    let site = Site::with(|config| {
        limits.iter().for_each(|(operation, threshold)| limit(config, *operation, threshold));
        add(config, provider_config);
    })
    .await;
    (site, provider)
}

/// The requirement that a 451 answer names.
pub(super) struct Required {
    pub(super) row: u64,
    pub(super) h_payto: ShortHash,
}

impl Required {
    pub(super) fn of(reply: &Reply) -> Self {
        is_error(reply, 451, 1028);
        let body: Value = reply.json().unwrap();
        let h_payto = body["h_payto"].as_str().unwrap().parse().unwrap();
        Self { row: body["requirement_row"].as_u64().unwrap(), h_payto }
    }

    fn path(&self) -> String {
        format!("kyc-check/{}/{}/individual", self.row, self.h_payto)
    }
}

/// A user's browser on its way to the provider.
struct Browser<'a> {
    site: &'a Site,
    /// Name and value.
    cookie: String,
    /// The provider's page.
    login_url: String,
    /// Where the provider sends the user back to.
    back: String,
}

impl<'a> Browser<'a> {
    /// Opens the page that the wallet names, and goes on from there.
    async fn open(site: &'a Site, kyc_url: &str) -> Self {
        let page = site.client.get(kyc_url).send().await.unwrap();
        assert_eq!((page.status, page.header("cache-control")), (200, Some("no-store")), "{}", text(&page));
        let (cookie, rest) = page.header("set-cookie").unwrap().split_once("; ").unwrap();
        assert_eq!(rest, "Path=/; Max-Age=3600; HttpOnly; SameSite=Lax");
        let html = text(&page).replace("&amp;", "&");
        let action = html.split_once("action=\"").unwrap().1.split_once('"').unwrap().0;
        let button = format!("{}{action}", kyc_url.split_once('?').unwrap().0);
        // Another browser, and another site's page, have no cookie.
        is_error(&site.client.post(&button).send().await.unwrap(), 404, 1929);
        let sent = site.client.post(button).header("cookie", cookie).send().await.unwrap();
        assert_eq!((sent.status, sent.header("cache-control")), (200, Some("no-store")), "{}", text(&sent));
        let login_url = sent.header("refresh").unwrap().strip_prefix("0; url=").unwrap().to_owned();
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none';") && policy.contains("form-action 'self';"), "{policy}");
        let page = Head::local(Method::GET, &format!("/?{}", login_url.split_once('?').unwrap().1));
        let back = page.query_text("redirect_uri").unwrap().to_owned();
        Self { site, cookie: cookie.to_owned(), login_url, back }
    }

    async fn get(&self, url: &str) -> Reply {
        self.site.client.get(url).header("cookie", &self.cookie).send().await.unwrap()
    }

    /// Comes back with more in the query.
    async fn proof(&self, rest: &str) -> Reply {
        self.get(&format!("{}{rest}", self.back)).await
    }

    /// Logs in with a word, and follows the provider back to the exchange.
    async fn log_in(&self, word: &str) -> Reply {
        let sent = self.site.client.get(format!("{}&word={word}", self.login_url)).send().await.unwrap();
        assert_eq!(sent.status, 302, "{}", text(&sent));
        self.get(sent.header("location").unwrap()).await
    }
}

pub(super) async fn log_in(site: &Site, kyc_url: &str, word: &str) -> Reply {
    Browser::open(site, kyc_url).await.log_in(word).await
}

pub(super) async fn kyc_url(site: &Site, required: &Required) -> String {
    let reply = site.get(&required.path()).await;
    assert_eq!(reply.status, 202, "{}", text(&reply));
    reply.json::<KycRedirect>().unwrap().kyc_url
}

#[tokio::test]
async fn a_withdrawal_continues_after_the_provider_has_identified_the_customer() {
    let (site, provider) = site(&[(KycOperation::Withdraw, "10")]).await;
    let reserve = site.reserve("50").await;
    let first = site.planchet(&site.denom(RSA_8)).await;
    site.withdraw(&reserve, &first).await;
    let second = site.planchet(&site.denom(RSA_8)).await;
    let path = at_reserve(&reserve, "withdraw");
    let reply = site.post(&path, &second.request(&reserve)).await;
    let required = Required::of(&reply);
    assert_eq!(required.h_payto, h_payto(CUSTOMER));
    assert_eq!(site.balance(&reserve.public_key()).await, m("41.99"));
    // The same again, and in a batch.
    let again = site.post(&path, &second.request(&reserve)).await;
    assert_eq!(Required::of(&again).row, required.row);
    let batch = batch_of(std::slice::from_ref(&second), &reserve);
    let in_batch = site.post(&at_reserve(&reserve, "batch-withdraw"), &batch).await;
    assert_eq!(Required::of(&in_batch).row, required.row);
    // The first coin can still be had again.
    site.withdraw(&reserve, &first).await;

    let url = kyc_url(&site, &required).await;
    assert!(url.starts_with(&site.url("kyc-login/kyc-provider-test-oauth2?account=")), "{url}");
    let browser = Browser::open(&site, &url).await;
    let state = browser.back.strip_prefix(&site.url("kyc-proof/kyc-provider-test-oauth2?state=")).unwrap();
    assert_ne!(state, required.h_payto.to_string());
    let escaped: String = browser
        .back
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    let expected =
        format!("{}/login?response_type=code&client_id=taler-exchange&redirect_uri={escaped}", provider.url);
    assert_eq!(browser.login_url, expected);
    // The page names the account that filled the reserve.
    let page = text(&site.client.get(&url).send().await.unwrap());
    assert!(page.contains("<code>payto://") && page.contains(&site.url("")), "{page}");

    // The wallet waits while the user logs in: wrongly first.
    let waiting = {
        let (client, url) = (site.client.clone(), site.url(&format!("{}?timeout_ms=20000", required.path())));
        tokio::spawn(async move { client.get(url).send().await.unwrap() })
    };
    let denied = browser.log_in("fail").await;
    assert_eq!((denied.status, denied.header("content-type").unwrap()), (403, "text/html; charset=utf-8"));
    assert!(text(&denied).contains("<h1>access_denied</h1><p>wrong &lt;word&gt;</p>"), "{}", text(&denied));
    let accepted = browser.log_in("pass").await;
    assert_eq!((accepted.status, accepted.header("location")), (303, Some("http://example.com/")));
    let done = waiting.await.unwrap();
    assert_eq!(done.status, 200, "{}", text(&done));
    let done: KycDone = done.json().unwrap();
    assert_eq!(done.kyc_details, json!({ "name": {} }));
    let message = ExchangeAccountSetupSuccess {
        h_payto: required.h_payto,
        h_kyc: plain_hash(&done.kyc_details).unwrap(),
        timestamp: done.now,
    };
    assert!(site.is_online_key(&done.exchange_pub));
    assert!(message.verify(&done.exchange_pub, &done.exchange_sig));
    let satisfied = site.get(&required.path()).await;
    assert_eq!((satisfied.status, satisfied.body.len()), (204, 0));
    // The browser's page again.
    assert_eq!(browser.proof("&code=code-1").await.status, 204);
    site.withdraw(&reserve, &second).await;

    // The attributes are at rest, encrypted.
    let core = &site.app().core;
    let row = kyc::process(&core.store, required.h_payto, "kyc-provider-test-oauth2").unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&row.attributes).contains("Anna"));
    assert_eq!(site.app().kyc.open(&row.attributes).unwrap()["full_name"], "Anna Müller");
    assert!(row.provider_user_id.starts_with("user-"));
    // It expires.
    site.clock.advance(Duration::from_days(31));
    kyc_url(&site, &required).await;
}

#[tokio::test]
async fn answers_of_a_provider_that_make_no_sense_identify_nobody() {
    let (site, _provider) = site(&[(KycOperation::Withdraw, "1")]).await;
    let reserve = site.reserve("50").await;
    let planchet = site.planchet(&site.denom(RSA_8)).await;
    let path = at_reserve(&reserve, "withdraw");
    let required = Required::of(&site.post(&path, &planchet.request(&reserve)).await);
    let browser = Browser::open(&site, &kyc_url(&site, &required).await).await;
    for (rest, status, code, what) in [
        ("", 400, 25, "code"),
        ("&code=garbage", 502, 1926, "Unexpected response from KYC gateway: token endpoint"),
        ("&code=broken", 502, 1926, "Unexpected response from KYC gateway: proof error"),
        ("&code=evil", 502, 1926, "Unexpected response from KYC gateway: access_token"),
        ("&code=nobody", 502, 1926, "Unexpected response from KYC gateway: info endpoint"),
        ("&code=down", 502, 1927, "try again later"),
    ] {
        let reply = browser.proof(rest).await;
        is_error(&reply, status, code);
        assert_eq!(detail(&reply), what);
    }
    let guessed = browser.proof("&code=bad").await;
    assert_eq!(guessed.status, 403);
    assert_eq!(
        text(&guessed),
        "<html><head><title>invalid_grant</title></head><body><h1>invalid_grant</h1>\
         <p>only &#39;pass&#39; shall pass</p></body></html>"
    );
    // A client that asks for JSON gets it.
    let call = site.client.get(format!("{}&code=bad", browser.back)).header("accept", "application/json");
    is_error(&call.header("cookie", &browser.cookie).send().await.unwrap(), 403, 1928);
    for (path, status, code) in [
        ("kyc-proof/kyc-provider-test-oauth2".to_owned(), 400, 25),
        ("kyc-proof/kyc-provider-test-oauth2?state=x".to_owned(), 400, 26),
        (format!("kyc-proof/other?state={}", required.h_payto), 404, 1931),
        ("kyc-webhook/kycaid".to_owned(), 404, 1931),
        ("kyc-form/kyc-provider-test-oauth2".to_owned(), 404, 1931),
        ("kyc-officer".to_owned(), 404, 21),
    ] {
        is_error(&site.get(&path).await, status, code);
    }
    Required::of(&site.post(&path, &planchet.request(&reserve)).await);
}

#[tokio::test]
async fn a_login_identifies_only_the_account_of_the_browser_that_began_it() {
    let (site, _provider) = site(&[(KycOperation::Balance, "100")]).await;
    let mut browsers = Vec::new();
    for _ in 0..2 {
        let required =
            Required::of(&site.post("kyc-wallet", &wallet_of(&EddsaPrivateKey::generate(), "100")).await);
        browsers.push((Browser::open(&site, &kyc_url(&site, &required).await).await, required));
    }
    let [(mine, my_account), (other, other_account)] = browsers.as_slice() else { unreachable!() };
    let login = format!("kyc-login/kyc-provider-test-oauth2?account={}", my_account.h_payto);
    // Whoever knows the account alone has no page, cannot come back from the provider, and learns nothing.
    let proof =
        |state: &str| site.url(&format!("kyc-proof/kyc-provider-test-oauth2?state={state}&code=code-1"));
    let state = mine.back.split_once("state=").unwrap().1;
    for _ in 0..2 {
        is_error(&site.get(&format!("{login}&token=X")).await, 404, 1929);
        for (url, cookie) in [
            (proof(&my_account.h_payto.to_string()), &mine.cookie),
            (proof(state), &other.cookie),
            (proof(state), &String::new()),
            (
                proof(state),
                &mine.cookie.replace(&my_account.h_payto.to_string(), &other_account.h_payto.to_string()),
            ),
        ] {
            let reply = site.client.get(url).header("cookie", cookie).send().await.unwrap();
            is_error(&reply, 404, 1929);
        }
        assert_eq!(
            site.get(&my_account.path()).await.status,
            if mine_is_done(&site, my_account) { 204 } else { 202 }
        );
        // One browser may identify several accounts.
        let cookie = format!("theme=dark; {}; {}", other.cookie, mine.cookie);
        let sent = site.client.get(format!("{}&word=pass", mine.login_url)).send().await.unwrap();
        let back = site.client.get(sent.header("location").unwrap()).header("cookie", &cookie).send().await;
        assert!([303, 204].contains(&back.unwrap().status));
    }
    assert!(mine_is_done(&site, my_account) && !mine_is_done(&site, other_account));
    // A login page that was used once leads nowhere when the identification has expired.
    site.clock.advance(Duration::from_days(31));
    kyc_url(&site, my_account).await;
    is_error(&mine.proof("&code=code-2").await, 404, 1929);
}

fn mine_is_done(site: &Site, required: &Required) -> bool {
    let row = kyc::process(&site.app().core.store, required.h_payto, "kyc-provider-test-oauth2").unwrap();
    row.unwrap().expiration > site.now()
}

#[tokio::test]
async fn requirements_belong_to_their_account_and_malformed_ones_are_refused() {
    let (site, _provider) = site(&[(KycOperation::Withdraw, "1")]).await;
    let reserve = site.reserve("50").await;
    let planchet = site.planchet(&site.denom(RSA_8)).await;
    let required =
        Required::of(&site.post(&at_reserve(&reserve, "withdraw"), &planchet.request(&reserve)).await);
    let other = ShortHash::random();
    is_error(&site.get(&format!("kyc-check/{}/{other}/individual", required.row)).await, 403, 1930);
    for user in ["individual", "BUSINESS"] {
        let reply = site.get(&format!("kyc-check/1/{other}/{user}?timeout_ms=100000")).await;
        assert_eq!((reply.status, reply.body.len()), (204, 0));
    }
    // Nobody identifies companies here.
    let business = format!("kyc-check/{}/{}/business", required.row, required.h_payto);
    is_error(&site.get(&business).await, 500, 1932);
    // A wait that ends without news names the page again.
    let waited = site.get(&format!("{}?timeout_ms=50", required.path())).await;
    assert_eq!(waited.status, 202);
    for (path, what) in [
        (format!("kyc-check/x/{other}/individual"), "requirement_row"),
        ("kyc-check/1/ABC/individual".to_owned(), "h_payto"),
        (format!("kyc-check/1/{other}/robot"), "usertype"),
        (format!("kyc-check/1/{other}/business?timeout_ms=x"), "timeout_ms"),
    ] {
        let reply = site.get(&path).await;
        is_error(&reply, 400, 26);
        assert_eq!(detail(&reply), what);
    }
}

fn wallet_of(key: &EddsaPrivateKey, balance: &str) -> KycWalletRequest {
    let threshold = amount(balance);
    let reserve_sig = WalletAccountSetup { threshold }.sign(key);
    KycWalletRequest { balance: threshold, reserve_pub: key.public_key(), reserve_sig }
}

#[tokio::test]
async fn a_wallet_asks_before_it_holds_more_than_the_limit() {
    let (site, _provider) = site(&[(KycOperation::Balance, "100"), (KycOperation::Balance, "1000")]).await;
    assert_eq!(site.keys.wallet_balance_limit_without_kyc, Some(vec![amount("100"), amount("1000")]));
    let key = EddsaPrivateKey::generate();
    let ask = |balance: &str| wallet_of(&key, balance);
    let reply = site.post("kyc-wallet", &ask("99.99")).await;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    let required = Required::of(&site.post("kyc-wallet", &ask("100")).await);
    let account = PaytoUri::reserve(&site.url(""), &key.public_key()).unwrap();
    assert_eq!(required.h_payto, account.hash());
    log_in(&site, &kyc_url(&site, &required).await, "pass").await;
    assert_eq!(site.post("kyc-wallet", &ask("5000")).await.status, 204);
    let wrong = KycWalletRequest { balance: amount("10001"), ..ask("10") };
    site.refused("kyc-wallet", &wrong, 403, 1925).await;
    let foreign = with(&wrong, "balance", "EUR:1".into());
    site.refused("kyc-wallet", &foreign, 400, 22).await;
}

#[tokio::test]
async fn what_is_known_about_the_owner_of_a_reserve_is_attested_to_the_owner() {
    let (site, _provider) = site(&[(KycOperation::Balance, "100")]).await;
    let key = EddsaPrivateKey::generate();
    let path = format!("reserves-attest/{}", key.public_key());
    let asked_by = |signer: &EddsaPrivateKey| {
        let (request_timestamp, h_details) = (site.now(), plain_hash(&json!([])).unwrap());
        let reserve_sig = WalletReserveAttestDetails { request_timestamp, h_details }.sign(signer);
        let secs = json!(request_timestamp)["t_s"].clone();
        format!("{path}?request_timestamp={secs}&reserve_sig={reserve_sig}")
    };
    is_error(&site.get(&asked_by(&key)).await, 404, 1027);
    let required = Required::of(&site.post("kyc-wallet", &wallet_of(&key, "100")).await);
    log_in(&site, &kyc_url(&site, &required).await, "pass").await;
    // Nobody else learns that the owner was identified.
    is_error(&site.get(&path).await, 400, 25);
    is_error(&site.get(&asked_by(&EddsaPrivateKey::generate())).await, 403, 1787);
    let names: Value = site.get(&asked_by(&key)).await.ok().unwrap();
    assert_eq!(names, json!({ "attributes": ["full_name", "id"] }));
    let ask = |details: Value| {
        let h_details = plain_hash(&details).unwrap();
        let message = WalletReserveAttestDetails { request_timestamp: site.now(), h_details };
        let reserve_sig = message.sign(&key);
        json!({ "request_timestamp": site.now(), "details": details, "reserve_sig": reserve_sig })
    };
    let answer: Value = site.ok(&path, &ask(json!(["full_name", "shoe_size"]))).await;
    assert_eq!(answer["attributes"], json!({ "full_name": "Anna Müller" }));
    assert_eq!(answer["attest"], answer["attributes"]);
    let of = |name: &str| serde_json::from_value::<Timestamp>(answer[name].clone()).unwrap();
    let message = ExchangeReserveAttestDetails {
        attest_timestamp: of("exchange_timestamp"),
        expiration_time: of("expiration_time"),
        reserve_pub: key.public_key(),
        h_attributes: plain_hash(&answer["attributes"]).unwrap(),
    };
    assert_eq!(of("expiration_time"), site.now().saturating_add(Duration::from_days(30)));
    let exchange_pub: EddsaPublicKey = answer["exchange_pub"].as_str().unwrap().parse().unwrap();
    assert!(site.is_online_key(&exchange_pub));
    assert!(message.verify(&exchange_pub, &answer["exchange_sig"].as_str().unwrap().parse().unwrap()));
    let forged = with(&ask(json!(["full_name"])), "details", json!(["id"]));
    site.refused(&path, &forged, 403, 1787).await;
    let late = with(&ask(json!([])), "request_timestamp", json!({ "t_s": 1 }));
    site.refused(&path, &late, 400, 1020).await;
    // Expired data is left out.
    site.clock.advance(Duration::from_days(31));
    is_error(&site.get(&asked_by(&key)).await, 404, 1027);
}

#[tokio::test]
async fn without_rules_nobody_is_identified() {
    let site = Site::start().await;
    assert_eq!(site.keys.wallet_balance_limit_without_kyc, None);
    let key = EddsaPrivateKey::generate();
    let request = wallet_of(&key, "10000");
    assert_eq!(site.post("kyc-wallet", &request).await.status, 204);
    assert!(!site.app().core.config.kyc.attributes_key_file.exists(), "no key is made for nothing");
}

// --- The manual provider

const SECTION: &str = "kyc-provider-clerk";

fn manual() -> (KycProvider, KycProviderConfig) {
    let (section, checks) = (SECTION.to_owned(), vec!["name".to_owned()]);
    let provider =
        KycProvider { section: section.clone(), cost: 1, user_type: KycUserType::Individual, checks };
    let logic = KycLogicConfig::Manual { post_url: None };
    (provider, KycProviderConfig { section, validity: Duration::from_days(30), logic })
}

fn officer(name: &str) -> KycOfficerConfig {
    KycOfficerConfig { name: name.to_owned(), token_hash: hash::sha512(token(name).as_bytes()) }
}

fn token(name: &str) -> String {
    format!("token of {name}").replace(' ', "-")
}

async fn manual_site(operation: KycOperation, threshold: &str) -> Site {
    Site::with(|config| {
        limit(config, operation, threshold);
        add(config, manual());
        config.kyc.officers = vec![officer("alice"), officer("bob")];
    })
    .await
}

async fn officers_get(site: &Site, name: &str, path: &str) -> Reply {
    let call = site.client.get(site.url(&format!("kyc-officer/{path}")));
    call.header("authorization", &format!("Bearer {}", token(name))).send().await.unwrap()
}

async fn decide(site: &Site, name: &str, case: &Value, approved: bool) -> Reply {
    let wish = json!({
        "h_payto": case["h_payto"], "provider": case["provider"], "case": case["case"],
        "approved": approved, "reason": "seen the passport",
    });
    let call = site.client.post(site.url("kyc-officer/decisions"));
    call.header("authorization", &format!("Bearer {}", token(name))).json(&wish).send().await.unwrap()
}

/// Fills in the form at this address.
async fn fill_in(site: &Site, kyc_url: &str, name: &str) -> Reply {
    let (page, query) = kyc_url.split_once('?').unwrap();
    let field = |wanted: &str| {
        let pair = query.split('&').filter_map(|pair| pair.split_once('='));
        pair.into_iter().find(|(name, _)| *name == wanted).unwrap().1.to_owned()
    };
    let body = json!({
        "account": field("account"), "token": field("token"),
        "attributes": {
            "full_name": name, "birthdate": "1990-02-03", "address": "Bahnhofstr. 1, Bern", "country": "CH",
            "nationality": "CH", "document_number": "X1",
        },
    });
    site.client.post_json(page, &body).await.unwrap()
}

#[tokio::test]
async fn an_officer_identifies_the_sender_of_a_reserve() {
    let site = manual_site(KycOperation::Withdraw, "5").await;
    let reserve = site.reserve("50").await;
    let planchet = site.planchet(&site.denom(RSA_8)).await;
    let path = at_reserve(&reserve, "withdraw");
    let required = Required::of(&site.post(&path, &planchet.request(&reserve)).await);
    let url = kyc_url(&site, &required).await;
    assert_eq!(kyc_url(&site, &required).await, url, "the same page again");
    let page = site.client.get(url.as_str()).send().await.unwrap();
    assert!(page.status == 200 && text(&page).contains("Date of birth"), "{}", text(&page));
    let forged = url.replace("token=", "token=X");
    is_error(&fill_in(&site, &forged, "Eve").await, 404, 1929);
    let sent = fill_in(&site, &url, "Anna Müller").await;
    assert_eq!(sent.ok::<Value>().unwrap()["state"], "submitted");
    // What waits for officers stays as it is.
    is_error(&fill_in(&site, &url, "Eve").await, 409, 1941);

    // Only officers see the case.
    assert_eq!(site.get("kyc-officer/cases").await.status, 401);
    assert_eq!(officers_get(&site, "eve", "cases").await.status, 401);
    let reply = officers_get(&site, "alice", "cases").await;
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let cases: Value = reply.ok().unwrap();
    assert_eq!(cases["officer"], "alice");
    let case = &cases["cases"][0];
    assert_eq!(case["attributes"]["full_name"], "Anna Müller");
    assert_eq!((&case["payto_uri"], &case["approvals_missing"]), (&json!(CUSTOMER), &json!(1)));
    // A reason is needed; a case that nobody submitted cannot be decided.
    let wish = json!({
        "h_payto": case["h_payto"], "provider": SECTION, "case": case["case"], "approved": true, "reason": " ",
    });
    let call = site.client.post(site.url("kyc-officer/decisions"));
    let reply = call.header("authorization", &format!("Bearer {}", token("bob"))).json(&wish).send().await;
    is_error(&reply.unwrap(), 400, 26);
    let mut other = case.clone();
    other["case"] = json!(HashCode::from_bytes([1; 64]));
    assert_eq!(decide(&site, "alice", &other, true).await.status, 409);

    // Rejected, filled in again, approved.
    assert_eq!(decide(&site, "alice", case, false).await.ok::<Value>().unwrap()["outcome"], "rejected");
    let query = url.split_once('?').unwrap().1;
    let state = site.get(&format!("kyc-form/{SECTION}/state?{query}")).await;
    assert_eq!(state.ok::<Value>().unwrap()["state"], "rejected");
    assert_eq!(decide(&site, "alice", case, true).await.status, 409);
    fill_in(&site, &url, "Anna Meier").await;
    let cases: Value = officers_get(&site, "bob", "cases").await.ok().unwrap();
    let answer = decide(&site, "bob", &cases["cases"][0], true).await;
    assert_eq!(answer.ok::<Value>().unwrap()["outcome"], "approved");
    assert_eq!(site.get(&required.path()).await.status, 204);
    site.withdraw(&reserve, &planchet).await;
    let account: Value =
        officers_get(&site, "bob", &format!("accounts/{}", required.h_payto)).await.ok().unwrap();
    let trail: Vec<_> = account["decisions"].as_array().unwrap().iter().map(|d| &d["officer"]).collect();
    assert_eq!(trail, ["alice", "bob"]);
    assert_eq!(account["cases"][0]["attributes"]["full_name"], "Anna Meier");
}

#[tokio::test]
async fn a_merchants_payout_is_held_and_released_once_by_two_officers() {
    let mut site = manual_site(KycOperation::Deposit, "5").await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &coin, "8").await;
    let message = MerchantTrackTransaction {
        h_contract_terms: contract.h_contract_terms,
        h_wire: contract.h_wire(),
        coin_pub: coin.coin_pub,
    };
    let tracked = format!(
        "deposits/{}/{}/{}/{}?merchant_sig={}",
        contract.h_wire(),
        contract.merchant.public_key(),
        contract.h_contract_terms,
        coin.coin_pub,
        message.sign(&contract.merchant)
    );
    site.advance(Duration::from_days(3)).await;
    site.aggregate().await;
    let pending: DepositPending = site.get(&tracked).await.json().unwrap();
    let row = pending.requirement_row.expect("held");
    assert!(!pending.kyc_ok);
    let required = Required { row, h_payto: h_payto(MERCHANT) };
    let url = kyc_url(&site, &required).await;
    fill_in(&site, &url, "Shop").await;
    site.aggregate().await;
    assert_eq!(site.get(&tracked).await.status, 202);
    let cases: Value = officers_get(&site, "alice", "cases").await.ok().unwrap();
    let case = &cases["cases"][0];
    assert_eq!((&case["approvals_missing"], &case["held"]), (&json!(2), &json!("TESTKUDOS:7.98")));
    let outcome = |reply: Reply| reply.ok::<Value>().unwrap()["outcome"].clone();
    assert_eq!(outcome(decide(&site, "alice", case, true).await), "needs_another_officer");
    assert_eq!(decide(&site, "alice", case, true).await.status, 403);
    site.aggregate().await;
    assert_eq!(site.get(&tracked).await.status, 202);
    assert_eq!(outcome(decide(&site, "bob", case, true).await), "approved");
    site.aggregate().await;
    site.aggregate().await;
    let paid = site.get(&tracked).await;
    assert_eq!(paid.status, 200, "{}", text(&paid));
    let store = &site.app().core.store;
    assert!(kyc::alerts(store, 10).unwrap().is_empty());
    assert_eq!(store.count::<batzen_tables::exchange::Prepared>().unwrap(), 1);
}

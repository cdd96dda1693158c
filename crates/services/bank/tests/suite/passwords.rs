//! Passwords over HTTP: what they prevent, guesses, hashes of earlier builds, and overlong bodies and texts.
use crate::common;

use std::net::SocketAddr;
use std::sync::Arc;

use batzen_bank::{Bank, BankConfig};
use batzen_crypto::{ShortHash, kdf};
use batzen_ledger::MemoryLedger;
use batzen_service::wire_gateway::{GatewayAuth, WireGatewayClient};
use batzen_store::memory::MemoryBackend;
use batzen_store::{ChangeSet, CommitOutcome, Store};
use batzen_tables::bank::{AccountKey, AccountRow, BankAccounts, BankStateKey, BankStates};
use common::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

pub(crate) const REGISTER: &str = "taler-bank-access/testing/register";

/// A bank that checks passwords.
fn strict() -> BankConfig {
    BankConfig { check_passwords: true, create_accounts: false, allow_add_incoming: false, ..config() }
}

fn login(name: &str, password: &str) -> Value {
    json!({"username": name, "password": password})
}

async fn status(f: &Fixture, name: &str, password: &str) -> u16 {
    f.get_as(name, password, &format!("taler-bank-access/accounts/{name}")).await.status
}

/// A log-in at the page from another address of this machine: status and headers.
async fn web_login_from(f: &Fixture, address: &str, name: &str, password: &str) -> (u16, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
    let mut stream = socket.connect(f.bank.addr).await.unwrap();
    let body = login(name, password).to_string();
    let head = format!(
        "POST /web/login HTTP/1.1\r\nhost: bank\r\nconnection: close\r\nsec-fetch-site: same-origin\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let headers = answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
    (headers.split(' ').nth(1).unwrap().parse().unwrap(), headers)
}

#[tokio::test]
async fn password_checks_exclude_options_that_bypass_them() {
    for (option, config) in [
        ("ALLOW_ADD_INCOMING", BankConfig { allow_add_incoming: true, ..strict() }),
        ("CREATE_ACCOUNTS", BankConfig { create_accounts: true, ..strict() }),
    ] {
        let error = Bank::start(config).await.err().expect("the bank must not start").to_string();
        assert!(error.contains(option) && error.contains("CHECK_PASSWORDS"), "{error}");
    }
}

/// A transfer created the account while passwords were not checked. Its first visitor must not get the money.
#[tokio::test]
async fn nobody_can_register_accounts_that_transfers_created() {
    let (store, ledger) = (Store::new(MemoryBackend::new()), Arc::new(MemoryLedger::with_system_clock()));
    let bank = Bank::start_on(config(), store.clone(), ledger.clone()).await.unwrap();
    let base = format!("http://{}/", bank.addr);
    let f = Fixture { bank, client: client(), base };
    f.gateway("exchange").transfer(&transfer(1, "7", "shop")).await.unwrap();
    f.end().await;

    let bank = Bank::start_on(strict(), store, ledger).await.unwrap();
    let base = format!("http://{}/", bank.addr);
    let f = Fixture { bank, client: client(), base };
    assert_eq!(f.post(REGISTER, login("shop", "mine")).await.error(), (409, 5118));
    let page = web_login_from(&f, "127.0.0.1", "shop", "mine").await;
    assert_eq!(page.0, 403);
    assert_eq!(status(&f, "shop", "mine").await, 403);
    f.end().await;
}

/// Registration answers the same for every password, and does not use up the owner's attempts.
#[tokio::test]
async fn registration_does_not_check_passwords() {
    let f = Fixture::start(strict()).await;
    assert_eq!(f.post(REGISTER, login("joe", "secret")).await.status, 204);
    let right = f.post(REGISTER, login("joe", "secret")).await;
    let wrong = f.post(REGISTER, login("joe", "other")).await;
    assert_eq!((right.error(), &right), ((409, 5118), &wrong));
    for n in 0..30 {
        assert_eq!(f.post(REGISTER, login("joe", &format!("guess {n}"))).await.error(), (409, 5118));
    }
    assert_eq!(status(&f, "joe", "secret").await, 200);
    f.end().await;

    // Where registering again with the same password succeeds, guesses are limited.
    let f = Fixture::start(config()).await;
    assert_eq!(f.post(REGISTER, login("joe", "secret")).await.status, 204);
    for n in 0..10 {
        assert_eq!(f.post(REGISTER, login("joe", &format!("guess {n}"))).await.error(), (409, 5118));
    }
    assert_eq!(f.post(REGISTER, login("joe", "guess")).await.error(), (429, 5105));
    f.end().await;
}

/// All kinds of log-in count together, and guesses from elsewhere do not lock the owner out.
#[tokio::test]
async fn guesses_are_limited_and_lock_nobody_out() {
    let f = Fixture::start(strict()).await;
    for name in ["joe", "ann"] {
        assert_eq!(f.post(REGISTER, login(name, "secret")).await.status, 204);
    }
    // The owner has logged in from here.
    let owner = async || web_login_from(&f, "127.0.0.2", "joe", "secret").await.0;
    assert_eq!(owner().await, 200);
    // Half of the guesses at the APIs, half at the page.
    for n in 0..5 {
        assert_eq!(status(&f, "joe", &format!("guess {n}")).await, 403);
        assert_eq!(web_login_from(&f, "127.0.0.1", "joe", &format!("other {n}")).await.0, 403);
    }
    let history = f.get_as("joe", "guess", "joe/history/incoming?delta=1").await;
    assert_eq!(history.error(), (429, 5105));
    let (refused, headers) = web_login_from(&f, "127.0.0.1", "joe", "guess").await;
    assert!(refused == 429 && headers.contains("retry-after: "), "{headers}");
    // Even the right password is refused: an unchecked password reveals nothing.
    assert_eq!(status(&f, "joe", "secret").await, 429);
    assert_eq!(owner().await, 200);
    // From many addresses, until the account accepts no more attempts from unknown addresses.
    let mut tried = 10;
    for address in 3..=20 {
        let address = format!("127.0.0.{address}");
        for n in 0..10 {
            match web_login_from(&f, &address, "joe", &format!("guess {n}")).await.0 {
                403 => tried += 1,
                status => assert_eq!(status, 429),
            }
        }
    }
    assert!((100..130).contains(&tried), "{tried} of 190 guesses");
    assert_eq!(owner().await, 200);
    assert_eq!(status(&f, "ann", "secret").await, 200, "another account is not held up");
    f.end().await;
}

/// The hash of a password as builds before Argon2id stored it.
fn old_hash(salt: &[u8; 16], account: &str, password: &str) -> ShortHash {
    let mut state =
        kdf::kdf_array::<32>(salt, password.as_bytes(), &[b"batzen-bank-password", account.as_bytes()]);
    for _ in 1..4096 {
        state = kdf::kdf_array(salt, &state, &[]);
    }
    ShortHash::from_bytes(state)
}

#[tokio::test]
async fn hashes_of_earlier_builds_are_replaced_at_log_in() {
    let (store, ledger) = (Store::new(MemoryBackend::new()), Arc::new(MemoryLedger::with_system_clock()));
    let start = async || {
        let bank = Bank::start_on(strict(), store.clone(), ledger.clone()).await.unwrap();
        let base = format!("http://{}/", bank.addr);
        Fixture { bank, client: client(), base }
    };
    let f = start().await;
    assert_eq!(f.post(REGISTER, login("joe", "secret")).await.status, 204);
    f.end().await;

    let key = AccountKey::new("joe");
    let stored = || store.get::<BankAccounts>(&key).unwrap().unwrap().row;
    let argon2 = stored();
    let salt = store.get::<BankStates>(&BankStateKey::ONLY).unwrap().unwrap().row.password_salt;
    let old = AccountRow { password_hash: Some(old_hash(&salt, "joe", "secret")), ..argon2.clone() };
    let mut changes = ChangeSet::new();
    changes.update::<BankAccounts>(&key, &argon2, &old);
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);

    let f = start().await;
    assert_eq!(status(&f, "joe", "wrong").await, 403);
    assert_eq!(stored(), old);
    assert_eq!(status(&f, "joe", "secret").await, 200);
    assert_eq!(stored(), argon2, "Argon2id now");
    f.end().await;
    let f = start().await;
    assert_eq!(status(&f, "joe", "secret").await, 200);
    f.end().await;
}

#[tokio::test]
async fn bodies_and_texts_have_limits() {
    let f = Fixture::start(config()).await;
    assert_eq!(f.post(REGISTER, login("joe", &"x".repeat(1_024))).await.status, 204);
    let long = f.post(REGISTER, login("ann", &"x".repeat(1_025))).await;
    assert_eq!((long.error(), &long.body["field"]), ((400, 22), &json!("password")));
    let body = |payto_bytes: usize, url_bytes: usize| {
        let mut body = serde_json::to_value(transfer(1, "1", "shop")).unwrap();
        let account = format!("{}&message=", payto("shop"));
        body["credit_account"] = json!(format!("{account}{}", "x".repeat(payto_bytes - account.len())));
        body["exchange_base_url"] = json!(format!("http://{}/", "x".repeat(url_bytes - 8)));
        body
    };
    assert_eq!(f.post("exchange/transfer", body(2_049, 100)).await.error(), (400, 24));
    let long = f.post("exchange/transfer", body(100, 1_025)).await;
    assert_eq!((long.error(), &long.body["field"]), ((400, 22), &json!("exchange_base_url")));
    // The longest name and password.
    assert_eq!(f.post("exchange/transfer", body(2_048, 1_024)).await.status, 200);
    // Requests with little content have small body limits.
    let amount = json!({"amount": "KUDOS:1", "more": "x".repeat(1_024)});
    assert_eq!(f.post("taler-bank-access/accounts/joe/withdrawals", amount).await.status, 413);
    let much = json!({"username": "bob", "password": "x", "more": "x".repeat(4_096)});
    assert_eq!(f.post(REGISTER, much).await.status, 413);
    f.end().await;
}

/// The client keeps its connection, so a password that was right once must not count for later requests.
#[tokio::test]
async fn each_transfer_of_a_connection_needs_the_password() {
    let f = Fixture::start(strict()).await;
    for name in ["exchange", "shop"] {
        assert_eq!(f.post(REGISTER, login(name, "secret")).await.status, 204);
    }
    let url = format!("{}taler-wire-gateway/exchange/", f.base);
    let transfer_as = async |username: &str, password: &str| {
        let auth = GatewayAuth::Basic { username: username.into(), password: password.into() };
        let gateway = WireGatewayClient::new(f.client.clone(), &url, auth);
        gateway.transfer(&transfer(1, "1", "shop")).await.map(|_| ()).map_err(|error| error.status())
    };
    assert_eq!(transfer_as("exchange", "secret").await, Ok(()));
    assert_eq!(transfer_as("exchange", "wrong").await, Err(Some(403)));
    assert_eq!(transfer_as("nobody", "secret").await, Err(Some(403)));
    assert_eq!(
        f.gateway("exchange").transfer(&transfer(1, "1", "shop")).await.unwrap_err().status(),
        Some(401)
    );
    assert_eq!(transfer_as("exchange", "secret").await, Ok(()));
    f.end().await;
}

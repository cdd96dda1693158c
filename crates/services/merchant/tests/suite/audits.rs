//! The share of an exchange's confirmations that auditors get to see.

use std::collections::BTreeSet;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::Networks;
use batzen_merchant::{ConfirmationShare, MerchantConfig, TrustedExchange};
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::signatures::SignedMessage;
use serde_json::{Value, json};

use crate::common::{Backend, eventually};
use crate::exchange::{Coin, Exchange};
use crate::extras::{Got, receiver, wait_for};

/// An exchange that names auditors at these URLs.
async fn exchange(urls: &[&str]) -> Exchange {
    let approvals = |exchange: &Exchange| {
        urls.iter().map(|url| exchange.approval(&EddsaPrivateKey::generate(), url)).collect()
    };
    Exchange::with_auditors(&[1000, 500], approvals).await
}

async fn backend(exchange: &Exchange, share: &str) -> Backend {
    let share: ConfirmationShare = share.parse().unwrap();
    let (url, master_pub) = (exchange.url.clone(), exchange.master_pub());
    let backend = Backend::with(|config| {
        config.exchanges = vec![TrustedExchange { url, master_pub }];
        config.confirmation_share = share;
    });
    backend.await.and_shop().await
}

async fn pay(backend: &Backend, exchange: &Exchange, coins: &[Coin]) -> u16 {
    let (id, claimed) =
        backend.claimed_order(&json!({ "order": { "amount": "KUDOS:10", "summary": "two books" } })).await;
    backend.pay_with(exchange, &id, &claimed, coins).await.status
}

/// The coins that an auditor has seen, each with valid signatures.
fn coins_seen(got: &Got) -> BTreeSet<String> {
    let seen = got.lock().unwrap();
    let valid = |(_, body): &(String, Value)| {
        let body: DepositConfirmationRequest = serde_json::from_value(body.clone()).unwrap();
        assert!(body.confirmation().verify(&body.exchange_pub, &body.exchange_sig));
        assert!(body.validity().verify(&body.master_pub, &body.master_sig));
        body.coin_pub.to_string()
    };
    seen.iter().map(valid).collect()
}

fn public_keys(coins: &[Coin]) -> BTreeSet<String> {
    coins.iter().map(|coin| coin.coin_pub().to_string()).collect()
}

/// The value of a line of metrics.
async fn value(backend: &Backend, line: &str) -> u64 {
    let page = backend.page("metrics").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    page.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap()
}

/// The confirmations that have ended so.
async fn count(backend: &Backend, outcome: &str) -> u64 {
    value(backend, &format!("batzen_merchant_audits_total{{outcome=\"{outcome}\"}}")).await
}

async fn waiting(backend: &Backend) -> u64 {
    value(backend, "batzen_merchant_audits_waiting").await
}

async fn wait_for_count(backend: &Backend, outcome: &str, expected: u64) {
    eventually(outcome, async || count(backend, outcome).await == expected).await;
}

#[tokio::test]
async fn with_a_share_of_all_each_auditor_sees_every_confirmation() {
    let (first_hook, first, first_drain) = receiver(0).await;
    let (second_hook, second, second_drain) = receiver(0).await;
    let (one, two) = (first_hook.strip_suffix("hook").unwrap(), second_hook.strip_suffix("hook").unwrap());
    // What is no base URL is left out, and what is there twice counts once.
    let exchange = exchange(&[one, two, one, "http://localhost:1", "file:///tmp/"]).await;
    let backend = backend(&exchange, "100").await;
    let coins =
        [exchange.coin("KUDOS:4").await, exchange.coin("KUDOS:3").await, exchange.coin("KUDOS:3").await];
    assert_eq!(pay(&backend, &exchange, &coins).await, 200);
    for got in [&first, &second] {
        wait_for(got, coins.len()).await;
        assert_eq!(coins_seen(got), public_keys(&coins));
    }
    wait_for_count(&backend, "shown", 6).await;
    first_drain.trigger();
    second_drain.trigger();
    backend.end().await;
}

#[tokio::test]
async fn with_a_share_of_none_auditors_see_nothing() {
    let (hook, got, drain) = receiver(0).await;
    let exchange = exchange(&[hook.strip_suffix("hook").unwrap()]).await;
    let backend = backend(&exchange, "0").await;
    let coins = exchange.coins(20, "KUDOS:0.52").await;
    assert_eq!(pay(&backend, &exchange, &coins).await, 200);
    assert_eq!(waiting(&backend).await, 0);
    for outcome in ["shown", "refused", "given_up", "dropped"] {
        assert_eq!(count(&backend, outcome).await, 0, "{outcome}");
    }
    assert_eq!(got.lock().unwrap().len(), 0);
    drain.trigger();
    backend.end().await;
}

#[tokio::test]
async fn an_auditor_that_fails_is_asked_again_and_no_payment_waits_for_it() {
    let (hook, got, drain) = receiver(2).await;
    // One does not listen.
    let exchange = exchange(&[hook.strip_suffix("hook").unwrap(), "http://127.0.0.1:1/"]).await;
    let backend = backend(&exchange, "100").await;
    let coins = [exchange.coin("KUDOS:10").await];
    assert_eq!(pay(&backend, &exchange, &coins).await, 200);
    wait_for(&got, 1).await;
    assert_eq!(coins_seen(&got), public_keys(&coins));
    wait_for_count(&backend, "shown", 1).await;
    assert_eq!(waiting(&backend).await, 1);
    drain.trigger();
    backend.end().await;
}

#[tokio::test]
async fn only_auditors_that_approve_are_called_and_only_outside() {
    let (hook, got, drain) = receiver(0).await;
    let url = hook.strip_suffix("hook").unwrap();
    let coins_paid = async |exchange: &Exchange, change: fn(&mut MerchantConfig)| {
        let trusted = TrustedExchange { url: exchange.url.clone(), master_pub: exchange.master_pub() };
        let backend = Backend::with(|config| {
            config.exchanges = vec![trusted];
            config.confirmation_share = "100".parse().unwrap();
            change(config);
        });
        let backend = backend.await.and_shop().await;
        assert_eq!(pay(&backend, exchange, &[exchange.coin("KUDOS:10").await]).await, 200);
        backend
    };
    // Whoever passes the list on can put in a URL, and take the signature of another.
    let exchange = exchange(&[url]).await;
    let mut other = exchange.approval(&EddsaPrivateKey::generate(), "http://other.example/");
    other["auditor_url"] = json!(url);
    exchange.replace_in_keys("auditors", json!([other]));
    let backend = coins_paid(&exchange, |_| {}).await;
    for outcome in ["shown", "refused", "given_up", "dropped"] {
        assert_eq!(count(&backend, outcome).await, 0, "{outcome}");
    }
    assert_eq!(waiting(&backend).await, 0);
    backend.end().await;
    // Nobody inside is called.
    let approval = exchange.approval(&EddsaPrivateKey::generate(), url);
    exchange.replace_in_keys("auditors", json!([approval]));
    let backend = coins_paid(&exchange, |config| config.exchange_networks = Networks::default()).await;
    eventually("a confirmation that waits", async || waiting(&backend).await == 1).await;
    backend.end().await;
    assert_eq!(got.lock().unwrap().len(), 0);
    let backend = coins_paid(&exchange, |_| {}).await;
    wait_for(&got, 1).await;
    backend.end().await;
    drain.trigger();
}

#[tokio::test]
async fn auditors_see_coins_of_payments_that_were_not_completed() {
    let (hook, got, drain) = receiver(0).await;
    let exchange = exchange(&[hook.strip_suffix("hook").unwrap()]).await;
    let backend = backend(&exchange, "100").await;
    let coins = exchange.coins(2, "KUDOS:5").await;
    // Coins are deposited one by one, and the exchange refuses one of them.
    exchange.answer("POST /batch-deposit", 404, json!({ "code": 21 }));
    let refused = format!("POST /coins/{}", coins[1].coin_pub());
    exchange.answer(&refused, 409, json!({ "code": 1201 }));
    assert_eq!(pay(&backend, &exchange, &coins).await, 409);
    wait_for(&got, 1).await;
    assert_eq!(coins_seen(&got), public_keys(&coins[..1]));
    drain.trigger();
    backend.end().await;
}

//! The HTTP interface.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::Timestamp;
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::signatures::{MasterSigningKeyRevoked, SignedMessage};
use batzen_tables::auditor::{DepositConfirmations, SigningKeys};
use serde_json::{Value, json};

use crate::common::{Auditor, Exchange, NOW_S};

#[tokio::test(flavor = "multi_thread")]
async fn small_pages() {
    let exchange = Exchange::new();
    let auditor = Auditor::of(&exchange).await;
    let version: Value = auditor.send("GET", "version").await.json().unwrap();
    let key = auditor.config.auditor_pub().unwrap();
    assert_eq!(version, json!({ "version": "0:0:0", "currency": "KUDOS", "auditor_public_key": key }));
    let exchanges: Value = auditor.send("GET", "exchanges").await.json().unwrap();
    let expected =
        json!({ "master_pub": exchange.master_pub(), "exchange_url": "https://exchange.example/" });
    assert_eq!(exchanges, json!({ "exchanges": [expected] }));
    for (path, status, content) in [
        ("", 200, "Hello"),
        ("robots.txt", 200, "Disallow: /"),
        ("health", 200, ""),
        ("ready", 200, "ready"),
        ("metrics", 200, "batzen_auditor_confirmations_total 0"),
        ("agpl", 302, ""),
        ("config", 404, "<html>"),
        ("deposit-confirmation/x", 404, "<html>"),
        ("deposit-confirmation", 404, "<html>"),
    ] {
        let reply = auditor.send("GET", path).await;
        assert_eq!(reply.status, status, "{path}");
        let text = String::from_utf8_lossy(&reply.body);
        assert!(text.contains(content), "{path}: {text}");
        let head = auditor.send("HEAD", path).await;
        assert_eq!((head.status, head.body.len()), (status, 0), "{path}");
    }
    let posted = auditor.send("POST", "deposit-confirmation").await;
    assert_eq!((posted.status, posted.header("content-type")), (404, Some("text/html")));
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_is_stored_once() {
    let exchange = Exchange::new();
    let auditor = Auditor::of(&exchange).await;
    let body = exchange.confirmation(1);
    for _ in 0..2 {
        let reply = auditor.put(&body).await;
        assert_eq!(reply.status, 200);
        let answer: Value = reply.json().unwrap();
        assert_eq!(answer, json!({ "status": "DEPOSIT_CONFIRMATION_OK" }));
    }
    let rows = auditor.running.store().all::<DepositConfirmations>().unwrap();
    assert_eq!(rows.len(), 1);
    let row = &rows[0].row;
    assert_eq!(row.coin_pub, body.coin_pub);
    assert_eq!(row.h_contract_terms, body.h_contract_terms);
    assert_eq!(row.h_wire, body.h_wire);
    assert_eq!(row.merchant_pub, body.merchant_pub);
    assert_eq!(row.amount_without_fee, body.amount_without_fee.money);
    assert_eq!(
        [row.exchange_timestamp, row.refund_deadline, row.wire_deadline, row.seen],
        [body.exchange_timestamp, body.refund_deadline, body.wire_deadline, Timestamp::from_secs(NOW_S)]
    );
    let keys = auditor.running.store().all::<SigningKeys>().unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].key.exchange_pub, keys[0].row.master_sig), (body.exchange_pub, body.master_sig));
    let metrics = auditor.send("GET", "metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    for line in ["batzen_auditor_confirmations_total 1", "batzen_auditor_repeated_confirmations_total 1"] {
        assert!(metrics.contains(line), "{line}");
    }
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_is_signed() {
    let exchange = Exchange::new();
    let auditor = Auditor::of(&exchange).await;
    let body = exchange.confirmation(1);
    let (later, other) = (Timestamp::from_secs(NOW_S + 77), exchange.confirmation(2));
    let key = EddsaPrivateKey::generate().public_key();
    let good = serde_json::to_value(&body).unwrap();
    let changed = |name: &str, value: &Value| {
        let mut changed = good.clone();
        changed[name] = value.clone();
        changed
    };
    for (name, value) in [
        ("h_contract_terms", json!(other.h_contract_terms)),
        ("h_policy", json!(other.h_wire)),
        ("h_wire", json!(other.h_wire)),
        ("exchange_timestamp", json!(later)),
        ("refund_deadline", json!(later)),
        ("wire_deadline", json!(later)),
        ("amount_without_fee", json!("KUDOS:5")),
        ("coin_pub", json!(key)),
        ("merchant_pub", json!(key)),
        ("exchange_sig", json!(other.exchange_sig)),
        ("exchange_pub", json!(key)),
        ("master_pub", json!(key)),
        ("ep_start", json!(Timestamp::from_secs(NOW_S))),
        ("ep_expire", json!(later)),
        ("ep_end", json!(later)),
        ("master_sig", json!(other.exchange_sig)),
    ] {
        let changed = changed(name, &value);
        assert_ne!(changed, good, "{name}");
        // Before and after the statement about the signing key is known.
        assert_eq!(auditor.refused(&changed).await, (403, 3100), "{name}");
    }
    assert_eq!(auditor.stored(), 0);
    assert_eq!(auditor.running.store().all::<SigningKeys>().unwrap(), []);
    assert_eq!(auditor.put(&body).await.status, 200);
    let changed = changed("ep_end", &json!(later));
    assert_eq!(auditor.refused(&changed).await, (403, 3100), "a known key does not vouch for other times");
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signing_key_counts_only_in_its_time() {
    let exchange = Exchange::new();
    let auditor = Auditor::of(&exchange).await;
    let body = exchange.confirmation(1);
    let at = |time: Timestamp| auditor.now.store(time.as_micros() / 1_000_000, Ordering::SeqCst);
    let second = 1_000_000;
    at(Timestamp::from_micros(body.ep_start.as_micros() - second));
    assert_eq!(auditor.refused(&body).await, (403, 3100));
    at(Timestamp::from_micros(body.ep_expire.as_micros() + second));
    let late = auditor.put(&body).await;
    let error: Value = late.json().unwrap();
    assert_eq!(
        (late.status, &error["code"], &error["detail"]),
        (403, &json!(3100), &json!("master signature expired"))
    );
    for time in [body.ep_start, body.ep_expire] {
        at(time);
        assert_eq!(auditor.put(&body).await.status, 200);
    }
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_signing_key_is_gone() {
    let (exchange, other) = (Exchange::new(), Exchange::new());
    let auditor = Auditor::of(&exchange).await;
    let body = exchange.confirmation(1);
    assert_eq!(auditor.put(&body).await.status, 200);
    let (master_pub, exchange_pub) = (exchange.master_pub(), exchange.online.public_key());
    let message = MasterSigningKeyRevoked { signkey_pub: exchange_pub };
    let forged = message.sign(&other.master);
    auditor.books(move |books| books.revoke(master_pub, exchange_pub, forged).unwrap_err()).await;
    assert_eq!(auditor.put(&body).await.status, 200, "only the master key revokes");
    let master_sig = message.sign(&exchange.master);
    for _ in 0..2 {
        auditor.books(move |books| books.revoke(master_pub, exchange_pub, master_sig).unwrap()).await;
    }
    for body in [&body, &exchange.confirmation(2)] {
        assert_eq!(auditor.refused(body).await, (410, 3101));
    }
    // It comes before the exchange's signature, and after the master key's.
    let unsigned = DepositConfirmationRequest { coin_pub: other.master_pub(), ..exchange.confirmation(3) };
    assert_eq!(auditor.refused(&unsigned).await, (410, 3101));
    let unknown = DepositConfirmationRequest { master_sig: body.exchange_sig, ..exchange.confirmation(3) };
    assert_eq!(auditor.refused(&unknown).await, (403, 3100));
    let auditor = auditor.restart().await;
    assert_eq!(auditor.refused(&body).await, (410, 3101));
    assert_eq!(auditor.stored(), 1);
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_not_audited_is_refused() {
    let (exchange, other) = (Exchange::new(), Exchange::new());
    let auditor = Auditor::of(&exchange).await;
    let reply = auditor.put(&other.confirmation(1)).await;
    let error: Value = reply.json().unwrap();
    assert_eq!((reply.status, &error["code"]), (404, &json!(26)));
    assert!(error["detail"].as_str().unwrap().contains("does not audit this exchange"), "{error}");
    // The signatures come first.
    let unsigned = DepositConfirmationRequest { coin_pub: other.master_pub(), ..other.confirmation(1) };
    assert_eq!(auditor.refused(&unsigned).await, (403, 3100));
    assert_eq!((auditor.stored(), auditor.running.store().all::<SigningKeys>().unwrap().len()), (0, 0));
    auditor.audit(&other).await;
    assert_eq!(auditor.put(&other.confirmation(1)).await.status, 200);
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bodies_are_refused() {
    let exchange = Exchange::new();
    let auditor = Auditor::of(&exchange).await;
    let body = serde_json::to_value(exchange.confirmation(1)).unwrap();
    for name in body.as_object().unwrap().keys() {
        let mut without = body.clone();
        without.as_object_mut().unwrap().remove(name);
        assert_eq!(auditor.refused(&without).await, (400, 22), "{name}");
        let mut wrong = body.clone();
        wrong[name] = json!("?");
        assert_eq!(auditor.refused(&wrong).await, (400, 22), "{name}");
    }
    let in_euro = DepositConfirmationRequest {
        amount_without_fee: "EUR:4.99".parse().unwrap(),
        ..exchange.confirmation(1)
    };
    assert_eq!(auditor.refused(&exchange.signed(in_euro)).await, (400, 22));
    let mut large = body.clone();
    large["padding"] = json!("x".repeat(20_000));
    assert_eq!(auditor.put(&large).await.status, 413);
    assert_eq!(auditor.stored(), 0);
    auditor.running.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_are_all_there_after_a_restart() {
    let exchange = Arc::new(Exchange::new());
    let auditor = Arc::new(Auditor::of(&exchange).await);
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (auditor, exchange) = (Arc::clone(&auditor), Arc::clone(&exchange));
        // Each is shown twice, at about the same time.
        requests.spawn(async move { auditor.put(&exchange.confirmation(number / 2)).await.status });
    }
    while let Some(status) = requests.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let auditor = Arc::into_inner(auditor).unwrap().restart().await;
    assert_eq!(auditor.stored(), 100);
    auditor.running.shutdown().await.unwrap();
}

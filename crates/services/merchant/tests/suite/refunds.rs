//! Refunds and aborted payments, as far as they need no coins.

use batzen_crypto::EddsaPublicKey;
use serde_json::{Value, json};

use crate::common::{Backend, free, is_error};

#[tokio::test]
async fn refunds_need_a_payment() {
    let backend = Backend::with_shop().await;
    let (id, token) = backend.order(&free()).await;
    let path = format!("private/orders/{id}/refund");
    let refund = |amount: &str| json!({ "refund": amount, "reason": "broken" });
    is_error(&backend.post("private/orders/unknown/refund", &refund("KUDOS:1")).await, 404, 2005);
    is_error(&backend.post(&path, &refund("KUDOS:0")).await, 409, 2531);
    let claimed = backend.claim(&id, token.as_deref()).await;
    is_error(&backend.post(&path, &refund("KUDOS:0")).await, 409, 2531);
    backend.pay(&id, &claimed, "").await;
    is_error(&backend.post(&path, &refund("KUDOS:1")).await, 409, 2530);
    is_error(&backend.post(&path, &refund("EUR:0")).await, 400, 30);
    is_error(&backend.post(&path, &json!({ "refund": "KUDOS:0" })).await, 400, 22);
    // The longest reason, as a client writes it that only knows ASCII.
    let escaped = format!("{{\"refund\":\"KUDOS:0\",\"reason\":\"{}\"}}", "\\ud83d\\ude00".repeat(512));
    let call = backend.client.post(backend.url(&path)).body("application/json", escaped.into_bytes());
    assert_eq!(call.send().await.unwrap().status, 200);
    let approved: Value = backend.post(&path, &refund("KUDOS:0")).await.ok().unwrap();
    assert_eq!(approved["h_contract"], claimed.h_contract.to_string());
    let uri = approved["taler_refund_uri"].as_str().unwrap();
    assert!(uri.starts_with("taler+http://refund/") && uri.ends_with(&format!("/{id}/")), "{uri}");

    let path = format!("orders/{id}/refund");
    let other = "0".repeat(103);
    is_error(&backend.post(&path, &json!({ "h_contract": other })).await, 403, 2009);
    let wish = json!({ "h_contract": claimed.h_contract });
    is_error(&backend.post("orders/unknown/refund", &wish).await, 404, 2005);
    let picked_up: Value = backend.post(&path, &wish).await.ok().unwrap();
    let expected = json!({
        "refund_amount": "KUDOS:0", "refunds": [], "merchant_pub": claimed.merchant_pub,
        "h_contract": claimed.h_contract,
    });
    assert_eq!(picked_up, expected);
    // Nothing was refunded, so a poll for it ends at its time.
    let poll = format!("orders/{id}?h_contract={}&timeout_ms=50", claimed.h_contract);
    for wish in ["refund=KUDOS:1", "await_refund_obtained=yes"] {
        let status: Value = backend.get(&format!("{poll}&{wish}")).await.ok().unwrap();
        assert_eq!(status["refunded"], false);
    }
    is_error(&backend.get(&format!("{poll}&refund=EUR:1")).await, 400, 30);
    backend.end().await;
}

#[tokio::test]
async fn payments_are_given_up_before_they_are_complete() {
    let backend = Backend::with_shop().await;
    let (id, token) = backend.order(&free()).await;
    let path = format!("orders/{id}/abort");
    let coin = |key: u8| {
        let coin_pub = EddsaPublicKey::from_bytes([key; 32]);
        json!({ "coin_pub": coin_pub, "contribution": "KUDOS:1", "exchange_url": "http://localhost:1/" })
    };
    let other = json!({ "h_contract": "0".repeat(103), "coins": [coin(1)] });
    is_error(&backend.post("orders/unknown/abort", &other).await, 404, 2253);
    is_error(&backend.post(&path, &other).await, 404, 2253);
    let claimed = backend.claim(&id, token.as_deref()).await;
    is_error(&backend.post(&path, &other).await, 403, 2255);
    let abort = |coins: Value| json!({ "h_contract": claimed.h_contract, "coins": coins });
    is_error(&backend.post(&path, &abort(json!([]))).await, 400, 2256);
    is_error(&backend.post(&path, &abort(json!([coin(1), coin(1)]))).await, 400, 26);
    // Nobody makes the backend ask for other things than an exchange's.
    for url in ["http://localhost:1", "http://localhost:1/admin?x=/", "http://localhost:1/#/", "file:///"] {
        let mut bad = coin(1);
        bad["exchange_url"] = json!(url);
        is_error(&backend.post(&path, &abort(json!([bad]))).await, 400, 26);
    }
    // The exchange is not there: the wallet may ask again.
    for coins in [json!([coin(2), coin(1)]), json!([coin(1)])] {
        let answer: Value = backend.post(&path, &abort(coins.clone())).await.ok().unwrap();
        let refunds = answer["refunds"].as_array().unwrap();
        assert_eq!(refunds.len(), coins.as_array().unwrap().len());
        for refund in refunds {
            let expected = json!({ "type": "failure", "exchange_status": 502, "exchange_code": 2010 });
            assert_eq!(*refund, expected);
        }
    }
    backend.pay(&id, &claimed, "").await;
    is_error(&backend.post(&path, &abort(json!([coin(1)]))).await, 412, 2254);
    // What was given up was not approved by the shop.
    let seen: Value = backend.get(&format!("private/orders/{id}")).await.ok().unwrap();
    assert_eq!((&seen["refunded"], &seen["refund_amount"]), (&json!(false), &json!("KUDOS:0")));
    backend.end().await;
}

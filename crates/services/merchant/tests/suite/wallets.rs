//! Operations of wallets on orders: claim, pay, replay.

use std::sync::atomic::Ordering;

use batzen_crypto::EddsaPrivateKey;
use serde_json::{Value, json};

use crate::common::{Backend, NOW_S, free, is_error};

#[tokio::test]
async fn one_wallet_gets_the_contract() {
    let backend = Backend::with_shop().await;
    let (id, token) = backend.order(&free()).await;
    let path = format!("orders/{id}/claim");
    let nonce = EddsaPrivateKey::generate().public_key().to_string();
    for wrong in [json!({ "nonce": nonce }), json!({ "nonce": nonce, "token": "0".repeat(26) })] {
        is_error(&backend.post(&path, &wrong).await, 404, 2300);
    }
    is_error(&backend.post(&path, &json!({ "nonce": "x", "token": token })).await, 400, 26);
    is_error(&backend.post("orders/unknown/claim", &json!({ "nonce": nonce })).await, 404, 2300);
    let wish = json!({ "nonce": nonce, "token": token });
    let first: Value = backend.post(&path, &wish).await.ok().unwrap();
    assert_eq!(backend.post(&path, &wish).await.ok::<Value>().unwrap(), first, "the same again");
    let other = EddsaPrivateKey::generate().public_key().to_string();
    is_error(&backend.post(&path, &json!({ "nonce": other, "token": token })).await, 409, 2301);
    // Whom a proxy sends finds the proxy's address in the contract.
    let wish = json!({ "order": { "amount": "KUDOS:0", "summary": "x" }, "create_token": false });
    let call = backend.client.post(backend.url("private/orders")).json(&wish);
    let call = call.header("x-forwarded-host", "shop.example").header("x-forwarded-proto", "https");
    let made: Value = call.header("x-forwarded-prefix", "/pay").send().await.unwrap().ok().unwrap();
    let claimed = backend.claim(made["order_id"].as_str().unwrap(), None).await;
    assert_eq!(claimed.terms["merchant_base_url"], "https://shop.example/pay/");
    backend.end().await;
}

#[tokio::test]
async fn what_does_not_pay_an_order_is_refused() {
    let backend = Backend::with_shop().await;
    let (id, token) = backend.order(&json!({ "order": { "amount": "KUDOS:1", "summary": "x" } })).await;
    let path = format!("orders/{id}/pay");
    is_error(&backend.post(&path, &json!({ "coins": [] })).await, 404, 2005);
    backend.claim(&id, token.as_deref()).await;
    is_error(&backend.post(&path, &json!({ "coins": [] })).await, 406, 2156);
    is_error(&backend.post("orders/unknown/pay", &json!({ "coins": [] })).await, 404, 2005);
    is_error(&backend.post(&path, &json!({ "coins": [{}] })).await, 400, 22);
    let long = json!({ "coins": [], "session_id": "x".repeat(2_000) });
    is_error(&backend.post(&path, &long).await, 400, 26);
    // An exchange that cannot be reached is a matter of time.
    let coin = |exchange_url: &str| {
        json!({
            "coin_pub": "0".repeat(52), "coin_sig": "0".repeat(103), "h_denom": "0".repeat(103),
            "ub_sig": { "cipher": "RSA", "rsa_signature": "0".repeat(205) },
            "contribution": "KUDOS:1", "exchange_url": exchange_url,
        })
    };
    let unreachable = backend.post(&path, &json!({ "coins": [coin("http://localhost:1/")] })).await;
    assert!(unreachable.status >= 500, "{}", unreachable.status);
    is_error(&backend.post(&path, &json!({ "coins": [coin("ftp://x/")] })).await, 400, 26);
    let twice = json!({ "coins": [coin("http://localhost:1/"), coin("http://localhost:1/")] });
    is_error(&backend.post(&path, &twice).await, 400, 26);
    backend.now.store(NOW_S + 4_000, Ordering::SeqCst);
    is_error(&backend.post(&path, &json!({ "coins": [coin("http://localhost:1/")] })).await, 410, 2161);
    backend.end().await;
}

#[tokio::test]
async fn a_paid_order_stays_paid() {
    let backend = Backend::with_shop().await;
    let (id, claimed) = backend.claimed_order(&free()).await;
    let receipt = backend.pay(&id, &claimed, "").await;
    assert_eq!(backend.pay(&id, &claimed, "").await, receipt, "the same again");
    let path = format!("orders/{id}/paid");
    let h_contract = claimed.h_contract.to_string();
    let replay =
        |h_contract: &str, sig: &str| json!({ "h_contract": h_contract, "sig": sig, "session_id": "S" });
    let other = "0".repeat(103);
    is_error(&backend.post(&path, &replay(&other, &receipt)).await, 400, 2200);
    is_error(&backend.post(&path, &replay(&h_contract, &other)).await, 403, 2201);
    is_error(&backend.post("orders/unknown/paid", &replay(&h_contract, &receipt)).await, 404, 2005);
    for _ in 0..2 {
        assert_eq!(backend.post(&path, &replay(&h_contract, &receipt)).await.status, 204);
    }
    let seen: Value = backend.get(&format!("private/orders/{id}?session_id=S")).await.ok().unwrap();
    assert_eq!(seen["order_status"], "paid");
    backend.end().await;
}

/// The sequence of merchant chapter 3.1.
#[tokio::test]
async fn a_session_that_bought_an_article_need_not_buy_it_again() {
    let backend = Backend::with_shop().await;
    let article = json!({
        "order": { "amount": "KUDOS:0", "summary": "x", "fulfillment_url": "https://shop.example/article" },
    });
    let (first, token) = backend.order(&article).await;
    let private = |id: &str, session: &str| {
        let path = format!("private/orders/{id}?session_id={session}");
        let backend = &backend;
        async move { backend.get(&path).await.ok::<Value>().unwrap() }
    };
    let unpaid = private(&first, "A").await;
    assert_eq!((&unpaid["order_status"], unpaid.get("already_paid_order_id")), (&json!("unpaid"), None));
    let public = unpaid["order_status_url"].as_str().unwrap().to_owned();
    let claimed = backend.claim(&first, token.as_deref()).await;
    let receipt = backend.pay(&first, &claimed, "A").await;
    assert_eq!(backend.client.get_json(public).await.unwrap().status, 200);
    assert_eq!(private(&first, "B").await["order_status"], "claimed");
    let (second, token) = backend.order(&article).await;
    let unpaid = private(&second, "C").await;
    assert_eq!(unpaid["order_status"], "unpaid");
    let public = unpaid["order_status_url"].as_str().unwrap().to_owned();
    backend.claim(&second, token.as_deref()).await;
    // The wallet recognises the article, and shows its receipt instead of paying.
    let replay = json!({ "h_contract": claimed.h_contract, "sig": receipt, "session_id": "C" });
    assert_eq!(backend.post(&format!("orders/{first}/paid"), &replay).await.status, 204);
    assert_eq!(private(&first, "C").await["order_status"], "paid");
    assert_eq!(private(&first, "D").await["order_status"], "claimed");
    let reply = backend.client.get_json(public.as_str()).await.unwrap();
    let due: Value = reply.json().unwrap();
    assert_eq!((reply.status, &due["already_paid_order_id"]), (402, &json!(first)));
    assert_eq!(due["fulfillment_url"], "https://shop.example/article");
    // A browser goes to the article.
    let page = backend.client.get(public.as_str()).header("accept", "text/html").send().await.unwrap();
    assert_eq!((page.status, page.header("location")), (302, Some("https://shop.example/article")));
    backend.end().await;
}

//! The state of an order for its customer: every row of the decision table (merchant chapter 2.6), as JSON and as a
//! page.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Backend, free, is_error};

/// Status of the JSON answer and of the page.
async fn both(backend: &Backend, path: &str) -> (u16, u16) {
    (backend.get(path).await.status, backend.page(path).await.status)
}

#[tokio::test]
async fn only_those_who_know_an_order_see_it() {
    let backend = Backend::with_shop().await;
    assert_eq!(both(&backend, "orders/unknown").await, (404, 404));
    is_error(&backend.get("orders/unknown").await, 404, 2005);
    let (id, token) = backend.order(&free()).await;
    let (path, token) = (format!("orders/{id}"), token.unwrap());
    let wrong = "0".repeat(26);
    let other = "0".repeat(103);
    is_error(&backend.get(&path).await, 403, 2105);
    is_error(&backend.get(&format!("{path}?token={wrong}")).await, 403, 2105);
    is_error(&backend.get(&format!("{path}?h_contract={other}")).await, 403, 2106);
    is_error(&backend.get(&format!("{path}?h_contract=x")).await, 400, 26);
    assert_eq!(both(&backend, &format!("{path}?token={token}")).await, (402, 402));
    let claimed = backend.claim(&id, Some(&token)).await;
    let h_contract = format!("{path}?h_contract={}", claimed.h_contract);
    assert_eq!(both(&backend, &h_contract).await, (402, 402));
    is_error(&backend.get(&format!("{path}?h_contract={other}")).await, 403, 2106);
    is_error(&backend.get(&format!("{h_contract}&token={wrong}")).await, 403, 2105);
    backend.pay(&id, &claimed, "").await;
    assert_eq!(both(&backend, &h_contract).await, (200, 200));
    assert_eq!(both(&backend, &format!("{path}?token={token}")).await, (200, 200));
    is_error(&backend.get(&path).await, 403, 2105);
    // An order without token is for everybody, but a wrong token is wrong.
    let open = json!({ "order": { "amount": "KUDOS:0", "summary": "x" }, "create_token": false });
    let (id, _) = backend.order(&open).await;
    assert_eq!(both(&backend, &format!("orders/{id}")).await, (402, 402));
    is_error(&backend.get(&format!("orders/{id}?token={wrong}")).await, 403, 2105);
    backend.end().await;
}

#[tokio::test]
async fn others_are_sent_to_where_they_can_buy_the_same() {
    let backend = Backend::with_shop().await;
    let again = "https://shop.example/again";
    let wish = json!({ "order": { "amount": "KUDOS:0", "summary": "x", "public_reorder_url": again } });
    let (id, token) = backend.order(&wish).await;
    let path = format!("orders/{id}");
    let sent = |stage: &'static str| {
        let (backend, path) = (&backend, &path);
        async move {
            let reply = backend.get(path).await;
            assert_eq!(reply.status, 202, "{stage}");
            assert_eq!(reply.json::<Value>().unwrap(), json!({ "public_reorder_url": again }));
            let page = backend.page(path).await;
            assert_eq!((page.status, page.header("location")), (302, Some(again)), "{stage}");
        }
    };
    sent("unclaimed").await;
    let claimed = backend.claim(&id, token.as_deref()).await;
    sent("claimed").await;
    backend.pay(&id, &claimed, "").await;
    sent("paid").await;
    backend.end().await;
}

#[tokio::test]
async fn a_customer_waits_for_the_payment() {
    let backend = Backend::with_shop().await;
    let (id, token) = backend.order(&free()).await;
    let path = format!("orders/{id}?token={}", token.clone().unwrap());
    let due: Value = backend.get(&format!("{path}&timeout_ms=50&session_id=S")).await.json().unwrap();
    assert!(due["taler_pay_uri"].as_str().unwrap().contains(&format!("/{id}/S?c=")), "{due}");
    let page = backend.page(&path).await;
    let uri = page.header("taler").unwrap().to_owned();
    let html = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(uri.starts_with("taler+http://pay/") && html.contains(&uri) && html.contains("<svg"), "{html}");
    let claimed = backend.claim(&id, token.as_deref()).await;
    // Several wait, and all are woken.
    let wait = format!("{path}&timeout_ms=60000");
    let paying = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        backend.pay(&id, &claimed, "S").await
    };
    let (one, two, _) = tokio::join!(backend.get(&wait), backend.get(&wait), paying);
    for reply in [one, two] {
        let paid: Value = reply.ok().unwrap();
        let expected = json!({
            "refunded": false, "refund_pending": false, "refund_amount": "KUDOS:0", "refund_taken": "KUDOS:0",
        });
        assert_eq!(paid, expected);
    }
    assert_eq!(both(&backend, &format!("{path}&session_id=S")).await, (200, 200));
    assert_eq!(both(&backend, &format!("{path}&session_id=T")).await, (402, 402));
    backend.end().await;
}

//! Orders as the shop's own programs see them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Backend, NOW_S, free, is_error, shop};

#[tokio::test]
async fn an_order_is_created_once() {
    let backend = Backend::with_shop().await;
    let wish = json!({ "order": { "amount": "KUDOS:5", "summary": "a book", "order_id": "42" } });
    let (id, token) = backend.order(&wish).await;
    assert_eq!((id.as_str(), token.as_deref().unwrap().len()), ("42", 26));
    assert_eq!(backend.order(&wish).await, (id, token), "the same again");
    let mut other = wish.clone();
    other["order"]["summary"] = json!("another book");
    is_error(&backend.post("private/orders", &other).await, 409, 2503);
    let open = json!({ "order": { "amount": "KUDOS:5", "summary": "x" }, "create_token": false });
    assert_eq!(backend.order(&open).await.1, None);
    for (member, value, status, code) in [
        ("order", json!({ "summary": "x" }), 400, 2502),
        ("order", json!({ "amount": "EUR:1", "summary": "x" }), 400, 30),
        ("order", json!({ "amount": "KUDOS:1", "summary": "x", "order_id": "a/b" }), 400, 2502),
        ("order", json!({ "amount": "KUDOS:1", "summary": "x", "order_id": ".." }), 400, 2502),
        ("order", json!({ "amount": "KUDOS:1", "summary": "x", "pay_deadline": { "t_s": 1 } }), 400, 2502),
        ("order", json!({ "amount": "KUDOS:1", "summary": "x", "auto_refund": "1 day" }), 400, 2502),
        ("order", json!("x"), 400, 22),
        ("payment_target", json!("iban"), 404, 2500),
        ("inventory_products", json!([{ "product_id": "x", "quantity": 1 }]), 404, 2006),
    ] {
        let mut wrong = json!({ "order": { "amount": "KUDOS:5", "summary": "x" } });
        wrong[member] = value;
        is_error(&backend.post("private/orders", &wrong).await, status, code);
    }
    // The reason begins with the member.
    let wrong =
        json!({ "order": { "amount": "KUDOS:1", "summary": "x", "fulfillment_url": "javascript:x" } });
    let refused: Value = backend.post("private/orders", &wrong).await.json().unwrap();
    assert!(refused["detail"].as_str().unwrap().starts_with("fulfillment_url: "), "{refused}");
    let mut empty = shop("empty", None);
    empty["payto_uris"] = json!([]);
    assert_eq!(backend.post("management/instances", &empty).await.status, 204);
    is_error(&backend.post("instances/empty/private/orders", &wish).await, 404, 2500);
    is_error(&backend.post("instances/unknown/private/orders", &wish).await, 404, 2000);
    backend.end().await;
}

fn ids(list: &Value) -> Vec<&str> {
    list["orders"].as_array().unwrap().iter().map(|order| order["order_id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn orders_are_listed_by_number_state_and_time() {
    let backend = Backend::with_shop().await;
    for n in 0..30 {
        backend.now.store(NOW_S + n, Ordering::SeqCst);
        let wish = json!({ "order": { "amount": "KUDOS:0", "summary": "x", "order_id": format!("o{n}") } });
        let (id, token) = backend.order(&wish).await;
        if n % 3 == 0 {
            let claimed = backend.claim(&id, token.as_deref()).await;
            backend.pay(&id, &claimed, "").await;
        }
    }
    let list = |query: &'static str| {
        let backend = &backend;
        async move { backend.get(&format!("private/orders{query}")).await.ok::<Value>().unwrap() }
    };
    let newest = list("").await;
    assert_eq!((ids(&newest).len(), ids(&newest)[0], ids(&newest)[19]), (20, "o29", "o10"));
    let first = &newest["orders"][0];
    assert_eq!(
        (&first["amount"], &first["summary"], &first["paid"]),
        (&json!("KUDOS:0"), &json!("x"), &json!(false))
    );
    assert_eq!(first["timestamp"], json!({ "t_s": NOW_S + 29 }));
    assert_eq!(ids(&list("?delta=3").await), ["o0", "o1", "o2"]);
    assert_eq!(ids(&list("?paid=yes&delta=3").await), ["o0", "o3", "o6"]);
    assert_eq!(ids(&list("?paid=no&delta=-2").await), ["o29", "o28"]);
    assert_eq!(ids(&list("?refunded=yes").await), [""; 0]);
    assert_eq!(ids(&list("?wired=no&delta=1").await), ["o0"]);
    // From one list to the next.
    let row = list("?delta=3").await["orders"][2]["row_id"].as_u64().unwrap();
    let next: Value = backend.get(&format!("private/orders?delta=2&start={row}")).await.ok().unwrap();
    assert_eq!(ids(&next), ["o3", "o4"]);
    let back: Value = backend.get(&format!("private/orders?delta=-5&start={row}")).await.ok().unwrap();
    assert_eq!(ids(&back), ["o1", "o0"]);
    let late: Value =
        backend.get(&format!("private/orders?delta=2&date_s={}", NOW_S + 20)).await.ok().unwrap();
    assert_eq!(ids(&late), ["o20", "o21"]);
    for wrong in ["?paid=maybe", "?delta=x", "?start=-1"] {
        is_error(&backend.get(&format!("private/orders{wrong}")).await, 400, 26);
    }
    backend.end().await;
}

#[tokio::test]
async fn an_empty_list_waits_for_an_order() {
    let backend = Backend::with_shop().await;
    let waiting = backend.get("private/orders?delta=1&timeout_ms=60000");
    let ordering = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        backend.order(&free()).await.0
    };
    let (reply, id) = tokio::join!(waiting, ordering);
    assert_eq!(ids(&reply.ok::<Value>().unwrap()), [id.as_str()]);
    let nobody = backend.get("private/orders?delta=1&paid=yes&timeout_ms=50").await;
    assert_eq!(nobody.ok::<Value>().unwrap(), json!({ "orders": [] }));
    backend.end().await;
}

#[tokio::test]
async fn the_shop_sees_an_order_unpaid_claimed_and_paid() {
    let backend = Backend::with_shop().await;
    let (id, token) = backend.order(&free()).await;
    let status = |query: &'static str| {
        let path = format!("private/orders/{id}{query}");
        let backend = &backend;
        async move { backend.get(&path).await.ok::<Value>().unwrap() }
    };
    let unpaid = status("?session_id=A&order_id=whatever").await;
    assert_eq!(unpaid["order_status"], "unpaid");
    let token_text = token.clone().unwrap();
    let host = backend.url("").trim_start_matches("http://").trim_end_matches('/').to_owned();
    assert_eq!(unpaid["taler_pay_uri"], json!(format!("taler+http://pay/{host}/{id}/A?c={token_text}")));
    assert_eq!(
        unpaid["order_status_url"],
        json!(backend.url(&format!("orders/{id}?token={token_text}&session_id=A")))
    );
    let claimed = backend.claim(&id, token.as_deref()).await;
    let seen = status("").await;
    assert_eq!((&seen["order_status"], &seen["contract_terms"]), (&json!("claimed"), &claimed.terms));

    // It waits for the payment.
    let waiting = status("?timeout_ms=60000");
    let paying = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        backend.pay(&id, &claimed, "A").await
    };
    let (paid, _) = tokio::join!(waiting, paying);
    assert_eq!(
        (&paid["order_status"], &paid["refunded"], &paid["wired"]),
        (&json!("paid"), &json!(false), &json!(false))
    );
    assert_eq!((&paid["deposit_total"], &paid["refund_amount"]), (&json!("KUDOS:0"), &json!("KUDOS:0")));
    for name in ["wire_details", "wire_reports", "refund_details"] {
        assert_eq!(paid[name], json!([]), "{name}");
    }
    assert!(
        paid["order_status_url"].as_str().unwrap().contains(&format!("h_contract={}", claimed.h_contract))
    );
    assert_eq!(status("?session_id=A").await["order_status"], "paid");
    assert_eq!(status("?session_id=B").await["order_status"], "claimed");
    is_error(&backend.get("private/orders/unknown").await, 404, 2005);
    backend.end().await;
}

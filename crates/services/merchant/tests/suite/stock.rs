//! Products, locks and orders from the inventory.

use batzen_merchant::rules::GRACE;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

use crate::common::{Backend, NOW_S, free, is_error};

fn product(id: &str, total_stock: i64) -> Value {
    json!({
        "product_id": id, "description": "a pen", "unit": "piece", "price": "KUDOS:0",
        "total_stock": total_stock, "taxes": [{ "name": "VAT", "tax": "KUDOS:0" }],
        "next_restock": { "t_s": NOW_S + 86_400 },
    })
}

fn changed(total_stock: i64, total_lost: u64) -> Value {
    let mut body = product("pen", total_stock);
    body.as_object_mut().unwrap().remove("product_id");
    body["total_lost"] = json!(total_lost);
    body
}

/// An order of something from the inventory that costs nothing.
fn order(stock: &[(&str, u64)], lock: Option<&str>) -> Value {
    let products: Vec<Value> =
        stock.iter().map(|(id, quantity)| json!({ "product_id": id, "quantity": quantity })).collect();
    let mut body = free();
    body["inventory_products"] = json!(products);
    if let Some(lock) = lock {
        body["lock_uuids"] = json!([lock]);
    }
    body
}

impl Backend {
    async fn stock(&self, id: &str) -> (i64, u64, u64, u64) {
        let seen: Value = self.get(&format!("private/products/{id}")).await.ok().unwrap();
        let number = |name: &str| seen[name].as_u64().unwrap();
        (
            seen["total_stock"].as_i64().unwrap(),
            number("total_sold"),
            number("total_lost"),
            number("total_locked"),
        )
    }

    fn wait(&self, seconds: u64) {
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn products_are_kept() {
    let backend = Backend::with_shop().await;
    let path = "private/products";
    let list: Value = backend.get(path).await.ok().unwrap();
    assert_eq!(list, json!({ "products": [] }));
    assert_eq!(backend.post(path, &product("pen", 10)).await.status, 204);
    assert_eq!(backend.post(path, &product("pen", 10)).await.status, 204, "a repetition");
    is_error(&backend.post(path, &product("pen", 11)).await, 409, 2650);
    assert_eq!(backend.post(path, &product("ink", -1)).await.status, 204);
    for wrong in ["", "a/b", "ä"] {
        is_error(&backend.post(path, &product(wrong, 1)).await, 400, 26);
    }
    is_error(&backend.post(path, &product("x", -2)).await, 400, 26);
    let mut other = product("x", 1);
    other["price"] = json!("EUR:1");
    is_error(&backend.post(path, &other).await, 400, 30);
    is_error(&backend.post(path, &json!({ "product_id": "x" })).await, 400, 22);
    let list: Value = backend.get(path).await.ok().unwrap();
    assert_eq!(list, json!({ "products": [{ "product_id": "ink" }, { "product_id": "pen" }] }));

    let seen: Value = backend.get("private/products/pen").await.ok().unwrap();
    assert_eq!((&seen["description"], &seen["price"]), (&json!("a pen"), &json!("KUDOS:0")));
    assert_eq!(seen["taxes"], json!([{ "name": "VAT", "tax": "KUDOS:0" }]));
    assert_eq!(backend.stock("pen").await, (10, 0, 0, 0));
    assert_eq!(backend.stock("ink").await, (-1, 0, 0, 0));
    is_error(&backend.get("private/products/none").await, 404, 2006);

    is_error(&backend.patch("private/products/none", &changed(1, 0)).await, 404, 2006);
    assert_eq!(backend.patch("private/products/pen", &changed(12, 2)).await.status, 204);
    assert_eq!(backend.stock("pen").await, (12, 0, 2, 0));
    is_error(&backend.patch("private/products/pen", &changed(12, 1)).await, 409, 2660);
    is_error(&backend.patch("private/products/pen", &changed(11, 2)).await, 409, 2662);
    is_error(&backend.patch("private/products/pen", &changed(12, 13)).await, 400, 2661);
    is_error(&backend.patch("private/products/ink", &changed(5, 0)).await, 409, 2662);

    assert_eq!(backend.delete("private/products/ink").await.status, 204);
    is_error(&backend.delete("private/products/ink").await, 404, 2006);
    backend.end().await;
}

#[tokio::test]
async fn carts_and_orders_hold_what_they_have() {
    let backend = Backend::with_shop().await;
    assert_eq!(backend.post("private/products", &product("pen", 10)).await.status, 204);
    let lock = |uuid: &str, quantity: u64| json!({ "lock_uuid": uuid, "duration": { "d_us": 60_000_000 }, "quantity": quantity });
    let path = "private/products/pen/lock";
    is_error(&backend.post("private/products/none/lock", &lock("a", 1)).await, 404, 2006);
    is_error(&backend.post(path, &lock("", 1)).await, 400, 26);
    assert_eq!(backend.post(path, &lock("cart", 4)).await.status, 204);
    assert_eq!(backend.post(path, &lock("cart", 6)).await.status, 204, "it replaces the earlier lock");
    assert_eq!(backend.stock("pen").await, (10, 0, 0, 6));
    let refused = backend.post(path, &lock("other", 5)).await;
    is_error(&refused, 410, 2670);
    let body: Value = refused.json().unwrap();
    assert_eq!((&body["requested_quantity"], &body["available_quantity"]), (&json!(5), &json!(4)));
    is_error(&backend.delete("private/products/pen").await, 409, 2680);

    // The order takes what the cart holds, and the rest is free again.
    let refused = backend.post("private/orders", &order(&[("pen", 5)], None)).await;
    is_error(&refused, 410, 2670);
    let body: Value = refused.json().unwrap();
    assert_eq!(body["product_id"], "pen");
    assert_eq!(body["restock_expected"], json!({ "t_s": NOW_S + 86_400 }));
    let (id, token) = backend.order(&order(&[("pen", 5)], Some("cart"))).await;
    assert_eq!(backend.stock("pen").await, (10, 0, 0, 5));
    let claimed = backend.claim(&id, token.as_deref()).await;
    let expected = json!([{
        "product_id": "pen", "description": "a pen", "quantity": 5, "unit": "piece", "price": "KUDOS:0",
        "taxes": [{ "name": "VAT", "tax": "KUDOS:0" }],
    }]);
    assert_eq!(claimed.terms["products"], expected);
    backend.pay(&id, &claimed, "").await;
    assert_eq!(backend.stock("pen").await, (10, 5, 0, 0));

    // Time releases the cart and the order.
    assert_eq!(backend.post(path, &lock("cart", 1)).await.status, 204);
    let (late, _) = backend.order(&order(&[("pen", 3)], None)).await;
    assert_eq!(backend.stock("pen").await, (10, 5, 0, 4));
    backend.wait(3_600 + GRACE.as_micros() / 1_000_000);
    let (second, _) = backend.order(&order(&[("pen", 5)], None)).await;
    assert_eq!(backend.stock("pen").await, (10, 5, 0, 5), "what expired was found when it was needed");
    assert_eq!(backend.delete(&format!("private/orders/{late}")).await.status, 204);
    // An offer that nobody has claimed ends if the shop insists.
    let path = format!("private/orders/{second}");
    is_error(&backend.delete(&path).await, 409, 2520);
    assert_eq!(backend.delete(&format!("{path}?force=yes")).await.status, 204);
    is_error(&backend.delete(&path).await, 404, 2005);
    is_error(&backend.delete(&format!("private/orders/{id}")).await, 409, 2521);
    assert_eq!(backend.stock("pen").await, (10, 5, 0, 0));

    // A wallet that has claimed an order may be paying it when the deadline passes.
    let (claimed, token) = backend.order(&free()).await;
    backend.claim(&claimed, token.as_deref()).await;
    let path = format!("private/orders/{claimed}");
    backend.wait(3_600);
    is_error(&backend.delete(&path).await, 409, 2520);
    is_error(&backend.delete(&format!("{path}?force=yes")).await, 409, 2520);
    backend.wait(900);
    assert_eq!(backend.delete(&path).await.status, 204);

    is_error(&backend.post("private/orders", &order(&[("none", 1)], None)).await, 404, 2006);
    is_error(&backend.post("private/orders", &order(&[("pen", 0)], None)).await, 400, 26);
    backend.end().await;
}

#[tokio::test]
async fn an_order_needs_the_age_of_its_products() {
    let backend = Backend::with_shop().await;
    let mut whisky = product("whisky", 3);
    whisky["minimum_age"] = json!(18);
    assert_eq!(backend.post("private/products", &whisky).await.status, 204);
    let mut wish = order(&[("whisky", 1)], None);
    wish["order"]["minimum_age"] = json!(12);
    wish["order"]["products"] = json!([{ "description": "a glass" }]);
    let (_, claimed) = backend.claimed_order(&wish).await;
    assert_eq!(claimed.terms["minimum_age"], 18);
    let products = claimed.terms["products"].as_array().unwrap();
    assert_eq!(
        (&products[0]["description"], &products[1]["product_id"]),
        (&json!("a glass"), &json!("whisky"))
    );
    // A purge forgets all that the shop has.
    assert_eq!(backend.delete("private?purge=YES").await.status, 204);
    assert_eq!(backend.post("management/instances", &crate::common::shop("default", None)).await.status, 204);
    is_error(&backend.get("private/products/whisky").await, 404, 2006);
    backend.end().await;
}

#[tokio::test]
async fn members_of_contracts_are_forgotten() {
    let backend = Backend::with_shop().await;
    let mut wish = free();
    wish["order"]["delivery_location"] =
        json!({ "street": "Long Street", "town": "Zurich", "$forgettable": { "street": true } });
    let (id, claimed) = backend.claimed_order(&wish).await;
    let path = format!("private/orders/{id}/forget");
    let fields = |fields: &[&str]| json!({ "fields": fields });
    is_error(&backend.patch(&path, &fields(&["street"])).await, 400, 2510);
    is_error(&backend.patch(&path, &fields(&["$.delivery_location.town"])).await, 409, 2511);
    is_error(&backend.patch("private/orders/none/forget", &fields(&["$.a"])).await, 404, 2005);
    let street = fields(&["$.delivery_location.street"]);
    assert_eq!(backend.patch(&path, &street).await.status, 200);
    assert_eq!(backend.patch(&path, &street).await.status, 204);
    let seen: Value = backend.get(&format!("private/orders/{id}")).await.ok().unwrap();
    let place = &seen["contract_terms"]["delivery_location"];
    assert!(place.get("street").is_none() && place["town"] == "Zurich", "{place}");
    // The hash is that of the contract that the wallet has.
    backend.pay(&id, &claimed, "").await;
    backend.end().await;
}

/// Numbers that JSON programs cannot count exactly are no quantities.
#[tokio::test]
async fn quantities_have_an_end() {
    let backend = Backend::with_shop().await;
    const LAST: u64 = (1 << 53) - 1;
    for stock in [1_i64 << 53, i64::MAX, -2] {
        is_error(&backend.post("private/products", &product("pen", stock)).await, 400, 26);
    }
    assert_eq!(backend.post("private/products", &product("pen", -1)).await.status, 204);
    let lock = |lock: &str, quantity: u64| json!({ "lock_uuid": lock, "duration": { "d_us": 60_000_000 }, "quantity": quantity });
    let path = "private/products/pen/lock";
    for quantity in [LAST + 1, 1 << 63, u64::MAX] {
        is_error(&backend.post(path, &lock("a", quantity)).await, 400, 26);
        is_error(&backend.post("private/orders", &order(&[("pen", quantity)], None)).await, 400, 26);
        let lost = backend.patch("private/products/pen", &changed(-1, quantity)).await;
        is_error(&lost, 400, 26);
    }
    let halves = [("pen", LAST), ("pen", 1)];
    is_error(&backend.post("private/orders", &order(&halves, None)).await, 400, 26);
    assert_eq!(backend.post(path, &lock("a", LAST)).await.status, 204);
    // All carts together, too.
    is_error(&backend.post(path, &lock("b", 1)).await, 410, 2670);
    assert_eq!(backend.stock("pen").await, (-1, 0, 0, LAST));
    backend.end().await;
}

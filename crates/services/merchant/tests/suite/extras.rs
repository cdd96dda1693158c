//! Web hooks, templates and further access tokens.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use batzen_http::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};
use serde_json::{Value, json};

use crate::common::{Backend, eventually, free, is_error, market, shop};

/// The messages that a receiver of web hooks got: headers and body.
pub(crate) type Got = Arc<Mutex<Vec<(String, Value)>>>;

struct Receiver {
    got: Got,
    /// Requests that fail first.
    failures: Mutex<usize>,
}

impl Handler for Receiver {
    async fn handle(&self, request: Request) -> Response {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Response::empty(503);
        }
        let text = request.header("x-order").unwrap_or_default().to_owned();
        self.got.lock().unwrap().push((text, serde_json::from_slice(&request.body).unwrap_or_default()));
        Response::empty(204)
    }
}

/// A receiver of web hooks: its URL, and what it got.
pub(crate) async fn receiver(failures: usize) -> (String, Got, Drain) {
    let got = Got::default();
    let listen = Listen::Tcp { host: Some("127.0.0.1".to_owned()), port: 0, share_port: false };
    let server = Server::bind(listen).await.unwrap();
    let url = format!("http://localhost:{}/hook", server.bound().port().unwrap());
    let receiver = Receiver { got: Arc::clone(&got), failures: Mutex::new(failures) };
    let drain = Drain::new();
    tokio::spawn(server.serve(Arc::new(receiver), ServerOptions::default(), drain.clone()));
    (url, got, drain)
}

pub(crate) async fn wait_for(got: &Got, count: usize) {
    eventually(&format!("{count} calls"), async || got.lock().unwrap().len() >= count).await;
}

#[tokio::test]
async fn web_hooks_say_what_has_happened() {
    let (exchange, backend) = market().await;
    // The first request fails, and is repeated.
    let (url, got, drain) = receiver(1).await;
    let path = "private/webhooks";
    let hook = |id: &str, event: &str| {
        json!({
            "webhook_id": id, "event_type": event, "url": url, "http_method": "POST",
            "header_template": "X-Order: {{ order_id }}",
        })
    };
    assert_eq!(backend.post(path, &hook("paid", "pay")).await.status, 204);
    assert_eq!(backend.post(path, &hook("paid", "pay")).await.status, 204);
    is_error(&backend.post(path, &hook("paid", "refund")).await, 409, 26);
    is_error(&backend.post(path, &hook("x", "order")).await, 400, 26);
    for (name, wrong) in [
        ("url", "ftp://x"),
        ("http_method", "BREW"),
        ("header_template", "no colon"),
        ("header_template", "HOST: inside"),
    ] {
        let mut bad = hook("x", "pay");
        bad[name] = json!(wrong);
        is_error(&backend.post(path, &bad).await, 400, 26);
    }
    let mut refunds = hook("refunds", "refund");
    refunds["body_template"] = json!("{\"back\":\"{{ refund_amount }}\",\"why\":\"{{ reason }}\"}");
    assert_eq!(backend.post(path, &refunds).await.status, 204);
    let list: Value = backend.get(path).await.ok().unwrap();
    let expected = json!([
        { "webhook_id": "paid", "event_type": "pay" }, { "webhook_id": "refunds", "event_type": "refund" },
    ]);
    assert_eq!(list["webhooks"], expected);
    let seen: Value = backend.get("private/webhooks/paid").await.ok().unwrap();
    assert_eq!(seen["url"], url);
    is_error(&backend.get("private/webhooks/none").await, 404, 26);

    let coin = exchange.coin("KUDOS:5").await;
    let (id, claimed) = backend.sale(&exchange, &coin).await;
    // A repeated payment is no event.
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&coin]).await.status, 200);
    // The clock of the backend stands still, so that the next attempt is when the test says.
    eventually("the next attempt", async || {
        backend.now.fetch_add(1, Ordering::SeqCst);
        !got.lock().unwrap().is_empty()
    })
    .await;
    let refund = json!({ "refund": "KUDOS:1", "reason": "a \"quarrel\"" });
    for _ in 0..2 {
        assert_eq!(backend.post(&format!("private/orders/{id}/refund"), &refund).await.status, 200);
    }
    wait_for(&got, 2).await;
    let paid = json!({
        "webhook_type": "pay", "order_id": id, "amount": "KUDOS:5", "summary": "a book", "refund_amount": "",
        "reason": "",
    });
    let refunded = json!({ "back": "KUDOS:1", "why": "a \"quarrel\"" });
    assert_eq!(*got.lock().unwrap(), [(id.clone(), paid), (id, refunded)]);

    assert_eq!(backend.patch("private/webhooks/paid", &seen).await.status, 204);
    is_error(&backend.patch("private/webhooks/none", &seen).await, 404, 26);
    assert_eq!(backend.delete("private/webhooks/paid").await.status, 204);
    is_error(&backend.delete("private/webhooks/paid").await, 404, 26);
    drain.trigger();
    backend.end().await;
}

#[tokio::test]
async fn calls_that_wait_follow_their_hook() {
    let (exchange, backend) = market().await;
    let (url, got, drain) = receiver(0).await;
    let hook = |id: &str| {
        json!({
            "webhook_id": id, "event_type": "pay", "url": "http://localhost:1/", "http_method": "POST",
            "body_template": "{\"id\":\"{{ order_id }}\",\"terms\":{{contract_terms}},\"hook\":\"ID\"}".replace("ID", id),
        })
    };
    for id in ["moved", "deleted"] {
        assert_eq!(backend.post("private/webhooks", &hook(id)).await.status, 204);
    }
    let coin = exchange.coin("KUDOS:5").await;
    let (id, claimed) = backend.sale(&exchange, &coin).await;
    let mut moved = hook("moved");
    moved["url"] = json!(url);
    assert_eq!(backend.patch("private/webhooks/moved", &moved).await.status, 204);
    assert_eq!(backend.delete("private/webhooks/deleted").await.status, 204);
    eventually("the next attempt", async || {
        backend.now.fetch_add(60, Ordering::SeqCst);
        !got.lock().unwrap().is_empty()
    })
    .await;
    let got = got.lock().unwrap().clone();
    assert_eq!((got.len(), &got[0].1["hook"], &got[0].1["id"]), (1, &json!("moved"), &json!(id)));
    assert_eq!(got[0].1["terms"], claimed.terms);
    drain.trigger();
    backend.end().await;
}

#[tokio::test]
async fn customers_make_orders_of_templates() {
    let backend = Backend::with_shop().await;
    let path = "private/templates";
    let template = |id: &str, amount: Option<&str>, summary: Option<&str>| {
        let mut contract = json!({ "minimum_age": 0, "pay_duration": { "d_us": 600_000_000 } });
        if let Some(amount) = amount {
            contract["amount"] = json!(amount);
        }
        if let Some(summary) = summary {
            contract["summary"] = json!(summary);
        }
        json!({ "template_id": id, "template_description": "till", "template_contract": contract })
    };
    assert_eq!(backend.post(path, &template("coffee", Some("KUDOS:0"), Some("coffee"))).await.status, 204);
    assert_eq!(backend.post(path, &template("open", None, None)).await.status, 204);
    is_error(&backend.post(path, &template("open", None, Some("x"))).await, 409, 26);
    is_error(&backend.post(path, &template("a/b", None, None)).await, 400, 26);
    is_error(&backend.post(path, &template("x", Some("EUR:1"), None)).await, 400, 30);
    let list: Value = backend.get(path).await.ok().unwrap();
    assert_eq!(list["templates"][0], json!({ "template_id": "coffee", "template_description": "till" }));
    let seen: Value = backend.get("private/templates/coffee").await.ok().unwrap();
    assert_eq!(seen["template_contract"]["amount"], "KUDOS:0");
    is_error(&backend.get("templates/none").await, 404, 26);

    // A program gets the order.
    let offer: Value = backend.get("templates/open").await.ok().unwrap();
    assert!(offer["template_contract"].get("amount").is_none());
    is_error(&backend.post("templates/open", &json!({ "amount": "KUDOS:0" })).await, 400, 25);
    is_error(&backend.post("templates/coffee", &json!({ "amount": "KUDOS:0" })).await, 400, 26);
    let wish = json!({ "amount": "KUDOS:0", "summary": "two rolls" });
    let made: Value = backend.post("templates/open", &wish).await.ok().unwrap();
    let id = made["order_id"].as_str().unwrap();
    let claimed = backend.claim(id, made["token"].as_str()).await;
    assert_eq!(claimed.terms["summary"], "two rolls");
    backend.pay(id, &claimed, "").await;

    // A browser gets a form, and then the page of the order.
    let page = backend.page("templates/open").await;
    let html = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(
        page.status == 200 && html.contains("name=\"amount\"") && html.contains("name=\"summary\""),
        "{html}"
    );
    let html = String::from_utf8(backend.page("templates/coffee").await.body.to_vec()).unwrap();
    assert!(html.contains("<h1>coffee</h1>") && !html.contains("<input"), "{html}");
    assert_eq!(backend.page("templates/none").await.status, 404);
    let url = backend.url("templates/open");
    let fields = [("amount", "0,00"), ("summary", "a & b")];
    let sent = backend.client.post(url.clone()).form(&fields).send().await.unwrap();
    assert_eq!(sent.status, 303);
    let target = sent.header("location").unwrap().to_owned();
    let shown = backend.client.get(target).header("accept", "text/html").send().await.unwrap();
    let html = String::from_utf8(shown.body.to_vec()).unwrap();
    assert!(shown.status == 402 && html.contains("a &amp; b"), "{html}");
    let bad = backend.client.post(url).form(&[("amount", "x"), ("summary", "y")]).send().await.unwrap();
    is_error(&bad, 400, 26);

    let mut other = template("x", None, Some("tea"));
    other.as_object_mut().unwrap().remove("template_id");
    assert_eq!(backend.patch("private/templates/coffee", &other).await.status, 204);
    is_error(&backend.patch("private/templates/none", &other).await, 404, 26);
    assert_eq!(backend.delete("private/templates/coffee").await.status, 204);
    is_error(&backend.delete("private/templates/coffee").await, 404, 26);
    backend.end().await;
}

#[tokio::test]
async fn tokens_open_what_they_are_for() {
    let backend = Backend::start().await;
    let own = "secret-token:own-and-secret";
    assert_eq!(backend.post("management/instances", &shop("default", Some(own))).await.status, 204);
    let wish =
        |scope: &str| json!({ "scope": scope, "duration": { "d_us": 60_000_000 }, "description": "till" });
    let create = async |scope: &str| -> String {
        let made: Value =
            backend.send("POST", "private/token", Some(&wish(scope)), Some(own)).await.ok().unwrap();
        assert_eq!(made["scope"], scope);
        made["token"].as_str().unwrap().to_owned()
    };
    is_error(&backend.send("POST", "private/token", Some(&wish("some")), Some(own)).await, 400, 26);
    is_error(&backend.post("private/token", &wish("all")).await, 401, 2015);
    let (reads, sells, all) = (create("readonly").await, create("orders").await, create("all").await);
    for (method, path, body, allowed) in [
        ("GET", "private/orders", None, [true, true, true]),
        ("GET", "private/tokens", None, [true, true, true]),
        ("POST", "private/orders", Some(free()), [false, true, true]),
        ("POST", "private/products", Some(json!({})), [false, false, true]),
        ("POST", "private/token", Some(wish("readonly")), [false, false, true]),
        ("GET", "management/instances", None, [false, false, false]),
    ] {
        for (token, is_allowed) in [&reads, &sells, &all].into_iter().zip(allowed) {
            let reply = backend.send(method, path, body.as_ref(), Some(token)).await;
            assert_eq!(reply.status != 401, is_allowed, "{method} {path} {}", reply.status);
        }
    }
    let list: Value = backend.send("GET", "private/tokens", None, Some(own)).await.ok().unwrap();
    let tokens = list["tokens"].as_array().unwrap();
    assert_eq!(
        (tokens.len(), &tokens[0]["scope"], &tokens[0]["description"]),
        (4, &json!("readonly"), &json!("till"))
    );
    let path = format!("private/tokens/{}", tokens[0]["serial"]);
    assert_eq!(backend.send("DELETE", &path, None, Some(own)).await.status, 204);
    is_error(&backend.send("DELETE", &path, None, Some(own)).await, 404, 26);
    is_error(&backend.send("GET", "private/orders", None, Some(&reads)).await, 401, 2015);
    assert_eq!(backend.send("GET", "private/orders", None, Some(&sells)).await.status, 200);
    backend.now.fetch_add(60, Ordering::SeqCst);
    is_error(&backend.send("GET", "private/orders", None, Some(&sells)).await, 401, 2015);
    backend.end().await;
}

//! URLs that others name: of exchanges, and of receivers of web hooks.

use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::client::Reply;
use batzen_http::{Drain, Handler, Listen, Networks, Request, Response, Server, ServerOptions};
use batzen_merchant::{MerchantConfig, TrustedExchange};
use batzen_protocol::api::merchant::ContractAuditor;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::{Backend, Claimed, free, is_error, shop};
use crate::exchange::{Coin, Exchange};
use crate::extras::{receiver, wait_for};

/// A server with one answer to everything.
struct Fixed(u16, Vec<u8>);

impl Handler for Fixed {
    async fn handle(&self, _: Request) -> Response {
        Response::bytes(self.0, "application/json", self.1.clone())
    }
}

async fn serve(status: u16, body: Vec<u8>) -> (String, Drain) {
    let listen = Listen::Tcp { host: Some("127.0.0.1".to_owned()), port: 0, share_port: false };
    let server = Server::bind(listen).await.unwrap();
    let url = format!("http://127.0.0.1:{}/", server.bound().port().unwrap());
    let drain = Drain::new();
    tokio::spawn(server.serve(Arc::new(Fixed(status, body)), ServerOptions::default(), drain.clone()));
    (url, drain)
}

/// A place where nobody should knock.
struct Inside(TcpListener);

impl Inside {
    async fn new() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (Self(listener), format!("localhost:{port}"))
    }

    async fn is_quiet(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(100), self.0.accept()).await.is_err()
    }
}

async fn backend(change: impl FnOnce(&mut MerchantConfig)) -> Backend {
    let backend = Backend::with(change).await;
    assert_eq!(backend.post("management/instances", &shop("default", None)).await.status, 204);
    backend
}

fn trusted(exchange: &Exchange) -> TrustedExchange {
    TrustedExchange { url: exchange.url.clone(), master_pub: exchange.master_pub() }
}

fn auditor(key: &EddsaPrivateKey, url: &str) -> ContractAuditor {
    ContractAuditor { name: "a".to_owned(), auditor_pub: key.public_key(), url: url.to_owned() }
}

/// Pays with coins that are said to be of another URL.
async fn pay_at(
    backend: &Backend,
    (id, claimed): &(String, Claimed),
    (exchange, coin): (&Exchange, &Coin),
    url: &str,
) -> Reply {
    let mut coin = coin.pay(exchange, &claimed.terms, claimed.h_contract);
    coin["exchange_url"] = json!(url);
    backend.post(&format!("orders/{id}/pay"), &json!({ "coins": [coin] })).await
}

#[tokio::test]
async fn a_configured_exchange_is_asked_at_its_own_url() {
    let exchange = Exchange::start().await;
    let backend = Backend::with_exchange(&exchange).await;
    let (inside, address) = Inside::new().await;
    // A proxy that puts in pages of its own.
    let proxy = exchange.proxy().await;
    let pending = json!({ "execution_time": { "t_s": 1 }, "kyc_ok": false, "requirement_row": 7 });
    for (gate, page) in [("http://id.example/", None), ("http://phisher.example/", Some(&proxy))] {
        let body = json!({ "kyc_url": gate });
        match page {
            None => exchange.answer("GET /kyc-check/7/", 202, body),
            Some(proxy) => proxy.answer("GET /kyc-check/7/", 202, body),
        }
    }
    exchange.answer("GET /deposits/", 202, pending);
    let offer = backend.offer().await;
    let coin = exchange.coin("KUDOS:10").await;
    assert_eq!(pay_at(&backend, &offer, (&exchange, &coin), &proxy.url).await.status, 200);
    assert_eq!(
        (exchange.count("POST /coins/"), proxy.count("GET /keys"), proxy.count("POST /coins/")),
        (1, 0, 0)
    );
    let mut seen = Value::Null;
    for _ in 0..100 {
        let reply = backend.get("private/kyc").await;
        if reply.status == 202 {
            seen = reply.json().unwrap();
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seen = &seen["pending_kycs"][0];
    assert_eq!(
        (&seen["kyc_url"], &seen["exchange_url"]),
        (&json!("http://id.example/"), &json!(exchange.url))
    );
    // A link that is a program is none.
    exchange.answer("GET /kyc-check/7/", 202, json!({ "kyc_url": "javascript:alert(1)" }));
    assert_eq!(backend.get("private/kyc").await.status, 502);
    // A wallet gives up such a payment.
    let offer = backend.offer().await;
    let coin = exchange.coin("KUDOS:10").await;
    exchange.answer("POST /coins/", 500, json!({ "code": 51 }));
    let url = format!("http://{address}/");
    is_error(&pay_at(&backend, &offer, (&exchange, &coin), &url).await, 502, 2014);
    exchange.recover();
    let coins = json!([{ "coin_pub": coin.coin_pub(), "contribution": "KUDOS:10", "exchange_url": url }]);
    let abort = json!({ "h_contract": offer.1.h_contract, "coins": coins });
    let answer: Value = backend.post(&format!("orders/{}/abort", offer.0), &abort).await.ok().unwrap();
    assert_eq!(answer["refunds"][0]["exchange_status"], 404, "the exchange was asked: {answer}");
    assert!(inside.is_quiet().await);
    backend.end().await;
    exchange.end();
}

#[tokio::test]
async fn who_names_a_url_learns_nothing_about_it() {
    let (exchange, stranger) = (Exchange::start().await, Exchange::with_values(&[1000, 700]).await);
    let coin = stranger.coin("KUDOS:10").await;
    let key = EddsaPrivateKey::generate();
    let with_auditor = backend(|config| {
        config.exchanges = vec![trusted(&exchange)];
        config.auditors = vec![auditor(&key, "http://127.0.0.1:1/")];
    })
    .await;
    let (empty, end_empty) = serve(404, Vec::new()).await;
    let (wrong, end_wrong) = serve(200, b"{}".to_vec()).await;
    // Five megabytes of JSON, a few kilobytes deflated.
    let (large, end_large) = serve(200, format!("[{}1]", "1,".repeat(2_500_000)).into_bytes()).await;
    let closed = "http://127.0.0.1:1/".to_owned();
    for url in [&empty, &wrong, &large, &closed, &stranger.url] {
        let offer = with_auditor.offer().await;
        let reply = pay_at(&with_auditor, &offer, (&stranger, &coin), url).await;
        is_error(&reply, 400, 2152);
        let body: Value = reply.json().unwrap();
        assert_eq!((&body["detail"], body.as_object().unwrap().len()), (&json!(url), 3), "{body}");
    }
    let (id, claimed) = with_auditor.offer().await;
    let coins: Vec<Value> = (0..4)
        .map(|n| {
            let coin = Coin::pay(&coin, &stranger, &claimed.terms, claimed.h_contract);
            let mut coin = coin;
            coin["coin_pub"] = json!(EddsaPrivateKey::generate().public_key());
            coin["exchange_url"] = json!(format!("{closed}{n}/"));
            coin
        })
        .collect();
    is_error(&with_auditor.post(&format!("orders/{id}/pay"), &json!({ "coins": coins })).await, 400, 26);
    with_auditor.end().await;

    // What is inside is not asked, nor is anything if no auditor could approve of it.
    let (inside, address) = Inside::new().await;
    let without = Backend::with_exchange(&exchange).await;
    let public_only = backend(|config| {
        config.exchanges = vec![trusted(&exchange)];
        config.auditors = vec![auditor(&key, "http://127.0.0.1:1/")];
        config.exchange_networks = Networks::default();
    })
    .await;
    for backend in [without, public_only] {
        for url in
            [format!("http://{address}/"), format!("http://{}/", address.replace("localhost", "127.1"))]
        {
            let offer = backend.offer().await;
            is_error(&pay_at(&backend, &offer, (&stranger, &coin), &url).await, 400, 2152);
        }
        backend.end().await;
    }
    assert!(inside.is_quiet().await);
    [end_empty, end_wrong, end_large].iter().for_each(Drain::trigger);
    stranger.end();
    exchange.end();
}

/// Several exchanges are configured, and a shop names the URL of a proxy.
#[tokio::test]
async fn a_proxy_is_found_out_by_its_key() {
    let (exchange, other) = (Exchange::start().await, Exchange::start().await);
    let backend = backend(|config| config.exchanges = vec![trusted(&other), trusted(&exchange)]).await;
    let proxy = exchange.proxy().await;
    let wish =
        json!({ "initial_balance": "KUDOS:10", "exchange_url": proxy.url, "wire_method": "x-taler-bank" });
    let made: Value = backend.post("private/reserves", &wish).await.ok().unwrap();
    let reserve = made["reserve_pub"].as_str().unwrap();
    let seen: Value = backend.get(&format!("private/reserves/{reserve}")).await.ok().unwrap();
    assert_eq!(seen["exchange_url"], exchange.url);
    assert_eq!((proxy.count("GET /keys"), exchange.count("GET /keys") > 0), (1, true));
    backend.end().await;
    other.end();
    exchange.end();
}

#[tokio::test]
async fn pages_about_an_owner_come_from_an_exchange_whose_url_is_known() {
    let key = EddsaPrivateKey::generate();
    let exchange = Exchange::approved_by(&key, "http://127.0.0.1:1/").await;
    let audited =
        json!({ "exchanges": [{ "master_pub": exchange.master_pub(), "exchange_url": exchange.url }] });
    let (lists, drain) = serve(200, serde_json::to_vec(&audited).unwrap()).await;
    for (auditor_url, expected) in [("http://127.0.0.1:1/", 504), (&*lists, 202)] {
        let backend = backend(|config| config.auditors = vec![auditor(&key, auditor_url)]).await;
        let pending = json!({ "execution_time": { "t_s": 1 }, "kyc_ok": false, "requirement_row": 7 });
        exchange.answer("GET /deposits/", 202, pending);
        exchange.answer("GET /kyc-check/7/", 202, json!({ "kyc_url": "http://id.example/" }));
        let proxy = exchange.proxy().await;
        let named = if expected == 202 { &proxy.url } else { &exchange.url };
        // The proxy passes on what the exchange says, approvals included.
        let offer = backend.offer().await;
        let coin = exchange.coin("KUDOS:10").await;
        let keys = backend.client.get(format!("{}keys", exchange.url)).send().await.unwrap();
        let auditors = keys.json::<Value>().unwrap()["auditors"].clone();
        proxy.replace_in_keys("auditors", auditors);
        let reply = pay_at(&backend, &offer, (&exchange, &coin), named).await;
        assert_eq!(reply.status, 200, "{:?}", reply.json::<Value>());
        assert_eq!(proxy.count("POST /coins/"), 0, "the auditor knows a better URL");
        let (offer, coin) = (backend.offer().await, exchange.coin("KUDOS:10").await);
        assert_eq!(pay_at(&backend, &offer, (&exchange, &coin), named).await.status, 200);
        assert!(proxy.count("GET /keys") <= 1, "the exchange is known from then on");
        let mut status = 204;
        for _ in 0..100 {
            status = backend.get("private/kyc").await.status;
            if status != 204 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(status, expected);
        backend.end().await;
    }
    drain.trigger();
    exchange.end();
}

fn hook(id: &str, url: &str) -> Value {
    json!({ "webhook_id": id, "event_type": "pay", "url": url, "http_method": "POST" })
}

async fn sell(backend: &Backend, shop: &str) {
    let path = format!("instances/{shop}");
    let made: Value = backend.post(&format!("{path}/private/orders"), &free()).await.ok().unwrap();
    let id = made["order_id"].as_str().unwrap();
    let nonce = EddsaPrivateKey::generate().public_key();
    let claim = json!({ "nonce": nonce, "token": made["token"] });
    assert_eq!(backend.post(&format!("{path}/orders/{id}/claim"), &claim).await.status, 200);
    assert_eq!(backend.post(&format!("{path}/orders/{id}/pay"), &json!({ "coins": [] })).await.status, 200);
}

#[tokio::test]
async fn a_silent_receiver_keeps_no_other_from_being_called() {
    let backend = Backend::start().await;
    let (_silent, address) = Inside::new().await;
    let (url, got, drain) = receiver(0).await;
    for name in ["slow", "quick"] {
        assert_eq!(backend.post("management/instances", &shop(name, None)).await.status, 204);
    }
    for n in 0..32 {
        let hook = hook(&format!("h{n}"), &format!("http://{address}/{n}"));
        assert_eq!(backend.post("instances/slow/private/webhooks", &hook).await.status, 204);
    }
    assert_eq!(backend.post("instances/quick/private/webhooks", &hook("h", &url)).await.status, 204);
    for _ in 0..8 {
        sell(&backend, "slow").await;
    }
    let began = std::time::Instant::now();
    for count in 1..=3 {
        sell(&backend, "quick").await;
        wait_for(&got, count).await;
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drain.trigger();
    backend.end().await;
}

#[tokio::test]
async fn web_hooks_stay_outside() {
    let backend = backend(|config| config.webhook_networks = "10.0.0.0/8".parse().unwrap()).await;
    let (inside, address) = Inside::new().await;
    let path = "private/webhooks";
    for url in [
        "http://127.0.0.1/x",
        "http://[::ffff:169.254.169.254]/",
        "http://192.168.1.1/",
        "http://",
        "javascript:x",
    ] {
        is_error(&backend.post(path, &hook("h", url)).await, 400, 26);
    }
    assert_eq!(backend.post(path, &hook("inner", "http://10.1.2.3/x")).await.status, 204);
    assert_eq!(backend.delete("private/webhooks/inner").await.status, 204);
    // A name is looked up when it is called.
    assert_eq!(backend.post(path, &hook("named", &format!("http://{address}/"))).await.status, 204);
    let (id, token) = backend.order(&free()).await;
    let claimed = backend.claim(&id, token.as_deref()).await;
    backend.pay(&id, &claimed, "").await;
    assert!(inside.is_quiet().await);
    backend.end().await;
}

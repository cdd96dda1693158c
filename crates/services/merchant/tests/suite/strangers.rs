//! URLs that others name: of exchanges, and of receivers of web hooks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::client::Reply;
use batzen_http::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};
use batzen_merchant::{MerchantConfig, TrustedExchange, signkeys};
use batzen_protocol::Currency;
use batzen_protocol::api::merchant::ContractAuditor;
use batzen_service::storage::StoreConfig;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::{Backend, Claimed, eventually, free, is_error, market, shop};
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
    Backend::with(change).await.and_shop().await
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
    let (exchange, backend) = market().await;
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
    eventually("the question", async || backend.get("private/kyc").await.status == 202).await;
    let seen: Value = backend.get("private/kyc").await.json().unwrap();
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
}

#[tokio::test]
async fn no_url_of_a_customer_is_asked() {
    let (exchange, stranger) = (Exchange::start().await, Exchange::with_values(&[1000, 700]).await);
    let coin = stranger.coin("KUDOS:10").await;
    let asked = stranger.count("GET /");
    let key = EddsaPrivateKey::generate();
    let (inside, address) = Inside::new().await;
    let (lists, drain) = serve(200, br#"{ "exchanges": [] }"#.to_vec()).await;
    let without = Backend::with_exchange(&exchange).await;
    let with_auditor = |url: String| {
        let (exchange, auditor) = (trusted(&exchange), auditor(&key, &url));
        backend(|config| (config.exchanges, config.auditors) = (vec![exchange], vec![auditor]))
    };
    let listed_nowhere = with_auditor(lists).await;
    // It may list the exchange.
    let silent = with_auditor("http://127.0.0.1:1/".to_owned()).await;
    for (backend, (status, code)) in
        [(without, (400, 2152)), (listed_nowhere, (400, 2152)), (silent, (500, 2012))]
    {
        for url in [format!("http://{address}/"), "http://127.0.0.1:1/".to_owned(), stranger.url.clone()] {
            let offer = backend.offer().await;
            let reply = pay_at(&backend, &offer, (&stranger, &coin), &url).await;
            is_error(&reply, status, code);
        }
        let (id, claimed) = backend.offer().await;
        let coins: Vec<Value> = (0..4)
            .map(|n| {
                let mut coin = Coin::pay(&coin, &stranger, &claimed.terms, claimed.h_contract);
                coin["coin_pub"] = json!(EddsaPrivateKey::generate().public_key());
                coin["exchange_url"] = json!(format!("http://{address}/{n}/"));
                coin
            })
            .collect();
        is_error(&backend.post(&format!("orders/{id}/pay"), &json!({ "coins": coins })).await, 400, 26);
        // Nor is a URL that a shop names.
        let wish = json!({ "initial_balance": "KUDOS:10", "exchange_url": format!("http://{address}/"), "wire_method": "x-taler-bank" });
        assert!(backend.post("private/reserves", &wish).await.status >= 400);
        backend.end().await;
    }
    assert!(inside.is_quiet().await);
    assert_eq!(stranger.count("GET /"), asked);
    drain.trigger();
}

#[tokio::test]
async fn an_exchange_without_configuration_is_asked_where_an_auditor_lists_it() {
    let key = EddsaPrivateKey::generate();
    let exchange = Exchange::approved_by(&key, "http://127.0.0.1:1/").await;
    let proxy = exchange.proxy().await;
    let audited =
        json!({ "exchanges": [{ "master_pub": exchange.master_pub(), "exchange_url": exchange.url }] });
    let (lists, drain) = serve(200, serde_json::to_vec(&audited).unwrap()).await;
    // It must approve of the coins, too.
    let other = auditor(&EddsaPrivateKey::generate(), &lists);
    let terms = json!([{ "name": "a", "auditor_pub": other.auditor_pub, "url": lists }]);
    let without_approval = backend(|config| config.auditors = vec![other]).await;
    let offer = without_approval.offer().await;
    assert_eq!(offer.1.terms["auditors"], terms);
    let coin = exchange.coin("KUDOS:10").await;
    is_error(&pay_at(&without_approval, &offer, (&exchange, &coin), &exchange.url).await, 400, 2152);
    without_approval.end().await;
    let backend = backend(|config| config.auditors = vec![auditor(&key, &lists)]).await;
    let pending = json!({ "execution_time": { "t_s": 1 }, "kyc_ok": false, "requirement_row": 7 });
    exchange.answer("GET /deposits/", 202, pending);
    exchange.answer("GET /kyc-check/7/", 202, json!({ "kyc_url": "http://id.example/" }));
    // Once it is known, its coins tell.
    for (url, status) in [(&proxy.url, 400), (&exchange.url, 200), (&proxy.url, 200)] {
        let (offer, coin) = (backend.offer().await, exchange.coin("KUDOS:10").await);
        let reply = pay_at(&backend, &offer, (&exchange, &coin), url).await;
        assert_eq!(reply.status, status, "{:?}", reply.json::<Value>());
    }
    eventually("the question", async || backend.get("private/kyc").await.status == 202).await;
    assert_eq!(proxy.count("GET /"), 0);
    backend.end().await;
    drain.trigger();
}

/// The exchange's list is all that tells of a revocation, and somebody may show an older list.
#[tokio::test]
async fn a_signing_key_that_was_left_out_once_sells_nothing_again() {
    let directory = tempfile::tempdir().unwrap();
    let auditor_key = EddsaPrivateKey::generate();
    let exchange = Exchange::approved_by(&auditor_key, "http://127.0.0.1:1/").await;
    let audited =
        json!({ "exchanges": [{ "master_pub": exchange.master_pub(), "exchange_url": exchange.url }] });
    let (lists, drain) = serve(200, serde_json::to_vec(&audited).unwrap()).await;
    let client = batzen_http::client::Client::new(&Default::default()).unwrap();
    let keys: Value = client.get_json(format!("{}keys", exchange.url)).await.unwrap().ok().unwrap();
    let (listed, others) = (&keys["signkeys"], exchange.other_signkeys(&keys["signkeys"]));
    for name in ["configured", "audited"] {
        let start = async |seconds: u64| {
            let store = StoreConfig::embedded(directory.path().join(name));
            let backend = Backend::with(|config| {
                config.store = store;
                match name {
                    "configured" => config.exchanges = vec![trusted(&exchange)],
                    _ => config.auditors = vec![auditor(&auditor_key, &lists)],
                }
            });
            let backend = backend.await;
            backend.now.fetch_add(seconds, Ordering::SeqCst);
            backend.and_shop().await
        };
        // What the exchange lists, and whether a confirmation of its key counts. An empty list withdraws nothing: no exchange has one.
        for (after, signkeys, status) in [
            (0, listed, 200),
            (8_000, &json!([]), 502),
            (8_100, listed, 200),
            (8_200, &others, 502),
            (8_300, listed, 502),
        ] {
            exchange.replace_in_keys("signkeys", signkeys.clone());
            let backend = start(after).await;
            let (offer, coin) = (backend.offer().await, exchange.coin("KUDOS:10").await);
            let reply = pay_at(&backend, &offer, (&exchange, &coin), &exchange.url).await;
            assert_eq!(reply.status, status, "{name}, after {after} s: {:?}", reply.json::<Value>());
            backend.end().await;
        }
        // Until the operator says otherwise.
        let mut config = MerchantConfig::new(Currency::new("KUDOS").unwrap());
        config.store = StoreConfig::embedded(directory.path().join(name));
        let is_withdrawn: Vec<bool> = signkeys::remembered(&config)
            .unwrap()
            .into_iter()
            .map(|(_, row)| row.withdrawn.is_some())
            .collect();
        assert!(is_withdrawn.contains(&true) && is_withdrawn.contains(&false), "{is_withdrawn:?}");
        assert_eq!(signkeys::forget(&config, exchange.master_pub()).unwrap(), is_withdrawn.len());
        let backend = start(8_400).await;
        let (offer, coin) = (backend.offer().await, exchange.coin("KUDOS:10").await);
        assert_eq!(pay_at(&backend, &offer, (&exchange, &coin), &exchange.url).await.status, 200, "{name}");
        backend.end().await;
    }
    drain.trigger();
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
    // The silent receiver is waited for ten seconds.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
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
    let (id, claimed) = backend.claimed_order(&free()).await;
    backend.pay(&id, &claimed, "").await;
    assert!(inside.is_quiet().await);
    backend.end().await;
}

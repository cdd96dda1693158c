//! A backend without exchanges: its contracts can be paid if they cost nothing.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_merchant::{ListenConfig, MerchantConfig, RunningMerchant, TrustedExchange};
use batzen_protocol::canonical::contract_hash;
use batzen_protocol::signatures::{MerchantContract, MerchantPaymentOk, SignedMessage};
use batzen_protocol::{Timestamp, api::merchant::ClaimResponse, api::merchant::PayResponse};
use serde_json::{Value, json};

use crate::exchange::{Coin, Exchange};

/// The time at which the world of the exchanges begins.
pub(crate) const NOW_S: u64 = 1_700_000_000;

/// The networks where tests have receivers of web hooks and strange exchanges.
pub(crate) const THIS_MACHINE: &str = "127.0.0.0/8 ::1";

/// A running backend and its clock.
pub(crate) struct Backend {
    pub merchant: RunningMerchant,
    pub client: Client,
    pub now: Arc<AtomicU64>,
}

/// An order that a wallet has claimed.
pub(crate) struct Claimed {
    pub terms: Value,
    pub h_contract: HashCode,
    pub merchant_pub: EddsaPublicKey,
}

/// Returns the body that creates a shop.
pub(crate) fn shop(id: &str, token: Option<&str>) -> Value {
    let auth = match token {
        Some(token) => json!({ "method": "token", "token": token }),
        None => json!({ "method": "external" }),
    };
    json!({
        "id": id, "name": "Books", "auth": auth,
        "payto_uris": ["payto://x-taler-bank/localhost/books?receiver-name=books"],
        "address": { "country": "CH" }, "jurisdiction": {},
        "default_max_wire_fee": "KUDOS:1", "default_max_deposit_fee": "KUDOS:1",
        "default_wire_fee_amortization": 1,
        "default_wire_transfer_delay": { "d_us": 86_400_000_000_u64 }, "default_pay_delay": { "d_us": 3_600_000_000_u64 },
    })
}

/// An order that costs nothing.
pub(crate) fn free() -> Value {
    json!({ "order": { "amount": "KUDOS:0", "summary": "a leaflet" } })
}

impl Backend {
    pub(crate) async fn start() -> Self {
        let nobody = TrustedExchange {
            url: "http://localhost:1/".to_owned(),
            master_pub: EddsaPrivateKey::generate().public_key(),
        };
        Self::with(|config| config.exchanges = vec![nobody]).await
    }

    /// With a shop, and an exchange that is accepted.
    pub(crate) async fn with_exchange(exchange: &Exchange) -> Self {
        let (url, master_pub) = (exchange.url.clone(), exchange.master_pub());
        let backend = Self::with(|config| config.exchanges = vec![TrustedExchange { url, master_pub }]).await;
        backend.and_shop().await
    }

    /// With a configuration that is changed.
    pub(crate) async fn with(change: impl FnOnce(&mut MerchantConfig)) -> Self {
        let now = Arc::new(AtomicU64::new(NOW_S));
        let clock = Arc::clone(&now);
        let mut config = MerchantConfig {
            place: ListenConfig::Tcp { host: Some("127.0.0.1".to_owned()), port: 0 },
            clock: Arc::new(move || Timestamp::from_secs(clock.load(Ordering::SeqCst))),
            webhook_networks: THIS_MACHINE.parse().unwrap(),
            exchange_networks: THIS_MACHINE.parse().unwrap(),
            ..MerchantConfig::new("KUDOS".parse().unwrap())
        };
        change(&mut config);
        let merchant = RunningMerchant::start(config).await.unwrap();
        let client = Client::new(&ClientOptions::default()).unwrap();
        Self { merchant, client, now }
    }

    /// With an instance `default` that a proxy protects.
    pub(crate) async fn with_shop() -> Self {
        Self::start().await.and_shop().await
    }

    /// The same backend with an instance `default` that a proxy protects.
    pub(crate) async fn and_shop(self) -> Self {
        assert_eq!(self.post("management/instances", &shop("default", None)).await.status, 204);
        self
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", self.merchant.bound().port().unwrap())
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> Reply {
        let method = method.parse().unwrap();
        let mut call = self.client.call(method, self.url(path));
        if let Some(body) = body {
            call = call.json(body);
        }
        if let Some(token) = token {
            call = call.header("authorization", &format!("Bearer {token}"));
        }
        call.send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, None, None).await
    }

    pub(crate) async fn page(&self, path: &str) -> Reply {
        self.client.get(self.url(path)).header("accept", "text/html").send().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, Some(body), None).await
    }

    /// Creates an order; returns its id and its claim token.
    pub(crate) async fn order(&self, wish: &Value) -> (String, Option<String>) {
        let reply = self.post("private/orders", wish).await;
        let answer: Value = reply.ok().unwrap();
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        (text("order_id").unwrap(), text("token"))
    }

    /// Claims an order for a new wallet, and checks the contract.
    pub(crate) async fn claim(&self, id: &str, token: Option<&str>) -> Claimed {
        let nonce = EddsaPrivateKey::generate().public_key().to_string();
        let reply =
            self.post(&format!("orders/{id}/claim"), &json!({ "nonce": nonce, "token": token })).await;
        let ClaimResponse { contract_terms: terms, sig } = reply.ok().unwrap();
        let h_contract = contract_hash(&terms).unwrap();
        let merchant_pub: EddsaPublicKey = terms["merchant_pub"].as_str().unwrap().parse().unwrap();
        assert!(MerchantContract { h_contract_terms: h_contract }.verify(&merchant_pub, &sig));
        assert_eq!((&terms["nonce"], &terms["order_id"]), (&json!(nonce), &json!(id)));
        Claimed { terms, h_contract, merchant_pub }
    }

    /// Creates an order, and claims it for a new wallet.
    pub(crate) async fn claimed_order(&self, wish: &Value) -> (String, Claimed) {
        let (id, token) = self.order(wish).await;
        let claimed = self.claim(&id, token.as_deref()).await;
        (id, claimed)
    }

    /// Pays an order that costs nothing. Returns the receipt.
    pub(crate) async fn pay(&self, id: &str, claimed: &Claimed, session: &str) -> String {
        let reply =
            self.post(&format!("orders/{id}/pay"), &json!({ "coins": [], "session_id": session })).await;
        let PayResponse { sig } = reply.ok().unwrap();
        assert!(
            MerchantPaymentOk { h_contract_terms: claimed.h_contract }.verify(&claimed.merchant_pub, &sig)
        );
        sig.to_string()
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Reply {
        self.send("PATCH", path, Some(body), None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, None, None).await
    }

    /// A claimed order of KUDOS:10.
    pub(crate) async fn offer(&self) -> (String, Claimed) {
        self.claimed_order(&json!({ "order": { "amount": "KUDOS:10", "summary": "two books" } })).await
    }

    /// Pays a claimed order with coins.
    pub(crate) async fn pay_with(
        &self,
        exchange: &Exchange,
        id: &str,
        claimed: &Claimed,
        coins: &[impl Borrow<Coin>],
    ) -> Reply {
        let pay = |coin: &Coin| coin.pay(exchange, &claimed.terms, claimed.h_contract);
        let coins: Vec<Value> = coins.iter().map(|coin| pay(coin.borrow())).collect();
        self.post(&format!("orders/{id}/pay"), &json!({ "coins": coins })).await
    }

    /// A paid order of KUDOS:5, refundable for an hour.
    pub(crate) async fn sale(&self, exchange: &Exchange, coin: &Coin) -> (String, Claimed) {
        let wish = json!({
            "order": { "amount": "KUDOS:5", "summary": "a book" }, "refund_delay": { "d_us": 3_600_000_000_u64 },
        });
        let (id, claimed) = self.claimed_order(&wish).await;
        let reply = self.pay_with(exchange, &id, &claimed, &[coin]).await;
        assert_eq!(reply.status, 200, "{:?}", reply.json::<Value>());
        (id, claimed)
    }

    pub(crate) async fn end(self) {
        self.merchant.shutdown().await.unwrap();
    }
}

/// An exchange, and a backend with a shop that accepts its coins.
pub(crate) async fn market() -> (Exchange, Backend) {
    let exchange = Exchange::start().await;
    let backend = Backend::with_exchange(&exchange).await;
    (exchange, backend)
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..2_400 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("timed out waiting for {what}");
}

pub(crate) fn is_error(reply: &Reply, status: u16, code: u32) {
    let body: Value = reply.json().unwrap();
    assert_eq!((reply.status, body["code"].as_u64()), (status, Some(code.into())), "{} {body}", reply.url);
}

//! A customer of a running exchange: fills reserves, withdraws coins and spends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, ExchangeWithdrawValues, PlanchetMasterSecret};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::api::exchange::{BlindSignature, CsrWithdrawRequest, KeysResponse, WithdrawValues};
use batzen_service::wire_gateway::{AddIncomingRequest, GatewayAuth, WireGatewayClient};
use serde::Serialize;

use super::PATIENCE;
use crate::crash::coins::{CURRENCY, Coin, Contract, Denom, Planchet, Shop, money};

pub(crate) struct Customer {
    pub client: Client,
    /// Ports of the exchange's services.
    pub exchange_ports: Vec<u16>,
    pub bank_port: u16,
    /// Requests so far.
    asked: AtomicUsize,
}

impl Customer {
    pub(crate) fn new(exchange_ports: Vec<u16>, bank_port: u16) -> Self {
        let client = Client::new(&ClientOptions::default()).unwrap();
        Self { client, exchange_ports, bank_port, asked: AtomicUsize::new(0) }
    }

    /// A URL for the next request; several services take turns.
    pub(crate) fn url(&self, path: &str) -> String {
        let turn = self.asked.fetch_add(1, Ordering::Relaxed) % self.exchange_ports.len();
        format!("http://localhost:{}/{path}", self.exchange_ports[turn])
    }

    pub(crate) async fn keys(&self) -> KeysResponse {
        self.client.get_json(self.url("keys")).await.unwrap().ok().unwrap()
    }

    pub(crate) async fn reserve(&self, amount: &str) -> EddsaPrivateKey {
        let key = EddsaPrivateKey::generate();
        let url = format!("http://localhost:{}/taler-wire-gateway/exchange/", self.bank_port);
        let bank = WireGatewayClient::new(self.client.clone(), &url, GatewayAuth::None);
        let request = AddIncomingRequest {
            reserve_pub: key.public_key(),
            amount: money(amount).of(CURRENCY),
            debit_account: "payto://x-taler-bank/localhost/ann?receiver-name=ann".into(),
        };
        bank.add_incoming(&request).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        let url = self.url(&format!("reserves/{}", key.public_key()));
        while self.client.get_json(&url).await.unwrap().status != 200 {
            assert!(Instant::now() < deadline, "a credit does not arrive at the exchange");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        key
    }

    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> Reply {
        self.client.post_json(self.url(path), body).await.unwrap()
    }

    /// Withdraws a coin and verifies it.
    pub(crate) async fn withdraw(&self, reserve: &EddsaPrivateKey, denom: &Arc<Denom>) -> Coin {
        let master = PlanchetMasterSecret::generate();
        let mut values = ExchangeWithdrawValues::Rsa;
        if denom.is_cs() {
            let request = CsrWithdrawRequest { nonce: master.cs_nonce(), denom_pub_hash: denom.hash };
            let reply = self.post("csr-withdraw", &request).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            values = reply.ok::<WithdrawValues>().unwrap().ewv;
        }
        let planchet = Planchet::new(&master, Arc::clone(denom), &values);
        let path = format!("reserves/{}/withdraw", reserve.public_key());
        let reply = self.post(&path, &planchet.request(reserve)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let signature: BlindSignature = reply.ok().unwrap();
        planchet.finish(&signature.ev_sig)
    }

    pub(crate) async fn withdraw_and_pay(&self, reserve: &EddsaPrivateKey, denom: &Arc<Denom>, shop: &Shop) {
        let coin = self.withdraw(reserve, denom).await;
        let body = coin.deposit(shop, &Contract::due(), denom.value);
        let reply = self.post(&format!("coins/{}/deposit", coin.key_pub), &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Withdraws and pays until `ends` is set; every request must be answered as under normal conditions.
    pub(crate) async fn load(self: Arc<Self>, ends: Arc<AtomicBool>, done: Arc<AtomicU64>) {
        let denoms = Denom::offered(&self.client, &self.url("")).await;
        let shop = Shop::new("bakery");
        let reserve = self.reserve("2000").await;
        while !ends.load(Ordering::Acquire) {
            for denom in &denoms {
                self.withdraw_and_pay(&reserve, denom, &shop).await;
                done.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// Waits until `more` further payments have been made.
pub(crate) async fn go_on(done: &AtomicU64, more: u64, load: &mut tokio::task::JoinSet<()>) {
    let (target, deadline) = (done.load(Ordering::Acquire) + more, Instant::now() + PATIENCE);
    while done.load(Ordering::Acquire) < target {
        if let Some(ended) = load.try_join_next() {
            ended.unwrap();
        }
        assert!(Instant::now() < deadline, "payments have come to a halt");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

//! A customer of a running exchange: fills reserves, withdraws coins and spends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, ExchangeWithdrawValues, PlanchetMasterSecret};
use batzen_http::client::{Client, ClientOptions, Reply};
use batzen_protocol::Money;
use batzen_protocol::api::exchange::{BlindSignature, CsrWithdrawRequest, KeysResponse, WithdrawValues};
use batzen_service::wire_gateway::{AddIncomingRequest, GatewayAuth, WireGatewayClient};
use serde::Serialize;
use tokio::task::JoinSet;

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
        fill(&self.client, self.bank_port, &credit(key.public_key(), money(amount), "ann")).await;
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
    async fn load(self: Arc<Self>, ends: Arc<AtomicBool>, done: Arc<AtomicU64>) {
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

/// Money from a bank account for a reserve.
pub(crate) fn credit(reserve_pub: EddsaPublicKey, amount: Money, payer: &str) -> AddIncomingRequest {
    let debit_account = format!("payto://x-taler-bank/localhost/{payer}?receiver-name={payer}");
    AddIncomingRequest { reserve_pub, amount: amount.of(CURRENCY), debit_account }
}

/// Has the bank credit a reserve.
pub(crate) async fn fill(client: &Client, bank_port: u16, credit: &AddIncomingRequest) {
    let url = format!("http://localhost:{bank_port}/taler-wire-gateway/exchange/");
    let bank = WireGatewayClient::new(client.clone(), &url, GatewayAuth::None);
    bank.add_incoming(credit).await.unwrap();
}

/// Customers who withdraw and pay at the same time.
pub(crate) struct Crowd {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    customers: JoinSet<()>,
}

impl Crowd {
    pub(crate) fn start(customer: &Arc<Customer>, count: usize) -> Self {
        let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let load = |_| Arc::clone(customer).load(Arc::clone(&ends), Arc::clone(&done));
        let customers = (0..count).map(load).collect();
        Self { ends, done, customers }
    }

    /// Waits until `more` further payments have been made.
    pub(crate) async fn go_on(&mut self, more: u64) {
        let (target, deadline) = (self.done.load(Ordering::Acquire) + more, Instant::now() + PATIENCE);
        while self.done.load(Ordering::Acquire) < target {
            if let Some(ended) = self.customers.try_join_next() {
                ended.unwrap();
            }
            assert!(Instant::now() < deadline, "payments have come to a halt");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets the customers finish. Returns how many payments were made.
    pub(crate) async fn end(self) -> u64 {
        self.ends.store(true, Ordering::Release);
        self.customers.join_all().await;
        self.done.load(Ordering::Acquire)
    }
}

//! A shop with the real merchant backend, which knows the exchanges under addresses of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_http::client::Client;
use batzen_merchant::{ListenConfig, MerchantConfig, RunningMerchant, TrustedExchange};
use batzen_protocol::signatures::{MerchantContract, SignedMessage};
use batzen_protocol::{Duration, Money, Timestamp, canonical};
use batzen_tables::merchant::{
    InstanceKey, Instances, OrderDepositRow, OrderDeposits, OrderKey, OrderRefundRow, OrderRefunds, OrderRow,
    OrderSessionKey, OrderSessions, Orders, TipKey, TipPickups, TipRow, Tips, order_ref, session_ref,
};
use batzen_wallet::Clock as _;
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::gate::Gate;
use super::network::{Network, client, lock};
use super::{EXCHANGE, SECOND, START, Site, TestClock, World, amount, currency};

/// Base URL of the shop: an instance of its backend.
pub const MERCHANT: &str = "http://shop.test/instances/kiosk/";
/// Base URL of the backend.
pub(super) const BACKEND: &str = "http://shop.test/";
const INSTANCE: &str = "kiosk";
const PAYTO: &str = "payto://x-taler-bank/bank.test/kiosk?receiver-name=kiosk";

pub struct Shop {
    merchant: Option<RunningMerchant>,
    network: Arc<Network>,
    clock: Arc<TestClock>,
    client: Client,
    /// Its ways to the exchanges.
    gates: Vec<Gate>,
    /// Claim tokens of the orders.
    tokens: Mutex<BTreeMap<String, String>>,
    tips: Mutex<BTreeMap<String, HashCode>>,
}

impl Shop {
    /// Opens a shop that accepts the coins of the world's exchange.
    pub async fn open(world: &World) -> Self {
        Self::with(world, None).await
    }

    /// Opens a shop that also accepts the coins of a second exchange.
    pub async fn open_for_both(world: &World, second: &Site) -> Self {
        Self::with(world, Some(second)).await
    }

    async fn with(world: &World, second: Option<&Site>) -> Self {
        let mut gates = Vec::new();
        let mut exchanges = Vec::new();
        let sites = [(EXCHANGE, Some(&world.exchange)), (SECOND, second)];
        for (name, site) in sites.into_iter().filter_map(|(name, site)| Some((name, site?))) {
            let gate = Gate::open(&world.network, name).await;
            exchanges.push(TrustedExchange { url: gate.url.clone(), master_pub: site.master_pub() });
            gates.push(gate);
        }
        let clock = Arc::clone(&world.clock);
        let config = MerchantConfig {
            place: ListenConfig::Tcp { host: Some("127.0.0.1".to_owned()), port: 0 },
            exchanges,
            clock: Arc::new(move || clock.now()),
            ..MerchantConfig::new(currency())
        };
        let merchant = RunningMerchant::start(config).await.expect("a merchant backend");
        let url = format!("http://127.0.0.1:{}/", merchant.bound().port().expect("a TCP port"));
        world.network.connect_shop(&url, gates.iter().map(|gate| gate.url.clone()));
        let shop = Self {
            merchant: Some(merchant),
            network: Arc::clone(&world.network),
            clock: Arc::clone(&world.clock),
            client: client(),
            gates,
            tokens: Mutex::default(),
            tips: Mutex::default(),
        };
        let instance = json!({
            "id": INSTANCE, "name": "Kiosk", "email": "kiosk@shop.test", "auth": { "method": "external" },
            "payto_uris": [PAYTO], "address": {}, "jurisdiction": {},
            "default_max_wire_fee": "KUDOS:0.05", "default_max_deposit_fee": "KUDOS:0.05",
            "default_wire_fee_amortization": 1,
            "default_wire_transfer_delay": Duration::from_days(3), "default_pay_delay": Duration::from_days(2),
        });
        shop.post_at(format!("{url}management/instances"), &instance).await;
        shop
    }

    fn merchant(&self) -> &RunningMerchant {
        self.merchant.as_ref().expect("it runs until it is dropped")
    }

    async fn post_at(&self, url: String, body: &Value) -> Value {
        let call = self.client.post(&url).json(body).header("x-forwarded-host", "shop.test");
        let reply = call.send().await.expect("the backend answers");
        assert!(reply.status < 300, "{url}: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let port = self.merchant().bound().port().expect("a TCP port");
        self.post_at(format!("http://127.0.0.1:{port}/instances/{INSTANCE}/private/{path}"), body).await
    }

    pub fn key(&self) -> EddsaPrivateKey {
        let found = self.merchant().store().get::<Instances>(&InstanceKey::new(INSTANCE));
        let row = found.expect("the store is readable").expect("an instance").row;
        EddsaPrivateKey::from_bytes(row.merchant_priv.expect("it is not deleted"))
    }

    /// Creates an order; `change` may change what the shop asks for. Returns its URI.
    pub async fn order(&self, id: &str, amount: &str, change: impl FnOnce(&mut Value)) -> String {
        let later = |days| START.saturating_add(Duration::from_days(days));
        let mut order = json!({
            "order_id": id, "summary": format!("a {id}"), "amount": amount, "timestamp": START,
            "refund_deadline": later(1), "pay_deadline": later(2), "wire_transfer_deadline": later(3),
        });
        change(&mut order);
        let made = self.post("orders", &json!({ "order": order })).await;
        let token = made["token"].as_str().expect("a claim token").to_owned();
        lock(&self.tokens).insert(id.to_owned(), token);
        self.uri(id, "")
    }

    /// The URI of an order for a session.
    pub fn uri(&self, id: &str, session: &str) -> String {
        let token = lock(&self.tokens).get(id).cloned().unwrap_or_default();
        format!("taler+http://pay/shop.test/instances/{INSTANCE}/{id}/{session}?c={token}")
    }

    /// The URI that the shop shows the customer of a refund.
    pub fn refund_uri(id: &str) -> String {
        format!("taler+http://refund/shop.test/instances/{INSTANCE}/{id}/")
    }

    fn row(&self, id: &str) -> OrderRow {
        let found = self.merchant().store().get::<Orders>(&OrderKey { order: order_ref(INSTANCE, id) });
        found.expect("the store is readable").expect("an order").row
    }

    /// Returns whether an order is paid.
    pub fn is_paid(&self, id: &str) -> bool {
        self.row(id).paid.is_some()
    }

    /// Coins that the exchanges have accepted for an order.
    pub fn deposits(&self, id: &str) -> Vec<OrderDepositRow> {
        let order = order_ref(INSTANCE, id);
        let found = self.merchant().store().lookup::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
        found.expect("the store is readable").into_iter().map(|found| found.row).collect()
    }

    /// Contributions of these coins, in units.
    pub fn deposited(&self, id: &str) -> i128 {
        self.deposits(id).iter().map(|row| units(row.amount)).sum()
    }

    pub fn refunds(&self, id: &str) -> Vec<OrderRefundRow> {
        let order = order_ref(INSTANCE, id);
        let found = self.merchant().store().lookup::<OrderRefunds>(OrderRefunds::BY_ORDER, &order);
        found.expect("the store is readable").into_iter().map(|found| found.row).collect()
    }

    /// Returns whether an order is paid in a session.
    pub fn is_paid_in(&self, id: &str, session: &str) -> bool {
        let key = OrderSessionKey { order: order_ref(INSTANCE, id), session: session_ref(session) };
        self.merchant().store().get::<OrderSessions>(&key).expect("the store is readable").is_some()
    }

    /// Approves a further refund at this time.
    pub async fn approve(&self, id: &str, sum: &str, time: Timestamp) {
        self.clock.set(time);
        let total = self.row(id).refund_approved.checked_add(amount(sum).money).expect("a small sum");
        let body = json!({ "refund": total.of(currency()), "reason": "sorry" });
        self.post(&format!("orders/{id}/refund"), &body).await;
    }

    /// Gives a tip from a reserve of its own. Returns its URI.
    pub async fn tip(&self, world: &World, id: &str, sum: &str) -> String {
        // The exchange may fail later, but not before the shop knows that its reserve is filled.
        let is_away = self.is_exchange_away();
        self.set_exchange_away(false);
        let body = json!({ "initial_balance": sum, "exchange_url": self.gates[0].url, "wire_method": "x-taler-bank" });
        let made = self.post("reserves", &body).await;
        let reserve_pub = made["reserve_pub"].as_str().expect("a key");
        world.credit(reserve_pub.parse().expect("a key"), amount(sum)).await;
        let tip = json!({ "amount": sum, "justification": id, "next_url": "http://shop.test/" });
        let given = self.post(&format!("reserves/{reserve_pub}/authorize-tip"), &tip).await;
        self.set_exchange_away(is_away);
        let tip_id = given["tip_id"].as_str().expect("an id").parse().expect("an id");
        lock(&self.tips).insert(id.to_owned(), tip_id);
        given["taler_tip_uri"].as_str().expect("a URI").to_owned()
    }

    fn tip_id(&self, id: &str) -> HashCode {
        lock(&self.tips)[id]
    }

    pub fn tip_row(&self, id: &str) -> TipRow {
        let found = self.merchant().store().get::<Tips>(&TipKey { tip_id: self.tip_id(id) });
        found.expect("the store is readable").expect("a tip").row
    }

    /// Number of the pick-ups of a tip.
    pub fn pickups(&self, id: &str) -> usize {
        let found = self.merchant().store().lookup::<TipPickups>(TipPickups::BY_TIP, &self.tip_id(id));
        found.expect("the store is readable").len()
    }

    /// Number of the requests to pay orders.
    pub fn pays(&self) -> usize {
        self.network.count("/pay")
    }

    /// Makes the exchanges unreachable for the shop, or reachable again.
    pub fn set_exchange_away(&self, is_away: bool) {
        self.gates.iter().for_each(|gate| gate.set_away(is_away));
    }

    /// Returns whether the exchanges are unreachable for the shop.
    pub fn is_exchange_away(&self) -> bool {
        self.gates[0].is_away()
    }

    /// Makes the exchanges fail after this number of coins of each payment, or work again.
    pub fn set_stop_after(&self, coins: Option<usize>) {
        self.gates.iter().for_each(|gate| gate.set_stop_after(coins));
    }

    /// The number of coins of each payment after which the exchanges fail.
    pub fn stop_after(&self) -> Option<usize> {
        self.gates[0].stop_after()
    }

    /// Changes the shop's answers on their way.
    pub fn lie(&self, mut change: impl FnMut(&HttpRequest, HttpResponse) -> HttpResponse + Send + 'static) {
        self.network.change_answers(move |request, answer| {
            if request.url.starts_with(MERCHANT) { change(request, answer) } else { answer }
        });
    }

    /// Carries all answers unchanged from now on.
    pub fn be_honest(&self) {
        self.network.be_honest();
    }

    /// Changes contracts, and signs them with the shop's key.
    pub fn forge_contracts(&self, mut change: impl FnMut(&mut Value) + Send + 'static) {
        let key = self.key();
        self.lie(move |request, answer| {
            if !request.url.ends_with("/claim") || answer.status != 200 {
                return answer;
            }
            let mut body: Value = serde_json::from_slice(&answer.body).expect("JSON");
            change(&mut body["contract_terms"]);
            let h_contract_terms =
                canonical::contract_hash(&body["contract_terms"]).unwrap_or(HashCode::ZERO);
            body["sig"] = json!(MerchantContract { h_contract_terms }.sign(&key));
            HttpResponse { body: serde_json::to_vec(&body).expect("JSON"), ..answer }
        });
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        if let (Some(merchant), Ok(runtime)) = (self.merchant.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(merchant.shutdown());
        }
    }
}

fn units(money: Money) -> i128 {
    i128::try_from(money.units()).expect("a small amount")
}

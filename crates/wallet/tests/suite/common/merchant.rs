//! A merchant's backend in memory, which really deposits the coins at the exchange of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use batzen_crypto::{
    AgeCommitment, AgeMask, AgePublicKey, AgeSignature, DenomSignature, EddsaPrivateKey, EddsaPublicKey,
    EddsaSignature, HashCode, ShortHash, WireSalt,
};
use batzen_protocol::api::exchange::DepositRequest;
use batzen_protocol::signatures::{MerchantContract, MerchantPaymentOk, SignedMessage};
use batzen_protocol::{Amount, Duration, Timestamp, canonical, payto};
use batzen_wallet::core::http::{Context, HttpRequest, HttpResponse, Method};
use serde::Deserialize;
use serde_json::{Value, json};

use super::exchange::{EXCHANGE, FakeExchange, SECOND, body, error, error_with, ok};
use super::refunds::FakeRefund;
use super::tips::FakeTip;
use super::{START, World};

/// Base URL of the shop: an instance of its backend.
pub const MERCHANT: &str = "http://shop.test/instances/kiosk/";
const PAYTO: &str = "payto://x-taler-bank/bank.test/kiosk?receiver-name=kiosk";

/// One coin of a payment, as the wallet sends it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Permission {
    coin_pub: EddsaPublicKey,
    coin_sig: EddsaSignature,
    ub_sig: DenomSignature,
    h_denom: HashCode,
    contribution: Amount,
    exchange_url: String,
    minimum_age_sig: Option<AgeSignature>,
    age_commitment: Option<Vec<AgePublicKey>>,
    h_age_commitment: Option<ShortHash>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pay {
    coins: Vec<Permission>,
    #[serde(default)]
    session_id: String,
}

pub struct FakeOrder {
    pub contract: Value,
    claim_token: Option<String>,
    pub(super) nonce: Option<EddsaPublicKey>,
    /// Contribution and deposit fee, in units, of every coin that the exchange has accepted.
    pub deposited: BTreeMap<EddsaPublicKey, (i128, i128)>,
    /// Exchanges of these coins.
    exchanges: BTreeSet<String>,
    pub is_paid: bool,
    pub sessions: Vec<String>,
    pub refunds: Vec<FakeRefund>,
}

/// Changes an answer of the merchant.
pub type Lie = Box<dyn FnMut(&HttpRequest, HttpResponse) -> HttpResponse + Send>;

pub struct FakeMerchant {
    pub key: EddsaPrivateKey,
    salt: WireSalt,
    pub orders: BTreeMap<String, FakeOrder>,
    pub tips: BTreeMap<String, FakeTip>,
    pub lie: Option<Lie>,
    /// The exchange seems to be out of order after this many deposits of a payment.
    pub stop_after: Option<usize>,
    /// The exchange does not answer when the merchant refunds.
    pub is_exchange_away: bool,
    /// Another exchange whose coins it accepts.
    pub second: Option<Arc<Mutex<FakeExchange>>>,
    /// Wire fee, maximum and amortization are those of the contract; the fee itself is the exchange's.
    fee_wire: i128,
    /// `pay` requests that came.
    pub pays: usize,
}

/// A handle to the merchant.
pub type Shop = Arc<Mutex<FakeMerchant>>;

fn units(amount: &Value) -> i128 {
    amount.as_str().unwrap().parse::<Amount>().unwrap().money.units() as i128
}

impl FakeMerchant {
    /// Opens a shop in this world.
    pub fn open(world: &World) -> Shop {
        let fee_wire = i128::from(world.exchange.lock().unwrap().terms.fee_wire) * 1_000_000;
        let shop = Arc::new(Mutex::new(Self {
            key: EddsaPrivateKey::generate(),
            salt: WireSalt::from_bytes([7; 16]),
            orders: BTreeMap::new(),
            tips: BTreeMap::new(),
            lie: None,
            stop_after: None,
            is_exchange_away: false,
            second: None,
            fee_wire,
            pays: 0,
        }));
        Self::reopen(world, &shop);
        shop
    }

    /// Answers the wallet's requests to the shop.
    pub fn reopen(world: &World, shop: &Shop) {
        let handle = Arc::clone(shop);
        world.network.lie(move |request, exchange, now| {
            let path = request.url.strip_prefix(MERCHANT)?;
            Some(handle.lock().unwrap().answer(path, request, exchange, now))
        });
    }

    /// Creates an order. `change` may change any of the contract's members. Returns its URI.
    pub fn order(
        &mut self,
        exchange: &FakeExchange,
        id: &str,
        amount: &str,
        change: impl FnOnce(&mut Value),
    ) -> String {
        let later = |days| START.saturating_add(Duration::from_days(days));
        let mut contract = json!({
            "order_id": id,
            "summary": format!("a {id}"),
            "amount": amount,
            "max_fee": "KUDOS:0.05",
            "max_wire_fee": "KUDOS:0.05",
            "wire_fee_amortization": 1,
            "products": [],
            "timestamp": START,
            "refund_deadline": later(1),
            "pay_deadline": later(2),
            "wire_transfer_deadline": later(3),
            "merchant_pub": self.key.public_key(),
            "merchant_base_url": MERCHANT,
            "merchant": { "name": "Kiosk", "email": "kiosk@shop.test", "$forgettable": { "email": "salt" } },
            "h_wire": payto::h_wire(PAYTO, &self.salt),
            "wire_method": "x-taler-bank",
            "exchanges": [
                { "url": "http://other.test/", "master_pub": EddsaPrivateKey::generate().public_key() },
                // Merchants may know the exchange by another name.
                { "url": "http://alias.test/", "master_pub": exchange.master.public_key() },
            ],
            "auditors": [],
        });
        change(&mut contract);
        let order = FakeOrder {
            contract,
            claim_token: Some("TOKEN".to_owned()),
            nonce: None,
            deposited: BTreeMap::new(),
            exchanges: BTreeSet::new(),
            is_paid: false,
            sessions: Vec::new(),
            refunds: Vec::new(),
        };
        self.orders.insert(id.to_owned(), order);
        Self::uri(id, "")
    }

    /// The URI of an order for a session.
    pub fn uri(id: &str, session: &str) -> String {
        format!("taler+http://pay/shop.test/instances/kiosk/{id}/{session}?c=TOKEN")
    }

    pub fn answer(
        &mut self,
        path: &str,
        request: &HttpRequest,
        exchange: &mut FakeExchange,
        now: Timestamp,
    ) -> HttpResponse {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let segments: Vec<&str> = path.split('/').collect();
        let answer = match (request.method, segments.as_slice()) {
            (Method::Get, ["config"]) => {
                ok(&json!({ "version": "2:0:1", "name": "taler-merchant", "currency": "KUDOS" }))
            }
            (Method::Post, ["orders", id, "claim"]) => self.claim(id, &body(request)),
            (Method::Post, ["orders", id, "pay"]) => {
                self.pays += 1;
                self.pay(id, &body(request), exchange, now)
            }
            (Method::Get, ["tips", id]) => self.tip_status(id, now),
            (Method::Post, ["tips", id, "pickup"]) => self.pick_up_tip(id, &body(request), exchange, now),
            (Method::Get, ["orders", id]) => self.status(id, query),
            (Method::Post, ["orders", id, "refund"]) => self.pick_up(id, &body(request), exchange),
            (Method::Post, ["orders", id, "abort"]) => self.abort(id, &body(request), exchange),
            (Method::Post, ["orders", id, "paid"]) => self.paid(id, &body(request)),
            _ => error(404, 21),
        };
        match &mut self.lie {
            Some(lie) => lie(request, answer),
            None => answer,
        }
    }

    fn claim(&mut self, id: &str, request: &Value) -> HttpResponse {
        let nonce: EddsaPublicKey = request["nonce"].as_str().unwrap().parse().unwrap();
        let Some(order) = self.orders.get_mut(id) else { return error(404, 2300) };
        if order.claim_token.as_deref() != request["token"].as_str() {
            return error(404, 2300);
        }
        if *order.nonce.get_or_insert(nonce) != nonce {
            return error(409, 2301);
        }
        if order.contract.get("nonce").is_none() {
            order.contract["nonce"] = json!(nonce);
        }
        let h_contract_terms = canonical::contract_hash(&order.contract).unwrap_or(HashCode::ZERO);
        let sig = MerchantContract { h_contract_terms }.sign(&self.key);
        ok(&json!({ "contract_terms": order.contract, "sig": sig }))
    }

    fn pay(&mut self, id: &str, request: &Pay, exchange: &mut FakeExchange, now: Timestamp) -> HttpResponse {
        let (salt, merchant_pub) = (self.salt, self.key.public_key());
        let Some(order) = self.orders.get_mut(id).filter(|order| order.nonce.is_some()) else {
            return error(404, 2005);
        };
        let contract = &order.contract;
        let time = |name: &str| -> Timestamp { serde_json::from_value(contract[name].clone()).unwrap() };
        let h_contract_terms = canonical::contract_hash(contract).unwrap();
        let receipt = MerchantPaymentOk { h_contract_terms }.sign(&self.key);
        let is_same = request.coins.iter().all(|coin| order.deposited.contains_key(&coin.coin_pub));
        if order.is_paid {
            let is_same = is_same && order.deposited.len() == request.coins.len();
            return if is_same { ok(&json!({ "sig": receipt })) } else { error(409, 2160) };
        }
        if !is_same && now >= time("pay_deadline") {
            return error(410, 2161);
        }
        let min_age = contract.get("minimum_age").and_then(Value::as_u64).unwrap_or(0);
        for (count, coin) in request.coins.iter().enumerate() {
            if order.deposited.contains_key(&coin.coin_pub) {
                continue;
            }
            if self.stop_after.is_some_and(|limit| count >= limit) {
                return error(502, 2170);
            }
            let mut other = self.second.as_ref().map(|second| second.lock().unwrap());
            let exchange = match (coin.exchange_url.as_str(), &mut other) {
                (SECOND, Some(other)) => &mut **other,
                (EXCHANGE, _) => &mut *exchange,
                (url, _) => panic!("{url} is not accepted"),
            };
            let Some(denom) = exchange.denom(&coin.h_denom) else { return error(400, 2151) };
            let h_age_commitment = match h_age(coin, denom.public.age_mask, min_age) {
                Ok(hash) => hash,
                Err(code) => return error(400, code),
            };
            let fee = denom.terms.fee_deposit.money.units() as i128;
            let contribution = coin.contribution.money.units() as i128;
            if contribution < fee {
                return error(400, 2154);
            }
            let deposit = DepositRequest {
                merchant_payto_uri: PAYTO.to_owned(),
                wire_salt: salt,
                contribution: coin.contribution,
                denom_pub_hash: coin.h_denom,
                ub_sig: coin.ub_sig.clone(),
                merchant_pub,
                h_contract_terms,
                h_age_commitment,
                coin_sig: coin.coin_sig,
                timestamp: time("timestamp"),
                refund_deadline: Some(time("refund_deadline")),
                wire_transfer_deadline: time("wire_transfer_deadline"),
                policy: None,
            };
            let url = format!("{EXCHANGE}coins/{}/deposit", coin.coin_pub);
            let answer = exchange.handle(&HttpRequest::post(Context::Deposit, url, &deposit), now);
            match answer.status {
                200 => {
                    order.deposited.insert(coin.coin_pub, (contribution, fee));
                    order.exchanges.insert(coin.exchange_url.clone());
                }
                status => {
                    let reply: Value = serde_json::from_slice(&answer.body).unwrap();
                    let extra = json!({
                        "exchange_http_status": status, "exchange_code": reply["code"], "exchange_reply": reply,
                    });
                    return if status == 409 { error_with(409, 2150, extra) } else { error(502, 2170) };
                }
            }
        }
        let other = self
            .second
            .as_ref()
            .map_or(0, |second| i128::from(second.lock().unwrap().terms.fee_wire) * 1_000_000);
        let wire_fee = |url: &String| if url == SECOND { other } else { self.fee_wire };
        let wire_fees = order.exchanges.iter().map(wire_fee).sum();
        if let Some(code) = shortfall(order, wire_fees) {
            return error(406, code);
        }
        order.is_paid = true;
        if !order.sessions.contains(&request.session_id) {
            order.sessions.push(request.session_id.clone());
        }
        ok(&json!({ "sig": receipt }))
    }

    fn paid(&mut self, id: &str, request: &Value) -> HttpResponse {
        let merchant_pub = self.key.public_key();
        let Some(order) = self.orders.get_mut(id) else { return error(404, 2005) };
        let h_contract_terms = canonical::contract_hash(&order.contract).unwrap();
        if request["h_contract"] != json!(h_contract_terms) {
            return error(400, 2200);
        }
        let sig: EddsaSignature = request["sig"].as_str().unwrap().parse().unwrap();
        if !(MerchantPaymentOk { h_contract_terms }).verify(&merchant_pub, &sig) {
            return error(403, 2201);
        }
        order.sessions.push(request["session_id"].as_str().unwrap().to_owned());
        HttpResponse { status: 204, ..HttpResponse::default() }
    }
}

/// The age commitment hash for the deposit, after the checks on it, or the code of the refusal.
fn h_age(coin: &Permission, mask: u32, min_age: u64) -> Result<Option<ShortHash>, u32> {
    if mask == 0 {
        assert!(coin.age_commitment.is_none() && coin.minimum_age_sig.is_none());
        assert!(coin.h_age_commitment.is_none());
        return Ok(None);
    }
    if min_age == 0 {
        assert!(coin.age_commitment.is_none(), "a commitment is shown only if it is needed");
        return coin.h_age_commitment.map(Some).ok_or(2174);
    }
    let keys = coin.age_commitment.clone().ok_or(2171u32)?;
    let commitment = AgeCommitment::new(AgeMask::new(mask).unwrap(), keys).map_err(|_| 2172u32)?;
    let proof = coin.minimum_age_sig.ok_or(2173u32)?;
    if !commitment.verify(u8::try_from(min_age).unwrap(), &proof) {
        return Err(2173);
    }
    Ok(Some(commitment.hash()))
}

/// Whether the deposited coins do not suffice: the code of the refusal.
fn shortfall(order: &FakeOrder, wire_fees: i128) -> Option<u32> {
    let contract = &order.contract;
    let (amount, max_fee) = (units(&contract["amount"]), units(&contract["max_fee"]));
    let max_wire_fee = contract.get("max_wire_fee").map_or(0, units);
    let amortization = contract.get("wire_fee_amortization").and_then(Value::as_i64).unwrap_or(1).max(1);
    let paid: i128 = order.deposited.values().map(|(contribution, _)| contribution).sum();
    let mut fees: i128 = order.deposited.values().map(|(_, fee)| fee).sum();
    fees += (wire_fees - max_wire_fee).max(0) / i128::from(amortization);
    if paid >= amount + (fees - max_fee).max(0) {
        None
    } else if paid >= amount {
        Some(2155)
    } else {
        Some(2156)
    }
}

//! Refunds and given-up payments at the merchant's backend in memory.

use std::sync::Mutex;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::{RefundConfirmation, RefundRequest};
use batzen_protocol::signatures::{MerchantRefund, SignedMessage};
use batzen_protocol::{Amount, Money, Timestamp, canonical};
use batzen_wallet::core::http::{Context, HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::exchange::{FakeExchange, currency, error, ok};
use super::merchant::{FakeMerchant, FakeOrder};

/// The number of the refunds of a payment that was given up.
const ABORTED: u64 = 0;

/// What the merchant has approved for a coin.
pub struct FakeRefund {
    pub coin_pub: EddsaPublicKey,
    pub rtransaction_id: u64,
    pub amount: Amount,
    pub time: Timestamp,
    pub confirmation: Option<RefundConfirmation>,
}

fn money(units: i128) -> Amount {
    Money::from_units(u128::try_from(units).unwrap()).unwrap().of(currency())
}

fn units(amount: Amount) -> i128 {
    amount.money.units() as i128
}

fn hash(order: &FakeOrder) -> HashCode {
    canonical::contract_hash(&order.contract).unwrap()
}

impl FakeOrder {
    fn approved(&self) -> impl Iterator<Item = &FakeRefund> {
        self.refunds.iter().filter(|refund| refund.rtransaction_id != ABORTED)
    }
}

impl FakeMerchant {
    /// Approves a further refund, of as many coins as it takes.
    pub fn approve(&mut self, id: &str, sum: &str, time: Timestamp) {
        let order = self.orders.get_mut(id).unwrap();
        let mut left = units(sum.parse().unwrap());
        let deposited: Vec<_> = order.deposited.iter().map(|(key, (sum, _))| (*key, *sum)).collect();
        for (coin_pub, contribution) in deposited {
            let refunded: i128 = order
                .refunds
                .iter()
                .filter(|refund| refund.coin_pub == coin_pub)
                .map(|refund| units(refund.amount))
                .sum();
            let part = left.min(contribution - refunded);
            if part > 0 {
                let rtransaction_id = 1 + order.refunds.len() as u64;
                let amount = money(part);
                order.refunds.push(FakeRefund {
                    coin_pub,
                    rtransaction_id,
                    amount,
                    time,
                    confirmation: None,
                });
                left -= part;
            }
        }
        assert_eq!(left, 0, "refunds do not exceed the payment");
    }

    /// The URI that the merchant shows the customer.
    pub fn refund_uri(id: &str) -> String {
        format!("taler+http://refund/shop.test/instances/kiosk/{id}/")
    }

    pub(super) fn status(&self, id: &str, query: &str) -> HttpResponse {
        let Some(order) = self.orders.get(id) else { return error(404, 2005) };
        let wanted = format!("h_contract={}", hash(order));
        if !query.split('&').any(|part| part == wanted) {
            return error(403, 2106);
        }
        if !order.is_paid {
            return HttpResponse { status: 402, ..ok(&json!({ "taler_pay_uri": "taler://pay/" })) };
        }
        let sum = |taken: bool| {
            let counted = order.approved().filter(|refund| !taken || refund.confirmation.is_some());
            money(counted.map(|refund| units(refund.amount)).sum())
        };
        let (approved, taken) = (sum(false), sum(true));
        ok(&json!({
            "refunded": !approved.is_zero(), "refund_pending": taken != approved,
            "refund_amount": approved, "refund_taken": taken,
        }))
    }

    pub(super) fn pick_up(&mut self, id: &str, request: &Value, exchange: &mut FakeExchange) -> HttpResponse {
        let (key, second) = (self.key.clone(), self.second.clone());
        let others = (self.is_exchange_away, second.as_deref());
        let Some(order) = self.orders.get_mut(id) else { return error(404, 2005) };
        let h_contract_terms = hash(order);
        if request["h_contract"] != json!(h_contract_terms) {
            return error(403, 2009);
        }
        let mut refunds = Vec::new();
        let mut total = 0;
        for refund in order.refunds.iter_mut().filter(|refund| refund.rtransaction_id != ABORTED) {
            let mut entry = ask(refund, &key, h_contract_terms, exchange, others);
            entry["rtransaction_id"] = json!(refund.rtransaction_id);
            entry["coin_pub"] = json!(refund.coin_pub);
            entry["refund_amount"] = json!(refund.amount);
            entry["execution_time"] = json!(refund.time);
            refunds.push(entry);
            total += units(refund.amount);
        }
        let merchant_pub = key.public_key();
        ok(&json!({ "refund_amount": money(total), "refunds": refunds, "merchant_pub": merchant_pub }))
    }

    pub(super) fn abort(&mut self, id: &str, request: &Value, exchange: &mut FakeExchange) -> HttpResponse {
        let (key, second) = (self.key.clone(), self.second.clone());
        let others = (self.is_exchange_away, second.as_deref());
        let Some(order) = self.orders.get_mut(id).filter(|order| order.nonce.is_some()) else {
            return error(404, 2253);
        };
        let h_contract_terms = hash(order);
        if request["h_contract"] != json!(h_contract_terms) {
            return error(403, 2255);
        }
        if order.is_paid {
            return error(412, 2254);
        }
        let mut refunds = Vec::new();
        for coin in request["coins"].as_array().unwrap() {
            let coin_pub: EddsaPublicKey = coin["coin_pub"].as_str().unwrap().parse().unwrap();
            let amount: Amount = coin["contribution"].as_str().unwrap().parse().unwrap();
            let is_it =
                |refund: &FakeRefund| refund.coin_pub == coin_pub && refund.rtransaction_id == ABORTED;
            if !order.refunds.iter().any(is_it) {
                let time = exchange.start;
                let rtransaction_id = ABORTED;
                order.refunds.push(FakeRefund {
                    coin_pub,
                    rtransaction_id,
                    amount,
                    time,
                    confirmation: None,
                });
            }
            let refund = order.refunds.iter_mut().find(|refund| is_it(refund)).unwrap();
            refunds.push(ask(refund, &key, h_contract_terms, exchange, others));
        }
        ok(&json!({ "refunds": refunds }))
    }
}

/// What the exchange says about a refund, in the form that the wallet gets.
fn ask(
    refund: &mut FakeRefund,
    key: &EddsaPrivateKey,
    h_contract_terms: HashCode,
    exchange: &mut FakeExchange,
    (is_away, second): (bool, Option<&Mutex<FakeExchange>>),
) -> Value {
    if refund.confirmation.is_none() {
        if is_away {
            return json!({ "type": "failure", "exchange_status": 502, "exchange_code": 2014 });
        }
        let FakeRefund { coin_pub, rtransaction_id, amount, .. } = *refund;
        let message = MerchantRefund { h_contract_terms, coin_pub, rtransaction_id, refund_amount: amount };
        let request = RefundRequest {
            refund_amount: amount,
            h_contract_terms,
            merchant_pub: key.public_key(),
            rtransaction_id,
            merchant_sig: message.sign(key),
        };
        let url = format!("{}coins/{coin_pub}/refund", super::EXCHANGE);
        let request = HttpRequest::post(Context::Deposit, url, &request);
        let mut other = second.map(|second| second.lock().unwrap());
        let exchange = match &mut other {
            Some(other) if other.coin_remaining(&coin_pub).is_some() => &mut **other,
            _ => exchange,
        };
        let answer = exchange.handle(&request, exchange.start);
        if answer.status != 200 {
            let reply: Value = serde_json::from_slice(&answer.body).unwrap();
            return json!({
                "type": "failure", "exchange_status": answer.status, "exchange_code": reply["code"],
                "exchange_reply": reply,
            });
        }
        let confirmation: RefundConfirmation = serde_json::from_slice(&answer.body).unwrap();
        refund.confirmation = Some(confirmation);
    }
    let RefundConfirmation { exchange_sig, exchange_pub } = refund.confirmation.clone().unwrap();
    json!({
        "type": "success", "exchange_status": 200, "exchange_sig": exchange_sig, "exchange_pub": exchange_pub,
    })
}

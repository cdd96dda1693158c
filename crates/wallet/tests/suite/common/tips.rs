//! Tips of the merchant's backend in memory, which withdraws from a real reserve at the exchange of the tests.

use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_protocol::api::exchange::BlindSignature;
use batzen_protocol::api::merchant::{PickUpTipRequest, PickUpTipResponse, TipBlindSig};
use batzen_protocol::signatures::{SignedMessage, WalletReserveWithdraw};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_wallet::core::http::{Context, HttpRequest, HttpResponse};
use serde_json::json;

use super::exchange::{FakeExchange, currency, error, ok};
use super::merchant::FakeMerchant;
use super::{EXCHANGE, START, amount};

pub struct FakeTip {
    reserve: EddsaPrivateKey,
    /// What was not picked up yet.
    pub left: Money,
    pub expiration: Timestamp,
    /// Hashes of the planchets of every pick-up, with the answer.
    pub pickups: Vec<(Vec<HashCode>, PickUpTipResponse)>,
}

impl FakeMerchant {
    /// Gives a tip. Returns its URI.
    pub fn tip(&mut self, exchange: &mut FakeExchange, id: &str, sum: &str) -> String {
        let reserve = EddsaPrivateKey::generate();
        exchange.credit_reserve(reserve.public_key(), amount(sum));
        let expiration = START.saturating_add(Duration::from_days(1));
        let tip = FakeTip { reserve, left: amount(sum).money, expiration, pickups: Vec::new() };
        self.tips.insert(id.to_owned(), tip);
        format!("taler+http://tip/shop.test/instances/kiosk/{id}")
    }

    pub(super) fn tip_status(&self, id: &str, now: Timestamp) -> HttpResponse {
        match self.tips.get(id) {
            None => error(404, 2007),
            Some(tip) if now >= tip.expiration => error(410, 2405),
            Some(tip) => ok(&json!({
                "tip_amount": tip.left.of(currency()), "exchange_url": EXCHANGE, "expiration": tip.expiration,
            })),
        }
    }

    pub(super) fn pick_up_tip(
        &mut self,
        id: &str,
        request: &PickUpTipRequest,
        exchange: &mut FakeExchange,
        now: Timestamp,
    ) -> HttpResponse {
        let is_away = self.is_exchange_away;
        let Some(tip) = self.tips.get_mut(id) else { return error(404, 2007) };
        let hash = |planchet: &batzen_protocol::api::merchant::TipPlanchet| {
            planchet.coin_ev.hash(&planchet.denom_pub_hash)
        };
        let hashes: Vec<HashCode> = request.planchets.iter().map(hash).collect();
        if let Some((_, answer)) = tip.pickups.iter().find(|(known, _)| *known == hashes) {
            return ok(answer);
        }
        if now >= tip.expiration {
            return error(410, 2405);
        }
        let mut cost = Money::ZERO;
        for planchet in &request.planchets {
            let Some(denom) = exchange.denom(&planchet.denom_pub_hash) else { return error(409, 2407) };
            assert!(denom.public.cipher() == batzen_crypto::Cipher::Rsa, "tips are RSA coins");
            cost = cost.checked_add(denom.terms.withdraw_cost().unwrap().money).unwrap();
        }
        let Ok(left) = tip.left.checked_sub(cost) else { return error(400, 2406) };
        if is_away {
            return error(424, 2403);
        }
        let mut blind_sigs = Vec::new();
        for (planchet, h_coin_envelope) in request.planchets.iter().zip(&hashes) {
            let denom = exchange.denom(&planchet.denom_pub_hash).unwrap();
            let message = WalletReserveWithdraw {
                amount_with_fee: denom.terms.withdraw_cost().unwrap(),
                h_denom_pub: planchet.denom_pub_hash,
                h_coin_envelope: *h_coin_envelope,
            };
            let body = json!({
                "reserve_sig": message.sign(&tip.reserve), "denom_pub_hash": planchet.denom_pub_hash,
                "coin_ev": planchet.coin_ev,
            });
            let url = format!("{EXCHANGE}reserves/{}/withdraw", tip.reserve.public_key());
            let answer = exchange.handle(&HttpRequest::post(Context::Withdraw, url, &body), now);
            assert_eq!(answer.status, 200);
            let signature: BlindSignature = serde_json::from_slice(&answer.body).unwrap();
            blind_sigs.push(TipBlindSig { blind_sig: signature.ev_sig });
        }
        let answer = PickUpTipResponse { blind_sigs };
        tip.left = left;
        tip.pickups.push((hashes, answer.clone()));
        ok(&answer)
    }
}

//! Steps that the recordings leave out although later steps depend on them. Their requests are made here.

use batzen_crypto::{EddsaPrivateKey, HashCode, WireSalt};
use batzen_http::client::{Method, Reply};
use batzen_protocol::Amount;
use batzen_protocol::api::exchange::*;
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::*;
use serde_json::Value;

use crate::api::world::{Denom, InCurrency};
use crate::replay::player::Player;
use crate::replay::recording::Line;

/// The merchant's account in `kyc`.
const MERCHANT: &str = "payto://x-taler-bank/localhost/43?receiver-name=43";

impl Player {
    /// Does what the recorded exchange was asked to do before this line, but not shown.
    pub(super) async fn fill_gaps(&mut self, line: &Line) {
        match (self.name.as_str(), line.step) {
            // Later purses are paid with the coin of this one.
            ("p2p-rsa", 19) => self.delete_purse(17).await,
            // Two purses of this reserve are free.
            ("p2p-rsa", 42) => self.open_reserve(42).await,
            ("kyc", 17) => self.deposit_for_unidentified(2).await,
            ("kyc", 24) => self.withdraw_unidentified(1).await,
            // The transfer of this step pays this reserve out.
            ("exchange-api-rsa", 141) => self.close_reserve(142).await,
            _ => {}
        }
    }

    /// The key of ours in the path of a recorded request.
    fn key(&self, step: u64) -> &EddsaPrivateKey {
        let line = self.lines.iter().find(|line| line.step == step).expect("a recorded step");
        let ours = self.cast.text(line.request.segments()[1]).parse().unwrap();
        self.cast.secret(&ours).expect("a key of ours")
    }

    async fn post(&self, path: &str, body: &impl serde::Serialize) -> Reply {
        self.stage.client.post_json(self.stage.url(path), body).await.unwrap()
    }

    async fn delete_purse(&mut self, created: u64) {
        let purse = self.key(created);
        let url = self.stage.url(&format!("/purses/{}", purse.public_key()));
        let signature = WalletPurseDelete {}.sign(purse).to_string();
        let call = self.stage.client.call(Method::DELETE, url).header("taler-purse-signature", &signature);
        let reply = call.send().await.unwrap();
        assert_eq!(reply.status, 204, "{}", String::from_utf8_lossy(&reply.body));
    }

    async fn open_reserve(&mut self, asked: u64) {
        let reserve = self.key(asked);
        let now = self.stage.now();
        let reserve_payment: Amount = "EUR:0.01".parse().unwrap();
        let (request_timestamp, reserve_expiration, purse_limit) = (now, now, 2);
        let message =
            WalletReserveOpen { reserve_payment, request_timestamp, reserve_expiration, purse_limit };
        let request = ReserveOpenRequest {
            request_timestamp,
            reserve_expiration,
            purse_limit,
            reserve_payment,
            payments: Vec::new(),
            reserve_sig: message.sign(reserve),
        };
        let reply = self.post(&format!("/reserves/{}/open", reserve.public_key()), &request).await;
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    }

    async fn close_reserve(&mut self, asked: u64) {
        let reserve = self.key(asked);
        let request_timestamp = self.stage.now();
        let message = WalletReserveClose { request_timestamp, target_h_payto: Default::default() };
        let reserve_sig = message.sign(reserve);
        let request = ReserveCloseRequest { request_timestamp, payto_uri: None, reserve_sig };
        let reply = self.post(&format!("/reserves/{}/close", reserve.public_key()), &request).await;
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        self.stage.pay_out().await;
    }

    /// The denomination of this value that can be withdrawn now.
    fn denom(&self, value: &str) -> Denom {
        let value = value.parse().unwrap();
        let now = self.stage.now();
        let mut denoms: Vec<&Denom> = self
            .denoms
            .values()
            .filter(|denom| denom.terms.value.money() == value && denom.terms.denom_pub.age_mask == 0)
            .filter(|denom| denom.terms.stamp_start <= now)
            .collect();
        denoms.sort_by_key(|denom| denom.terms.stamp_start);
        (*denoms.first().expect("a denomination")).clone()
    }

    /// Deposits a coin for a merchant who was not identified. The transfer waits for that.
    async fn deposit_for_unidentified(&mut self, row: u64) {
        let denom = self.denom("5");
        let coin = self.stage.mint(&denom, None, false).await;
        let merchant = EddsaPrivateKey::generate();
        let (now, salt) = (self.stage.now(), WireSalt::random());
        let h_contract_terms = HashCode::random();
        let message = WalletCoinDeposit {
            h_contract_terms,
            h_age_commitment: Default::default(),
            h_policy: Default::default(),
            h_wire: h_wire(MERCHANT, &salt),
            h_denom_pub: denom.h,
            wallet_timestamp: now,
            refund_deadline: Default::default(),
            amount_with_fee: denom.terms.value,
            deposit_fee: denom.terms.fee_deposit,
            merchant_pub: merchant.public_key(),
        };
        let request = DepositRequest {
            merchant_payto_uri: MERCHANT.to_owned(),
            wire_salt: salt,
            contribution: denom.terms.value,
            denom_pub_hash: denom.h,
            ub_sig: coin.denom_sig.clone(),
            merchant_pub: merchant.public_key(),
            h_contract_terms,
            h_age_commitment: None,
            coin_sig: message.sign(&coin.secrets.coin_priv),
            timestamp: now,
            refund_deadline: None,
            wire_transfer_deadline: now,
            policy: None,
        };
        let reply = self.post(&format!("/coins/{}/deposit", coin.coin_pub), &request).await;
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        self.stage.pay_out().await;
        let (h_wire, coin_pub) = (h_wire(MERCHANT, &salt), coin.coin_pub);
        let message = MerchantTrackTransaction { h_contract_terms, h_wire, coin_pub };
        let url = self.stage.url(&format!(
            "/deposits/{h_wire}/{}/{h_contract_terms}/{coin_pub}?merchant_sig={}",
            merchant.public_key(),
            message.sign(&merchant)
        ));
        let reply = self.stage.client.get(url).send().await.unwrap();
        assert_eq!(reply.status, 202, "{}", String::from_utf8_lossy(&reply.body));
        self.learn_row(row, &reply);
    }

    /// Tries to withdraw more than a customer may who was not identified.
    async fn withdraw_unidentified(&mut self, row: u64) {
        let denom = self.denom("10");
        let reserve = EddsaPrivateKey::generate();
        let from = "payto://x-taler-bank/localhost/42?receiver-name=42";
        self.stage.credit(UNRECORDED_ROW, reserve.public_key(), denom.cost(), from).await;
        let planchet =
            self.stage.planchet(&denom, &batzen_crypto::PlanchetMasterSecret::generate(), false).await;
        let message = WalletReserveWithdraw {
            amount_with_fee: denom.cost().of(denom.terms.value.currency),
            h_denom_pub: denom.h,
            h_coin_envelope: planchet.h_coin_ev(),
        };
        let request = WithdrawRequest {
            reserve_sig: message.sign(&reserve),
            denom_pub_hash: denom.h,
            coin_ev: planchet.blinded.clone(),
        };
        let reply = self.post(&format!("/reserves/{}/withdraw", reserve.public_key()), &request).await;
        assert_eq!(reply.status, 451, "{}", String::from_utf8_lossy(&reply.body));
        self.learn_row(row, &reply);
    }

    fn learn_row(&mut self, row: u64, reply: &Reply) {
        let body: Value = reply.json().unwrap();
        self.cast.add_row(row, body["requirement_row"].as_u64().expect("a requirement"));
    }
}

/// The bank row of a transfer that the recordings do not show.
const UNRECORDED_ROW: u64 = 1 << 31;

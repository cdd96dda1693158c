//! A real exchange behind a gate that gives whatever answers a test has set.

use std::collections::BTreeSet;
use std::sync::Mutex;

use batzen_crypto::{Cipher, DenomSignature, EddsaPrivateKey, EddsaPublicKey, HashCode, ShortHash, Wtid};
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::api::exchange::{
    Denomination, DepositTransfer, KeysResponse, TransferDeposit, TransferResponse,
};
use batzen_protocol::denominations::wire_details_hash;
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{
    ExchangeConfirmWire, ExchangeConfirmWireDeposit, SignedMessage, WalletCoinDeposit,
};
use batzen_protocol::{Amount, Timestamp};
use batzen_testkit::world::{BANK, EXCHANGE, Forger, Gate, START, Terms, World, amount};
use batzen_wallet::{CipherChoice, Wallet};
use serde_json::{Value, json};

use crate::common::eventually;

pub(crate) const ACCOUNT: &str = "payto://x-taler-bank/bank.test/exchange?receiver-name=exchange";
const DEPOSIT_FEE: &str = "KUDOS:0.01";
const WITHDRAWAL_FEE: &str = "KUDOS:0.02";
const NO_HASH: HashCode = HashCode::from_bytes([0; 64]);
/// Values of the coins, in units of 0.01.
const VALUES: &[u64] = &[1000, 500];

/// A running exchange.
pub(crate) struct Exchange {
    pub url: String,
    pub world: World,
    gate: Gate,
    /// As published.
    denoms: Vec<Denomination>,
    /// A customer, whose coins the tests spend.
    wallet: Wallet,
    spent: Mutex<BTreeSet<EddsaPublicKey>>,
}

/// A coin of the exchange, which signs whatever it is told to pay.
pub(crate) struct Coin {
    key: EddsaPrivateKey,
    h_denom: HashCode,
    signature: DenomSignature,
    contribution: Amount,
}

impl Exchange {
    pub(crate) async fn start() -> Self {
        Self::with_values(VALUES).await
    }

    /// With coins of these values.
    pub(crate) async fn with_values(values: &'static [u64]) -> Self {
        let terms = Terms { fee_withdraw: 2, fee_refresh: 0, fee_refund: 0, values, ..Terms::default() };
        let world = World::with(terms).await;
        let gate = Gate::open(&world.network, EXCHANGE).await;
        let wallet = Wallet::in_memory_with(world.options(1));
        wallet.add_exchange(EXCHANGE).await.unwrap();
        wallet.accept_terms(EXCHANGE).unwrap();
        let client = Client::new(&ClientOptions::default()).unwrap();
        let keys: KeysResponse = client.get_json(format!("{}keys", gate.url)).await.unwrap().ok().unwrap();
        Self { url: gate.url.clone(), world, gate, denoms: keys.denoms, wallet, spent: Mutex::default() }
    }

    /// With auditors in its list of keys.
    pub(crate) async fn with_auditors(
        values: &'static [u64],
        auditors: impl FnOnce(&Self) -> Vec<Value>,
    ) -> Self {
        let exchange = Self::with_values(values).await;
        exchange.gate.replace_in_keys("auditors", json!(auditors(&exchange)));
        exchange
    }

    /// With coins of KUDOS:10 of which an auditor approves.
    pub(crate) async fn approved_by(auditor: &EddsaPrivateKey, auditor_url: &str) -> Self {
        Self::with_auditors(&[1000], |exchange| vec![exchange.approval(auditor, auditor_url)]).await
    }

    /// The entry of an auditor that approves of the smallest coins.
    pub(crate) fn approval(&self, auditor: &EddsaPrivateKey, auditor_url: &str) -> Value {
        let denom = self.denom();
        let denom_pub_h = denom.denom_pub.h_denom_pub();
        let message = denom.terms().auditor_approval(auditor_url, self.master_pub(), denom_pub_h);
        json!({
            "auditor_pub": auditor.public_key(), "auditor_url": auditor_url, "auditor_name": "a",
            "denomination_keys": [{ "denom_pub_h": denom_pub_h, "auditor_sig": message.sign(auditor) }],
        })
    }

    /// From now on its list of keys has something else there.
    pub(crate) fn replace_in_keys(&self, member: &'static str, value: Value) {
        self.gate.replace_in_keys(member, value);
    }

    /// Another way to the same exchange, such as a proxy.
    pub(crate) async fn proxy(&self) -> Gate {
        Gate::open(&self.world.network, EXCHANGE).await
    }

    pub(crate) fn master_pub(&self) -> EddsaPublicKey {
        self.world.exchange.master_pub()
    }

    /// A list with another signing key than the exchange's.
    pub(crate) fn other_signkeys(&self, listed: &Value) -> Value {
        let first = serde_json::from_value(listed[0].clone()).unwrap();
        json!([self.world.exchange.other_signkey(first)])
    }

    /// The RSA denomination of the smallest coins.
    pub(crate) fn denom(&self) -> &Denomination {
        let rsa = self.denoms.iter().filter(|denom| denom.denom_pub.cipher() == Cipher::Rsa);
        rsa.min_by_key(|denom| denom.value.money).unwrap()
    }

    /// Withdraws coins that can pay so much each.
    pub(crate) async fn coins(&self, count: usize, contribution: &str) -> Vec<Coin> {
        let contribution = amount(contribution);
        let mut coins = Vec::new();
        while coins.len() < count {
            let found = self.wallet.coins().into_iter().find(|coin| {
                coin.remaining >= contribution.money && !self.spent.lock().unwrap().contains(&coin.coin_pub)
            });
            let Some(coin) = found else {
                self.withdraw(contribution, count - coins.len()).await;
                continue;
            };
            self.spent.lock().unwrap().insert(coin.coin_pub);
            let (key, h_denom, signature) = (coin.coin_priv, coin.h_denom_pub, coin.denom_sig);
            coins.push(Coin { key, h_denom, signature, contribution });
        }
        coins
    }

    pub(crate) async fn coin(&self, contribution: &str) -> Coin {
        self.coins(1, contribution).await.remove(0)
    }

    /// Withdraws coins of the smallest value that can pay so much.
    async fn withdraw(&self, contribution: Amount, count: usize) {
        let values = self.denoms.iter().map(|denom| denom.value);
        let value = values.filter(|value| value.money >= contribution.money).min_by_key(|value| value.money);
        let value = value.expect("a coin that is large enough");
        let cost = value.checked_add(&amount(WITHDRAWAL_FEE)).unwrap();
        let sum = cost.checked_mul(count as u64).unwrap();
        let id = self.wallet.withdraw_from_bank(BANK, "customer", "pw", sum, None, CipherChoice::Rsa).await;
        self.wallet.finish(id.unwrap()).await.unwrap();
    }

    /// From now on it answers so.
    pub(crate) fn answer(&self, start: &str, status: u16, body: Value) {
        self.gate.answer(start, status, body);
    }

    /// From now on it serves such requests, but the answers are held.
    pub(crate) fn hold(&self, start: &str) {
        self.gate.hold(start);
    }

    /// It answers as an exchange again.
    pub(crate) fn recover(&self) {
        self.gate.recover();
    }

    /// Returns the number of requests that begin so.
    pub(crate) fn count(&self, start: &str) -> usize {
        self.gate.count(start)
    }

    /// Waits for so many requests that begin so.
    pub(crate) async fn wait_for(&self, start: &str, count: usize) {
        eventually(start, async || self.count(start) >= count).await;
    }

    /// Waits until a spent coin has value again.
    pub(crate) async fn wait_for_refund(&self, coin: &Coin) {
        let left = || self.world.exchange.coin_remaining(&coin.coin_pub());
        eventually("the refund of a coin", async || left().is_some_and(|left| !left.is_zero())).await;
    }

    /// Transfers money to a reserve.
    pub(crate) async fn credit(&self, reserve_pub: &str, sum: &str) {
        self.world.credit(reserve_pub.parse().unwrap(), amount(sum)).await;
    }

    fn signer(&self) -> Forger {
        self.world.exchange.signer()
    }

    /// The answer of `/transfers/$WTID` about deposits, with the wire fee that is given.
    pub(crate) fn transfer(
        &self,
        merchant_pub: EddsaPublicKey,
        payto_uri: &str,
        deposits: &[(HashCode, EddsaPublicKey, &str, &str)],
        wire_fee: &str,
        total: &str,
    ) -> Value {
        let execution_time = START;
        let deposits: Vec<TransferDeposit> = deposits
            .iter()
            .map(|(h_contract_terms, coin_pub, value, fee)| TransferDeposit {
                h_contract_terms: *h_contract_terms,
                coin_pub: *coin_pub,
                deposit_value: amount(value),
                deposit_fee: amount(fee),
            })
            .collect();
        let confirmation = ExchangeConfirmWireDeposit {
            total: amount(total),
            wire_fee: amount(wire_fee),
            merchant_pub,
            h_payto: h_payto(payto_uri),
            h_details: wire_details_hash(execution_time, &deposits),
        };
        let signer = self.signer();
        json!(TransferResponse {
            total: confirmation.total,
            wire_fee: confirmation.wire_fee,
            merchant_pub,
            h_payto: confirmation.h_payto,
            execution_time,
            deposits,
            exchange_sig: signer.sign(&confirmation),
            exchange_pub: signer.exchange_pub(),
        })
    }

    /// The answer 200 of `/deposits/…`.
    pub(crate) fn tracked(
        &self,
        h_wire: HashCode,
        h_contract: HashCode,
        coin_pub: EddsaPublicKey,
        wtid: Wtid,
    ) -> Value {
        let confirmation = ExchangeConfirmWire {
            h_wire,
            h_contract_terms: h_contract,
            wtid,
            coin_pub,
            execution_time: START,
            coin_contribution: amount("KUDOS:4.99"),
        };
        let signer = self.signer();
        json!(DepositTransfer {
            wtid,
            execution_time: confirmation.execution_time,
            coin_contribution: confirmation.coin_contribution,
            exchange_sig: signer.sign(&confirmation),
            exchange_pub: signer.exchange_pub(),
        })
    }
}

impl Coin {
    pub(crate) fn coin_pub(&self) -> EddsaPublicKey {
        self.key.public_key()
    }

    /// Its part of a payment.
    pub(crate) fn pay(&self, exchange: &Exchange, terms: &Value, h_contract: HashCode) -> Value {
        let time = |name: &str| serde_json::from_value::<Timestamp>(terms[name].clone()).unwrap();
        let message = WalletCoinDeposit {
            h_contract_terms: h_contract,
            h_age_commitment: ShortHash::from_bytes([0; 32]),
            h_policy: NO_HASH,
            h_wire: terms["h_wire"].as_str().unwrap().parse().unwrap(),
            h_denom_pub: self.h_denom,
            wallet_timestamp: time("timestamp"),
            refund_deadline: time("refund_deadline"),
            amount_with_fee: self.contribution,
            deposit_fee: amount(DEPOSIT_FEE),
            merchant_pub: terms["merchant_pub"].as_str().unwrap().parse().unwrap(),
        };
        json!({
            "coin_pub": self.coin_pub(), "coin_sig": message.sign(&self.key), "h_denom": self.h_denom,
            "ub_sig": self.signature, "contribution": self.contribution, "exchange_url": exchange.url,
        })
    }
}

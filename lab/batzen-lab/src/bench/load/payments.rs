//! Payments to merchants.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, WireSalt};
use batzen_protocol::api::exchange::{BatchDepositCoin, BatchDepositRequest, DepositRequest};
use batzen_protocol::signatures::{ExchangeConfirmDeposit, SignedMessage, WalletCoinDeposit};
use batzen_protocol::{Amount, Duration, Timestamp, payto};

use crate::bench::load::coins::Coin;
use crate::bench::load::random::{Chooser, Merchants, Seed};
use crate::bench::load::wire;
use crate::bench::scenarios::world::{self, Denom};

/// The number of merchants that payments choose from.
pub(crate) const MERCHANTS: usize = 1_000;
/// No extension policy.
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);
/// No age commitment.
const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);

/// A payee.
#[derive(Clone, Debug)]
pub(crate) struct Merchant {
    pub(crate) key: EddsaPublicKey,
    /// The account.
    pub(crate) payto_uri: String,
    /// Salt of the account's hash.
    pub(crate) wire_salt: WireSalt,
    /// Salted hash of the account.
    pub(crate) h_wire: HashCode,
}

impl Merchant {
    /// Makes `count` merchants with accounts at this bank.
    pub(crate) fn several(count: usize, bank_host: &str, seed: &Seed) -> Vec<Self> {
        (0..count)
            .map(|index| {
                let number = index as u64;
                let payto_uri = format!(
                    "payto://x-taler-bank/{bank_host}/merchant-{index}?receiver-name=merchant-{index}"
                );
                let wire_salt = WireSalt::from_bytes(seed.bytes("salt", number));
                Self {
                    key: EddsaPrivateKey::from_bytes(seed.bytes("merchant", number)).public_key(),
                    h_wire: payto::h_wire(&payto_uri, &wire_salt),
                    payto_uri,
                    wire_salt,
                }
            })
            .collect()
    }
}

/// Makes payments to merchants.
#[derive(Clone, Debug)]
pub(crate) struct Payments {
    merchants: Vec<Merchant>,
    chooser: Chooser,
    seed: Seed,
    made: u64,
    with_workers: bool,
}

/// A payment: the fields that all its coins share.
#[derive(Clone, Debug)]
pub(crate) struct Payment {
    merchant: usize,
    h_contract_terms: HashCode,
    timestamp: Timestamp,
    wire_deadline: Timestamp,
}

impl Payments {
    /// Merchants with accounts at this bank are chosen as `merchants` says. With workers, deposits are due at once; otherwise in an
    /// hour, after the run.
    pub(crate) fn new(merchants: Merchants, with_workers: bool, bank_host: &str, seed: &Seed) -> Self {
        Self {
            chooser: Chooser::new(merchants, MERCHANTS, seed.numbers("merchants")),
            merchants: Merchant::several(MERCHANTS, bank_host, seed),
            seed: seed.part("contracts"),
            made: 0,
            with_workers,
        }
    }

    pub(crate) fn next_payment(&mut self) -> Payment {
        let timestamp = world::now();
        let hour = Duration::from_secs(3_600);
        self.made += 1;
        Payment {
            merchant: self.chooser.draw(),
            h_contract_terms: HashCode::from_bytes(self.seed.bytes("contract", self.made)),
            timestamp,
            wire_deadline: if self.with_workers { timestamp } else { timestamp.saturating_add(hour) },
        }
    }

    /// A coin's signature for its part of a payment.
    pub(crate) fn sign(
        &self,
        payment: &Payment,
        coin_priv: &EddsaPrivateKey,
        denom: &Denom,
        amount: Amount,
    ) -> EddsaSignature {
        let merchant = &self.merchants[payment.merchant];
        WalletCoinDeposit {
            h_contract_terms: payment.h_contract_terms,
            h_age_commitment: NO_AGE,
            h_policy: NO_POLICY,
            h_wire: merchant.h_wire,
            h_denom_pub: denom.h_denom_pub,
            wallet_timestamp: payment.timestamp,
            refund_deadline: Timestamp::ZERO,
            amount_with_fee: amount,
            deposit_fee: Amount::zero(amount.currency),
            merchant_pub: merchant.key,
        }
        .sign(coin_priv)
    }

    /// A coin's part of a payment.
    pub(crate) fn part(
        &self,
        coin: &Coin,
        denom: &Denom,
        amount: Amount,
        coin_sig: EddsaSignature,
    ) -> BatchDepositCoin {
        BatchDepositCoin {
            contribution: amount,
            denom_pub_hash: denom.h_denom_pub,
            ub_sig: coin.signature.clone(),
            coin_pub: coin.coin_pub,
            h_age_commitment: None,
            coin_sig,
        }
    }

    /// The HTTP request of a payment: a single deposit for one coin, otherwise a batch.
    pub(crate) fn request(&self, payment: &Payment, mut parts: Vec<BatchDepositCoin>) -> Vec<u8> {
        if parts.len() != 1 {
            return self.batch_request(payment, parts);
        }
        let (coin, merchant) = (parts.remove(0), &self.merchants[payment.merchant]);
        let body = DepositRequest {
            merchant_payto_uri: merchant.payto_uri.clone(),
            wire_salt: merchant.wire_salt,
            contribution: coin.contribution,
            denom_pub_hash: coin.denom_pub_hash,
            ub_sig: coin.ub_sig,
            merchant_pub: merchant.key,
            h_contract_terms: payment.h_contract_terms,
            h_age_commitment: None,
            coin_sig: coin.coin_sig,
            timestamp: payment.timestamp,
            refund_deadline: None,
            wire_transfer_deadline: payment.wire_deadline,
            policy: None,
        };
        wire::post(&format!("/coins/{}/deposit", coin.coin_pub), &body)
    }

    /// The HTTP request of a payment as a batch.
    pub(crate) fn batch_request(&self, payment: &Payment, coins: Vec<BatchDepositCoin>) -> Vec<u8> {
        let merchant = &self.merchants[payment.merchant];
        let body = BatchDepositRequest {
            merchant_payto_uri: merchant.payto_uri.clone(),
            wire_salt: merchant.wire_salt,
            merchant_pub: merchant.key,
            h_contract_terms: payment.h_contract_terms,
            coins,
            timestamp: payment.timestamp,
            refund_deadline: None,
            wire_transfer_deadline: payment.wire_deadline,
            policy: None,
        };
        wire::post("/batch-deposit", &body)
    }

    /// The exchange's confirmation for one coin.
    pub(crate) fn confirmation(
        &self,
        payment: &Payment,
        coin_pub: EddsaPublicKey,
        amount: Amount,
        exchange_timestamp: Timestamp,
    ) -> ExchangeConfirmDeposit {
        let merchant = &self.merchants[payment.merchant];
        ExchangeConfirmDeposit {
            h_contract_terms: payment.h_contract_terms,
            h_wire: merchant.h_wire,
            h_policy: NO_POLICY,
            exchange_timestamp,
            wire_deadline: payment.wire_deadline,
            refund_deadline: Timestamp::ZERO,
            amount_without_fee: amount,
            coin_pub,
            merchant_pub: merchant.key,
        }
    }
}

//! Payments between people: purses with coins, and their merges into reserves.

use std::sync::Arc;

use batzen_crypto::hash::sha512;
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::{EncryptedContract, PurseCreateRequest, PurseMergeRequest};
use batzen_protocol::signatures::{
    SignedMessage, WalletAccountMerge, WalletPurseCreate, WalletPurseEcontract, WalletPurseMerge,
};
use batzen_protocol::{Amount, Duration, Money, PaytoUri, Timestamp};

use crate::crash::coins::{CURRENCY, Coin, minus, now, plus};

/// A purse that is merged after it was created.
const MERGED: u32 = 1;

/// A purse of a customer.
pub(crate) struct Purse {
    key: EddsaPrivateKey,
    merge_key: EddsaPrivateKey,
    pub key_pub: EddsaPublicKey,
    pub target: Money,
    contract: HashCode,
    expiration: Timestamp,
}

impl Purse {
    /// A purse for what these coins are worth after their deposit fees, which lasts so long.
    pub(crate) fn of(coins: &[(Arc<Coin>, Money)], lifetime: Duration) -> Self {
        let worth = coins.iter().map(|(coin, amount)| minus(*amount, coin.denom.fee_deposit));
        let key = EddsaPrivateKey::generate();
        Self {
            key_pub: key.public_key(),
            key,
            merge_key: EddsaPrivateKey::generate(),
            target: worth.fold(Money::ZERO, plus),
            contract: HashCode::random(),
            expiration: now().saturating_add(lifetime),
        }
    }

    pub(crate) fn create(&self, coins: &[(Arc<Coin>, Money)], base_url: &str) -> PurseCreateRequest {
        let econtract = self.contract.as_bytes().to_vec();
        let contract_pub = EddsaPrivateKey::generate().public_key();
        let sealed = WalletPurseEcontract { h_econtract: sha512(&econtract), contract_pub };
        let amount = self.target.of(CURRENCY);
        let message = WalletPurseCreate {
            purse_expiration: self.expiration,
            purse_amount: amount,
            h_contract_terms: self.contract,
            merge_pub: self.merge_key.public_key(),
            min_age: 0,
        };
        let deposits =
            coins.iter().map(|(coin, amount)| coin.purse_deposit(self.key_pub, *amount, base_url)).collect();
        PurseCreateRequest {
            amount,
            min_age: 0,
            merge_pub: self.merge_key.public_key(),
            purse_sig: message.sign(&self.key),
            h_contract_terms: self.contract,
            purse_expiration: self.expiration,
            deposits,
            econtract: Some(EncryptedContract {
                econtract_sig: sealed.sign(&self.key),
                econtract: econtract.into(),
                contract_pub,
            }),
        }
    }

    pub(crate) fn merge(&self, reserve: &EddsaPrivateKey, base_url: &str) -> PurseMergeRequest {
        let payto = PaytoUri::reserve(base_url, &reserve.public_key()).unwrap();
        let merge_timestamp = now();
        let merge = WalletPurseMerge { merge_timestamp, purse_pub: self.key_pub, h_payto: payto.hash() };
        let account = WalletAccountMerge {
            purse_expiration: self.expiration,
            purse_amount: self.target.of(CURRENCY),
            purse_fee: Amount::zero(CURRENCY),
            h_contract_terms: self.contract,
            purse_pub: self.key_pub,
            merge_timestamp,
            min_age: 0,
            flags: MERGED,
        };
        PurseMergeRequest {
            payto_uri: payto.into_string(),
            merge_sig: merge.sign(&self.merge_key),
            reserve_sig: account.sign(reserve),
            merge_timestamp,
        }
    }
}

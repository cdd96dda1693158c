//! The leaves: one for each blind signature, and for each use of a coin.
//!
//! A leaf's hash covers something that only the exchange, the wallet and, for a payment, its receiver know: the
//! blinded planchet, the contract, the refresh commitment. So the public learns nothing from it, and a merchant who
//! knows a coin finds only its own payments.

use crate::{MoneySum, Timestamp};
use batzen_crypto::hash::{sha512_parts, shorten};
use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash};
use serde::{Deserialize, Serialize};

use crate::liabilities::sum::Sum;

crate::enumeration! {
    /// The kind of leaves in a tree.
    pub enum Kind {
        /// Blind signatures, each with its denomination's value.
        Issued => "issued",
        /// Payments of coins, fees included.
        Redeemed => "redeemed",
        /// Money returned to coins: refunds, purses that were not paid, recouped change.
        Returned => "returned",
    }
}

/// A leaf: its hash, and how much it counts. In JSON an array of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(ShortHash, Sum)", into = "(ShortHash, Sum)")]
pub struct Leaf {
    /// Its description.
    pub hash: ShortHash,
    /// The amount that it counts.
    pub sum: MoneySum,
}

impl From<(ShortHash, Sum)> for Leaf {
    fn from((hash, Sum(sum)): (ShortHash, Sum)) -> Self {
        Self { hash, sum }
    }
}

impl From<Leaf> for (ShortHash, Sum) {
    fn from(leaf: Leaf) -> Self {
        (leaf.hash, Sum(leaf.sum))
    }
}

fn hash(what: &str, parts: &[&[u8]]) -> ShortHash {
    // All parts have fixed sizes, and no name is the beginning of another one with its zero byte.
    let mut all: Vec<&[u8]> = vec![b"batzen-liabilities-leaf\0", what.as_bytes(), b"\0"];
    all.extend_from_slice(parts);
    shorten(&sha512_parts(&all))
}

/// A blind signature on a planchet. Equal planchets of several withdrawals are one leaf, since they make one coin.
#[must_use]
pub fn issued(h_denom_pub: &HashCode, h_coin_ev: &HashCode) -> ShortHash {
    hash("issued", &[h_denom_pub.as_bytes(), h_coin_ev.as_bytes()])
}

/// A deposit.
#[must_use]
pub fn deposit(coin: &EddsaPublicKey, merchant: &EddsaPublicKey, h_contract_terms: &HashCode) -> ShortHash {
    hash("deposit", &[coin.as_bytes(), merchant.as_bytes(), h_contract_terms.as_bytes()])
}

/// A melt with its refresh commitment.
#[must_use]
pub fn melt(coin: &EddsaPublicKey, rc: &HashCode) -> ShortHash {
    hash("melt", &[coin.as_bytes(), rc.as_bytes()])
}

/// A recoup of a withdrawn coin: the n-th, from zero.
#[must_use]
pub fn recoup(coin: &EddsaPublicKey, h_coin_ev: &HashCode, n: u32) -> ShortHash {
    hash("recoup", &[coin.as_bytes(), h_coin_ev.as_bytes(), &n.to_be_bytes()])
}

/// A recoup of a coin that was obtained by refresh: the n-th, from zero.
#[must_use]
pub fn recoup_refresh(coin: &EddsaPublicKey, h_coin_ev: &HashCode, n: u32) -> ShortHash {
    hash("recoup-refresh", &[coin.as_bytes(), h_coin_ev.as_bytes(), &n.to_be_bytes()])
}

/// A deposit into a purse.
#[must_use]
pub fn purse_deposit(coin: &EddsaPublicKey, purse: &EddsaPublicKey) -> ShortHash {
    hash("purse-deposit", &[coin.as_bytes(), purse.as_bytes()])
}

/// A payment for keeping a reserve open.
#[must_use]
pub fn reserve_open(coin: &EddsaPublicKey, reserve: &EddsaPublicKey, request_time: Timestamp) -> ShortHash {
    hash("reserve-open", &[coin.as_bytes(), reserve.as_bytes(), &request_time.to_nbo()])
}

/// A refund: what came back to the coin, without the refund fee.
#[must_use]
pub fn refund(
    coin: &EddsaPublicKey,
    merchant: &EddsaPublicKey,
    h_contract_terms: &HashCode,
    rtransaction_id: u64,
) -> ShortHash {
    let id = rtransaction_id.to_be_bytes();
    hash("refund", &[coin.as_bytes(), merchant.as_bytes(), h_contract_terms.as_bytes(), &id])
}

/// The sum that a coin got back from a purse that was not paid.
#[must_use]
pub fn purse_refund(coin: &EddsaPublicKey, purse: &EddsaPublicKey) -> ShortHash {
    hash("purse-refund", &[coin.as_bytes(), purse.as_bytes()])
}

/// The sum that the old coin got back when a coin of its refresh was recouped.
#[must_use]
pub fn recoup_credit(
    old_coin: &EddsaPublicKey,
    coin: &EddsaPublicKey,
    h_coin_ev: &HashCode,
    n: u32,
) -> ShortHash {
    let parts: [&[u8]; 4] = [old_coin.as_bytes(), coin.as_bytes(), h_coin_ev.as_bytes(), &n.to_be_bytes()];
    hash("recoup-credit", &parts)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_operations_have_the_same_leaf() {
        let key = EddsaPublicKey::from_bytes([1; 32]);
        let code = HashCode::from_bytes([1; 64]);
        let all = [
            issued(&code, &code),
            deposit(&key, &key, &code),
            melt(&key, &code),
            recoup(&key, &code, 0),
            recoup(&key, &code, 1),
            recoup_refresh(&key, &code, 0),
            purse_deposit(&key, &key),
            reserve_open(&key, &key, Timestamp::ZERO),
            refund(&key, &key, &code, 0),
            refund(&key, &key, &code, 1),
            purse_refund(&key, &key),
            recoup_credit(&key, &key, &code, 0),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}

//! The exchange's answers to this wallet's operations with a coin.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::Money;

use super::super::id::OpId;

/// Identifies a contract in deposits: merchant and hash.
pub(crate) type Contract = (EddsaPublicKey, HashCode);

/// The exchange's answers to this wallet's operations with a coin.
#[derive(Default)]
pub(crate) struct Known {
    /// Deposits: contribution and answer.
    pub(crate) deposits: Vec<(Contract, Money, Answer)>,
    /// Failed purchases: contribution and operation. Nobody but the merchant has said that they failed.
    pub(crate) purchases: Vec<(Contract, Money, OpId)>,
    /// Melts by commitment.
    pub(crate) melts: BTreeMap<HashCode, Answer>,
    /// Payments into purses: contribution and answer.
    pub(crate) purses: BTreeMap<EddsaPublicKey, Vec<(OpId, Money, Answer)>>,
    /// Confirmed refunds.
    pub(crate) refunds: BTreeSet<(Contract, u64)>,
    /// Confirmed recoups of the coin.
    pub(crate) recoups: usize,
    /// Confirmed recoups into the coin, by the coin that was recouped.
    pub(crate) returned: BTreeMap<EddsaPublicKey, Money>,
}

/// The exchange's answer to one operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Not answered yet.
    None,
    /// Confirmed by the exchange.
    Confirmed,
    /// Refused by the exchange.
    Refused(OpId),
}

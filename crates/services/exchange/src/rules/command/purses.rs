//! Commands on purses.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    CoinPub, PurseMergeRow, PurseMode, PursePub, PurseRow, PurseState, ReservePub,
};

use super::PresentedCoin;

/// The terms of a purse, signed by its own key (verified).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseTerms {
    /// The key that may merge it.
    pub merge_pub: EddsaPublicKey,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The minimum age of the payer; 0 for none.
    pub min_age: u32,
    /// What its reserve gets, after deposit fees.
    pub target: Money,
    /// When it expires.
    pub expiration: Timestamp,
    /// The purse's signature.
    pub purse_sig: EddsaSignature,
}

impl PurseTerms {
    /// Whether a stored purse has these terms. Its expiration and signature may differ.
    pub(in crate::rules) fn are_those_of(&self, stored: &PurseRow) -> bool {
        stored.min_age == self.min_age
            && stored.target == self.target
            && stored.h_contract_terms == self.h_contract_terms
            && stored.merge_pub == self.merge_pub
    }

    /// The row of a new purse.
    pub(in crate::rules) fn row(&self, mode: PurseMode, purse_fee: Money, now: Timestamp) -> PurseRow {
        PurseRow {
            merge_pub: self.merge_pub,
            h_contract_terms: self.h_contract_terms,
            min_age: self.min_age,
            mode,
            target: self.target,
            purse_fee,
            created: now,
            expiration: self.expiration,
            purse_sig: self.purse_sig,
            coins: 0,
            contributed: Money::ZERO,
            balance: Money::ZERO,
            state: PurseState::Open,
            decided: Timestamp::ZERO,
        }
    }
}

/// An encrypted contract, signed by its purse (verified).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// The key under which it can be fetched.
    pub contract_pub: EddsaPublicKey,
    /// Nonce and ciphertext.
    pub econtract: Vec<u8>,
    /// The purse's signature.
    pub econtract_sig: EddsaSignature,
}

/// A coin that pays into a purse, or for a reserve. An attestation of its age, if the purse needs one, was
/// verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseCoin {
    /// The coin.
    pub coin: PresentedCoin,
    /// The contribution, deposit fee included.
    pub amount: Money,
    /// Its signature on the payment, verified.
    pub coin_sig: EddsaSignature,
}

/// Creates a purse and pays into it. The same terms again are the same purse; coins that it contains already
/// have no further effect.
#[derive(Debug, Clone)]
pub struct PurseCreate {
    /// The purse.
    pub purse_pub: PursePub,
    /// Its terms.
    pub terms: PurseTerms,
    /// The reserve that it is merged into, if it existed before and was merged.
    pub reserve_pub: Option<ReservePub>,
    /// 1 to 256 coins.
    pub coins: Vec<PurseCoin>,
    /// The contract for its receiver.
    pub contract: Option<Contract>,
}

/// A purse exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurseCreated {
    /// When it expires: as it was created first.
    pub expiration: Timestamp,
    /// What the coins of the request add up to, deposit fees taken off.
    pub deposited: Money,
    /// Whether it was created now.
    pub is_new: bool,
}

/// Pays into a purse.
#[derive(Debug, Clone)]
pub struct PurseDeposit {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// 1 to 256 coins.
    pub coins: Vec<PurseCoin>,
}

/// Coins are in a purse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseDeposited {
    /// The purse.
    pub purse: PurseRow,
    /// What it contains, deposit fees taken off.
    pub total: Money,
    /// The reserve that got its target now.
    pub credited: Option<ReservePub>,
}

/// Merges a full purse into a reserve.
#[derive(Debug, Clone)]
pub struct PurseMerge {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The row to store, with both signatures verified.
    pub merge: PurseMergeRow,
}

/// A purse is merged and paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseMerged {
    /// The purse.
    pub purse: PurseRow,
    /// Whether it was merged now.
    pub is_new: bool,
}

/// Creates a purse that is merged into a reserve in advance.
#[derive(Debug, Clone)]
pub struct ReservePurse {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// Its terms.
    pub terms: PurseTerms,
    /// The purse fee, which the reserve pays; none if the purse uses the reserve's quota.
    pub fee: Option<Money>,
    /// The row to store, with both signatures verified.
    pub merge: PurseMergeRow,
    /// The contract for its payer.
    pub contract: Option<Contract>,
}

/// Deletes an open purse. The caller has read its reserve and its coins.
#[derive(Debug, Clone)]
pub struct PurseDelete {
    /// The purse.
    pub purse_pub: PursePub,
    /// The purse's signature, verified.
    pub purse_sig: EddsaSignature,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// All coins in it.
    pub coins: Vec<CoinPub>,
}

/// A purse is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurseDeleted;

/// Gives back what is in an expired purse. The caller has read its reserve and its coins.
#[derive(Debug, Clone)]
pub struct PurseExpire {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// All coins in it.
    pub coins: Vec<CoinPub>,
}

/// The outcome of [`PurseExpire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurseExpired {
    /// It is unknown, decided or not expired. Nothing changed.
    NotDue,
    /// The coins have their money back.
    Expired,
}

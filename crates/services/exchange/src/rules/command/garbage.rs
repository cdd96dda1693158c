//! Commands of garbage collection.

use batzen_crypto::{HashCode, Wtid};
use batzen_tables::exchange::{
    AccountId, CsNonceKey, KycProcessKey, KycRequirementKey, MeltKey, PursePub, ReservePub,
};

/// Removes rows that are no longer needed. Whoever submits it has only found candidates: the rules decide on
/// each, so that it does not matter how old the search is.
#[derive(Debug, Clone)]
pub enum Collect {
    /// Empty reserves whose time to be kept is over, with all that belongs to them.
    Reserves(Vec<ReserveCandidate>),
    /// Transfers that the bank accepted.
    Transfers(Vec<Wtid>),
    /// Locks of Clause Blind Schnorr nonces.
    Nonces(Vec<NonceCandidate>),
    /// Purses that gave their coins everything back.
    Purses(Vec<PurseCandidate>),
    /// KYC requirements that nobody has acted on.
    KycRequirements(Vec<KycRequirementKey>),
    /// Identifications that were never completed, or that expired long ago.
    KycProcesses(Vec<KycProcessKey>),
}

/// A reserve that may be removed, and the rows that its removal depends on.
#[derive(Debug, Clone)]
pub struct ReserveCandidate {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The exchange's accounts that received its transfers.
    pub accounts: Vec<AccountId>,
    /// The identifiers of its closings' transfers.
    pub wtids: Vec<Wtid>,
}

/// A lock that may be removed.
#[derive(Debug, Clone)]
pub struct NonceCandidate {
    /// The lock.
    pub key: CsNonceKey,
    /// The commitment of the melt that it belongs to; none for a withdrawal.
    pub rc: Option<HashCode>,
    /// That melt; none for a withdrawal, or if the melt has left for an archive.
    pub melt: Option<MeltKey>,
}

/// A purse that may be removed.
#[derive(Debug, Clone)]
pub struct PurseCandidate {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that wanted it, if there is one.
    pub reserve_pub: Option<ReservePub>,
}

/// What a [`Collect`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// How many of the candidates.
    pub removed: u64,
    /// How many rows, with those that belonged to the candidates.
    pub rows: u64,
}

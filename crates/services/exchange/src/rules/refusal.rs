//! Refusals of commands by the rules.

use batzen_crypto::ShortHash;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    CoinPub, ContractRow, DenomSerial, PaytoHash, PurseDepositRow, PurseMergeRow, PurseRow, ReservePub,
};

use super::{DenomProblem, management};
use crate::history::{CoinHistory, ReserveStatement};

/// The result of a step of the rules.
pub(crate) type Result<T, E = Refusal> = std::result::Result<T, E>;

/// The reason why a command was refused. A refused command changes nothing. The numbers in brackets are the
/// protocol's error codes.
///
/// `index` counts planchets or coins in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    // Withdrawals and reserves
    /// \[1027\] No such reserve (for a batch withdrawal: none that had a wire credit).
    #[error("unknown reserve")]
    ReserveUnknown,
    /// \[1150\] The reserve holds too little.
    #[error("the reserve holds {} but {} is needed", .0.balance, .0.requested)]
    ReserveInsufficient(Box<ReserveShortage>),
    /// \[1156\] The reserve cannot pay the history fee (or does not exist).
    #[error("the reserve cannot pay the history fee")]
    HistoryUnaffordable,
    /// \[1175\] Some planchets were withdrawn before and some were not.
    #[error("planchet {index} was withdrawn before, others were not")]
    PlanchetsMixed {
        /// The first planchet that was withdrawn before.
        index: usize,
    },
    /// \[26\] The same planchet twice in one request.
    #[error("planchet {index} occurs twice")]
    PlanchetDuplicate {
        /// The second occurrence.
        index: usize,
    },
    /// The withdrawal is acceptable, but a blind signature is missing: make it and submit again.
    #[error("a blind signature is missing")]
    SignatureMissing,
    /// \[1160\] A Clause Blind Schnorr nonce (or refresh master secret) was used for another operation.
    #[error("nonce reuse")]
    NonceReuse {
        /// The planchet; 0 in a melt or reveal.
        index: usize,
    },

    // Denominations
    /// \[1005\] No such denomination.
    #[error("unknown denomination")]
    DenominationUnknown {
        /// The planchet, coin or fresh coin.
        index: usize,
        /// Its number.
        denom: DenomSerial,
    },
    /// \[1008, 1009, 1010; 1555, 1580\] The denomination is not usable for this operation now.
    #[error("denomination {denom:?} is not usable: {problem:?}")]
    DenominationUnusable {
        /// The planchet, coin or fresh coin.
        index: usize,
        /// Its denomination.
        denom: DenomSerial,
        /// The problem.
        problem: DenomProblem,
    },

    // Coins
    /// \[1003, 1012, 1015, 1206, 1501, 1510\] The coin's history conflicts with the request. It is the
    /// evidence.
    #[error("coin {index}: {:?}", .conflict.reason)]
    CoinConflict {
        /// The coin's place in the request.
        index: usize,
        /// The conflict.
        conflict: Box<CoinConflict>,
    },
    /// \[26\] The same coin twice in one request, with different data. (Equal entries count once.)
    #[error("coin {index} occurs twice")]
    CoinDuplicate {
        /// The second occurrence.
        index: usize,
    },
    /// \[1207\] The contribution is zero or below the deposit fee.
    #[error("the contribution of coin {index} is zero or below the deposit fee")]
    ContributionBelowFee {
        /// The coin's place in the request.
        index: usize,
    },
    /// \[1021\] The contribution is above the denomination's value.
    #[error("the contribution of coin {index} is above its value")]
    ContributionAboveValue {
        /// The coin's place in the request.
        index: usize,
    },
    /// \[1208, 1209\] The refund deadline is after the wire deadline, or the wire deadline is never.
    #[error("impossible deadlines")]
    DeadlinesImpossible,
    /// \[1500\] The refunded coin is unknown.
    #[error("unknown coin")]
    CoinUnknown,
    /// \[1502\] The coin has no such deposit.
    #[error("unknown deposit")]
    DepositUnknown,
    /// \[1503\] The deposit was aggregated: the merchant gets the money.
    #[error("the merchant was paid already")]
    DepositPaid,
    /// \[1505\] The refund is zero or below the refund fee.
    #[error("the refund is zero or below the refund fee")]
    RefundBelowFee,

    // Refreshes
    /// \[1302\] The melted amount is zero or below the melt fee.
    #[error("the melted amount is zero or below the melt fee")]
    MeltBelowFee,
    /// \[1305\] The coin has expired and no value came back to it.
    #[error("the coin has expired and is no zombie")]
    MeltNoZombie,
    /// Another coin was melted under this commitment. Honest clients never cause this, because a commitment
    /// covers its coin.
    #[error("the commitment belongs to another coin")]
    RcTaken,
    /// \[1355\] No melt with this commitment.
    #[error("unknown melt")]
    MeltUnknown,
    /// \[25 "rms"\] A fresh coin is Clause Blind Schnorr and the refresh master secret is missing.
    #[error("the refresh master secret is missing")]
    RmsMissing,
    /// \[1360\] The fresh coins and fees cost more than was melted.
    #[error("the fresh coins cost {cost} but {melted} was melted")]
    RevealCostTooHigh {
        /// Melt fee, values and withdraw fees.
        cost: Money,
        /// The melted amount.
        melted: Money,
    },

    // Recoups
    /// \[1551, 1576\] The planchet was never withdrawn, or never revealed.
    #[error("unknown planchet")]
    PlanchetUnknown,
    /// The credit exceeds all payments of the coin. Only forged signatures can cause this.
    #[error("the credit would exceed the coin's value")]
    RecoupAboveValue,

    // Purses
    /// \[1025\] No such purse.
    #[error("unknown purse")]
    PurseUnknown,
    /// \[1026\] The purse has expired.
    #[error("the purse has expired")]
    PurseExpired,
    /// \[1853, 1775\] A new purse would expire before it is created.
    #[error("the purse would be created after its expiration")]
    PurseTooLate,
    /// \[1860, 1678\] The coins or the offer do not cover the fee for a new purse.
    #[error("the fee for a purse is higher")]
    PurseFeeTooLow(Money),
    /// \[1031\] The purse was deleted.
    #[error("the purse was deleted")]
    PurseDeleted,
    /// \[1976, 1679\] A decision was made on the purse.
    #[error("the purse was paid, deleted or given back")]
    PurseDecided,
    /// \[1878\] The purse holds less than its target.
    #[error("the purse is not full")]
    PurseNotFull,
    /// \[26\] The purse would contain too many coins.
    #[error("a purse contains at most {} coins", super::purses::PURSE_COINS_MAX)]
    PurseCoinsTooMany,
    /// \[1850, 1675\] The purse exists with other terms.
    #[error("the purse exists with other terms")]
    PurseConflict(Box<PurseRow>),
    /// \[1676\] The purse was merged otherwise.
    #[error("the purse was merged with other parameters")]
    PurseMergeConflict(Box<PurseMergeRow>),
    /// \[1858\] The coin was deposited into the purse with another signature or amount.
    #[error("the coin was deposited into the purse with other parameters")]
    PurseDepositConflict {
        /// The coin.
        coin_pub: CoinPub,
        /// Hash of its age commitment.
        h_age: Option<ShortHash>,
        /// The stored deposit.
        deposit: Box<PurseDepositRow>,
    },
    /// \[1859\] The purse has another contract.
    #[error("the purse has another contract")]
    ContractConflict(Box<ContractRow>),
    /// The purse's reserve or coins are not those that the command names: read them and try again.
    #[error("the purse has changed")]
    PurseChanged,

    // Accounts
    /// \[1677\] The reserve has no free purse, or cannot pay the purse fee.
    #[error("the reserve has no free purse, or cannot pay for one")]
    PurseUnaffordable,
    /// \[402\] The payment does not cover the cost of prolonging the reserve.
    #[error("it costs {cost}")]
    OpenTooLittle {
        /// The cost.
        cost: Money,
        /// The current expiration.
        expiration: Timestamp,
    },
    /// \[26\] More purses than one reserve may have, or than the largest amount could pay for.
    #[error("too many purses")]
    PurchaseTooLarge,
    /// \[26\] A new purse would stay open for longer than any may.
    #[error("purse_expiration: at most {0} ahead")]
    PurseLifeTooLong(Duration),
    /// \[1788\] No account was named, and none ever sent money.
    #[error("no account to pay")]
    CloseTargetUnknown,

    // KYC
    /// \[1028\] The owner of the account must be identified first.
    #[error("the owner of the account must be identified: {checks}")]
    KycRequired {
        /// The account.
        h_payto: PaytoHash,
        /// The missing checks, sorted and separated by blanks.
        checks: String,
    },
    /// The command names another account than that which filled the reserve: read it and try again.
    #[error("the reserve was filled from another account")]
    OriginOther,
    /// \[1929\] No identification of this account has begun with this provider.
    #[error("no identification has begun")]
    KycProcessUnknown,
    /// \[1941\] What was entered before waits for officers, or the account is identified.
    #[error("what was entered before waits for a decision, or the account is identified")]
    KycWaits,
    /// The user has changed the attributes since, or somebody has decided: read them and try again.
    #[error("the case has changed: read it again")]
    KycChanged,
    /// Money would be released, so that another officer must approve.
    #[error("another officer must approve: you have done so already")]
    KycSameOfficer,

    // Transfers
    /// No wire fee is known for the method at that time. Try again when there is one.
    #[error("no wire fee is known")]
    WireFeeMissing,
    /// The account is unknown, or has a method other than the named one.
    #[error("unknown account or other method")]
    TargetMismatch,
    /// The transient aggregate's identifier differs from the command's: read it and try again.
    #[error("the transient aggregate has another identifier")]
    TransientOther,

    // Archives
    /// Another archiver is at work, or the run has ended.
    #[error("another run is in progress, or this one has ended")]
    ArchiveRunOther,
    /// The archive must be kept longer.
    #[error("the run has not ended, or not long enough ago")]
    ArchiveTooYoung,
    /// Another transfer has this identifier: draw another one and try again.
    #[error("another transfer has this identifier")]
    WtidTaken,
    /// No such transfer or order.
    #[error("unknown transfer")]
    TransferUnknown,

    /// A sum is above the largest amount \[60\].
    #[error("amount overflow")]
    Overflow,
    /// A change of the key set was refused.
    #[error(transparent)]
    Management(management::Refusal),
}

impl Refusal {
    /// The length of the history that proves the refusal, if it needs one. See [`history`](crate::history).
    pub(super) fn history_events(&self) -> Option<usize> {
        match self {
            Self::ReserveInsufficient(shortage) => Some(shortage.history.items.len()),
            Self::CoinConflict { conflict, .. } => Some(conflict.history.items.len()),
            _ => None,
        }
    }
}

/// A reserve that holds too little.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveShortage {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// Its balance.
    pub balance: Money,
    /// The total that the request needs.
    pub requested: Money,
    /// Its whole history, which adds up to the balance.
    pub history: ReserveStatement,
}

/// A conflict with a coin's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoinConflict {
    /// The coin.
    pub coin_pub: CoinPub,
    /// The kind of conflict.
    pub reason: ConflictReason,
    /// Its whole history, with the denomination under which it is known.
    pub history: CoinHistory,
}

/// The kind of conflict between a request and a coin's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictReason {
    /// \[1012\] Less is left than the request takes.
    Insufficient {
        /// The requested amount.
        requested: Money,
    },
    /// \[1003\] The coin is known under another denomination.
    OtherDenomination,
    /// \[1015\] The coin is known with another age commitment, or only one of the two has one.
    OtherAgeCommitment,
    /// \[1206\] The coin was deposited for this merchant and contract with other data.
    OtherDeposit,
    /// \[1501\] The refunds of the deposit would exceed it.
    RefundAboveDeposit {
        /// This refund.
        requested: Money,
    },
    /// \[1510\] The refund's number was used with another amount.
    RefundOtherAmount,
}

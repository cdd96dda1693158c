//! Commands on reserves: withdrawals, history fees, credits, closing.

use batzen_crypto::{CsNonce, EddsaSignature, HashCode, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{AccountId, BlindSignature, DenomSerial, PaytoHash, ReservePub};

use super::{RangeProgress, RangeState};

/// One planchet of a withdrawal.
#[derive(Debug, Clone)]
pub struct Planchet {
    /// Its denomination.
    pub denom: DenomSerial,
    /// Hash of the blinded planchet and the denomination.
    pub h_coin_ev: HashCode,
    /// The reserve's signature on it, verified.
    pub reserve_sig: EddsaSignature,
    /// The blind signature, made in advance, and dropped if the withdrawal is refused or is a repetition.
    /// Without it, a withdrawal that could be paid is refused with [`crate::rules::Refusal::SignatureMissing`]. So a
    /// request that will probably be refused costs no signature.
    pub ev_sig: Option<BlindSignature>,
    /// Clause Blind Schnorr only: the planchet's nonce.
    pub nonce: Option<CsNonce>,
}

/// Withdraws coins, for `/withdraw` (one planchet) and `/batch-withdraw`. All or nothing; a complete
/// repetition returns the stored signatures and charges nothing.
#[derive(Debug, Clone)]
pub struct Withdraw {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// 1 to 256 planchets, all different.
    pub planchets: Vec<Planchet>,
    /// Whether this is `/batch-withdraw`, which accepts only reserves that had a wire credit.
    pub batch: bool,
    /// The account that filled the reserve, as read before; it only matters if KYC rules limit withdrawals.
    pub origin: Option<PaytoHash>,
}

/// The coins of a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawn {
    /// Their signatures as stored, in the order of the request.
    pub ev_sigs: Vec<BlindSignature>,
    /// Whether all of them had been withdrawn before.
    pub repeated: bool,
}

/// Charges for a full reserve history. The history itself is read afterwards (`reserve_statement`).
#[derive(Debug, Clone)]
pub struct ReserveHistory {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time. Each time is charged once.
    pub request_time: Timestamp,
    /// The history fee that the request signed (that of the global fee period of `request_time`).
    pub fee: Money,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// The history fee is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPaid {
    /// Whether the fee was charged now; false if it is zero or was paid before.
    pub charged: bool,
}

/// One incoming transfer.
#[derive(Debug, Clone)]
pub struct Credit {
    /// Its row at the bank.
    pub bank_row: u64,
    /// The reserve named in its subject.
    pub reserve_pub: ReservePub,
    /// How much.
    pub amount: Money,
    /// The sender's payto URI.
    pub payto_uri: String,
    /// Its hash.
    pub h_payto: PaytoHash,
    /// When the bank executed it.
    pub time: Timestamp,
}

/// Books a page of incoming transfers and moves the cursor, in one commit. Rows booked before are skipped.
#[derive(Debug, Clone)]
pub struct Credits {
    /// The exchange's account that received them.
    pub account: AccountId,
    /// The transfers, in the order of bank rows. May be empty (rows without a reserve in their subject).
    pub credits: Vec<Credit>,
    /// The last bank row of the page. The cursor never moves back.
    pub cursor: u64,
    /// The progress of the watcher's range of bank rows, if it has leased one. The cursor then follows the
    /// ranges.
    pub range: Option<RangeProgress>,
}

/// The outcome of [`Credits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credited {
    /// The reserves credited now, each once. Their waiters must be woken.
    pub reserves: Vec<ReservePub>,
    /// How many transfers were booked now.
    pub booked: usize,
    /// The state of the range, if the command named one.
    pub range: Option<RangeState>,
}

/// Closes one reserve and prepares the transfer of its money: an expired reserve to its origin, which never
/// changes once set, or by its owner's request to the account that the request names. The caller has read the
/// account and its payto URI.
#[derive(Debug, Clone)]
pub struct CloseReserve {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The time of the owner's request; none for an expired reserve.
    pub request_time: Option<Timestamp>,
    /// The account to pay.
    pub h_payto: PaytoHash,
    /// The method of that account's payto URI.
    pub method: String,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// 32 random bytes, used from the reserve's second closing on. The first closing uses the reserve's
    /// public key.
    pub wtid: Wtid,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
}

/// The outcome of [`CloseReserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The reserve is unknown, empty or not (or no longer) expired, or the request was executed. Nothing changed.
    NotDue,
    /// The reserve is empty, so the owner's request is done.
    Empty,
    /// The reserve is closed; what came in after the owner's request stays.
    Closed {
        /// The transfer's identifier.
        wtid: Wtid,
        /// Its balance before.
        amount: Money,
        /// The closing fee, at most the amount.
        fee: Money,
        /// The wired amount; zero if no transfer was prepared.
        paid: Money,
    },
}

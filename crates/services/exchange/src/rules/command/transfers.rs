//! Commands of workers: aggregation, transfers, profit, leases.

use batzen_crypto::{HashCode, Wtid};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{AccountId, DepositTarget, LeaseJob, PaytoHash};

use super::super::leases::Slots;

/// The reason for an aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// At least one of the deposits is due. If none is, nothing changes.
    Due,
    /// The next part of an interrupted unit, or a transient aggregate whose KYC hold may have ended.
    Continued,
}

/// Aggregates open deposits of one merchant into one account: those whose refund deadline has passed, oldest
/// deadline first.
#[derive(Debug, Clone)]
pub struct Aggregate {
    /// The merchant and the account.
    pub target: DepositTarget,
    /// The method of the account's payto URI.
    pub method: String,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// Deposits that may still be refunded after this moment are left out.
    pub until: Timestamp,
    /// The maximum number of deposits to aggregate: 1 to [`crate::rules::transfers::AGGREGATE_DEPOSITS_MAX`].
    pub deposits_max: usize,
    /// The reason.
    pub trigger: Trigger,
    /// Whether to pay the transfer although more deposits of the unit are left. Otherwise the sum waits for
    /// them.
    pub complete: bool,
    /// The transient aggregate's identifier if there is one (`transient`), otherwise 32 random bytes.
    pub wtid: Wtid,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
    /// The KYC requirement that the worker has stored for this account, if the rules have asked for one.
    pub kyc_hold: Option<u64>,
}

/// The outcome of [`Aggregate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregated {
    /// Nothing is due.
    Nothing,
    /// The sum waits because it is too small, it is held back, or more deposits follow.
    Transient {
        /// The number of deposits aggregated now.
        taken: usize,
        /// The sum so far, before the wire fee.
        total: Money,
        /// Whether the sum waits for further deposits of the unit.
        more: bool,
    },
    /// A transfer is prepared.
    Prepared {
        /// The number of deposits aggregated now.
        taken: usize,
        /// The wired amount.
        amount: Money,
    },
}

/// Marks transfers as accepted by the bank: all or none.
#[derive(Debug, Clone)]
pub struct TransfersDone {
    /// Their identifiers.
    pub wtids: Vec<Wtid>,
}

/// Marks a transfer as failed. It is not retried until an operator orders it.
#[derive(Debug, Clone)]
pub struct TransferFailed {
    /// Its identifier.
    pub wtid: Wtid,
    /// The reason, for the operator.
    pub reason: String,
}

/// Puts a failed transfer back into the queue.
#[derive(Debug, Clone, Copy)]
pub struct TransferRetry {
    /// Its identifier.
    pub wtid: Wtid,
}

/// The state of transfers was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferMarked {
    /// Whether any changed.
    pub changed: bool,
}

/// Prepares the transfer of an order to pay out profit. The order's signature has been verified.
#[derive(Debug, Clone)]
pub struct ExecuteDrain {
    /// The order's identifier.
    pub wtid: Wtid,
    /// Hash of its receiver's payto URI.
    pub h_payto: PaytoHash,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
}

/// The outcome of [`ExecuteDrain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// The paid amount.
    pub amount: Money,
    /// Whether it had been executed before.
    pub repeated: bool,
}

/// A worker claims, renews or returns its part of a job. See [`crate::rules::leases`].
#[derive(Debug, Clone)]
pub enum Lease {
    /// A range of an account's bank rows.
    Range(RangeClaim),
    /// Slots of a queue.
    Slots(SlotsClaim),
}

/// To a [`Lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// The range; none for a watcher that leaves.
    Range(Option<RangeState>),
    /// The slots.
    Slots(SlotsShare),
}

/// Claims the first range of an account that no other watcher holds, or a new range after the others. It
/// replaces the watcher's current range.
#[derive(Debug, Clone, Copy)]
pub struct RangeClaim {
    /// The account.
    pub account: AccountId,
    /// The watcher.
    pub holder: u64,
    /// The watcher's time, without any shift of the clock.
    pub now: Timestamp,
    /// The lease's duration. None: the worker leaves.
    pub lease: Option<Duration>,
    /// How many rows a new range has, measured as the distance of their ids.
    pub size: u64,
}

/// The progress of a watcher's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeProgress {
    /// The watcher.
    pub holder: u64,
    /// The watcher's time, without any shift of the clock.
    pub now: Timestamp,
    /// How long it continues to hold the range.
    pub lease: Duration,
    /// Where the range starts.
    pub start: u64,
    /// The last row up to which all rows are imported.
    pub latest: u64,
    /// If the range is complete: the id up to which there are no more rows.
    pub seen_until: Option<u64>,
}

/// A range that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeState {
    /// The row after which it starts.
    pub start: u64,
    /// The last row that it may contain.
    pub end: u64,
    /// The last row that was imported.
    pub latest: u64,
    /// Whether everything before it is imported.
    pub is_first: bool,
    /// Whether the watcher holds it.
    pub is_ours: bool,
    /// Whether other watchers hold ranges.
    pub has_others: bool,
}

/// A worker's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotsShare {
    /// The slots that it holds.
    pub slots: Slots,
    /// Whether it holds more than its share.
    pub has_excess: bool,
}

/// Takes or keeps a worker's share of a queue's slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotsClaim {
    /// The queue.
    pub job: LeaseJob,
    /// The worker: any number but 0, below 2^63.
    pub holder: u64,
    /// The worker's time, without any shift of the clock.
    pub now: Timestamp,
    /// The lease's duration. None: the worker leaves.
    pub lease: Option<Duration>,
    /// Whether it returns slots beyond its share.
    pub gives: bool,
}

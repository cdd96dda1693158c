//! Filters of reads, and their results.

use crate::{Account, Transfer};

/// Selects transfers of one account
/// ([`Ledger::get_account_transfers`](crate::Ledger::get_account_transfers)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountFilter {
    /// The account.
    pub account_id: u128,
    /// 0: any.
    pub user_data_128: u128,
    /// 0: any.
    pub user_data_64: u64,
    /// 0: any.
    pub user_data_32: u32,
    /// 0: any.
    pub code: u16,
    /// Inclusive; 0: open.
    pub timestamp_min: u64,
    /// Inclusive; 0: open.
    pub timestamp_max: u64,
    /// At least 1; capped by [`BATCH_EVENTS_MAX`](crate::BATCH_EVENTS_MAX).
    pub limit: u32,
    /// Include transfers that debit the account. At least one of the two sides is required.
    pub debits: bool,
    /// Include transfers that credit the account.
    pub credits: bool,
    /// Latest first.
    pub reversed: bool,
}

impl AccountFilter {
    /// Both sides of an account, earliest first, as many as fit.
    #[must_use]
    pub fn all(account_id: u128) -> Self {
        Self {
            account_id,
            user_data_128: 0,
            user_data_64: 0,
            user_data_32: 0,
            code: 0,
            timestamp_min: 0,
            timestamp_max: 0,
            limit: u32::try_from(crate::BATCH_EVENTS_MAX).expect("a small constant"),
            debits: true,
            credits: true,
            reversed: false,
        }
    }
}

/// Selects accounts or transfers: all conditions must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryFilter {
    /// 0: any.
    pub user_data_128: u128,
    /// 0: any.
    pub user_data_64: u64,
    /// 0: any.
    pub user_data_32: u32,
    /// 0: any.
    pub ledger: u32,
    /// 0: any.
    pub code: u16,
    /// Inclusive; 0: open.
    pub timestamp_min: u64,
    /// Inclusive; 0: open.
    pub timestamp_max: u64,
    /// At least 1; capped by [`BATCH_EVENTS_MAX`](crate::BATCH_EVENTS_MAX).
    pub limit: u32,
    /// Latest first.
    pub reversed: bool,
}

/// The most records or accounts that one request searches. A filter that nothing matches would otherwise read the whole
/// ledger, as often as a client likes.
pub const SEARCH_MAX: u64 = 1 << 18;

/// A search that ended at its limit, before it had found as many as were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The timestamp that was reached, in the direction of the search: the part of the period up to it takes no more
    /// than one request.
    pub until: u64,
}

/// A filter of a search in the order of timestamps.
pub trait Search: Copy {
    /// The members that [`in_parts`] changes: `timestamp_min`, `timestamp_max` and `limit`.
    fn bounds(&mut self) -> (&mut u64, &mut u64, &mut u32);
    /// Returns whether the latest come first.
    fn is_reversed(&self) -> bool;
}

macro_rules! searches {
    ($($filter:ty),*) => {$(
        impl Search for $filter {
            fn bounds(&mut self) -> (&mut u64, &mut u64, &mut u32) {
                (&mut self.timestamp_min, &mut self.timestamp_max, &mut self.limit)
            }

            fn is_reversed(&self) -> bool {
                self.reversed
            }
        }
    )*};
}

searches!(AccountFilter, QueryFilter);

/// Balances of an account with history, after one of its transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountBalance {
    /// The transfer's.
    pub timestamp: u64,
    /// After the transfer.
    pub debits_pending: u128,
    /// After the transfer.
    pub debits_posted: u128,
    /// After the transfer.
    pub credits_pending: u128,
    /// After the transfer.
    pub credits_posted: u128,
}

/// Selects a part of the event stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeFilter {
    /// Inclusive; 0: from the beginning. A consumer resumes at the last acknowledged timestamp + 1.
    pub timestamp_min: u64,
    /// Inclusive; 0: open.
    pub timestamp_max: u64,
    /// At least 1; capped by [`BATCH_EVENTS_MAX`](crate::BATCH_EVENTS_MAX).
    pub limit: u32,
}

/// Kind of a change of balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChangeKind {
    /// A single-phase transfer.
    SinglePhase = 0,
    /// A pending transfer was created.
    TwoPhasePending = 1,
    /// A pending transfer was posted.
    TwoPhasePosted = 2,
    /// A pending transfer was voided.
    TwoPhaseVoided = 3,
    /// A pending transfer expired.
    TwoPhaseExpired = 4,
}

impl ChangeKind {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SinglePhase => "single_phase",
            Self::TwoPhasePending => "two_phase_pending",
            Self::TwoPhasePosted => "two_phase_posted",
            Self::TwoPhaseVoided => "two_phase_voided",
            Self::TwoPhaseExpired => "two_phase_expired",
        }
    }
}

/// One change of balances, with all data that a consumer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeEvent {
    /// Unique, strictly increasing. The transfer's timestamp; an expiry has its own.
    pub timestamp: u64,
    /// Kind of the change.
    pub kind: ChangeKind,
    /// The transfer as stored (for an expiry: the pending transfer that was released).
    pub transfer: Transfer,
    /// The debit account with its flags and balances after the event.
    pub debit_account: Account,
    /// The credit account with its flags and balances after the event.
    pub credit_account: Account,
}

//! The interface of every ledger backend.

use std::future::Future;
use std::pin::Pin;

use crate::machine::read::SEARCH_MAX;
use crate::{
    Account, AccountBalance, AccountFilter, ChangeEvent, ChangeFilter, CreateAccountStatus, CreateResult,
    CreateTransferStatus, QueryFilter, Transfer,
};

/// Why a ledger gave no answer. Only [`LedgerError::Unknown`] leaves open whether the request took effect:
/// repeat it under the same ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// More than [`BATCH_EVENTS_MAX`](crate::BATCH_EVENTS_MAX) events: nothing was done.
    #[error("a request may hold at most {} events", crate::BATCH_EVENTS_MAX)]
    TooMuchData,
    /// Too many requests are waiting, or there is no space: nothing was done, try later.
    #[error("the ledger is busy: {0}")]
    Busy(String),
    /// The search reached its limit before it had found as many as were asked for. The part of the period up to this
    /// timestamp, in the direction of the search, takes no more than one request: see [`in_parts`](crate::in_parts).
    #[error(
        "the search ended at timestamp {until} after {SEARCH_MAX} records, and found too few: ask for shorter \
         periods, the first of them up to this timestamp"
    )]
    Unfinished {
        /// In nanoseconds since the epoch.
        until: u64,
    },
    /// The connection broke or the ledger stops: the request may or may not have taken effect.
    #[error("no answer from the ledger: {0}")]
    Unknown(String),
    /// The ledger cannot do this, or speaks another version.
    #[error("the ledger refuses: {0}")]
    Refused(String),
}

/// The future of a ledger's answer.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send + 'a>>;

/// A ledger: in this process, behind a socket, or a cluster.
///
/// Every create request is answered after it is durable, with one result per event, in order. Repeating
/// events under the same ids is safe: treat `exists` as success. Reads see all writes acknowledged before.
pub trait Ledger: Send + Sync + 'static {
    /// Creates accounts, at most [`BATCH_EVENTS_MAX`](crate::BATCH_EVENTS_MAX).
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>>;

    /// Creates transfers, at most [`BATCH_EVENTS_MAX`](crate::BATCH_EVENTS_MAX).
    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>>;

    /// The accounts with these ids, in their order; missing ones are left out.
    fn lookup_accounts(&self, ids: Vec<u128>) -> Answer<'_, Vec<Account>>;

    /// The transfers with these ids, in their order; missing ones are left out.
    fn lookup_transfers(&self, ids: Vec<u128>) -> Answer<'_, Vec<Transfer>>;

    /// The transfers of an account in the order of their timestamps. A malformed filter yields nothing. This and the
    /// other searches may end with [`LedgerError::Unfinished`].
    fn get_account_transfers(&self, filter: AccountFilter) -> Answer<'_, Vec<Transfer>>;

    /// Past balances of an account with history; nothing for others.
    fn get_account_balances(&self, filter: AccountFilter) -> Answer<'_, Vec<AccountBalance>>;

    /// Accounts in the order of their timestamps.
    fn query_accounts(&self, filter: QueryFilter) -> Answer<'_, Vec<Account>>;

    /// Transfers in the order of their timestamps.
    fn query_transfers(&self, filter: QueryFilter) -> Answer<'_, Vec<Transfer>>;

    /// The event stream from a timestamp on.
    fn get_change_events(&self, filter: ChangeFilter) -> Answer<'_, Vec<ChangeEvent>>;
}

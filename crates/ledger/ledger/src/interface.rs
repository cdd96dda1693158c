//! The interface of every ledger backend.

use std::future::Future;
use std::pin::Pin;

use crate::{
    Account, AccountBalance, AccountFilter, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter, CreateAccountStatus,
    CreateResult, CreateTransferStatus, QueryFilter, SEARCH_MAX, Search, Transfer, Unfinished,
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

impl From<Unfinished> for LedgerError {
    fn from(Unfinished { until }: Unfinished) -> Self {
        Self::Unfinished { until }
    }
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

/// A search that goes on where a request has reached its limit ([`LedgerError::Unfinished`]), with as many requests as
/// it takes.
///
/// # Errors
/// As of the requests, and [`LedgerError::Unfinished`] from a ledger that makes no progress.
pub async fn in_parts<'a, F: Search, T>(
    mut filter: F,
    mut ask: impl FnMut(F) -> Answer<'a, Vec<T>>,
) -> Result<Vec<T>, LedgerError> {
    let mut found = Vec::new();
    loop {
        let until = match ask(filter).await {
            Err(LedgerError::Unfinished { until }) => until,
            Ok(rest) if found.is_empty() => return Ok(rest),
            Ok(rest) => {
                found.extend(rest);
                return Ok(found);
            }
            Err(error) => return Err(error),
        };
        let is_reversed = filter.is_reversed();
        let mut part = filter;
        let (min, max, _) = part.bounds();
        *(if is_reversed { min } else { max }) = until;
        let answer = ask(part).await?;
        let (min, max, limit) = filter.bounds();
        *limit = (*limit).min(u32::try_from(BATCH_EVENTS_MAX).expect("a small constant"));
        *limit = limit.saturating_sub(u32::try_from(answer.len()).expect("at most the limit"));
        found.extend(answer);
        // A maximum of 0 is open.
        let is_within = *min <= until && (*max == 0 || until <= *max);
        let is_last = until == if is_reversed { (*min).max(1) } else { *max };
        if is_last || *limit == 0 {
            return Ok(found);
        }
        let next = if is_reversed { until.checked_sub(1) } else { until.checked_add(1) };
        // Otherwise it would search the same again, perhaps for ever.
        let next = next.filter(|_| is_within).ok_or(LedgerError::Unfinished { until })?;
        *(if is_reversed { max } else { min }) = next;
    }
}

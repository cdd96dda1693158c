//! Reads: filters applied to accounts and records. A malformed filter yields nothing.

use super::accounts::MARK_EVERY;
use super::log::{Balances, History, LogRecord, Movement};
use super::{IdStatus, Machine, TIMESTAMP_END};
use crate::{
    Account, AccountBalance, AccountFilter, AccountFlags, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter,
    QueryFilter, Transfer, Unfinished,
};

/// The error of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchError<E> {
    /// The history cannot be read.
    History(E),
    /// The limit was reached.
    Unfinished(Unfinished),
}

impl<E> From<E> for SearchError<E> {
    fn from(error: E) -> Self {
        Self::History(error)
    }
}

/// Immutable data of accounts, by number.
pub trait Directory {
    /// The account with this number, which exists. Its balances and flags may be out of date.
    fn account(&self, number: u32) -> Account;
}

impl Directory for Machine {
    fn account(&self, number: u32) -> Account {
        self.accounts.get(number).account
    }
}

/// Position of an account's movements within a period: enough to read them without the machine.
#[derive(Clone, Debug)]
pub struct AccountCursor {
    number: u32,
    has_history: bool,
    /// Windows of successive movements, earliest first: the last record number plus one, and the count.
    windows: Vec<(u64, u64)>,
}

/// Where the transfer with an id may be.
#[derive(Clone, Debug)]
pub struct Located {
    /// The id.
    pub id: u128,
    /// Its hash, to look for it where the machine has forgotten it.
    pub(crate) hash: u64,
    /// Numbers of the records that may have created it.
    pub records: Vec<u64>,
}

impl Machine {
    /// The accounts with these ids, in the order of the ids. Missing ones are left out.
    #[must_use]
    pub fn lookup_accounts(&self, ids: &[u128]) -> Vec<Account> {
        let find = |id: &u128| self.accounts.find(self.hasher.hash(*id), *id);
        ids.iter().filter_map(find).map(|number| self.accounts.get(number).account).collect()
    }

    /// Candidates for the records of the transfers with these ids; [`read_transfers`] adds those that were
    /// forgotten and selects the right ones.
    #[must_use]
    pub fn locate_transfers(&self, ids: &[u128]) -> Vec<Located> {
        let locate = |id: &u128| {
            let hash = self.hasher.hash(*id);
            let found = self.ids.find(hash).filter(|(_, status)| *status != IdStatus::Burnt);
            Located { id: *id, hash, records: found.map(|(number, _)| number).collect() }
        };
        ids.iter().map(locate).collect()
    }

    /// The transfers with these ids, in the order of the ids. Missing ones are left out.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn lookup_transfers<H: History>(&self, history: &H, ids: &[u128]) -> Result<Vec<Transfer>, H::Error> {
        read_transfers(history, &self.locate_transfers(ids))
    }

    /// The position of a filter's result; `None` if the result is empty or the filter malformed.
    #[must_use]
    pub fn account_cursor(&self, filter: &AccountFilter) -> Option<AccountCursor> {
        let (min, max) = period(filter.timestamp_min, filter.timestamp_max)?;
        if filter.limit == 0 || !(filter.debits || filter.credits) {
            return None;
        }
        let number = self.accounts.find(self.hasher.hash(filter.account_id), filter.account_id)?;
        let state = self.accounts.get(number);
        let marks = self.accounts.marks(number);
        let from = marks.partition_point(|(timestamp, _)| *timestamp < min);
        let to = marks.partition_point(|(timestamp, _)| *timestamp < max);
        let mut windows: Vec<(u64, u64)> =
            marks[from..].iter().take((to - from) + 1).map(|(_, record)| (*record, MARK_EVERY)).collect();
        let rest = state.movements % MARK_EVERY;
        if to == marks.len() && rest > 0 {
            windows.push((state.last, rest));
        }
        let has_history = state.account.flags.contains(AccountFlags::HISTORY);
        Some(AccountCursor { number, has_history, windows })
    }

    /// Accounts in the order of their timestamps, among at most `search_max`.
    ///
    /// # Errors
    /// If there are more, and too few of the first ones match.
    pub fn query_accounts(&self, filter: &QueryFilter, search_max: u64) -> Result<Vec<Account>, Unfinished> {
        let Some((min, max)) = period(filter.timestamp_min, filter.timestamp_max) else {
            return Ok(Vec::new());
        };
        let fits = |account: &&Account| {
            any_or(filter.user_data_128, account.user_data_128)
                && any_or(filter.user_data_64, account.user_data_64)
                && any_or(filter.user_data_32, account.user_data_32)
                && any_or(filter.ledger, account.ledger)
                && any_or(filter.code, account.code)
        };
        let accounts = self.accounts.within(min, max);
        let searched = usize::try_from(search_max).map_or(accounts.len(), |max| max.min(accounts.len()));
        let is_whole = searched == accounts.len();
        let accounts =
            if filter.reversed { &accounts[accounts.len() - searched..] } else { &accounts[..searched] };
        let last = if filter.reversed { accounts.first() } else { accounts.last() };
        let limit = limit(filter.limit);
        let each = accounts.iter().map(|state| &state.account);
        let found: Vec<Account> = if filter.reversed {
            each.rev().filter(fits).take(limit).copied().collect()
        } else {
            each.filter(fits).take(limit).copied().collect()
        };
        match last {
            Some(last) if !is_whole && found.len() < limit => {
                Err(Unfinished { until: last.account.timestamp })
            }
            _ => Ok(found),
        }
    }
}

/// The transfers among the candidates of [`Machine::locate_transfers`].
///
/// # Errors
/// If the history cannot be read.
pub fn read_transfers<H: History>(history: &H, located: &[Located]) -> Result<Vec<Transfer>, H::Error> {
    let hashes: Vec<u64> = located.iter().map(|located| located.hash).collect();
    let mut old: Vec<Vec<u64>> = vec![Vec::new(); located.len()];
    history.find_ids(&hashes, &mut |at, number, status| {
        if status != IdStatus::Burnt {
            old[at].push(number);
        }
    })?;
    let mut transfers = Vec::with_capacity(located.len());
    for (Located { id, records, .. }, old) in located.iter().zip(&old) {
        for number in records.iter().chain(old) {
            if let LogRecord::Movement(movement) = history.record(*number)?
                && movement.transfer.id == *id
            {
                transfers.push(movement.transfer);
                break;
            }
        }
    }
    Ok(transfers)
}

/// The transfers of an account that match a filter. Reads about `search_max` records at most.
///
/// # Errors
/// If the history cannot be read, or too few of these records match.
pub fn account_transfers<H: History>(
    history: &H,
    cursor: &AccountCursor,
    filter: &AccountFilter,
    search_max: u64,
) -> Result<Vec<Transfer>, SearchError<H::Error>> {
    account_movements(history, cursor, filter, search_max, |movement| movement.transfer)
}

/// The balances of an account with history, after each transfer that matches a filter. Reads about `search_max` records
/// at most.
///
/// # Errors
/// If the history cannot be read, or too few of these records match.
pub fn account_balances<H: History>(
    history: &H,
    cursor: &AccountCursor,
    filter: &AccountFilter,
    search_max: u64,
) -> Result<Vec<AccountBalance>, SearchError<H::Error>> {
    if !cursor.has_history {
        return Ok(Vec::new());
    }
    account_movements(history, cursor, filter, search_max, |movement| {
        let side = movement.side_of(cursor.number).expect("a movement of the account");
        let Balances { debits_pending, debits_posted, credits_pending, credits_posted } = side.balances;
        AccountBalance {
            timestamp: movement.timestamp,
            debits_pending,
            debits_posted,
            credits_pending,
            credits_posted,
        }
    })
}

fn account_movements<H: History, T>(
    history: &H,
    cursor: &AccountCursor,
    filter: &AccountFilter,
    search_max: u64,
    show: impl Fn(&Movement) -> T,
) -> Result<Vec<T>, SearchError<H::Error>> {
    let Some((min, max)) = period(filter.timestamp_min, filter.timestamp_max) else { return Ok(Vec::new()) };
    let fits = |movement: &Movement| {
        let transfer = &movement.transfer;
        let is_debit = movement.debit.account == cursor.number;
        movement.creates_transfer()
            && (min..=max).contains(&movement.timestamp)
            && if is_debit { filter.debits } else { filter.credits }
            && any_or(filter.user_data_128, transfer.user_data_128)
            && any_or(filter.user_data_64, transfer.user_data_64)
            && any_or(filter.user_data_32, transfer.user_data_32)
            && any_or(filter.code, transfer.code)
    };
    let limit = limit(filter.limit);
    let mut found = Vec::new();
    // Appends what fits of a window, and returns the timestamps of its first and last movement.
    let read = |&(end, size): &(u64, u64), found: &mut Vec<T>| -> Result<(u64, u64), H::Error> {
        let mut window = Vec::with_capacity(64);
        let mut at = end;
        let (mut first, mut last) = (0, 0);
        for _ in 0..size {
            let LogRecord::Movement(movement) = history.record(at - 1)? else {
                unreachable!("links lead to movements")
            };
            first = movement.timestamp;
            last = last.max(first);
            if fits(&movement) {
                window.push(show(&movement));
            }
            at = movement.side_of(cursor.number).expect("links lead to the account's movements").previous;
        }
        if !filter.reversed {
            window.reverse();
        }
        let room = limit - found.len();
        found.extend(window.into_iter().take(room));
        Ok((first, last))
    };
    let mut forwards = cursor.windows.iter();
    let mut backwards = cursor.windows.iter().rev();
    let windows: &mut dyn ExactSizeIterator<Item = &(u64, u64)> =
        if filter.reversed { &mut backwards } else { &mut forwards };
    let mut searched = 0;
    while let Some(window) = windows.next() {
        let (first, last) = read(window, &mut found)?;
        if found.len() == limit {
            break;
        }
        // The latest window may begin after the period.
        searched += if first <= max { window.1 } else { 0 };
        if searched >= search_max && windows.len() > 0 {
            let until = if filter.reversed { first } else { last };
            return Err(SearchError::Unfinished(Unfinished { until }));
        }
    }
    Ok(found)
}

/// Transfers in the order of their timestamps. Reads at most `search_max` records of the period.
///
/// # Errors
/// If the history cannot be read, or too few of these records match.
pub fn query_transfers<H: History>(
    history: &H,
    filter: &QueryFilter,
    search_max: u64,
) -> Result<Vec<Transfer>, SearchError<H::Error>> {
    let Some((min, max)) = period(filter.timestamp_min, filter.timestamp_max) else { return Ok(Vec::new()) };
    let fits = |transfer: &Transfer| {
        any_or(filter.user_data_128, transfer.user_data_128)
            && any_or(filter.user_data_64, transfer.user_data_64)
            && any_or(filter.user_data_32, transfer.user_data_32)
            && any_or(filter.ledger, transfer.ledger)
            && any_or(filter.code, transfer.code)
    };
    let limit = limit(filter.limit);
    let mut found = Vec::new();
    let (from, to) = (history.seek(min)?, end_of_period(history, min, max)?);
    let mut until = min;
    for at in 0..to.saturating_sub(from) {
        if found.len() == limit {
            break;
        }
        if at == search_max {
            return Err(SearchError::Unfinished(Unfinished { until }));
        }
        let number = if filter.reversed { to - 1 - at } else { from + at };
        let record = history.record(number)?;
        until = record.timestamp();
        if let LogRecord::Movement(movement) = record
            && movement.creates_transfer()
            && fits(&movement.transfer)
        {
            found.push(movement.transfer);
        }
    }
    Ok(found)
}

/// The number of the first record after a period. [`History::seek`] finds movements only, and as many accounts as there
/// are may have been created before the next one.
fn end_of_period<H: History>(history: &H, min: u64, max: u64) -> Result<u64, H::Error> {
    let (mut from, mut to) = (history.seek(min)?, history.seek(max + 1)?);
    if max == TIMESTAMP_END - 1 {
        return Ok(to);
    }
    while from < to {
        let middle = from.midpoint(to);
        if history.record(middle)?.timestamp() <= max {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    Ok(to)
}

/// The event stream from a timestamp on.
///
/// # Errors
/// If the history cannot be read.
pub fn change_events<H: History>(
    history: &H,
    directory: &impl Directory,
    filter: &ChangeFilter,
) -> Result<Vec<ChangeEvent>, H::Error> {
    let Some((min, max)) = period(filter.timestamp_min, filter.timestamp_max) else { return Ok(Vec::new()) };
    let limit = limit(filter.limit);
    let mut events = Vec::new();
    let (mut number, end) = (history.seek(min)?, history.len());
    while number < end && events.len() < limit {
        if let LogRecord::Movement(movement) = history.record(number)? {
            if movement.timestamp > max {
                break;
            }
            events.push(change_event(&movement, directory));
        }
        number += 1;
    }
    Ok(events)
}

/// A movement as the event stream shows it.
#[must_use]
pub(crate) fn change_event(movement: &Movement, directory: &impl Directory) -> ChangeEvent {
    let account = |side: &super::Side| directory.account(side.account).with(side.balances, side.flags);
    ChangeEvent {
        timestamp: movement.timestamp,
        kind: movement.kind,
        transfer: movement.transfer,
        debit_account: account(&movement.debit),
        credit_account: account(&movement.credit),
    }
}

/// The period of a filter, both ends included; `None` if it is empty.
fn period(min: u64, max: u64) -> Option<(u64, u64)> {
    let max = if max == 0 { TIMESTAMP_END - 1 } else { max };
    (min <= max && max < TIMESTAMP_END).then_some((min, max))
}

fn limit(limit: u32) -> usize {
    usize::try_from(limit).expect("32 bits fit").min(BATCH_EVENTS_MAX)
}

fn any_or<T: Default + PartialEq>(wanted: T, found: T) -> bool {
    wanted == T::default() || wanted == found
}

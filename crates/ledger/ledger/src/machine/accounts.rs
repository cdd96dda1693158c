//! Accounts: their state, and the rules of their creation.

use std::collections::HashMap;

use hashbrown::HashTable;

use super::ids::IdHasher;
use super::log::{Balances, History, LogRecord, Side};
use super::{EventTime, Machine, TIMESTAMP_END};
use crate::{Account, AccountFlags, CreateAccountStatus, CreateAccountStatus as S};

/// One movement in this many is marked for each account, so that a point in its history can be found without
/// walking to it.
pub const MARK_EVERY: u64 = 64;

/// An account with the position of its history: its state in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAccount {
    /// The account with its balances.
    pub account: Account,
    /// Its latest movement: record number plus one, 0 for none.
    pub last: u64,
    /// Number of its movements.
    pub movements: u64,
}

/// An account as the machine holds it.
pub(super) struct AccountState {
    pub account: Account,
    /// The ledger whose sums include it.
    pub ledger: u32,
    /// Its latest movement: record number plus one, 0 for none.
    pub last: u64,
    /// Number of its movements.
    pub(crate) movements: u64,
}

/// An account's values before a movement, to undo it.
#[derive(Clone, Copy)]
pub(super) struct AccountBefore {
    pub number: u32,
    pub flags: AccountFlags,
    pub(crate) balances: Balances,
    pub last: u64,
}

pub(super) struct Accounts {
    states: Vec<AccountState>,
    by_id: HashTable<u32>,
    /// By ledger: the sums over its accounts, modulo 2^128.
    sums: Vec<(u32, Balances)>,
    ledgers: HashMap<u32, u32>,
    /// By account: timestamp and record number plus one of every [`MARK_EVERY`]th movement.
    marks: HashMap<u32, Vec<(u64, u64)>>,
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit")
}

impl Accounts {
    pub(super) fn new() -> Self {
        Self {
            states: Vec::new(),
            by_id: HashTable::new(),
            sums: Vec::new(),
            ledgers: HashMap::new(),
            marks: HashMap::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.states.len()
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &AccountState {
        &self.states[index(number)]
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, id: u128) -> Option<u32> {
        self.by_id.find(hash, |number| self.states[index(*number)].account.id == id).copied()
    }

    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Account> {
        self.states.iter().map(|state| &state.account)
    }

    pub(crate) fn last_timestamp(&self) -> u64 {
        self.states.last().map_or(0, |state| state.account.timestamp)
    }

    /// The accounts created between these timestamps, inclusive, as a range of numbers.
    pub(super) fn within(&self, min: u64, max: u64) -> &[AccountState] {
        let from = self.states.partition_point(|state| state.account.timestamp < min);
        let to = self.states.partition_point(|state| state.account.timestamp <= max);
        &self.states[from..to.max(from)]
    }

    pub(super) fn marks(&self, number: u32) -> &[(u64, u64)] {
        self.marks.get(&number).map_or(&[], Vec::as_slice)
    }

    pub(super) fn sums(&self) -> impl Iterator<Item = (u32, Balances)> + '_ {
        self.sums.iter().copied()
    }

    pub(super) fn insert(&mut self, account: Account, ids: &IdHasher) {
        let number = u32::try_from(self.states.len()).expect("there are less than 2^32 accounts");
        let next = u32::try_from(self.sums.len()).expect("no more ledgers than accounts");
        let ledger = *self.ledgers.entry(account.ledger).or_insert(next);
        if ledger == next {
            self.sums.push((account.ledger, Balances::default()));
        }
        let states = &self.states;
        self.by_id.insert_unique(ids.hash(account.id), number, |number| {
            ids.hash(states.get(index(*number)).map_or(account.id, |state| state.account.id))
        });
        self.states.push(AccountState { account, ledger, last: 0, movements: 0 });
    }

    /// Inserts an account with a history.
    pub(super) fn load(&mut self, held: &HeldAccount, ids: &IdHasher) {
        self.insert(held.account, ids);
        let state = self.states.last_mut().expect("just inserted");
        (state.last, state.movements) = (held.last, held.movements);
        let sums = &mut self.sums[index(state.ledger)].1;
        *sums = sums.moved(Balances::default(), Balances::of(&held.account));
    }

    /// Adds a mark to those of an account.
    pub(super) fn load_mark(&mut self, number: u32, timestamp: u64, record: u64) {
        self.marks.entry(number).or_default().push((timestamp, record));
    }

    /// Removes the latest account. (If it was the first of its ledger, the ledger keeps sums of zero.)
    pub(crate) fn remove_last(&mut self, ids: &IdHasher) {
        let state = self.states.pop().expect("what is undone was done");
        assert_eq!(state.movements, 0, "movements are undone before the accounts they touch");
        let number = u32::try_from(self.states.len()).expect("it had a number");
        let entry = self.by_id.find_entry(ids.hash(state.account.id), |at| *at == number);
        entry.expect("every account is in the index").remove();
    }

    /// Applies one side of a movement. Returns the account's values before it.
    #[inline]
    pub(super) fn apply(&mut self, side: &Side, timestamp: u64, record: u64) -> AccountBefore {
        let state = &mut self.states[index(side.account)];
        let before = AccountBefore {
            number: side.account,
            flags: state.account.flags,
            balances: Balances::of(&state.account),
            last: state.last,
        };
        assert_eq!(side.previous, before.last, "a movement follows the account's last one");
        let after = side.balances;
        assert!(
            after.debits_posted >= before.balances.debits_posted
                && after.credits_posted >= before.balances.credits_posted,
            "posted balances never decrease"
        );
        let sums = &mut self.sums[index(state.ledger)].1;
        *sums = sums.moved(before.balances, after);
        state.account = state.account.with(after, side.flags);
        state.last = record + 1;
        state.movements += 1;
        if state.movements.is_multiple_of(MARK_EVERY) {
            self.marks.entry(side.account).or_default().push((timestamp, record + 1));
        }
        before
    }

    /// The sums of a ledger must agree after every movement.
    #[inline]
    pub(crate) fn assert_balanced(&self, number: u32) {
        let (ledger, sums) = &self.sums[index(self.states[index(number)].ledger)];
        assert!(
            sums.debits_pending == sums.credits_pending && sums.debits_posted == sums.credits_posted,
            "ledger {ledger}: debits and credits differ"
        );
    }

    pub(super) fn undo(&mut self, before: &AccountBefore) {
        let state = &mut self.states[index(before.number)];
        let sums = &mut self.sums[index(state.ledger)].1;
        *sums = sums.moved(Balances::of(&state.account), before.balances);
        state.account = state.account.with(before.balances, before.flags);
        if state.movements.is_multiple_of(MARK_EVERY) {
            self.marks.get_mut(&before.number).expect("a mark was set").pop();
        }
        state.last = before.last;
        state.movements -= 1;
    }

    /// Allocated memory.
    pub(super) fn bytes(&self) -> u64 {
        let states = self.states.capacity() * size_of::<AccountState>() + self.by_id.allocation_size();
        let marks: usize = self.marks.values().map(|marks| 64 + marks.capacity() * 16).sum();
        (states + marks) as u64
    }
}

impl Machine {
    /// Decides whether an account may be created, and with which values. Checks run in the order of the
    /// specification's table (1.7).
    pub(super) fn decide_account<H: History>(
        &self,
        history: &H,
        event: &Account,
        slot: EventTime,
    ) -> Result<Result<LogRecord, (CreateAccountStatus, u64)>, H::Error> {
        let refuse = |status| Ok(Err((status, slot.timestamp)));
        let imported = event.flags.contains(AccountFlags::IMPORTED);
        if imported != slot.importing {
            return refuse(if slot.importing {
                S::ImportedEventExpected
            } else {
                S::ImportedEventNotExpected
            });
        }
        if !imported && event.timestamp != 0 {
            return refuse(S::TimestampMustBeZero);
        }
        if imported {
            if event.timestamp == 0 || event.timestamp >= TIMESTAMP_END {
                return refuse(S::ImportedEventTimestampOutOfRange);
            }
            if event.timestamp >= slot.operation {
                return refuse(S::ImportedEventTimestampMustNotAdvance);
            }
        }
        if event.reserved != 0 {
            return refuse(S::ReservedField);
        }
        if !AccountFlags::ALL.contains(event.flags) {
            return refuse(S::ReservedFlag);
        }
        if event.id == 0 {
            return refuse(S::IdMustNotBeZero);
        }
        if event.id == u128::MAX {
            return refuse(S::IdMustNotBeIntMax);
        }
        if let Some(number) = self.accounts.find(self.hasher.hash(event.id), event.id) {
            let existing = &self.accounts.get(number).account;
            return Ok(Err((compare(event, existing), existing.timestamp)));
        }
        let limits =
            AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS | AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS;
        if event.flags.contains(limits) {
            return refuse(S::FlagsAreMutuallyExclusive);
        }
        let must_be_zero = [
            (event.debits_pending, S::DebitsPendingMustBeZero),
            (event.debits_posted, S::DebitsPostedMustBeZero),
            (event.credits_pending, S::CreditsPendingMustBeZero),
            (event.credits_posted, S::CreditsPostedMustBeZero),
        ];
        if let Some((_, status)) = must_be_zero.into_iter().find(|(balance, _)| *balance != 0) {
            return refuse(status);
        }
        if event.ledger == 0 {
            return refuse(S::LedgerMustNotBeZero);
        }
        if event.code == 0 {
            return refuse(S::CodeMustNotBeZero);
        }
        if imported
            && (event.timestamp <= self.accounts.last_timestamp()
                || self.has_movement_at(history, event.timestamp)?)
        {
            return refuse(S::ImportedEventTimestampMustNotRegress);
        }
        let timestamp = if imported { event.timestamp } else { slot.timestamp };
        Ok(Ok(LogRecord::Account(Account { timestamp, ..*event })))
    }
}

/// Returns the difference between a repetition and the account that exists.
fn compare(event: &Account, existing: &Account) -> CreateAccountStatus {
    if event.flags != existing.flags {
        S::ExistsWithDifferentFlags
    } else if event.user_data_128 != existing.user_data_128 {
        S::ExistsWithDifferentUserData128
    } else if event.user_data_64 != existing.user_data_64 {
        S::ExistsWithDifferentUserData64
    } else if event.user_data_32 != existing.user_data_32 {
        S::ExistsWithDifferentUserData32
    } else if event.ledger != existing.ledger {
        S::ExistsWithDifferentLedger
    } else if event.code != existing.code {
        S::ExistsWithDifferentCode
    } else {
        S::Exists
    }
}

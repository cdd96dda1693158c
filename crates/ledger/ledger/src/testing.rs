//! Helpers of tests that have ledgers of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Account, AccountFlags, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter, ChangeKind, CreateTransferStatus,
    Ledger,
};

/// In an `impl Ledger`: passes all reads on to the ledger in this field of `self`. A test then decides how requests that
/// create something end.
#[macro_export]
macro_rules! delegate_reads {
    ($field:ident) => {
        fn lookup_accounts(&self, ids: Vec<u128>) -> $crate::Answer<'_, Vec<$crate::Account>> {
            self.$field.lookup_accounts(ids)
        }
        fn lookup_transfers(&self, ids: Vec<u128>) -> $crate::Answer<'_, Vec<$crate::Transfer>> {
            self.$field.lookup_transfers(ids)
        }
        fn get_account_transfers(
            &self,
            filter: $crate::AccountFilter,
        ) -> $crate::Answer<'_, Vec<$crate::Transfer>> {
            self.$field.get_account_transfers(filter)
        }
        fn get_account_balances(
            &self,
            filter: $crate::AccountFilter,
        ) -> $crate::Answer<'_, Vec<$crate::AccountBalance>> {
            self.$field.get_account_balances(filter)
        }
        fn query_accounts(&self, filter: $crate::QueryFilter) -> $crate::Answer<'_, Vec<$crate::Account>> {
            self.$field.query_accounts(filter)
        }
        fn query_transfers(&self, filter: $crate::QueryFilter) -> $crate::Answer<'_, Vec<$crate::Transfer>> {
            self.$field.query_transfers(filter)
        }
        fn get_change_events(
            &self,
            filter: $crate::ChangeFilter,
        ) -> $crate::Answer<'_, Vec<$crate::ChangeEvent>> {
            self.$field.get_change_events(filter)
        }
    };
}

/// All events of a ledger.
///
/// # Panics
/// If the ledger does not answer.
pub async fn stream(ledger: &dyn Ledger) -> Vec<ChangeEvent> {
    let limit = u32::try_from(BATCH_EVENTS_MAX).expect("a small number");
    let mut out: Vec<ChangeEvent> = Vec::new();
    loop {
        let timestamp_min = out.last().map_or(0, |event| event.timestamp + 1);
        let filter = ChangeFilter { timestamp_min, timestamp_max: 0, limit };
        let page = ledger.get_change_events(filter).await.expect("the ledger answers");
        if page.is_empty() {
            return out;
        }
        out.extend(page);
    }
}

/// Contradictions between the answers to transfers, the whole stream of events, and the accounts afterwards.
#[must_use]
pub fn problems(
    statuses: &BTreeMap<u128, CreateTransferStatus>,
    events: &[ChangeEvent],
    accounts: &[Account],
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    let mut balances: BTreeMap<u128, Account> = BTreeMap::new();
    let mut last = 0;
    for event in events {
        if event.timestamp <= last {
            problems.push(format!("{} is out of order", event.timestamp));
        }
        last = event.timestamp;
        if event.kind != ChangeKind::TwoPhaseExpired && !seen.insert(event.transfer.id) {
            problems.push(format!("{:x} is there twice", event.transfer.id));
        }
        for account in [event.debit_account, event.credit_account] {
            let is_limited = account.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS);
            if is_limited && account.debits_pending + account.debits_posted > account.credits_posted {
                problems.push(format!("account {} is overdrawn at {}", account.id, event.timestamp));
            }
            balances.insert(account.id, account);
        }
    }
    for (id, status) in statuses {
        if status.stands() != seen.contains(id) {
            problems.push(format!("{id:x} was answered {status}; in the stream: {}", seen.contains(id)));
        }
    }
    problems.extend(
        seen.iter()
            .filter(|id| !statuses.contains_key(id))
            .map(|id| format!("transfer {id:x} was never requested")),
    );
    for account in accounts {
        if balances.get(&account.id).is_some_and(|shown| shown != account) {
            problems.push(format!("account {} is not as its last event says", account.id));
        }
    }
    let sum = |of: fn(&Account) -> u128| accounts.iter().map(of).sum::<u128>();
    if sum(|account| account.debits_posted) != sum(|account| account.credits_posted)
        || sum(|account| account.debits_pending) != sum(|account| account.credits_pending)
    {
        problems.push("debits are not credits".to_owned());
    }
    problems
}

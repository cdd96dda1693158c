//! Sums over the stored books, and the check that they add up.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

use batzen_protocol::Money;
use batzen_store::{Store, StoreError};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankStateKey, BankStates, BankTransactions, BankWithdrawals,
    EQUITY_ACCOUNT,
};

/// The sums of one account, in 10⁻⁸ of the currency. The balance is `credits` minus `debits`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountTotals {
    /// The account.
    pub name: String,
    /// Everything ever credited.
    pub credits: u128,
    /// Everything ever debited.
    pub debits: u128,
    /// The part of `credits` that came with a reserve key.
    pub credits_reserve: u128,
    /// The part of `debits` that went through the wire gateway.
    pub debits_transfer: u128,
    /// The part of `credits` that is the sign-up bonus.
    pub bonus: u128,
}

impl AccountTotals {
    fn of(name: String, row: &AccountRow) -> Self {
        let AccountRow { credits, debits, credits_reserve, debits_transfer, bonus, .. } = *row;
        Self { name, credits, debits, credits_reserve, debits_transfer, bonus }
    }

    /// The balance: whether it is negative, and its size.
    pub fn balance(&self) -> (bool, Money) {
        let size =
            Money::from_units(self.credits.abs_diff(self.debits)).expect("the rules keep balances in range");
        (self.debits > self.credits, size)
    }
}

/// The sums of all accounts, the bank's own included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The accounts by name.
    pub accounts: Vec<AccountTotals>,
    /// The sum of their credits, in 10⁻⁸.
    pub credits: u128,
    /// The sum of their debits, in 10⁻⁸: the same, if the books are right.
    pub debits: u128,
}

/// What went through an account's wire gateway: both sides of an exchange's balance sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountFlow {
    /// The sum of the incoming history: transfers with a reserve key.
    pub incoming_with_reserve_pub: Money,
    /// The sum of the outgoing history: transfers ordered by the exchange.
    pub outgoing_transfers: Money,
}

/// Books that do not add up, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BooksError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What does not hold.
    #[error("the bank's books do not add up: {0}")]
    Wrong(String),
}

/// The sums of all accounts.
///
/// # Errors
/// When the store cannot be read.
pub fn totals(store: &Store) -> Result<Totals, StoreError> {
    let mut totals = Totals::default();
    store.scan::<BankAccounts>(|found| {
        totals.credits += found.row.credits;
        totals.debits += found.row.debits;
        totals.accounts.push(AccountTotals::of(found.key.name, &found.row));
        ControlFlow::Continue(())
    })?;
    totals.accounts.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(totals)
}

/// What went through an account's wire gateway. An account that does not exist has no flow.
///
/// # Errors
/// When the store cannot be read, or a sum is larger than any amount.
pub fn account_flow(store: &Store, account: &str) -> Result<AccountFlow, StoreError> {
    let row = store.get::<BankAccounts>(&AccountKey::new(account))?.map(|stored| stored.row);
    let (incoming, outgoing) = row.map_or((0, 0), |row| (row.credits_reserve, row.debits_transfer));
    let money = |units| Money::from_units(units).map_err(|error| StoreError::Backend(error.to_string()));
    Ok(AccountFlow { incoming_with_reserve_pub: money(incoming)?, outgoing_transfers: money(outgoing)? })
}

/// Recomputes every account from the transactions and checks the invariants: debits equal credits, sums match, row ids are
/// dense, a confirmed withdrawal has its transaction. For tests and tools, on a bank at rest: it reads everything.
///
/// # Errors
/// [`BooksError::Wrong`] with the first thing that does not hold.
pub fn check(store: &Store) -> Result<Totals, BooksError> {
    let wrong = |what: String| BooksError::Wrong(what);
    let stored = totals(store)?;
    if stored.credits != stored.debits {
        return Err(wrong(format!(
            "credits of {} stand against debits of {}",
            stored.credits, stored.debits
        )));
    }
    let mut sums: BTreeMap<String, [u128; 4]> = BTreeMap::new();
    let mut row_ids = HashSet::new();
    for found in store.all::<BankTransactions>()? {
        let row = found.row;
        let units = row.amount.units();
        if row.reserve_pub.is_some() == row.wtid.is_some() {
            return Err(wrong(format!("transaction {} is neither incoming nor outgoing", row.row_id)));
        }
        let payer = sums.entry(row.debit_account).or_default();
        payer[1] += units;
        payer[3] += if row.wtid.is_some() { units } else { 0 };
        let payee = sums.entry(row.credit_account).or_default();
        payee[0] += units;
        payee[2] += if row.reserve_pub.is_some() { units } else { 0 };
        if !row_ids.insert(row.row_id) {
            return Err(wrong(format!("row id {} occurs twice", row.row_id)));
        }
    }
    let next_row_id = store.get::<BankStates>(&BankStateKey::ONLY)?.map_or(1, |state| state.row.next_row_id);
    if row_ids.len() as u64 != next_row_id - 1 || row_ids.iter().any(|id| !(1..next_row_id).contains(id)) {
        return Err(wrong(format!("{} transactions have row ids below {next_row_id}", row_ids.len())));
    }
    for account in &stored.accounts {
        let [credits, debits, credits_reserve, debits_transfer] =
            sums.remove(&account.name).unwrap_or_default();
        // The bonuses have no transactions; that the bank's own account paid them all follows from the equal sums.
        let own_debits = if account.name == EQUITY_ACCOUNT { account.debits } else { 0 };
        let expected = AccountTotals {
            name: account.name.clone(),
            credits: credits + account.bonus,
            debits: debits + own_debits,
            credits_reserve,
            debits_transfer,
            bonus: account.bonus,
        };
        if expected != *account {
            return Err(wrong(format!("{account:?} does not follow from its transactions: {expected:?}")));
        }
    }
    if let Some((name, _)) = sums.pop_first() {
        return Err(wrong(format!("account {name} has transactions, but does not exist")));
    }
    for found in store.all::<BankWithdrawals>()? {
        if found.row.row_id.is_some_and(|id| !row_ids.contains(&id) || found.row.aborted) {
            return Err(wrong(format!("a withdrawal operation of {} has no transaction", found.row.account)));
        }
    }
    Ok(stored)
}

//! Sums over the ledger's accounts, and the check that the bank's rows agree with them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};

use batzen_ledger::{
    Account, AccountFilter, BATCH_EVENTS_MAX, Ledger, LedgerError, QueryFilter, Transfer, TransferFlags,
    in_parts,
};
use batzen_protocol::{Money, MoneySum};
use batzen_store::{Found, Store, StoreError};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankIntents, BankStateKey, BankStateRow, BankStates,
    BankTransactions, BankWithdrawals, EQUITY_ACCOUNT, Origin, TransactionRow,
};

use crate::chart::{CODE_HEADROOM, Chart};

/// The sums of one account, in 10⁻⁸ of the currency. The balance is `credits` minus `debits`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountTotals {
    /// The account.
    pub name: String,
    /// All credits, without the headroom.
    pub credits: u128,
    /// All debits.
    pub debits: u128,
    /// Reserved for withdrawals that wait for their confirmation; not in `debits`.
    pub reserved: u128,
}

impl AccountTotals {
    /// The totals of a ledger account; `None` if the ledger does not have it.
    pub(crate) fn of(name: String, account: Option<&Account>, headroom: u128) -> Self {
        let Some(account) = account else { return Self { name, credits: 0, debits: 0, reserved: 0 } };
        let credits = account.credits_posted.checked_sub(headroom);
        let credits = credits.expect("an account has its headroom before it has anything else");
        Self { name, credits, debits: account.debits_posted, reserved: account.debits_pending }
    }

    /// The balance: whether it is negative, and its absolute value (capped at the largest amount).
    pub fn balance(&self) -> (bool, Money) {
        let size = Money::from_units(self.credits.abs_diff(self.debits)).unwrap_or(Money::MAX);
        (self.debits > self.credits, size)
    }
}

/// The sums of all accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The accounts by name, including the one that pays the sign-up bonuses if it has paid any.
    pub accounts: Vec<AccountTotals>,
    /// The sum of the credits of all the bank's ledger accounts, in 10⁻⁸.
    pub credits: u128,
    /// The sum of their debits, in 10⁻⁸. It is equal if the ledger is right and nothing moves.
    pub debits: u128,
}

/// The flow through an account's wire gateway: both sides of an exchange's balance sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountFlow {
    /// The sum of the incoming history: transfers with a reserve key.
    pub incoming_with_reserve_pub: MoneySum,
    /// The sum of the outgoing history: transfers ordered by the exchange.
    pub outgoing_transfers: MoneySum,
}

impl AccountFlow {
    const NONE: Self = Self { incoming_with_reserve_pub: MoneySum::ZERO, outgoing_transfers: MoneySum::ZERO };
}

/// Why books cannot be read, or what is wrong with them.
#[derive(Debug, thiserror::Error)]
pub enum BooksError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ledger cannot be read.
    #[error("the bank's ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The fault.
    #[error("the bank's books do not add up: {0}")]
    Wrong(String),
}

fn wrong(what: impl Into<String>) -> BooksError {
    BooksError::Wrong(what.into())
}

/// Opens the books of the bank in a store; `None` if the store has no bank.
fn bank(store: &Store) -> Result<Option<(BankStateRow, Chart)>, BooksError> {
    let Some(state) = store.get::<BankStates>(&BankStateKey::ONLY)?.map(|stored| stored.row) else {
        return Ok(None);
    };
    let currency = state.currency.parse().map_err(|_| wrong("the store has no currency"))?;
    let chart = Chart::new(&state, currency);
    Ok(Some((state, chart)))
}

/// The sums of all accounts. Exact when nothing moves.
///
/// # Errors
/// If store or ledger cannot be read.
pub async fn totals(store: &Store, ledger: &dyn Ledger) -> Result<Totals, BooksError> {
    let Some((_, chart)) = bank(store)? else { return Ok(Totals::default()) };
    let mut names: Vec<(String, AccountRow)> = Vec::new();
    store.scan::<BankAccounts>(|found| {
        names.push((found.key.name, found.row));
        ControlFlow::Continue(())
    })?;
    names.sort_by(|one, other| one.0.cmp(&other.0));
    let mut totals = Totals::default();
    let mut booked: HashMap<u128, Account> = HashMap::new();
    let mut filter = QueryFilter {
        user_data_128: chart.identity(),
        limit: u32::try_from(BATCH_EVENTS_MAX).expect("a small constant"),
        ..QueryFilter::default()
    };
    loop {
        let page = in_parts(filter, |filter| ledger.query_accounts(filter)).await?;
        let Some(last) = page.last() else { break };
        filter.timestamp_min = last.timestamp + 1;
        for account in page {
            totals.credits += account.credits_posted;
            totals.debits += account.debits_posted;
            booked.insert(account.id, account);
        }
    }
    if let Some(equity) = booked.get(&chart.equity_id())
        && equity.debits_posted > 0
    {
        totals.accounts.push(AccountTotals::of(EQUITY_ACCOUNT.to_owned(), Some(equity), 0));
    }
    for (name, row) in names {
        let account = booked.get(&row.ledger_id).filter(|_| row.is_opened);
        if row.is_opened && account.is_none() {
            return Err(wrong(format!("the ledger does not have account {name}")));
        }
        totals.accounts.push(AccountTotals::of(name, account, chart.headroom()));
    }
    Ok(totals)
}

/// The flow through an account's wire gateway, from the ledger. An account that does not exist has no flow.
/// Reads all transfers of the account.
///
/// # Errors
/// If store or ledger cannot be read.
pub async fn account_flow(
    store: &Store,
    ledger: &dyn Ledger,
    account: &str,
) -> Result<AccountFlow, BooksError> {
    let Some(row) = store.get::<BankAccounts>(&AccountKey::new(account))?.map(|stored| stored.row) else {
        return Ok(AccountFlow::NONE);
    };
    let mut sums = Sums::default();
    each_transfer(ledger, row.ledger_id, |transfer| sums.add(row.ledger_id, transfer)).await?;
    let credited = |origin: Origin| sums.0.get(&(false, origin as u16)).map_or(0, |(_, sum)| *sum);
    let debited = |origin: Origin| sums.0.get(&(true, origin as u16)).map_or(0, |(_, sum)| *sum);
    Ok(flow(credited(Origin::Incoming) + credited(Origin::Withdrawal), debited(Origin::Transfer)))
}

/// The same flow from the bank's rows, as the histories show it. Equal, if bank and ledger agree.
///
/// # Errors
/// If the store cannot be read.
pub fn history_flow(store: &Store, account: &str) -> Result<AccountFlow, BooksError> {
    let account = account.to_owned();
    let sum = |index: u8| -> Result<u128, StoreError> {
        let whole = Bound::Included(BankTransactions::history_value(&account, None));
        let mut from = whole.clone();
        let mut sum = 0;
        loop {
            let page: Vec<Found<BankTransactions>> =
                store.range_bytes(index, from, whole.clone(), BATCH_EVENTS_MAX, false)?;
            let Some(last) = page.last() else { return Ok(sum) };
            let value = BankTransactions::history_value(&account, Some(last.row.row_id));
            from = Bound::Excluded(value);
            sum += page.iter().map(|found| found.row.amount.units()).sum::<u128>();
        }
    };
    Ok(flow(sum(BankTransactions::INCOMING)?, sum(BankTransactions::OUTGOING)?))
}

fn flow(incoming: u128, outgoing: u128) -> AccountFlow {
    AccountFlow {
        incoming_with_reserve_pub: MoneySum::from_units(incoming),
        outgoing_transfers: MoneySum::from_units(outgoing),
    }
}

/// Number and sum of movements by side (true: debit) and code.
#[derive(Default, PartialEq, Eq, Debug)]
struct Sums(BTreeMap<(bool, u16), (u64, u128)>);

impl Sums {
    fn count(&mut self, debit: bool, code: u16, amount: u128) {
        let (count, sum) = self.0.entry((debit, code)).or_default();
        *count += 1;
        *sum += amount;
    }

    /// Counts a transfer of money (not of headroom) for this account.
    fn add(&mut self, account: u128, transfer: &Transfer) {
        let moves = !transfer.flags.intersects(TransferFlags::PENDING | TransferFlags::VOID_PENDING_TRANSFER);
        if moves && transfer.code != CODE_HEADROOM {
            self.count(transfer.debit_account_id == account, transfer.code, transfer.amount);
        }
    }

    /// Credits minus debits, as (credits, debits).
    fn sides(&self) -> (u128, u128) {
        let side =
            |debit: bool| self.0.iter().filter(|(key, _)| key.0 == debit).map(|(_, (_, sum))| sum).sum();
        (side(false), side(true))
    }
}

/// Calls `f` for all transfers of a ledger account.
async fn each_transfer(
    ledger: &dyn Ledger,
    account_id: u128,
    mut visit: impl FnMut(&Transfer),
) -> Result<(), LedgerError> {
    let mut filter = AccountFilter::all(account_id);
    loop {
        let page = in_parts(filter, |filter| ledger.get_account_transfers(filter)).await?;
        let Some(last) = page.last() else { return Ok(()) };
        filter.timestamp_min = last.timestamp + 1;
        page.iter().for_each(&mut visit);
    }
}

/// Recomputes every account from the bank's transactions and checks the ledger against it: debits equal
/// credits; each account has as many movements of each kind as the bank, with the same sums; row ids are
/// dense; a confirmed withdrawal has its transaction. For tests and tools, on an idle bank, because it reads
/// everything.
///
/// # Errors
/// [`BooksError::Wrong`] with the first error.
pub async fn check(store: &Store, ledger: &dyn Ledger) -> Result<Totals, BooksError> {
    let totals = totals(store, ledger).await?;
    let Some((state, _)) = bank(store)? else { return Ok(totals) };
    if store.all::<BankIntents>()?.iter().any(|found| found.row.is_open) {
        return Err(wrong("intents are still open: start the bank and stop it in order"));
    }
    let (mut expected, row_ids) = movements(store, &state)?;
    let mut bonuses = 0;
    for found in store.all::<BankAccounts>()? {
        let (name, row) = (found.key.name, found.row);
        let expected = expected.remove(&name).unwrap_or_default();
        let mut booked = Sums::default();
        if row.is_opened {
            each_transfer(ledger, row.ledger_id, |transfer| booked.add(row.ledger_id, transfer)).await?;
        }
        // The bonus has no transaction.
        let bonus = booked.0.remove(&(false, Origin::Bonus as u16)).unwrap_or_default();
        if bonus.0 > 1 || bonus.0 == 1 && row.password_hash.is_none() {
            return Err(wrong(format!("account {name} has {} sign-up bonuses", bonus.0)));
        }
        bonuses += bonus.1;
        if booked != expected {
            return Err(wrong(format!("account {name} has {expected:?}, but the ledger has {booked:?}")));
        }
        let account = totals.accounts.iter().find(|account| account.name == name);
        let account = account.ok_or_else(|| wrong(format!("account {name} has no sums")))?;
        let (credits, debits) = expected.sides();
        if credits + bonus.1 + account.debits != debits + account.credits {
            return Err(wrong(format!("{account:?} does not match credits {credits} and debits {debits}")));
        }
    }
    if let Some((name, _)) = expected.pop_first() {
        return Err(wrong(format!("account {name} has transactions, but does not exist")));
    }
    let equity = totals.accounts.iter().find(|account| account.name == EQUITY_ACCOUNT);
    if equity.map_or(0, |account| account.debits) != bonuses {
        return Err(wrong(format!("bonuses sum to {bonuses}, but the equity account has {equity:?}")));
    }
    withdrawals(store, &totals, &row_ids)?;
    Ok(totals)
}

/// Every account's movements by the bank's transactions, and their row ids.
fn movements(
    store: &Store,
    state: &BankStateRow,
) -> Result<(BTreeMap<String, Sums>, HashSet<u64>), BooksError> {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    let mut row_ids = HashSet::new();
    for Found { key, row, .. } in store.all::<BankTransactions>()? {
        let TransactionRow { row_id, amount, reserve_pub, wtid, .. } = row;
        let origin = key.origin();
        let fits = match origin {
            Origin::Transfer => wtid.is_some() && reserve_pub.is_none(),
            Origin::Incoming | Origin::Withdrawal => wtid.is_none() && reserve_pub.is_some(),
            Origin::Payment => wtid.is_none(),
            Origin::Bonus | Origin::Reservation | Origin::Release => false,
        };
        if !fits {
            return Err(wrong(format!("transaction {row_id} has another subject than its origin says")));
        }
        let as_incoming = origin == Origin::Payment && reserve_pub.is_some();
        let code = if as_incoming { Origin::Incoming } else { origin } as u16;
        sums.entry(row.debit_account).or_default().count(true, code, amount.units());
        sums.entry(row.credit_account).or_default().count(false, code, amount.units());
        if !row_ids.insert(row_id) {
            return Err(wrong(format!("row id {row_id} occurs twice")));
        }
    }
    let next = state.next_row_id;
    if row_ids.len() as u64 != next - 1 || row_ids.iter().any(|id| !(1..next).contains(id)) {
        return Err(wrong(format!("{} transactions have row ids below {next}", row_ids.len())));
    }
    Ok((sums, row_ids))
}

/// Confirmed operations have their transactions; reserved amounts belong to operations.
fn withdrawals(store: &Store, totals: &Totals, row_ids: &HashSet<u64>) -> Result<(), BooksError> {
    let mut reserved: BTreeMap<String, u128> = BTreeMap::new();
    for found in store.all::<BankWithdrawals>()? {
        let row = found.row;
        let is_confirmed = row.row_id.is_some_and(|id| row_ids.contains(&id));
        let is_open = !row.aborted && row.reserve_pub.is_some();
        if row.row_id.is_some() != is_confirmed || is_confirmed && row.aborted {
            return Err(wrong(format!("a withdrawal operation of {} has no transaction", row.account)));
        }
        if row.is_reserved && (is_confirmed || !is_open) {
            return Err(wrong(format!("money of {} is reserved without an operation", row.account)));
        }
        if row.is_reserved {
            *reserved.entry(row.account).or_default() += row.amount.units();
        }
    }
    for account in &totals.accounts {
        // Less if a reservation has expired.
        if account.reserved > reserved.get(&account.name).copied().unwrap_or_default() {
            return Err(wrong(format!("more is reserved for {account:?} than was selected")));
        }
    }
    Ok(())
}

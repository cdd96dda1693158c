//! Running sums of all money, updated with every commit: for the metrics, and as a continuous check of the
//! books.
//!
//! Each row of the money tables determines alone what it adds to each sum (`Sums::of_row`). The rows that
//! exist at the start are summed once, in the background, from a view of that moment; each commit adds the
//! difference that its rows make. So the sums are exact at any time, and scraping the metrics reads no rows.
//! They follow from the rows, not from the rules: a rule that creates or loses money shows up in
//! [`Sums::difference`].
//!
//! Fees and unrevealed melts need more than one row: a reveal names its melt, and melts and refunds name a
//! coin whose denomination sets the fee. Those columns never change once written, so they can be read from
//! the store later (`Related`).
//!
//! On a database that several processes change, no process sees every commit. Each process then counts what
//! its own commits add and take, and these counts can be summed over processes. If configured to, a process
//! also recomputes all sums at intervals from a view of the rows.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{AddAssign, ControlFlow, Sub};
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_metrics::Page;
use batzen_store::{
    Change, ChangeSet, DecodeError, FrozenRows, RawRecord, Record, Store, StoreError, Table, TableDef,
};
use batzen_tables::exchange::{
    Aggregates, ArchiveTransfers, Closings, CoinKey, Coins, CollectedKey, CollectedSums, CollectedTerm,
    DenomSerial, DepositKey, Deposits, Drains, HistoryRequests, MeltKey, Melts, Prepared, PurseState, Purses,
    RefundKey, Refunds, ReserveOpenDeposits, ReserveOpens, Reserves, ReservesIn, Reveals, WireOut,
    Withdrawals,
};

use crate::rules::{DenomTable, DenomTerms};
use batzen_protocol::{Money, MoneySum};

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The tables that hold money.
const TABLES: [&TableDef; 19] = [
    ReservesIn::DEF,
    Reserves::DEF,
    Withdrawals::DEF,
    Reveals::DEF,
    Coins::DEF,
    Deposits::DEF,
    Aggregates::DEF,
    Prepared::DEF,
    Melts::DEF,
    Refunds::DEF,
    HistoryRequests::DEF,
    Closings::DEF,
    WireOut::DEF,
    Drains::DEF,
    Purses::DEF,
    ReserveOpens::DEF,
    ReserveOpenDeposits::DEF,
    CollectedSums::DEF,
    ArchiveTransfers::DEF,
];

/// Number of rows of a view that get their related rows read together.
const RELATED_AT_ONCE: usize = 1_024;

/// Sums over rows, in units of 10⁻⁸. [`crate::reads::totals`] defines each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Incoming transfers booked.
    pub wired_in: i128,
    /// Outgoing transfers that the bank accepted.
    pub wired_out: i128,
    /// Balances of reserves.
    pub reserves: i128,
    /// Values of all coins signed.
    pub issued: i128,
    /// The sum that known coins have spent.
    pub redeemed: i128,
    /// Deposits not aggregated yet, less refunds.
    pub deposits: i128,
    /// Transient aggregates.
    pub transient: i128,
    /// Transfers decided, but not accepted by the bank yet.
    pub in_flight: i128,
    /// Contributions to open purses.
    pub purses: i128,
    /// Melted value that is not revealed, less melt fees.
    pub unrevealed_melts: i128,
    /// Income of the exchange that is not paid out, including rounding.
    pub fees: i128,
}

/// Income, in units of 10⁻⁸.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Income {
    /// Earned and not paid out. Below zero if more was paid out than earned.
    pub left: i128,
    /// The sum of the orders to pay out profit that are not executed.
    pub ordered: i128,
}

impl Income {
    /// The income that nothing pays out yet: zero if more is ordered than was earned.
    #[must_use]
    pub fn surplus(&self) -> MoneySum {
        MoneySum::from_units(u128::try_from(self.left - self.ordered).unwrap_or(0))
    }

    /// Returns whether it covers this amount.
    #[must_use]
    pub fn covers(&self, amount: Money) -> bool {
        units(amount) <= self.left
    }
}

/// The reasons why a row cannot be counted.
#[derive(Debug, thiserror::Error)]
enum RowError {
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("unknown denomination {}", .0.0)]
    Denomination(DenomSerial),
    #[error("a coin holds more than its value")]
    Coin,
    #[error("overflow in the sums of removed rows")]
    Collected,
    #[error("a row names a missing row of {0}")]
    Missing(&'static str),
    #[error("{0}")]
    Store(StoreError),
}

/// The rows that another row refers to, as far as its sums depend on them. The columns in use never change.
trait Related {
    /// The denomination of a coin.
    fn coin_denom(&self, key: &CoinKey) -> Result<DenomSerial, RowError>;
    /// The denomination of a deposit's coin.
    fn deposit_denom(&self, key: &DepositKey) -> Result<DenomSerial, RowError>;
    /// The amount of a melt.
    fn melt_amount(&self, key: &MeltKey) -> Result<Money, RowError>;
}

/// Related rows of a commit. The store has them when [`MoneyFlow::committed`] is called, unless the commit itself
/// has removed them.
struct OfCommit<'a> {
    store: &'a Store,
    /// The rows that the commit removed, by table and key.
    removed: HashMap<(u16, &'a [u8]), &'a [u8]>,
}

impl<'a> OfCommit<'a> {
    fn new(store: &'a Store, changes: &'a ChangeSet) -> Self {
        let removed = changes.changes().iter().filter_map(|change| match change {
            Change::Delete { table, key, old_row, .. } => {
                Some(((table.id, key.as_slice()), old_row.as_slice()))
            }
            _ => None,
        });
        Self { store, removed: removed.collect() }
    }

    fn find<T: Table>(&self, key: &T::Key) -> Result<T::Row, RowError> {
        if !self.removed.is_empty()
            && let Some(row) = self.removed.get(&(T::DEF.id, key.to_bytes().as_slice()))
        {
            return Ok(T::Row::decode(row)?);
        }
        let stored = self.store.get::<T>(key).map_err(RowError::Store)?;
        Ok(stored.ok_or(RowError::Missing(T::DEF.name))?.row)
    }
}

impl Related for OfCommit<'_> {
    fn coin_denom(&self, key: &CoinKey) -> Result<DenomSerial, RowError> {
        Ok(self.find::<Coins>(key)?.denom)
    }

    fn deposit_denom(&self, key: &DepositKey) -> Result<DenomSerial, RowError> {
        Ok(self.find::<Deposits>(key)?.denom)
    }

    fn melt_amount(&self, key: &MeltKey) -> Result<Money, RowError> {
        Ok(self.find::<Melts>(key)?.amount)
    }
}

/// Related rows of a chunk of a view's rows, read together.
#[derive(Default)]
struct OfChunk {
    coins: HashMap<CoinKey, DenomSerial>,
    deposits: HashMap<DepositKey, DenomSerial>,
    melts: HashMap<MeltKey, Money>,
}

impl OfChunk {
    fn read(store: &Store, table: &TableDef, chunk: &[RawRecord]) -> Result<Self, RowError> {
        let mut related = Self::default();
        if table.id == Melts::DEF.id || table.id == Reveals::DEF.id {
            let keys = decode_keys::<MeltKey>(chunk)?;
            let coins: Vec<_> = keys.iter().map(|key| CoinKey { coin_pub: key.coin_pub }).collect();
            related.coins = read_related::<Coins, _>(store, coins, |row| row.denom)?;
            if table.id == Reveals::DEF.id {
                related.melts = read_related::<Melts, _>(store, keys, |row| row.amount)?;
            }
        } else if table.id == Refunds::DEF.id {
            let keys = decode_keys::<RefundKey>(chunk)?.iter().map(RefundKey::deposit).collect();
            related.deposits = read_related::<Deposits, _>(store, keys, |row| row.denom)?;
        }
        Ok(related)
    }
}

impl Related for OfChunk {
    fn coin_denom(&self, key: &CoinKey) -> Result<DenomSerial, RowError> {
        self.coins.get(key).copied().ok_or(RowError::Missing(Coins::DEF.name))
    }

    fn deposit_denom(&self, key: &DepositKey) -> Result<DenomSerial, RowError> {
        self.deposits.get(key).copied().ok_or(RowError::Missing(Deposits::DEF.name))
    }

    fn melt_amount(&self, key: &MeltKey) -> Result<Money, RowError> {
        self.melts.get(key).copied().ok_or(RowError::Missing(Melts::DEF.name))
    }
}

fn decode_keys<K: Record>(chunk: &[RawRecord]) -> Result<Vec<K>, RowError> {
    chunk.iter().map(|record| Ok(K::decode(&record.key)?)).collect()
}

fn read_related<T: Table, V>(
    store: &Store,
    keys: Vec<T::Key>,
    column: impl Fn(&T::Row) -> V,
) -> Result<HashMap<T::Key, V>, RowError>
where
    T::Key: Eq + Hash,
{
    let rows = store.get_many::<T>(&keys).map_err(RowError::Store)?;
    let found = keys.into_iter().zip(rows);
    Ok(found.filter_map(|(key, row)| Some((key, column(&row?.row)))).collect())
}

fn units(money: Money) -> i128 {
    i128::try_from(money.units()).expect("amounts have 82 bits at most")
}

impl Sums {
    /// Returns the value of the coins in wallets.
    #[must_use]
    pub fn outstanding(&self) -> i128 {
        self.issued - self.redeemed
    }

    /// Returns the debt of the exchange to merchants and owners of closed reserves.
    #[must_use]
    pub fn pending(&self) -> i128 {
        self.deposits + self.transient + self.in_flight
    }

    /// Returns the sum that the exchange holds beyond its debts: fees, and melts that are not revealed yet.
    /// Never below zero.
    #[must_use]
    pub fn surplus(&self) -> i128 {
        self.wired_in - self.wired_out - self.reserves - self.outstanding() - self.pending() - self.purses
    }

    /// The conservation difference: money in − money out − obligations − fees. Zero when the books add up,
    /// below zero when money was created, above zero when money was lost.
    #[must_use]
    pub fn difference(&self) -> i128 {
        self.surplus() - self.unrevealed_melts - self.fees
    }

    /// Returns a row's part of the sums; nothing for tables without money.
    fn of_row(
        denoms: &DenomTable,
        related: &impl Related,
        table: u16,
        key: &[u8],
        row: &[u8],
    ) -> Result<Self, RowError> {
        let mut sums = Self::of_plain_row(denoms, table, key, row)?;
        let terms = |serial| terms_of(denoms, serial);
        if table == Melts::DEF.id {
            let melt = <Melts as Table>::Row::decode(row)?;
            let coin_pub = MeltKey::decode(key)?.coin_pub;
            let fee = units(terms(related.coin_denom(&CoinKey { coin_pub })?)?.fee_refresh);
            sums.fees = fee;
            sums.unrevealed_melts = units(melt.amount) - fee;
        } else if table == Reveals::DEF.id {
            // The fresh coins' withdraw fees are income, and so is the value that the wallet did not use.
            let key = MeltKey::decode(key)?;
            let fee = units(terms(related.coin_denom(&CoinKey { coin_pub: key.coin_pub })?)?.fee_refresh);
            let melted = units(related.melt_amount(&key)?) - fee;
            sums.unrevealed_melts = -melted;
            sums.fees = melted - sums.issued;
        } else if table == Refunds::DEF.id {
            let deposit = RefundKey::decode(key)?.deposit();
            sums.fees = units(terms(related.deposit_denom(&deposit)?)?.fee_refund);
        }
        Ok(sums)
    }

    /// The same without the parts that depend on related rows.
    fn of_plain_row(denoms: &DenomTable, table: u16, key: &[u8], row: &[u8]) -> Result<Self, RowError> {
        let value = |serial| Ok::<i128, RowError>(units(terms_of(denoms, serial)?.value));
        let mut sums = Self::default();
        if table == ReservesIn::DEF.id {
            sums.wired_in = units(<ReservesIn as Table>::Row::decode(row)?.amount);
        } else if table == Reserves::DEF.id {
            sums.reserves = units(<Reserves as Table>::Row::decode(row)?.balance);
        } else if table == Withdrawals::DEF.id {
            let terms = terms_of(denoms, <Withdrawals as Table>::Row::decode(row)?.denom)?;
            sums.issued = units(terms.value);
            sums.fees = units(terms.fee_withdraw);
        } else if table == Reveals::DEF.id {
            for coin in <Reveals as Table>::Row::decode(row)?.fresh.0 {
                sums.issued += value(coin.denom)?;
            }
        } else if table == Coins::DEF.id {
            let coin = <Coins as Table>::Row::decode(row)?;
            sums.redeemed = value(coin.denom)? - units(coin.remaining);
            if sums.redeemed < 0 {
                return Err(RowError::Coin);
            }
        } else if table == Deposits::DEF.id {
            // What an aggregation takes in but does not pay out is income: deposit fees, wire fee, rounding.
            let deposit = <Deposits as Table>::Row::decode(row)?;
            let sum = if deposit.wtid.is_none() { &mut sums.deposits } else { &mut sums.fees };
            *sum = units(deposit.amount) - units(deposit.refunded);
        } else if table == Aggregates::DEF.id {
            sums.transient = units(<Aggregates as Table>::Row::decode(row)?.total);
            sums.fees = -sums.transient;
        } else if table == WireOut::DEF.id {
            sums.fees = -units(<WireOut as Table>::Row::decode(row)?.amount);
        } else if table == HistoryRequests::DEF.id {
            sums.fees = units(<HistoryRequests as Table>::Row::decode(row)?.fee);
        } else if table == Closings::DEF.id {
            let closing = <Closings as Table>::Row::decode(row)?;
            sums.fees = units(closing.amount) - units(closing.paid);
        } else if table == Drains::DEF.id {
            let drain = <Drains as Table>::Row::decode(row)?;
            if drain.executed {
                sums.fees = -units(drain.amount);
            }
        } else if table == Purses::DEF.id {
            let purse = <Purses as Table>::Row::decode(row)?;
            sums.fees = units(purse.purse_fee);
            match purse.state {
                PurseState::Open => sums.purses = units(purse.contributed),
                PurseState::Paid => sums.fees += units(purse.contributed) - units(purse.target),
                PurseState::Expired | PurseState::Deleted => {}
            }
        } else if table == ReserveOpens::DEF.id {
            sums.fees = units(<ReserveOpens as Table>::Row::decode(row)?.payment);
        } else if table == ReserveOpenDeposits::DEF.id {
            sums.fees = units(<ReserveOpenDeposits as Table>::Row::decode(row)?.amount);
        } else if table == Prepared::DEF.id {
            let transfer = <Prepared as Table>::Row::decode(row)?;
            let sum = if transfer.finished.is_some() { &mut sums.wired_out } else { &mut sums.in_flight };
            *sum = units(transfer.amount);
        } else if table == ArchiveTransfers::DEF.id {
            // As the deposits would.
            let units = <ArchiveTransfers as Table>::Row::decode(row)?.contributed_units;
            sums.fees = i128::try_from(units).map_err(|_| RowError::Collected)?;
        } else if table == CollectedSums::DEF.id {
            let row = <CollectedSums as Table>::Row::decode(row)?;
            let units = i128::try_from(row.units).map_err(|_| RowError::Collected)?;
            match CollectedKey::decode(key)?.term {
                CollectedTerm::WiredIn => sums.wired_in = units,
                CollectedTerm::Issued => sums.issued = units,
                CollectedTerm::WithdrawFees
                | CollectedTerm::HistoryFees
                | CollectedTerm::ClosingFees
                | CollectedTerm::ClosingRounding
                | CollectedTerm::AccountFees
                | CollectedTerm::PurseFees => sums.fees = units,
                CollectedTerm::MerchantTransfers
                | CollectedTerm::ClosingTransfers
                | CollectedTerm::DrainTransfers => sums.wired_out = units,
                CollectedTerm::Redeemed => sums.redeemed = units,
                CollectedTerm::RefreshFees
                | CollectedTerm::Surplus
                | CollectedTerm::DepositFees
                | CollectedTerm::RefundFees
                | CollectedTerm::WireFees
                | CollectedTerm::MerchantRounding => sums.fees = units,
                // Both sides are settled, and the purses themselves are still there.
                CollectedTerm::ClosingsPaid | CollectedTerm::MerchantsPaid | CollectedTerm::PursePayments => {
                }
            }
        }
        Ok(sums)
    }

    /// Returns a commit's part of the sums, according to `of_row` for each changed row.
    fn of_changes(
        changes: &ChangeSet,
        of_row: impl Fn(u16, &[u8], &[u8]) -> Result<Self, RowError>,
    ) -> Result<Self, RowError> {
        let mut sums = Self::default();
        for change in changes.changes() {
            let table = change.table().id;
            if !TABLES.iter().any(|def| def.id == table) {
                continue;
            }
            if let Some(row) = change.new_row() {
                sums += of_row(table, change.key(), row)?;
            }
            if let Some(row) = change.old_row() {
                sums += Self::default() - of_row(table, change.key(), row)?;
            }
        }
        Ok(sums)
    }

    /// The sums that depend on single rows only.
    fn named(&self) -> [(&'static str, i128); 9] {
        [
            ("wired_in", self.wired_in),
            ("wired_out", self.wired_out),
            ("reserves", self.reserves),
            ("issued", self.issued),
            ("redeemed", self.redeemed),
            ("deposits", self.deposits),
            ("transient", self.transient),
            ("in_flight", self.in_flight),
            ("purses", self.purses),
        ]
    }

    fn zip(self, other: Self, with: impl Fn(i128, i128) -> i128) -> Self {
        Self {
            wired_in: with(self.wired_in, other.wired_in),
            wired_out: with(self.wired_out, other.wired_out),
            reserves: with(self.reserves, other.reserves),
            issued: with(self.issued, other.issued),
            redeemed: with(self.redeemed, other.redeemed),
            deposits: with(self.deposits, other.deposits),
            transient: with(self.transient, other.transient),
            in_flight: with(self.in_flight, other.in_flight),
            purses: with(self.purses, other.purses),
            unrevealed_melts: with(self.unrevealed_melts, other.unrevealed_melts),
            fees: with(self.fees, other.fees),
        }
    }
}

fn terms_of(denoms: &DenomTable, serial: DenomSerial) -> Result<DenomTerms, RowError> {
    denoms.get(serial).ok_or(RowError::Denomination(serial))
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, |a, b| a + b);
    }
}

impl Sub for Sums {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

#[derive(Default)]
struct FlowState {
    sums: Sums,
    /// Where related rows are read, if commits of this process keep the sums up to date.
    store: Option<Store>,
    /// Whether the rows from before the start are in the sums.
    is_complete: bool,
    /// A row could not be read, so the sums are no longer reported.
    is_broken: bool,
    /// Sums that commits of this process added, and those that they subtracted.
    moved: [Sums; 2],
}

/// The sums of a running exchange.
#[derive(Default)]
pub struct MoneyFlow(Mutex<FlowState>);

impl std::fmt::Debug for MoneyFlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MoneyFlow").field("sums", &self.state().sums).finish_non_exhaustive()
    }
}

impl MoneyFlow {
    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A view of the existing rows.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn freeze(store: &Store) -> Result<Box<dyn FrozenRows>> {
        store.freeze(&TABLES)
    }

    /// Takes a view of the existing rows, after which every commit updates the sums. Call it before the first
    /// commit that is passed to `MoneyFlow::committed`, and give the view to [`MoneyFlow::begin`].
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn follow(&self, store: &Store) -> Result<Box<dyn FrozenRows>> {
        let rows = Self::freeze(store)?;
        self.state().store = Some(store.clone());
        Ok(rows)
    }

    /// Returns whether every commit updates the sums. Otherwise they come from the last
    /// [`MoneyFlow::recompute`].
    #[must_use]
    pub fn follows_commits(&self) -> bool {
        self.state().store.is_some()
    }

    /// Adds the rows of a view, reading each once. This takes a while if there are many.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn begin(&self, denoms: &DenomTable, store: &Store, rows: &dyn FrozenRows) -> Result<()> {
        let summed = self.sum(denoms, store, rows);
        self.state().is_broken |= summed.is_err();
        if let Some(sums) = summed? {
            let mut state = self.state();
            state.sums += sums;
            state.is_complete = true;
        }
        Ok(())
    }

    /// Replaces the sums by those of a view. For databases that other processes change as well.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn recompute(&self, denoms: &DenomTable, store: &Store, rows: &dyn FrozenRows) -> Result<()> {
        if let Some(sums) = self.sum(denoms, store, rows)? {
            let mut state = self.state();
            state.sums = sums;
            state.is_complete = true;
        }
        Ok(())
    }

    /// The income at one moment. None if a row cannot be counted. Reads all rows of money, which takes a while if there are
    /// many.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn income(&self, denoms: &DenomTable, store: &Store) -> Result<Option<Income>> {
        let rows = Self::freeze(store)?;
        let Some(Sums { fees, .. }) = self.sum(denoms, store, rows.as_ref())? else { return Ok(None) };
        let mut ordered = Some(0);
        rows.scan(Drains::DEF, &mut |record| {
            match <Drains as Table>::Row::decode(&record.row) {
                Ok(order) if order.executed => {}
                Ok(order) => ordered = ordered.map(|sum| sum + units(order.amount)),
                Err(_) => ordered = None,
            }
            ControlFlow::Continue(())
        })?;
        Ok(ordered.map(|ordered| Income { left: fees, ordered }))
    }

    /// The sums over the rows of a view. None if a row cannot be counted.
    fn sum(&self, denoms: &DenomTable, store: &Store, rows: &dyn FrozenRows) -> Result<Option<Sums>> {
        // Every denomination that a row names was stored before the view was taken.
        denoms.reload(store)?;
        let mut sums = Sums::default();
        for table in TABLES {
            let mut chunk = Vec::new();
            let mut failed = None;
            rows.scan(table, &mut |record| {
                chunk.push(record);
                if chunk.len() < RELATED_AT_ONCE {
                    return ControlFlow::Continue(());
                }
                match sum_chunk(denoms, store, table, std::mem::take(&mut chunk)) {
                    Ok(part) => {
                        sums += part;
                        ControlFlow::Continue(())
                    }
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })?;
            let last = failed.map_or_else(|| sum_chunk(denoms, store, table, chunk), Err);
            match last {
                Ok(part) => sums += part,
                Err(RowError::Store(error)) => return Err(error),
                Err(error) => {
                    self.stop_reporting(&error);
                    return Ok(None);
                }
            }
        }
        Ok(Some(sums))
    }

    /// Adds what a commit changed.
    pub(crate) fn committed(&self, denoms: &DenomTable, changes: &ChangeSet) {
        let store = self.state().store.clone();
        let sums = match &store {
            Some(store) => {
                let related = OfCommit::new(store, changes);
                Sums::of_changes(changes, |table, key, row| Sums::of_row(denoms, &related, table, key, row))
            }
            None => Sums::of_changes(changes, |table, key, row| Sums::of_plain_row(denoms, table, key, row)),
        };
        match sums {
            Ok(sums) => {
                let mut state = self.state();
                if store.is_some() {
                    state.sums += sums;
                }
                // Only the sums that depend on single rows.
                let plain = Sums { fees: 0, unrevealed_melts: 0, ..sums };
                state.moved[0] += plain.zip(plain, |a, _| a.max(0));
                state.moved[1] += plain.zip(plain, |a, _| (-a).max(0));
            }
            Err(error) => self.stop_reporting(&error),
        }
    }

    fn stop_reporting(&self, error: &RowError) {
        let mut state = self.state();
        if !state.is_broken {
            tracing::error!(%error, "a row of money cannot be read: the metrics of money end");
            state.is_broken = true;
        }
    }

    /// Returns whether the rows from before the start are still being added.
    pub(crate) fn is_summing(&self) -> bool {
        let state = self.state();
        state.store.is_some() && !state.is_complete && !state.is_broken
    }

    /// The current sums; none while the rows from before the start are being added.
    #[must_use]
    pub fn sums(&self) -> Option<Sums> {
        let state = self.state();
        (state.is_complete && !state.is_broken).then_some(state.sums)
    }

    /// Returns the sums that commits of this process added, and those that they subtracted. Fees and
    /// unrevealed melts are not counted here.
    #[must_use]
    pub fn moved(&self) -> [Sums; 2] {
        self.state().moved
    }

    /// Writes `batzen_money_*` in the currency: what this process moved, and the sums if they are known.
    pub(crate) fn write(&self, page: &mut Page) {
        let [added, taken] = self.moved();
        for (name, help, moved) in [
            ("added", "Money that commits of this process added to a sum", added),
            ("taken", "Money that commits of this process took from a sum", taken),
        ] {
            let values = moved.named().into_iter().map(|(sum, units)| (sum, decimal(units)));
            page.counters(&format!("batzen_money_{name}_total"), help, "sum", values);
        }
        let Some(sums) = self.sums() else { return };
        for (name, help, units) in [
            ("wired_in", "Incoming bank transfers booked", sums.wired_in),
            ("wired_out", "Outgoing bank transfers made", sums.wired_out),
            ("reserves", "Balances of reserves", sums.reserves),
            ("issued", "Values of all coins signed", sums.issued),
            ("redeemed", "Value spent from coins, less value returned to them", sums.redeemed),
            ("outstanding", "Value of coins in wallets: issued less redeemed", sums.outstanding()),
            ("pending", "Money owed to merchants and owners of closed reserves", sums.pending()),
            ("purses", "Money in purses that were neither paid nor refunded", sums.purses),
            ("unrevealed_melts", "Melted value that was not revealed", sums.unrevealed_melts),
            ("fees", "Income that was not paid out", sums.fees),
            ("surplus", "Money held beyond what is owed: fees and unrevealed melts", sums.surplus()),
            (
                "conservation_difference",
                "Money in less money out, obligations and fees; 0 when the books add up",
                sums.difference(),
            ),
        ] {
            page.gauge(&format!("batzen_money_{name}"), help, decimal(units));
        }
    }
}

/// The sums over some rows of a view.
fn sum_chunk(
    denoms: &DenomTable,
    store: &Store,
    table: &'static TableDef,
    chunk: Vec<RawRecord>,
) -> Result<Sums, RowError> {
    let related = OfChunk::read(store, table, &chunk)?;
    let mut sums = Sums::default();
    for record in chunk {
        sums += Sums::of_row(denoms, &related, table.id, &record.key, &record.row)?;
    }
    Ok(sums)
}

/// Units of 10⁻⁸ as a decimal number.
fn decimal(units: i128) -> String {
    let (whole, rest) = (units.unsigned_abs() / 100_000_000, units.unsigned_abs() % 100_000_000);
    let sign = if units < 0 { "-" } else { "" };
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    format!("{sign}{whole}.{}", format!("{rest:08}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        for (units, text) in [(0, "0"), (100_000_000, "1"), (-1, "-0.00000001"), (1_250_000_000, "12.5")] {
            assert_eq!(decimal(units), text);
        }
    }
}

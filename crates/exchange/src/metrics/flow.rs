//! Where the money is, kept up to date with every commit: for the metrics, and a check of the books that never stops.
//!
//! Every row of the money tables says by itself what it adds to each sum ([`Sums::of_row`]). The sums of the rows that were
//! there at the start are taken once, in the background, from a view of that moment; each commit adds the difference that
//! its rows make. So the sums are exact at every instant, no scrape reads a row, and they come from the rows, not from what
//! the rules believe to have done: a rule that creates money shows as a surplus below zero.
//!
//! On a database that several processes change nobody sees every commit. There each process counts what its own commits add and
//! take, which can be summed up over processes, and computes the sums again from time to time if it is configured to.

use std::ops::{AddAssign, ControlFlow, Sub};
use std::sync::{Mutex, MutexGuard, PoisonError};

use batzen_metrics::Page;
use batzen_store::{ChangeSet, DecodeError, FrozenRows, Record, Store, StoreError, Table, TableDef};
use batzen_tables::exchange::{
    Aggregates, Coins, DenomSerial, Deposits, Prepared, Reserves, ReservesIn, Reveals, Withdrawals,
};

use crate::rules::DenomTable;
use batzen_protocol::Money;

/// The tables that hold money.
const TABLES: [&TableDef; 8] = [
    ReservesIn::DEF,
    Reserves::DEF,
    Withdrawals::DEF,
    Reveals::DEF,
    Coins::DEF,
    Deposits::DEF,
    Aggregates::DEF,
    Prepared::DEF,
];

/// Sums over rows, in units of 10⁻⁸. What each means is told in [`super::totals`].
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
    /// What is gone from known coins.
    pub redeemed: i128,
    /// Deposits not aggregated yet, less refunds.
    pub deposits: i128,
    /// Transient aggregates.
    pub transient: i128,
    /// Transfers decided, but not accepted by the bank yet.
    pub in_flight: i128,
}

/// Why a row says nothing.
#[derive(Debug, thiserror::Error)]
enum RowError {
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("unknown denomination {}", .0.0)]
    Denomination(DenomSerial),
    #[error("a coin holds more than its value")]
    Coin,
}

fn units(money: Money) -> i128 {
    i128::try_from(money.units()).expect("amounts have 82 bits at most")
}

impl Sums {
    /// What coins in wallets are worth.
    #[must_use]
    pub fn outstanding(&self) -> i128 {
        self.issued - self.redeemed
    }

    /// What merchants and owners of closed reserves are still to get.
    #[must_use]
    pub fn pending(&self) -> i128 {
        self.deposits + self.transient + self.in_flight
    }

    /// What the exchange holds beyond what it owes: fees, and melts that are not revealed yet. Never below zero.
    #[must_use]
    pub fn surplus(&self) -> i128 {
        self.wired_in - self.wired_out - self.reserves - self.outstanding() - self.pending()
    }

    /// What a row adds to the sums; nothing for tables without money.
    fn of_row(denoms: &DenomTable, table: u16, row: &[u8]) -> Result<Self, RowError> {
        let value = |serial| {
            let terms = denoms.get(serial).ok_or(RowError::Denomination(serial))?;
            Ok::<i128, RowError>(units(terms.value))
        };
        let mut sums = Self::default();
        if table == ReservesIn::DEF.id {
            sums.wired_in = units(<ReservesIn as Table>::Row::decode(row)?.amount);
        } else if table == Reserves::DEF.id {
            sums.reserves = units(<Reserves as Table>::Row::decode(row)?.balance);
        } else if table == Withdrawals::DEF.id {
            sums.issued = value(<Withdrawals as Table>::Row::decode(row)?.denom)?;
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
            let deposit = <Deposits as Table>::Row::decode(row)?;
            if deposit.wtid.is_none() {
                sums.deposits = units(deposit.amount) - units(deposit.refunded);
            }
        } else if table == Aggregates::DEF.id {
            sums.transient = units(<Aggregates as Table>::Row::decode(row)?.total);
        } else if table == Prepared::DEF.id {
            let transfer = <Prepared as Table>::Row::decode(row)?;
            let sum = if transfer.finished.is_some() { &mut sums.wired_out } else { &mut sums.in_flight };
            *sum = units(transfer.amount);
        }
        Ok(sums)
    }

    /// What a commit adds to the sums.
    fn of_changes(denoms: &DenomTable, changes: &ChangeSet) -> Result<Self, RowError> {
        let mut sums = Self::default();
        for change in changes.changes() {
            let table = change.table().id;
            if !TABLES.iter().any(|def| def.id == table) {
                continue;
            }
            if let Some(row) = change.new_row() {
                sums += Self::of_row(denoms, table, row)?;
            }
            if let Some(row) = change.old_row() {
                sums += Self::default() - Self::of_row(denoms, table, row)?;
            }
        }
        Ok(sums)
    }

    fn named(&self) -> [(&'static str, i128); 8] {
        [
            ("wired_in", self.wired_in),
            ("wired_out", self.wired_out),
            ("reserves", self.reserves),
            ("issued", self.issued),
            ("redeemed", self.redeemed),
            ("deposits", self.deposits),
            ("transient", self.transient),
            ("in_flight", self.in_flight),
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
        }
    }
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

#[derive(Debug, Default)]
struct FlowState {
    sums: Sums,
    /// Whether the rows from before the start are in the sums.
    is_complete: bool,
    /// A row could not be read: the sums are not told any more.
    is_broken: bool,
    /// What commits of this process added to each sum, and what they took from it.
    moved: [Sums; 2],
}

/// The sums of a running exchange.
#[derive(Debug, Default)]
pub struct MoneyFlow(Mutex<FlowState>);

impl MoneyFlow {
    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a view of the rows that are there. Call it before the first commit that is told to [`MoneyFlow::committed`].
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn freeze(store: &Store) -> Result<Box<dyn FrozenRows>, StoreError> {
        store.freeze(&TABLES)
    }

    /// Adds the rows of a view, which takes a while if there are many: each is read once.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn begin(&self, denoms: &DenomTable, store: &Store, rows: &dyn FrozenRows) -> Result<(), StoreError> {
        if let Some(sums) = self.sum(denoms, store, rows)? {
            let mut state = self.state();
            state.sums += sums;
            state.is_complete = true;
        }
        Ok(())
    }

    /// Replaces the sums by those of a view: on a database that other processes change as well.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn sum_anew(
        &self,
        denoms: &DenomTable,
        store: &Store,
        rows: &dyn FrozenRows,
    ) -> Result<(), StoreError> {
        if let Some(sums) = self.sum(denoms, store, rows)? {
            let mut state = self.state();
            state.sums = sums;
            state.is_complete = true;
        }
        Ok(())
    }

    /// What the rows of a view add up to; none if one of them says nothing.
    fn sum(
        &self,
        denoms: &DenomTable,
        store: &Store,
        rows: &dyn FrozenRows,
    ) -> Result<Option<Sums>, StoreError> {
        // Whatever denomination a row names was there before the view was taken.
        denoms.reload(store)?;
        let mut sums = Sums::default();
        for table in TABLES {
            let mut failed = None;
            rows.scan(table, &mut |record| match Sums::of_row(denoms, table.id, &record.row) {
                Ok(row) => {
                    sums += row;
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            })?;
            if let Some(error) = failed {
                self.give_up(&error);
                return Ok(None);
            }
        }
        Ok(Some(sums))
    }

    /// Adds what a commit changed.
    pub fn committed(&self, denoms: &DenomTable, changes: &ChangeSet) {
        match Sums::of_changes(denoms, changes) {
            Ok(sums) => {
                let mut state = self.state();
                state.sums += sums;
                state.moved[0] += sums.zip(sums, |a, _| a.max(0));
                state.moved[1] += sums.zip(sums, |a, _| (-a).max(0));
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn give_up(&self, error: &RowError) {
        let mut state = self.state();
        if !state.is_broken {
            tracing::error!(%error, "a row of money cannot be read: the metrics of money end");
            state.is_broken = true;
        }
    }

    /// The sums now; none while the rows from before the start are being added.
    #[must_use]
    pub fn sums(&self) -> Option<Sums> {
        let state = self.state();
        (state.is_complete && !state.is_broken).then_some(state.sums)
    }

    /// What the commits of this process added to each sum, and what they took from it.
    #[must_use]
    pub fn moved(&self) -> [Sums; 2] {
        self.state().moved
    }

    /// Writes `batzen_money_*`, in the currency: what this process moved; and the sums, unless they are not known.
    pub fn write(&self, page: &mut Page) {
        for (name, help, moved) in ["added", "taken"]
            .into_iter()
            .zip(["What commits of this process added", "What commits of this process took"])
            .zip(self.moved())
            .map(|((name, help), moved)| (name, help, moved))
        {
            let values = moved.named().into_iter().map(|(sum, units)| (sum, decimal(units)));
            page.counters(&format!("batzen_money_{name}_total"), help, "sum", values);
        }
        let Some(sums) = self.sums() else { return };
        for (name, help, units) in [
            ("wired_in", "Incoming bank transfers booked", sums.wired_in),
            ("wired_out", "Outgoing bank transfers made", sums.wired_out),
            ("reserves", "Balances of reserves", sums.reserves),
            ("issued", "Values of all coins signed", sums.issued),
            ("redeemed", "What was spent of coins, less what came back to them", sums.redeemed),
            ("outstanding", "What coins in wallets are worth: issued less redeemed", sums.outstanding()),
            ("pending", "What merchants and closed reserves are still to be paid", sums.pending()),
            ("surplus", "What is held beyond what is owed; below zero money was created", sums.surplus()),
        ] {
            page.gauge(&format!("batzen_money_{name}"), help, decimal(units));
        }
    }
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

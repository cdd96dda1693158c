//! Payments, closings and decisions that are overdue.

use std::ops::Bound;

use batzen_protocol::{Duration, Timestamp};
use batzen_store::{Column, Found, IndexEntries, IndexKind, Record, Result, Table};
use batzen_tables::exchange::{DepositRow, Deposits, PurseRow, Purses, ReserveRow, Reserves};

use super::Conclusion;
use super::coins::units;
use crate::audit::finding::{Finding, RowName, Rule};

/// Time after its wire deadline at which a deposit counts as overdue (auditor chapter 7.5).
const DEPOSIT_GRACE: Duration = Duration::from_secs(3_600);
/// Time after its expiration by which a reserve should be closed (auditor chapter 6.3).
const RESERVE_GRACE: Duration = Duration::from_days(1);
/// Time after its expiration by which a purse should be decided.
const PURSE_GRACE: Duration = Duration::from_secs(3_600);
/// Number of rows that are read at once.
const PAGE: usize = 4_096;
/// Number of overdue deposits that a report lists. All of them are counted.
const LISTED_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OverdueDeposit {
    pub(crate) row: RowName,
    /// Its amount with fee, in units of 10⁻⁸.
    pub(crate) amount: u128,
    /// When it was due.
    pub(crate) deadline: Timestamp,
    pub(crate) coin_pub: batzen_crypto::EddsaPublicKey,
    /// The payto URI of the merchant's account.
    pub(crate) account: String,
}

/// Deposits that are due and not paid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overdue {
    /// The sum of their amounts.
    pub units: u128,
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) deposits: Vec<OverdueDeposit>,
}

/// A row's position in an index that has it.
fn position<T: Table>(index: u8, found: &Found<T>) -> Vec<u8> {
    let mut entries = IndexEntries::new();
    T::index_entries(&found.key, &found.row, &mut entries);
    let value = entries.iter().find(|(id, _)| *id == index).map(|(_, value)| value.to_vec());
    let mut position = value.expect("the row was found in the index");
    match T::DEF.index_def(index).kind {
        IndexKind::Serial => position.extend_from_slice(&found.serial.to_be_bytes()),
        _ => position.extend_from_slice(&found.key.to_bytes()),
    }
    position
}

impl Conclusion<'_> {
    /// Reads an index whose values begin with a time, up to `until`.
    fn pages<T: Table>(
        &mut self,
        index: u8,
        until: Timestamp,
        mut visit: impl FnMut(&mut Self, Found<T>),
    ) -> Result<()> {
        let mut to = Vec::new();
        until.encode(&mut to);
        let mut from = Bound::Unbounded;
        loop {
            let page =
                self.store.range_positions::<T>(index, from, Bound::Excluded(to.clone()), PAGE, false)?;
            let is_full = page.len() == PAGE;
            let Some(last) = page.last() else { return Ok(()) };
            from = Bound::Excluded(position(index, last));
            page.into_iter().for_each(|found| visit(self, found));
            if !is_full {
                return Ok(());
            }
        }
    }

    pub(super) fn find_overdue(&mut self) -> Result<()> {
        // What the exchange has done since the rows were copied is not known.
        let now = self.copied.map_or(self.now, |copied| copied.min(self.now));
        self.pages::<Deposits>(Deposits::BY_READY, now.saturating_sub(DEPOSIT_GRACE), |this, found| {
            let row: &DepositRow = &found.row;
            if !row.refunded.is_zero() {
                return;
            }
            this.overdue.units += row.amount.units();
            this.overdue.count += 1;
            if this.overdue.deposits.len() < LISTED_MAX {
                this.overdue.deposits.push(OverdueDeposit {
                    row: RowName::new(Deposits::DEF, found.serial, &found.key.to_bytes()),
                    amount: row.amount.units(),
                    deadline: row.wire_deadline,
                    coin_pub: found.key.coin_pub,
                    account: this.terms.account(&row.h_payto).unwrap_or_default().to_owned(),
                });
            }
        })?;
        self.pages::<Reserves>(Reserves::BY_EXPIRATION, now.saturating_sub(RESERVE_GRACE), |this, found| {
            let row: &ReserveRow = &found.row;
            let account = row.origin.and_then(|origin| this.terms.account(&origin)).unwrap_or_default();
            let fee = this.terms.wire_fee(account, row.expiration).map(|fees| fees.closing_fee);
            if fee.is_none_or(|fee| row.balance > fee) {
                let name = RowName::new(Reserves::DEF, found.serial, &found.key.to_bytes());
                let finding =
                    Finding::new(Rule::ReserveNotClosed, name).about(found.key.reserve_pub.as_bytes());
                this.found(finding.figures(units(row.balance.units()), 0));
            }
        })?;
        self.pages::<Purses>(Purses::BY_EXPIRATION, now.saturating_sub(PURSE_GRACE), |this, found| {
            let row: &PurseRow = &found.row;
            let name = RowName::new(Purses::DEF, found.serial, &found.key.to_bytes());
            let finding = Finding::new(Rule::PurseNotClosed, name).about(found.key.purse_pub.as_bytes());
            this.found(finding.risking(row.balance.units()));
        })
    }
}

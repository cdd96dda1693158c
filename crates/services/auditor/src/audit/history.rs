//! History: rows that never change must not have changed, and others must only have changed as the
//! rules allow, and nothing was removed that garbage collection or an archive does not explain.

use std::ops::ControlFlow;

use batzen_protocol::{Duration, Timestamp};
use batzen_store::{
    Column, RawRecord, Record, Result, Store, StoreError, Table, TableDef, Value, decode_values,
};
use batzen_tables::exchange::{
    AUDITED, Aggregates, ArchiveCounts, ArchiveRuns, ArchiveTransfers, AuditorDenoms, Auditors,
    CloseRequests, Closings, CoinKey, CoinPub, Coins, CollectedSums, Cursors, DenomSerial, Deposits, Drains,
    Extensions, HistoryRequests, KycRequirements, Melts, Prepared, PreparedRow, PurseDeletions,
    PurseDeposits, PurseKey, PurseMerges, Purses, RecoupCredits, RecoupRefreshCredits, RecoupRefreshes,
    Recoups, Refunds, ReserveAccounts, ReserveKey, ReserveOpenDeposits, ReserveOpens, Reserves, ReservesIn,
    Reveals, SigningKeys, WireAccounts, WireOut, Withdrawals,
};

use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::terms::Terms;

/// Permitted changes of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum May {
    /// In any way; other rules say what is right.
    Change,
    /// To a larger value.
    Grow,
    /// Only together with `last_change`, which grows; or to false, which counts more than what else was signed in the same
    /// second.
    ChangeDated,
    /// Once: from absent, false or zero to anything else.
    BeSet,
}

/// The columns of a table that may change.
fn changeable(table: &TableDef) -> &'static [(&'static str, May)] {
    use May::{BeSet, Change, ChangeDated, Grow};
    match table.id {
        id if id == Reserves::DEF.id => {
            &[("balance", Change), ("expiration", Grow), ("gc", Grow), ("origin", BeSet)]
        }
        id if id == Coins::DEF.id => &[("remaining", Change), ("zombie", BeSet)],
        id if id == Deposits::DEF.id => &[("refunded", Grow), ("wtid", BeSet)],
        id if id == Aggregates::DEF.id => &[("total", Change), ("wtid", Change), ("kyc_row", Change)],
        id if id == Prepared::DEF.id => &[("finished", BeSet), ("failed", Change)],
        id if id == Drains::DEF.id => &[("executed", BeSet)],
        id if id == Cursors::DEF.id => &[("bank_row", Grow)],
        id if id == Purses::DEF.id => {
            &[("coins", Grow), ("contributed", Grow), ("balance", Grow), ("state", BeSet), ("decided", BeSet)]
        }
        id if id == PurseDeposits::DEF.id => &[("refunded", BeSet)],
        id if id == ReserveAccounts::DEF.id => &[("purses_active", Change), ("purses_allowed", Grow)],
        id if id == CloseRequests::DEF.id => &[("done", BeSet)],
        id if id == SigningKeys::DEF.id => &[("revoked", BeSet)],
        id if id == WireAccounts::DEF.id => {
            &[("master_sig", ChangeDated), ("last_change", Grow), ("enabled", ChangeDated)]
        }
        id if id == Auditors::DEF.id => {
            &[("url", ChangeDated), ("name", ChangeDated), ("last_change", Grow), ("enabled", ChangeDated)]
        }
        id if id == AuditorDenoms::DEF.id => &[("auditor_sig", Change)],
        id if id == KycRequirements::DEF.id => &[("asked", Change)],
        id if id == Extensions::DEF.id => &[("manifests", Change), ("master_sig", Change)],
        id if id == CollectedSums::DEF.id => &[("units", Grow)],
        id if id == ArchiveRuns::DEF.id => &[
            ("rows", Grow),
            ("bytes", Grow),
            ("finished", BeSet),
            ("digest", BeSet),
            ("dropped", BeSet),
            ("drop_reason", BeSet),
        ],
        id if id == ArchiveCounts::DEF.id => &[("rows", Grow), ("bytes", Grow), ("units", Grow)],
        id if id == ArchiveTransfers::DEF.id => &[("contributed_units", Grow), ("fee_units", Grow)],
        _ => &[],
    }
}

/// A value as a number, if it has an order.
fn magnitude(value: &Value) -> Option<u128> {
    match value {
        Value::U64(n) | Value::Timestamp(n) => Some(u128::from(*n)),
        Value::U128(n) => Some(*n),
        Value::Amount { units, fraction } => Some(u128::from(*units) * 100_000_000 + u128::from(*fraction)),
        _ => None,
    }
}

fn is_unset(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false) | Value::U64(0) | Value::Timestamp(0))
}

/// Columns that were changed although they must not be.
///
/// # Errors
/// If one of the rows is not a row of the table.
pub(crate) fn forbidden_changes(
    table: &'static TableDef,
    old: &[u8],
    new: &[u8],
) -> Result<Vec<&'static str>> {
    if old == new {
        return Ok(Vec::new());
    }
    let decode = |row: &[u8]| {
        decode_values(table.row_columns, row)
            .map_err(|source| StoreError::Decode { table: table.name, source })
    };
    let (old, new) = (decode(old)?, decode(new)?);
    let mut forbidden = Vec::new();
    let dated = table.row_columns.iter().zip(&old).zip(&new);
    let is_dated = dated
        .filter(|((column, _), _)| column.name == "last_change")
        .any(|((_, old), new)| magnitude(old) < magnitude(new));
    for ((column, old), new) in table.row_columns.iter().zip(&old).zip(&new) {
        let may = changeable(table).iter().find(|(name, _)| *name == column.name).map(|(_, may)| *may);
        let is_right = match may {
            _ if old == new => true,
            None => false,
            Some(May::Change) => true,
            Some(May::ChangeDated) => is_dated || *new == Value::Bool(false),
            Some(May::Grow) => magnitude(old) < magnitude(new),
            Some(May::BeSet) => is_unset(old),
        };
        if !is_right {
            forbidden.push(column.name);
        }
    }
    Ok(forbidden)
}

/// Two states of an exchange's rows.
pub struct History<'a> {
    /// As they were seen before.
    pub seen: &'a Store,
    /// As they are now.
    pub current: &'a Store,
    /// The small tables as they are now.
    pub terms: &'a Terms,
    /// The time.
    pub now: Timestamp,
}

/// Time that garbage collection waits at least.
const DELAY: Duration = Duration::from_days(1);
/// Rows that are compared at once.
const PAGE: usize = 1_024;

impl History<'_> {
    /// Compares all audited tables.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn compare(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let is_there = |table, key: &[u8]| {
            Ok(self
                .current
                .backend()
                .get_many(table, &[key.to_vec()])?
                .into_iter()
                .flatten()
                .next()
                .is_some())
        };
        let removals = Removals {
            seen: self.seen,
            is_there: &is_there,
            has_archive: self.current.count::<ArchiveRuns>()? > 0,
            terms: self.terms,
            now: self.now,
        };
        for table in AUDITED {
            let mut page = Vec::with_capacity(PAGE);
            let mut outcome = Ok(());
            self.seen.backend().scan(table, &mut |record| {
                page.push(record);
                if page.len() < PAGE {
                    return ControlFlow::Continue(());
                }
                outcome = self.page(table, &std::mem::take(&mut page), &removals, &mut findings);
                if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            outcome?;
            self.page(table, &page, &removals, &mut findings)?;
        }
        Ok(findings)
    }

    fn page(
        &self,
        table: &'static TableDef,
        seen: &[RawRecord],
        removals: &Removals<'_>,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let keys: Vec<Vec<u8>> = seen.iter().map(|record| record.key.clone()).collect();
        let current = self.current.backend().get_many(table, &keys)?;
        for (old, new) in seen.iter().zip(current) {
            let name = RowName::new(table, old.serial, &old.key);
            match new {
                None if removals.may_be_removed(table, (&old.key, &old.row))? => {}
                None => findings.push(Finding::new(Rule::RowRemoved, name)),
                Some(new) => {
                    let columns = forbidden_changes(table, &old.row, &new.row)?;
                    if !columns.is_empty() {
                        let detail = format!("changed: {}", columns.join(", "));
                        findings.push(Finding::new(Rule::RowRewritten, name).because(detail));
                    } else if old.serial != new.serial && !is_repeated(table) {
                        findings
                            .push(Finding::new(Rule::RowRewritten, name).because("removed and added again"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The facts that decide whether a removed row was no longer needed.
pub(crate) struct Removals<'a> {
    /// The rows before.
    pub(crate) seen: &'a Store,
    /// Whether a row is there now.
    pub(crate) is_there: &'a dyn Fn(&'static TableDef, &[u8]) -> Result<bool>,
    /// Whether rows have been archived.
    pub(crate) has_archive: bool,
    /// The small tables as they are now.
    pub(crate) terms: &'a Terms,
    /// The time.
    pub(crate) now: Timestamp,
}

impl Removals<'_> {
    fn is_forgotten(&self, denom: DenomSerial) -> bool {
        let denom = self.terms.denom(denom);
        denom.is_some_and(|denom| denom.row.expire_legal.saturating_add(DELAY) < self.now)
    }

    fn is_coin_forgotten(&self, key: &[u8]) -> Result<bool> {
        let decode = CoinPub::decode(&mut &key[..32]);
        let coin_pub = decode.map_err(|source| StoreError::Decode { table: Coins::DEF.name, source })?;
        let coin = self.seen.get::<Coins>(&CoinKey { coin_pub })?;
        Ok(coin.is_none_or(|coin| self.is_forgotten(coin.row.denom)))
    }

    /// Returns whether a row that is gone was no longer needed.
    pub(crate) fn may_be_removed(
        &self,
        table: &'static TableDef,
        (key, row): (&[u8], &[u8]),
    ) -> Result<bool> {
        let corrupt = |source| StoreError::Decode { table: table.name, source };
        Ok(match table.id {
            id if [Aggregates::DEF.id, ArchiveTransfers::DEF.id].contains(&id) => true,
            id if [
                Coins::DEF.id,
                Deposits::DEF.id,
                Refunds::DEF.id,
                Melts::DEF.id,
                Reveals::DEF.id,
                Recoups::DEF.id,
                RecoupRefreshes::DEF.id,
                RecoupRefreshCredits::DEF.id,
                ReserveOpenDeposits::DEF.id,
            ]
            .contains(&id) =>
            {
                self.is_coin_forgotten(key)?
            }
            id if [
                Reserves::DEF.id,
                ReservesIn::DEF.id,
                Withdrawals::DEF.id,
                Closings::DEF.id,
                RecoupCredits::DEF.id,
                HistoryRequests::DEF.id,
                ReserveAccounts::DEF.id,
                ReserveOpens::DEF.id,
                CloseRequests::DEF.id,
            ]
            .contains(&id) =>
            {
                let reserve_pub = CoinPub::decode(&mut &key[..32]).map_err(corrupt)?;
                let key = ReserveKey { reserve_pub };
                let reserve = self.seen.get::<Reserves>(&key)?;
                !(self.is_there)(Reserves::DEF, &key.to_bytes())?
                    && reserve
                        .is_none_or(|reserve| reserve.row.gc < self.now && reserve.row.balance.is_zero())
            }
            id if [Purses::DEF.id, PurseDeposits::DEF.id, PurseMerges::DEF.id, PurseDeletions::DEF.id]
                .contains(&id) =>
            {
                let purse_pub = CoinPub::decode(&mut &key[..32]).map_err(corrupt)?;
                let purse_key = PurseKey { purse_pub };
                let is_gone = !(self.is_there)(Purses::DEF, &purse_key.to_bytes())?;
                let is_archived = id == PurseDeposits::DEF.id && self.is_coin_forgotten(&key[32..])?;
                let is_over = self
                    .seen
                    .get::<Purses>(&purse_key)?
                    .is_none_or(|purse| purse.row.expiration.saturating_add(DELAY) < self.now);
                is_archived || is_gone && is_over
            }
            id if id == Prepared::DEF.id => {
                let row = PreparedRow::decode(row).map_err(corrupt)?;
                row.finished.is_some_and(|finished| finished.saturating_add(DELAY) < self.now)
            }
            id if id == WireOut::DEF.id => self.has_archive,
            id if id == KycRequirements::DEF.id => true,
            _ => false,
        })
    }
}

/// Returns whether rows of a table may be removed and added again under the same key.
fn is_repeated(table: &TableDef) -> bool {
    [Aggregates::DEF.id, Reserves::DEF.id, KycRequirements::DEF.id, ReserveAccounts::DEF.id]
        .contains(&table.id)
}

#[cfg(test)]
mod tests {
    use batzen_tables::exchange::AuditorRow;

    use super::*;

    /// An operator who enables and disables an auditor in the same second does not rewrite history, but an exchange that
    /// enables it again does.
    #[test]
    fn disabling_needs_no_later_second() {
        let row = |second: u64, enabled: bool| {
            let row = AuditorRow {
                url: "http://localhost/".into(),
                name: "Auditor".into(),
                last_change: Timestamp::from_secs(second),
                enabled,
            };
            row.to_bytes()
        };
        let forbidden = |old: (u64, bool), new: (u64, bool)| {
            forbidden_changes(Auditors::DEF, &row(old.0, old.1), &row(new.0, new.1)).unwrap()
        };
        assert!(forbidden((7, true), (7, false)).is_empty());
        assert!(forbidden((7, false), (8, true)).is_empty());
        assert_eq!(forbidden((7, false), (7, true)), ["enabled"]);
        assert_eq!(forbidden((7, true), (6, false)), ["last_change"]);
    }
}

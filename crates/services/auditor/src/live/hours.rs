//! Sums issued, redeemed and owed over time: a row for each hour in which something changed.

use crate::audit::{Subject, Terms, Totals};
use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Column, Result, Store};
use batzen_tables::auditor::results::{AuditHourKey, AuditHourRow, AuditHours};
use batzen_tables::exchange::DenomSerial;

use super::ALL_DENOMS;

const HOUR_SECS: u64 = 3_600;
/// The most rows that are read for a page.
const ROWS_MAX: usize = 100_000;

/// The figures of one denomination, or all, at the end of an hour, in units of 10⁻⁸.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hour {
    /// When the hour began.
    pub(crate) hour: Timestamp,
    /// The denomination; `None`: all.
    pub(crate) denom: Option<DenomSerial>,
    /// The value of all coins issued.
    pub(crate) issued: i128,
    /// The sum redeemed.
    pub(crate) redeemed: i128,
    /// The exchange's debt; zero for one denomination.
    pub(crate) liability: i128,
    /// The balance that its accounts should hold; zero for one denomination.
    pub(crate) expected: i128,
    /// The balance that they hold, if the bank was asked.
    pub(crate) bank: Option<i128>,
}

fn hour_of(time: Timestamp) -> Timestamp {
    let secs = time.as_micros() / 1_000_000;
    Timestamp::from_secs(secs - secs % HOUR_SECS)
}

/// Brings the rows of this hour up to date. `bank`: what the bank has just said.
pub(super) fn write(
    store: &Store,
    subject: &Subject,
    (terms, totals): (&Terms, &Totals),
    (now, bank): (Timestamp, Option<i128>),
    set: &mut ChangeSet,
) -> Result<()> {
    let hour = hour_of(now);
    let sheet = totals.sheet(subject);
    let mut rows = vec![(
        AuditHourKey { hour, denom: ALL_DENOMS },
        AuditHourRow {
            issued: sheet.issued.units.cast_unsigned(),
            redeemed: sheet.redeemed.units.cast_unsigned(),
            liability: sheet.liability().units.cast_unsigned(),
            expected: sheet.expected_balance().units.cast_unsigned(),
            bank: bank.map(i128::cast_unsigned),
        },
    )];
    for (denom, tally) in totals.denoms() {
        let value = terms.denom(denom).map_or(0, |denom| denom.row.value.units());
        let issued = i128::from(tally.issued()) * i128::try_from(value).expect("amounts are below 2^80");
        rows.push((
            AuditHourKey { hour, denom },
            AuditHourRow {
                issued: issued.cast_unsigned(),
                redeemed: tally.redeemed.cast_unsigned(),
                liability: 0,
                expected: 0,
                bank: None,
            },
        ));
    }
    let keys: Vec<AuditHourKey> = rows.iter().map(|(key, _)| key.clone()).collect();
    for ((key, row), old) in rows.into_iter().zip(store.get_many::<AuditHours>(&keys)?) {
        match old.map(|old| old.row) {
            None => set.insert::<AuditHours>(&key, &row),
            Some(old) => {
                let row = AuditHourRow { bank: row.bank.or(old.bank), ..row };
                if row != old {
                    set.update::<AuditHours>(&key, &old, &row);
                }
            }
        }
    }
    Ok(())
}

/// The figures since a time, in its order.
///
/// # Errors
/// If the store cannot be read.
pub fn hours(store: &Store, since: Timestamp) -> Result<Vec<Hour>> {
    let from = std::ops::Bound::Included(Column::to_bytes(&hour_of(since)));
    let rows = store.range_bytes::<AuditHours>(
        AuditHours::BY_HOUR,
        from,
        std::ops::Bound::Unbounded,
        ROWS_MAX,
        false,
    )?;
    Ok(rows
        .into_iter()
        .map(|found| Hour {
            hour: found.key.hour,
            denom: (found.key.denom != ALL_DENOMS).then_some(found.key.denom),
            issued: found.row.issued.cast_signed(),
            redeemed: found.row.redeemed.cast_signed(),
            liability: found.row.liability.cast_signed(),
            expected: found.row.expected.cast_signed(),
            bank: found.row.bank.map(u128::cast_signed),
        })
        .collect())
}

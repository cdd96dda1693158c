//! The sums of all rows that were audited, as figures that a store can keep.

use batzen_store::{Record, Result, StoreError};
use batzen_tables::exchange::{CollectedKey, CollectedRow, DenomSerial};

use crate::audit::books::{DenomTally, Tally, Way};
use crate::audit::changes::RowChange;
use crate::audit::sheet::{ObjectSums, Sheet};
use crate::audit::terms::Subject;

/// The sums of all rows that were audited so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    pub(crate) tally: Tally,
    pub(crate) sums: ObjectSums,
}

impl Totals {
    /// Notes what removed rows have left, by which incomplete histories are judged in the same increment.
    pub(crate) fn collect(&mut self, change: &RowChange) -> Result<()> {
        let failed = |source| StoreError::Decode { table: change.table.name, source };
        let term = CollectedKey::decode(&change.key).map_err(failed)?.term;
        for (version, way) in [(&change.old, Way::Remove), (&change.new, Way::Add)] {
            if let Some(version) = version {
                let row = CollectedRow::decode(&version.row).map_err(failed)?;
                self.tally.sums.collected[term as usize] += way.of(row.units);
            }
        }
        Ok(())
    }

    pub(crate) fn change(&mut self, before: &Self, after: &Self) {
        for (totals, way) in [(before, Way::Remove), (after, Way::Add)] {
            self.tally.combine(&totals.tally, way);
            self.sums.combine(&totals.sums, way);
        }
    }

    /// All sums that belong to no denomination, in a fixed order. Whoever changes it changes [`Totals::FORM`].
    fn slots(&mut self) -> Vec<&mut i128> {
        let (rows, objects) = (&mut self.tally.sums, &mut self.sums);
        let mut slots = vec![
            &mut rows.wired_in,
            &mut rows.reserves,
            &mut rows.open_deposits,
            &mut rows.in_flight,
            &mut rows.wired_out,
            &mut rows.history_fees,
            &mut rows.closing_fees,
            &mut rows.closing_rounding,
            &mut rows.account_fees,
            &mut rows.refund_fees,
            &mut rows.drained,
            &mut rows.issued,
            &mut rows.withdraw_fees,
            &mut rows.archived_coins,
            &mut rows.archived_transfers,
            &mut objects.unrevealed,
            &mut objects.melt_fees,
            &mut objects.surplus,
            &mut objects.purses,
            &mut objects.purses_open,
            &mut objects.purse_income,
            &mut objects.purses_moved,
            &mut objects.transient,
            &mut objects.deposit_fees,
            &mut objects.wire_fees,
            &mut objects.wire_rounding,
        ];
        slots.extend(&mut rows.collected);
        slots.extend(&mut objects.unordered);
        slots
    }

    /// The number of this program's form of sums and rules, and of what is kept beside them. Sums of another form are not
    /// gone on from: the next audit is a whole one.
    pub(crate) const FORM: u32 = 2;

    /// All sums that belong to no denomination, in the order of this form; then three figures for each archive: its
    /// number, and what its parts differ by in rows and bytes.
    pub(crate) fn figures(&self) -> Vec<i128> {
        let mut figures: Vec<i128> = self.clone().slots().into_iter().map(|sum| *sum).collect();
        let mut archives: Vec<_> = self.tally.archives.iter().collect();
        archives.sort_unstable();
        figures
            .extend(archives.into_iter().flat_map(|(run, [rows, bytes])| [i128::from(*run), *rows, *bytes]));
        figures
    }

    /// The sums of a denomination's rows.
    pub(crate) fn denom(&self, serial: DenomSerial) -> DenomTally {
        self.tally.denoms.get(&serial.0).copied().unwrap_or_default()
    }

    /// All denominations that have rows, in no order.
    pub(crate) fn denoms(&self) -> impl Iterator<Item = (DenomSerial, DenomTally)> {
        self.tally.denoms.iter().map(|(serial, tally)| (DenomSerial(*serial), *tally))
    }

    /// The totals with these figures and denominations; `None` if they have another form.
    #[must_use]
    pub(crate) fn from_figures(
        figures: &[i128],
        denoms: impl IntoIterator<Item = (DenomSerial, DenomTally)>,
    ) -> Option<Self> {
        let mut totals = Self::default();
        let slots = totals.slots();
        let (sums, archives) = figures.split_at_checked(slots.len())?;
        for (slot, figure) in slots.into_iter().zip(sums) {
            *slot = *figure;
        }
        let (archives, rest) = archives.as_chunks::<3>();
        if !rest.is_empty() {
            return None;
        }
        for [run, rows, bytes] in archives {
            totals.tally.archives.insert(u32::try_from(*run).ok()?, [*rows, *bytes]);
        }
        totals.tally.denoms = denoms.into_iter().map(|(serial, tally)| (serial.0, tally)).collect();
        Some(totals)
    }

    /// The balance sheet that follows from them.
    #[must_use]
    pub fn sheet(&self, subject: &Subject) -> Sheet {
        crate::audit::sheet::sheet(subject, &self.tally, &self.sums)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn figures_are_read_back(seed in prop::collection::vec(any::<i64>(), 60), withdrawn in 0..1_000_i64) {
            let mut totals = Totals::default();
            let mut figures = seed.iter().map(|n| i128::from(*n) << 20).cycle();
            for slot in totals.slots() {
                *slot = figures.next().unwrap();
            }
            totals.tally.denom(DenomSerial(3)).withdrawn = withdrawn;
            totals.tally.archives.insert(7, [i128::from(withdrawn), -1]);
            prop_assert_eq!(Totals::from_figures(&totals.figures(), totals.denoms()), Some(totals.clone()));
            prop_assert_eq!(Totals::from_figures(&totals.figures()[1..], totals.denoms()), None);
        }
    }

    #[test]
    fn no_sum_is_forgotten() {
        // Whoever adds a sum adds it to `slots`, too.
        let bytes = size_of::<crate::audit::books::SumTally>() + size_of::<ObjectSums>();
        assert_eq!(Totals::default().figures().len() * size_of::<i128>(), bytes);
    }
}

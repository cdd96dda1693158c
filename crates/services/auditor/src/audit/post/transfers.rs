//! Outgoing transfers, and what removed rows left behind.

use batzen_store::Table;
use batzen_tables::exchange::{
    Aggregates, ArchiveCounts, ArchiveRuns, ArchiveTransfers, Coins, CollectedSums, Drains, Prepared, WireOut,
};

use super::{Poster, Row};
use crate::audit::books::Fact;

/// A fact in a book that has few of them.
fn boxed<T: Table, F>(row: &Row<'_, T>, fact: F) -> Option<Box<Fact<F>>> {
    row.is_there().then(|| Box::new(Fact { serial: row.found.serial, row: fact }))
}

impl Poster<'_> {
    pub(super) fn aggregate(&mut self, row: Row<'_, Aggregates>) {
        let fact = (row.found.key.clone(), row.found.row.clone());
        let wtid = fact.1.wtid;
        self.books.transfers.change(&wtid, |book| {
            book.aggregate = boxed(&row, fact);
            book.aggregates += row.way.one();
        });
    }

    pub(super) fn wire_out(&mut self, row: Row<'_, WireOut>) {
        let fact = row.found.row.clone();
        self.books.transfers.change(&row.found.key.wtid, |book| book.wire_out = boxed(&row, fact));
    }

    pub(super) fn prepared(&mut self, row: Row<'_, Prepared>) {
        let fact = row.found.row.clone();
        let amount = row.way.of(fact.amount.units());
        if fact.finished.is_some() {
            self.tally.sums.wired_out += amount;
        } else {
            self.tally.sums.in_flight += amount;
        }
        self.books.transfers.change(&row.found.key.wtid, |book| book.prepared = boxed(&row, fact));
    }

    pub(super) fn drain(&mut self, row: Row<'_, Drains>) {
        let fact = row.found.row.clone();
        if fact.executed {
            self.tally.sums.drained += row.way.of(fact.amount.units());
        }
        self.books.transfers.change(&row.found.key.wtid, |book| book.drain = boxed(&row, fact));
    }

    pub(super) fn collected(&mut self, row: Row<'_, CollectedSums>) {
        let units = row.way.of(row.found.row.units);
        self.tally.sums.collected[row.found.key.term as usize] += units;
    }

    pub(super) fn archive_run(&mut self, row: Row<'_, ArchiveRuns>) {
        let (run, way) = (&row.found.row, row.way);
        let sums = self.tally.archives.entry(row.found.key.run).or_default();
        sums[0] += way.of(run.rows.into());
        sums[1] += way.of(run.bytes.into());
    }

    pub(super) fn archive_count(&mut self, row: Row<'_, ArchiveCounts>) {
        let (key, count, way) = (&row.found.key, &row.found.row, row.way);
        let sums = self.tally.archives.entry(key.run).or_default();
        sums[0] -= way.of(count.rows.into());
        sums[1] -= way.of(count.bytes.into());
        if key.table == Coins::DEF.id {
            let coins = i64::try_from(count.rows).expect("no archive has 2^63 rows");
            self.tally.denom(key.denom).archived += coins * way.one();
            self.tally.sums.archived_coins += way.of(count.units);
        } else if key.table == WireOut::DEF.id {
            self.tally.sums.archived_transfers += way.of(count.units);
        }
    }

    pub(super) fn archive_transfer(&mut self, row: Row<'_, ArchiveTransfers>) {
        let fact = row.found.row.clone();
        self.books.transfers.change(&row.found.key.wtid, |book| book.archived = boxed(&row, fact));
    }
}

//! What must hold once every row has been posted.
//!
//! | file | objects |
//! |---|---|
//! | `coins` | coins, deposits with refunds, refreshes, recoups, denominations |
//! | `confirmations` | deposits that merchants proved |
//! | `transfers` | outgoing transfers |
//! | `purses` | purses; they are credited to reserves |
//! | `reserves` | reserves, their closings, and requests that prolonged them |
//! | `overdue` | what should have been paid, closed or decided by now |

mod coins;
mod confirmations;
mod overdue;
mod purses;
mod reserves;
mod transfers;

use std::collections::HashSet;

use batzen_crypto::Wtid;
use batzen_protocol::{Duration, Timestamp};
use batzen_store::{Record, Result, Store, StoreError, Table};
use batzen_tables::exchange::{
    ArchiveRunKey, ArchiveRuns, CoinPub, Coins, CollectedTerm, PursePub, ReservePub, ReserveRequestKey,
    WireOut,
};

use crate::audit::books::{Books, RecoupName, Tally, Way};
use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::forward::Forward;
use crate::audit::increment::Fresh;
use crate::audit::run::Options;
use crate::audit::sheet::Sheet;
use crate::audit::terms::{Subject, Terms};

pub(crate) use coins::units;
pub use overdue::Overdue;

/// How much the times of two records of one event may differ (auditor chapter 7.4).
pub(crate) const TOLERANCE: Duration = Duration::from_secs(900);

/// Draws the conclusions.
pub(crate) struct Conclusion<'a> {
    pub subject: &'a Subject,
    pub terms: &'a Terms,
    pub books: &'a Books,
    /// The rows, for the few questions that books do not answer.
    pub store: &'a Store,
    /// Changed rows that `store` does not have yet.
    pub fresh: Option<&'a Fresh<'a>>,
    pub now: Timestamp,
    /// Whether stored balances are checked, too.
    pub internal: bool,
    /// Whether serials say in which order the exchange stored its rows.
    pub in_order: bool,
    /// When the rows were copied, if the exchange went on since.
    pub copied: Option<Timestamp>,
    /// The objects whose accounts are complete; `None`: all.
    pub scope: Option<&'a Scope>,
    /// What reserves and transfers bring forward, until it is added to the books.
    pub forward: BroughtForward,
    pub findings: Vec<Finding>,
    pub overdue: Overdue,
    /// Sums that follow from complete accounts.
    pub sums: ObjectSums,
    /// The sums of all rows, for questions about the whole.
    pub tally: Tally,
}

/// Sums over objects, in units of 10⁻⁸, where a row alone does not say what it adds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectSums {
    /// Melts without reveal, less their fees.
    pub unrevealed: i128,
    /// Melt fees.
    pub melt_fees: i128,
    /// What refreshes did not use.
    pub surplus: i128,
    /// What open purses hold.
    pub purses: i128,
    /// How many purses are open.
    pub purses_open: i128,
    /// What paid purses left.
    pub purse_income: i128,
    /// Contributions to paid purses whose deposits are archived.
    pub purses_moved: i128,
    /// Aggregates that wait.
    pub transient: i128,
    /// Deposit fees of aggregated deposits.
    pub deposit_fees: i128,
    /// Wire fees.
    pub wire_fees: i128,
    /// What transfers were rounded down by.
    pub wire_rounding: i128,
    /// Decided transfers without an order, by kind.
    pub unordered: [i128; 3],
}

impl ObjectSums {
    /// Adds other sums, or takes them off.
    pub fn combine(&mut self, other: &Self, way: Way) {
        let one = i128::from(way.one());
        self.unrevealed += one * other.unrevealed;
        self.melt_fees += one * other.melt_fees;
        self.surplus += one * other.surplus;
        self.purses += one * other.purses;
        self.purses_open += one * other.purses_open;
        self.purse_income += one * other.purse_income;
        self.purses_moved += one * other.purses_moved;
        self.transient += one * other.transient;
        self.deposit_fees += one * other.deposit_fees;
        self.wire_fees += one * other.wire_fees;
        self.wire_rounding += one * other.wire_rounding;
        for (sum, other) in self.unordered.iter_mut().zip(other.unordered) {
            *sum += one * other;
        }
    }
}

/// What completes accounts of which not all rows are posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BroughtForward {
    /// Their sums, posted rows included.
    Sums(Forward),
    /// The sums of the rows that are not posted.
    Rest(Forward),
}

impl Default for BroughtForward {
    fn default() -> Self {
        Self::Rest(Forward::default())
    }
}

/// Objects whose rows are all in the books, or brought forward.
#[derive(Debug, Default, Clone)]
pub(crate) struct Scope {
    pub coins: HashSet<CoinPub>,
    pub reserves: HashSet<ReservePub>,
    pub transfers: HashSet<Wtid>,
    pub purses: HashSet<PursePub>,
    pub opens: HashSet<ReserveRequestKey>,
    pub recoups: HashSet<RecoupName>,
}

impl<'a> Conclusion<'a> {
    /// Conclusions about all rows that were posted.
    pub fn new(
        subject: &'a Subject,
        terms: &'a Terms,
        books: &'a Books,
        store: &'a Store,
        options: &Options,
    ) -> Self {
        Self {
            subject,
            terms,
            books,
            store,
            fresh: None,
            now: options.now,
            internal: options.internal,
            in_order: options.in_order,
            copied: options.copied,
            scope: None,
            forward: BroughtForward::default(),
            findings: Vec::new(),
            overdue: Overdue::default(),
            sums: ObjectSums::default(),
            tally: books.tally().clone(),
        }
    }
}

impl Conclusion<'_> {
    /// Draws all conclusions.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn draw(&mut self) -> Result<()> {
        self.coins();
        self.forged_coins()?;
        self.refunds();
        self.refreshes();
        self.recoups()?;
        self.purses();
        self.bring_forward();
        self.transfers();
        self.reserves();
        self.opens();
        Ok(())
    }

    /// Completes the accounts of which not all rows were posted.
    fn bring_forward(&mut self) {
        let books = self.books;
        self.forward = match std::mem::take(&mut self.forward) {
            BroughtForward::Sums(sums) => {
                let rest = sums.less(books);
                rest.add_to(books);
                BroughtForward::Rest(rest)
            }
            BroughtForward::Rest(rest) => {
                rest.add_to(books);
                BroughtForward::Rest(rest)
            }
        };
    }

    /// Draws the conclusions about the whole, from the sums of all rows.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn draw_whole(&mut self) -> Result<()> {
        self.removed_orders();
        self.removed_purse_deposits();
        self.archives();
        self.denominations();
        self.find_overdue()
    }

    /// The records of archives are the sums of their parts, and the balance sheet has what they took.
    fn archives(&mut self) {
        let mut runs: Vec<_> = self.tally.archives.iter().map(|(run, sums)| (*run, *sums)).collect();
        runs.sort_unstable();
        for (run, [rows, bytes]) in runs {
            if (rows, bytes) != (0, 0) {
                let key = ArchiveRunKey { run }.to_bytes();
                let row = RowName::new(ArchiveRuns::DEF, run.into(), &key);
                let detail = format!("{rows} rows and {bytes} bytes more than its parts have");
                self.found(Finding::new(Rule::ArchiveCount, row).because(detail));
            }
        }
        let sums = self.tally.sums;
        for (table, archived, term) in [
            (Coins::DEF, sums.archived_coins, CollectedTerm::Redeemed),
            (WireOut::DEF, sums.archived_transfers, CollectedTerm::MerchantsPaid),
        ] {
            let removed = self.collected(term);
            if archived != removed {
                let row = RowName { table: table.name, serial: 0, key: String::new() };
                let finding = Finding::new(Rule::ArchiveCount, row).figures(removed, archived);
                self.found(finding.because("what archives took, and what the balance sheet has of it"));
            }
        }
    }

    /// A row, as it is now.
    fn row<T: Table>(&self, key: &T::Key) -> Result<Option<T::Row>> {
        let bytes = key.to_bytes();
        match self.fresh.and_then(|fresh| fresh.get(&(T::DEF.id, bytes.as_slice()))) {
            Some(version) => {
                let row = version.map(|version| T::Row::decode(&version.row)).transpose();
                row.map_err(|source| StoreError::Decode { table: T::DEF.name, source })
            }
            None => Ok(self.store.get::<T>(key)?.map(|found| found.row)),
        }
    }

    /// Checks that the balance sheet is balanced.
    pub(crate) fn check_sheet(&mut self, sheet: &Sheet) {
        let difference = sheet.difference().units;
        if difference != 0 {
            let row = RowName { table: "", serial: 0, key: String::new() };
            let expected = sheet.expected_balance().units;
            let finding = Finding::new(Rule::SheetBalance, row);
            self.findings.push(finding.figures(expected - difference, expected));
        }
    }

    /// Whether something of this time may have come after the rows were copied.
    pub(crate) fn may_be_newer(&self, time: Timestamp) -> bool {
        self.copied.is_some_and(|copied| time.saturating_add(TOLERANCE) >= copied)
    }

    /// What removed rows added to a term.
    pub(crate) fn collected(&self, term: CollectedTerm) -> i128 {
        self.tally.sums.collected[term as usize]
    }

    /// Whether rows have been removed or archived, so that some histories are incomplete.
    fn has_collected(&self) -> bool {
        self.tally.sums.collected.iter().any(|units| *units != 0)
    }

    pub(crate) fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

//! Conclusions, once every row has been posted.
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

use batzen_protocol::{Duration, Timestamp};
use batzen_store::{Record, Result, Store, StoreError, Table};
use batzen_tables::exchange::{ArchiveRunKey, ArchiveRuns, Coins, CollectedTerm, WireOut};

use crate::audit::books::{Books, Tally};
use crate::audit::changes::Fresh;
use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::forward::Forward;
use crate::audit::scope::Scope;
use crate::audit::sheet::{ObjectSums, Sheet, sheet};
use crate::audit::terms::{Subject, Terms};

pub(crate) use coins::units;
pub use confirmations::Confirmation;
pub(crate) use overdue::Overdue;

/// Maximum difference between the times of two records of one event (auditor chapter 7.4).
pub(crate) const TOLERANCE: Duration = Duration::from_secs(900);

/// Draws the conclusions.
pub(crate) struct Conclusion<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) terms: &'a Terms,
    pub(crate) books: &'a Books,
    /// The rows, for the few questions that books do not answer.
    pub(crate) store: &'a Store,
    /// Changed rows that `store` does not have yet.
    pub(crate) fresh: Option<&'a Fresh<'a>>,
    pub(crate) now: Timestamp,
    /// Whether stored balances are checked, too.
    pub(crate) internal: bool,
    /// Whether serials say in which order the exchange stored its rows.
    pub(crate) in_order: bool,
    /// When the rows were copied, if the exchange went on since.
    pub(crate) copied: Option<Timestamp>,
    /// The objects whose accounts are complete; `None`: all.
    pub(crate) scope: Option<&'a Scope>,
    /// Sums that reserves and transfers bring forward, until they are added to the books.
    pub(crate) forward: BroughtForward,
    pub(crate) findings: Vec<Finding>,
    pub(crate) overdue: Overdue,
    /// Sums that follow from complete accounts.
    pub(crate) sums: ObjectSums,
    /// The sums of all rows, for questions about the whole.
    pub(crate) tally: Tally,
}

/// The sums that complete accounts of which not all rows are posted.
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

impl<'a> Conclusion<'a> {
    /// Conclusions about all rows that were posted.
    pub(super) fn new(
        subject: &'a Subject,
        terms: &'a Terms,
        books: &'a Books,
        store: &'a Store,
        now: Timestamp,
    ) -> Self {
        Self {
            subject,
            terms,
            books,
            store,
            fresh: None,
            now,
            internal: false,
            in_order: false,
            copied: None,
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
    pub(super) fn draw(&mut self) -> Result<()> {
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
    pub(crate) fn draw_whole(&mut self) -> Result<()> {
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

    /// The balance sheet. All other conclusions must have been drawn.
    pub(crate) fn sheet(&self) -> Sheet {
        sheet(self.subject, &self.tally, &self.sums)
    }

    /// Checks that the balance sheet is balanced, and that the exchange can pay what it owes. `unexplained`: what left the
    /// bank without a reason, in units of 10⁻⁸. Fees are what balances the sheet, so a sheet of an insolvent exchange
    /// balances, too.
    pub(crate) fn check_sheet(&mut self, sheet: &Sheet, unexplained: i128) {
        let difference = sheet.difference().units;
        let expected = sheet.expected_balance().units;
        let (drained, income) = (sheet.drained.units, sheet.income().units);
        let (held, owed) = (expected - unexplained, sheet.liability().units);
        let rules = [
            (Rule::SheetBalance, difference != 0, [expected - difference, expected]),
            (Rule::DrainBeyondProfit, drained > income.max(0), [drained, income]),
            (Rule::IncomeNegative, income < 0, [income, 0]),
            (Rule::BankShort, held < owed, [held, owed]),
        ];
        for (rule, is_broken, [exchange, auditor]) in rules {
            if is_broken {
                let row = RowName { table: "", serial: 0, key: String::new() };
                self.findings.push(Finding::new(rule, row).figures(exchange, auditor));
            }
        }
    }

    /// Returns whether something of this time may have come after the rows were copied.
    pub(crate) fn may_be_newer(&self, time: Timestamp) -> bool {
        self.copied.is_some_and(|copied| time.saturating_add(TOLERANCE) >= copied)
    }

    /// The sum that removed rows added to a term.
    pub(crate) fn collected(&self, term: CollectedTerm) -> i128 {
        self.tally.sums.collected[term as usize]
    }

    /// Returns whether rows have been removed or archived, so that some histories are incomplete.
    fn has_collected(&self) -> bool {
        self.tally.sums.collected.iter().any(|units| *units != 0)
    }

    pub(crate) fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

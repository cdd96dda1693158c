//! What must hold once every row has been posted.
//!
//! | file | objects |
//! |---|---|
//! | `coins` | coins, deposits with refunds, refreshes, recoups, denominations |
//! | `transfers` | outgoing transfers |
//! | `purses` | purses; they are credited to reserves |
//! | `reserves` | reserves, their closings, and requests that prolonged them |
//! | `overdue` | what should have been paid, closed or decided by now |

mod coins;
mod overdue;
mod purses;
mod reserves;
mod transfers;

use std::collections::HashSet;

use batzen_crypto::Wtid;
use batzen_protocol::Timestamp;
use batzen_store::{Result, Store};
use batzen_tables::exchange::{CoinPub, CollectedTerm, PursePub, ReservePub, ReserveRequestKey};

use crate::books::{Books, RecoupName, Tally};
use crate::finding::Finding;
use crate::terms::{Subject, Terms};

pub(crate) use coins::units;
pub use overdue::Overdue;

/// Draws the conclusions.
pub(crate) struct Conclusion<'a> {
    pub subject: &'a Subject,
    pub terms: &'a Terms,
    pub books: &'a Books,
    /// The rows, for the few questions that books do not answer.
    pub store: &'a Store,
    pub now: Timestamp,
    /// Whether stored balances are checked, too.
    pub internal: bool,
    /// The objects whose accounts are complete; `None`: all.
    pub scope: Option<&'a Scope>,
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

/// Objects whose rows are all in the books.
#[derive(Debug, Default, Clone)]
pub(crate) struct Scope {
    pub coins: HashSet<CoinPub>,
    pub reserves: HashSet<ReservePub>,
    pub transfers: HashSet<Wtid>,
    pub purses: HashSet<PursePub>,
    pub opens: HashSet<ReserveRequestKey>,
    pub recoups: HashSet<RecoupName>,
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
        self.transfers();
        self.reserves();
        self.opens();
        Ok(())
    }

    /// Draws the conclusions about the whole, from the sums of all rows.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn draw_whole(&mut self) -> Result<()> {
        self.removed_orders();
        self.removed_purse_deposits();
        self.denominations();
        self.find_overdue()
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

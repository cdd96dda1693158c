//! Posting: each row's sums in the books, and the signatures that it needs.
//!
//! | file | tables |
//! |---|---|
//! | `coins` | coins, deposits, refunds |
//! | `refreshes` | melts, reveals, recoups and their credits |
//! | `reserves` | reserves, their credits and debits, requests of their owners |
//! | `purses` | purses, their deposits, merges and deletions |
//! | `transfers` | aggregates, decided and ordered transfers, removed rows |

mod coins;
mod purses;
mod refreshes;
mod reserves;
mod transfers;

use std::collections::HashMap;

use batzen_crypto::{HashCode, WireSalt};
use batzen_protocol::Money;
use batzen_protocol::payto::h_wire;
use batzen_store::{Found, RawRecord, Result, Table, TableDef};
use batzen_tables::exchange::{self as rows, PaytoHash};

use crate::audit::books::{Books, Tally, Way};
use crate::audit::claims::{Claims, Origin};
use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::terms::{Subject, Terms};

/// Number of hashes of accounts that a batch remembers.
const WIRE_HASHES_MAX: usize = 1 << 16;

/// Posts rows: one for each thread.
pub(crate) struct Poster<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) terms: &'a Terms,
    pub(crate) books: &'a Books,
    pub(crate) tally: Tally,
    pub(crate) claims: Claims,
    pub(crate) findings: Vec<Finding>,
    wire_hashes: HashMap<(PaytoHash, WireSalt), HashCode>,
    /// Rows posted, and signatures verified.
    pub(crate) rows: u64,
    pub(crate) signatures: u64,
}

impl<'a> Poster<'a> {
    pub(super) fn new(subject: &'a Subject, terms: &'a Terms, books: &'a Books) -> Self {
        Self {
            subject,
            terms,
            books,
            tally: Tally::default(),
            claims: Claims::default(),
            findings: Vec::new(),
            wire_hashes: HashMap::new(),
            rows: 0,
            signatures: 0,
        }
    }

    /// Posts rows of one table. Rows of tables that have no accounts are ignored.
    pub(super) fn post(&mut self, table: &TableDef, records: Vec<RawRecord>, way: Way) -> Result<()> {
        self.rows += records.len() as u64;
        macro_rules! dispatch {
            ($($table:ident => $post:ident,)*) => {
                match table.id {
                    $(id if id == rows::$table::DEF.id => {
                        for record in records {
                            let key = record.key.clone();
                            let found = Found::<rows::$table>::decode(record)?;
                            self.$post(Row { found, key: &key, way });
                        }
                    })*
                    _ => {}
                }
            };
        }
        dispatch! {
            Coins => coin,
            Deposits => deposit,
            Refunds => refund,
            Melts => melt,
            Reveals => reveal,
            Recoups => recoup,
            RecoupCredits => recoup_credit,
            RecoupRefreshes => recoup_refresh,
            RecoupRefreshCredits => recoup_refresh_credit,
            Reserves => reserve,
            ReservesIn => reserve_in,
            Withdrawals => withdrawal,
            Closings => closing,
            HistoryRequests => history_request,
            ReserveAccounts => reserve_account,
            ReserveOpens => reserve_open,
            ReserveOpenDeposits => reserve_open_deposit,
            CloseRequests => close_request,
            Purses => purse,
            PurseDeposits => purse_deposit,
            PurseMerges => purse_merge,
            PurseDeletions => purse_deletion,
            Aggregates => aggregate,
            WireOut => wire_out,
            Prepared => prepared,
            Drains => drain,
            CollectedSums => collected,
            ArchiveRuns => archive_run,
            ArchiveCounts => archive_count,
            ArchiveTransfers => archive_transfer,
        }
        self.settle();
        Ok(())
    }

    /// Verifies the signatures of what was posted, and adds its sums to the books.
    fn settle(&mut self) {
        self.signatures += self.claims.len();
        self.findings.extend(self.claims.verify());
        self.claims = Claims::default();
        let tally = std::mem::take(&mut self.tally);
        self.books.tally().combine(&tally, Way::Add);
    }

    fn money(&self, money: Money) -> batzen_protocol::Amount {
        money.of(self.subject.currency)
    }

    /// `h_wire` of an account; `None` if the account is not on record.
    fn h_wire(&mut self, h_payto: PaytoHash, salt: WireSalt) -> Option<HashCode> {
        if let Some(hash) = self.wire_hashes.get(&(h_payto, salt)) {
            return Some(*hash);
        }
        let hash = h_wire(self.terms.account(&h_payto)?, &salt);
        if self.wire_hashes.len() >= WIRE_HASHES_MAX {
            self.wire_hashes.clear();
        }
        self.wire_hashes.insert((h_payto, salt), hash);
        Some(hash)
    }

    fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

/// A row to post.
pub(crate) struct Row<'a, T: Table> {
    pub(crate) found: Found<T>,
    pub(crate) key: &'a [u8],
    pub(crate) way: Way,
}

impl<T: Table> Row<'_, T> {
    /// Where its signatures come from.
    fn origin(&self) -> Origin<'_> {
        Origin { table: T::DEF, serial: self.found.serial, key: self.key }
    }

    /// Returns whether its signatures and fields are to be checked.
    fn is_new(&self) -> bool {
        self.way == Way::Add
    }

    /// Returns whether it is there.
    fn is_there(&self) -> bool {
        self.way != Way::Remove
    }

    /// A finding about it.
    fn finding(&self, rule: Rule) -> Finding {
        Finding::new(rule, RowName::new(T::DEF, self.found.serial, self.key))
    }

    /// Its table and serial, for objects that may be missing.
    fn user(&self) -> Option<(&'static str, u64)> {
        Some((T::DEF.name, self.found.serial))
    }
}

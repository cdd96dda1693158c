//! A whole audit: every row is read once, its signatures are verified, and its amounts are posted to the books by as
//! many threads as there are.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batzen_protocol::Timestamp;
use batzen_store::{Column, FrozenRows, RawRecord, RawRow, Store, StoreError, Table, TableDef};
use batzen_tables::exchange::{
    AUDITED, Aggregates, ArchiveCounts, ArchiveRuns, ArchiveTransfers, CloseRequests, Closings, Coins,
    CollectedSums, DenomSerial, Deposits, Drains, HistoryRequests, Melts, Prepared, PurseDeletions,
    PurseDeposits, PurseMerges, Purses, RecoupCredits, RecoupRefreshCredits, RecoupRefreshes, Recoups,
    Refunds, ReserveAccounts, ReserveOpenDeposits, ReserveOpens, Reserves, ReservesIn, Reveals, WireOut,
    Withdrawals,
};

use crate::audit::books::{Books, DenomTally, Way};
use crate::audit::conclude::{Conclusion, Confirmation, Overdue};
use crate::audit::finding::{Finding, Rule, Severity};
use crate::audit::forward::{Forward, SHORT_HISTORY_ROWS};
use crate::audit::post::Poster;
use crate::audit::sheet::Sheet;
use crate::audit::terms::{Denom, Subject, Terms, read_terms};
use crate::audit::totals::Totals;
use crate::audit::wire::{AccountResult, BankAccount, OpenPairs, Settled, Wires};

/// Options of an audit.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time at which deposits, reserves and purses are due.
    pub now: Timestamp,
    /// Whether balances that the exchange stores are checked, too.
    pub internal: bool,
    /// Whether the rows' serials say in which order the exchange stored them. Those of a copy that follows an exchange do not.
    pub in_order: bool,
    /// Number of threads that verify and post.
    pub threads: usize,
    /// The bank's records of the accounts that are compared.
    pub bank: Vec<BankAccount>,
    /// The confirmations that merchants have shown.
    pub confirmations: Vec<Confirmation>,
    /// When the rows were copied, if the exchange went on since. What bank and merchants have seen after that is not judged.
    pub copied: Option<Timestamp>,
}

impl Options {
    /// Conclusions about all rows that were posted.
    fn conclusion<'a>(
        &self,
        subject: &'a Subject,
        terms: &'a Terms,
        books: &'a Books,
        store: &'a Store,
    ) -> Conclusion<'a> {
        Conclusion {
            internal: self.internal,
            in_order: self.in_order,
            copied: self.copied,
            ..Conclusion::new(subject, terms, books, store, self.now)
        }
    }
}

/// Rows that a thread handles at once: enough to fill the lanes of the signature checks.
const CHUNK: usize = 512;
/// Chunks that wait for a thread.
const QUEUE: usize = 8;

/// Why an audit could not be done.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The rows cannot be read.
    #[error("cannot read the exchange's rows: {0}")]
    Store(#[from] StoreError),
    /// Somebody stopped it.
    #[error("the audit was stopped")]
    Stopped,
}

/// The progress of an audit, shared with those who show it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Rows posted.
    pub rows: AtomicU64,
    /// Signatures verified.
    pub signatures: AtomicU64,
    /// Set it to stop.
    pub stop: AtomicBool,
}

/// A denomination in the result.
#[derive(Debug, Clone)]
pub(crate) struct DenomResult {
    /// Its number.
    pub(crate) serial: DenomSerial,
    /// Its terms.
    pub(crate) denom: Denom,
    /// The sums over its rows.
    pub(crate) tally: DenomTally,
}

/// The result of an audit.
#[derive(Debug)]
pub struct AuditOutcome {
    /// Everything that was found, in the order of reports.
    pub findings: Vec<Finding>,
    /// Further findings, suppressed by a person.
    pub suppressed: Vec<Finding>,
    /// The part of it that holds until rows change, and the sums.
    pub base: Base,
    /// The balance sheet.
    pub sheet: Sheet,
    /// All denominations, by number.
    pub(crate) denoms: Vec<DenomResult>,
    /// Deposits that are due and not paid.
    pub overdue: Overdue,
    /// The exchange's accounts that were compared with the bank's.
    pub accounts: Vec<AccountResult>,
    /// Its other accounts, and those whose history was read in part, as payto URIs: nothing is known of their money.
    pub unread: Vec<String>,
    /// The part of the comparison with bank and merchants that agreed.
    pub(crate) settled: Settled,
    pub(crate) purses_open: u64,
    /// Income by source.
    pub(crate) income: Income,
    /// Rows read.
    pub rows: u64,
    /// Signatures verified, those of the master key not counted.
    pub signatures: u64,
    /// Time that it took.
    pub(crate) elapsed: Duration,
}

/// Income of the exchange by source, in units of 10⁻⁸.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Income {
    /// Wire fees, and what transfers were rounded down by.
    pub(crate) aggregation: i128,
    /// Deposit fees.
    pub(crate) deposit: i128,
    /// Melt fees.
    pub(crate) melt: i128,
    /// Refund fees.
    pub(crate) refund: i128,
    /// Fees of purses, and what they got beyond their targets.
    pub(crate) purse: i128,
    /// Withdraw fees.
    pub(crate) withdraw: i128,
    /// Closing fees.
    pub(crate) closing: i128,
    /// Payments for prolonging reserves.
    pub(crate) open: i128,
    /// Fees of full histories.
    pub(crate) history: i128,
}

impl AuditOutcome {
    /// The findings that say that something is wrong.
    pub fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity() == Severity::Finding)
    }

    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let pending = self.findings.iter().filter(|finding| finding.rule == Rule::DebitPending);
        let (count, units) = pending
            .fold((0, 0_u128), |(count, units), finding| (count + 1, units.saturating_add(finding.at_risk)));
        if self.faults().next().is_some() {
            Verdict::Wrong
        } else if count > 0 {
            Verdict::Pending { count, units }
        } else if self.unread.is_empty() {
            Verdict::Right
        } else {
            Verdict::BankUnread
        }
    }
}

/// The verdict of an audit, which claims no more than what was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Something is wrong.
    Wrong,
    /// Nothing else is wrong, but money left the bank and nothing explains it yet.
    Pending {
        /// The number of such transfers.
        count: usize,
        /// Their sum, in units of 10⁻⁸.
        units: u128,
    },
    /// The rows agree with each other, but not every account was compared with the bank's history.
    BankUnread,
    /// The rows agree with each other and with the bank.
    Right,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Pending { .. } => "pending",
            Self::BankUnread => "bank-not-checked",
            Self::Right => "right",
        }
    }
}

/// The tables whose rows are posted after the coins, whose terms their signatures need.
const POSTED: &[&TableDef] = &[
    Reserves::DEF,
    ReservesIn::DEF,
    Withdrawals::DEF,
    Closings::DEF,
    RecoupCredits::DEF,
    HistoryRequests::DEF,
    ReserveAccounts::DEF,
    ReserveOpens::DEF,
    ReserveOpenDeposits::DEF,
    CloseRequests::DEF,
    Deposits::DEF,
    Refunds::DEF,
    Melts::DEF,
    Reveals::DEF,
    Recoups::DEF,
    RecoupRefreshes::DEF,
    RecoupRefreshCredits::DEF,
    Purses::DEF,
    PurseDeposits::DEF,
    PurseMerges::DEF,
    PurseDeletions::DEF,
    Aggregates::DEF,
    WireOut::DEF,
    Prepared::DEF,
    Drains::DEF,
    CollectedSums::DEF,
    ArchiveRuns::DEF,
    ArchiveCounts::DEF,
    ArchiveTransfers::DEF,
];

/// A part of a table.
struct Chunk {
    table: &'static TableDef,
    records: Vec<RawRecord>,
}

/// The base of increments: the sums of all rows, and the findings about single objects.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// The sums.
    pub totals: Totals,
    /// Findings about the small tables, and about coins, reserves, transfers and purses.
    pub findings: Vec<Finding>,
    /// The sums of reserves and transfers with long histories.
    pub forward: Forward,
}

/// Audits all rows of a store at one moment.
///
/// # Errors
/// If the rows cannot be read, or somebody stopped it.
///
/// # Panics
/// If sums exceed 128 bits, which no exchange reaches.
pub fn audit(
    store: &Store,
    subject: &Subject,
    options: &Options,
    progress: &Progress,
) -> Result<AuditOutcome, AuditError> {
    let started = Instant::now();
    let frozen = store.freeze(AUDITED)?;
    let terms = read_terms(&*frozen, subject)?;
    let books = Books::default();
    let mut findings = terms.findings().to_vec();
    let posting =
        Posting { frozen: &*frozen, subject, terms: &terms, books: &books, progress, way: Way::Add };
    posting.post(&[Coins::DEF], options.threads, &mut findings)?;
    posting.post(POSTED, options.threads, &mut findings)?;
    let mut conclusion = options.conclusion(subject, &terms, &books, store);
    conclusion.findings = findings;
    conclusion.draw()?;
    let base = Base {
        // The conclusions about coins have added what their denominations redeemed.
        totals: Totals { tally: books.tally().clone(), sums: conclusion.sums },
        findings: std::mem::take(&mut conclusion.findings),
        forward: Forward::of(&books, None, SHORT_HISTORY_ROWS),
    };
    conclude(conclusion, base, (options, None), progress, started)
}

/// The tables with the transfers that the bank should have.
const TRANSFERS: &[&TableDef] = &[WireOut::DEF, Prepared::DEF, Closings::DEF, Drains::DEF];

/// Concludes from what was audited before: `store` has exactly the rows that `base` is about. Only what follows from the
/// whole is computed again: what is overdue, denominations, the balance sheet, and what bank and merchants say. `open`: the
/// pairs of rows that are compared with the bank, if `options.bank` has only these; `None`: all.
///
/// # Errors
/// If the rows cannot be read, or somebody stopped it.
pub fn resume(
    store: &Store,
    (subject, terms): (&Subject, &Terms),
    base: Base,
    (options, open): (&Options, Option<&OpenPairs>),
    progress: &Progress,
) -> Result<AuditOutcome, AuditError> {
    let started = Instant::now();
    let books = Books::default();
    if let Some(open) = open {
        post_open(store, (subject, terms), open, &books)?;
    } else if !options.bank.is_empty() {
        let frozen = store.freeze(TRANSFERS)?;
        let posting = Posting { frozen: &*frozen, subject, terms, books: &books, progress, way: Way::Keep };
        // What is wrong with them was found before.
        posting.post(TRANSFERS, options.threads, &mut Vec::new())?;
    }
    let conclusion = options.conclusion(subject, terms, &books, store);
    conclude(conclusion, base, (options, open), progress, started)
}

/// Posts the rows of open transfers.
fn post_open(
    store: &Store,
    (subject, terms): (&Subject, &Terms),
    open: &OpenPairs,
    books: &Books,
) -> Result<(), StoreError> {
    let mut poster = Poster::new(subject, terms, books);
    let wtids: Vec<Vec<u8>> = open.transfers.iter().map(Column::to_bytes).collect();
    for wtids in wtids.chunks(CHUNK) {
        for table in [WireOut::DEF, Prepared::DEF, Drains::DEF] {
            let found = wtids.iter().zip(store.backend().get_many(table, wtids)?);
            let records = found.filter_map(|(key, found)| {
                let RawRow { row, serial, version } = found?;
                Some(RawRecord { key: key.clone(), row, serial, version })
            });
            poster.post(table, records.collect(), Way::Keep)?;
        }
    }
    // A reserve's first closing has its key as identifier.
    let named = open.closings.iter().map(Column::to_bytes);
    let reserves: Vec<Vec<u8>> =
        wtids.into_iter().chain(named).collect::<BTreeSet<_>>().into_iter().collect();
    for reserves in reserves.chunks(CHUNK) {
        let found = store.backend().lookup_many(Closings::DEF, Closings::BY_RESERVE, reserves)?;
        poster.post(Closings::DEF, found.into_iter().flatten().collect(), Way::Keep)?;
    }
    Ok(())
}

/// Draws the conclusions about the whole.
fn conclude(
    mut conclusion: Conclusion<'_>,
    base: Base,
    (options, open): (&Options, Option<&OpenPairs>),
    progress: &Progress,
    started: Instant,
) -> Result<AuditOutcome, AuditError> {
    (conclusion.tally, conclusion.sums) = (base.totals.tally.clone(), base.totals.sums);
    conclusion.draw_whole()?;
    let Wires { accounts, mut settled, unexplained, unread } = conclusion.wire(&options.bank, open)?;
    settled.confirmations = conclusion.confirmations(&options.confirmations)?;
    let sheet = conclusion.sheet();
    conclusion.check_sheet(&sheet, unexplained);
    let (sums, objects) = (conclusion.tally.sums, conclusion.sums);
    let income = Income {
        aggregation: objects.wire_fees + objects.wire_rounding,
        deposit: objects.deposit_fees,
        melt: objects.melt_fees,
        refund: sums.refund_fees,
        purse: objects.purse_income,
        withdraw: sums.withdraw_fees,
        closing: sums.closing_fees,
        open: sums.account_fees,
        history: sums.history_fees,
    };
    let denoms = denominations(conclusion.terms, &base.totals);
    let (overdue, whole) =
        (std::mem::take(&mut conclusion.overdue), std::mem::take(&mut conclusion.findings));
    let mut findings = base.findings.clone();
    findings.extend(whole);
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    Ok(AuditOutcome {
        findings,
        suppressed: Vec::new(),
        base,
        sheet,
        denoms,
        overdue,
        accounts,
        unread,
        settled,
        purses_open: u64::try_from(objects.purses_open).unwrap_or_default(),
        income,
        rows: progress.rows.load(Ordering::Relaxed),
        signatures: progress.signatures.load(Ordering::Relaxed),
        elapsed: started.elapsed(),
    })
}

/// The sums over the rows of each denomination, by number.
fn denominations(terms: &Terms, totals: &Totals) -> Vec<DenomResult> {
    let mut denoms: Vec<DenomResult> = terms
        .denoms()
        .map(|(serial, denom)| DenomResult { serial, denom: denom.clone(), tally: totals.denom(serial) })
        .collect();
    denoms.sort_by_key(|denom| denom.serial);
    denoms
}

/// The state that the threads share.
struct Posting<'a> {
    frozen: &'a dyn FrozenRows,
    subject: &'a Subject,
    terms: &'a Terms,
    books: &'a Books,
    progress: &'a Progress,
    way: Way,
}

impl Posting<'_> {
    /// Reads tables on this thread and posts their rows on others.
    fn post(
        &self,
        tables: &[&'static TableDef],
        threads: usize,
        findings: &mut Vec<Finding>,
    ) -> Result<(), AuditError> {
        let (sender, receiver) = sync_channel::<Chunk>(QUEUE);
        // Each worker has a share of it, so that the reader does not wait for ever when all of them have ended.
        let receiver = Arc::new(Mutex::new(receiver));
        std::thread::scope(|scope| {
            let work = || {
                let worker = Worker {
                    receiver: Arc::clone(&receiver),
                    subject: self.subject,
                    terms: self.terms,
                    books: self.books,
                    progress: self.progress,
                    way: self.way,
                };
                scope.spawn(move || worker.work())
            };
            let workers: Vec<_> = (0..threads.max(1)).map(|_| work()).collect();
            drop(receiver);
            let read = tables.iter().try_for_each(|table| self.read(table, &sender));
            drop(sender);
            let mut outcome = read;
            for worker in workers {
                match worker.join() {
                    Ok(Ok(found)) => findings.extend(found),
                    Ok(Err(error)) => outcome = Err(error),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            outcome
        })
    }

    fn read(&self, table: &'static TableDef, sender: &SyncSender<Chunk>) -> Result<(), AuditError> {
        let mut records = Vec::with_capacity(CHUNK);
        let mut stopped = false;
        self.frozen.scan(table, &mut |record| {
            records.push(record);
            if records.len() < CHUNK {
                return ControlFlow::Continue(());
            }
            let chunk = Chunk { table, records: std::mem::replace(&mut records, Vec::with_capacity(CHUNK)) };
            stopped |= self.progress.stop.load(Ordering::Relaxed);
            // All threads have ended only after an error, which they report.
            if stopped || sender.send(chunk).is_err() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if stopped {
            return Err(AuditError::Stopped);
        }
        if !records.is_empty() {
            let _ = sender.send(Chunk { table, records });
        }
        Ok(())
    }
}

struct Worker<'a> {
    receiver: Arc<Mutex<Receiver<Chunk>>>,
    subject: &'a Subject,
    terms: &'a Terms,
    books: &'a Books,
    progress: &'a Progress,
    way: Way,
}

impl Worker<'_> {
    fn work(&self) -> Result<Vec<Finding>, AuditError> {
        let mut poster = Poster::new(self.subject, self.terms, self.books);
        loop {
            let next = self.receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
            let Ok(Chunk { table, records }) = next else { return Ok(poster.findings) };
            let (rows, signatures) = (poster.rows, poster.signatures);
            poster.post(table, records, self.way)?;
            self.progress.rows.fetch_add(poster.rows - rows, Ordering::Relaxed);
            self.progress.signatures.fetch_add(poster.signatures - signatures, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaPublicKey;
    use batzen_protocol::Currency;
    use batzen_store::RowVersion;

    use super::*;

    /// A table of which no row can be read.
    struct Damaged;

    impl FrozenRows for Damaged {
        fn scan(
            &self,
            _: &'static TableDef,
            visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
        ) -> Result<(), StoreError> {
            // More than the queue has room for when no thread is left.
            for serial in 0..4 * (CHUNK * QUEUE) as u64 {
                let (key, row, version) = (vec![0; 32], vec![1, 2, 3], RowVersion::default());
                if visit(RawRecord { key, row, serial, version }).is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    #[test]
    fn rows_that_cannot_be_read_end_the_audit() {
        let subject = Subject {
            currency: Currency::new("KUDOS").unwrap(),
            master_pub: EddsaPublicKey::from_bytes([1; 32]),
            base_url: "http://localhost/".to_owned(),
            round_unit: 0,
            auditor: None,
        };
        let (terms, books, progress) = (Terms::default(), Books::default(), Progress::default());
        for threads in [1, 3] {
            let posting = Posting {
                frozen: &Damaged,
                subject: &subject,
                terms: &terms,
                books: &books,
                progress: &progress,
                way: Way::Add,
            };
            let outcome = posting.post(&[Coins::DEF], threads, &mut Vec::new());
            assert!(matches!(outcome, Err(AuditError::Store(StoreError::Decode { .. }))), "{outcome:?}");
        }
    }
}

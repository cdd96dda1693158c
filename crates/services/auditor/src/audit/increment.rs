//! An audit of changes: only objects that changed are looked at.
//!
//! The sums of an exchange are sums over objects (coins, reserves, transfers, purses). When rows change, the objects
//! that they belong to are drawn up twice, before and after the change, and the difference is added to the totals. The
//! rows that did not change are read from the auditor's copy; only changed ones are verified. So an increment costs what
//! the touched objects cost, and its result is that of a whole audit: a test compares them. One kind of finding is
//! only that of a whole audit: what else a forged coin paid for, if that is new, too (the coin itself is found).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use batzen_crypto::{EddsaPublicKey, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Column, RawRecord, RawRow, Record, Result, Store, Table, TableDef};
use batzen_tables::exchange::{
    Aggregates, ArchiveRuns, ArchiveTransfers, CloseRequests, Closings, CoinRow, Coins, CollectedSums,
    DepositRow, Deposits, Drains, HistoryRequests, Melts, Prepared, PurseDeletions, PurseDeposits, PurseKey,
    PurseMerges, Purses, RecoupCredits, RecoupRefreshCredits, RecoupRefreshes, Recoups, Refunds,
    ReserveAccounts, ReserveOpenDeposits, ReserveOpens, Reserves, ReservesIn, Reveals, WireOut, Withdrawals,
};

use crate::audit::books::{Books, Way};
use crate::audit::changes::{Fresh, Name, RowChange, Version};
use crate::audit::conclude::{BroughtForward, Conclusion, Overdue};
use crate::audit::finding::{Finding, RowName, Rule};
use crate::audit::forward::{Forward, ForwardSource};
use crate::audit::history::{Removals, forbidden_changes};
use crate::audit::parts::{Object, Touched, belonging, decode_error, part, split};
use crate::audit::post::Poster;
use crate::audit::scope::Scope;
use crate::audit::sheet::ObjectSums;
use crate::audit::terms::{Subject, Terms};
use crate::audit::totals::Totals;

/// The result of an increment.
#[derive(Debug, Default)]
pub struct Increment {
    /// Findings that are new, or have other figures than before ([`Finding::is_same`]).
    pub found: Vec<Finding>,
    /// Findings that no longer hold.
    pub resolved: Vec<Finding>,
    /// The sums of touched reserves and transfers with long histories, after the changes.
    pub forward: Forward,
    /// The sums of the same before. Those that `forward` does not have are of no use any more.
    pub forward_before: Forward,
    /// Rows posted, those that were only read again included.
    pub rows: u64,
    /// Signatures verified.
    pub(crate) signatures: u64,
}

/// The auditor's copy: the rows that were audited, in tables like the exchange's.
pub struct Auditor<'a> {
    /// The exchange.
    pub subject: &'a Subject,
    /// Its small tables, as they are after the changes.
    pub terms: &'a Terms,
    /// The rows before the changes.
    pub seen: &'a Store,
    /// The reserves of those of these transfers that close one, and do not have the reserve's own key as identifier.
    pub closings: &'a (dyn Fn(&[Wtid]) -> Result<Vec<EddsaPublicKey>> + Sync),
    /// The sums of long histories, as increments and whole audits have left them.
    pub forward: &'a dyn ForwardSource,
    /// Maximum number of rows of a history that is read again:
    /// [`SHORT_HISTORY_ROWS`](crate::audit::forward::SHORT_HISTORY_ROWS).
    pub short_history_rows: i64,
    /// The time.
    pub now: Timestamp,
    /// Number of threads that read, verify and conclude.
    pub threads: usize,
}

/// Facts about all changes that every part needs.
struct Whole<'a> {
    /// The sums before.
    before: &'a Totals,
    /// The same with what removed rows have left.
    later: Totals,
    /// Each changed row as it is after the changes; `None`: it is removed.
    now_there: Fresh<'a>,
    /// Whether an archive begins.
    starts_archive: bool,
    /// Whether a coin changes its terms.
    rewrites_coins: bool,
}

/// The result of a part.
struct Part {
    /// The sums over its objects, before and after.
    before: Totals,
    after: Totals,
    increment: Increment,
}

impl Increment {
    fn add(&mut self, other: Self) {
        let Self { found, resolved, forward, forward_before, rows, signatures } = other;
        self.found.extend(found);
        self.resolved.extend(resolved);
        self.forward.add(forward);
        self.forward_before.add(forward_before);
        self.rows += rows;
        self.signatures += signatures;
    }
}

/// Fewer changes are audited as one part: threads cost more than they save.
const PARALLEL_MIN: usize = 64;

/// Rows by table and key.
type Rows = HashMap<Name, (&'static TableDef, RawRecord)>;

/// Finds rows in which columns were changed that never change.
///
/// # Errors
/// If rows cannot be read.
pub(crate) fn rewritten<'a>(changes: impl IntoIterator<Item = &'a RowChange>) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for change in changes {
        let (Some(old), Some(new)) = (&change.old, &change.new) else { continue };
        let columns = forbidden_changes(change.table, &old.row, &new.row)?;
        if !columns.is_empty() {
            let name = RowName::new(change.table, old.serial, &change.key);
            let detail = format!("changed: {}", columns.join(", "));
            found.push(Finding::new(Rule::RowRewritten, name).because(detail));
        }
    }
    Ok(found)
}

/// A version of a row, as it is read from a store.
fn record(key: &[u8], version: &Version) -> RawRecord {
    RawRecord {
        key: key.to_vec(),
        row: version.row.clone(),
        serial: version.serial,
        version: batzen_store::RowVersion::default(),
    }
}

/// Returns whether a coin has another denomination or age commitment than before, which must not happen.
fn changes_a_coin(change: &RowChange) -> bool {
    if change.table.id != Coins::DEF.id {
        return false;
    }
    let terms = |version: &Option<Version>| {
        let row = version.as_ref().and_then(|version| CoinRow::decode(&version.row).ok());
        row.map(|row| (row.denom, row.h_age))
    };
    change.old.is_some() && terms(&change.old) != terms(&change.new)
}

/// The sums that can be brought forward: of a reserve that is removed, all rows are read, as they say who still names it.
fn without_removed(stored: &Forward, changes: &[&RowChange]) -> Result<Forward> {
    let mut forward = stored.clone();
    for change in changes.iter().filter(|change| change.table.id == Reserves::DEF.id) {
        if change.new.is_none() {
            forward.reserves.remove(&part(change.table, &change.key, 0)?);
        }
    }
    Ok(forward)
}

impl Auditor<'_> {
    /// Audits changes. The caller commits `changes` and `totals` together afterwards.
    ///
    /// # Errors
    /// If rows cannot be read.
    ///
    /// # Panics
    /// If sums exceed 128 bits.
    pub fn apply(&self, changes: &[RowChange], totals: &mut Totals) -> Result<Increment> {
        let mut later = totals.clone();
        for change in changes.iter().filter(|change| change.table.id == CollectedSums::DEF.id) {
            later.collect(change)?;
        }
        let whole = Whole {
            before: totals,
            later,
            now_there: changes
                .iter()
                .map(|change| ((change.table.id, change.key.as_slice()), change.new.as_ref()))
                .collect(),
            starts_archive: changes.iter().any(|change| change.table.id == ArchiveRuns::DEF.id),
            rewrites_coins: changes.iter().any(changes_a_coin),
        };
        let parts = self.parts(changes, whole.rewrites_coins)?;
        let threads = |part: &[&RowChange]| (self.threads * part.len() / changes.len().max(1)).max(1);
        let results: Vec<Result<Part>> = match parts.as_slice() {
            [part] => vec![self.apply_part(part, &whole, self.threads)],
            parts => std::thread::scope(|scope| {
                let work = |part: &'_ Vec<&RowChange>| self.apply_part(part, &whole, threads(part));
                let workers: Vec<_> = parts.iter().map(|part| scope.spawn(move || work(part))).collect();
                let ended = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
                ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
            }),
        };
        let mut increment = Increment::default();
        let mut after = totals.clone();
        for result in results {
            let part = result?;
            after.change(&part.before, &part.after);
            increment.add(part.increment);
        }
        *totals = after;
        Ok(increment)
    }

    /// Splits changes into parts that share no object, for as many threads as there are.
    fn parts<'c>(&self, changes: &'c [RowChange], rewrites_coins: bool) -> Result<Vec<Vec<&'c RowChange>>> {
        // Recoups of a coin whose terms change are found only when the coin is looked at.
        if self.threads <= 1 || changes.len() < PARALLEL_MIN || rewrites_coins {
            return Ok(vec![changes.iter().collect()]);
        }
        let mut objects = Vec::with_capacity(changes.len());
        let mut purses = BTreeSet::new();
        for change in changes {
            let mut touched = Vec::new();
            for version in [&change.old, &change.new].into_iter().flatten() {
                touched.extend(belonging(change.table, &change.key, &version.row)?.objects);
            }
            purses.extend(touched.iter().filter_map(|object| match object {
                Object::Purse(purse_pub) => Some(PurseKey { purse_pub: *purse_pub }),
                _ => None,
            }));
            objects.push(touched);
        }
        let purses: Vec<PurseKey> = purses.into_iter().collect();
        let merges = self.seen.get_many::<PurseMerges>(&purses)?.into_iter();
        let related: Vec<[Object; 2]> = purses
            .iter()
            .zip(merges)
            .filter_map(|(purse, merge)| {
                Some([Object::Purse(purse.purse_pub), Object::Reserve(merge?.row.reserve_pub)])
            })
            .collect();
        let parts = split(&objects, &related, self.threads);
        Ok(parts.into_iter().map(|part| part.into_iter().map(|at| &changes[at]).collect()).collect())
    }

    /// Audits changes that share no object with the others.
    fn apply_part(&self, changes: &[&RowChange], whole: &Whole<'_>, threads: usize) -> Result<Part> {
        let mut increment = Increment::default();
        let mut touched = Touched::default();
        for change in changes {
            for version in [&change.old, &change.new].into_iter().flatten() {
                touched.row(change.table, &change.key, &version.row)?;
            }
        }
        self.judge(changes, whole, &mut increment.found)?;
        self.purse_owners(&mut touched)?;
        if whole.rewrites_coins {
            self.recoups_of_coins(&mut touched)?;
        }
        let stored = self.forward.read(&touched.scope.reserves, &touched.scope.transfers)?;
        let forward = without_removed(&stored, changes)?;
        let mut before = self.gather(&touched, &forward)?;
        // Sums of removed rows belong to no object, so they are not gathered.
        let mut changed = HashSet::new();
        for change in changes {
            let name = (change.table.id, change.key.clone());
            if let Some(version) = change.old.as_ref().filter(|_| !changed.contains(&name)) {
                before.insert(name.clone(), (change.table, record(&change.key, version)));
            }
            changed.insert(name);
        }
        let mut after = before.clone();
        let mut fresh = HashSet::new();
        for change in changes {
            let name = (change.table.id, change.key.clone());
            match &change.new {
                None => {
                    after.remove(&name);
                }
                Some(version) => {
                    after.insert(name.clone(), (change.table, record(&change.key, version)));
                    fresh.insert(name);
                }
            }
        }
        if whole.rewrites_coins {
            // Signatures of rows that did not change cover it.
            fresh.extend(after.keys().cloned());
        }
        let sums = BroughtForward::Sums(forward);
        let scope = &touched.scope;
        let drawn_before = self.draw(scope, (before, sums), None, whole, threads)?;
        let drawn_after = self.draw(scope, (after, drawn_before.rest), Some(&fresh), whole, threads)?;
        let (found_before, found_after) = (drawn_before.findings, drawn_after.findings);
        let is_still = |finding: &&Finding| !found_after.iter().any(|other| other.is_same(finding));
        increment.resolved = found_before.iter().filter(is_still).cloned().collect();
        let is_known = |finding: &Finding| {
            let mut same = found_before.iter().filter(|other| other.is_same(finding));
            same.any(|other| (other.exchange, other.auditor) == (finding.exchange, finding.auditor))
        };
        increment.found.extend(found_after.iter().filter(|finding| !is_known(finding)).cloned());
        (increment.forward, increment.forward_before) = (drawn_after.forward, stored);
        (increment.rows, increment.signatures) = (drawn_after.rows, drawn_after.signatures);
        Ok(Part { before: drawn_before.totals, after: drawn_after.totals, increment })
    }

    /// Checks whether these changes may happen at all, whatever they mean.
    fn judge(&self, changes: &[&RowChange], whole: &Whole<'_>, found: &mut Vec<Finding>) -> Result<()> {
        let is_there = |table: &'static TableDef, key: &[u8]| match whole.now_there.get(&(table.id, key)) {
            Some(now) => Ok(now.is_some()),
            None => {
                let found = self.seen.backend().get_many(table, &[key.to_vec()])?;
                Ok(found.into_iter().flatten().next().is_some())
            }
        };
        let removals = Removals {
            seen: self.seen,
            is_there: &is_there,
            has_archive: whole.starts_archive || self.seen.count::<ArchiveRuns>()? > 0,
            terms: self.terms,
            now: self.now,
        };
        found.extend(rewritten(changes.iter().copied())?);
        for change in changes {
            if let (Some(old), None) = (&change.old, &change.new)
                && !removals.may_be_removed(change.table, (&change.key, &old.row))?
            {
                let name = RowName::new(change.table, old.serial, &change.key);
                found.push(Finding::new(Rule::RowRemoved, name));
            }
        }
        Ok(())
    }

    /// Adds the reserves that touched purses were merged into.
    fn purse_owners(&self, touched: &mut Touched) -> Result<()> {
        let keys: Vec<PurseKey> =
            touched.scope.purses.iter().map(|purse_pub| PurseKey { purse_pub: *purse_pub }).collect();
        for merge in self.seen.get_many::<PurseMerges>(&keys)?.into_iter().flatten() {
            touched.scope.reserves.insert(merge.row.reserve_pub);
        }
        Ok(())
    }

    /// Adds the recoups of touched coins: a coin's denomination must be that of the planchet that it names.
    fn recoups_of_coins(&self, touched: &mut Touched) -> Result<()> {
        let coins: Vec<Vec<u8>> = touched.scope.coins.iter().map(Column::to_bytes).collect();
        let tables = [(Recoups::DEF, Recoups::BY_COIN), (RecoupRefreshes::DEF, RecoupRefreshes::BY_COIN)];
        for (table, index) in tables {
            for record in self.seen.backend().lookup_many(table, index, &coins)?.into_iter().flatten() {
                touched.row(table, &record.key, &record.row)?;
            }
        }
        Ok(())
    }

    /// All rows of the touched objects, as the auditor has them, without those that are brought forward.
    fn gather(&self, touched: &Touched, forward: &Forward) -> Result<Rows> {
        let mut rows = Gathered { seen: self.seen, rows: Rows::new() };
        let scope = &touched.scope;
        let coins: Vec<Vec<u8>> = scope.coins.iter().map(Column::to_bytes).collect();
        rows.get(Coins::DEF, &coins)?;
        rows.lookup(Deposits::DEF, Deposits::BY_COIN, &coins)?;
        rows.lookup(Refunds::DEF, Refunds::BY_COIN, &coins)?;
        rows.lookup(Melts::DEF, Melts::BY_COIN, &coins)?;
        rows.lookup(Reveals::DEF, Reveals::BY_COIN, &coins)?;
        rows.lookup(Recoups::DEF, Recoups::BY_COIN, &coins)?;
        rows.lookup(RecoupRefreshes::DEF, RecoupRefreshes::BY_COIN, &coins)?;
        rows.lookup(RecoupRefreshCredits::DEF, RecoupRefreshCredits::BY_OLD_COIN, &coins)?;
        rows.lookup(PurseDeposits::DEF, PurseDeposits::BY_COIN, &coins)?;
        rows.lookup(ReserveOpenDeposits::DEF, ReserveOpenDeposits::BY_COIN, &coins)?;
        let reserves: Vec<Vec<u8>> = scope.reserves.iter().map(Column::to_bytes).collect();
        rows.get(Reserves::DEF, &reserves)?;
        rows.get(ReserveAccounts::DEF, &reserves)?;
        rows.lookup(ReservesIn::DEF, ReservesIn::BY_RESERVE, &reserves)?;
        rows.lookup(Closings::DEF, Closings::BY_RESERVE, &reserves)?;
        rows.lookup(ReserveOpens::DEF, ReserveOpens::BY_RESERVE, &reserves)?;
        rows.lookup(CloseRequests::DEF, CloseRequests::BY_RESERVE, &reserves)?;
        let short = scope.reserves.iter().filter(|key| !forward.reserves.contains_key(*key));
        let short: Vec<Vec<u8>> = short.map(Column::to_bytes).collect();
        rows.lookup(Withdrawals::DEF, Withdrawals::BY_RESERVE, &short)?;
        rows.lookup(RecoupCredits::DEF, RecoupCredits::BY_RESERVE, &short)?;
        rows.lookup(HistoryRequests::DEF, HistoryRequests::BY_RESERVE, &short)?;
        let merges = rows.lookup(PurseMerges::DEF, PurseMerges::BY_RESERVE, &short)?;
        rows.get(Purses::DEF, &merges)?;
        let purses: Vec<Vec<u8>> = scope.purses.iter().map(Column::to_bytes).collect();
        rows.get(Purses::DEF, &purses)?;
        rows.get(PurseMerges::DEF, &purses)?;
        rows.get(PurseDeletions::DEF, &purses)?;
        rows.lookup(PurseDeposits::DEF, PurseDeposits::BY_PURSE, &purses)?;
        let transfers: Vec<Vec<u8>> = scope.transfers.iter().map(Column::to_bytes).collect();
        rows.get(WireOut::DEF, &transfers)?;
        rows.get(Prepared::DEF, &transfers)?;
        rows.get(Drains::DEF, &transfers)?;
        rows.get(ArchiveTransfers::DEF, &transfers)?;
        let short = scope.transfers.iter().filter(|wtid| !forward.transfers.contains_key(*wtid));
        let short: Vec<Vec<u8>> = short.map(Column::to_bytes).collect();
        let deposits = rows.lookup(Deposits::DEF, Deposits::BY_WTID, &short)?;
        rows.aggregates(&deposits, forward)?;
        // A reserve's first closing has its key as identifier.
        let mut closers = transfers;
        let wtids: Vec<Wtid> = scope.transfers.iter().copied().collect();
        closers.extend((self.closings)(&wtids)?.iter().map(Column::to_bytes));
        rows.lookup(Closings::DEF, Closings::BY_RESERVE, &closers)?;
        for (name, receiver) in &touched.receivers {
            let mut key = name.coin_pub.to_bytes();
            key.extend_from_slice(&Column::to_bytes(&name.n));
            let mut credit = receiver.to_bytes();
            credit.extend_from_slice(&key);
            let (recoup_table, credit_table) = if name.is_refresh {
                (RecoupRefreshes::DEF, RecoupRefreshCredits::DEF)
            } else {
                (Recoups::DEF, RecoupCredits::DEF)
            };
            rows.get(recoup_table, &[key])?;
            rows.get(credit_table, &[credit])?;
            rows.get(Coins::DEF, &[name.coin_pub.to_bytes()])?;
        }
        Ok(rows.rows)
    }

    /// Posts rows to new books and draws the conclusions about the touched objects. `fresh`: which rows are new or changed,
    /// after the changes; `None`: before them.
    fn draw(
        &self,
        scope: &Scope,
        (rows, forward): (Rows, BroughtForward),
        fresh: Option<&HashSet<Name>>,
        whole: &Whole<'_>,
        threads: usize,
    ) -> Result<Drawn> {
        let books = Books::default();
        // Coins first: other rows need their terms.
        let mut groups: HashMap<(bool, u16, bool), (&'static TableDef, Vec<RawRecord>)> = HashMap::new();
        for (name, (table, record)) in rows {
            let is_fresh = fresh.is_some_and(|fresh| fresh.contains(&name));
            let group = (table.id != Coins::DEF.id, table.id, is_fresh);
            groups.entry(group).or_insert_with(|| (table, Vec::new())).1.push(record);
        }
        let (coins, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|((is_other, ..), _)| !is_other);
        let mut posted = Posted::default();
        for groups in [coins, others] {
            posted.add(self.post(&books, groups, threads)?);
        }
        let Posted { findings, rows, signatures } = posted;
        let mut conclusion = Conclusion {
            subject: self.subject,
            terms: self.terms,
            books: &books,
            store: self.seen,
            fresh: fresh.map(|_| &whole.now_there),
            now: self.now,
            internal: true,
            // Seen rows have serials of the copy, and changes those of the exchange.
            in_order: false,
            copied: None,
            scope: Some(scope),
            forward,
            findings,
            overdue: Overdue::default(),
            sums: ObjectSums::default(),
            tally: if fresh.is_some() { &whole.later } else { whole.before }.tally.clone(),
        };
        conclusion.draw()?;
        let short_rows = self.short_history_rows;
        Ok(Drawn {
            totals: Totals { tally: books.tally().clone(), sums: conclusion.sums },
            findings: std::mem::take(&mut conclusion.findings),
            rest: std::mem::take(&mut conclusion.forward),
            forward: if fresh.is_some() {
                Forward::of(&books, Some(scope), short_rows)
            } else {
                Forward::default()
            },
            rows,
            signatures,
        })
    }
}

/// The conclusions about the touched objects at one time.
struct Drawn {
    totals: Totals,
    findings: Vec<Finding>,
    /// The sums brought forward.
    rest: BroughtForward,
    /// The sums to bring forward the next time, if the changes have been posted.
    forward: Forward,
    rows: u64,
    signatures: u64,
}

/// Rows of one table that are posted the same way: whether they are no coins, the table's number, and whether they are new.
type Group = ((bool, u16, bool), (&'static TableDef, Vec<RawRecord>));

/// The results of posting.
#[derive(Default)]
struct Posted {
    findings: Vec<Finding>,
    rows: u64,
    signatures: u64,
}

impl Posted {
    fn add(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.rows += other.rows;
        self.signatures += other.signatures;
    }
}

/// Rows that a thread posts at once: enough to fill the lanes of the signature checks.
const CHUNK: usize = 512;

impl Auditor<'_> {
    /// Posts rows on this many threads, a chunk at a time.
    fn post(&self, books: &Books, groups: Vec<Group>, threads: usize) -> Result<Posted> {
        let mut chunks: Vec<(&'static TableDef, Vec<RawRecord>, Way)> = Vec::new();
        for ((.., is_fresh), (table, mut records)) in groups {
            records.sort_by_key(|record| record.serial);
            let way = if is_fresh { Way::Add } else { Way::Keep };
            while records.len() > CHUNK {
                let rest = records.split_off(CHUNK);
                chunks.push((table, std::mem::replace(&mut records, rest), way));
            }
            chunks.push((table, records, way));
        }
        let threads = threads.clamp(1, chunks.len().max(1));
        let queue = Mutex::new(chunks);
        let work = || {
            let mut poster = Poster::new(self.subject, self.terms, books);
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let Some((table, records, way)) = next else { break };
                poster.post(table, records, way)?;
            }
            let (rows, signatures) = (poster.rows, poster.signatures);
            Ok(Posted { findings: std::mem::take(&mut poster.findings), rows, signatures })
        };
        if threads == 1 {
            return work();
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let mut posted = Posted::default();
            for worker in workers {
                posted.add(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(posted)
        })
    }
}

/// Rows that were read.
struct Gathered<'a> {
    seen: &'a Store,
    rows: Rows,
}

impl Gathered<'_> {
    fn put(&mut self, table: &'static TableDef, record: RawRecord) {
        self.rows.insert((table.id, record.key.clone()), (table, record));
    }

    fn get(&mut self, table: &'static TableDef, keys: &[Vec<u8>]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let found: Vec<Option<RawRow>> = self.seen.backend().get_many(table, keys)?;
        for (key, row) in keys.iter().zip(found) {
            if let Some(RawRow { row, serial, version }) = row {
                self.put(table, RawRecord { key: key.clone(), row, serial, version });
            }
        }
        Ok(())
    }

    /// Returns the keys of what was found.
    fn lookup(&mut self, table: &'static TableDef, index: u8, values: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        if values.is_empty() {
            return Ok(keys);
        }
        for record in self.seen.backend().lookup_many(table, index, values)?.into_iter().flatten() {
            keys.push(record.key.clone());
            self.put(table, record);
        }
        Ok(keys)
    }

    /// The aggregates of the merchants of these deposits, and of those brought forward, which wait to be paid.
    fn aggregates(&mut self, deposits: &[Vec<u8>], forward: &Forward) -> Result<()> {
        let long = forward.transfers.values().map(|sums| Column::to_bytes(&sums.receiver.h_payto));
        let mut targets: BTreeSet<Vec<u8>> = long.collect();
        for key in deposits {
            if let Some((_, record)) = self.rows.get(&(Deposits::DEF.id, key.clone())) {
                let row = DepositRow::decode(&record.row).map_err(decode_error(Deposits::DEF))?;
                targets.insert(Column::to_bytes(&row.h_payto));
            }
        }
        let targets: Vec<Vec<u8>> = targets.into_iter().collect();
        self.lookup(Aggregates::DEF, Aggregates::BY_TARGET, &targets)?;
        Ok(())
    }
}

//! An audit of changes: only objects that changed are looked at.
//!
//! The sums of an exchange are sums over objects (coins, reserves, transfers, purses). When rows change, the objects
//! that they belong to are drawn up twice, before and after the change, and the difference is added to the totals. The
//! rows that did not change are read from the auditor's copy; only changed ones are verified. So an increment costs what
//! the touched objects cost, and its result is that of a whole audit: a test compares them. One kind of finding is
//! only that of a whole audit: what else a forged coin paid for, if that is new, too (the coin itself is found).

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use batzen_crypto::{EddsaPublicKey, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Column, RawRecord, RawRow, Record, Result, Store, StoreError, Table, TableDef};
use batzen_tables::exchange::{
    AggregateRow, Aggregates, ArchiveRuns, ArchiveTransfers, CloseRequests, ClosingRow, Closings, CoinRow,
    Coins, CollectedSums, DepositRow, Deposits, Drains, HistoryRequests, Melts, Prepared, PurseDeletions,
    PurseDeposits, PurseKey, PurseMergeRow, PurseMerges, Purses, RecoupCredits, RecoupRefreshCredits,
    RecoupRefreshRow, RecoupRefreshes, RecoupRow, Recoups, Refunds, ReserveAccounts, ReserveOpenDeposits,
    ReserveOpens, ReserveRequestKey, Reserves, ReservesIn, Reveals, WireOut, Withdrawals, WtidKey,
};

use crate::books::{Books, RecoupName, Way};
use crate::conclude::{BroughtForward, Conclusion, ObjectSums, Overdue, Scope};
use crate::finding::{Finding, RowName, Rule};
use crate::forward::{Forward, ForwardSource};
use crate::history::{Removals, forbidden_changes};
use crate::post::Poster;
use crate::terms::{Subject, Terms};
use crate::totals::Totals;

/// A row at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its bytes.
    pub row: Vec<u8>,
    /// Its number in commit order.
    pub serial: u64,
}

/// A change of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// Its table.
    pub table: &'static TableDef,
    /// Its key.
    pub key: Vec<u8>,
    /// The row before, if it was there.
    pub old: Option<Version>,
    /// The row after, if it is there.
    pub new: Option<Version>,
}

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
    pub signatures: u64,
}

/// One change for each row that several changes, in their order, are about. Rows that end as they were have none.
#[must_use]
pub fn net(changes: Vec<RowChange>) -> Vec<RowChange> {
    let mut places: HashMap<Name, usize> = HashMap::with_capacity(changes.len());
    let mut net: Vec<RowChange> = Vec::with_capacity(changes.len());
    for change in changes {
        match places.entry((change.table.id, change.key.clone())) {
            Entry::Occupied(place) => net[*place.get()].new = change.new,
            Entry::Vacant(place) => {
                place.insert(net.len());
                net.push(change);
            }
        }
    }
    let row = |version: &Option<Version>| version.as_ref().map(|version| version.row.clone());
    net.retain(|change| row(&change.old) != row(&change.new));
    net
}

/// What the auditor has: the rows that were audited, in tables like the exchange's.
pub struct Auditor<'a> {
    /// The exchange.
    pub subject: &'a Subject,
    /// Its small tables, as they are after the changes.
    pub terms: &'a Terms,
    /// The rows before the changes.
    pub seen: &'a Store,
    /// The reserves of those of these transfers that close one, and do not have the reserve's own key as identifier.
    pub closings: &'a dyn Fn(&[Wtid]) -> Result<Vec<EddsaPublicKey>>,
    /// The sums of long histories, as increments and whole audits have left them.
    pub forward: &'a dyn ForwardSource,
    /// How many rows a history has at most that is read again: [`SHORT_HISTORY_ROWS`](crate::forward::SHORT_HISTORY_ROWS).
    pub short_history_rows: i64,
    /// The time.
    pub now: Timestamp,
    /// How many threads verify and post.
    pub threads: usize,
}

/// Names a row.
type Name = (u16, Vec<u8>);

/// Rows by table and key.
type Rows = HashMap<Name, (&'static TableDef, RawRecord)>;

fn decode_error(table: &'static TableDef) -> impl Fn(batzen_store::DecodeError) -> StoreError {
    move |source| StoreError::Decode { table: table.name, source }
}

/// 32 bytes of a key, from `at`.
fn part(table: &'static TableDef, key: &[u8], at: usize) -> Result<EddsaPublicKey> {
    let bytes = key.get(at..at + 32).unwrap_or_default();
    EddsaPublicKey::decode(&mut &*bytes).map_err(decode_error(table))
}

fn recoup_number(table: &'static TableDef, key: &[u8], at: usize) -> Result<u32> {
    u32::decode(&mut key.get(at..).unwrap_or_default()).map_err(decode_error(table))
}

/// What a row belongs to.
#[derive(Default)]
struct Touched {
    scope: Scope,
    /// The reserve or old coin of each recoup.
    receivers: HashMap<RecoupName, EddsaPublicKey>,
}

impl Touched {
    fn recoup(&mut self, name: RecoupName, receiver: EddsaPublicKey) {
        self.scope.recoups.insert(name.clone());
        self.receivers.insert(name, receiver);
    }

    fn row(&mut self, table: &'static TableDef, key: &[u8], row: &[u8]) -> Result<()> {
        let failed = decode_error(table);
        let scope = &mut self.scope;
        match table.id {
            id if [Coins::DEF.id, Refunds::DEF.id, Melts::DEF.id, Reveals::DEF.id].contains(&id) => {
                scope.coins.insert(part(table, key, 0)?);
            }
            id if id == Deposits::DEF.id => {
                scope.coins.insert(part(table, key, 0)?);
                if let Some(wtid) = DepositRow::decode(row).map_err(failed)?.wtid {
                    scope.transfers.insert(wtid);
                }
            }
            id if id == Recoups::DEF.id => {
                let (coin_pub, n) = (part(table, key, 0)?, recoup_number(table, key, 32)?);
                scope.coins.insert(coin_pub);
                let receiver = RecoupRow::decode(row).map_err(failed)?.reserve_pub;
                self.recoup(RecoupName { coin_pub, n, is_refresh: false }, receiver);
            }
            id if id == RecoupRefreshes::DEF.id => {
                let (coin_pub, n) = (part(table, key, 0)?, recoup_number(table, key, 32)?);
                scope.coins.insert(coin_pub);
                let receiver = RecoupRefreshRow::decode(row).map_err(failed)?.old_coin_pub;
                self.recoup(RecoupName { coin_pub, n, is_refresh: true }, receiver);
            }
            id if id == RecoupCredits::DEF.id => {
                let (receiver, coin_pub) = (part(table, key, 0)?, part(table, key, 32)?);
                let n = recoup_number(table, key, 64)?;
                scope.reserves.insert(receiver);
                self.recoup(RecoupName { coin_pub, n, is_refresh: false }, receiver);
            }
            id if id == RecoupRefreshCredits::DEF.id => {
                let (receiver, coin_pub) = (part(table, key, 0)?, part(table, key, 32)?);
                let n = recoup_number(table, key, 64)?;
                scope.coins.insert(receiver);
                self.recoup(RecoupName { coin_pub, n, is_refresh: true }, receiver);
            }
            id if id == ReserveOpenDeposits::DEF.id => {
                scope.coins.insert(part(table, key, 0)?);
                let request = ReserveRequestKey::decode(key.get(32..).unwrap_or_default()).map_err(failed)?;
                scope.opens.insert(request);
            }
            id if id == ReserveOpens::DEF.id => {
                scope.reserves.insert(part(table, key, 0)?);
                scope.opens.insert(ReserveRequestKey::decode(key).map_err(failed)?);
            }
            id if [
                Reserves::DEF.id,
                ReservesIn::DEF.id,
                Withdrawals::DEF.id,
                HistoryRequests::DEF.id,
                ReserveAccounts::DEF.id,
                CloseRequests::DEF.id,
            ]
            .contains(&id) =>
            {
                scope.reserves.insert(part(table, key, 0)?);
            }
            id if id == Closings::DEF.id => {
                scope.reserves.insert(part(table, key, 0)?);
                scope.transfers.insert(ClosingRow::decode(row).map_err(failed)?.wtid);
            }
            id if [Purses::DEF.id, PurseDeletions::DEF.id].contains(&id) => {
                scope.purses.insert(part(table, key, 0)?);
            }
            id if id == PurseDeposits::DEF.id => {
                scope.purses.insert(part(table, key, 0)?);
                scope.coins.insert(part(table, key, 32)?);
            }
            id if id == PurseMerges::DEF.id => {
                scope.purses.insert(part(table, key, 0)?);
                scope.reserves.insert(PurseMergeRow::decode(row).map_err(failed)?.reserve_pub);
            }
            id if id == Aggregates::DEF.id => {
                scope.transfers.insert(AggregateRow::decode(row).map_err(failed)?.wtid);
            }
            id if [WireOut::DEF.id, Prepared::DEF.id, Drains::DEF.id, ArchiveTransfers::DEF.id]
                .contains(&id) =>
            {
                scope.transfers.insert(WtidKey::decode(key).map_err(failed)?.wtid);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Finds rows in which columns were changed that never change.
///
/// # Errors
/// If rows cannot be read.
pub fn rewritten(changes: &[RowChange]) -> Result<Vec<Finding>> {
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

/// Whether a coin has another denomination or age commitment than before, which must not happen.
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
fn without_removed(stored: &Forward, changes: &[RowChange]) -> Result<Forward> {
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
        let mut increment = Increment::default();
        let mut touched = Touched::default();
        for change in changes {
            for version in [&change.old, &change.new].into_iter().flatten() {
                touched.row(change.table, &change.key, &version.row)?;
            }
        }
        self.judge(changes, &mut increment.found)?;
        self.purse_owners(&mut touched)?;
        let rewrites_coins = changes.iter().any(changes_a_coin);
        if rewrites_coins {
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
        if rewrites_coins {
            // Signatures of rows that did not change cover it.
            fresh.extend(after.keys().cloned());
        }
        let sums = BroughtForward::Sums(forward);
        let drawn_before = self.draw(&touched.scope, (before, sums), &HashSet::new(), totals, changes)?;
        let mut later = totals.clone();
        for change in changes.iter().filter(|change| change.table.id == CollectedSums::DEF.id) {
            later.collect(change)?;
        }
        let drawn_after = self.draw(&touched.scope, (after, drawn_before.rest), &fresh, &later, changes)?;
        totals.change(&drawn_before.totals, &drawn_after.totals);
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
        Ok(increment)
    }

    /// Whether these changes may happen at all, whatever they mean.
    fn judge(&self, changes: &[RowChange], found: &mut Vec<Finding>) -> Result<()> {
        let now_there: HashMap<(u16, &[u8]), bool> = changes
            .iter()
            .map(|change| ((change.table.id, change.key.as_slice()), change.new.is_some()))
            .collect();
        let is_there = |table: &'static TableDef, key: &[u8]| match now_there.get(&(table.id, key)) {
            Some(is_there) => Ok(*is_there),
            None => {
                let found = self.seen.backend().get_many(table, &[key.to_vec()])?;
                Ok(found.into_iter().flatten().next().is_some())
            }
        };
        let starts_archive = changes.iter().any(|change| change.table.id == ArchiveRuns::DEF.id);
        let removals = Removals {
            seen: self.seen,
            is_there: &is_there,
            has_archive: starts_archive || self.seen.count::<ArchiveRuns>()? > 0,
            terms: self.terms,
            now: self.now,
        };
        found.extend(rewritten(changes)?);
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

    /// Posts rows to new books and draws the conclusions about the touched objects.
    fn draw(
        &self,
        scope: &Scope,
        (rows, forward): (Rows, BroughtForward),
        fresh: &HashSet<Name>,
        totals: &Totals,
        changes: &[RowChange],
    ) -> Result<Drawn> {
        let books = Books::default();
        // Coins first: other rows need their terms.
        let mut groups: HashMap<(bool, u16, bool), (&'static TableDef, Vec<RawRecord>)> = HashMap::new();
        for (name, (table, record)) in rows {
            let group = (table.id != Coins::DEF.id, table.id, fresh.contains(&name));
            groups.entry(group).or_insert_with(|| (table, Vec::new())).1.push(record);
        }
        let (coins, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|((is_other, ..), _)| !is_other);
        let mut posted = Posted::default();
        for groups in [coins, others] {
            posted.add(self.post(&books, groups)?);
        }
        let Posted { findings, rows, signatures } = posted;
        let mut fresh_rows = HashMap::new();
        if !fresh.is_empty() {
            for change in changes {
                let row = change.new.as_ref().map(|version| version.row.clone());
                fresh_rows.insert((change.table.id, change.key.clone()), row);
            }
        }
        let mut conclusion = Conclusion {
            subject: self.subject,
            terms: self.terms,
            books: &books,
            store: self.seen,
            fresh: fresh_rows,
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
            tally: totals.tally.clone(),
        };
        let is_after = matches!(conclusion.forward, BroughtForward::Rest(_));
        conclusion.draw()?;
        let short_rows = self.short_history_rows;
        Ok(Drawn {
            totals: Totals { tally: books.tally().clone(), sums: conclusion.sums },
            findings: std::mem::take(&mut conclusion.findings),
            rest: std::mem::take(&mut conclusion.forward),
            forward: if is_after { Forward::of(&books, Some(scope), short_rows) } else { Forward::default() },
            rows,
            signatures,
        })
    }
}

/// The conclusions about the touched objects at one time.
struct Drawn {
    totals: Totals,
    findings: Vec<Finding>,
    /// What was brought forward.
    rest: BroughtForward,
    /// What is to be brought forward the next time, if the changes have been posted.
    forward: Forward,
    rows: u64,
    signatures: u64,
}

/// Rows of one table that are posted the same way: whether they are no coins, the table's number, and whether they are new.
type Group = ((bool, u16, bool), (&'static TableDef, Vec<RawRecord>));

/// What posting has found.
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
    /// Posts rows on as many threads as there are, a chunk at a time.
    fn post(&self, books: &Books, groups: Vec<Group>) -> Result<Posted> {
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
        let threads = self.threads.clamp(1, chunks.len().max(1));
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

//! The running audit: results of all checks, brought up to date with each batch of changes and stored in its commit.
//!
//! | module | content |
//! |---|---|
//! | `config` | how an exchange is followed |
//! | `findings` | findings with their stories |
//! | `forward` | the sums of long histories |
//! | `outside` | what bank and merchants say, a step at a time |
//! | `hours` | what was issued, redeemed and owed over time |
//! | `follow` | follows an exchange, and checks what it ships |
//! | `reach` | how new the copy is |
//! | `replica` | follows an exchange's database |

mod config;
mod findings;
mod follow;
mod forward;
mod hours;
mod outside;
mod reach;
mod replica;

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::audit::forward::{Forward, SHORT_HISTORY_ROWS};
use crate::audit::{
    AuditError, AuditOutcome, Auditor, Base, Finding, Options, Progress, RowChange, RowName, Rule, Severity,
    Subject, Terms, Totals, audit, net, read_terms, resume,
};
use batzen_protocol::Timestamp;
use batzen_store::{Change, ChangeSet, CommitOutcome, List, Record, Store, StoreError, Table, TableDef};
use batzen_tables::auditor::copy::{FeedFindings, FeedPositionKey, FeedPositions};
use batzen_tables::auditor::results::{
    AuditClosingKey, AuditClosingRow, AuditClosings, AuditDenomKey, AuditDenomRow, AuditDenoms,
    AuditStateKey, AuditStateRow, AuditStates,
};
use batzen_tables::exchange::{ClosingKey, ClosingRow, Closings, DenomSerial};

pub(crate) use config::BREATH;
pub(crate) use config::SourceError;
pub use config::{FollowConfig, SourceConfig, copy_store};
use findings::Changes;
pub use findings::{NoteError, TrackedFinding, all as findings, note};
pub use follow::{Followed, Following, FollowingError, SourceOptions, Status};
pub(crate) use hours::Hour;
pub use hours::hours;
pub use outside::{Outside, Since};
pub(crate) use reach::complete;

/// Rows that are removed in one commit.
pub(crate) const REMOVED_AT_ONCE: usize = 1_024;
/// Number of rows in each commit that writes the results of a check of all rows.
const ROWS_AT_ONCE: usize = 4_096;

/// A position of the copy: the stream's next frame, and how many snapshots there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyPosition {
    /// The number of the exchange's next frame.
    pub next: u64,
    /// Number of snapshots that the copy has taken.
    pub snapshots: u32,
}

impl CopyPosition {
    /// Where a copy is; `None` in the middle of a snapshot.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) fn of(store: &Store) -> Result<Option<Self>, StoreError> {
        let row = store.get::<FeedPositions>(&FeedPositionKey { id: 0 })?.map(|found| found.row);
        Ok(match row {
            None => Some(Self::default()),
            Some(row) => row.is_whole.then_some(Self { next: row.next, snapshots: row.snapshots }),
        })
    }
}

/// The results of all checks up to a position of the copy.
pub struct Live {
    subject: Subject,
    store: Store,
    threads: usize,
    terms: Terms,
    totals: Totals,
    /// As it is stored; `None` before the first change.
    state: Option<AuditStateRow>,
    /// Whether changes have led to other findings since they were last compared.
    has_new_findings: bool,
}

fn tally_row(tally: &crate::audit::books::DenomTally) -> AuditDenomRow {
    AuditDenomRow {
        withdrawn: tally.withdrawn,
        refreshed: tally.refreshed,
        known: tally.known,
        archived: tally.archived,
        deposit_fees: tally.deposit_fees.cast_unsigned(),
        recouped: tally.recouped.cast_unsigned(),
        redeemed: tally.redeemed.cast_unsigned(),
    }
}

fn row_tally(row: &AuditDenomRow) -> crate::audit::books::DenomTally {
    crate::audit::books::DenomTally {
        withdrawn: row.withdrawn,
        refreshed: row.refreshed,
        known: row.known,
        archived: row.archived,
        deposit_fees: row.deposit_fees.cast_signed(),
        recouped: row.recouped.cast_signed(),
        redeemed: row.redeemed.cast_signed(),
    }
}

fn committed(outcome: CommitOutcome) -> Result<(), StoreError> {
    match outcome {
        CommitOutcome::Committed => Ok(()),
        CommitOutcome::Conflict(_) => {
            Err(StoreError::Backend("another process writes to the auditor's store".to_owned()))
        }
    }
}

/// Refuses a copy that has nothing yet, about which there is nothing to say.
///
/// # Errors
/// [`StoreError::Backend`] if nothing was received yet.
pub fn require_rows(store: &Store) -> Result<(), StoreError> {
    match store.get::<FeedPositions>(&FeedPositionKey { id: 0 })? {
        Some(_) => Ok(()),
        None => Err(StoreError::Backend(
            "the copy is empty: `batzen auditor sync` or `serve` follows the exchange".to_owned(),
        )),
    }
}

/// Findings from following the exchange: it has changed what it had shipped.
fn forks(store: &Store) -> Result<Vec<Finding>, AuditError> {
    let found = store.all::<FeedFindings>()?.into_iter().map(|found| {
        let name = RowName::new(FeedFindings::DEF, found.serial, &found.key.to_bytes());
        Finding::new(Rule::HistoryForked, name).about(found.row.head.as_bytes()).because(found.row.text)
    });
    Ok(found.collect())
}

/// Removes every row of these tables.
///
/// # Errors
/// If the store fails; some rows may be removed then.
pub fn clear(store: &Store, tables: &[&'static TableDef]) -> Result<u64, StoreError> {
    let mut removed = 0;
    for &table in tables {
        let mut rows = Vec::new();
        store.backend().scan(table, &mut |record| {
            rows.push(record);
            std::ops::ControlFlow::Continue(())
        })?;
        removed += rows.len() as u64;
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let mut changes = ChangeSet::new();
            for record in rows.by_ref().take(REMOVED_AT_ONCE) {
                let (key, old_row, version) = (record.key, record.row, Some(record.version));
                changes.push(Change::Delete { table, key, old_row, version });
            }
            if let CommitOutcome::Conflict(rows) = store.commit(&changes)? {
                let (table, key) = rows.into_iter().next().expect("a conflict names the rows");
                return Err(StoreError::Stale { table: table.name, key });
            }
        }
    }
    Ok(removed)
}

/// The state of a store, if this program can go on from it.
fn state_of(store: &Store) -> Result<Option<AuditStateRow>, StoreError> {
    Ok(store.get::<AuditStates>(&AuditStateKey::ONLY)?.map(|found| found.row))
}

/// When all rows of a copy were last checked at once; `None` before its first rows.
///
/// # Errors
/// If the store cannot be read.
pub(crate) fn checked_all(store: &Store) -> Result<Option<Timestamp>, StoreError> {
    Ok(state_of(store)?.map(|row| row.whole))
}

/// From here on, a check of all rows that ends midway is begun again: what it writes in several commits is not gone on from.
fn forget_state(store: &Store, state: Option<&AuditStateRow>) -> Result<(), StoreError> {
    let Some(row) = state else { return Ok(()) };
    let mut set = ChangeSet::new();
    set.delete::<AuditStates>(&AuditStateKey::ONLY, row);
    committed(store.commit(&set)?)
}

impl Live {
    /// Goes on from the stored results, if they are about the copy as it is. Otherwise all rows must be checked:
    /// [`Live::check_all`].
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn open(store: &Store, subject: &Subject, threads: usize) -> Result<Option<Self>, StoreError> {
        let Some(position) = CopyPosition::of(store)? else { return Ok(None) };
        let state = state_of(store)?;
        let totals = match &state {
            // Before the first change nothing has to be checked.
            None if position == CopyPosition::default() => Totals::default(),
            Some(row)
                if row.form == Totals::FORM
                    && position == (CopyPosition { next: row.next, snapshots: row.snapshots }) =>
            {
                let sums: Vec<i128> = row.sums.0.iter().map(|sum| sum.cast_signed()).collect();
                let denoms = store.all::<AuditDenoms>()?;
                let denoms = denoms.into_iter().map(|found| (found.key.denom, row_tally(&found.row)));
                match Totals::from_figures(&sums, denoms) {
                    Some(totals) => totals,
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        let terms = read_terms(&*store.freeze(crate::audit::terms::TERMS)?, subject)?;
        Ok(Some(Self {
            subject: subject.clone(),
            store: store.clone(),
            threads,
            terms,
            totals,
            state,
            has_new_findings: true,
        }))
    }

    /// Checks all rows of the copy, which must not change meanwhile, and stores the results.
    ///
    /// # Errors
    /// If the store fails, the copy is not whole, or `progress` says to stop.
    pub fn check_all(
        store: &Store,
        subject: &Subject,
        threads: usize,
        now: Timestamp,
        progress: &Progress,
    ) -> Result<Self, AuditError> {
        let position = CopyPosition::of(store)?.ok_or_else(|| {
            StoreError::Backend("the copy is not whole: a snapshot is being loaded".to_owned())
        })?;
        let options = Options {
            now,
            internal: true,
            in_order: false,
            threads,
            bank: Vec::new(),
            confirmations: Vec::new(),
            copied: None,
        };
        let outcome = audit(store, subject, &options, progress)?;
        let terms = read_terms(&*store.freeze(crate::audit::terms::TERMS)?, subject)?;
        let old = state_of(store)?;
        forget_state(store, old.as_ref())?;
        note_all_closings(store)?;
        let denoms = store.all::<AuditDenoms>()?;
        let denoms = denoms.into_iter().map(|found| (found.key.denom, row_tally(&found.row)));
        let mut live = Self {
            subject: subject.clone(),
            store: store.clone(),
            threads,
            terms,
            // What the store has: only what differs is written.
            totals: Totals::from_figures(&Totals::default().figures(), denoms).expect("figures of this form"),
            state: None,
            has_new_findings: true,
        };
        let mut set = ChangeSet::new();
        let Base { totals, findings, forward } = outcome.base;
        forward::replace(store, &forward)?;
        outside::reset(store)?;
        live.write_denoms(&totals, &mut set)?;
        let mut changes = Changes::default();
        for (key, row, finding) in findings::holding(store)? {
            if !row.is_whole && !findings::is_event(finding.rule) {
                changes.gone_key(key);
            }
        }
        findings.into_iter().for_each(|finding| changes.found(finding, false));
        changes.write(store, now, &mut set)?;
        live.totals = totals;
        let row = AuditStateRow {
            rows: outcome.rows,
            signatures: outcome.signatures,
            whole: now,
            compared: old.map_or(Timestamp::ZERO, |row| row.compared),
            ..live.state_row(position, now)
        };
        live.write_state(row, &mut set);
        hours::write(store, &live.subject, (&live.terms, &live.totals), (now, None), &mut set)?;
        committed(store.commit(&set)?)?;
        Ok(live)
    }

    /// Returns whether changes have led to findings since the last comparison.
    pub(crate) fn has_new_findings(&self) -> bool {
        self.has_new_findings
    }

    /// Returns its progress; `None` before the first change.
    #[must_use]
    pub fn state(&self) -> Option<&AuditStateRow> {
        self.state.as_ref()
    }

    fn state_row(&self, position: CopyPosition, now: Timestamp) -> AuditStateRow {
        let old = self.state.as_ref();
        AuditStateRow {
            form: Totals::FORM,
            next: position.next,
            snapshots: position.snapshots,
            sums: List(self.totals.figures().into_iter().map(i128::cast_unsigned).collect()),
            rows: old.map_or(0, |row| row.rows),
            signatures: old.map_or(0, |row| row.signatures),
            whole: old.map_or(now, |row| row.whole),
            updated: now,
            compared: old.map_or(Timestamp::ZERO, |row| row.compared),
        }
    }

    fn write_state(&mut self, row: AuditStateRow, set: &mut ChangeSet) {
        match &self.state {
            None => set.insert::<AuditStates>(&AuditStateKey::ONLY, &row),
            Some(old) => set.update::<AuditStates>(&AuditStateKey::ONLY, old, &row),
        }
        self.state = Some(row);
    }

    /// Stores the denominations whose sums differ from those that the store has.
    fn write_denoms(&self, totals: &Totals, set: &mut ChangeSet) -> Result<(), StoreError> {
        let all: BTreeSet<_> = totals.denoms().chain(self.totals.denoms()).map(|(denom, _)| denom).collect();
        let changed: Vec<_> = all
            .into_iter()
            .filter(|denom| totals.denom(*denom) != self.totals.denom(*denom))
            .map(|denom| AuditDenomKey { denom })
            .collect();
        for (key, old) in changed.iter().zip(self.store.get_many::<AuditDenoms>(&changed)?) {
            let row = tally_row(&totals.denom(key.denom));
            match old.map(|old| old.row) {
                None => set.insert::<AuditDenoms>(key, &row),
                Some(old) if old == row => {}
                Some(old) => set.update::<AuditDenoms>(key, &old, &row),
            }
        }
        Ok(())
    }

    /// Checks changes of the copy, which leads it to `position`. What it returns is committed together with the changes.
    /// If that fails, this must be opened again.
    ///
    /// # Errors
    /// If the store cannot be read.
    ///
    /// # Panics
    /// If sums exceed 128 bits.
    pub fn apply(
        &mut self,
        changes: Vec<RowChange>,
        position: CopyPosition,
        now: Timestamp,
    ) -> Result<ChangeSet, StoreError> {
        let changes = net(changes);
        let mut set = ChangeSet::new();
        let mut noted = Changes::default();
        let known = self.terms.findings().to_vec();
        self.terms.follow(&self.subject, &self.store, &changes)?;
        if self.terms.findings() != known {
            known.iter().for_each(|finding| noted.gone(finding));
            self.terms.findings().iter().for_each(|finding| noted.found(finding.clone(), false));
        }
        let fresh_closings = self.write_closings(&changes, &mut set)?;
        let store = &self.store;
        let auditor = Auditor {
            subject: &self.subject,
            terms: &self.terms,
            seen: store,
            closings: &|wtids| {
                let keys: Vec<_> = wtids.iter().map(|wtid| AuditClosingKey { wtid: *wtid }).collect();
                let known = store.get_many::<AuditClosings>(&keys)?.into_iter().flatten();
                let fresh = wtids.iter().filter_map(|wtid| fresh_closings.get(wtid).copied());
                Ok(known.map(|found| found.row.reserve_pub).chain(fresh).collect())
            },
            forward: &forward::Stored(store),
            short_history_rows: SHORT_HISTORY_ROWS,
            now,
            threads: self.threads,
        };
        let mut totals = self.totals.clone();
        let increment = auditor.apply(&changes, &mut totals)?;
        forward::write(&increment, &mut set);
        outside::note(store, &changes, &increment.found, &mut set)?;
        self.has_new_findings |=
            increment.found.iter().any(|finding| finding.severity() == Severity::Finding);
        increment.found.into_iter().for_each(|finding| noted.found(finding, false));
        increment.resolved.iter().for_each(|finding| noted.gone(finding));
        noted.write(store, now, &mut set)?;
        self.write_denoms(&totals, &mut set)?;
        self.totals = totals;
        let mut row = self.state_row(position, now);
        row.rows += increment.rows;
        row.signatures += increment.signatures;
        self.write_state(row, &mut set);
        hours::write(&self.store, &self.subject, (&self.terms, &self.totals), (now, None), &mut set)?;
        Ok(set)
    }

    /// Notes the reserves of new closings, and returns them.
    fn write_closings(
        &self,
        changes: &[RowChange],
        set: &mut ChangeSet,
    ) -> Result<HashMap<batzen_crypto::Wtid, batzen_crypto::EddsaPublicKey>, StoreError> {
        let mut fresh = HashMap::new();
        for change in changes.iter().filter(|change| change.table.id == Closings::DEF.id) {
            let Some(new) = &change.new else { continue };
            let failed = |source| StoreError::Decode { table: Closings::DEF.name, source };
            let row = ClosingRow::decode(&new.row).map_err(failed)?;
            let key = ClosingKey::decode(&change.key).map_err(failed)?;
            if row.wtid.as_bytes() != key.reserve_pub.as_bytes() {
                fresh.insert(row.wtid, key.reserve_pub);
            }
        }
        let keys: Vec<_> = fresh.keys().map(|wtid| AuditClosingKey { wtid: *wtid }).collect();
        for (key, old) in keys.iter().zip(self.store.get_many::<AuditClosings>(&keys)?) {
            let row = AuditClosingRow { reserve_pub: fresh[&key.wtid] };
            match old.map(|old| old.row) {
                None => set.insert::<AuditClosings>(key, &row),
                Some(old) if old == row => {}
                Some(old) => set.update::<AuditClosings>(key, &old, &row),
            }
        }
        Ok(fresh)
    }

    /// The positions to which bank and merchants have been read.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn since(&self) -> Result<Since, StoreError> {
        Since::of(&self.store)
    }

    /// Draws the conclusions about the whole, compares with bank and merchants, and stores what was found. `options` has
    /// what they said that came after [`Live::since`]; earlier rows do no harm. `asked` says which of the two were asked.
    ///
    /// # Errors
    /// If the store fails.
    pub fn compare(
        &mut self,
        options: &Options,
        asked: Asked,
        progress: &Progress,
    ) -> Result<AuditOutcome, AuditError> {
        let now = options.now;
        let holding = findings::holding(&self.store)?;
        let base = Base {
            totals: self.totals.clone(),
            findings: holding
                .iter()
                .filter(|(_, row, _)| !row.is_whole)
                .map(|(.., finding)| finding.clone())
                .collect(),
            forward: Forward::default(),
        };
        outside::keep_bank(&self.store, &options.bank)?;
        outside::keep_confirmations(&self.store, &options.confirmations)?;
        let mut options = options.clone();
        let mut open = None;
        if asked.bank {
            let (pairs, accounts) = outside::open_pairs(&self.store, &options.bank)?;
            (open, options.bank) = (Some(pairs), accounts);
        }
        if asked.merchants {
            options.confirmations = outside::open_confirmations(&self.store)?;
        }
        let place = (&self.subject, &self.terms);
        let mut outcome = resume(&self.store, place, base, (&options, open.as_ref()), progress)?;
        outcome.findings.extend(forks(&self.store)?);
        let known: HashSet<_> = outcome.base.findings.iter().map(findings::key_of).collect();
        let mut noted = Changes::default();
        let mut unasked = Vec::new();
        for (key, row, finding) in holding {
            if !row.is_whole || findings::is_event(finding.rule) {
                continue;
            }
            if asked.covers(finding.rule) {
                noted.gone_key(key);
            } else {
                unasked.push(finding);
            }
        }
        for finding in &outcome.findings {
            if !known.contains(&findings::key_of(finding)) {
                noted.found(finding.clone(), true);
            }
        }
        // What bank and merchants have said before still holds.
        outcome.findings.extend(unasked);
        let mut set = ChangeSet::new();
        noted.write(&self.store, now, &mut set)?;
        let position = self.state.as_ref().map_or_else(CopyPosition::default, |row| CopyPosition {
            next: row.next,
            snapshots: row.snapshots,
        });
        let mut row = self.state_row(position, now);
        if let Some(old) = &self.state {
            row.updated = old.updated;
        }
        row.compared = now;
        self.write_state(row, &mut set);
        let bank = asked
            .bank
            .then(|| outcome.accounts.iter().map(|account| account.bank_in - account.bank_out).sum::<i128>());
        hours::write(&self.store, &self.subject, (&self.terms, &self.totals), (now, bank), &mut set)?;
        committed(self.store.commit(&set)?)?;
        outside::settle(&self.store, &outcome.settled)?;
        self.has_new_findings = false;
        let put_aside: HashSet<_> = findings::holding(&self.store)?
            .into_iter()
            .filter(|(_, row, _)| row.suppressed.is_some())
            .map(|(key, ..)| key)
            .collect();
        let is_put_aside = |finding: &mut Finding| put_aside.contains(&findings::key_of(finding));
        outcome.suppressed = outcome.findings.extract_if(.., is_put_aside).collect();
        if let Some(state) = &self.state {
            (outcome.rows, outcome.signatures) = (state.rows, state.signatures);
        }
        Ok(outcome)
    }

    /// The results as they are, without asking bank or merchants again.
    ///
    /// # Errors
    /// If the store fails.
    pub fn report(&mut self, now: Timestamp) -> Result<AuditOutcome, AuditError> {
        let options = Options {
            now,
            internal: true,
            in_order: false,
            threads: self.threads,
            bank: Vec::new(),
            confirmations: Vec::new(),
            copied: Some(complete(&self.store)?),
        };
        self.compare(&options, Asked::default(), &Progress::default())
    }

    /// The sums of all rows.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

/// Whom a comparison asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// The bank.
    pub bank: bool,
    /// Merchants.
    pub merchants: bool,
}

impl Asked {
    /// Returns whether what this rule finds would have been found again.
    fn covers(self, rule: Rule) -> bool {
        match rule.info().check {
            crate::audit::Check::Wire => self.bank,
            crate::audit::Check::Deposits => self.merchants,
            _ => true,
        }
    }
}

/// Notes the reserves of all closings of the copy.
fn note_all_closings(store: &Store) -> Result<(), StoreError> {
    let mut rows: Vec<(AuditClosingKey, AuditClosingRow)> = Vec::new();
    store.scan::<Closings>(|found| {
        if found.row.wtid.as_bytes() != found.key.reserve_pub.as_bytes() {
            rows.push((
                AuditClosingKey { wtid: found.row.wtid },
                AuditClosingRow { reserve_pub: found.key.reserve_pub },
            ));
        }
        std::ops::ControlFlow::Continue(())
    })?;
    for page in rows.chunks(ROWS_AT_ONCE) {
        let keys: Vec<_> = page.iter().map(|(key, _)| key.clone()).collect();
        let mut set = ChangeSet::new();
        for ((key, row), old) in page.iter().zip(store.get_many::<AuditClosings>(&keys)?) {
            match old.map(|old| old.row) {
                None => set.insert::<AuditClosings>(key, row),
                Some(old) if old == *row => {}
                Some(old) => set.update::<AuditClosings>(key, &old, row),
            }
        }
        if !set.is_empty() {
            committed(store.commit(&set)?)?;
        }
    }
    Ok(())
}

/// The number of [`hours`](batzen_tables::auditor::results::AuditHours) that stands for all denominations.
pub(crate) const ALL_DENOMS: DenomSerial = DenomSerial(0);

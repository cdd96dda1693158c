//! Findings as the auditor's store keeps them. One that no longer holds is marked as resolved, and one that a person has
//! suppressed stays visible: nothing disappears. Only notices, which are no faults, are forgotten once they are over.

use std::collections::{HashMap, HashSet};

use crate::audit::{Finding, RowName, Rule, Severity};
use batzen_crypto::ShortHash;
use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Found, Result, Store, StoreError};
use batzen_tables::auditor::copy;
use batzen_tables::auditor::results::{
    AuditFindingKey, AuditFindingRow, AuditFindings, AuditNoteKey, AuditNoteRow, AuditNotes,
};

/// Why a suppressed finding is open again.
const OTHER_FIGURES: &str = "found again with other figures";

/// A finding with its story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedFinding {
    /// Its number, with which a person names it.
    pub id: ShortHash,
    /// The findings.
    pub finding: Finding,
    /// Its row.
    pub row: AuditFindingRow,
    /// Decisions of people about it, the oldest first.
    pub notes: Vec<AuditNoteRow>,
}

impl TrackedFinding {
    /// Returns whether it holds, and nobody has put it aside.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.row.resolved.is_none() && self.row.suppressed.is_none()
    }
}

/// The key under which a finding is kept.
pub(super) fn key_of(finding: &Finding) -> AuditFindingKey {
    AuditFindingKey::of(finding.rule.info().name, finding.row.table, &finding.row.key, &finding.subject)
}

fn row_of(finding: &Finding, is_whole: bool, now: Timestamp) -> AuditFindingRow {
    AuditFindingRow {
        rule: finding.rule.info().name.to_owned(),
        table: finding.row.table.to_owned(),
        serial: finding.row.serial,
        key: finding.row.key.clone(),
        subject: finding.subject.clone(),
        exchange: finding.exchange.cast_unsigned(),
        auditor: finding.auditor.cast_unsigned(),
        at_risk: finding.at_risk,
        detail: finding.detail.clone(),
        is_whole,
        found: now,
        confirmed: now,
        resolved: None,
        suppressed: None,
        notes: 0,
    }
}

/// The finding of a row; `None` if an older program had a rule or table that this one does not have.
fn finding_of(row: &AuditFindingRow) -> Option<Finding> {
    let table = match row.table.as_str() {
        "" => "",
        name => copy::ALL.iter().find(|table| table.name == name)?.name,
    };
    Some(Finding {
        rule: Rule::named(&row.rule)?,
        row: RowName { table, serial: row.serial, key: row.key.clone() },
        subject: row.subject.clone(),
        exchange: row.exchange.cast_signed(),
        auditor: row.auditor.cast_signed(),
        at_risk: row.at_risk,
        detail: row.detail.clone(),
    })
}

/// Returns whether a finding says that something happened, rather than that something is so. It stays until it is
/// suppressed.
pub(super) fn is_event(rule: Rule) -> bool {
    matches!(rule, Rule::RowRewritten | Rule::RowRemoved | Rule::HistoryForked)
}

/// Number of rows that are read at once.
const PAGE: usize = 4_096;

/// All findings that hold, or all that no longer do; suppressed ones included. At most `limit`, the newest first if
/// there are more.
fn stored(store: &Store, is_resolved: bool, limit: usize) -> Result<Vec<Found<AuditFindings>>> {
    // In a database, an index in the order of serials leaves out what is newer than the oldest transaction that still runs
    // there, whoever's it is.
    if store.backend().is_remote() {
        let mut found = store.all::<AuditFindings>()?;
        found.retain(|found| found.row.resolved.is_some() == is_resolved);
        found.reverse();
        found.truncate(limit);
        return Ok(found);
    }
    let from = AuditFindings::state(is_resolved);
    let bounds = (std::ops::Bound::Included(from.clone()), std::ops::Bound::Included(from));
    store.range_bytes::<AuditFindings>(AuditFindings::BY_STATE, bounds.0, bounds.1, limit, true)
}

/// The findings that hold, suppressed ones included.
pub(super) fn holding(store: &Store) -> Result<Vec<(AuditFindingKey, AuditFindingRow, Finding)>> {
    let found = stored(store, false, usize::MAX >> 1)?;
    Ok(found
        .into_iter()
        .filter_map(|found| finding_of(&found.row).map(|finding| (found.key, found.row, finding)))
        .collect())
}

/// The findings with their stories: all that hold, and the last that no longer do.
///
/// # Errors
/// If the store cannot be read.
pub fn all(store: &Store) -> Result<Vec<TrackedFinding>> {
    let mut found = stored(store, false, usize::MAX >> 1)?;
    found.extend(stored(store, true, PAGE)?);
    let ids: Vec<ShortHash> = found.iter().map(|found| found.key.id).collect();
    let notes = store.lookup_many::<AuditNotes>(AuditNotes::BY_FINDING, &ids)?;
    let kept = found.into_iter().zip(notes).filter_map(|(found, notes)| {
        let finding = finding_of(&found.row)?;
        let mut notes: Vec<_> = notes.into_iter().map(|note| (note.key.n, note.row)).collect();
        notes.sort_by_key(|(n, _)| *n);
        let notes = notes.into_iter().map(|(_, note)| note).collect();
        Some(TrackedFinding { id: found.key.id, finding, row: found.row, notes })
    });
    Ok(kept.collect())
}

/// Changes of findings that are committed together.
#[derive(Default)]
pub(super) struct Changes {
    found: HashMap<AuditFindingKey, (Finding, bool)>,
    gone: HashSet<AuditFindingKey>,
}

impl Changes {
    /// It holds.
    pub(super) fn found(&mut self, finding: Finding, is_whole: bool) {
        let key = key_of(&finding);
        self.gone.remove(&key);
        self.found.insert(key, (finding, is_whole));
    }

    /// It no longer holds, unless it was found at the same time.
    pub(super) fn gone(&mut self, finding: &Finding) {
        self.gone_key(key_of(finding));
    }

    /// The same, by its key.
    pub(crate) fn gone_key(&mut self, key: AuditFindingKey) {
        if !self.found.contains_key(&key) {
            self.gone.insert(key);
        }
    }

    /// Adds what changes to a commit.
    pub(super) fn write(self, store: &Store, now: Timestamp, set: &mut ChangeSet) -> Result<()> {
        let (found, gone) = (Vec::from_iter(self.found), Vec::from_iter(self.gone));
        let keys: Vec<AuditFindingKey> = found.iter().map(|(key, _)| key.clone()).collect();
        for ((key, (finding, is_whole)), old) in
            found.into_iter().zip(store.get_many::<AuditFindings>(&keys)?)
        {
            let fresh = row_of(&finding, is_whole, now);
            let Some(old) = old.map(|old| old.row) else {
                set.insert::<AuditFindings>(&key, &fresh);
                continue;
            };
            let figures =
                |row: &AuditFindingRow| (row.exchange, row.auditor, row.at_risk, row.detail.clone());
            let is_new = figures(&old) != figures(&fresh) || old.resolved.is_some();
            if !is_new && old.confirmed == now {
                continue;
            }
            let mut row =
                AuditFindingRow { found: old.found, suppressed: old.suppressed, notes: old.notes, ..fresh };
            if is_new && row.suppressed.take().is_some() {
                let note = AuditNoteRow { time: now, suppresses: false, reason: OTHER_FIGURES.to_owned() };
                set.insert::<AuditNotes>(&AuditNoteKey { finding: key.id, n: row.notes }, &note);
                row.notes += 1;
            }
            set.update::<AuditFindings>(&key, &old, &row);
        }
        for (key, old) in gone.iter().zip(store.get_many::<AuditFindings>(&gone)?) {
            let Some(old) = old.map(|old| old.row).filter(|old| old.resolved.is_none()) else { continue };
            let is_notice =
                Rule::named(&old.rule).is_some_and(|rule| rule.info().severity == Severity::Notice);
            if is_notice && old.notes == 0 {
                set.delete::<AuditFindings>(key, &old);
            } else {
                let row = AuditFindingRow { resolved: Some(now), ..old.clone() };
                set.update::<AuditFindings>(key, &old, &row);
            }
        }
        Ok(())
    }
}

/// Why a finding cannot be suppressed or reopened.
#[derive(Debug, thiserror::Error)]
pub enum NoteError {
    /// There is none with this number.
    #[error("there is no finding {0}: `batzen auditor report` lists them")]
    Unknown(ShortHash),
    /// It is so already.
    #[error("the finding is {0} already")]
    Already(&'static str),
    /// Without a reason.
    #[error("a reason is needed, of at most {REASON_BYTES_MAX} bytes")]
    Reason,
    /// The store.
    #[error("the auditor's store: {0}")]
    Store(#[from] StoreError),
    /// Another program changed it at the same time.
    #[error("the finding has just changed: look at it again")]
    Changed,
}

/// The longest reason.
pub(crate) const REASON_BYTES_MAX: usize = 2_000;

/// Suppresses a finding, or reopens it. The reason stays with it.
///
/// # Errors
/// [`NoteError`].
pub fn note(
    store: &Store,
    id: ShortHash,
    suppresses: bool,
    reason: &str,
    now: Timestamp,
) -> std::result::Result<(), NoteError> {
    if reason.trim().is_empty() || reason.len() > REASON_BYTES_MAX {
        return Err(NoteError::Reason);
    }
    let key = AuditFindingKey { id };
    let old = store.get::<AuditFindings>(&key)?.ok_or(NoteError::Unknown(id))?.row;
    if old.suppressed.is_some() == suppresses {
        return Err(NoteError::Already(if suppresses { "suppressed" } else { "open" }));
    }
    let row = AuditFindingRow { suppressed: suppresses.then_some(now), notes: old.notes + 1, ..old.clone() };
    let mut set = ChangeSet::new();
    set.update::<AuditFindings>(&key, &old, &row);
    let note = AuditNoteRow { time: now, suppresses, reason: reason.trim().to_owned() };
    set.insert::<AuditNotes>(&AuditNoteKey { finding: id, n: old.notes }, &note);
    match store.commit(&set)? {
        batzen_store::CommitOutcome::Committed => Ok(()),
        batzen_store::CommitOutcome::Conflict(_) => Err(NoteError::Changed),
    }
}

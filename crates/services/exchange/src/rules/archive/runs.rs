//! The records of runs.

use batzen_crypto::{HashCode, ShortHash};
use batzen_engine::WorkingSet;
use batzen_protocol::Timestamp;
use batzen_tables::exchange::{ArchiveRunKey, ArchiveRunRow, ArchiveRuns, CounterKey, CounterRow, Counters};

use super::ARCHIVE_REASON_BYTES_MAX;
use crate::rules::refusal::Result;
use crate::rules::{Archived, Refusal};

pub(super) fn counter() -> CounterKey {
    CounterKey { name: Counters::ARCHIVE_RUN.to_owned() }
}

pub(super) fn begin(
    rows: &mut WorkingSet,
    run: u32,
    id: ShortHash,
    reason: &str,
    now: Timestamp,
) -> Result<Archived> {
    assert!(reason.len() <= ARCHIVE_REASON_BYTES_MAX, "a reason is short");
    let open = rows.group::<ArchiveRuns>(ArchiveRuns::OPEN, &0u8);
    if let Some((key, row)) = open.first().map(|(key, row)| ((*key).clone(), (*row).clone())) {
        if key.run != run {
            return Err(Refusal::ArchiveRunOther);
        }
        // A run that has taken nothing may be taken over: nothing was lost if its archive was never made.
        let row = if row.rows == 0 { ArchiveRunRow { id, ..row } } else { row };
        rows.update::<ArchiveRuns>(&key, row.clone());
        return Ok(Archived::Begun { run, row: Box::new(row) });
    }
    let last = rows.get::<Counters>(&counter()).map_or(0, |row| row.value);
    if last + 1 != u64::from(run) {
        return Err(Refusal::ArchiveRunOther);
    }
    let row = ArchiveRunRow {
        id,
        started: now,
        reason: reason.to_owned(),
        rows: 0,
        bytes: 0,
        finished: None,
        digest: None,
        dropped: None,
        drop_reason: None,
    };
    rows.put::<Counters>(&counter(), CounterRow { value: u64::from(run) });
    rows.insert::<ArchiveRuns>(&ArchiveRunKey { run }, row.clone());
    Ok(Archived::Begun { run, row: Box::new(row) })
}

pub(super) fn open_run(rows: &WorkingSet, (run, id): (u32, ShortHash)) -> Result<ArchiveRunRow> {
    let row = rows.get::<ArchiveRuns>(&ArchiveRunKey { run }).filter(|row| row.id == id && row.is_open());
    row.cloned().ok_or(Refusal::ArchiveRunOther)
}

pub(super) fn finish(
    rows: &mut WorkingSet,
    run: (u32, ShortHash),
    digest: HashCode,
    now: Timestamp,
) -> Result<Archived> {
    let row = open_run(rows, run)?;
    let row = ArchiveRunRow { finished: Some(now), digest: Some(digest), ..row };
    rows.update::<ArchiveRuns>(&ArchiveRunKey { run: run.0 }, row.clone());
    Ok(Archived::Finished(Box::new(row)))
}

pub(super) fn drop_run(
    rows: &mut WorkingSet,
    run: u32,
    reason: &str,
    before: Timestamp,
    now: Timestamp,
) -> Result<Archived> {
    assert!(reason.len() <= ARCHIVE_REASON_BYTES_MAX, "a reason is short");
    let key = ArchiveRunKey { run };
    let row = rows.get::<ArchiveRuns>(&key).cloned().ok_or(Refusal::ArchiveRunOther)?;
    if row.finished.is_none_or(|finished| finished >= before) {
        return Err(Refusal::ArchiveTooYoung);
    }
    if row.dropped.is_some() {
        return Ok(Archived::Dropped(Box::new(row)));
    }
    let row = ArchiveRunRow { dropped: Some(now), drop_reason: Some(reason.to_owned()), ..row };
    rows.update::<ArchiveRuns>(&key, row.clone());
    Ok(Archived::Dropped(Box::new(row)))
}

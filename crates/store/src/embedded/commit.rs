//! Committing a change set.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hashbrown::HashTable;

use super::disk::{io_error, write_all_at};
use super::format::{
    FRAME_BYTES_LIMIT, FRAME_HEADER_BYTES, FrameHeader, FrameKind, RecordView, SEGMENT_HEADER_BYTES,
    encode_segment_header, frame_bytes_max, record_bytes, seal, seal_bytes,
};
use super::index::{Location, SecondaryOp};
use super::{
    Core, EngineState, Identity, Segment, StoredRecord, fingerprint, lock, read_indexed, read_record,
    secondary_entries,
};
use crate::backend::check_row_size;
use crate::{Change, ChangeSet, CommitOutcome, IndexEntries, Result, StoreError, TableDef};

/// The end of the journal. Its lock is needed for every change.
pub(crate) struct Writer {
    pub active: Arc<Segment>,
    /// Where the next frame starts.
    pub offset: u64,
    /// The next frame's sequence number.
    pub sequence: u64,
    /// The serial of the next inserted row.
    pub serial_next: u64,
    /// Why the store has stopped, if it has.
    pub stopped: Option<String>,
    frame: Vec<u8>,
}

impl Writer {
    pub fn new(active: Arc<Segment>, offset: u64, sequence: u64, serial_next: u64) -> Self {
        Self { active, offset, sequence, serial_next, stopped: None, frame: Vec::new() }
    }

    pub fn check_running(&self) -> Result<()> {
        match &self.stopped {
            None => Ok(()),
            Some(reason) => Err(StoreError::Stopped(reason.clone())),
        }
    }

    /// Refuses further writes. Returns false if they are already refused.
    pub fn stop(&mut self, reason: &str) -> bool {
        let running = self.stopped.is_none();
        self.stopped.get_or_insert_with(|| reason.to_owned());
        running
    }
}

/// A row as it is stored.
enum Before<'a> {
    /// Read for this commit.
    Read(StoredRecord),
    /// The row in the change, because the index still has the version that was read.
    Known { row: &'a [u8], serial: u64, birth: u32 },
}

impl Before<'_> {
    fn row(&self) -> &[u8] {
        match self {
            Self::Read(record) => record.row(),
            Self::Known { row, .. } => row,
        }
    }

    fn serial(&self) -> u64 {
        match self {
            Self::Read(record) => record.serial,
            Self::Known { serial, .. } => *serial,
        }
    }

    fn birth(&self) -> u32 {
        match self {
            Self::Read(record) => record.birth,
            Self::Known { birth, .. } => *birth,
        }
    }
}

/// The net effect of a commit on one row.
struct Effect<'a> {
    table: &'static TableDef,
    key: &'a [u8],
    fingerprint: u64,
    before: Option<(Location, Before<'a>)>,
    /// The new row and its serial.
    after: Option<(&'a [u8], u64)>,
}

impl Effect<'_> {
    fn is_nothing(&self) -> bool {
        match (&self.before, &self.after) {
            (None, None) => true,
            (Some((_, before)), Some((row, serial))) => before.row() == *row && before.serial() == *serial,
            _ => false,
        }
    }
}

/// A written record: its offset in the frame and its size, in bytes.
type Written = (usize, usize);

impl Core {
    pub fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        let mut writer = lock(&self.writer);
        writer.check_running()?;
        let mut serial_next = writer.serial_next;
        let mut effects = match self.resolve(changes, &mut serial_next)? {
            Ok(effects) => effects,
            Err(conflicts) => return Ok(CommitOutcome::Conflict(conflicts)),
        };
        effects.retain(|effect| !effect.is_nothing());
        if effects.is_empty() {
            return Ok(CommitOutcome::Committed);
        }
        let ops = self.secondary_ops(&effects)?;

        writer.frame.clear();
        writer.frame.resize(FRAME_HEADER_BYTES, 0);
        let birth = writer.active.number;
        let mut written: Vec<Written> = Vec::with_capacity(effects.len());
        for effect in &effects {
            let before = effect.before.as_ref().map(|(_, record)| record);
            let record = RecordView {
                table: effect.table.id,
                birth: before.map_or(birth, Before::birth),
                serial: match (effect.after, before) {
                    (Some((_, serial)), _) => serial,
                    (None, Some(before)) => before.serial(),
                    (None, None) => unreachable!("such effects were dropped"),
                },
                layout: if effect.after.is_some() { effect.table.layout() } else { 0 },
                key: effect.key,
                row: effect.after.map(|(row, _)| row),
            };
            let at = writer.frame.len();
            written.push((at, record.encode(&mut writer.frame)));
        }
        let start = self.append(&mut writer, FrameKind::Commit, effects.len(), serial_next)?;

        // Durable: now make it visible.
        let mut state = self.write();
        for (effect, (at, bytes)) in effects.iter().zip(written) {
            let location = Location::new(writer.active.number, start + at as u64, bytes);
            state.publish(effect, location, bytes as u64, &writer.active);
        }
        for (table, op) in ops {
            state.tables.get_mut(&table).expect("resolve found the table").apply(op);
        }
        drop(state);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
        Ok(CommitOutcome::Committed)
    }

    /// The net effect of the changes on each row, or the inserts that met existing rows.
    #[allow(clippy::type_complexity)]
    fn resolve<'a>(
        &self,
        changes: &'a ChangeSet,
        serial_next: &mut u64,
    ) -> Result<std::result::Result<Vec<Effect<'a>>, Vec<(&'static TableDef, Vec<u8>)>>> {
        let state = self.read();
        let mut effects: Vec<Effect<'a>> = Vec::with_capacity(changes.len());
        let mut rows: HashTable<usize> = HashTable::with_capacity(changes.len());
        let mut conflicts = Vec::new();
        let mut stale = None;
        for change in changes.changes() {
            let (table, key) = (change.table(), change.key());
            check_size(key, change.new_row())?;
            let fingerprint = fingerprint(&self.identity, key);
            let seen =
                rows.find(fingerprint, |&at| effects[at].table == table && effects[at].key == key).copied();
            let at = match seen {
                Some(at) => at,
                None => {
                    let before = match known(&state, change, fingerprint)? {
                        None => find(&self.identity, &state, table, key, fingerprint)?
                            .map(|(location, record)| (location, Before::Read(record))),
                        known => known,
                    };
                    effects.push(Effect { table, key, fingerprint, before, after: None });
                    let at = effects.len() - 1;
                    rows.insert_unique(fingerprint, at, |&at| effects[at].fingerprint);
                    at
                }
            };
            let effect = &mut effects[at];
            let current = match &effect.before {
                Some((_, before)) if seen.is_none() => Some((before.row(), before.serial())),
                _ => effect.after,
            };
            let serial = match (current, change.old_row()) {
                (None, None) => take(serial_next),
                (Some((row, serial)), Some(old)) if row == old => serial,
                // Apply it anyway, because later changes of this set build on it.
                (Some((_, serial)), None) => {
                    conflicts.push((table, key.to_vec()));
                    serial
                }
                (_, Some(_)) => {
                    stale.get_or_insert_with(|| StoreError::Stale { table: table.name, key: key.to_vec() });
                    continue;
                }
            };
            effect.after = change.new_row().map(|row| (row, serial));
        }
        if !conflicts.is_empty() {
            return Ok(Err(conflicts));
        }
        stale.map_or(Ok(Ok(effects)), Err)
    }

    /// The secondary entries to remove and to add. They are computed before anything is written, so that rows
    /// that do not decode are refused.
    fn secondary_ops(&self, effects: &[Effect]) -> Result<Vec<(u16, SecondaryOp)>> {
        let mut ops = Vec::new();
        let mut scratch = IndexEntries::new();
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for effect in effects.iter().filter(|effect| !effect.table.indexes.is_empty()) {
            old.clear();
            new.clear();
            // An update keeps the key and the entries derived from it.
            let is_update = effect.before.is_some() && effect.after.is_some();
            let mut compute = |row, serial, out: &mut Vec<_>| {
                let record = (effect.key, row, serial);
                secondary_entries(&self.identity, effect.table, record, !is_update, &mut scratch, out)
            };
            if let Some((_, before)) = &effect.before {
                compute(before.row(), before.serial(), &mut old)?;
            }
            if let Some((row, serial)) = effect.after {
                compute(row, serial, &mut new)?;
            }
            let key = effect.fingerprint;
            if !(old.is_empty() || new.is_empty()) {
                let kept: Vec<_> = old.extract_if(.., |entry| new.contains(entry)).collect();
                new.retain(|entry| !kept.contains(entry));
            }
            let gone = old.drain(..).map(|(slot, entry)| SecondaryOp { slot, add: false, entry, key });
            ops.extend(gone.map(|op| (effect.table.id, op)));
            let come = new.drain(..).map(|(slot, entry)| SecondaryOp { slot, add: true, entry, key });
            ops.extend(come.map(|op| (effect.table.id, op)));
        }
        Ok(ops)
    }

    /// Completes the frame in the writer's buffer and makes it durable. Returns its offset. After an error,
    /// nothing of it is valid, and the writer is either unchanged or has stopped.
    pub fn append(
        &self,
        writer: &mut Writer,
        kind: FrameKind,
        records: usize,
        serial_next: u64,
    ) -> Result<u64> {
        let mut frame = std::mem::take(&mut writer.frame);
        let result = self.append_frame(writer, &mut frame, kind, records, serial_next);
        writer.frame = frame;
        result
    }

    fn append_frame(
        &self,
        writer: &mut Writer,
        frame: &mut Vec<u8>,
        kind: FrameKind,
        records: usize,
        serial_next: u64,
    ) -> Result<u64> {
        let payload_bytes = frame.len() - FRAME_HEADER_BYTES;
        let bytes_max = frame_bytes_max(payload_bytes);
        if bytes_max > FRAME_BYTES_LIMIT {
            return Err(StoreError::TooLarge { bytes: bytes_max, limit: FRAME_BYTES_LIMIT });
        }
        assert!(serial_next >= writer.serial_next, "serials only grow");
        while writer.offset + (frame.len() + seal_bytes(writer.offset, payload_bytes)) as u64
            > writer.active.capacity.load(Ordering::Relaxed)
        {
            self.roll(writer, bytes_max, kind)?;
        }
        let start = writer.offset;
        let crc = seal(frame, start);
        let frame_bytes = frame.len() as u64;
        let header = FrameHeader {
            kind,
            payload_bytes: u32::try_from(payload_bytes).expect("below the frame limit"),
            seal_bytes: None,
            crc,
            sequence: writer.sequence,
            serial_next,
            records: u32::try_from(records).expect("below the frame limit"),
        };
        let active = Arc::clone(&writer.active);
        let header = header.encode(&self.identity, active.number, start);
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&header);

        if let Err(error) = write_all_at(&*active.file, frame, writer.offset) {
            let error = io_error("write", &active.path, error);
            if !matches!(error, StoreError::Full(_)) {
                return Err(self.fatal(writer, &active.path, "write", &error));
            }
            // This happens only on file systems that cannot reserve space. Truncate the file: the segment
            // ends here. Its header is changed first, since a file shorter than its segment counts as damage.
            let header = encode_segment_header(&self.identity, active.number, start);
            let cut = || {
                write_all_at(&*active.file, &header, 0)?;
                active.file.sync()?;
                active.file.set_len(start)?;
                active.file.sync()
            };
            let cut = cut();
            if let Err(error) = cut {
                return Err(self.fatal(writer, &active.path, "cut", &io_error("cut", &active.path, error)));
            }
            active.capacity.store(writer.offset, Ordering::Relaxed);
            self.wake.notify();
            return Err(error);
        }
        let sync_start = Instant::now();
        if let Err(error) = active.file.sync() {
            return Err(self.fatal(writer, &active.path, "sync", &io_error("sync", &active.path, error)));
        }
        self.counters.sync_times.time(sync_start.elapsed());
        self.counters.written.fetch_add(frame_bytes, Ordering::Relaxed);
        self.counters.since_checkpoint.fetch_add(frame_bytes, Ordering::Relaxed);
        writer.offset += frame_bytes;
        writer.sequence += 1;
        writer.serial_next = serial_next;
        active.used.store(writer.offset, Ordering::Relaxed);
        Ok(start)
    }

    /// Switches to the next segment.
    fn roll(&self, writer: &mut Writer, frame_bytes: u64, kind: FrameKind) -> Result<()> {
        let segment = self.take_next(frame_bytes, kind).inspect_err(|_| self.wake.notify())?;
        let mut state = self.write();
        Arc::make_mut(&mut state.segments).insert(segment.number, Arc::clone(&segment));
        drop(state);
        writer.active = segment;
        writer.offset = SEGMENT_HEADER_BYTES;
        self.wake.notify();
        Ok(())
    }

    /// A write or sync failed, so the content of the disk is unknown. The process ends here, unless a test's
    /// hook returns.
    fn fatal(&self, writer: &mut Writer, path: &Path, action: &str, error: &StoreError) -> StoreError {
        let reason = format!("{action} of {} at byte {} failed: {error}", path.display(), writer.offset);
        (self.options.on_fatal)(&reason);
        writer.stop(&reason);
        StoreError::Stopped(reason)
    }
}

impl Writer {
    /// The buffer for a frame's records, empty except for the space of the header.
    pub fn begin(&mut self) -> &mut Vec<u8> {
        self.frame.clear();
        self.frame.resize(FRAME_HEADER_BYTES, 0);
        &mut self.frame
    }
}

impl EngineState {
    /// Adds a written record of `bytes` bytes at `location` to the indexes.
    fn publish(&mut self, effect: &Effect, location: Location, bytes: u64, active: &Segment) {
        let index = self.tables.get_mut(&effect.table.id).expect("resolve found the table");
        let fingerprint = effect.fingerprint;
        if let Some((old, before)) = &effect.before {
            let dead = record_bytes(effect.key.len(), before.row().len());
            self.segments[&old.segment()].live.fetch_sub(dead as u64, Ordering::Relaxed);
        }
        match (&effect.before, &effect.after) {
            (None, Some(_)) => index.primary.insert(fingerprint, location),
            (Some((old, _)), Some(_)) => {
                assert!(index.primary.replace(fingerprint, *old, location), "only the writer moves entries");
            }
            (Some((old, _)), None) => {
                assert!(index.primary.remove(fingerprint, *old), "only the writer removes entries");
            }
            (None, None) => unreachable!("such effects were dropped"),
        }
        let counter = if effect.after.is_some() { &active.live } else { &active.tombstones };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn take(serial_next: &mut u64) -> u64 {
    let serial = *serial_next;
    *serial_next += 1;
    serial
}

fn check_size(key: &[u8], row: Option<&[u8]>) -> Result<()> {
    let limit = u64::from(u16::MAX);
    if key.len() as u64 > limit {
        return Err(StoreError::TooLarge { bytes: key.len() as u64, limit });
    }
    check_row_size(key, row)
}

/// The stored row, if the change names the stored version: records never change in place, and segment numbers
/// are never reused.
fn known<'a>(
    state: &EngineState,
    change: &'a Change,
    fingerprint: u64,
) -> Result<Option<(Location, Before<'a>)>> {
    let (Some(row), Some(version)) = (change.old_row(), change.version()) else { return Ok(None) };
    let location = Location(version.place);
    if !state.table(change.table())?.primary.contains(fingerprint, location) {
        return Ok(None);
    }
    if cfg!(debug_assertions) {
        let record = read_record(&state.segments, location)?;
        assert!(
            record.key() == change.key() && record.row() == row && record.serial == version.serial,
            "a version of {} goes with the row that was read",
            change.table().name
        );
    }
    Ok(Some((location, Before::Known { row, serial: version.serial, birth: version.birth })))
}

/// The stored row under a key.
fn find(
    identity: &Identity,
    state: &EngineState,
    table: &TableDef,
    key: &[u8],
    fingerprint: u64,
) -> Result<Option<(Location, StoredRecord)>> {
    for location in state.table(table)?.primary.find(fingerprint) {
        let record = read_indexed(identity, &state.segments, table.id, (fingerprint, location))?;
        if record.key() == key {
            return Ok(Some((location, record)));
        }
    }
    Ok(None)
}

//! Committing a change set: checking it against the store, and encoding its records.
//!
//! Several lanes do this at the same time, each for rows that it has claimed (`claims.rs`). Only appending to
//! the journal happens one commit after the other (`group.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::claims::ClaimedRow;
use super::format::{NUMBER_LIMIT, RecordView, SEGMENT_BYTES_LIMIT, record_bytes};
use super::index::{Location, Ops, SecondaryEntry, SecondaryOp};
use super::ordered::OrderedIndex;
use super::packed::{Head, Lasting, Packer, SegmentBytes};
use super::record::{self, RecordCache, SegmentFile, StoredRecord, put_row, read_record, set_serial};
use super::runs::{KnownMarks, Marks, PartKey};
use super::shared::Dictionary;
use super::writer::check_frame_size;
use super::{Core, EngineState, Identity, Segment, View, fingerprint, secondary_entries};
use crate::backend::check_row_size;
use crate::{Change, ChangeSet, CommitOutcome, IndexEntries, IndexKind, Result, StoreError, TableDef};

/// A row as it is stored.
enum Before<'a> {
    Read {
        row: Vec<u8>,
        serial: u64,
        birth: u32,
    },
    /// The row in the change, because the index still has the version that was read.
    Known {
        row: &'a [u8],
        serial: u64,
        birth: u32,
    },
}

impl Before<'_> {
    fn row(&self) -> &[u8] {
        match self {
            Self::Read { row, .. } => row,
            Self::Known { row, .. } => row,
        }
    }

    fn serial(&self) -> u64 {
        match self {
            Self::Read { serial, .. } | Self::Known { serial, .. } => *serial,
        }
    }

    fn birth(&self) -> u32 {
        match self {
            Self::Read { birth, .. } | Self::Known { birth, .. } => *birth,
        }
    }
}

/// A stored row, where its record is, and the size of that record.
struct Found<'a> {
    location: Location,
    record_bytes: u64,
    row: Before<'a>,
}

/// The net effect of a commit on one row.
struct Effect<'a> {
    table: &'static TableDef,
    key: &'a [u8],
    fingerprint: u64,
    /// The number of the first change of the row.
    first: usize,
    before: Option<Found<'a>>,
    /// The new row and its serial.
    after: Option<(&'a [u8], u64)>,
}

impl Effect<'_> {
    /// Appends the new record, and returns its size.
    fn encode(&self, packer: &mut Packer<'_>, out: &mut Vec<u8>) -> usize {
        let before = self.before.as_ref().map(|found| &found.row);
        let (table, birth) = (self.table.id, before.map(Before::birth));
        match (self.after, before) {
            (Some((row, serial)), _) => {
                // A provisional serial is replaced when the place of the commit among others is known.
                let serial = if serial < SERIAL_PROVISIONAL { serial } else { 0 };
                let head = Head { table, birth, serial, layout: self.table.layout() };
                put_row(packer, self.table, head, (self.key, row), out)
            }
            (None, Some(before)) => {
                let (birth, serial) = (before.birth(), before.serial());
                RecordView { table, birth, serial, layout: 0, key: self.key, row: None }.encode(out)
            }
            (None, None) => unreachable!("such effects were dropped"),
        }
    }

    /// The record of an updated row, for the cache: it is likely to be updated again.
    fn updated(&self, record_bytes: u64) -> Option<Arc<StoredRecord>> {
        let (Some(found), Some((row, serial))) = (&self.before, self.after) else { return None };
        if !RecordCache::takes(record_bytes) {
            return None;
        }
        let birth = found.row.birth();
        let head = Head { table: self.table.id, birth: Some(birth), serial, layout: self.table.layout() };
        Some(Arc::new(StoredRecord::of_written(head, birth, (self.key, row), record_bytes)))
    }

    fn is_nothing(&self) -> bool {
        match (&self.before, &self.after) {
            (None, None) => true,
            (Some(Found { row: before, .. }), Some((row, serial))) => {
                before.row() == *row && before.serial() == *serial
            }
            _ => false,
        }
    }
}

/// The serials of inserted rows are counted from here until the place of the commit among others is known. No
/// stored row has such a serial.
const SERIAL_PROVISIONAL: u64 = NUMBER_LIMIT;

/// An index entry to add or to remove, and its table.
type TableOp = (u16, SecondaryOp);

/// A commit that is ready to be appended to the journal: its rows are claimed, it fits the store, and its
/// records are encoded.
pub(crate) struct Prepared {
    /// The records as they go into a frame.
    pub(crate) payload: Vec<u8>,
    /// The segment for which they were encoded. It may be gone from the journal meanwhile, but not from the disk.
    segment: Arc<Segment>,
    /// The values in `payload` that later commits may refer to.
    lasting: Vec<Lasting>,
    records: Vec<PreparedRecord>,
    ops: Vec<TableOp>,
    /// The entries of serial indexes among `ops` that end with a provisional serial.
    serial_ops: Vec<usize>,
    /// Number of serials that it uses.
    serials: u64,
}

/// The change of one row when the commit is durable.
struct PreparedRecord {
    table: u16,
    fingerprint: u64,
    /// Its place in the payload, in bytes.
    at: usize,
    bytes: usize,
    /// The number of the inserted row among those of the commit, whose serial is not known yet.
    provisional: Option<u64>,
    /// The record as it will be read, if that is likely: of a row that was updated.
    known: Option<Arc<StoredRecord>>,
    /// Where the row is now, and the size of that record.
    before: Option<(Location, u64)>,
    /// Otherwise the row is deleted.
    is_row: bool,
}

impl Prepared {
    /// Number of records that it has.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Numbers the inserted rows from `serial_next` on, in the index entries and in `payload`, which is a copy of
    /// the prepared one. Returns the serial after them.
    pub(crate) fn number(&mut self, payload: &mut [u8], serial_next: u64) -> u64 {
        for record in &self.records {
            if let Some(n) = record.provisional {
                set_serial(&mut payload[record.at..record.at + record.bytes], serial_next + n);
            }
        }
        for &op in &self.serial_ops {
            let SecondaryEntry::Position(position) = &mut self.ops[op].1.entry else {
                unreachable!("serial indexes have positions")
            };
            let bytes = position.last_chunk_mut::<8>().expect("it ends with a serial");
            let n = u64::from_be_bytes(*bytes).checked_sub(SERIAL_PROVISIONAL);
            *bytes = (serial_next + n.expect("it is provisional")).to_be_bytes();
        }
        serial_next + self.serials
    }

    /// Encodes packed records again if the journal has gone on to another segment: they are valid only in the one for
    /// which they were prepared.
    pub(crate) fn move_to(&mut self, segment: &Arc<Segment>) -> Result<()> {
        if self.segment.number == segment.number {
            return Ok(());
        }
        let old = std::mem::replace(&mut self.segment, Arc::clone(segment));
        let bytes = std::mem::take(&mut self.payload);
        let mut packer = Packer::new(segment.number, None, self.records.len());
        let mut scratch = Vec::new();
        let mut before = PreparedBytes { payload: &bytes, file: SegmentFile::new(&old) };
        for record in &mut self.records {
            let at = self.payload.len();
            let source = &bytes[record.at..record.at + record.bytes];
            let place = (old.number, PAYLOAD_AT + record.at as u64);
            let decoded = record::decode(source, place, &mut before, &mut scratch)?;
            let (decoded, _) = decoded.expect("it was encoded a moment ago");
            match decoded.packed {
                Some(packed) => {
                    let birth = record.before.map(|_| decoded.birth);
                    record.bytes = packer.again(&packed, birth, &mut self.payload);
                }
                None => self.payload.extend_from_slice(source),
            }
            record.at = at;
        }
        self.lasting.clear();
        Ok(())
    }

    /// Adds the values that later commits may refer to, once the payload is durable at this offset of its segment.
    pub(crate) fn remember(&self, dictionary: &Dictionary, start: u64) {
        for value in &self.lasting {
            let bytes = &self.payload[value.at..value.at + value.bytes];
            dictionary.insert(self.segment.number, start + value.at as u64, bytes);
        }
    }

    /// Makes the commit visible, whose payload is durable at this offset of a segment. Adds ordered indexes that have
    /// many unsorted changes to `crowded`.
    pub(crate) fn publish(
        &mut self,
        state: &mut EngineState,
        (active, start): (&Segment, u64),
        records: &RecordCache,
        crowded: &mut Vec<Arc<OrderedIndex>>,
    ) {
        for record in &self.records {
            let location = Location::new(active.number, start + record.at as u64, record.bytes);
            record.publish(state, location, active);
            // A record that was encoded again may have another size.
            if let Some(known) = &record.known
                && known.record_bytes == record.bytes as u64
            {
                records.insert(location, known);
            }
        }
        for (table, op) in self.ops.drain(..) {
            let index = state.tables.get_mut(&table).expect("resolve found the table").apply(op);
            if let Some(index) = index
                && !crowded.iter().any(|known| Arc::ptr_eq(known, index))
            {
                crowded.push(Arc::clone(index));
            }
        }
    }
}

/// As a prepared payload has no place in the segment yet, it is taken to start here, beyond the end of all segments.
const PAYLOAD_AT: u64 = SEGMENT_BYTES_LIMIT;

/// The data that the records of a prepared payload refer to: the segment and the payload itself.
struct PreparedBytes<'a> {
    payload: &'a [u8],
    file: SegmentFile<'a>,
}

impl SegmentBytes for PreparedBytes<'_> {
    fn append(&mut self, offset: u64, bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        match offset.checked_sub(PAYLOAD_AT) {
            Some(at) => self.payload.append(at, bytes, out),
            None => self.file.append(offset, bytes, out),
        }
    }
}

impl PreparedRecord {
    /// Adds a written record to the primary index.
    fn publish(&self, state: &mut EngineState, location: Location, active: &Segment) {
        let index = state.tables.get_mut(&self.table).expect("resolve found the table");
        if let Some((old, dead_bytes)) = self.before {
            state.segments[&old.segment()].live.fetch_sub(dead_bytes, Ordering::Relaxed);
        }
        match (self.before, self.is_row) {
            (None, true) => index.primary.insert(self.fingerprint, location),
            (Some((old, _)), true) => {
                index.primary.replace(self.fingerprint, old, location);
            }
            (Some((old, _)), false) => {
                index.primary.remove(self.fingerprint, old);
            }
            (None, false) => unreachable!("such effects were dropped"),
        }
        let counter = if self.is_row { &active.live } else { &active.tombstones };
        counter.fetch_add(self.bytes as u64, Ordering::Relaxed);
    }
}

/// The rows that a change set names, in the order in which it names them first.
struct Named<'a> {
    effects: Vec<Effect<'a>>,
    /// For each change, the number of its row's effect.
    rows: Vec<usize>,
    /// The same rows, to be claimed.
    claims: Vec<ClaimedRow>,
}

impl<'a> Named<'a> {
    fn by(changes: &'a ChangeSet, identity: &Identity) -> Result<Self> {
        let mut named = Self {
            effects: Vec::with_capacity(changes.len()),
            rows: Vec::with_capacity(changes.len()),
            claims: Vec::with_capacity(changes.len()),
        };
        let mut seen: HashTable<usize> = HashTable::with_capacity(changes.len());
        for (n, change) in changes.changes().iter().enumerate() {
            let (table, key) = (change.table(), change.key());
            check_size(key, change.new_row())?;
            let fingerprint = fingerprint(identity, key);
            let effects = &mut named.effects;
            let mut is_claimed = false;
            let found = seen.find(fingerprint, |&at| {
                let effect = &effects[at];
                let is_same_claim = effect.table == table && effect.fingerprint == fingerprint;
                is_claimed |= is_same_claim;
                is_same_claim && effect.key == key
            });
            let at = found.copied().unwrap_or_else(|| {
                effects.push(Effect { table, key, fingerprint, first: n, before: None, after: None });
                effects.len() - 1
            });
            if at + 1 == effects.len() && effects[at].first == n {
                seen.insert_unique(fingerprint, at, |&at| effects[at].fingerprint);
                if !is_claimed {
                    named.claims.push((fingerprint, table.id));
                }
            }
            named.rows.push(at);
        }
        Ok(named)
    }
}

/// The effects of a change set on rows that nobody else changes meanwhile.
enum Resolved<'a> {
    Effects {
        effects: Vec<Effect<'a>>,
        /// Number of serials that it uses.
        serials: u64,
    },
    /// Inserts that met existing rows.
    Conflict(Vec<(&'static TableDef, Vec<u8>)>),
}

impl Core {
    pub(crate) fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        self.check_running()?;
        let mut named = Named::by(changes, &self.identity)?;
        let claim = self.claims.claim(std::mem::take(&mut named.claims));
        let (mut effects, serials) = match self.resolve(changes, named)? {
            Resolved::Effects { effects, serials } => (effects, serials),
            Resolved::Conflict(rows) => return Ok(CommitOutcome::Conflict(rows)),
        };
        effects.retain(|effect| !effect.is_nothing());
        if effects.is_empty() {
            return Ok(CommitOutcome::Committed);
        }
        let prepared = self.prepare(&effects, serials)?;
        self.append_in_group(prepared)?;
        drop(claim);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
        Ok(CommitOutcome::Committed)
    }

    /// The net effect of the changes on each row. The rows are claimed.
    fn resolve<'a>(&self, changes: &'a ChangeSet, named: Named<'a>) -> Result<Resolved<'a>> {
        let Named { mut effects, rows, .. } = named;
        self.find_rows(changes, &mut effects)?;
        let mut serial_next = SERIAL_PROVISIONAL;
        let mut conflicts = Vec::new();
        let mut stale = None;
        for (n, (change, at)) in changes.changes().iter().zip(rows).enumerate() {
            let effect = &mut effects[at];
            let current = match &effect.before {
                Some(found) if effect.first == n => Some((found.row.row(), found.row.serial())),
                _ => effect.after,
            };
            let serial = match (current, change.old_row()) {
                (None, None) => take(&mut serial_next),
                (Some((row, serial)), Some(old)) if row == old => serial,
                // Apply it anyway, because later changes of this set build on it.
                (Some((_, serial)), None) => {
                    conflicts.push((effect.table, effect.key.to_vec()));
                    serial
                }
                (_, Some(_)) => {
                    let (table, key) = (effect.table.name, effect.key);
                    stale.get_or_insert_with(|| StoreError::Stale { table, key: key.to_vec() });
                    continue;
                }
            };
            effect.after = change.new_row().map(|row| (row, serial));
        }
        if !conflicts.is_empty() {
            return Ok(Resolved::Conflict(conflicts));
        }
        let serials = serial_next - SERIAL_PROVISIONAL;
        stale.map_or(Ok(Resolved::Effects { effects, serials }), Err)
    }

    /// Finds the stored rows. Those whose version the change does not name are read from the disk, without
    /// a lock: nobody changes them meanwhile.
    fn find_rows<'a>(&self, changes: &'a ChangeSet, effects: &mut [Effect<'a>]) -> Result<()> {
        let (latest, view) = {
            let state = self.read();
            let latest =
                |effect: &Effect| Ok(state.latest(state.table(effect.table)?.id, effect.fingerprint));
            (effects.iter().map(latest).collect::<Result<Vec<Ops>>>()?, state.view())
        };
        let rows = self.stored_rows(&view.segments);
        let marks = marks(&self.known_marks, &view, effects);
        for ((effect, latest), marks) in effects.iter_mut().zip(latest).zip(marks) {
            effect.before = known(&view, &changes.changes()[effect.first], effect.fingerprint, &latest)?;
            if effect.before.is_none() {
                let mut is_wanted = |record: &StoredRecord| record.key() == effect.key;
                let place = (effect.fingerprint, latest);
                let found = view.cold.find_record(rows, effect.table.id, place, marks, &mut is_wanted)?;
                let read = |(location, record): (Location, Arc<StoredRecord>)| {
                    let (serial, birth, record_bytes) = (record.serial, record.birth, record.record_bytes);
                    let row = record.row(effect.table)?.into_owned();
                    Ok(Found { location, record_bytes, row: Before::Read { row, serial, birth } })
                };
                effect.before = found.map(read).transpose()?;
            }
        }
        Ok(())
    }

    /// Encodes the effects. Whatever can be refused is refused here, before anything is written.
    fn prepare(&self, effects: &[Effect], serials: u64) -> Result<Prepared> {
        let (ops, serial_ops) = self.secondary_ops(effects)?;
        let segment = self.read().segments.values().next_back().map(Arc::clone);
        let segment = segment.expect("a journal has a segment");
        let mut payload = self.group.buffer();
        let mut packer = Packer::new(segment.number, Some(&self.dictionary), effects.len());
        let mut records = Vec::with_capacity(effects.len());
        for effect in effects {
            let at = payload.len();
            let bytes = effect.encode(&mut packer, &mut payload);
            let new_serial = effect.after.map(|(_, serial)| serial);
            let provisional = new_serial.and_then(|serial| serial.checked_sub(SERIAL_PROVISIONAL));
            records.push(PreparedRecord {
                table: effect.table.id,
                fingerprint: effect.fingerprint,
                at,
                bytes,
                provisional,
                known: if provisional.is_none() { effect.updated(bytes as u64) } else { None },
                before: effect.before.as_ref().map(|found| (found.location, found.record_bytes)),
                is_row: effect.after.is_some(),
            });
        }
        // The limit is that of plain records, because a commit whose records are encoded again may need their size.
        let plain =
            |effect: &Effect| record_bytes(effect.key.len(), effect.after.map_or(0, |(row, _)| row.len()));
        check_frame_size(effects.iter().map(plain).sum::<usize>().max(payload.len()))?;
        let lasting = packer.lasting;
        Ok(Prepared { payload, segment, lasting, records, ops, serial_ops, serials })
    }

    /// The secondary entries to remove and to add, and the numbers of those that end with a provisional serial.
    /// They are computed before anything is written, so that rows that do not decode are refused.
    fn secondary_ops(&self, effects: &[Effect]) -> Result<(Vec<TableOp>, Vec<usize>)> {
        let (mut ops, mut serial_ops) = (Vec::new(), Vec::new());
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
            if let Some(Found { row: before, .. }) = &effect.before {
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
            let is_new = effect.after.is_some_and(|(_, serial)| serial >= SERIAL_PROVISIONAL);
            for (slot, entry) in new.drain(..) {
                if is_new && effect.table.indexes[usize::from(slot)].kind == IndexKind::Serial {
                    serial_ops.push(ops.len());
                }
                ops.push((effect.table.id, SecondaryOp { slot, add: true, entry, key }));
            }
        }
        Ok((ops, serial_ops))
    }
}

/// Asks the filters of runs for all rows, table by table.
fn marks(known: &KnownMarks, view: &View, effects: &[Effect]) -> Vec<Marks> {
    let mut all = vec![Marks::ALL; effects.len()];
    let mut tables = SmallVec::<[u16; 8]>::new();
    for effect in effects {
        if !tables.contains(&effect.table.id) {
            tables.push(effect.table.id);
        }
    }
    for table in tables {
        let of_table = || effects.iter().enumerate().filter(|(_, effect)| effect.table.id == table);
        let fingerprints: Vec<u64> = of_table().map(|(_, effect)| effect.fingerprint).collect();
        let marks = known.of(&view.cold, PartKey::primary(table), &fingerprints);
        of_table().zip(marks).for_each(|((n, _), marks)| all[n] = marks);
    }
    all
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
fn known<'a>(view: &View, change: &'a Change, fingerprint: u64, latest: &Ops) -> Result<Option<Found<'a>>> {
    let (Some(row), Some(version)) = (change.old_row(), change.version()) else { return Ok(None) };
    let location = Location(version.place);
    let latest = latest.iter().find(|op| op.value == location.0).map(|op| op.added);
    let part = PartKey::primary(change.table().id);
    // The size of a long record is in the record only.
    if location.is_long() || !view.cold.contains(part, (fingerprint, location.0), latest)? {
        return Ok(None);
    }
    if cfg!(debug_assertions) {
        let record = read_record(&view.segments, location)?;
        assert!(
            record.key() == change.key()
                && record.row(change.table())? == row
                && record.serial == version.serial
                && record.record_bytes == location.bytes_min(),
            "a version of {} goes with the row that was read",
            change.table().name
        );
    }
    let row = Before::Known { row, serial: version.serial, birth: version.birth };
    Ok(Some(Found { location, record_bytes: location.bytes_min(), row }))
}

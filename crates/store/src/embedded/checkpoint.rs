//! Checkpoints: the indexes on disk, so that opening need not replay the whole journal.
//!
//! A checkpoint is taken part by part while commits continue. It mixes states from its start to its end;
//! replaying the journal from the start makes it consistent, since every record contains a row's whole state.
//! Two rules ensure this. A table's primary index is copied before its secondary ones, so a stale secondary
//! entry always belongs to a version that the replay meets and removes. And no segment that the journal had
//! at the start is removed before the next checkpoint is complete. A journal that ends before the
//! checkpoint's end has lost acknowledged commits.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::{Disk, DiskFile, io_error, read_full_at, replace_file, write_all_at};
use super::format::{CHECKPOINT_NAME, Identity, MANIFEST_NAME};
use super::index::{Location, PARTS, Secondary, TableIndex};
use super::{Core, Segment, lock};
use crate::{Result, StoreError, TableDef};

const MAGIC: &[u8; 8] = b"BATZIDX1";
/// The format of checkpoints. The manifest states the journal's format.
const CHECKPOINT_VERSION: u32 = 1;
const END: u8 = 0;
const PRIMARY: u8 = 1;
const HASH: u8 = 2;
const ORDERED: u8 = 3;
const BUFFER_BYTES: usize = 1 << 20;
/// The size of a piece that is written and synced at once: commits wait for one piece, and its memory is
/// allocated from the system each time.
const FLUSH_BYTES: usize = 256 << 10;
/// The pause after a piece, as a multiple of the time it took, unless the next segment is needed soon.
const PIECE_REST: u32 = 4;
/// How many ordered entries are copied under one lock.
const ORDERED_STEP: usize = 4096;

/// Where replay continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub segment: u32,
    pub offset: u64,
    pub sequence: u64,
    pub serial_next: u64,
}

/// A loaded checkpoint.
pub(crate) struct Checkpoint {
    pub position: Position,
    /// Segment number → used bytes and bytes of tombstones.
    pub segments: BTreeMap<u32, (u64, u64)>,
    pub tables: HashMap<u16, TableIndex>,
    /// The journal must have all frames before this one.
    pub sequence_end: u64,
}

/// A hash of the index definitions: kinds, columns, and versions of computed entries. Checkpoints with
/// another hash are not used.
pub(crate) fn schema(identity: &Identity, tables: &[&'static TableDef]) -> u64 {
    let describe = |table: &&'static TableDef| {
        let TableDef { id, version, indexes, key_columns, row_columns, .. } = table;
        let mut text = format!("{id} {version} {indexes:?} {key_columns:?} {row_columns:?}");
        if table.layout() > 0 {
            text += &format!(" layout {}", table.layout());
        }
        text
    };
    let mut text: Vec<String> = tables.iter().map(describe).collect();
    text.sort();
    identity.hash(&[text.join("\n").as_bytes()])
}

/// Memory that is kept from one checkpoint to the next, and touched when the store is opened. Allocating it
/// each time, in huge pages that the kernel clears, delayed payments by tens of milliseconds.
pub(crate) struct Buffers {
    out: Vec<u8>,
    piece: Vec<u8>,
}

impl Buffers {
    pub fn new() -> Self {
        let touched = || {
            let mut bytes = vec![1; 2 * FLUSH_BYTES];
            bytes.clear();
            bytes
        };
        Self { out: touched(), piece: touched() }
    }
}

struct Out<'a> {
    file: Arc<dyn DiskFile>,
    path: &'a Path,
    buffer: &'a mut Vec<u8>,
    offset: u64,
    crc: u32,
}

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn flush(&mut self) -> Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, self.buffer);
        write_all_at(&*self.file, self.buffer, self.offset)
            .map_err(|source| io_error("write", self.path, source))?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        // Piece by piece, so that no commit waits for all of it.
        self.file.sync().map_err(|source| io_error("sync", self.path, source))
    }

    fn chunk(&mut self, kind: u8, table: u16, slot: u8, count: usize, entries: &[u8]) -> Result<()> {
        if count > 0 {
            self.put(&[kind]);
            self.put(&table.to_le_bytes());
            self.put(&[slot]);
            self.put(&u32::try_from(count).expect("a part has fewer entries").to_le_bytes());
            self.put(entries);
        }
        if self.buffer.len() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }
}

fn pairs(entries: impl Iterator<Item = (u64, u64)>, buffer: &mut Vec<u8>) -> usize {
    buffer.clear();
    let mut count = 0;
    for (a, b) in entries {
        buffer.extend_from_slice(&a.to_le_bytes());
        buffer.extend_from_slice(&b.to_le_bytes());
        count += 1;
    }
    count
}

impl Core {
    /// Writes a checkpoint, then removes the segments that compaction has emptied.
    pub fn checkpoint(&self) -> Result<()> {
        let mut maintenance = lock(&self.maintenance);
        match self.write_checkpoint(&mut maintenance.buffers) {
            // There is no space for a checkpoint. The emptied segments can still be removed, if no older
            // checkpoint refers to them.
            Err(StoreError::Full(_)) if !maintenance.retired.is_empty() => self.remove_checkpoint()?,
            written => written?,
        }
        if maintenance.retired.is_empty() {
            return Ok(());
        }
        let active = lock(&self.writer).active.number;
        let mut manifest = maintenance.manifest.clone();
        manifest.segments_upto = active;
        manifest.segments = self.read().segments.keys().copied().filter(|&number| number <= active).collect();
        replace_file(&*self.options.disk, &self.dir, MANIFEST_NAME, manifest.encode().as_bytes())?;
        maintenance.manifest = manifest;
        for segment in maintenance.retired.drain(..) {
            if let Err(error) = self.options.disk.remove(&segment.path) {
                // The manifest no longer lists it: the next start removes it.
                tracing::warn!(file = %segment.path.display(), %error, "a compacted segment could not be removed");
            }
        }
        // File systems free the space only once the directory is synced.
        if let Err(error) = self.options.disk.sync_dir(&self.dir) {
            tracing::warn!(store = %self.dir.display(), %error, "the removal of compacted segments could not be synced");
        }
        lock(&self.next).full_since = None;
        Ok(())
    }

    fn remove_checkpoint(&self) -> Result<()> {
        let (disk, path) = (&*self.options.disk, self.dir.join(CHECKPOINT_NAME));
        let names = disk.list(&self.dir).map_err(|source| io_error("list", &self.dir, source))?;
        if !names.iter().any(|name| name == CHECKPOINT_NAME) {
            return Ok(());
        }
        let remove = disk.remove(&path).and_then(|()| disk.sync_dir(&self.dir));
        remove.map_err(|source| io_error("remove", &path, source))
    }

    fn position(&self) -> (Position, Vec<(u32, u64, u64)>) {
        let writer = lock(&self.writer);
        let position = Position {
            segment: writer.active.number,
            offset: writer.offset,
            sequence: writer.sequence,
            serial_next: writer.serial_next,
        };
        let numbers = |segment: &Arc<Segment>| {
            (segment.number, segment.used.load(Ordering::Relaxed), segment.tombstones.load(Ordering::Relaxed))
        };
        (position, self.read().segments.values().map(numbers).collect())
    }

    fn write_checkpoint(&self, buffers: &mut Buffers) -> Result<()> {
        let disk = &*self.options.disk;
        let path = self.dir.join(CHECKPOINT_NAME);
        let temporary = path.with_extension("tmp");
        let since = self.counters.since_checkpoint.load(Ordering::Relaxed);
        let file = disk.create(&temporary).map_err(|source| io_error("make", &temporary, source))?;
        let mut out = Out { file, path: &temporary, buffer: &mut buffers.out, offset: 0, crc: 0 };
        out.buffer.clear();
        let finish = self.copy_indexes(&mut out, &mut buffers.piece).and_then(|()| {
            let crc = out.crc.to_le_bytes();
            let write = || {
                write_all_at(&*out.file, &crc, out.offset)?;
                out.file.sync()?;
                disk.rename(&temporary, &path)?;
                disk.sync_dir(&self.dir)
            };
            write().map_err(|source| io_error("write", &path, source))
        });
        if finish.is_err() {
            // Only to free the space.
            let _ = disk.remove(&temporary);
        } else {
            self.counters.since_checkpoint.fetch_sub(since, Ordering::Relaxed);
            self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        }
        finish
    }

    /// Rests between pieces. The thread that writes checkpoints also makes the next segment, which must not
    /// be late because of it.
    fn rest_between_pieces(&self) {
        let hurries = self.is_needed_soon(1, 1);
        self.wake.rest(if hurries { 1 } else { PIECE_REST });
    }

    fn copy_indexes(&self, out: &mut Out, buffer: &mut Vec<u8>) -> Result<()> {
        let (position, segments) = self.position();
        out.put(MAGIC);
        out.put(&CHECKPOINT_VERSION.to_le_bytes());
        out.put(&self.identity.id);
        out.put(&self.schema.to_le_bytes());
        out.put(&position.segment.to_le_bytes());
        out.put(&position.offset.to_le_bytes());
        out.put(&position.sequence.to_le_bytes());
        out.put(&position.serial_next.to_le_bytes());
        out.put(&u32::try_from(segments.len()).expect("24-bit numbers").to_le_bytes());
        for (number, used, tombstones) in segments {
            out.put(&number.to_le_bytes());
            out.put(&used.to_le_bytes());
            out.put(&tombstones.to_le_bytes());
        }
        let tables: Vec<(u16, usize)> =
            self.read().tables.iter().map(|(&id, table)| (id, table.secondary.len())).collect();
        for (id, slots) in tables {
            for part in 0..PARTS {
                let count = {
                    let state = self.read();
                    let entries = state.tables[&id].primary.part(part);
                    pairs(entries.map(|(fingerprint, location)| (fingerprint, location.0)), buffer)
                };
                out.chunk(PRIMARY, id, 0, count, buffer)?;
                self.rest_between_pieces();
            }
            for slot in 0..slots {
                self.copy_secondary(out, id, slot, buffer)?;
            }
        }
        out.put(&[END]);
        let (end, _) = self.position();
        out.put(&end.sequence.to_le_bytes());
        out.flush()
    }

    fn copy_secondary(&self, out: &mut Out, id: u16, slot: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let slot_byte = u8::try_from(slot).expect("index numbers are bytes");
        let is_hash = matches!(self.read().tables[&id].secondary[slot], Secondary::Hash(_));
        if is_hash {
            for part in 0..PARTS {
                let count = match &self.read().tables[&id].secondary[slot] {
                    Secondary::Hash(index) => pairs(index.part(part), buffer),
                    Secondary::Ordered(_) => unreachable!("an index keeps its kind"),
                };
                out.chunk(HASH, id, slot_byte, count, buffer)?;
                self.rest_between_pieces();
            }
            return Ok(());
        }
        let mut last: Option<super::index::Position> = None;
        loop {
            buffer.clear();
            let mut count = 0;
            {
                let state = self.read();
                let Secondary::Ordered(index) = &state.tables[&id].secondary[slot] else {
                    unreachable!("an index keeps its kind")
                };
                let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut end = None;
                for (position, key) in index.range::<[u8], _>((from, Bound::Unbounded)).take(ORDERED_STEP) {
                    buffer.extend_from_slice(
                        &u32::try_from(position.len()).expect("a frame's part").to_le_bytes(),
                    );
                    buffer.extend_from_slice(position);
                    buffer.extend_from_slice(&key.to_le_bytes());
                    count += 1;
                    end = Some(position.clone());
                }
                last = end;
            }
            out.chunk(ORDERED, id, slot_byte, count, buffer)?;
            self.rest_between_pieces();
            if count < ORDERED_STEP {
                return Ok(());
            }
        }
    }
}

/// Why a checkpoint is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("it is too short")]
    Short,
    #[error("it ends too early")]
    Truncated,
    #[error("it is of another format")]
    Format,
    #[error("it belongs to another store")]
    OtherStore,
    #[error("the index definitions have changed")]
    IndexesChanged,
    #[error("an entry fits no index")]
    Entry,
    #[error("data follows its end")]
    Trailing,
    #[error("its checksum is wrong")]
    Checksum,
}

type Loaded<T> = std::result::Result<T, CheckpointError>;

/// Reads a file through a buffer, and computes its checksum.
struct In {
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    at: usize,
    offset: u64,
    left: u64,
    crc: u32,
}

impl In {
    fn take(&mut self, n: usize) -> Loaded<&[u8]> {
        if self.buffer.len() - self.at < n {
            self.buffer.drain(..self.at);
            self.at = 0;
            let have = self.buffer.len();
            let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(BUFFER_BYTES.max(n - have));
            self.buffer.resize(have + want, 0);
            let got = read_full_at(&*self.file, &mut self.buffer[have..], self.offset)?;
            self.buffer.truncate(have + got);
            self.crc = crc32c::crc32c_append(self.crc, &self.buffer[have..]);
            self.offset += got as u64;
            self.left -= got as u64;
            if self.buffer.len() < n {
                return Err(CheckpointError::Truncated);
            }
        }
        self.at += n;
        Ok(&self.buffer[self.at - n..self.at])
    }

    fn array<const N: usize>(&mut self) -> Loaded<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take returns the length asked for"))
    }

    fn u8(&mut self) -> Loaded<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Loaded<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Loaded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Loaded<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Reads the checkpoint of a store, if there is one.
///
/// # Errors
/// Why it cannot be used. That costs only time, since the journal contains everything.
pub(crate) fn load(
    disk: &dyn Disk,
    dir: &Path,
    identity: &Identity,
    schema: u64,
    tables: &[&'static TableDef],
) -> Loaded<Option<Checkpoint>> {
    let names = disk.list(dir)?;
    if !names.iter().any(|name| name == CHECKPOINT_NAME) {
        return Ok(None);
    }
    let file = disk.open(&dir.join(CHECKPOINT_NAME), false)?;
    let size = file.size()?;
    let left = size.checked_sub(4).ok_or(CheckpointError::Short)?;
    let mut input = In { file, buffer: Vec::new(), at: 0, offset: 0, left, crc: 0 };
    if input.array()? != *MAGIC || input.u32()? != CHECKPOINT_VERSION {
        return Err(CheckpointError::Format);
    }
    if input.array()? != identity.id {
        return Err(CheckpointError::OtherStore);
    }
    if input.u64()? != schema {
        return Err(CheckpointError::IndexesChanged);
    }
    let position = Position {
        segment: input.u32()?,
        offset: input.u64()?,
        sequence: input.u64()?,
        serial_next: input.u64()?,
    };
    let mut segments = BTreeMap::new();
    for _ in 0..input.u32()? {
        segments.insert(input.u32()?, (input.u64()?, input.u64()?));
    }
    let mut indexes: HashMap<u16, TableIndex> =
        tables.iter().map(|def| (def.id, TableIndex::new(Some(def)))).collect();
    let sequence_end = loop {
        let kind = input.u8()?;
        if kind == END {
            break input.u64()?;
        }
        let table = input.u16()?;
        let slot = usize::from(input.u8()?);
        let count = input.u32()?;
        let table = indexes.entry(table).or_insert_with(|| TableIndex::new(None));
        read_chunk(&mut input, kind, slot, count, table)?;
    };
    if input.left > 0 || input.at < input.buffer.len() {
        return Err(CheckpointError::Trailing);
    }
    let mut crc = [0; 4];
    let n = read_full_at(&*input.file, &mut crc, size - 4)?;
    if n < 4 || u32::from_le_bytes(crc) != input.crc {
        return Err(CheckpointError::Checksum);
    }
    Ok(Some(Checkpoint { position, segments, tables: indexes, sequence_end }))
}

/// What a verified checkpoint (without its checksum) says about the journal: where replay continues, how far
/// the frames of each segment reached, and how many frames there were at its end. `None` if it belongs to
/// another store.
pub(crate) fn outline(body: &[u8], identity: &Identity) -> Option<(Position, BTreeMap<u32, u64>, u64)> {
    fn take<'a>(input: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = input.split_at_checked(n)?;
        *input = rest;
        Some(taken)
    }
    fn u32(input: &mut &[u8]) -> Option<u32> {
        Some(u32::from_le_bytes(take(input, 4)?.try_into().expect("four bytes")))
    }
    fn u64(input: &mut &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(take(input, 8)?.try_into().expect("eight bytes")))
    }
    let input = &mut &*body;
    if take(input, 8)? != MAGIC || u32(input)? != CHECKPOINT_VERSION || take(input, 16)? != identity.id {
        return None;
    }
    u64(input)?;
    let position = Position {
        segment: u32(input)?,
        offset: u64(input)?,
        sequence: u64(input)?,
        serial_next: u64(input)?,
    };
    let mut segments = BTreeMap::new();
    for _ in 0..u32(input)? {
        let (number, used) = (u32(input)?, u64(input)?);
        u64(input)?;
        segments.insert(number, used);
    }
    let (_, end) = input.split_last_chunk::<8>()?;
    Some((position, segments, u64::from_le_bytes(*end)))
}

fn read_chunk(input: &mut In, kind: u8, slot: usize, count: u32, table: &mut TableIndex) -> Loaded<()> {
    for _ in 0..count {
        match (kind, table.secondary.get_mut(slot)) {
            (PRIMARY, _) => {
                let (fingerprint, location) = (input.u64()?, Location(input.u64()?));
                table.primary.insert(fingerprint, location);
            }
            (HASH, Some(Secondary::Hash(index))) => {
                let (value, key) = (input.u64()?, input.u64()?);
                index.insert(value, key);
            }
            (ORDERED, Some(Secondary::Ordered(index))) => {
                let bytes = input.u32()? as usize;
                let position = input.take(bytes)?.into();
                index.insert(position, input.u64()?);
            }
            _ => return Err(CheckpointError::Entry),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Items;
    use crate::{ColumnKind, ColumnType, Table};

    #[test]
    fn changed_definitions_change_the_schema_hash() {
        const RENUMBERED: &TableDef =
            &TableDef::of::<Items>(900, "conformance_items").indexed(Items::DEF.indexes);
        const REVISED: &TableDef =
            &TableDef::of::<Items>(901, "conformance_items").indexed(Items::DEF.indexes).version(1);
        const RENAMED: &TableDef = &TableDef::of::<Items>(901, "items").indexed(Items::DEF.indexes);
        const COLUMNS: &[crate::ColumnDef] =
            &[crate::ColumnDef { name: "label", column: ColumnType::new(ColumnKind::U8) }];
        const OTHER_COLUMNS: &TableDef = &TableDef { row_columns: COLUMNS, ..*RENAMED };
        let identity = Identity { id: [1; 16], key: [2; 16] };
        let of = |table: &'static TableDef| schema(&identity, &[table]);
        assert_eq!(of(Items::DEF), of(RENAMED), "names do not matter");
        for other in [RENUMBERED, REVISED, OTHER_COLUMNS] {
            assert_ne!(of(Items::DEF), of(other), "{other:?}");
        }
    }
}

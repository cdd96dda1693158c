//! Checkpoints: what opening needs besides the journal's end, so that it need not read the whole journal.
//!
//! A checkpoint has a position of the journal, the state of the segments there, and the names of the runs that
//! have the indexes as they were there (`runs`). Opening applies the journal from that position on. No segment
//! that the journal had at the position is removed before the next checkpoint is complete, and neither are
//! the runs. A journal that ends before the checkpoint's end has lost acknowledged commits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::{Disk, io_error, read_file, replace_file};
use super::format::{CHECKPOINT_NAME, Identity, MANIFEST_NAME};
use super::head::{Head, Position, SegmentHead};
use super::input::{CheckpointError, Loaded};
use super::maintain::Maintenance;
use super::runs::{Run, RunName};
use super::{Core, lock};
use crate::{Result, StoreError, TableDef};

const MAGIC: &[u8; 8] = b"BATZIDX1";
/// The format of checkpoints. The manifest states the journal's format. Checkpoints of format 1, which had all
/// index entries, are not used: the first opening reads the whole journal.
const CHECKPOINT_VERSION: u32 = 2;
/// The pause after a piece, as a multiple of the time it took, unless something is needed soon.
const PIECE_REST: u32 = 4;
/// With more runs than this, or when a checkpoint is overdue, maintenance rests less.
const RUNS_MANY: usize = 8;
/// With more than this, it does not rest, because every payment asks the filters of all runs. Nor does it when the
/// journal has grown by two checkpoints since the last one, because a start reads all of that.
const RUNS_TOO_MANY: usize = 14;

/// The content of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outline {
    schema: u64,
    pub(crate) head: Head,
    /// Oldest first.
    pub(crate) runs: Vec<RunName>,
    /// The journal must have all frames before this one.
    pub(crate) sequence_end: u64,
}

/// A loaded checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) head: Head,
    pub(crate) runs: Vec<Arc<Run>>,
    pub(crate) sequence_end: u64,
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

impl Outline {
    fn encode(&self, identity: &Identity) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
        let count = |len: usize| u32::try_from(len).expect("24-bit numbers").to_le_bytes();
        put(&CHECKPOINT_VERSION.to_le_bytes());
        put(&identity.id);
        put(&self.schema.to_le_bytes());
        let Position { segment, offset, sequence, serial_next } = self.head.position;
        put(&segment.to_le_bytes());
        [offset, sequence, serial_next, self.sequence_end].iter().for_each(|n| put(&n.to_le_bytes()));
        put(&count(self.head.segments.len()));
        for segment in &self.head.segments {
            put(&segment.number.to_le_bytes());
            [segment.used, segment.tombstones, segment.live].iter().for_each(|n| put(&n.to_le_bytes()));
        }
        put(&count(self.runs.len()));
        for run in &self.runs {
            put(&run.number.to_le_bytes());
            [run.bytes, run.meta_offset].iter().for_each(|n| put(&n.to_le_bytes()));
            put(&run.meta_crc.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    pub(super) fn decode(identity: &Identity, bytes: &[u8]) -> Loaded<Self> {
        let (body, crc) = bytes.split_last_chunk().ok_or(CheckpointError::Short)?;
        if crc32c::crc32c(body).to_le_bytes() != *crc {
            return Err(CheckpointError::Checksum);
        }
        let mut input = Bytes(body);
        if input.array()? != *MAGIC {
            return Err(CheckpointError::Format);
        }
        let version = input.u32()?;
        if input.array()? != identity.id {
            return Err(CheckpointError::OtherStore);
        }
        match version {
            CHECKPOINT_VERSION => {}
            1 => return Err(CheckpointError::Older),
            _ => return Err(CheckpointError::Format),
        }
        let schema = input.u64()?;
        let position = Position {
            segment: input.u32()?,
            offset: input.u64()?,
            sequence: input.u64()?,
            serial_next: input.u64()?,
        };
        let sequence_end = input.u64()?;
        let mut segments = Vec::new();
        for _ in 0..input.u32()? {
            let number = input.u32()?;
            let (used, tombstones, live) = (input.u64()?, input.u64()?, input.u64()?);
            segments.push(SegmentHead { number, used, tombstones, live });
        }
        let mut runs = Vec::new();
        for _ in 0..input.u32()? {
            let (number, bytes, meta_offset) = (input.u32()?, input.u64()?, input.u64()?);
            runs.push(RunName { number, bytes, meta_offset, meta_crc: input.u32()? });
        }
        if !input.0.is_empty() {
            return Err(CheckpointError::Trailing);
        }
        Ok(Self { schema, head: Head { position, segments }, runs, sequence_end })
    }
}

/// Takes numbers from bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&mut self) -> Loaded<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(CheckpointError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Loaded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Loaded<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

impl Core {
    /// Writes a checkpoint, then removes the segments that compaction has emptied.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut maintenance = lock(&self.maintenance);
        match self.write_checkpoint(&mut maintenance) {
            // There is no space for a checkpoint. What it would replace can still be removed, if no older
            // checkpoint refers to it.
            Err(StoreError::Full(_))
                if self.unneeded_bytes() > 0 || !maintenance.runs.obsolete.is_empty() =>
            {
                self.remove_checkpoint()?;
            }
            written => written?,
        }
        self.remove_obsolete(&mut maintenance);
        let unneeded = self.take_unneeded();
        if unneeded.is_empty() {
            return Ok(());
        }
        let active = lock(&self.writer).active.number;
        let mut manifest = maintenance.manifest.clone();
        manifest.segments_upto = active;
        manifest.segments = self.read().segments.keys().copied().filter(|&number| number <= active).collect();
        manifest.segments.extend(self.kept_numbers());
        manifest.segments.sort_unstable();
        replace_file(&*self.options.disk, &self.dir, MANIFEST_NAME, manifest.encode().as_bytes())
            .inspect_err(|_| unneeded.iter().for_each(|segment| self.keep(segment)))?;
        maintenance.manifest = manifest;
        for segment in unneeded {
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

    fn write_checkpoint(&self, maintenance: &mut Maintenance) -> Result<()> {
        let disk = &*self.options.disk;
        let since = self.counters.since_checkpoint.load(Ordering::Relaxed);
        // First what an earlier attempt could not write.
        self.flush_frozen(&mut maintenance.runs)?;
        let head = self.freeze_changes();
        self.flush_frozen(&mut maintenance.runs)?;
        // The runs' names must be durable before a checkpoint names them.
        disk.sync_dir(&self.dir).map_err(|source| io_error("sync", &self.dir, source))?;
        let runs = self.read().cold.runs.iter().map(|run| run.run.name).collect();
        let sequence_end = lock(&self.writer).sequence;
        let outline = Outline { schema: self.schema, head, runs, sequence_end };
        replace_file(disk, &self.dir, CHECKPOINT_NAME, &outline.encode(&self.identity))?;
        self.counters.since_checkpoint.fetch_sub(since, Ordering::Relaxed);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the files of runs that no checkpoint names any more.
    fn remove_obsolete(&self, maintenance: &mut Maintenance) {
        for run in maintenance.runs.obsolete.drain(..) {
            if let Err(error) = self.options.disk.remove(run.path()) {
                // The next start removes it.
                tracing::warn!(file = %run.path().display(), %error, "a merged index file could not be removed");
            }
        }
    }

    /// Rests between pieces. The thread that writes runs also makes the next segment, which must not be late
    /// because of it.
    pub(crate) fn rest_between_pieces(&self) {
        let hurries = self.is_needed_soon(1, 1);
        if hurries && self.prepare_next().is_err() {
            // The next round tries again and reports it.
        }
        let runs = self.read().cold.runs.len();
        let since = self.counters.since_checkpoint.load(Ordering::Relaxed);
        let due = self.options.checkpoint_bytes;
        self.wake.rest(if runs > RUNS_TOO_MANY || since > 2 * due {
            0
        } else if hurries || runs > RUNS_MANY || since > due {
            1
        } else {
            PIECE_REST
        });
    }
}

/// Reads the checkpoint of a store, if there is one, and opens its runs.
///
/// # Errors
/// Why it cannot be used. That costs only time, since the journal contains everything.
pub(crate) fn load(
    disk: &dyn Disk,
    dir: &Path,
    identity: &Identity,
    schema: u64,
) -> Loaded<Option<Checkpoint>> {
    let names = disk.list(dir)?;
    if !names.iter().any(|name| name == CHECKPOINT_NAME) {
        return Ok(None);
    }
    let outline = Outline::decode(identity, &read_file(disk, &dir.join(CHECKPOINT_NAME))?)?;
    if outline.schema != schema {
        return Err(CheckpointError::IndexesChanged);
    }
    let open = |name: &RunName| Run::open(disk, dir, identity, *name).map(Arc::new);
    let runs = outline.runs.iter().map(open).collect::<Loaded<_>>()?;
    Ok(Some(Checkpoint { head: outline.head, runs, sequence_end: outline.sequence_end }))
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

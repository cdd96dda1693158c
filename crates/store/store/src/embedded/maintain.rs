//! Background work: preparing segments and compaction, and the thread that does it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::disk::{io_error, read_full_at, write_all_at};
use super::format::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, Manifest, RecordView, SEGMENT_BYTES_LIMIT,
    SEGMENT_HEADER_BYTES, SEGMENT_NUMBER_LIMIT, encode_segment_header, record_bytes, segment_name,
};
use super::index::Location;
use super::packed::{HEADER_BYTES_MAX, Head, Packer};
use super::record::{self, Record, SegmentFile, put_row};
use super::runs::{PartKey, RunWork};
use super::{Core, Identity, Options, Segment, fingerprint, lock, tail};
use crate::{Result, StoreError, TableDef};

/// The segment after the active one.
pub(crate) struct NextSegment {
    pub number: u32,
    /// Created in advance, so that no commit waits for it.
    pub(crate) ready: Option<Arc<Segment>>,
    /// When the disk was last found to be full, because a failed attempt to create a segment takes long, too.
    pub(crate) full_since: Option<Instant>,
}

/// State that only maintenance changes.
pub(crate) struct Maintenance {
    pub(crate) manifest: Manifest,
    /// Runs that are merged or to be removed.
    pub(crate) runs: RunWork,
}

/// A new segment is synced whenever this much of it has been written, so that no commit waits for all of it.
const SYNC_BYTES: u64 = 256 << 10;
/// The longest pause between two pieces of background work.
const REST_MAX: Duration = Duration::from_millis(10);
/// The pause after a piece of the next segment, as a multiple of the time it took, unless the segment is
/// needed soon.
const SEGMENT_REST: u32 = 3;

/// The smallest segment that compaction creates when the disk is nearly full, in bytes.
const SMALL_SEGMENT_BYTES: u64 = 1 << 20;

/// A live record that is being copied from a segment.
struct Moving {
    def: Option<&'static TableDef>,
    head: Head,
    birth: u32,
    fingerprint: u64,
    location: Location,
    record_bytes: usize,
    content: Content,
    /// The operation on the row in the latest changes of the index, when the row was found to be needed.
    latest: Option<bool>,
}

/// The content to copy.
enum Content {
    /// A row of a known table, to be packed for its new place.
    Row { key: Vec<u8>, row: Vec<u8> },
    /// A record without references: a row of a table that this program does not know.
    Foreign(Vec<u8>),
    /// A deletion.
    Tombstone { key: Vec<u8> },
}

impl Moving {
    fn is_row(&self) -> bool {
        !matches!(self.content, Content::Tombstone { .. })
    }

    /// The most bytes that its record takes.
    fn bytes_max(&self) -> usize {
        let bytes = match &self.content {
            Content::Row { key, row } => key.len() + row.len(),
            Content::Foreign(bytes) => bytes.len(),
            Content::Tombstone { key } => key.len(),
        };
        record_bytes(bytes, 0) + HEADER_BYTES_MAX
    }

    /// Appends the record, and returns its size.
    fn encode(&self, packer: &mut Packer<'_>, out: &mut Vec<u8>) -> Result<usize> {
        let Head { table, serial, .. } = self.head;
        match (&self.content, self.def) {
            (Content::Row { key, row }, Some(def)) => Ok(put_row(packer, def, self.head, (key, row), out)),
            (Content::Tombstone { key }, _) => {
                let view = RecordView { table, birth: self.birth, serial, layout: 0, key, row: None };
                Ok(view.encode(out))
            }
            (Content::Foreign(bytes), _) => {
                let mut scratch = Vec::new();
                let decoded = record::decode(bytes, (0, 0), &mut &[][..], &mut scratch)?;
                let (record, _) = decoded.expect("it was decoded before");
                match record.packed {
                    Some(packed) => Ok(packer.again(&packed, Some(self.birth), out)),
                    None => {
                        out.extend_from_slice(bytes);
                        Ok(bytes.len())
                    }
                }
            }
            (Content::Row { .. }, None) => unreachable!("such records are foreign"),
        }
    }
}

impl Core {
    /// Returns the next segment. If it was not created in advance, it has room for a frame of `bytes` bytes.
    /// When the disk is nearly full, compaction gets a small one, since it frees space in the end.
    pub(crate) fn take_next(&self, frame_bytes: u64, kind: FrameKind) -> Result<Arc<Segment>> {
        // If it is being created now, finish without pauses.
        self.wake.hurry.fetch_add(1, Ordering::Relaxed);
        let mut next = lock(&self.next);
        self.wake.hurry.fetch_sub(1, Ordering::Relaxed);
        let bytes_min = SEGMENT_HEADER_BYTES + frame_bytes;
        let segment = match next.ready.take() {
            Some(segment) => segment,
            None if kind == FrameKind::Move => {
                self.create_segment(next.number, bytes_min).or_else(|error| {
                    let small = SMALL_SEGMENT_BYTES.min(self.options.segment_bytes_first).max(bytes_min);
                    if matches!(error, StoreError::Full(_)) {
                        self.create_sized(next.number, small)
                    } else {
                        Err(error)
                    }
                })?
            }
            None => self.create_unless_full(&mut next, bytes_min)?,
        };
        assert_eq!(segment.number, next.number, "segments are created in order");
        next.number += 1;
        Ok(segment)
    }

    fn create_unless_full(&self, next: &mut NextSegment, bytes_min: u64) -> Result<Arc<Segment>> {
        if next.full_since.is_some_and(|since| since.elapsed() < self.options.full_pause) {
            return Err(StoreError::Full("it was found full just now, and is tried again soon".into()));
        }
        let created = self.create_segment(next.number, bytes_min);
        next.full_since = matches!(created, Err(StoreError::Full(_))).then(Instant::now);
        created
    }

    pub(crate) fn prepare_next(&self) -> Result<()> {
        let mut next = lock(&self.next);
        if next.ready.is_none() {
            next.ready = Some(self.create_unless_full(&mut next, 0)?);
        }
        Ok(())
    }

    /// Creates a segment full of zeros: its space is reserved, and later syncs have no metadata to write.
    fn create_segment(&self, number: u32, bytes_min: u64) -> Result<Arc<Segment>> {
        self.create_sized(number, segment_bytes(&self.options, number).max(bytes_min))
    }

    fn create_sized(&self, number: u32, bytes: u64) -> Result<Arc<Segment>> {
        let rest = &mut |made, of| {
            if !self.is_needed_soon(made, of) {
                self.wake.rest(SEGMENT_REST);
            }
        };
        create_segment(&self.dir, &self.options, &self.identity, number, bytes, rest)
    }

    /// Returns whether the creation of the next segment is late: it must be complete when half of the current
    /// one is used.
    pub(crate) fn is_needed_soon(&self, made: u64, of: u64) -> bool {
        let state = self.read();
        state.segments.values().next_back().is_some_and(|active| {
            let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
            is_behind((made, of), (load(&active.used), load(&active.capacity)))
        })
    }

    /// One round of maintenance: prepares the next segment, compacts, merges runs, and writes a checkpoint when
    /// one is due. A round is bounded and always reaches the checkpoint, however much there is to do.
    pub(crate) fn maintain(&self) -> Result<()> {
        let prepared = self.prepare_next();
        let compacted = self.compact_round();
        let merged = self.merge_round();
        let due = {
            let maintenance = lock(&self.maintenance);
            self.limit_holds(matches!(prepared, Err(StoreError::Full(_))))?;
            let bytes = |segment: &Arc<Segment>| segment.used.load(Ordering::Relaxed);
            let retired = self.unneeded_bytes();
            let kept: u64 = self.read().segments.values().map(bytes).sum();
            let since = self.counters.since_checkpoint.load(Ordering::Relaxed);
            since >= self.options.checkpoint_bytes
                || retired > 0 && (retired * 4 >= kept || prepared.is_err())
                || !maintenance.runs.obsolete.is_empty()
                || self.is_over_budget()
        };
        if due {
            self.checkpoint()?;
        }
        self.mark_tail();
        prepared.and(compacted).and(merged)
    }

    /// Compacts mostly dead segments among those that were full when the round started, until it has copied
    /// as many bytes as there are between checkpoints. Requests another round if something is left. Ignores
    /// what the round itself writes, so that it ends.
    fn compact_round(&self) -> Result<()> {
        let before = lock(&self.writer).active.number;
        let mut copied = 0;
        while let Some(bytes) = self.compact_one(before)? {
            copied += bytes;
            if copied >= self.options.checkpoint_bytes {
                self.wake.notify();
                break;
            }
        }
        Ok(())
    }

    /// Compacts the segment with the largest dead share among those below `before`, if the share is large
    /// enough. Returns how many bytes it copied; `None` if there is no such segment, or the store is
    /// stopping.
    fn compact_one(&self, before: u32) -> Result<Option<u64>> {
        let _maintenance = lock(&self.maintenance);
        let Some(victim) = self.pick_victim(before) else { return Ok(None) };
        let Some(copied) = self.compact(&victim)? else { return Ok(None) };
        let live = victim.live.load(Ordering::Relaxed);
        if live != 0 {
            victim.damaged.store(true, Ordering::Relaxed);
            return Err(
                victim.corrupt(0, format!("{live} bytes of live records were not found in compaction"))
            );
        }
        self.keep(&victim);
        let mut state = self.write();
        Arc::make_mut(&mut state.segments).remove(&victim.number);
        drop(state);
        self.counters.compacted.fetch_add(1, Ordering::Relaxed);
        Ok(Some(copied))
    }

    fn pick_victim(&self, before: u32) -> Option<Arc<Segment>> {
        let state = self.read();
        let oldest = state.segments.keys().next().copied();
        let dead_percent = |segment: &Segment| {
            let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
            let data = load(&segment.used) - SEGMENT_HEADER_BYTES;
            // Tombstones in the oldest segment are no longer needed.
            let tombstones = if Some(segment.number) == oldest { 0 } else { load(&segment.tombstones) };
            let needed = load(&segment.live) + tombstones;
            if needed == 0 { 100 } else { data.saturating_sub(needed) * 100 / data.max(1) }
        };
        let sealed =
            state.segments.values().filter(|s| s.number < before && !s.damaged.load(Ordering::Relaxed));
        let (dead, victim) = sealed.map(|s| (dead_percent(s), s)).max_by_key(|(dead, _)| *dead)?;
        (dead >= self.options.compaction_dead_percent).then(|| Arc::clone(victim))
    }

    /// Copies the records of a segment that are still needed to the end of the journal. Returns the number of
    /// bytes; `None` if the store is stopping.
    fn compact(&self, victim: &Arc<Segment>) -> Result<Option<u64>> {
        let mut moving: Vec<Moving> = Vec::new();
        let mut moving_bytes = 0;
        let mut copied = 0;
        let mut offset = SEGMENT_HEADER_BYTES;
        let mut file = SegmentFile::new(victim);
        let mut scratch = Vec::new();
        while offset < victim.used.load(Ordering::Relaxed) {
            let frame = self.read_frame(victim, offset).inspect_err(|_| {
                victim.damaged.store(true, Ordering::Relaxed);
            })?;
            let Some((header, frame)) = frame else { break };
            let payload = header.payload_of(&frame);
            let mut at = 0;
            while at < payload.len() {
                let place = offset + (FRAME_HEADER_BYTES + at) as u64;
                let decoded =
                    record::decode(&payload[at..], (victim.number, place), &mut file, &mut scratch)?;
                let (record, bytes) = decoded.map_err(|what| {
                    victim.damaged.store(true, Ordering::Relaxed);
                    victim.corrupt(place, what)
                })?;
                let location = Location::new(victim.number, place, bytes);
                let fingerprint = fingerprint(&self.identity, record.key);
                if let Some(latest) = self.is_needed(victim, &record, (fingerprint, location))? {
                    let step =
                        self.moving(&record, &payload[at..at + bytes], fingerprint, location, latest)?;
                    let step_bytes = step.bytes_max();
                    if !moving.is_empty() && moving_bytes + step_bytes > self.options.compaction_step_bytes {
                        copied += self.move_records(victim, &moving)?;
                        moving.clear();
                        moving_bytes = 0;
                        self.wake.rest(1);
                        if self.wake.is_stopping() {
                            return Ok(None);
                        }
                    }
                    moving_bytes += step_bytes;
                    moving.push(step);
                }
                at += bytes;
            }
            offset += header.frame_bytes();
        }
        copied += self.move_records(victim, &moving)?;
        Ok(Some(copied))
    }

    /// Returns the content to copy of a record.
    fn moving(
        &self,
        record: &Record<'_>,
        bytes: &[u8],
        fingerprint: u64,
        location: Location,
        latest: Option<bool>,
    ) -> Result<Moving> {
        let def = self.read().tables.get(&record.table).and_then(|index| index.def);
        let key = record.key.to_vec();
        let content = match (def, record.packed) {
            _ if !record.is_row() => Content::Tombstone { key },
            (Some(def), _) => {
                let row = record.row(def)?.expect("it is a row").into_owned();
                Content::Row { key, row }
            }
            (None, None) => Content::Foreign(bytes.to_vec()),
            (None, Some(packed)) => {
                let mut alone = Vec::new();
                Packer::new(0, None, 1).again(&packed, Some(record.birth), &mut alone);
                Content::Foreign(alone)
            }
        };
        let Record { table, birth, serial, layout, .. } = *record;
        let head = Head { table, birth: Some(birth), serial, layout };
        let record_bytes = bytes.len();
        Ok(Moving { def, head, birth, fingerprint, location, record_bytes, content, latest })
    }

    /// Returns what the latest changes say about a record, if it is still needed. May read an index block.
    fn is_needed(
        &self,
        victim: &Segment,
        record: &Record<'_>,
        (fingerprint, location): (u64, Location),
    ) -> Result<Option<Option<bool>>> {
        if !record.is_row() {
            let older = record.birth.min(victim.number)..victim.number;
            let is_needed = self.read().segments.range(older).next().is_some();
            return Ok(is_needed.then_some(None));
        }
        let (latest, cold) = {
            let state = self.read();
            (state.latest_op(record.table, fingerprint, location), Arc::clone(&state.cold))
        };
        let is_live = cold.contains(PartKey::primary(record.table), (fingerprint, location.0), latest)?;
        Ok(is_live.then_some(latest))
    }

    /// The verified frame at an offset; `None` at the end.
    pub(crate) fn read_frame(
        &self,
        segment: &Segment,
        offset: u64,
    ) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let read = |bytes: &mut [u8], offset| {
            read_full_at(&*segment.file, bytes, offset)
                .map_err(|source| io_error("read", &segment.path, source))
        };
        let mut header = [0; FRAME_HEADER_BYTES];
        let n = read(&mut header, offset)?;
        if header[..n].iter().all(|&b| b == 0) {
            return Ok(None);
        }
        let Some(header) = FrameHeader::decode(&self.identity, segment.number, offset, &header[..n]) else {
            return Err(segment.corrupt(offset, "not a frame"));
        };
        if header.frame_bytes() > segment.used.load(Ordering::Relaxed) - offset {
            return Err(segment.corrupt(offset, "a frame reaches past the last one"));
        }
        let mut frame = vec![0; usize::try_from(header.frame_bytes()).expect("a part of a segment")];
        let n = read(&mut frame, offset)?;
        match tail::check_frame(&header, offset, &frame[..n]) {
            Ok(()) => Ok(Some((header, frame))),
            Err(fault) => Err(segment.corrupt(fault.at(), fault.what())),
        }
    }

    /// Writes records to the end of the journal as one frame. Returns its size in bytes.
    fn move_records(&self, victim: &Segment, moving: &[Moving]) -> Result<u64> {
        if moving.is_empty() {
            return Ok(0);
        }
        self.check_running()?;
        // Nobody changes claimed rows: copy what is live now. A tombstone's row is claimed, too, because it may
        // be inserted again.
        let mut rows: Vec<_> = moving.iter().map(|step| (step.fingerprint, step.head.table)).collect();
        rows.sort_unstable();
        rows.dedup();
        let _claim = self.claims.claim(rows);
        let mut writer = lock(&self.writer);
        let bytes_max = moving.iter().map(Moving::bytes_max).sum();
        while !self.make_room(&mut writer, bytes_max, FrameKind::Move)? {}
        let mut packer = Packer::new(writer.active.number, Some(&self.dictionary), moving.len());
        let mut moved: Vec<(&Moving, usize, usize)> = Vec::with_capacity(moving.len());
        let frame = writer.begin();
        for step in moving {
            if self.is_still_needed(step) {
                let at = frame.len();
                moved.push((step, at, step.encode(&mut packer, frame)?));
            }
        }
        if moved.is_empty() {
            return Ok(0);
        }
        let serial_next = writer.serial_next;
        let start = self.append(&mut writer, FrameKind::Move, moved.len(), serial_next)?;
        let frame_bytes = writer.offset - start;
        let active = &writer.active;
        let mut state = self.write();
        for (step, at, bytes) in moved {
            let location = Location::new(active.number, start + at as u64, bytes);
            if step.is_row() {
                let index = state.tables.get_mut(&step.head.table).expect("a live record's table is known");
                index.primary.replace(step.fingerprint, step.location, location);
                victim.live.fetch_sub(step.record_bytes as u64, Ordering::Relaxed);
                active.live.fetch_add(bytes as u64, Ordering::Relaxed);
            } else {
                active.tombstones.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        Ok(frame_bytes)
    }

    /// Returns whether a record that was needed still is. Changes are frozen only under the lock of
    /// maintenance, which compaction holds: so a row that was removed since then is in the latest changes,
    /// and nothing is read while commits wait.
    fn is_still_needed(&self, step: &Moving) -> bool {
        let latest = || self.read().latest_op(step.head.table, step.fingerprint, step.location);
        !step.is_row() || latest() == step.latest
    }
}

/// The size of the next segment; they grow with the store.
pub(crate) fn segment_bytes(options: &Options, number: u32) -> u64 {
    let doublings = (number - 1).min(16);
    (options.segment_bytes_first << doublings).min(options.segment_bytes_max)
}

/// Returns whether the created share of the next segment is less than twice the used share of the current
/// one.
fn is_behind((made, of): (u64, u64), (used, capacity): (u64, u64)) -> bool {
    u128::from(made) * u128::from(capacity) < 2 * u128::from(used) * u128::from(of)
}

/// Creates a segment; see [`Core::create_segment`]. Calls `rest` between pieces, with the number of bytes
/// written and the segment's size.
pub(crate) fn create_segment(
    dir: &Path,
    options: &Options,
    identity: &Identity,
    number: u32,
    bytes: u64,
    rest: &mut dyn FnMut(u64, u64),
) -> Result<Arc<Segment>> {
    if number >= SEGMENT_NUMBER_LIMIT {
        return Err(StoreError::Backend("the journal has used up its segment numbers".into()));
    }
    let size = bytes.div_ceil(8) * 8;
    assert!(
        size > SEGMENT_HEADER_BYTES && size <= SEGMENT_BYTES_LIMIT,
        "segment sizes are between 64 bytes and 128 MiB"
    );

    let disk = &*options.disk;
    let path = dir.join(segment_name(number));
    let temporary = path.with_extension("tmp");
    let mut create = || {
        let file = disk.create(&temporary)?;
        let mut chunk = vec![0; usize::try_from(size.min(256 << 10)).expect("at most 256 KiB")];
        let header = encode_segment_header(identity, number, size);
        chunk[..header.len()].copy_from_slice(&header);
        let mut offset = 0;
        while offset < size {
            let n = chunk.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX));
            write_all_at(&*file, &chunk[..n], offset)?;
            if offset == 0 {
                chunk[..header.len()].fill(0);
            }
            offset += n as u64;
            if offset.is_multiple_of(SYNC_BYTES) && offset < size {
                file.sync()?;
                rest(offset, size);
            }
        }
        file.sync()?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(dir)?;
        Ok(file)
    };
    let file = create().map_err(|source| {
        // Frees the space. If that fails, the next attempt overwrites the file, or the next start removes it.
        let _ = disk.remove(&temporary);
        io_error("make", &path, source)
    })?;
    Ok(Arc::new(Segment {
        number,
        path,
        file,
        capacity: AtomicU64::new(size),
        used: AtomicU64::new(SEGMENT_HEADER_BYTES),
        live: AtomicU64::new(0),
        tombstones: AtomicU64::new(0),
        damaged: AtomicBool::new(false),
    }))
}

/// Wakes the background thread.
#[derive(Default)]
pub(crate) struct Wake {
    pending: Mutex<bool>,
    condition: Condvar,
    stopping: AtomicBool,
    /// Commits that wait for the current work.
    hurry: AtomicU64,
    /// When the background thread started to work after its last pause; `None` if a caller does the work and
    /// waits for it.
    busy_since: Mutex<Option<Instant>>,
}

/// Interval at which the background thread runs without being woken.
const LOOK_AROUND: Duration = Duration::from_secs(5);
/// Interval of checks whether commits have stopped, so that the journal's end should be marked.
const QUIET: Duration = Duration::from_millis(500);

impl Wake {
    pub(crate) fn notify(&self) {
        *lock(&self.pending) = true;
        self.condition.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Called between pieces of background work. Pauses for a multiple of the time that the last piece took,
    /// so that payments get processor and disk, and never wait for more than one piece.
    pub(crate) fn rest(&self, times: u32) {
        let mut busy_since = lock(&self.busy_since);
        let Some(since) = *busy_since else { return };
        if !self.is_stopping() && self.hurry.load(Ordering::Relaxed) == 0 {
            std::thread::sleep((times * since.elapsed()).min(REST_MAX));
        }
        *busy_since = Some(Instant::now());
    }

    /// Waits briefly to be woken. Returns whether that happened.
    fn wait(&self, timeout: Duration) -> bool {
        let pending = lock(&self.pending);
        let wait = self.condition.wait_timeout_while(pending, timeout, |pending| !*pending);
        std::mem::take(&mut *wait.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// The background thread.
pub(crate) struct Maintainer {
    core: Arc<Core>,
    thread: JoinHandle<()>,
}

impl Maintainer {
    pub(super) fn start(core: &Arc<Core>) -> Self {
        core.wake.notify();
        let own = Arc::clone(core);
        let run = move || {
            let mut looked = Instant::now();
            let mut sequence = 0;
            loop {
                let is_called = own.wake.wait(QUIET);
                if own.wake.is_stopping() {
                    return;
                }
                if !is_called && looked.elapsed() < LOOK_AROUND {
                    let before = std::mem::replace(&mut sequence, lock(&own.writer).sequence);
                    if before == sequence {
                        own.mark_tail();
                    }
                    continue;
                }
                looked = Instant::now();
                *lock(&own.wake.busy_since) = Some(Instant::now());
                let maintained = own.maintain();
                *lock(&own.wake.busy_since) = None;
                match maintained {
                    Ok(()) | Err(StoreError::Stopped(_)) => {}
                    Err(error) => {
                        tracing::warn!(store = %own.dir.display(), %error, "store maintenance failed; trying again later");
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("store-maintain".into()).spawn(run);
        Self {
            core: Arc::clone(core),
            thread: thread.expect("a thread can be started when a store is opened"),
        }
    }

    pub(super) fn stop(self) {
        self.core.wake.stopping.store(true, Ordering::Relaxed);
        self.core.wake.notify();
        if self.thread.join().is_err() {
            tracing::error!("the store's maintenance thread had panicked");
        }
        self.core.wake.stopping.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_segment_is_ready_when_half_of_the_current_one_is_used() {
        let (of, capacity) = (64 << 20, 32 << 20);
        assert!(!is_behind((0, of), (0, capacity)));
        assert!(is_behind((1 << 20, of), (1 << 20, capacity)), "1/64 made, 1/32 used");
        assert!(!is_behind((4 << 20, of), (1 << 20, capacity)));
        assert!(is_behind((of - 1, of), (capacity / 2, capacity)));
        assert!(!is_behind((of, of), (capacity / 2, capacity)));
        assert!(is_behind((of, of), (capacity, capacity)), "no more pauses");
        assert!(!is_behind((1, of), (0, 0)));
    }
}

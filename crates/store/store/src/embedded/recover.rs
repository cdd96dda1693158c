//! Opening: the manifest, the last checkpoint, and the journal after it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::checkpoint;
use super::claims::Claims;
use super::disk::{Disk, io_error, read_file, replace_file, write_all_at};
use super::feed::Keeping;
use super::format::{
    CHECKPOINT_NAME, FRAME_HEADER_BYTES, FrameHeader, Identity, LOCK_NAME, MANIFEST_NAME, MANIFEST_VERSION,
    Manifest, NUMBER_LIMIT, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES, decode_segment_header, segment_name,
    segment_number,
};
use super::group::Group;
use super::head::{Head, Position, SegmentHead};
use super::index::{Location, Ops, Secondary, SecondaryOp, TableIndex};
use super::maintain::{Maintenance, NextSegment, Wake, create_segment, segment_bytes};
use super::migrate;
use super::record::{self, Record, RecordCache, Rows, StoredRecord};
use super::runs::{
    Cold, FrozenChanges, Kind, KnownMarks, Marks, PositionReader, Run, RunRef, RunWork, run_number, write_run,
};
use super::shared::Dictionary;
use super::tail::{self, Fault, TailMarks};
use super::writer::Writer;
use super::{Core, Counters, EngineState, Options, Segment, Segments, fingerprint, secondary_entries};
use crate::{IndexEntries, Result, StoreError, TableDef};

/// Opens or creates the store in `dir`.
pub(crate) fn open(dir: &Path, tables: &[&'static TableDef], options: Options) -> Result<Core> {
    for (n, table) in tables.iter().enumerate() {
        assert!(
            tables[..n].iter().all(|other| other.id != table.id),
            "two tables have the number {}",
            table.id
        );
    }
    let disk = Arc::clone(&options.disk);
    disk.create_dir(dir).map_err(|source| io_error("make", dir, source))?;
    let lock_path = dir.join(LOCK_NAME);
    let lock = disk.lock(&lock_path).map_err(|source| io_error("lock", &lock_path, source))?;
    let lock = lock.ok_or_else(|| StoreError::InUse(dir.to_owned()))?;

    let mut manifest = read_or_make_manifest(dir, &options)?;
    let identity = manifest.identity;
    let schema = checkpoint::schema(&identity, tables);
    let layouts = migrate::layouts(&dir.join(MANIFEST_NAME), &manifest, tables)?;
    let mut segments = open_segments(&*disk, dir, &manifest)?;
    if segments.is_empty() {
        let first = create_segment(dir, &options, &identity, 1, segment_bytes(&options, 1), &mut |_, _| ())?;
        segments.insert(1, first);
    }
    if manifest.segments_upto == 0 {
        // From now on, a missing first segment is noticed.
        manifest.segments_upto = 1;
        manifest.segments = vec![1];
        replace_file(&*disk, dir, MANIFEST_NAME, manifest.encode().as_bytes())?;
    }

    let with_tables = |loaded: checkpoint::Checkpoint| Ok((index_tables(tables, &loaded.runs)?, loaded));
    let loaded = checkpoint::load(&*disk, dir, &identity, schema);
    let loaded = loaded.and_then(|loaded| loaded.map(with_tables).transpose()).unwrap_or_else(|error| {
        tracing::warn!(store = %dir.display(), reason = %error, "the checkpoint is not usable; the whole journal is read instead");
        None
    });
    let known = loaded.as_ref().map_or(&[][..], |(_, loaded)| &loaded.runs);
    let runs = RunWork { next: remove_unknown_runs(&*disk, dir, known)?, ..RunWork::default() };
    let mut replay = Replay::new(dir, &options, identity, tables, (&segments, runs));
    let mut position: Option<Position> = None;
    let mut sequence_end = 1;
    let mut emptied = Vec::new();
    if let Some((tables, loaded)) = loaded {
        let is_known = |number: &u32| loaded.head.segments.iter().any(|head| head.number == *number);
        let earlier = segments.range(..loaded.head.position.segment).map(|(number, _)| *number);
        emptied = earlier.filter(|number| !is_known(number)).collect();
        sequence_end = loaded.sequence_end;
        replay.tables = tables;
        position = Some(replay.start_from(loaded)?);
    }
    let last = replay.run(position)?;
    if replay.sequence < sequence_end {
        let segment = &segments[&last];
        let what = format!(
            "the journal ends before frame {}, but a checkpoint has all before frame {sequence_end}",
            replay.sequence
        );
        return Err(segment.corrupt(segment.used.load(Ordering::Relaxed), what));
    }
    let mark = tail::read_mark(&*disk, dir, &identity)?;
    if let Some((mark, _)) = mark.filter(|(mark, _)| replay.sequence < mark.sequence) {
        let segment = &segments[&last];
        return Err(segment.corrupt(segment.used.load(Ordering::Relaxed), mark.complaint(replay.sequence)));
    }
    let Replay { tables, cold, runs, sequence, serial_next, last_frame, torn, .. } = replay;
    let torn = torn.map(|(number, offset, what)| (Arc::clone(&segments[&number]), offset, what));
    let first = position.map_or(0, |position| position.segment);
    let ended = last_frame.as_ref().map_or(first, |(number, ..)| *number);
    save_replayed(&segments, first, last_frame)?;

    // Compaction had emptied these. They were about to be removed, or are kept for a reader.
    let kept: Segments = emptied
        .iter()
        .filter_map(|number| segments.remove(number).map(|segment| (*number, segment)))
        .collect();
    let keeping = Keeping::open(&*disk, dir, &identity, kept)?;
    // The journal continues after its last frame. A segment that was created in advance is kept.
    let number = last.max(manifest.segments_upto);
    let active = Arc::clone(segments.get(&number).expect("the manifest's segments were checked"));
    let offset = active.used.load(Ordering::Relaxed);
    let beyond: Vec<u32> = segments.range(number + 1..).map(|(number, _)| *number).collect();
    let ready = beyond.first().and_then(|number| segments.remove(number));
    for number in beyond.iter().skip(1).rev() {
        let segment = segments.remove(number).expect("it was listed");
        disk.remove(&segment.path).map_err(|source| io_error("remove", &segment.path, source))?;
    }
    let ends: Vec<Arc<Segment>> =
        segments.range(ended..).map(|(_, end)| end).chain(&ready).cloned().collect();
    let marks = TailMarks::open(&*disk, dir, &identity, mark)?;
    if manifest.version < MANIFEST_VERSION || manifest.layouts != layouts {
        // Once the journal has a packed record or a row of this layout, older programs must not read it.
        manifest.layouts = layouts;
        replace_file(&*disk, dir, MANIFEST_NAME, manifest.encode().as_bytes())?;
        manifest.version = MANIFEST_VERSION;
    }
    // The directory entries may not be durable yet, either.
    disk.sync_dir(dir).map_err(|source| io_error("sync", dir, source))?;
    let core = Core {
        dir: dir.to_owned(),
        identity,
        schema,
        maintenance: Mutex::new(Maintenance { manifest, runs }),
        marks: Mutex::new(marks),
        writer: Mutex::new(Writer::new(active, offset, sequence, serial_next)),
        keeping: Mutex::new(keeping),
        next: Mutex::new(NextSegment { number: number + 1, ready, full_since: None }),
        state: RwLock::new(EngineState { tables, segments: Arc::new(segments), cold: Arc::new(cold) }),
        counters: Counters { sequence_end: AtomicU64::new(sequence), ..Counters::default() },
        wake: Wake::default(),
        claims: Claims::default(),
        group: Group::default(),
        dictionary: Dictionary::default(),
        records: RecordCache::default(),
        known_marks: KnownMarks::default(),
        stopped: OnceLock::new(),
        options,
        _lock: lock,
    };
    // Do this before writing anything after the last frame. A misdirected write could overwrite that frame,
    // and the rest would look like a journal that ends before it.
    core.mark_tail();
    // Only now is it certain that no acknowledged commit is lost with it.
    if let Some((segment, offset, what)) = torn {
        drop_tail(&segment, offset, what)?;
    }
    clear_ends(&ends)?;
    Ok(core)
}

/// The error for damage to the last frame.
pub(crate) fn damaged_tail(fault: Fault) -> String {
    format!(
        "{}; this is the last commit, it may have been acknowledged, and it is no write that was interrupted: restore a backup, \
         or see `batzen store cut --help`",
        fault.what()
    )
}

fn read_or_make_manifest(dir: &Path, options: &Options) -> Result<Manifest> {
    let disk = &*options.disk;
    let path = dir.join(MANIFEST_NAME);
    let names = disk.list(dir).map_err(|source| io_error("list", dir, source))?;
    if names.iter().any(|name| name == MANIFEST_NAME) {
        return Manifest::decode(&path, &read_file(disk, &path)?);
    }
    if names.iter().any(|name| segment_number(name).is_some()) {
        return Err(StoreError::Format { file: path, what: "missing, though there is a journal".into() });
    }
    let mut random = options.identity.unwrap_or([0; 32]);
    if options.identity.is_none() {
        getrandom::fill(&mut random).map_err(|e| StoreError::Backend(format!("no random numbers: {e}")))?;
    }
    let (id, key) = random.split_at(16);
    let identity = Identity { id: id.try_into().expect("16 bytes"), key: key.try_into().expect("16 bytes") };
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        identity,
        segments_upto: 0,
        segments: Vec::new(),
        layouts: BTreeMap::new(),
    };
    replace_file(disk, dir, MANIFEST_NAME, manifest.encode().as_bytes())?;
    Ok(manifest)
}

/// Opens the segments in the manifest, and removes files that no longer belong to the store.
pub(crate) fn open_segments(disk: &dyn Disk, dir: &Path, manifest: &Manifest) -> Result<Segments> {
    let remove = |name: &str| {
        let path = dir.join(name);
        disk.remove(&path).map_err(|source| io_error("remove", &path, source))
    };
    let mut numbers = Vec::new();
    for name in disk.list(dir).map_err(|source| io_error("list", dir, source))? {
        if Path::new(&name).extension().is_some_and(|extension| extension == "tmp") {
            remove(&name)?;
        } else if let Some(number) = segment_number(&name) {
            if number <= manifest.segments_upto && !manifest.segments.contains(&number) {
                remove(&name)?;
            } else {
                numbers.push(number);
            }
        }
    }
    numbers.sort_unstable();
    check_numbers(dir, manifest, &numbers)?;
    let mut segments = BTreeMap::new();
    for number in numbers {
        segments.insert(number, Arc::new(open_segment(disk, dir, manifest, number, true)?));
    }
    Ok(segments)
}

/// Finds missing segments.
pub(crate) fn check_numbers(dir: &Path, manifest: &Manifest, numbers: &[u32]) -> Result<()> {
    let last = numbers.last().copied().unwrap_or(0);
    let later = manifest.segments_upto.saturating_add(1)..=last;
    for number in manifest.segments.iter().copied().chain(later) {
        if numbers.binary_search(&number).is_err() {
            let file = dir.join(segment_name(number));
            return Err(StoreError::Corrupt { file, offset: 0, what: "the segment is missing".into() });
        }
    }
    Ok(())
}

/// Opens a segment and checks its header.
pub(crate) fn open_segment(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
    number: u32,
    writable: bool,
) -> Result<Segment> {
    let path = dir.join(segment_name(number));
    let read = || {
        let file = disk.open(&path, writable)?;
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let n = super::disk::read_full_at(&*file, &mut header, 0)?;
        let size = file.size()?;
        Ok((file, header, n, size))
    };
    let (file, header, n, size) = read().map_err(|source| io_error("open", &path, source))?;
    let capacity = match decode_segment_header(&manifest.identity, number, &header[..n]) {
        Ok((version, capacity)) if version >= 2 && size < capacity => {
            let what = format!(
                "the file ends here, though it was made with {capacity} bytes: restore a backup, or see \
                 `batzen store cut --help`"
            );
            return Err(StoreError::Corrupt { file: path, offset: size, what });
        }
        // In format 1, a segment was truncated when the disk was full, and its header stayed unchanged.
        Ok((_, capacity)) => capacity.min(size / 8 * 8),
        Err(error) => {
            return Err(StoreError::Corrupt { file: path, offset: 0, what: error.to_string() });
        }
    };
    Ok(Segment {
        number,
        path,
        file,
        capacity: AtomicU64::new(capacity),
        used: AtomicU64::new(SEGMENT_HEADER_BYTES),
        live: AtomicU64::new(0),
        tombstones: AtomicU64::new(0),
        damaged: AtomicBool::new(false),
    })
}

/// The data that follow a segment's last frame.
pub(crate) enum End {
    /// Zeros, or the end of the file.
    Clean(u64),
    /// At this offset, something other than a whole frame.
    Bad(u64, Fault),
}

/// Receives a frame: its offset and header.
pub(crate) type FrameVisitor<'a> = dyn FnMut(u64, &FrameHeader) -> Result<()> + 'a;

/// Passes the frames of a segment to `visit` with their offsets, until one of them fails verification.
pub(crate) fn scan_frames(
    identity: &Identity,
    number: u32,
    bytes: &[u8],
    start: u64,
    visit: &mut FrameVisitor,
) -> Result<End> {
    let mut offset = start;
    loop {
        let rest = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let Some(header) = FrameHeader::decode(identity, number, offset, rest) else {
            if rest.iter().all(|&b| b == 0) {
                return Ok(End::Clean(offset));
            }
            // A header's tag covers its position, so the frame that belongs here may be found elsewhere.
            let mut behind = (8..rest.len()).step_by(8).map(|at| &rest[at..]);
            if behind.any(|bytes| FrameHeader::decode(identity, number, offset, bytes).is_some()) {
                let fault =
                    Fault::Damaged(offset, "the frame that belongs here was written to another place");
                return Ok(End::Bad(offset, fault));
            }
            return Ok(End::Bad(offset, tail::judge_header(offset, rest)));
        };
        if let Err(fault) = tail::check_frame(&header, offset, rest) {
            return Ok(End::Bad(offset, fault));
        }
        visit(offset, &header)?;
        offset += header.frame_bytes();
    }
}

/// The first genuine frame header at or after an offset.
pub(crate) fn find_frame(identity: &Identity, number: u32, bytes: &[u8], from: u64) -> Option<u64> {
    let is_frame = |offset: &u64| {
        let rest = bytes.get(usize::try_from(*offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        FrameHeader::decode(identity, number, *offset, rest).is_some()
    };
    (from..bytes.len() as u64).step_by(8).find(is_frame)
}

/// Passes the records of a frame to `visit`, with their offsets in the segment and sizes. `segment` has the
/// segment's bytes up to the end of the frame.
pub(crate) fn scan_records(
    (header, offset): (&FrameHeader, u64),
    (number, mut segment): (u32, &[u8]),
    visit: &mut dyn FnMut(u64, usize, &Record<'_>) -> Result<()>,
) -> Result<std::result::Result<(), &'static str>> {
    let start = offset + FRAME_HEADER_BYTES as u64;
    let frame = segment.get(usize::try_from(start).unwrap_or(usize::MAX)..).unwrap_or_default();
    let payload = frame.get(..header.payload_bytes as usize).unwrap_or_default();
    let (mut at, mut count) = (0, 0);
    let mut scratch = Vec::new();
    while at < payload.len() {
        let place = start + at as u64;
        match record::decode(&payload[at..], (number, place), &mut segment, &mut scratch)? {
            Ok((record, bytes)) => {
                visit(place, bytes, &record)?;
                at += bytes;
            }
            Err(what) => return Ok(Err(what)),
        }
        count += 1;
    }
    Ok(if count == header.records {
        Ok(())
    } else {
        Err("a frame has another number of records than it says")
    })
}

/// Removes the files of runs that no checkpoint names. Returns the number of the next run.
fn remove_unknown_runs(disk: &dyn Disk, dir: &Path, known: &[Arc<Run>]) -> Result<u32> {
    let mut last = 0;
    for name in disk.list(dir).map_err(|source| io_error("list", dir, source))? {
        let Some(number) = run_number(&name) else { continue };
        last = last.max(number);
        if known.iter().all(|run| run.name.number != number) {
            let path = dir.join(&name);
            disk.remove(&path).map_err(|source| io_error("remove", &path, source))?;
        }
    }
    Ok(last + 1)
}

/// The tables of some runs, with their ordered indexes, which are in memory.
fn index_tables(tables: &[&'static TableDef], runs: &[Arc<Run>]) -> Result<HashMap<u16, TableIndex>> {
    let mut tables: HashMap<u16, TableIndex> =
        tables.iter().map(|def| (def.id, TableIndex::new(def.id, Some(def)))).collect();
    for (run, key) in runs.iter().flat_map(|run| run.keys().map(move |key| (run, key))) {
        // This program may not know the table.
        let table = tables.entry(key.table).or_insert_with(|| TableIndex::new(key.table, None));
        let slot = usize::from(key.slot).checked_sub(1);
        let index = slot.map(|slot| table.secondary.get_mut(slot));
        match (run.kind(key), index) {
            (Some(Kind::Pairs), None | Some(Some(Secondary::Hash(_)))) => {}
            (Some(Kind::Positions), Some(Some(Secondary::Ordered(index)))) => {
                let mut reader = PositionReader::new(run, key);
                while let Some((position, op)) = reader.next()? {
                    index.load(&position, op);
                }
            }
            _ => {
                let what = "it has entries of an index that does not exist".into();
                return Err(StoreError::Corrupt { file: run.path().to_owned(), offset: 0, what });
            }
        }
    }
    Ok(tables)
}

/// The state to which the journal is applied.
struct Replay<'a> {
    dir: &'a Path,
    options: &'a Options,
    identity: Identity,
    segments: &'a Segments,
    tables: HashMap<u16, TableIndex>,
    cold: Cold,
    runs: RunWork,
    /// The sequence number of the next frame.
    sequence: u64,
    serial_next: u64,
    /// Segment, offset and bytes of the last frame.
    last_frame: Option<(u32, u64, Vec<u8>)>,
    /// Where a write was interrupted: the segment, the offset, and what is missing.
    torn: Option<(u32, u64, &'static str)>,
    scratch: IndexEntries,
}

impl<'a> Replay<'a> {
    fn new(
        dir: &'a Path,
        options: &'a Options,
        identity: Identity,
        tables: &[&'static TableDef],
        (segments, runs): (&'a Segments, RunWork),
    ) -> Self {
        let tables = tables.iter().map(|def| (def.id, TableIndex::new(def.id, Some(def)))).collect();
        Self {
            dir,
            options,
            identity,
            segments,
            tables,
            cold: Cold::default(),
            runs,
            sequence: 1,
            serial_next: 1,
            last_frame: None,
            torn: None,
            scratch: IndexEntries::new(),
        }
    }

    /// Loads a checkpoint and returns where replay starts.
    fn start_from(&mut self, loaded: checkpoint::Checkpoint) -> Result<Position> {
        let Head { position, segments } = loaded.head;
        let known = self.segments.get(&position.segment);
        let long_enough =
            known.is_some_and(|segment| segment.capacity.load(Ordering::Relaxed) >= position.offset);
        if !long_enough {
            let file = self.dir.join(segment_name(position.segment));
            let what = "the journal ends here, but a checkpoint has more".into();
            return Err(StoreError::Corrupt { file, offset: position.offset, what });
        }
        let number_max = position.sequence.max(position.serial_next).max(loaded.sequence_end);
        let is_possible = position.offset >= SEGMENT_HEADER_BYTES
            && position.offset.is_multiple_of(8)
            && number_max <= NUMBER_LIMIT
            && segments.iter().all(|segment| {
                (SEGMENT_HEADER_BYTES..=SEGMENT_BYTES_LIMIT).contains(&segment.used)
                    && segment.tombstones <= segment.used
                    && segment.live <= segment.used
            });
        if !is_possible {
            let what = "its content is impossible; remove it to rebuild the indexes".into();
            return Err(StoreError::Corrupt { file: self.dir.join(CHECKPOINT_NAME), offset: 0, what });
        }
        let heads: BTreeMap<u32, SegmentHead> =
            segments.into_iter().map(|head| (head.number, head)).collect();
        for head in heads.values().filter(|head| head.live > 0) {
            if !self.segments.contains_key(&head.number) {
                let file = self.dir.join(segment_name(head.number));
                let what = "the segment is missing, though rows are in it".into();
                return Err(StoreError::Corrupt { file, offset: 0, what });
            }
        }
        for (number, segment) in self.segments.range(..=position.segment) {
            match heads.get(number) {
                Some(head) => {
                    segment.used.store(head.used, Ordering::Relaxed);
                    segment.tombstones.store(head.tombstones, Ordering::Relaxed);
                    segment.live.store(head.live, Ordering::Relaxed);
                }
                // A segment that is not in the checkpoint was about to be removed: all of it is dead.
                None => segment.used.store(segment.capacity.load(Ordering::Relaxed), Ordering::Relaxed),
            }
        }
        self.cold.runs = loaded.runs.into_iter().map(|run| RunRef { run, resident: None }).collect();
        self.sequence = position.sequence;
        self.serial_next = position.serial_next;
        Ok(position)
    }

    /// Writes the changes to a run if they need too much memory.
    fn spill(&mut self) -> Result<()> {
        let bytes: usize = self.tables.values().map(TableIndex::changed_bytes).sum();
        if bytes as u64 <= self.options.index_hot_bytes {
            return Ok(());
        }
        self.cold.frozen.push(Arc::new(FrozenChanges::take(&mut self.tables)));
        while let Some(changes) = self.cold.frozen.first() {
            let writer = self.runs.create(self.options, self.dir, &self.identity);
            match writer.and_then(|writer| write_run(self.options, writer, changes, &mut || ())) {
                Ok(run) => {
                    let run = run.map(|run| RunRef { run: Arc::new(run), resident: None });
                    self.cold.runs.extend(run);
                    self.cold.frozen.remove(0);
                }
                // The store opens on a full disk, too. Then it needs the memory.
                Err(StoreError::Full(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Applies the journal from a position, or all of it. Returns the last segment with a frame.
    fn run(&mut self, position: Option<Position>) -> Result<u32> {
        let (segments, identity) = (self.segments, self.identity);
        let first = position.map_or(0, |position| position.segment);
        let mut last =
            position.map_or_else(|| *segments.keys().next().expect("a store has a segment"), |p| p.segment);
        // The previous segment's number, and where a write to it was interrupted.
        let mut previous: Option<u32> = None;
        let mut torn: Option<(u32, u64, &'static str)> = None;
        for (&number, segment) in segments.range(first..) {
            let bytes = read_segment(segment)?;
            if let Some((number, offset, what)) = torn {
                if find_frame(&self.identity, segment.number, &bytes, SEGMENT_HEADER_BYTES).is_some() {
                    return Err(segments[&number]
                        .corrupt(offset, format!("{what}, and the journal continues after it")));
                }
                continue;
            }
            let start = position.filter(|p| p.segment == number).map_or(SEGMENT_HEADER_BYTES, |p| p.offset);
            // Sequence numbers of a segment that compaction has removed are missing.
            let gap_allowed =
                previous.map_or(number != 1, |previous| previous + 1 != number) && position.is_none();
            previous = Some(number);
            let mut is_first = true;
            let mut last_offset = None;
            let end = scan_frames(&identity, number, &bytes, start, &mut |offset, header| {
                let expected = self.sequence;
                let skips = is_first && gap_allowed && header.sequence > expected;
                if header.sequence != expected && !skips {
                    let what = format!("frame {} where frame {expected} belongs", header.sequence);
                    return Err(segment.corrupt(offset, what));
                }
                is_first = false;
                last = number;
                last_offset = Some(offset);
                self.sequence = header.sequence + 1;
                self.serial_next = self.serial_next.max(header.serial_next);
                self.apply_frame(segment, offset, header, &bytes)
            })?;
            let used = match end {
                End::Clean(offset) => offset,
                End::Bad(offset, fault) => {
                    if let Some(later) = find_frame(&self.identity, number, &bytes, offset + 8) {
                        let what = format!("{}, and a later frame follows at byte {later}", fault.what());
                        return Err(segment.corrupt(fault.at(), what));
                    }
                    let Fault::Torn(_, what) = fault else {
                        return Err(segment.corrupt(fault.at(), damaged_tail(fault)));
                    };
                    torn = Some((number, offset, what));
                    offset
                }
            };
            segment.used.store(used, Ordering::Relaxed);
            self.spill()?;
            if let Some(offset) = last_offset {
                let at = |offset| usize::try_from(offset).expect("it is in memory");
                self.last_frame = Some((number, offset, bytes[at(offset)..at(used)].to_vec()));
            }
        }
        self.torn = torn;
        Ok(last)
    }

    /// Applies a frame of a segment with these bytes.
    fn apply_frame(
        &mut self,
        segment: &Segment,
        offset: u64,
        header: &FrameHeader,
        bytes: &[u8],
    ) -> Result<()> {
        let records = scan_records((header, offset), (segment.number, bytes), &mut |at, bytes, record| {
            self.apply(segment, Location::new(segment.number, at, bytes), bytes, record)
        })?;
        records.map_err(|what| segment.corrupt(offset, what))
    }

    fn apply(
        &mut self,
        segment: &Segment,
        location: Location,
        bytes: usize,
        record: &Record<'_>,
    ) -> Result<()> {
        let fingerprint = fingerprint(&self.identity, record.key);
        let index = self.tables.entry(record.table).or_insert_with(|| TableIndex::new(record.table, None));
        let mut latest = Ops::new();
        index.primary.0.ops(fingerprint, &mut latest);
        let rows = Rows { identity: &self.identity, segments: self.segments, cache: None };
        let mut is_wanted = |stored: &StoredRecord| stored.key() == record.key;
        let old =
            self.cold.find_record(rows, record.table, (fingerprint, latest), Marks::ALL, &mut is_wanted)?;
        if !record.is_row() {
            segment.tombstones.fetch_add(bytes as u64, Ordering::Relaxed);
            // The tombstone does not apply to a later row under the same key.
            if old.as_ref().is_none_or(|(_, stored)| stored.serial > record.serial) {
                return Ok(());
            }
        }
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        if let Some(def) = index.def.filter(|def| !def.indexes.is_empty()) {
            if let Some((_, old)) = &old {
                let row = old.row(def)?;
                let row = migrate::current(def, old.layout, record.key, &row)?;
                let parts = (record.key, &*row, old.serial);
                secondary_entries(&self.identity, def, parts, true, &mut self.scratch, &mut gone)?;
            }
            if let Some(row) = record.row(def)? {
                let row = migrate::current(def, record.layout, record.key, &row)?;
                let parts = (record.key, &*row, record.serial);
                secondary_entries(&self.identity, def, parts, true, &mut self.scratch, &mut come)?;
            }
        }
        if let Some((old, stored)) = &old {
            let dead = stored.record_bytes;
            let live = self.segments.get(&old.segment()).map(|segment| &segment.live);
            let live = live.filter(|live| live.load(Ordering::Relaxed) >= dead);
            let live =
                live.ok_or_else(|| segment.corrupt(location.offset(), "more bytes die than were live"))?;
            live.fetch_sub(dead, Ordering::Relaxed);
            index.primary.remove(fingerprint, *old);
        }
        if record.is_row() {
            segment.live.fetch_add(bytes as u64, Ordering::Relaxed);
            index.primary.insert(fingerprint, location);
        }
        let kept: Vec<_> = gone.extract_if(.., |entry| come.contains(entry)).collect();
        come.retain(|entry| !kept.contains(entry));
        let ops =
            gone.into_iter().map(|entry| (entry, false)).chain(come.into_iter().map(|entry| (entry, true)));
        for ((slot, entry), add) in ops {
            if let Some(crowded) = index.apply(SecondaryOp { slot, add, entry, key: fingerprint }) {
                crowded.settle();
            }
        }
        Ok(())
    }
}

/// Reads a whole segment.
pub(crate) fn read_segment(segment: &Segment) -> Result<Vec<u8>> {
    let read = || {
        let capacity = segment.capacity.load(Ordering::Relaxed);
        let mut bytes = vec![0; usize::try_from(capacity).map_err(|_| std::io::ErrorKind::FileTooLarge)?];
        let n = super::disk::read_full_at(&*segment.file, &mut bytes, 0)?;
        bytes.truncate(n);
        Ok(bytes)
    };
    read().map_err(|source| io_error("read", &segment.path, source))
}

/// Overwrites the rest of an interrupted commit, so that it is never mistaken for a later one.
pub(crate) fn drop_tail(segment: &Segment, offset: u64, what: &str) -> Result<()> {
    tracing::warn!(
        file = %segment.path.display(), offset, what,
        "overwriting an incomplete commit at the end of the journal"
    );
    let bytes = read_segment(segment)?;
    let start = usize::try_from(offset).expect("it was found in memory");
    let tail = bytes.get(start..).unwrap_or_default();
    let zeros = vec![0; tail.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1)];
    assert!(zeros.len() as u64 <= SEGMENT_BYTES_LIMIT, "segments are no longer than that");
    let overwrite = write_all_at(&*segment.file, &zeros, offset).and_then(|()| segment.file.sync());
    overwrite.map_err(|source| io_error("write", &segment.path, source))
}

/// Makes the replayed journal durable from segment `first` on, before any answer depends on it.
///
/// The previous process may have been killed between a write and the end of its sync: then the page cache has
/// data that a power loss would destroy. If that sync failed, the kernel may consider the pages clean, and
/// another sync would not write them. This affects only the last frame, and the zeros over an interrupted one
/// after it ([`clear_ends`]), so they are written again.
fn save_replayed(segments: &Segments, first: u32, last_frame: Option<(u32, u64, Vec<u8>)>) -> Result<()> {
    if let Some((number, offset, bytes)) = last_frame {
        write_once_more(&segments[&number], &bytes, offset)?;
    }
    for segment in segments.range(first..).map(|(_, segment)| segment) {
        segment.file.sync().map_err(|source| io_error("sync", &segment.path, source))?;
    }
    Ok(())
}

/// Number of zeros after the last frame that are written again when a store is opened.
const CLEARED_BYTES: u64 = 1 << 20;

/// Makes the zeros after the last frame durable, and those of the segments after it.
fn clear_ends(ends: &[Arc<Segment>]) -> Result<()> {
    for segment in ends {
        let used = segment.used.load(Ordering::Relaxed);
        let rest = segment.capacity.load(Ordering::Relaxed).saturating_sub(used);
        let zeros = vec![0; usize::try_from(rest.min(CLEARED_BYTES)).expect("at most a mebibyte")];
        write_once_more(segment, &zeros, used)?;
        segment.file.sync().map_err(|source| io_error("sync", &segment.path, source))?;
    }
    Ok(())
}

fn write_once_more(segment: &Segment, bytes: &[u8], offset: u64) -> Result<()> {
    match write_all_at(&*segment.file, bytes, offset)
        .map_err(|source| io_error("write", &segment.path, source))
    {
        // On some file systems, even overwriting needs space. This was only a precaution.
        Err(StoreError::Full(_)) => Ok(()),
        written => written,
    }
}

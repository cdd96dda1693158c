//! Reading runs: single fingerprints, and all entries in order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{
    BLOCK_BYTES, CRC_BYTES, Checksums, Kind, MAGIC, Pair, Part, PartKey, REMOVED, SECTION_BLOCKS,
    STREAM_PER_BLOCK, VERSION, pair_at, pairs_block_bytes, run_name,
};
use crate::embedded::disk::{Disk, DiskFile, io_error, read_full_at};
use crate::embedded::format::Identity;
use crate::embedded::index::{Op, Ops};
use crate::embedded::input::{CheckpointError, In, Loaded};
use crate::embedded::ordered::{Position, PositionOp};
use crate::filter::{Filter, Probe};
use crate::{Result, StoreError};

/// Number of blocks that are read at once by readers of all entries.
const BLOCKS_AT_ONCE: u64 = 64;

/// Number of fingerprints that are looked for in filters at once: more than a processor fetches at a time.
const PROBES_AT_ONCE: usize = 32;

/// A run's entry in a checkpoint, so that no other file can take its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunName {
    pub number: u32,
    /// The size of the file.
    pub bytes: u64,
    /// Where the descriptions of its parts start.
    pub(crate) meta_offset: u64,
    /// Their checksum.
    pub(crate) meta_crc: u32,
}

/// A run: an immutable file of index entries, and the filters and fences in memory that lead to them.
pub(crate) struct Run {
    pub name: RunName,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) checksums: Checksums,
    pub(super) parts: BTreeMap<PartKey, Part>,
}

impl Run {
    /// Opens a run that a checkpoint names, and reads the descriptions of its parts.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, identity: &Identity, name: RunName) -> Loaded<Self> {
        let path = dir.join(run_name(name.number));
        let file = disk.open(&path, false)?;
        if file.size()? != name.bytes {
            return Err(CheckpointError::Run(name.number, "it has another size"));
        }
        let left = name.bytes.checked_sub(name.meta_offset);
        let left = left.ok_or(CheckpointError::Run(name.number, "it is too short"))?;
        let mut input = In::new(Arc::clone(&file), name.meta_offset, left);
        let parts = read_parts(&mut input, identity, name);
        // What a damaged file says means nothing.
        if input.finish()? != name.meta_crc {
            return Err(CheckpointError::Run(name.number, "the checksum of its descriptions is wrong"));
        }
        let checksums = Checksums::new(identity, name.number);
        Ok(Self { name, path, file, checksums, parts: parts? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn corrupt(&self, offset: u64, what: &str) -> StoreError {
        let what = format!(
            "{what}: an index file is damaged; stop the service, remove {} and start it again, to rebuild the \
             indexes from the journal",
            crate::embedded::format::CHECKPOINT_NAME
        );
        StoreError::Corrupt { file: self.path.clone(), offset, what }
    }

    /// Reads a block and checks it. Returns its content.
    fn block<'a>(&self, part: &Part, block: u64, buffer: &'a mut [u8; BLOCK_BYTES]) -> Result<&'a [u8]> {
        let offset = part.offset + block * BLOCK_BYTES as u64;
        let bytes = part.block_bytes(block);
        let n = read_full_at(&*self.file, &mut buffer[..bytes], offset)
            .map_err(|source| io_error("read", &self.path, source))?;
        self.check(offset, &buffer[..n], bytes)?;
        Ok(&buffer[..bytes - CRC_BYTES])
    }

    fn check(&self, offset: u64, block: &[u8], bytes: usize) -> Result<()> {
        if block.len() < bytes {
            return Err(self.corrupt(offset, "the file ends within a block"));
        }
        if !self.checksums.verify(offset, block) {
            return Err(self.corrupt(offset, "the checksum of a block is wrong"));
        }
        Ok(())
    }

    /// Collects the run's operations on a fingerprint. Usually nothing, and then only a filter is asked;
    /// otherwise one block is read.
    pub(crate) fn ops(&self, key: PartKey, fingerprint: u64, out: &mut Ops) -> Result<()> {
        self.visit(key, fingerprint, &mut |pair| out.push(Op { value: pair.value, added: pair.added }))
    }

    /// Returns the run's operation on a pair, if there is one.
    pub(crate) fn op(&self, key: PartKey, fingerprint: u64, value: u64) -> Result<Option<bool>> {
        let mut known = None;
        self.visit(key, fingerprint, &mut |pair| {
            if pair.value == value {
                known = Some(pair.added);
            }
        })?;
        Ok(known)
    }

    /// For each fingerprint that the run may have, sets these bits. Filters are far larger than the processor's caches:
    /// so it first finds out where to look for several of them, and then waits for all at the same time.
    pub(crate) fn mark(&self, key: PartKey, fingerprints: &[u64], bits: u64, marks: &mut [u64]) {
        let Some(part) = self.parts.get(&key) else { return };
        let mut probes = [Probe::NEVER; PROBES_AT_ONCE];
        let marks = marks.chunks_mut(PROBES_AT_ONCE);
        for (fingerprints, marks) in fingerprints.chunks(PROBES_AT_ONCE).zip(marks) {
            for (probe, &fingerprint) in probes.iter_mut().zip(fingerprints) {
                *probe = part.probe(fingerprint);
            }
            for (probe, mark) in probes.iter().zip(marks) {
                *mark |= bits & u64::from(probe.may_contain()).wrapping_neg();
            }
        }
    }

    fn visit(&self, key: PartKey, fingerprint: u64, visit: &mut dyn FnMut(Pair)) -> Result<()> {
        let Some(part) = self.parts.get(&key) else { return Ok(()) };
        // Those that start with a fingerprint that is not larger. The one before the first that starts with this
        // fingerprint may end with it.
        let sections = matching(&part.sections, fingerprint, |section| section.0);
        for section in sections.filter(|&section| part.sections[section].1.may_contain(fingerprint)) {
            let start = section * SECTION_BLOCKS;
            let fences = &part.fences[start..part.fences.len().min(start + SECTION_BLOCKS)];
            for block in matching(fences, fingerprint, |&fence| fence) {
                self.visit_block(part, (start + block) as u64, fingerprint, visit)?;
            }
        }
        Ok(())
    }

    fn visit_block(
        &self,
        part: &Part,
        block: u64,
        fingerprint: u64,
        visit: &mut dyn FnMut(Pair),
    ) -> Result<()> {
        let mut buffer = [0; BLOCK_BYTES];
        let pairs = part.pairs_in(block);
        let content = self.block(part, block, &mut buffer)?;
        let at = |n: usize| pair_at(content, pairs, n);
        let (mut low, mut high) = (0, pairs);
        while low < high {
            let middle = usize::midpoint(low, high);
            if at(middle).fingerprint < fingerprint {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low..pairs).map(at).take_while(|pair| pair.fingerprint == fingerprint).for_each(visit);
        Ok(())
    }

    /// The parts, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = PartKey> {
        self.parts.keys().copied()
    }

    pub(crate) fn kind(&self, key: PartKey) -> Option<Kind> {
        self.parts.get(&key).map(|part| part.kind)
    }

    /// Number of entries that a part has.
    pub(crate) fn entries(&self, key: PartKey) -> u64 {
        self.parts.get(&key).map_or(0, |part| part.entries)
    }

    /// Returns the number of entries added in a part, less those removed.
    pub(crate) fn net(&self, key: PartKey) -> i64 {
        let net = |part: &Part| part.entries.cast_signed() - 2 * part.removed.cast_signed();
        self.parts.get(&key).map_or(0, net)
    }

    /// The memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.parts.values().map(Part::memory_bytes).sum()
    }
}

/// Returns the sorted ranges that may have a fingerprint, given the first fingerprint of each.
fn matching<T>(ranges: &[T], fingerprint: u64, first: impl Fn(&T) -> u64) -> std::ops::Range<usize> {
    let end = ranges.partition_point(|range| first(range) <= fingerprint);
    let start = ranges[..end].partition_point(|range| first(range) < fingerprint).saturating_sub(1);
    start..end
}

fn read_parts(input: &mut In, identity: &Identity, name: RunName) -> Loaded<BTreeMap<PartKey, Part>> {
    let impossible = || CheckpointError::Run(name.number, "its descriptions are impossible");
    if input.array()? != *MAGIC || input.u32()? != VERSION {
        return Err(CheckpointError::Run(name.number, "it is of another format"));
    }
    if input.array()? != identity.id || input.u32()? != name.number {
        return Err(CheckpointError::Run(name.number, "it belongs to another store"));
    }
    let mut parts = BTreeMap::new();
    for _ in 0..input.u32()? {
        let key = PartKey { table: input.u16()?, slot: input.u8()? };
        let kind = match input.u8()? {
            1 => Kind::Pairs,
            2 => Kind::Positions,
            _ => return Err(impossible()),
        };
        let mut part = Part::new(kind, input.u64()?);
        (part.bytes, part.entries, part.removed) = (input.u64()?, input.u64()?, input.u64()?);
        let fences = input.u64()?;
        part.crc = input.u32()?;
        for _ in 0..fences {
            part.fences.push(input.u64()?);
        }
        for _ in 0..part.fences.len().div_ceil(SECTION_BLOCKS) {
            let descriptor = input.array()?;
            let bytes = input.u32()? as usize;
            let filter = Filter::from_parts(descriptor, input.take(bytes)?);
            let start = part.fences[part.sections.len() * SECTION_BLOCKS];
            part.sections.push((start, filter.ok_or_else(impossible)?));
        }
        part.fences.shrink_to_fit();
        if !part.is_possible(name.meta_offset) || parts.last_key_value().is_some_and(|(last, _)| *last >= key)
        {
            return Err(impossible());
        }
        parts.insert(key, part);
    }
    Ok(parts)
}

/// Reads the blocks of a part, many at once.
struct BlockReader {
    run: Arc<Run>,
    key: PartKey,
    next: u64,
    buffer: Vec<u8>,
    /// The first block in the buffer.
    first: u64,
    /// The checksum of the checksums of the blocks so far.
    crc: u32,
}

impl BlockReader {
    fn new(run: Arc<Run>, key: PartKey) -> Self {
        Self { run, key, next: 0, buffer: Vec::new(), first: 0, crc: 0 }
    }

    /// The number and content of the next block.
    fn next(&mut self) -> Result<Option<(u64, &[u8])>> {
        let Some(part) = self.run.parts.get(&self.key).filter(|part| self.next < part.blocks()) else {
            return Ok(None);
        };
        let block = self.next;
        let start = part.offset + block * BLOCK_BYTES as u64;
        if block == 0 || block >= self.first + BLOCKS_AT_ONCE {
            let bytes = (part.offset + part.bytes - start).min(BLOCKS_AT_ONCE * BLOCK_BYTES as u64);
            self.buffer.resize(usize::try_from(bytes).expect("a few blocks"), 0);
            let n = read_full_at(&*self.run.file, &mut self.buffer, start)
                .map_err(|source| io_error("read", &self.run.path, source))?;
            self.buffer.truncate(n);
            self.first = block;
        }
        self.next += 1;
        let at = usize::try_from((block - self.first) * BLOCK_BYTES as u64).expect("a few blocks");
        let bytes = part.block_bytes(block);
        let read = self.buffer.get(at..).unwrap_or_default();
        let read = &read[..read.len().min(bytes)];
        self.run.check(start, read, bytes)?;
        let (content, crc) = read.split_at(bytes - CRC_BYTES);
        self.crc = crc32c::crc32c_append(self.crc, crc);
        Ok(Some((block, content)))
    }
}

/// Reads all pairs of a part, in order.
pub(crate) struct PairReader {
    blocks: BlockReader,
    /// The pairs of the current block in reverse.
    pairs: Vec<Pair>,
}

impl PairReader {
    pub(crate) fn new(run: &Arc<Run>, key: PartKey) -> Self {
        Self { blocks: BlockReader::new(Arc::clone(run), key), pairs: Vec::new() }
    }

    /// The next pair, which stays the next one.
    pub(crate) fn peek(&mut self) -> Result<Option<Pair>> {
        if self.pairs.is_empty() {
            let (run, key) = (Arc::clone(&self.blocks.run), self.blocks.key);
            let Some((block, content)) = self.blocks.next()? else { return Ok(None) };
            let pairs = run.parts[&key].pairs_in(block);
            debug_assert_eq!(content.len() + CRC_BYTES, pairs_block_bytes(pairs));
            self.pairs.extend((0..pairs).rev().map(|at| pair_at(content, pairs, at)));
        }
        Ok(self.pairs.last().copied())
    }

    pub(crate) fn next(&mut self) -> Result<Option<Pair>> {
        self.peek()?;
        Ok(self.pairs.pop())
    }
}

/// Reads all positions of a part, in order.
pub(crate) struct PositionReader {
    blocks: BlockReader,
    stream: Vec<u8>,
    at: usize,
    entry: Option<(Position, PositionOp)>,
}

impl PositionReader {
    pub(crate) fn new(run: &Arc<Run>, key: PartKey) -> Self {
        let blocks = BlockReader::new(Arc::clone(run), key);
        Self { blocks, stream: Vec::with_capacity(2 * STREAM_PER_BLOCK), at: 0, entry: None }
    }

    /// Fills the buffer up to this many unread bytes. False at the end of the part.
    fn fill(&mut self, bytes: usize) -> Result<bool> {
        while self.stream.len() - self.at < bytes {
            self.stream.drain(..self.at);
            self.at = 0;
            match self.blocks.next()? {
                Some((_, content)) => self.stream.extend_from_slice(content),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.at += N;
        self.stream[self.at - N..self.at].try_into().expect("the length asked for")
    }

    /// The next entry, which stays the next one.
    pub(crate) fn peek(&mut self) -> Result<Option<&(Position, PositionOp)>> {
        if self.entry.is_none() {
            const HEAD_BYTES: usize = 12;
            if !self.fill(HEAD_BYTES)? {
                return if self.stream.len() == self.at { Ok(None) } else { Err(self.impossible()) };
            }
            let (length, key) = (u32::from_le_bytes(self.take()), u64::from_le_bytes(self.take()));
            let bytes = (length & !REMOVED) as usize;
            if !self.fill(bytes)? {
                return Err(self.impossible());
            }
            let position = Position::from_slice(&self.stream[self.at..self.at + bytes]);
            self.at += bytes;
            self.entry = Some((position, PositionOp { key, added: length & REMOVED == 0 }));
        }
        Ok(self.entry.as_ref())
    }

    pub(crate) fn next(&mut self) -> Result<Option<(Position, PositionOp)>> {
        self.peek()?;
        Ok(self.entry.take())
    }

    fn impossible(&self) -> StoreError {
        let part = &self.blocks.run.parts[&self.blocks.key];
        self.blocks.run.corrupt(part.offset, "the last entry of a part is incomplete")
    }
}

impl Run {
    /// Reads all of a run.
    ///
    /// # Errors
    /// The first damage.
    pub(crate) fn verify(self: &Arc<Self>) -> Result<()> {
        for (&key, part) in &self.parts {
            let wrong = |what| Err(self.corrupt(part.offset, what));
            let (mut entries, mut removed) = (0, 0);
            let crc = match part.kind {
                Kind::Pairs => {
                    let mut reader = PairReader::new(self, key);
                    let mut last = None;
                    while let Some(pair) = reader.next()? {
                        if last.is_some_and(|last| last > pair) {
                            return wrong("the entries of a part are not in order");
                        }
                        let block = usize::try_from(reader.blocks.next - 1).expect("it has a fence");
                        let is_first = reader.pairs.len() + 1 == part.pairs_in(block as u64);
                        if is_first && part.fences[block] != pair.fingerprint {
                            return wrong("a block starts with another entry than its fence says");
                        }
                        if !part.sections[block / SECTION_BLOCKS].1.may_contain(pair.fingerprint) {
                            return wrong("a filter lacks an entry");
                        }
                        entries += 1;
                        removed += u64::from(!pair.added);
                        last = Some(pair);
                    }
                    reader.blocks.crc
                }
                Kind::Positions => {
                    let mut reader = PositionReader::new(self, key);
                    let mut last: Option<Position> = None;
                    while let Some((position, op)) = reader.next()? {
                        if last.is_some_and(|last| last > position) {
                            return wrong("the entries of a part are not in order");
                        }
                        entries += 1;
                        removed += u64::from(!op.added);
                        last = Some(position);
                    }
                    reader.blocks.crc
                }
            };
            if (entries, removed, crc) != (part.entries, part.removed, part.crc) {
                return wrong("a part has other entries than its description says");
            }
        }
        Ok(())
    }
}

//! Writing a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{
    BLOCK_BYTES, CRC_BYTES, Checksums, Kind, PAIRS_PER_BLOCK, Pair, Part, PartKey, REMOVED, SECTION_BLOCKS,
    STREAM_PER_BLOCK, encode_filter, encode_head, encode_part, pairs_block_bytes, run_name,
};
use super::{Run, RunName};
use crate::Result;
use crate::embedded::disk::{Disk, DiskFile, io_error, write_all_at};
use crate::embedded::format::Identity;
use crate::embedded::input::FLUSH_BYTES;
use crate::embedded::ordered::{Position, PositionOp};
use crate::filter::Filter;

/// Called between pieces.
pub(crate) type Rest<'a> = &'a mut dyn FnMut();

/// A run that is being written: parts in the order of their keys, entries in their order.
pub(crate) struct RunWriter {
    number: u32,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    checksums: Checksums,
    identity: Identity,
    buffer: Vec<u8>,
    /// Where the buffer belongs in the file.
    offset: u64,
    parts: BTreeMap<PartKey, Part>,
    current: Option<(PartKey, Part)>,
    /// The pairs or the content of the current block.
    pairs: Vec<Pair>,
    stream: Vec<u8>,
    /// The different fingerprints of the current section.
    section: Vec<u64>,
    last: Option<Pair>,
}

impl RunWriter {
    pub(crate) fn new(disk: &dyn Disk, dir: &Path, identity: &Identity, number: u32) -> Result<Self> {
        let path = dir.join(run_name(number));
        let file = disk.create(&path).map_err(|source| io_error("make", &path, source))?;
        Ok(Self {
            number,
            path,
            file,
            checksums: Checksums::new(identity, number),
            identity: *identity,
            buffer: Vec::with_capacity(2 * FLUSH_BYTES),
            offset: 0,
            parts: BTreeMap::new(),
            current: None,
            pairs: Vec::with_capacity(PAIRS_PER_BLOCK),
            stream: Vec::new(),
            section: Vec::new(),
            last: None,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the next byte is written.
    fn end(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    /// Starts a part with at most this many entries.
    pub(crate) fn begin(&mut self, key: PartKey, kind: Kind, entries_max: u64) {
        assert!(self.current.is_none(), "one part ends before the next begins");
        assert!(self.parts.last_key_value().is_none_or(|(last, _)| *last < key), "parts are in order");
        if kind == Kind::Pairs && entries_max > PAIRS_PER_BLOCK as u64 {
            // So that a block is in one page.
            let fill = self.end().next_multiple_of(BLOCK_BYTES as u64) - self.end();
            self.buffer.extend(std::iter::repeat_n(0, usize::try_from(fill).expect("less than a block")));
        }
        self.current = Some((key, Part::new(kind, self.end())));
        self.last = None;
    }

    fn part(&mut self) -> &mut Part {
        &mut self.current.as_mut().expect("a part has begun").1
    }

    pub(crate) fn pair(&mut self, pair: Pair, rest: Rest) -> Result<()> {
        assert!(self.last.is_none_or(|last| last <= pair), "pairs are in order");
        if self.section.last() != Some(&pair.fingerprint) {
            self.section.push(pair.fingerprint);
        }
        self.last = Some(pair);
        self.pairs.push(pair);
        let part = self.part();
        part.entries += 1;
        part.removed += u64::from(!pair.added);
        if self.pairs.len() == PAIRS_PER_BLOCK {
            self.end_pairs();
            self.flush_if_full(rest)?;
        }
        Ok(())
    }

    pub(crate) fn position(&mut self, position: &Position, op: PositionOp, rest: Rest) -> Result<()> {
        let length = u32::try_from(position.len()).expect("a part of a frame");
        assert!(length < REMOVED, "a part of a frame");
        let flag = if op.added { 0 } else { REMOVED };
        self.stream.extend_from_slice(&(length | flag).to_le_bytes());
        self.stream.extend_from_slice(&op.key.to_le_bytes());
        self.stream.extend_from_slice(position);
        let part = self.part();
        part.entries += 1;
        part.removed += u64::from(!op.added);
        while self.stream.len() >= STREAM_PER_BLOCK {
            let rest_of_stream = self.stream.split_off(STREAM_PER_BLOCK);
            let content = std::mem::replace(&mut self.stream, rest_of_stream);
            self.put_block(&content);
            self.flush_if_full(rest)?;
        }
        Ok(())
    }

    fn put_block(&mut self, content: &[u8]) {
        let crc = self.checksums.of(self.end(), content);
        self.buffer.extend_from_slice(content);
        self.buffer.extend_from_slice(&crc);
        let part = self.part();
        part.bytes += (content.len() + CRC_BYTES) as u64;
        part.crc = crc32c::crc32c_append(part.crc, &crc);
    }

    fn end_pairs(&mut self) {
        let pairs = std::mem::take(&mut self.pairs);
        let Some(first) = pairs.first() else { return };
        let mut content = Vec::with_capacity(BLOCK_BYTES);
        for pair in &pairs {
            content.extend_from_slice(&pair.fingerprint.to_le_bytes());
            content.extend_from_slice(&pair.value.to_le_bytes());
        }
        for eight in pairs.chunks(8) {
            content.push((0..).zip(eight).fold(0, |bits, (n, pair)| bits | u8::from(!pair.added) << n));
        }
        content.resize(pairs_block_bytes(pairs.len()) - CRC_BYTES, 0);
        self.put_block(&content);
        let part = self.part();
        part.fences.push(first.fingerprint);
        if part.fences.len().is_multiple_of(SECTION_BLOCKS) {
            self.end_section();
        }
        self.pairs = pairs;
        self.pairs.clear();
    }

    fn end_section(&mut self) {
        let filter = Filter::build(&self.section);
        let start = self.section[0];
        self.section.clear();
        self.part().sections.push((start, filter));
    }

    /// Ends a part. A part without entries is not kept.
    pub(crate) fn end_part(&mut self, rest: Rest) -> Result<()> {
        self.end_pairs();
        if !self.section.is_empty() {
            self.end_section();
        }
        let stream = std::mem::take(&mut self.stream);
        if !stream.is_empty() {
            self.put_block(&stream);
        }
        let (key, mut part) = self.current.take().expect("a part has begun");
        part.fences.shrink_to_fit();
        if part.entries > 0 {
            self.parts.insert(key, part);
        }
        self.flush_if_full(rest)
    }

    fn flush_if_full(&mut self, rest: Rest) -> Result<()> {
        if self.buffer.len() >= FLUSH_BYTES {
            self.flush()?;
            rest();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        write_all_at(&*self.file, &self.buffer, self.offset)
            .map_err(|source| io_error("write", &self.path, source))?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        // Piece by piece, so that no commit waits for all of it.
        self.file.sync().map_err(|source| io_error("sync", &self.path, source))
    }

    /// Writes the descriptions. The run is durable then, except for its name in the directory. `None` if it
    /// has no entries.
    pub(crate) fn finish(mut self, rest: Rest) -> Result<Option<Run>> {
        assert!(self.current.is_none(), "every part has ended");
        if self.parts.is_empty() {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts);
        let meta_offset = self.end();
        // The checksum covers the descriptions, which start in the buffer.
        let mut meta_crc = 0;
        let mut put = |writer: &mut Self, bytes: &[u8]| {
            meta_crc = crc32c::crc32c_append(meta_crc, bytes);
            writer.buffer.extend_from_slice(bytes);
            writer.flush_if_full(rest)
        };
        let head = encode_head(&self.identity, self.number, parts.len());
        put(&mut self, &head)?;
        for (key, part) in &parts {
            put(&mut self, &encode_part(*key, part))?;
            for fences in part.fences.chunks(FLUSH_BYTES / 8) {
                let bytes: Vec<u8> = fences.iter().flat_map(|fence| fence.to_le_bytes()).collect();
                put(&mut self, &bytes)?;
            }
            let mut bytes = Vec::new();
            for (_, filter) in &part.sections {
                bytes.clear();
                encode_filter(filter, &mut bytes);
                put(&mut self, &bytes)?;
            }
        }
        self.flush()?;
        let name = RunName { number: self.number, bytes: self.offset, meta_offset, meta_crc };
        Ok(Some(Run { name, path: self.path, file: self.file, checksums: self.checksums, parts }))
    }
}

//! The serial stream: reading committed changes from the journal, and holds, which keep segments that a reader still
//! needs.
//!
//! Compaction empties segments, and the next checkpoint removes them. If a hold needs one, it is *kept*: it stays in
//! the manifest and on disk, but not among the segments where rows are. A hold keeps all segments from its own on, so
//! a kept segment's deletions are kept, too, and replaying the whole journal gives the same rows as without it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::{Disk, io_error, read_file, read_full_at, replace_file};
use super::format::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, Identity, SEGMENT_HEADER_BYTES};
use super::record::{self, SegmentFile};
use super::{Core, Segment, Segments, lock};
use crate::feed::{CommitFeed, Feed, FeedChange, FeedCursor, FeedFrame, HOLDS_MAX, Hold};
use crate::{FrozenRows, Result, StoreError, TableDef};

pub(crate) const HOLDS_NAME: &str = "holds";
const MAGIC: &[u8; 8] = b"BATZHLD1";

/// Holds, and the segments without rows that are on disk.
#[derive(Default)]
pub(crate) struct Keeping {
    holds: Vec<Held>,
    /// Segments that compaction has emptied: the next checkpoint removes those that no hold needs.
    kept: Segments,
}

/// A hold, and the segment of the first frame that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    hold: Hold,
    segment: u32,
}

impl Keeping {
    /// Opens the feed with the segments and holds that were kept when the store was last open.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, identity: &Identity, kept: Segments) -> Result<Self> {
        let names = disk.list(dir).map_err(|source| io_error("list", dir, source))?;
        let mut holds = Vec::new();
        if names.iter().any(|name| name == HOLDS_NAME) {
            match decode(identity, &read_file(disk, &dir.join(HOLDS_NAME))?) {
                Some(decoded) => holds = decoded,
                None => {
                    tracing::warn!(store = %dir.display(), "the file of holds is damaged: readers start with a snapshot");
                }
            }
        }
        Ok(Self { holds, kept })
    }

    /// The first segment that a hold needs.
    fn floor(&self) -> u32 {
        self.holds.iter().map(|held| held.segment).min().unwrap_or(u32::MAX)
    }

    fn unneeded(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.kept.range(..self.floor()).map(|(_, segment)| segment)
    }

    /// The space of the segments that are kept for holds.
    fn bytes_from(&self, segment: u32) -> u64 {
        self.kept.range(segment..).map(|(_, segment)| segment.capacity.load(Ordering::Relaxed)).sum()
    }

    fn held_bytes(&self) -> u64 {
        self.bytes_from(self.floor())
    }
}

fn encode(identity: &Identity, holds: &[Held]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&identity.id);
    for Held { hold, segment } in holds {
        let count = |len: usize| u16::try_from(len).expect("Hold::check limits it").to_le_bytes();
        out.extend_from_slice(&segment.to_le_bytes());
        out.extend_from_slice(&hold.sequence.to_le_bytes());
        out.extend_from_slice(&hold.bytes_max.to_le_bytes());
        out.extend_from_slice(&count(hold.name.len()));
        out.extend_from_slice(hold.name.as_bytes());
        out.extend_from_slice(&count(hold.note.len()));
        out.extend_from_slice(&hold.note);
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn decode(identity: &Identity, bytes: &[u8]) -> Option<Vec<Held>> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body).to_le_bytes() != *crc {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?.strip_prefix(&identity.id)?;
    fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
        let (taken, left) = rest.split_at_checked(bytes)?;
        *rest = left;
        Some(taken)
    }
    fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
        take(rest, N)?.try_into().ok()
    }
    let mut holds = Vec::new();
    while !rest.is_empty() {
        let segment = u32::from_le_bytes(array(&mut rest)?);
        let sequence = u64::from_le_bytes(array(&mut rest)?);
        let bytes_max = u64::from_le_bytes(array(&mut rest)?);
        let name_bytes = u16::from_le_bytes(array(&mut rest)?).into();
        let name = String::from_utf8(take(&mut rest, name_bytes)?.to_vec()).ok()?;
        let note_bytes = u16::from_le_bytes(array(&mut rest)?).into();
        let note = take(&mut rest, note_bytes)?.to_vec();
        let hold = Hold { name, sequence, note, bytes_max };
        hold.check().ok()?;
        holds.push(Held { hold, segment });
    }
    (holds.len() <= HOLDS_MAX).then_some(holds)
}

impl Core {
    /// A segment that rows are in, or that is kept. Compaction adds a segment to those that are kept before it removes it
    /// from the others, so none is missed.
    fn segment_on_disk(&self, number: u32) -> Option<Arc<Segment>> {
        let known = self.read().segments.get(&number).cloned();
        known.or_else(|| lock(&self.keeping).kept.get(&number).cloned())
    }

    /// The numbers of all segments on disk, ascending.
    fn numbers_on_disk(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.read().segments.keys().copied().collect();
        numbers.extend(lock(&self.keeping).kept.keys());
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The header of the frame at an offset; `None` at the end of the segment.
    fn frame_header(&self, segment: &Segment, offset: u64) -> Result<Option<FrameHeader>> {
        let used = segment.used.load(Ordering::Acquire);
        if offset + FRAME_HEADER_BYTES as u64 > used {
            return Ok(None);
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        read_full_at(&*segment.file, &mut bytes, offset)
            .map_err(|source| io_error("read", &segment.path, source))?;
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let header = FrameHeader::decode(&self.identity, segment.number, offset, &bytes);
        header.map(Some).ok_or_else(|| segment.corrupt(offset, "not a frame"))
    }

    /// The place of a frame before `end`: its segment, and its offset there. For `end` itself, the last segment.
    fn locate(&self, sequence: u64, end: u64) -> Result<Option<(u32, u64)>> {
        let numbers = self.numbers_on_disk();
        for (at, &number) in numbers.iter().enumerate().rev() {
            // It may just have been removed.
            let Some(segment) = self.segment_on_disk(number) else { return Ok(None) };
            let mut offset = SEGMENT_HEADER_BYTES;
            let Some(first) = self.frame_header(&segment, offset)? else { continue };
            if first.sequence > sequence {
                continue;
            }
            while let Some(header) = self.frame_header(&segment, offset)? {
                if header.sequence == sequence {
                    return Ok(Some((number, offset)));
                }
                offset += header.frame_bytes();
            }
            // The end, which may be in a segment without frames.
            let is_last = numbers[at..].windows(2).all(|pair| pair[0] + 1 == pair[1]) && sequence == end;
            return Ok(is_last.then_some((number, offset)));
        }
        // Nothing was ever written.
        Ok((sequence == end && end == 1).then(|| (numbers[0], SEGMENT_HEADER_BYTES)))
    }

    /// The changes of some tables in the frame at an offset.
    fn feed_frame(
        &self,
        segment: &Segment,
        offset: u64,
        tables: &[&'static TableDef],
    ) -> Result<Vec<FeedChange>> {
        let frame = self.read_frame(segment, offset)?;
        let (header, frame) = frame.ok_or_else(|| segment.corrupt(offset, "a frame is missing"))?;
        let payload = header.payload_of(&frame);
        let (mut file, mut scratch) = (SegmentFile::new(segment), Vec::new());
        let mut changes = Vec::new();
        let mut at = 0;
        while at < payload.len() {
            let place = offset + (FRAME_HEADER_BYTES + at) as u64;
            let decoded = record::decode(&payload[at..], (segment.number, place), &mut file, &mut scratch)?;
            let (record, bytes) = decoded.map_err(|what| segment.corrupt(place, what))?;
            if let Some(table) = tables.iter().find(|table| table.id == record.table) {
                changes.push(FeedChange {
                    table,
                    layout: record.layout,
                    key: record.key.to_vec(),
                    row: record.row(table)?.map(std::borrow::Cow::into_owned),
                    serial: record.serial,
                });
            }
            at += bytes;
        }
        Ok(changes)
    }

    pub(crate) fn read_feed(
        &self,
        cursor: &mut FeedCursor,
        tables: &[&'static TableDef],
        bytes_max: usize,
    ) -> Result<Feed> {
        let end = self.counters.sequence_end.load(Ordering::Acquire);
        if cursor.next > end {
            return Ok(Feed::Ahead { end });
        }
        let mut frames = Vec::new();
        if cursor.next == end {
            return Ok(Feed::Frames(frames));
        }
        let on_disk = |(number, offset)| Some((self.segment_on_disk(number)?, offset));
        // A known place may be the end of a segment that nobody needs any more.
        let place = match cursor.place.and_then(on_disk) {
            Some(place) => Some(place),
            None => self.locate(cursor.next, end)?.and_then(on_disk),
        };
        let Some((mut segment, mut offset)) = place else { return Ok(Feed::Gone) };
        let mut next = cursor.next;
        let mut bytes = 0;
        while next < end && bytes < bytes_max as u64 {
            let Some(header) = self.frame_header(&segment, offset)? else {
                // Segments are added before their first frame is written. An empty one may be gone, although the frame
                // after it is there: it was too large for the empty one.
                let later = match self.segment_on_disk(segment.number + 1) {
                    Some(later) => Some((later, SEGMENT_HEADER_BYTES)),
                    None => self.locate(next, end)?.and_then(on_disk),
                };
                let Some(later) = later else { return Ok(Feed::Gone) };
                (segment, offset) = later;
                continue;
            };
            if header.sequence != next {
                let what = format!("frame {} where frame {next} belongs", header.sequence);
                return Err(segment.corrupt(offset, what));
            }
            if header.kind == FrameKind::Commit {
                let changes = self.feed_frame(&segment, offset, tables)?;
                if !changes.is_empty() {
                    frames.push(FeedFrame { sequence: next, changes });
                }
            }
            bytes += header.frame_bytes();
            offset += header.frame_bytes();
            next += 1;
        }
        *cursor = FeedCursor { next, place: Some((segment.number, offset)) };
        Ok(Feed::Frames(frames))
    }

    /// While the writer's lock is held, every frame of the journal has been published.
    pub(crate) fn snapshot(&self, tables: &[&'static TableDef]) -> Result<(u64, Box<dyn FrozenRows>)> {
        let writer = lock(&self.writer);
        let frozen = self.freeze(tables)?;
        Ok((writer.sequence, Box::new(frozen)))
    }

    fn save_holds(&self, holds: &[Held]) -> Result<()> {
        replace_file(&*self.options.disk, &self.dir, HOLDS_NAME, &encode(&self.identity, holds))
    }

    pub(crate) fn hold(&self, hold: Hold) -> Result<bool> {
        hold.check()?;
        self.check_running()?;
        let end = self.counters.sequence_end.load(Ordering::Acquire);
        if hold.sequence > end {
            return Ok(false);
        }
        let Some((segment, _)) = self.locate(hold.sequence, end)? else { return Ok(false) };
        let mut keeping = lock(&self.keeping);
        // From here on, nothing is removed.
        let is_whole = {
            let state = self.read();
            let last = state.segments.keys().next_back().copied().unwrap_or(0);
            (segment..=last)
                .all(|number| state.segments.contains_key(&number) || keeping.kept.contains_key(&number))
        };
        if !is_whole {
            return Ok(false);
        }
        let mut holds = keeping.holds.clone();
        holds.retain(|held| held.hold.name != hold.name);
        if holds.len() >= HOLDS_MAX {
            return Err(StoreError::Backend(format!("the store has {HOLDS_MAX} holds, which is the limit")));
        }
        holds.push(Held { hold, segment });
        self.save_holds(&holds)?;
        keeping.holds = holds;
        Ok(true)
    }

    pub(crate) fn release(&self, name: &str) -> Result<()> {
        let mut keeping = lock(&self.keeping);
        let mut holds = keeping.holds.clone();
        holds.retain(|held| held.hold.name != name);
        if holds.len() < keeping.holds.len() {
            self.save_holds(&holds)?;
            keeping.holds = holds;
        }
        Ok(())
    }

    /// Adds a segment that compaction has emptied.
    pub(crate) fn keep(&self, segment: &Arc<Segment>) {
        lock(&self.keeping).kept.insert(segment.number, Arc::clone(segment));
    }

    /// Drops holds for which too much is kept; with `is_full`, all holds for which anything is kept, because a reader
    /// can take a snapshot, but a full disk stops payments.
    pub(crate) fn limit_holds(&self, is_full: bool) -> Result<()> {
        let mut keeping = lock(&self.keeping);
        let limit = |held: &Held| if is_full { 0 } else { held.hold.bytes_max };
        let (fits, dropped): (Vec<Held>, Vec<Held>) =
            keeping.holds.iter().cloned().partition(|held| keeping.bytes_from(held.segment) <= limit(held));
        if dropped.is_empty() {
            return Ok(());
        }
        for Held { hold, segment } in &dropped {
            let bytes = keeping.bytes_from(*segment);
            tracing::warn!(
                store = %self.dir.display(), reader = hold.name, bytes, is_full,
                "what a reader needs takes too much space and is removed: the reader has to start with a snapshot"
            );
        }
        // On a full disk, the file may be impossible to write. It names segments that will be missing then.
        let saved = self.save_holds(&fits);
        keeping.holds = fits;
        if is_full { Ok(()) } else { saved }
    }

    /// The bytes of segments that the next checkpoint removes.
    pub(crate) fn unneeded_bytes(&self) -> u64 {
        lock(&self.keeping).unneeded().map(|segment| segment.used.load(Ordering::Relaxed)).sum()
    }

    /// Takes the segments that no hold needs, to remove them. Holds cannot have them any more.
    pub(crate) fn take_unneeded(&self) -> Vec<Arc<Segment>> {
        let mut keeping = lock(&self.keeping);
        let unneeded: Vec<Arc<Segment>> = keeping.unneeded().cloned().collect();
        unneeded.iter().for_each(|segment| {
            keeping.kept.remove(&segment.number);
        });
        unneeded
    }

    /// The numbers of the segments that are kept.
    pub(crate) fn kept_numbers(&self) -> Vec<u32> {
        lock(&self.keeping).kept.keys().copied().collect()
    }

    /// The bytes on disk that are kept for holds only, and the number of holds.
    pub(crate) fn held(&self) -> (u64, usize) {
        let keeping = lock(&self.keeping);
        (keeping.held_bytes(), keeping.holds.len())
    }
}

impl CommitFeed for super::EmbeddedStore {
    fn id(&self) -> [u8; 16] {
        self.core.identity.id
    }

    fn end(&self) -> u64 {
        self.core.counters.sequence_end.load(Ordering::Acquire)
    }

    fn read(&self, cursor: &mut FeedCursor, tables: &[&'static TableDef], bytes_max: usize) -> Result<Feed> {
        self.core.read_feed(cursor, tables, bytes_max)
    }

    fn snapshot(&self, tables: &[&'static TableDef]) -> Result<(u64, Box<dyn FrozenRows>)> {
        self.core.snapshot(tables)
    }

    fn hold(&self, hold: Hold) -> Result<bool> {
        self.core.hold(hold)
    }

    fn release(&self, name: &str) -> Result<()> {
        self.core.release(name)
    }

    fn holds(&self) -> Vec<Hold> {
        lock(&self.core.keeping).holds.iter().map(|held| held.hold.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_read_back_or_none() {
        let identity = Identity { id: [1; 16], key: [2; 16] };
        let held = |name: &str, note: &[u8]| Held {
            hold: Hold { name: name.into(), sequence: 7, note: note.into(), bytes_max: 1 << 40 },
            segment: 3,
        };
        let holds = vec![held("a", b""), held("auditor-1", &[9; 300])];
        let bytes = encode(&identity, &holds);
        assert_eq!(decode(&identity, &bytes), Some(holds));
        assert_eq!(decode(&identity, &encode(&identity, &[])), Some(Vec::new()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(decode(&identity, &damaged), None, "byte {at}");
        }
        assert_eq!(decode(&Identity { id: [3; 16], ..identity }, &bytes), None, "another store's");
        for wrong in ["", "a b", "a/b", &"a".repeat(65)] {
            assert!(held(wrong, b"").hold.check().is_err(), "{wrong:?}");
        }
        assert!(held("a", &[0; 1_025]).hold.check().is_err());
    }
}

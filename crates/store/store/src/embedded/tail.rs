//! The end of the journal: how to distinguish an interrupted write from damage, and the mark of the journal's
//! end.
//!
//! A frame is written over zeros, and a disk writes a sector as a whole or not at all. So an interrupted
//! write leaves each sector's part of a frame either correct or all zeros, and such a frame was never
//! acknowledged. A part that is neither was written and then damaged, and may have been acknowledged.
//! docs/decisions/0001-damaged-tail.md describes which cases can be distinguished.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, DiskFile, io_error, read_file, write_all_at};
use super::format::{
    FRAME_END_BYTES, FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_MAGIC_1, FrameHeader, Identity, SECTOR_BYTES,
    TAIL_MARK_NAME, end_word, sector_rest,
};
use super::{Core, lock};
use crate::Result;

/// Why there is no whole frame at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An interrupted write: data is missing at this offset in the segment.
    Torn(u64, &'static str),
    /// Damage: data at this offset in the segment differs from what was written.
    Damaged(u64, &'static str),
}

impl Fault {
    pub(super) fn at(self) -> u64 {
        let (Self::Torn(at, _) | Self::Damaged(at, _)) = self;
        at
    }

    pub(super) fn what(self) -> &'static str {
        let (Self::Torn(_, what) | Self::Damaged(_, what)) = self;
        what
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Splits bytes that start at an offset of the file at sector boundaries, with the offset of each part.
fn sector_parts(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let (first, others) = bytes.split_at(bytes.len().min(sector_rest(offset)));
    let others_start = offset + first.len() as u64;
    let others =
        (0..).map(move |n: u64| others_start + n * SECTOR_BYTES as u64).zip(others.chunks(SECTOR_BYTES));
    std::iter::once((offset, first)).chain(others).filter(|(_, part)| !part.is_empty())
}

/// Judges a position where a frame should start, but has no genuine header, although the rest of the segment,
/// `rest`, is not all zeros.
pub(crate) fn judge_header(offset: u64, rest: &[u8]) -> Fault {
    let Some(header) = rest.get(..FRAME_HEADER_BYTES) else {
        return Fault::Torn(offset, "the file ends within a frame's header");
    };
    // Zeros with one flipped bit.
    if rest.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1 {
        return Fault::Torn(offset, "a single bit is set where there should be zeros");
    }
    // No sector's part of a header is ever all zeros: one contains the magic number, the other the tag. The
    // same holds for the parts of a frame.
    let header_end = offset + header.len() as u64;
    let is_begun = [FRAME_MAGIC, FRAME_MAGIC_1].iter().any(|magic| header.starts_with(*magic));
    let mut parts = sector_parts(offset, rest).take_while(|(at, _)| *at < header_end);
    match parts.find(|(_, part)| is_zero(part)) {
        Some((at, _)) if at == offset || is_begun => Fault::Torn(at, "a frame's header was not written"),
        _ => Fault::Damaged(offset, "no frame's header"),
    }
}

impl FrameHeader {
    /// The bytes of the records in a frame.
    pub(crate) fn payload_of<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + self.payload_bytes as usize]
    }
}

/// Verifies the frame of a genuine header. `rest` starts with the header, at an offset of the segment.
///
/// # Errors
/// The damage to the frame.
pub(crate) fn check_frame(header: &FrameHeader, offset: u64, rest: &[u8]) -> std::result::Result<(), Fault> {
    let parts = usize::try_from(header.frame_bytes()).ok().and_then(|bytes| rest.split_at_checked(bytes));
    let Some((frame, beyond)) = parts else {
        return Err(match header.seal_bytes {
            None => Fault::Torn(offset, "a frame reaches past the end of the file"),
            Some(_) => Fault::Damaged(offset, "a frame reaches past the end of the segment"),
        });
    };
    let checked = match header.seal_bytes {
        None => check_unsealed(header, offset, frame),
        Some(_) => check_sealed(header, offset, frame),
    };
    match checked {
        // The next frame is written only when this one is durable.
        Err(Fault::Torn(at, _)) if !is_zero(beyond) => {
            Err(Fault::Damaged(at, "a frame is incomplete, and the journal continues after it"))
        }
        checked => checked,
    }
}

/// For format 1. Records may have sectors of zeros, so damage to such a frame can pass for an interrupted
/// write.
fn check_unsealed(header: &FrameHeader, offset: u64, frame: &[u8]) -> std::result::Result<(), Fault> {
    if crc32c::crc32c(header.payload_of(frame)) == header.crc {
        return Ok(());
    }
    Err(match sector_parts(offset, frame).find(|(_, part)| is_zero(part)) {
        Some((at, _)) => Fault::Torn(at, "a frame was not written completely"),
        None => Fault::Damaged(offset, "a frame's checksum is wrong"),
    })
}

fn check_sealed(header: &FrameHeader, offset: u64, frame: &[u8]) -> std::result::Result<(), Fault> {
    let payload_end = FRAME_HEADER_BYTES + header.payload_bytes as usize;
    let table_end = frame.len() - FRAME_END_BYTES;
    let (table, end) = (&frame[payload_end..table_end], &frame[table_end..]);
    let is_unwritten = |at: u64| {
        let mut parts = sector_parts(offset, frame);
        parts.any(|(start, part)| (start..start + part.len() as u64).contains(&at) && is_zero(part))
    };
    if crc32c::crc32c(table) != header.crc {
        let at = offset + payload_end as u64;
        let mut seal_parts = sector_parts(at, &frame[payload_end..]);
        if seal_parts.any(|(at, _)| is_unwritten(at)) {
            return Err(Fault::Torn(at, "a frame was not written completely"));
        }
        return Err(Fault::Damaged(at, "the checksums of a frame are wrong"));
    }
    let payload_start = offset + FRAME_HEADER_BYTES as u64;
    let mut torn = None;
    for ((at, part), crc) in sector_parts(payload_start, header.payload_of(frame)).zip(table.chunks_exact(4))
    {
        if crc32c::crc32c(part).to_le_bytes() == crc {
            continue;
        }
        if !(is_zero(part) && is_unwritten(at)) {
            return Err(Fault::Damaged(at, "a frame's checksum is wrong"));
        }
        torn.get_or_insert(Fault::Torn(at, "a frame was not written completely"));
    }
    let end_at = offset + table_end as u64;
    if end != end_word(header.crc) {
        if !is_unwritten(end_at) {
            return Err(Fault::Damaged(end_at, "the end of a frame is damaged"));
        }
        torn.get_or_insert(Fault::Torn(end_at, "a frame was not written completely"));
    }
    torn.map_or(Ok(()), Err)
}

/// A mark that states that all frames before this one are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TailMark {
    /// The next frame's number.
    pub(crate) sequence: u64,
    /// Where the journal ended: a segment's number and an offset in it.
    pub(crate) segment: u32,
    pub(crate) offset: u64,
}

const MARK_MAGIC: &[u8; 8] = b"BATZTAIL";
const MARK_BYTES: usize = 40;
/// Marks are written alternately into two slots in different pages, so that one survives if the other is
/// damaged or interrupted.
const SLOT_BYTES: u64 = 4096;
const SLOTS: u64 = 2;

impl TailMark {
    fn encode(self, identity: &Identity) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(MARK_MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.segment.to_le_bytes());
        let tag = identity.hash(&[&bytes[..32]]);
        bytes[32..].copy_from_slice(&tag.to_le_bytes());
        bytes
    }

    fn decode(identity: &Identity, bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MARK_BYTES] = bytes.get(..MARK_BYTES)?.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let segment = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
        let mark = Self { sequence: number(8), offset: number(16), segment };
        (mark.encode(identity) == *bytes).then_some(mark)
    }

    /// The error for a journal that ends before the mark.
    pub(crate) fn complaint(self, sequence: u64) -> String {
        let Self { sequence: marked, segment, offset } = self;
        format!(
            "the journal ends before frame {sequence}, but all before frame {marked} were durable: up to byte {offset} of \
             segment {segment}; restore a backup"
        )
    }
}

/// Reads the mark of a store, and its slot. Ignores marks that do not verify.
pub(crate) fn read_mark(disk: &dyn Disk, dir: &Path, identity: &Identity) -> Result<Option<(TailMark, u64)>> {
    let names = disk.list(dir).map_err(|source| io_error("list", dir, source))?;
    if !names.iter().any(|name| name == TAIL_MARK_NAME) {
        return Ok(None);
    }
    let bytes = read_file(disk, &dir.join(TAIL_MARK_NAME))?;
    let slots = bytes.chunks(usize::try_from(SLOT_BYTES).expect("small")).take(2);
    let marks = slots.map(|slot| TailMark::decode(identity, slot));
    let found = (0..SLOTS).zip(marks).filter_map(|(slot, mark)| Some((mark?, slot)));
    Ok(found.max_by_key(|(mark, _)| mark.sequence))
}

/// The open file of marks.
pub(crate) struct TailMarks {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// The slot of the last mark, and the mark.
    slot: u64,
    sequence: u64,
}

impl TailMarks {
    /// Opens the file, or creates it. The caller syncs the directory.
    ///
    /// A mark that was read may not be durable, for instance if the previous process was killed during its
    /// sync. It is written again and synced, since opening has relied on it.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        identity: &Identity,
        known: Option<(TailMark, u64)>,
    ) -> Result<Self> {
        let path = dir.join(TAIL_MARK_NAME);
        let open = || match known {
            Some((mark, slot)) => {
                let file = disk.open(&path, true)?;
                write_all_at(&*file, &mark.encode(identity), slot * SLOT_BYTES)?;
                file.sync()?;
                Ok(file)
            }
            None => {
                let file = disk.create(&path)?;
                // Reserve the space now: marks are also written when the disk is full.
                write_all_at(&*file, &vec![0; usize::try_from(SLOTS * SLOT_BYTES).expect("small")], 0)?;
                file.sync()?;
                Ok(file)
            }
        };
        let file = open().map_err(|source| io_error("make", &path, source))?;
        let (sequence, slot) = known.map_or((0, 0), |(mark, slot)| (mark.sequence, slot));
        Ok(Self { path, file, slot, sequence })
    }

    /// Writes a mark and makes it durable.
    fn write(&mut self, identity: &Identity, mark: TailMark) -> Result<()> {
        self.slot = (self.slot + 1) % SLOTS;
        // Another attempt could meet the same state of the disk.
        self.sequence = mark.sequence;
        let write = write_all_at(&*self.file, &mark.encode(identity), self.slot * SLOT_BYTES);
        write.and_then(|()| self.file.sync()).map_err(|source| io_error("write", &self.path, source))
    }
}

impl Core {
    /// Marks the current end of the journal, unless it is already marked. After a failure the old mark
    /// remains, which only means that less damage is noticed.
    pub(crate) fn mark_tail(&self) {
        let mut marks = lock(&self.marks);
        let mark = {
            let writer = lock(&self.writer);
            TailMark { sequence: writer.sequence, segment: writer.active.number, offset: writer.offset }
        };
        if mark.sequence == marks.sequence {
            return;
        }
        if let Err(error) = marks.write(&self.identity, mark) {
            tracing::warn!(store = %self.dir.display(), %error, "the end of the journal could not be marked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::format::{FrameKind, seal};

    const OFFSET: u64 = 3 * 512 + 488;
    const SEGMENT: u32 = 3;

    fn identity() -> Identity {
        Identity { id: [1; 16], key: [2; 16] }
    }

    fn frame(offset: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame.extend_from_slice(payload);
        let crc = seal(&mut frame, offset);
        let header = FrameHeader {
            kind: FrameKind::Commit,
            payload_bytes: u32::try_from(payload.len()).unwrap(),
            seal_bytes: None,
            crc,
            sequence: 1,
            serial_next: 1,
            records: 1,
        };
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(&identity(), SEGMENT, offset));
        frame
    }

    fn judge(offset: u64, bytes: &[u8]) -> std::result::Result<(), Fault> {
        let mut rest = bytes.to_vec();
        rest.resize(bytes.len() + 1024, 0);
        match FrameHeader::decode(&identity(), SEGMENT, offset, &rest) {
            Some(header) => check_frame(&header, offset, &rest),
            None => Err(judge_header(offset, &rest)),
        }
    }

    /// Payloads of a few sectors, some with zeros in them, at offsets of every kind.
    fn frames() -> Vec<(u64, Vec<u8>)> {
        let mut zeros = vec![7; 2600];
        zeros[300..2000].fill(0);
        let payloads =
            [vec![9; 8], vec![1; 400], (0..1600).map(|n: u32| n.to_le_bytes()[0]).collect(), zeros];
        let offsets = [64, 512, OFFSET, 1024 - 8, 1024 - 48, 1024 - 64, 4096 - 440];
        let all = offsets.iter().flat_map(|&offset| payloads.iter().map(move |p| (offset, frame(offset, p))));
        all.collect()
    }

    #[test]
    fn every_flipped_bit_is_damage() {
        for (offset, frame) in frames() {
            assert_eq!(judge(offset, &frame), Ok(()));
            for at in 0..frame.len() {
                for bit in 0..8 {
                    let mut damaged = frame.clone();
                    damaged[at] ^= 1 << bit;
                    let fault = judge(offset, &damaged).unwrap_err();
                    assert!(
                        matches!(fault, Fault::Damaged(..)),
                        "byte {at} bit {bit} at {offset}: {fault:?}"
                    );
                    let part = fault.at() - offset;
                    assert!(part <= at as u64, "byte {at} is reported as {part}");
                }
            }
        }
    }

    /// Every combination of missing sectors is recognised as an interrupted write, never as damage.
    #[test]
    fn every_torn_write_is_recognised() {
        for (offset, frame) in frames() {
            let sectors: Vec<(u64, usize)> =
                sector_parts(offset, &frame).map(|(at, part)| (at - offset, part.len())).collect();
            for kept in 0..1_u32 << sectors.len() {
                let mut torn = frame.clone();
                for (n, &(start, bytes)) in sectors.iter().enumerate() {
                    if kept & 1 << n == 0 {
                        let start = usize::try_from(start).unwrap();
                        torn[start..start + bytes].fill(0);
                    }
                }
                let judged = judge(offset, &torn);
                if torn == frame {
                    assert_eq!(judged, Ok(()));
                } else {
                    assert!(
                        matches!(judged, Err(Fault::Torn(..))),
                        "sectors {kept:b} at {offset}: {judged:?}"
                    );
                }
            }
        }
    }

    /// Systems copy writes in pages, so no write ends within a sector, even if the process is killed.
    #[test]
    fn every_early_end_is_recognised() {
        for (offset, frame) in frames() {
            for end in (0..frame.len()).step_by(8) {
                let mut torn = frame.clone();
                torn[end..].fill(0);
                let judged = judge(offset, &torn);
                assert!(judged.is_err(), "{end} bytes at {offset}");
                if (offset + end as u64).is_multiple_of(SECTOR_BYTES as u64) {
                    assert!(matches!(judged, Err(Fault::Torn(..))), "{end} bytes at {offset}: {judged:?}");
                }
            }
        }
    }

    /// A write starts after the previous one is durable, so a frame with data after it was written
    /// completely.
    #[test]
    fn frame_with_data_after_it_is_not_torn() {
        for (offset, mut frame) in frames() {
            let last_sector = (offset + frame.len() as u64 - 1) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
            let Some(kept) = last_sector.checked_sub(offset + FRAME_HEADER_BYTES as u64) else { continue };
            let kept = usize::try_from(kept).unwrap() + FRAME_HEADER_BYTES;
            frame[kept..].fill(0);
            assert!(matches!(judge(offset, &frame), Err(Fault::Torn(..))));
            frame.extend_from_slice(&[1; 8]);
            assert!(matches!(judge(offset, &frame), Err(Fault::Damaged(..))));
        }
    }

    /// No frame was written here, so nothing acknowledged is lost.
    #[test]
    fn flipped_bit_after_the_last_frame_is_no_damage() {
        for offset in [64, OFFSET, 1024 - 8] {
            for at in 0..1024 {
                let mut zeros = vec![0; 1024];
                zeros[at] = 16;
                assert!(matches!(judge(offset, &zeros), Err(Fault::Torn(..))), "byte {at} at {offset}");
            }
        }
    }

    /// A sector of foreign bytes, and a missing header in a sector with other data.
    #[test]
    fn foreign_bytes_are_damage() {
        for (offset, frame) in frames() {
            for (at, part) in sector_parts(offset, &frame) {
                let start = usize::try_from(at - offset).unwrap();
                let mut damaged = frame.clone();
                damaged[start..start + part.len()].fill(0xa5);
                assert!(matches!(judge(offset, &damaged), Err(Fault::Damaged(..))), "{at} at {offset}");
            }
            if sector_rest(offset) > FRAME_HEADER_BYTES {
                let mut damaged = frame.clone();
                damaged[..FRAME_HEADER_BYTES].fill(0);
                assert!(matches!(judge(offset, &damaged), Err(Fault::Damaged(..))), "at {offset}");
            }
            // The end of some other frame, and zeros.
            let mut damaged = vec![0; frame.len()];
            damaged[..16].copy_from_slice(&frame[frame.len() - 16..]);
            assert!(matches!(judge(offset, &damaged), Err(Fault::Damaged(..))), "at {offset}");
        }
    }

    #[test]
    fn marks_are_read_back_or_none() {
        let mark = TailMark { sequence: 7, segment: 2, offset: 4096 };
        let bytes = mark.encode(&identity());
        assert_eq!(TailMark::decode(&identity(), &bytes), Some(mark));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 4;
            assert_eq!(TailMark::decode(&identity(), &damaged), None, "byte {at}");
        }
        assert_eq!(TailMark::decode(&identity(), &bytes[..39]), None);
    }
}

//! The format of the files.
//!
//! A store is a directory: `MANIFEST` (text: version, store id, hash key, list of segments), `LOCK`,
//! `journal-N.seg`, `checkpoint.idx`, `tail.mark`, and `holds` if a reader has any (`feed.rs`). A segment is a 64-byte header, then frames, then zeros.
//! A frame is one commit (or one step of compaction): a 48-byte header, records, and a seal. All numbers are
//! little-endian; everything starts at a multiple of eight.
//!
//! Headers carry a tag: SipHash-2-4 under the store's secret random key, over the header and its position. So
//! bytes that clients store can never pass for a frame, nor can a frame that the disk wrote to the wrong
//! place.
//!
//! Records are plain, as described here, or packed (`packed.rs`). Each has the number of its row's layout
//! (`migrate.rs`). The format of the manifest is higher than that of the segments, so that programs that know no
//! layouts or no packed records refuse the store.
//!
//! The seal consists of the CRC-32C of the records' part in each 512-byte sector of the file, and an end word
//! that is never zero. It distinguishes an interrupted write, which leaves sectors unchanged (zeros), from
//! damage, which changes written data: see `tail.rs` and docs/decisions/0001-damaged-tail.md. Frames of
//! format 1 have no seal, but one checksum over the records.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::path::Path;

use siphasher::sip::SipHasher24;

use crate::{LAYOUT_MAX, Result, StoreError};

/// The format of the journal that this program writes.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The format of the manifest that this program writes: 3 added layouts of rows, 4 packed records.
pub(crate) const MANIFEST_VERSION: u32 = 4;
/// The oldest format that this program reads. Opening such a store converts it.
const FORMAT_VERSION_MIN: u32 = 1;
/// The number of bytes that a disk writes as a whole or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 64;
pub(crate) const FRAME_HEADER_BYTES: usize = 48;
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
/// Locations have 24 bits for the offset in units of eight bytes.
pub(crate) const SEGMENT_BYTES_LIMIT: u64 = 1 << 27;
/// The limit of one commit: the largest row, and what the journal adds to it.
pub(crate) const FRAME_BYTES_LIMIT: u64 = crate::ROW_BYTES_MAX + (1 << 20);
/// Locations have 24 bits for the segment.
pub(crate) const SEGMENT_NUMBER_LIMIT: u32 = 1 << 24;

/// No store has this many commits or rows.
pub(crate) const NUMBER_LIMIT: u64 = 1 << 55;

const SEGMENT_MAGIC: &[u8; 8] = b"BATZSEG1";
pub(crate) const FRAME_MAGIC: &[u8; 4] = b"BZF2";
pub(crate) const FRAME_MAGIC_1: &[u8; 4] = b"BZF1";
/// The first byte of a record: what it is, and above that the layout of its row.
const ROW: u32 = 1;
const TOMBSTONE: u32 = 2;
const OP_MASK: u8 = 3;
const LAYOUT_SHIFT: u32 = 2;
const FRAME_END_MAGIC: &[u8; 4] = b"BZE2";
/// The last word of a frame: a constant, and the checksum of the sectors' checksums a second time.
pub(crate) const FRAME_END_BYTES: usize = 8;

/// Identifies the files of this store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub id: [u8; 16],
    pub key: [u8; 16],
}

impl Identity {
    /// The keyed hash that tags headers and places keys in the indexes.
    pub(crate) fn hash(&self, parts: &[&[u8]]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        for part in parts {
            hasher.write(part);
        }
        hasher.finish()
    }
}

pub(crate) fn round_up(n: usize) -> usize {
    n.div_ceil(8) * 8
}

/// The size of a record with a key and a row of these sizes.
pub(crate) fn record_bytes(key_bytes: usize, row_bytes: usize) -> usize {
    round_up(RECORD_HEADER_BYTES + key_bytes + row_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The name of a segment's file.
pub(crate) fn segment_name(number: u32) -> String {
    format!("journal-{number:08}.seg")
}

/// The number in a segment's file name.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("journal-")?.strip_suffix(".seg")?;
    let number = digits.parse().ok()?;
    (segment_name(number) == name && number > 0).then_some(number)
}

pub(crate) fn encode_segment_header(
    identity: &Identity,
    number: u32,
    size: u64,
) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    header[..8].copy_from_slice(SEGMENT_MAGIC);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&number.to_le_bytes());
    header[16..32].copy_from_slice(&identity.id);
    header[32..40].copy_from_slice(&size.to_le_bytes());
    let tag = identity.hash(&[&header[..56]]);
    header[56..].copy_from_slice(&tag.to_le_bytes());
    header
}

/// Why a segment's header is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SegmentHeaderError {
    #[error("the segment ends within its header")]
    Short,
    #[error("not a journal segment")]
    Magic,
    #[error("segment of format {0}, this program reads up to {FORMAT_VERSION}")]
    Version(u32),
    #[error("the segment belongs to another store")]
    OtherStore,
    #[error("the segment's header is damaged")]
    Damaged,
    #[error("the segment's header has a size that no segment has")]
    Size,
}

/// The format of a segment and the size with which it was created, in bytes.
pub(crate) fn decode_segment_header(
    identity: &Identity,
    number: u32,
    bytes: &[u8],
) -> std::result::Result<(u32, u64), SegmentHeaderError> {
    let header = bytes.get(..64).ok_or(SegmentHeaderError::Short)?;
    if &header[..8] != SEGMENT_MAGIC {
        return Err(SegmentHeaderError::Magic);
    }
    let version = u32_at(header, 8);
    if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
        return Err(SegmentHeaderError::Version(version));
    }
    if header[16..32] != identity.id {
        return Err(SegmentHeaderError::OtherStore);
    }
    if u64_at(header, 56) != identity.hash(&[&header[..56]]) || u32_at(header, 12) != number {
        return Err(SegmentHeaderError::Damaged);
    }
    let size = u64_at(header, 32);
    if !(SEGMENT_HEADER_BYTES..=SEGMENT_BYTES_LIMIT).contains(&size) {
        return Err(SegmentHeaderError::Size);
    }
    Ok((version, size))
}

/// Why a frame was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A commit.
    Commit,
    /// Live records copied from a segment that is being compacted.
    Move,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub kind: FrameKind,
    pub(crate) payload_bytes: u32,
    /// None in format 1.
    pub(crate) seal_bytes: Option<u32>,
    /// The checksum of the sectors' checksums; in format 1, of the payload.
    pub(crate) crc: u32,
    pub(crate) sequence: u64,
    pub(crate) serial_next: u64,
    pub records: u32,
}

impl FrameHeader {
    /// The bytes of a header of format 2.
    pub(crate) fn encode(&self, identity: &Identity, segment: u32, offset: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut header = [0; FRAME_HEADER_BYTES];
        header[..4].copy_from_slice(FRAME_MAGIC);
        header[4] = match self.kind {
            FrameKind::Commit => 1,
            FrameKind::Move => 2,
        };
        header[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        header[12..16].copy_from_slice(&self.crc.to_le_bytes());
        header[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        header[24..32].copy_from_slice(&self.serial_next.to_le_bytes());
        header[32..36].copy_from_slice(&self.records.to_le_bytes());
        let tag = identity.hash(&[&header[..40], &segment.to_le_bytes(), &offset.to_le_bytes()]);
        header[40..].copy_from_slice(&tag.to_le_bytes());
        header
    }

    /// The header in these bytes, if it is genuine.
    pub(crate) fn decode(identity: &Identity, segment: u32, offset: u64, bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..FRAME_HEADER_BYTES)?;
        let is_sealed = &header[..4] == FRAME_MAGIC;
        if !is_sealed && &header[..4] != FRAME_MAGIC_1 {
            return None;
        }
        if u64_at(header, 40)
            != identity.hash(&[&header[..40], &segment.to_le_bytes(), &offset.to_le_bytes()])
        {
            return None;
        }
        let kind = match header[4] {
            1 => FrameKind::Commit,
            2 => FrameKind::Move,
            _ => return None,
        };
        if u64_at(header, 16).max(u64_at(header, 24)) > NUMBER_LIMIT {
            return None;
        }
        let payload_bytes = u32_at(header, 8);
        let seal_bytes = seal_bytes(offset, payload_bytes as usize);
        Some(Self {
            kind,
            payload_bytes,
            seal_bytes: is_sealed.then(|| u32::try_from(seal_bytes).expect("a part of the payload's size")),
            crc: u32_at(header, 12),
            sequence: u64_at(header, 16),
            serial_next: u64_at(header, 24),
            records: u32_at(header, 32),
        })
    }

    pub(crate) fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.payload_bytes) + u64::from(self.seal_bytes.unwrap_or(0))
    }
}

/// Number of bytes that are left in a sector from an offset in the file.
pub(crate) fn sector_rest(place: u64) -> usize {
    SECTOR_BYTES - usize::try_from(place % SECTOR_BYTES as u64).expect("less than a sector")
}

/// The size of the seal of a frame at this offset.
pub(crate) fn seal_bytes(offset: u64, payload_bytes: usize) -> usize {
    let beyond_first = payload_bytes.saturating_sub(sector_rest(offset + FRAME_HEADER_BYTES as u64));
    let sectors = usize::from(payload_bytes > 0) + beyond_first.div_ceil(SECTOR_BYTES);
    round_up(4 * sectors) + FRAME_END_BYTES
}

/// The largest size that the frame can have at any offset.
pub(crate) fn frame_bytes_max(payload_bytes: usize) -> u64 {
    let seal_bytes_max = round_up(4 * (payload_bytes / SECTOR_BYTES + 2)) + FRAME_END_BYTES;
    (FRAME_HEADER_BYTES + payload_bytes + seal_bytes_max) as u64
}

/// Appends its seal to a frame that starts at this offset of a segment. Returns the checksum for its header.
pub(crate) fn seal(frame: &mut Vec<u8>, offset: u64) -> u32 {
    let payload_end = frame.len();
    let mut at = FRAME_HEADER_BYTES;
    while at < payload_end {
        let end = payload_end.min(at + sector_rest(offset + at as u64));
        let crc = crc32c::crc32c(&frame[at..end]);
        frame.extend_from_slice(&crc.to_le_bytes());
        at = end;
    }
    frame.resize(payload_end + round_up(frame.len() - payload_end), 0);
    let crc = crc32c::crc32c(&frame[payload_end..]);
    frame.extend_from_slice(&end_word(crc));
    crc
}

/// The last word of a frame.
pub(crate) fn end_word(crc: u32) -> [u8; FRAME_END_BYTES] {
    let mut word = [0; FRAME_END_BYTES];
    word[..4].copy_from_slice(FRAME_END_MAGIC);
    word[4..].copy_from_slice(&crc.to_le_bytes());
    word
}

/// One row's new state, plain.
///
/// `birth` is the oldest segment that may hold a version of the row: a tombstone is needed as long as an
/// earlier segment that may hold a version exists. A tombstone has the serial of the row that it deletes. So
/// a tombstone that compaction moves behind a row inserted later under the same key does not delete that row,
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordView<'a> {
    pub table: u16,
    pub(crate) birth: u32,
    pub(crate) serial: u64,
    /// The layout of the row; 0 for a tombstone.
    pub(crate) layout: u8,
    pub key: &'a [u8],
    /// None: the row was deleted.
    pub row: Option<&'a [u8]>,
}

impl<'a> RecordView<'a> {
    /// Appends the record and returns its size.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        let row = self.row.unwrap_or_default();
        let op: u32 =
            if self.row.is_some() { ROW | u32::from(self.layout) << LAYOUT_SHIFT } else { TOMBSTONE };
        assert!(self.layout <= LAYOUT_MAX, "layouts fit");
        assert!(self.birth < SEGMENT_NUMBER_LIMIT, "segment numbers fit");
        let key_bytes = u16::try_from(self.key.len()).expect("commit checked the key's length");
        let row_bytes = u32::try_from(row.len()).expect("commit checked the row's length");
        out.extend_from_slice(&(op | self.birth << 8).to_le_bytes());
        out.extend_from_slice(&self.table.to_le_bytes());
        out.extend_from_slice(&key_bytes.to_le_bytes());
        out.extend_from_slice(&row_bytes.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.serial.to_le_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(row);
        let crc = record_crc(&out[start..]);
        out[start + 12..start + 16].copy_from_slice(&crc.to_le_bytes());
        out.resize(start + round_up(out.len() - start), 0);
        out.len() - start
    }

    /// The size of the record that starts here, from its header alone.
    pub(crate) fn size_at(bytes: &[u8]) -> Option<usize> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let key_bytes = usize::from(u16::from_le_bytes([header[6], header[7]]));
        Some(record_bytes(key_bytes, u32_at(header, 8) as usize))
    }

    /// The record at the start of `bytes`, and its size. Verifies its checksum.
    pub(super) fn decode(bytes: &'a [u8]) -> std::result::Result<(Self, usize), &'static str> {
        let size = Self::size_at(bytes).ok_or("a record ends within its header")?;
        let record = bytes.get(..size).ok_or("a record reaches past its end")?;
        let key_bytes = usize::from(u16::from_le_bytes([record[6], record[7]]));
        let row_end = RECORD_HEADER_BYTES + key_bytes + u32_at(record, 8) as usize;
        if u32_at(record, 12) != record_crc(&record[..row_end]) {
            return Err("a record's checksum is wrong");
        }
        let (key, row) = record[RECORD_HEADER_BYTES..row_end].split_at(key_bytes);
        let (op, layout) = (record[0] & OP_MASK, record[0] >> LAYOUT_SHIFT);
        let row = match u32::from(op) {
            ROW => Some(row),
            TOMBSTONE if row.is_empty() && layout == 0 => None,
            _ => return Err("a record of unknown kind"),
        };
        let view = RecordView {
            table: u16::from_le_bytes([record[4], record[5]]),
            birth: u32_at(record, 0) >> 8,
            serial: u64_at(record, 16),
            layout,
            key,
            row,
        };
        Ok((view, size))
    }
}

/// Changes the serial of an encoded record.
pub(crate) fn set_serial(record: &mut [u8], serial: u64) {
    record[16..24].copy_from_slice(&serial.to_le_bytes());
    set_crc(record);
}

/// Computes the checksum of a record and writes it into the header.
fn set_crc(record: &mut [u8]) {
    let key_bytes = usize::from(u16::from_le_bytes([record[6], record[7]]));
    let row_end = RECORD_HEADER_BYTES + key_bytes + u32_at(record, 8) as usize;
    let crc = record_crc(&record[..row_end]);
    record[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Fixes the checksum of a record, for the fuzz target.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn repair_record(record: &mut [u8]) {
    set_crc(record);
}

/// The checksum of the record, except for the checksum's own four bytes.
fn record_crc(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..12]), &record[16..])
}

/// The store's manifest: its identity and its segments.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The format that the file had.
    pub(crate) version: u32,
    pub identity: Identity,
    /// Segments up to this number exist if and only if they are listed; later ones exist without gaps.
    pub(crate) segments_upto: u32,
    pub(crate) segments: Vec<u32>,
    /// The layouts of rows by table; all rows of other tables have layout 0.
    pub(crate) layouts: BTreeMap<u16, Layouts>,
}

/// The layouts of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layouts {
    pub(crate) newest: u8,
    /// The oldest that rows may still have. If it is not the newest, the rows are being migrated.
    pub(crate) oldest: u8,
}

pub(crate) const MANIFEST_NAME: &str = "MANIFEST";
pub(crate) const LOCK_NAME: &str = "LOCK";
/// The file that a readiness check writes and removes.
pub(crate) const PROBE_NAME: &str = "PROBE";
pub(crate) const CHECKPOINT_NAME: &str = "checkpoint.idx";
pub(crate) const TAIL_MARK_NAME: &str = "tail.mark";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let digits = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| digits.to_be_bytes())
}

impl Manifest {
    pub(crate) fn encode(&self) -> String {
        let segments: Vec<String> = self.segments.iter().map(ToString::to_string).collect();
        let mut layouts = String::new();
        for (table, Layouts { newest, oldest }) in &self.layouts {
            layouts += &format!("layout {table} {newest} {oldest}\n");
        }
        let body = format!(
            "batzen-store {MANIFEST_VERSION}\nid {}\nkey {}\nsegments-upto {}\nsegments {}\n{layouts}",
            hex(&self.identity.id),
            hex(&self.identity.key),
            self.segments_upto,
            segments.join(" "),
        );
        format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()))
    }

    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let corrupt =
            |what: &str| StoreError::Corrupt { file: path.to_owned(), offset: 0, what: what.into() };
        let text = std::str::from_utf8(bytes).map_err(|_| corrupt("not text"))?;
        let first = text.lines().next().unwrap_or_default();
        let version = match first.strip_prefix("batzen-store ").map(str::parse::<u32>) {
            Some(Ok(version)) if (FORMAT_VERSION_MIN..=MANIFEST_VERSION).contains(&version) => version,
            Some(Ok(version)) => {
                let what =
                    format!("a store of format {version}, this program reads up to {MANIFEST_VERSION}");
                return Err(StoreError::Format { file: path.to_owned(), what });
            }
            _ => return Err(corrupt("not a manifest")),
        };
        let (body, crc) = text.split_at(text.rfind("crc32c ").ok_or_else(|| corrupt("no checksum"))?);
        if crc != format!("crc32c {:08x}\n", crc32c::crc32c(body.as_bytes())) {
            return Err(corrupt("wrong checksum"));
        }
        let field = |name: &str| {
            let value = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.ok_or_else(|| corrupt(&format!("no {name}")))
        };
        let bytes16 = |name: &str| unhex(field(name)?).ok_or_else(|| corrupt(&format!("bad {name}")));
        let numbers: std::result::Result<Vec<u32>, _> =
            field("segments")?.split_whitespace().map(str::parse).collect();
        let segments = numbers.map_err(|_| corrupt("bad segments"))?;
        let segments_upto = field("segments-upto")?.parse().map_err(|_| corrupt("bad segments-upto"))?;
        if segments.iter().chain([&segments_upto]).any(|&number| number >= SEGMENT_NUMBER_LIMIT) {
            return Err(corrupt("a segment's number is too large"));
        }
        let identity = Identity { id: bytes16("id")?, key: bytes16("key")? };
        let layouts = body
            .lines()
            .filter_map(|line| line.strip_prefix("layout "))
            .map(read_layouts)
            .collect::<Option<BTreeMap<u16, Layouts>>>();
        let layouts = layouts.ok_or_else(|| corrupt("bad layout"))?;
        Ok(Self { version, identity, segments_upto, segments, layouts })
    }
}

fn read_layouts(text: &str) -> Option<(u16, Layouts)> {
    let mut words = text.split(' ');
    let table = words.next()?.parse().ok()?;
    let (newest, oldest) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let is_valid = words.next().is_none() && oldest <= newest && newest <= LAYOUT_MAX;
    is_valid.then_some((table, Layouts { newest, oldest }))
}

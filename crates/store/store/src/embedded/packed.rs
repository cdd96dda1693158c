//! Packed records: rows that take few bytes in the journal.
//!
//! A packed record is a header, the *stored* bytes and *references*. The references say where in the stored bytes
//! something is left out, and where earlier in the same segment it is found (`shared.rs`). With it, they are
//! the *body*: the key's length, the key, and the packed row (`pack.rs`). What is referred to always lies in
//! stored bytes itself, so each reference is resolved with one read. All numbers are little-endian:
//!
//! ```text
//! flags          1 byte: 3, then bits for "has references" and "has a birth", then four bits of layout
//! serial         7 bytes
//! checksum       4 bytes: CRC-32C of flags, the numbers below and the body, XOR that of the serial
//! layout         1 byte, if the bits above are all set
//! table, birth (if any), length of the stored bytes, length of the references (if any): LEB128
//! stored bytes, references
//! ```
//!
//! A reference is a byte with the length in units of 16 bytes less one (bits 0 to 2), whether the place is absolute
//! (bit 3), and the number of stored bytes before it since the last one (bits 4 to 7, or 15 and LEB128); then
//! its place in LEB128: an offset in the segment, or how far before this record it lies, or 0 and how far after the
//! end of the last reference's value.
//!
//! A record without a birth was born in the segment where it is. The checksum treats the serial separately, so that
//! the serial can be set last, without reading the record again.

use super::format::{NUMBER_LIMIT, round_up};
use super::pack::{Fixed, fixed_columns, number_bytes, pack, put_number, take_number, unpack};
use super::shared::{Dictionary, Recent, SHARED_UNIT, is_shareable};
use crate::table::{RepeatingColumns, SharedColumns};
use crate::{DecodeError, Result, StoreError, TableDef};

/// The two lowest bits of the first byte of a packed record. Other records have other values (`format.rs`).
pub(crate) const PACKED: u8 = 3;
const HAS_REFERENCES: u8 = 4;
const HAS_BIRTH: u8 = 8;
const LAYOUT_SHIFT: u32 = 4;
/// The layout follows in a byte of its own.
const LAYOUT_LONG: u8 = 15;
const SERIAL_BYTES: usize = 7;
const CRC_AT: usize = 1 + SERIAL_BYTES;
const FIXED_BYTES: usize = CRC_AT + 4;
/// The longest header: layout, four numbers of at most five bytes.
pub(crate) const HEADER_BYTES_MAX: usize = FIXED_BYTES + 1 + 4 * 5;
/// The most bytes that one reference stands for.
const REFERENCE_BYTES_MAX: usize = 8 * SHARED_UNIT;
const IS_ABSOLUTE: u8 = 8;
const SKIP_SHIFT: u32 = 4;
const SKIP_LONG: u8 = 15;

/// Returns whether the record that starts here is packed.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|flags| flags & 3 == PACKED)
}

/// The serial of a packed record.
pub(crate) fn serial_at(record: &[u8]) -> u64 {
    u64::from_le_bytes(*record.first_chunk().expect("a record has a header")) >> 8
}

/// Changes the serial of a packed record.
pub(crate) fn set_serial(record: &mut [u8], serial: u64) {
    assert!(serial < NUMBER_LIMIT, "serials fit");
    let before = crc32c::crc32c(&record[1..CRC_AT]);
    record[1..CRC_AT].copy_from_slice(&serial.to_le_bytes()[..SERIAL_BYTES]);
    let crc = stored_crc(record) ^ before ^ crc32c::crc32c(&record[1..CRC_AT]);
    record[CRC_AT..FIXED_BYTES].copy_from_slice(&crc.to_le_bytes());
}

fn stored_crc(record: &[u8]) -> u32 {
    u32::from_le_bytes(record[CRC_AT..FIXED_BYTES].try_into().expect("four bytes"))
}

/// The header of a packed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub table: u16,
    /// `None`: the segment where the record is.
    pub birth: Option<u32>,
    pub serial: u64,
    pub layout: u8,
    stored_bytes: usize,
    references_bytes: usize,
    /// The size of the header itself.
    bytes: usize,
}

impl Header {
    fn encode(&self, out: &mut Vec<u8>) {
        let long_layout = self.layout >= LAYOUT_LONG;
        let mut flags = PACKED | self.layout.min(LAYOUT_LONG) << LAYOUT_SHIFT;
        if self.references_bytes > 0 {
            flags |= HAS_REFERENCES;
        }
        if self.birth.is_some() {
            flags |= HAS_BIRTH;
        }
        out.push(flags);
        out.extend_from_slice(&self.serial.to_le_bytes()[..SERIAL_BYTES]);
        out.extend_from_slice(&[0; 4]);
        if long_layout {
            out.push(self.layout);
        }
        put_number(self.table.into(), out);
        if let Some(birth) = self.birth {
            put_number(birth.into(), out);
        }
        put_number(self.stored_bytes as u64, out);
        if self.references_bytes > 0 {
            put_number(self.references_bytes as u64, out);
        }
    }

    /// The header at the start of these bytes, if it can be one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = *bytes.first()?;
        let mut input = bytes.get(FIXED_BYTES..)?;
        let mut layout = flags >> LAYOUT_SHIFT;
        if layout == LAYOUT_LONG {
            let (first, rest) = input.split_first()?;
            layout = *first;
            input = rest;
        }
        let input = &mut input;
        let table = u16::try_from(take_number(input).ok()?).ok()?;
        let has_birth = flags & HAS_BIRTH != 0;
        let birth = if has_birth { Some(u32::try_from(take_number(input).ok()?).ok()?) } else { None };
        let stored_bytes = u32::try_from(take_number(input).ok()?).ok()? as usize;
        let has_references = flags & HAS_REFERENCES != 0;
        let references_bytes =
            if has_references { u32::try_from(take_number(input).ok()?).ok()? as usize } else { 0 };
        let header_bytes = bytes.len() - input.len();
        let serial = serial_at(bytes);
        Some(Self { table, birth, serial, layout, stored_bytes, references_bytes, bytes: header_bytes })
    }

    /// The size of the record.
    pub(crate) fn record_bytes(&self) -> usize {
        round_up(self.bytes + self.stored_bytes + self.references_bytes)
    }

    fn stored<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        &record[self.bytes..self.bytes + self.stored_bytes]
    }

    fn references<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        let start = self.bytes + self.stored_bytes;
        &record[start..start + self.references_bytes]
    }

    fn crc(&self, record: &[u8], body: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&record[..1]), &record[FIXED_BYTES..self.bytes]);
        crc32c::crc32c_append(crc, body) ^ crc32c::crc32c(&record[1..CRC_AT])
    }
}

/// A part of the body that lies elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reference {
    /// Number of stored bytes that come before it, since the last one.
    skip: usize,
    bytes: usize,
    place: ReferenceTarget,
}

/// Where a reference leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReferenceTarget {
    /// This offset in the segment.
    Offset(u64),
    /// So far before the start of this record.
    Before(u64),
    /// So far after the end of what the last reference leads to.
    After(u64),
}

impl Reference {
    fn encode(&self, out: &mut Vec<u8>) {
        let units = u8::try_from(self.bytes / SHARED_UNIT - 1).expect("at most eight");
        let skip = u8::try_from(self.skip).unwrap_or(u8::MAX).min(SKIP_LONG);
        let is_absolute = matches!(self.place, ReferenceTarget::Offset(_));
        out.push(units | if is_absolute { IS_ABSOLUTE } else { 0 } | skip << SKIP_SHIFT);
        if skip == SKIP_LONG {
            put_number(self.skip as u64, out);
        }
        match self.place {
            ReferenceTarget::Offset(offset) => put_number(offset, out),
            ReferenceTarget::Before(distance) => {
                assert!(distance > 0, "a value ends before its record starts");
                put_number(distance, out);
            }
            ReferenceTarget::After(distance) => {
                put_number(0, out);
                put_number(distance, out);
            }
        }
    }

    fn take(input: &mut &[u8]) -> std::result::Result<Self, DecodeError> {
        let [code] = crate::take_array(input, "reference")?;
        let skip = match code >> SKIP_SHIFT {
            SKIP_LONG => usize::try_from(take_number(input)?).unwrap_or(usize::MAX),
            skip => skip.into(),
        };
        let bytes = (usize::from(code & 7) + 1) * SHARED_UNIT;
        let place = match (take_number(input)?, code & IS_ABSOLUTE != 0) {
            (offset, true) => ReferenceTarget::Offset(offset),
            (0, false) => ReferenceTarget::After(take_number(input)?),
            (distance, false) => ReferenceTarget::Before(distance),
        };
        Ok(Self { skip, bytes, place })
    }

    /// The offset in the segment of what a record at `record_at` leaves out. It lies before the record.
    fn offset(&self, record_at: u64, last_end: Option<u64>) -> Option<u64> {
        let offset = match self.place {
            ReferenceTarget::Offset(offset) => offset,
            ReferenceTarget::Before(distance) => record_at.checked_sub(distance)?,
            ReferenceTarget::After(distance) => last_end?.checked_add(distance)?,
        };
        (offset.checked_add(self.bytes as u64)? <= record_at).then_some(offset)
    }
}

/// Why a body cannot be put together.
enum BodyFault {
    Fault(Fault),
    Store(StoreError),
}

/// Appends the body of a record at `record_at`: its stored bytes, and what it refers to.
fn put_body(
    (mut stored, mut references): (&[u8], &[u8]),
    record_at: u64,
    segment: &mut dyn SegmentBytes,
    out: &mut Vec<u8>,
) -> std::result::Result<(), BodyFault> {
    let fault = |fault| Err(BodyFault::Fault(fault));
    let mut last_end = None;
    while !references.is_empty() {
        let Ok(reference) = Reference::take(&mut references) else {
            return fault("a record has half a reference");
        };
        let Some((before, rest)) = stored.split_at_checked(reference.skip) else {
            return fault("a record has a reference past its end");
        };
        out.extend_from_slice(before);
        stored = rest;
        let Some(offset) = reference.offset(record_at, last_end) else {
            return fault("a record refers to a later place");
        };
        if !segment.append(offset, reference.bytes, out).map_err(BodyFault::Store)? {
            return fault("a record refers to a missing place");
        }
        last_end = Some(offset + reference.bytes as u64);
    }
    out.extend_from_slice(stored);
    Ok(())
}

/// Where the bytes of a segment are read that records refer to.
pub(crate) trait SegmentBytes {
    /// Appends the bytes at an offset. False if the segment does not have them.
    ///
    /// # Errors
    /// When the disk fails.
    fn append(&mut self, offset: u64, bytes: usize, out: &mut Vec<u8>) -> Result<bool>;
}

/// A segment in memory.
impl SegmentBytes for &[u8] {
    fn append(&mut self, offset: u64, bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.get(start..).and_then(|rest| rest.get(..bytes));
        found.inspect(|found| out.extend_from_slice(found));
        Ok(found.is_some())
    }
}

/// A verified packed record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub(crate) header: Header,
    pub key: &'a [u8],
    pub row: &'a [u8],
    body: &'a [u8],
}

/// The fault of a record.
pub(crate) type Fault = &'static str;

/// The packed record at the start of `bytes`, which is at the offset `at` of its segment. Its body is in `scratch` if
/// parts of it lie elsewhere.
///
/// # Errors
/// When the segment cannot be read. What is wrong with the record is the inner error.
pub(crate) fn decode<'a>(
    bytes: &'a [u8],
    at: u64,
    segment: &mut dyn SegmentBytes,
    scratch: &'a mut Vec<u8>,
) -> Result<std::result::Result<Packed<'a>, Fault>> {
    let header = Header::decode(bytes).filter(|header| header.record_bytes() <= bytes.len());
    let Some(header) = header else { return Ok(Err("a record reaches past its end")) };
    let record = &bytes[..header.record_bytes()];
    let body = if header.references_bytes == 0 {
        header.stored(record)
    } else {
        scratch.clear();
        match put_body((header.stored(record), header.references(record)), at, segment, scratch) {
            Ok(()) => {}
            Err(BodyFault::Fault(fault)) => return Ok(Err(fault)),
            Err(BodyFault::Store(error)) => return Err(error),
        }
        &scratch[..]
    };
    if stored_crc(record) != header.crc(record, body) {
        return Ok(Err("a record's checksum is wrong"));
    }
    let mut rest = body;
    let key = take_number(&mut rest).ok().and_then(|n| rest.split_at_checked(usize::try_from(n).ok()?));
    let Some((key, row)) = key else { return Ok(Err("a record ends within its key")) };
    Ok(Ok(Packed { header, key, row, body }))
}

/// The encoded row of a packed one.
///
/// # Errors
/// If it is not a row of that layout.
pub(crate) fn unpacked(def: &TableDef, layout: u8, packed: &[u8]) -> Result<Vec<u8>> {
    let columns = def.columns(layout);
    let unpack = |columns| {
        let mut row = Vec::with_capacity(2 * packed.len());
        unpack(columns, packed, &mut row).map(|()| row)
    };
    columns.and_then(unpack).map_err(|source| StoreError::Decode { table: def.name, source })
}

/// Fixes the checksum of a packed record, for the fuzz target.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn repair(record: &mut [u8], at: u64, mut segment: &[u8]) {
    let Some(header) = Header::decode(record) else { return };
    let mut body = Vec::new();
    let parts = (header.stored(record), header.references(record));
    if put_body(parts, at, &mut segment, &mut body).is_err() {
        return;
    }
    let crc = header.crc(record, &body);
    record[CRC_AT..FIXED_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// The facts about a row that are known before its record is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub table: u16,
    /// `None`: the segment where the record will be.
    pub(crate) birth: Option<u32>,
    pub(crate) serial: u64,
    pub(crate) layout: u8,
}

/// A part of a body that may be shared: its place, its length, and whether later commits may refer to it, too.
#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    bytes: usize,
    is_lasting: bool,
}

/// A value that later commits may refer to once it is durable: its place in the buffer, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lasting {
    pub(crate) at: usize,
    pub bytes: usize,
}

/// Writes packed records for one frame. They are valid in one segment only.
pub(crate) struct Packer<'a> {
    /// The segment where the records are meant to go.
    segment: u32,
    dictionary: Option<&'a Dictionary>,
    recent: Recent,
    /// The values that may be added to the dictionary when the records are durable.
    pub(crate) lasting: Vec<Lasting>,
    // Buffers.
    body: Vec<u8>,
    stored: Vec<u8>,
    references: Vec<u8>,
    fixed: Vec<Fixed>,
    parts: Vec<Part>,
    kept: Vec<Part>,
}

impl<'a> Packer<'a> {
    /// For about that many records.
    pub(super) fn new(segment: u32, dictionary: Option<&'a Dictionary>, records: usize) -> Self {
        Self {
            segment,
            dictionary,
            recent: Recent::new(records),
            lasting: Vec::new(),
            body: Vec::new(),
            stored: Vec::new(),
            references: Vec::new(),
            fixed: Vec::new(),
            parts: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// The segment where the records are meant to go.
    pub(super) const fn segment(&self) -> u32 {
        self.segment
    }

    /// Appends a row, and returns the record's size. `None`, with nothing appended, if it is not a row of this table.
    pub(super) fn row(
        &mut self,
        def: &TableDef,
        head: Head,
        key: &[u8],
        row: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let Self { body, fixed, parts, .. } = self;
        body.clear();
        parts.clear();
        put_number(key.len() as u64, body);
        let key_at = body.len();
        body.extend_from_slice(key);
        let RepeatingColumns { key: shared_key, row: shared_row } = &def.shared;
        fixed.clear();
        if shared_key.any() {
            fixed_columns(def.key_columns, key, fixed);
        }
        parts.extend(fixed.iter().filter_map(|fixed| Part::of(fixed, key_at, shared_key)));
        fixed.clear();
        pack(def.columns(head.layout).ok()?, row, body, fixed)?;
        if head.layout == def.layout() {
            parts.extend(fixed.iter().filter_map(|fixed| Part::of(fixed, 0, shared_row)));
        }
        Some(self.write(head, out))
    }

    /// Appends a packed record of another place, and returns its size here.
    pub(super) fn again(&mut self, packed: &Packed<'_>, birth: Option<u32>, out: &mut Vec<u8>) -> usize {
        self.body.clear();
        self.body.extend_from_slice(packed.body);
        self.parts.clear();
        let Header { table, serial, layout, .. } = packed.header;
        self.write(Head { table, birth, serial, layout }, out)
    }

    /// Appends the record with the body and the parts in the buffers.
    fn write(&mut self, head: Head, out: &mut Vec<u8>) -> usize {
        let Self { body, stored, references, kept, recent, .. } = self;
        let start = out.len();
        stored.clear();
        references.clear();
        kept.clear();
        // The end of the body that is done, the stored bytes since the last reference, and that reference.
        let (mut done, mut stored_upto) = (0, 0);
        let mut last: Option<(Reference, Target)> = None;
        for part in &self.parts {
            let value = &body[part.at..part.at + part.bytes];
            let near = recent.find(out, value).map(|at| Target { is_absolute: false, at: at as u64 });
            let lasting = || self.dictionary.filter(|_| part.is_lasting)?.find(self.segment, value);
            let found = near.or_else(|| Some(Target { is_absolute: true, at: lasting()? }));
            let Some(target) = found else {
                kept.push(Part { at: stored.len() + part.at - done, ..*part });
                continue;
            };
            let after = last.as_ref().and_then(|(last, place)| target.after(place, last.bytes));
            match &mut last {
                // One reference does for neighbours that are neighbours there, too.
                Some((last, _))
                    if part.at == done
                        && after == Some(0)
                        && last.bytes + part.bytes <= REFERENCE_BYTES_MAX =>
                {
                    last.bytes += part.bytes;
                }
                _ => {
                    last.iter().for_each(|(last, _)| last.encode(references));
                    stored.extend_from_slice(&body[done..part.at]);
                    let skip = stored.len() - stored_upto;
                    stored_upto = stored.len();
                    let place = target.place(start as u64, after);
                    last = Some((Reference { skip, bytes: part.bytes, place }, target));
                }
            }
            done = part.at + part.bytes;
        }
        last.iter().for_each(|(last, _)| last.encode(references));
        let rest = &body[done..];
        let Head { table, birth, serial, layout } = head;
        let mut header = Header {
            table,
            birth: birth.filter(|&birth| birth != self.segment),
            serial,
            layout,
            stored_bytes: stored.len() + rest.len(),
            references_bytes: references.len(),
            bytes: 0,
        };
        header.encode(out);
        header.bytes = out.len() - start;
        let crc = header.crc(&out[start..], body);
        out[start + CRC_AT..start + FIXED_BYTES].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(stored);
        out.extend_from_slice(rest);
        out.extend_from_slice(references);
        out.resize(start + header.record_bytes(), 0);
        for part in &*kept {
            let at = start + header.bytes + part.at;
            recent.insert(at, &out[at..at + part.bytes]);
            if part.is_lasting {
                self.lasting.push(Lasting { at, bytes: part.bytes });
            }
        }
        header.record_bytes()
    }
}

/// Where a value was found: at an offset of the segment, or of the buffer with the records of this frame.
#[derive(Debug, Clone, Copy)]
struct Target {
    is_absolute: bool,
    at: u64,
}

impl Target {
    /// Returns the distance from the end of another value, if this one comes after it.
    fn after(&self, other: &Self, bytes: usize) -> Option<u64> {
        let end = other.at + bytes as u64;
        self.at.checked_sub(end).filter(|_| self.is_absolute == other.is_absolute)
    }

    /// Its shortest place in a record that starts at this offset of the buffer.
    fn place(&self, start: u64, after: Option<u64>) -> ReferenceTarget {
        let place = if self.is_absolute {
            ReferenceTarget::Offset(self.at)
        } else {
            ReferenceTarget::Before(start - self.at)
        };
        let (ReferenceTarget::Offset(number)
        | ReferenceTarget::Before(number)
        | ReferenceTarget::After(number)) = place;
        match after {
            Some(after) if 1 + number_bytes(after) < number_bytes(number) => ReferenceTarget::After(after),
            _ => place,
        }
    }
}

impl Part {
    /// The part that a column is, if it is shared.
    fn of(fixed: &Fixed, base: usize, shared: &SharedColumns) -> Option<Self> {
        let is_lasting = shared.is_lasting(fixed.column)?;
        is_shareable(fixed.bytes).then_some(Self { at: base + fixed.at, bytes: fixed.bytes, is_lasting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Record as _, Table, record};

    record! {
        /// A key of two parts.
        pub(super) key struct PartsKey {
            /// A value that rows of a commit have in common.
            pub coin: [u8; 32],
            /// A value that many rows have in common.
            pub shop: [u8; 32],
        }
    }
    record! {
        pub(super) struct PartsRow {
            pub number: u64,
            /// A value that many rows have in common, beside the next one.
            pub salt: [u8; 16],
            /// A value that many rows have in common.
            pub account: [u8; 32],
            /// A value that rows of a commit have in common, if they have it.
            pub transfer: Option<[u8; 32]>,
        }
    }
    struct Parts;
    impl Table for Parts {
        const DEF: &'static TableDef = &TableDef::of::<Self>(300, "parts")
            .shared_in_commit(&["coin", "transfer"])
            .shared(&["shop", "salt", "account"]);
        type Key = PartsKey;
        type Row = PartsRow;
    }

    const SEGMENT: u32 = 7;

    fn parts(coin: u8, shop: u8) -> (PartsKey, PartsRow) {
        (
            PartsKey { coin: [coin; 32], shop: [shop; 32] },
            PartsRow { number: coin.into(), salt: [shop + 1; 16], account: [shop + 2; 32], transfer: None },
        )
    }

    const HEAD: Head = Head { table: 300, birth: None, serial: 5, layout: 0 };

    fn put(packer: &mut Packer<'_>, (key, row): &(PartsKey, PartsRow), out: &mut Vec<u8>) -> usize {
        packer.row(Parts::DEF, HEAD, &key.to_bytes(), &row.to_bytes(), out).expect("it is a row")
    }

    /// Decodes the record at an offset of a segment, and compares it.
    #[track_caller]
    fn check(segment: &[u8], at: usize, (key, row): &(PartsKey, PartsRow)) {
        let mut scratch = Vec::new();
        let decoded = decode(&segment[at..], at as u64, &mut &*segment, &mut scratch);
        let packed = decoded.expect("memory does not fail").expect("it is sound");
        assert_eq!((packed.key, packed.header.serial), (&key.to_bytes()[..], 5));
        assert_eq!(unpacked(Parts::DEF, 0, packed.row).unwrap(), row.to_bytes());
    }

    #[test]
    fn records_refer_to_each_other_and_to_earlier_commits() {
        let dictionary = Dictionary::default();
        let mut segment = vec![0; 64];
        let mut packer = Packer::new(SEGMENT, Some(&dictionary), 2);
        let (first, second) = (parts(1, 100), parts(2, 100));
        let whole = put(&mut packer, &first, &mut segment);
        let at = segment.len();
        let short = put(&mut packer, &second, &mut segment);
        assert!(whole > short + 64, "the shop's {whole} bytes became {short}");
        check(&segment, 64, &first);
        check(&segment, at, &second);
        let lasting = packer.lasting;
        assert_eq!(lasting.len(), 3, "shop, salt and account");
        for Lasting { at, bytes } in lasting {
            dictionary.insert(SEGMENT, at as u64, &segment[at..at + bytes]);
        }
        // A later commit, whose buffer starts elsewhere.
        let third = parts(3, 100);
        let mut payload = Vec::new();
        let mut packer = Packer::new(SEGMENT, Some(&dictionary), 1);
        assert!(put(&mut packer, &third, &mut payload) < whole - 64);
        let at = segment.len();
        segment.extend_from_slice(&payload);
        check(&segment, at, &third);
        // In another segment, the values are written again.
        let mut elsewhere = Vec::new();
        assert_eq!(put(&mut Packer::new(8, Some(&dictionary), 1), &third, &mut elsewhere), whole);
        check(&elsewhere, 0, &third);
    }

    /// Far into a segment, a value is found from the one before it with fewer bytes than by its offset.
    #[test]
    fn values_are_found_from_the_one_before() {
        let dictionary = Dictionary::default();
        let first = parts(1, 100);
        let mut segment = vec![0; 1 << 22];
        let at = segment.len();
        let mut packer = Packer::new(SEGMENT, Some(&dictionary), 1);
        put(&mut packer, &first, &mut segment);
        for Lasting { at, bytes } in packer.lasting {
            dictionary.insert(SEGMENT, at as u64, &segment[at..at + bytes]);
        }
        check(&segment, at, &first);
        let second = parts(2, 100);
        let mut payload = Vec::new();
        put(&mut Packer::new(SEGMENT, Some(&dictionary), 1), &second, &mut payload);
        let header = Header::decode(&payload).unwrap();
        let mut references = header.references(&payload);
        let mut places = Vec::new();
        while !references.is_empty() {
            places.push(Reference::take(&mut references).unwrap().place);
        }
        assert!(matches!(places[..], [ReferenceTarget::Offset(_), ReferenceTarget::After(_)]), "{places:?}");
        let at = segment.len();
        segment.extend_from_slice(&payload);
        check(&segment, at, &second);
        // Without the first reference, there is nothing after which the second could be.
        let mut alone = Vec::new();
        Reference { skip: 0, bytes: 32, place: places[1] }.encode(&mut alone);
        assert!(put_body((&[], &alone), 1 << 22, &mut &segment[..], &mut Vec::new()).is_err());
    }

    #[test]
    fn values_that_may_be_absent_are_shared_too() {
        let with = |coin: u8, transfer| {
            let (key, row) = parts(coin, 100 + coin);
            (key, PartsRow { transfer, ..row })
        };
        let mut segment = Vec::new();
        let mut packer = Packer::new(SEGMENT, None, 3);
        let rows = [with(1, Some([9; 32])), with(2, Some([9; 32])), with(3, None)];
        let sizes = rows.each_ref().map(|row| put(&mut packer, row, &mut segment));
        assert!(sizes[1] + 24 <= sizes[0], "{sizes:?}");
        check(&segment, 0, &rows[0]);
        check(&segment, sizes[0], &rows[1]);
        check(&segment, sizes[0] + sizes[1], &rows[2]);
    }

    #[test]
    fn the_same_coin_in_one_commit_is_written_once() {
        let mut segment = Vec::new();
        let mut packer = Packer::new(SEGMENT, None, 2);
        let (first, second) = (parts(1, 100), parts(1, 120));
        let whole = put(&mut packer, &first, &mut segment);
        assert!(put(&mut packer, &second, &mut segment) + 24 <= whole);
        check(&segment, whole, &second);
    }

    #[test]
    fn serial_can_be_set_later() {
        let mut record = Vec::new();
        let row = parts(1, 100);
        put(&mut Packer::new(SEGMENT, None, 1), &row, &mut record);
        for serial in [0, 1, NUMBER_LIMIT - 1, 5] {
            set_serial(&mut record, serial);
            let mut scratch = Vec::new();
            let packed = decode(&record, 0, &mut &[][..], &mut scratch).unwrap().unwrap();
            assert_eq!((packed.header.serial, serial_at(&record)), (serial, serial));
        }
        check(&record, 0, &row);
    }

    #[test]
    fn births_and_layouts_are_kept() {
        let (key, row) = parts(1, 100);
        for birth in [None, Some(SEGMENT), Some(1), Some((1 << 24) - 1)] {
            for table in [1, 300, u16::MAX] {
                let mut record = Vec::new();
                let head = Head { birth, table, ..HEAD };
                let mut packer = Packer::new(SEGMENT, None, 1);
                packer.row(Parts::DEF, head, &key.to_bytes(), &row.to_bytes(), &mut record).unwrap();
                let header = Header::decode(&record).unwrap();
                assert_eq!((header.table, header.birth), (table, birth.filter(|&birth| birth != SEGMENT)));
                assert_eq!(header.record_bytes(), record.len());
            }
        }
        for layout in [0, 14, 15, 63] {
            let mut record = Vec::new();
            let header = Header {
                table: 1,
                birth: None,
                serial: 1,
                layout,
                stored_bytes: 0,
                references_bytes: 0,
                bytes: 0,
            };
            header.encode(&mut record);
            assert_eq!(Header::decode(&record).unwrap().layout, layout);
        }
    }

    /// No flipped bit of a record, or of what it refers to, goes unnoticed.
    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut segment = Vec::new();
        let mut packer = Packer::new(SEGMENT, None, 2);
        let (first, second) = (parts(1, 100), parts(2, 100));
        let at = put(&mut packer, &first, &mut segment);
        put(&mut packer, &second, &mut segment);
        for bit in 0..segment.len() * 8 {
            let mut damaged = segment.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let whole = |at: usize| {
                let mut scratch = Vec::new();
                let decoded = is_packed(&damaged[at..])
                    .then(|| decode(&damaged[at..], at as u64, &mut &*damaged, &mut scratch).unwrap());
                decoded.is_some_and(|decoded| {
                    decoded.is_ok_and(|packed| {
                        let row = unpacked(Parts::DEF, 0, packed.row).unwrap();
                        let (key, same) = if at == 0 { &first } else { &second };
                        assert_eq!((packed.key, row), (&key.to_bytes()[..], same.to_bytes()));
                        true
                    })
                })
            };
            // Padding is covered by the frame's seal only.
            let is_padding = |at: usize, size: usize| {
                let header = Header::decode(&segment[at..]).unwrap();
                let end = at + header.bytes + header.stored_bytes + header.references_bytes;
                (end..at + size).contains(&(bit / 8))
            };
            if !(is_padding(0, at) || is_padding(at, segment.len() - at)) {
                assert!(!(whole(0) && whole(at)), "bit {bit}");
            }
        }
    }

    #[test]
    fn references_stay_before_their_record() {
        let offset = |place, last_end| Reference { skip: 0, bytes: 16, place }.offset(100, last_end);
        assert_eq!(offset(ReferenceTarget::Offset(84), None), Some(84));
        assert_eq!(offset(ReferenceTarget::Offset(85), None), None);
        assert_eq!(offset(ReferenceTarget::Offset(u64::MAX), None), None);
        assert_eq!(offset(ReferenceTarget::Before(16), None), Some(84));
        assert_eq!(offset(ReferenceTarget::Before(15), None), None);
        assert_eq!(offset(ReferenceTarget::Before(101), None), None);
        assert_eq!(offset(ReferenceTarget::After(4), Some(80)), Some(84));
        assert_eq!(offset(ReferenceTarget::After(5), Some(80)), None);
        assert_eq!(offset(ReferenceTarget::After(u64::MAX), Some(80)), None);
        assert_eq!(offset(ReferenceTarget::After(4), None), None);
        for skip in [0, 14, 15, 1000] {
            for place in [
                ReferenceTarget::Offset(0),
                ReferenceTarget::Offset(1 << 26),
                ReferenceTarget::Before(16),
                ReferenceTarget::After(0),
            ] {
                let mut bytes = Vec::new();
                let whole = Reference { skip, bytes: 128, place };
                whole.encode(&mut bytes);
                assert_eq!(Reference::take(&mut &bytes[..]).unwrap(), whole);
            }
        }
    }

    /// Places shortly after the value before are found from there.
    #[test]
    fn places_are_short() {
        let target = |is_absolute, at| Target { is_absolute, at };
        let last = target(true, 1 << 22);
        assert_eq!(target(true, (1 << 22) + 50).after(&last, 32), Some(18));
        assert_eq!(target(true, (1 << 22) + 31).after(&last, 32), None);
        assert_eq!(target(false, (1 << 22) + 50).after(&last, 32), None);
        assert_eq!(target(true, 1 << 22).place(9, Some(18)), ReferenceTarget::After(18));
        assert_eq!(target(true, 1 << 22).place(9, None), ReferenceTarget::Offset(1 << 22));
        assert_eq!(target(true, 300).place(9, Some(18)), ReferenceTarget::Offset(300), "which is as short");
        assert_eq!(target(false, 300).place(400, Some(18)), ReferenceTarget::Before(100));
    }
}

//! Records of the journal, packed (`packed.rs`) or plain (`format.rs`). Both kinds may be in one frame: what older
//! programs wrote is plain, and so are deletions and rows that would not be shorter.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use super::disk::{io_error, read_full_at};
use super::format::{self, FRAME_BYTES_LIMIT, RecordView};
use super::index::Location;
use super::packed::{self, Fault, Head, Header, Packed, Packer, SegmentBytes, is_packed};
use super::{Identity, Segment, Segments, corrupt_index, fingerprint, lock};
use crate::{RawRecord, RawRow, Result, RowVersion, TableDef};

/// The bytes of a row as a record has them.
#[derive(Debug, Clone, Copy)]
enum RowBytes<T> {
    Plain(T),
    Packed(T),
}

/// A verified record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub table: u16,
    /// The oldest segment that may hold a version of the row.
    pub(crate) birth: u32,
    pub(crate) serial: u64,
    /// The layout of the row; 0 for a deletion.
    pub(crate) layout: u8,
    pub key: &'a [u8],
    row: Option<RowBytes<&'a [u8]>>,
    /// The record itself, if it is packed.
    pub(crate) packed: Option<Packed<'a>>,
}

impl<'a> Record<'a> {
    /// Returns whether it is a row; otherwise it deletes one.
    pub(crate) const fn is_row(&self) -> bool {
        self.row.is_some()
    }

    /// The encoded row, in the record's layout.
    ///
    /// # Errors
    /// If it is not a row of this table.
    pub(super) fn row(&self, def: &TableDef) -> Result<Option<Cow<'a, [u8]>>> {
        Ok(match self.row {
            None => None,
            Some(RowBytes::Plain(row)) => Some(Cow::Borrowed(row)),
            Some(RowBytes::Packed(row)) => Some(Cow::Owned(packed::unpacked(def, self.layout, row)?)),
        })
    }
}

/// The size of the record that starts here, from its header alone.
pub(crate) fn record_bytes_at(bytes: &[u8]) -> Option<usize> {
    if is_packed(bytes) {
        Header::decode(bytes).map(|header| header.record_bytes())
    } else {
        RecordView::size_at(bytes)
    }
}

/// Changes the serial of an encoded record.
pub(crate) fn set_serial(record: &mut [u8], serial: u64) {
    if is_packed(record) {
        packed::set_serial(record, serial);
    } else {
        format::set_serial(record, serial);
    }
}

/// The record at the start of `bytes`, and its size. `bytes` are at the offset `at` of segment `number`, whose other
/// bytes come from `segment`.
///
/// # Errors
/// When the segment cannot be read. What is wrong with the record is the inner error.
pub(crate) fn decode<'a>(
    bytes: &'a [u8],
    (number, at): (u32, u64),
    segment: &mut dyn SegmentBytes,
    scratch: &'a mut Vec<u8>,
) -> Result<std::result::Result<(Record<'a>, usize), Fault>> {
    if !is_packed(bytes) {
        return Ok(RecordView::decode(bytes).map(|(view, size)| {
            let RecordView { table, birth, serial, layout, key, row } = view;
            let row = row.map(RowBytes::Plain);
            (Record { table, birth, serial, layout, key, row, packed: None }, size)
        }));
    }
    let decoded = packed::decode(bytes, at, segment, scratch)?;
    Ok(decoded.map(|packed| {
        let Header { table, birth, serial, layout, .. } = packed.header;
        let (key, row) = (packed.key, Some(RowBytes::Packed(packed.row)));
        let birth = birth.unwrap_or(number);
        (
            Record { table, birth, serial, layout, key, row, packed: Some(packed) },
            packed.header.record_bytes(),
        )
    }))
}

/// Appends a row's record: packed, or plain if that is shorter. Returns its size.
pub(crate) fn put_row(
    packer: &mut Packer<'_>,
    def: &TableDef,
    head: Head,
    (key, row): (&[u8], &[u8]),
    out: &mut Vec<u8>,
) -> usize {
    let start = out.len();
    let plain_bytes = format::record_bytes(key.len(), row.len());
    match packer.row(def, head, key, row, out) {
        Some(bytes) if bytes < plain_bytes => bytes,
        _ => {
            out.truncate(start);
            let Head { table, birth, serial, layout } = head;
            // A new row has no earlier version, and may go to a later segment.
            let birth = birth.unwrap_or(packer.segment());
            RecordView { table, birth, serial, layout, key, row: Some(row) }.encode(out)
        }
    }
}

/// Number of bytes after a place that are read with it: references often lie close to each other.
const NEARBY_BYTES: usize = 512;

/// Reads a segment's file, a piece at a time.
pub(crate) struct SegmentFile<'a> {
    segment: &'a Segment,
    start: u64,
    piece: Vec<u8>,
}

impl<'a> SegmentFile<'a> {
    pub(super) fn new(segment: &'a Segment) -> Self {
        Self { segment, start: 0, piece: Vec::new() }
    }
}

impl SegmentBytes for SegmentFile<'_> {
    fn append(&mut self, offset: u64, bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        let part = |start: u64, piece: &[u8], out: &mut Vec<u8>| {
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            let found = piece.get(at..at.checked_add(bytes)?)?;
            out.extend_from_slice(found);
            Some(())
        };
        if part(self.start, &self.piece, out).is_some() {
            return Ok(true);
        }
        self.start = offset;
        self.piece.resize(bytes + NEARBY_BYTES, 0);
        let n = read_full_at(&*self.segment.file, &mut self.piece, offset)
            .map_err(|source| io_error("read", &self.segment.path, source))?;
        self.piece.truncate(n);
        Ok(part(self.start, &self.piece, out).is_some())
    }
}

/// A row's record read from the journal.
pub(crate) struct StoredRecord {
    /// Key and row.
    bytes: Vec<u8>,
    key_bytes: usize,
    /// The stored form of the row.
    row: RowBytes<()>,
    pub table: u16,
    pub(crate) birth: u32,
    pub(crate) serial: u64,
    /// The layout of the row. Only while a store is being opened may it be an older one.
    pub(crate) layout: u8,
    /// The size of the record in the journal.
    pub(crate) record_bytes: u64,
}

impl StoredRecord {
    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// The encoded row, in the record's layout.
    pub(crate) fn row(&self, def: &TableDef) -> Result<Cow<'_, [u8]>> {
        let row = &self.bytes[self.key_bytes..];
        match self.row {
            RowBytes::Plain(()) => Ok(Cow::Borrowed(row)),
            RowBytes::Packed(()) => packed::unpacked(def, self.layout, row).map(Cow::Owned),
        }
    }

    pub(crate) fn to_row(&self, def: &TableDef, location: Location) -> Result<RawRow> {
        let version = RowVersion { place: location.0, serial: self.serial, birth: self.birth };
        Ok(RawRow { row: self.row(def)?.into_owned(), serial: self.serial, version })
    }

    pub(crate) fn to_record(&self, def: &TableDef, location: Location) -> Result<RawRecord> {
        let RawRow { row, serial, version } = self.to_row(def, location)?;
        Ok(RawRecord { key: self.key().to_vec(), row, serial, version })
    }

    /// A record that was just written: it need not be read to be known.
    pub(crate) fn of_written(head: Head, birth: u32, (key, row): (&[u8], &[u8]), record_bytes: u64) -> Self {
        let Head { table, serial, layout, .. } = head;
        let (bytes, row) = ([key, row].concat(), RowBytes::Plain(()));
        Self { bytes, key_bytes: key.len(), row, table, birth, serial, layout, record_bytes }
    }
}

/// Records that were read or written lately, by their location: rows such as reserves and accounts are read again
/// and again. A location always has the same record, so nothing in here is ever wrong; it is only replaced.
pub(crate) struct RecordCache {
    slots: Box<[Slot]>,
}

type Slot = Mutex<Option<(Location, Arc<StoredRecord>)>>;

/// Number of records that the cache has, at most.
const CACHE_SLOTS: usize = 8 << 10;
/// The largest record in the cache, in bytes.
const CACHED_BYTES_MAX: u64 = 1 << 10;

impl Default for RecordCache {
    fn default() -> Self {
        Self { slots: (0..CACHE_SLOTS).map(|_| Mutex::new(None)).collect() }
    }
}

impl RecordCache {
    fn slot(&self, location: Location) -> &Slot {
        let hash = location.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.slots[usize::try_from(hash).expect("32 bits") % CACHE_SLOTS]
    }

    fn get(&self, location: Location) -> Option<Arc<StoredRecord>> {
        let slot = lock(self.slot(location));
        slot.as_ref().filter(|(at, _)| *at == location).map(|(_, record)| Arc::clone(record))
    }

    /// Returns whether a record of that size is kept.
    pub(crate) const fn takes(record_bytes: u64) -> bool {
        record_bytes <= CACHED_BYTES_MAX
    }

    pub(crate) fn insert(&self, location: Location, record: &Arc<StoredRecord>) {
        if Self::takes(record.record_bytes) {
            *lock(self.slot(location)) = Some((location, Arc::clone(record)));
        }
    }
}

/// Where rows are read.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub identity: &'a Identity,
    pub(crate) segments: &'a Segments,
    pub(crate) cache: Option<&'a RecordCache>,
}

/// Reads and verifies the live record at a location.
pub(crate) fn read_record(segments: &Segments, location: Location) -> Result<StoredRecord> {
    let Some(segment) = segments.get(&location.segment()) else {
        let what = format!("an index names segment {}, which does not exist", location.segment());
        return Err(corrupt_index(what));
    };
    let corrupt = |what: &str| segment.corrupt(location.offset(), what);
    let read = |bytes: usize| {
        let mut buf = vec![0; bytes];
        let n = read_full_at(&*segment.file, &mut buf, location.offset())
            .map_err(|source| io_error("read", &segment.path, source))?;
        if n == bytes { Ok(buf) } else { Err(corrupt("the file ends within a record")) }
    };
    let mut bytes = read(usize::try_from(location.bytes_min()).expect("16 bits"))?;
    if location.is_long() {
        let size = record_bytes_at(&bytes).unwrap_or(0);
        if size as u64 > FRAME_BYTES_LIMIT {
            return Err(corrupt("a record is longer than any can be"));
        }
        bytes = read(size)?;
    }
    let place = (segment.number, location.offset());
    let mut scratch = Vec::new();
    let decoded = decode(&bytes, place, &mut SegmentFile::new(segment), &mut scratch)?;
    let (record, size) = decoded.map_err(corrupt)?;
    let Record { table, birth, serial, layout, key, row, .. } = record;
    let (row, row_bytes) = match row {
        None => return Err(corrupt("an index names a deleted row")),
        Some(RowBytes::Plain(bytes)) => (RowBytes::Plain(()), bytes),
        Some(RowBytes::Packed(bytes)) => (RowBytes::Packed(()), bytes),
    };
    let key_bytes = key.len();
    let bytes = [key, row_bytes].concat();
    Ok(StoredRecord { bytes, key_bytes, row, table, birth, serial, layout, record_bytes: size as u64 })
}

/// Reads the live record of a table at a location that the index has for a key with that fingerprint.
///
/// A record's checksum does not cover its position. If the disk has written another sector over it, the row
/// would seem not to exist, and a payment could happen twice. So a record of another key counts as damage.
pub(crate) fn read_indexed(
    rows: Rows<'_>,
    table: u16,
    (key_fingerprint, location): (u64, Location),
) -> Result<Arc<StoredRecord>> {
    let known = rows.cache.and_then(|cache| cache.get(location));
    let record = match &known {
        Some(record) => Arc::clone(record),
        None => Arc::new(read_record(rows.segments, location)?),
    };
    if record.table != table || fingerprint(rows.identity, record.key()) != key_fingerprint {
        let what = "the record of another row, written to the wrong place: restore a backup";
        return Err(rows.segments[&location.segment()].corrupt(location.offset(), what));
    }
    if known.is_none() {
        rows.cache.iter().for_each(|cache| cache.insert(location, &record));
    }
    Ok(record)
}

/// Reads the live record at a location, which must be one of this table.
pub(crate) fn read_record_of(
    segments: &Segments,
    table: &TableDef,
    location: Location,
) -> Result<StoredRecord> {
    let record = read_record(segments, location)?;
    if record.table != table.id {
        let segment = &segments[&location.segment()];
        return Err(segment.corrupt(location.offset(), format!("no record of table {}", table.name)));
    }
    Ok(record)
}

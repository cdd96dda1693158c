//! Binary values in the protocol: parameters of statements, and columns of rows.

use std::ops::Range;

use bytes::{BufMut, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, DataRowRanges};

use super::error::PgError;

/// Writes the parameters of a statement.
pub(crate) struct Params<'a> {
    out: &'a mut BytesMut,
    count: u16,
}

impl<'a> Params<'a> {
    /// Appends them to the message.
    pub(crate) fn new(out: &'a mut BytesMut) -> Self {
        Self { out, count: 0 }
    }

    /// The number of parameters so far.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out.put_u32(u32::try_from(bytes.len()).expect("change sets are limited far below 4 GiB"));
        self.out.put_slice(bytes);
        self.count += 1;
    }

    pub(crate) fn int8(&mut self, value: i64) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn int2(&mut self, value: i16) {
        self.bytes(&value.to_be_bytes());
    }

    /// A value with its length, as [`Array::elements`] gives it.
    pub(crate) fn element(&mut self, element: &[u8]) {
        self.out.put_slice(element);
        self.count += 1;
    }

    pub(crate) fn array(&mut self, array: &Array) {
        let length = 20 + array.bytes.len();
        self.out.put_u32(u32::try_from(length).expect("change sets are limited far below 4 GiB"));
        self.out.put_u32(1);
        self.out.put_u32(u32::from(array.has_null));
        self.out.put_u32(array.oid);
        self.out.put_u32(array.count);
        self.out.put_u32(1);
        self.out.put_slice(&array.bytes);
        self.count += 1;
    }
}

/// The values of one column, as a one-dimensional array parameter.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    oid: u32,
    count: u32,
    has_null: bool,
    bytes: Vec<u8>,
}

impl Array {
    pub(crate) fn new(oid: u32) -> Self {
        Self { oid, count: 0, has_null: false, bytes: Vec::new() }
    }

    pub(crate) fn push(&mut self, value: &[u8]) {
        let length = u32::try_from(value.len()).expect("change sets are limited far below 4 GiB");
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(value);
        self.count += 1;
    }

    /// Adds a value that `write` appends, with its length.
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        write(&mut self.bytes);
        let length =
            u32::try_from(self.bytes.len() - at - 4).expect("change sets are limited far below 4 GiB");
        self.bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
    }

    pub(crate) fn push_null(&mut self) {
        self.bytes.extend_from_slice(&(-1_i32).to_be_bytes());
        self.count += 1;
        self.has_null = true;
    }

    /// Its values in order, each with its length, as in a message.
    pub(crate) fn elements(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let length = i32::from_be_bytes(*rest.first_chunk()?);
            let (element, after) = rest.split_at(4 + usize::try_from(length).unwrap_or(0));
            rest = after;
            Some(element)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }
}

/// The columns of a row that have not been taken yet.
pub(crate) struct Columns<'a> {
    row: &'a [u8],
    ranges: Ranges<'a>,
}

/// Where the columns are in the bytes of a row. `None`: NULL.
enum Ranges<'a> {
    Answer(DataRowRanges<'a>),
    /// In a message of logical replication.
    List(std::slice::Iter<'a, Option<Range<usize>>>),
}

impl<'a> Columns<'a> {
    pub(crate) fn of(row: &'a DataRowBody) -> Self {
        Self { row: row.buffer(), ranges: Ranges::Answer(row.ranges()) }
    }

    pub(crate) fn at(row: &'a [u8], ranges: &'a [Option<Range<usize>>]) -> Self {
        Self { row, ranges: Ranges::List(ranges.iter()) }
    }

    pub(crate) fn left(&self) -> usize {
        match &self.ranges {
            Ranges::Answer(ranges) => ranges.size_hint().0,
            Ranges::List(ranges) => ranges.len(),
        }
    }

    pub(crate) fn next_or_null(&mut self) -> Result<Option<&'a [u8]>, PgError> {
        let range = match &mut self.ranges {
            Ranges::Answer(ranges) => ranges.next().map_err(|error| PgError::protocol(error.to_string()))?,
            Ranges::List(ranges) => ranges.next().cloned(),
        };
        let range = range.ok_or_else(|| PgError::protocol("a row has fewer columns than were asked for"))?;
        Ok(range.map(|range| &self.row[range]))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], PgError> {
        self.next_or_null()?.ok_or_else(|| PgError::protocol("NULL in a column that has no NULLs"))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], PgError> {
        let bytes = self.bytes()?;
        bytes.try_into().map_err(|_| PgError::protocol(format!("{} bytes instead of {N}", bytes.len())))
    }

    pub(crate) fn int8(&mut self) -> Result<i64, PgError> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn int4(&mut self) -> Result<i32, PgError> {
        self.array().map(i32::from_be_bytes)
    }
}

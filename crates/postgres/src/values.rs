//! Values in the protocol: parameters of statements, and columns of rows, both binary.

use bytes::{Buf, BufMut, BytesMut};

use crate::PgError;

/// Takes the parameters of a statement, binary.
pub(crate) struct Params<'a> {
    out: &'a mut BytesMut,
    count: u16,
}

impl<'a> Params<'a> {
    /// Appends them to the message.
    pub fn new(out: &'a mut BytesMut) -> Self {
        Self { out, count: 0 }
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.put_u32(u32::try_from(bytes.len()).expect("change sets are limited far below 4 GiB"));
        self.out.put_slice(bytes);
        self.count += 1;
    }

    pub fn int8(&mut self, value: i64) {
        self.bytes(&value.to_be_bytes());
    }

    pub fn int2(&mut self, value: i16) {
        self.bytes(&value.to_be_bytes());
    }

    pub fn array(&mut self, array: &Array) {
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
    pub fn new(oid: u32) -> Self {
        Self { oid, count: 0, has_null: false, bytes: Vec::new() }
    }

    pub fn push(&mut self, value: &[u8]) {
        let length = u32::try_from(value.len()).expect("change sets are limited far below 4 GiB");
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(value);
        self.count += 1;
    }

    /// Adds a value that `write` appends, with its length.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        write(&mut self.bytes);
        let length =
            u32::try_from(self.bytes.len() - at - 4).expect("change sets are limited far below 4 GiB");
        self.bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
    }

    pub fn push_null(&mut self) {
        self.bytes.extend_from_slice(&(-1_i32).to_be_bytes());
        self.count += 1;
        self.has_null = true;
    }

    pub fn len(&self) -> usize {
        self.count as usize
    }
}

/// The columns of a row that have not been taken yet.
pub(crate) struct Columns<'a> {
    left: u16,
    bytes: &'a [u8],
}

impl<'a> Columns<'a> {
    pub fn new(mut body: &'a [u8]) -> Result<Self, PgError> {
        if body.len() < 2 {
            return Err(PgError::protocol("a row without columns"));
        }
        let left = body.get_u16();
        Ok(Self { left, bytes: body })
    }

    pub fn left(&self) -> usize {
        self.left.into()
    }

    pub fn next_or_null(&mut self) -> Result<Option<&'a [u8]>, PgError> {
        let short = || PgError::protocol("a row ends early");
        let (length, rest) = self.bytes.split_first_chunk::<4>().ok_or_else(short)?;
        self.left = self.left.checked_sub(1).ok_or_else(short)?;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            self.bytes = rest;
            return Ok(None);
        };
        let (value, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        self.bytes = rest;
        Ok(Some(value))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], PgError> {
        self.next_or_null()?.ok_or_else(|| PgError::protocol("NULL where a value must be"))
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], PgError> {
        let bytes = self.bytes()?;
        bytes.try_into().map_err(|_| PgError::protocol(format!("{} bytes for a number of {N}", bytes.len())))
    }

    pub fn int8(&mut self) -> Result<i64, PgError> {
        self.array().map(i64::from_be_bytes)
    }

    pub fn int4(&mut self) -> Result<i32, PgError> {
        self.array().map(i32::from_be_bytes)
    }
}

//! Columns: how a value is encoded as bytes.
//!
//! Every encoding is self-delimiting and order-preserving: comparing the bytes of two keys compares the keys,
//! and a key's leading columns are a prefix of its bytes. The same encoding serves keys, rows and index
//! values.

use std::cell::Cell;

use memchr::memchr;

use crate::DecodeError;

/// The encoding of a column, from which a backend can derive a native type without knowing the Rust type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnKind {
    /// One byte.
    U8,
    /// Two bytes, big-endian.
    U16,
    /// Four bytes, big-endian.
    U32,
    /// Eight bytes, big-endian.
    U64,
    /// Eight bytes, big-endian, sign bit flipped.
    I64,
    /// Sixteen bytes, big-endian.
    U128,
    /// One byte, 0 or 1.
    Bool,
    /// Exactly this many bytes.
    Fixed(usize),
    /// Bytes of any length: each 0x00 is written as 0x00 0xff, and 0x00 0x00 ends them.
    Bytes,
    /// UTF-8 text, encoded as [`ColumnKind::Bytes`].
    Text,
    /// A non-negative amount of one currency: units as u64, then hundred-millionths (below 10^8) as u32, both
    /// big-endian.
    Amount,
    /// A time: microseconds since 1970 as u64, big-endian; `u64::MAX` is "never".
    Timestamp,
}

/// A column's kind, and whether it is nullable (then one byte precedes the value: 0 absent, 1 present).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnType {
    /// The encoding of a present value.
    pub kind: ColumnKind,
    /// Whether the value may be absent.
    pub nullable: bool,
}

impl ColumnType {
    /// A column that is always present.
    #[must_use]
    pub const fn new(kind: ColumnKind) -> Self {
        Self { kind, nullable: false }
    }

    /// The same, possibly absent.
    ///
    /// # Panics
    /// If it is nullable already: nested options have no native column.
    #[must_use]
    pub const fn optional(self) -> Self {
        assert!(!self.nullable, "a column cannot be optional twice");
        Self { kind: self.kind, nullable: true }
    }

    /// The encoded size in bytes, if it is the same for all values.
    #[must_use]
    pub const fn fixed_bytes(self) -> Option<usize> {
        if self.nullable {
            return None;
        }
        match self.kind {
            ColumnKind::U8 | ColumnKind::Bool => Some(1),
            ColumnKind::U16 => Some(2),
            ColumnKind::U32 => Some(4),
            ColumnKind::U64 | ColumnKind::I64 | ColumnKind::Timestamp => Some(8),
            ColumnKind::U128 => Some(16),
            ColumnKind::Amount => Some(12),
            ColumnKind::Fixed(n) => Some(n),
            ColumnKind::Bytes | ColumnKind::Text => None,
        }
    }
}

/// A value that can stand in a key, a row or an index.
///
/// To implement it for a newtype, choose the [`ColumnKind`] of its encoding (from which a backend may derive
/// a native column), and encode through a type of that kind: `self.0.encode(out)`.
pub trait Column: Sized {
    /// The encoding of the value.
    const TYPE: ColumnType;
    /// Appends the value's bytes.
    fn encode(&self, out: &mut Vec<u8>);
    /// Takes the value from the front of `input`.
    ///
    /// # Errors
    /// If there are too few bytes, or they are not a valid value.
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError>;
    /// The value's bytes.
    fn to_bytes(&self) -> Vec<u8> {
        exact_bytes(|out| self.encode(out))
    }
}

/// Returns the bytes that `encode` appends to an empty buffer, with no room to spare. They are written to a
/// buffer that each thread keeps, because bytes of unknown length would otherwise be allocated and copied
/// several times while they grow.
pub(crate) fn exact_bytes(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    /// A longer buffer is not kept.
    const KEPT_BYTES_MAX: usize = 64 << 10;
    thread_local! {
        static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    // If `encode` calls this again, it finds an empty buffer there.
    let mut buffer = BUFFER.take();
    buffer.clear();
    encode(&mut buffer);
    let bytes = buffer.as_slice().to_vec();
    if buffer.capacity() <= KEPT_BYTES_MAX {
        BUFFER.set(buffer);
    }
    bytes
}

/// Takes `n` bytes from the front of `input`.
///
/// # Errors
/// When fewer are left.
pub fn take<'a>(input: &mut &'a [u8], n: usize, column: &'static str) -> Result<&'a [u8], DecodeError> {
    let Some((head, tail)) = input.split_at_checked(n) else {
        return Err(DecodeError::Short { column, missing: n - input.len() });
    };
    *input = tail;
    Ok(head)
}

/// Takes an array from the front of `input`.
///
/// # Errors
/// When fewer bytes are left.
pub fn take_array<const N: usize>(input: &mut &[u8], column: &'static str) -> Result<[u8; N], DecodeError> {
    Ok(take(input, N, column)?.try_into().expect("take returns the length asked for"))
}

/// Appends bytes of any length in the order-preserving form of [`ColumnKind::Bytes`].
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 2);
    let mut rest = bytes;
    while let Some(zero) = memchr(0, rest) {
        out.extend_from_slice(&rest[..=zero]);
        out.push(0xff);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(&[0, 0]);
}

/// Takes bytes written by [`put_bytes`] from the front of `input`.
///
/// # Errors
/// If they have no end, or contain an escape that [`put_bytes`] never writes.
pub fn take_bytes(input: &mut &[u8], column: &'static str) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::new();
    // Zeros are rare, so this is seldom too little.
    out.reserve_exact(memchr(0, input).unwrap_or(0));
    take_bytes_into(input, column, &mut out)?;
    Ok(out)
}

/// The same, appended to `out`.
pub(crate) fn take_bytes_into(
    input: &mut &[u8],
    column: &'static str,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    loop {
        let Some(zero) = memchr(0, input) else {
            return Err(DecodeError::Short { column, missing: 2 });
        };
        out.extend_from_slice(&input[..zero]);
        let mark = input.get(zero + 1).copied();
        *input = input.get(zero + 2..).unwrap_or_default();
        match mark {
            Some(0) => return Ok(()),
            Some(0xff) => out.push(0),
            Some(other) => return Err(DecodeError::invalid(column, format!("escape 0x{other:02x}"))),
            None => return Err(DecodeError::Short { column, missing: 1 }),
        }
    }
}

macro_rules! unsigned {
    ($($t:ty => $kind:ident),*) => {$(
        impl Column for $t {
            const TYPE: ColumnType = ColumnType::new(ColumnKind::$kind);
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
                Ok(Self::from_be_bytes(take_array(input, stringify!($t))?))
            }
        }
    )*};
}
unsigned!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, u128 => U128);

impl Column for i64 {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::I64);
    fn encode(&self, out: &mut Vec<u8>) {
        (self.cast_unsigned() ^ (1 << 63)).encode(out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok((u64::from_be_bytes(take_array(input, "i64")?) ^ (1 << 63)).cast_signed())
    }
}

impl Column for bool {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bool);
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match take_array(input, "bool")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(DecodeError::invalid("bool", other.to_string())),
        }
    }
}

impl<const N: usize> Column for [u8; N] {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Fixed(N));
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        take_array(input, "byte array")
    }
}

impl Column for Vec<u8> {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        take_bytes(input, "bytes")
    }
}

impl Column for String {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Text);
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Self::from_utf8(take_bytes(input, "text")?).map_err(|e| DecodeError::invalid("text", e.to_string()))
    }
}

impl<T: Column> Column for Option<T> {
    const TYPE: ColumnType = T::TYPE.optional();
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.encode(out);
            }
        }
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match take_array(input, "option")? {
            [0] => Ok(None),
            [1] => T::decode(input).map(Some),
            [other] => Err(DecodeError::invalid("option", other.to_string())),
        }
    }
}

/// Several values in one column, stored as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Column> Column for List<T> {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        let mut inner = Vec::new();
        for value in &self.0 {
            value.encode(&mut inner);
        }
        put_bytes(&inner, out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let inner = take_bytes(input, "list")?;
        let mut rest = inner.as_slice();
        let mut values = Vec::new();
        while !rest.is_empty() {
            values.push(T::decode(&mut rest)?);
        }
        Ok(Self(values))
    }
}

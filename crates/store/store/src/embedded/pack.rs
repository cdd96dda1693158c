//! Packed rows: the columns of a row in as few bytes as are quick to compute.
//!
//! A packed row is a bit for each nullable column (whether it is present) and for each boolean, then the other
//! columns: numbers as LEB128, amounts as decimal digits, times as differences in seconds, texts with their
//! length. Bytes of fixed length stay as they are. Packing depends on the columns alone and can always be undone:
//! a row whose bytes these columns do not produce is not packed.

use memchr::memchr;

use crate::column::{put_bytes, take, take_array, take_bytes_into};
use crate::{ColumnDef, ColumnKind, DecodeError};

/// The first time of a row is stored as the difference from this one, 2028-01-01 in microseconds: two years before and
/// after it take four bytes.
const EPOCH_US: u64 = 1_830_297_600_000_000;
const SECOND_US: u64 = 1_000_000;
/// Times from here on are stored as they are.
const TIME_LIMIT_US: u64 = 1 << 60;
/// Codes of times that are no difference.
const TIME_NEVER: u64 = 0;
const TIME_WHOLE: u64 = 1;
const TIME_CODES: u64 = 2;
/// The decimal places of an amount.
const PLACES: u32 = 8;
/// The code of an amount that is stored as it is.
const AMOUNT_WHOLE: u64 = 0;

/// A column of fixed length in packed bytes, which may be found elsewhere in the journal: its place, its length, and
/// the number of the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) at: usize,
    pub bytes: usize,
    pub column: usize,
}

/// Appends a number in LEB128.
pub(crate) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Returns the number of bytes that [`put_number`] appends.
pub(crate) fn number_bytes(number: u64) -> u32 {
    (u64::BITS - number.leading_zeros()).div_ceil(7).max(1)
}

/// Takes a number written by [`put_number`].
pub(crate) fn take_number(input: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = take_array(input, "number")?;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return Err(DecodeError::invalid("number", "more than 64 bits"));
        }
        number |= part << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(DecodeError::invalid("number", "it has no end"))
}

const fn zigzag(n: i64) -> u64 {
    (n << 1 ^ n >> 63).cast_unsigned()
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -((n & 1).cast_signed())
}

/// Number of bytes that the bits of these columns take.
fn bits_bytes(columns: &[ColumnDef]) -> usize {
    let bits = |def: &ColumnDef| {
        usize::from(def.column.nullable) + usize::from(matches!(def.column.kind, ColumnKind::Bool))
    };
    columns.iter().map(bits).sum::<usize>().div_ceil(8)
}

/// Bits at the front of a packed row.
struct Bits {
    start: usize,
    next: usize,
}

impl Bits {
    fn put(&mut self, bit: bool, out: &mut [u8]) {
        out[self.start + self.next / 8] |= u8::from(bit) << (self.next % 8);
        self.next += 1;
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let bit = bytes[self.start + self.next / 8] >> (self.next % 8) & 1 == 1;
        self.next += 1;
        bit
    }
}

/// Appends the packed form of an encoded row, and lists its columns of fixed length. `None`, with `out` in any
/// state, if the bytes are not exactly what these columns produce.
pub(crate) fn pack(
    columns: &[ColumnDef],
    mut row: &[u8],
    out: &mut Vec<u8>,
    fixed: &mut Vec<Fixed>,
) -> Option<()> {
    let input = &mut row;
    let mut bits = Bits { start: out.len(), next: 0 };
    out.resize(out.len() + bits_bytes(columns), 0);
    let mut time = EPOCH_US;
    for (column, def) in columns.iter().enumerate() {
        if def.column.nullable {
            let is_present = match take_array(input, "presence").ok()? {
                [0] => false,
                [1] => true,
                _ => return None,
            };
            bits.put(is_present, out);
            if !is_present {
                if matches!(def.column.kind, ColumnKind::Bool) {
                    bits.put(false, out);
                }
                continue;
            }
        }
        match def.column.kind {
            ColumnKind::U8 => out.push(take_array::<1>(input, "u8").ok()?[0]),
            ColumnKind::U16 => {
                put_number(u16::from_be_bytes(take_array(input, "u16").ok()?).into(), out);
            }
            ColumnKind::U32 => {
                put_number(u32::from_be_bytes(take_array(input, "u32").ok()?).into(), out);
            }
            ColumnKind::U64 => put_number(u64::from_be_bytes(take_array(input, "u64").ok()?), out),
            ColumnKind::I64 => {
                let flipped = u64::from_be_bytes(take_array(input, "i64").ok()?);
                put_number(zigzag((flipped ^ 1 << 63).cast_signed()), out);
            }
            ColumnKind::U128 => {
                let number = u128::from_be_bytes(take_array(input, "u128").ok()?);
                match u64::try_from(number) {
                    Ok(small) => {
                        out.push(1);
                        put_number(small, out);
                    }
                    Err(_) => {
                        out.push(0);
                        out.extend_from_slice(&number.to_le_bytes());
                    }
                }
            }
            ColumnKind::Bool => match take_array(input, "bool").ok()? {
                [0] => bits.put(false, out),
                [1] => bits.put(true, out),
                _ => return None,
            },
            ColumnKind::Fixed(bytes) => {
                fixed.push(Fixed { at: out.len(), bytes, column });
                out.extend_from_slice(take(input, bytes, "bytes").ok()?);
            }
            ColumnKind::Bytes | ColumnKind::Text => {
                put_number(unescaped_bytes(input)? as u64, out);
                take_bytes_into(input, "bytes", out).ok()?;
            }
            ColumnKind::Amount => put_amount(take_array(input, "amount").ok()?, out),
            ColumnKind::Timestamp => put_time(take_array(input, "time").ok()?, &mut time, out),
        }
    }
    input.is_empty().then_some(())
}

/// Appends the encoded row that [`pack`] has packed.
pub(crate) fn unpack(columns: &[ColumnDef], packed: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let mut input = packed;
    take(&mut input, bits_bytes(columns), "bits")?;
    let input = &mut input;
    let mut bits = Bits { start: 0, next: 0 };
    let mut time = EPOCH_US;
    for def in columns {
        if def.column.nullable {
            let is_present = bits.take(packed);
            out.push(u8::from(is_present));
            if !is_present {
                if matches!(def.column.kind, ColumnKind::Bool) {
                    bits.take(packed);
                }
                continue;
            }
        }
        match def.column.kind {
            ColumnKind::U8 => out.extend_from_slice(take(input, 1, "u8")?),
            ColumnKind::U16 => out.extend_from_slice(&small::<u16>(input)?.to_be_bytes()),
            ColumnKind::U32 => out.extend_from_slice(&small::<u32>(input)?.to_be_bytes()),
            ColumnKind::U64 => out.extend_from_slice(&take_number(input)?.to_be_bytes()),
            ColumnKind::I64 => {
                let flipped = unzigzag(take_number(input)?).cast_unsigned() ^ 1 << 63;
                out.extend_from_slice(&flipped.to_be_bytes());
            }
            ColumnKind::U128 => {
                let number = match take_array(input, "u128")? {
                    [0] => u128::from_le_bytes(take_array(input, "u128")?),
                    [_] => take_number(input)?.into(),
                };
                out.extend_from_slice(&number.to_be_bytes());
            }
            ColumnKind::Bool => out.push(u8::from(bits.take(packed))),
            ColumnKind::Fixed(bytes) => out.extend_from_slice(take(input, bytes, "bytes")?),
            ColumnKind::Bytes | ColumnKind::Text => {
                let bytes = take_number(input)?;
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                put_bytes(take(input, bytes, "bytes")?, out);
            }
            ColumnKind::Amount => take_amount(input, out)?,
            ColumnKind::Timestamp => take_time(input, &mut time, out)?,
        }
    }
    if input.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { left: input.len() }) }
}

/// Number of bytes that the value at the front has without its escapes. `None` if it has no end.
fn unescaped_bytes(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut escapes) = (0, 0);
    loop {
        at += memchr(0, &bytes[at..])?;
        if *bytes.get(at + 1)? == 0 {
            return Some(at - escapes);
        }
        escapes += 1;
        at += 2;
    }
}

fn small<T: TryFrom<u64>>(input: &mut &[u8]) -> Result<T, DecodeError> {
    let number = take_number(input)?;
    T::try_from(number).map_err(|_| DecodeError::invalid("number", format!("{number} is too large")))
}

/// Appends all digits of an amount up to its last decimal place that is not zero, as a number, and how many
/// places there are.
fn put_amount(amount: [u8; 12], out: &mut Vec<u8>) {
    let code = || {
        let (units, parts) = amount.split_first_chunk::<8>()?;
        let (units, parts) = (u64::from_be_bytes(*units), u32::from_be_bytes(parts.try_into().ok()?));
        if parts >= 10_u32.pow(PLACES) {
            return None;
        }
        let (mut parts, mut places) = (parts, PLACES);
        while places > 0 && parts.is_multiple_of(10) {
            parts /= 10;
            places -= 1;
        }
        let digits = units.checked_mul(10_u64.pow(places))?.checked_add(parts.into())?;
        digits.checked_mul(u64::from(PLACES) + 1)?.checked_add(u64::from(places) + 1)
    };
    match code() {
        Some(code) => put_number(code, out),
        None => {
            put_number(AMOUNT_WHOLE, out);
            out.extend_from_slice(&amount);
        }
    }
}

fn take_amount(input: &mut &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let code = take_number(input)?;
    if code == AMOUNT_WHOLE {
        out.extend_from_slice(take(input, 12, "amount")?);
        return Ok(());
    }
    let (digits, places) = ((code - 1) / u64::from(PLACES + 1), (code - 1) % u64::from(PLACES + 1));
    let places = u32::try_from(places).expect("at most eight");
    let unit = 10_u64.pow(places);
    let parts = u32::try_from(digits % unit).expect("at most eight digits") * 10_u32.pow(PLACES - places);
    out.extend_from_slice(&(digits / unit).to_be_bytes());
    out.extend_from_slice(&parts.to_be_bytes());
    Ok(())
}

/// The second in which a time lies. Times count from whole seconds, so that one with microseconds does not make all
/// after it long.
const fn whole_second(time: u64) -> u64 {
    time - time % SECOND_US
}

/// Appends a time as its difference from the one before it, in seconds if it is a whole number of them.
fn put_time(time: [u8; 8], previous: &mut u64, out: &mut Vec<u8>) {
    let time = u64::from_be_bytes(time);
    if time == u64::MAX {
        put_number(TIME_NEVER, out);
    } else if time >= TIME_LIMIT_US {
        put_number(TIME_WHOLE, out);
        out.extend_from_slice(&time.to_be_bytes());
    } else {
        let us = time.cast_signed() - previous.cast_signed();
        *previous = whole_second(time);
        let second = SECOND_US.cast_signed();
        let code = if us % second == 0 { zigzag(us / second) << 1 } else { zigzag(us) << 1 | 1 };
        put_number(TIME_CODES + code, out);
    }
}

fn take_time(input: &mut &[u8], previous: &mut u64, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let time = match take_number(input)? {
        TIME_NEVER => u64::MAX,
        TIME_WHOLE => u64::from_be_bytes(take_array(input, "time")?),
        code => {
            let code = code - TIME_CODES;
            let difference = unzigzag(code >> 1);
            let us = if code & 1 == 1 {
                Some(difference)
            } else {
                difference.checked_mul(SECOND_US.cast_signed())
            };
            let time = us.and_then(|us| previous.checked_add_signed(us));
            let time = time.filter(|&time| time < TIME_LIMIT_US);
            let time = time.ok_or_else(|| DecodeError::invalid("time", "it is out of range"))?;
            *previous = whole_second(time);
            time
        }
    };
    out.extend_from_slice(&time.to_be_bytes());
    Ok(())
}

/// Lists the leading columns of fixed length of an encoded key.
pub(crate) fn fixed_columns(columns: &[ColumnDef], key: &[u8], fixed: &mut Vec<Fixed>) {
    let mut at = 0;
    for (column, def) in columns.iter().enumerate() {
        let Some(bytes) = def.column.fixed_bytes().filter(|bytes| at + bytes <= key.len()) else { return };
        if matches!(def.column.kind, ColumnKind::Fixed(_)) {
            fixed.push(Fixed { at, bytes, column });
        }
        at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ColumnType;

    /// A column of every kind, and of every kind that may be absent.
    fn columns() -> Vec<ColumnDef> {
        let kinds = [
            ColumnKind::Timestamp,
            ColumnKind::U8,
            ColumnKind::U16,
            ColumnKind::Bool,
            ColumnKind::U32,
            ColumnKind::U64,
            ColumnKind::I64,
            ColumnKind::U128,
            ColumnKind::Fixed(32),
            ColumnKind::Bytes,
            ColumnKind::Text,
            ColumnKind::Amount,
            ColumnKind::Timestamp,
        ];
        let present = kinds.map(ColumnType::new);
        let nullable = kinds.map(|kind| ColumnType::new(kind).optional());
        let all = present.into_iter().chain(nullable);
        all.map(|column| ColumnDef { name: "column", column }).collect()
    }

    #[test]
    fn sizes_of_numbers_are_known() {
        for number in [0, 1, 127, 128, (1 << 14) - 1, 1 << 14, 1 << 21, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            assert_eq!(number_bytes(number) as usize, bytes.len(), "{number}");
        }
    }

    fn number() -> impl Strategy<Value = u64> {
        let near = |n: u64| (0..3_u64).prop_map(move |more| n.wrapping_add(more).wrapping_sub(1));
        prop_oneof![
            any::<u64>(),
            0..1_000_u64,
            near(0),
            near(u64::MAX),
            near(TIME_LIMIT_US),
            near(EPOCH_US),
            (0..4_000_000_000_u64).prop_map(|seconds| seconds * 1_000_000),
        ]
    }

    /// The encoding of a value, mostly valid.
    fn value(kind: ColumnKind) -> BoxedStrategy<Vec<u8>> {
        match kind {
            ColumnKind::U8 => any::<u8>().prop_map(|n| vec![n]).boxed(),
            ColumnKind::Bool => prop_oneof![20 => 0..2_u8, 1 => Just(2)].prop_map(|n| vec![n]).boxed(),
            ColumnKind::U16 => any::<u16>().prop_map(|n| n.to_be_bytes().to_vec()).boxed(),
            ColumnKind::U32 => any::<u32>().prop_map(|n| n.to_be_bytes().to_vec()).boxed(),
            ColumnKind::U64 | ColumnKind::I64 | ColumnKind::Timestamp => {
                number().prop_map(|n| n.to_be_bytes().to_vec()).boxed()
            }
            ColumnKind::U128 => {
                let high = prop_oneof![Just(0), any::<u64>()];
                (high, number()).prop_map(|(a, b)| [a.to_be_bytes(), b.to_be_bytes()].concat()).boxed()
            }
            ColumnKind::Fixed(n) => proptest::collection::vec(any::<u8>(), n).boxed(),
            ColumnKind::Bytes | ColumnKind::Text => {
                let byte = prop_oneof![Just(0), Just(255), any::<u8>()];
                let bytes = proptest::collection::vec(byte, 0..300);
                let encode = |bytes: Vec<u8>| {
                    let mut out = Vec::new();
                    put_bytes(&bytes, &mut out);
                    out
                };
                bytes.prop_map(encode).boxed()
            }
            ColumnKind::Amount => {
                let parts = prop_oneof![
                    Just(0),
                    (0..100_u32).prop_map(|cents| cents * 1_000_000),
                    any::<u32>(),
                    0..100_000_000_u32,
                ];
                let units = prop_oneof![number(), 0..1_u64 << 53];
                (units, parts)
                    .prop_map(|(units, parts)| [&units.to_be_bytes()[..], &parts.to_be_bytes()[..]].concat())
                    .boxed()
            }
        }
    }

    fn row() -> impl Strategy<Value = Vec<u8>> {
        let parts: Vec<BoxedStrategy<Vec<u8>>> = columns()
            .into_iter()
            .map(|def| {
                let present = value(def.column.kind);
                if !def.column.nullable {
                    return present;
                }
                let some = present.prop_map(|bytes| [&[1], &bytes[..]].concat());
                prop_oneof![2 => some, 1 => Just(vec![0]), 1 => Just(vec![2])].boxed()
            })
            .collect();
        parts.prop_map(|parts| parts.concat())
    }

    proptest! {
        /// Packed rows are unpacked to the same bytes; other rows have bytes that no row has.
        #[test]
        fn packing_can_be_undone(row in row()) {
            let (mut packed, mut fixed) = (Vec::new(), Vec::new());
            let columns = columns();
            if pack(&columns, &row, &mut packed, &mut fixed).is_some() {
                let mut back = Vec::new();
                unpack(&columns, &packed, &mut back).expect("it was packed");
                prop_assert_eq!(&back, &row);
                for Fixed { at, bytes, column } in fixed {
                    prop_assert_eq!(columns[column].column.kind, ColumnKind::Fixed(bytes));
                    let value = &packed[at..at + bytes];
                    prop_assert!(row.windows(bytes).any(|window| window == value));
                }
            } else {
                prop_assert!(row.contains(&2), "only invalid flags and booleans are refused");
            }
            // Bytes that are left over are no row.
            let longer = [&row[..], &[0]].concat();
            prop_assert_eq!(pack(&columns, &longer, &mut packed, &mut Vec::new()), None);
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_unpacked(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&columns(), &bytes, &mut Vec::new());
            let _ = pack(&columns(), &bytes, &mut Vec::new(), &mut Vec::new());
        }
    }

    #[test]
    fn usual_values_are_short() {
        let size = |kind, bytes: &[u8]| {
            let mut packed = Vec::new();
            let columns = [ColumnDef { name: "column", column: ColumnType::new(kind) }];
            pack(&columns, bytes, &mut packed, &mut Vec::new()).expect("it is valid");
            packed.len()
        };
        let amount = |units: u64, parts: u32| [&units.to_be_bytes()[..], &parts.to_be_bytes()[..]].concat();
        assert_eq!(size(ColumnKind::Amount, &amount(0, 0)), 1);
        assert_eq!(size(ColumnKind::Amount, &amount(4, 23_000_000)), 2);
        assert_eq!(size(ColumnKind::Amount, &amount(1, 0)), 1);
        let second = |seconds: u64| (seconds * 1_000_000).to_be_bytes();
        assert_eq!(size(ColumnKind::Timestamp, &second(1_800_000_000)), 4);
        assert_eq!(size(ColumnKind::Timestamp, &u64::MAX.to_be_bytes()), 1);
        assert_eq!(size(ColumnKind::U64, &5_u64.to_be_bytes()), 1);
    }
}

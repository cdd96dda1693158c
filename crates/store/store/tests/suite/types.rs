//! Columns and records: every value survives a round trip, bytes sort as values do, and invalid bytes are
//! refused.

use std::fmt::Debug;

use batzen_store::{
    Column, ColumnKind, ColumnType, DecodeError, List, Record, Value, decode_values, encode_values,
    prefix_successor, record, vshard,
};
use proptest::prelude::*;

record! {
    /// One column of each kind.
    pub struct Everything {
        /// One byte.
        pub a: u8,
        /// Two bytes.
        pub b: u16,
        /// Four bytes.
        pub c: u32,
        /// Eight bytes.
        pub d: u64,
        /// Signed.
        pub e: i64,
        /// Sixteen bytes.
        pub f: u128,
        /// A bit.
        pub g: bool,
        /// Bytes of a fixed length.
        pub h: [u8; 5],
        /// Bytes of any length.
        pub i: Vec<u8>,
        pub j: String,
        /// Text or nothing.
        pub k: Option<String>,
        /// A number or nothing.
        pub l: Option<u32>,
        /// Several.
        pub m: List<u16>,
    }
}

prop_compose! {
    fn everything()(
        (a, b, c, d, e, f) in any::<(u8, u16, u32, u64, i64, u128)>(),
        (g, h) in any::<(bool, [u8; 5])>(),
        i in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..20),
        (j, k) in ("\\PC{0,8}", prop::option::of("[a-c\0]{0,4}")),
        l in any::<Option<u32>>(),
        m in prop::collection::vec(any::<u16>(), 0..4),
    ) -> Everything {
        Everything { a, b, c, d, e, f, g, h, i, j, k, l, m: List(m) }
    }
}

fn sorts<C: Column + Ord + Debug>(a: &C, b: &C) -> Result<(), TestCaseError> {
    prop_assert_eq!(a.to_bytes().cmp(&b.to_bytes()), a.cmp(b), "{:?} {:?}", a, b);
    let mut bytes = a.to_bytes();
    bytes.extend_from_slice(b"rest");
    let mut rest = bytes.as_slice();
    prop_assert_eq!(&C::decode(&mut rest).expect("it was encoded"), a);
    prop_assert_eq!(rest, b"rest");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_come_back(record in everything()) {
        let bytes = record.to_bytes();
        prop_assert_eq!(&Everything::decode(&bytes).expect("it was encoded"), &record);
        // Also by the declaration alone, as a backend with native columns does.
        let values = decode_values(Everything::COLUMNS, &bytes).expect("it was encoded");
        prop_assert_eq!(values.len(), Everything::COLUMNS.len());
        prop_assert_eq!(encode_values(Everything::COLUMNS, &values).expect("they were decoded"), bytes.clone());
        // Cut anywhere, or longer: refused by both.
        for cut in 0..bytes.len() {
            prop_assert!(Everything::decode(&bytes[..cut]).is_err());
            prop_assert!(decode_values(Everything::COLUMNS, &bytes[..cut]).is_err());
        }
        let mut longer = bytes;
        longer.push(0);
        prop_assert_eq!(Everything::decode(&longer), Err(DecodeError::Trailing { left: 1 }));
    }

    #[test]
    fn bytes_sort_as_values(a in everything(), b in everything()) {
        sorts(&a.b, &b.b)?;
        sorts(&a.d, &b.d)?;
        sorts(&a.e, &b.e)?;
        sorts(&a.f, &b.f)?;
        sorts(&a.g, &b.g)?;
        sorts(&a.h, &b.h)?;
        sorts(&a.i, &b.i)?;
        sorts(&a.j, &b.j)?;
        sorts(&a.k, &b.k)?;
        sorts(&a.l, &b.l)?;
    }

    #[test]
    fn any_bytes_are_refused_or_a_record(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(record) = Everything::decode(&bytes) {
            prop_assert_eq!(record.to_bytes(), bytes.clone());
        }
        let _ = decode_values(Everything::COLUMNS, &bytes);
    }

    #[test]
    fn successors_bound_prefixes(prefix in prop::collection::vec(prop_oneof![Just(0xff_u8), any::<u8>()], 0..4), tail in any::<[u8; 3]>()) {
        let mut longer = prefix.clone();
        longer.extend(tail);
        match prefix_successor(&prefix) {
            Some(next) => prop_assert!(next > longer && next > prefix && !next.starts_with(&prefix)),
            None => prop_assert!(prefix.iter().all(|&b| b == 0xff)),
        }
    }
}

#[test]
fn domains_are_checked() {
    assert!(bool::decode(&mut [2_u8].as_slice()).is_err());
    assert!(Option::<u8>::decode(&mut [2_u8, 0].as_slice()).is_err());
    assert!(String::decode(&mut [0xff_u8, 0, 0].as_slice()).is_err());
    assert!(Vec::<u8>::decode(&mut [1_u8, 0, 7].as_slice()).is_err());
    assert!(Vec::<u8>::decode(&mut [1_u8, 0].as_slice()).is_err());
    let columns = Everything::COLUMNS;
    assert!(encode_values(&columns[..1], &[Value::U64(256)]).is_err());
    assert!(encode_values(&columns[..1], &[Value::Null]).is_err());
    assert!(encode_values(&columns[..1], &[]).is_err());
    assert!(encode_values(&columns[7..8], &[Value::Bytes(vec![1])]).is_err());
}

#[test]
fn declarations_list_the_columns() {
    let names: Vec<&str> = Everything::COLUMNS.iter().map(|def| def.name).collect();
    assert_eq!(names.concat(), "abcdefghijklm");
    assert_eq!(Everything::COLUMNS[7].column, ColumnType::new(ColumnKind::Fixed(5)));
    assert_eq!(Everything::COLUMNS[10].column, ColumnType::new(ColumnKind::Text).optional());
    assert_eq!(Everything::COLUMNS[4].column.fixed_bytes(), Some(8));
    assert_eq!(<()>::COLUMNS, []);
    assert_eq!(<()>::decode(b"x"), Err(DecodeError::Trailing { left: 1 }));
}

#[test]
fn virtual_shards_are_even_and_keyed() {
    let mut counts = [0_u32; 1024];
    for n in 0..102_400_u32 {
        counts[usize::from(vshard(&[1; 16], &n.to_be_bytes()))] += 1;
    }
    assert!(counts.iter().all(|&count| (50..160).contains(&count)));
    let moved = (0..1000_u32)
        .filter(|n| vshard(&[1; 16], &n.to_be_bytes()) != vshard(&[2; 16], &n.to_be_bytes()))
        .count();
    assert!(moved > 950);
}

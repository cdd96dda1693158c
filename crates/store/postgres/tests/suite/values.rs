//! Every value survives a round trip, and is stored in the database as its type requires.

use crate::common;

use std::ops::Bound;

use batzen_protocol::{Money, Timestamp};
use batzen_store::{
    ChangeSet, CommitOutcome, IndexDef, IndexEntries, IndexKind, List, Record, Store, Table, TableDef, record,
};
use common::{connect, database, open};
use proptest::prelude::*;

record! {
    /// A key with every kind of column that a key may have.
    pub key struct ZooKey {
        /// The owner of the row.
        pub owner: [u8; 3],
        /// Eight bits.
        pub k_tiny: u8,
        /// 64 bits.
        pub k_big: u64,
        pub k_signed: i64,
        /// Of any length.
        pub k_text: String,
        /// Of any length.
        pub k_bytes: Vec<u8>,
        /// One bit.
        pub k_flag: bool,
    }
}
record! {
    /// A row with every kind of column, both required and optional.
    pub struct ZooRow {
        /// Eight bits.
        pub tiny: u8,
        /// 16 bits.
        pub small: u16,
        /// 32 bits.
        pub middle: u32,
        /// 64 bits.
        pub large: u64,
        /// 128 bits.
        pub huge: u128,
        pub signed: i64,
        /// One bit.
        pub flag: bool,
        /// Bytes of a fixed length.
        pub array: [u8; 5],
        /// Bytes of any length.
        pub bytes: Vec<u8>,
        pub text: String,
        /// An amount.
        pub money: Money,
        /// A moment.
        pub time: Timestamp,
        /// 16 bits or nothing.
        pub maybe_small: Option<u16>,
        /// 64 bits or nothing.
        pub maybe_large: Option<u64>,
        /// Bytes or nothing.
        pub maybe_bytes: Option<Vec<u8>>,
        /// Text or nothing.
        pub maybe_text: Option<String>,
        /// An amount or nothing.
        pub maybe_money: Option<Money>,
        /// A moment or nothing.
        pub maybe_time: Option<Timestamp>,
        /// Several values.
        pub list: List<u16>,
    }
}

/// A table with every kind of column and index.
pub(crate) struct Zoo;
impl Table for Zoo {
    const DEF: &'static TableDef = &TableDef::of::<Self>(950, "zoo").shard(3).updated().indexed(&[
        IndexDef::new(1, "by_owner", IndexKind::Prefix { key_bytes: 3 }),
        IndexDef::new(2, "by_tiny", IndexKind::Prefix { key_bytes: 4 }),
        IndexDef::new(3, "by_text", IndexKind::Hash),
        IndexDef::new(4, "by_list", IndexKind::Hash).many(),
        IndexDef::new(5, "by_value", IndexKind::Ordered),
        IndexDef::new(6, "by_time", IndexKind::Serial),
    ]);
    type Key = ZooKey;
    type Row = ZooRow;
    fn index_entries(_: &ZooKey, row: &ZooRow, out: &mut IndexEntries) {
        if let Some(text) = &row.maybe_text {
            out.add(3, text);
        }
        for value in &row.list.0 {
            out.add(4, value);
        }
        out.add_with(5, |bytes| batzen_store::Column::encode(&row.text, bytes));
        if let Some(time) = row.maybe_time {
            out.add(6, &time);
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    let char = prop_oneof![
        4 => any::<char>(),
        2 => Just('\0'),
        2 => Just('\u{1}'),
        1 => Just('0'),
        1 => Just('1'),
        1 => Just('\\'),
        1 => Just('\''),
    ];
    prop::collection::vec(char, 0..12).prop_map(String::from_iter)
}

fn edgy() -> impl Strategy<Value = u64> {
    let edges =
        [0, 1, 255, 256, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
    prop_oneof![any::<u64>(), prop::sample::select(edges.to_vec())]
}

fn money() -> impl Strategy<Value = Money> {
    prop_oneof![Just(Money::ZERO), Just(Money::UNIT), Just(Money::MAX)]
}

fn time() -> impl Strategy<Value = Timestamp> {
    edgy().prop_map(Timestamp::decode_from)
}

trait DecodeFrom {
    fn decode_from(us: u64) -> Self;
}

impl DecodeFrom for Timestamp {
    fn decode_from(us: u64) -> Self {
        batzen_store::Column::decode(&mut us.to_be_bytes().as_slice()).expect("all numbers are times")
    }
}

fn key() -> impl Strategy<Value = ZooKey> {
    let bytes = prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..140);
    (0..3_u8, 0..2_u8, edgy(), edgy(), text(), bytes, any::<bool>()).prop_map(
        |(owner, tiny, big, signed, text, bytes, flag)| ZooKey {
            owner: [owner, 0, 255],
            k_tiny: tiny,
            k_big: big,
            k_signed: signed.cast_signed(),
            k_text: text,
            k_bytes: bytes,
            k_flag: flag,
        },
    )
}

fn row() -> impl Strategy<Value = ZooRow> {
    let bytes = || prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..40);
    let numbers = (any::<u8>(), any::<u16>(), any::<u32>(), edgy(), any::<u128>(), edgy(), any::<bool>());
    let others = (any::<[u8; 5]>(), bytes(), text(), money(), time());
    let maybe = (
        any::<Option<u16>>(),
        prop::option::of(edgy()),
        prop::option::of(bytes()),
        prop::option::of(text()),
        prop::option::of(money()),
        prop::option::of(time()),
    );
    (numbers, others, maybe, prop::collection::vec(0..4_u16, 0..4)).prop_map(
        |(
            (tiny, small, middle, large, huge, signed, flag),
            (array, bytes, text, money, time),
            (maybe_small, maybe_large, maybe_bytes, maybe_text, maybe_money, maybe_time),
            list,
        )| ZooRow {
            tiny,
            small,
            middle,
            large,
            huge,
            signed: signed.cast_signed(),
            flag,
            array,
            bytes,
            text,
            money,
            time,
            maybe_small,
            maybe_large,
            maybe_bytes,
            maybe_text,
            maybe_money,
            maybe_time,
            list: List(list),
        },
    )
}

const TABLES: &[&TableDef] = &[Zoo::DEF];

fn commit(store: &Store, fill: impl FnOnce(&mut ChangeSet)) {
    let mut changes = ChangeSet::new();
    fill(&mut changes);
    assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
}

/// Every kind of read gives the same result in PostgreSQL and in memory.
fn agree(postgres: &Store, memory: &Store, keys: &[ZooKey]) {
    let rows = |store: &Store| {
        let found = store.get_many::<Zoo>(keys).expect("it works");
        found.into_iter().map(|found| found.map(|found| found.row)).collect::<Vec<_>>()
    };
    assert_eq!(rows(postgres), rows(memory));
    // The serials differ, but their order does not.
    let records = |store: &Store, index: u8, values: &[Vec<u8>]| {
        let groups = store.lookup_many_bytes::<Zoo>(index, values).expect("it works");
        let plain = |group: Vec<batzen_store::Found<Zoo>>| {
            group.into_iter().map(|found| (found.key, found.row)).collect::<Vec<_>>()
        };
        groups.into_iter().map(plain).collect::<Vec<_>>()
    };
    let prefixes: Vec<Vec<u8>> = keys.iter().map(|key| key.to_bytes()[..3].to_vec()).collect();
    assert_eq!(records(postgres, 1, &prefixes), records(memory, 1, &prefixes));
    let prefixes: Vec<Vec<u8>> = keys.iter().map(|key| key.to_bytes()[..4].to_vec()).collect();
    assert_eq!(records(postgres, 2, &prefixes), records(memory, 2, &prefixes));
    let all = memory.all::<Zoo>().expect("it works");
    let texts = all.iter().filter_map(|found| found.row.maybe_text.as_ref());
    let texts: Vec<Vec<u8>> = texts.map(batzen_store::Column::to_bytes).collect();
    assert_eq!(records(postgres, 3, &texts), records(memory, 3, &texts));
    let tags: Vec<Vec<u8>> = (0..5_u16).map(|tag| tag.to_be_bytes().to_vec()).collect();
    assert_eq!(records(postgres, 4, &tags), records(memory, 4, &tags));
    let mut places: Vec<Vec<u8>> = Vec::new();
    memory
        .positions::<Zoo>(5, Bound::Unbounded, Bound::Unbounded, |place| {
            places.push(place.to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .expect("it works");
    let ordered = |store: &Store, index: u8, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>, descending: bool| {
        let found = store.range_positions::<Zoo>(index, from, to, 7, descending).expect("it works");
        found.into_iter().map(|found| (found.key, found.row)).collect::<Vec<_>>()
    };
    for (n, place) in places.iter().enumerate() {
        // Bounds are positions, parts of positions, and positions with a byte added.
        let bound = [place.clone(), place[..place.len() / 2].to_vec(), [place.as_slice(), &[0]].concat()]
            [n % 3]
            .clone();
        for descending in [false, true] {
            let all = [
                (Bound::Included(bound.clone()), Bound::Unbounded),
                (Bound::Excluded(bound.clone()), Bound::Unbounded),
                (Bound::Unbounded, Bound::Included(bound.clone())),
                (Bound::Unbounded, Bound::Excluded(bound.clone())),
            ];
            for (from, to) in all {
                let (there, here) = (
                    ordered(postgres, 5, from.clone(), to.clone(), descending),
                    ordered(memory, 5, from, to, descending),
                );
                assert_eq!(there, here);
            }
        }
    }
    for descending in [false, true] {
        let times = |store: &Store| ordered(store, 6, Bound::Unbounded, Bound::Unbounded, descending);
        assert_eq!(times(postgres), times(memory));
    }
}

#[test]
fn every_value_survives_a_round_trip() {
    for partitions in [0, 4] {
        let options = database(TABLES, partitions);
        let postgres = open(&options);
        let config = ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let rows = prop::collection::btree_map(key(), (row(), row(), 0..4_u8), 1..12);
        runner
            .run(&rows, |rows| {
                let memory = Store::new(batzen_store::memory::MemoryBackend::new());
                let keys: Vec<ZooKey> = rows.keys().cloned().collect();
                for store in [&postgres, &memory] {
                    commit(store, |c| rows.iter().for_each(|(key, (row, ..))| c.insert::<Zoo>(key, row)));
                }
                agree(&postgres, &memory, &keys);
                let mut left = Vec::new();
                for (key, (old, new, kind)) in &rows {
                    let step = |c: &mut ChangeSet| match kind {
                        0 => c.update::<Zoo>(key, old, new),
                        1 => c.delete::<Zoo>(key, old),
                        // A change of a single column.
                        2 => c.update::<Zoo>(key, old, &ZooRow { money: new.money, ..old.clone() }),
                        _ => {
                            c.delete::<Zoo>(key, old);
                            c.insert::<Zoo>(key, new);
                        }
                    };
                    for store in [&postgres, &memory] {
                        commit(store, step);
                    }
                    left.extend(memory.get::<Zoo>(key).expect("it works").map(|found| (key, found.row)));
                }
                agree(&postgres, &memory, &keys);
                commit(&postgres, |c| left.iter().for_each(|(key, row)| c.delete::<Zoo>(key, row)));
                prop_assert_eq!(postgres.count::<Zoo>().expect("it works"), 0);
                Ok(())
            })
            .expect("they agree");
    }
}

#[test]
fn the_database_holds_readable_columns() {
    let options = database(TABLES, 4);
    let store = open(&options);
    let key = ZooKey {
        owner: *b"abc",
        k_tiny: 7,
        k_big: u64::MAX,
        k_signed: -5,
        k_text: "k\0".into(),
        k_bytes: vec![0, 1],
        k_flag: true,
    };
    let row = ZooRow {
        tiny: 255,
        small: u16::MAX,
        middle: u32::MAX,
        large: 1 << 63,
        huge: u128::MAX,
        signed: i64::MIN,
        flag: false,
        array: *b"hello",
        bytes: vec![0, 255],
        text: "Zürich".into(),
        money: Money::UNIT,
        time: Timestamp::decode_from(u64::MAX),
        maybe_small: None,
        maybe_large: None,
        maybe_bytes: None,
        maybe_text: None,
        maybe_money: None,
        maybe_time: None,
        list: List(vec![]),
    };
    commit(&store, |c| c.insert::<Zoo>(&key, &row));
    let rows = connect(&options.url)
        .query_text(
            "SELECT owner, k_big, k_signed, text, tiny, small, middle, large, time, money_val, money_frac, maybe_money_val, list, \
             ix_by_list, version FROM exchange.zoo",
        )
        .expect("it works");
    let texts: Vec<&str> = rows[0].iter().map(|text| text.as_deref().unwrap_or("NULL")).collect();
    let expected = [
        "\\x616263",
        "-1",
        "-5",
        "Zürich",
        "255",
        "65535",
        "4294967295",
        "-9223372036854775808",
        "-1",
        "0",
        "1",
        "NULL",
        "\\x",
        "NULL",
        "0",
    ];
    assert_eq!(texts, expected);
}

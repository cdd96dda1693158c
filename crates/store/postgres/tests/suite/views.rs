//! The auditors' views show every value of every table as the protocol writes it.

use batzen_crypto::base32;
use batzen_postgres::layout::row_name;
use batzen_postgres::schema::dbinit::{DbinitOptions, dbinit};
use batzen_postgres::schema::shape::literal;
use batzen_postgres::schema::{HISTORY, Sql};
use batzen_postgres::{Connection, Layout, Target};
use batzen_protocol::Money;
use batzen_store::{ColumnDef, ColumnKind, TableDef};
use batzen_tables::{bank, exchange, ledger, switch};
use batzen_testkit::postgres::fresh_database;

/// Number of different values that each column gets, including the extremes.
const VARIANTS: usize = 5;

/// A number that differs by column and by variant, including the extremes of its type.
fn number(variant: usize, name: &str, max: u128) -> u128 {
    let seed = name.bytes().fold(0x9e37_79b9_7f4a_7c15_u128, |sum, byte| {
        (sum ^ u128::from(byte)).wrapping_mul(0x0001_0000_01b3)
    });
    match variant {
        0 => 0,
        1 => max,
        2 => max / 2 + 1,
        _ => (seed >> variant) % (max + 1).max(1),
    }
}

/// A value of a column: its SQL for the table, and the text that the view must show.
fn value(column: &ColumnDef, variant: usize) -> (Vec<String>, Vec<Option<String>>) {
    let one = |sql: String, shown: String| (vec![sql], vec![Some(shown)]);
    let small = |max: u128| {
        let n = number(variant, column.name, max).to_string();
        (vec![n.clone()], vec![Some(n)])
    };
    if column.column.nullable && variant == VARIANTS - 1 {
        let columns = if column.column.kind == ColumnKind::Amount { 2 } else { 1 };
        return (vec!["NULL".into(); columns], vec![None; columns]);
    }
    let bytes = |length: usize| -> Vec<u8> {
        (0..length)
            .map(|at| {
                (number(variant.min(3), column.name, 0xffff_ffff) >> (at % 3)) as u8 ^ (at * variant) as u8
            })
            .collect()
    };
    let hex =
        |bytes: &[u8]| bytes.iter().fold("'\\x".to_owned(), |text, byte| text + &format!("{byte:02x}")) + "'";
    match column.column.kind {
        ColumnKind::U8 => small(u8::MAX.into()),
        ColumnKind::U16 => small(u16::MAX.into()),
        ColumnKind::U32 => small(u32::MAX.into()),
        ColumnKind::U64 => {
            let n = number(variant, column.name, u64::MAX.into()) as u64;
            one(n.cast_signed().to_string(), n.to_string())
        }
        ColumnKind::I64 => {
            let n = (number(variant, column.name, u64::MAX.into()) as u64).cast_signed();
            one(format!("'{n}'"), n.to_string())
        }
        ColumnKind::U128 => {
            let n = number(variant, column.name, u128::MAX - 1);
            one(hex(&n.to_be_bytes()), n.to_string())
        }
        ColumnKind::Bool => {
            let yes = variant.is_multiple_of(2);
            one(yes.to_string(), if yes { "t" } else { "f" }.into())
        }
        ColumnKind::Fixed(length) => {
            let bytes = bytes(length);
            one(hex(&bytes), base32::encode(&bytes))
        }
        ColumnKind::Bytes => {
            let bytes = bytes([0, 1, 259, 33, 3][variant]);
            one(hex(&bytes), base32::encode(&bytes))
        }
        ColumnKind::Text => {
            let text = ["", "a\0b\u{1}c", "it's \\ a Straße", "\u{1}0\0\0\u{1}1", "plain"][variant];
            let stored = text.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0");
            one(literal(&stored), text.replace('\0', "\u{2400}"))
        }
        ColumnKind::Timestamp => {
            let micros = [0, u64::MAX, 4_611_686_018_427_387_904, 1_700_000_000_123_456, 1][variant];
            let shown = if micros == u64::MAX { "infinity".to_owned() } else { micros.to_string() };
            one(micros.cast_signed().to_string(), shown)
        }
        ColumnKind::Amount => {
            let money = [
                Money::ZERO,
                Money::MAX,
                Money::UNIT,
                "1.5".parse().unwrap(),
                "1234567.00000001".parse().unwrap(),
            ][variant];
            let compact = money.to_compact();
            let val = u64::from_be_bytes(*compact.first_chunk().unwrap()).cast_signed();
            let frac = u32::from_be_bytes(*compact.last_chunk().unwrap());
            let shown = money.to_string();
            (vec![val.to_string(), frac.to_string()], vec![Some(format!("KUDOS:{shown}")), Some(shown)])
        }
    }
}

#[test]
fn views_show_every_value_as_the_protocol_writes_it() {
    for (schema, tables) in
        [("exchange", exchange::ALL), ("bank", bank::ALL), ("ledger", ledger::ALL), ("switch", switch::ALL)]
    {
        let mut sql = Connection::open(&Target::parse(&fresh_database()).unwrap()).unwrap();
        let options = DbinitOptions { currency: Some("KUDOS".into()), ..DbinitOptions::default() };
        dbinit(&mut sql, schema, tables, &options, &HISTORY).unwrap();
        sql.script("SET timezone = 'UTC'").unwrap();
        for table in tables {
            compare(&mut sql, schema, table);
        }
    }
}

fn compare(sql: &mut Connection, schema: &str, table: &'static TableDef) {
    let layout = Layout::new(table, schema, 0).unwrap();
    let columns = || table.key_columns.iter().chain(table.row_columns);
    for variant in 0..VARIANTS {
        let values: Vec<_> = columns().map(|column| value(column, variant)).collect();
        let names = layout.key.iter().chain(&layout.row).map(batzen_postgres::SqlColumn::quoted);
        let names = names.collect::<Vec<_>>().join(", ");
        let literals = values.iter().flat_map(|(sql, _)| sql.clone()).collect::<Vec<_>>().join(", ");
        sql.script(&format!(
            "TRUNCATE {0}; INSERT INTO {0} (vshard, {names}, {1}, version) VALUES (7, {literals}, 99, 0)",
            layout.table(),
            layout.serial
        ))
        .unwrap_or_else(|error| panic!("{}: {error}: {literals}", table.name));
        let named = table
            .key_columns
            .iter()
            .map(|column| (column.name.to_owned(), column))
            .chain(table.row_columns.iter().map(|column| (row_name(table, column), column)));
        let shown = named.flat_map(|(own, column)| {
            let name = format!("\"{own}\"");
            match column.column.kind {
                ColumnKind::Amount => vec![name, format!("\"{own}_number\"")],
                ColumnKind::Timestamp => vec![format!(
                    "CASE WHEN isfinite({name}) THEN (extract(epoch FROM {name}) * 1000000)::bigint::text ELSE {name}::text END"
                )],
                _ => vec![name],
            }
        });
        let list = shown.chain([layout.serial.to_owned()]).collect::<Vec<_>>().join(", ");
        let view = format!("\"{schema}_view\".\"{}\"", layout.name);
        let row = sql.row(&format!("SELECT {list} FROM {view}")).unwrap().unwrap();
        let expected: Vec<Option<String>> =
            values.into_iter().flat_map(|(_, shown)| shown).chain([Some("99".into())]).collect();
        assert_eq!(row.0, expected, "{view}, variant {variant}");
    }
}

#[test]
fn views_show_readable_amounts_times_and_keys() {
    let mut sql = Connection::open(&Target::parse(&fresh_database()).unwrap()).unwrap();
    let options = DbinitOptions { currency: Some("KUDOS".into()), ..DbinitOptions::default() };
    dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap();
    sql.script("SET timezone = 'UTC'").unwrap();
    let row = sql
        .row(
            "SELECT exchange.bz_time(1700000000000000), exchange.bz_time(-1), exchange.bz_amount(-1, 0),
               exchange.bz_base32('\\x'), exchange.bz_base32(NULL)",
        )
        .unwrap()
        .unwrap();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        row.0,
        [some("2023-11-14 22:13:20+00"), some("infinity"), some("18446744073709551615"), some(""), None]
    );
    // Every length, compared with the protocol's own encoding.
    for length in 0..70 {
        let bytes: Vec<u8> = (0..length).map(|at: u8| at.wrapping_mul(37) ^ 0xa5).collect();
        let hex = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let row = sql.row(&format!("SELECT exchange.bz_base32('\\x{hex}')")).unwrap().unwrap();
        assert_eq!(row.text(0), base32::encode(&bytes));
    }
}

#[test]
fn recreated_view_keeps_its_readers() {
    let mut sql = Connection::open(&Target::parse(&fresh_database()).unwrap()).unwrap();
    dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap();
    sql.script("CREATE ROLE reader_of_views; GRANT SELECT ON exchange_view.coins TO reader_of_views")
        .unwrap();
    // The currency becomes known, so that views with amounts change.
    let options = DbinitOptions { currency: Some("KUDOS".into()), ..DbinitOptions::default() };
    let report = dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap();
    assert!(report.actions.contains(&"make view exchange_view.coins".to_owned()), "{:?}", report.actions);
    let granted = "SELECT has_table_privilege('reader_of_views', 'exchange_view.coins', 'SELECT'),
        has_table_privilege('reader_of_views', 'exchange_view.deposits', 'SELECT')";
    let row = sql.row(granted).unwrap().unwrap();
    assert!(row.is_true(0) && !row.is_true(1));
    sql.script("DROP OWNED BY reader_of_views; DROP ROLE reader_of_views").unwrap();
}

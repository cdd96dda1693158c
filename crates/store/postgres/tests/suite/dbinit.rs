//! Schemas on a real server: created, repeated, migrated, reset, moved.

use std::time::Duration;

use batzen_postgres::schema::dbinit::{DbinitOptions, DbinitReport, dbinit};
use batzen_postgres::schema::{self, HISTORY, History, SchemaError, Sql, Step, StepChange};
use batzen_postgres::{Connection, PgOptions, Target};
use batzen_store::{Column, IndexDef, IndexEntries, IndexKind, Record, Store, Table, TableDef, record};
use batzen_tables::exchange;
use batzen_testkit::postgres::{fresh_database, shared};

fn connect(url: &str) -> Connection {
    Connection::open(&Target::parse(url).unwrap()).unwrap()
}

fn init(sql: &mut Connection, options: &DbinitOptions) -> DbinitReport {
    dbinit(sql, "exchange", exchange::ALL, options, &HISTORY).unwrap()
}

/// Everything in the catalogue that a change would touch: names and row versions.
fn catalogue(sql: &mut Connection) -> Vec<schema::Row> {
    sql.rows(
        "SELECT n.nspname, c.relname, c.xmin, c.relfilenode FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname LIKE 'exchange%'
         UNION ALL SELECT 'attribute', a.attrelid::regclass || '.' || a.attname, a.xmin, 0 FROM pg_attribute a
         JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname LIKE 'exchange%'
         UNION ALL SELECT 'function', p.oid::text, p.xmin, 0 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE n.nspname = 'exchange'
         UNION ALL SELECT 'meta', '', m.xmin, 0 FROM exchange.meta m ORDER BY 1, 2",
    )
    .unwrap()
}

#[test]
fn second_run_changes_nothing() {
    for partitions in [0, 3] {
        let mut sql = connect(&fresh_database());
        let options = DbinitOptions { partitions: Some(partitions), ..DbinitOptions::default() };
        let report = init(&mut sql, &options);
        assert_eq!((report.from_version, report.partitions), (None, partitions));
        let meta = schema::check(&mut sql, "exchange", exchange::ALL).unwrap();
        assert_eq!(meta.partitions, partitions);
        let before = catalogue(&mut sql);
        for options in [options, DbinitOptions::default()] {
            let report = init(&mut sql, &options);
            assert_eq!(report.actions, [""; 0], "{partitions}");
            assert_eq!((report.from_version, report.partitions), (Some(HISTORY.version), partitions));
        }
        assert_eq!(catalogue(&mut sql), before);
        assert_eq!(schema::check(&mut sql, "exchange", exchange::ALL).unwrap(), meta, "the same identity");
        let other = DbinitOptions { partitions: Some(7), ..DbinitOptions::default() };
        let error = dbinit(&mut sql, "exchange", exchange::ALL, &other, &HISTORY).unwrap_err();
        assert!(error.to_string().contains("-P 7"), "{error}");
    }
}

#[test]
fn interrupted_creation_is_completed() {
    let mut sql = connect(&fresh_database());
    init(&mut sql, &DbinitOptions::default());
    let before = schema::check(&mut sql, "exchange", exchange::ALL).unwrap();
    // The same as if interrupted before the identity was written.
    sql.script(
        "DELETE FROM exchange.meta; DROP TABLE exchange.coins CASCADE; DROP VIEW exchange_view.deposits",
    )
    .unwrap();
    let error = schema::check(&mut sql, "exchange", exchange::ALL).unwrap_err();
    assert!(error.to_string().contains("batzen exchange dbinit"), "{error}");
    let report = init(&mut sql, &DbinitOptions::default());
    assert!(report.actions.contains(&"create table coins".to_owned()), "{:?}", report.actions);
    let after = schema::check(&mut sql, "exchange", exchange::ALL).unwrap();
    assert_ne!(before.sip_key, after.sip_key);
    // The same as if interrupted after it was written.
    sql.script("UPDATE exchange.meta SET schema_version = 0").unwrap();
    assert!(schema::check(&mut sql, "exchange", exchange::ALL).is_err());
    init(&mut sql, &DbinitOptions::default());
    assert_eq!(schema::check(&mut sql, "exchange", exchange::ALL).unwrap(), after);
}

#[test]
fn running_service_prevents_changes_and_reset() {
    let url = fresh_database();
    let mut sql = connect(&url);
    init(&mut sql, &DbinitOptions::default());
    let mut service = connect(&url);
    service.script("SET application_name = 'batzen-exchange'").unwrap();
    service.rows(&format!("SELECT pg_advisory_lock_shared({})", schema::lock_key("exchange"))).unwrap();
    // If nothing changes, the service need not stop.
    assert!(init(&mut sql, &DbinitOptions::default()).actions.is_empty());
    let reset = DbinitOptions { reset: true, partitions: Some(2), ..DbinitOptions::default() };
    let error = dbinit(&mut sql, "exchange", exchange::ALL, &reset, &HISTORY).unwrap_err();
    assert!(matches!(&error, SchemaError::InUse { sessions, .. } if sessions.len() == 1), "{error}");
    assert!(error.to_string().contains("batzen-exchange"), "{error}");
    drop(service);
    // The server notices this a little later. Tests beside this one hold locks in databases of their own.
    let held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while !sql.rows(held).unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = init(&mut sql, &reset);
    assert_eq!((report.actions[0].as_str(), report.partitions), ("drop schema exchange", 2));
    schema::check(&mut sql, "exchange", exchange::ALL).unwrap();
}

#[test]
fn foreign_tables_are_left_alone() {
    let mut sql = connect(&fresh_database());
    sql.script("CREATE SCHEMA exchange; CREATE TABLE exchange.coins (id int)").unwrap();
    for reset in [false, true] {
        let options = DbinitOptions { reset, ..DbinitOptions::default() };
        let error = dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap_err();
        assert!(error.to_string().contains("something else (coins)"), "{error}");
    }
    assert_eq!(sql.rows("SELECT * FROM exchange.coins").unwrap(), []);
}

/// Rows whose key is lost are not kept in a new schema, which could not find them.
#[test]
fn rows_left_by_an_interrupted_reset_are_refused() {
    let mut sql = connect(&fresh_database());
    init(&mut sql, &DbinitOptions::default());
    sql.script(
        "INSERT INTO exchange.counters SELECT (json_populate_record(NULL::exchange.counters, json_object_agg(attname, CASE
           WHEN format_type(atttypid, NULL) = 'bytea' THEN '\\x00' ELSE '1' END))).*
         FROM pg_attribute WHERE attrelid = 'exchange.counters'::regclass AND attnum > 0;
         DROP TABLE exchange.meta",
    )
    .unwrap();
    let error = dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap_err();
    assert!(error.to_string().contains("rows in counters"), "{error}");
    let report = init(&mut sql, &DbinitOptions { reset: true, ..DbinitOptions::default() });
    assert_eq!(report.actions[0], "drop schema exchange");
    assert_eq!(sql.rows("SELECT 1 FROM exchange.counters").unwrap(), []);
}

#[test]
fn a_database_that_cannot_hold_every_text_is_refused() {
    let name = "plain_bytes";
    shared()
        .sql("postgres", &format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0"))
        .unwrap();
    let mut sql = connect(&shared().url(name));
    let error = dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap_err();
    assert!(error.to_string().contains("UTF8"), "{error}");
}

/// Indexing a large table takes longer than the time limit of a connection.
#[test]
fn work_on_whole_tables_has_no_time_limit() {
    let target = Target::parse(&fresh_database()).unwrap().timeout(Duration::from_secs(1));
    let slow = "SELECT pg_sleep(1.5)";
    assert!(Connection::open(&target).unwrap().query_text(slow).is_err());
    assert_eq!(Connection::open(&target.patient()).unwrap().query_text(slow).unwrap().len(), 1);
}

/// A table in the first and in the second version of a program.
mod lives {
    use super::*;

    record! {
        pub key struct Key { pub owner: [u8; 4], pub n: u32 }
    }
    record! {
        pub struct Row1 { pub name: String, pub amount: u64 }
    }
    record! {
        pub struct Row2 { pub title: String, pub amount: u64, pub note: Option<String>, pub paid: Option<batzen_protocol::Money> }
    }
    record! {
        pub key struct NewKey { pub id: u64 }
    }

    pub(super) struct Old;
    impl Table for Old {
        const DEF: &'static TableDef = &TableDef::of::<Self>(1, "things").shard(4);
        type Key = Key;
        type Row = Row1;
    }
    pub(super) struct Current;
    impl Current {
        pub(super) const BY_TITLE: u8 = 1;
        pub(super) const BY_AMOUNT: u8 = 2;
    }
    impl Table for Current {
        const DEF: &'static TableDef = &TableDef::of::<Self>(1, "things").shard(4).indexed(&[
            IndexDef::new(Self::BY_TITLE, "by_title", IndexKind::Hash),
            IndexDef::new(Self::BY_AMOUNT, "by_amount", IndexKind::Ordered),
        ]);
        type Key = Key;
        type Row = Row2;
        fn index_entries(_: &Key, row: &Row2, out: &mut IndexEntries) {
            out.add(Self::BY_TITLE, &row.title);
            out.add(Self::BY_AMOUNT, &row.amount);
        }
    }
    pub(super) struct Added;
    impl Table for Added {
        const DEF: &'static TableDef = &TableDef::of::<Self>(2, "more_things");
        type Key = NewKey;
        type Row = ();
    }

    pub(super) const STEPS: &[Step] = &[Step {
        version: HISTORY.version + 1,
        change: StepChange::RenameColumn { table: "things", from: "name", to: "title" },
    }];
    pub(super) const TABLES: &[&TableDef] = &[Current::DEF, Added::DEF];
    // A schema is checked against the version of this program.
    pub(super) const FIRST: History<'static> = History { version: HISTORY.version, steps: &[] };
    pub(super) const SECOND: History<'static> = History { version: HISTORY.version + 1, steps: STEPS };
}

#[test]
fn an_older_program_refuses_a_newer_schema() {
    let mut sql = connect(&fresh_database());
    let options = DbinitOptions::default();
    dbinit(&mut sql, "s", &[lives::Current::DEF], &options, &lives::SECOND).unwrap();
    for error in [
        dbinit(&mut sql, "s", &[lives::Old::DEF], &options, &lives::FIRST).unwrap_err(),
        schema::check(&mut sql, "s", &[lives::Old::DEF]).unwrap_err(),
    ] {
        let newer = format!("version {}", lives::SECOND.version);
        assert!(error.to_string().contains(&newer) && error.to_string().contains("newer"), "{error}");
    }
}

#[test]
fn differences_are_reported() {
    let mut sql = connect(&fresh_database());
    let options = DbinitOptions::default();
    dbinit(&mut sql, "s", &[lives::Old::DEF], &options, &lives::FIRST).unwrap();
    // A column added by hand, or by a program whose version was not increased.
    sql.script("ALTER TABLE s.things ADD COLUMN extra text; ALTER TABLE s.things DROP COLUMN amount CASCADE")
        .unwrap();
    let error = schema::check(&mut sql, "s", &[lives::Old::DEF]).unwrap_err().to_string();
    assert!(error.contains("column extra of table things is unknown"), "{error}");
    assert!(error.contains("column amount of table things is missing"), "{error}");
    let error = dbinit(&mut sql, "s", &[lives::Old::DEF], &options, &lives::FIRST).unwrap_err().to_string();
    assert!(error.contains("extra") && error.contains("amount"), "{error}");
    // A nullable column is added by dbinit.
    sql.script("DROP SCHEMA s CASCADE; DROP SCHEMA s_view CASCADE").unwrap();
    dbinit(&mut sql, "s", &[lives::Current::DEF], &options, &lives::FIRST).unwrap();
    sql.script("ALTER TABLE s.things DROP COLUMN note CASCADE").unwrap();
    let error = schema::check(&mut sql, "s", &[lives::Current::DEF]).unwrap_err().to_string();
    assert!(
        error.contains("note of table things is missing") && error.contains("batzen s dbinit"),
        "{error}"
    );
    dbinit(&mut sql, "s", &[lives::Current::DEF], &options, &lives::FIRST).unwrap();
    schema::check(&mut sql, "s", &[lives::Current::DEF]).unwrap();
}

#[test]
fn migration_keeps_rows_and_indexes() {
    for partitions in [0, 4] {
        let url = fresh_database();
        let mut sql = connect(&url);
        let options = DbinitOptions { partitions: Some(partitions), ..DbinitOptions::default() };
        dbinit(&mut sql, "s", &[lives::Old::DEF], &options, &lives::FIRST).unwrap();
        sql.script(
            "INSERT INTO s.things (vshard, owner, n, name, amount, serial, version)
             SELECT n % 1024, int4send(n), n, 'thing ' || n, 3000 - n, n * 65536, 0 FROM generate_series(1, 2500) AS n;
             GRANT SELECT ON s_view.things TO pg_monitor",
        )
        .unwrap();
        let migrate = |sql: &mut Connection| {
            let tables = [lives::Current::DEF, lives::Added::DEF];
            dbinit(sql, "s", &tables, &DbinitOptions::default(), &lives::SECOND).unwrap()
        };
        let report = migrate(&mut sql);
        assert_eq!(
            (report.from_version, report.version),
            (Some(lives::FIRST.version), lives::SECOND.version)
        );
        for action in [
            "rename column name of things to title",
            "add column note to things",
            "add column paid_val to things",
            "create table more_things",
            "index 2500 rows of things",
            "create index things_by_title on things",
            "make view s_view.things",
        ] {
            assert!(report.actions.contains(&action.to_owned()), "{action}: {:?}", report.actions);
        }
        assert_eq!(migrate(&mut sql).actions, [""; 0]);
        // Every row exists, with the index entries of the second version.
        let meta = schema::meta::read_meta(&mut sql, "s").unwrap().unwrap();
        let rows = sql
            .rows("SELECT n, title, amount, note, paid_val, ix_by_amount, ix_by_title FROM s.things ORDER BY ix_by_amount")
            .unwrap();
        assert_eq!(rows.len(), 2500);
        for (at, row) in rows.iter().enumerate() {
            let n = 2500 - u32::try_from(at).unwrap();
            let title = format!("thing {n}");
            assert_eq!(
                row.0[..5],
                [Some(n.to_string()), Some(title.clone()), Some((3000 - n).to_string()), None, None]
            );
            let key = lives::Key { owner: n.to_be_bytes(), n };
            let position = [(3000 - u64::from(n)).to_bytes(), Record::to_bytes(&key)].concat();
            let digits: String = position.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(row.text(5), format!("\\x{digits}"));
            use std::hash::Hasher;
            let mut hasher = siphasher::sip::SipHasher24::new_with_key(&meta.sip_key);
            hasher.write(&title.to_bytes());
            assert_eq!(row.number(6), hasher.finish().cast_signed());
        }
        let granted = sql.row("SELECT has_table_privilege('pg_monitor', 's_view.things', 'SELECT')").unwrap();
        assert!(granted.unwrap().is_true(0), "readers of the view keep access");
        assert_eq!(
            sql.row("SELECT title FROM s_view.things WHERE n = 7").unwrap().unwrap().text(0),
            "thing 7"
        );
        // The backend finds them. (The schema's version is set to this program's.)
        sql.script(&format!("UPDATE s.meta SET schema_version = {}", HISTORY.version)).unwrap();
        let store = Store::new(batzen_postgres::open(&PgOptions::new(&url, "s", lives::TABLES)).unwrap());
        let found = store.lookup::<lives::Current>(lives::Current::BY_TITLE, &"thing 7".to_owned()).unwrap();
        assert_eq!(found.iter().map(|found| found.key.n).collect::<Vec<_>>(), [7]);
        let found = store.range::<lives::Current, u64>(lives::Current::BY_AMOUNT, ..503, 10).unwrap();
        assert_eq!(found.iter().map(|found| found.key.n).collect::<Vec<_>>(), [2500, 2499, 2498]);
    }
}

#[test]
fn interrupted_migration_is_completed() {
    let mut sql = connect(&fresh_database());
    dbinit(&mut sql, "s", &[lives::Old::DEF], &DbinitOptions::default(), &lives::FIRST).unwrap();
    sql.script(
        "INSERT INTO s.things (vshard, owner, n, name, amount, serial, version) VALUES (1, '\\x00000001', 1, 'one', 10, 1, 0)",
    )
    .unwrap();
    // Interrupted after renaming and adding columns, before indexing.
    sql.script(
        "ALTER TABLE s.things RENAME COLUMN name TO title; ALTER TABLE s.things ADD COLUMN note text;
         ALTER TABLE s.things ADD COLUMN ix_by_amount bytea; ALTER TABLE s.things ADD COLUMN ix_by_title bigint",
    )
    .unwrap();
    dbinit(&mut sql, "s", &[lives::Current::DEF], &DbinitOptions::default(), &lives::SECOND).unwrap();
    let row = sql.row("SELECT ix_by_amount, ix_by_title FROM s.things").unwrap().unwrap();
    assert_eq!(row.text(0), "\\x000000000000000a0000000100000001");
    assert!(row.optional(1).is_some());
}

#[test]
fn columns_and_tables_with_views_can_be_dropped() {
    let mut sql = connect(&fresh_database());
    let tables = [lives::Current::DEF, lives::Added::DEF];
    dbinit(&mut sql, "s", &tables, &DbinitOptions::default(), &lives::SECOND).unwrap();
    sql.script(
        "ALTER TABLE s.things ADD COLUMN old text; DROP VIEW s_view.things; CREATE VIEW s_view.things AS SELECT * FROM s.things",
    )
    .unwrap();
    let version = lives::SECOND.version + 1;
    let steps = [
        Step { version, change: StepChange::DropColumn { table: "things", column: "old" } },
        Step { version, change: StepChange::DropTable("more_things") },
    ];
    let third = History { version, steps: &steps };
    let report = dbinit(&mut sql, "s", &[lives::Current::DEF], &DbinitOptions::default(), &third).unwrap();
    assert_eq!(report.actions[..2], ["drop column old of things", "drop table more_things"]);
    assert!(report.actions.contains(&"make view s_view.things".to_owned()), "{:?}", report.actions);
}

#[test]
fn new_queue_is_filled_from_existing_rows() {
    let mut sql = connect(&fresh_database());
    init(&mut sql, &DbinitOptions::default());
    sql.script(
        "INSERT INTO exchange.deposits (vshard, coin_pub, merchant_pub, h_contract_terms, denom, amount_val, amount_frac,
           wallet_time, exchange_time, refund_deadline, wire_deadline, wire_salt, h_payto, coin_sig, refunded_val, refunded_frac,
           wtid, serial, version)
         SELECT n, sha256('\\x01'), sha256(n::text::bytea), sha512('\\x02'), 1, 5, 0, 0, 1000000, 2000000, (3000 + n) * 1000000::bigint, '\\x00112233445566778899aabbccddeeff',
           sha256('\\x03'), sha512('\\x04'), 0, 0, CASE WHEN n > 5 THEN sha256('\\x05') END, n, 0 FROM generate_series(1, 8) AS n",
    )
    .unwrap();
    let steps = [Step { version: HISTORY.version + 1, change: StepChange::Reindex("deposits") }];
    let history = History { version: HISTORY.version + 1, steps: &steps };
    let report = dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &history).unwrap();
    assert_eq!(report.actions, ["index 8 rows of deposits"]);
    let rows = sql
        .rows("SELECT due, serial, length(ix_by_ready), length(ix_by_target), vshard FROM exchange.deposits_open ORDER BY ix_by_ready")
        .unwrap();
    let facts: Vec<Vec<i64>> = rows.iter().map(|row| (0..5).map(|at| row.number(at)).collect()).collect();
    let wanted: Vec<Vec<i64>> = (1..=5).map(|n| vec![(3000 + n) * 1_000_000, n, 40, 40, n]).collect();
    assert_eq!(facts, wanted, "those without a transfer, in the order of their time");
    let taken =
        sql.row("SELECT count(*) FROM exchange.deposits WHERE ix_by_wtid IS NOT NULL").unwrap().unwrap();
    assert_eq!(taken.number(0), 3);
}

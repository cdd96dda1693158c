//! The doctor on Batzen's schema: each hot statement touches its shard's partition and an index; otherwise
//! the doctor reports it.

use std::time::Duration;

use batzen_doctor::facts::batzen::Service;
use batzen_doctor::findings::Severity;
use batzen_doctor::report::{self, Style};
use batzen_doctor::{Examination, Options};
use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, Target};
use batzen_testkit::postgres::{fresh_database, shared};

const PARTITIONS: u16 = 4;

fn sql(url: &str, text: &str) -> String {
    shared().sql(url.rsplit('/').next().unwrap(), text).unwrap()
}

/// An exchange's schema with made-up rows in every table that has shards, and in every queue.
fn exchange(rows: u32) -> String {
    let url = fresh_database();
    let mut connection = Connection::open(&Target::parse(&url).unwrap()).unwrap();
    let options = DbinitOptions { partitions: Some(PARTITIONS), ..DbinitOptions::default() };
    dbinit(&mut connection, "exchange", batzen_tables::exchange::ALL, &options, &HISTORY).unwrap();
    // Generates every column by its type, independently of the table.
    sql(
        &url,
        &format!(
            "DO $$ DECLARE t record; BEGIN
            FOR t IN SELECT c.oid::regclass AS name, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS columns,
                    string_agg(CASE WHEN a.attname = 'vshard' THEN 'n % 1024'
                        WHEN a.atttypid = 'bytea'::regtype THEN 'sha256(n::text::bytea)'
                        WHEN a.atttypid = 'text'::regtype THEN 'n::text'
                        WHEN a.atttypid = 'bigint[]'::regtype THEN 'ARRAY[n]'
                        WHEN a.atttypid = 'boolean'::regtype THEN 'false'
                        WHEN a.atttypid = 'smallint'::regtype THEN 'n % 2'
                        ELSE 'n' END, ', ' ORDER BY a.attnum) AS items
                FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                WHERE c.relnamespace = 'exchange'::regnamespace AND c.relkind = 'p' GROUP BY c.oid
            LOOP
                EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM generate_series(1, {rows}) n', t.name, t.columns, t.items);
            END LOOP; END $$"
        ),
    );
    sql(&url, "ANALYZE");
    url
}

#[test]
fn suspended_doctor_releases_its_locks() {
    let look = batzen_doctor::facts::look::Look::connect(&Options::new(fresh_database())).unwrap();
    let rows = look.undone(&["SHOW idle_in_transaction_session_timeout"], false).unwrap();
    assert_eq!(rows, [[Some("10s".to_owned())]]);
}

fn look(url: &str) -> Examination {
    let options = Options { sample: Duration::from_millis(100), ..Options::new(url) };
    batzen_doctor::examine(&options).unwrap_or_else(|error| panic!("{error}"))
}

fn service(examination: &Examination) -> &Service {
    assert_eq!(examination.facts.batzen.len(), 1, "{:?}", examination.facts.gaps);
    &examination.facts.batzen[0]
}

#[test]
fn each_hot_statement_touches_its_shards_partition_and_an_index() {
    let url = exchange(2_000);
    let before = sql(&url, "SELECT count(*), sum(version), sum(serial) FROM exchange.coins");
    let examination = look(&url);
    let service = service(&examination);
    assert_eq!((service.schema.as_str(), service.partitions), ("exchange", PARTITIONS));
    assert_eq!(service.here, Some(service.cluster_id));
    let failed: Vec<_> = examination.facts.gaps.iter().filter(|gap| gap.what.starts_with("how ")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(service.statements.len() > 50, "{}", service.statements.len());
    for one in &service.statements {
        let name = format!("{}: {}", one.table, one.what);
        assert!(one.plan.whole.is_empty(), "{name}: {:?}", one.plan.whole);
        if !one.may_reach_all && one.parts > 0 {
            let expected = if one.what.ends_with("insert") || one.what.starts_with("queue") { 0 } else { 1 };
            assert_eq!(one.parts_hit, expected, "{name}: {:?}", one.plan.relations);
        }
    }
    let of_coins = |what: &str| service.statements.iter().any(|one| one.table == "coins" && one.what == what);
    assert!(["get", "insert", "update", "delete", "keep"].into_iter().all(of_coins));
    assert!(
        examination
            .findings
            .iter()
            .any(|finding| finding.rule == "batzen_pruning" && finding.severity == Severity::Ok)
    );
    let text = report::text(&examination, Style::default());
    assert!(text.contains("exchange.coins") && text.contains("1 of 4"), "{text}");
    // The executed inserts, updates and deletes have changed nothing.
    assert_eq!(sql(&url, "SELECT count(*), sum(version), sum(serial) FROM exchange.coins"), before);
}

#[test]
fn missing_key_and_restored_schema_are_reported() {
    let url = exchange(10_000);
    sql(
        &url,
        "ALTER TABLE exchange.coins DROP CONSTRAINT coins_pkey; UPDATE exchange.meta SET cluster_id = 1",
    );
    let examination = look(&url);
    let found = |rule: &str| examination.findings.iter().find(|finding| finding.rule == rule);
    let whole =
        found("batzen_whole_read").unwrap_or_else(|| panic!("{:#?}", service(&examination).statements));
    assert!(whole.title.contains("exchange.coins"), "{whole:?}");
    assert_eq!(found("batzen_restored").unwrap().severity, Severity::Critical);
}

//! Replication to an auditor's database, and dumps that are restored on another cluster.

use std::time::{Duration, Instant};

use batzen_metrics::Page;
use batzen_postgres::schema::dbinit::{DbinitOptions, dbinit};
use batzen_postgres::schema::replication::{self, LagMetrics};
use batzen_postgres::schema::{self, HISTORY, SchemaError, Sql};
use batzen_postgres::{Connection, Target};
use batzen_tables::exchange;
use batzen_testkit::postgres::{Cluster, ClusterOptions, Installation, fresh_database};

fn connect(url: &str) -> Connection {
    Connection::open(&Target::parse(url).unwrap()).unwrap()
}

/// Inserts coins `from..to` with the serials of their transaction.
fn coins(sql: &mut Connection, from: u32, to: u32) {
    sql.script(&format!(
        "INSERT INTO exchange.coins (vshard, coin_pub, denom, denom_sig, remaining_val, remaining_frac, zombie, serial, version)
         SELECT n % 1024, sha256(n::text::bytea), 1, '\\x01', n, 50000000, false, (SELECT exchange.bz_serial()) + n, 0
         FROM generate_series({from}, {to} - 1) AS n"
    ))
    .unwrap();
}

/// All coins as an auditor reads them.
fn shown(sql: &mut Connection) -> Vec<schema::Row> {
    sql.rows("SELECT * FROM exchange_view.coins ORDER BY coin_pub").unwrap()
}

#[test]
fn an_auditor_gets_every_row() {
    let options = ClusterOptions::unsynced().set("wal_level", "logical");
    let (publisher, subscriber) = (Cluster::start(&options).unwrap(), Cluster::start(&options).unwrap());
    let (from, to) =
        (publisher.create_database("exchange").unwrap(), subscriber.create_database("audit").unwrap());
    let (mut from_sql, mut to_sql) = (connect(&from), connect(&to));
    // The two databases may be partitioned differently.
    let kudos = |partitions, replica| DbinitOptions {
        partitions: Some(partitions),
        currency: Some("KUDOS".into()),
        replica,
        ..DbinitOptions::default()
    };
    dbinit(&mut from_sql, "exchange", exchange::ALL, &kudos(4, false), &HISTORY).unwrap();
    coins(&mut from_sql, 0, 100);
    from_sql.script("CREATE ROLE auditor LOGIN REPLICATION").unwrap();
    let report = replication::setup(&mut from_sql, "exchange", exchange::AUDITED, Some("auditor")).unwrap();
    assert_eq!(report.tables.len(), exchange::AUDITED.len() + 1);
    assert!(
        !report.tables.contains(&"deposits_open".to_owned())
            && !report.tables.contains(&"writers".to_owned())
    );
    assert!(report.commands[1].contains("user=auditor") && report.commands[1].contains("dbname=exchange"));
    let again = replication::setup(&mut from_sql, "exchange", exchange::AUDITED, Some("auditor")).unwrap();
    assert_eq!(again.actions, [""; 0]);
    assert_eq!(replication::lag(&mut from_sql).unwrap(), []);

    dbinit(&mut to_sql, "exchange", exchange::ALL, &kudos(0, true), &HISTORY).unwrap();
    assert_eq!(
        to_sql.rows("SELECT * FROM exchange.meta").unwrap(),
        [],
        "the identity comes from the publisher"
    );
    // The same as the last command, but with the test's address.
    to_sql
        .script(&format!(
            "CREATE SUBSCRIPTION \"exchange_audit\" CONNECTION '{from}' PUBLICATION \"exchange_audit\""
        ))
        .unwrap();
    coins(&mut from_sql, 100, 200);
    from_sql.script("UPDATE exchange.coins SET remaining_val = 7, version = 1 WHERE vshard = 3").unwrap();
    let wanted = shown(&mut from_sql);
    assert_eq!(wanted.len(), 200);
    let until = Instant::now() + Duration::from_secs(60);
    while shown(&mut to_sql) != wanted && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(shown(&mut to_sql), wanted);
    let text = "SELECT sip_key, store_id FROM exchange.meta";
    while to_sql.rows(text).unwrap().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(from_sql.rows(text).unwrap(), to_sql.rows(text).unwrap());
    // The copy is not accepted as the exchange's own database.
    let error = schema::check(&mut to_sql, "exchange", exchange::ALL).unwrap_err();
    assert!(matches!(error, SchemaError::Moved { .. }), "{error}");

    // The lag is zero while the subscriber is connected, and grows with every write afterwards.
    let slots = replication::lag(&mut from_sql).unwrap();
    assert_eq!((slots.len(), slots[0].slot.as_str(), slots[0].active), (1, "exchange_audit", true));
    assert!(slots[0].millis.is_some());
    drop((to_sql, subscriber));
    let until = Instant::now() + Duration::from_secs(60);
    while replication::lag(&mut from_sql).unwrap()[0].active && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = replication::lag(&mut from_sql).unwrap()[0].bytes;
    coins(&mut from_sql, 200, 1200);
    let slots = replication::lag(&mut from_sql).unwrap();
    assert!(slots[0].bytes > before + 100_000, "{slots:?} after {before}");
    assert_eq!(slots[0].millis, None);
    let (metrics, mut page) = (LagMetrics::default(), Page::new());
    metrics.set(slots.clone());
    metrics.write(&mut page);
    let wanted =
        format!("batzen_postgres_replication_lag_bytes{{slot=\"exchange_audit\"}} {}", slots[0].bytes);
    let page = page.finish();
    assert!(page.contains(&wanted), "{page}");
}

#[test]
fn too_low_wal_level_is_reported_with_the_command() {
    let mut sql = connect(&fresh_database());
    dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap();
    let level = sql.row("SHOW wal_level").unwrap().unwrap();
    let outcome = replication::setup(&mut sql, "exchange", exchange::AUDITED, None);
    if level.text(0) == "logical" {
        outcome.unwrap();
    } else {
        assert!(outcome.unwrap_err().to_string().contains("ALTER SYSTEM SET wal_level = logical"));
    }
}

#[test]
fn serials_keep_growing_after_a_dump_is_restored_elsewhere() {
    let options = ClusterOptions::unsynced();
    let (old, new) = (Cluster::start(&options).unwrap(), Cluster::start(&options).unwrap());
    let (from, to) = (old.create_database("exchange").unwrap(), new.create_database("exchange").unwrap());
    let mut sql = connect(&from);
    dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap();
    // A cluster with much higher transaction ids.
    sql.script("DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        .unwrap();
    coins(&mut sql, 0, 10);
    let highest = sql.row("SELECT max(serial) FROM exchange.coins").unwrap().unwrap().number(0);
    let before = schema::check(&mut sql, "exchange", exchange::ALL).unwrap();

    let installation = Installation::find().unwrap();
    let dump = installation.command("pg_dump").args(["-Fc", "-d", &from]).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &dump.stdout).unwrap();
    let restore = installation.command("pg_restore").args(["-d", &to]).arg(file.path()).output().unwrap();
    assert!(restore.status.success(), "{}", String::from_utf8_lossy(&restore.stderr));

    let mut sql = connect(&to);
    let next = |sql: &mut Connection| sql.row("SELECT exchange.bz_serial()").unwrap().unwrap().number(0);
    assert!(next(&mut sql) < highest, "the test needs a cluster with lower transaction ids");
    let error = schema::check(&mut sql, "exchange", exchange::ALL).unwrap_err();
    assert!(error.to_string().contains("batzen exchange dbinit"), "{error}");
    let report = dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap();
    assert_eq!(report.actions.len(), 1, "{report:?}");
    let after = schema::check(&mut sql, "exchange", exchange::ALL).unwrap();
    assert_eq!((before.store_id, before.sip_key), (after.store_id, after.sip_key), "the same store");
    assert!(next(&mut sql) > highest);
    coins(&mut sql, 10, 20);
    let rows = sql.rows("SELECT remaining_val FROM exchange.coins ORDER BY serial").unwrap();
    let order: Vec<i64> = rows.iter().map(|row| row.number(0)).collect();
    assert_eq!(order, (0..20).collect::<Vec<_>>());
}

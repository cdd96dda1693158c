//! The maintenance of the tables must not block payments.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use batzen_postgres::schema::dbinit::{DbinitOptions, dbinit};
use batzen_postgres::schema::maintain::{MaintainOptions, MaintainReport, maintain};
use batzen_postgres::schema::{HISTORY, Sql, lock_key};
use batzen_postgres::{Connection, Target};
use batzen_tables::exchange;
use batzen_testkit::postgres::fresh_database;

const DAY_US: i64 = 86_400_000_000;

fn connect(url: &str) -> Connection {
    Connection::open(&Target::parse(url).unwrap()).unwrap()
}

fn made() -> (String, Connection) {
    let url = fresh_database();
    let mut sql = connect(&url);
    dbinit(&mut sql, "exchange", exchange::ALL, &DbinitOptions::default(), &HISTORY).unwrap();
    (url, sql)
}

/// Runs maintenance on a day counted from 1970, with seven days ahead.
fn run(sql: &mut Connection, day: i64) -> MaintainReport {
    let options =
        MaintainOptions { days_ahead: 7, now_us: Some(day * DAY_US + 5), ..MaintainOptions::default() };
    maintain(sql, "exchange", exchange::ALL, &options).unwrap()
}

/// Puts an open deposit with this deadline into the queue.
fn open_deposit(sql: &mut Connection, n: u8, due: i64) {
    let key = format!("'\\x{}'", format!("{n:02x}").repeat(32));
    sql.script(&format!(
        "INSERT INTO exchange.deposits_open (due, ix_by_ready, ix_by_target, vshard, coin_pub, merchant_pub, h_contract_terms, serial)
         VALUES ({due}, '\\x01', '\\x02', {n}, {key}, {key}, {key}, {n})"
    ))
    .unwrap();
}

fn parts(sql: &mut Connection) -> BTreeSet<String> {
    let rows = sql
        .rows(
            "SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'exchange.deposits_open'::regclass",
        )
        .unwrap();
    rows.iter().map(|row| row.text(0).trim_start_matches("exchange.").to_owned()).collect()
}

/// The partition of each row in the queue, by serial.
fn places(sql: &mut Connection) -> Vec<String> {
    let rows = sql.rows("SELECT tableoid::regclass FROM exchange.deposits_open ORDER BY serial").unwrap();
    rows.iter().map(|row| row.text(0).trim_start_matches("exchange.").to_owned()).collect()
}

#[test]
fn new_schema_has_partitions_for_coming_days() {
    let (_, mut sql) = made();
    assert_eq!(parts(&mut sql).len(), 32 + 1, "a month from today, and the default partition");
    let report = maintain(&mut sql, "exchange", exchange::ALL, &MaintainOptions::default()).unwrap();
    // The day may have changed meanwhile.
    assert!(report.created.len() <= 1 && report.dropped.is_empty(), "{report:?}");
}

#[test]
fn days_are_created_ahead_and_dropped_when_empty() {
    let (_, mut sql) = made();
    // Long ago, so that today's days do not interfere.
    let first = run(&mut sql, 10_000);
    assert_eq!(first.created.len(), 8);
    assert_eq!(first.created[0], "deposits_open_d19970519");
    assert_eq!(
        run(&mut sql, 10_000),
        MaintainReport { ..MaintainReport::default() },
        "a second run does nothing"
    );
    for (n, day) in [(1, 10_000), (2, 10_003), (3, 10_009)] {
        open_deposit(&mut sql, n, day * DAY_US + 77);
    }
    open_deposit(&mut sql, 4, i64::MAX);
    assert_eq!(
        places(&mut sql),
        [
            "deposits_open_d19970519",
            "deposits_open_d19970522",
            "deposits_open_default",
            "deposits_open_default"
        ]
    );
    // Four days later: more days get partitions, empty days are dropped, and the filled one stays.
    let later = run(&mut sql, 10_004);
    assert_eq!(later.created.len(), 4);
    assert_eq!(later.dropped, ["deposits_open_d19970520", "deposits_open_d19970521"]);
    assert_eq!(
        places(&mut sql),
        [
            "deposits_open_d19970519",
            "deposits_open_d19970522",
            "deposits_open_d19970528",
            "deposits_open_default"
        ]
    );
    sql.script("DELETE FROM exchange.deposits_open WHERE serial = 1").unwrap();
    assert_eq!(run(&mut sql, 10_004).dropped, ["deposits_open_d19970519"]);
    // Every part has every index.
    let lacking = sql
        .rows(
            "SELECT i.inhrelid::regclass FROM pg_inherits i WHERE i.inhparent = 'exchange.deposits_open'::regclass
             AND (SELECT count(*) FROM pg_index x WHERE x.indrelid = i.inhrelid AND x.indisvalid) <> 2",
        )
        .unwrap();
    assert_eq!(lacking, []);
}

#[test]
fn payments_do_not_wait_for_maintenance() {
    let (url, mut sql) = made();
    run(&mut sql, 10_000);
    let mut payer = connect(&url);
    payer.script("BEGIN").unwrap();
    open_deposit(&mut payer, 1, 10_003 * DAY_US);
    open_deposit(&mut payer, 2, i64::MAX);
    // While the payment's transaction is open, no day can be dropped or created.
    let begin = Instant::now();
    let report = run(&mut sql, 10_003);
    assert!(report.created.is_empty() && report.dropped.is_empty(), "{report:?}");
    assert_eq!(report.postponed.len(), 3 + 2);
    // Each attempt waits for at most 50 ms. The bound leaves room for slow machines.
    assert!(begin.elapsed() < Duration::from_secs(60));
    // No payment waits longer behind it, and no lock is left.
    open_deposit(&mut connect(&url), 3, 10_003 * DAY_US);
    payer.script("COMMIT").unwrap();
    let report = run(&mut sql, 10_003);
    assert_eq!((report.created.len(), report.dropped.len(), report.postponed.len()), (3, 2, 0));
    assert_eq!(places(&mut sql).len(), 3, "nothing is lost");
}

#[test]
fn only_one_process_maintains_at_a_time() {
    let (url, mut sql) = made();
    let mut other = connect(&url);
    let key = lock_key("exchange maintenance");
    other.rows(&format!("SELECT pg_advisory_lock({key})")).unwrap();
    assert!(run(&mut sql, 10_000).elsewhere);
    other.rows(&format!("SELECT pg_advisory_unlock({key})")).unwrap();
    assert!(!run(&mut sql, 10_000).elsewhere);
}

#[test]
fn partitioned_tables_are_analysed_and_old_writers_deleted() {
    let (_, mut sql) = made();
    sql.script(
        "INSERT INTO exchange.writers (epoch, batch, node, seen) VALUES (1, 1, 'old', now() - interval '2 days'), (1, 1, 'new', now())",
    )
    .unwrap();
    for n in 0..50 {
        open_deposit(&mut sql, n, i64::MAX);
    }
    sql.script("SELECT pg_stat_force_next_flush()").unwrap();
    // The server counts rows when the session is idle.
    let until = Instant::now() + Duration::from_secs(30);
    let analyzed = loop {
        let report = run(&mut sql, 10_000);
        if report.writers_removed > 0 {
            assert_eq!(report.writers_removed, 1);
        }
        if !report.analyzed.is_empty() || Instant::now() > until {
            break report.analyzed;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(analyzed, ["deposits_open"]);
    let row =
        sql.row("SELECT reltuples FROM pg_class WHERE oid = 'exchange.deposits_open'::regclass").unwrap();
    assert_eq!(row.unwrap().text(0), "50");
    let left = sql.rows("SELECT node FROM exchange.writers").unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].text(0), "new");
}

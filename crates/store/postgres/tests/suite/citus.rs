//! Checks by its form that the schema is ready for Citus.

use batzen_postgres::schema::citus::{self, Placement};
use batzen_postgres::schema::dbinit::{DbinitOptions, dbinit};
use batzen_postgres::schema::{self, HISTORY, Sql};
use batzen_postgres::{Connection, Layout, Target};
use batzen_tables::exchange;
use batzen_testkit::postgres::fresh_database;
use batzen_testkit::process::PATIENCE;

fn layouts(partitions: u16) -> Vec<Layout> {
    exchange::ALL.iter().map(|table| Layout::new(table, "exchange", partitions).unwrap()).collect()
}

fn made(partitions: u16) -> Connection {
    // Many tables are made in one statement, on a machine that may be busy.
    let target = Target::parse(&fresh_database()).unwrap().timeout(PATIENCE);
    let mut sql = Connection::open(&target).unwrap();
    let options = DbinitOptions { partitions: Some(partitions), ..DbinitOptions::default() };
    dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap();
    sql
}

/// The hot tables of the design, which are on the path of a payment or a withdrawal.
const HOT: &[&str] = &[
    "reserves",
    "withdrawals",
    "coins",
    "deposits",
    "deposits_open",
    "refunds",
    "melts",
    "melt_by_rc",
    "reveals",
    "cs_nonces",
];

#[test]
fn every_hot_table_is_distributed_by_its_shard() {
    let placements = citus::placements(&layouts(0));
    for table in HOT {
        let placement = placements.iter().find(|(name, _)| name == table).map(|(_, placement)| *placement);
        assert_eq!(placement, Some(Placement::Distributed("vshard")), "{table}");
    }
    // One table comes first; all others distributed by the same column are co-located with it.
    let first = placements.iter().find(|(_, p)| *p == Placement::Distributed("vshard")).unwrap();
    let text = citus::place_table("exchange", "coins", Placement::Distributed("vshard"), Some(&first.0));
    assert_eq!(
        text,
        "SELECT create_distributed_table('\"exchange\".\"coins\"', 'vshard', colocate_with => '\"exchange\".\"shard_writers\"')"
    );
    for table in ["denominations", "wire_fees", "counters", "meta"] {
        assert!(placements.contains(&(table.to_owned(), Placement::Reference)), "{table}");
    }
}

#[test]
fn the_distribution_column_is_in_every_key_and_no_row_refers_to_another() {
    let mut sql = made(0);
    let placements = citus::placements(&layouts(0));
    let rows = sql
        .rows(
            "SELECT c.relname, i.relname, coalesce(string_agg(a.attname, ','), '') FROM pg_index x
             JOIN pg_class c ON c.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'exchange'
             LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (x.indkey)
             WHERE x.indisunique OR x.indisexclusion GROUP BY 1, 2",
        )
        .unwrap();
    assert!(rows.len() >= exchange::ALL.len());
    for row in rows {
        let Some((_, placement)) = placements.iter().find(|(name, _)| name == row.text(0)) else {
            panic!("{} has no place", row.text(0));
        };
        if let Placement::Distributed(column) = placement {
            assert!(row.text(2).split(',').any(|name| name == *column), "{row:?}");
        }
    }
    let foreign = "SELECT conname FROM pg_constraint WHERE contype IN ('f', 'x', 't') AND connamespace = 'exchange'::regnamespace";
    assert_eq!(sql.rows(foreign).unwrap(), []);
    let triggers = "SELECT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = 'exchange'::regnamespace";
    assert_eq!(sql.rows(triggers).unwrap(), []);
}

#[test]
fn sixty_four_parts_share_every_hot_table() {
    let mut sql = made(64);
    let rows = sql
        .rows(
            "SELECT p.relname, count(*) FROM pg_inherits h JOIN pg_class p ON p.oid = h.inhparent
             JOIN pg_namespace n ON n.oid = p.relnamespace AND n.nspname = 'exchange' WHERE p.relkind = 'p' GROUP BY 1",
        )
        .unwrap();
    for table in HOT.iter().filter(|table| **table != "deposits_open") {
        let parts = rows.iter().find(|row| row.text(0) == *table).map(|row| row.number(1));
        assert_eq!(parts, Some(64), "{table}");
    }
    // A row that no part accepts would be refused.
    sql.script(
        "INSERT INTO exchange.melt_by_rc (vshard, rc, coin_pub, serial, version)
         SELECT n, sha512(n::text::bytea), sha256(n::text::bytea), n, 0 FROM generate_series(0, 1023) AS n",
    )
    .unwrap();
    let rows = sql.rows("SELECT count(*) FROM exchange.melt_by_rc GROUP BY tableoid ORDER BY 1").unwrap();
    assert!(rows.len() == 64 && rows.iter().all(|row| row.number(0) == 16));
    // Drops thousands of tables and indexes with the default number of locks.
    let options = DbinitOptions { partitions: Some(0), reset: true, ..DbinitOptions::default() };
    dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap();
    assert_eq!(schema::check(&mut sql, "exchange", exchange::ALL).unwrap().partitions, 0);
}

#[test]
fn without_the_extension_dbinit_says_what_to_type() {
    let mut sql = made(0);
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    let error = dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap_err();
    assert!(error.to_string().contains("CREATE EXTENSION citus"), "{error}");
}

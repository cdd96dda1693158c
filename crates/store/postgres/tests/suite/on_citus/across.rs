//! Commits over several shards, straight at their nodes: what a process leaves behind that is killed in between.

use std::time::{Duration, Instant};

use batzen_postgres::schema::dbinit::dbinit;
use batzen_postgres::schema::maintain::{MaintainOptions, maintain};
use batzen_postgres::schema::{DbinitOptions, HISTORY, Sql};
use batzen_postgres::{Connection, PgOptions};
use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::{ChangeSet, CommitOutcome, StoreError, Table};

use super::{schema, url};
use crate::common::{connect, open, through};

/// A shard, with a session at its node.
struct Shard {
    vshard: i64,
    clock: String,
    node: Connection,
}

/// Two shards on different nodes.
fn shards(url: &str, options: &PgOptions) -> [Shard; 2] {
    let clocks = format!("{}.shard_clocks", options.schema);
    let text = format!(
        "SELECT DISTINCT ON (n.nodeport) n.nodeport, s.id, v FROM generate_series(0, 63) v
         CROSS JOIN LATERAL (SELECT get_shard_id_for_distribution_column('{clocks}', v::smallint) AS id) s
         JOIN pg_dist_placement p ON p.shardid = s.id JOIN pg_dist_node n USING (groupid) ORDER BY n.nodeport"
    );
    let rows = connect(url).rows(&text).unwrap();
    let shard = |row: &batzen_postgres::schema::Row| Shard {
        vshard: row.number(2),
        clock: format!("{clocks}_{}", row.number(1)),
        node: connect(&through(url, |_| u16::try_from(row.number(0)).unwrap())),
    };
    let shards: Vec<Shard> = rows.iter().map(shard).collect();
    shards.try_into().ok().expect("two nodes have shards")
}

impl Shard {
    /// The number of the clock.
    fn number(&mut self) -> i64 {
        let text = format!("SELECT number FROM {} WHERE vshard = {}", self.clock, self.vshard);
        self.node.row(&text).unwrap().unwrap().number(0)
    }

    /// Prepares a part of a commit, as a store does.
    fn prepare(&mut self, name: &str, more: i64) {
        let (clock, vshard) = (&self.clock, self.vshard);
        let text = format!(
            "SET citus.enable_manual_changes_to_shards = on; BEGIN; \
             UPDATE {clock} SET number = number + {more} WHERE vshard = {vshard}; PREPARE TRANSACTION '{name}'"
        );
        self.node.script(&text).unwrap();
    }

    fn has_prepared(&mut self, schema: &str) -> bool {
        let text =
            format!("SELECT count(*) FROM pg_prepared_xacts WHERE starts_with(gid, 'batzen:{schema}:')");
        self.node.row(&text).unwrap().unwrap().number(0) > 0
    }
}

/// A writer whose last commit at its home is this batch.
fn add_writer(url: &str, options: &PgOptions, vshard: i64, batch: i64) {
    let text = format!(
        "INSERT INTO {}.shard_writers (vshard, writer_id, epoch, batch, node, seen) VALUES ({vshard}, 777, 1, {batch}, 'gone', now())",
        options.schema
    );
    connect(url).script(&text).unwrap();
}

/// A part is committed if its commit was decided at its home, and undone otherwise. A process that is alive does that.
#[test]
fn a_process_ends_what_another_has_prepared() {
    let Some(url) = url() else { return };
    for (batch, is_decided) in [(5, true), (6, false)] {
        let Some(options) = schema(TABLES) else { return };
        let [home, mut other] = shards(url, &options);
        add_writer(url, &options, home.vshard, 5);
        let before = other.number();
        other.prepare(&format!("batzen:{}:{}:777:{batch}", options.schema, home.vshard), 100);
        assert_eq!(other.number(), before, "it is prepared only");
        let store = open(&options);
        let until = Instant::now() + Duration::from_secs(60);
        while other.has_prepared(&options.schema) {
            assert!(Instant::now() < until, "nobody ends it");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(other.number(), before + if is_decided { 100 } else { 0 });
        drop(store);
    }
}

/// A service that starts, or an operator, may run dbinit while something is prepared that nobody ends: it would wait for ever.
#[test]
fn dbinit_without_changes_ends_what_was_prepared() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let [home, mut other] = shards(url, &options);
    add_writer(url, &options, home.vshard, 5);
    let before = other.number();
    other.prepare(&format!("batzen:{}:{}:777:5", options.schema, home.vshard), 100);
    let report =
        dbinit(&mut connect(url), &options.schema, TABLES, &DbinitOptions::default(), &HISTORY).unwrap();
    assert_eq!(report.actions, [""; 0]);
    assert!(!other.has_prepared(&options.schema));
    assert_eq!(other.number(), before + 100);
}

/// Before dbinit removes writers, it ends what was prepared: their rows say how. What it cannot end stays, with an error.
#[test]
fn dbinit_ends_what_was_prepared() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let again = |sql: &mut Connection| {
        let reset = DbinitOptions { citus: true, reset: true, ..DbinitOptions::default() };
        dbinit(sql, &options.schema, TABLES, &reset, &HISTORY)
    };
    let [home, mut other] = shards(url, &options);
    let mut sql = connect(url);
    other.prepare(&format!("batzen:{}:{}:777:5", options.schema, home.vshard), 100);
    let error = again(&mut sql).unwrap_err();
    assert!(error.to_string().contains("is unknown"), "{error}");
    assert!(other.has_prepared(&options.schema));
    add_writer(url, &options, home.vshard, 5);
    again(&mut sql).unwrap();
    assert!(!other.has_prepared(&options.schema));
}

/// Something is always prepared under load. That does not keep the rows of writers that are gone.
#[test]
fn what_is_under_way_does_not_keep_old_writers() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let [home, mut other] = shards(url, &options);
    add_writer(url, &options, home.vshard, 5);
    let mut sql = connect(url);
    sql.script(&format!("UPDATE {}.shard_writers SET seen = now() - interval '2 days'", options.schema))
        .unwrap();
    let name = format!("batzen:{}:{}:778:1", options.schema, home.vshard);
    other.prepare(&name, 100);
    let report = maintain(&mut sql, &options.schema, TABLES, &MaintainOptions::default()).unwrap();
    other.node.script(&format!("ROLLBACK PREPARED '{name}'")).unwrap();
    assert_eq!(report.writers_removed, 1);
}

/// One node has no space left: nothing of a commit stays on any node, prepared or not, and the next one succeeds once there is
/// space.
#[test]
fn a_full_node_leaves_nothing_of_a_commit() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let mut all = ChangeSet::new();
    (0..100).for_each(|n| all.insert::<Items>(&key(n, n), &row("x", None)));
    for mut full in shards(url, &options) {
        // As a failing write, on the tables of all shards of the node.
        let (schema, table) = (&options.schema, Items::DEF.name);
        // Citus hides the tables of shards.
        full.node.script("SET citus.override_table_visibility = off").unwrap();
        let tables = full
            .node
            .rows(&format!(
                "SELECT c.relname FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'r'
                 AND c.relname ~ '^{table}_[0-9]+$'"
            ))
            .unwrap();
        assert_eq!(tables.len(), 2, "two shards on each node");
        let each = |sql: &mut Connection, text: &dyn Fn(&str) -> String| {
            tables.iter().for_each(|table| sql.script(&text(table.text(0))).unwrap());
        };
        full.node
            .script(&format!(
                "SET citus.enable_ddl_propagation = off; SET citus.enable_manual_changes_to_shards = on;
                 CREATE OR REPLACE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$"
            ))
            .unwrap();
        each(&mut full.node, &|table| {
            format!(
                "CREATE TRIGGER no_space BEFORE INSERT ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION {schema}.full()"
            )
        });
        let told = store.commit(&all);
        assert!(matches!(told, Err(StoreError::Full(_))), "{told:?}");
        assert!(!shards(url, &options).iter_mut().any(|shard| shard.has_prepared(schema)));
        assert_eq!(store.count::<Items>().unwrap(), 0);
        each(&mut full.node, &|table| format!("DROP TRIGGER no_space ON {schema}.{table}"));
    }
    assert_eq!(store.commit(&all).unwrap(), CommitOutcome::Committed);
    assert_eq!(store.count::<Items>().unwrap(), 100);
}

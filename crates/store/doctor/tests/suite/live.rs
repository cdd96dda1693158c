//! The doctor on real servers: it reports the problems, and nothing else.

use std::process::Child;
use std::time::Duration;

use batzen_doctor::findings::{Finding, Limits, Severity};
use batzen_doctor::report::{self, Style};
use batzen_doctor::{Examination, Options, tuning};
use batzen_postgres::{Connection, Target};
use batzen_testkit::postgres::{Cluster, ClusterOptions, Installation, Mode, fresh_database, shared};

/// Rules that depend on the disk of the test machine.
const OF_THE_DISK: [&str; 2] = ["disk_space", "sync_latency"];

fn options(url: &str) -> Options {
    Options { sample: Duration::from_millis(300), ..Options::new(url) }
}

/// Options with which everything counts as long at once.
fn strict(url: &str) -> Options {
    Options { limits: Limits { long: 0.0, lock_wait: 0.0 }, ..options(url) }
}

fn look(options: &Options) -> Examination {
    batzen_doctor::examine(options).unwrap_or_else(|error| panic!("{error}"))
}

fn of<'a>(examination: &'a Examination, rule: &str) -> Vec<&'a Finding> {
    let is_bad = |finding: &&Finding| finding.rule == rule && finding.severity > Severity::Ok;
    examination.findings.iter().filter(is_bad).collect()
}

fn worst_beside_the_disk(examination: &Examination) -> Severity {
    let of_the_server = |finding: &&Finding| !OF_THE_DISK.contains(&finding.rule.as_str());
    let severities = examination.findings.iter().filter(of_the_server).map(|finding| finding.severity);
    severities.max().unwrap_or(Severity::Ok)
}

fn connect(url: &str) -> Connection {
    Connection::open(&Target::parse(url).unwrap()).unwrap()
}

fn name(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

/// A pgbench load of payments, until dropped.
struct Load(Child);

impl Load {
    fn start(url: &str) -> Self {
        let mut command = Installation::find().unwrap().command("pgbench");
        command.args(["-n", "-c", "4", "-M", "prepared", "-T", "600", url]);
        Self(command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fill(url: &str, scale: u32) {
    let mut command = Installation::find().unwrap().command("pgbench");
    let status = command.args(["-i", "-q", "-F", "80", "-s", &scale.to_string(), url]).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
}

/// Default settings under load, then the doctor's advice: it reports the small cache, and nothing after the
/// restart.
#[test]
fn default_server_has_findings_and_a_tuned_one_has_none() {
    const GB: u64 = 1 << 30;
    let mut cluster =
        Cluster::start(&ClusterOptions { is_small: false, ..ClusterOptions::default() }).unwrap();
    let url = cluster.create_database("money").unwrap();
    fill(&url, 20);
    let told = |url: &str| Options {
        memory: Some(2 * GB),
        cores: Some(2),
        sample: Duration::from_secs(3),
        ..Options::new(url)
    };

    let load = Load::start(&url);
    let before = look(&told(&url));
    drop(load);
    let named = of(&before, "shared_buffers");
    assert_eq!(named.len(), 1, "{:#?}", before.findings);
    assert_eq!(named[0].severity, Severity::Warning);
    assert!(named[0].measured.contains("128 MB"), "{named:?}");
    assert_eq!(named[0].remedy, ["ALTER SYSTEM SET shared_buffers = '512MB';   -- then restart the server"]);
    assert_eq!(worst_beside_the_disk(&before), Severity::Warning, "{:#?}", before.findings);
    assert!(before.facts.rates().transactions > 0.0);

    let fragment = tuning::fragment(&before.facts, &before.tuning);
    assert!(fragment.contains("shared_buffers = 512MB"), "{fragment}");
    cluster.stop(Mode::Fast).unwrap();
    let file = cluster.data_dir().join("postgresql.conf");
    let own = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, own + &fragment).unwrap();
    cluster.start_again().unwrap();
    let url = cluster.url("money");
    cluster
        .sql(
            "money",
            "SELECT count(*) FROM pgbench_accounts; SELECT sum(aid) FROM pgbench_accounts WHERE aid > 0",
        )
        .unwrap();
    cluster.sql("money", "SELECT pg_stat_reset(), pg_stat_reset_shared('bgwriter')").unwrap();
    cluster.sql("money", "VACUUM ANALYZE").unwrap();

    let _load = Load::start(&url);
    let after = look(&told(&url));
    let left: Vec<_> = after
        .findings
        .iter()
        .filter(|finding| finding.severity > Severity::Ok && !OF_THE_DISK.contains(&finding.rule.as_str()))
        .collect();
    assert!(left.is_empty(), "{left:#?}");
    assert!(after.facts.rates().transactions > 0.0);
    assert_eq!(after.facts.settings.bytes("shared_buffers"), Some(GB / 2));
    let text = report::text(&after, Style::default());
    assert!(text.contains("shared_buffers fits the machine"), "{text}");
}

#[test]
fn server_without_sync_is_critical() {
    // The shared cluster of the tests does not sync.
    let examination = look(&options(&fresh_database()));
    assert_eq!(examination.severity, Severity::Critical);
    let finding = of(&examination, "fsync")[0];
    assert_eq!(finding.remedy, ["ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"]);
    let text = report::text(&examination, Style { colours: true });
    assert!(text.contains("\u{1b}[31m\u{1b}[1mfsync is off"), "danger is red: {text}");
    assert!(!report::text(&examination, Style::default()).contains('\u{1b}'));
}

#[test]
fn lock_waits_are_a_tree_with_the_command_that_ends_them() {
    let url = fresh_database();
    let mut first = connect(&url);
    first
        .script("CREATE TABLE purse (id int PRIMARY KEY, coins int); INSERT INTO purse VALUES (1, 5)")
        .unwrap();
    let pid = first.process_id();
    first.script("BEGIN; UPDATE purse SET coins = 4").unwrap();
    let mut second = connect(&url);
    let waiting = second.process_id();
    let waits = std::thread::spawn(move || second.script("UPDATE purse SET coins = 3"));

    let examination = loop {
        let examination = look(&strict(&url));
        if examination.facts.sessions.iter().any(|session| session.blocked_by == [pid]) {
            break examination;
        }
    };
    let finding = of(&examination, "lock_waits")
        .into_iter()
        .find(|finding| finding.title.contains(&format!("pid {pid} ")))
        .unwrap_or_else(|| panic!("{:#?}", examination.findings));
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(finding.remedy, [format!("SELECT pg_terminate_backend({pid});")]);
    assert!(finding.measured.contains("UPDATE purse SET coins = 4"), "{finding:?}");
    let text = report::text(&examination, Style::default());
    assert!(text.contains(&format!("└─ pid {waiting}")), "{text}");
    let idle = of(&examination, "idle_in_transaction");
    assert!(idle.iter().any(|finding| finding.title.contains(&format!("pid {pid} "))), "{idle:?}");

    // The suggested command must help.
    connect(&url).script(&finding.remedy[0]).unwrap();
    waits.join().unwrap().unwrap();
}

#[test]
fn dead_rows_and_unused_and_redundant_indexes_are_reported() {
    let url = fresh_database();
    let database = name(&url);
    let sql = |text: &str| shared().sql(database, text).unwrap();
    sql("CREATE TABLE coins (id int PRIMARY KEY, owner int, note text) WITH (autovacuum_enabled = false);
        INSERT INTO coins SELECT n, n, repeat('x', 50) FROM generate_series(1, 100000) n;
        CREATE INDEX coins_note ON coins (note, id); CREATE INDEX coins_owner ON coins (owner);
        CREATE INDEX coins_again ON coins (owner); ANALYZE coins");
    sql("UPDATE coins SET owner = owner + 1");
    sql("SET enable_seqscan = off; SET enable_bitmapscan = off;
        DO $$ BEGIN FOR n IN 1..10000 LOOP PERFORM FROM coins WHERE id = n; END LOOP; END $$");
    let examination = look(&options(&url));
    let dead = of(&examination, "dead_rows");
    assert_eq!(dead.len(), 1, "{:#?}", examination.findings);
    assert!(dead[0].measured.contains("100,000 dead rows"), "{dead:?}");
    assert!(
        dead[0].remedy.contains(&"ALTER TABLE public.coins RESET (autovacuum_enabled);".to_owned()),
        "{dead:?}"
    );
    let unused = of(&examination, "unused_index");
    assert!(
        unused.iter().any(|finding| finding.remedy == ["DROP INDEX CONCURRENTLY public.coins_note;"]),
        "{unused:?}"
    );
    assert_eq!(of(&examination, "doubled_index").len(), 1);
    assert!(
        of(&examination, "stale_statistics").len() == 1,
        "all rows have changed: {:#?}",
        examination.findings
    );
    // The suggested SQL must work and help.
    for line in examination
        .findings
        .iter()
        .filter(|finding| finding.rule == "dead_rows")
        .flat_map(|finding| &finding.remedy)
    {
        sql(line.split("--").next().unwrap());
    }
    assert!(of(&look(&options(&url)), "dead_rows").is_empty());
}

#[test]
fn sequential_scans_of_large_tables_are_reported() {
    let url = fresh_database();
    let sql = |text: &str| shared().sql(name(&url), text).unwrap();
    sql("CREATE TABLE deposits (id int PRIMARY KEY, shop int, note text);
        INSERT INTO deposits SELECT n, n % 7, repeat('x', 100) FROM generate_series(1, 100000) n; ANALYZE deposits");
    sql("SET max_parallel_workers_per_gather = 0;
        DO $$ BEGIN FOR n IN 1..30 LOOP PERFORM count(*) FROM deposits WHERE shop = n; END LOOP; END $$");
    let examination = look(&options(&url));
    let found = of(&examination, "whole_table_reads");
    assert_eq!(found.len(), 1, "{:#?}", examination.findings);
    assert!(found[0].measured.contains("100,000 rows, "), "{found:?}");
}

#[test]
fn unprivileged_role_gets_gaps_and_no_failure() {
    let url = fresh_database();
    let role = format!("guest_{}", name(&url));
    shared()
        .sql(name(&url), &format!("CREATE ROLE {role} LOGIN PASSWORD 'guest'; CREATE TABLE t (x int)"))
        .unwrap();
    let guest = format!("postgres://{role}:guest@127.0.0.1:{}/{}", shared().port(), name(&url));
    let examination = look(&options(&guest));
    let gaps = &examination.facts.gaps;
    let others = gaps.iter().find(|gap| gap.what.contains("sessions of other roles")).unwrap();
    assert!(others.remedy.as_deref().unwrap().starts_with("GRANT pg_monitor TO"), "{others:?}");
    assert!(gaps.iter().any(|gap| gap.what.contains("disk that holds the data")), "{gaps:?}");
    assert_eq!(of(&examination, "fsync").len(), 1, "settings are for everybody");
    assert!(examination.facts.tables.iter().any(|table| table.name == "t"));
    assert!(report::text(&examination, Style::default()).contains("Not looked at"));
    // The suggested command closes the gap.
    shared().sql(name(&url), &format!("GRANT pg_monitor TO {role}")).unwrap();
    let gaps = look(&options(&guest)).facts.gaps;
    assert!(!gaps.iter().any(|gap| gap.what.contains("sessions of other roles")), "{gaps:?}");
}

#[test]
fn locked_table_does_not_block_the_doctor() {
    let url = fresh_database();
    let mut other = connect(&url);
    other.script("CREATE TABLE t (x int PRIMARY KEY); INSERT INTO t VALUES (1)").unwrap();
    other.script("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE").unwrap();
    let examination = look(&options(&url));
    assert!(examination.facts.tables.iter().any(|table| table.name == "t"), "{:?}", examination.facts.gaps);
    assert!(
        examination.facts.indexes.iter().any(|index| index.name == "t_pkey"),
        "{:?}",
        examination.facts.gaps
    );
}

#[test]
fn standbys_slots_and_statements_are_read() {
    let cluster = Cluster::start(
        &ClusterOptions::default()
            .set("shared_preload_libraries", "pg_stat_statements")
            .set("max_prepared_transactions", "4"),
    )
    .unwrap();
    let url = cluster.create_database("money").unwrap();
    cluster.sql("money", "CREATE EXTENSION pg_stat_statements").unwrap();
    cluster.sql("money", "SELECT pg_create_physical_replication_slot('forgotten', true)").unwrap();
    cluster.sql("money", "BEGIN; CREATE TABLE t (x int); PREPARE TRANSACTION 'half'").unwrap();
    let standby = cluster.standby("second", false).unwrap();
    let examination = look(&options(&url));
    assert_eq!(examination.facts.stream.standbys.len(), 1, "{:?}", examination.facts.gaps);
    assert_eq!(of(&examination, "inactive_slot").len(), 1, "{:#?}", examination.findings);
    assert_eq!(examination.facts.stream.prepared[0].name, "half");
    assert!(
        examination
            .facts
            .statements
            .as_ref()
            .unwrap()
            .iter()
            .any(|one| one.query.contains("PREPARE TRANSACTION"))
    );
    assert!(report::text(&examination, Style::default()).contains("Statements, by time"));

    let there = look(&options(&standby.url("money")));
    assert!(there.facts.server.in_recovery);
    assert_eq!(there.facts.gaps, examination.facts.gaps, "a standby is read like its primary");
}

#[test]
fn unreachable_address_is_one_clear_line() {
    for (url, words) in [
        ("postgres://127.0.0.1:1/money", "refused"),
        ("postgres:/", "address"),
        ("host=/nonexistent user=nobody", "no connection"),
    ] {
        let error = batzen_doctor::examine(&options(url)).err().unwrap().to_string();
        assert!(error.contains(words) && error.lines().count() == 1, "{url}: {error}");
    }
    let wrong = fresh_database().replace("/test_", "/missing_");
    let error = batzen_doctor::examine(&options(&wrong)).err().unwrap().to_string();
    assert!(error.contains("does not exist"), "{error}");
}

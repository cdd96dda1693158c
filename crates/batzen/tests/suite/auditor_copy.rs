//! The auditor's copy is in a database of the auditor's own: it follows an exchange, through its stream or its database,
//! while everybody is killed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use batzen_protocol::{Money, Timestamp};
use batzen_service::storage::StoreConfig;
use batzen_store::{ChangeSet, CommitOutcome, Store};
use batzen_tables::exchange::{AUDITED, DepositRow, Deposits};
use batzen_testkit::postgres::{Cluster, ClusterOptions, fresh_database};
use serde_json::Value;
use tokio::task::{JoinSet, block_in_place};

use crate::auditor_database::{auditor, json};
use crate::common::setup::{ask, wait_for};
use crate::common::{self, PATIENCE, Service, free_port, stderr, stdout};
use crate::crash::customers::Load;
use crate::crash::deployment::Deployment;
use crate::crash::run::{self, cycles, watch};
use crate::crash_auditor::watch_payments;

const CUSTOMERS: usize = 4;
/// The auditor's database on a server of its own.
const AUDIT: &str = "audit";

/// Writes the auditor's configuration, and returns its path. `more`: where the rows are, and how the exchange is followed.
async fn configure(deployment: &Deployment, more: &str) -> String {
    let url = deployment.exchange_url();
    let keys: Value = run::client().get_json(format!("{url}keys")).await.unwrap().ok().unwrap();
    let (config, home) = (deployment.path("auditor.conf"), deployment.path("auditor"));
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n[paths]\nTALER_DATA_HOME = {home}\n\
         [exchange]\nBASE_URL = {url}\nMASTER_PUBLIC_KEY = {}\n{more}",
        keys["master_public_key"].as_str().unwrap(),
    );
    std::fs::write(&config, text).unwrap();
    config
}

/// Runs a command that must succeed.
#[track_caller]
fn must(config: &str, words: &[&str]) -> String {
    let output = auditor(config, words);
    assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output) + &stderr(&output)
}

/// Runs a command that must fail, and returns why it did.
#[track_caller]
fn refused(config: &str, words: &[&str]) -> String {
    let output = auditor(config, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {}{}", stdout(&output), stderr(&output));
    stderr(&output)
}

fn start_sync(deployment: &Deployment, config: &str) -> Service {
    Service::start(Path::new(&deployment.path("")), "auditor", &["auditor", "sync", "-c", config])
}

/// Checks that increments equal a check of all rows.
#[track_caller]
fn increments_equal_the_whole(config: &str) {
    let [followed, whole] =
        [json(config, 0, &["run", "--no-bank"]), json(config, 0, &["run", "--no-bank", "--whole"])];
    for member in ["ok", "sheet", "denominations", "purses_open", "overdue", "difference"] {
        assert_eq!(followed[member], whole[member], "{member}");
    }
}

/// The rules of all findings.
fn rules(report: &Value) -> Vec<&str> {
    let stories = report["tracked"].as_array().unwrap();
    stories.iter().map(|story| story["rule"].as_str().unwrap()).collect()
}

fn rows(store: &Store) -> BTreeMap<(u16, Vec<u8>), Vec<u8>> {
    let mut rows = BTreeMap::new();
    for table in AUDITED {
        let visit = &mut |record: batzen_store::RawRecord| {
            rows.insert((table.id, record.key), record.row);
            ControlFlow::Continue(())
        };
        store.backend().scan(table, visit).unwrap();
    }
    store.close().unwrap();
    rows
}

/// Takes a hundredth off a deposit, as somebody with access to the exchange's store could.
pub(crate) fn tamper(store: &Store) {
    let found = store.all::<Deposits>().unwrap().into_iter().next().unwrap();
    let amount = found.row.amount.checked_sub(Money::from_units(1_000_000).unwrap()).unwrap();
    let mut changes = ChangeSet::new();
    changes.update::<Deposits>(&found.key, &found.row, &DepositRow { amount, ..found.row.clone() });
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    store.close().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_a_database_survives_kills_of_auditor_exchange_and_server() {
    let mut dice = run::dice();
    let options = ClusterOptions::unsynced();
    let mut server = block_in_place(|| Cluster::start(&options).unwrap());
    let database = block_in_place(|| server.create_database(AUDIT).unwrap());
    let mut deployment = Deployment::new(run::client());
    let keygen = |file: &str| common::must(&["signer", "keygen", &deployment.path(file)]).trim().to_owned();
    let (exchange_pub, auditor_pub) = (keygen("exchange-feed.key"), keygen("auditor.key"));
    let socket = deployment.path("feed.sock");
    deployment.configure(&format!(
        "[exchange-feed]\nLISTEN = unix://{socket}\nKEY_FILE = {}\nAUDITORS = {auditor_pub}\n",
        deployment.path("exchange-feed.key")
    ));
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let more = format!(
        "[auditor]\nDB = postgres\n[auditordb-postgres]\nCONFIG = {database}\n\
         [auditor-feed]\nEXCHANGE = unix://{socket}\nEXCHANGE_KEY = {exchange_pub}\nKEY_FILE = {}\n",
        deployment.path("auditor.key")
    );
    let config = configure(&deployment, &more).await;
    // One command makes everything that the auditor needs.
    must(&config, &["init"]);
    for table in ["auditor.exchanges", "auditor_copy.feed_position", "auditor_copy.coins"] {
        let found = server.sql(AUDIT, &format!("SELECT count(*) FROM {table}")).unwrap();
        assert_eq!(found.trim(), "0", "{table}");
    }
    must(&config, &["dbinit"]);
    for words in [&["run", "--no-bank"][..], &["report"]] {
        let why = refused(&config, words);
        assert!(why.contains("the copy is empty"), "{words:?}: {why}");
    }

    let mut following = start_sync(&deployment, &config);
    let load = Arc::new(Load::new(run::client(), &deployment.exchange_url(), &deployment.bank_url()).await);
    let mut customers = JoinSet::new();
    for _ in 0..CUSTOMERS {
        customers.spawn(Arc::clone(&load).customer(dice.child()));
    }
    watch_payments(&mut deployment, &load, &mut customers).await;
    // The first check of all rows ends before anything is killed.
    let deadline = Instant::now() + PATIENCE;
    while server.sql(AUDIT, "SELECT count(*) FROM auditor_copy.audit_state").unwrap().trim() == "0" {
        assert!(Instant::now() < deadline, "the rows are not checked");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let first_kill = Timestamp::from_system_time(std::time::SystemTime::now()).as_secs().unwrap() + 1;
    for cycle in 0..cycles().max(3) {
        watch(&mut deployment, &mut customers, dice.below(1_500)).await;
        match cycle % 3 {
            0 => {
                following.kill_9();
                following = start_sync(&deployment, &config);
            }
            // The auditor waits until its server is back.
            1 => block_in_place(|| {
                server.kill9().unwrap();
                server.start_again().unwrap();
            }),
            _ => {
                deployment.kill_exchange();
                deployment.start_exchange().await;
            }
        }
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    load.end();
    while let Some(ended) = customers.join_next().await {
        ended.unwrap();
    }
    load.settle().await;
    // One process at a time follows: the one that has the lock again, if the server was killed.
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
                 WHERE locktype = 'advisory' AND granted AND application_name = 'batzen-auditor_copy'";
    let deadline = Instant::now() + PATIENCE;
    while server.sql(AUDIT, locks).unwrap().trim() == "0" {
        assert!(Instant::now() < deadline, "nobody follows");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    following.assert_runs();
    let why = refused(&config, &["sync", "--once"]);
    let expected = "schema auditor_copy of audit is in use: another process follows the exchange";
    assert!(why.contains(expected), "{why}");
    let why = refused(&config, &["dbinit", "-R", "-y"]);
    assert!(why.contains("in use"), "{why}");
    following.assert_runs();
    // If another process takes over, as it may while the server is unreachable, this one ends, also when it has nothing to store.
    let displaced = "UPDATE auditor_copy.writers SET epoch = epoch + 1; \
                     SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) \
                     WHERE locktype = 'advisory' AND granted AND application_name = 'batzen-auditor_copy'";
    server.sql(AUDIT, displaced).unwrap();
    assert!(!block_in_place(|| following.wait()).success());
    let log = std::fs::read_to_string(deployment.path("auditor.log")).unwrap();
    assert!(log.contains("batzen: the auditor's store: the store stopped"), "{log}");

    let synced = json(&config, 0, &["sync", "--once", "--compare"]);
    assert_eq!(synced["compared"]["equal"], true, "{synced:#}");
    assert_eq!((&synced["whole"], &synced["snapshots"]), (&Value::Bool(true), &Value::from(0)), "{synced:#}");
    assert_eq!(synced["checked"]["open_findings"], 0, "{synced:#}");
    assert!(synced["checked"]["rows"].as_u64().unwrap() > 100, "{synced:#}");
    let whole_at = synced["checked"]["whole"]["t_s"].as_u64().unwrap();
    assert!(whole_at <= first_kill, "all rows were checked again after a kill: {synced:#}");
    increments_equal_the_whole(&config);

    // A row that changes is found, and what people decide about it stays.
    deployment.stop();
    block_in_place(|| tamper(&deployment.exchange_store()));
    deployment.start_bank().await;
    deployment.start_exchange().await;
    json(&config, 0, &["sync", "--once"]);
    let report = json(&config, 3, &["report"]);
    for rule in ["row-rewritten", "deposit-signature"] {
        assert!(rules(&report).contains(&rule), "{rule}: {report:#}");
    }
    let id = report["tracked"][0]["id"].as_str().unwrap();
    must(&config, &["suppress", id, "--reason", "a test"]);
    assert_eq!(json(&config, 3, &["report"])["suppressed"].as_array().unwrap().len(), 1);
    // The checks start over; findings and decisions stay.
    let cleared = must(&config, &["dbinit", "-r"]);
    assert!(cleared.contains("rows of the checks are removed"), "{cleared}");
    let why = refused(&config, &["report"]);
    assert!(why.contains("run `batzen auditor run`"), "{why}");
    let again = json(&config, 3, &["run", "--no-bank"]);
    assert_eq!(again["suppressed"].as_array().unwrap().len(), 1, "{again:#}");
    assert_eq!(again["sheet"], report["sheet"]);
    let known = rules(&report).len();
    must(&config, &["reopen", id, "--reason", "it was none"]);
    let report = json(&config, 3, &["report"]);
    assert_eq!((rules(&report).len(), &report["suppressed"]), (known, &Value::from(Vec::<Value>::new())));

    // A copy that somebody changes is no longer the exchange's.
    server
        .sql(
            AUDIT,
            "UPDATE auditor_copy.deposits SET wire_deadline = wire_deadline + 1000000 \
             WHERE serial = (SELECT max(serial) FROM auditor_copy.deposits)",
        )
        .unwrap();
    let compared = json(&config, 1, &["sync", "--once", "--compare"]);
    assert_eq!(compared["compared"]["equal"], false, "{compared:#}");
    must(&config, &["dbinit", "-R", "-y"]);
    let why = refused(&config, &["run", "--no-bank"]);
    assert!(why.contains("the copy is empty"), "{why}");
    deployment.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_on_a_database_is_followed_into_another_server() {
    let mut dice = run::dice();
    let options = ClusterOptions::unsynced().set("wal_level", "logical");
    let cluster = block_in_place(|| Cluster::start(&options).unwrap());
    let database = block_in_place(fresh_database);
    let mut deployment = Deployment::on_database(run::client(), cluster, None);
    deployment.start_bank().await;
    deployment.start_exchange().await;
    common::must(&["exchange", "replication", "--setup", "--database", &deployment.database_url()]);
    let port = free_port();
    // The service keeps its own rows in a directory.
    let more = format!(
        "[auditor]\nBASE_URL = http://localhost:{port}/\nPORT = {port}\nBIND_TO = 127.0.0.1\n\
         [auditor-feed]\nEXCHANGE = {}\nDB = postgres\nCOMPARE_INTERVAL = 2 s\n\
         [auditordb-postgres]\nCONFIG = {database}\n",
        deployment.database_url(),
    );
    let config = configure(&deployment, &more).await;
    must(&config, &["init"]);
    let load = Arc::new(Load::new(run::client(), &deployment.exchange_url(), &deployment.bank_url()).await);
    let mut customers = JoinSet::new();
    for _ in 0..CUSTOMERS {
        customers.spawn(Arc::clone(&load).customer(dice.child()));
    }
    watch_payments(&mut deployment, &load, &mut customers).await;
    let mut following = start_sync(&deployment, &config);
    for _ in 0..cycles().min(6) {
        watch(&mut deployment, &mut customers, dice.below(1_500)).await;
        following.kill_9();
        following = start_sync(&deployment, &config);
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    load.end();
    while let Some(ended) = customers.join_next().await {
        ended.unwrap();
    }
    load.settle().await;
    following.assert_runs();
    assert!(following.terminate().0.success());
    deployment.stop();
    let synced = json(&config, 0, &["sync", "--once"]);
    let facts = (&synced["whole"], &synced["checked"]["open_findings"]);
    assert_eq!(facts, (&Value::Bool(true), &Value::from(0)), "{synced:#}");
    increments_equal_the_whole(&config);
    let [theirs, ours] = block_in_place(|| {
        let exchange = StoreConfig::postgres(deployment.database_url());
        let copy = StoreConfig::postgres(database.clone());
        [
            rows(&exchange.open(&batzen_service::storage::EXCHANGE, 1).unwrap()),
            rows(&copy.open(&batzen_service::storage::AUDITOR_COPY, 1).unwrap()),
        ]
    });
    assert!(theirs.len() > 100, "{} rows", theirs.len());
    assert!(theirs == ours, "the copy has {} rows, the exchange {}", ours.len(), theirs.len());

    // The service follows into it, too, and is asked by programs, which cannot open it.
    let dir = deployment.path("");
    let service = Service::start(Path::new(&dir), "auditor", &["auditor", "serve", "-c", &config]);
    block_in_place(|| wait_for(port, "/ready"));
    deployment.sql(
        "UPDATE exchange.deposits SET wire_deadline = wire_deadline + 1000000 \
         WHERE serial = (SELECT min(serial) FROM exchange.deposits)",
    );
    let deadline = Instant::now() + PATIENCE;
    while !block_in_place(|| ask(port, "GET /audit.json", "")).contains("row-rewritten") {
        assert!(Instant::now() < deadline, "the change is not found");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let report = json(&config, 3, &["report"]);
    assert!(rules(&report).contains(&"row-rewritten"), "{report:#}");
    let whole = json(&config, 3, &["run", "--whole"]);
    assert_eq!(rules(&whole), rules(&report));
    assert_ne!(whole["checked_all"], report["checked_all"]);
    assert!(block_in_place(|| service.terminate()).0.success());
    assert_eq!(rules(&json(&config, 3, &["report"])), rules(&report));

    // Without its slot it copies again, and compares.
    must(&config, &["sync", "--drop-slot"]);
    deployment.sql("UPDATE exchange.reserves_in SET time = time + 1000000 WHERE serial = (SELECT max(serial) FROM exchange.reserves_in)");
    let again = json(&config, 0, &["sync", "--once"]);
    assert_eq!((&again["whole"], &again["snapshots"]), (&Value::Bool(true), &Value::from(2)), "{again:#}");
    let report = json(&config, 3, &["report"]);
    let rewritten = rules(&report).into_iter().filter(|rule| *rule == "row-rewritten").count();
    assert_eq!(rewritten, 2, "{report:#}");
}

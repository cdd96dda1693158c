//! The auditor's copy is in a database of the auditor's own: it follows an exchange, through its stream or its database,
//! while everybody is killed.

use batzen_protocol::Timestamp;
use batzen_service::storage::StoreConfig;
use batzen_testkit::postgres::{Cluster, ClusterOptions, fresh_database};
use serde_json::Value;
use tokio::task::block_in_place;

use crate::common::setup::{ask, wait_for};
use crate::common::{self, free_port, until};
use crate::crash::audit::{
    configure, increments_equal_the_whole, json, must, refused, rows, rules, start, stream, tamper,
};
use crate::crash::deployment::Deployment;
use crate::crash::run::{self, cycles, watch, watch_payments};

const CUSTOMERS: usize = 4;
/// The auditor's database on a server of its own.
const AUDIT: &str = "audit";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_a_database_survives_kills_of_auditor_exchange_and_server() {
    let mut dice = run::dice();
    let options = ClusterOptions::unsynced();
    let mut server = block_in_place(|| Cluster::start(&options).unwrap());
    let database = block_in_place(|| server.create_database(AUDIT).unwrap());
    let mut deployment = Deployment::new(run::client());
    let [exchange, source] = stream(&deployment);
    deployment.configure(&exchange);
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let more = format!(
        "[auditor]\nDB = postgres\n[auditordb-postgres]\nCONFIG = {database}\n\
         [auditor-feed]\n{source}"
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

    let mut following = start(&deployment, &config, "sync");
    let (load, mut customers) = run::crowd(&deployment, CUSTOMERS, &mut dice).await;
    watch_payments(&mut deployment, &load, &mut customers).await;
    // The first check of all rows ends before anything is killed.
    let states = "SELECT count(*) FROM auditor_copy.audit_state";
    let is_checked = || server.sql(AUDIT, states).unwrap().trim() != "0";
    block_in_place(|| until("the rows are not checked", is_checked));
    let first_kill = Timestamp::from_system_time(std::time::SystemTime::now()).as_secs().unwrap() + 1;
    for cycle in 0..cycles().max(3) {
        watch(&mut deployment, &mut customers, dice.below(1_500)).await;
        match cycle % 3 {
            0 => {
                following.kill_9();
                following = start(&deployment, &config, "sync");
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
    run::end(&load, customers).await;
    // One process at a time follows: the one that has the lock again, if the server was killed.
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
                 WHERE locktype = 'advisory' AND granted AND application_name = 'batzen-auditor_copy'";
    let is_followed = || server.sql(AUDIT, locks).unwrap().trim() != "0";
    block_in_place(|| until("nobody follows", is_followed));
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
    let (load, mut customers) = run::crowd(&deployment, CUSTOMERS, &mut dice).await;
    watch_payments(&mut deployment, &load, &mut customers).await;
    let mut following = start(&deployment, &config, "sync");
    for _ in 0..cycles().min(6) {
        watch(&mut deployment, &mut customers, dice.below(1_500)).await;
        following.kill_9();
        following = start(&deployment, &config, "sync");
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    run::end(&load, customers).await;
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
    let service = start(&deployment, &config, "serve");
    block_in_place(|| wait_for(port, "/ready"));
    deployment.sql(
        "UPDATE exchange.deposits SET wire_deadline = wire_deadline + 1000000 \
         WHERE serial = (SELECT min(serial) FROM exchange.deposits)",
    );
    let is_found = || ask(port, "GET /audit.json", "").contains("row-rewritten");
    block_in_place(|| until("the change is not found", is_found));
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

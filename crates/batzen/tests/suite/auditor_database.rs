//! An auditor follows an exchange on PostgreSQL, through its publication, while both sides and the server are killed.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use batzen_testkit::postgres::{Cluster, ClusterOptions};
use serde_json::Value;
use tokio::task::{JoinSet, block_in_place};

use crate::common::{self, PATIENCE, Service, stderr, stdout};
use crate::crash::customers::Load;
use crate::crash::deployment::Deployment;
use crate::crash::run::{self, cycles, watch};
use crate::crash_auditor::watch_payments;

const CUSTOMERS: usize = 4;

/// Runs a command of the auditor.
pub(crate) fn auditor(config: &str, words: &[&str]) -> std::process::Output {
    block_in_place(|| common::batzen().arg("auditor").args(words).args(["-c", config]).output().unwrap())
}

/// The JSON that a command prints, which must exit with this code.
#[track_caller]
pub(crate) fn json(config: &str, code: i32, words: &[&str]) -> Value {
    let output = auditor(config, &[words, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}{}", stdout(&output), stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that the copy and the database have the same rows in some tables: a number that both count.
fn same_rows(deployment: &Deployment, report: &Value) {
    let coins: i64 = deployment.sql("SELECT count(*) FROM exchange.coins").trim().parse().unwrap();
    let known: i64 = report["denominations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|denom| denom["coins_known"].as_i64().unwrap())
        .sum();
    assert_eq!(known, coins);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auditor_follows_a_database_through_kills() {
    let mut dice = run::dice();
    let options = ClusterOptions::unsynced().set("wal_level", "logical");
    let cluster = block_in_place(|| Cluster::start(&options).unwrap());
    let mut deployment = Deployment::on_database(run::client(), cluster, None);
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let keys: Value =
        run::client().get_json(format!("{}keys", deployment.exchange_url())).await.unwrap().ok().unwrap();
    let (config, home) = (deployment.path("auditor.conf"), deployment.path("auditor"));
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n[paths]\nTALER_DATA_HOME = {home}\n\
         [exchange]\nBASE_URL = {}\nMASTER_PUBLIC_KEY = {}\n[auditor-feed]\nEXCHANGE = {}\n",
        deployment.exchange_url(),
        keys["master_public_key"].as_str().unwrap(),
        deployment.database_url(),
    );
    std::fs::write(&config, text).unwrap();

    // Without a publication, the error says what to do.
    let early = auditor(&config, &["sync", "--once"]);
    assert!(stderr(&early).contains("batzen exchange replication --setup --reader"), "{}", stderr(&early));
    let setup = common::batzen()
        .args(["exchange", "replication", "--setup", "--database", &deployment.database_url()])
        .output()
        .unwrap();
    assert!(setup.status.success(), "{}", stderr(&setup));

    // The copy is made while customers pay, so that it is fuzzy.
    let load = Arc::new(Load::new(run::client(), &deployment.exchange_url(), &deployment.bank_url()).await);
    let mut customers = JoinSet::new();
    for _ in 0..CUSTOMERS {
        customers.spawn(Arc::clone(&load).customer(dice.child()));
    }
    watch_payments(&mut deployment, &load, &mut customers).await;
    let dir = deployment.path("");
    let start = || Service::start(Path::new(&dir), "auditor", &["auditor", "sync", "-c", &config]);
    let mut following = start();
    for _ in 1..=cycles().min(6) {
        watch(&mut deployment, &mut customers, dice.below(1_500)).await;
        match dice.below(3) {
            0 => {
                following.kill_9();
                following = start();
            }
            1 => {
                deployment.kill_exchange();
                deployment.start_exchange().await;
            }
            _ => {
                deployment.kill_database();
                deployment.start_database();
            }
        }
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
    let deadline = Instant::now() + PATIENCE;
    let synced = json(&config, 0, &["sync", "--once"]);
    assert!(Instant::now() < deadline);
    assert_eq!(
        (&synced["whole"], &synced["checked"]["open_findings"]),
        (&Value::Bool(true), &Value::from(0))
    );
    let [followed, whole] =
        [json(&config, 0, &["run", "--no-bank"]), json(&config, 0, &["run", "--no-bank", "--whole"])];
    for member in ["ok", "sheet", "denominations", "purses_open", "difference"] {
        assert_eq!(followed[member], whole[member], "{member}");
    }
    same_rows(&deployment, &whole);

    // Somebody with access to the database changes a row, and removes another.
    deployment.sql(
        "UPDATE exchange.deposits SET wire_deadline = wire_deadline + 1000000 WHERE serial = (SELECT min(serial) FROM exchange.deposits);
         DELETE FROM exchange.refunds WHERE serial = (SELECT min(serial) FROM exchange.refunds);
         DELETE FROM exchange.reserves_in WHERE serial = (SELECT min(serial) FROM exchange.reserves_in)",
    );
    json(&config, 0, &["sync", "--once"]);
    let report = json(&config, 3, &["report"]);
    let rules: Vec<&str> =
        report["tracked"].as_array().unwrap().iter().map(|story| story["rule"].as_str().unwrap()).collect();
    for rule in ["row-rewritten", "row-removed", "refund-sum", "reserve-balance"] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    // What is changed while nobody looks is found, too: everything is copied again, and compared.
    let gone = auditor(&config, &["sync", "--drop-slot"]);
    assert!(gone.status.success(), "{}", stderr(&gone));
    deployment.sql("UPDATE exchange.reserves_in SET time = time + 1000000 WHERE serial = (SELECT max(serial) FROM exchange.reserves_in)");
    let again = json(&config, 0, &["sync", "--once"]);
    assert_eq!((&again["whole"], &again["snapshots"]), (&Value::Bool(true), &Value::from(2)), "{again:#}");
    let report = json(&config, 3, &["report"]);
    let rewritten =
        report["tracked"].as_array().unwrap().iter().filter(|story| story["rule"] == "row-rewritten");
    assert_eq!(rewritten.count(), 2, "{report:#}");
    // A table that is emptied is no change that an exchange makes.
    deployment.sql("TRUNCATE exchange.history_requests");
    let emptied = auditor(&config, &["sync", "--once"]);
    assert!(stderr(&emptied).contains("somebody has emptied the exchange's table"), "{}", stderr(&emptied));
}

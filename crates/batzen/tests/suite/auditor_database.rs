//! An auditor follows an exchange on PostgreSQL, through its publication, while both sides and the server are killed.

use batzen_testkit::postgres::{Cluster, ClusterOptions};
use serde_json::Value;
use tokio::task::block_in_place;

use crate::common::{self, stderr};
use crate::crash::audit::{auditor, configure, increments_equal_the_whole, json, must, rules, start};
use crate::crash::deployment::Deployment;
use crate::crash::run::{self, cycles, watch, watch_payments};

const CUSTOMERS: usize = 4;

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
    let feed = format!("[auditor-feed]\nEXCHANGE = {}\n", deployment.database_url());
    let config = configure(&deployment, &feed).await;

    // Without a publication, the error says what to do.
    let early = auditor(&config, &["sync", "--once"]);
    assert!(stderr(&early).contains("batzen exchange replication --setup --reader"), "{}", stderr(&early));
    common::must(&["exchange", "replication", "--setup", "--database", &deployment.database_url()]);

    // The copy is made while customers pay, so that it is fuzzy.
    let (load, mut customers) = run::crowd(&deployment, CUSTOMERS, &mut dice).await;
    watch_payments(&mut deployment, &load, &mut customers).await;
    let mut following = start(&deployment, &config, "sync");
    for _ in 1..=cycles().min(6) {
        watch(&mut deployment, &mut customers, dice.below(1_500)).await;
        match dice.below(3) {
            0 => {
                following.kill_9();
                following = start(&deployment, &config, "sync");
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
    run::end(&load, customers).await;
    following.assert_runs();
    assert!(following.terminate().0.success());
    deployment.stop();
    let synced = json(&config, 0, &["sync", "--once"]);
    assert_eq!(
        (&synced["whole"], &synced["checked"]["open_findings"]),
        (&Value::Bool(true), &Value::from(0))
    );
    let whole = increments_equal_the_whole(&config);
    same_rows(&deployment, &whole);

    // Somebody with access to the database changes a row, and removes another.
    deployment.sql(
        "UPDATE exchange.deposits SET wire_deadline = wire_deadline + 1000000 WHERE serial = (SELECT min(serial) FROM exchange.deposits);
         DELETE FROM exchange.refunds WHERE serial = (SELECT min(serial) FROM exchange.refunds);
         DELETE FROM exchange.reserves_in WHERE serial = (SELECT min(serial) FROM exchange.reserves_in)",
    );
    json(&config, 0, &["sync", "--once"]);
    let report = json(&config, 3, &["report"]);
    let found = rules(&report);
    for rule in ["row-rewritten", "row-removed", "refund-sum", "reserve-balance"] {
        assert!(found.contains(&rule), "{rule}: {found:?}");
    }
    // What is changed while nobody looks is found, too: everything is copied again, and compared.
    must(&config, &["sync", "--drop-slot"]);
    deployment.sql("UPDATE exchange.reserves_in SET time = time + 1000000 WHERE serial = (SELECT max(serial) FROM exchange.reserves_in)");
    let again = json(&config, 0, &["sync", "--once"]);
    assert_eq!((&again["whole"], &again["snapshots"]), (&Value::Bool(true), &Value::from(2)), "{again:#}");
    let report = json(&config, 3, &["report"]);
    let rewritten = rules(&report).into_iter().filter(|rule| *rule == "row-rewritten");
    assert_eq!(rewritten.count(), 2, "{report:#}");
    // A table that is emptied is no change that an exchange makes.
    deployment.sql("TRUNCATE exchange.history_requests");
    let emptied = auditor(&config, &["sync", "--once"]);
    assert!(stderr(&emptied).contains("somebody has emptied the exchange's table"), "{}", stderr(&emptied));
}

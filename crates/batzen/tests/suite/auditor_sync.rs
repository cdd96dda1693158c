//! `taler-auditor-sync`, by the name and with the options of the reference: a copy of an exchange with an embedded store,
//! and of one on PostgreSQL.

use std::path::Path;
use std::process::Output;

use batzen_testkit::postgres::{Cluster, ClusterOptions};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::common::setup::on_database;
use crate::common::{self, by_name, stderr, stdout};
use crate::crash::audit;
use crate::crash::deployment::Deployment;
use crate::crash::run::{self, watch_payments};

/// Calls the program in a directory with the two configurations.
fn sync(dir: &Path, words: &[&str]) -> Output {
    block_in_place(|| by_name(dir, "taler-auditor-sync").current_dir(dir).args(words).output().unwrap())
}

#[track_caller]
fn refused(dir: &Path, words: &[&str], code: i32, hint: &str) {
    let output = sync(dir, words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", stderr(&output));
    assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
}

/// Copies what there is.
#[track_caller]
fn copied(dir: &Path, words: &[&str]) -> Value {
    let output = sync(dir, &[words, &["-t", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["whole"], &report["checked"]["open_findings"]), (&json!(true), &json!(0)));
    report
}

/// Customers pay, so that there is something to copy.
async fn pay(deployment: &mut Deployment) {
    let (load, mut customers) = run::crowd(deployment, 1, &mut run::dice()).await;
    watch_payments(deployment, &load, &mut customers).await;
    run::end(&load, customers).await;
}

/// Writes the auditor's configuration, which does not say where the exchange's rows are.
async fn configure(deployment: &Deployment, feed: &str) {
    audit::configure(deployment, &format!("[auditor-feed]\n{feed}")).await;
}

#[track_caller]
fn checked(deployment: &Deployment) -> Value {
    let config = deployment.path("auditor.conf");
    block_in_place(|| common::must_json(&["auditor", "run", "-c", &config, "--no-bank", "--json"]))
}

const FILES: [&str; 4] = ["-s", "taler.conf", "-d", "auditor.conf"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_store_is_copied_under_the_name_of_the_reference() {
    let mut deployment = Deployment::new(run::client());
    let home = deployment.path("");
    let dir = Path::new(&home);
    let [exchange, auditor] = audit::stream(&deployment);
    deployment.configure(&exchange);
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let (named, key): (Vec<&str>, Vec<&str>) = auditor.lines().partition(|line| line.starts_with("EXCHANGE"));
    configure(&deployment, &format!("{}\n", key.join("\n"))).await;
    pay(&mut deployment).await;

    let report = copied(dir, &[&FILES[..], &["-b", "512"]].concat());
    assert!(report["checked"]["rows"].as_u64().unwrap() > 20, "{report:#}");
    let before = checked(&deployment);
    pay(&mut deployment).await;
    // The exchange's operator may name address and key to an auditor who cannot read the exchange's configuration.
    std::fs::write(dir.join("named.conf"), format!("[auditor-feed]\n{}\n", named.join("\n"))).unwrap();
    copied(dir, &["-s", "named.conf", "-d", "auditor.conf", "--compare"]);
    assert_ne!(checked(&deployment)["sheet"], before["sheet"]);

    // What makes no sense.
    refused(dir, &["-s", "auditor.conf", "-d", "auditor.conf", "-t"], 1, "name the same file auditor.conf");
    refused(dir, &["-s", "./auditor.conf", "-d", "auditor.conf", "-t"], 1, "name the same file");
    refused(dir, &["-s", "taler.conf", "-t"], 2, "--destination");
    refused(dir, &["-d", "auditor.conf", "-t"], 2, "--source");
    refused(dir, &["-c", "taler.conf", "-s", "taler.conf", "-d", "auditor.conf"], 2, "cannot be used with");
    refused(dir, &[&FILES[..], &["-b", "0"]].concat(), 2, "--batch");
    refused(dir, &["-s", "missing.conf", "-d", "auditor.conf", "-t"], 1, "missing.conf");
    std::fs::write(dir.join("silent.conf"), "[exchange]\nDB = embedded\n").unwrap();
    refused(dir, &["-s", "silent.conf", "-d", "auditor.conf", "-t"], 1, "set [exchange-feed] LISTEN");
    std::fs::rename(deployment.path("exchange-feed.key"), deployment.path("elsewhere.key")).unwrap();
    refused(dir, &[&FILES[..], &["-t"]].concat(), 1, "without [auditor-feed] EXCHANGE_KEY");
    deployment.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_copied_under_the_name_of_the_reference() {
    let options = ClusterOptions::unsynced().set("wal_level", "logical");
    let cluster = block_in_place(|| Cluster::start(&options).unwrap());
    let mut deployment = Deployment::on_database(run::client(), cluster, None);
    let home = deployment.path("");
    let (dir, url) = (Path::new(&home), deployment.database_url());
    deployment.configure(&on_database(&url));
    deployment.start_bank().await;
    deployment.start_exchange().await;
    configure(&deployment, "SLOT = auditor_of_the_test\n").await;
    pay(&mut deployment).await;
    let words = [&FILES[..], &["-b", "7"]].concat();
    refused(dir, &[&words[..], &["-t"]].concat(), 1, "batzen exchange replication --setup --reader");
    block_in_place(|| common::must(&["exchange", "replication", "--setup", "--database", &url]));

    let first = copied(dir, &words);
    let [rows, commits] = ["changes", "batches"].map(|member| first[member].as_u64().unwrap());
    assert!(rows > 30 && commits * 7 >= rows, "{first:#}");
    let slots = deployment.sql("SELECT slot_name FROM pg_replication_slots");
    assert!(slots.contains("auditor_of_the_test"), "{slots}");
    let before = checked(&deployment);
    pay(&mut deployment).await;
    let more = copied(dir, &words);
    assert!(more["changes"].as_u64().unwrap() > 0 && more["snapshots"] == first["snapshots"], "{more:#}");
    assert_ne!(checked(&deployment)["sheet"], before["sheet"]);
    deployment.stop();
}

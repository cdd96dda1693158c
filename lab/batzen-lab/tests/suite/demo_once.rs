//! The demo, as scripts run it: checks every number in its results.

use batzen_testkit::process as common;

use std::path::Path;
use std::time::Duration;

use batzen_protocol::{Amount, Money};
use serde_json::Value;

use crate::commands::printed;

/// The steps in order. Each does something, but for `resume`, which may find nothing to do.
const STEPS: &str = "start resume exchange withdraw reserve pay change refund double-spend aggregate transfer \
                     pending send request expire ages identify order pay-shop refund-shop tip settled purse \
                     unrevealed balance audit audit-tampered";

const TERMS: &str =
    "bank_in bank_out reserves issued redeemed outstanding pending purses unrevealed_melts fees";

fn play(data: Option<&Path>) -> Value {
    play_on("embedded", data)
}

fn play_on(store: &str, data: Option<&Path>) -> Value {
    play_with(&["--store", store], data)
}

fn play_with(options: &[&str], data: Option<&Path>) -> Value {
    let mut command = common::batzen();
    command.args(["demo", "--once", "--json", "--rsa-bits", "1024"]).args(options);
    if let Some(data) = data {
        command.arg("--data").arg(data);
    }
    printed(&mut command)
}

fn term(results: &Value, name: &str) -> Money {
    let text = results["balance"][name].as_str().unwrap_or_else(|| panic!("{name} is missing: {results:#}"));
    let amount = Amount::parse(text).unwrap();
    assert_eq!(amount.currency.as_str(), "KUDOS");
    amount.money
}

/// Checks the results of a run: every step succeeded and did something, every term occurs, and both sides are
/// equal.
fn check(results: &Value) {
    let steps = results["steps"].as_array().unwrap();
    let names: Vec<&str> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names.join(" "), STEPS);
    for (step, name) in steps.iter().zip(names) {
        assert_eq!(step["ok"], true, "{name}");
        assert!(step["milliseconds"].is_u64(), "{name}");
        let count = step["count"].as_u64().unwrap();
        assert!(count > 0 || name == "resume", "{name} did nothing");
        assert!(step.get("error").is_none());
    }
    for name in TERMS.split(' ') {
        assert!(!term(results, name).is_zero(), "{name} is zero: {results:#}");
    }
    let sum = Money::checked_sum(
        ["bank_out", "reserves", "outstanding", "pending", "purses", "unrevealed_melts", "fees"]
            .map(|name| term(results, name)),
    );
    assert_eq!(sum.unwrap(), term(results, "bank_in"));
    assert_eq!(
        term(results, "issued").checked_sub(term(results, "redeemed")).unwrap(),
        term(results, "outstanding")
    );
    assert_eq!(results["balance"]["conserved"], true);
    assert_eq!(results["balance"]["bank_and_ledger_agree"], true);
}

#[test]
fn demo_once_conserves_every_unit() {
    check(&play(None));
}

/// With Clause Schnorr coins in addition to RSA coins.
#[test]
fn demo_with_both_ciphers_conserves_every_unit() {
    let results = play_with(&["--cs"], None);
    check(&results);
    // Each value exists in RSA and in Clause Schnorr.
    assert_eq!(results["steps"][0]["count"], 2 * play(None)["steps"][0]["count"].as_u64().unwrap());
}

/// On a PostgreSQL server that the demo starts and ends.
#[test]
fn demo_on_postgresql_conserves_every_unit() {
    let results = play_on("postgres", None);
    check(&results);
    let url = results["database"].as_str().unwrap();
    let port: u16 = url.rsplit_once(':').unwrap().1.split('/').next().unwrap().parse().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the server goes on");
}

/// On a Citus cluster, if the extension is installed. The exchange's tables are distributed over two workers.
#[test]
fn demo_on_citus_conserves_every_unit() {
    let Some(cluster) = batzen_testkit::postgres::shared_citus() else { return };
    let url = cluster.fresh_database().unwrap();
    common::must(&["exchange", "dbinit", "--citus", "--database", &url]);
    check(&play_with(&["--store", "postgres", "--database", &url], None));
    let nodes =
        "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'exchange.coins'::regclass";
    let name = url.rsplit('/').next().unwrap();
    assert_eq!(cluster.coordinator().sql(name, nodes).unwrap(), "2");
}

#[test]
fn demo_continues_its_books() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let first = play(Some(&data));
    check(&first);
    // The tools for stopped services agree.
    let path = data.to_str().unwrap();
    let totals = common::must_json(&["exchange", "totals", path, "--json"]);
    for (ours, theirs) in
        [("wired_in", "bank_in"), ("wired_out", "bank_out"), ("fees", "fees"), ("issued", "issued")]
    {
        assert_eq!(format!("KUDOS:{}", totals[ours].as_str().unwrap()), first["balance"][theirs], "{ours}");
    }
    for fee in ["withdraw", "deposit", "refresh", "refund", "wire"] {
        assert_ne!(totals["income"][fee], "0", "no {fee} fee was taken");
    }
    let bank = data.join("bank");
    assert!(common::run(&["bank", "totals", bank.to_str().unwrap()]).status.success());
    for store in [bank, data.join("exchange").join("store")] {
        let report = common::must_json(&["store", "verify", store.to_str().unwrap(), "--json"]);
        assert_eq!(report["sound"], true, "{report:#}");
        assert!(report["records"].as_u64().unwrap() > 0);
    }

    let second = play(Some(&data));
    check(&second);
    // The second run completes what the first left unrevealed.
    assert!(second["steps"][1]["count"].as_u64().unwrap() > 0);
    assert_eq!(first["exchange"], second["exchange"]);
    for name in ["bank_in", "bank_out", "reserves", "issued", "redeemed", "outstanding", "pending", "fees"] {
        assert!(term(&second, name) > term(&first, name), "{name} did not grow");
    }
    assert!(term(&second, "unrevealed_melts") < term(&first, "unrevealed_melts").checked_mul(20).unwrap());
}

#[test]
fn a_demo_killed_at_any_step_continues() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    for round in 0..4u64 {
        let arguments = ["demo", "--once", "--json", "--rsa-bits", "1024", "--data", data];
        let mut demo = common::Service::start(dir.path(), "demo", &arguments);
        let mut bytes = [0; 2];
        batzen_crypto::fill_random(&mut bytes);
        let pause = Duration::from_millis(300 * round + u64::from(u16::from_le_bytes(bytes)) % 1_500);
        println!("kill after {pause:?}");
        std::thread::sleep(pause);
        demo.kill_9();
    }
    check(&play(Some(Path::new(data))));
}

//! The commands that the README and the demo tell people to type, against a running demo.

use batzen_testkit::process as common;

use std::path::Path;
use std::time::Duration;

use common::{Service, batzen, run, stderr, stdout};
use serde_json::Value;

use crate::commands::{logged, printed, until};

/// A demo that serves, with any free ports.
const DEMO: &str = "demo --rsa-bits 1024 --bank-port 0 --exchange-port 0 --merchant-port 0 --shop-port 0";

/// Starts the demo and waits for its results; it keeps serving afterwards.
pub(crate) fn demo(dir: &Path, data: &str) -> (Service, Value) {
    let arguments: Vec<&str> = DEMO.split(' ').chain(["--json", "--data", data]).collect();
    let mut demo = Service::start(dir, "demo", &arguments);
    let results = logged(&mut demo, dir, "demo", |log| serde_json::from_str(log).ok());
    (demo, results)
}

/// Uses a wallet, which must succeed.
#[track_caller]
pub(crate) fn wallet(file: &Path, words: &[&str]) -> Value {
    printed(batzen().args(["wallet", "--json", "--yes", "--wallet"]).arg(file).args(words))
}

#[test]
fn the_wallet_against_a_running_demo() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let (service, results) = demo(dir.path(), data);
    assert_eq!(results["balance"]["conserved"], true);
    let (bank, exchange) = (results["bank"].as_str().unwrap(), results["exchange"].as_str().unwrap());

    // A second demo on the same directory is refused.
    let second = run(&["demo", "--once", "--data", data]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("in use"), "{}", stderr(&second));

    let file = dir.path().join("zoe.db");
    let wallet = |words: &[&str]| wallet(&file, words);
    let words = ["withdraw", "--exchange", exchange, "--amount", "KUDOS:20", "--bank", bank];
    wallet(&[&words[..], &["--user", "zoe", "--password", "zoe"]].concat());
    let before = wallet(&["balance"]).to_string();
    assert!(before.contains("KUDOS:19."), "{before}");
    wallet(&["deposit", "KUDOS:7.5", "payto://x-taler-bank/localhost/zoe?receiver-name=zoe"]);
    let after = wallet(&["balance"]).to_string();
    assert!(after.contains("KUDOS:12."), "{after}");
    let history = wallet(&["transactions"]).to_string();
    assert!(history.contains("KUDOS:7.5"), "{history}");

    // The money arrives at the bank, less the wire fee.
    let gateway = format!("{bank}taler-wire-gateway/exchange/");
    until(100, || {
        let rows = stdout(&run(&["bank", "gateway", "--url", &gateway, "outgoing"]));
        let is_paid = rows.lines().any(|row| row.contains("KUDOS:7.49 ") && row.contains("localhost/zoe"));
        if is_paid { Ok(()) } else { Err(format!("zoe is not paid: {rows}")) }
    });

    let (status, _) = service.terminate();
    assert!(status.success(), "the demo ended with {status}");
    assert!(run(&["exchange", "totals", data]).status.success());
    assert!(run(&["bank", "totals", &format!("{data}/bank")]).status.success());
}

/// Waits until the log of a service has a text, and returns the log.
fn wait_for(dir: &Path, service: &mut Service, text: &str) -> String {
    logged(service, dir, "demo", |log| log.contains(text).then(|| log.to_owned()))
}

#[test]
fn the_printed_commands_work_and_the_wallets_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let arguments: Vec<&str> = DEMO.split(' ').chain(["--load", "4"]).collect();
    let temporary = dir.path().to_str().unwrap();
    let mut demo = Service::start_with(dir.path(), "demo", &arguments, &[("TMPDIR", temporary)]);
    let log = wait_for(dir.path(), &mut demo, "clerk.token\n");
    let commands: Vec<&str> = log
        .split("In another terminal:")
        .nth(1)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("  "))
        .collect();
    assert_eq!(commands.len(), 6, "{log}");
    let clerk = log.split("with the token in ").nth(1).unwrap().lines().next().unwrap();
    assert!(Path::new(clerk).exists(), "{clerk}");
    let script = commands.join("\n");
    let output = std::process::Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert!(output.status.success(), "{script}\n{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("KUDOS:7.5"), "{}", stdout(&output));

    // Nobody can overdraw an account.
    let too_much = format!("{}\n{}", commands[0], commands[1].replace("KUDOS:20", "KUDOS:990"));
    let output = std::process::Command::new("sh").args(["-ec", &too_much]).output().unwrap();
    assert!(!output.status.success(), "{}", stdout(&output));
    assert!(stdout(&output).contains("does not hold enough money"), "{}", stdout(&output));

    // The load pays for a while.
    std::thread::sleep(Duration::from_secs(2));
    let (status, _) = demo.terminate();
    let log = std::fs::read_to_string(dir.path().join("demo.log")).unwrap();
    assert!(status.success(), "{status}: {log}");
    let payments = log.split("The load made ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(payments.parse::<u64>().unwrap() > 0, "{log}");
    let (_, end) = log.split_once("The final balance sheet").unwrap();
    assert!(end.contains("they are equal"), "{end}");
    let kept = end.split("batzen demo --data ").nth(1).unwrap().lines().next().unwrap();
    assert!(Path::new(kept).join("wallets/zoe.db").exists(), "{kept}");
    let words = ["demo", "--once", "--json", "--rsa-bits", "1024", "--data", kept];
    let results = printed(batzen().args(words));
    assert_eq!(results["balance"]["conserved"], true);
}

#[test]
fn a_directory_that_nobody_needs_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let arguments: Vec<&str> = DEMO.split(' ').chain(["--json"]).collect();
    let temporary = dir.path().to_str().unwrap();
    let mut demo = Service::start_with(dir.path(), "demo", &arguments, &[("TMPDIR", temporary)]);
    let results: Value = serde_json::from_str(&wait_for(dir.path(), &mut demo, "\n}\n")).unwrap();
    let data = results["data"].as_str().unwrap();
    assert!(Path::new(data).starts_with(dir.path()) && Path::new(data).exists());
    let (status, _) = demo.terminate();
    assert!(status.success(), "{status}");
    let log = std::fs::read_to_string(dir.path().join("demo.log")).unwrap();
    let mut documents = serde_json::Deserializer::from_str(&log).into_iter::<Value>();
    let last = documents.nth(1).unwrap().unwrap();
    assert_eq!(last["final_balance"]["conserved"], true);
    assert_eq!(last["data_kept"], false);
    assert!(!Path::new(data).exists());
}

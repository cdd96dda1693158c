//! The commands that the README and the demo tell people to type, against a running demo.

use batzen_testkit::process as common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Service, run, stderr, stdout};
use serde_json::Value;

/// A demo that serves, with any free ports.
const DEMO: [&str; 11] = [
    "demo",
    "--rsa-bits",
    "1024",
    "--bank-port",
    "0",
    "--exchange-port",
    "0",
    "--merchant-port",
    "0",
    "--shop-port",
    "0",
];

/// Starts the demo and waits for its results; it keeps serving afterwards.
pub(crate) fn demo(dir: &Path, data: &str) -> (Service, Value) {
    let arguments = [&DEMO[..], &["--json", "--data", data]].concat();
    let mut demo = Service::start(dir, "demo", &arguments);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(dir.join("demo.log")).unwrap();
        if let Ok(results) = serde_json::from_str::<Value>(&text) {
            return (demo, results);
        }
        demo.assert_runs();
        assert!(Instant::now() < deadline, "the demo makes no progress: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn json(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{}{}", stdout(output), stderr(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stdout(output)))
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
    let wallet = |words: &[&str]| {
        let mut all = vec!["wallet", "--wallet", file.to_str().unwrap(), "--json", "--yes"];
        all.extend(words);
        run(&all)
    };
    let withdraw = [
        "withdraw",
        "--exchange",
        exchange,
        "--amount",
        "KUDOS:20",
        "--bank",
        bank,
        "--user",
        "zoe",
        "--password",
        "zoe",
    ];
    json(&wallet(&withdraw));
    let before = json(&wallet(&["balance"])).to_string();
    assert!(before.contains("KUDOS:19."), "{before}");
    json(&wallet(&["deposit", "KUDOS:7.5", "payto://x-taler-bank/localhost/zoe?receiver-name=zoe"]));
    let after = json(&wallet(&["balance"])).to_string();
    assert!(after.contains("KUDOS:12."), "{after}");
    let history = json(&wallet(&["transactions"])).to_string();
    assert!(history.contains("KUDOS:7.5"), "{history}");

    // The money arrives at the bank, less the wire fee.
    let gateway = format!("{bank}taler-wire-gateway/exchange/");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rows = stdout(&run(&["bank", "gateway", "--url", &gateway, "outgoing"]));
        if rows.lines().any(|row| row.contains("KUDOS:7.49 ") && row.contains("localhost/zoe")) {
            break;
        }
        assert!(Instant::now() < deadline, "zoe is not paid: {rows}");
        std::thread::sleep(Duration::from_millis(100));
    }

    let (status, _) = service.terminate();
    assert!(status.success(), "the demo ended with {status}");
    assert!(run(&["exchange", "totals", data]).status.success());
    assert!(run(&["bank", "totals", &format!("{data}/bank")]).status.success());
}

/// Waits until the log of a service has a text, and returns the log.
fn wait_for(dir: &Path, service: &mut Service, text: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = std::fs::read_to_string(dir.join("demo.log")).unwrap();
        if log.contains(text) {
            return log;
        }
        service.assert_runs();
        assert!(Instant::now() < deadline, "the demo does not print {text:?}: {log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_printed_commands_work_and_the_wallets_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [&DEMO[..], &["--load", "4"]].concat();
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
    let results = json(&run(&["demo", "--once", "--json", "--rsa-bits", "1024", "--data", kept]));
    assert_eq!(results["balance"]["conserved"], true);
}

#[test]
fn a_directory_that_nobody_needs_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [&DEMO[..], &["--json"]].concat();
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

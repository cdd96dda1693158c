//! The commands that the README and the demo tell people to type, against a running demo.

use crate::common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Service, run, stderr, stdout};
use serde_json::Value;

/// Starts the demo and waits for its results; it keeps serving afterwards.
fn demo(dir: &Path, data: &str) -> (Service, Value) {
    let mut demo = Service::start(
        dir,
        "demo",
        &["demo", "--json", "--rsa-bits", "1024", "--data", data, "--bank-port", "0", "--exchange-port", "0"],
    );
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

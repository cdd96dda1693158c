//! Bank and exchange as services: readiness, worker programs, the end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use common::damage::{assert_damage_is_refused, cut_last, stores_below};
use common::setup::{config, credit, wait_for};
use common::{Service, run, stderr, stdout};

#[test]
fn services_start_work_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (common::free_port(), common::free_port());
    let config = config(dir.path(), bank_port, exchange_port);
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "--config", &config]);
    wait_for(exchange_port, "/management/keys");
    wait_for(exchange_port, "/keys");
    wait_for(exchange_port, "/wire");

    // A second one on the same store says so.
    let other_port = common::free_port().to_string();
    let second = run(&["exchange", "serve", "-c", &config, "--port", &other_port]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("in use"), "{}", stderr(&second));
    let totals = run(&["exchange", "totals", "-c", &config]);
    assert!(!totals.status.success() && stderr(&totals).contains("in use"), "{}", stderr(&totals));

    // Worker programs hand their work to the service.
    for worker in ["wirewatch", "aggregator", "transfer", "closer", "drain"] {
        let output = run(&["exchange", worker, "-c", &config, "-t"]);
        assert!(output.status.success(), "{worker}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    // What a worker takes at once is said where it means something.
    for worker in ["wirewatch", "transfer"] {
        let output = run(&["exchange", worker, "-c", &config, "-t", "-S", "7", "-w", "3"]);
        assert!(output.status.success(), "{worker}: {}", stderr(&output));
    }
    for (worker, option, value, hint) in
        [("closer", "-S", "7", "-S"), ("aggregator", "-w", "3", "-w"), ("wirewatch", "-S", "0", "--size")]
    {
        let output = run(&["exchange", worker, "-c", &config, "-t", option, value]);
        assert_eq!(output.status.code(), Some(2), "{worker} {option}");
        assert!(stderr(&output).contains(hint), "{}", stderr(&output));
    }
    let staying = Service::start(dir.path(), "worker", &["exchange", "transfer", "-c", &config]);

    // Long polls do not delay the end.
    let reserve = "A".repeat(52);
    let mut polling = TcpStream::connect(("127.0.0.1", exchange_port)).unwrap();
    write!(polling, "GET /reserves/{reserve}?timeout_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for (name, service) in [("exchange", exchange), ("bank", bank), ("worker", staying)] {
        let (status, time) = service.terminate();
        assert!(status.success(), "{name} ended with {status}");
        // A second is promised on an idle machine; this one may be busy.
        assert!(time < Duration::from_secs(20), "{name} took {time:?} to end");
    }

    // The ports are free at once, and everything is still there.
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
    wait_for(exchange_port, "/keys");
    exchange.signal(2);
    let mut exchange = exchange;
    assert!(exchange.wait().success(), "SIGINT ends it as SIGTERM does");

    // Without a service the workers open the store themselves.
    for worker in ["wirewatch", "aggregator", "transfer", "closer"] {
        let output = run(&["exchange", worker, "-c", &config, "--test"]);
        assert!(output.status.success(), "{worker}: {}", stderr(&output));
    }
    assert!(bank.terminate().0.success());
    let totals = run(&["exchange", "totals", "-c", &config]);
    assert!(totals.status.success() && stdout(&totals).contains("the books add up"), "{}", stdout(&totals));
    let store = dir.path().join("home/exchange/store");
    let verify = run(&["store", "verify", store.to_str().unwrap()]);
    assert!(verify.status.success() && stdout(&verify).contains("sound"), "{}", stdout(&verify));
    let inspect = run(&["store", "inspect", store.to_str().unwrap()]);
    assert!(stdout(&inspect).contains("denominations"), "{}", stdout(&inspect));
    // All bytes of the journal are in one of the lines.
    let inspect = run(&["store", "inspect", store.to_str().unwrap(), "--json", "--frames"]);
    let facts: serde_json::Value = serde_json::from_str(&stdout(&inspect)).unwrap();
    let sum = |values: &mut dyn Iterator<Item = &serde_json::Value>| -> u64 {
        values.map(|value| value["bytes"].as_u64().unwrap()).sum()
    };
    let segments = sum(&mut facts["segments"].as_array().unwrap().iter());
    let tables = sum(&mut facts["tables"].as_object().unwrap().values());
    let frames = facts["frames"].as_array().unwrap();
    let records = sum(&mut frames.iter().flat_map(|frame| frame["records"].as_array().unwrap()));
    assert!(tables > 0 && tables == records, "{facts:#}");
    assert_eq!(segments, tables + facts["frame_bytes"].as_u64().unwrap());
    // A denomination's row holds its public key.
    assert!(facts["tables"]["denominations"]["bytes"].as_u64() > Some(256), "{facts:#}");
}

/// A flipped bit in the last acknowledged commit is not dropped as a commit that was interrupted: the service refuses to start.
#[test]
fn damage_to_the_last_commit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (common::free_port(), common::free_port());
    let config = config(dir.path(), bank_port, exchange_port);
    let words = |name: &'static str| [name, "serve", "-c", &config];
    let mut bank = Service::start(dir.path(), "bank", &words("bank"));
    wait_for(bank_port, "/taler-bank-integration/config");
    let mut exchange = Service::start(dir.path(), "exchange", &words("exchange"));
    wait_for(exchange_port, "/keys");
    credit(bank_port, 1, 3);
    bank.kill_9();
    exchange.kill_9();
    let home = dir.path().join("home");
    let mut stores = 0;
    for name in ["bank", "exchange"] {
        for store in stores_below(&home.join(name)) {
            assert_damage_is_refused(dir.path(), &store, &words(name));
            stores += 1;
        }
    }
    assert!(stores >= 2, "{stores} stores");
    // Nothing was damaged after all: everything is there.
    let bank = Service::start(dir.path(), "bank", &words("bank"));
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &words("exchange"));
    wait_for(exchange_port, "/keys");
    assert!(bank.terminate().0.success() && exchange.terminate().0.success());
    // Without a backup, an operator decides to go on without the last commit.
    cut_last(&home.join("exchange/store"));
    let bank = Service::start(dir.path(), "bank", &words("bank"));
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &words("exchange"));
    wait_for(exchange_port, "/keys");
    assert!(bank.terminate().0.success() && exchange.terminate().0.success());
}

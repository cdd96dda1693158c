//! Bank and exchange as services: readiness, worker programs, termination.

use crate::common;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::damage::{assert_damage_is_refused, cut_last, stores_below};
use common::setup::{ask, config, config_with, credit, register, wait_for};
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

    // A second service on the same store is refused.
    let other_port = common::free_port().to_string();
    let second = run(&["exchange", "serve", "-c", &config, "--port", &other_port]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("in use"), "{}", stderr(&second));
    let totals = run(&["exchange", "totals", "-c", &config]);
    assert!(!totals.status.success() && stderr(&totals).contains("in use"), "{}", stderr(&totals));

    // Worker programs pass their work to the service.
    for worker in ["wirewatch", "aggregator", "transfer", "closer", "drain"] {
        let output = run(&["exchange", worker, "-c", &config, "-t"]);
        assert!(output.status.success(), "{worker}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    // The size of a claim is logged only where it has an effect.
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

    // Long polls do not delay termination.
    let reserve = "A".repeat(52);
    let mut polling = TcpStream::connect(("127.0.0.1", exchange_port)).unwrap();
    write!(polling, "GET /reserves/{reserve}?timeout_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for (name, service) in [("exchange", exchange), ("bank", bank), ("worker", staying)] {
        let (status, time) = service.terminate();
        assert!(status.success(), "{name} ended with {status}");
        // The documentation promises a second on an idle machine; this one may be busy.
        assert!(time < Duration::from_secs(20), "{name} took {time:?} to end");
    }

    // The ports are free at once, and all data is still there.
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
    // Every byte of the journal is counted in one of the lines.
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

/// A flipped bit in the last acknowledged commit is not treated as an interrupted commit: the service refuses
/// to start.
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
    // Nothing was actually damaged: all data is there.
    let bank = Service::start(dir.path(), "bank", &words("bank"));
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &words("exchange"));
    wait_for(exchange_port, "/keys");
    assert!(bank.terminate().0.success() && exchange.terminate().0.success());
    // Without a backup, an operator decides to continue without the last commit.
    cut_last(&home.join("exchange/store"));
    let bank = Service::start(dir.path(), "bank", &words("bank"));
    wait_for(bank_port, "/taler-bank-integration/config");
    let exchange = Service::start(dir.path(), "exchange", &words("exchange"));
    wait_for(exchange_port, "/keys");
    assert!(bank.terminate().0.success() && exchange.terminate().0.success());
}

/// A receiver that the bank does not know: the operator sees the refused transfer, opens the account, and
/// retries the transfer.
#[test]
fn a_refused_transfer_is_listed_and_retried() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (common::free_port(), common::free_port());
    let strict = "[bank]\nCREATE_ACCOUNTS = NO\n";
    let config = config_with(dir.path(), (bank_port, bank_port), exchange_port, strict);
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    register(bank_port, "exchange");
    register(bank_port, "zoe");
    let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
    wait_for(exchange_port, "/keys");

    let file = dir.path().join("wallet.db");
    let bank_url = format!("http://localhost:{bank_port}/");
    let exchange_url = format!("http://localhost:{exchange_port}/");
    let payto = "payto://x-taler-bank/localhost/shop?receiver-name=shop";
    for arguments in [
        &["withdraw", "--yes", "--amount", "KUDOS:5", "--exchange", &exchange_url, "--bank", &bank_url][..],
        &["deposit", "KUDOS:3", payto, "--yes"][..],
    ] {
        let login = ["--user", "zoe", "--password", "zoe"];
        let login = if arguments[0] == "withdraw" { &login[..] } else { &[] };
        let words = [&["wallet", "--wallet", file.to_str().unwrap()][..], arguments, login].concat();
        let output = run(&words);
        assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    }
    let work_until = |port: u16, request: &str, expected: &str| {
        let deadline = Instant::now() + common::PATIENCE;
        loop {
            for worker in ["aggregator", "transfer"] {
                let output = run(&["exchange", worker, "-c", &config, "-t"]);
                assert!(output.status.success(), "{worker}: {}", stderr(&output));
            }
            let answer = ask(port, request, "");
            if answer.contains(expected) {
                break;
            }
            assert!(Instant::now() < deadline, "no {expected} in {answer}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    work_until(exchange_port, "GET /metrics", "\nbatzen_worker_transfer_refused 1\n");
    let transfers = |more: &[&str]| run(&[&["exchange", "transfers", "-c", &config][..], more].concat());
    let busy = transfers(&[]);
    assert!(!busy.status.success() && stderr(&busy).contains("stop the exchange first"), "{}", stderr(&busy));
    assert!(exchange.terminate().0.success());

    let listed = |more: &[&str]| -> serde_json::Value {
        let output = transfers(&[&["--json"], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let refused = &listed(&[])["refused"];
    assert_eq!(refused.as_array().unwrap().len(), 1, "{refused:#}");
    assert_eq!((&refused[0]["amount"], &refused[0]["account"]), (&"KUDOS:3".into(), &payto.into()));
    assert!(refused[0]["reason"].as_str().unwrap().contains("404"), "{refused:#}");
    let wtid = refused[0]["wtid"].as_str().unwrap();
    let shown = stdout(&transfers(&[]));
    assert!(shown.contains(wtid) && shown.contains(payto) && shown.contains("1 transfer"), "{shown}");

    let unknown = transfers(&["--retry", &"0".repeat(52)]);
    assert!(stderr(&unknown).contains("no refused transfer is called"), "{}", stderr(&unknown));
    register(bank_port, "shop");
    assert_eq!(listed(&["--retry", wtid])["retried"], 1);
    assert_eq!(listed(&[])["refused"], serde_json::json!([]));
    assert_eq!(listed(&["--retry-all"])["retried"], 0);

    // The bonus and the payment.
    work_until(bank_port, "GET /taler-bank-access/accounts/shop", "\"KUDOS:103\"");
    assert!(bank.terminate().0.success());
}

/// A credit in another currency: the operator sees it, finds that it cannot be booked, and dismisses it.
#[test]
fn a_credit_that_fills_no_reserve_is_listed_and_settled() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (common::free_port(), common::free_port());
    let config = config(dir.path(), bank_port, exchange_port);
    let port = bank_port.to_string();
    let bank = ["bank", "serve", "--currency", "EUR", "--in-memory", "--port", &port];
    let bank = Service::start(dir.path(), "bank", &bank);
    wait_for(bank_port, "/taler-bank-integration/config");
    let gateway = format!("http://localhost:{bank_port}/taler-wire-gateway/exchange/");
    let payer = "payto://x-taler-bank/localhost/zoe";
    let added = run(&["bank", "gateway", "--url", &gateway, "add-incoming", "EUR:5", payer]);
    assert!(added.status.success(), "{}", stderr(&added));
    let exchange = Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config]);
    wait_for(exchange_port, "/keys");
    let deadline = Instant::now() + common::PATIENCE;
    while !ask(exchange_port, "GET /metrics", "").contains("\nbatzen_worker_wirewatch_set_aside 1\n") {
        assert!(Instant::now() < deadline, "the credit is not set aside");
        std::thread::sleep(Duration::from_millis(50));
    }
    let credits = |more: &[&str]| run(&[&["exchange", "credits", "-c", &config][..], more].concat());
    assert!(stderr(&credits(&[])).contains("stop the exchange first"));
    assert!(exchange.terminate().0.success() && bank.terminate().0.success());

    let json = |output: &std::process::Output| -> serde_json::Value {
        serde_json::from_str(&stdout(output)).unwrap()
    };
    let listed = json(&credits(&["--json"]));
    let credit = &listed["set_aside"][0];
    assert_eq!(
        (&credit["credit"], &credit["bank"]["amount"]),
        (&"exchange-account-1/1".into(), &"EUR:5".into())
    );
    assert!(stdout(&credits(&[])).contains("EUR:5 is another currency"));
    let retried = credits(&["--retry-all", "--json"]);
    assert_eq!((retried.status.code(), json(&retried)["set_aside"].as_array().unwrap().len()), (Some(1), 1));
    assert!(
        stderr(&credits(&["--retry", "exchange-account-1/2"])).contains("is called exchange-account-1/2")
    );
    assert!(!credits(&["--dismiss", "exchange-account-1/1"]).status.success(), "it needs a note");
    let dismissed = credits(&["--dismiss", "exchange-account-1/1", "--note", "sent back"]);
    assert!(dismissed.status.success() && stdout(&dismissed).contains("1 settled"), "{}", stderr(&dismissed));
    assert_eq!(json(&credits(&["--json"]))["set_aside"], serde_json::json!([]));
}

/// A tool renames the log file, and sends SIGHUP.
#[test]
fn a_service_opens_its_log_file_again() {
    let dir = tempfile::tempdir().unwrap();
    let port = common::free_port();
    let (log, renamed) = (dir.path().join("bank.txt"), dir.path().join("bank.txt.1"));
    let (text, number) = (log.to_str().unwrap(), port.to_string());
    let words = ["bank", "serve", "--in-memory", "--port", &number, "-L", "INFO", "-l", text];
    let bank = Service::start(dir.path(), "bank", &words);
    wait_for(port, "/taler-bank-integration/config");
    std::fs::rename(&log, &renamed).unwrap();
    bank.signal(1);
    let deadline = Instant::now() + common::PATIENCE;
    while !log.exists() {
        assert!(Instant::now() < deadline, "there is no new log file");
        std::thread::sleep(Duration::from_millis(20));
    }
    register(port, "zoe");
    assert!(bank.terminate().0.success());
    let (before, after) =
        (std::fs::read_to_string(&renamed).unwrap(), std::fs::read_to_string(&log).unwrap());
    assert!(before.contains("the bank is serving") && !before.contains("testing/register"));
    assert!(after.contains("testing/register"), "{after}");
}

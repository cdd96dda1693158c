//! Bank and exchange as services: readiness, worker programs, termination.

use crate::common;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::damage::{assert_damage_is_refused, cut_last, stores_below};
use common::setup::{ask, credit, register, wait_for};
use common::site::Site;
use common::{Service, end, must, must_json, stderr, stdout, until};

#[test]
fn services_start_work_and_end() {
    let site = Site::new("");
    let bank = site.start_bank();
    let exchange = site.start_exchange();
    wait_for(site.exchange_port, "/management/keys");

    // A second service on the same store is refused.
    let other_port = common::free_port().to_string();
    let second = site.run(&["exchange", "serve", "--port", &other_port]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("in use"), "{}", stderr(&second));
    let totals = site.run(&["exchange", "totals"]);
    assert!(!totals.status.success() && stderr(&totals).contains("in use"), "{}", stderr(&totals));

    // Worker programs pass their work to the service.
    for worker in ["wirewatch", "aggregator", "transfer", "closer", "drain"] {
        assert_eq!(must(&["exchange", worker, "-c", &site.config, "-t"]), "", "{worker}");
    }
    // The size of a claim is logged only where it has an effect.
    for worker in ["wirewatch", "transfer"] {
        must(&["exchange", worker, "-c", &site.config, "-t", "-S", "7", "-w", "3"]);
    }
    for (worker, option, value, hint) in
        [("closer", "-S", "7", "-S"), ("aggregator", "-w", "3", "-w"), ("wirewatch", "-S", "0", "--size")]
    {
        let output = site.run(&["exchange", worker, "-t", option, value]);
        assert_eq!(output.status.code(), Some(2), "{worker} {option}");
        assert!(stderr(&output).contains(hint), "{}", stderr(&output));
    }
    let staying = site.start("worker", &["exchange", "transfer"]);

    // Long polls do not delay termination.
    let reserve = "A".repeat(52);
    let mut polling = TcpStream::connect(("127.0.0.1", site.exchange_port)).unwrap();
    write!(polling, "GET /reserves/{reserve}?timeout_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for (name, service) in [("exchange", exchange), ("bank", bank), ("worker", staying)] {
        let (status, time) = service.terminate();
        assert!(status.success(), "{name} ended with {status}");
        // The documentation promises a second on an idle machine; this one may be busy.
        assert!(time < Duration::from_secs(20), "{name} took {time:?} to end");
    }

    // The ports are free at once, and all data is still there.
    let bank = site.start_bank();
    let mut exchange = site.start_exchange();
    exchange.signal(2);
    assert!(exchange.wait().success(), "SIGINT ends it as SIGTERM does");

    // Without a service the workers open the store themselves.
    for worker in ["wirewatch", "aggregator", "transfer", "closer"] {
        must(&["exchange", worker, "-c", &site.config, "--test"]);
    }
    assert!(bank.terminate().0.success());
    let store = site.path("home/exchange/store");
    let store = store.to_str().unwrap();
    for (words, expected) in [
        (&["exchange", "totals", "-c", &site.config][..], "the books add up"),
        (&["store", "verify", store], "sound"),
        (&["store", "inspect", store], "denominations"),
    ] {
        let shown = must(words);
        assert!(shown.contains(expected), "{words:?}: {shown}");
    }
    // Every byte of the journal is counted in one of the lines.
    let facts = must_json(&["store", "inspect", store, "--json", "--frames"]);
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
    let site = Site::new("");
    let (mut bank, mut exchange) = (site.start_bank(), site.start_exchange());
    credit(site.bank_port, 1, 3);
    bank.kill_9();
    exchange.kill_9();
    let home = site.path("home");
    let mut stores = 0;
    for name in ["bank", "exchange"] {
        for store in stores_below(&home.join(name)) {
            assert_damage_is_refused(site.dir.path(), &store, &[name, "serve", "-c", &site.config]);
            stores += 1;
        }
    }
    assert!(stores >= 2, "{stores} stores");
    // Nothing was actually damaged: all data is there.
    end([site.start_bank(), site.start_exchange()]);
    // Without a backup, an operator decides to continue without the last commit.
    cut_last(&home.join("exchange/store"));
    end([site.start_bank(), site.start_exchange()]);
}

/// A receiver that the bank does not know: the operator sees the refused transfer, opens the account, and
/// retries the transfer.
#[test]
fn a_refused_transfer_is_listed_and_retried() {
    let site = Site::new("[bank]\nCREATE_ACCOUNTS = NO\n");
    let bank = site.start_bank();
    register(site.bank_port, "exchange");
    register(site.bank_port, "zoe");
    let exchange = site.start_exchange();

    let payto = "payto://x-taler-bank/localhost/shop?receiver-name=shop";
    site.withdraw("wallet", "KUDOS:5");
    site.must_wallet("wallet", &["deposit", "KUDOS:3", payto, "--yes"]);
    let work_until = |port: u16, request: &str, expected: &str| {
        let deadline = Instant::now() + common::PATIENCE;
        loop {
            for worker in ["aggregator", "transfer"] {
                must(&["exchange", worker, "-c", &site.config, "-t"]);
            }
            let answer = ask(port, request, "");
            if answer.contains(expected) {
                break;
            }
            assert!(Instant::now() < deadline, "no {expected} in {answer}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    work_until(site.exchange_port, "GET /metrics", "\nbatzen_worker_transfer_refused 1\n");
    let transfers = |more: &[&str]| site.run(&[&["exchange", "transfers"][..], more].concat());
    let busy = transfers(&[]);
    assert!(!busy.status.success() && stderr(&busy).contains("stop the exchange first"), "{}", stderr(&busy));
    assert!(exchange.terminate().0.success());

    let listed = |more: &[&str]| {
        must_json(&[&["exchange", "transfers", "-c", &site.config, "--json"][..], more].concat())
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
    register(site.bank_port, "shop");
    assert_eq!(listed(&["--retry", wtid])["retried"], 1);
    assert_eq!(listed(&[])["refused"], serde_json::json!([]));
    assert_eq!(listed(&["--retry-all"])["retried"], 0);

    // The bonus and the payment.
    work_until(site.bank_port, "GET /taler-bank-access/accounts/shop", "\"KUDOS:103\"");
    assert!(bank.terminate().0.success());
}

/// A credit in another currency: the operator sees it, finds that it cannot be booked, and dismisses it.
#[test]
fn a_credit_that_fills_no_reserve_is_listed_and_settled() {
    let site = Site::new("");
    let port = site.bank_port.to_string();
    let bank = ["bank", "serve", "--currency", "EUR", "--in-memory", "--port", &port];
    let bank = Service::start(site.dir.path(), "bank", &bank);
    wait_for(site.bank_port, "/taler-bank-integration/config");
    let gateway = format!("{}taler-wire-gateway/exchange/", site.bank_url());
    let payer = "payto://x-taler-bank/localhost/zoe";
    must(&["bank", "gateway", "--url", &gateway, "add-incoming", "EUR:5", payer]);
    let exchange = site.start_exchange();
    let set_aside = "\nbatzen_worker_wirewatch_set_aside 1\n";
    let is_set_aside = || ask(site.exchange_port, "GET /metrics", "").contains(set_aside);
    until("the credit is not set aside", is_set_aside);
    let credits = |more: &[&str]| site.run(&[&["exchange", "credits"][..], more].concat());
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
    until("there is no new log file", || log.exists());
    register(port, "zoe");
    assert!(bank.terminate().0.success());
    let (before, after) =
        (std::fs::read_to_string(&renamed).unwrap(), std::fs::read_to_string(&log).unwrap());
    assert!(before.contains("the bank is serving") && !before.contains("testing/register"));
    assert!(after.contains("testing/register"), "{after}");
}

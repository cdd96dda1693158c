//! Bank and exchange as services: readiness, worker programs, the end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Service, run, stderr, stdout};

/// The status of a plain HTTP GET; 0 if nobody answers.
fn get(port: u16, path: &str) -> u16 {
    let attempt = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = attempt().unwrap_or_default();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn wait_for(port: u16, path: &str) {
    let deadline = Instant::now() + PATIENCE;
    while get(port, path) != 200 {
        assert!(Instant::now() < deadline, "port {port} does not answer {path}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn config(dir: &Path, bank_port: u16, exchange_port: u16) -> String {
    let coin = |name: &str, value: &str, cipher: &str| {
        format!(
            "[coin_{name}]\nVALUE = KUDOS:{value}\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\n\
             DURATION_LEGAL = 3 years\nFEE_WITHDRAW = KUDOS:0\nFEE_DEPOSIT = KUDOS:0\nFEE_REFRESH = KUDOS:0\n\
             FEE_REFUND = KUDOS:0\n{cipher}\n"
        )
    };
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n\
         [paths]\nTALER_DATA_HOME = {home}\nTALER_RUNTIME_DIR = {home}/run\n\
         [bank]\nHTTP_PORT = {bank_port}\nBIND_TO = 127.0.0.1\nSIGNUP_BONUS = KUDOS:100\n\
         [exchange]\nPORT = {exchange_port}\nBASE_URL = http://localhost:{exchange_port}/\nBIND_TO = 127.0.0.1\n\
         [exchange-standalone]\nENABLED = YES\n\
         [taler-exchange-secmod-rsa]\nLOOKAHEAD_SIGN = 1 day\n[taler-exchange-secmod-cs]\nLOOKAHEAD_SIGN = 1 day\n\
         [taler-exchange-secmod-eddsa]\nLOOKAHEAD_SIGN = 1 day\n\
         [exchange-account-1]\nPAYTO_URI = payto://x-taler-bank/localhost/exchange?receiver-name=exchange\n\
         ENABLE_CREDIT = YES\nENABLE_DEBIT = YES\n\
         [exchange-accountcredentials-1]\nWIRE_GATEWAY_URL = http://localhost:{bank_port}/taler-wire-gateway/exchange/\n\
         {}{}",
        coin("one", "1", "CIPHER = CS"),
        coin("two", "2", "CIPHER = RSA\nRSA_KEYSIZE = 1024"),
        home = dir.join("home").display(),
    );
    let file = dir.join("taler.conf");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

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
}

/// Sends credits to the exchange's account over one connection, each for a reserve of its own.
fn credit(bank_port: u16, first: u16, count: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", bank_port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    for n in first..first + count {
        let mut reserve = [7; 32];
        reserve[..2].copy_from_slice(&n.to_le_bytes());
        let body = format!(
            "{{\"reserve_pub\":\"{}\",\"amount\":\"KUDOS:1.25\",\
             \"debit_account\":\"payto://x-taler-bank/localhost/c{n}?receiver-name=c{n}\"}}",
            batzen_crypto::base32::encode(&reserve)
        );
        // One write: parts would wait for each other's acknowledgements.
        let request = format!(
            "POST /taler-wire-gateway/exchange/admin/add-incoming HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let mut part = [0; 1024];
            let read = stream.read(&mut part).unwrap();
            assert_ne!(read, 0, "the bank answers");
            answer.extend_from_slice(&part[..read]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}

/// Worker programs are killed at any moment, also in the middle of a page, and started again: nothing is lost, nothing comes
/// twice, and nothing is left that keeps the next one waiting.
#[test]
fn worker_programs_are_killed_and_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, exchange_port) = (common::free_port(), common::free_port());
    let config = config(dir.path(), bank_port, exchange_port);
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    // The exchange makes its keys, and ends.
    let exchange =
        Service::start(dir.path(), "exchange", &["exchange", "serve", "-c", &config, "--no-workers"]);
    wait_for(exchange_port, "/wire");
    assert!(exchange.terminate().0.success());
    let (mut credits, mut pause_ms) = (0, 30);
    for round in 0..6 {
        credit(bank_port, credits, 400);
        credits += 400;
        for worker in ["wirewatch", "aggregator", "transfer", "closer"] {
            let mut program = Service::start(
                dir.path(),
                worker,
                &["exchange", worker, "-c", &config, "-t", "-S", "1", "-w", "0"],
            );
            std::thread::sleep(Duration::from_millis(pause_ms));
            program.kill_9();
            // From before the store is open to after the end of the work, whatever the machine.
            pause_ms = pause_ms * (13 + round) / 10 % 1_500;
        }
    }
    for worker in ["wirewatch", "aggregator", "transfer", "closer"] {
        let output = run(&["exchange", worker, "-c", &config, "-t"]);
        assert!(output.status.success(), "{worker}: {}", stderr(&output));
    }
    let totals = run(&["exchange", "totals", "-c", &config, "--json"]);
    assert!(totals.status.success(), "{}", stderr(&totals));
    let totals: serde_json::Value = serde_json::from_str(&stdout(&totals)).unwrap();
    let expected = (u32::from(credits) * 5 / 4).to_string();
    assert_eq!(totals["wired_in"], expected, "{totals}");
    assert_eq!(totals["reserves"], expected, "{totals}");
    assert!(bank.terminate().0.success());
}

//! Garbage collection with the real programs: `dbinit -g` on an embedded store, in the running service, and on
//! PostgreSQL.

use crate::common;

use std::path::Path;
use std::process::Output;

use batzen_testkit::postgres::fresh_database;
use common::setup::{config_with, credit, register, wait_for};
use common::{Service, isolated, must, must_json, run, stderr, stdout};
use serde_json::Value;

const DAY_US: u64 = 86_400_000_000;
/// After this time, reserves have expired.
const DAYS_40: u64 = 40 * DAY_US;
/// After this time, reserves need not be kept any more, and denominations are forgotten.
const YEARS_9: u64 = 9 * 365 * DAY_US;
/// Number of reserves that are closed.
const CLOSED: u16 = 30;

/// An exchange that is not running, with a withdrawal and reserves that were closed.
struct Books {
    dir: tempfile::TempDir,
    config: String,
    bank_port: u16,
    exchange_port: u16,
    bank: Service,
}

impl Books {
    fn new(store: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (bank_port, exchange_port) = (common::free_port(), common::free_port());
        let config = config_with(dir.path(), (bank_port, bank_port), exchange_port, store);
        let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
        wait_for(bank_port, "/taler-bank-integration/config");
        must(&["exchange", "dbinit", "-c", &config]);
        // This also opens the exchange's account.
        credit(bank_port, 0, CLOSED);
        let books = Self { dir, config, bank_port, exchange_port, bank };
        let exchange = books.serve();
        let file = books.dir.path().join("wallet.db");
        let (exchange_url, bank_url) =
            (format!("http://localhost:{exchange_port}/"), format!("http://localhost:{bank_port}/"));
        let withdraw = ["withdraw", "--yes", "--amount", "KUDOS:5", "--exchange", &exchange_url];
        register(bank_port, "zoe");
        let login = ["--bank", &bank_url, "--user", "zoe", "--password", "zoe"];
        let words = [&["wallet", "--wallet", file.to_str().unwrap()][..], &withdraw, &login];
        must(&words.concat());
        assert!(exchange.terminate().0.success());
        books.work("wirewatch", 0);
        books.work("closer", DAYS_40);
        books.work("transfer", DAYS_40);
        books
    }

    fn serve(&self) -> Service {
        let exchange =
            Service::start(self.dir.path(), "exchange", &["exchange", "serve", "-c", &self.config]);
        wait_for(self.exchange_port, "/keys");
        exchange
    }

    fn work(&self, worker: &str, later_us: u64) {
        must(&["exchange", worker, "-t", "-c", &self.config, "-T", &later_us.to_string()]);
    }

    /// The auditor finds nothing in the exchange's rows at a later time.
    fn audit(&self, later_us: u64) {
        let secret = std::fs::read(self.dir.path().join("home/exchange-offline/master.priv")).unwrap();
        let master = batzen_crypto::EddsaPrivateKey::from_bytes(secret.try_into().unwrap()).public_key();
        let (master, later) = (master.to_string(), later_us.to_string());
        let words = ["auditor", "run", "-c", &self.config, "-m", &master, "-T", &later, "--json"];
        let output = run(&[&words[..], &["--no-bank", "--no-confirmations"]].concat());
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    }

    fn totals(&self) -> Value {
        must_json(&["exchange", "totals", "-c", &self.config, "--json"])
    }

    /// Collects garbage at a later time. Returns how many transfers, reserves and locks were removed.
    fn collect(&self, later_us: u64) -> [u64; 3] {
        let later = later_us.to_string();
        removed(&must_json(&["exchange", "dbinit", "-g", "--json", "-c", &self.config, "-T", &later]))
    }
}

fn removed(facts: &Value) -> [u64; 3] {
    ["transfers", "reserves", "nonces"].map(|kind| facts["collected"][kind]["removed"].as_u64().unwrap())
}

/// Runs a program by its old name.
fn by_old_name(dir: &Path, name: &str, arguments: &[&str]) -> Output {
    let program = dir.join(name);
    std::os::unix::fs::symlink(common::batzen_path(), &program).unwrap();
    isolated(&program).args(arguments).output().unwrap()
}

fn garbage_is_collected(store: &str) {
    let books = Books::new(store);
    let before = books.totals();
    assert_eq!(before["wired_in"], (f64::from(CLOSED) * 1.25 + 5.0).to_string(), "{before}");
    assert_eq!(books.collect(0), [0, 0, 0], "everything is young");
    assert_eq!(books.collect(DAYS_40 + 2 * DAY_US)[..2], [CLOSED.into(), 0]);
    assert_eq!(books.totals(), before);

    let later = YEARS_9.to_string();
    let arguments = ["-g", "-c", &books.config, "-T", &later];
    let output = by_old_name(books.dir.path(), "taler-exchange-dbinit", &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    let reserves = table.lines().find(|line| line.starts_with("reserves")).unwrap();
    let counts: Vec<u64> = reserves.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
    let all = u64::from(CLOSED) + 1;
    assert_eq!(counts[..2], [all, all], "{table}");
    assert!(counts[2] >= 3 * all, "with credits, closings or withdrawals: {table}");
    assert_eq!(books.totals(), before);
    assert_eq!(books.collect(YEARS_9), [0, 0, 0], "it is all gone");
    books.audit(YEARS_9);

    // The service works, and collects garbage itself if it has the store open.
    let exchange = books.serve();
    assert_eq!(books.collect(0), [0, 0, 0]);
    assert!(exchange.terminate().0.success());
    // The bank's old rows are not imported again, but new ones are.
    books.work("wirewatch", 0);
    assert_eq!(books.totals(), before);
    credit(books.bank_port, CLOSED, 4);
    for (worker, later_us) in [("wirewatch", 0), ("closer", DAYS_40), ("transfer", DAYS_40)] {
        books.work(worker, later_us);
    }
    let after = books.totals();
    for term in ["wired_in", "wired_out"] {
        let number = |totals: &Value| totals[term].as_str().unwrap().parse::<f64>().unwrap();
        assert!((number(&after) - number(&before) - 5.0).abs() < 0.1, "{term}: {before} {after}");
    }
    assert_eq!(after["reserves"], before["reserves"]);
    assert!(books.bank.terminate().0.success());
}

#[test]
fn garbage_is_collected_from_an_embedded_store() {
    garbage_is_collected("");
}

#[test]
fn garbage_is_collected_from_postgresql() {
    let url = fresh_database();
    garbage_is_collected(&format!("[exchange]\nDB = postgres\n[exchangedb-postgres]\nCONFIG = \"{url}\"\n"));
}

#[test]
fn collecting_needs_the_configuration() {
    let url = fresh_database();
    let output = run(&["exchange", "dbinit", "-g", "--database", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("needs the exchange's configuration"), "{}", stderr(&output));
    // Nothing was created.
    let maintain = run(&["exchange", "maintain", "--database", &url]);
    assert_eq!(maintain.status.code(), Some(1));
}

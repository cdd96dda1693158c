//! Garbage collection with the real programs: `dbinit -g` on an embedded store, in the running service, and on
//! PostgreSQL.

use crate::common;

use batzen_testkit::postgres::fresh_database;
use common::setup::{credit, on_database, register};
use common::site::Site;
use common::{Service, by_name, must, must_json, run, stderr, stdout};
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
    site: Site,
    bank: Service,
}

impl Books {
    fn new(store: &str) -> Self {
        let site = Site::new(store);
        let bank = site.start_bank();
        must(&["exchange", "dbinit", "-c", &site.config]);
        // This also opens the exchange's account.
        credit(site.bank_port, 0, CLOSED);
        let exchange = site.start_exchange();
        register(site.bank_port, "zoe");
        site.withdraw("wallet", "KUDOS:5");
        assert!(exchange.terminate().0.success());
        site.work("wirewatch", 0);
        site.work("closer", DAYS_40);
        site.work("transfer", DAYS_40);
        Self { site, bank }
    }

    fn totals(&self) -> Value {
        self.site.totals()
    }

    /// Collects garbage at a later time. Returns how many transfers, reserves and locks were removed.
    fn collect(&self, later_us: u64) -> [u64; 3] {
        let later = later_us.to_string();
        removed(&must_json(&["exchange", "dbinit", "-g", "--json", "-c", &self.site.config, "-T", &later]))
    }
}

fn removed(facts: &Value) -> [u64; 3] {
    ["transfers", "reserves", "nonces"].map(|kind| facts["collected"][kind]["removed"].as_u64().unwrap())
}

fn garbage_is_collected(store: &str) {
    let books = Books::new(store);
    let before = books.totals();
    assert_eq!(before["wired_in"], (f64::from(CLOSED) * 1.25 + 5.0).to_string(), "{before}");
    assert_eq!(books.collect(0), [0, 0, 0], "everything is young");
    assert_eq!(books.collect(DAYS_40 + 2 * DAY_US)[..2], [CLOSED.into(), 0]);
    assert_eq!(books.totals(), before);

    let later = YEARS_9.to_string();
    let arguments = ["-g", "-c", &books.site.config, "-T", &later];
    let mut program = by_name(books.site.dir.path(), "taler-exchange-dbinit");
    let output = program.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    let reserves = table.lines().find(|line| line.starts_with("reserves")).unwrap();
    let counts: Vec<u64> = reserves.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
    let all = u64::from(CLOSED) + 1;
    assert_eq!(counts[..2], [all, all], "{table}");
    assert!(counts[2] >= 3 * all, "with credits, closings or withdrawals: {table}");
    assert_eq!(books.totals(), before);
    assert_eq!(books.collect(YEARS_9), [0, 0, 0], "it is all gone");
    // The auditor finds nothing in the exchange's rows at a later time.
    let (audited, report) = books.site.audit(YEARS_9);
    assert!(audited.status.success(), "{report:#}{}", stderr(&audited));

    // The service works, and collects garbage itself if it has the store open.
    let exchange = books.site.start_exchange();
    assert_eq!(books.collect(0), [0, 0, 0]);
    assert!(exchange.terminate().0.success());
    // The bank's old rows are not imported again, but new ones are.
    books.site.work("wirewatch", 0);
    assert_eq!(books.totals(), before);
    credit(books.site.bank_port, CLOSED, 4);
    for (worker, later_us) in [("wirewatch", 0), ("closer", DAYS_40), ("transfer", DAYS_40)] {
        books.site.work(worker, later_us);
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
    garbage_is_collected(&on_database(&fresh_database()));
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

//! Archives with the real programs: on an embedded store while the exchange is stopped, and on PostgreSQL while it
//! runs.

use crate::common;

use std::path::Path;

use batzen_testkit::postgres::fresh_database;
use common::setup::{credit, on_database, register};
use common::site::Site;
use common::{Service, must, must_json, run, stderr, stdout};
use serde_json::Value;

const DAY_US: u64 = 86_400_000_000;
/// After this time, deposits are due.
const DAYS_40: u64 = 40 * DAY_US;
/// After this time, denominations are forgotten.
const YEARS_9: u64 = 9 * 365 * DAY_US;
/// After this time, archives need not be kept any more.
const YEARS_20: u64 = 20 * 365 * DAY_US;
/// A day after all this.
const FAR: &str = "2100-01-01";
const PAYTO: &str = "payto://x-taler-bank/localhost/shop?receiver-name=shop";
/// A wallet that pays, and one whose coins wait.
const WALLETS: [&str; 2] = ["payer", "saver"];

/// An exchange that is not running, where one wallet has paid a part of its money to a merchant.
struct Books {
    site: Site,
    bank: Service,
}

impl Books {
    fn new(store: &str) -> Self {
        let site = Site::new(store);
        let bank = site.start_bank();
        must(&["exchange", "dbinit", "-c", &site.config]);
        // This opens the exchange's account.
        credit(site.bank_port, 0, 1);
        let exchange = site.start_exchange();
        for user in ["zoe", "shop"] {
            register(site.bank_port, user);
        }
        for wallet in WALLETS {
            site.withdraw(wallet, "KUDOS:10");
        }
        site.must_wallet(WALLETS[0], &["deposit", "--yes", "KUDOS:3.37", PAYTO]);
        assert!(exchange.terminate().0.success());
        for worker in ["aggregator", "transfer"] {
            site.work(worker, DAYS_40);
        }
        Self { site, bank }
    }

    /// Starts the exchange. Money must not move by itself.
    fn serve(&self) -> Service {
        self.site.serve_exchange(&["--no-workers"])
    }

    fn totals(&self) -> Value {
        self.site.totals()
    }

    /// The auditor finds nothing in the exchange's rows at a later time, except that nobody has closed a reserve since. The
    /// exchange must not run, unless it is on PostgreSQL.
    fn audit(&self, later_us: u64) {
        let (_, report) = self.site.audit(later_us);
        let found = report["findings"].as_array().unwrap();
        assert!(found.iter().all(|finding| finding["rule"] == "reserve-not-closed"), "{report:#}");
        assert_eq!(report["difference"], "KUDOS:0");
    }

    fn archive(&self, command: &str, later_us: u64, more: &[&str]) -> std::process::Output {
        let later = later_us.to_string();
        let words = ["exchange", "archive", command, "-c", &self.site.config, "-T", &later, "--json"];
        run(&[&words[..], more].concat())
    }

    fn archived(&self, command: &str, later_us: u64, more: &[&str]) -> Value {
        let output = self.archive(command, later_us, more);
        assert!(output.status.success(), "{command}: {}{}", stdout(&output), stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    fn refused(&self, command: &str, later_us: u64, more: &[&str], words: &str) {
        let output = self.archive(command, later_us, more);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
}

fn left(facts: &Value, kind: &str) -> u64 {
    facts[kind]["left"].as_u64().unwrap()
}

fn old_coins_are_archived(books: &Books, is_running: bool) {
    let why = ["--before", FAR, "--reason", "the law"];
    let before = books.totals();
    let young = books.archived("run", 0, &why);
    assert_eq!((&young["run"], left(&young, "coins")), (&Value::Null, 0));
    let seen = young["coins"]["seen"].as_u64().unwrap();
    assert_eq!(young["coins"]["stay"]["young"].as_u64(), Some(seen));

    // A service that runs meanwhile.
    let exchange = is_running.then(|| books.serve());
    let early = books.archived("run", YEARS_9, &["--before", "2026-01-01", "--reason", "the clock is wrong"]);
    assert_eq!((&early["run"], left(&early, "coins")), (&Value::Null, 0));
    let trial = books.archived("run", YEARS_9, &["--before", FAR, "--reason", "a trial", "--dry-run"]);
    assert_eq!((&trial["run"], &trial["dry_run"]), (&Value::Null, &Value::Bool(true)));
    let moved = books.archived("run", YEARS_9, &why);
    assert_eq!((moved["run"].as_u64(), moved["rows"].as_u64()), (Some(1), trial["rows"].as_u64()));
    assert_eq!((left(&moved, "transfers"), left(&moved, "coins")), (1, seen), "{moved}");
    assert_eq!(moved["tables"], trial["tables"]);
    if let Some(exchange) = exchange {
        assert!(exchange.terminate().0.success());
    }
    assert_eq!(books.totals(), before, "no sum changes");
    books.audit(YEARS_9);
    let again = books.archived("run", YEARS_9, &why);
    assert_eq!((&again["run"], again["coins"]["seen"].as_u64()), (&Value::Null, Some(0)));

    // The archive is a store, and complete by its own records and those of the exchange.
    let dir = moved["directory"].as_str().unwrap();
    must(&["store", "verify", dir]);
    let inspected = must_json(&["store", "inspect", dir, "--json"]);
    assert_eq!(inspected["tables"]["coins"]["written"].as_u64(), Some(seen), "{inspected}");
    let own = must_json(&["exchange", "archive", "verify", dir, "--json"]);
    let both = books.archived("verify", YEARS_9, &["--run", "1"]);
    assert_eq!((&own["complete"], &own["digest"]), (&Value::Bool(true), &both["digest"]));
    assert_eq!(both["reason"], "the law");
    let copy = books.site.path("copy");
    copy_dir(Path::new(dir), &copy);

    // Money that was paid, and money that was not, can be spent no more, even by a clock that is nine years late.
    let exchange = books.serve();
    for wallet in WALLETS {
        let output = books.site.wallet(wallet, &["deposit", "--yes", "KUDOS:2", PAYTO]);
        assert!(!output.status.success(), "{wallet}: {}", stdout(&output));
    }
    assert!(exchange.terminate().0.success());
    assert_eq!(books.totals(), before);

    // It is kept as long as it must be.
    books.refused("drop", YEARS_9, &["--before", "2099-01-01", "--reason", "x"], "must be kept");
    let none = books.archived("drop", YEARS_20, &["--before", "2026-01-01", "--reason", "it is old"]);
    assert_eq!(none["dropped"].as_array().map(Vec::len), Some(0), "{none}");
    assert!(Path::new(dir).is_dir());
    let list = must_json(&["exchange", "archive", "list", "-c", &books.site.config, "--json"]);
    let ended = list["runs"][0]["finished"].as_str().unwrap();
    let year: u64 = ended[..4].parse().unwrap();
    let dropped = books.archived(
        "drop",
        YEARS_20,
        &["--before", &format!("{}-01-01", year + 1), "--reason", "it is old"],
    );
    assert_eq!(dropped["dropped"][0]["run"].as_u64(), Some(1), "{dropped}");
    assert!(!Path::new(dir).exists());
    assert_eq!(books.totals(), before, "the records stay");
    let list = must_json(&["exchange", "archive", "list", "-c", &books.site.config, "--json"]);
    assert_eq!(list["runs"][0]["drop_reason"], "it is old");
    assert_eq!(list["runs"][0]["rows"], moved["rows"]);
    // The copy at the auditor's still proves what it was.
    let copied = must_json(&["exchange", "archive", "verify", copy.to_str().unwrap(), "--json"]);
    assert_eq!((&copied["complete"], &copied["digest"]), (&Value::Bool(true), &own["digest"]));
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn old_coins_leave_an_embedded_store() {
    let books = Books::new("");
    let exchange = books.serve();
    books.refused("run", YEARS_9, &["--before", FAR, "--reason", "x"], "stop the exchange first");
    assert!(exchange.terminate().0.success());
    old_coins_are_archived(&books, false);
    assert!(books.bank.terminate().0.success());
}

#[test]
fn old_coins_leave_postgresql_while_the_exchange_runs() {
    let books = Books::new(&on_database(&fresh_database()));
    old_coins_are_archived(&books, true);
    assert!(books.bank.terminate().0.success());
}

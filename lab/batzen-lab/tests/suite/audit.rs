//! `batzen auditor run` and the protocol's six checks, on the books of a round of the demonstration.

use std::path::Path;
use std::process::Output;

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::Money;
use batzen_service::storage::{EXCHANGE, StoreConfig};
use batzen_store::{ChangeSet, CommitOutcome};
use batzen_tables::exchange::{DepositRow, Deposits};
use serde_json::Value;

use batzen_testkit::process::{batzen, stderr, stdout};

use crate::commands::printed;

/// The books of a round, and a configuration for their auditor.
struct Books {
    dir: tempfile::TempDir,
}

impl Books {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let words = ["demo", "--once", "--json", "--rsa-bits", "1024", "--data"];
        let results = printed(batzen().args(words).arg(&data));
        let secret = std::fs::read(data.join("exchange/offline/master.priv")).unwrap();
        let master = EddsaPrivateKey::from_bytes(secret.try_into().unwrap()).public_key();
        let text = format!(
            "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n\
             [paths]\nTALER_DATA_HOME = {home}\n\
             [exchange]\nBASE_URL = {url}\nMASTER_PUBLIC_KEY = {master}\n\
             [exchangedb-embedded]\nDIR = {store}\n",
            home = dir.path().display(),
            url = results["exchange"].as_str().unwrap(),
            store = data.join("exchange/store").display(),
        );
        std::fs::write(dir.path().join("auditor.conf"), text).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn auditor(&self, words: &[&str]) -> Output {
        let mut command = batzen();
        command.arg("auditor").args(words).arg("-c").arg(self.path("auditor.conf"));
        command.output().unwrap()
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Takes a hundredth off a deposit.
fn tamper(dir: &Path) {
    let store = StoreConfig::embedded(dir.to_owned()).open(&EXCHANGE, 1).unwrap();
    let is_enough = |found: &batzen_store::Found<Deposits>| found.row.amount.units() > 1_000_000;
    let found = store.all::<Deposits>().unwrap().into_iter().find(is_enough).unwrap();
    let amount = found.row.amount.checked_sub(Money::from_units(1_000_000).unwrap()).unwrap();
    let mut changes = ChangeSet::new();
    changes.update::<Deposits>(&found.key, &found.row, &DepositRow { amount, ..found.row.clone() });
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    store.close().unwrap();
}

#[test]
fn the_books_of_a_round_are_right_until_somebody_changes_them() {
    let books = Books::new();
    let (page, table) = (books.path("audit.html"), books.path("audit.csv"));
    let files = [page.to_str().unwrap(), table.to_str().unwrap()];
    let words = ["run", "--no-bank", "--json", "--html", files[0], "--csv", files[1]];
    let output = books.auditor(&words);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let result: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(result["ok"], true);
    assert_eq!(result["difference"], "KUDOS:0");
    assert!(result["rows"].as_u64().unwrap() > 100 && result["signatures"].as_u64().unwrap() > 50);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("No finding") && page.contains("id=\"denominations\""));
    assert!(std::fs::read_to_string(table).unwrap().starts_with("severity,check,rule,"));
    let text = stdout(&books.auditor(&["run", "--no-bank"]));
    // What was not read is not right.
    assert!(text.contains("no finding in the rows, but the bank was not checked"), "{text}");
    assert_eq!(result["verdict"], "bank-not-checked");

    // The protocol's checks, by their members.
    for (check, members) in [
        ("aggregation", &["wire_out_inconsistencies", "total_aggregation_fee_income"][..]),
        ("coins", &["emergencies", "refresh_hanging", "total_escrow_balance", "irregular_loss"]),
        ("deposits", &["missing_deposit_confirmation_count"]),
        ("purses", &["purse_not_closed_inconsistencies", "total_purse_count"]),
        ("reserves", &["reserve_not_closed_inconsistencies", "total_withdraw_fee_income"]),
    ] {
        let output = books.auditor(&["check", check, "--internal"]);
        assert!(output.status.success(), "{check}: {}", stderr(&output));
        let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
        for member in members {
            assert!(object.get(member).is_some(), "{check}: {member} is missing: {object:#}");
        }
        for (name, list) in object.as_object().unwrap() {
            let may_have = name == "refresh_hanging";
            assert!(may_have || list.as_array().is_none_or(Vec::is_empty), "{check}: {name}: {list:#}");
        }
    }

    let changed = books.path("changed");
    copy(&books.path("data/exchange/store"), &changed);
    tamper(&changed);
    let output = books.auditor(&["run", "--no-bank", "--json", "--data", changed.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}{}", stdout(&output), stderr(&output));
    let result: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let rules: Vec<&str> =
        result["findings"].as_array().unwrap().iter().map(|found| found["rule"].as_str().unwrap()).collect();
    assert!(rules.contains(&"deposit-signature") && rules.contains(&"coin-remaining"), "{rules:?}");
    assert_eq!(result["ok"], false);

    // Without a store or a bank, the error says what to do.
    let output = books.auditor(&["run", "--no-bank", "--data", books.path("nothing").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("there is no store"), "{}", stderr(&output));
}

//! An auditor who follows the exchange of a deployment.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Output;

use batzen_protocol::Money;
use batzen_store::{ChangeSet, CommitOutcome, Store};
use batzen_tables::exchange::{AUDITED, DepositRow, Deposits};
use serde_json::Value;
use tokio::task::block_in_place;

use crate::common::setup::keygen;
use crate::common::{self, Service, stderr, stdout};
use crate::crash::deployment::Deployment;

/// The place of a row: table and key.
pub(crate) type RowKey = (u16, Vec<u8>);

/// The keys and the address of a serial stream: what the exchange's configuration needs, and what the auditor's needs.
pub(crate) fn stream(deployment: &Deployment) -> [String; 2] {
    let (exchange_key, auditor_key) = (deployment.path("exchange-feed.key"), deployment.path("auditor.key"));
    let (exchange_pub, auditor_pub) = (keygen(&exchange_key), keygen(&auditor_key));
    let socket = deployment.path("feed.sock");
    [
        format!(
            "[exchange-feed]\nLISTEN = unix://{socket}\nKEY_FILE = {exchange_key}\nAUDITORS = {auditor_pub}\n"
        ),
        format!("EXCHANGE = unix://{socket}\nEXCHANGE_KEY = {exchange_pub}\nKEY_FILE = {auditor_key}\n"),
    ]
}

/// Writes the configuration of an auditor of a running exchange, and returns its path. `more`: where the rows are, and
/// how the exchange is followed.
pub(crate) async fn configure(deployment: &Deployment, more: &str) -> String {
    let (config, home) = (deployment.path("auditor.conf"), deployment.path("auditor"));
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n[paths]\nTALER_DATA_HOME = {home}\n\
         [exchange]\nBASE_URL = {}\nMASTER_PUBLIC_KEY = {}\n{more}",
        deployment.exchange_url(),
        deployment.master_key().await,
    );
    std::fs::write(&config, text).unwrap();
    config
}

/// Runs a command of the auditor.
pub(crate) fn auditor(config: &str, words: &[&str]) -> Output {
    block_in_place(|| common::batzen().arg("auditor").args(words).args(["-c", config]).output().unwrap())
}

/// The JSON that a command prints, which must exit with this code.
#[track_caller]
pub(crate) fn json(config: &str, code: i32, words: &[&str]) -> Value {
    let output = auditor(config, &[words, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}{}", stdout(&output), stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that must succeed, and returns what it says.
#[track_caller]
pub(crate) fn must(config: &str, words: &[&str]) -> String {
    let output = auditor(config, words);
    assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output) + &stderr(&output)
}

/// Runs a command that must fail, and returns why it did.
#[track_caller]
pub(crate) fn refused(config: &str, words: &[&str]) -> String {
    let output = auditor(config, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {}{}", stdout(&output), stderr(&output));
    stderr(&output)
}

/// Starts a command of the auditor that follows the exchange.
pub(crate) fn start(deployment: &Deployment, config: &str, command: &str) -> Service {
    Service::start(Path::new(&deployment.path("")), "auditor", &["auditor", command, "-c", config])
}

/// Checks that increments equal a check of all rows, which is returned.
#[track_caller]
pub(crate) fn increments_equal_the_whole(config: &str) -> Value {
    let [followed, whole] =
        [json(config, 0, &["run", "--no-bank"]), json(config, 0, &["run", "--no-bank", "--whole"])];
    for member in ["ok", "sheet", "denominations", "purses_open", "overdue", "difference"] {
        assert_eq!(followed[member], whole[member], "{member}");
    }
    whole
}

/// The rules of all findings.
pub(crate) fn rules(report: &Value) -> Vec<&str> {
    let stories = report["tracked"].as_array().unwrap();
    stories.iter().map(|story| story["rule"].as_str().unwrap()).collect()
}

/// The audited rows of a store, which is closed.
pub(crate) fn rows(store: &Store) -> BTreeMap<RowKey, Vec<u8>> {
    let mut rows = BTreeMap::new();
    for table in AUDITED {
        let visit = &mut |record: batzen_store::RawRecord| {
            rows.insert((table.id, record.key), record.row);
            ControlFlow::Continue(())
        };
        store.backend().scan(table, visit).unwrap();
    }
    store.close().unwrap();
    rows
}

/// Takes a hundredth off a deposit, as somebody with access to the exchange's store could.
pub(crate) fn tamper(store: &Store) {
    let hundredth = Money::from_units(1_000_000).unwrap();
    tamper_with(store, |row| DepositRow { amount: row.amount.checked_sub(hundredth).unwrap(), ..row });
}

/// Changes a deposit, as somebody with access to the exchange's store could.
pub(crate) fn tamper_with(store: &Store, change: impl Fn(DepositRow) -> DepositRow) {
    let found = store.all::<Deposits>().unwrap().into_iter().next().unwrap();
    let mut changes = ChangeSet::new();
    changes.update::<Deposits>(&found.key, &found.row, &change(found.row.clone()));
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    store.close().unwrap();
}

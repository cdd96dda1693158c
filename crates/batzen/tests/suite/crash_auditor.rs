//! An auditor follows an exchange under load while both are killed with `kill -9`. In the end both have the same
//! audited rows, and an exchange that is restored from an older backup is caught.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5), `BATZEN_SOAK_SEED` repeats the choices of an earlier run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use batzen_service::storage::StoreConfig;
use batzen_store::{Feed, FeedCursor, Store};
use batzen_tables::exchange::AUDITED;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::common::{self, PATIENCE, Service};
use crate::crash::customers::Load;
use crate::crash::deployment::{Deployment, EXCHANGE_STORE};
use crate::crash::run::{self, cycles, watch};

const CUSTOMERS: usize = 4;

type RowKey = (u16, Vec<u8>);

/// An auditor's files and process.
struct Auditor {
    config: String,
    store: String,
    process: Option<Service>,
}

impl Auditor {
    /// Creates the keys of both sides, and configures them.
    fn new(deployment: &mut Deployment) -> Self {
        let (exchange_key, auditor_key) =
            (deployment.path("exchange-feed.key"), deployment.path("auditor.key"));
        let keygen = |file: &str| {
            let output = common::batzen().args(["signer", "keygen", file]).output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let (exchange_pub, auditor_pub) = (keygen(&exchange_key), keygen(&auditor_key));
        let socket = deployment.path("feed.sock");
        deployment.configure(&format!(
            "[exchange-feed]\nLISTEN = unix://{socket}\nKEY_FILE = {exchange_key}\nAUDITORS = {auditor_pub}\n"
        ));
        let (config, store) = (deployment.path("auditor.conf"), deployment.path("auditor"));
        let text = format!(
            "[auditor-feed]\nEXCHANGE = unix://{socket}\nEXCHANGE_KEY = {exchange_pub}\nKEY_FILE = {auditor_key}\n\
             [auditordb-embedded]\nDIR = {store}\n"
        );
        std::fs::write(&config, text).unwrap();
        Self { config, store, process: None }
    }

    /// Tells the auditor which exchange it audits, so that it checks what it copies.
    async fn name_exchange(&self, url: &str) {
        let keys: Value = run::client().get_json(format!("{url}keys")).await.unwrap().ok().unwrap();
        let more = format!(
            "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n[paths]\nTALER_DATA_HOME = {}\n\
             [exchange]\nBASE_URL = {url}\nMASTER_PUBLIC_KEY = {}\n",
            self.store,
            keys["master_public_key"].as_str().unwrap()
        );
        let text = std::fs::read_to_string(&self.config).unwrap();
        std::fs::write(&self.config, text + &more).unwrap();
    }

    /// Checks the copy. Returns the report.
    fn run(&self, more: &[&str]) -> Value {
        let words = [&["auditor", "run", "-c", &self.config, "--no-bank", "--json"][..], more].concat();
        let output = common::batzen().args(words).output().unwrap();
        assert!(output.status.success(), "{}{}", common::stdout(&output), common::stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn start(&mut self, dir: &Path) {
        let arguments = ["auditor", "sync", "-c", &self.config];
        self.process = Some(Service::start(dir, "auditor", &arguments));
    }

    fn kill(&mut self) {
        self.process.take().unwrap().kill_9();
    }

    fn stop(&mut self) {
        let (status, _) = self.process.take().unwrap().terminate();
        assert!(status.success(), "{status}");
    }

    /// Catches up with the exchange, and compares all rows with it. Returns the exit code and the report.
    fn sync_once(&self) -> (Option<i32>, Value) {
        let arguments = ["auditor", "sync", "-c", &self.config, "--once", "--compare", "--json"];
        let output = common::batzen().args(arguments).output().unwrap();
        let report = serde_json::from_slice(&output.stdout);
        (
            output.status.code(),
            report.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr))),
        )
    }

    fn open(&self) -> Store {
        StoreConfig::embedded(self.store.clone().into())
            .open(&batzen_service::storage::AUDITOR_COPY, 1)
            .unwrap()
    }
}

fn rows(store: &Store) -> BTreeMap<RowKey, Vec<u8>> {
    let mut rows = BTreeMap::new();
    for table in AUDITED {
        let visit = &mut |record: batzen_store::RawRecord| {
            rows.insert((table.id, record.key), record.row);
            ControlFlow::Continue(())
        };
        store.backend().scan(table, visit).unwrap();
    }
    rows
}

/// The rows that an exchange has changed from a position on.
fn changed_since(store: &Store, next: u64) -> BTreeSet<RowKey> {
    let mut cursor = FeedCursor::before(next);
    let mut changed = BTreeSet::new();
    let feed = store.feed().unwrap();
    while cursor.next() < feed.end() {
        let Feed::Frames(frames) = feed.read(&mut cursor, AUDITED, 1 << 20).unwrap() else {
            panic!("the exchange holds what the auditor does not have")
        };
        let changes = frames.into_iter().flat_map(|frame| frame.changes);
        changed.extend(changes.map(|change| (change.table.id, change.key)));
    }
    changed
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Lets the load run until some payments more are acknowledged.
pub(crate) async fn watch_payments(deployment: &mut Deployment, load: &Load, customers: &mut JoinSet<()>) {
    let (before, deadline) = (load.log.acknowledged(), Instant::now() + PATIENCE);
    while load.log.acknowledged() < before + 20 {
        assert!(Instant::now() < deadline, "the exchange does nothing");
        watch(deployment, customers, 50).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auditor_follows_through_kills_and_notices_a_restored_backup() {
    let mut dice = run::dice();
    let mut deployment = Deployment::new(run::client());
    let mut auditor = Auditor::new(&mut deployment);
    let dir = deployment.path("");
    let dir = Path::new(&dir);
    let (exchange_dir, backup) = (dir.join(EXCHANGE_STORE), dir.join("backup"));
    deployment.start_bank().await;
    deployment.start_exchange().await;
    auditor.name_exchange(&deployment.exchange_url()).await;
    auditor.start(dir);
    let load = Arc::new(Load::new(run::client(), &deployment.exchange_url(), &deployment.bank_url()).await);
    let mut customers = JoinSet::new();
    for _ in 0..CUSTOMERS {
        customers.spawn(Arc::clone(&load).customer(dice.child()));
    }
    // By then the auditor has checked the first changes, also on a busy machine.
    for _ in 0..3 {
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    watch(&mut deployment, &mut customers, 2_000).await;
    let first_kill =
        batzen_protocol::Timestamp::from_system_time(std::time::SystemTime::now()).as_secs().unwrap() + 1;
    for cycle in 1..=cycles() {
        watch(&mut deployment, &mut customers, dice.below(1_000)).await;
        let (kills_exchange, kills_auditor) =
            [(true, false), (false, true), (true, true)][usize::try_from(dice.below(3)).unwrap()];
        if kills_auditor {
            auditor.kill();
        }
        if kills_exchange || cycle == 1 {
            deployment.kill_exchange();
            if cycle == 1 {
                copy(&exchange_dir, &backup);
            }
            deployment.start_exchange().await;
        }
        if kills_auditor {
            auditor.start(dir);
        }
        watch_payments(&mut deployment, &load, &mut customers).await;
    }
    load.end();
    while let Some(ended) = customers.join_next().await {
        ended.unwrap();
    }
    load.settle().await;
    auditor.process.as_mut().unwrap().assert_runs();
    auditor.stop();
    let (code, report) = auditor.sync_once();
    assert_eq!((code, &report["compared"]["equal"]), (Some(0), &Value::Bool(true)), "{report:#}");
    assert_eq!((&report["whole"], &report["snapshots"]), (&Value::Bool(true), &Value::from(0)), "{report:#}");

    // Every change was checked once, through all kills, and that gives what a check of all rows gives.
    assert!(report["checked"]["rows"].as_u64().unwrap() > 100, "{report:#}");
    assert_eq!(report["checked"]["open_findings"], 0, "{report:#}");
    let [followed, whole] = [auditor.run(&[]), auditor.run(&["--whole"])];
    for member in ["ok", "sheet", "denominations", "purses_open", "overdue", "difference"] {
        assert_eq!(followed[member], whole[member], "{member}");
    }
    let whole_at = |report: &Value| report["checked"]["whole"]["t_s"].as_u64().unwrap();
    assert!(whole_at(&report) <= first_kill, "all rows were checked again after a kill: {report:#}");

    deployment.stop();
    let (exchange, copied) = (deployment.exchange_store(), auditor.open());
    let changed = changed_since(&exchange, report["next"].as_u64().unwrap());
    let [mut theirs, mut ours] = [&exchange, &copied].map(rows);
    for rows in [&mut theirs, &mut ours] {
        rows.retain(|place, _| !changed.contains(place));
    }
    assert!(theirs.len() > 100, "{} rows", theirs.len());
    assert!(theirs == ours, "the copy has {} rows, the exchange {}", ours.len(), theirs.len());
    exchange.close().unwrap();
    copied.close().unwrap();
    // Their locks end with them.
    drop((exchange, copied));

    // A chain that matches was needed for each of the connections above. Now it does not.
    std::fs::remove_dir_all(&exchange_dir).unwrap();
    copy(&backup, &exchange_dir);
    deployment.start_bank().await;
    deployment.start_exchange().await;
    let (code, report) = auditor.sync_once();
    assert_eq!(code, Some(1), "{report:#}");
    let finding = report["finding"].as_str().unwrap();
    assert!(["lost", "rewritten"].contains(&finding), "{report:#}");
    deployment.stop();
}

//! The auditor's service with real processes: it follows an exchange, checks every change, and shows the results.

use std::path::PathBuf;
use std::process::Output;
use std::time::Instant;

use batzen_service::storage::{EXCHANGE, StoreConfig};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::common::browser::Browser;
use crate::common::setup::{keygen, wait_for};
use crate::common::{PATIENCE, Service, free_port, stderr, stdout};
use crate::crash::audit::{self, tamper};
use crate::merchant_wallet::World;
use crate::monitoring::{families, family_of, names_in, queries, read};

/// An auditor who follows the exchange of a world.
struct Auditor {
    config: PathBuf,
    port: u16,
    service: Option<Service>,
}

impl Auditor {
    /// Configures both sides. The exchange starts again.
    async fn new(world: &mut World) -> Self {
        let dir = world.site.dir.path().to_owned();
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (exchange_key, auditor_key, socket) = (path("feed.key"), path("auditor.key"), path("feed.sock"));
        let (exchange_pub, auditor_pub) = (keygen(&exchange_key), keygen(&auditor_key));
        let exchange_text = std::fs::read_to_string(&world.site.config).unwrap();
        let feed = format!(
            "[exchange-feed]\nLISTEN = unix://{socket}\nKEY_FILE = {exchange_key}\nAUDITORS = {auditor_pub}\n\
             [exchange-liabilities]\nEPOCH = 1 s\nSETTLING = 0 s\n"
        );
        std::fs::write(&world.site.config, exchange_text + &feed).unwrap();
        block_in_place(|| {
            world.stop_exchange();
            world.start_exchange();
        });
        let url = world.site.exchange_url();
        let keys: Value = world.backend.client.get_json(format!("{url}keys")).await.unwrap().ok().unwrap();
        let (port, config) = (free_port(), world.site.dir.path().join("auditor.conf"));
        let bank = world.site.bank_url();
        let text = format!(
            "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n[paths]\nTALER_DATA_HOME = {home}\n\
             [auditor]\nBASE_URL = http://localhost:{port}/\nPORT = {port}\nBIND_TO = 127.0.0.1\n\
             [exchange]\nBASE_URL = {url}\nMASTER_PUBLIC_KEY = {master}\n\
             [auditor-feed]\nEXCHANGE = unix://{socket}\nEXCHANGE_KEY = {exchange_pub}\nKEY_FILE = {auditor_key}\n\
             COMPARE_INTERVAL = 2 s\n\
             [exchange-account-1]\nPAYTO_URI = payto://x-taler-bank/localhost/exchange?receiver-name=exchange\n\
             [exchange-accountcredentials-1]\nWIRE_GATEWAY_URL = {bank}taler-wire-gateway/exchange/\n\
             WIRE_GATEWAY_AUTH_METHOD = basic\nUSERNAME = exchange\nPASSWORD = exchange\n",
            home = path("auditor"),
            master = keys["master_public_key"].as_str().unwrap(),
        );
        std::fs::write(&config, text).unwrap();
        let auditor = Self { config, port, service: None };
        audit::must(auditor.config.to_str().unwrap(), &["init"]);
        auditor
    }

    fn run(&self, words: &[&str]) -> Output {
        audit::auditor(self.config.to_str().unwrap(), words)
    }

    /// Runs a command that prints JSON, and must exit with this code.
    #[track_caller]
    fn json(&self, code: i32, words: &[&str]) -> Value {
        audit::json(self.config.to_str().unwrap(), code, words)
    }

    /// Checks what the exchange publishes until this epoch is confirmed.
    fn confirmed(&self, epoch: u64) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.run(&["liabilities", "--json"]);
            // Before the first epoch there is nothing.
            if output.status.success() {
                let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
                if outcome["confirmed"].as_array().unwrap().contains(&json!(epoch)) {
                    return outcome;
                }
            }
            assert!(Instant::now() < deadline, "{}{}", stdout(&output), stderr(&output));
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    fn start(&mut self, world: &World) {
        let words = ["auditor", "serve", "-c", self.config.to_str().unwrap()];
        self.service = Some(Service::start(world.site.dir.path(), "auditor", &words));
        block_in_place(|| wait_for(self.port, "/ready"));
    }

    fn stop(&mut self) {
        let (status, _) = self.service.take().unwrap().terminate();
        assert!(status.success());
    }

    fn url(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", self.port)
    }

    /// Waits for a report of the service.
    async fn until(&mut self, world: &World, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reply = world.backend.client.get(self.url("audit.json")).send().await.unwrap();
            let report: Value = serde_json::from_slice(&reply.body).unwrap();
            if reply.status == 200 && is_it(&report) {
                return report;
            }
            self.service.as_mut().unwrap().assert_runs();
            assert!(Instant::now() < deadline, "{what}: {report:#}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

fn amount(value: &Value) -> f64 {
    value.as_str().unwrap().strip_prefix("KUDOS:").unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_follows_checks_and_shows() {
    let mut world = World::with_exchange(None, "").await;
    let mut auditor = Auditor::new(&mut world).await;
    auditor.start(&world);
    // The withdrawal of the world is on the books.
    let before =
        auditor.until(&world, "a first report", |report| amount(&report["sheet"]["issued"]) > 0.0).await;
    assert_eq!((&before["ok"], &before["without_bank"]), (&json!(true), &Value::Null), "{before:#}");
    assert_eq!(before["accounts"][0]["balance"], before["expected_balance"], "{before:#}");
    let (_, uri) = world.offer("3", json!({})).await;
    world.ok(&["pay", &uri, "--yes"]);
    let paid = auditor
        .until(&world, "the payment", |report| report["sheet"]["redeemed"] != before["sheet"]["redeemed"])
        .await;
    assert_eq!(paid["ok"], true, "{paid:#}");
    assert!(paid["hours"].as_array().is_some_and(|hours| !hours.is_empty()), "{paid:#}");

    // Programs ask the service, which has the copy open.
    let run = auditor.json(0, &["run"]);
    assert_eq!(run["sheet"], paid["sheet"]);
    assert_eq!(auditor.json(0, &["report"])["sheet"], paid["sheet"]);
    // The times of reports are in whole seconds.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let whole = auditor.json(0, &["run", "--whole"]);
    assert_eq!(whole["sheet"], paid["sheet"]);
    assert_ne!(whole["checked_all"], paid["checked_all"]);

    let published = auditor.confirmed(1);
    assert_eq!(published["findings"], json!([]), "{published:#}");
    let confirmation = world.backend.client.get(auditor.url("liabilities/1")).send().await.unwrap();
    assert_eq!(confirmation.status, 200);
    auditor.confirmed(published["epochs"].as_u64().unwrap() + 1);

    // A row that changes is found, by its signature and because such rows never change.
    block_in_place(|| {
        world.stop_exchange();
        let dir = world.site.dir.path().join("home/exchange/store");
        tamper(&StoreConfig::embedded(dir).open(&EXCHANGE, 1).unwrap());
        world.start_exchange();
    });
    let found = auditor.until(&world, "the change", |report| report["ok"] == false).await;
    let stories = found["tracked"].as_array().unwrap();
    let rules: Vec<&str> = stories.iter().map(|story| story["rule"].as_str().unwrap()).collect();
    for rule in ["deposit-signature", "row-rewritten", "coin-remaining"] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    let debts = auditor.json(3, &["liabilities"]);
    assert!(debts["findings"].as_array().unwrap().iter().any(|found| found["rule"] == "amount"), "{debts:#}");
    let output = auditor.run(&["report"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).contains("row-rewritten"), "{}", stdout(&output));
    let metrics = world.backend.client.get(auditor.url("metrics")).send().await.unwrap();
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let open = format!("batzen_audit_findings{{kind=\"open\"}} {}", stories.len());
    for line in [open.as_str(), "batzen_feed_lag_commits 0", "batzen_audit_failed 0"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    dashboard(&metrics);
    let table = world.backend.client.get(auditor.url("audit.csv")).send().await.unwrap();
    assert!(String::from_utf8_lossy(&table.body).contains("row-rewritten"));
    page(&auditor, stories.len());

    // All are suppressed, one while the service runs, the others while it does not. Then one is reopened.
    let ids: Vec<String> = stories.iter().map(|story| story["id"].as_str().unwrap().to_owned()).collect();
    let aside = auditor.run(&["suppress", &ids[0], "--reason", "a test"]);
    assert!(aside.status.success(), "{}", stderr(&aside));
    let again = auditor.run(&["suppress", &ids[0], "--reason", "a test"]);
    assert!(stderr(&again).contains("suppressed already"), "{}", stderr(&again));
    auditor.stop();
    for id in &ids[1..] {
        let output = auditor.run(&["suppress", id, "--reason", "a test"]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for words in [&["report"][..], &["run", "--no-bank"], &["run", "--whole", "--no-bank"]] {
        let report = auditor.json(0, words);
        assert_eq!(report["suppressed"].as_array().unwrap().len(), ids.len(), "{words:?}: {report:#}");
    }
    let output = auditor.run(&["reopen", &ids[0], "--reason", "it was none"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = auditor.json(3, &["report"]);
    let story = report["tracked"].as_array().unwrap().iter().find(|story| story["id"] == json!(ids[0]));
    let notes = story.unwrap()["notes"].as_array().unwrap().clone();
    assert_eq!(notes.iter().map(|note| note["suppresses"] == true).collect::<Vec<_>>(), [true, false]);
    let unknown = auditor.run(&["suppress", &"0".repeat(52), "--reason", "x"]);
    assert!(stderr(&unknown).contains("there is no finding"), "{}", stderr(&unknown));

    // Without being asked, all rows are checked again whenever the interval has passed, also across a restart.
    let text = std::fs::read_to_string(&auditor.config).unwrap();
    let text = text.replacen("[auditor-feed]\n", "[auditor-feed]\nCHECK_ALL_INTERVAL = 1 s\n", 1);
    std::fs::write(&auditor.config, text).unwrap();
    let mut last = report["checked_all"].clone();
    auditor.start(&world);
    for _ in 0..2 {
        let next = auditor.until(&world, "a check of all rows", |report| report["checked_all"] != last).await;
        last = next["checked_all"].clone();
    }
    let metrics = world.backend.client.get(auditor.url("metrics")).send().await.unwrap();
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("batzen_audit_checked_all_timestamp_seconds"), "{metrics}");
    auditor.stop();
    world.end();
}

/// The page as a controller sees it.
fn page(auditor: &Auditor, findings: usize) {
    let url = auditor.url("audit");
    let look = move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.until("document.querySelector('#stream').textContent.includes('nothing is missing')");
        let shown = browser.run("return document.querySelectorAll('#findings details').length");
        assert_eq!(shown, json!(findings));
        browser.run("document.querySelector('#findings details summary').click()");
        browser.until("document.querySelector('#findings details[open] code') !== null");
        browser.run("document.querySelector('#denominations-over-time summary').click()");
        browser.until("document.querySelectorAll('#denominations-over-time[open] svg').length >= 1");
        browser.until("document.querySelectorAll('#trend .line').length >= 3");
        browser.until("document.querySelectorAll('#coverage .line').length >= 3");
        browser.until("document.querySelectorAll('#denominations tr').length >= 2");
        browser.audit("audit");
        assert_eq!(browser.console(), Vec::<String>::new());
    };
    block_in_place(|| std::thread::spawn(look).join().unwrap());
}

/// Grafana's dashboard shows what the service says.
fn dashboard(metrics: &str) {
    let known = families(metrics);
    let panels = queries(&serde_json::from_str(&read("grafana/auditor.json")).unwrap());
    assert!(panels.len() >= 10);
    for name in panels.iter().flat_map(|query| names_in(query)) {
        assert!(known.contains_key(family_of(name, &known)), "the dashboard names {name}, which no page has");
    }
}

//! Tests of the tools that operators watch: the metrics, checked with Prometheus' own tools, the files in
//! `deploy/`, and the dashboard in a browser.

pub(crate) mod clearing;

use crate::common;
use crate::signer::deployment;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use batzen_auditor::FollowMetrics;
use batzen_metrics::Page;
use batzen_postgres::schema::replication::{LagMetrics, SlotLag};
use batzen_service::dashboard::Layout;
use batzen_signer::metrics::ClientMetrics;
use clearing::Clearing;
use common::backend::Backend;
use common::browser::Browser;
use common::http::Http;
use common::setup::wait_for;
use common::{PATIENCE, Service, free_port, must, run, stderr, stdout, until};
use deployment::Deployment;
use serde_json::Value;

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

pub(crate) fn read(file: &str) -> String {
    let path = deploy(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs one of Prometheus' programs to completion, with this standard input.
fn tool(program: &str, arguments: &[&str], input: &str) -> Output {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| missing(program, &error));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn missing(program: &str, error: &std::io::Error) -> ! {
    panic!("{program}: {error}: `make needs-test` installs it (Debian package prometheus)")
}

/// A demo that has played its round and keeps serving.
struct Demo {
    dir: tempfile::TempDir,
    service: Option<Service>,
    bank: String,
    exchange: String,
}

impl Demo {
    fn start() -> Self {
        Self::start_on("embedded")
    }

    /// The same with its books in this kind of store.
    fn start_on(store: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut service = Service::start(
            dir.path(),
            "demo",
            &[
                "demo",
                "--json",
                "--rsa-bits",
                "1024",
                "--data",
                data.to_str().unwrap(),
                "--store",
                store,
                "--bank-port",
                "0",
                "--exchange-port",
                "0",
                "--merchant-port",
                "0",
                "--shop-port",
                "0",
            ],
        );
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(dir.path().join("demo.log")).unwrap();
            if let Ok(results) = serde_json::from_str::<Value>(&text) {
                let url = |name: &str| results[name].as_str().unwrap().to_owned();
                let (bank, exchange) = (url("bank"), url("exchange"));
                assert_eq!(results["dashboards"][0], format!("{exchange}dashboard"));
                return Self { dir, service: Some(service), bank, exchange };
            }
            service.assert_runs();
            assert!(Instant::now() < deadline, "the demo makes no progress: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wallet(&self, words: &[&str]) {
        let file = self.dir.path().join("zoe.db");
        let mut all = vec!["wallet", "--wallet", file.to_str().unwrap(), "--yes"];
        all.extend(words);
        must(&all);
    }

    /// Withdraws and pays, as a customer of the running demo.
    fn spend(&self) {
        let (bank, exchange) = (self.bank.as_str(), self.exchange.as_str());
        let words = ["withdraw", "--exchange", exchange, "--amount", "KUDOS:20", "--bank", bank];
        self.wallet(&[&words[..], &["--user", "zoe", "--password", "zoe"]].concat());
        self.spend_again();
    }

    /// Pays, as the same customer.
    fn spend_again(&self) {
        self.wallet(&["deposit", "KUDOS:7.5", "payto://x-taler-bank/localhost/zoe?receiver-name=zoe"]);
    }

    fn stop(&mut self) {
        let (status, _) = self.service.take().unwrap().terminate();
        assert!(status.success(), "the demo ended with {status}");
    }
}

/// A merchant backend for the coins of an exchange, with an address of its own for metrics, and its base URL.
fn start_merchant(http: &Http, dir: &Path, exchange: &str) -> (Backend, String) {
    let metrics = free_port();
    let keys: Value = serde_json::from_str(&http.text(&format!("{exchange}keys"))).unwrap();
    let trusted = (exchange, keys["master_public_key"].as_str().unwrap());
    let at = format!("METRICS = 127.0.0.1:{metrics}\n");
    let mut backend = Backend::new(dir, http.client.clone(), &[trusted], &at);
    backend.start();
    own_pages(http, "merchant", metrics);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    (backend, url)
}

/// Checks the pages of a process at an address of its own.
fn own_pages(http: &Http, service: &str, port: u16) {
    let page = http.text(&format!("http://127.0.0.1:{port}/metrics"));
    assert!(page.contains(&format!("\nbatzen_build_info{{service=\"{service}\"")), "{page}");
    assert_eq!(http.get(&format!("http://127.0.0.1:{port}/ready")).status, 200);
    assert_eq!(http.get(&format!("http://127.0.0.1:{port}/dashboard")).status, 200);
    assert_eq!(http.get(&format!("http://127.0.0.1:{port}/config")).status, 404);
}

/// An auditor's service that follows nobody, and its base URL.
fn start_auditor(http: &Http, dir: &Path, exchange: &str) -> (Service, String) {
    let (port, metrics, file) = (free_port(), free_port(), dir.join("auditor.conf"));
    let text = format!(
        "[taler]\nCURRENCY = KUDOS\n[paths]\nTALER_DATA_HOME = {}\n[exchange]\nBASE_URL = {exchange}\n\
         [auditor]\nPORT = {port}\nBIND_TO = 127.0.0.1\nBASE_URL = http://localhost:{port}/\n",
        dir.join("auditor").display()
    );
    std::fs::write(&file, text).unwrap();
    must(&["auditor", "init", "-c", file.to_str().unwrap()]);
    let at = format!("127.0.0.1:{metrics}");
    let arguments = ["auditor", "serve", "-c", file.to_str().unwrap(), "--metrics", &at];
    let service = Service::start(dir, "auditor", &arguments);
    wait_for(port, "/ready");
    own_pages(http, "auditor", metrics);
    (service, format!("http://127.0.0.1:{port}/"))
}

/// A generator of the laboratory's load that has no orders, and its base URL.
fn start_generator(dir: &Path) -> (Service, String) {
    let port = free_port();
    let mut command = common::lab();
    // It runs until its orders end.
    command.args(["agent", "load", "--metrics", &format!("127.0.0.1:{port}")]).stdin(Stdio::piped());
    let service = Service::start_command(dir, "load", command);
    wait_for(port, "/ready");
    (service, format!("http://127.0.0.1:{port}/"))
}

/// The names of a page's families, each with its type.
pub(crate) fn families(page: &str) -> BTreeMap<&str, &str> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split_once(' ').unwrap()).collect()
}

/// Every name in a text that could be one of our metrics.
pub(crate) fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| {
            word.starts_with("batzen_") || word.starts_with("process_") || word.starts_with("taler_")
        })
        .collect()
}

/// The family of a sample, by the sample's name.
pub(crate) fn family_of<'a>(name: &'a str, families: &BTreeMap<&str, &str>) -> &'a str {
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    of_histogram.filter(|base| families.get(base) == Some(&"histogram")).unwrap_or(name)
}

/// The queries of a Grafana dashboard.
pub(crate) fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

const DASHBOARDS: [&str; 8] = [
    "grafana/exchange.json",
    "grafana/bank.json",
    "grafana/merchant.json",
    "grafana/ledger.json",
    "grafana/switch.json",
    "grafana/signer.json",
    "grafana/store.json",
    "grafana/experiment.json",
];

#[test]
fn alerts_and_configuration_are_sound() {
    for arguments in [
        &["check", "config", "prometheus.yml"][..],
        &["check", "rules", "alerts.yml"],
        &["test", "rules", "alerts.test.yml"],
    ] {
        let output = Command::new("promtool").args(arguments).current_dir(deploy("prometheus")).output();
        let output = output.unwrap_or_else(|error| missing("promtool", &error));
        assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    }
    // Each alert has a test and says what to do.
    let (alerts, tests) = (read("prometheus/alerts.yml"), read("prometheus/alerts.test.yml"));
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in &names {
        assert!(tests.contains(name), "no test fires {name}");
    }
    assert_eq!(alerts.matches("action: ").count(), names.len());
    assert_eq!(alerts.matches("summary: ").count(), names.len());
}

#[test]
fn units_start_existing_commands() {
    let mut units = 0;
    for unit in std::fs::read_dir(deploy("systemd")).unwrap().map(Result::unwrap) {
        if unit.path().extension().is_none_or(|end| end != "service") {
            continue;
        }
        let text = std::fs::read_to_string(unit.path()).unwrap();
        assert!(text.contains("\nExecStart="), "{:?}", unit.path());
        for start in text.lines().filter(|line| line.starts_with("Exec")) {
            let start = start.split_once('=').unwrap().1.replace("%i", "wirewatch");
            let words: Vec<&str> = start.split_whitespace().collect();
            assert_eq!(words[0], "/usr/local/bin/batzen");
            let help = run(&[words[1], words[2], "--help"]);
            assert!(help.status.success(), "{start}");
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(stdout(&help).contains(option), "{option} of {start}");
            }
        }
        units += 1;
    }
    assert!(units >= 5);
}

/// A page with the additional metrics of a database with a subscriber.
fn replication_page() -> String {
    let (lag, mut page) = (LagMetrics::default(), Page::new());
    lag.set(vec![SlotLag { slot: "exchange_audit".into(), active: true, bytes: 1, millis: Some(1) }]);
    lag.write(&mut page);
    page.finish()
}

/// A page with the additional metrics of an exchange with signers.
fn signer_client_page() -> String {
    let mut page = Page::new();
    ClientMetrics::default().write(&mut page, true, 0);
    page.finish()
}

/// A page with the additional metrics of an auditor who follows an exchange that has no rows yet.
fn auditor_page() -> String {
    let (now, currency) = (batzen_protocol::Timestamp::from_secs(1), "KUDOS".parse().unwrap());
    let subject = batzen_auditor::audit::Subject {
        currency,
        master_pub: batzen_crypto::EddsaPublicKey::from_bytes([1; 32]),
        base_url: "http://localhost/".to_owned(),
        round_unit: 0,
        auditor: None,
    };
    let options = batzen_auditor::audit::Options {
        now,
        internal: true,
        in_order: true,
        threads: 1,
        bank: Vec::new(),
        confirmations: Vec::new(),
        copied: None,
    };
    let store = batzen_store::Store::new(batzen_store::memory::MemoryBackend::new());
    let outcome =
        batzen_auditor::audit::audit(&store, &subject, &options, &batzen_auditor::audit::Progress::default())
            .unwrap();
    let context = batzen_auditor::audit::report::Context {
        currency,
        started: now,
        ended: now,
        internal: true,
        tiny: 0,
    };
    let report =
        batzen_auditor::checks::Report { outcome, context, exchange_url: String::new(), timeline: None };
    let metrics = FollowMetrics {
        progress: Some(batzen_feed::metrics::Progress::default()),
        report: Some(&report),
        ..FollowMetrics::default()
    };
    let mut page = Page::new();
    metrics.write(&mut page);
    page.finish()
}

#[test]
fn prometheus_understands_metrics_alerts_and_dashboards() {
    let demo = Demo::start();
    demo.spend();
    let http = Http::new();
    let mut clearing = Clearing::start();
    clearing.clear();
    let deployment = Deployment::new();
    let _signers = [deployment.start_signer(0), deployment.start_signer(1)];
    // A follower reports its lag only after it has followed.
    deployment.wait_same_keys(0);
    let [primary, follower] = deployment.metrics.map(|port| format!("http://127.0.0.1:{port}/"));
    let (mut merchant, merchant_url) = start_merchant(&http, demo.dir.path(), &demo.exchange);
    let (auditor, auditor_url) = start_auditor(&http, demo.dir.path(), &demo.exchange);
    let (_generator, generator_url) = start_generator(demo.dir.path());
    let services = [
        &demo.exchange,
        &demo.bank,
        &merchant_url,
        &auditor_url,
        &clearing.ledger,
        &clearing.switch,
        &primary,
        &follower,
        &generator_url,
    ];
    let pages = services.map(|base| http.text(&format!("{base}metrics")));
    for page in &pages {
        naming(page);
    }
    let others = [replication_page(), signer_client_page(), auditor_page()];
    naming(&others[2]);
    let pages = pages.iter().chain(&others);
    let known: BTreeMap<&str, &str> = pages.flat_map(|page| families(page)).collect();
    let layouts = [
        batzen_exchange::dashboard::DASHBOARD,
        batzen_bank::dashboard::DASHBOARD,
        batzen_ledger_service::net::dashboard::DASHBOARD,
        batzen_switch::api::admin::dashboard::DASHBOARD,
        batzen_signer::dashboard::DASHBOARD,
    ];
    let shown: Vec<String> = layouts.iter().flat_map(Layout::metrics).collect();
    // A name that ends with `_` is the start of several.
    let shown = shown.into_iter().filter(|name| !name.ends_with('_')).collect::<Vec<_>>().join("\n");
    let mut texts =
        vec![("alerts".to_owned(), read("prometheus/alerts.yml")), ("the dashboard".to_owned(), shown)];
    let mut all_queries = Vec::new();
    for file in DASHBOARDS {
        let dashboard: Value = serde_json::from_str(&read(file)).unwrap();
        let found = queries(&dashboard);
        assert!(found.len() >= 9, "{file}");
        texts.push((file.to_owned(), found.join("\n")));
        all_queries.extend(found);
    }
    for (whose, text) in &texts {
        for name in names_in(text) {
            assert!(known.contains_key(family_of(name, &known)), "{whose} names {name}, which no page has");
        }
    }
    let targets = [
        ("127.0.0.1:8081", &demo.exchange),
        ("127.0.0.1:8082", &demo.bank),
        ("127.0.0.1:9966", &merchant_url),
        ("127.0.0.1:8083", &auditor_url),
        ("127.0.0.1:3002", &clearing.ledger),
        ("127.0.0.1:8091", &clearing.switch),
        ("127.0.0.1:7071", &primary),
        ("127.0.0.1:7072", &follower),
        (GENERATOR, &generator_url),
    ];
    scraped(&http, demo.dir.path(), &targets, &all_queries);
    merchant.stop();
    assert!(auditor.terminate().0.success());
}

#[test]
fn the_dashboard_of_the_database_shows_a_process_on_postgresql() {
    const FILE: &str = "grafana/database.json";
    /// Metrics that only a database with subscribers has.
    const SUBSCRIBERS: &str = "batzen_postgres_replication_";
    /// Metrics of an exporter beside the server, which a test of experiments asks for.
    const SERVERS: &str = "$server";
    let demo = Demo::start_on("postgres");
    demo.spend();
    let http = Http::new();
    let pages = [http.text(&format!("{}metrics", demo.exchange)), replication_page()];
    naming(&pages[0]);
    let known: BTreeMap<&str, &str> = pages.iter().flat_map(|page| families(page)).collect();
    let mut queries = queries(&serde_json::from_str(&read(FILE)).unwrap());
    for name in queries.iter().flat_map(|query| names_in(query)) {
        assert!(known.contains_key(family_of(name, &known)), "{FILE} names {name}, which no page has");
    }
    queries.retain(|query| !query.contains(SUBSCRIBERS) && !query.contains(SERVERS));
    assert!(queries.len() >= 20, "{queries:?}");
    let targets = [("127.0.0.1:8081", &demo.exchange), ("127.0.0.1:8082", &demo.bank)];
    let prometheus = scraping(&http, demo.dir.path(), &targets);
    // Rates count what happens between two scrapes.
    demo.spend_again();
    let commits = "min(increase(batzen_postgres_commit_seconds_count[1m])) > 0";
    let has_commits = || prometheus.query(commits).is_some_and(|rows| !rows.is_empty());
    until("Prometheus sees no commits", has_commits);
    prometheus.answers(&queries);
}

/// Checks the naming rules of `promtool` and ours: few labels, and none that identify anybody.
fn naming(page: &str) {
    let output = tool("promtool", &["check", "metrics"], page);
    let complaints = stdout(&output) + &stderr(&output);
    for line in complaints.lines().filter(|line| !line.is_empty()) {
        // Names that existing dashboards use, so they stay as they are.
        let is_inherited = line.starts_with("taler_exchange_") && line.contains("_total");
        assert!(is_inherited, "promtool: {line}");
    }
    let labels = [
        "operation",
        "outcome",
        "reason",
        "stage",
        "table",
        "class",
        "type",
        "le",
        "service",
        "version",
        "kind",
        "work",
        "worker",
        "sum",
        "part",
        "share",
        // Institutions, at most 64 of them.
        "participant",
        "item",
        "currency",
    ];
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((_, rest)) = line.split_once('{') else { continue };
        for pair in rest.split_once('}').unwrap().0.split("\",") {
            let (label, value) = pair.split_once('=').unwrap();
            assert!(labels.contains(&label), "label {label} in {line}");
            assert!(value.trim_matches('"').len() <= 32, "a label's value is as long as a key: {line}");
        }
    }
    // Every table adds about ten lines.
    assert!(page.lines().count() < 1_700, "{} lines are too many for a scrape", page.lines().count());
}

/// A Prometheus that is stopped when it is dropped.
struct Prometheus<'a> {
    child: Child,
    port: u16,
    http: &'a Http,
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The target that stands for a generator of load.
const GENERATOR: &str = "127.0.0.1:9590";

impl Prometheus<'_> {
    /// The rows of a query; none if it does not answer yet.
    fn query(&self, text: &str) -> Option<Vec<Value>> {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.port);
        let reply = self.http.wait(self.http.client.get(&url).query("query", text).send()).ok()?;
        let answer: Value = serde_json::from_slice(&reply.body).ok()?;
        assert_eq!(answer["status"], "success", "{text}: {answer}");
        Some(answer["data"]["result"].as_array()?.clone())
    }

    /// Checks that every query of a dashboard has a result.
    fn answers(&self, queries: &[String]) {
        for text in queries {
            let text = text.replace("$instance", ".*").replace("$__rate_interval", "1m");
            let rows = self.query(&text).unwrap();
            assert!(!rows.is_empty(), "the query has no result: {text}");
        }
    }
}

/// A real Prometheus that has scraped these services with our configuration. The given addresses replace the targets in
/// the configuration.
fn scraping<'a>(http: &'a Http, dir: &Path, targets: &[(&str, &String)]) -> Prometheus<'a> {
    let dir = dir.join("prometheus");
    std::fs::create_dir(&dir).unwrap();
    let address =
        |url: &str| url.trim_start_matches("http://").trim_end_matches('/').replace("localhost", "127.0.0.1");
    let mut config = read("prometheus/prometheus.yml").replace("15s", "3s");
    // Experiments alone have generators, and scrape them as they do everything.
    config.push_str(&format!(
        "  - job_name: batzen-load\n    static_configs:\n      - targets: [\"{GENERATOR}\"]\n"
    ));
    // Placeholders first, addresses second, since one service may listen on another one's target address.
    for (index, (target, _)) in targets.iter().enumerate() {
        let quoted = format!("\"{target}\"");
        assert!(config.contains(&quoted), "{target} is not scraped");
        config = config.replace(&quoted, &format!("\"target-{index}\""));
    }
    for (index, (_, url)) in targets.iter().enumerate() {
        config = config.replace(&format!("\"target-{index}\""), &format!("\"{}\"", address(url)));
    }
    std::fs::write(dir.join("prometheus.yml"), config).unwrap();
    std::fs::copy(deploy("prometheus/alerts.yml"), dir.join("alerts.yml")).unwrap();
    let port = free_port();
    let log = File::create(dir.join("log")).unwrap();
    let child = Command::new("prometheus")
        .arg("--config.file=prometheus.yml")
        .arg("--storage.tsdb.path=data")
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    let child = child.unwrap_or_else(|error| missing("prometheus", &error));
    let mut prometheus = Prometheus { child, port, http };
    let deadline = Instant::now() + PATIENCE;
    let has_all = |prometheus: &Prometheus<'_>| {
        let up = prometheus.query("up == 1")?.len() == targets.len();
        // At least three scrapes, so that rates exist.
        let scrapes = prometheus.query("min(count_over_time(up[1h]))")?;
        Some(up && scrapes.first()?["value"][1].as_str()?.parse::<f64>().ok()? >= 3.0)
    };
    while has_all(&prometheus) != Some(true) {
        let said = || std::fs::read_to_string(dir.join("log")).unwrap();
        assert!(prometheus.child.try_wait().unwrap().is_none(), "prometheus ended: {}", said());
        if Instant::now() >= deadline {
            let state = http.text(&format!("http://127.0.0.1:{port}/api/v1/targets?state=active"));
            panic!("prometheus does not scrape: {state}\n{}", said());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    prometheus
}

/// Checks what Prometheus knows of all services, and that it answers every query of their dashboards.
fn scraped(http: &Http, dir: &Path, targets: &[(&str, &String)], queries: &[String]) {
    let prometheus = scraping(http, dir, targets);
    prometheus.answers(queries);
    let query = |text: &str| prometheus.query(text);
    let value =
        |text: &str| -> f64 { query(text).unwrap()[0]["value"][1].as_str().unwrap().parse().unwrap() };
    assert!(value("batzen_money_wired_in") > 80.0);
    assert!(value("batzen_money_fees") > 0.0);
    assert_eq!(value("batzen_money_conservation_difference"), 0.0);
    let rest = value("batzen_money_surplus - batzen_money_fees - batzen_money_unrevealed_melts");
    assert!(rest.abs() < 1e-6, "the surplus is fees and unrevealed melts: {rest}");
    assert_eq!(value("batzen_currency_info{currency=\"KUDOS\"}"), 1.0);
    for kind in ["denomination", "signing_key", "wire_fee", "global_fee"] {
        assert!(value(&format!("min(batzen_expiry_seconds{{kind=\"{kind}\"}})")) > 0.0, "{kind}");
    }
    assert!(value("batzen_conflicts_total{reason=\"double-spend\"}") >= 1.0);
    assert!(value("sum(batzen_coins_total{operation=\"deposit\"})") >= 4.0);
    assert!(value("batzen_ledger_events_total{kind=\"transfer\",outcome=\"created\"}") >= 1.0);
    assert!(value("batzen_switch_callbacks_total") >= 1.0);
    let firing = query("ALERTS{severity=\"critical\"}").unwrap();
    assert!(firing.is_empty(), "an alert fires though all is well: {firing:?}");
}

const LABELLED: &str = "[...document.querySelectorAll('svg, section, nav')].every((node) => node.getAttribute('aria-label') \
                        || document.getElementById(node.getAttribute('aria-labelledby'))?.textContent)";

#[test]
fn the_dashboard_shows_live_numbers() {
    let mut demo = Demo::start();
    let browser = Browser::start();
    browser.resize(1280, 900, false);
    // The service has kept its history while nobody was looking.
    wait_for_readings(&demo.exchange, 3);
    browser.open(&format!("{}dashboard", demo.exchange));
    browser.until(
        "document.querySelector('#state.live') && document.querySelector('#tile-issued')?.dataset.value",
    );
    assert!(browser.number("document.querySelector('#chart-operations').dataset.points") >= 3.0);
    let tile = |name: &str| browser.number(&format!("document.querySelector('#tile-{name}').dataset.value"));
    let names = ["wired-in", "issued", "redeemed"];
    let before = names.map(tile);
    assert!(before.iter().all(|value| *value > 0.0), "{before:?}");
    demo.spend();
    for (name, value) in names.iter().zip(before) {
        browser.until(&format!("Number(document.querySelector('#tile-{name}').dataset.value) > {value}"));
    }
    assert!(tile("surplus") > 0.0 && tile("rows") > 0.0 && tile("disk") > 0.0);
    for section in ["now", "money", "operations", "batches", "cryptography", "workers", "store", "process"] {
        assert!(
            browser.number(&format!("document.querySelectorAll('#section-{section} .card').length")) >= 3.0
        );
    }
    // Something was done, so that the curves are not all flat.
    browser.until("Number(document.querySelector('#chart-operations').dataset.max) > 0");
    browser.until("document.querySelector('#chart-operations canvas')?.width > 100");
    assert!(
        browser
            .run("return document.querySelector('#tile-issued dd').innerText")
            .to_string()
            .contains("KUDOS")
    );
    assert_eq!(browser.run(&format!("return {LABELLED}")), Value::Bool(true));
    hover_fold_and_range(&browser, &demo.exchange);
    browser.audit("dashboard-exchange");

    browser.open(&demo.exchange);
    browser.audit("exchange-root");

    browser.open(&format!("{}dashboard/", demo.bank));
    browser.until("document.querySelector('#state.live') && document.querySelector('#chart-fsync')");
    assert_eq!(browser.run("return document.querySelector('#section-money')"), Value::Null);
    // The exchange's account, and those of the demo's customers.
    browser.until("Number(document.querySelector('#tile-bank-accounts')?.dataset.value) >= 2");
    browser.until("Number(document.querySelector('#tile-bank-total').dataset.value) > 0");
    assert!(browser.number("document.querySelector('#tile-bank-set-aside').dataset.value") >= 0.0);
    browser.audit("dashboard-bank");
    let said = browser.console();
    assert!(said.is_empty(), "the console says {said:?}");

    // The service ends: the page says so, and keeps the last figures.
    demo.stop();
    browser.until("!document.getElementById('down').hidden");
    let text = browser.run("return document.getElementById('down').innerText");
    assert!(text.as_str().unwrap().contains("does not answer"), "{text}");
    assert!(browser.number("document.querySelectorAll('.card').length") > 5.0);
    browser.audit("dashboard-down");
}

/// Waits until a service has this many readings of its own metrics.
fn wait_for_readings(base: &str, count: usize) {
    let (http, deadline) = (Http::new(), Instant::now() + PATIENCE);
    loop {
        let history: Value =
            serde_json::from_str(&http.text(&format!("{base}dashboard/history?range=300"))).unwrap();
        if history["times"].as_array().unwrap().len() >= count {
            return;
        }
        assert!(Instant::now() < deadline, "{base} does not read its metrics: {history}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The pointer shows the values at one moment; folded sections and the range are remembered; the list of
/// sections links to them.
fn hover_fold_and_range(browser: &Browser, base: &str) {
    let head = "document.querySelector('#chart-memory .head span').innerText";
    assert_eq!(browser.run(&format!("return {head}")), "now");
    browser.run(
        "const over = document.querySelector('#chart-operations .u-over'), box = over.getBoundingClientRect();
        for (const kind of ['mouseenter', 'mousemove']) over.dispatchEvent(new MouseEvent(kind, { bubbles: true,
            clientX: box.right - 2, clientY: box.top + box.height / 2 }))",
    );
    // All charts show the same moment.
    browser.until(&format!("/^\\d\\d:\\d\\d:\\d\\d$/.test({head})"));
    browser.run("document.querySelector('#section-store summary').click()");
    browser.run("document.querySelector('#ranges input[value=\"3600\"]').click()");
    browser.until("localStorage.getItem('batzen.folded.store') === 'yes'");
    browser.open(&format!("{base}dashboard"));
    browser.until("document.querySelector('#state.live') && document.querySelector('#section-store')");
    assert_eq!(browser.run("return document.querySelector('#section-store').open"), Value::Bool(false));
    assert_eq!(browser.run("return document.querySelector('#ranges input:checked').value"), "3600");
    browser.run("document.querySelector('#jump a[href=\"#section-store\"]').click()");
    browser.until("document.querySelector('#section-store').open && location.hash === '#section-store'");
    browser.until("document.querySelector('#chart-fsync canvas')?.width > 100");
    browser.run("document.querySelector('#ranges input[value=\"300\"]').click()");
    browser.until("Number(document.querySelector('#chart-operations').dataset.max) > 0");
}

#[test]
fn ledger_and_switch_show_live_numbers() {
    let mut clearing = Clearing::start();
    let browser = Browser::start();
    let shows = |section: &str, tiles: &[&str]| {
        let live = "document.querySelector('#state.live') && ";
        browser.until(&format!("{live}document.querySelector('#section-{section}')"));
        for name in tiles {
            let tile = format!("document.querySelector('#tile-{name}')");
            browser.until(&format!("{tile}.dataset.value !== '' && Number({tile}.dataset.value) >= 0"));
        }
        assert_eq!(browser.overflow(), 0.0, "a phone would have to scroll sideways");
        assert_eq!(browser.run(&format!("return {LABELLED}")), Value::Bool(true));
        // Sections with nothing to show are omitted.
        for other in ["money", "coins", "workers", "batches", "now"] {
            let node = browser.run(&format!("return document.querySelector('#section-{other}')"));
            assert_eq!(node, Value::Null, "{other}");
        }
    };
    let grows = |name: &str| {
        let value = format!("Number(document.querySelector('#tile-{name}').dataset.value)");
        browser.until(&format!("{value} > {}", browser.number(&value)));
    };
    browser.resize(390, 844, true);
    browser.open(&format!("{}dashboard", clearing.switch));
    let numbers = ["switch-queue", "intents", "callbacks-done", "given-up", "near-cap", "misfits"];
    shows("switch", &numbers);
    assert_eq!(browser.number("document.querySelector('#tile-callbacks-done').dataset.value"), 0.0);
    clearing.clear();
    grows("callbacks-done");
    browser.until("Number(document.querySelector('#tile-switch-work').dataset.value) > 0");
    browser.until("Number(document.querySelector('#tile-switch-p99').dataset.value) > 0");
    browser.until("Number(document.querySelector('#chart-callbacks').dataset.max) > 0");
    assert_eq!(browser.number("document.querySelectorAll('#section-switch .tile.bad').length"), 0.0);
    browser.until("document.querySelectorAll('#table-positions tbody tr').length === 3");
    browser.until("Number(document.querySelector('#tile-participants').dataset.value) === 3");
    browser.until("Number(document.querySelector('#tile-window-transfers').dataset.value) > 0");
    let cells = browser.run("return document.querySelector('#table-positions tbody tr').innerText");
    assert!(!cells.as_str().unwrap().contains('–'), "{cells}");
    browser.audit("dashboard-switch");
    browser.resize(390, 844, true);

    browser.open(&format!("{}dashboard", clearing.ledger));
    shows("ledger", &["transfers", "accounts", "pendings", "events-waiting", "ledger-busy", "ledger-failed"]);
    shows("network", &["net-connections", "net-errors"]);
    grows("transfers");
    browser.until("Number(document.querySelector('#tile-transfers-made').dataset.value) > 0");
    browser.until("Number(document.querySelector('#tile-ledger-p99').dataset.value) > 0");
    assert!(browser.number("document.querySelector('#tile-net-connections').dataset.value") >= 1.0);
    assert_eq!(browser.number("document.querySelectorAll('#section-ledger .tile.bad').length"), 0.0);
    browser.audit("dashboard-ledger");
    let said = browser.console();
    assert!(said.is_empty(), "the console says {said:?}");
}

#[test]
fn a_signer_shows_its_keys() {
    let deployment = Deployment::new();
    let _signer = deployment.start_signer(0);
    let browser = Browser::start();
    browser.resize(390, 844, true);
    browser.open(&format!("http://127.0.0.1:{}/dashboard", deployment.metrics[0]));
    browser.until("document.querySelector('#state.live') && document.querySelector('#section-signer')");
    browser.until("Number(document.querySelector('#tile-keys').dataset.value) >= 3");
    assert_eq!(browser.number("document.querySelector('#tile-primary').dataset.value"), 1.0);
    // Clients without credentials are counted while the page is open.
    assert_eq!(browser.number("document.querySelector('#tile-strangers').dataset.value"), 0.0);
    let mut stranger = std::net::TcpStream::connect(("127.0.0.1", deployment.ports[0])).unwrap();
    stranger.write_all(&[0x55; 512]).unwrap();
    drop(stranger);
    browser.until("document.querySelector('#tile-strangers.bad')?.dataset.value === '1'");
    assert_eq!(browser.run(&format!("return {LABELLED}")), Value::Bool(true));
    browser.audit("dashboard-signer");
    let said = browser.console();
    assert!(said.is_empty(), "the console says {said:?}");
}

#[test]
fn the_dashboard_can_be_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let (port, metrics) = (free_port(), free_port());
    let config = format!(
        "[taler]\nCURRENCY = KUDOS\n[bank]\nHTTP_PORT = {port}\nBIND_TO = 127.0.0.1\nDATA_DIR = {}\nDASHBOARD = NO\n\
         METRICS = 127.0.0.1:{metrics}\n",
        dir.path().join("bank").display()
    );
    let file = dir.path().join("bank.conf");
    std::fs::write(&file, config).unwrap();
    let mut bank = Service::start(dir.path(), "bank", &["bank", "serve", "--config", file.to_str().unwrap()]);
    let http = Http::new();
    let deadline = Instant::now() + PATIENCE;
    while http.wait(http.client.get(format!("http://127.0.0.1:{port}/")).send()).is_err() {
        bank.assert_runs();
        assert!(Instant::now() < deadline, "the bank does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    for port in [port, metrics] {
        for path in ["dashboard", "dashboard/", "dashboard/history", "dashboard/page.js"] {
            assert_eq!(http.get(&format!("http://127.0.0.1:{port}/{path}")).status, 404, "{path}");
        }
        assert_eq!(http.get(&format!("http://127.0.0.1:{port}/metrics")).status, 200);
    }
}

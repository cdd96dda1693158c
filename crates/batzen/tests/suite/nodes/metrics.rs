//! The metrics of several processes of an exchange: each at an address of its own, and what all of them know of the
//! workers.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::http::Http;
use crate::common::setup::{credit, wait_for};
use crate::common::site::Site;
use crate::common::{PATIENCE, Service, end, free_port, must_json, run, stdout, until};
use crate::nodes::{prepare, start_node};

/// Lets the system choose the port.
const ANY: [&str; 2] = ["--metrics", "127.0.0.1:0"];

/// The pages of processes.
struct Pages(Http);

impl Pages {
    fn new() -> Self {
        Self(Http::new())
    }

    /// The URL of a process's own pages, as it names them in its log, once it has a certain number of them.
    fn url(dir: &Path, name: &str, starts: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
            let urls: Vec<&str> =
                log.lines().filter_map(|line| line.strip_prefix("metrics of this process: ")).collect();
            if urls.len() == starts {
                return urls[starts - 1].strip_suffix("metrics").unwrap().to_owned();
            }
            assert!(Instant::now() < deadline, "{name} names no address: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, url: &str) -> (u16, String) {
        self.0.page(url)
    }

    /// A series of a process; none if the process does not show it.
    fn value(&self, base: &str, series: &str) -> Option<f64> {
        let page = self.0.text(&format!("{base}metrics"));
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }

    fn until(&self, base: &str, series: &str, is_so: impl Fn(f64) -> bool) -> f64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.value(base, series);
            if let Some(value) = value.filter(|value| is_so(*value)) {
                return value;
            }
            assert!(Instant::now() < deadline, "{series} at {base} stays {value:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn start_worker(site: &Site, worker: &str) -> Service {
    site.start(worker, &["exchange", worker, ANY[0], ANY[1]])
}

const CLOSED: &str = "batzen_worker_closer_reserves_total";
const LAG: &str = "batzen_worker_closer_lag_seconds";
const HOLDERS: &str = "batzen_worker_lease_holders{worker=\"closer\"}";
const UNTIL: &str = "batzen_worker_lease_until_timestamp_seconds{worker=\"closer\"}";
const UNATTENDED: &str = "batzen_worker_unattended_seconds{worker=\"closer\"}";
const WATCHERS: &str = "batzen_worker_lease_holders{worker=\"wirewatch\"}";
const OWN_WATCHERS: &str = "batzen_worker_lease_own{worker=\"wirewatch\"}";

#[test]
fn every_process_shows_itself_and_that_a_worker_has_died() {
    let (site, _) = prepare("[exchangedb]\nIDLE_RESERVE_EXPIRATION_TIME = 1 s\n");
    let bank = site.start_bank();
    let url_of = |name: &str, starts: usize| Pages::url(site.dir.path(), name, starts);
    // Both at one port.
    let nodes = ["a", "b"].map(|name| start_node(&site, name, &ANY));
    let nodes_at = ["a", "b"].map(|name| url_of(name, 1));
    assert_ne!(nodes_at[0], nodes_at[1]);
    let pages = Pages::new();
    // Nobody has ever watched the account.
    for base in &nodes_at {
        pages.until(base, WATCHERS, |watchers| watchers == 0.0);
        assert_eq!(pages.value(base, "batzen_worker_wirewatch_lag_seconds"), None, "it watches no account");
        assert_eq!(pages.value(base, "batzen_worker_closer_set_aside"), None, "it closes no reserve");
    }

    let watcher = start_worker(&site, "wirewatch");
    let mut closer = start_worker(&site, "closer");
    let (watcher_at, closer_at) = (url_of("wirewatch", 1), url_of("closer", 1));
    for base in nodes_at.iter().chain([&watcher_at, &closer_at]) {
        assert_eq!(pages.get(&format!("{base}health")).0, 200);
        assert_eq!(pages.get(&format!("{base}ready")).0, 200);
        pages.until(base, WATCHERS, |watchers| watchers == 1.0);
    }
    assert_eq!(pages.value(&watcher_at, OWN_WATCHERS), Some(1.0));
    assert_eq!(pages.value(&nodes_at[0], OWN_WATCHERS), Some(0.0));

    credit(site.bank_port, 0, 10);
    pages.until(&closer_at, CLOSED, |closed| closed == 10.0);
    assert_eq!(pages.value(&nodes_at[1], CLOSED), Some(0.0), "another process closed them");
    pages.until(&nodes_at[1], UNTIL, |until| until > 0.0);

    // The next reserves expire, and the closer does not live any more.
    closer.kill_9();
    credit(site.bank_port, 10, 10);
    for base in &nodes_at {
        let lag = pages.until(base, LAG, |lag| lag > 0.0);
        pages.until(base, LAG, |later| later > lag);
        pages.until(base, HOLDERS, |holders| holders == 0.0);
        let unattended = pages.until(base, UNATTENDED, |unattended| unattended > 0.0);
        pages.until(base, UNATTENDED, |later| later > unattended);
    }
    let ended = pages.value(&nodes_at[0], UNTIL).unwrap();

    // Its successor does the work.
    let closer = start_worker(&site, "closer");
    let closer_at = url_of("closer", 2);
    pages.until(&closer_at, CLOSED, |closed| closed == 10.0);
    for base in &nodes_at {
        pages.until(base, LAG, |lag| lag == 0.0);
        assert_eq!(pages.value(base, UNATTENDED), Some(0.0));
    }
    pages.until(&nodes_at[0], UNTIL, |until| until > ended);
    // Its first look at the store may still be under way.
    pages.until(&closer_at, WATCHERS, |watchers| watchers == 1.0);
    adds_up([&nodes_at[0], &watcher_at, &closer_at]);

    // A watcher that ends gives its lease back.
    assert!(watcher.terminate().0.success());
    for base in &nodes_at {
        pages.until(base, WATCHERS, |watchers| watchers == 0.0);
        pages.until(base, "batzen_worker_unattended_seconds{worker=\"wirewatch\"}", |seconds| seconds > 0.0);
    }
    let dead = run(&["metrics", &nodes_at[0], &watcher_at]);
    assert_eq!(dead.status.code(), Some(1), "one of them does not answer: {}", stdout(&dead));
    assert!(stdout(&dead).contains("does not answer"), "{}", stdout(&dead));
    let [a, b] = nodes;
    end([closer, a, b, bank]);
}

/// `batzen metrics` adds the counters of processes, and shows their gauges.
fn adds_up(processes: [&String; 3]) {
    let [a, b, c] = processes.map(String::as_str);
    let sums = must_json(&["metrics", "--json", "--match", "worker", a, b, c]);
    let find = |name: &str| {
        let metrics = sums["metrics"].as_array().unwrap();
        metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("{name} in {sums}"))
    };
    assert_eq!(find("batzen_worker_wirewatch_credits_total")["sum"], 20.0);
    assert_eq!(find(CLOSED)["sum"], 10.0);
    assert_eq!(find(WATCHERS)["values"], serde_json::json!([1.0, 1.0, 1.0]));
    assert_eq!(find(OWN_WATCHERS)["values"], serde_json::json!([0.0, 1.0, 0.0]));
    let table = stdout(&run(&["metrics", a, b, c]));
    assert!(table.contains("counters") && table.contains(&format!("[2] {b}")), "{table}");
}

#[test]
fn a_successor_takes_the_address_of_the_metrics_when_the_first_service_has_ended() {
    let metrics = free_port();
    let (site, _) = prepare(&format!("[exchange]\nMETRICS = 127.0.0.1:{metrics}\n"));
    let bank = site.start_bank();
    let first = start_node(&site, "first", &[]);
    wait_for(metrics, "/metrics");
    let second = start_node(&site, "second", &[]);
    assert!(first.terminate().0.success());
    wait_for(metrics, "/metrics");
    end([second, bank]);
}

#[test]
fn a_worker_program_beside_an_embedded_store_shows_whether_it_reaches_the_service() {
    let site = Site::new("");
    let bank = site.start_bank();
    let worker = start_worker(&site, "aggregator");
    let (at, pages) = (Pages::url(site.dir.path(), "aggregator", 1), Pages::new());
    assert_eq!(pages.get(&format!("{at}health")).0, 200);
    assert_eq!(pages.get(&format!("{at}ready")).0, 503, "there is no service yet");
    assert_eq!(
        pages.value(&at, "batzen_worker_aggregator_lag_seconds"),
        None,
        "it knows nothing of the store"
    );
    let exchange = site.start_exchange();
    until("the worker does not reach the service", || pages.get(&format!("{at}ready")).0 == 200);
    end([worker, exchange, bank]);
}

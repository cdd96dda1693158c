//! `/health` and `/ready` of every service, and the warnings before keys and fees expire.

use crate::common;
use crate::monitoring::clearing::Clearing;
use crate::signer::deployment::Deployment;

use std::time::{Duration, Instant};

use batzen_testkit::postgres::{Cluster, ClusterOptions, Mode};
use common::http::Http;
use common::setup::{config_with, master_key, wait_for};
use common::site::Site;
use common::{PATIENCE, Service, free_port, must};
use serde_json::Value;

/// The pages of services about themselves.
struct Pages(Http);

impl Pages {
    fn new() -> Self {
        Self(Http::new())
    }

    /// Status and JSON body.
    fn get(&self, url: &str) -> (u16, Value) {
        let (status, body) = self.0.page(url);
        assert!(body.len() < 2_048, "the body of {url} is small");
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Asserts that a service answers `/health`; returns the status and the checks of `/ready`.
    fn checks(&self, base: &str) -> (u16, Vec<(String, bool, String)>) {
        assert_eq!(self.get(&format!("{base}/health")), (200, serde_json::json!({ "status": "ok" })));
        let (status, body) = self.get(&format!("{base}/ready"));
        assert_eq!(body["status"], if status == 200 { "ready" } else { "not ready" });
        let checks = body["checks"].as_array().unwrap().iter().map(|check| {
            let hint = check["hint"].as_str().unwrap_or_default().to_owned();
            (check["name"].as_str().unwrap().to_owned(), check["ok"].as_bool().unwrap(), hint)
        });
        (status, checks.collect())
    }

    /// Asserts that a service is ready with exactly these checks.
    fn assert_ready(&self, base: &str, names: &[&str]) {
        let (status, checks) = self.checks(base);
        assert_eq!(status, 200, "{base}: {checks:?}");
        let found: Vec<&str> = checks.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(found, names, "{base}");
    }

    /// Waits until exactly these checks fail, and returns their hints.
    fn wait_failed(&self, base: &str, names: &[&str]) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, checks) = self.checks(base);
            let failed: Vec<_> = checks.into_iter().filter(|(_, is_ok, _)| !is_ok).collect();
            if failed.iter().map(|(name, ..)| name.as_str()).eq(names.iter().copied()) {
                assert_eq!(status, if names.is_empty() { 200 } else { 503 });
                return failed.into_iter().map(|(_, _, hint)| hint).collect();
            }
            assert!(Instant::now() < deadline, "{base}: {failed:?} fail instead of {names:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn base(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

#[test]
fn every_service_answers_health_and_ready() {
    let (http, site) = (Pages::new(), Site::new(""));
    let _bank = site.start("bank", &["bank", "serve"]);
    wait_for(site.bank_port, "/ready");
    let _exchange = site.start("exchange", &["exchange", "serve"]);
    wait_for(site.exchange_port, "/ready");
    let clearing = Clearing::start();
    let place = Deployment::new();
    let _signer = place.start_signer(0);
    wait_for(place.metrics[0], "/ready");
    http.assert_ready(&base(site.bank_port), &["store", "clock", "ledger"]);
    http.assert_ready(&base(site.exchange_port), &["store", "clock", "keys", "wire"]);
    http.assert_ready(clearing.ledger.trim_end_matches('/'), &["store", "clock", "ledger"]);
    http.assert_ready(clearing.switch.trim_end_matches('/'), &["store", "clock", "ledger", "window"]);
    http.assert_ready(&base(place.metrics[0]), &["clock", "keys", "sync"]);
}

#[test]
fn a_service_whose_store_cannot_be_written_is_not_ready() {
    let (http, dir) = (Pages::new(), tempfile::tempdir().unwrap());
    let (port, store) = (free_port(), dir.path().join("books"));
    let words = ["bank", "serve", "--currency", "KUDOS", "--data", store.to_str().unwrap(), "--port"];
    let _bank = Service::start(dir.path(), "bank", &[&words[..], &[&port.to_string()]].concat());
    wait_for(port, "/ready");
    let away = dir.path().join("away");
    std::fs::rename(&store, &away).unwrap();
    let hints = http.wait_failed(&base(port), &["store"]);
    assert!(hints[0].contains("create"), "{hints:?}");
    std::fs::rename(&away, &store).unwrap();
    http.wait_failed(&base(port), &[]);
    assert!(!store.join("PROBE").exists(), "a check leaves no file");
}

#[test]
fn a_service_without_its_database_is_not_ready() {
    let (http, dir) = (Pages::new(), tempfile::tempdir().unwrap());
    let options = ClusterOptions::unsynced();
    let mut cluster = Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"));
    let url = cluster.create_database("bank").unwrap();
    let port = free_port();
    let prepare = batzen_service::storage::StoreConfig::postgres(url.clone());
    prepare.prepare(&batzen_service::storage::BANK).unwrap();
    prepare.prepare(&batzen_service::storage::LEDGER).unwrap();
    let words = ["bank", "serve", "--currency", "KUDOS", "--database", &url, "--port", &port.to_string()];
    let _bank = Service::start(dir.path(), "bank", &words);
    wait_for(port, "/ready");
    http.assert_ready(&base(port), &["database", "clock", "ledger"]);
    cluster.stop(Mode::Immediate).unwrap();
    http.wait_failed(&base(port), &["database"]);
    cluster.start_again().unwrap();
    http.wait_failed(&base(port), &[]);
}

/// An exchange that an operator signs for, not yet started.
struct Operated {
    site: Site,
}

impl Operated {
    fn new() -> Self {
        let site = Site::configured(|dir, bank_port, port| {
            let file = config_with(dir, (bank_port, bank_port), port, "");
            let text = std::fs::read_to_string(&file).unwrap().replace("ENABLED = YES", "ENABLED = NO");
            std::fs::write(&file, &text).unwrap();
            let master = master_key(&offline(&file, &["setup"]));
            let key = format!("MASTER_PUBLIC_KEY = {master}\n[exchange-standalone]");
            std::fs::write(&file, text.replace("[exchange-standalone]", &key)).unwrap();
            file
        });
        Self { site }
    }

    fn start(&self) -> Service {
        self.site.start("exchange", &["exchange", "serve"])
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.site.path("exchange.log")).unwrap()
    }
}

/// Runs the offline tool, which must succeed, and returns its standard output.
fn offline(config: &str, steps: &[&str]) -> String {
    must(&[&["exchange", "offline", "-c", config][..], steps].concat())
}

/// The coverage of a kind in a calendar.
fn coverage<'a>(calendar: &'a Value, kind: &str) -> Vec<&'a Value> {
    calendar["coverage"].as_array().unwrap().iter().filter(|row| row["kind"] == kind).collect()
}

#[test]
fn an_exchange_is_ready_when_the_offline_key_has_signed() {
    const PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
    let (http, operated) = (Pages::new(), Operated::new());
    let _exchange = operated.start();
    wait_for(operated.site.exchange_port, "/management/keys");
    let hints = http.wait_failed(&base(operated.site.exchange_port), &["keys", "wire"]);
    assert!(hints[0].contains("download sign upload"), "{hints:?}");
    let deadline = Instant::now() + PATIENCE;
    while !operated.log().contains("ready, but keys wait for the offline signature: run") {
        assert!(Instant::now() < deadline, "{}", operated.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!operated.log().contains("ERROR"), "{}", operated.log());

    // What must be signed now, according to the documents.
    let request = offline(&operated.site.config, &["download"]);
    assert!(request.contains("exchange-input-keys-0"));
    let calendar = offline(&operated.site.config, &["download", "calendar", "--json"]);
    let calendar: Value = serde_json::from_str(&calendar).unwrap();
    let denominations = coverage(&calendar, "denomination");
    let items: Vec<&str> = denominations.iter().map(|row| row["item"].as_str().unwrap()).collect();
    assert_eq!(items, ["KUDOS:1 CS", "KUDOS:2"]);
    assert!(denominations.iter().all(|row| row["unsigned"].as_u64() >= Some(1)), "{calendar:#}");
    assert!(denominations.iter().all(|row| row["covered_until_s"].is_null()), "{calendar:#}");

    offline(&operated.site.config, &["download", "sign", "upload", "enable-account", PAYTO, "upload"]);
    let fees = ["wire-fee", "now", "x-taler-bank", "KUDOS:0", "KUDOS:0", "upload"];
    offline(&operated.site.config, &fees);
    let global = ["global-fee", "now", "KUDOS:0", "KUDOS:0", "KUDOS:0", "1 h", "1 year", "8", "upload"];
    offline(&operated.site.config, &global);
    http.wait_failed(&base(operated.site.exchange_port), &[]);

    // When each thing ends, according to the exchange.
    let calendar: Value =
        serde_json::from_str(&offline(&operated.site.config, &["calendar", "--json"])).unwrap();
    for kind in ["denomination", "signing_key", "wire_fee", "global_fee"] {
        let rows = coverage(&calendar, kind);
        assert!(!rows.is_empty(), "{kind}: {calendar:#}");
        for row in rows {
            assert!(row["seconds_left"].as_u64() > Some(0), "{kind}: {calendar:#}");
            assert!(row["gap"].is_null() && row["sign_by_s"] == row["covered_until_s"], "{calendar:#}");
        }
    }
    let table = offline(&operated.site.config, &["calendar"]);
    for expected in ["sign the next by", "KUDOS:2", "wire_fee", "x-taler-bank", "GMT"] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    let metrics = expiry_metrics(&http, operated.site.exchange_port);
    for row in calendar["coverage"].as_array().unwrap() {
        let labels = format!(
            "{{kind=\"{}\",item=\"{}\"}}",
            row["kind"].as_str().unwrap(),
            row["item"].as_str().unwrap()
        );
        let line = format!("batzen_expiry_timestamp_seconds{labels} {}\n", row["covered_until_s"]);
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

fn expiry_metrics(http: &Pages, port: u16) -> String {
    let text = http.0.text(&format!("{}/metrics", base(port)));
    text.lines().filter(|line| line.starts_with("batzen_expiry")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn an_exchange_with_signers_checks_them() {
    let (http, place) = (Pages::new(), Deployment::new());
    let _exchange = place.start_exchange(0);
    let port = place.exchange_ports[0];
    wait_for(port, "/health");
    http.wait_failed(&base(port), &["keys", "wire", "signer"]);
    let _signers = [place.start_signer(0), place.start_signer(1)];
    http.wait_failed(&base(port), &["keys", "wire"]);
}

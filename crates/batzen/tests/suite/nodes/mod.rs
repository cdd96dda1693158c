//! Several exchange services and worker programs as processes on one PostgreSQL database. A change at one
//! shows at the others, any of them may be killed at any moment, and a new one takes over from an old one
//! without a failed request.

#![allow(dead_code, reason = "the parts of the crash test are shared")]

mod keys;
mod limits;
mod metrics;
mod outage;
mod purse;
mod race;

use crate::common;
use crate::crash::{customers, deployment, facts};

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use batzen_exchange::storage::{self, StoreConfig};
use batzen_http::client::{Client, ClientOptions};
use common::setup::{COINS, LIMITS, config_with_fees, credit, get, wait_for};
use common::{PATIENCE, Service, run, stderr, stdout};
use customers::{Dice, Load};
use deployment::Deployment;
use facts::Claims;
use tokio::task::JoinSet;

const WORKERS: [&str; 4] = ["wirewatch", "aggregator", "transfer", "closer"];

/// Writes a configuration for a new database, and creates its tables.
fn prepare(dir: &Path, bank_port: u16, port: u16, more: &str) -> (String, String) {
    let url = batzen_testkit::postgres::fresh_database();
    (prepare_at(&url, dir, bank_port, port, more), url)
}

fn prepare_at(url: &str, dir: &Path, bank_port: u16, port: u16, more: &str) -> String {
    let more = format!(
        "[exchange]\nDB = postgres\nREUSE_PORT = YES\nAGGREGATOR_IDLE_SLEEP_INTERVAL = 1 s\n\
         TRANSFER_IDLE_SLEEP_INTERVAL = 1 s\nCLOSER_IDLE_SLEEP_INTERVAL = 1 s\n\
         [exchangedb-postgres]\nCONFIG = {url}\n{more}"
    );
    let config = config_with_fees(dir, bank_port, port, &more);
    StoreConfig::postgres(url.to_owned()).prepare(&batzen_service::storage::EXCHANGE).unwrap();
    config
}

/// Starts a service, and waits for its own message that it is ready, since another one may answer at its
/// port.
fn start_node(dir: &Path, name: &str, config: &str, more: &[&str]) -> Service {
    let log = dir.join(format!("{name}.log"));
    let said = || std::fs::read_to_string(&log).unwrap_or_default().matches("exchange ready").count();
    let before = said();
    let mut arguments = vec!["exchange", "httpd", "-c", config, "--no-workers"];
    arguments.extend(more);
    let mut node = Service::start(dir, name, &arguments);
    let deadline = Instant::now() + PATIENCE;
    while said() == before {
        node.assert_runs();
        assert!(Instant::now() < deadline, "{name} is not ready: {}", std::fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    node
}

fn totals(config: &str) -> serde_json::Value {
    let totals = run(&["exchange", "totals", "-c", config, "--json"]);
    assert!(totals.status.success(), "{}{}", stdout(&totals), stderr(&totals));
    serde_json::from_str(&stdout(&totals)).unwrap()
}

#[test]
fn a_credit_wakes_waiting_clients_on_every_node() {
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, [a, b]) = (common::free_port(), [common::free_port(), common::free_port()]);
    let (config, _) = prepare(dir.path(), bank_port, a, "");
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let first = start_node(dir.path(), "a", &config, &[]);
    let second = start_node(dir.path(), "b", &config, &["--port", &b.to_string()]);
    wait_for(a, "/keys");
    wait_for(b, "/keys");

    // A long poll at one node ends when a worker of another process books the credit.
    let worker = Service::start(dir.path(), "wirewatch", &["exchange", "wirewatch", "-c", &config]);
    let mut reserve = [7; 32];
    reserve[..2].copy_from_slice(&0u16.to_le_bytes());
    let path = format!("/reserves/{}?timeout_ms=100000", batzen_crypto::base32::encode(&reserve));
    let polls = [a, b].map(|port| {
        let path = path.clone();
        std::thread::spawn(move || get(port, &path))
    });
    std::thread::sleep(Duration::from_millis(300));
    credit(bank_port, 0, 1);
    for poll in polls {
        assert_eq!(poll.join().unwrap(), 200);
    }

    for service in [worker, first, second, bank] {
        assert!(service.terminate().0.success());
    }
    assert_eq!(totals(&config)["wired_in"], "1.25");
}

/// Behaves like any HTTP client: keeps its connection while the server does, and makes a new one if it finds
/// the old one closed before sending. Everything else is a failure.
fn keep_asking(port: u16, is_over: &AtomicBool, answered: &AtomicU64) {
    let unknown = format!("/reserves/{}", batzen_crypto::base32::encode(&[5; 32]));
    let mut kept: Option<TcpStream> = None;
    let mut number = 0u64;
    while !is_over.load(Ordering::Relaxed) {
        let mut stream = kept.take().filter(is_open).unwrap_or_else(|| {
            TcpStream::connect(("127.0.0.1", port)).expect("a service listens at any time")
        });
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        number += 1;
        // One answer comes from memory, the other from the database.
        let (path, expected) =
            if number.is_multiple_of(2) { ("/", "200") } else { (unknown.as_str(), "404") };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let answer = read_answer(&mut stream);
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{answer}");
        answered.fetch_add(1, Ordering::Relaxed);
        if !answer.to_ascii_lowercase().contains("connection: close") {
            kept = Some(stream);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn read_answer(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 16_384];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return String::from_utf8_lossy(&bytes).into_owned();
            }
        }
        let n = stream.read(&mut part).expect("what was sent is answered");
        assert_ne!(n, 0, "what was sent is answered: {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&part[..n]);
    }
}

#[test]
fn services_take_over_from_each_other_without_a_failed_request() {
    const TAKE_OVERS: usize = 10;
    let dir = tempfile::tempdir().unwrap();
    let (bank_port, port) = (common::free_port(), common::free_port());
    let (config, _) = prepare(dir.path(), bank_port, port, "");
    let bank = Service::start(dir.path(), "bank", &["bank", "serve", "-c", &config]);
    wait_for(bank_port, "/taler-bank-integration/config");
    let mut node = start_node(dir.path(), "node", &config, &[]);
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (is_over, answered) = (Arc::clone(&is_over), Arc::clone(&answered));
            std::thread::spawn(move || keep_asking(port, &is_over, &answered))
        })
        .collect();
    for take_over in 0..TAKE_OVERS {
        let before = answered.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        while answered.load(Ordering::Relaxed) < before + 50 {
            assert!(Instant::now() < deadline, "no request is served");
            std::thread::sleep(Duration::from_millis(10));
        }
        let next = start_node(dir.path(), &format!("node-{take_over}"), &config, &[]);
        let (status, _) = std::mem::replace(&mut node, next).terminate();
        assert!(status.success(), "{status}");
        assert!(!clients.iter().any(std::thread::JoinHandle::is_finished), "a request failed");
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    println!("{TAKE_OVERS} take-overs, {} requests, none failed", answered.load(Ordering::Relaxed));
    for service in [node, bank] {
        assert!(service.terminate().0.success());
    }
}

/// The processes of an exchange: two services on one port, and two of each worker.
struct Processes {
    config: String,
    dir: tempfile::TempDir,
    running: Vec<(&'static str, Service)>,
}

impl Processes {
    fn start(&self, kind: &'static str, number: usize) -> Service {
        let name = format!("{kind}-{number}");
        let mut arguments = vec!["exchange", kind, "-c", &self.config];
        if kind == "httpd" {
            arguments.push("--no-workers");
        }
        Service::start(self.dir.path(), &name, &arguments)
    }

    fn kill_and_restart(&mut self, number: usize) -> &'static str {
        let kind = self.running[number].0;
        self.running[number].1.kill_9();
        self.running[number].1 = self.start(kind, number);
        kind
    }

    fn stop(&mut self) {
        for (kind, service) in self.running.drain(..) {
            let (status, _) = service.terminate();
            assert!(status.success(), "{kind} ended with {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_workers_are_killed_at_any_moment_and_the_books_add_up() {
    let cycles = std::env::var("BATZEN_SOAK_CYCLES").map_or(10, |text| text.parse().unwrap());
    let mut bytes = [0; 8];
    batzen_crypto::fill_random(&mut bytes);
    let mut dice = Dice::new(u64::from_le_bytes(bytes));
    let client =
        Client::new(&ClientOptions { timeout: Duration::from_secs(10), ..ClientOptions::default() }).unwrap();
    // Uses its bank, but not its exchange.
    let mut deployment = Deployment::new(client.clone());
    deployment.start_bank().await;
    let bank_port = deployment.bank_url().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let port = common::free_port();
    let dir = tempfile::tempdir().unwrap();
    let (config, url) = prepare(dir.path(), bank_port, port, &format!("{COINS}{LIMITS}"));
    let mut processes = Processes { config, dir, running: Vec::new() };
    let first = start_node(processes.dir.path(), "httpd-0", &processes.config, &[]);
    wait_for(port, "/keys");
    processes.running.push(("httpd", first));
    for kind in ["httpd"].into_iter().chain(WORKERS).chain(WORKERS) {
        let service = processes.start(kind, processes.running.len());
        processes.running.push((kind, service));
    }
    let load =
        Arc::new(Load::new(client, &format!("http://localhost:{port}/"), &deployment.bank_url()).await);
    let mut customers = JoinSet::new();
    for _ in 0..6 {
        customers.spawn(Arc::clone(&load).customer(dice.child()));
    }
    for cycle in 0..cycles {
        tokio::time::sleep(Duration::from_millis(100 + dice.below(1_500))).await;
        if let Some(ended) = customers.try_join_next() {
            ended.unwrap();
        }
        // Every second kill hits a service, the others any process.
        let number = if cycle % 2 == 0 { dice.below(2) } else { dice.below(processes.running.len() as u64) };
        let before = load.log.acknowledged();
        let kind = processes.kill_and_restart(usize::try_from(number).unwrap());
        println!("cycle {cycle}: {kind} {number} killed after {before} answers");
    }
    // There was work for all of them.
    let deadline = Instant::now() + PATIENCE;
    while load.log.acknowledged() < 100 {
        assert!(Instant::now() < deadline, "the exchange does not work: {:?}", load.log.counts());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    load.end();
    while let Some(ended) = customers.join_next().await {
        ended.unwrap();
    }
    let settled = load.settle().await;
    let coins = load.coins.lock().unwrap().clone();
    let claims = Claims {
        entries: load.log.entries(),
        credits: load.credits.lock().unwrap().clone(),
        coins: &coins,
        denoms: &load.denoms,
        shops: &load.shops,
        base_url: &load.base_url,
    };
    processes.stop();
    // All due deposits are paid, by any of the workers.
    let deadline = Instant::now() + PATIENCE;
    let findings = loop {
        for worker in WORKERS {
            let output = run(&["exchange", worker, "-c", &processes.config, "-t"]);
            assert!(output.status.success(), "{worker}: {}", stderr(&output));
        }
        deployment.stop();
        let exchange = storage::open(&StoreConfig::postgres(url.clone()), 1).unwrap();
        let bank = deployment.bank_books();
        let findings = facts::check(&claims, &exchange, &bank).await;
        exchange.close().unwrap();
        bank.close();
        if !findings.is_unpaid || Instant::now() > deadline {
            break findings;
        }
        deployment.start_bank().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(findings.problems.is_empty(), "{:#?}", &findings.problems[..findings.problems.len().min(20)]);
    println!(
        "{cycles} kills, {} answers, {settled} settled at the end, {} transfers made once, the books add up",
        load.log.acknowledged(),
        findings.transfers
    );
}

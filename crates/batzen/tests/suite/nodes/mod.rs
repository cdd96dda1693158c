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
use crate::crash::{customers, deployment, facts, run};

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use batzen_exchange::storage::{self, StoreConfig};
use batzen_http::client::{Client, ClientOptions};
use common::http::message;
use common::setup::{COINS, LIMITS, config_with_fees, credit, get, wait_for};
use common::site::Site;
use common::{PATIENCE, Service, end, free_port, must, until};
use customers::Load;
use deployment::Deployment;

const WORKERS: [&str; 4] = ["wirewatch", "aggregator", "transfer", "closer"];

/// An exchange with a new database and its tables, and the database.
fn prepare(more: &str) -> (Site, String) {
    let url = batzen_testkit::postgres::fresh_database();
    (Site::configured(|dir, bank_port, port| prepare_at(&url, dir, bank_port, port, more)), url)
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
fn start_node(site: &Site, name: &str, more: &[&str]) -> Service {
    let log = site.path(&format!("{name}.log"));
    let said = || std::fs::read_to_string(&log).unwrap_or_default().matches("exchange ready").count();
    let before = said();
    let mut node = site.start(name, &[&["exchange", "httpd", "--no-workers"][..], more].concat());
    let deadline = Instant::now() + PATIENCE;
    while said() == before {
        node.assert_runs();
        assert!(Instant::now() < deadline, "{name} is not ready: {}", std::fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    node
}

/// Starts two services, `a` and `b`, and returns their ports, too.
fn start_two(site: &Site) -> ([Service; 2], [u16; 2]) {
    let ports = [site.exchange_port, free_port()];
    let nodes = [start_node(site, "a", &[]), start_node(site, "b", &["--port", &ports[1].to_string()])];
    for port in ports {
        wait_for(port, "/keys");
        wait_for(port, "/wire");
    }
    (nodes, ports)
}

#[test]
fn a_credit_wakes_waiting_clients_on_every_node() {
    let (site, _) = prepare("");
    let bank = site.start_bank();
    let (nodes, ports) = start_two(&site);

    // A long poll at one node ends when a worker of another process books the credit.
    let worker = site.start("wirewatch", &["exchange", "wirewatch"]);
    let mut reserve = [7; 32];
    reserve[..2].copy_from_slice(&0u16.to_le_bytes());
    let path = format!("/reserves/{}?timeout_ms=100000", batzen_crypto::base32::encode(&reserve));
    let polls = ports.map(|port| {
        let path = path.clone();
        std::thread::spawn(move || get(port, &path))
    });
    std::thread::sleep(Duration::from_millis(300));
    credit(site.bank_port, 0, 1);
    for poll in polls {
        assert_eq!(poll.join().unwrap(), 200);
    }

    end([worker].into_iter().chain(nodes).chain([bank]));
    assert_eq!(site.totals()["wired_in"], "1.25");
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
        let answer = message(&mut stream).expect("what was sent is answered");
        let answer = String::from_utf8_lossy(&answer);
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

#[test]
fn services_take_over_from_each_other_without_a_failed_request() {
    const TAKE_OVERS: usize = 10;
    let (site, _) = prepare("");
    let bank = site.start_bank();
    let port = site.exchange_port;
    let mut node = start_node(&site, "node", &[]);
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (is_over, answered) = (Arc::clone(&is_over), Arc::clone(&answered));
            std::thread::spawn(move || keep_asking(port, &is_over, &answered))
        })
        .collect();
    for take_over in 0..TAKE_OVERS {
        let before = answered.load(Ordering::Relaxed);
        until("no request is served", || answered.load(Ordering::Relaxed) >= before + 50);
        let next = start_node(&site, &format!("node-{take_over}"), &[]);
        let (status, _) = std::mem::replace(&mut node, next).terminate();
        assert!(status.success(), "{status}");
        assert!(!clients.iter().any(std::thread::JoinHandle::is_finished), "a request failed");
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    println!("{TAKE_OVERS} take-overs, {} requests, none failed", answered.load(Ordering::Relaxed));
    end([node, bank]);
}

/// The processes of an exchange: two services on one port, and two of each worker.
struct Processes {
    site: Site,
    running: Vec<(&'static str, Service)>,
}

impl Processes {
    fn start(&self, kind: &'static str, number: usize) -> Service {
        let name = format!("{kind}-{number}");
        let mut arguments = vec!["exchange", kind];
        if kind == "httpd" {
            arguments.push("--no-workers");
        }
        self.site.start(&name, &arguments)
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
    let cycles = run::number("BATZEN_SOAK_CYCLES").unwrap_or(10);
    let mut dice = run::dice();
    let client =
        Client::new(&ClientOptions { timeout: Duration::from_secs(10), ..ClientOptions::default() }).unwrap();
    // Uses its bank, but not its exchange.
    let mut deployment = Deployment::new(client.clone());
    deployment.start_bank().await;
    let bank_port = deployment.bank_url().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let url = batzen_testkit::postgres::fresh_database();
    let more = format!("{COINS}{LIMITS}");
    let site = Site::configured(|dir, _, port| prepare_at(&url, dir, bank_port, port, &more));
    let exchange_url = site.exchange_url();
    let mut processes = Processes { site, running: Vec::new() };
    let first = start_node(&processes.site, "httpd-0", &[]);
    wait_for(processes.site.exchange_port, "/keys");
    processes.running.push(("httpd", first));
    for kind in ["httpd"].into_iter().chain(WORKERS).chain(WORKERS) {
        let service = processes.start(kind, processes.running.len());
        processes.running.push((kind, service));
    }
    let load = Arc::new(Load::new(client, &exchange_url, &deployment.bank_url()).await);
    let mut customers = run::spawn(&load, 6, &mut dice);
    for cycle in 0..cycles {
        tokio::time::sleep(Duration::from_millis(100 + dice.below(1_500))).await;
        run::assert_well(&mut customers);
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
    let settled = run::end(&load, customers).await;
    let coins = load.coins.lock().unwrap().clone();
    let claims = run::claims(&load, &coins);
    processes.stop();
    // All due deposits are paid, by any of the workers.
    let deadline = Instant::now() + PATIENCE;
    let findings = loop {
        for worker in WORKERS {
            must(&["exchange", worker, "-c", &processes.site.config, "-t"]);
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

//! Worker programs killed with `kill -9` at random and at chosen moments. Nothing is lost, nothing is done
//! twice, and nothing has to be unlocked.

use crate::common;

use std::collections::HashSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::http::message;
use common::setup::{config_with, credit};
use common::site::Site;
use common::{PATIENCE, Service, must};

/// Worker programs are killed at random moments, also in the middle of a page, and restarted: nothing is
/// lost, nothing is done twice, and nothing is left behind that delays the next one.
#[test]
fn killed_worker_programs_resume_their_work() {
    let site = Site::new("");
    let bank = site.start_bank();
    // The exchange creates its keys, and ends.
    assert!(site.serve_exchange(&["--no-workers"]).terminate().0.success());
    let (mut credits, mut pause_ms) = (0, 30);
    for round in 0..6 {
        credit(site.bank_port, credits, 400);
        credits += 400;
        for worker in ["wirewatch", "aggregator", "transfer", "closer"] {
            let mut args = vec!["exchange", worker, "-t"];
            if ["wirewatch", "transfer"].contains(&worker) {
                // As the protocol's test harnesses call them.
                args.extend(["-S", "1", "-w", "0"]);
            }
            let mut program = site.start(worker, &args);
            std::thread::sleep(Duration::from_millis(pause_ms));
            program.kill_9();
            // Covers the time from before the store opens until after the work ends, on any machine.
            pause_ms = pause_ms * (13 + round) / 10 % 1_500;
        }
    }
    for worker in ["wirewatch", "aggregator", "transfer", "closer"] {
        must(&["exchange", worker, "-c", &site.config, "-t"]);
    }
    let totals = site.totals();
    let expected = (u32::from(credits) * 5 / 4).to_string();
    assert_eq!(totals["wired_in"], expected, "{totals}");
    assert_eq!(totals["reserves"], expected, "{totals}");
    assert!(bank.terminate().0.success());
}

/// A point at which a program is killed: after a number of the bank's answers of one kind, the last of which
/// is held back.
struct Point {
    path: &'static str,
    answers: usize,
    reached: Sender<()>,
    killed: Receiver<()>,
}

/// A proxy between exchange and bank that can hold back an answer.
#[derive(Clone)]
struct Gate {
    port: u16,
    point: Arc<Mutex<Option<Point>>>,
}

impl Gate {
    fn open(bank_port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let gate = Self { port: listener.local_addr().unwrap().port(), point: Arc::default() };
        let passing = gate.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (gate, client) = (passing.clone(), client.unwrap());
                // Killed programs close their connections.
                std::thread::spawn(move || gate.pass(client, bank_port));
            }
        });
        gate
    }

    fn pass(&self, mut client: TcpStream, bank_port: u16) -> std::io::Result<()> {
        let mut bank = TcpStream::connect(("127.0.0.1", bank_port))?;
        bank.set_nodelay(true)?;
        client.set_nodelay(true)?;
        loop {
            let request = message(&mut client)?;
            // Like any proxy, it answers `OPTIONS *` itself.
            if request.starts_with(b"OPTIONS *") {
                client.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
                continue;
            }
            bank.write_all(&request)?;
            let answer = message(&mut bank)?;
            let line = String::from_utf8_lossy(&request[..request.len().min(120)]).into_owned();
            if self.holds(&line) {
                return Ok(());
            }
            client.write_all(&answer)?;
        }
    }

    /// Returns whether this is the answer at which the program is to be killed; if so, it has been killed on
    /// return. No other answer passes meanwhile, so that the program makes no progress on its other work.
    fn holds(&self, line: &str) -> bool {
        let mut planted = self.point.lock().unwrap();
        let Some(point) = planted.as_mut().filter(|point| line.contains(point.path)) else { return false };
        point.answers -= 1;
        if point.answers > 0 {
            return false;
        }
        let point = planted.take().expect("it is planted");
        point.reached.send(()).unwrap();
        point.killed.recv().unwrap();
        true
    }

    /// Starts a program, and kills it after a number of the bank's answers; `before` runs when that point is
    /// reached.
    fn kill_at(&self, dir: &Path, args: &[&str], path: &'static str, answers: usize, before: impl FnOnce()) {
        let (reached, is_reached) = channel();
        let (is_killed, killed) = channel();
        *self.point.lock().unwrap() = Some(Point { path, answers, reached, killed });
        let mut program = Service::start(dir, "killed", args);
        is_reached.recv_timeout(PATIENCE).expect("the program comes to the point");
        before();
        program.kill_9();
        is_killed.send(()).unwrap();
    }
}

/// The identifiers of the transfers that the bank has executed, each once.
fn executed(bank_port: u16) -> HashSet<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", bank_port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let get =
        "GET /taler-wire-gateway/exchange/history/outgoing?delta=10000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(get.as_bytes()).unwrap();
    let answer = message(&mut stream).unwrap();
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    if answer.len() == body {
        return HashSet::new();
    }
    let history: serde_json::Value = serde_json::from_slice(&answer[body..]).unwrap();
    let rows = history["outgoing_transactions"].as_array().unwrap();
    let wtids: HashSet<_> = rows.iter().map(|row| row["wtid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(wtids.len(), rows.len(), "nothing is paid twice");
    assert!(rows.iter().all(|row| row["amount"] == "KUDOS:1.25"));
    wtids
}

#[test]
fn worker_programs_are_killed_at_chosen_points_inside_a_page() {
    const CREDITS: u16 = 300;
    let mut gate = None;
    let site = Site::configured(|dir, bank_port, exchange_port| {
        let gateway_port = gate.insert(Gate::open(bank_port)).port;
        let more = "[exchangedb]\nIDLE_RESERVE_EXPIRATION_TIME = 1 s\n";
        config_with(dir, (bank_port, gateway_port), exchange_port, more)
    });
    let (gate, dir, bank_port) = (gate.expect("it is open"), site.dir.path(), site.bank_port);
    let bank = site.start_bank();
    let serve_exchange = || site.serve_exchange(&["--no-workers"]);
    assert!(serve_exchange().terminate().0.success());
    credit(bank_port, 0, CREDITS);
    let all = (u32::from(CREDITS) * 5 / 4).to_string();

    // The next page is fetched while the previous one is booked.
    let wirewatch = ["exchange", "wirewatch", "-c", &site.config, "-t", "-S", "50"];
    for (pages, most) in [(1, "0"), (2, "62.5"), (3, "187.5")] {
        gate.kill_at(dir, &wirewatch, "history/incoming", pages, || {});
        let booked: f64 = site.totals()["wired_in"].as_str().unwrap().parse().unwrap();
        let most: f64 = most.parse().unwrap();
        assert!(booked <= most, "{booked} after {pages} pages");
    }
    must(&wirewatch);
    assert_eq!(site.totals()["wired_in"], all.as_str());

    // All reserves are closed, with one transfer each.
    std::thread::sleep(Duration::from_millis(1_100));
    must(&["exchange", "closer", "-c", &site.config, "-t"]);
    let transfer = ["exchange", "transfer", "-c", &site.config, "-t", "-S", "100"];
    for answers in [1, 40, 150] {
        let mut before = HashSet::new();
        gate.kill_at(dir, &transfer, "/transfer", answers, || before = executed(bank_port));
        assert!(!before.is_empty(), "the bank has executed transfers that the exchange has not recorded");
        assert!(executed(bank_port).is_superset(&before));
    }
    // In a service, the killed program's worker ends, and its claims with it.
    let exchange = serve_exchange();
    gate.kill_at(dir, &transfer, "/transfer", 20, || {});
    for mut program in [(); 2].map(|()| Service::start(dir, "transfer", &transfer)) {
        assert!(program.wait().success());
    }
    assert_eq!(executed(bank_port).len(), usize::from(CREDITS));
    credit(bank_port, CREDITS, 60);
    gate.kill_at(dir, &wirewatch, "history/incoming", 1, || {});
    must(&wirewatch);
    assert!(exchange.terminate().0.success());
    let totals = site.totals();
    assert_eq!((&totals["wired_out"], &totals["in_flight"]), (&all.as_str().into(), &"0".into()), "{totals}");
    assert_eq!(totals["wired_in"], (u32::from(CREDITS + 60) * 5 / 4).to_string(), "{totals}");
    assert!(bank.terminate().0.success());
}

//! A proxy that records what clients send and are answered, as requests to mutate.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::{PATIENCE, free_port};
use crate::mutate::answer::{self, Answer};
use crate::mutate::mutant;
use crate::mutate::routes::Route;
use crate::mutate::seeds::Seed;

type Bytes = Arc<Mutex<Vec<u8>>>;

pub(super) struct Proxy {
    /// The port that clients use.
    pub port: u16,
    /// Bytes in both directions, by connection.
    streams: Arc<Mutex<Vec<[Bytes; 2]>>>,
}

impl Proxy {
    /// Forwards connections to local port `target`.
    pub(super) fn start(target: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let streams = Arc::<Mutex<Vec<[Bytes; 2]>>>::default();
        let noted = Arc::clone(&streams);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let [sent, answered] = <[Bytes; 2]>::default();
                noted.lock().unwrap().push([Arc::clone(&sent), Arc::clone(&answered)]);
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(from, to, &sent));
                thread::spawn(move || carry(server, client, &answered));
            }
        });
        Self { port, streams }
    }

    pub(super) fn url(&self) -> String {
        format!("http://localhost:{}/", self.port)
    }

    /// The requests so far. Those that were answered with success come first.
    pub(super) fn seeds(&self) -> Vec<Seed> {
        let streams = self.streams.lock().unwrap();
        let of = |[sent, answered]: &[Bytes; 2]| {
            let mut seeds = Seed::parse_all(&sent.lock().unwrap());
            for (seed, status) in seeds.iter_mut().zip(answer::statuses(&answered.lock().unwrap())) {
                seed.is_valid = status < 400;
            }
            seeds
        };
        let mut seeds: Vec<Seed> = streams.iter().flat_map(of).collect();
        seeds.sort_by_key(|seed| !seed.is_valid);
        seeds
    }

    /// Sends a request as a client does, whatever the answer is.
    pub(super) fn ask(&self, seed: Seed) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = format!("localhost:{}", self.port);
        stream.write_all(&mutant::client_request(&seed.header("Connection", "close"), &host)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        answer::parse(&bytes, false, true).unwrap().expect("an answer")
    }

    /// Sends a request that must succeed, and returns the JSON of the answer.
    #[track_caller]
    pub(super) fn send(&self, seed: Seed) -> Value {
        let name = format!("{} {}", seed.method, seed.path);
        let answer = self.ask(seed);
        let text = String::from_utf8_lossy(&answer.body);
        assert!(answer.status < 400, "{name}: {} {text}", answer.status);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Repeats a request until its answer is as expected.
    pub(super) fn until(&self, seed: &Seed, is_expected: impl Fn(&Value) -> bool) -> Value {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(seed.clone());
            let value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if answer.status < 400 && is_expected(&value) {
                return value;
            }
            assert!(std::time::Instant::now() < deadline, "{} {}: {value}", seed.method, seed.path);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Gets every page that takes no parameters, with `instance` for the name of a shop, and the dashboard's history.
    pub(super) fn visit(&self, routes: &[Route], instance: &str, headers: &[(&str, &str)]) {
        for route in routes.iter().filter(|route| route.method == "GET") {
            let path = route.pattern.replace(":instance", instance).replace(":part", "history");
            if !path.contains(':') {
                let seed = Seed::new("GET", &path);
                self.ask(headers.iter().fold(seed, |seed, (name, value)| seed.header(name, value)));
            }
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, noted: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        noted.lock().unwrap().extend_from_slice(&bytes[..read]);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // Either side may have closed already.
    let _ = to.shutdown(Shutdown::Write);
}

//! Request lines of the log: a correlation id follows a request through the services, and no log links a
//! withdrawal to a payment.

use crate::common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use common::setup::wait_for;
use common::site::Site;
use common::{PATIENCE, Service, end};
use serde_json::{Value, json};

/// Sends a request with a correlation id, and returns the response as text.
fn send(port: u16, method: &str, path: &str, id: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTaler-Correlation-Id: {id}\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The lines of a service's log with this message.
fn lines(dir: &Path, name: &str, message: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

fn ids_of<'a>(lines: &'a [Value], path: &str) -> Vec<&'a str> {
    lines.iter().filter(|line| line["path"] == path).map(|line| line["id"].as_str().unwrap()).collect()
}

#[test]
fn a_correlation_id_follows_a_request_and_links_no_withdrawal() {
    let site = Site::new("");
    let (dir, exchange_port) = (&site.dir, site.exchange_port);
    let serve =
        |service: &str| site.start(service, &[service, "serve", "-L", "DEBUG", "--log-format", "json"]);
    let bank = serve("bank");
    wait_for(site.bank_port, "/ready");
    let exchange = serve("exchange");
    wait_for(exchange_port, "/ready");

    // Every response repeats the client's id, unless it is malformed.
    let key = "0QHNJ8AWTJ1GNJ7AR0ZSC9TPBYZ04TTYYWJ5S4NQK9DV2T3QS8W0";
    let withdraw = format!("/reserves/{key}/batch-withdraw");
    let melt = format!("/coins/{key}/melt");
    let deposit = format!("/coins/{key}/deposit");
    for path in [&withdraw, &melt, &deposit, "/batch-deposit"] {
        let answer = send(exchange_port, "POST", path, "shop-1");
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert!(answer.to_lowercase().contains("taler-correlation-id: shop-1\r\n"), "{answer}");
    }
    let answer = send(exchange_port, "POST", "/batch-deposit", "a b");
    assert!(!answer.to_lowercase().contains("taler-correlation-id"), "{answer}");

    // Payments are logged with the client's id. What could be linked to them has an id of its own.
    let requests = lines(dir.path(), "exchange", "request");
    assert_eq!(ids_of(&requests, "/coins/*/deposit"), ["shop-1"]);
    let batches = ids_of(&requests, "/batch-deposit");
    assert!(batches.len() == 2 && batches[0] == "shop-1" && batches[1] != "a b", "{batches:?}");
    for path in ["/reserves/*/batch-withdraw", "/coins/*/melt"] {
        let ids = ids_of(&requests, path);
        assert!(ids.len() == 1 && ids[0] != "shop-1" && ids[0].len() == 16, "{path}: {ids:?}");
    }
    let log = std::fs::read_to_string(dir.path().join("exchange.log")).unwrap();
    assert!(!log.contains(key), "the log has a key");

    // The exchange's requests to the bank have the same id in both logs.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answers = lines(dir.path(), "exchange", "the bank answered");
        let requests = lines(dir.path(), "bank", "request");
        let at_bank = ids_of(&requests, "/taler-wire-gateway/*/history/incoming");
        if answers.iter().any(|answer| at_bank.iter().any(|id| answer["id"] == **id)) {
            break;
        }
        assert!(Instant::now() < deadline, "no id is in both logs: {answers:?} {at_bank:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    end([exchange, bank]);
}

/// Collects the bodies that are posted to a port.
fn collector() -> (u16, std::sync::mpsc::Receiver<Value>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, bodies) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = std::io::BufReader::new(stream.unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut stream, &mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            stream.get_mut().write_all(answer).unwrap();
            if sender.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (port, bodies)
}

#[test]
fn spans_of_requests_reach_a_collector() {
    let dir = tempfile::tempdir().unwrap();
    let (collector_port, bodies) = collector();
    let (port, url) = (common::free_port(), format!("http://127.0.0.1:{collector_port}/v1/traces"));
    let port_text = port.to_string();
    let arguments = ["bank", "serve", "--currency", "KUDOS", "--in-memory", "--bind", "127.0.0.1"];
    let places = ["--port", &port_text, "--otlp", &url];
    let bank = Service::start(dir.path(), "bank", &[&arguments[..], &places].concat());
    wait_for(port, "/ready");
    for path in ["/config", "/taler-wire-gateway/alice/config"] {
        send(port, "GET", path, "trace-1");
    }
    let mut spans = Vec::new();
    while spans.len() < 2 {
        let body: Value = bodies.recv_timeout(PATIENCE).unwrap();
        let resource = &body["resourceSpans"][0];
        let name = json!({ "key": "service.name", "value": { "stringValue": "batzen-bank" } });
        assert_eq!(resource["resource"]["attributes"][0], name);
        let id = json!({ "key": "batzen.correlation_id", "value": { "stringValue": "trace-1" } });
        let all = resource["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        spans.extend(all.into_iter().filter(|span| span["attributes"].as_array().unwrap().contains(&id)));
    }
    assert_eq!(spans[0]["name"], "GET /config");
    assert_eq!(spans[1]["name"], "GET /taler-wire-gateway/*/config");
    assert_eq!(spans[0]["traceId"], spans[1]["traceId"]);
    assert_ne!(spans[0]["spanId"], spans[1]["spanId"]);
    assert!(spans[0]["traceId"].as_str().unwrap().len() == 32 && spans[0]["kind"] == 2);
    let nanos = |name: &str| spans[0][name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"));
    assert!(bank.terminate().0.success());
    // A log at its default level has no lines about requests.
    let log = std::fs::read_to_string(dir.path().join("bank.log")).unwrap();
    assert!(!log.contains("request"), "{log}");
}

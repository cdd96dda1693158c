//! Compares the processor time of small JSON POSTs over one connection: HTTP/2 against our concurrent
//! requests (decision 6, `docs/decisions/0006-concurrent-requests.md`).
//!
//! Two processes with one thread each, 128 requests under way, on the loopback device. Runs alternate, and
//! each pair gives one ratio, so that a noisy machine matters little: `cargo run --release -p
//! batzen-http-client --example http2_comparison -- PAIRS REQUESTS`
//!
//! The comparison favours HTTP/2: its server is a bare loop, while ours is a service's whole frame with
//! deadlines, fair shares and metrics.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on fails")]

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use batzen_http::client::{
    Bytes, DirectClient, DirectOptions, HeaderMap, HeaderValue, Method, basic_auth, header,
};
use batzen_http::{Drain, Handler, Listen, Response, Server, ServerOptions};
use tokio::net::{TcpListener, TcpStream};

/// Requests under way.
const UNDER_WAY: usize = 128;
/// Larger than all bodies together, so that HTTP/2 never waits for window updates of the connection.
const WINDOW_BYTES: u32 = 16 << 20;
/// A transfer from the exchange.
const REQUEST: &str = concat!(
    r#"{"request_uid":"G5M5XV1V4EFBSHWRSHQBJGSBXPTTRT0MVDWGQW4JXVDBRY2QTXH50PV"#,
    r#"RX9DVX9XG6P5BV3P4EJ0E7YS35VFZMYJ7SBQ85WV1BZWVQA8","#,
    r#""amount":"KUDOS:12.34","exchange_base_url":"https://exchange.example/","#,
    r#""wtid":"Z5HJ3SK8Z8B6AQ1G3VQ6MTYW1MVHH3XY4HWB4W0ZQ4WQ6BHAG6S0","#,
    r#""credit_account":"payto://x-taler-bank/bank.example/customer-123456?receiver-name=Customer"}"#
);
/// The bank's answer.
const ANSWER: &str = r#"{"timestamp":{"t_s":1795273445},"row_id":1234567}"#;
const PATH: &str = "/taler-wire-gateway/exchange/transfer";

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Concurrent,
    Http2,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Concurrent => "concurrent",
            Self::Http2 => "http2",
        }
    }
}

/// The cost of one run.
struct Run {
    rate: f64,
    client_us: f64,
    server_us: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match arguments.first().map(String::as_str) {
        Some("serve") if arguments[1] == "http2" => runtime.block_on(serve_http2()),
        Some("serve") => runtime.block_on(serve_concurrent()),
        first => {
            let pairs = first.map_or(15, |text| text.parse().unwrap());
            let requests = arguments.get(1).map_or(200_000, |text| text.parse().unwrap());
            compare(&runtime, pairs, requests);
        }
    }
}

fn compare(runtime: &tokio::runtime::Runtime, pairs: usize, requests: usize) {
    // The first runs warm up the machine.
    for protocol in [Protocol::Concurrent, Protocol::Http2] {
        run(runtime, protocol, requests / 10);
    }
    let (mut ours, mut http2) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let mut both = [(Protocol::Concurrent, &mut ours), (Protocol::Http2, &mut http2)];
        // Neither protocol always goes first.
        if pair % 2 == 1 {
            both.reverse();
        }
        for (protocol, runs) in both {
            let run = run(runtime, protocol, requests);
            println!(
                "{:<10} {:>7.0} a second, client {:.2} µs, server {:.2} µs",
                protocol.name(),
                run.rate,
                run.client_us,
                run.server_us
            );
            runs.push(run);
        }
    }
    type Figure = fn(&Run) -> f64;
    let figures: [(&str, Figure); 4] = [
        ("rate", |run| run.rate),
        ("client µs", |run| run.client_us),
        ("server µs", |run| run.server_us),
        ("both µs", |run| run.client_us + run.server_us),
    ];
    for (name, figure) in figures {
        let of = |runs: &[Run]| median(runs.iter().map(figure).collect());
        let mut ratios: Vec<f64> =
            ours.iter().zip(&http2).map(|(ours, http2)| figure(http2) / figure(ours)).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "{name:<10} concurrent {:>9.2}, http2 {:>9.2}; ratio of medians {:.2}, of pairs {:.2} ({:.2} to {:.2})",
            of(&ours),
            of(&http2),
            of(&http2) / of(&ours),
            median(ratios.clone()),
            ratios[0],
            ratios[ratios.len() - 1],
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Starts a server, sends the requests, and stops the server.
fn run(runtime: &tokio::runtime::Runtime, protocol: Protocol, requests: usize) -> Run {
    let mut server = start(protocol);
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port: u16 = line.trim().parse().unwrap();
    let (client_before, server_before) = (processor_ticks(std::process::id()), processor_ticks(server.id()));
    let since = Instant::now();
    match protocol {
        Protocol::Concurrent => runtime.block_on(send_concurrent(port, requests)),
        Protocol::Http2 => runtime.block_on(send_http2(port, requests)),
    }
    let elapsed = since.elapsed();
    let (client_after, server_after) = (processor_ticks(std::process::id()), processor_ticks(server.id()));
    server.kill().unwrap();
    server.wait().unwrap();
    // Linux counts in hundredths of a second here.
    let us = |before: u64, after: u64| (after - before) as f64 * 10_000.0 / requests as f64;
    Run {
        rate: requests as f64 / elapsed.as_secs_f64(),
        client_us: us(client_before, client_after),
        server_us: us(server_before, server_after),
    }
}

fn start(protocol: Protocol) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["serve", protocol.name()]).stdout(Stdio::piped()).spawn().unwrap()
}

/// User and system time of a process so far, in clock ticks.
fn processor_ticks(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The program's name is in parentheses and may contain spaces.
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn announce(port: u16) {
    println!("{port}");
    std::io::stdout().flush().unwrap();
}

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::AUTHORIZATION, basic_auth("exchange", "correct horse battery staple"));
    headers
}

struct Bank;

impl Handler for Bank {
    async fn handle(&self, request: batzen_http::Request) -> Response {
        assert!(request.method == Method::POST && request.body.len() == REQUEST.len());
        Response::bytes(200, "application/json", ANSWER)
    }
}

async fn serve_concurrent() {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    announce(server.port());
    // One connection, as for HTTP/2.
    let options = ServerOptions { concurrent: true, max_connections: 1, ..ServerOptions::default() };
    server.serve(Arc::new(Bank), options, Drain::new()).await;
}

async fn send_concurrent(port: u16, requests: usize) {
    let options = DirectOptions {
        connections_max: 1,
        connect_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(60),
        max_reply_bytes: 64 << 10,
    };
    let client = DirectClient::new(&format!("http://127.0.0.1:{port}{PATH}"), headers(), options).unwrap();
    let number = Arc::new(AtomicUsize::new(0));
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..UNDER_WAY {
        let (client, number) = (client.clone(), Arc::clone(&number));
        senders.spawn(async move {
            while number.fetch_add(1, Ordering::Relaxed) < requests {
                let reply =
                    client.post_idempotent(Bytes::from_static(REQUEST.as_bytes()), None).await.unwrap();
                assert!(reply.status == 200 && reply.body == ANSWER);
            }
        });
    }
    senders.join_all().await;
}

async fn serve_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    announce(listener.local_addr().unwrap().port());
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(u32::try_from(UNDER_WAY).unwrap())
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_window_size(1 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    while let Some(accepted) = connection.accept().await {
        let Ok((request, mut respond)) = accepted else { return };
        tokio::spawn(async move {
            let method = request.method().clone();
            let body = read_body(request.into_body()).await;
            assert!(method == Method::POST && body == REQUEST.len());
            let mut response = http::Response::new(());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let mut stream = respond.send_response(response, false).unwrap();
            stream.send_data(Bytes::from_static(ANSWER.as_bytes()), true).unwrap();
        });
    }
}

/// Reads a body to its end and returns its length.
async fn read_body(mut body: h2::RecvStream) -> usize {
    let mut bytes = 0;
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        bytes += data.len();
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    bytes
}

async fn send_http2(port: u16, requests: usize) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (client, connection) = h2::client::Builder::new()
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_window_size(1 << 20)
        .initial_max_send_streams(UNDER_WAY)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    let url = format!("http://127.0.0.1:{port}{PATH}");
    let number = Arc::new(AtomicUsize::new(0));
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..UNDER_WAY {
        let (mut client, number) = (client.clone(), Arc::clone(&number));
        let (uri, headers): (http::Uri, _) = (url.parse().unwrap(), headers());
        senders.spawn(async move {
            while number.fetch_add(1, Ordering::Relaxed) < requests {
                let mut request = http::Request::new(());
                *request.method_mut() = Method::POST;
                *request.uri_mut() = uri.clone();
                *request.headers_mut() = headers.clone();
                client = client.ready().await.unwrap();
                let (response, mut body) = client.send_request(request, false).unwrap();
                body.send_data(Bytes::from_static(REQUEST.as_bytes()), true).unwrap();
                let response = response.await.unwrap();
                assert!(response.status() == 200);
                assert!(read_body(response.into_body()).await == ANSWER.len());
            }
        });
    }
    senders.join_all().await;
    driver.abort();
}

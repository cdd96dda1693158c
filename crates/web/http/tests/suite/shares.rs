//! One client cannot keep another out, whatever it does to the server. Attackers come from 127.0.0.2 and up,
//! the honest client from 127.0.0.1.
use crate::common;

use batzen_http::ServerOptions;
use common::{Running, code, read_answer, read_to_end, start, status};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Deadlines that are too long to end a test.
const LONG: Duration = Duration::from_secs(600);
const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn patient() -> ServerOptions {
    ServerOptions {
        header_timeout: LONG,
        idle_timeout: LONG,
        body_grace: LONG,
        body_timeout: LONG,
        write_timeout: LONG,
        ..ServerOptions::default()
    }
}

fn upload(announced: usize, sent: usize) -> String {
    format!(
        "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {announced}\r\n\r\n{}",
        "x".repeat(sent)
    )
}

async fn send_from(server: &Running, last: u8, request: &str) -> TcpStream {
    let mut stream = server.connect_from(last).await;
    // A refusal may come before everything is sent.
    let _ = stream.write_all(request.as_bytes()).await;
    stream
}

#[tokio::test]
async fn slow_uploads_leave_memory_for_others() {
    let limit = 2 << 20;
    let server = start(ServerOptions { max_buffered_bytes: limit, ..patient() }).await;
    // Seventeen uploads from one address need more than there is, and stop in the middle.
    let mut uploads = Vec::new();
    for _ in 0..17 {
        uploads.push(send_from(&server, 2, &upload(1 << 20, 200 << 10)).await);
    }
    server.until(|stats| stats.refused[3] > 0 && stats.refused[3] + stats.requests_in_flight == 17).await;
    assert!(server.stats.snapshot().held[3] <= limit as u64 / 2 + (64 << 10));
    // Others upload large bodies as well as small ones.
    for (bytes, want) in [(100, 200), (300 << 10, 200)] {
        assert_eq!(status(&server.raw(upload(bytes, bytes)).await), want);
    }
    // Small bodies have room, however many addresses send them.
    for last in 3..120 {
        uploads.push(send_from(&server, last, &upload(1 << 20, 100 << 10)).await);
    }
    server.until(|stats| stats.requests_overload > 40).await;
    assert!(server.stats.snapshot().held[3] <= (limit - limit / 4) as u64);
    assert_eq!(status(&server.raw(upload(60 << 10, 60 << 10)).await), 200);
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let server = start(ServerOptions { max_connections: 40, ..patient() }).await;
    // Some connections send nothing, some start a header, and some have been served.
    let mut flood = Vec::new();
    for n in 0..60 {
        let begin = ["", "GET / HTTP/1.1\r\nhost:", GET][n % 3];
        flood.push(send_from(&server, 2, begin).await);
    }
    server.until(|stats| stats.refused[0] == 40).await;
    assert_eq!(server.stats.snapshot().held[0], 20);
    let mut honest = Vec::new();
    for _ in 0..5 {
        let mut stream = server.connect().await;
        stream.write_all(GET.as_bytes()).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.0, 200);
        honest.push(stream);
    }
    let stats = server.stats.snapshot();
    assert_eq!((stats.unused_closed, stats.polls_ended_early), (0, 0), "nothing was closed early");
}

#[tokio::test]
async fn the_oldest_unused_connections_make_room() {
    let server = start(ServerOptions {
        max_connections: 16,
        header_timeout: Duration::from_millis(10),
        idle_timeout: LONG,
        ..patient()
    })
    .await;
    let mut kept = Vec::new();
    for last in 2..15 {
        let mut stream = server.connect_from(last).await;
        stream.write_all(GET.as_bytes()).await.unwrap();
        read_answer(&mut stream).await;
        kept.push(stream);
    }
    // New clients find room because unused connections are closed.
    for last in 20..80 {
        let mut stream = server.connect_from(last).await;
        stream.write_all(GET.as_bytes()).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.0, 200, "from 127.0.0.{last}");
        if last < 40 {
            kept.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(server.stats.snapshot().unused_closed > 0);
    assert_eq!(read_to_end(&mut kept[0]).await, "", "the oldest is closed");
}

#[tokio::test]
async fn long_polls_leave_connections_for_others() {
    let server = start(ServerOptions { max_connections: 64, ..patient() }).await;
    let poll = "GET /poll/k?timeout_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n";
    // One address gets half of the long polls, which are half of the connections. The others are answered at
    // once.
    let mut polls = Vec::new();
    for _ in 0..30 {
        polls.push(send_from(&server, 2, poll).await);
    }
    server.until(|stats| stats.refused[2] == 14 && stats.held[2] == 16).await;
    let mut answered = 0;
    for stream in &mut polls[16..] {
        let (status, head, body) = read_answer(stream).await;
        assert_eq!((status, &body[..]), (200, &b"drain"[..]));
        assert!(head.contains("connection: close"), "{head}");
        answered += 1;
    }
    assert_eq!(answered, 14);
    assert_eq!(status(&server.ask("GET", "/", "").await), 200);
    // More addresses than there is room for: the oldest polls are answered early, and ordinary requests are
    // served.
    for last in 3..60 {
        polls.push(send_from(&server, last, poll).await);
        let mut honest = server.connect().await;
        honest.write_all(GET.as_bytes()).await.unwrap();
        assert_eq!(read_answer(&mut honest).await.0, 200);
    }
    let stats = server.stats.snapshot();
    assert!(stats.held[2] <= 32, "{stats:?}");
    // Polls end early when other connections need the room.
    let mut held = Vec::new();
    for last in 100..140 {
        held.push(send_from(&server, last, "GET /hold HTTP/1.1\r\nhost: x\r\n\r\n").await);
    }
    server.until(|stats| stats.polls_ended_early > 0).await;
    let answer = read_to_end(&mut polls[0]).await;
    assert!(answer.ends_with("drain") && answer.contains("connection: close"), "{answer}");
}

/// Sends a request and does not read the response.
async fn stop_reading(server: &Running, last: u8, request: &str) -> TcpStream {
    send_from(server, last, request).await
}

#[tokio::test]
async fn clients_that_do_not_read_are_refused_and_cut_off() {
    let limit: usize = 48 << 20;
    let size: usize = 12 << 20;
    let server = start(ServerOptions {
        max_answer_bytes: limit,
        stall_timeout: Duration::from_millis(20),
        compress: false,
        ..patient()
    })
    .await;
    let big = format!("GET /big/{size} HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut readers = Vec::new();
    // One address: its further requests are refused, with a small response.
    for _ in 0..20 {
        readers.push(stop_reading(&server, 2, &big).await);
    }
    server.until(|stats| stats.requests == 20 && stats.requests_in_flight == 0).await;
    let stats = server.stats.snapshot();
    assert!(stats.refused[4] > 0 && stats.held[4] <= limit as u64, "{stats:?}");
    // Many addresses: those that have stopped reading are cut off, and an honest client gets its large
    // response.
    for last in 3..30 {
        readers.push(stop_reading(&server, last, &big).await);
        assert!(server.stats.snapshot().held[4] <= limit as u64);
    }
    let answer = loop {
        let mut stream = server.connect().await;
        stream.write_all(big.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        if answer.starts_with(b"HTTP/1.1 200") {
            break answer;
        }
        assert!(answer.starts_with(b"HTTP/1.1 503"));
        assert!(String::from_utf8_lossy(&answer).contains("retry-after: 1"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(answer.len() > size);
    assert!(server.stats.snapshot().readers_cut > 0);
    assert_eq!(status(&server.ask("GET", "/big/10000", "").await), 200, "small responses have room");
    drop(readers);
    server.until(|stats| stats.held[4] == 0 && stats.connections_open == 0).await;
}

#[tokio::test]
async fn a_request_behind_an_unread_response_does_not_extend_its_deadline() {
    // The response is large, and the next request on the connection is a long poll. The unread response still
    // has its deadline.
    let server = start(ServerOptions {
        write_timeout: Duration::from_millis(200),
        min_rate_bytes_per_s: 1 << 30,
        compress: false,
        ..patient()
    })
    .await;
    let both = "GET /big/30000000 HTTP/1.1\r\nhost: x\r\n\r\nGET /poll/k?timeout_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n";
    let _stream = stop_reading(&server, 2, both).await;
    server.until(|stats| stats.timeouts == 1 && stats.connections_open == 0 && stats.held[4] == 0).await;
}

#[tokio::test]
async fn a_fast_start_does_not_make_up_for_a_stall() {
    let server = start(ServerOptions {
        body_grace: Duration::from_millis(300),
        min_rate_bytes_per_s: 1000,
        ..patient()
    })
    .await;
    // At a thousand bytes per second, the bytes received so far would last for an hour.
    let mut stream = send_from(&server, 2, &upload(5 << 20, 4 << 20)).await;
    assert_eq!(status(&read_to_end(&mut stream).await), 408);
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_shares_of_their_own() {
    let options = || ServerOptions { max_in_flight: 4, max_connections: 12, ..patient() };
    let hold = |client: &str| format!("GET /hold HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\n\r\n");
    // The proxy at 127.0.0.2.
    let server = start(ServerOptions { trusted_proxies: "127.0.0.2".parse().unwrap(), ..options() }).await;
    let mut held = Vec::new();
    for client in ["203.0.113.1", "203.0.113.1", "203.0.113.1", "198.51.100.9, 203.0.113.1"] {
        held.push(send_from(&server, 2, &hold(client)).await);
    }
    server.until(|stats| stats.requests_overload == 2 && stats.requests_in_flight == 2).await;
    held.push(send_from(&server, 2, &hold("203.0.113.2")).await);
    server.until(|stats| stats.requests_in_flight == 3).await;
    // Its connections are not bounded by a share.
    for _ in 0..7 {
        held.push(server.connect_from(2).await);
    }
    server.until(|stats| stats.held[0] == 12).await;
    assert_eq!(server.stats.snapshot().refused[0], 0);
    // An untrusted peer cannot name another client.
    let server = start(ServerOptions { trusted_proxies: "127.0.0.9".parse().unwrap(), ..options() }).await;
    for n in 0..4 {
        held.push(send_from(&server, 2, &hold(&format!("203.0.113.{n}"))).await);
    }
    server.until(|stats| stats.requests_overload == 2 && stats.requests_in_flight == 2).await;
}

#[tokio::test]
async fn requests_need_exactly_one_host() {
    let server = start(ServerOptions::default()).await;
    for (request, want) in [
        ("GET / HTTP/1.1\r\nconnection: close\r\n\r\n", (400, 22)),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\nconnection: close\r\n\r\n", (400, 22)),
        ("GET / HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", (400, 22)),
        ("OPTIONS * HTTP/1.1\r\nconnection: close\r\n\r\n", (400, 22)),
        ("POST /echo HTTP/1.1\r\ncontent-length: 100\r\n\r\nx", (400, 22)),
        ("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", (200, 0)),
        ("GET / HTTP/1.0\r\n\r\n", (200, 0)),
    ] {
        let answer = server.raw(request).await;
        assert_eq!((status(&answer), code(&answer)), want, "{request:?}: {answer}");
    }
}

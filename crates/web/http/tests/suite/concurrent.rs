//! Concurrent requests over one connection: order, limits, deadlines, and clients that break the protocol.
use crate::common;

use std::time::Duration;

use batzen_http::ServerOptions;
use common::{Running, code, read_answer, read_to_end, start, status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const UPGRADE: &str =
    "OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: batzen-concurrent\r\n\r\n";

fn options() -> ServerOptions {
    ServerOptions { concurrent: true, ..ServerOptions::default() }
}

/// Connects and changes the protocol.
async fn upgraded(server: &Running) -> Answers {
    let mut stream = server.connect().await;
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    let mut answers = Answers { stream, buffer: Vec::new() };
    let (status, head, _) = answers.next().await;
    assert!(status == 101 && head.contains("upgrade: batzen-concurrent"), "{head}");
    assert_eq!(answers.next().await.0, 204, "the response to the OPTIONS request itself");
    answers
}

/// Reads responses one after the other.
struct Answers {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Answers {
    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> (u16, String, String) {
        loop {
            let text = String::from_utf8_lossy(&self.buffer).into_owned();
            if let Some((head, rest)) = text.split_once("\r\n\r\n") {
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                    .map_or(0, |digits| digits.parse().unwrap());
                if rest.len() >= length {
                    self.buffer.drain(..head.len() + 4 + length);
                    return (head[9..12].parse().unwrap(), head.to_lowercase(), rest[..length].to_owned());
                }
            }
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "ended: {text:?}");
        }
    }

    async fn rest(mut self) -> String {
        let rest = read_to_end(&mut self.stream).await;
        String::from_utf8_lossy(&self.buffer).into_owned() + &rest
    }
}

fn echo(body: &str) -> String {
    format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn requests_are_worked_on_at_once_and_answered_in_order() {
    let server = start(options()).await;
    let mut connection = upgraded(&server).await;
    let all =
        ["POST /hold HTTP/1.1\r\n\r\n", &echo("one"), "POST /panic/late HTTP/1.1\r\n\r\n", &echo("two")];
    connection.send(&all.concat()).await;
    server.toy.held.acquire().await.unwrap().forget();
    // While the first request is held, the others are handled, but their responses are not sent.
    server.until(|stats| stats.panics == 1 && stats.requests_in_flight == 1).await;
    server.toy.release.notify_waiters();
    let mut got = Vec::new();
    for _ in 0..all.len() {
        let (status, _, body) = connection.next().await;
        got.push((status, body));
    }
    assert_eq!(got[0], (200, "released".to_owned()));
    assert_eq!((&got[1], &got[3]), (&(200, "one".to_owned()), &(200, "two".to_owned())));
    assert_eq!(got[2].0, 500, "a panic affects only its own request");
    connection
        .send("POST /nowhere HTTP/1.1\r\n\r\nPOST /small HTTP/1.1\r\ncontent-length: 11\r\n\r\n01234567890")
        .await;
    assert_eq!((connection.next().await.0, connection.next().await.0), (404, 413));
    connection.send(&echo("still there")).await;
    assert_eq!(connection.next().await.2, "still there");
}

#[tokio::test]
async fn requests_in_flight_on_a_connection_are_limited() {
    let server = start(options()).await;
    let mut connection = upgraded(&server).await;
    connection.send(&"POST /hold HTTP/1.1\r\n\r\n".repeat(150)).await;
    server.until(|stats| stats.requests_in_flight == 128).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(server.stats.snapshot().requests_in_flight, 128);
    // Further requests are accepted as responses are sent.
    for _ in 0..128 {
        server.toy.held.acquire().await.unwrap().forget();
    }
    server.toy.release.notify_waiters();
    server.until(|stats| stats.requests_in_flight == 22).await;
    for _ in 0..22 {
        server.toy.held.acquire().await.unwrap().forget();
    }
    server.toy.release.notify_waiters();
    for _ in 0..150 {
        assert_eq!(connection.next().await.0, 200);
    }
}

#[tokio::test]
async fn a_malformed_request_ends_the_connection_after_the_responses() {
    let server = start(options()).await;
    for bad in [
        "GET / HTTP/1.1\r\n\r\n",
        "PUT /echo HTTP/1.1\r\n\r\n",
        "POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST /echo HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let mut connection = upgraded(&server).await;
        connection.send(&format!("{}{bad}{}", echo("good"), echo("never"))).await;
        assert_eq!(connection.next().await.2, "good");
        let rest = connection.rest().await;
        assert_eq!((status(&rest), code(&rest)), (400, 22), "{bad}");
        assert!(rest.contains("connection: close") && !rest.contains("never"), "{rest}");
    }
    assert_eq!(server.stats.snapshot().malformed, 5);
}

#[tokio::test]
async fn slow_and_idle_connections_are_closed() {
    let limits = ServerOptions {
        header_timeout: Duration::from_millis(50),
        body_grace: Duration::from_millis(50),
        ..options()
    };
    let server = start(limits).await;
    for part in ["POST /ec", "POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\n123"] {
        let mut connection = upgraded(&server).await;
        connection.send(part).await;
        assert_eq!(connection.rest().await, "");
    }
    assert_eq!(server.stats.snapshot().timeouts, 2);
    let limits = ServerOptions { idle_timeout: Duration::from_millis(50), ..options() };
    let server = start(limits).await;
    assert_eq!(upgraded(&server).await.rest().await, "");
    // A client that does not read is cut off, too. A request in a handler has no deadline.
    let limits = ServerOptions {
        write_timeout: Duration::from_millis(50),
        min_rate_bytes_per_s: u64::MAX,
        ..options()
    };
    let server = start(limits).await;
    let mut connection = upgraded(&server).await;
    connection.send("POST /hold HTTP/1.1\r\n\r\n").await;
    server.toy.held.acquire().await.unwrap().forget();
    tokio::time::sleep(Duration::from_millis(120)).await;
    server.toy.release.notify_waiters();
    assert_eq!(connection.next().await.0, 200);
    connection.send(&"POST /big/1000000 HTTP/1.1\r\n\r\n".repeat(64)).await;
    server.until(|stats| stats.timeouts == 1 && stats.connections_open == 0).await;
}

#[tokio::test]
async fn a_server_that_shuts_down_answers_the_requests_that_it_has_taken() {
    let server = start(ServerOptions { drain_timeout: Duration::from_secs(20), ..options() }).await;
    let mut connection = upgraded(&server).await;
    let idle = upgraded(&server).await;
    connection.send(&format!("POST /hold HTTP/1.1\r\n\r\n{}", echo("last"))).await;
    server.toy.held.acquire().await.unwrap().forget();
    server.until(|stats| stats.requests_in_flight == 1).await;
    server.drain.trigger();
    assert_eq!(idle.rest().await, "");
    server.toy.release.notify_waiters();
    assert_eq!(connection.next().await.2, "released");
    assert_eq!(connection.next().await.2, "last");
    assert_eq!(connection.rest().await, "");
    assert_eq!(server.task.await.unwrap().cut_off, 0);
}

#[tokio::test]
async fn clients_that_do_not_ask_for_the_protocol_get_ordinary_responses() {
    let server = start(options()).await;
    for header in ["", "upgrade: batzen-concurrent\r\n", "upgrade: h2c\r\n"] {
        let answer = server.ask("OPTIONS", "*", header).await;
        assert_eq!(status(&answer), 204, "{header}");
    }
    let elsewhere = UPGRADE.replace('*', "/echo").replace("upgrade\r\n", "upgrade, close\r\n");
    assert_eq!(status(&server.raw(elsewhere).await), 204);
    let last = UPGRADE.replace("host: x\r\n", "host: x\r\nconnection: close\r\n");
    assert_eq!(status(&server.raw(last).await), 204);
    let closing = start(ServerOptions { close_each: true, ..options() }).await;
    assert_eq!(status(&closing.raw(UPGRADE).await), 204);
    // A service that does not offer the protocol.
    let mut stream = start(ServerOptions::default()).await.connect().await;
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    assert_eq!(read_answer(&mut stream).await.0, 204);
}

#[tokio::test]
async fn a_client_that_closes_or_half_closes_leaves_no_requests_behind() {
    let server = start(options()).await;
    for half in [true, false] {
        let mut connection = upgraded(&server).await;
        connection.send(&"POST /hold HTTP/1.1\r\n\r\n".repeat(3)).await;
        server.until(|stats| stats.requests_in_flight == 3).await;
        let before = server.stats.snapshot().cancelled;
        if half {
            connection.stream.shutdown().await.unwrap();
            assert_eq!(connection.rest().await, "");
        } else {
            drop(connection);
        }
        server.until(|stats| stats.requests_in_flight == 0 && stats.connections_open == 0).await;
        assert_eq!(server.stats.snapshot().cancelled, before + 3);
    }
}

#[tokio::test]
async fn a_dripping_request_is_cut_off_even_if_earlier_ones_were_answered() {
    let server = start(ServerOptions {
        header_timeout: Duration::from_millis(50),
        body_grace: Duration::from_millis(50),
        ..options()
    })
    .await;
    let mut connection = upgraded(&server).await;
    connection.send(&format!("{}POST /echo HTTP/1.1\r\nx: ", echo("whole"))).await;
    assert_eq!(connection.next().await.2, "whole");
    // The server may close before everything is written.
    let dripping = async {
        for _ in 0..1_000 {
            if connection.stream.write_all(b"x").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("a head took five seconds");
    };
    dripping.await;
    assert_eq!(server.stats.snapshot().timeouts, 1);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_after_the_responses() {
    let server = start(options()).await;
    for large in [
        format!("POST /echo HTTP/1.1\r\ncontent-length: {}\r\n\r\n", (64 << 10) + 1),
        format!("POST /echo HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(9 << 10)),
        format!("POST /{} HTTP/1.1\r\n\r\n", "x".repeat(9 << 10)),
        format!("POST / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(40)),
        "x".repeat(9 << 10),
    ] {
        let mut connection = upgraded(&server).await;
        connection.send(&format!("{}{large}", echo("good"))).await;
        assert_eq!(connection.next().await.2, "good");
        let rest = connection.rest().await;
        assert!([400, 413, 431].contains(&status(&rest)) && rest.contains("connection: close"), "{rest}");
    }
    let whole = "x".repeat(64 << 10);
    let mut connection = upgraded(&server).await;
    connection.send(&echo(&whole).repeat(5)).await;
    for _ in 0..5 {
        assert_eq!(connection.next().await.2, whole);
    }
}

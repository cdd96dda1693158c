//! Limits and deadlines, against hostile clients.
use crate::common;

use batzen_http::{ServerOptions, deflate};
use common::{code, read_answer, read_to_end, start, start_on, status};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, time::sleep};

const SHORT: Duration = Duration::from_millis(600);
/// Deadlines that are too long to end a test.
const LONG: Duration = Duration::from_secs(600);

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

#[tokio::test]
async fn slow_headers_are_cut_off() {
    let server = start(ServerOptions { header_timeout: SHORT, ..patient() }).await;
    // Nothing, a part of a header, and a dripping header: all are cut off, although each byte comes soon.
    let mut silent = server.connect().await;
    assert_eq!(read_to_end(&mut silent).await, "");
    let mut half = server.connect().await;
    half.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    assert_eq!(read_to_end(&mut half).await, "");
    let mut drip = server.connect().await;
    drip.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    while drip.write_all(b"x: y\r\n").await.is_ok() {
        sleep(Duration::from_millis(20)).await;
    }
    // The second request of a connection has the same deadline.
    let mut second = server.connect().await;
    second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_answer(&mut second).await;
    second.write_all(b"GET / HT").await.unwrap();
    assert_eq!(read_to_end(&mut second).await, "");
    server.until(|stats| stats.timeouts == 4 && stats.connections_open == 0).await;
}

#[tokio::test]
async fn idle_connections_are_closed_but_long_polls_are_not() {
    let server = start(ServerOptions { idle_timeout: SHORT, ..patient() }).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_answer(&mut idle).await;
    assert_eq!(read_to_end(&mut idle).await, "");
    let mut poll = server.connect().await;
    poll.write_all(b"GET /poll/k?timeout_ms=2000 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(read_answer(&mut poll).await.2, b"timeout");
}

#[tokio::test]
async fn slow_bodies_are_cut_off() {
    let server = start(ServerOptions { body_grace: SHORT, ..patient() }).await;
    let mut stuck = server.connect().await;
    stuck.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc").await.unwrap();
    let answer = read_to_end(&mut stuck).await;
    assert_eq!(status(&answer), 408, "{answer}");
    // A body that drips below the minimum rate, chunk by chunk.
    let mut drip = server.connect().await;
    drip.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let (mut reader, mut writer) = drip.into_split();
    let writing = tokio::spawn(async move {
        while writer.write_all(b"1\r\na\r\n").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut answer).await;
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 408);
    writing.abort();
    // A large body at full speed is not cut off.
    let big = vec![b'x'; 8 << 20];
    let mut request = format!(
        "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        big.len()
    )
    .into_bytes();
    request.extend_from_slice(&big);
    let server = start(patient()).await;
    let (mut reader, mut writer) = server.connect().await.into_split();
    let writing = tokio::spawn(async move { writer.write_all(&request).await.map(|()| writer) });
    let mut answer = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut answer).await.unwrap();
    assert!(answer.ends_with(&big));
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn slow_readers_are_cut_off() {
    let server =
        start(ServerOptions { write_timeout: SHORT, min_rate_bytes_per_s: 1 << 30, ..patient() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /big/30000000 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    server.until(|stats| stats.timeouts == 1 && stats.connections_open == 0).await;
    assert!(read_to_end(&mut stream).await.len() < 30_000_000);
}

#[tokio::test]
async fn bodies_beyond_the_limit_are_refused() {
    let server = start(patient()).await;
    let limit = 16 << 20;
    // The size is announced: the body is refused before any of it is read.
    let answer =
        server.raw(format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", limit + 1)).await;
    assert_eq!((status(&answer), code(&answer)), (413, 32), "{answer}");
    assert!(answer.contains("connection: close") && answer.contains("access-control-allow-origin: *"));
    // A client that keeps sending can still read the response.
    let (mut reader, mut writer) = server.connect().await.into_split();
    writer
        .write_all(
            format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", limit + 1).as_bytes(),
        )
        .await
        .unwrap();
    for _ in 0..10 {
        writer.write_all(&[b'x'; 1000]).await.unwrap();
    }
    let mut answer = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut answer).await.unwrap();
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 413);
    // With `Expect: 100-continue`, the refusal comes instead of the interim response.
    let answer = server
        .raw(format!(
            "POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            limit + 1
        ))
        .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // The endpoint has its own limit; a body of exactly that size is accepted.
    for (body, want) in [("0123456789", 200), ("0123456789a", 413)] {
        let answer = server
            .raw(format!(
                "POST /small HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        assert_eq!(status(&answer), want, "{answer}");
    }
    // The size is not announced: the connection is closed without a response once the body is too large.
    let chunks = "POST /small HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n8\r\n01234567\r\n8\r\n01234567\r\n";
    assert_eq!(server.raw(chunks).await, "");
    // The body of a request to an unknown endpoint is not read, either.
    let answer = server.raw("POST /config HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n").await;
    assert_eq!((status(&answer), code(&answer)), (404, 21));
}

#[tokio::test]
async fn deflate_bombs_are_capped() {
    let server = start(patient()).await;
    // Zeros compress to less than a hundredth. They may inflate to 64 KiB at any ratio.
    let bomb = deflate(&vec![0_u8; 1 << 20]);
    let small = deflate(&vec![0_u8; 64 << 10]);
    // Every other byte is noise: inflating to three times the size is accepted, up to the limit.
    let mut state = 1_u32;
    let mut half_noise = |len: usize| -> Vec<u8> {
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        noise.flat_map(|byte| [byte, 0, 0, 0]).take(len).collect()
    };
    let fits = deflate(&half_noise(16 << 20));
    let large = deflate(&half_noise((16 << 20) + 1));
    assert!(bomb.len() * 100 < (1 << 20) - (64 << 10) && large.len() < 16 << 20);
    for (packed, want) in [(bomb, (413, 32)), (small, (200, 0)), (fits, (200, 0)), (large, (413, 32))] {
        let mut request = format!(
            "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-encoding: deflate\r\ncontent-length: {}\r\n\r\n",
            packed.len()
        )
        .into_bytes();
        request.extend_from_slice(&packed);
        let answer = server.raw(&request).await;
        assert_eq!((status(&answer), code(&answer)), want);
    }
}

#[tokio::test]
async fn buffered_bodies_are_bounded_over_all_connections() {
    let server = start(ServerOptions { max_buffered_bytes: 1000, ..patient() }).await;
    let upload = |announced: usize, sent: usize| {
        let body = "x".repeat(sent);
        format!(
            "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {announced}\r\n\r\n{body}"
        )
    };
    // A client has used up its share: its next upload is refused, while another client's is not.
    let mut first = server.connect_from(2).await;
    first.write_all(upload(800, 700).as_bytes()).await.unwrap();
    server.until(|stats| stats.held[3] == 700).await;
    let mut second = server.connect_from(2).await;
    second.write_all(upload(200, 200).as_bytes()).await.unwrap();
    let answer = read_to_end(&mut second).await;
    assert_eq!(status(&answer), 503, "{answer}");
    assert!(answer.contains("retry-after: 1"));
    assert_eq!(status(&server.raw(upload(200, 200)).await), 200);
    // An upload that exceeds the whole limit is refused, too.
    assert_eq!(status(&server.raw(upload(400, 400)).await), 503);
    assert_eq!(server.stats.snapshot().refused[3], 2);
    first.write_all("x".repeat(100).as_bytes()).await.unwrap_or_default();
    drop(first);
    server.until(|stats| stats.requests_in_flight == 0 && stats.held[3] == 0).await;
    assert_eq!(status(&server.raw(upload(400, 400)).await), 200);
}

#[tokio::test]
async fn requests_beyond_the_limit_get_a_503_with_retry_after() {
    // One client gets two of four.
    let server = start(ServerOptions { max_in_flight: 4, ..patient() }).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /hold HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        held.push(stream);
        server.toy.held.acquire().await.unwrap().forget();
    }
    let answer = server.ask("GET", "/", "").await;
    assert_eq!(status(&answer), 503, "{answer}");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    let mut other = server.connect_from(2).await;
    other.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(read_answer(&mut other).await.0, 200);
    server.toy.release.notify_waiters();
    for stream in &mut held {
        assert_eq!(read_answer(stream).await.0, 200);
    }
    // Long polls leave their slot, so they do not block others.
    for stream in &mut held {
        stream.write_all(b"GET /poll/k?timeout_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    }
    while server.toy.waiters.len() < 2 {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(status(&server.ask("GET", "/", "").await), 200);
    server.toy.waiters.wake(&"k".to_owned());
    for stream in &mut held {
        assert_eq!(read_answer(stream).await.2, b"event");
    }
    // A client that disconnects ends its poll.
    held[0].write_all(b"GET /poll/k?timeout_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    server.until(|stats| stats.requests_in_flight == 1).await;
    held.clear();
    server.until(|stats| stats.requests_in_flight == 0 && stats.cancelled == 1).await;
    assert!(server.toy.waiters.is_empty());
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused() {
    let server = start(ServerOptions { max_connections: 5, ..patient() }).await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read_answer(&mut stream).await;
        kept.push(stream);
    }
    for _ in 0..5 {
        let answer = server.ask("GET", "/", "").await;
        assert_eq!(status(&answer), 503, "{answer}");
        assert!(
            answer.contains("retry-after: 1") && answer.contains("access-control-allow-origin: *"),
            "{answer}"
        );
    }
    // Far more connections than get a response: the server closes them and keeps running.
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(server.connect().await);
    }
    server.until(|stats| stats.connections_refused == 205).await;
    drop(crowd);
    kept[0].write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(read_answer(&mut kept[0]).await.0, 200);
    kept.clear();
    server.until(|stats| stats.connections_open == 0).await;
    assert_eq!(status(&server.ask("GET", "/", "").await), 200);
}

#[tokio::test]
async fn drain_lets_requests_finish_and_frees_the_port() {
    let server = start(ServerOptions { drain_timeout: LONG, ..patient() }).await;
    let port = server.addr.port();
    let mut idle = server.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_answer(&mut idle).await;
    let mut fresh = server.connect().await;
    let mut poll = server.connect().await;
    poll.write_all(b"GET /poll/k?timeout_ms=600000 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut held = server.connect().await;
    held.write_all(b"GET /hold HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    server.toy.held.acquire().await.unwrap().forget();
    while server.toy.waiters.is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    server.drain.trigger();
    assert_eq!(read_to_end(&mut idle).await, "");
    assert_eq!(read_to_end(&mut fresh).await, "");
    let answer = read_to_end(&mut poll).await;
    assert!(answer.contains("connection: close") && answer.ends_with("drain"), "{answer}");
    assert!(!server.task.is_finished());
    server.toy.release.notify_waiters();
    let answer = read_to_end(&mut held).await;
    assert!(answer.contains("connection: close") && answer.ends_with("released"), "{answer}");
    assert_eq!(server.task.await.unwrap().cut_off, 0);
    let next = start_on(ServerOptions { drain_timeout: SHORT, ..patient() }, port).await;
    assert_eq!(status(&next.ask("GET", "/", "").await), 200);
    // Requests that do not finish in time are cut off.
    let mut stuck = next.connect().await;
    stuck.write_all(b"GET /hold HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    next.toy.held.acquire().await.unwrap().forget();
    next.drain.trigger();
    assert_eq!(next.task.await.unwrap().cut_off, 1);
    assert_eq!(read_to_end(&mut stuck).await, "");
    start_on(patient(), port).await;
}

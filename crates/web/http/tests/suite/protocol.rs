//! Properties that all answers have in common: errors, CORS, HEAD, OPTIONS, compression, keep-alive,
//! malformed requests.
use crate::common;

use std::time::Duration;

use batzen_http::{ServerOptions, deflate, inflate};
use common::{code, read_answer, read_to_end, start, status};
use tokio::io::AsyncWriteExt;

const CORS: [&str; 2] = ["access-control-allow-origin: *", "access-control-expose-headers: *"];

fn assert_cors(answer: &str) {
    for header in CORS {
        assert!(answer.contains(header), "{header} missing in {answer}");
    }
}

#[tokio::test]
async fn wrong_requests_get_the_right_errors() {
    let server = start(ServerOptions::default()).await;
    let long = format!("/poll/{}", "x".repeat(512));
    let very_long = format!("/?{}", "x".repeat(9000));
    for (method, target, want_status, want_code) in [
        ("GET", "/", 200, 0),
        ("GET", "/config", 404, 21),
        ("POST", "/config", 404, 21),
        ("POST", "/", 405, 20),
        ("BREW", "/echo", 405, 20),
        ("GET", "/poll", 404, 1002),
        ("GET", "//", 404, 1002),
        ("GET", "//poll/x", 404, 1002),
        ("GET", "/poll//x/", 200, 0),
        ("GET", "/panic/nothing", 404, 1001),
        ("GET", "/poll/x?timeout_ms=abc", 400, 26),
        ("GET", &long, 414, 31),
        ("GET", &very_long, 414, 31),
        ("GET", "/unchanged", 304, 0),
        ("OPTIONS", "*", 204, 0),
        ("OPTIONS", "/echo", 204, 0),
        ("OPTIONS", "/poll", 204, 0),
        ("OPTIONS", "/config", 404, 21),
    ] {
        let answer = server.ask(method, target, "").await;
        assert_eq!((status(&answer), code(&answer)), (want_status, want_code), "{method} {target}: {answer}");
        assert_cors(&answer);
        if method == "OPTIONS" && want_status == 204 {
            assert!(answer.contains("access-control-allow-headers: *"), "{answer}");
            assert!(answer.contains("access-control-allow-methods: *"), "{answer}");
            assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        }
        if want_code != 0 {
            assert!(answer.contains("content-type: application/json"), "{answer}");
        }
    }
    assert!(server.ask("PUT", "/echo", "").await.contains("allow: POST\r\n"));
    assert!(server.ask("PUT", "/poll/x", "").await.contains("allow: GET, HEAD\r\n"));
    let stats = server.stats.snapshot();
    assert_eq!(stats.responses[4], 0);
    assert_eq!(stats.responses.iter().sum::<u64>(), stats.requests);
}

#[tokio::test]
async fn head_is_get_without_body() {
    let server = start(ServerOptions::default()).await;
    let head = server.ask("HEAD", "/", "").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("content-length: 5\r\n"), "{head}");
    assert_cors(&head);
    let wrong = server.ask("HEAD", "/config", "").await;
    assert!(wrong.starts_with("HTTP/1.1 404") && wrong.ends_with("\r\n\r\n"), "{wrong}");
}

#[tokio::test]
async fn connections_are_kept_and_pipelines_answered_in_order() {
    let server = start(ServerOptions::default()).await;
    let mut stream = server.connect().await;
    for body in ["first", "", "third"] {
        let request =
            format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        let (status, head, got) = read_answer(&mut stream).await;
        assert_eq!((status, got.as_slice()), (200, body.as_bytes()), "{head}");
    }
    let mut pipeline = String::new();
    for n in 0..20 {
        pipeline.push_str(&format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n{n:04}"));
    }
    pipeline.push_str("GET /config HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(pipeline.as_bytes()).await.unwrap();
    let answers = read_to_end(&mut stream).await;
    let mut at = 0;
    for n in 0..20 {
        at += answers[at..]
            .find(&format!("\r\n\r\n{n:04}"))
            .unwrap_or_else(|| panic!("{n} is missing in {answers}"));
    }
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 21);
    assert!(answers[at..].contains("HTTP/1.1 404"));
    assert_eq!(server.stats.snapshot().connections_accepted, 1);

    let closing = start(ServerOptions { close_each: true, ..ServerOptions::default() }).await;
    let answer = closing.raw("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.contains("connection: close") && answer.ends_with("hello"), "{answer}");
}

/// A client that sends requests after a body that is not read must learn that they get no response.
/// Earlier exchanges ask for a protocol of their own and send ordinary requests if they do not get it.
#[tokio::test]
async fn an_upgrade_is_not_agreed_to() {
    let server = start(ServerOptions::default()).await;
    for protocol in ["batzen-concurrent", "h2c"] {
        let fields = format!("connection: upgrade\r\nupgrade: {protocol}\r\n");
        let answer = server.ask("OPTIONS", "*", &fields).await;
        assert_eq!(status(&answer), 204, "{answer}");
    }
}

#[tokio::test]
async fn a_response_without_reading_the_body_announces_the_close() {
    let server = start(ServerOptions::default()).await;
    for target in ["*", "/echo"] {
        let mut stream = server.connect().await;
        let head = format!("OPTIONS {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&[b'x'; 100_000]).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn responses_are_compressed_if_accepted_and_smaller() {
    let server = start(ServerOptions::default()).await;
    for (accept, size, compressed) in [
        ("deflate", 10_000, true),
        ("gzip, deflate", 200_000, true),
        ("*", 10_000, true),
        ("gzip", 10_000, false),
        ("gzip, *", 10_000, false),
        ("deflate", 10, false),
        ("deflate;q=0", 10_000, false),
    ] {
        let mut stream = server.connect().await;
        let request = format!("GET /big/{size} HTTP/1.1\r\nhost: x\r\naccept-encoding: {accept}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (_, head, body) = read_answer(&mut stream).await;
        assert_eq!(head.contains("content-encoding: deflate"), compressed, "{accept} {size}: {head}");
        let plain = if compressed { inflate(&body, size).unwrap() } else { body };
        assert_eq!(plain, vec![b'x'; size]);
        assert_cors(&head);
    }
    let head = server.ask("HEAD", "/big/10000", "accept-encoding: deflate\r\n").await;
    assert!(head.contains("content-encoding: deflate") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn bodies_may_be_deflated_or_chunked() {
    let server = start(ServerOptions::default()).await;
    let plain = "the quick brown fox ".repeat(5000);
    let packed = deflate(plain.as_bytes());
    let mut request = format!(
        "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-encoding: Deflate\r\ncontent-length: {}\r\n\r\n",
        packed.len()
    )
    .into_bytes();
    request.extend_from_slice(&packed);
    let answer = server.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&plain));
    let chunked = "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nx-trailer: 1\r\n\r\n";
    assert!(server.raw(chunked).await.ends_with("abcdefg"));
    for (headers, body, want) in [
        ("content-encoding: deflate\r\ncontent-length: 5\r\n", "hello", (400, 22)),
        ("content-encoding: gzip\r\ncontent-length: 5\r\n", "hello", (415, 22)),
        ("content-encoding: identity\r\ncontent-length: 5\r\n", "hello", (200, 0)),
        ("content-encoding: deflate\r\ncontent-length: 0\r\n", "", (200, 0)),
    ] {
        let answer = server
            .raw(format!("POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}"))
            .await;
        assert_eq!((status(&answer), code(&answer)), want, "{headers}: {answer}");
    }
    let expecting = "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nok";
    let answer = server.raw(expecting).await;
    assert!(
        answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200") && answer.ends_with("ok"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_panic_gets_a_500_and_the_server_keeps_running() {
    let server = start(ServerOptions::default()).await;
    let mut stream = server.connect().await;
    for path in ["/panic", "/panic/late", "/panic"] {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let (status, head, body) = read_answer(&mut stream).await;
        assert_eq!(status, 500, "{head}");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["code"], 60);
        assert!(!String::from_utf8_lossy(&body).contains("planted"));
    }
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(read_answer(&mut stream).await.0, 200);
    assert_eq!(server.stats.snapshot().panics, 3);
}

#[tokio::test]
async fn malformed_requests_are_refused_and_the_connection_closed() {
    let server = start(ServerOptions::default()).await;
    let many_headers: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    for request in [
        "nonsense\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "GET\0/ HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nno colon here\r\n\r\n".to_owned(),
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n".to_owned(),
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n".to_owned(),
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd".to_owned(),
        "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\nabcd".to_owned(),
        format!("GET / HTTP/1.1\r\nhost: x\r\n{many_headers}\r\n"),
        format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(100_000)),
        format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "y".repeat(100_000)),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}".repeat(9),
    ] {
        let answer = server.raw(&request).await;
        let shown: String = request.chars().take(60).collect();
        // Connections with an invalid length, and with HTTP/2, are closed without a response.
        if request.contains("content-length: ") || request.starts_with("PRI") {
            assert_eq!(answer, "", "{shown:?}");
            continue;
        }
        assert!((400..500).contains(&status(&answer)), "{shown:?}: {answer}");
        assert!(answer.contains("connection: close"), "{shown:?}: {answer}");
        assert_cors(&answer);
        assert_ne!(code(&answer), 0, "{shown:?}: {answer}");
    }
    // A chunk with an invalid size ends the body, so there is no request to answer.
    let chunk = "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n";
    let answer = server.raw(chunk).await;
    assert!(answer.is_empty() || status(&answer) == 400, "{answer}");
    // The response to a valid request before a malformed one still arrives.
    let both = server.raw("GET / HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n").await;
    assert!(both.starts_with("HTTP/1.1 200") && both.contains("helloHTTP/1.1 400"), "{both}");
    // So does the response before a request whose end is unknown or whose body ends early, even if the client
    // reads slowly.
    for wrong in ["content-length: -1\r\n\r\n", "transfer-encoding: chunked\r\n\r\nzz\r\n"] {
        let mut stream = server.connect().await;
        let head =
            format!("GET /big/3000000 HTTP/1.1\r\nhost: x\r\n\r\nPOST /echo HTTP/1.1\r\nhost: x\r\n{wrong}");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&[b'x'; 100_000]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 3_000_000, "{wrong}: {}", answer.len());
    }
    let header = server.ask("GET", "/", &format!("x-big: {}\r\n", "y".repeat(33 << 10))).await;
    assert_eq!(status(&header), 431, "{header}");
    assert_eq!(status(&server.ask("GET", "/", "").await), 200);
    assert_eq!(server.stats.snapshot().panics, 0);
}

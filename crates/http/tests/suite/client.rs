//! The client against the server, and against servers that misbehave.
use crate::common;

use batzen_http::{
    Client, ClientError, ClientOptions, Drain, ErrorCode, Listen, RetryPolicy, Server, ServerOptions, retry,
};
use common::start;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// A server that reads what comes and gives one fixed answer to every connection.
async fn fixed(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0_u8; 4096];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(answer).await;
        }
    });
    url
}

fn quick() -> RetryPolicy {
    RetryPolicy { max_attempts: 4, first_pause: Duration::from_millis(1), ..RetryPolicy::default() }
}

#[tokio::test]
async fn json_both_ways_and_errors_with_their_status() {
    let server = start(ServerOptions::default()).await;
    let client =
        Client::new(&ClientOptions { deflate_from_bytes: Some(100), ..ClientOptions::default() }).unwrap();
    let body: Vec<u32> = (0..2000).collect();
    let reply = client.post_json(server.url("/echo"), &body).await.unwrap();
    assert_eq!(reply.ok::<Vec<u32>>().unwrap(), body);
    // Deflated on the way there and back.
    assert!(server.stats.snapshot().body_bytes_received < 8000);
    assert!(server.stats.snapshot().body_bytes_sent < 8000);
    let reply = client.get_json(server.url("/config")).await.unwrap();
    assert_eq!((reply.status, reply.code()), (404, Some(ErrorCode::GENERIC_ENDPOINT_UNKNOWN)));
    let error = reply.ok::<Vec<u32>>().unwrap_err();
    assert_eq!((error.status(), error.code()), (Some(404), Some(ErrorCode::GENERIC_ENDPOINT_UNKNOWN)));
    assert!(
        error.to_string().contains("/config: HTTP 404, GENERIC_ENDPOINT_UNKNOWN (21): There is no endpoint"),
        "{error}"
    );
    let reply = client.get(server.url("/poll/x")).query("timeout_ms", "1 & 2").send().await.unwrap();
    assert_eq!((reply.status, reply.code()), (400, Some(ErrorCode::GENERIC_PARAMETER_MALFORMED)));
    let reply = client.get(server.url("/")).basic_auth("user", "pass").send().await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]));
    let error = reply.ok::<u32>().unwrap_err();
    assert!(matches!(error, ClientError::BadReply { status: 200, .. }), "{error}");
    assert!(!error.is_transient());
    // All of it over few connections.
    assert!(server.stats.snapshot().connections_accepted <= 2);
}

#[tokio::test]
async fn failures_are_told_apart() {
    let client = Client::new(&ClientOptions { max_reply_bytes: 1000, ..ClientOptions::default() }).unwrap();
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}/", listener.local_addr().unwrap())
    };
    let error = client.get_json(&gone).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }) && error.is_transient(), "{error}");
    let silent = fixed(b"").await;
    let error = client.get_json(&silent).await.unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }) && error.is_transient(), "{error}");
    let cut = fixed(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc").await;
    let error = client.get_json(&cut).await.unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    let error = client.get_json("no url").await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid { .. }) && !error.is_transient(), "{error}");
    let error = client.get("http://127.0.0.1/").header("a b", "c").send().await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid { .. }), "{error}");
    let not_deflate =
        fixed(b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: 3\r\n\r\nabc").await;
    let error = client.get_json(&not_deflate).await.unwrap_err();
    assert!(matches!(error, ClientError::BadReply { status: 200, .. }), "{error}");
    let server = start(ServerOptions::default()).await;
    for size in [1001, 100_000_000] {
        let error = client.get_json(server.url(&format!("/big/{size}"))).await.unwrap_err();
        assert!(error.to_string().contains("larger than 1000 bytes"), "{error}");
    }
    let error = client.get(server.url("/hold")).timeout(Duration::from_millis(50)).send().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }) && error.is_transient(), "{error}");
}

#[tokio::test]
async fn retries_end_and_honour_what_is_final() {
    let server = start(ServerOptions::default()).await;
    let client = Client::new(&ClientOptions::default()).unwrap();
    let drain = Drain::new();
    for (path, want_status, want_asked) in [
        ("/", 200, 1),
        ("/fail/404", 404, 1),
        ("/fail/409", 409, 1),
        ("/fail/503", 503, 4),
        ("/fail/500", 500, 4),
    ] {
        let asked = AtomicU32::new(0);
        let reply = retry(&quick(), &drain, |attempt| {
            asked.store(attempt, Ordering::Relaxed);
            client.get_json(server.url(path))
        })
        .await
        .unwrap();
        assert_eq!((reply.status, asked.load(Ordering::Relaxed)), (want_status, want_asked), "{path}");
    }
    // The second attempt succeeds.
    let port = Arc::new(AtomicU32::new(1));
    let reply = retry(&quick(), &drain, |attempt| {
        let url = if attempt == 1 {
            format!("http://127.0.0.1:{}/", port.load(Ordering::Relaxed))
        } else {
            server.url("/")
        };
        client.get_json(url)
    })
    .await
    .unwrap();
    assert_eq!(reply.status, 200);
    // A drain ends the patience.
    drain.trigger();
    let patient = RetryPolicy {
        first_pause: Duration::from_secs(600),
        max_pause: Duration::from_secs(600),
        max_total: Duration::from_secs(6000),
        ..quick()
    };
    let reply = retry(&patient, &drain, |_| client.get_json(server.url("/fail/503"))).await.unwrap();
    assert_eq!(reply.status, 503);
}

#[tokio::test]
async fn listening_in_other_places() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/http.sock");
    let listen = || Listen::Unix { path: path.clone(), mode: 0o660 };
    let server = Server::bind(listen()).await.unwrap();
    let error = Server::bind(listen()).await.err().unwrap();
    assert!(error.to_string().contains("in use by another program"), "{error}");
    let drain = Drain::new();
    let task =
        tokio::spawn(server.serve(Arc::new(common::Toy::default()), ServerOptions::default(), drain.clone()));
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
    drain.trigger();
    task.await.unwrap();
    assert!(!path.exists());
    // A socket left behind by a process that was killed is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    Server::bind(listen()).await.unwrap();
    // Everywhere, then the same port again while it is in use, and shared.
    let all = Server::bind(Listen::tcp(None, 0)).await.unwrap();
    let error = Server::bind(Listen::tcp(None, all.port())).await.err().unwrap();
    assert!(error.to_string().contains("in use by another program"), "{error}");
    let shared = |port| Listen::Tcp { host: Some("localhost".to_owned()), port, share_port: true };
    let one = Server::bind(shared(0)).await.unwrap();
    Server::bind(shared(one.port())).await.unwrap();
    // A socket handed over.
    let std_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = std_listener.local_addr().unwrap().port();
    let handed = Server::bind(Listen::Inherited(std_listener.into())).await.unwrap();
    assert_eq!(handed.port(), port);
    let unix = std::os::unix::net::UnixListener::bind(dir.path().join("x.sock")).unwrap();
    let handed = Server::bind(Listen::Inherited(unix.into())).await.unwrap();
    assert_eq!(handed.bound(), &batzen_http::Bound::Unix(dir.path().join("x.sock")));
    let none = batzen_http::inherited_fd(|_| None, std::process::id()).unwrap();
    assert!(none.is_none());
}

//! The client with our server, and with servers that break the protocol.

use tokio::net::TcpListener;

use crate::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};

use super::*;

struct Echo;

impl Handler for Echo {
    async fn handle(&self, request: Request) -> Response {
        // Later requests are often ready before earlier ones.
        if request.body.len().is_multiple_of(2) {
            tokio::task::yield_now().await;
        }
        Response::bytes(200, "", request.body)
    }
}

const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(5),
    timeout: Duration::from_secs(20),
    reply_bytes_max: 1_000,
};

fn client_of(port: u16) -> ConcurrentClient {
    client_within(port, LIMITS)
}

fn client_within(port: u16, limits: Limits) -> ConcurrentClient {
    ConcurrentClient::new(format!("127.0.0.1:{port}").into(), None, limits)
}

fn message(body: &str) -> Message {
    let head = Bytes::from_static(b"POST /x HTTP/1.1\r\nhost: x\r\n");
    Message { head, body: Bytes::copy_from_slice(body.as_bytes()) }
}

#[tokio::test]
async fn each_request_gets_its_own_response_over_a_few_connections() {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let (stats, drain) = (server.stats(), Drain::new());
    let client = client_of(server.port());
    let options = ServerOptions { concurrent: true, ..ServerOptions::default() };
    let serving = tokio::spawn(server.serve(Arc::new(Echo), options, drain.clone()));
    let asking = (0..600).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let body = "x".repeat(number % 7) + &number.to_string();
            let answer = client.send(message(&body)).await.unwrap();
            assert_eq!((answer.status, &answer.body[..]), (200, body.as_bytes()));
        })
    });
    for done in asking.collect::<Vec<_>>() {
        done.await.unwrap();
    }
    let accepted = stats.snapshot().connections_accepted;
    assert!(accepted <= CONNECTIONS_MAX as u64, "{accepted}");
    let (large, small) =
        tokio::join!(client.send(message(&"x".repeat(1_001))), client.send(message("small")));
    assert!(matches!(large, Err(Failure::TooLarge)), "{large:?}");
    assert_eq!(&small.unwrap().body[..], b"small", "other requests are not affected");
    assert_eq!(stats.snapshot().connections_open, accepted, "the connection stays open");
    assert_eq!(client.send(message("small")).await.unwrap().status, 200);
    drain.trigger();
    serving.await.unwrap();
    assert!(matches!(client.send(message("gone")).await, Err(Failure::Connect(_))));
}

/// Accepts a connection, agrees to the protocol, and reads this many requests with the body `{}`.
async fn accept(listener: &TcpListener, requests: usize) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: batzen-concurrent\r\n\r\n\
                  HTTP/1.1 204 No Content\r\n\r\n";
    stream.write_all(agreed.as_bytes()).await.unwrap();
    read.clear();
    while read.windows(2).filter(|two| two == b"{}").count() < requests {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    stream
}

#[tokio::test]
async fn unanswered_requests_of_a_broken_connection_are_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client_of(listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        let mut first = accept(&listener, 2).await;
        first.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1HTTP/1.1 200 OK\r\n").await.unwrap();
        drop(first);
        let mut second = accept(&listener, 1).await;
        second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2").await.unwrap();
        second
    });
    let (one, two) = tokio::join!(client.send(message("{}")), client.send(message("{}")));
    assert_eq!((&one.unwrap().body[..], &two.unwrap().body[..]), (&b"1"[..], &b"2"[..]));
    serving.await.unwrap();
}

#[tokio::test]
async fn attempts_are_limited_and_an_unsupported_protocol_is_remembered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client_of(listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        for _ in 0..ATTEMPTS_MAX {
            drop(accept(&listener, 1).await);
        }
        let (mut stranger, _) = listener.accept().await.unwrap();
        stranger.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        (listener, stranger)
    });
    assert!(matches!(client.send(message("{}")).await, Err(Failure::Broken(_))));
    assert!(matches!(client.send(message("{}")).await, Err(Failure::Unsupported)));
    let (_listener, _stranger) = serving.await.unwrap();
    // Without a connection, because none would be accepted.
    assert!(matches!(client.send(message("{}")).await, Err(Failure::Unsupported)));
}

/// Runs a server for connections that come one after the other. Each agrees to the protocol.
async fn hostile<F: Future<Output = ()> + Send + 'static>(
    connections: Vec<Box<dyn FnOnce(TcpStream) -> F + Send>>,
    limits: Limits,
) -> (ConcurrentClient, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client_within(listener.local_addr().unwrap().port(), limits);
    let serving = tokio::spawn(async move {
        for serve in connections {
            let stream = accept(&listener, 0).await;
            tokio::spawn(serve(stream));
        }
        // Further connections wait.
        std::future::pending::<()>().await;
    });
    (client, serving)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Reads until this many bodies `{}` have arrived.
async fn read_requests(stream: &mut TcpStream, requests: usize) {
    let mut read = Vec::new();
    while read.windows(2).filter(|two| two == b"{}").count() < requests {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
}

type Serve = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers each request with one of these texts, then keeps the connection open.
fn answering(texts: &[String]) -> Box<dyn FnOnce(TcpStream) -> Serve + Send> {
    let texts = texts.to_vec();
    Box::new(|mut stream| {
        Box::pin(async move {
            for text in texts {
                read_requests(&mut stream, 1).await;
                // The client may have closed the connection.
                let _ = stream.write_all(text.as_bytes()).await;
            }
            std::future::pending::<()>().await;
        })
    })
}

#[tokio::test]
async fn surplus_bytes_end_the_connection_and_reach_no_sender() {
    for extra in [
        ok("1"),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        "x".repeat(9_000),
    ] {
        let first = answering(&[ok("1") + &extra]);
        let (client, _serving) = hostile(vec![first, answering(&[ok("2")])], LIMITS).await;
        assert_eq!(&client.send(message("{}")).await.unwrap().body[..], b"1");
        assert_eq!(&client.send(message("{}")).await.unwrap().body[..], b"2", "{extra}");
    }
}

#[tokio::test]
async fn an_unusable_response_makes_the_client_try_another_connection() {
    for bad in [
        "HTTP/1.1 100 Continue\r\n\r\n".to_owned() + &ok("1"),
        "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned() + &ok("1"),
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n1".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
        format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(9_000)),
        "\0".repeat(10),
    ] {
        let (client, _serving) =
            hostile(vec![answering(std::slice::from_ref(&bad)), answering(&[ok("2")])], LIMITS).await;
        let answer = client.send(message("{}")).await;
        assert!(answer.as_ref().is_ok_and(|answer| answer.body == "2"), "{bad:?}: {answer:?}");
    }
}

#[tokio::test]
async fn the_client_does_not_wait_for_a_response_that_is_far_too_large() {
    let endless = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n123", usize::MAX);
    let (client, _serving) = hostile(vec![answering(&[endless]), answering(&[ok("2")])], LIMITS).await;
    assert!(matches!(client.send(message("{}")).await, Err(Failure::TooLarge)));
    assert_eq!(&client.send(message("{}")).await.unwrap().body[..], b"2");
}

#[tokio::test]
async fn a_stalling_server_times_out() {
    let limits = Limits { timeout: Duration::from_secs(1), ..LIMITS };
    // It sends nothing, or a part of a response, or one byte at a time.
    let dripping: Box<dyn FnOnce(TcpStream) -> Serve + Send> = Box::new(|mut stream| {
        Box::pin(async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    });
    let part = answering(&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n123".to_owned()]);
    for stalled in [answering(&[]), part, dripping] {
        let (client, _serving) = hostile(vec![stalled, answering(&[ok("2")])], limits).await;
        let since = Instant::now();
        assert!(matches!(client.send(message("{}")).await, Err(Failure::Timeout)));
        assert!(since.elapsed() < Duration::from_secs(10));
        assert_eq!(&client.send(message("{}")).await.unwrap().body[..], b"2");
    }
}

#[tokio::test]
async fn repetitions_stop_at_the_timeout() {
    let limits = Limits { timeout: Duration::from_millis(300), ..LIMITS };
    let closing = || -> Box<dyn FnOnce(TcpStream) -> Serve + Send> {
        Box::new(|stream| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(250)).await;
                drop(stream);
            })
        })
    };
    let (client, _serving) = hostile(vec![closing(), closing(), answering(&[ok("3")])], limits).await;
    assert!(matches!(client.send(message("{}")).await, Err(Failure::Timeout)), "not a third time");
}

/// A connection whose server is the other end of a pipe.
fn connection(
    bytes: usize,
) -> (mpsc::Sender<Submission>, tokio::io::DuplexStream, Connection<tokio::io::DuplexStream>) {
    let (mine, theirs) = tokio::io::duplex(bytes);
    let (queue, submissions) = mpsc::channel(8);
    (queue, theirs, Connection::new(mine, BytesMut::new(), submissions, LIMITS))
}

fn submission(since: Instant) -> (Submission, oneshot::Receiver<Result<ResponseMessage, Failure>>) {
    let (outcome, waiting) = oneshot::channel();
    (Submission { message: message("{}"), since, outcome }, waiting)
}

#[tokio::test]
async fn bytes_that_came_before_a_request_was_sent_are_not_its_response() {
    // They are in the socket when the request comes.
    let (queue, mut server, connection_before) = connection(1_000);
    server.write_all(ok("before").as_bytes()).await.unwrap();
    let (first, waiting) = submission(Instant::now());
    queue.send(first).await.ok().unwrap();
    tokio::spawn(connection_before.run());
    assert!(!matches!(waiting.await, Ok(Ok(_))));
    // They arrive while a part of the request has not been sent yet.
    let (queue, mut server, connection_within) = connection(10);
    tokio::spawn(connection_within.run());
    let (first, waiting) = submission(Instant::now());
    queue.send(first).await.ok().unwrap();
    let _ = server.write_all(ok("early").as_bytes()).await;
    assert!(!matches!(waiting.await, Ok(Ok(_))));
}

#[tokio::test]
async fn abandoned_requests_are_not_sent() {
    let (queue, mut server, connection) = connection(1_000);
    let (gone, waiting) = submission(Instant::now());
    drop(waiting);
    let (late, waiting_late) = submission(Instant::now().checked_sub(LIMITS.timeout).unwrap());
    let (live, waiting_live) = submission(Instant::now());
    for submission in [gone, late, live] {
        queue.send(submission).await.ok().unwrap();
    }
    tokio::spawn(connection.run());
    assert!(matches!(waiting_late.await, Ok(Err(Failure::Timeout))));
    let mut read = BytesMut::new();
    while !read.ends_with(b"{}") {
        assert_ne!(server.read_buf(&mut read).await.unwrap(), 0);
    }
    server.write_all(ok("live").as_bytes()).await.unwrap();
    assert_eq!(waiting_live.await.unwrap().unwrap().body, "live");
    drop(queue);
    assert_eq!(server.read_buf(&mut read).await.unwrap(), 0);
    assert_eq!(read.windows(4).filter(|four| four == b"POST").count(), 1);
}

#[tokio::test]
async fn one_connection_is_enough_if_the_server_refuses_others() {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let client = client_of(server.port());
    let options = ServerOptions { concurrent: true, max_connections: 1, ..ServerOptions::default() };
    let stats = server.stats();
    tokio::spawn(server.serve(Arc::new(Echo), options, Drain::new()));
    for _ in 0..2 {
        let asking = (0..400).map(|number| {
            let client = client.clone();
            tokio::spawn(
                async move { client.send(message(&number.to_string())).await.map(|answer| answer.body) },
            )
        });
        for (number, done) in asking.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(done.await.unwrap().unwrap(), number.to_string());
        }
    }
    let stats = stats.snapshot();
    assert!(stats.connections_refused > 0 && stats.connections_refused < 20, "{stats:?}");
}

#[tokio::test]
async fn an_uncertain_server_is_asked_again_soon() {
    let later = |answer: &str| format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
    for (answer, pause) in [
        (None, UNCERTAIN_FOR),
        (Some(String::new()), UNCERTAIN_FOR),
        (Some("HTTP/1.1 20".to_owned()), UNCERTAIN_FOR),
        (Some(later("503 Service Unavailable")), UNCERTAIN_FOR),
        (Some(later("204 No Content\r\nconnection: close")), UNCERTAIN_FOR),
        (
            Some(later("101 Switching Protocols\r\nupgrade: batzen-concurrent") + "nonsense\r\n\r\n"),
            UNCERTAIN_FOR,
        ),
        (Some(later("204 No Content")), UNSUPPORTED_FOR),
        (Some(later("400 Bad Request")), UNSUPPORTED_FOR),
        (Some("x".repeat(5_000)), UNCERTAIN_FOR),
        (Some(format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(5_000))), UNSUPPORTED_FOR),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limits = Limits { connect_timeout: Duration::from_millis(200), ..LIMITS };
        let client = client_within(listener.local_addr().unwrap().port(), limits);
        let text = answer.clone();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut wish = Vec::new();
            match text {
                // The unread request turns the close into a reset.
                None => {
                    stream.readable().await.unwrap();
                    return listener;
                }
                Some(text) => {
                    while !wish.ends_with(b"\r\n\r\n") {
                        assert_ne!(stream.read_buf(&mut wish).await.unwrap(), 0);
                    }
                    stream.write_all(text.as_bytes()).await.unwrap();
                    // Sends nothing for longer than the client waits.
                    tokio::time::sleep(Duration::from_millis(400)).await;
                }
            }
            listener
        });
        assert!(matches!(client.send(message("{}")).await, Err(Failure::Unsupported)), "{answer:?}");
        let until = client.state().unsupported_until.unwrap();
        let left = until.saturating_duration_since(Instant::now());
        assert!(left <= pause && left + Duration::from_secs(5) > pause, "{answer:?}: {left:?}");
        serving.await.unwrap();
    }
}

#[tokio::test]
async fn requests_that_are_too_large_become_ordinary_ones() {
    let client = client_of(1);
    assert!(matches!(client.send(message(&"x".repeat((64 << 10) + 1))).await, Err(Failure::Unsupported)));
    let head = Bytes::from(format!("POST /x HTTP/1.1\r\nx: {}\r\n", "x".repeat(8 << 10)));
    let large = Message { head, body: Bytes::new() };
    assert!(matches!(client.send(large).await, Err(Failure::Unsupported)));
    assert!(matches!(client.send(message("")).await, Err(Failure::Connect(_))), "there is no listener");
}

//! The client with our server, and with servers that do everything wrong.

use tokio::net::TcpListener;

use super::*;
use crate::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};

struct Echo;

impl Handler for Echo {
    async fn handle(&self, request: Request) -> Response {
        // Later ones are often ready before earlier ones.
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

fn client(port: u16) -> Concurrent {
    client_within(port, LIMITS)
}

fn client_within(port: u16, limits: Limits) -> Concurrent {
    Concurrent::new(format!("127.0.0.1:{port}").into(), None, limits)
}

fn message(body: &str) -> Message {
    let head = Bytes::from_static(b"POST /x HTTP/1.1\r\nhost: x\r\n");
    Message { head, body: Bytes::copy_from_slice(body.as_bytes()) }
}

#[tokio::test]
async fn everybody_gets_the_answer_to_the_own_request_over_a_few_connections() {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let (stats, drain) = (server.stats(), Drain::new());
    let asked = client(server.port());
    let options = ServerOptions { concurrent: true, ..ServerOptions::default() };
    let serving = tokio::spawn(server.serve(Arc::new(Echo), options, drain.clone()));
    let asking = (0..600).map(|number| {
        let asked = asked.clone();
        tokio::spawn(async move {
            let body = "x".repeat(number % 7) + &number.to_string();
            let answer = asked.ask(message(&body)).await.unwrap();
            assert_eq!((answer.status, &answer.body[..]), (200, body.as_bytes()));
        })
    });
    for done in asking.collect::<Vec<_>>() {
        done.await.unwrap();
    }
    let accepted = stats.snapshot().connections_accepted;
    assert!(accepted <= LINKS_MAX as u64, "{accepted}");
    let (large, small) = tokio::join!(asked.ask(message(&"x".repeat(1_001))), asked.ask(message("small")));
    assert!(matches!(large, Err(Failure::TooLarge)), "{large:?}");
    assert_eq!(&small.unwrap().body[..], b"small", "others do not suffer from it");
    assert_eq!(stats.snapshot().connections_open, accepted, "nor does the connection");
    assert_eq!(asked.ask(message("small")).await.unwrap().status, 200);
    drain.trigger();
    serving.await.unwrap();
    assert!(matches!(asked.ask(message("gone")).await, Err(Failure::Connect(_))));
}

/// Takes a connection, agrees to the protocol, and reads so many requests of the body `{}`.
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
async fn what_a_lost_connection_leaves_open_is_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = client(listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        let mut first = accept(&listener, 2).await;
        first.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1HTTP/1.1 200 OK\r\n").await.unwrap();
        drop(first);
        let mut second = accept(&listener, 1).await;
        second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2").await.unwrap();
        second
    });
    let (one, two) = tokio::join!(asked.ask(message("{}")), asked.ask(message("{}")));
    assert_eq!((&one.unwrap().body[..], &two.unwrap().body[..]), (&b"1"[..], &b"2"[..]));
    serving.await.unwrap();
}

#[tokio::test]
async fn a_server_that_never_holds_is_given_up_and_a_stranger_is_asked_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = client(listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        for _ in 0..ATTEMPTS_MAX {
            drop(accept(&listener, 1).await);
        }
        let (mut stranger, _) = listener.accept().await.unwrap();
        stranger.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        (listener, stranger)
    });
    assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Broken(_))));
    assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Unknown)));
    let (_listener, _stranger) = serving.await.unwrap();
    // Without a connection: nobody would accept it.
    assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Unknown)));
}

/// Lets a server run for connections that come one after the other. Each agrees to the protocol.
async fn hostile<F: Future<Output = ()> + Send + 'static>(
    connections: Vec<Box<dyn FnOnce(TcpStream) -> F + Send>>,
    limits: Limits,
) -> (Concurrent, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = client_within(listener.local_addr().unwrap().port(), limits);
    let serving = tokio::spawn(async move {
        for serve in connections {
            let stream = accept(&listener, 0).await;
            tokio::spawn(serve(stream));
        }
        // Whoever comes then waits.
        std::future::pending::<()>().await;
    });
    (asked, serving)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Reads until so many bodies `{}` have come.
async fn read_requests(stream: &mut TcpStream, requests: usize) {
    let mut read = Vec::new();
    while read.windows(2).filter(|two| two == b"{}").count() < requests {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
}

type Serve = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers each request with one of these texts, then keeps the connection.
fn answering(texts: &[String]) -> Box<dyn FnOnce(TcpStream) -> Serve + Send> {
    let texts = texts.to_vec();
    Box::new(|mut stream| {
        Box::pin(async move {
            for text in texts {
                read_requests(&mut stream, 1).await;
                // The client may have had enough.
                let _ = stream.write_all(text.as_bytes()).await;
            }
            std::future::pending::<()>().await;
        })
    })
}

#[tokio::test]
async fn whatever_a_server_says_too_much_ends_the_connection_and_reaches_nobody() {
    for extra in [
        ok("1"),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        "x".repeat(9_000),
    ] {
        let first = answering(&[ok("1") + &extra]);
        let (asked, _serving) = hostile(vec![first, answering(&[ok("2")])], LIMITS).await;
        assert_eq!(&asked.ask(message("{}")).await.unwrap().body[..], b"1");
        assert_eq!(&asked.ask(message("{}")).await.unwrap().body[..], b"2", "{extra}");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_asked_for_on_another_connection() {
    for bad in [
        "HTTP/1.1 100 Continue\r\n\r\n".to_owned() + &ok("1"),
        "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned() + &ok("1"),
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n1".to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
        format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(9_000)),
        "\0".repeat(10),
    ] {
        let (asked, _serving) =
            hostile(vec![answering(std::slice::from_ref(&bad)), answering(&[ok("2")])], LIMITS).await;
        let answer = asked.ask(message("{}")).await;
        assert!(answer.as_ref().is_ok_and(|answer| answer.body == "2"), "{bad:?}: {answer:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_far_too_large_is_not_waited_for() {
    let endless = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n123", usize::MAX);
    let (asked, _serving) = hostile(vec![answering(&[endless]), answering(&[ok("2")])], LIMITS).await;
    assert!(matches!(asked.ask(message("{}")).await, Err(Failure::TooLarge)));
    assert_eq!(&asked.ask(message("{}")).await.unwrap().body[..], b"2");
}

#[tokio::test]
async fn a_server_that_stalls_is_given_up_in_time() {
    let limits = Limits { timeout: Duration::from_secs(1), ..LIMITS };
    // It says nothing; a part of an answer; ever a bit more.
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
        let (asked, _serving) = hostile(vec![stalled, answering(&[ok("2")])], limits).await;
        let since = Instant::now();
        assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Timeout)));
        assert!(since.elapsed() < Duration::from_secs(10));
        assert_eq!(&asked.ask(message("{}")).await.unwrap().body[..], b"2");
    }
}

#[tokio::test]
async fn repetitions_do_not_make_an_exchange_much_longer() {
    let limits = Limits { timeout: Duration::from_millis(300), ..LIMITS };
    let closing = || -> Box<dyn FnOnce(TcpStream) -> Serve + Send> {
        Box::new(|stream| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(250)).await;
                drop(stream);
            })
        })
    };
    let (asked, _serving) = hostile(vec![closing(), closing(), answering(&[ok("3")])], limits).await;
    assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Timeout)), "not a third time");
}

/// Runs a connection against somebody at the other end of a pipe.
fn connection(
    bytes: usize,
) -> (mpsc::Sender<Ask>, tokio::io::DuplexStream, Connection<tokio::io::DuplexStream>) {
    let (mine, theirs) = tokio::io::duplex(bytes);
    let (queue, asks) = mpsc::channel(8);
    (queue, theirs, Connection::new(mine, BytesMut::new(), asks, LIMITS))
}

fn ask(since: Instant) -> (Ask, oneshot::Receiver<Result<WholeAnswer, Failure>>) {
    let (answer, waiting) = oneshot::channel();
    (Ask { message: message("{}"), since, answer }, waiting)
}

#[tokio::test]
async fn what_came_before_a_request_was_sent_is_not_its_answer() {
    // In the socket when the request comes.
    let (queue, mut server, connection_before) = connection(1_000);
    server.write_all(ok("before").as_bytes()).await.unwrap();
    let (first, waiting) = ask(Instant::now());
    queue.send(first).await.ok().unwrap();
    tokio::spawn(connection_before.run());
    assert!(!matches!(waiting.await, Ok(Ok(_))));
    // While a part of the request is still to be sent.
    let (queue, mut server, connection_within) = connection(10);
    tokio::spawn(connection_within.run());
    let (first, waiting) = ask(Instant::now());
    queue.send(first).await.ok().unwrap();
    let _ = server.write_all(ok("early").as_bytes()).await;
    assert!(!matches!(waiting.await, Ok(Ok(_))));
}

#[tokio::test]
async fn requests_that_nobody_waits_for_any_more_are_not_sent() {
    let (queue, mut server, connection) = connection(1_000);
    let (gone, waiting) = ask(Instant::now());
    drop(waiting);
    let (late, waiting_late) = ask(Instant::now().checked_sub(LIMITS.timeout).unwrap());
    let (live, waiting_live) = ask(Instant::now());
    for ask in [gone, late, live] {
        queue.send(ask).await.ok().unwrap();
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
async fn one_connection_does_where_there_is_no_other() {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let asked = client(server.port());
    let options = ServerOptions { concurrent: true, max_connections: 1, ..ServerOptions::default() };
    let stats = server.stats();
    tokio::spawn(server.serve(Arc::new(Echo), options, Drain::new()));
    for _ in 0..2 {
        let asking = (0..400).map(|number| {
            let asked = asked.clone();
            tokio::spawn(
                async move { asked.ask(message(&number.to_string())).await.map(|answer| answer.body) },
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
async fn who_does_not_say_that_it_knows_nothing_is_asked_again_soon() {
    let later = |answer: &str| format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
    for (answer, pause) in [
        (None, UNSURE_FOR),
        (Some(String::new()), UNSURE_FOR),
        (Some("HTTP/1.1 20".to_owned()), UNSURE_FOR),
        (Some(later("503 Service Unavailable")), UNSURE_FOR),
        (Some(later("204 No Content\r\nconnection: close")), UNSURE_FOR),
        (
            Some(later("101 Switching Protocols\r\nupgrade: batzen-concurrent") + "nonsense\r\n\r\n"),
            UNSURE_FOR,
        ),
        (Some(later("204 No Content")), UNKNOWN_FOR),
        (Some(later("400 Bad Request")), UNKNOWN_FOR),
        (Some("x".repeat(5_000)), UNKNOWN_FOR),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limits = Limits { connect_timeout: Duration::from_millis(200), ..LIMITS };
        let asked = client_within(listener.local_addr().unwrap().port(), limits);
        let text = answer.clone();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut wish = Vec::new();
            match text {
                // The unread question makes it a reset.
                None => {
                    stream.readable().await.unwrap();
                    return listener;
                }
                Some(text) => {
                    while !wish.ends_with(b"\r\n\r\n") {
                        assert_ne!(stream.read_buf(&mut wish).await.unwrap(), 0);
                    }
                    stream.write_all(text.as_bytes()).await.unwrap();
                    // Nothing follows for longer than the client waits.
                    tokio::time::sleep(Duration::from_millis(400)).await;
                }
            }
            listener
        });
        assert!(matches!(asked.ask(message("{}")).await, Err(Failure::Unknown)), "{answer:?}");
        let until = asked.state().unknown_until.unwrap();
        let left = until.saturating_duration_since(Instant::now());
        assert!(left <= pause && left + Duration::from_secs(5) > pause, "{answer:?}: {left:?}");
        serving.await.unwrap();
    }
}

#[tokio::test]
async fn what_is_too_large_to_be_asked_goes_the_ordinary_way() {
    let asked = client(1);
    assert!(matches!(asked.ask(message(&"x".repeat((64 << 10) + 1))).await, Err(Failure::Unknown)));
    let head = Bytes::from(format!("POST /x HTTP/1.1\r\nx: {}\r\n", "x".repeat(8 << 10)));
    let large = Message { head, body: Bytes::new() };
    assert!(matches!(asked.ask(large).await, Err(Failure::Unknown)));
    assert!(matches!(asked.ask(message("")).await, Err(Failure::Connect(_))), "nobody listens there");
}

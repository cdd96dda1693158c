//! The client against our server, and against servers that misbehave.

use std::sync::Arc;
use std::time::Duration;

use batzen_http::client::{Client, ClientError, ClientOptions, Destinations};
use batzen_http::{
    Drain, ErrorCode, Handler, Listen, Method, Request, Response, Server, ServerOptions, Stats,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A service with one endpoint for each kind of response.
struct Toy;

impl Handler for Toy {
    async fn handle(&self, request: Request) -> Response {
        match (&request.method, request.segment(0)) {
            (&Method::GET, "") => Response::text(200, "hello"),
            (&Method::POST, "echo") => Response::bytes(200, "", request.body),
            (_, "big") => Response::text(200, "x".repeat(request.segment(1).parse().unwrap())),
            (_, "hold") => std::future::pending().await,
            (_, "number") => match request.query_required::<u64>("n") {
                Ok(number) => Response::json(200, &number),
                Err(response) => response,
            },
            _ => Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, &request.path),
        }
    }
}

struct Running {
    port: u16,
    stats: Arc<Stats>,
}

impl Running {
    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

async fn start() -> Running {
    let server = Server::bind(Listen::localhost(0)).await.unwrap();
    let running = Running { port: server.port(), stats: server.stats() };
    tokio::spawn(server.serve(Arc::new(Toy), ServerOptions::default(), Drain::new()));
    running
}

/// A server that sends one fixed response to every connection.
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

#[tokio::test]
async fn json_goes_both_ways_and_errors_keep_their_status() {
    let server = start().await;
    let client =
        Client::new(&ClientOptions { deflate_from_bytes: Some(100), ..ClientOptions::default() }).unwrap();
    let body: Vec<u32> = (0..2000).collect();
    let reply = client.post_json(server.url("/echo"), &body).await.unwrap();
    assert_eq!(reply.ok::<Vec<u32>>().unwrap(), body);
    // Deflated in both directions.
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
    let reply = client.get(server.url("/number")).query("n", "1 & 2").send().await.unwrap();
    assert_eq!((reply.status, reply.code()), (400, Some(ErrorCode::GENERIC_PARAMETER_MALFORMED)));
    let reply = client.get(server.url("/")).basic_auth("user", "pass").send().await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]));
    let error = reply.ok::<u32>().unwrap_err();
    assert!(matches!(error, ClientError::BadReply { status: 200, .. }), "{error}");
    assert!(!error.is_transient());
    // All requests share a few connections.
    assert!(server.stats.snapshot().connections_accepted <= 2);
}

#[tokio::test]
async fn each_failure_has_its_own_error() {
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
    let server = start().await;
    for size in [1001, 100_000_000] {
        let error = client.get_json(server.url(&format!("/big/{size}"))).await.unwrap_err();
        assert!(error.to_string().contains("larger than 1000 bytes"), "{error}");
    }
    let error = client.get(server.url("/hold")).timeout(Duration::from_millis(50)).send().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }) && error.is_transient(), "{error}");
}

#[tokio::test]
async fn what_others_name_does_not_reach_the_inside() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let public = |networks: &str| {
        let destinations = Destinations::Public(networks.parse().unwrap());
        Client::new(&ClientOptions { destinations, ..ClientOptions::default() }).unwrap()
    };
    let client = public("10.0.0.0/8");
    // Other spellings are for the resolver, whose answer counts.
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1"] {
        let error = client.get_json(format!("http://{host}:{port}/")).await.unwrap_err();
        // Some resolvers do not know them.
        let is_unknown = matches!(error, ClientError::Connect { .. }) && host.bytes().all(|b| b != b':');
        assert!(matches!(error, ClientError::NotPublic { .. }) || is_unknown, "{error:?}");
    }
    assert!(!client.may_reach("http://127.0.0.1/") && client.may_reach("http://10.1.2.3/"));
    let knocked = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(knocked.is_err(), "no connection was opened");
    let server = start().await;
    for host in ["127.0.0.1", "localhost"] {
        let reply = public("127.0.0.0/8").get_json(format!("http://{host}:{}/", server.port)).await.unwrap();
        assert_eq!(reply.status, 200, "{host}");
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closed_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let mut served = Vec::new();
        for count in [2, 1] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0_u8; 4096];
            for _ in 0..count {
                assert!(stream.read(&mut buffer).await.unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            }
            served.push(count);
        }
        served
    });
    let client = Client::new(&ClientOptions::default()).unwrap();
    for number in 0..3 {
        let reply = client.get_json(&url).await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (200, &b"ok"[..]));
        if number == 1 {
            // Waits until the end of the connection has arrived.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert_eq!(serving.await.unwrap(), [2, 1]);
}

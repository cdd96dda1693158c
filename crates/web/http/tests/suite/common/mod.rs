//! A small service on a real socket, and a client that writes raw bytes.

use batzen_http::{
    Admission, Drain, Drained, Handler, Head, Listen, Method, Reach, Request, Response, Routes, Server,
    ServerOptions, Stats, Style, Waiters, Woken,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinHandle,
};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Endpoint {
    Root,
    Echo,
    Small,
    Panic,
    LatePanic,
    Hold,
    Poll,
    Big,
    NotModified,
    Fail,
}

pub(crate) struct Toy {
    routes: Routes<Endpoint>,
    pub waiters: Arc<Waiters<String>>,
    /// Number of `/hold` requests that have started.
    pub held: Arc<Semaphore>,
    pub release: Arc<Notify>,
}

impl Default for Toy {
    fn default() -> Self {
        let routes = Routes::new(Style::ByFirstSegment)
            .route(Method::GET, "/", Endpoint::Root)
            .route(Method::POST, "/echo", Endpoint::Echo)
            .route(Method::POST, "/small", Endpoint::Small)
            .route(Method::GET, "/panic", Endpoint::Panic)
            .route(Method::GET, "/panic/late", Endpoint::LatePanic)
            .route(Method::POST, "/panic/late", Endpoint::LatePanic)
            .route(Method::GET, "/hold", Endpoint::Hold)
            .route(Method::POST, "/hold", Endpoint::Hold)
            .route(Method::GET, "/poll/:key", Endpoint::Poll)
            .route(Method::GET, "/big/:size", Endpoint::Big)
            .route(Method::POST, "/big/:size", Endpoint::Big)
            .route(Method::GET, "/unchanged", Endpoint::NotModified)
            .route(Method::GET, "/fail/:status", Endpoint::Fail);
        Self {
            routes,
            waiters: Arc::new(Waiters::new(100)),
            held: Arc::new(Semaphore::new(0)),
            release: Arc::default(),
        }
    }
}

impl Handler for Toy {
    fn serves_everyone(&self) -> bool {
        true
    }

    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        let matched = self.routes.resolve(head)?;
        Ok(match matched.endpoint {
            Endpoint::Small => Admission::limited(10, Reach::Everyone),
            _ => Admission { reach: Reach::Everyone, ..Admission::default() },
        })
    }

    async fn handle(&self, mut request: Request) -> Response {
        let drain = request.drain.clone();
        let endpoint = match self.routes.resolve(&request) {
            Ok(matched) => *matched.endpoint,
            Err(response) => return response,
        };
        match endpoint {
            Endpoint::Root => Response::text(200, "hello"),
            Endpoint::Echo | Endpoint::Small => Response::bytes(200, "", request.body),
            Endpoint::Panic => panic!("planted"),
            Endpoint::LatePanic => {
                tokio::task::yield_now().await;
                panic!("planted late")
            }
            Endpoint::Hold => {
                self.held.add_permits(1);
                self.release.notified().await;
                Response::text(200, "released")
            }
            Endpoint::Poll => {
                let timeout_ms = match request.query_opt("timeout_ms") {
                    Ok(timeout_ms) => timeout_ms.unwrap_or(0),
                    Err(response) => return response,
                };
                let Ok(mut waiter) = self.waiters.register(request.segment(1).to_owned()) else {
                    return Response::empty(503);
                };
                request.leave_slot();
                match waiter.wait(Duration::from_millis(timeout_ms), &drain).await {
                    Woken::Event => Response::text(200, "event"),
                    Woken::Timeout => Response::text(200, "timeout"),
                    Woken::Drain => Response::text(200, "drain"),
                }
            }
            Endpoint::Big => {
                let size = request.segment(1).parse().unwrap_or(0);
                Response::bytes(200, "text/plain", vec![b'x'; size])
            }
            Endpoint::NotModified => Response::empty(304).with_header(batzen_http::header::ETAG, "\"1\""),
            Endpoint::Fail => Response::empty(request.segment(1).parse().unwrap_or(500))
                .with_header(batzen_http::header::RETRY_AFTER, "0"),
        }
    }
}

pub(crate) struct Running {
    pub addr: SocketAddr,
    pub toy: Arc<Toy>,
    pub stats: Arc<Stats>,
    pub drain: Drain,
    pub task: JoinHandle<Drained>,
}

pub(crate) async fn start(options: ServerOptions) -> Running {
    start_on(options, 0).await
}

pub(crate) async fn start_on(options: ServerOptions, port: u16) -> Running {
    let server = Server::bind(Listen::localhost(port)).await.unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let toy = Arc::new(Toy::default());
    let drain = Drain::new();
    let stats = server.stats();
    let task = tokio::spawn(server.serve(Arc::clone(&toy), options, drain.clone()));
    Running { addr, toy, stats, drain, task }
}

impl Running {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Connects from `127.0.0.N`, which counts as a different client.
    pub(crate) async fn connect_from(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(self.addr).await.unwrap()
    }

    /// Sends bytes on a new connection and reads it to its end.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_ref()).await.unwrap();
        read_to_end(&mut stream).await
    }

    /// One request with `Connection: close`, no body.
    pub(crate) async fn ask(&self, method: &str, target: &str, headers: &str) -> String {
        self.raw(format!("{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")).await
    }

    /// Waits until the counters meet the condition.
    pub(crate) async fn until(&self, condition: impl Fn(&batzen_http::StatsSnapshot) -> bool) {
        while !condition(&self.stats.snapshot()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Reads until the peer closes; a reset counts as an end too.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut out = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&out).into_owned(),
            Ok(n) => out.extend_from_slice(&buffer[..n]),
        }
    }
}

/// Reads one answer with a content length; status line, header (lower case) and body.
pub(crate) async fn read_answer(stream: &mut TcpStream) -> (u16, String, Vec<u8>) {
    let mut out = Vec::new();
    let end = loop {
        if let Some(at) = out.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        let n = stream.read_buf(&mut out).await.unwrap();
        assert!(n > 0, "connection ended in the header: {:?}", String::from_utf8_lossy(&out));
    };
    let head = String::from_utf8_lossy(&out[..end]).to_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |text| text.parse().unwrap());
    while out.len() < end + length {
        assert!(stream.read_buf(&mut out).await.unwrap() > 0, "connection ended in the body");
    }
    assert_eq!(out.len(), end + length, "bytes after the answer");
    (head[9..12].parse().unwrap(), head, out[end..].to_vec())
}

/// The status of an answer, 0 if there is none.
pub(crate) fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The error code in an answer, 0 if there is none.
pub(crate) fn code(answer: &str) -> u64 {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let value: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    value.get("code").and_then(serde_json::Value::as_u64).unwrap_or(0)
}

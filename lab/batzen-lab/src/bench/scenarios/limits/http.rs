//! Requests over the loopback interface to our own server frame, with a handler that does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use batzen_http::{Admission, Drain, Handler, Head, Listen, Reach, Request, Response, Server, ServerOptions};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity;
use crate::bench::load::meter::thread_cpu_time;

/// POST requests as large as a deposit, and answers as large as its confirmation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HttpLimit {
    /// Requests per second that one server core can handle: one second divided by the CPU time of a request.
    pub(crate) per_s: f64,
    /// CPU time of the server's thread for one, µs.
    pub(crate) cpu_us_per_request: f64,
    /// Requests that were counted.
    pub(crate) requests: u64,
    /// Bytes of a request's body.
    pub(crate) request_bytes: usize,
    /// Bytes of an answer's body.
    pub(crate) response_bytes: usize,
    /// Connections, each with one request under way.
    pub(crate) connections: usize,
}

const REQUEST_BYTES: usize = 1_400;
const RESPONSE_BYTES: usize = 300;
const CONNECTIONS: usize = 64;

struct Empty {
    answer: Vec<u8>,
}

impl Handler for Empty {
    fn admit(&self, _: &Head) -> Result<Admission, Response> {
        Ok(Admission { reach: Reach::Everyone, ..Admission::default() })
    }

    async fn handle(&self, request: Request) -> Response {
        std::hint::black_box(&request.body);
        Response::bytes(200, "application/json", self.answer.clone())
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::set_up("HTTP cannot be measured", error)
}

/// Serves on `core`, and sends requests from `other` (or from the same core if there is no other).
pub(super) fn measure(core: usize, other: Option<usize>, quick: bool) -> Result<HttpLimit> {
    let (warm_up, time) = if quick {
        (Duration::from_millis(50), Duration::from_millis(200))
    } else {
        (Duration::from_millis(500), Duration::from_secs(3))
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed);
    let (server_runtime, client_runtime) = (runtime()?, runtime()?);
    let server_handle = server_runtime.handle().clone();
    let server = server_runtime.block_on(Server::bind(Listen::localhost(0))).map_err(failed)?;
    let port = server.port();
    let drain = Drain::new();
    std::thread::scope(|scope| {
        let stop = drain.clone();
        let serving = scope.spawn(move || {
            affinity::on_cores(&[core], || {
                let handler = Arc::new(Empty { answer: vec![b' '; RESPONSE_BYTES] });
                server_runtime.block_on(server.serve(handler, ServerOptions::default(), drain));
            })
        });
        let asked = scope
            .spawn(move || {
                affinity::on_cores(&[other.unwrap_or(core)], || {
                    client_runtime.block_on(ask(port, &server_handle, warm_up, time))
                })
            })
            .join();
        stop.trigger();
        let served = serving.join();
        let panicked = |_| BenchError::SetUp("HTTP cannot be measured: a thread panicked".into());
        served.map_err(panicked)??;
        let (requests, cpu) = asked.map_err(panicked)???;
        let cpu_us_per_request = cpu.as_secs_f64() * 1e6 / requests.max(1) as f64;
        Ok(HttpLimit {
            per_s: 1e6 / cpu_us_per_request,
            cpu_us_per_request,
            requests,
            request_bytes: REQUEST_BYTES,
            response_bytes: RESPONSE_BYTES,
            connections: CONNECTIONS,
        })
    })
}

/// The number of requests answered within `time`, and the CPU time of the server's thread meanwhile.
async fn ask(
    port: u16,
    server: &tokio::runtime::Handle,
    warm_up: Duration,
    time: Duration,
) -> Result<(u64, Duration)> {
    let (answered, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (answered, ends) = (Arc::clone(&answered), Arc::clone(&ends));
        clients.spawn(async move { client(port, &answered, &ends).await });
    }
    // The server does everything on its one thread, so this closure must run there, too.
    let now = || async {
        let cpu = server.spawn(async { thread_cpu_time() }).await.map_err(failed)?;
        Ok::<_, BenchError>((answered.load(Ordering::Relaxed), cpu))
    };
    tokio::time::sleep(warm_up).await;
    let before = now().await?;
    tokio::time::sleep(time).await;
    let after = now().await?;
    ends.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.map_err(failed)?.map_err(failed)?;
    }
    Ok((after.0 - before.0, after.1.saturating_sub(before.1)))
}

async fn client(port: u16, answered: &AtomicU64, ends: &AtomicBool) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let mut request = format!(
        "POST /coins/deposit HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {REQUEST_BYTES}\r\n\r\n"
    )
    .into_bytes();
    request.extend(std::iter::repeat_n(b' ', REQUEST_BYTES));
    let mut buffer = vec![0; 4_096];
    while !ends.load(Ordering::Relaxed) {
        stream.write_all(&request).await?;
        let (mut filled, mut expected) = (0, None);
        while expected.is_none_or(|expected| filled < expected) {
            let read = stream.read(&mut buffer[filled..]).await?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            filled += read;
            if expected.is_none() {
                let end = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n");
                expected = end.map(|end| end + 4 + RESPONSE_BYTES);
            }
        }
        if !buffer.starts_with(b"HTTP/1.1 200") {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

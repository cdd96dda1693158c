//! A running attack: what its connections do until it is stopped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::bench::load::affinity;
use crate::bench::load::wire;

/// Time that a connection pauses before it reconnects.
const PAUSE: Duration = Duration::from_millis(50);
/// Time that a slow client pauses between two bytes.
const DRIP: Duration = Duration::from_secs(1);
/// The `nice` value of the attack, so that it yields to the honest client on the generator's cores.
const NICENESS: i32 = 10;
/// The longest time that an attack tries to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// A request in parts, so that connections can share a large one.
pub(super) type Parts = Vec<Arc<[u8]>>;
/// The request with a number. No number comes twice.
pub(super) type Requests = Box<dyn Fn(u64) -> Parts + Send + Sync>;

/// The behaviour of one connection.
pub(super) enum Act {
    /// Sends the same bytes, and then reads until the server closes the connection.
    Waits(Parts),
    /// Sends the same bytes, and reads nothing.
    Ignores(Parts),
    /// Sends the same bytes, and then a few more at intervals.
    Drips(Parts, &'static [u8]),
    /// Sends one request, reads the beginning of the answer, and leaves.
    Leaves(Requests),
    /// Sends a request and reads the answer, over and over.
    Repeats(Requests),
}

/// The same request whatever the number.
pub(super) fn always(bytes: Vec<u8>) -> Requests {
    let bytes: Arc<[u8]> = bytes.into();
    Box::new(move |_| vec![Arc::clone(&bytes)])
}

/// Requests that are made one by one.
pub(super) fn each(make: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static) -> Requests {
    Box::new(move |number| vec![make(number).into()])
}

/// The head of a request with a JSON body of this length.
pub(super) fn head(method: &str, path: &str, length: usize) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// The counts that the connections of an attack share.
#[derive(Default)]
struct Counts {
    stops: AtomicBool,
    /// Connections that the server has not closed.
    open: AtomicUsize,
    /// Requests so far, which numbers them.
    requests: AtomicU64,
}

/// A running attack. It ends when dropped.
pub(super) struct Attack {
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// Starts an attack with this many connections from these addresses.
    pub(super) fn start(
        act: Arc<Act>,
        server: SocketAddr,
        addresses: Vec<Ipv4Addr>,
        connections: usize,
        cores: &[usize],
    ) -> Self {
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        let work = move || {
            // The honest client shares the generator's cores. The service is to be attacked, not the client.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async move {
                for number in 0..connections {
                    let from = addresses[number % addresses.len()];
                    tokio::spawn(come_again(Arc::clone(&act), server, from, Arc::clone(&shared)));
                }
                while !shared.stops.load(Relaxed) {
                    sleep(PAUSE).await;
                }
            });
        };
        let spawn = || std::thread::Builder::new().name("attack".to_owned()).spawn(work).ok();
        let thread = affinity::on_cores(cores, spawn).ok().flatten();
        Self { counts, thread }
    }

    /// Number of its connections that the server keeps open.
    pub(super) fn open(&self) -> usize {
        self.counts.open.load(Relaxed)
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.counts.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result does not matter.
            let _ = thread.join();
        }
    }
}

/// One attacker: connects, attacks until the server closes the connection, and starts again.
async fn come_again(act: Arc<Act>, server: SocketAddr, from: Ipv4Addr, counts: Arc<Counts>) {
    while !counts.stops.load(Relaxed) {
        if let Ok(Ok(mut stream)) = timeout(CONNECT, connect(from, server)).await {
            counts.open.fetch_add(1, Relaxed);
            // The server is expected to close the connection.
            let _ = attack(&act, &counts, &mut stream).await;
            counts.open.fetch_sub(1, Relaxed);
        }
        sleep(PAUSE).await;
    }
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

async fn send(stream: &mut TcpStream, parts: &Parts) -> std::io::Result<()> {
    for part in parts {
        stream.write_all(part).await?;
    }
    Ok(())
}

/// Attacks over one connection until the server closes it.
async fn attack(act: &Act, counts: &Counts, stream: &mut TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    match act {
        Act::Waits(parts) => {
            send(stream, parts).await?;
            while stream.read(&mut buffer).await? > 0 {}
            Ok(())
        }
        Act::Ignores(parts) => {
            send(stream, parts).await?;
            while !stream.ready(Interest::READABLE).await?.is_read_closed() {
                sleep(DRIP).await;
            }
            Ok(())
        }
        Act::Drips(parts, bytes) => {
            send(stream, parts).await?;
            drip(stream, bytes).await
        }
        Act::Leaves(requests) => {
            send(stream, &requests(counts.requests.fetch_add(1, Relaxed))).await?;
            stream.read(&mut buffer).await.map(drop)
        }
        Act::Repeats(requests) => again_and_again(stream, requests, counts).await,
    }
}

/// Sends requests and reads the answers, one after the other.
async fn again_and_again(
    stream: &mut TcpStream,
    requests: &Requests,
    counts: &Counts,
) -> std::io::Result<()> {
    let mut received = Vec::new();
    loop {
        send(stream, &requests(counts.requests.fetch_add(1, Relaxed))).await?;
        let end = loop {
            match wire::frame(&received) {
                Ok(Some(answer)) => break answer.body.end,
                Ok(None) => {}
                Err(_) => return Ok(()),
            }
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        };
        received.drain(..end);
    }
}

/// Sends a little at intervals until the server closes the connection.
async fn drip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut buffer = [0; 256];
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => {
                if read? == 0 {
                    return Ok(());
                }
            }
            () = sleep(DRIP) => stream.write_all(bytes).await?,
        }
    }
}

//! The attacks: what each connection does until it is stopped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::bench::load::affinity;
use crate::bench::load::wire;

/// The names of the attacks.
pub(super) const ATTACKS: [&str; 10] = [
    "slow-uploads",
    "slow-headers",
    "long-polls",
    "unread-histories",
    "unread-keys",
    "refused-histories",
    "large-bodies",
    "large-accounts",
    "copied-signatures",
    "junk-connections",
];

/// Time that a connection pauses before it reconnects.
const PAUSE: Duration = Duration::from_millis(50);
/// Time that a slow client pauses between two bytes.
const DRIP: Duration = Duration::from_secs(1);
/// The largest body that any version of the exchange accepted.
pub(super) const BODY_BYTES: usize = 15 << 20;
/// The `nice` value of the attack, so that it yields to the honest client on the generator's cores.
const NICENESS: i32 = 10;
/// The longest time that an attack tries to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// The server under attack, and the requests to send, each prepared as a whole.
pub(super) struct Target {
    pub address: SocketAddr,
    /// Waits for money that never comes.
    pub poll: Vec<u8>,
    /// Requests a long history.
    pub history: Vec<u8>,
    /// A request that is refused with a long history as proof.
    pub refused: Vec<u8>,
    /// A request with many copies of one signature.
    pub(crate) copies: Vec<u8>,
    /// A deposit that its coin's owner has not signed.
    pub deposit: Stretched,
    /// Filler bytes for large bodies.
    pub(crate) filler: Vec<u8>,
}

/// A JSON request that can be lengthened at one place.
pub(super) struct Stretched {
    path: String,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Stretched {
    /// Lengthens `request` after the first `place` in its body; `None` if the body has no such place.
    pub(super) fn new(request: &[u8], place: &str) -> Option<Self> {
        let text = std::str::from_utf8(request).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let path = head.split(' ').nth(1)?.to_owned();
        let at = body.find(place)? + place.len();
        Some(Self { path, before: body[..at].into(), after: body[at..].into() })
    }

    /// Sends it with `number` and `filler` inserted at the place.
    async fn send(&self, stream: &mut TcpStream, number: u64, filler: &[u8]) -> std::io::Result<()> {
        let number = format!("{number}-");
        let length = self.before.len() + number.len() + filler.len() + self.after.len();
        stream.write_all(head(&self.path, length).as_bytes()).await?;
        for part in [&self.before, number.as_bytes(), filler, &self.after] {
            stream.write_all(part).await?;
        }
        Ok(())
    }
}

/// A running attack. It ends when dropped.
pub(super) struct Attack {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// Starts an attack with this many connections from these addresses.
    pub(super) fn start(
        name: &'static str,
        target: Arc<Target>,
        addresses: Vec<Ipv4Addr>,
        connections: usize,
        cores: &[usize],
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let work = move || {
            // The honest client shares the generator's cores. The exchange is to be attacked, not the client.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async move {
                for number in 0..connections {
                    let from = addresses[number % addresses.len()];
                    tokio::spawn(come_again(
                        name,
                        number as u64,
                        Arc::clone(&target),
                        from,
                        Arc::clone(&ends),
                    ));
                }
                while !ends.load(Relaxed) {
                    sleep(PAUSE).await;
                }
            });
        };
        let spawn = || std::thread::Builder::new().name("attack".to_owned()).spawn(work).ok();
        let thread = affinity::on_cores(cores, spawn).ok().flatten();
        Self { stop, thread }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result does not matter.
            let _ = thread.join();
        }
    }
}

/// One attacker: connects, attacks until the server closes the connection, and starts again.
async fn come_again(
    name: &'static str,
    number: u64,
    target: Arc<Target>,
    from: Ipv4Addr,
    stop: Arc<AtomicBool>,
) {
    let mut round = 0;
    while !stop.load(Relaxed) {
        round += 1;
        if let Ok(Ok(mut stream)) = timeout(CONNECT, connect(from, target.address)).await {
            // The server is expected to close the connection.
            let _ = attack(name, number << 32 | round, &target, &mut stream).await;
        }
        sleep(PAUSE).await;
    }
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

/// Attacks over one connection until the server closes it. Every connection has a different `number`.
async fn attack(
    name: &'static str,
    number: u64,
    target: &Target,
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    match name {
        "slow-uploads" => {
            stream.write_all(head("/batch-deposit", BODY_BYTES).as_bytes()).await?;
            // A fast start, then almost nothing.
            stream.write_all(&target.filler[4096..]).await?;
            drip(stream, b"x").await
        }
        "slow-headers" => {
            stream.write_all(b"GET /keys HTTP/1.1\r\nHost: localhost\r\n").await?;
            drip(stream, b"X: y\r\n").await
        }
        "long-polls" => again_and_again(stream, &target.poll).await,
        "unread-histories" => {
            stream.write_all(&target.history.repeat(32)).await?;
            std::future::pending().await
        }
        "unread-keys" => {
            stream.write_all(&b"GET /keys HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500)).await?;
            std::future::pending().await
        }
        "refused-histories" => again_and_again(stream, &target.refused).await,
        "large-bodies" => {
            stream.write_all(head("/batch-deposit", BODY_BYTES).as_bytes()).await?;
            stream.write_all(&target.filler).await?;
            stream.read(&mut [0; 4096]).await.map(drop)
        }
        "large-accounts" => {
            target.deposit.send(stream, number, &target.filler).await?;
            stream.read(&mut [0; 4096]).await.map(drop)
        }
        "copied-signatures" => {
            stream.write_all(&target.copies).await?;
            stream.read(&mut [0; 4096]).await.map(drop)
        }
        "junk-connections" => {
            stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 junk\r\n\r\n").await?;
            stream.read(&mut [0; 4096]).await.map(drop)
        }
        other => unreachable!("no attack is called {other}"),
    }
}

/// The head of a POST with a JSON body.
fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Sends a request and reads the answer, over and over.
async fn again_and_again(stream: &mut TcpStream, request: &[u8]) -> std::io::Result<()> {
    let mut received = Vec::new();
    loop {
        stream.write_all(request).await?;
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
            // Either an answer or the end of the connection.
            read = stream.read(&mut buffer) => return read.map(drop),
            () = sleep(DRIP) => stream.write_all(bytes).await?,
        }
    }
}

//! The attacks: what each connection does until it is told to stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use batzen_crypto::EddsaPublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::affinity;

/// The names of the attacks.
pub(super) const ATTACKS: [&str; 7] = [
    "slow-uploads",
    "slow-headers",
    "long-polls",
    "unread-histories",
    "unread-keys",
    "large-bodies",
    "junk-connections",
];

/// Pause of a connection before it comes again.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause between two bytes of whoever is slow.
const DRIP: Duration = Duration::from_secs(1);
/// The largest body that an exchange ever took.
const BODY_BYTES: usize = 15 << 20;
/// No attack connects longer than this.
const CONNECT: Duration = Duration::from_secs(5);

/// What is attacked.
#[derive(Clone)]
pub(super) struct Target {
    pub address: SocketAddr,
    /// A reserve that there is not.
    pub unknown_reserve: EddsaPublicKey,
    /// Requests for long histories.
    pub histories: Vec<Vec<u8>>,
}

/// An attack under way. Ends when dropped.
pub(super) struct Attack {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// Begins with so many connections from these addresses.
    pub(super) fn start(
        name: &'static str,
        target: &Target,
        addresses: Vec<Ipv4Addr>,
        connections: usize,
        cores: &[usize],
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, target) = (Arc::clone(&stop), Arc::new(target.clone()));
        let work = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async move {
                for number in 0..connections {
                    let from = addresses[number % addresses.len()];
                    tokio::spawn(come_again(name, number, Arc::clone(&target), from, Arc::clone(&ends)));
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
            // It did what it could.
            let _ = thread.join();
        }
    }
}

/// One attacker: connects, attacks until the server ends it, and comes again.
async fn come_again(
    name: &'static str,
    number: usize,
    target: Arc<Target>,
    from: Ipv4Addr,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Relaxed) {
        if let Ok(Ok(mut stream)) = timeout(CONNECT, connect(from, target.address)).await {
            // That the server ends it is what is to be expected.
            let _ = attack(name, number, &target, &mut stream).await;
        }
        sleep(PAUSE).await;
    }
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

async fn attack(
    name: &'static str,
    number: usize,
    target: &Target,
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    match name {
        "slow-uploads" => {
            stream.write_all(&upload_head()).await?;
            // A fast beginning, then next to nothing.
            stream.write_all(&vec![b' '; BODY_BYTES - 4096]).await?;
            drip(stream, b" ").await
        }
        "slow-headers" => {
            stream.write_all(b"GET /keys HTTP/1.1\r\nHost: localhost\r\n").await?;
            drip(stream, b"X: y\r\n").await
        }
        "long-polls" => {
            let poll = format!(
                "GET /reserves/{}?timeout_ms=120000 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                target.unknown_reserve
            );
            loop {
                stream.write_all(poll.as_bytes()).await?;
                if stream.read(&mut [0; 4096]).await? == 0 {
                    return Ok(());
                }
            }
        }
        "unread-histories" => {
            stream.write_all(&target.histories[number % target.histories.len()].repeat(32)).await?;
            std::future::pending().await
        }
        "unread-keys" => {
            stream.write_all(&b"GET /keys HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500)).await?;
            std::future::pending().await
        }
        "large-bodies" => {
            stream.write_all(&upload_head()).await?;
            stream.write_all(&vec![b' '; BODY_BYTES]).await?;
            stream.read(&mut [0; 4096]).await.map(drop)
        }
        _ => {
            stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 junk\r\n\r\n").await?;
            stream.read(&mut [0; 4096]).await.map(drop)
        }
    }
}

fn upload_head() -> Vec<u8> {
    format!(
        "POST /batch-deposit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    )
    .into_bytes()
}

/// Sends a little now and then until the server has enough of it.
async fn drip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut buffer = [0; 256];
    loop {
        tokio::select! {
            // An answer, or the end.
            read = stream.read(&mut buffer) => return read.map(drop),
            () = sleep(DRIP) => stream.write_all(bytes).await?,
        }
    }
}

//! A server in this process, a ledger that can be blocked, and a proxy that breaks connections.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use batzen_http::{Drain, Listen};
use batzen_ledger::{
    Account, Answer, CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, MemoryLedger, Transfer,
};
use batzen_ledger_service::net::{LedgerServer, NetOptions, NetStats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

pub(super) fn account(id: u128) -> Account {
    Account { id, ledger: 1, code: 1, ..Account::default() }
}

pub(super) fn transfer(id: u128, debit: u128, credit: u128, amount: u128) -> Transfer {
    Transfer {
        id,
        debit_account_id: debit,
        credit_account_id: credit,
        amount,
        ledger: 1,
        code: 1,
        ..Transfer::default()
    }
}

/// A running server.
pub(super) struct Served {
    pub url: String,
    pub stats: Arc<NetStats>,
    pub drain: Drain,
    task: JoinHandle<()>,
}

impl Served {
    pub(super) async fn start(ledger: Arc<dyn Ledger>, options: NetOptions) -> Self {
        Self::start_on(Listen::localhost(0), ledger, options).await
    }

    pub(super) async fn start_on(listen: Listen, ledger: Arc<dyn Ledger>, options: NetOptions) -> Self {
        let server = LedgerServer::bind(listen).await.unwrap();
        let (url, stats, drain) = (server.url(), server.stats(), Drain::new());
        let task = tokio::spawn(server.serve(ledger, options, drain.clone()));
        Self { url, stats, drain, task }
    }

    pub(super) async fn stop(self) {
        self.drain.trigger();
        self.task.await.unwrap();
    }

    /// Stops it abruptly, like a killed process.
    pub(super) fn abort(self) {
        self.task.abort();
    }
}

/// A ledger that answers create requests only while its gate is open.
pub(super) struct Gate {
    pub inner: MemoryLedger,
    open: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new(inner: MemoryLedger) -> Self {
        Self { inner, open: watch::Sender::new(true) }
    }

    pub(super) fn close(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn open(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self) {
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
    }
}

impl Ledger for Gate {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.create_accounts(events).await
        })
    }

    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.create_transfers(events).await
        })
    }
    batzen_ledger::delegate_reads!(inner);
}

/// A proxy between client and server, with faults.
pub(super) struct Proxy {
    pub url: String,
    /// Drops everything that the server sends.
    pub lose_answers: Arc<AtomicBool>,
    cut: Arc<Notify>,
    faults: Arc<AtomicU64>,
}

/// SplitMix64: choices that a seed reproduces.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

impl Proxy {
    /// A connection without faults.
    pub(super) async fn start(server: &str) -> Self {
        Self::start_with(server, None).await
    }

    /// A connection that sometimes loses data, flips a bit, delays, or breaks.
    pub(super) async fn start_lossy(server: &str, seed: u64) -> Self {
        Self::start_with(server, Some(seed)).await
    }

    /// Number of faults so far.
    pub(super) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    async fn start_with(server: &str, seed: Option<u64>) -> Self {
        let server = server.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        let lose_answers = Arc::new(AtomicBool::new(false));
        let cut = Arc::new(Notify::new());
        let faults = Arc::new(AtomicU64::new(0));
        let (loses, cuts, counts) = (Arc::clone(&lose_answers), Arc::clone(&cut), Arc::clone(&faults));
        tokio::spawn(async move {
            let mut number = 0_u64;
            while let Ok((client, _)) = listener.accept().await {
                let Ok(upstream) = TcpStream::connect(&server).await else { continue };
                let (loses, cuts, counts) = (Arc::clone(&loses), Arc::clone(&cuts), Arc::clone(&counts));
                number += 2;
                let dice = |side| seed.map(|seed| Dice::new(seed ^ ((number + side) << 40)));
                let noise = (dice(0), dice(1));
                tokio::spawn(async move {
                    tokio::select! {
                        () = pass(client, upstream, &loses, noise, &counts) => {}
                        () = cuts.notified() => {}
                    }
                });
            }
        });
        Self { url, lose_answers, cut, faults }
    }

    /// Closes every connection.
    pub(super) fn cut(&self) {
        self.cut.notify_waiters();
    }
}

async fn pass(
    client: TcpStream,
    upstream: TcpStream,
    loses_answers: &AtomicBool,
    noise: (Option<Dice>, Option<Dice>),
    faults: &AtomicU64,
) {
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = upstream.into_split();
    let never = AtomicBool::new(false);
    tokio::select! {
        () = one_way(client_read, server_write, &never, noise.0, faults) => {}
        () = one_way(server_read, client_write, loses_answers, noise.1, faults) => {}
    }
}

/// Forwards data until one end closes, or a fault breaks the line.
async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    loses: &AtomicBool,
    mut noise: Option<Dice>,
    faults: &AtomicU64,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if loses.load(Ordering::SeqCst) {
            continue;
        }
        if let Some(dice) = &mut noise {
            let fault = dice.below(200);
            if fault < 4 {
                faults.fetch_add(1, Ordering::Relaxed);
            }
            match fault {
                0 => return,
                1 => continue,
                2 => {
                    let bit = usize::try_from(dice.below(count as u64 * 8)).unwrap();
                    buffer[bit / 8] ^= 1 << (bit % 8);
                }
                3 => tokio::time::sleep(std::time::Duration::from_millis(dice.below(30))).await,
                _ => {}
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

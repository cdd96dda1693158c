//! An exchange's store that is served, and an auditor's that follows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::EddsaPrivateKey;
use batzen_feed::Clock;
use batzen_feed::client::{Batch, FeedError, Follower, FollowerOptions, Next, RowChange};
use batzen_feed::config::ServerConfig;
use batzen_feed::metrics::ServerMetrics;
use batzen_feed::server::FeedServer;
use batzen_http::Drain;
use batzen_protocol::Timestamp;
use batzen_store::conformance::random::Random;
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{ChangeSet, CommitOutcome, Store, Table, TableDef};
use batzen_tables::exchange::{
    AUDITED, AccountId, AccountKey, Contracts, CursorRow, Cursors, LeaseJob, LeaseKey, LeaseRow, WorkerLeases,
};
use batzen_tables::{auditor, exchange};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};

pub(crate) const STEP: Duration = Duration::from_millis(50);

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_secs(1_700_000_000))
}

/// Small segments, so that compaction has work, and no work in the background, so that tests decide.
fn options(identity: Option<[u8; 32]>) -> Options {
    Options {
        segment_bytes_first: 4 << 10,
        segment_bytes_max: 16 << 10,
        checkpoint_bytes: 64 << 10,
        background: false,
        identity,
        ..Options::default()
    }
}

pub(crate) fn open_exchange(dir: &Path) -> Arc<EmbeddedStore> {
    Arc::new(EmbeddedStore::open(dir, exchange::ALL, options(Some([7; 32]))).unwrap())
}

pub(crate) fn open_auditor(dir: &Path) -> Store {
    Store::new(EmbeddedStore::open(dir, auditor::copy::ALL, options(None)).unwrap())
}

/// An auditor's store on a disk that can be full.
pub(crate) fn open_auditor_on(disk: &SimDisk) -> Store {
    let options = Options { disk: Arc::new(disk.clone()), full_pause: Duration::ZERO, ..options(None) };
    Store::new(EmbeddedStore::open("/auditor", auditor::copy::ALL, options).unwrap())
}

pub(crate) fn account(number: u64) -> AccountKey {
    AccountKey { account: AccountId::of_payto(&format!("payto://void/{number}")) }
}

/// Random commits to an exchange's store; some change nothing that is audited.
pub(crate) struct Traffic {
    random: Random,
    rows: BTreeMap<u64, u64>,
    leases: u64,
}

impl Traffic {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Random(seed), rows: BTreeMap::new(), leases: 0 }
    }

    pub(crate) fn commits(&mut self, store: &EmbeddedStore, count: u64) {
        (0..count).for_each(|_| self.commit(store));
    }

    fn commit(&mut self, store: &EmbeddedStore) {
        let mut changes = ChangeSet::new();
        if self.random.below(5) == 0 {
            self.leases += 1;
            let account = account(0).account;
            let key = LeaseKey { job: LeaseJob::Wirewatch, account, start: self.leases };
            let row = LeaseRow { end: 1, latest: 0, is_complete: false, holder: 0, until: Timestamp::ZERO };
            changes.insert::<WorkerLeases>(&key, &row);
        } else {
            for _ in 0..=self.random.below(4) {
                let (number, bank_row) = (self.random.below(60), self.random.bits());
                let (key, row) = (account(number), CursorRow { bank_row });
                match self.rows.remove(&number) {
                    None => changes.insert::<Cursors>(&key, &row),
                    Some(old) if self.random.below(4) == 0 => {
                        changes.delete::<Cursors>(&key, &CursorRow { bank_row: old });
                        continue;
                    }
                    Some(old) => changes.update::<Cursors>(&key, &CursorRow { bank_row: old }, &row),
                }
                self.rows.insert(number, bank_row);
            }
        }
        commit(store, &changes);
    }
}

pub(crate) fn commit(store: &EmbeddedStore, changes: &ChangeSet) {
    let outcome = batzen_store::Backend::commit(store, changes).unwrap();
    assert_eq!(outcome, CommitOutcome::Committed);
}

/// All audited rows.
pub(crate) fn rows(store: &dyn batzen_store::Backend) -> BTreeMap<(u16, Vec<u8>), Vec<u8>> {
    let mut rows = BTreeMap::new();
    for table in AUDITED {
        let visit = &mut |record: batzen_store::RawRecord| {
            rows.insert((table.id, record.key), record.row);
            std::ops::ControlFlow::Continue(())
        };
        store.scan(table, visit).unwrap();
    }
    rows
}

/// The keys of both sides, and a directory.
pub(crate) struct World {
    pub dir: tempfile::TempDir,
    pub exchange_key: EddsaPrivateKey,
    pub auditor_key: EddsaPrivateKey,
    pub hold_bytes_max: u64,
    runtime: tokio::runtime::Runtime,
}

/// A served store.
pub(crate) struct Served {
    pub url: String,
    pub metrics: Arc<ServerMetrics>,
    drain: Drain,
    task: tokio::task::JoinHandle<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self {
            dir: tempfile::tempdir().unwrap(),
            exchange_key: EddsaPrivateKey::generate(),
            auditor_key: EddsaPrivateKey::generate(),
            hold_bytes_max: 1 << 30,
            runtime: runtime.unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn serve(&self, store: &Arc<EmbeddedStore>) -> Served {
        let config = ServerConfig {
            listen: vec!["tcp://127.0.0.1:0".parse().unwrap()],
            key_file: PathBuf::new(),
            auditors: vec![self.auditor_key.public_key()],
            hold_bytes_max: self.hold_bytes_max,
        };
        let (drain, metrics) = (Drain::new(), Arc::new(ServerMetrics::default()));
        let store = Store::shared(Arc::clone(store) as Arc<dyn batzen_store::Backend>);
        let (key, stop, counts) = (self.exchange_key.clone(), drain.clone(), Arc::clone(&metrics));
        let bound = FeedServer::bind(&config, key, store, stop, clock(), counts);
        let server = self.runtime.block_on(bound).unwrap();
        let url = server.urls()[0].clone();
        Served { url, metrics, drain, task: self.runtime.spawn(server.serve()) }
    }

    pub(crate) fn stop(&self, served: Served) {
        served.drain.trigger();
        self.runtime.block_on(served.task).unwrap();
    }

    /// Connections from 127.0.0.2 that stay silent, of which the server has closed the last.
    pub(crate) fn silent(&self, served: &Served, count: usize) -> Vec<TcpStream> {
        let server: SocketAddr = served.url.strip_prefix("tcp://").unwrap().parse().unwrap();
        let connect = async || {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
            socket.connect(server).await.unwrap()
        };
        self.runtime.block_on(async {
            let mut sockets = Vec::new();
            for _ in 0..count {
                sockets.push(connect().await);
            }
            let last = sockets.last_mut().expect("some");
            assert_eq!(last.read(&mut [0]).await.unwrap_or(0), 0);
            sockets
        })
    }

    pub(crate) fn follower(&self, served: &Served, store: &Store) -> Follower {
        let options = FollowerOptions {
            exchange: served.url.parse().unwrap(),
            exchange_key: self.exchange_key.public_key(),
            key: self.auditor_key.clone(),
            clock: clock(),
        };
        Follower::new(options, store.clone()).unwrap()
    }
}

/// The changes that a follower has received.
#[derive(Debug, Default)]
pub(crate) struct Got {
    pub batches: usize,
    pub changes: Vec<RowChange>,
}

/// Follows until the copy reaches `end`.
pub(crate) fn follow_to(follower: &mut Follower, end: u64) -> Result<Got, FeedError> {
    let mut got = Got::default();
    let progress = follower.progress();
    let mut is_state = false;
    while !is_state || progress.get().next < end {
        if let Next::Batch(batch) = follower.next(STEP)? {
            is_state = batch.head.is_some();
            got.batches += 1;
            got.changes.extend(batch.changes.iter().cloned());
            follower.commit(batch, ChangeSet::new())?;
        } else if progress.get().next >= end {
            is_state = true;
        }
    }
    Ok(got)
}

pub(crate) fn next_batch(follower: &mut Follower) -> Result<Batch, FeedError> {
    loop {
        if let Next::Batch(batch) = follower.next(STEP)? {
            return Ok(batch);
        }
    }
}

/// A table of the exchange that is not audited.
pub(crate) const UNAUDITED: &TableDef = Contracts::DEF;

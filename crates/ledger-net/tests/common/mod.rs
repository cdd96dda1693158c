//! A server in this process, a ledger that can be held up, and a proxy that breaks connections.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use batzen_http::{Drain, Listen};
use batzen_ledger::{
    Account, AccountBalance, AccountFilter, Answer, ChangeEvent, ChangeFilter, CreateAccountStatus,
    CreateResult, CreateTransferStatus, Ledger, MemoryLedger, QueryFilter, Transfer,
};
use batzen_ledger_net::{LedgerServer, NetOptions, NetStats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

pub fn account(id: u128) -> Account {
    Account { id, ledger: 1, code: 1, ..Account::default() }
}

pub fn transfer(id: u128, debit: u128, credit: u128, amount: u128) -> Transfer {
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

/// A server that runs.
pub struct Served {
    pub url: String,
    pub stats: Arc<NetStats>,
    pub drain: Drain,
    task: JoinHandle<()>,
}

impl Served {
    pub async fn start(ledger: Arc<dyn Ledger>, options: NetOptions) -> Self {
        Self::start_on(Listen::localhost(0), ledger, options).await
    }

    pub async fn start_on(listen: Listen, ledger: Arc<dyn Ledger>, options: NetOptions) -> Self {
        let server = LedgerServer::bind(listen).await.unwrap();
        let (url, stats, drain) = (server.url(), server.stats(), Drain::new());
        let task = tokio::spawn(server.serve(ledger, options, drain.clone()));
        Self { url, stats, drain, task }
    }

    pub async fn stop(self) {
        self.drain.trigger();
        self.task.await.unwrap();
    }

    /// As if the process were killed.
    pub fn abort(self) {
        self.task.abort();
    }
}

/// A ledger that answers create requests only while its gate is open.
pub struct Gate {
    pub inner: MemoryLedger,
    open: watch::Sender<bool>,
}

impl Gate {
    pub fn new(inner: MemoryLedger) -> Self {
        Self { inner, open: watch::Sender::new(true) }
    }

    pub fn close(&self) {
        self.open.send_replace(false);
    }

    pub fn open(&self) {
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

    fn lookup_accounts(&self, ids: Vec<u128>) -> Answer<'_, Vec<Account>> {
        self.inner.lookup_accounts(ids)
    }

    fn lookup_transfers(&self, ids: Vec<u128>) -> Answer<'_, Vec<Transfer>> {
        self.inner.lookup_transfers(ids)
    }

    fn get_account_transfers(&self, filter: AccountFilter) -> Answer<'_, Vec<Transfer>> {
        self.inner.get_account_transfers(filter)
    }

    fn get_account_balances(&self, filter: AccountFilter) -> Answer<'_, Vec<AccountBalance>> {
        self.inner.get_account_balances(filter)
    }

    fn query_accounts(&self, filter: QueryFilter) -> Answer<'_, Vec<Account>> {
        self.inner.query_accounts(filter)
    }

    fn query_transfers(&self, filter: QueryFilter) -> Answer<'_, Vec<Transfer>> {
        self.inner.query_transfers(filter)
    }

    fn get_change_events(&self, filter: ChangeFilter) -> Answer<'_, Vec<ChangeEvent>> {
        self.inner.get_change_events(filter)
    }
}

/// Stands between client and server, and breaks what passes.
pub struct Proxy {
    pub url: String,
    /// Swallows what the server says.
    pub lose_answers: Arc<AtomicBool>,
    cut: Arc<Notify>,
}

impl Proxy {
    pub async fn start(server: &str) -> Self {
        let server = server.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        let lose_answers = Arc::new(AtomicBool::new(false));
        let cut = Arc::new(Notify::new());
        let (loses, cuts) = (Arc::clone(&lose_answers), Arc::clone(&cut));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(upstream) = TcpStream::connect(&server).await else { continue };
                let (loses, cuts) = (Arc::clone(&loses), Arc::clone(&cuts));
                tokio::spawn(async move {
                    tokio::select! {
                        () = pass(client, upstream, &loses) => {}
                        () = cuts.notified() => {}
                    }
                });
            }
        });
        Self { url, lose_answers, cut }
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }
}

async fn pass(client: TcpStream, upstream: TcpStream, loses_answers: &AtomicBool) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = upstream.into_split();
    let requests = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = client_read.read(&mut buffer).await {
            if server_write.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = server_read.read(&mut buffer).await {
            if loses_answers.load(Ordering::SeqCst) {
                continue;
            }
            if client_write.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

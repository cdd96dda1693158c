//! The client: a [`Ledger`] behind a socket.
//!
//! Small create requests of many callers share a frame. While as many frames are under way as
//! [`ClientOptions::frames_in_flight`] allows, further requests gather in the next frame. After a broken
//! connection the client repeats pending requests under the same ids. Their results may then be `exists`
//! instead of `created`, and `id_already_failed` instead of the first refusal, but nothing happens twice. If
//! no server can be reached for [`ClientOptions::retry_for`], callers get [`LedgerError::Unknown`] for
//! requests that were sent and [`LedgerError::Busy`] for the others.

pub mod cluster;
mod driver;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, Answer, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter,
    CreateAccountStatus, CreateResult, CreateTransferStatus, Ledger, LedgerError, QueryFilter, Transfer,
};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::net::address::LedgerAddress;
use crate::net::body::{EVENTS_PER_ANSWER_MAX, Record, push_all, read_all};
use crate::net::frame::Kind;

use cluster::Cluster;
use state::Inner;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Create frames under way while further requests gather in the next one.
    pub frames_in_flight: usize,
    /// Full create frames under way. Nothing more fits into these.
    pub full_frames_in_flight: usize,
    /// Reads under way.
    pub reads_in_flight: usize,
    /// Most events that may wait to be sent, and reads with bodies of the same size. Further calls get
    /// [`LedgerError::Busy`].
    pub waiting_events_max: usize,
    /// Timeout of one attempt to connect, including the hello.
    pub connect_timeout: Duration,
    /// A server that leaves a request unanswered for this long counts as lost. The client reconnects.
    pub answer_timeout: Duration,
    /// Time that the client tries to reach a server before it fails its callers' requests.
    pub retry_for: Duration,
    /// The first pause between attempts. Each further one is twice as long.
    pub backoff_min: Duration,
    /// The longest pause between attempts.
    pub backoff_max: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            frames_in_flight: 2,
            full_frames_in_flight: 8,
            reads_in_flight: 16,
            waiting_events_max: 64 * BATCH_EVENTS_MAX,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(30),
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_secs(1),
        }
    }
}

/// The server's address.
#[derive(Clone, Debug)]
enum Target {
    Tcp(String),
    Unix(PathBuf),
}

impl ClientOptions {
    /// For a cluster: the next create frame waits in its client library, and no more.
    #[must_use]
    pub fn of_cluster() -> Self {
        Self { frames_in_flight: 2, full_frames_in_flight: 2, ..Self::default() }
    }
}

/// A ledger behind a socket. All callers share one connection, which belongs to the runtime that created it.
/// That of a cluster belongs to a thread of its own.
pub struct LedgerClient {
    inner: Arc<Inner>,
}

impl LedgerClient {
    /// Connects. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the address is not a ledger server's, or the server speaks another
    /// version. [`LedgerError::Busy`] if it cannot be reached.
    pub async fn connect(address: LedgerAddress, options: ClientOptions) -> Result<Self, LedgerError> {
        let target = match address {
            LedgerAddress::Tcp(address) => Target::Tcp(address),
            LedgerAddress::Unix(path) => Target::Unix(path),
            LedgerAddress::Embedded | LedgerAddress::TigerBeetle { .. } => {
                return Err(LedgerError::Refused(format!("{address} is not a ledger server")));
            }
        };
        let link = driver::open(&target, &options).await?;
        let inner = Arc::new(Inner::new(options));
        tokio::spawn(driver::run(Arc::clone(&inner), target, link));
        Ok(Self { inner })
    }

    /// Opens a session of a cluster, and waits for its first answer. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the cluster's address is malformed or it runs another version.
    /// [`LedgerError::Busy`] if it does not answer.
    pub async fn connect_cluster<C: Cluster>(
        cluster: C,
        options: ClientOptions,
    ) -> Result<Self, LedgerError> {
        let (name, patience) = (cluster.name().to_owned(), options.connect_timeout);
        let client = Self { inner: Arc::new(Inner::new(options)) };
        let opened = cluster::start(Arc::clone(&client.inner), cluster)?;
        match tokio::time::timeout(patience, opened).await {
            Ok(Ok(result)) => result.map(|()| client),
            Ok(Err(_)) => Err(LedgerError::Busy(format!("the task of {name} has ended"))),
            Err(_) => {
                let seconds = patience.as_secs_f32();
                Err(LedgerError::Busy(format!("cannot reach {name}: no answer within {seconds} s")))
            }
        }
    }

    /// Checks that the server answers.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn ping(&self) -> Result<(), LedgerError> {
        self.request(Kind::Ping, &[], 0).await.map(drop)
    }

    async fn request(&self, kind: Kind, body: &[u8], events: usize) -> Result<Bytes, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.inner.submit(kind, body, events, reply)?;
        answer.await.unwrap_or_else(|_| Err(LedgerError::Unknown("the client was shut down".to_owned())))
    }

    async fn create<E: Record, S>(
        &self,
        kind: Kind,
        events: Vec<E>,
    ) -> Result<Vec<CreateResult<S>>, LedgerError>
    where
        CreateResult<S>: Record,
    {
        if events.len() > BATCH_EVENTS_MAX {
            return Err(LedgerError::TooMuchData);
        }
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let mut body = Vec::new();
        push_all(&mut body, &events);
        let answer = self.request(kind, &body, events.len()).await?;
        let results = read_all(&answer).ok_or_else(|| ill_formed(kind))?;
        if results.len() == events.len() { Ok(results) } else { Err(ill_formed(kind)) }
    }

    async fn read<Q: Record, R: Record>(&self, kind: Kind, asked: &[Q]) -> Result<Vec<R>, LedgerError> {
        if asked.len() > BATCH_EVENTS_MAX {
            return Err(LedgerError::TooMuchData);
        }
        let mut body = Vec::new();
        push_all(&mut body, asked);
        let answer = self.request(kind, &body, 0).await?;
        read_all(&answer).ok_or_else(|| ill_formed(kind))
    }

    /// Reads pages from a server until `limit` is reached: one frame holds fewer events than a caller may
    /// request.
    async fn change_events(&self, mut filter: ChangeFilter) -> Result<Vec<ChangeEvent>, LedgerError> {
        let mut out: Vec<ChangeEvent> = Vec::new();
        let limit = (filter.limit as usize).min(BATCH_EVENTS_MAX);
        loop {
            let wanted = (limit - out.len()).min(EVENTS_PER_ANSWER_MAX);
            filter.limit = u32::try_from(wanted).expect("a few thousand");
            let page: Vec<ChangeEvent> = self.read(Kind::GetChangeEvents, &[filter]).await?;
            let is_last = page.len() < wanted;
            out.extend(page);
            let Some(last) = out.last().filter(|_| !is_last && out.len() < limit) else { return Ok(out) };
            filter.timestamp_min = last.timestamp + 1;
        }
    }
}

impl Drop for LedgerClient {
    fn drop(&mut self) {
        self.inner.close();
    }
}

fn ill_formed(kind: Kind) -> LedgerError {
    LedgerError::Unknown(format!("the server's answer to {} is ill-formed", kind.name()))
}

impl Ledger for LedgerClient {
    fn create_accounts(&self, events: Vec<Account>) -> Answer<'_, Vec<CreateResult<CreateAccountStatus>>> {
        Box::pin(self.create(Kind::CreateAccounts, events))
    }

    fn create_transfers(&self, events: Vec<Transfer>) -> Answer<'_, Vec<CreateResult<CreateTransferStatus>>> {
        Box::pin(self.create(Kind::CreateTransfers, events))
    }

    fn lookup_accounts(&self, ids: Vec<u128>) -> Answer<'_, Vec<Account>> {
        Box::pin(async move { self.read(Kind::LookupAccounts, &ids).await })
    }

    fn lookup_transfers(&self, ids: Vec<u128>) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move { self.read(Kind::LookupTransfers, &ids).await })
    }

    fn get_account_transfers(&self, filter: AccountFilter) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move { self.read(Kind::GetAccountTransfers, &[filter]).await })
    }

    fn get_account_balances(&self, filter: AccountFilter) -> Answer<'_, Vec<AccountBalance>> {
        Box::pin(async move { self.read(Kind::GetAccountBalances, &[filter]).await })
    }

    fn query_accounts(&self, filter: QueryFilter) -> Answer<'_, Vec<Account>> {
        Box::pin(async move { self.read(Kind::QueryAccounts, &[filter]).await })
    }

    fn query_transfers(&self, filter: QueryFilter) -> Answer<'_, Vec<Transfer>> {
        Box::pin(async move { self.read(Kind::QueryTransfers, &[filter]).await })
    }

    fn get_change_events(&self, filter: ChangeFilter) -> Answer<'_, Vec<ChangeEvent>> {
        Box::pin(self.change_events(filter))
    }
}

//! Background workers: they move money into and out of the exchange.
//!
//! | worker | what it does |
//! |---|---|
//! | [`wirewatch`] | imports incoming transfers from the bank, as credits of reserves |
//! | [`aggregator`] | turns due deposits into prepared transfers to merchants |
//! | [`closer`] | turns what is left on expired reserves into prepared transfers back |
//! | [`expire`] | refunds expired purses |
//! | [`drain`] | turns signed orders to pay out profit into prepared transfers |
//! | [`transfer`] | submits prepared transfers to the bank |
//! | [`liabilities`] | publishes what the exchange owes for its coins, if that is configured |
//! | [`garbage`] | removes rows that are no longer needed; only by order of an operator |
//!
//! They run as tasks of the service (`start`), or one after the other until all work is done
//! (`run_until_idle` of each: tests, the demo, the `-t` mode of programs). [`link`] lets worker programs use
//! those of the service. Any number of them may process the same queue at the same time, and each may be
//! killed at any instruction: every decision is an idempotent command in one commit, and the bank executes a
//! transfer only once even if it is requested again.
//!
//! An item that cannot be processed (no account for its method, no wire fee, an unreadable row) is set aside:
//! it is logged, counted and retried later, while the other items continue. After a failure of bank, disk or
//! queue, a worker retries for ever with growing random pauses. Once the cause is removed, no operator is
//! needed, except for transfers that the bank has refused for good.

pub mod aggregator;
pub mod archive;
pub mod closer;
pub mod drain;
pub mod expire;
pub mod garbage;
mod leases;
pub mod liabilities;
pub mod link;
pub mod program;
mod queues;
mod rounds;
pub(crate) mod standing;
pub mod transfer;
pub mod wirewatch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use batzen_engine::{SubmitError, run_blocking};
use batzen_http::client::{Backoff, Client, ClientError, ClientOptions};
use batzen_protocol::Amount;
use batzen_service::wire_gateway::WireGatewayClient;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::AccountId;
use tokio::task::JoinSet;

use crate::app::Exchange;
use crate::config::{AccountConfig, GatewayConfig};
use crate::core::Core;
use crate::rules::transfers::payto_method;
use crate::rules::{Refusal, TypedCommand};

/// The number of attempts when a worker runs until it is idle.
const ATTEMPTS_UNTIL_IDLE: u32 = 16;
/// The pause before a worker that ended abnormally is restarted.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The reasons why a worker stops.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The service is ending.
    #[error("the service is shutting down")]
    Stopped,
    /// The store cannot be read.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// No decision was made on a command.
    #[error(transparent)]
    Submit(SubmitError),
    /// The bank does not answer, or answers with an error.
    #[error("[{section}] {source}")]
    Bank {
        /// The account's configuration section.
        section: String,
        /// The failure.
        source: Box<ClientError>,
    },
    /// The bank's history is out of order. Its ids order the import, so nothing of the answer is imported.
    #[error("[{section}] the bank lists row {after} after row {before}: ids must ascend")]
    Disorder {
        /// The account's configuration section.
        section: String,
        /// The first id.
        before: u64,
        /// The id after it, which is not greater.
        after: u64,
    },
    /// A rule refused a command that it should never refuse.
    #[error("unexpected refusal: {0}")]
    Refused(Box<Refusal>),
}

/// The reason why an item is set aside.
#[derive(Debug, thiserror::Error)]
enum ItemError {
    /// The row of the receiver's account is missing.
    #[error("the account is unknown")]
    UnknownAccount,
    /// The receiver's payto URI names no wire method.
    #[error("{0:?} has no wire method")]
    NoWireMethod(String),
    /// No configured account pays to accounts of this method.
    #[error("no account pays to {0} accounts")]
    NoDebitAccount(String),
    /// An order to pay out profit has an invalid signature.
    #[error("it is not signed by the master key")]
    NotSigned,
    /// An order to pay out more than was earned and is left.
    #[error("the exchange has not earned that much: the rest would be customers' money")]
    NotEarned,
    /// A row of the bank's history that cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// An incoming transfer in another currency.
    #[error("{0} is another currency")]
    OtherCurrency(Amount),
    /// A rule refuses the item's command.
    #[error("{0}")]
    Refused(Box<Refusal>),
}

impl From<Refusal> for ItemError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// The result of a run until idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Items completed: credits booked, units aggregated, transfers executed, reserves closed, purses
    /// refunded, orders executed.
    pub done: u64,
    /// Items set aside: they need a change of the configuration or an operator.
    pub set_aside: u64,
    /// Items left for later: the bank refuses them now.
    pub deferred: u64,
}

/// Options of a worker, besides the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerOptions {
    /// Size of a worker's share of work, at least 1: bank rows, as the distance of their ids (wirewatch), or
    /// transfers (transfer). None: the default.
    pub shard_size: Option<u64>,
    /// Number of workers that are planned. 0: no leases; workers may process the same items, which are then counted
    /// once. None: the default.
    pub workers: Option<u32>,
    /// The account to watch (wirewatch); none: all of them.
    pub account: Option<AccountId>,
    /// Time that the bank may wait for a first row (wirewatch), in milliseconds. None: a minute.
    pub long_poll_ms: Option<u64>,
    /// Whether a failure of the bank ends the watch (wirewatch). Otherwise the bank is asked again.
    pub exits_on_error: bool,
    /// Whether to accept an account that the bank does not know (wirewatch): it has no rows yet.
    pub ignores_not_found: bool,
}

/// When a worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// When all work is done. Gives up on items that fail repeatedly.
    UntilIdle,
    /// When the service ends.
    Service,
}

impl Mode {
    fn gives_up_after(self, attempts: u32) -> bool {
        self == Self::UntilIdle && attempts >= ATTEMPTS_UNTIL_IDLE
    }

    /// The pause after this number of failures of the bank or the store.
    fn pause(self, app: &Core, attempts: u32) -> Duration {
        let (first, max) = match self {
            Self::UntilIdle => (20, 1_000),
            Self::Service => (200, 30_000),
        };
        growing(app, first, max, attempts)
    }
}

/// The pause after so many failures: it doubles from `first_ms` to `max_ms`, and its upper half is random.
fn growing(app: &Core, first_ms: u64, max_ms: u64, attempts: u32) -> Duration {
    let (first_pause, max_pause) = (Duration::from_millis(first_ms), Duration::from_millis(max_ms));
    Backoff { first_pause, max_pause }.pause(attempts, u32::from_le_bytes(app.random()))
}

/// The running workers. They stop by themselves when `Exchange::drain` fires.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    tasks: JoinSet<()>,
}

impl Workers {
    /// Waits until all have stopped.
    pub(crate) async fn join(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "worker ended abnormally");
            }
        }
    }

    /// Restarts a worker that ends abnormally.
    fn spawn<F>(&mut self, name: &'static str, app: &Arc<Core>, run: impl Fn(Arc<Core>) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), WorkerError>> + Send + 'static,
    {
        let app = Arc::clone(app);
        self.tasks.spawn(async move {
            loop {
                let mut task = JoinSet::new();
                task.spawn(run(Arc::clone(&app)));
                match task.join_next().await {
                    Some(Ok(Ok(()) | Err(WorkerError::Stopped))) | None => return,
                    Some(Ok(Err(error))) => tracing::error!(worker = name, %error, "worker starts again"),
                    Some(Err(error)) => {
                        tracing::error!(worker = name, %error, "worker failed and starts again");
                    }
                }
                app.metrics.workers.restarts.inc();
                if app.sleep(RESTART_PAUSE).await {
                    return;
                }
            }
        });
    }
}

/// Starts all workers of an exchange. Must be called within a tokio runtime.
pub(crate) fn start(exchange: &Arc<Exchange>) -> Workers {
    let mut workers = Workers::default();
    let app = &exchange.core;
    if app.config.liabilities.is_some() {
        // It restarts by itself, and needs the keys, which worker programs on a database do not have.
        workers.tasks.spawn(liabilities::run(Arc::clone(exchange)));
    }
    for account in wirewatch::accounts(app) {
        let account = account.clone();
        workers.spawn("wirewatch", app, move |app| {
            let account = account.clone();
            async move { wirewatch::run(&app, &account).await }
        });
    }
    macro_rules! spawn {
        ($($worker:ident),*) => {$(
            workers.spawn(stringify!($worker), app, |app| async move { $worker::run(&app).await });
        )*};
    }
    spawn!(aggregator, transfer, closer, expire, drain);
    workers
}

/// Submits a command and waits for its decision. Retries while the queue or the disk is full.
async fn decide<C: TypedCommand + Clone>(
    app: &Core,
    mode: Mode,
    command: C,
) -> Result<Result<C::Answer, Refusal>, WorkerError> {
    let mut attempts = 0;
    loop {
        match app.submit(command.clone()).await {
            Ok(verdict) => return Ok(verdict),
            Err(SubmitError::Stopped) => return Err(WorkerError::Stopped),
            Err(error) => {
                attempts += 1;
                if mode.gives_up_after(attempts) {
                    return Err(WorkerError::Submit(error));
                }
                tracing::warn!(%error, attempts, "a worker's command was not decided, trying again");
                pause(app, mode.pause(app, attempts)).await?;
            }
        }
    }
}

/// Reads from the store, off the threads that serve requests.
async fn read<T: Send + 'static>(
    app: &Core,
    read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, WorkerError> {
    let store = app.store.clone();
    Ok(run_blocking(move || read(&store)).await.ok_or(WorkerError::Stopped)??)
}

/// Sleeps, unless the service ends.
async fn pause(app: &Core, duration: Duration) -> Result<(), WorkerError> {
    if app.sleep(duration).await { Err(WorkerError::Stopped) } else { Ok(()) }
}

/// Stops a worker between two items when the service ends.
fn check_drain(app: &Core) -> Result<(), WorkerError> {
    if app.drain.is_draining() { Err(WorkerError::Stopped) } else { Ok(()) }
}

/// A configured pause; "forever" is a day.
fn idle_interval(configured: batzen_protocol::Duration) -> Duration {
    const LONGEST: Duration = Duration::from_secs(86_400);
    configured.to_std().unwrap_or(LONGEST).clamp(Duration::from_millis(1), LONGEST)
}

/// The first account that can pay to accounts of this method.
fn debit_account<'a>(app: &'a Core, method: &str) -> Option<Account<'a>> {
    debit_accounts(app).find(|account| account.method.eq_ignore_ascii_case(method))
}

/// An account that pays.
struct Account<'a> {
    id: AccountId,
    config: &'a AccountConfig,
    /// The method of its payto URI as written, which wire fees are signed for.
    method: &'a str,
}

fn debit_accounts(app: &Core) -> impl Iterator<Item = Account<'_>> {
    app.config.accounts.iter().filter(|config| config.enable_debit).filter_map(|config| {
        let method = payto_method(&config.payto_uri)?;
        Some(Account { id: AccountId::of_payto(&config.payto_uri), config, method })
    })
}

/// A client of an account's gateway.
fn gateway(client: &Client, config: &GatewayConfig) -> WireGatewayClient {
    WireGatewayClient::new(client.clone(), &config.url, config.auth.clone())
}

/// An HTTP client for gateways.
fn client(app: &Core, section: &str, connections: usize) -> Result<Client, WorkerError> {
    // Banks are usually near: compressing pages of history would take longer than sending them.
    let options =
        ClientOptions { pool_max_idle: connections, accept_deflate: false, ..ClientOptions::default() };
    let client = match &app.transport {
        Some(transport) => Client::over(Arc::clone(transport), &options),
        None => Client::new(&options),
    };
    client.map_err(|source| WorkerError::Bank { section: section.to_owned(), source: source.into() })
}

/// The items set aside in the last round, so that each is logged only once.
struct Aside<K> {
    known: std::collections::HashSet<K>,
    now: std::collections::HashSet<K>,
}

/// Number of items that are logged in one round; more are only counted.
const ALARMS_MAX: usize = 20;

impl<K: Eq + std::hash::Hash + Clone> Aside<K> {
    fn new() -> Self {
        Self { known: std::collections::HashSet::new(), now: std::collections::HashSet::new() }
    }

    /// Sets an item aside. True if it should be logged.
    fn insert(&mut self, item: K) -> bool {
        let is_new = !self.known.contains(&item);
        self.now.insert(item) && is_new && self.now.len() <= ALARMS_MAX
    }

    /// Ends a round. Returns the number of items set aside.
    fn end_round(&mut self) -> u64 {
        self.known = std::mem::take(&mut self.now);
        self.known.len() as u64
    }
}

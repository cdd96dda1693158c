//! The bank: wire gateway, bank integration and access APIs over accounts in a double-entry ledger.
//!
//! It takes the place of a test bank in front of exchanges, wallets and test harnesses (Taler bank APIs, protocol 0.9), with
//! the same manners by default: every account that a transfer names is created, nobody needs a password, debts have
//! no limit. Unlike one it forgets nothing: every transaction and every request uid is kept for ever and survives a kill,
//! so a transfer that is repeated after any failure is never paid twice, and a history never answers "gone" (`RAM_LIMIT` is
//! accepted and ignored). Options turn it into a stricter bank: see [`BankConfig`].
//!
//! | module | what |
//! |---|---|
//! | [`rules`] | what a command does to the bank's own rows: pure functions |
//! | [`chart`] | which ledger accounts and transfers the bank's accounts and movements are: pure functions |
//! | `executor` | a command's way: intent, ledger, books; waiting for what is under way |
//! | `desk` | rules and ledger in one batch, where the ledger shares the bank's store |
//! | `events` | intents as ledger events, answers as verdicts |
//! | `settler` | brings intents to the ledger and its answers into the books, many at a time |
//! | `api` | HTTP: decode, submit, encode; long polling |
//! | [`books`] | sums over the ledger's accounts, and the check that the bank's rows agree with them |
//! | `opening` | the start: which bank, which ledger, its own accounts, what was left open |
//! | [`offline`] | commands without a server |
//! | [`gateway_client`] | the command line client of any wire gateway, as a function |
//!
//! The store has names, passwords, transactions and withdrawal operations; money is in ledger accounts alone, in this process,
//! behind a socket or in a cluster ([`BankConfig::ledger`]).
//!
//! Invariants: nothing is answered before it is durable, in the ledger and in the store; every movement of money has one
//! ledger transfer under an id that follows from its own, so that it takes place once however often it is repeated; row ids are
//! dense from 1 in the order of commits, so an id that a reader has passed never appears later.

mod api;
pub mod books;
pub mod chart;
mod config;
mod events;
mod executor;
pub mod gateway_client;
mod lane_rules;
mod names;
pub mod offline;
mod opening;
mod password;
pub mod rules;
mod settler;
mod wakes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use batzen_http::{Bound, Drain, Drained, Listen, Server, ServerOptions, Waiters};
use batzen_ledger::{Ledger, LedgerError};
use batzen_ledger_store::{DurableLedger, RecoveryError};
use batzen_protocol::limits;
use batzen_store::{Store, StoreError};
use tokio::task::JoinHandle;

pub use batzen_ledger_net::LedgerAddress;
pub use batzen_storage::StoreConfig;
pub use books::{AccountFlow, AccountTotals, BooksError, Totals};
pub use config::{BankConfig, KNOWN_OPTIONS};
pub use opening::embedded_books;
pub use password::PasswordCost;

use api::{Api, Service, Settings, WAITERS_MAX};
use chart::Chart;
use executor::CommandExecutor;
use lane_rules::{BankLaneRules, JointLedger};
use opening::OpenBooks;
use rules::{BankRules, Refusal};
use settler::{Settler, Settling};
use wakes::Wakes;

/// The largest request body, in bytes, as sent and inflated. All that the interfaces ask for is far below.
pub const MAX_BODY_BYTES: usize = limits::TRANSFER_BODY_BYTES_MAX;
// A transfer to any account fits: what it has beside account and base URL takes less than 512 bytes.
const _: () = assert!(limits::PAYTO_BYTES_MAX + limits::URL_BYTES_MAX + 512 <= MAX_BODY_BYTES);

/// How long the end of the service waits for commands that are being committed.
const LAST_COMMITS: Duration = Duration::from_secs(5);

/// Why a bank cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BankError {
    /// The configuration does not hold together.
    #[error("{0}")]
    Config(String),
    /// The store cannot be opened or read.
    #[error("the bank's store: {0}")]
    Store(#[from] StoreError),
    /// The store holds another bank.
    #[error("{0}")]
    Other(Refusal),
    /// The ledger cannot be opened or reached.
    #[error("the bank's ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The ledger was asked to finish what an earlier run has begun, and did not.
    #[error("the bank's ledger: {0}")]
    Unfinished(String),
    /// The embedded ledger is damaged or in use.
    #[error("the bank's ledger: {0}")]
    Recovery(#[from] RecoveryError),
    /// The address cannot be bound.
    #[error("{0}")]
    Bind(#[from] std::io::Error),
}

/// A bank.
pub struct Bank;

impl Bank {
    /// Opens the store (or makes a new one), binds the port, and serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BankError`].
    pub async fn start(config: BankConfig) -> Result<RunningBank, BankError> {
        config.check().map_err(BankError::Config)?;
        let books = opening::open(&config).await?;
        Self::serve(config, books).await
    }

    /// The same on a store and a ledger that are open already; `store` and `ledger` of the configuration do not matter.
    ///
    /// # Errors
    /// [`BankError`].
    pub async fn start_on(
        config: BankConfig,
        store: Store,
        ledger: Arc<dyn Ledger>,
    ) -> Result<RunningBank, BankError> {
        config.check().map_err(BankError::Config)?;
        Self::serve(config, OpenBooks { store, ledger, own: None, is_joint: false }).await
    }

    /// The same with a ledger whose log is in this very store.
    ///
    /// # Errors
    /// [`BankError`].
    pub async fn start_joint(
        config: BankConfig,
        ledger: Arc<DurableLedger>,
    ) -> Result<RunningBank, BankError> {
        config.check().map_err(BankError::Config)?;
        let (store, own) = (ledger.store().clone(), Some(Arc::clone(&ledger)));
        Self::serve(config, OpenBooks { store, ledger, own, is_joint: true }).await
    }

    async fn serve(config: BankConfig, books: OpenBooks) -> Result<RunningBank, BankError> {
        let OpenBooks { store, ledger, own, is_joint } = books;
        let rules = BankRules { policy: config.policy() };
        let state = opening::books(&config, rules.clone(), store.clone(), ledger.as_ref()).await?;
        let chart = Chart::new(&state, config.currency);
        let server = Server::bind(Listen::tcp(config.listen_host.clone(), config.http_port)).await?;
        let Bound::Tcp(addr) = *server.bound() else { unreachable!("a TCP address was bound") };
        let base_url =
            config.base_url.clone().unwrap_or_else(|| format!("http://{}:{}/", config.hostname, addr.port()));
        let wakes = Arc::new(Wakes::new(WAITERS_MAX));
        let decided = Arc::new(Waiters::new(WAITERS_MAX));
        let booked: settler::Booked = {
            let (wakes, decided) = (Arc::clone(&wakes), Arc::clone(&decided));
            Arc::new(move |intent, finished| {
                wakes.booked(intent, finished);
                decided.wake(&finished.key);
            })
        };
        let lane = BankLaneRules::lane(
            rules,
            &store,
            &config,
            JointLedger::of(own.as_ref(), is_joint, chart, &booked),
        );
        let (settler, settling) = Settler::start(Arc::clone(&ledger), chart, lane.clone(), booked);
        opening::left_open(&settler, &store).await?;
        let options = ServerOptions {
            max_connections: config.max_connections,
            max_body_bytes: MAX_BODY_BYTES,
            close_each: config.close_each_connection,
            trusted_proxies: config.trusted_proxies.clone(),
            // Exchanges have hundreds of transfers executed at once.
            concurrent: true,
            ..ServerOptions::default()
        };
        let settings =
            Settings { base_url: base_url.clone(), password_salt: state.password_salt, chart, config };
        let executor = CommandExecutor { lane, settler, decided };
        let service = Arc::new(Service::new(executor, ledger, store, settings, wakes, server.stats()));
        let drain = Drain::new();
        let api = Arc::new(Api::new(Arc::clone(&service)));
        let serving = tokio::spawn(server.serve(api, options, drain.clone()));
        tracing::info!(%base_url, %addr, store = %service.place(), "the bank serves");
        Ok(RunningBank { base_url, addr, service, drain, serving, settling, own_ledger: own })
    }
}

/// A bank that serves.
pub struct RunningBank {
    /// Where clients find it, with a final slash.
    pub base_url: String,
    /// The address it listens on, with the real port.
    pub addr: SocketAddr,
    service: Arc<Service>,
    drain: Drain,
    serving: JoinHandle<Drained>,
    settling: Settling,
    own_ledger: Option<Arc<DurableLedger>>,
}

impl RunningBank {
    /// The base URL of an account's wire gateway, for `WIRE_GATEWAY_URL`.
    pub fn wire_gateway_url(&self, account: &str) -> String {
        format!("{}taler-wire-gateway/{account}/", self.base_url)
    }

    /// The payto URI of an account, as histories show it.
    pub fn payto(&self, account: &str) -> String {
        self.service.payto(account)
    }

    /// The store, for reading.
    pub fn store(&self) -> &Store {
        self.service.store()
    }

    /// The ledger.
    pub fn ledger(&self) -> &Arc<dyn Ledger> {
        self.service.ledger()
    }

    /// The sums of all accounts, by the ledger.
    ///
    /// # Errors
    /// When store or ledger cannot be read.
    pub async fn totals(&self) -> Result<Totals, BooksError> {
        books::totals(self.store(), self.ledger().as_ref()).await
    }

    /// What went through an account's wire gateway, by the ledger. An account that does not exist has no flow.
    ///
    /// # Errors
    /// When store or ledger cannot be read.
    pub async fn account_flow(&self, account: &str) -> Result<AccountFlow, BooksError> {
        books::account_flow(self.store(), self.ledger().as_ref(), account).await
    }

    /// Recomputes everything, see [`books::check`].
    ///
    /// # Errors
    /// What does not hold.
    pub async fn check(&self) -> Result<Totals, BooksError> {
        books::check(self.store(), self.ledger().as_ref()).await
    }

    /// The token that ends the service when it fires, for a signal handler.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Tells the service to end, without waiting for it.
    pub fn stop(&self) {
        self.drain.trigger();
    }

    /// Ends the service: no new requests, long polls are answered, requests in flight finish, the store is closed. The port
    /// can be bound again at once.
    ///
    /// # Errors
    /// When the store's last checkpoint cannot be written; everything answered is durable regardless.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let Self { service, drain, serving, settling, own_ledger, .. } = self;
        drain.trigger();
        if serving.await.is_err() {
            tracing::error!("the server did not end cleanly");
        }
        // Commands whose clients went away may still be in their batch.
        let deadline = tokio::time::Instant::now() + LAST_COMMITS;
        while Arc::strong_count(&service) > 1 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let store = service.store().clone();
        let lane = Arc::into_inner(service).map(Service::close);
        settling.end(deadline).await;
        let close = move || {
            if let Some(lane) = lane {
                lane.close();
            }
            let ledger = own_ledger.map_or(Ok(()), |ledger| ledger.stop());
            store.close().and(ledger)
        };
        tokio::task::spawn_blocking(close).await.expect("closing the store does not panic")
    }
}

//! The bank: wire gateway, bank integration and access APIs over accounts in a double-entry ledger.
//!
//! It replaces a test bank in front of exchanges, wallets and test harnesses (Taler bank APIs, protocol 0.9),
//! with the same default behaviour: a transfer creates the accounts that it names, nobody needs a password,
//! debts are unlimited. But it never discards data: every transaction and every request uid is kept and
//! survives a kill. So a repeated transfer is never paid twice, and a history never answers "gone"
//! (`RAM_LIMIT` is accepted and ignored). Options make it stricter: see [`BankConfig`].
//!
//! | module | what |
//! |---|---|
//! | [`rules`] | the effect of a command on the bank's own rows: pure functions |
//! | [`chart`] | the ledger accounts and transfers of the bank's accounts and movements: pure functions |
//! | `executor` | executes a command: intent, ledger, books; waits for pending intents |
//! | `lane_rules` | rules and ledger in one batch, if the ledger shares the bank's store |
//! | `events` | intents as ledger events, answers as verdicts |
//! | `settler` | the ledger outbox: intents to a ledger elsewhere, and its answers to the books |
//! | `api` | HTTP: decode, submit, encode; long polling |
//! | [`books`] | sums over the ledger's accounts, and the check that the bank's rows agree with them |
//! | `opening` | the start: the bank's identity, its ledger and own accounts, open intents |
//! | [`offline`] | commands without a server |
//! | [`gateway_client`] | the command line client of any wire gateway, as a function |
//!
//! The store has names, passwords, transactions and withdrawal operations. Money is in ledger accounts alone:
//! in this process, behind a socket or in a cluster ([`BankConfig::ledger`]).
//!
//! Invariants: nothing is answered before it is durable, in the ledger and in the store. Every movement of
//! money has one ledger transfer whose id follows from the movement's id, so that it takes place once however
//! often it is repeated. Row ids are dense from 1 in the order of commits, so no row appears later below an
//! id that a reader has passed.

mod api;
pub mod books;
pub mod chart;
mod config;
pub mod dashboard;
mod events;
mod executor;
pub mod gateway_client;
mod lane_rules;
mod money;
mod names;
pub mod offline;
mod opening;
mod password;
pub mod rules;
mod settler;
mod subject;
mod wakes;

use std::net::SocketAddr;
use std::sync::Arc;

use batzen_http::{Bound, Drain, Drained, Listen, Server, ServerOptions, Waiters};
use batzen_ledger::{Ledger, LedgerError, OutboxTask, RetryingLedger};
use batzen_ledger_service::store::{DurableLedger, RecoveryError};
use batzen_protocol::limits;
use batzen_service::{LAST_COMMITS, OwnPages};
use batzen_store::{Store, StoreError};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

pub use api::endpoints;
pub use batzen_ledger_service::net::LedgerAddress;
pub use batzen_service::storage::StoreConfig;
pub use books::AccountFlow;
pub(crate) use books::{BooksError, Totals};
pub(crate) use config::OptionsError;
pub use config::{BankConfig, KNOWN_OPTIONS};
pub use names::IbanBank;
pub use opening::embedded_books;
pub use password::PasswordCost;

use api::{Service, Settings, WAITERS_MAX, api};
use chart::Chart;
use executor::CommandExecutor;
use lane_rules::{BankLaneRules, JointLedger};
use opening::OpenBooks;
use rules::{BankRules, Refusal};
use settler::BankOutbox;
use wakes::{Booked, Wakes};

/// Largest request body, in bytes, compressed and decompressed. All valid requests are far smaller.
pub(crate) const MAX_BODY_BYTES: usize = limits::TRANSFER_BODY_BYTES_MAX;
// A transfer to any account fits: apart from account and base URL it needs less than 512 bytes.
const _: () = assert!(limits::PAYTO_BYTES_MAX + limits::URL_BYTES_MAX + 512 <= MAX_BODY_BYTES);

/// Why a bank cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BankError {
    /// The configuration is contradictory.
    #[error(transparent)]
    Config(#[from] OptionsError),
    /// The store has the form of an earlier build.
    #[error("an earlier build wrote this store and kept balances in it: start with an empty directory")]
    EarlierStore,
    /// The accounts have another debt limit.
    #[error(
        "the accounts of this bank were opened with a debt limit of {known}, and cannot have {wanted}: it is granted to each account in the ledger"
    )]
    DebtLimit {
        /// The limit with which they were opened.
        known: String,
        /// The limit in the configuration.
        wanted: String,
    },
    /// The store cannot be opened or read.
    #[error("the bank's store: {0}")]
    Store(#[from] StoreError),
    /// The store holds another bank.
    #[error("{0}")]
    Other(Refusal),
    /// The ledger cannot be opened or reached.
    #[error("the bank's ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The ledger did not finish the work of an earlier run.
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
///
/// Its starts return boxed futures: the code of the service is then compiled once, with this crate, and not
/// again in every program that starts a bank.
pub struct Bank;

impl Bank {
    /// Opens the store (or creates it), binds the port, and serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BankError`].
    pub fn start(config: BankConfig) -> BoxFuture<'static, Result<RunningBank, BankError>> {
        Box::pin(async move {
            config.check()?;
            let books = opening::open(&config).await?;
            Self::serve(config, books).await
        })
    }

    /// Starts on an open store and ledger. `store` and `ledger` of the configuration are ignored.
    ///
    /// # Errors
    /// [`BankError`].
    pub fn start_on(
        config: BankConfig,
        store: Store,
        ledger: Arc<dyn Ledger>,
    ) -> BoxFuture<'static, Result<RunningBank, BankError>> {
        Box::pin(async move {
            config.check()?;
            Self::serve(config, OpenBooks { store, ledger, own: None, is_joint: false }).await
        })
    }

    /// Starts with a ledger whose log is in the same store.
    ///
    /// # Errors
    /// [`BankError`].
    pub fn start_joint(
        config: BankConfig,
        ledger: Arc<DurableLedger>,
    ) -> BoxFuture<'static, Result<RunningBank, BankError>> {
        Box::pin(async move {
            config.check()?;
            let (store, own) = (ledger.store().clone(), Some(Arc::clone(&ledger)));
            Self::serve(config, OpenBooks { store, ledger, own, is_joint: true }).await
        })
    }

    async fn serve(config: BankConfig, books: OpenBooks) -> Result<RunningBank, BankError> {
        let OpenBooks { store, ledger, own, is_joint } = books;
        let rules = BankRules { policy: config.policy() };
        let retrying = RetryingLedger::new(Arc::clone(&ledger));
        let state = opening::books(&config, rules.clone(), store.clone(), &retrying).await?;
        let chart = Chart::new(&state, config.currency);
        let server = Server::bind(Listen::tcp(config.listen_host.clone(), config.http_port)).await?;
        let Bound::Tcp(addr) = *server.bound() else { unreachable!("a TCP address was bound") };
        let base_url = config.base_url(addr.port());
        let wakes = Arc::new(Wakes::new(WAITERS_MAX));
        let decided = Arc::new(Waiters::new(WAITERS_MAX));
        let booked: Booked = {
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
        let (settler, settling) = BankOutbox::start(retrying, chart, lane.clone(), booked);
        opening::left_open(&settler, &store).await?;
        let options = ServerOptions {
            max_connections: config.max_connections,
            max_body_bytes: MAX_BODY_BYTES,
            close_each: config.close_each_connection,
            trusted_proxies: config.trusted_proxies.clone(),
            hostnames: config.hostnames.and(&config.hostname).and(&base_url),
            ..ServerOptions::default()
        };
        let metrics = config.metrics.clone();
        let settings = Settings {
            base_url: base_url.clone(),
            port: addr.port(),
            password_salt: state.password_salt,
            chart,
            config,
        };
        let executor = CommandExecutor { lane, settler, decided };
        let service = Arc::new(Service::new(executor, ledger, store, settings, wakes, server.stats()));
        if service.has_dashboard() {
            batzen_service::fill_dashboard(&service);
        }
        let drain = Drain::new();
        let pages = OwnPages::serve(metrics.as_ref(), &service, &options.hostnames, false, &drain).await;
        let pages = pages.map_err(BankError::Bind)?;
        let sums = tokio::spawn(service.keep_sums(drain.clone()));
        let api = Arc::new(api(Arc::clone(&service)));
        // Before the first request, so that a log begins with it.
        tracing::info!(%base_url, %addr, store = %service.place(), "the bank is serving");
        let serving = tokio::spawn(server.serve(api, options, drain.clone()));
        Ok(RunningBank { base_url, addr, service, drain, serving, pages, settling, sums, own_ledger: own })
    }
}

/// A running bank.
pub struct RunningBank {
    /// Its base URL, with a final slash.
    pub base_url: String,
    /// The address it listens on, with the real port.
    pub addr: SocketAddr,
    service: Arc<Service>,
    drain: Drain,
    serving: JoinHandle<Drained>,
    pages: Option<OwnPages>,
    settling: OutboxTask,
    sums: JoinHandle<()>,
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

    /// The URL of the process's own pages, if they have an address.
    pub fn metrics_url(&self) -> Option<&str> {
        self.pages.as_ref().map(OwnPages::url)
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
    /// If store or ledger cannot be read.
    pub async fn totals(&self) -> Result<Totals, BooksError> {
        books::totals(self.store(), self.ledger().as_ref()).await
    }

    /// The flow through an account's wire gateway, from the ledger. An account that does not exist has no
    /// flow.
    ///
    /// # Errors
    /// If store or ledger cannot be read.
    pub async fn account_flow(&self, account: &str) -> Result<AccountFlow, BooksError> {
        books::account_flow(self.store(), self.ledger().as_ref(), account).await
    }

    /// Recomputes everything, see [`books::check`].
    ///
    /// # Errors
    /// The first error.
    pub async fn check(&self) -> Result<Totals, BooksError> {
        books::check(self.store(), self.ledger().as_ref()).await
    }

    /// Ends the service: no new requests, long polls are answered, requests in flight finish, the store is
    /// closed. After that the port is free.
    ///
    /// # Errors
    /// If the store's last checkpoint cannot be written. Everything answered is durable regardless.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let Self { service, drain, serving, pages, settling, sums, own_ledger, .. } = self;
        drain.trigger();
        let store = service.store().clone();
        let serving = [serving].into_iter().chain(pages.map(OwnPages::into_task));
        let lane = batzen_service::end(service, serving).await.map(Service::close);
        // Ended either way: aborted, or done because of the drain.
        sums.abort();
        let _ = sums.await;
        settling.end(tokio::time::Instant::now() + LAST_COMMITS).await;
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

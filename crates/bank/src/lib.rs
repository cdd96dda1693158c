//! The bank: wire gateway, bank integration and access APIs over double-entry accounts that survive everything.
//!
//! It takes the place of a test bank in front of exchanges, wallets and test harnesses (Taler bank APIs, protocol 0.9), with
//! the same manners by default: every account that a transfer names comes into being, nobody needs a password, debts have
//! no limit. Unlike one it forgets nothing: every transaction and every request uid is kept for ever and survives a kill,
//! so a transfer that is repeated after any failure is never paid twice, and a history never answers "gone" (`RAM_LIMIT` is
//! accepted and ignored). Options turn it into a stricter bank: see [`BankConfig`].
//!
//! | module | what |
//! |---|---|
//! | [`rules`] | what a command does to the books: pure functions |
//! | `api` | HTTP: decode, submit, encode; long polling |
//! | [`books`] | sums over the stored books, and their check |
//! | [`gateway_client`] | the command line client of any wire gateway, as a function |
//!
//! Invariants: nothing is answered before it is durable; the sum of all debits equals the sum of all credits at every
//! instant; row ids are dense from 1 in the order of commits, so an id that a reader has passed never appears later.

mod api;
pub mod books;
mod config;
pub mod gateway_client;
mod names;
mod password;
pub mod rules;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use batzen_engine::{Batcher, Lane, LaneOptions};
use batzen_http::{Bound, Drain, Drained, Listen, Server, ServerOptions};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Store, StoreError};
use batzen_tables::bank::ALL;
use tokio::task::JoinHandle;

pub use books::{AccountFlow, AccountTotals, BooksError, Totals};
pub use config::{BankConfig, KNOWN_OPTIONS};

use api::{Api, Service, Settings};
use rules::{BankRules, Command, Outcome, Refusal};

/// The largest request body, in bytes, as sent and inflated. All that the interfaces ask for is far below.
pub const MAX_BODY_BYTES: usize = 4096;

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
        let data_dir = config.data_dir.clone();
        let open = move || match data_dir {
            Some(dir) => EmbeddedStore::open(dir, ALL, Options::default()).map(Store::new),
            None => Ok(Store::new(MemoryBackend::new())),
        };
        let store = tokio::task::spawn_blocking(open).await.expect("opening a store does not panic")?;
        Self::start_on(config, store).await
    }

    /// The same on a store that is open already; `data_dir` of the configuration does not matter.
    ///
    /// # Errors
    /// [`BankError`].
    pub async fn start_on(config: BankConfig, store: Store) -> Result<RunningBank, BankError> {
        config.check().map_err(BankError::Config)?;
        let rules = Arc::new(BankRules { policy: config.policy() });
        let password_salt = open_books(&config, Arc::clone(&rules), store.clone()).await?;
        let server = Server::bind(Listen::tcp(config.listen_host.clone(), config.http_port)).await?;
        let Bound::Tcp(addr) = *server.bound() else { unreachable!("a TCP address was bound") };
        let base_url =
            config.base_url.clone().unwrap_or_else(|| format!("http://{}:{}/", config.hostname, addr.port()));
        let lane = Lane::start(rules, store.clone(), Arc::clone(&config.clock), LaneOptions::default());
        let options = ServerOptions {
            max_connections: config.max_connections,
            max_body_bytes: MAX_BODY_BYTES,
            close_each: config.close_each_connection,
            ..ServerOptions::default()
        };
        let settings = Settings { base_url: base_url.clone(), password_salt, config };
        let service = Arc::new(Service::new(lane, store, settings, server.stats()));
        let drain = Drain::new();
        let api = Arc::new(Api::new(Arc::clone(&service)));
        let serving = tokio::spawn(server.serve(api, options, drain.clone()));
        tracing::info!(%base_url, %addr, data_dir = ?service.data_dir(), "the bank serves");
        Ok(RunningBank { base_url, addr, service, drain, serving })
    }
}

/// Creates the bank in an empty store, or checks that it is the one asked for. Returns the salt of its passwords.
async fn open_books(config: &BankConfig, rules: Arc<BankRules>, store: Store) -> Result<[u8; 16], BankError> {
    let mut password_salt = [0; 16];
    batzen_crypto::fill_random(&mut password_salt);
    let command = Command::Open { currency: config.currency, password_salt };
    let clock = Arc::clone(&config.clock);
    let run = move || Batcher::new(rules, store).run(&[command], clock.as_ref());
    let mut verdicts = tokio::task::spawn_blocking(run).await.expect("the rules do not panic")?;
    match verdicts.pop().expect("one command, one verdict") {
        Ok(Outcome::Opened { password_salt }) => Ok(password_salt),
        Ok(_) => unreachable!("opening opens"),
        Err(refusal) => Err(BankError::Other(refusal)),
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

    /// The sums of all accounts, in a snapshot between two commits.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn totals(&self) -> Result<Totals, StoreError> {
        books::totals(self.store())
    }

    /// What went through an account's wire gateway. An account that does not exist has no flow.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn account_flow(&self, account: &str) -> Result<AccountFlow, StoreError> {
        books::account_flow(self.store(), account)
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
        let Self { service, drain, serving, .. } = self;
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
        let close = move || {
            if let Some(service) = Arc::into_inner(service) {
                service.close();
            }
            store.close()
        };
        tokio::task::spawn_blocking(close).await.expect("closing the store does not panic")
    }
}

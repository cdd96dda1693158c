//! The merchant backend: shops create orders, wallets claim and pay them.
//!
//! | module | content |
//! |---|---|
//! | [`rules`] | the effect of every command on instances and orders; pure |
//! | `core` | configuration, rows, rules and notices, for all endpoints |
//! | `contract` | from an order to the terms of a contract |
//! | `order_form` | the form that an order must have |
//! | `forget` | forgetting members of contracts |
//! | `exchanges` | what is known of exchanges |
//! | `notices` | events that requests and tasks wait for |
//! | `urls` | public URLs, which follow from the request |
//! | `api` | the HTTP interface |
//! | `webui` | the back office: files of a web page |
//! | [`inline`] | a backend without threads, for simulators |
//!
//! Invariants: nothing is answered before it is durable. A contract never changes once a wallet has claimed it. Every
//! coin that an exchange accepted is recorded with the exchange's confirmation before the payment is answered, so a
//! repeated payment sends only the other coins.

mod api;
mod config;
mod contract;
mod exchanges;
mod forget;
pub mod inline;
mod notices;
mod order_form;
pub mod rules;
pub mod signkeys;
mod surroundings;
mod urls;
mod webui;

use std::sync::Arc;

use batzen_engine::{CpuPool, Lane, LaneOptions, SubmitError};
use batzen_http::client::ClientError;
use batzen_http::{Bound, Drain, Drained, Server, ServerOptions};
use batzen_protocol::Currency;
use batzen_service::OwnPages;
use batzen_store::{Store, StoreError};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

pub use api::endpoints;
pub use config::{ConfirmationShare, KNOWN_OPTIONS, ListenConfig, MerchantConfig, TrustedExchange};
pub use surroundings::Surroundings;

use api::Merchant;
use rules::{MerchantRules, Open, Refusal, TypedCommand};

/// The largest body of a request other than a payment, in bytes: an order.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// The largest payment, in bytes: 1,024 coins with RSA signatures of 3,072 bits and proofs of an age.
pub(crate) const PAY_BYTES_MAX: usize = 2 << 20;
/// The largest answer of the receiver of a web hook, in bytes. It is not read.
const HOOK_REPLY_BYTES_MAX: usize = 64 << 10;

/// Why a backend does not start.
#[derive(Debug, thiserror::Error)]
pub enum MerchantError {
    /// The store cannot be opened or read.
    #[error("the merchant's store: {0}")]
    Store(#[from] StoreError),
    /// The store did not accept the first command.
    #[error("the merchant's store: {0}")]
    Lane(#[from] SubmitError),
    /// The store holds another backend.
    #[error("{0}")]
    Other(Refusal),
    /// The client for exchanges cannot be made.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The address cannot be bound.
    #[error("{0}")]
    Bind(std::io::Error),
}

/// A running backend.
pub struct RunningMerchant {
    bound: Bound,
    merchant: Arc<Merchant>,
    drain: Drain,
    serving: JoinHandle<Drained>,
    pages: Option<OwnPages>,
}

impl RunningMerchant {
    /// Opens the store, binds the address, and serves. It answers requests when this returns, whether or not its
    /// exchanges can be reached. The future is boxed, so that its code is compiled once, with this crate.
    ///
    /// # Errors
    /// [`MerchantError`].
    pub fn start(config: MerchantConfig) -> BoxFuture<'static, Result<Self, MerchantError>> {
        Box::pin(Self::serve(config))
    }

    async fn serve(config: MerchantConfig) -> Result<Self, MerchantError> {
        let server = Server::bind(config.place.listen(false)).await.map_err(MerchantError::Bind)?;
        let bound = server.bound().clone();
        let place = config.store.clone();
        let open = move || place.open(&batzen_service::storage::MERCHANT, 1);
        let store = tokio::task::spawn_blocking(open).await.expect("opening the store does not panic")?;
        let rules = MerchantRules::default();
        let instance_changes = rules.instance_changes();
        let lane = Lane::start(Arc::new(rules), store, Arc::clone(&config.clock), LaneOptions::default());
        let state = opened(&lane, config.currency).await?;
        let options = ServerOptions {
            max_body_bytes: PAY_BYTES_MAX,
            trusted_proxies: config.trusted_proxies.clone(),
            hostnames: config.hostnames.clone(),
            ..ServerOptions::default()
        };
        let pool = CpuPool::new(0, api::POOL_JOBS_MAX);
        let (stats, machine) = (server.stats(), Surroundings::machine());
        let merchant = Merchant::new(config, state, lane, instance_changes, stats, pool, &machine)?;
        let merchant = Arc::new(merchant);
        let drain = Drain::new();
        api::start_background(&merchant, &drain);
        let (address, names) = (merchant.core.config.metrics.as_ref(), &options.hostnames);
        let pages = OwnPages::serve(address, &merchant, names, false, &drain).await;
        let pages = pages.map_err(MerchantError::Bind)?;
        let served = server.serve(Arc::new(api::api(Arc::clone(&merchant))), options, drain.clone());
        let ending = Arc::clone(&merchant);
        let serving = tokio::spawn(async move {
            let drained = served.await;
            ending.end_background().await;
            drained
        });
        Ok(Self { bound, merchant, drain, serving, pages })
    }

    /// Where it listens.
    #[must_use]
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The URL of the process's own pages, if they have an address.
    #[must_use]
    pub fn metrics_url(&self) -> Option<&str> {
        self.pages.as_ref().map(OwnPages::url)
    }

    /// The store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.merchant.core.store
    }

    /// Ends the service: no new requests, long polls are answered, requests in flight finish, the store is closed.
    ///
    /// # Errors
    /// If the store's last checkpoint cannot be written. Everything answered is durable regardless.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let Self { merchant, drain, serving, pages, .. } = self;
        drain.trigger();
        let store = merchant.core.store.clone();
        let serving = [serving].into_iter().chain(pages.map(OwnPages::into_task));
        let lane = batzen_service::end(merchant, serving).await.map(|merchant| merchant.core.into_lane());
        batzen_service::close(lane, store).await
    }
}

/// The state of the store, which is created if it is new.
async fn opened(
    lane: &Lane<MerchantRules>,
    currency: Currency,
) -> Result<batzen_tables::merchant::MerchantStateRow, MerchantError> {
    let mut token_salt = [0; 16];
    batzen_crypto::fill_random(&mut token_salt);
    let verdict = lane.submit(Open { currency, token_salt }.into()).await?;
    verdict.map(Open::answer).map_err(MerchantError::Other)
}

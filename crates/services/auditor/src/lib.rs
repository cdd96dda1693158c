//! The auditor's service and programs: merchants show what exchanges have confirmed to them, and the auditor approves
//! denominations.
//! The checks themselves are in `batzen_auditor::audit`.
//!
//! | module | content |
//! |---|---|
//! | [`rules`] | the effect of every command on the auditor's rows; pure |
//! | [`books`] | the rows for programs, whether or not the service runs |
//! | [`checks`] | runs the checks on an exchange's rows |
//! | [`live`] | follows an exchange and keeps the results of all checks up to date |
//! | [`liabilities`] | checks and confirms what the exchange publishes about its debts |
//! | [`offline`] | the offline tool, which approves denominations |
//! | `revocations` | signing keys that the exchange has revoked |
//! | `serving` | follows an exchange on a thread of the service |
//! | `link` | programs ask the running service |
//! | `api` | the HTTP interface |
//!
//! Invariant: a confirmation is answered with 200 only once it is durable, and only if both signatures are valid, the
//! signing key is not revoked, and the exchange is audited.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod api;
pub mod audit;
pub mod books;
pub mod checks;
mod config;
mod confirmation;
pub mod liabilities;
mod link;
pub mod live;
pub mod offline;
mod revocations;
pub mod rules;
mod serving;

use std::sync::Arc;

use batzen_engine::{Lane, LaneOptions, SubmitError};
use batzen_http::{Bound, Drain, Drained, Server, ServerOptions};
use batzen_postgres::PgError;
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_service::OwnPages;
use batzen_store::{Store, StoreError};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

pub use api::endpoints;
pub use config::{AuditorConfig, KNOWN_OPTIONS, KeyError, ListenConfig, is_base_url};
pub use link::{Forms, Wanted, ask_checking, ask_liabilities, ask_note, ask_report};
pub use serving::FollowMetrics;

use api::{Service, api};
use revocations::Revocations;
use rules::{AuditorRules, Open, Refusal};
use serving::Running;

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum AuditorError {
    /// The auditor's key is not known.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store cannot be opened or read.
    #[error("the auditor's store: {0}")]
    Store(StoreError),
    /// The store did not accept the first command.
    #[error("the auditor's store: {0}")]
    Lane(#[from] SubmitError),
    /// The store holds another auditor.
    #[error("{0}")]
    Other(#[from] Refusal),
    /// The address of the exchange's database cannot be read.
    #[error("[exchangedb-postgres] CONFIG: {0}")]
    Exchange(#[from] PgError),
    /// The address cannot be bound.
    #[error("{0}")]
    Bind(std::io::Error),
}

/// A running service.
pub struct RunningAuditor {
    bound: Bound,
    service: Arc<Service>,
    serving: JoinHandle<Drained>,
    pages: Option<OwnPages>,
    /// The thread that follows the exchange.
    following: Option<std::thread::JoinHandle<()>>,
}

impl RunningAuditor {
    /// Opens the store, binds the address, and serves. It answers requests when this returns. The future is boxed, so that
    /// its code is compiled once, with this crate.
    ///
    /// # Errors
    /// [`AuditorError`].
    pub fn start(config: AuditorConfig) -> BoxFuture<'static, Result<Self, AuditorError>> {
        Box::pin(Self::serve(config))
    }

    async fn serve(config: AuditorConfig) -> Result<Self, AuditorError> {
        let auditor_pub = config.auditor_pub()?;
        let server = Server::bind(config.place.listen(false)).await.map_err(AuditorError::Bind)?;
        let bound = server.bound().clone();
        let place = config.service_store();
        let open = move || place.open(&batzen_service::storage::AUDITOR, 1);
        let opened = tokio::task::spawn_blocking(open).await.expect("opening the store does not panic");
        let store = opened.map_err(AuditorError::Store)?;
        let lane =
            Lane::start(Arc::new(AuditorRules), store, Arc::clone(&config.clock), LaneOptions::default());
        lane.submit(Open { currency: config.currency }.into()).await??;
        let options = ServerOptions {
            max_body_bytes: SMALL_BODY_BYTES_MAX,
            trusted_proxies: config.trusted_proxies.clone(),
            hostnames: config.base_url.iter().fold(config.hostnames.clone(), |names, url| names.and(url)),
            ..ServerOptions::default()
        };
        // One process at a time has an embedded store open, and the copy.
        let is_asked = config.follow.is_some() || !config.store.is_database();
        let socket = (is_asked && !config.store.is_memory()).then(|| config.socket());
        let revocations = Revocations::new(config.exchange_database.as_deref(), config.master_pub)?;
        let (drain, metrics) = (Drain::new(), config.metrics.clone());
        let (mut running, mut following) = (None, None);
        if let Some(follow) = config.follow.clone() {
            let (store, master_pub) = (lane.store().clone(), follow.checks.subject.master_pub);
            let confirmations = Box::new(move |after| books::confirmations_after(&store, master_pub, after));
            let clock = Arc::clone(&config.clock);
            let (started, thread) = Running::start(follow, clock, confirmations, drain.clone());
            (running, following) = (Some(started), Some(thread));
        }
        let service = Service::new(config, auditor_pub, lane, revocations, server.stats(), drain.clone());
        let service = Arc::new(service.following(running));
        batzen_service::fill_dashboard(&service);
        let pages =
            OwnPages::serve(metrics.as_ref(), &service, &options.hostnames, false, service.drain()).await;
        let pages = pages.map_err(AuditorError::Bind)?;
        if let Some(socket) = socket
            && let Err(error) = link::serve(&service, &socket)
        {
            tracing::warn!(%error, socket = %socket.display(), "programs cannot ask this service");
        }
        let api = Arc::new(api(Arc::clone(&service)));
        let serving = tokio::spawn(server.serve(api, options, drain));
        Ok(Self { bound, service, serving, pages, following })
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
        self.service.store()
    }

    /// Ends the service: no new requests, requests in flight finish, the store is closed.
    ///
    /// # Errors
    /// If the store's last checkpoint cannot be written. Everything answered is durable regardless.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let Self { service, serving, pages, following, .. } = self;
        service.drain().trigger();
        if let Some(following) = following {
            let ended = tokio::task::spawn_blocking(move || following.join()).await;
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!("the thread that follows the exchange ended abnormally");
            }
        }
        let store = service.store().clone();
        let serving = [serving].into_iter().chain(pages.map(OwnPages::into_task));
        let lane = batzen_service::end(service, serving).await.map(Service::into_lane);
        batzen_service::close(lane, store).await
    }
}

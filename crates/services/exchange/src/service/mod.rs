//! Starting and stopping an exchange.

mod key_keeper;
mod standalone;

use std::sync::Arc;
use std::time::Duration as StdDuration;

use batzen_engine::{Clock, CpuPool, Readers};
use batzen_feed::metrics::ServerMetrics as FeedMetrics;
use batzen_feed::server::FeedServer;
use batzen_http::{Bound, Drained, Listen, Server, ServerOptions};
use batzen_protocol::Timestamp;
use batzen_service::{OwnPages, fill_dashboard};
use batzen_signer::client::{ClientOptions as SignerOptions, SignerClient};
use batzen_signer::keyholders::{KeyHelpers, Keyholders};
use batzen_signer::{Custody, SecurityModules, channel};
use batzen_store::StoreError;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

use crate::app::documents::{BUILT_IN_PRIVACY, BUILT_IN_TERMS, Documents};
use crate::app::{Exchange, POOL_JOBS_MAX, Parts};
use crate::config::{ConfigError, DocumentsConfig, ExchangeConfig};
use crate::core::Core;
use crate::error::StartError;
use crate::keys::{KeyRoundError, KeyState};
use crate::kyc::Providers;

/// When another process takes over the port, an open connection may send one more request within this time;
/// the answer closes the connection. A connection that is unused for this time is closed.
const HANDOVER_IDLE_GRACE: StdDuration = StdDuration::from_secs(2);
/// The time within which requests in flight must be answered.
const HANDOVER_TIMEOUT: StdDuration = StdDuration::from_secs(10);
/// Threads that read short histories from a database. They mostly wait for it.
const READERS_REMOTE: usize = 8;

/// Options of a start, besides the configuration.
pub struct StartOptions {
    /// A socket from the service manager, used instead of the configured address.
    pub listen: Option<Listen>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Whether the workers run in this process from the start. Otherwise call
    /// [`RunningExchange::start_workers`].
    pub workers: bool,
    /// Called with the number of denomination keys created and the number to create.
    pub progress: Arc<dyn Fn(usize, usize) + Send + Sync>,
    /// Limits of the HTTP server.
    pub http: ServerOptions,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self {
            listen: None,
            clock: Arc::new(system_clock),
            workers: true,
            progress: Arc::new(|done, total| tracing::info!(done, total, "denomination keys created")),
            http: ServerOptions::default(),
        }
    }
}

/// The machine's clock.
pub fn system_clock() -> Timestamp {
    Timestamp::from_system_time(std::time::SystemTime::now())
}

/// A running exchange.
pub struct RunningExchange {
    app: Arc<Exchange>,
    server: JoinHandle<Drained>,
    /// Its background tasks.
    followers: Vec<JoinHandle<()>>,
    workers: std::sync::Mutex<Option<crate::workers::Workers>>,
    pages: Option<OwnPages>,
}

impl RunningExchange {
    /// Starts an exchange: opens the store, loads keys, listens. It answers requests when this returns. Keys
    /// are created (and a stand-alone exchange sets itself up) in the background, see
    /// [`RunningExchange::ready`].
    ///
    /// The future is boxed: the code of the service is then compiled once, with this crate, and not again in
    /// every program that starts an exchange.
    pub fn start(
        config: ExchangeConfig,
        options: StartOptions,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::serve(config, options))
    }

    async fn serve(mut config: ExchangeConfig, options: StartOptions) -> Result<Self, StartError> {
        config.validate()?;
        let terms = documents(&config.terms, BUILT_IN_TERMS)?;
        let privacy = documents(&config.privacy, BUILT_IN_PRIVACY)?;
        let place = options.listen.unwrap_or_else(|| listen(&config));
        let server = Server::bind(place).await.map_err(StartError::Listen)?;
        let bound = server.bound().clone();
        if let Some(port) = bound.port() {
            config.base_url = with_port(&config.base_url, port);
        }
        // Reading the journal and key files may take a while, so do not block other tasks of the process.
        let open = move || {
            let core = Core::open(config, options.clock)?;
            let pool = CpuPool::new(core.config.crypto_threads, POOL_JOBS_MAX);
            let custody = Arc::new(custody(&core.config, &pool)?);
            let keys = KeyState::build(&core.store, &custody, &core.config, core.now(), &core.metrics)?;
            let kyc = Providers::new(&core.config.kyc).map_err(StartError::Kyc)?;
            Ok::<_, StartError>((core, pool, custody, keys, kyc))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (core, pool, custody, keys, kyc) = opened.expect("opening the store does not panic")?;
        let drain = core.drain.clone();
        let feed = feed(&core).await?;
        let readers = if core.store.backend().is_remote() { READERS_REMOTE } else { 1 };
        let app = Exchange::new(Parts {
            core,
            pool,
            readers: Readers::start(readers),
            custody,
            keys,
            kyc,
            terms,
            privacy,
            bound,
            http_stats: server.stats(),
            feed_metrics: feed.as_ref().map(|(_, metrics)| Arc::clone(metrics)),
            feed_urls: feed.as_ref().map(|(server, _)| server.urls()).unwrap_or_default(),
        });
        let mut http = options.http;
        http.trusted_proxies = app.core.config.trusted_proxies.clone();
        http.hostnames = app.core.config.hostnames.and(&app.core.config.base_url);
        if let Some(idle) = app.core.config.connection_timeout.to_std() {
            http.idle_timeout = idle;
        }
        if server.is_shared() {
            (http.idle_grace, http.drain_timeout) = (HANDOVER_IDLE_GRACE, HANDOVER_TIMEOUT);
        }
        if app.core.config.dashboard {
            fill_dashboard(&app);
        }
        let (address, names) = (app.core.config.metrics.as_ref(), &http.hostnames);
        let pages = OwnPages::serve(address, &app, names, server.is_shared(), &drain).await;
        let pages = pages.map_err(StartError::Listen)?;
        // The kernel gives a shared port's connections to every listener, so do not listen before the service
        // is ready.
        let server = server.listen().map_err(StartError::Listen)?;
        let api = Arc::new(crate::api::api(Arc::clone(&app)));
        let server = tokio::spawn(server.serve(api, http, drain));
        let keeper = tokio::spawn(key_keeper::run(Arc::clone(&app), options.progress));
        let standing = tokio::spawn(crate::workers::standing::follow(Arc::clone(&app.core)));
        let mut followers = vec![keeper, tokio::spawn(follow_keys(Arc::clone(&app))), standing];
        followers.extend(feed.map(|(server, _)| tokio::spawn(server.serve())));
        if app.core.store.backend().is_remote() && app.core.config.sums_money {
            let app = Arc::clone(&app);
            followers.push(tokio::spawn(async move { app.core.sum_shared_money().await }));
        }
        let running = Self { app, server, followers, workers: std::sync::Mutex::new(None), pages };
        if options.workers {
            running.start_workers();
        }
        Ok(running)
    }

    /// The shared parts.
    pub fn app(&self) -> &Arc<Exchange> {
        &self.app
    }

    /// The public URL, ending in `/`.
    pub fn base_url(&self) -> &str {
        &self.app.core.config.base_url
    }

    /// Where auditors connect, if they may.
    pub fn feed_urls(&self) -> &[String] {
        &self.app.feed_urls
    }

    /// The bound address.
    pub fn bound(&self) -> &Bound {
        &self.app.bound
    }

    /// The URL of the process's own pages, if they have an address.
    pub fn metrics_url(&self) -> Option<&str> {
        self.pages.as_ref().map(OwnPages::url)
    }

    /// Waits until every configured denomination has a key, and a stand-alone exchange has set itself up.
    pub async fn ready(&self) -> Result<(), StartError> {
        Ok(self.app.keeper.ready().await?)
    }

    /// The same, but does not give up: `tell` learns each new reason for which it still waits.
    ///
    /// # Errors
    /// When the exchange ends.
    pub async fn wait_until_ready(&self, mut tell: impl FnMut(&StartError)) -> Result<(), StartError> {
        let mut rounds = self.app.keeper.ready.subscribe();
        let mut told = String::new();
        loop {
            let round = rounds.borrow_and_update().clone();
            match round {
                Some(Ok(())) => return Ok(()),
                Some(Err(KeyRoundError::Stopping)) => return Err(KeyRoundError::Stopping.into()),
                Some(Err(error)) => {
                    let error = StartError::from(error);
                    if told != error.to_string() {
                        tell(&error);
                        told = error.to_string();
                    }
                }
                None => {}
            }
            // The sender lives in `self`.
            if rounds.changed().await.is_err() {
                return Err(KeyRoundError::Stopping.into());
            }
        }
    }

    /// Starts the workers in this process unless they are already running. The exchange's bank account must
    /// exist by then.
    pub fn start_workers(&self) {
        let mut workers = self.workers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if workers.is_none() {
            *workers = Some(crate::workers::start(&self.app));
        }
    }

    /// Shuts down: refuses new requests, answers waiting ones, stops the workers, makes everything accepted
    /// durable and closes the store. Takes about a second at most.
    pub fn shutdown(self) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(self.end())
    }

    async fn end(self) -> Result<(), StoreError> {
        let Self { app, server, followers, workers, pages } = self;
        app.core.drain.trigger();
        let workers = workers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(workers) = workers {
            workers.join().await;
        }
        batzen_service::ended([server].into_iter().chain(pages.map(OwnPages::into_task))).await;
        for follower in followers {
            follower.abort();
            // It has ended in any case: it was aborted, or it finished because of the drain.
            let _ = follower.await;
        }
        app.monitor.idle().await;
        let (lane, store, readers) =
            (app.core.lane.clone(), app.core.store.clone(), Arc::clone(&app.readers));
        // A task that still holds the exchange (none should) must not keep the process from ending.
        drop(app);
        let closed = tokio::task::spawn_blocking(move || {
            readers.close();
            lane.close();
            store.close()
        });
        closed.await.expect("closing the store does not panic")
    }
}

/// Prepares to ship committed changes to auditors, if that is configured.
async fn feed(core: &Core) -> Result<Option<(FeedServer, Arc<FeedMetrics>)>, StartError> {
    let config = core.config.feed.clone();
    let auditors = config.as_ref().map(|config| config.auditors.clone()).unwrap_or_default();
    let store = core.store.clone();
    let release = move || batzen_feed::server::release_others(&store, &auditors);
    tokio::task::spawn_blocking(release).await.expect("ending holds does not panic")?;
    let Some(config) = config else { return Ok(None) };
    let invalid = |reason: String| ConfigError::invalid("exchange-feed", reason);
    let key = channel::load_key(&config.key_file).map_err(|error| invalid(error.to_string()))?;
    let clock = Arc::clone(&core.clock);
    let clock: batzen_feed::Clock = Arc::new(move || clock.now());
    let metrics = Arc::new(FeedMetrics::default());
    let (store, drain) = (core.store.clone(), core.drain.clone());
    let server = FeedServer::bind(&config, key, store, drain, clock, Arc::clone(&metrics)).await;
    Ok(Some((server.map_err(|error| invalid(error.to_string()))?, metrics)))
}

/// The maximum age of a key state after another process has changed the key set without a notice.
const KEY_SET_INTERVAL: StdDuration = StdDuration::from_secs(2);

/// Rebuilds the key state when the key set has changed.
async fn follow_keys(app: Arc<Exchange>) {
    loop {
        if let Err(error) = app.refresh_keys().await {
            tracing::warn!(%error, "whether the key set has changed is unknown");
        }
        tokio::select! {
            biased;
            () = app.core.drain.draining() => return,
            () = app.core.notices.keys.announced() => {}
            () = tokio::time::sleep(KEY_SET_INTERVAL) => {}
        }
    }
}

fn documents(config: &DocumentsConfig, built_in: &str) -> Result<Documents, StartError> {
    match &config.directory {
        None => Ok(Documents::built_in(&config.etag, built_in)),
        Some(directory) => Documents::load(directory, &config.etag, built_in)
            .map_err(|source| StartError::Documents { directory: directory.display().to_string(), source }),
    }
}

/// Where the exchange listens.
pub(crate) fn listen(config: &ExchangeConfig) -> Listen {
    config.listen.listen(config.share_port)
}

/// The URL, with port 0 (any free port) replaced by the real one.
pub(crate) fn with_port(base_url: &str, port: u16) -> String {
    base_url.replacen(":0/", &format!(":{port}/"), 1)
}

/// The custody: keys loaded in this process, or at signers or key helpers. In the latter cases, the directories
/// of keys are never read.
fn custody(config: &ExchangeConfig, pool: &CpuPool) -> Result<Custody, StartError> {
    if let Some(helpers) = &config.key_helpers {
        let ciphers = config.coins.iter().map(|coin| coin.cipher);
        return Ok(Custody::Remote(Keyholders::Helpers(KeyHelpers::start(helpers, ciphers))));
    }
    let Some(signers) = &config.signers else {
        let modules = SecurityModules::open(&config.keys_config())?;
        return Ok(Custody::local(Arc::new(modules), pool));
    };
    let invalid = |reason: String| ConfigError::invalid("exchange", reason);
    let key = channel::load_key(&signers.key_file).map_err(|error| invalid(error.to_string()))?;
    let client = SignerClient::start(signers, &key, SignerOptions::default());
    Ok(Custody::Remote(Keyholders::Signers(client.map_err(|error| invalid(error.to_string()))?)))
}

//! One exchange: its parts, its start and its end.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration as StdDuration;

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Clock, CpuPool, EngineError, Readers};
use batzen_http::{Bound, Drained, Listen, MetricsPage, Server, ServerOptions, Stats};
use batzen_metrics::Page;
use batzen_protocol::Timestamp;
use batzen_signer::client::{ClientOptions as SignerOptions, SignerClient};
use batzen_signer::{Custody, SecurityModules, channel};
use batzen_store::StoreError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::api::{AccountHashes, Api, Documents, KeyQueue};
use crate::config::{CoinConfig, ConfigError, DocumentsConfig, ExchangeConfig, ListenConfig};
use crate::core::Core;
use crate::crypto::Crypto;
use crate::keys::keeper::{self, Keeper};
use crate::keys::{KeyError, KeyState, load_or_create_eddsa};
use crate::rules::{Command, Outcome, Refusal, management, read};

/// When another process takes over the port, clients whose connection is open get so long to send the next request on it; the
/// answer closes it. A connection that was unused for so long is closed.
const HANDOVER_IDLE_GRACE: StdDuration = StdDuration::from_secs(2);
/// ... and requests in flight so long to be answered.
const HANDOVER_TIMEOUT: StdDuration = StdDuration::from_secs(10);
/// Single jobs that may wait for the CPU pool before requests are turned away.
const POOL_JOBS_MAX: usize = 8_192;
/// Threads that read short histories of a database: they mostly wait for it.
const READERS_REMOTE: usize = 8;

/// Why an exchange cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be opened.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// Private keys cannot be loaded or created.
    #[error("keys: {0}")]
    Keys(#[from] KeyError),
    /// The port or socket cannot be bound.
    #[error("{0}")]
    Listen(std::io::Error),
    /// The legal documents cannot be read.
    #[error("{directory}: {source}")]
    Documents {
        /// Where they should be.
        directory: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The set-up by itself failed.
    #[error("set-up: {0}")]
    Setup(String),
}

/// How to start, beyond the configuration.
pub struct StartOptions {
    /// Where to listen instead of where the configuration says: a socket handed over by the service manager.
    pub listen: Option<Listen>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Whether the workers run in this process from the start; else [`RunningExchange::start_workers`].
    pub workers: bool,
    /// Told how many keys of a generation run are done, of how many.
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

/// Everything that the parts of one service share. What all processes of an exchange have is its [`Core`].
pub struct Exchange {
    core: Core,
    /// The threads for cryptography.
    pub pool: CpuPool,
    /// What is gathered there.
    pub crypto: Crypto,
    /// Who reads what may be long, such as histories.
    pub readers: Arc<Readers>,
    /// Hashes of the accounts that were paid to lately.
    pub account_hashes: AccountHashes,
    /// Who signs: this process, or signers.
    pub custody: Arc<Custody>,
    /// Where it listens.
    pub bound: Bound,
    /// Terms of service.
    pub terms: Documents,
    /// Privacy policy.
    pub privacy: Documents,
    pub(crate) keys: watch::Sender<Arc<KeyState>>,
    pub(crate) key_queue: KeyQueue,
    pub(crate) keeper: Keeper,
    /// Held over a change of the key set, from the check against the present one to the new key state.
    pub(crate) management: tokio::sync::Mutex<()>,
    /// Held while a key state is built, so that an older one never replaces a newer one.
    building: tokio::sync::Mutex<()>,
    http_stats: Arc<Stats>,
    pub(crate) metrics_page: MetricsPage,
    /// Requests still to be served before the service ends, and who waits for that.
    requests_left: AtomicU64,
    last_request: Notify,
}

/// Why a change of the key set did not take effect.
#[derive(Debug)]
pub(crate) enum ManageError {
    /// A rule refused it.
    Refused(management::Refusal),
    /// It was not decided.
    Engine(EngineError),
}

impl Deref for Exchange {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Exchange {
    /// The present key state: a snapshot that does not change while it is held.
    pub fn keys(&self) -> Arc<KeyState> {
        Arc::clone(&self.keys.borrow())
    }

    /// Has a change of the key set decided. The caller holds the management lock. When it took effect, it is visible to
    /// every request that comes after the return.
    pub(crate) async fn manage(
        &self,
        change: management::Command,
    ) -> Result<management::Outcome, ManageError> {
        let outcome = match self.lane.submit(Command::Management(change)).await? {
            Ok(Outcome::Management(outcome)) => outcome,
            Ok(other) => panic!("a change of the key set was answered with {other:?}"),
            Err(Refusal::Management(refusal)) => return Err(ManageError::Refused(refusal)),
            Err(other) => panic!("a change of the key set was refused with {other}"),
        };
        if outcome == management::Outcome::Changed {
            self.notices.keys_changed();
        }
        // Also if everything was so already: whoever made the change may not have come so far.
        self.refresh_keys().await.map_err(|error| EngineError::Store(Arc::new(error)))?;
        Ok(outcome)
    }

    /// Builds the key state anew from what is stored and at hand, and puts it in place of the present one.
    pub(crate) async fn rebuild_keys(&self) -> Result<(), StoreError> {
        let _one_build = self.building.lock().await;
        self.build_keys().await
    }

    async fn build_keys(&self) -> Result<(), StoreError> {
        let (store, custody, metrics) =
            (self.store.clone(), Arc::clone(&self.custody), Arc::clone(&self.metrics));
        let (config, denoms, now) = (self.config.clone(), Arc::clone(&self.rules.denoms), self.now());
        let build = move || {
            // The rules must know a denomination before anybody can withdraw it.
            denoms.reload(&store)?;
            KeyState::build(&store, &custody, &config, now, &metrics)
        };
        let keys = tokio::task::spawn_blocking(build).await.expect("building a key state does not panic")?;
        let version_changed = keys.version() != self.keys().version();
        self.keys.send_replace(Arc::new(keys));
        if version_changed {
            // What was revoked must be destroyed here as well, and what came into use may have been made by others.
            self.keeper.poke();
        }
        Ok(())
    }

    /// Whether there is a key for every configured denomination.
    pub fn has_all_keys(&self) -> bool {
        let keys = self.custody.denominations();
        let has_key = |coin: &CoinConfig| keys.iter().any(|key| coin.is_of(key.info()));
        self.config.coins.iter().all(has_key)
    }

    /// Brings the key state up to date if the key set has been changed since it was built: by another process, or by a request
    /// whose client went away before it came so far.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) async fn refresh_keys(&self) -> Result<(), StoreError> {
        let version = self.read(read::key_set_version).await?;
        if version == self.keys().version() {
            return Ok(());
        }
        let _one_build = self.building.lock().await;
        // Of many requests that meet the same, one builds.
        if version == self.keys().version() { Ok(()) } else { self.build_keys().await }
    }

    /// Whether the key set is another than in a key state that has seen so many changes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) async fn has_other_keys(&self, seen: u64) -> Result<bool, StoreError> {
        self.refresh_keys().await?;
        Ok(self.keys().version() != seen)
    }

    /// Counts a request that is answered.
    pub(crate) fn served(&self) {
        if self.requests_left.fetch_sub(1, Relaxed) == 1 {
            self.last_request.notify_one();
        }
    }

    /// Resolves when as many requests are served as the configuration permits, for one caller.
    pub async fn all_served(&self) {
        self.last_request.notified().await;
    }

    /// The task that looks after the keys.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// What it has to tell on the page `/metrics`.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let lane = self.lane.metrics();
        self.metrics.write(page, lane.snapshot().conflicts);
        lane.write(page);
        self.pool.write(page);
        self.custody.write(page);
        self.rules.flow.write(page);
        self.store.write_metrics(page, batzen_tables::exchange::ALL);
        self.http_stats.write(page);
    }

    /// Starts an exchange: opens the store, loads keys, listens. Requests are answered from here on; keys are created
    /// (and a stand-alone exchange sets itself up) in the background, see [`RunningExchange::ready`].
    pub async fn start(
        mut config: ExchangeConfig,
        options: StartOptions,
    ) -> Result<RunningExchange, StartError> {
        config.validate()?;
        let terms = documents(&config.terms, crate::api::BUILT_IN_TERMS)?;
        let privacy = documents(&config.privacy, crate::api::BUILT_IN_PRIVACY)?;
        let place = options.listen.unwrap_or_else(|| listen(&config));
        let server = Server::bind(place).await.map_err(StartError::Listen)?;
        let bound = server.bound().clone();
        if let Some(port) = bound.port() {
            config.base_url = with_port(&config.base_url, port);
        }
        // Reading journal and key files may take a while; other tasks of the process go on meanwhile.
        let open = move || {
            let core = Core::open(config, options.clock)?;
            let pool = CpuPool::new(core.config.crypto_threads, POOL_JOBS_MAX);
            let custody = Arc::new(custody(&core.config, &pool)?);
            let keys = KeyState::build(&core.store, &custody, &core.config, core.now(), &core.metrics)?;
            Ok::<_, StartError>((core, pool, custody, keys))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (core, pool, custody, keys) = opened.expect("opening the store does not panic")?;
        let drain = core.drain.clone();
        // Unless there is a limit, so many never come.
        let requests_left = AtomicU64::new(core.config.max_requests.unwrap_or(u64::MAX));
        let app = Arc::new(Self {
            crypto: Crypto::new(&pool),
            readers: Arc::new(Readers::start(if core.store.backend().is_remote() {
                READERS_REMOTE
            } else {
                1
            })),
            core,
            account_hashes: AccountHashes::default(),
            pool,
            custody,
            bound,
            terms,
            privacy,
            keys: watch::Sender::new(Arc::new(keys)),
            key_queue: KeyQueue::default(),
            keeper: Keeper::default(),
            management: tokio::sync::Mutex::new(()),
            building: tokio::sync::Mutex::new(()),
            http_stats: server.stats(),
            metrics_page: MetricsPage::new("exchange"),
            requests_left,
            last_request: Notify::new(),
        });
        let mut http = options.http;
        http.trusted_proxies = app.config.trusted_proxies.clone();
        if let Some(idle) = app.config.connection_timeout.to_std() {
            http.idle_timeout = idle;
        }
        if server.is_shared() {
            (http.idle_grace, http.drain_timeout) = (HANDOVER_IDLE_GRACE, HANDOVER_TIMEOUT);
        }
        // The kernel gives a shared port's connections to whoever listens: not before they can be served.
        let server = server.listen().map_err(StartError::Listen)?;
        let api = Arc::new(Api::new(Arc::clone(&app)));
        let server = tokio::spawn(server.serve(api, http, drain));
        let keeper = tokio::spawn(keeper::run(Arc::clone(&app), options.progress));
        let mut followers = vec![keeper, tokio::spawn(follow_keys(Arc::clone(&app)))];
        if app.store.backend().is_remote() && app.config.sums_money {
            let app = Arc::clone(&app);
            followers.push(tokio::spawn(async move { app.sum_shared_money().await }));
        }
        let running = RunningExchange { app, server, followers, workers: std::sync::Mutex::new(None) };
        if options.workers {
            running.start_workers();
        }
        Ok(running)
    }
}

/// An exchange that is up.
pub struct RunningExchange {
    app: Arc<Exchange>,
    server: JoinHandle<Drained>,
    /// What runs beside.
    followers: Vec<JoinHandle<()>>,
    workers: std::sync::Mutex<Option<crate::workers::Workers>>,
}

impl RunningExchange {
    /// The shared parts.
    pub fn app(&self) -> &Arc<Exchange> {
        &self.app
    }

    /// The public URL, ending in `/`.
    pub fn base_url(&self) -> &str {
        &self.app.config.base_url
    }

    /// Where it listens.
    pub fn bound(&self) -> &Bound {
        &self.app.bound
    }

    /// Waits until every configured denomination has a key, and a stand-alone exchange has set itself up.
    pub async fn ready(&self) -> Result<(), StartError> {
        self.app.keeper.ready().await.map_err(StartError::Setup)
    }

    /// Starts the workers in this process, unless they run already. The exchange's bank account must exist by then.
    pub fn start_workers(&self) {
        let mut workers = self.workers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if workers.is_none() {
            *workers = Some(crate::workers::start(&self.app));
        }
    }

    /// Ends: no new requests, waiting ones answered, workers stopped, everything accepted durable, store closed. Takes
    /// about a second at most.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let Self { app, server, followers, workers } = self;
        app.drain.trigger();
        let workers = workers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(workers) = workers {
            workers.join().await;
        }
        if let Err(error) = server.await {
            tracing::error!(%error, "HTTP server ended abnormally");
        }
        for follower in followers {
            follower.abort();
            // Ended either way: aborted, or done because of the drain.
            let _ = follower.await;
        }
        app.metrics_page.idle().await;
        let (lane, store, readers) = (app.lane.clone(), app.store.clone(), Arc::clone(&app.readers));
        // A task that still holds the parts (none should) must not keep the process from ending.
        drop(app);
        let closed = tokio::task::spawn_blocking(move || {
            readers.close();
            lane.close();
            store.close()
        });
        closed.await.expect("closing the store does not panic")
    }

    /// Runs until `stop` is ready, then shuts down.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), StoreError> {
        stop.await;
        self.shutdown().await
    }
}

/// How old the memory of a key set may be that was changed elsewhere, if no notice of the change comes.
const KEY_SET_INTERVAL: StdDuration = StdDuration::from_secs(2);

/// Keeps the key state in step with the key set.
async fn follow_keys(app: Arc<Exchange>) {
    loop {
        if let Err(error) = app.refresh_keys().await {
            tracing::warn!(%error, "whether the key set has changed is unknown");
        }
        tokio::select! {
            biased;
            () = app.drain.draining() => return,
            () = app.notices.keys.notified() => {}
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

/// The configured master key; a stand-alone exchange has it (or creates it) itself, and both must agree.
pub(crate) fn master_public_key(config: &ExchangeConfig) -> Result<EddsaPublicKey, StartError> {
    let own = match &config.standalone {
        None => None,
        Some(standalone) => {
            Some(load_or_create_eddsa(&standalone.master_priv_file).map_err(KeyError::from)?.public_key())
        }
    };
    match (config.master_public_key, own) {
        (Some(configured), Some(own)) if configured != own => {
            let reason = "MASTER_PUBLIC_KEY does not belong to the key in MASTER_PRIV_FILE";
            Err(ConfigError::invalid("exchange", reason).into())
        }
        (Some(key), _) | (None, Some(key)) => Ok(key),
        (None, None) => Err(ConfigError::invalid("exchange", "MASTER_PUBLIC_KEY is missing").into()),
    }
}

fn listen(config: &ExchangeConfig) -> Listen {
    match &config.listen {
        ListenConfig::Tcp { bind_to, port } => {
            Listen::Tcp { host: bind_to.clone(), port: *port, share_port: config.share_port }
        }
        ListenConfig::Unix { path, mode } => Listen::Unix { path: path.clone(), mode: *mode },
    }
}

/// The URL with port 0 (any free port) replaced by the real one.
fn with_port(base_url: &str, port: u16) -> String {
    base_url.replacen(":0/", &format!(":{port}/"), 1)
}

/// Who signs: keys that are loaded here, or signers. Where signers hold the keys, not even their directories are looked at.
fn custody(config: &ExchangeConfig, pool: &CpuPool) -> Result<Custody, StartError> {
    let Some(signers) = &config.signers else {
        let modules = SecurityModules::open(&config.keys_config())?;
        return Ok(Custody::here(Arc::new(modules), pool));
    };
    let invalid = |reason: String| ConfigError::invalid("exchange", reason);
    let key = channel::load_key(&signers.key_file).map_err(invalid)?;
    let client = SignerClient::start(signers, &key, SignerOptions::default());
    Ok(Custody::Remote(client.map_err(|error| invalid(error.to_string()))?))
}

/// How long the service sleeps at most between two looks at its keys: clocks can be shifted.
pub(crate) const KEY_REFRESH_INTERVAL_MAX: StdDuration = StdDuration::from_secs(3_600);

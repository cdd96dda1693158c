//! The parts that every process of an exchange has, service or worker program: the store, the rules, and the
//! lane through which money state changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Clock, Entropy, InlineQueue, LaneOptions, Lanes, RuntimeTimers, SubmitError, Timers};
use batzen_http::Drain;
use batzen_http::client::Transport;
use batzen_metrics::Page;
use batzen_protocol::Timestamp;
use batzen_protocol::signatures::SignedMessage;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{DenomKey, DenomSerial, Denominations};

use crate::config::{ConfigError, ExchangeConfig};
use crate::error::StartError;
use crate::keys::{KeyError, load_or_create_eddsa};
use crate::kyc::AttributesKey;
use crate::metrics::Metrics;
use crate::metrics::flow::MoneyFlow;
use crate::notices::Notices;
use crate::rules::{DenomTable, ExchangeRules, Refusal, RulesConfig, TypedCommand, leases};
use crate::storage;

/// Interval at which the sums of money on a database are recomputed.
const SUM_INTERVAL: Duration = Duration::from_secs(600);

/// The surroundings of a process: the machine, or a simulator.
pub struct Surroundings {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The clock by which leases end, which all processes on one store share.
    pub lease_clock: Arc<dyn Clock>,
    /// The timers.
    pub timers: Arc<dyn Timers>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// Carries the requests of workers to banks; none: connections.
    pub transport: Option<Arc<dyn Transport>>,
    /// The key that encrypts the attributes of identified customers; none: the configured file.
    pub attributes_key: Option<AttributesKey>,
}

impl Surroundings {
    /// The machine, with this clock.
    pub(crate) fn machine(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            lease_clock: Arc::new(|| Timestamp::from_system_time(SystemTime::now())),
            timers: Arc::new(RuntimeTimers),
            entropy: Arc::new(batzen_crypto::fill_random),
            transport: None,
            attributes_key: None,
        }
    }
}

/// The parts that all processes of an exchange have in common.
pub struct Core {
    /// The configuration. In a service, the base URL contains the real port.
    pub config: ExchangeConfig,
    /// The master public key.
    pub master_public_key: EddsaPublicKey,
    /// The lane: every change of money state goes through it.
    pub lane: Lanes<ExchangeRules>,
    /// The rules, with the terms of all denominations as they know them.
    pub rules: Arc<ExchangeRules>,
    /// Reads of committed rows.
    pub store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    /// The clock by which leases end, which all processes on one store share.
    pub(crate) lease_clock: Arc<dyn Clock>,
    pub(crate) timers: Arc<dyn Timers>,
    /// Random bytes.
    pub(crate) entropy: Arc<dyn Entropy>,
    /// Carries the requests of workers to banks; none: connections.
    pub(crate) transport: Option<Arc<dyn Transport>>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Fires when the process must end.
    pub drain: Drain,
    /// Notices between processes on one store.
    pub notices: Notices,
}

impl Core {
    /// Opens the store and starts the lane. Blocks: reading a journal may take a while.
    ///
    /// # Errors
    /// An invalid configuration, or a store that cannot be used or belongs to another exchange.
    pub fn open(mut config: ExchangeConfig, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        config.validate()?;
        let master_public_key = master_public_key(&config)?;
        config.master_public_key = Some(master_public_key);
        let lanes = config.lanes_on(std::thread::available_parallelism().map_or(1, usize::from));
        let store = storage::open(&config.store, lanes)?;
        let lanes = match (config.lanes, store.backend().lanes_wanted()) {
            // A lane for each part of the store and one for commands over several.
            (0, Some(parts)) => (parts + 1).min(batzen_engine::LANES_MAX),
            // A round trip that is not known is not long.
            (0, None) if config.store.is_database() => {
                config.lanes_at(store.backend().round_trip().unwrap_or_default())
            }
            _ => lanes,
        };
        let rules = rules(&store, master_public_key, &config)?;
        if !config.store.is_database() {
            sum_money(&rules, &store)?;
        }
        let lane = Lanes::start(Arc::clone(&rules), &store, &clock, LaneOptions::default(), lanes);
        Ok(Self::new(config, master_public_key, store, rules, lane, Surroundings::machine(clock)))
    }

    /// The same over an open store, without threads: commands wait in the queue until its holder answers them.
    ///
    /// # Errors
    /// As [`Core::open`].
    pub(crate) fn inline(
        config: ExchangeConfig,
        store: Store,
        surroundings: Surroundings,
    ) -> Result<(Self, InlineQueue<ExchangeRules>), StartError> {
        config.validate()?;
        let master_public_key = master_public_key(&config)?;
        let rules = rules(&store, master_public_key, &config)?;
        let (lane, queue) = Lanes::inline(Arc::clone(&rules), &store);
        Ok((Self::new(config, master_public_key, store, rules, lane, surroundings), queue))
    }

    fn new(
        config: ExchangeConfig,
        master_public_key: EddsaPublicKey,
        store: Store,
        rules: Arc<ExchangeRules>,
        lane: Lanes<ExchangeRules>,
        surroundings: Surroundings,
    ) -> Self {
        let notices = Notices::new(&store);
        let Surroundings { clock, lease_clock, timers, entropy, transport, .. } = surroundings;
        let (metrics, drain) = (Arc::new(Metrics::default()), Drain::new());
        Self {
            config,
            master_public_key,
            lane,
            rules,
            store,
            clock,
            lease_clock,
            timers,
            entropy,
            transport,
            metrics,
            drain,
            notices,
        }
    }

    /// Sleeps, unless the process ends; true if it ends.
    pub(crate) async fn sleep(&self, duration: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.drain.draining() => true,
            () = self.timers.sleep_until(self.timers.now() + duration) => false,
        }
    }

    /// Random bytes.
    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }

    /// The time in microseconds.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Submits a command and waits for its decision. `Ok(Err(_))` is a refusal by a rule.
    pub async fn submit<C: TypedCommand>(
        &self,
        command: C,
    ) -> Result<Result<C::Answer, Refusal>, SubmitError> {
        let verdict = self.lane.submit(command.into()).await?;
        self.metrics.decisions.count(&verdict);
        Ok(verdict.map(C::answer))
    }

    /// Reads rows outside of any batch. Reads of a database block, so they run on threads that may block.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        batzen_service::read(&self.store, read).await
    }

    /// Recomputes the sums of money of a database from its rows at intervals, until the process ends.
    pub(crate) async fn sum_shared_money(&self) {
        loop {
            let rules = Arc::clone(&self.rules);
            let sum = self.read(move |store| {
                let rows = MoneyFlow::freeze(store)?;
                rules.flow.recompute(&rules.denoms, store, rows.as_ref())
            });
            if let Err(error) = sum.await {
                tracing::warn!(%error, "the metrics of money were not computed");
            }
            if self.drain.sleep(SUM_INTERVAL).await {
                return;
            }
        }
    }

    /// Writes the part of `/metrics` that all processes of an exchange have.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let lane = self.lane.metrics();
        self.metrics.write(page, lane.snapshot().conflicts);
        self.metrics.workers.standings.write(page, self.now(), self.lease_clock.now());
        lane.write(page);
        self.rules.flow.write(page);
        self.store.write_metrics(page, batzen_tables::exchange::ALL);
    }

    /// Makes everything accepted durable and closes the store. Blocks.
    ///
    /// # Errors
    /// When the disk fails; all commits are durable regardless.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { lane, store, .. } = self;
        lane.close();
        store.close()
    }
}

fn rules_config(config: &ExchangeConfig) -> RulesConfig {
    RulesConfig {
        idle_reserve_expiration: config.idle_reserve_expiration,
        legal_reserve_expiration: config.legal_reserve_expiration,
        round_unit: config.currency_round_unit,
        aggregator_shift: config.workers.aggregator_shift,
        exchange_base_url: config.base_url.clone(),
        default_purse_limit: config.default_purse_limit,
        purse_lifetime_max: config.purse_lifetime_max,
        kyc: config.kyc.rules.clone(),
    }
}

/// The rules over a store, which must belong to this exchange.
fn rules(
    store: &Store,
    master_public_key: EddsaPublicKey,
    config: &ExchangeConfig,
) -> Result<Arc<ExchangeRules>, StartError> {
    if !config.store.is_database() {
        // No other process uses this store, so all holders of leases have ended.
        leases::remove_all(store)?;
    }
    check_master(store, master_public_key, config)?;
    let denoms = DenomTable::load(store)?;
    Ok(Arc::new(ExchangeRules::new(Arc::new(denoms), rules_config(config))))
}

/// Refuses a store whose denominations belong to another master key or another currency: every coin would be
/// invalid.
fn check_master(
    store: &Store,
    master_pub: EddsaPublicKey,
    config: &ExchangeConfig,
) -> Result<(), StartError> {
    let Some(found) = store.get::<Denominations>(&DenomKey { serial: DenomSerial(1) })? else {
        return Ok(());
    };
    let message = found.row.validity(master_pub, config.currency);
    if message.verify(&master_pub, &found.row.master_sig) {
        return Ok(());
    }
    let reason = "the store belongs to another MASTER_PUBLIC_KEY or another [taler] CURRENCY";
    Err(ConfigError::invalid("exchange", reason).into())
}

/// Starts the running sums of money from the rows that exist before the first command. A separate thread adds
/// them, since there may be very many.
fn sum_money(rules: &Arc<ExchangeRules>, store: &Store) -> Result<(), StoreError> {
    let rows = rules.flow.follow(store)?;
    let (rules, store) = (Arc::clone(rules), store.clone());
    let sum = move || {
        if let Err(error) = rules.flow.begin(&rules.denoms, &store, rows.as_ref()) {
            tracing::error!(%error, "the metrics of money cannot be computed");
        }
    };
    // The exchange works without the thread, but without these metrics.
    if let Err(error) = std::thread::Builder::new().name("money-sums".into()).spawn(sum) {
        tracing::error!(%error, "the metrics of money cannot be computed");
    }
    Ok(())
}

/// The configured master key. A stand-alone exchange also has (or creates) the private key, and both must
/// match.
fn master_public_key(config: &ExchangeConfig) -> Result<EddsaPublicKey, StartError> {
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

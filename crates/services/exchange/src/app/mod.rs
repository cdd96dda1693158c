//! State that the parts of a service share: [`Exchange`]. Starting and stopping is in [`crate::service`].

pub(crate) mod account_hashes;
pub(crate) mod documents;
pub(crate) mod key_destruction;
pub(crate) mod key_queue;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use batzen_engine::{CpuPool, InlineQueue, Readers, SubmitError, run_blocking};
use batzen_http::{Bound, Stats};
use batzen_metrics::Page;
use batzen_service::{Monitor, StaticPage};
use batzen_signer::{Custody, DenomHandle, SecurityModules, SigningHandle};
use batzen_store::{Store, StoreError};
use tokio::sync::{Notify, watch};

use self::account_hashes::AccountHashes;
use self::documents::Documents;
use self::key_queue::KeyQueue;
use crate::config::{CoinConfig, ExchangeConfig};
use crate::core::{Core, Surroundings};
use crate::crypto::Crypto;
use crate::dashboard::DASHBOARD;
use crate::error::StartError;
use crate::keys::KeyState;
use crate::keys::keeper::Keeper;
use crate::kyc::Providers;
use crate::metrics::OPERATIONS;
use crate::reads::read;
use crate::rules::{ExchangeRules, Management, Refusal, TypedCommand, management};

/// Jobs that may wait for the CPU pool before requests are refused.
pub(crate) const POOL_JOBS_MAX: usize = 8_192;

/// Everything that the parts of one service share. The parts that all processes of an exchange have are in
/// [`Core`].
pub struct Exchange {
    /// The parts that worker programs have as well.
    pub core: Arc<Core>,
    /// The CPU pool for cryptography.
    pub pool: CpuPool,
    /// Its batch collectors.
    pub(crate) crypto: Crypto,
    /// The threads for long reads, such as histories.
    pub readers: Arc<Readers>,
    /// Hashes of accounts that were paid recently.
    pub account_hashes: AccountHashes,
    /// The providers that identify customers.
    pub kyc: Providers,
    /// The holder of the private keys: this process, or others.
    pub custody: Arc<Custody>,
    /// The address that the service listens on.
    pub(crate) bound: Bound,
    /// Terms of service.
    pub(crate) terms: Documents,
    /// Privacy policy.
    pub(crate) privacy: Documents,
    pub(crate) keys: watch::Sender<Arc<KeyState>>,
    pub(crate) key_queue: KeyQueue,
    pub(crate) keeper: Keeper,
    /// Held during a change of the key set, from the check against the current one to the new key state.
    pub(crate) management: tokio::sync::Mutex<()>,
    /// Held while a key state is built, so that an older one never replaces a newer one.
    pub(crate) building: tokio::sync::Mutex<()>,
    /// The progress of auditors, if changes are shipped to them.
    pub(crate) feed_metrics: Option<Arc<batzen_feed::metrics::ServerMetrics>>,
    /// Where auditors connect.
    pub(crate) feed_urls: Vec<String>,
    pub(crate) monitor: Monitor,
    pub(crate) pages: Pages,
    /// The last epoch of liabilities that the index is known to name.
    pub(crate) last_epoch: AtomicU64,
    /// Number of requests until the service ends, and the task that waits for that.
    pub(crate) requests_left: AtomicU64,
    pub(crate) last_request: Notify,
}

/// The pages for browsers, each made when somebody asks for it first.
#[derive(Default)]
pub(crate) struct Pages {
    /// The page at the root.
    pub(crate) welcome: OnceLock<StaticPage>,
    /// The form of a person who must be identified.
    pub(crate) individual: OnceLock<StaticPage>,
    /// The form of a business that must be identified.
    pub(crate) business: OnceLock<StaticPage>,
    /// The page of the officers who decide about identifications.
    pub(crate) officer: OnceLock<StaticPage>,
}

/// The reasons why wallets cannot use the exchange's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysNotUsable {
    /// The master key has not signed them.
    #[error(
        "keys wait for the offline signature: run `batzen exchange offline download sign upload` with the exchange's \
         configuration"
    )]
    Unsigned,
    /// They do not exist yet.
    #[error("keys are being created; the log names failures")]
    NotCreated,
}

/// The reason why a change of the key set did not take effect.
#[derive(Debug)]
pub(crate) enum ManageError {
    /// A rule refused it.
    Refused(management::Refusal),
    /// The command was not decided.
    Submit(SubmitError),
}

/// The parts of an exchange that depend on where it runs.
pub(crate) struct Parts {
    pub(crate) core: Core,
    pub(crate) pool: CpuPool,
    pub(crate) readers: Readers,
    pub(crate) custody: Arc<Custody>,
    pub(crate) keys: KeyState,
    pub(crate) kyc: Providers,
    pub(crate) terms: Documents,
    pub(crate) privacy: Documents,
    pub(crate) bound: Bound,
    pub(crate) http_stats: Arc<Stats>,
    pub(crate) feed_metrics: Option<Arc<batzen_feed::metrics::ServerMetrics>>,
    pub(crate) feed_urls: Vec<String>,
}

impl Exchange {
    /// Puts an exchange together.
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            core,
            pool,
            readers,
            custody,
            keys,
            kyc,
            terms,
            privacy,
            bound,
            http_stats,
            feed_metrics,
            feed_urls,
        } = parts;
        Arc::new(Self {
            crypto: Crypto::new(&pool),
            readers: Arc::new(readers),
            account_hashes: AccountHashes::default(),
            pool,
            kyc,
            custody,
            bound,
            terms,
            privacy,
            keys: watch::Sender::new(Arc::new(keys)),
            key_queue: KeyQueue::default(),
            keeper: Keeper::default(),
            management: tokio::sync::Mutex::new(()),
            building: tokio::sync::Mutex::new(()),
            feed_metrics,
            feed_urls,
            monitor: Monitor::new("exchange", &OPERATIONS, &DASHBOARD, http_stats)
                .in_currency(core.config.currency),
            pages: Pages::default(),
            last_epoch: AtomicU64::default(),
            // Without a limit, this number is never reached.
            requests_left: AtomicU64::new(core.config.max_requests.unwrap_or(u64::MAX)),
            last_request: Notify::new(),
            core: Arc::new(core),
        })
    }

    /// An exchange without threads, runtime and network, over an open store: for simulators and tests. Its API is called
    /// directly ([`crate::api::Api::answer`]), and commands wait in the queue until its holder answers them.
    ///
    /// # Errors
    /// An invalid configuration, or a store that cannot be used or belongs to another exchange.
    pub fn inline(
        config: ExchangeConfig,
        store: Store,
        modules: Arc<SecurityModules>,
        mut surroundings: Surroundings,
    ) -> Result<(Arc<Self>, InlineQueue<ExchangeRules>), StartError> {
        let attributes_key = surroundings.attributes_key.take();
        let (core, queue) = Core::inline(config, store, surroundings)?;
        let pool = CpuPool::inline(POOL_JOBS_MAX);
        let custody = Arc::new(Custody::local(modules, &pool));
        let keys = KeyState::build(&core.store, &custody, &core.config, core.now(), &core.metrics)?;
        let kyc = match attributes_key {
            Some(key) => Providers::with_key(&core.config.kyc, key),
            None => Providers::new(&core.config.kyc),
        };
        let kyc = kyc.map_err(StartError::Kyc)?;
        let exchange = Self::new(Parts {
            terms: Documents::built_in(&core.config.terms.etag, documents::BUILT_IN_TERMS),
            privacy: Documents::built_in(&core.config.privacy.etag, documents::BUILT_IN_PRIVACY),
            core,
            pool,
            readers: Readers::inline(),
            custody,
            keys,
            kyc,
            // Nothing listens.
            bound: Bound::Unix(PathBuf::new()),
            http_stats: Arc::default(),
            feed_metrics: None,
            feed_urls: Vec::new(),
        });
        Ok((exchange, queue))
    }

    /// The current key state, an immutable snapshot.
    pub fn keys(&self) -> Arc<KeyState> {
        Arc::clone(&self.keys.borrow())
    }

    /// The version of the current key state.
    pub(crate) fn keys_version(&self) -> u64 {
        self.keys.borrow().version
    }

    /// Submits a change of the key set. The caller holds the management lock. A change that took effect is
    /// visible to every request that arrives after the return.
    pub(crate) async fn manage(&self, change: Management) -> Result<management::Effect, ManageError> {
        let verdict = self.core.lane.submit(change.into()).await?;
        let effect = match verdict.map(Management::answer) {
            Ok(effect) => effect,
            Err(Refusal::Management(refusal)) => return Err(ManageError::Refused(refusal)),
            Err(other) => panic!("a change of the key set was refused with {other}"),
        };
        if effect == management::Effect::Changed {
            self.core.notices.keys.announce(&[]);
        }
        // Even if nothing changed: the process that made the change may not have rebuilt its key state.
        self.refresh_keys().await.map_err(|error| SubmitError::Store(Arc::new(error)))?;
        Ok(effect)
    }

    /// Builds the key state again from the stored key set and the private keys, and replaces the current one.
    pub(crate) async fn rebuild_keys(&self) -> Result<(), StoreError> {
        let _one_build = self.building.lock().await;
        self.build_keys().await
    }

    async fn build_keys(&self) -> Result<(), StoreError> {
        let (store, custody, metrics) =
            (self.core.store.clone(), Arc::clone(&self.custody), Arc::clone(&self.core.metrics));
        let (config, denoms, now) =
            (self.core.config.clone(), Arc::clone(&self.core.rules.denoms), self.core.now());
        let build = move || {
            // The rules must know a denomination before it can be withdrawn.
            denoms.reload(&store)?;
            KeyState::build(&store, &custody, &config, now, &metrics)
        };
        let keys = run_blocking(build).await.expect("building does not outlive the runtime")?;
        let version_changed = keys.version != self.keys().version;
        self.keys.send_replace(Arc::new(keys));
        if version_changed {
            // Revoked keys must be destroyed here as well, and new keys may come from other processes.
            self.keeper.request_round();
        }
        Ok(())
    }

    /// Returns whether every configured denomination has a key.
    pub(crate) fn every_coin_has_key(&self) -> bool {
        let keys = self.custody.denominations();
        let has_key = |coin: &CoinConfig| keys.iter().any(|key| coin.has_key(key.info()));
        self.core.config.coins.iter().all(has_key)
    }

    /// Returns whether every configured denomination has the keys that its schedule requires now, and so have the signing keys.
    /// Signers have schedules of their own, so theirs are complete if every denomination has a key.
    pub(crate) fn has_all_keys(&self) -> bool {
        let config = &self.core.config;
        if self.custody.modules().is_none() && config.key_helpers.is_none() {
            return self.every_coin_has_key();
        }
        let (keys, signing) = (self.custody.denominations(), self.custody.signing_keys());
        let denominations = keys.iter().map(DenomHandle::info);
        config.keys_config().is_satisfied_by(
            denominations,
            signing.iter().map(SigningHandle::info),
            self.core.now(),
        )
    }

    /// Rebuilds the key state if the key set has changed since the last build: by another process, or by a
    /// request that was cancelled before its rebuild.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) async fn refresh_keys(&self) -> Result<(), StoreError> {
        let version = self.core.read(read::key_set_version).await?;
        if version == self.keys().version {
            return Ok(());
        }
        let _one_build = self.building.lock().await;
        // If many requests find this at the same time, one of them rebuilds.
        if version == self.keys().version { Ok(()) } else { self.build_keys().await }
    }

    /// Returns whether the key set has changed since a key state of version `seen`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) async fn has_newer_key_set(&self, seen: u64) -> Result<bool, StoreError> {
        self.refresh_keys().await?;
        Ok(self.keys().version != seen)
    }

    /// Checks that wallets can withdraw and answers are signed.
    ///
    /// # Errors
    /// The reason why they cannot, and the remedy.
    pub(crate) fn usable_keys(&self, keys: &KeyState) -> Result<(), KeysNotUsable> {
        if keys.keys_answer(None).is_some() && keys.online_key().is_ok() {
            return Ok(());
        }
        Err(if self.waits_for_signature(keys) { KeysNotUsable::Unsigned } else { KeysNotUsable::NotCreated })
    }

    /// Returns whether keys exist that the offline master key has not signed.
    fn waits_for_signature(&self, keys: &KeyState) -> bool {
        let future = keys.future_keys(&self.custody, &self.core.config, self.core.now());
        future.is_some_and(|keys| !keys.future_denoms.is_empty() || !keys.future_signkeys.is_empty())
    }

    /// Checks that wallets can use the exchange's keys now.
    ///
    /// # Errors
    /// The reason why they cannot, and the remedy.
    pub fn check_keys(&self) -> Result<(), KeysNotUsable> {
        self.usable_keys(&self.keys())
    }

    /// Counts a request that is answered.
    pub(crate) fn served(&self) {
        if self.requests_left.fetch_sub(1, Relaxed) == 1 {
            self.last_request.notify_one();
        }
    }

    /// Resolves once the configured number of requests has been served. Only one caller may wait.
    pub async fn all_served(&self) {
        self.last_request.notified().await;
    }

    /// The handle of the key keeper.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Writes this part of the page `/metrics`.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        self.core.write_metrics(page);
        self.pool.write(page);
        self.custody.write(page);
        self.write_expiry(page);
        self.feed_metrics.iter().for_each(|feed| feed.write(page));
    }
}

//! What the parts of a service share: [`Exchange`]. Starting and stopping is in [`crate::service`].

pub mod account_hashes;
pub mod documents;
pub(crate) mod key_destruction;
pub(crate) mod key_queue;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use batzen_engine::{CpuPool, Readers, SubmitError};
use batzen_http::{Bound, MetricsPage, StaticPage, Stats};
use batzen_metrics::Page;
use batzen_signer::Custody;
use batzen_store::StoreError;
use tokio::sync::{Notify, watch};

use self::account_hashes::AccountHashes;
use self::documents::Documents;
use self::key_queue::KeyQueue;
use crate::config::CoinConfig;
use crate::core::Core;
use crate::crypto::Crypto;
use crate::keys::KeyState;
use crate::keys::keeper::Keeper;
use crate::reads::read;
use crate::rules::{Refusal, TypedCommand, management};

/// Everything that the parts of one service share. What all processes of an exchange have is its [`Core`].
pub struct Exchange {
    /// What it has in common with worker programs.
    pub core: Arc<Core>,
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
    pub(crate) building: tokio::sync::Mutex<()>,
    pub(crate) http_stats: Arc<Stats>,
    pub(crate) metrics_page: MetricsPage,
    /// What browsers are shown at the root, once one has asked.
    pub(crate) welcome: OnceLock<StaticPage>,
    /// Requests still to be served before the service ends, and who waits for that.
    pub(crate) requests_left: AtomicU64,
    pub(crate) last_request: Notify,
}

/// Why a change of the key set did not take effect.
#[derive(Debug)]
pub(crate) enum ManageError {
    /// A rule refused it.
    Refused(management::Refusal),
    /// It was not decided.
    Submit(SubmitError),
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
        let verdict = self.core.lane.submit(change.into()).await?;
        let outcome = match verdict.map(management::Command::outcome) {
            Ok(outcome) => outcome,
            Err(Refusal::Management(refusal)) => return Err(ManageError::Refused(refusal)),
            Err(other) => panic!("a change of the key set was refused with {other}"),
        };
        if outcome == management::Outcome::Changed {
            self.core.notices.keys_changed();
        }
        // Also if everything was so already: whoever made the change may not have come so far.
        self.refresh_keys().await.map_err(|error| SubmitError::Store(Arc::new(error)))?;
        Ok(outcome)
    }

    /// Builds the key state again from what is stored and at hand, and puts it in place of the present one.
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
        self.core.config.coins.iter().all(has_key)
    }

    /// Brings the key state up to date if the key set has been changed since it was built: by another process, or by a request
    /// whose client went away before it came so far.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) async fn refresh_keys(&self) -> Result<(), StoreError> {
        let version = self.core.read(read::key_set_version).await?;
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

    /// Fills the dashboard, if there is one.
    pub(crate) fn fill_dashboard(self: &Arc<Self>) {
        if self.core.config.dashboard {
            let app = Arc::downgrade(self);
            self.metrics_page.sample(move |page| {
                let app = app.upgrade();
                app.is_some_and(|app| {
                    app.write_metrics(page);
                    true
                })
            });
        }
    }

    /// What it has to tell on the page `/metrics`.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let lane = self.core.lane.metrics();
        self.core.metrics.write(page, lane.snapshot().conflicts);
        lane.write(page);
        self.pool.write(page);
        self.custody.write(page);
        self.core.rules.flow.write(page);
        self.core.store.write_metrics(page, batzen_tables::exchange::ALL);
        self.http_stats.write(page);
    }
}

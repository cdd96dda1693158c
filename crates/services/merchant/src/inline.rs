//! A backend without threads, for simulators: its API is called with a request, and its commands wait until the simulator
//! decides them as one batch.

use std::sync::Arc;

use batzen_engine::{Batcher, CpuPool, InlineQueue, Lane, LaneOptions, PendingAnswer};
use batzen_http::{Request, Response};
use batzen_service::Api;
use batzen_store::{Store, StoreError};
use batzen_tables::merchant::MerchantStateRow;
use futures_util::future::BoxFuture;

use crate::api::{self, Merchant};
use crate::rules::{Answer, Command, MerchantRules, Open, Refusal, TypedCommand};
use crate::{MerchantConfig, MerchantError, Surroundings};

/// The rules' answer to a command.
pub type Verdict = Result<Answer, Refusal>;

/// A backend without threads.
pub struct InlineMerchant {
    merchant: Arc<Merchant>,
    api: Api<Merchant>,
    queue: InlineQueue<MerchantRules>,
    batcher: Batcher<MerchantRules>,
}

impl InlineMerchant {
    /// Starts over an open store.
    ///
    /// # Errors
    /// [`MerchantError`].
    pub fn start(
        config: MerchantConfig,
        store: Store,
        surroundings: &Surroundings,
    ) -> Result<Self, MerchantError> {
        let rules = Arc::new(MerchantRules::default());
        let instance_changes = rules.instance_changes();
        let (lane, queue) = Lane::inline(Arc::clone(&rules), store.clone(), LaneOptions::default());
        let batcher = Batcher::with_metrics(rules, store, Arc::clone(queue.metrics()));
        let mut token_salt = [0; 16];
        surroundings.entropy.fill(&mut token_salt);
        let open = Open { currency: config.currency, token_salt };
        let verdict = batcher.run(&[open.into()], &*config.clock)?.remove(0);
        let state: MerchantStateRow = verdict.map(Open::answer).map_err(MerchantError::Other)?;
        let pool = CpuPool::inline(api::POOL_JOBS_MAX);
        let stats = Arc::default();
        let merchant = Merchant::new(config, state, lane, instance_changes, stats, pool, surroundings)?;
        let merchant = Arc::new(merchant);
        Ok(Self { api: api::api(Arc::clone(&merchant)), merchant, queue, batcher })
    }

    /// Begins to answer a request.
    #[must_use]
    pub fn call(&self, request: Request) -> BoxFuture<'static, Response> {
        let api = self.api.clone();
        Box::pin(async move { api.answer(request).await })
    }

    /// Begins to give back coins that did not pay their orders, as the service does every few seconds.
    #[must_use]
    pub fn give_back(&self) -> BoxFuture<'static, ()> {
        let merchant = Arc::clone(&self.merchant);
        Box::pin(async move {
            // What fails is found again.
            while api::end_claims(&merchant).await.unwrap_or(false) {}
            while api::ask_due(&merchant).await.unwrap_or(false) {}
        })
    }

    /// The store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.merchant.core.store
    }

    /// Returns whether commands wait for a batch.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.queue.metrics().waiting() > 0
    }

    /// Takes the commands that wait for a batch.
    #[must_use]
    pub fn take(&self) -> Vec<(Command, PendingAnswer<MerchantRules>)> {
        self.queue.take()
    }

    /// Decides commands as one batch.
    ///
    /// # Errors
    /// When the store fails.
    pub fn decide(&self, commands: &[Command]) -> Result<Vec<Verdict>, StoreError> {
        self.batcher.run(commands, &*self.merchant.core.config.clock)
    }
}

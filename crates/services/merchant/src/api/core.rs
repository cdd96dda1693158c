//! The part that every endpoint uses: configuration, rows, rules and notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_crypto::EddsaPrivateKey;
use batzen_engine::{Entropy, Lane, Timers};
use batzen_http::Response;
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp};
use batzen_store::{Store, StoreError};
use batzen_tables::merchant::{
    InstanceAccountKey, InstanceAccountRow, InstanceAccounts, OrderKey, OrderRef, OrderRow, Orders, order_ref,
};

use super::{Checked, FAILURES, Shop, refused};
use crate::config::MerchantConfig;
use crate::notices::Notices;
use crate::rules::{MerchantRules, Refusal, TypedCommand};
use crate::surroundings::Surroundings;

pub(crate) struct Core {
    pub(crate) config: MerchantConfig,
    pub(crate) store: Store,
    pub(crate) notices: Notices,
    pub(crate) timers: Arc<dyn Timers>,
    entropy: Arc<dyn Entropy>,
    lane: Lane<MerchantRules>,
    /// The number of the latest order, transfer, tip or token.
    last_row_id: AtomicU64,
}

impl Core {
    pub(crate) fn new(
        config: MerchantConfig,
        lane: Lane<MerchantRules>,
        surroundings: &Surroundings,
    ) -> Self {
        let store = lane.store().clone();
        let notices = Notices::new(&store);
        let (timers, entropy) = (Arc::clone(&surroundings.timers), Arc::clone(&surroundings.entropy));
        Self { config, store, notices, timers, entropy, lane, last_row_id: AtomicU64::new(0) }
    }

    pub(crate) fn lane(&self) -> &Lane<MerchantRules> {
        &self.lane
    }

    /// Accepts no more commands. Commands under way end; after that the lane can be closed.
    pub(crate) fn into_lane(self) -> Lane<MerchantRules> {
        self.lane
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// Random bytes.
    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }

    /// A new private key.
    pub(crate) fn new_key(&self) -> EddsaPrivateKey {
        EddsaPrivateKey::from_bytes(self.random())
    }

    pub(crate) fn amount(&self, money: Money) -> Amount {
        money.of(self.config.currency)
    }

    /// The quantity of an amount: 400, code 30 if it is in another currency.
    pub(crate) fn money(&self, amount: &Amount, name: &str) -> Checked<Money> {
        let other = |_| Response::error(ErrorCode::GENERIC_CURRENCY_MISMATCH, name);
        amount.money_in(self.config.currency).map_err(other)
    }

    /// Executes a command. A refusal is for the caller to answer.
    pub(crate) async fn execute<C: TypedCommand>(&self, command: C) -> Checked<Result<C::Answer, Refusal>> {
        let verdict = self.lane.submit(command.into()).await.map_err(|error| FAILURES.submit(&error))?;
        Ok(verdict.map(C::answer))
    }

    /// Executes a command. A refusal is answered with its code and `detail`.
    pub(crate) async fn decide<C: TypedCommand>(&self, command: C, detail: &str) -> Checked<C::Answer> {
        self.execute(command).await?.map_err(|refusal| refused(&refusal, detail))
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Checked<T> {
        batzen_service::read(&self.store, read).await.map_err(|error| FAILURES.store(&error))
    }

    /// The accounts of an instance, in the order in which they were added.
    pub(crate) async fn accounts(&self, id: &str) -> Checked<Vec<(InstanceAccountKey, InstanceAccountRow)>> {
        let id = id.to_owned();
        let read = move |store: &Store| store.lookup::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, &id);
        let found = self.read(read).await?;
        let mut accounts: Vec<_> = found.into_iter().map(|found| (found.key, found.row)).collect();
        accounts.sort_by(|(one, a), (other, b)| (a.added, &one.h_wire).cmp(&(b.added, &other.h_wire)));
        Ok(accounts)
    }

    pub(crate) async fn find_order(
        &self,
        shop: &Shop,
        order_id: &str,
    ) -> Checked<Option<(OrderRef, OrderRow)>> {
        let order = order_ref(&shop.id, order_id);
        let found = self.read(move |store| store.get::<Orders>(&OrderKey { order })).await?;
        Ok(found.map(|found| (order, found.row)))
    }

    /// Requires an order: 404, code 2005.
    pub(crate) async fn order(&self, shop: &Shop, order_id: &str) -> Checked<(OrderRef, OrderRow)> {
        let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, order_id);
        self.find_order(shop, order_id).await?.ok_or_else(unknown)
    }

    /// A number for a new row: the time in microseconds, or the next number.
    pub(crate) fn next_row_id(&self) -> u64 {
        let now = self.now().as_micros();
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.last_row_id.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        now.max(last.unwrap_or_default() + 1)
    }
}

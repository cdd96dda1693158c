//! The driver: makes the core's changes durable, sends its requests, and brings back the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Amount, Timestamp};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;

use crate::bank::{self, WithdrawOffer};
use crate::core::coin::Coin;
use crate::core::exchange::{CipherChoice, Exchange, ExchangeUpdate, accept_terms};
use crate::core::http::{HttpRequest, HttpResponse};
use crate::core::payment::{self, DepositAmount, PaymentReceipt, PaymentRequest, PaymentStage};
use crate::core::refund::{self, RefundPermission};
use crate::core::state::OpKind;
use crate::core::url::normalise_base_url;
use crate::core::views::{self, Balance, Transaction};
use crate::core::withdraw::{self, BankLogin, BankOperation, Origin};
use crate::core::{Change, CoreError, Entropy, Next, OpId, OsEntropy, State};
use crate::store::{Store, StoreError};
use crate::transport::{HttpTransport, Transport, TransportError};

/// How long servers may hold back an answer, in milliseconds.
const LONG_POLL_MS: u64 = 30_000;
/// Operations that are worked on at the same time.
const PARALLEL: usize = 8;
/// Longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// What can go wrong with a wallet.
#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    /// The core refused.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The file failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No answer came, several times. What was begun goes on with the next run.
    #[error("no answer from {0}; what was begun goes on with `batzen wallet run`")]
    Transport(#[from] TransportError),
    /// The server is overloaded or broken, and stayed so for several attempts.
    #[error("{url} cannot answer now (HTTP {status}); what was begun goes on with `batzen wallet run`")]
    Unavailable {
        /// Where the request went.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// An operation does not get on now; it stays pending.
    #[error("operation {operation} is pending: {message}")]
    Pending {
        /// Its number.
        operation: OpId,
        /// In plain words.
        message: String,
    },
    /// An operation failed for good.
    #[error("operation {operation} failed: {message}")]
    Failed {
        /// Its number.
        operation: OpId,
        /// In plain words.
        message: String,
    },
}

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// The present.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_system_time(SystemTime::now())
    }
}

/// What a wallet is connected to.
pub struct WalletOptions {
    /// Sends requests.
    pub transport: Arc<dyn Transport>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Draws secrets.
    pub entropy: Box<dyn Entropy>,
    /// How often a request is sent before its operation rests.
    pub attempts: u32,
    /// Pause after the first failed attempt; it doubles with each further one, give or take a half.
    pub first_backoff: Duration,
}

impl WalletOptions {
    /// The network, the system's clock and its random generator.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn system() -> Result<Self, WalletError> {
        Ok(Self {
            transport: Arc::new(HttpTransport::new()?),
            clock: Arc::new(SystemClock),
            entropy: Box::new(OsEntropy),
            attempts: 5,
            first_backoff: Duration::from_millis(200),
        })
    }
}

impl std::fmt::Debug for WalletOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalletOptions").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

/// When [`Wallet::run`] stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunUntil {
    /// Everything is done that can be done without waiting for others.
    Idle,
    /// Nothing is pending, or this much time is over.
    Finished(Option<Duration>),
}

/// An operation that is not finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingOperation {
    /// Its number.
    pub id: OpId,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Base URL of the exchange.
    pub exchange: String,
    /// What it waits for, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunReport {
    /// Operations that finished.
    pub finished: Vec<OpId>,
    /// Operations that did not.
    pub pending: Vec<PendingOperation>,
}

/// A manual withdrawal: the user makes the transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManualWithdrawal {
    /// Number of the operation.
    pub operation: OpId,
    /// Subject of the transfer.
    pub reserve_pub: EddsaPublicKey,
    /// How much.
    pub amount: Amount,
    /// Accounts of the exchange, each with amount and subject: transfer to any one of them.
    pub payto_uris: Vec<String>,
}

struct Core {
    state: State,
    store: Option<Store>,
    entropy: Box<dyn Entropy>,
}

struct Inner {
    core: Mutex<Core>,
    /// Operations that somebody works on.
    running: Mutex<BTreeSet<OpId>>,
    freed: tokio::sync::Notify,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    attempts: u32,
    first_backoff: Duration,
}

/// A wallet. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Wallet {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Wallet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wallet")
    }
}

/// How an attempt to get an operation on ended.
enum Progress {
    Done,
    Waiting,
    Stuck(WalletError),
}

/// Frees an operation for others when its worker ends, however it ends.
struct Claim {
    inner: Arc<Inner>,
    id: OpId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.inner.running).remove(&self.id);
        self.inner.freed.notify_waiters();
    }
}

/// A poisoned lock means that a worker panicked between two steps; the records themselves change only as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wallet {
    /// Opens or creates a wallet file.
    ///
    /// # Errors
    /// If the file cannot be used, e.g. because another process does.
    pub fn open(path: &Path) -> Result<Self, WalletError> {
        Self::open_with(path, WalletOptions::system()?)
    }

    /// Opens or creates a wallet file.
    ///
    /// # Errors
    /// As [`Wallet::open`].
    pub fn open_with(path: &Path, options: WalletOptions) -> Result<Self, WalletError> {
        let store = Store::open(path)?;
        let state = store.load()?;
        Ok(Self::build(state, Some(store), options))
    }

    /// Opens an existing wallet file for looking at it, also while another process works with it.
    ///
    /// # Errors
    /// As [`Wallet::open`]; and everything that would change the wallet fails with [`StoreError::ReadOnly`].
    pub fn open_read_only(path: &Path) -> Result<Self, WalletError> {
        let store = Store::open_read_only(path)?;
        let state = store.load()?;
        Ok(Self::build(state, Some(store), WalletOptions::system()?))
    }

    /// A wallet that forgets everything when it is dropped, its money included.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn in_memory() -> Result<Self, WalletError> {
        Ok(Self::in_memory_with(WalletOptions::system()?))
    }

    /// A wallet that forgets everything when it is dropped.
    #[must_use]
    pub fn in_memory_with(options: WalletOptions) -> Self {
        Self::build(State::default(), None, options)
    }

    fn build(state: State, store: Option<Store>, options: WalletOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                core: Mutex::new(Core { state, store, entropy: options.entropy }),
                running: Mutex::new(BTreeSet::new()),
                freed: tokio::sync::Notify::new(),
                transport: options.transport,
                clock: options.clock,
                attempts: options.attempts.max(1),
                first_backoff: options.first_backoff,
            }),
        }
    }

    /// Looks at the records.
    pub fn with_state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&lock(&self.inner.core).state)
    }

    /// The time by the wallet's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Makes a step: its changes are durable and in force when this returns.
    pub(crate) fn step<R>(
        &self,
        decide: impl FnOnce(&State, Timestamp, &mut dyn Entropy) -> Result<(R, Vec<Change>), CoreError>,
    ) -> Result<R, WalletError> {
        let now = self.now();
        let mut guard = lock(&self.inner.core);
        let core = &mut *guard;
        let (result, changes) = decide(&core.state, now, core.entropy.as_mut())?;
        if !changes.is_empty() {
            if let Some(store) = &mut core.store {
                store.commit(&changes)?;
            }
            for change in changes {
                core.state.apply(change);
            }
        }
        Ok(result)
    }

    /// The balances, by currency.
    ///
    /// # Errors
    /// If records contradict each other.
    pub fn balance(&self) -> Result<Vec<Balance>, WalletError> {
        let now = self.now();
        Ok(self.with_state(|state| views::balances(state, now))?)
    }

    /// The history, newest first; refreshes are left out unless asked for.
    ///
    /// # Errors
    /// If records contradict each other.
    pub fn transactions(&self, with_refreshes: bool) -> Result<Vec<Transaction>, WalletError> {
        Ok(self.with_state(|state| views::transactions(state, with_refreshes))?)
    }

    /// One line of the history.
    ///
    /// # Errors
    /// If there is no such operation.
    pub fn transaction(&self, id: OpId) -> Result<Transaction, WalletError> {
        Ok(self.with_state(|state| views::transaction(state, state.operation(id)?))?)
    }

    /// All coins, with their secrets.
    #[must_use]
    pub fn coins(&self) -> Vec<Coin> {
        self.with_state(|state| state.coins.values().cloned().collect())
    }

    /// The operations that are not finished.
    #[must_use]
    pub fn pending(&self) -> Vec<PendingOperation> {
        self.with_state(|state| {
            state
                .open_operations()
                .map(|operation| PendingOperation {
                    id: operation.id,
                    kind: operation.kind.name(),
                    exchange: operation.exchange.clone(),
                    message: operation.last_error.clone(),
                })
                .collect()
        })
    }

    /// Adds an exchange, or updates it: fetches and verifies everything it publishes.
    ///
    /// # Errors
    /// If it does not answer, or not as an exchange must.
    pub async fn add_exchange(&self, url: &str) -> Result<Exchange, WalletError> {
        let base_url = normalise_base_url(url)?;
        let previous = self.with_state(|state| state.exchanges.get(&base_url).cloned());
        let mut update = ExchangeUpdate::new(base_url.clone(), previous);
        loop {
            let response = self.send(&update.next()).await?;
            let now = self.now();
            if let Some(mut changes) = update.receive(&response, now)? {
                return self.step(|state, now, entropy| {
                    let fetched = changes.iter_mut().find_map(|change| match change {
                        Change::Exchange(exchange) => Some(exchange),
                        _ => None,
                    });
                    let Some(fetched) = fetched else {
                        return Err(CoreError::Inconsistent("an update gave no exchange".to_owned()));
                    };
                    // What other steps learnt while the answers were on their way stays.
                    if let Some(known) = state.exchanges.get(&base_url) {
                        fetched.terms.accepted.clone_from(&known.terms.accepted);
                        for denom in known.denoms.values().filter(|denom| denom.revoked) {
                            if let Some(denom) = fetched.denoms.get_mut(&denom.h_denom_pub) {
                                denom.revoked = true;
                                denom.offered = false;
                            }
                        }
                    }
                    let exchange = fetched.as_ref().clone();
                    let mut updated = state.clone();
                    for change in &changes {
                        updated.apply(change.clone());
                    }
                    changes.extend(crate::core::plan(&updated, now, entropy)?);
                    Ok((exchange, changes))
                });
            }
        }
    }

    /// The exchange, asked again if what is known is older than an hour. What is known is used if it does not answer.
    ///
    /// # Errors
    /// If it is not known and does not answer as it must.
    pub async fn fresh_exchange(&self, url: &str) -> Result<Exchange, WalletError> {
        let base_url = normalise_base_url(url)?;
        match self.with_state(|state| state.exchanges.get(&base_url).cloned()) {
            Some(exchange) if !exchange.is_stale(self.now()) => Ok(exchange),
            Some(exchange) => match self.add_exchange(&base_url).await {
                Err(WalletError::Transport(_) | WalletError::Unavailable { .. }) => Ok(exchange),
                other => other,
            },
            None => self.add_exchange(&base_url).await,
        }
    }

    /// Accepts the current terms of service of a known exchange.
    ///
    /// # Errors
    /// If the exchange is not known.
    pub fn accept_terms(&self, url: &str) -> Result<(), WalletError> {
        let base_url = normalise_base_url(url)?;
        self.step(|state, _, _| Ok(((), accept_terms(state, &base_url)?)))
    }

    /// Begins a withdrawal for which the user makes the transfer.
    ///
    /// # Errors
    /// If the exchange cannot be used or the amount fits no coin.
    pub async fn withdraw_manual(
        &self,
        exchange_url: &str,
        amount: Amount,
        cipher: CipherChoice,
    ) -> Result<ManualWithdrawal, WalletError> {
        let exchange = self.fresh_exchange(exchange_url).await?;
        let payto = exchange.accounts.first().cloned().ok_or_else(|| CoreError::BadInput {
            what: "exchange",
            reason: format!("{} publishes no bank account", exchange.base_url),
        })?;
        let operation = self.step(|state, now, entropy| {
            let origin = Origin::Manual { payto };
            withdraw::start(state, &exchange.base_url, amount, origin, cipher, now, entropy)
        })?;
        self.manual_withdrawal(operation)
    }

    /// What the user needs to make the transfer for a manual withdrawal.
    ///
    /// # Errors
    /// If there is no such withdrawal.
    pub fn manual_withdrawal(&self, operation: OpId) -> Result<ManualWithdrawal, WalletError> {
        Ok(self.with_state(|state| {
            let record = state.operation(operation)?;
            let exchange = state.exchange(&record.exchange)?;
            let OpKind::Withdrawal(withdrawal) = &record.kind else {
                return Err(CoreError::BadInput {
                    what: "operation",
                    reason: format!("{operation} is not a withdrawal"),
                });
            };
            let amount = exchange.amount(withdrawal.amount);
            let with_subject = |payto: &String| {
                let separator = if payto.contains('?') { '&' } else { '?' };
                format!("{payto}{separator}amount={amount}&message={}", withdrawal.reserve_pub)
            };
            Ok(ManualWithdrawal {
                operation,
                reserve_pub: withdrawal.reserve_pub,
                amount,
                payto_uris: exchange.accounts.iter().map(with_subject).collect(),
            })
        })?)
    }

    /// Asks a bank what it offers under a `taler://withdraw` URI. Nothing is recorded.
    ///
    /// # Errors
    /// If the URI is none, or the bank does not answer as it must.
    pub async fn inspect_withdrawal(&self, uri: &str) -> Result<WithdrawOffer, WalletError> {
        let (integration_url, operation_id) = bank::parse_withdraw_uri(uri)?;
        let config = self.send(&bank::config_request(&integration_url)).await?;
        bank::check_config(&integration_url, &config)?;
        let answer = self.send(&bank::operation_request(&integration_url, &operation_id)).await?;
        Ok(bank::read_offer(&integration_url, &operation_id, &answer)?)
    }

    /// Accepts a bank's offer. With a `login` the wallet confirms at the (test) bank by itself.
    ///
    /// # Errors
    /// If the exchange cannot be used or the amount fits no coin.
    pub async fn accept_withdrawal(
        &self,
        offer: &WithdrawOffer,
        exchange_url: Option<&str>,
        cipher: CipherChoice,
        login: Option<BankLogin>,
    ) -> Result<OpId, WalletError> {
        let url = exchange_url.or(offer.suggested_exchange.as_deref()).ok_or_else(|| {
            CoreError::BadInput { what: "exchange", reason: "the bank suggests none; name one".to_owned() }
        })?;
        let exchange = self.fresh_exchange(url).await?;
        let exchange_payto = offer.account_of(&exchange)?;
        let known = self.with_state(|state| {
            state.operations.values().find_map(|operation| match &operation.kind {
                OpKind::Withdrawal(record) => match &record.origin {
                    Origin::Bank(bank)
                        if bank.operation_id == offer.operation_id
                            && bank.integration_url == offer.integration_url =>
                    {
                        Some(operation.id)
                    }
                    _ => None,
                },
                _ => None,
            })
        });
        if let Some(id) = known {
            return Ok(id);
        }
        let origin = Origin::Bank(BankOperation {
            integration_url: offer.integration_url.clone(),
            operation_id: offer.operation_id.clone(),
            exchange_payto,
            confirm_url: offer.confirm_url.clone(),
            confirm: login,
        });
        self.step(|state, now, entropy| {
            withdraw::start(state, &exchange.base_url, offer.amount, origin, cipher, now, entropy)
        })
    }

    /// Opens an account at a test bank if needed and begins a withdrawal there. Nothing is recorded here yet.
    ///
    /// # Errors
    /// If the bank refuses.
    pub async fn begin_at_bank(
        &self,
        login: &BankLogin,
        amount: Amount,
    ) -> Result<WithdrawOffer, WalletError> {
        let answer = self.send(&bank::register_request(login)).await?;
        bank::check_registered(login, &answer)?;
        let answer = self.send(&bank::create_request(login, amount)).await?;
        self.inspect_withdrawal(&bank::read_created(&answer)?).await
    }

    /// Begins a withdrawal at a test bank whose account the wallet may use: opens the account if needed, creates the
    /// withdrawal, and confirms it once it is recorded here.
    ///
    /// # Errors
    /// If bank or exchange refuse.
    pub async fn withdraw_from_bank(
        &self,
        bank_url: &str,
        user: &str,
        password: &str,
        amount: Amount,
        exchange_url: Option<&str>,
        cipher: CipherChoice,
    ) -> Result<OpId, WalletError> {
        let login = BankLogin {
            access_url: bank::access_url(bank_url)?,
            user: user.to_owned(),
            password: password.to_owned(),
        };
        let offer = self.begin_at_bank(&login, amount).await?;
        self.accept_withdrawal(&offer, exchange_url, cipher, Some(login)).await
    }

    /// Pays a merchant and waits for the exchange's confirmation. The change is refreshed by [`Wallet::run_pending`].
    ///
    /// # Errors
    /// [`WalletError::Failed`] if the exchange refused; [`WalletError::Pending`] and its relatives if it did not
    /// answer: then the payment goes on with the next run, and must not be made again.
    pub async fn pay(&self, request: &PaymentRequest) -> Result<PaymentReceipt, WalletError> {
        let id = self.step(|state, now, entropy| payment::start(state, request, now, entropy))?;
        self.finish_payment(id).await
    }

    /// Pays coins out into a bank account.
    ///
    /// # Errors
    /// As [`Wallet::pay`].
    pub async fn deposit(
        &self,
        exchange_url: &str,
        amount: DepositAmount,
        payto: &str,
    ) -> Result<PaymentReceipt, WalletError> {
        let base_url = normalise_base_url(exchange_url)?;
        let id = self.step(|state, now, entropy| {
            payment::start_deposit(state, &base_url, amount, payto, now, entropy)
        })?;
        self.finish_payment(id).await
    }

    async fn finish_payment(&self, id: OpId) -> Result<PaymentReceipt, WalletError> {
        self.finish(id).await?;
        let failure = self.with_state(|state| match state.operation(id).map(|operation| &operation.kind) {
            Ok(OpKind::Payment(payment)) if payment.stage == PaymentStage::Failed => payment.reason.clone(),
            _ => None,
        });
        match failure {
            Some(message) => Err(WalletError::Failed { operation: id, message }),
            None => Ok(self.with_state(|state| payment::receipt(state, id))?),
        }
    }

    /// The receipt of an earlier payment.
    ///
    /// # Errors
    /// If there is no such payment, or it is not confirmed.
    pub fn receipt(&self, id: OpId) -> Result<PaymentReceipt, WalletError> {
        Ok(self.with_state(|state| payment::receipt(state, id))?)
    }

    /// Takes back what a merchant gives back for contract `h_contract_terms`, and refreshes the coins. `None` if all
    /// permissions were known already.
    ///
    /// # Errors
    /// If the permissions do not fit to a payment of this wallet, or as [`Wallet::pay`].
    pub async fn refund(
        &self,
        h_contract_terms: &HashCode,
        permissions: &[RefundPermission],
    ) -> Result<Option<OpId>, WalletError> {
        let started = self.step(|state, now, _| {
            Ok(match refund::start(state, h_contract_terms, permissions, now)? {
                Some((id, changes)) => (Some(id), changes),
                None => (None, Vec::new()),
            })
        })?;
        if let Some(id) = started {
            self.finish(id).await?;
        }
        Ok(started)
    }

    /// Gives up a withdrawal for which no money was sent yet. Money that comes after all stays in the reserve and
    /// returns to its sender when the reserve closes.
    ///
    /// # Errors
    /// If it is no such withdrawal.
    pub fn cancel(&self, id: OpId) -> Result<(), WalletError> {
        self.step(|state, now, _| Ok(((), withdraw::cancel(state, id, now)?)))
    }

    /// Drives one operation until it is finished.
    ///
    /// # Errors
    /// [`WalletError::Pending`] if it waits for somebody else, or why it does not get on.
    pub async fn finish(&self, id: OpId) -> Result<(), WalletError> {
        match self.drive(id, 0).await {
            Progress::Done => Ok(()),
            Progress::Waiting => {
                let message = self.with_state(|state| {
                    state.operation(id).ok().and_then(|operation| operation.last_error.clone())
                });
                Err(WalletError::Pending {
                    operation: id,
                    message: message.unwrap_or_else(|| "not finished".to_owned()),
                })
            }
            Progress::Stuck(error) => Err(error),
        }
    }

    /// Drives one operation until it is finished, waiting for others up to `timeout`.
    ///
    /// # Errors
    /// As [`Wallet::finish`], when the time is over.
    pub async fn finish_within(&self, id: OpId, timeout: Duration) -> Result<(), WalletError> {
        let deadline = Instant::now() + timeout;
        let mut backoff = self.inner.first_backoff;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let poll_ms = LONG_POLL_MS.min(u64::try_from(left.as_millis()).unwrap_or(LONG_POLL_MS));
            let error = match self.drive(id, poll_ms).await {
                Progress::Done => return Ok(()),
                Progress::Waiting if left.is_zero() => return self.finish(id).await,
                Progress::Waiting => None,
                Progress::Stuck(error) => Some(error),
            };
            match error {
                Some(error) if left.is_zero() || !may_pass(&error) => return Err(error),
                _ => {}
            }
            tokio::time::sleep(backoff.min(left)).await;
            backoff = (backoff * 2).min(Duration::from_secs(2));
        }
    }

    /// Does everything that can be done without waiting for others.
    ///
    /// # Errors
    /// If the wallet itself fails; operations that do not get on are reported instead.
    pub async fn run_pending(&self) -> Result<RunReport, WalletError> {
        self.run(RunUntil::Idle).await
    }

    /// Works on all operations.
    ///
    /// # Errors
    /// If the wallet itself fails (its file above all); operations that do not get on are reported instead.
    pub async fn run(&self, until: RunUntil) -> Result<RunReport, WalletError> {
        let deadline = match until {
            RunUntil::Finished(Some(timeout)) => Some(Instant::now() + timeout),
            _ => None,
        };
        let idle_mode = until == RunUntil::Idle;
        let mut report = RunReport::default();
        // When to look at an operation again, and after how long a pause the time after.
        let mut resting: BTreeMap<OpId, (Instant, Duration)> = BTreeMap::new();
        // Not spawned, so that dropping this future stops everything at once.
        let mut tasks = FuturesUnordered::new();
        let mut active: BTreeSet<OpId> = BTreeSet::new();
        loop {
            self.step(|state, now, entropy| Ok(((), crate::core::plan(state, now, entropy)?)))?;
            let open: Vec<OpId> =
                self.with_state(|state| state.open_operations().map(|operation| operation.id).collect());
            let now = Instant::now();
            let out_of_time = deadline.is_some_and(|deadline| deadline <= now);
            for id in open {
                let due = match resting.get(&id) {
                    None => true,
                    Some((at, _)) => !idle_mode && *at <= now,
                };
                if due && !out_of_time && active.len() < PARALLEL && active.insert(id) {
                    let left = deadline.map_or(LONG_POLL_MS, |deadline| {
                        u64::try_from(deadline.saturating_duration_since(now).as_millis())
                            .unwrap_or(LONG_POLL_MS)
                    });
                    let poll_ms = if idle_mode { 0 } else { LONG_POLL_MS.min(left) };
                    tasks.push(async move { (id, self.drive(id, poll_ms).await) });
                }
            }
            if tasks.is_empty() {
                let next = resting.values().map(|(at, _)| *at).min();
                match next {
                    Some(at) if !idle_mode && !out_of_time => {
                        let at = deadline.map_or(at, |deadline| at.min(deadline));
                        tokio::time::sleep_until(at.into()).await;
                        continue;
                    }
                    _ => break,
                }
            }
            let Some((id, progress)) = tasks.next().await else { continue };
            active.remove(&id);
            match progress {
                Progress::Done => {
                    resting.remove(&id);
                    report.finished.push(id);
                }
                Progress::Stuck(error @ WalletError::Store(_)) => return Err(error),
                Progress::Waiting => {
                    resting.insert(id, (Instant::now() + Duration::from_secs(1), Duration::from_secs(1)));
                }
                Progress::Stuck(error) => {
                    tracing::debug!(operation = id, %error, "does not get on");
                    let pause = resting
                        .get(&id)
                        .map_or(Duration::from_secs(1), |(_, pause)| (*pause * 2).min(MAX_BACKOFF));
                    resting.insert(id, (Instant::now() + pause, pause));
                }
            }
        }
        report.pending = self.pending();
        Ok(report)
    }

    /// Gets one operation on as far as it goes.
    async fn drive(&self, id: OpId, poll_ms: u64) -> Progress {
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            // From here on, so that no notification is missed between looking and waiting.
            freed.as_mut().enable();
            if lock(&self.inner.running).insert(id) {
                break;
            }
            freed.await;
        }
        let _claim = Claim { inner: Arc::clone(&self.inner), id };
        let mut key_refreshed = false;
        loop {
            match self.advance(id, poll_ms).await {
                Ok(Some(progress)) => return progress,
                Ok(None) => {}
                Err(WalletError::Core(CoreError::UnknownSigningKey { base_url, .. })) if !key_refreshed => {
                    key_refreshed = true;
                    if let Err(error) = self.add_exchange(&base_url).await {
                        return Progress::Stuck(error);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    let noted = self.step(|state, _, _| Ok(((), crate::core::note_error(state, id, &text)?)));
                    return Progress::Stuck(noted.err().unwrap_or(error));
                }
            }
        }
    }

    /// One request and its answer. `None` if there is more to do at once.
    async fn advance(&self, id: OpId, poll_ms: u64) -> Result<Option<Progress>, WalletError> {
        let next = self.with_state(|state| crate::core::next(state, id, poll_ms))?;
        let request = match next {
            Next::Done => return Ok(Some(Progress::Done)),
            Next::Request(request) => request,
        };
        let response = self.send(&request).await?;
        self.step(|state, now, entropy| {
            let outcome = crate::core::receive(state, id, &response, now, entropy)?;
            Ok((outcome.waiting.map(|_| Progress::Waiting), outcome.changes))
        })
    }

    /// Sends a request until an answer comes that says something, a bounded number of times. The request is the same
    /// each time, so it does not matter which of them arrived.
    async fn send(&self, request: &HttpRequest) -> Result<HttpResponse, WalletError> {
        let mut backoff = self.inner.first_backoff;
        let mut attempt = 1;
        loop {
            let (error, retry_after) = match self.inner.transport.send(request).await {
                Ok(response) if !response.is_transient() => return Ok(response),
                Ok(response) => {
                    tracing::debug!(?request, status = response.status, attempt, "try again later");
                    let error =
                        WalletError::Unavailable { url: request.url.clone(), status: response.status };
                    (error, response.retry_after_s.map(Duration::from_secs))
                }
                Err(error) => {
                    tracing::debug!(?request, %error, attempt, "no answer");
                    (error.into(), None)
                }
            };
            if attempt >= self.inner.attempts {
                return Err(error);
            }
            attempt += 1;
            // Between half and one and a half, so that many wallets do not come back at the same moment.
            let jitter = 512 + lock(&self.inner.core).entropy.below(1024) as u32;
            let pause = (backoff * jitter / 1024).max(retry_after.unwrap_or_default()).min(MAX_BACKOFF);
            tokio::time::sleep(pause).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// All records, for a backup.
    #[must_use]
    pub fn export(&self) -> Vec<Change> {
        self.with_state(State::to_changes)
    }

    /// Takes over the records of a backup into an empty wallet.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if the wallet is not empty: two wallets cannot be made one.
    pub fn import(&self, changes: Vec<Change>) -> Result<(), WalletError> {
        self.step(|state, _, _| {
            if *state == State::default() {
                Ok(((), changes))
            } else {
                Err(CoreError::BadInput {
                    what: "wallet",
                    reason: "a backup can only be restored into a new wallet; choose another --wallet file"
                        .to_owned(),
                })
            }
        })
    }
}

/// Whether waiting may help against an error.
fn may_pass(error: &WalletError) -> bool {
    matches!(error, WalletError::Transport(_) | WalletError::Unavailable { .. } | WalletError::Pending { .. })
}

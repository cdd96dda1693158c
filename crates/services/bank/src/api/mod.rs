//! The HTTP interface of the bank: routes, and code that all endpoints share.

mod access;
mod gateway;
mod integration;
mod logins;
mod web;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use batzen_engine::{Lane, SubmitError};
use batzen_http::{Drain, ErrorCode, Head, Request, Response, Stats, Style, header};
use batzen_ledger::Ledger;
use batzen_metrics::Page;
use batzen_protocol::api::bank::{self as api, BANK_PROTOCOL_VERSION};
use batzen_protocol::api::{field_error, parse_body};
use batzen_protocol::{Amount, Money};
use batzen_service::{Api, App, Checked, Failures, Monitor, Reach, Readiness, StaticPage};
use batzen_store::{Store, StoreError};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankWithdrawals, WithdrawalKey, WithdrawalRow,
};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;

use crate::books::AccountTotals;
use crate::chart::Chart;
use crate::config::BankConfig;
use crate::dashboard::DASHBOARD;
use crate::executor::{CommandExecutor, ExecuteError};
use crate::lane_rules::BankLaneRules;
use crate::money::MoneySums;
use crate::names::{self, Addresses};
use crate::rules::{Command, Refusal, TypedCommand};
use crate::settler::{Unsettled, answered};
use crate::wakes::Wakes;
use gateway::KnownExchanges;
use logins::Logins;
use web::Sessions;

/// Most concurrent long polls. Further ones are answered at once.
pub(crate) const WAITERS_MAX: usize = 65_536;

/// Largest body of requests with little content, in bytes.
const SMALL_BODY_BYTES: usize = 1024;

/// Longest wait of one long poll. The client may then ask again.
const LONG_POLL_MAX: Duration = Duration::from_secs(600);

/// Time that a client waits for a balance.
const READ_MAX: Duration = Duration::from_secs(5);

/// The bank's route table.
type Table = batzen_service::Table<Service>;

/// Answers to failures of the bank itself.
const FAILURES: Failures = Failures {
    retry: ErrorCode::BANK_SOFT_EXCEPTION,
    full: None,
    corrupt: ErrorCode::BANK_UNMANAGED_EXCEPTION,
    failed: ErrorCode::BANK_UNMANAGED_EXCEPTION,
    ..Failures::GENERIC
};

/// Values of the label `operation`.
const OPERATIONS: [&str; 7] =
    ["transfer", "add-incoming", "history", "withdrawal", "account", "config", "other"];

fn table(with_dashboard: bool) -> Table {
    let mut table = Table::new(Style::ByPath, &OPERATIONS).monitored("other");
    if with_dashboard {
        table = table.with_dashboard("other");
    }
    // Its routes match many paths, so they come last.
    let table = table.reaching(Reach::Everyone, integration::routes);
    gateway::routes(access::routes(web::routes(table)))
}

/// Method, pattern and reach of every endpoint, for documents. The optional ones are among them.
#[must_use]
pub fn endpoints() -> Vec<(String, Reach)> {
    table(true).endpoints()
}

/// The interface of a bank.
pub(crate) fn api(service: Arc<Service>) -> Api<Service> {
    let table = table(service.settings.config.dashboard);
    Api::new(service, table)
}

/// State of the endpoints.
pub(crate) struct Settings {
    pub(crate) base_url: String,
    /// The port it listens on.
    pub(crate) port: u16,
    pub(crate) password_salt: [u8; 16],
    pub(crate) chart: Chart,
    pub(crate) config: BankConfig,
}

/// State that all endpoints share.
pub(crate) struct Service {
    executor: CommandExecutor,
    ledger: Arc<dyn Ledger>,
    store: Store,
    settings: Settings,
    addresses: Arc<Addresses>,
    wakes: Arc<Wakes>,
    sessions: Sessions,
    logins: Logins,
    exchanges: KnownExchanges,
    monitor: Monitor,
    sums: Arc<MoneySums>,
    /// The page shown to browsers at the root.
    page: StaticPage,
}

impl App for Service {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Checks whether the bank can serve its customers: store or database, clock, and ledger.
    async fn ready(&self) -> Readiness {
        let ledger = async {
            let answer = self.ledger.lookup_accounts(vec![1]).await;
            answer.map_err(|error| format!("the ledger does not answer: {error}"))
        };
        let readiness = self.monitor.check(&self.store, self.settings.config.clock.now()).await;
        readiness.check_within("ledger", ledger).await
    }

    fn write_metrics(&self, page: &mut Page) {
        self.executor.lane.metrics().write(page);
        let open = self.executor.settler.open() as u64;
        page.gauge("batzen_bank_intents_open", "Movements of money waiting for the ledger", open);
        self.sums.write(page);
        self.store.write_metrics(page, batzen_tables::bank::ALL);
    }
}

impl Service {
    pub(crate) fn new(
        executor: CommandExecutor,
        ledger: Arc<dyn Ledger>,
        store: Store,
        settings: Settings,
        wakes: Arc<Wakes>,
        http_stats: Arc<Stats>,
    ) -> Self {
        let sessions = Sessions::default();
        let logins = Logins::new(settings.password_salt, settings.config.password_cost);
        let page = web::page(&settings.config);
        let addresses = Arc::new(Addresses {
            hostname: settings.config.hostname.clone(),
            hosts: settings.config.hosts(&settings.base_url, settings.port),
            iban_bank: settings.config.iban_bank.clone(),
        });
        let monitor =
            Monitor::new("bank", &OPERATIONS, &DASHBOARD, http_stats).in_currency(settings.config.currency);
        Self {
            executor,
            ledger,
            store,
            settings,
            addresses,
            wakes,
            sessions,
            logins,
            exchanges: KnownExchanges::default(),
            monitor,
            sums: Arc::default(),
            page,
        }
    }

    pub(crate) fn ledger(&self) -> &Arc<dyn Ledger> {
        &self.ledger
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn place(&self) -> &batzen_service::storage::StoreConfig {
        &self.settings.config.store
    }

    /// Keeps the sums over all accounts until the drain fires.
    pub(crate) fn keep_sums(&self, drain: Drain) -> impl Future<Output = ()> + use<> {
        Arc::clone(&self.sums).keep(Arc::clone(&self.ledger), self.settings.chart, drain)
    }

    pub(crate) fn has_dashboard(&self) -> bool {
        self.settings.config.dashboard
    }

    /// Accepts no more commands. Commands under way end; after that the returned lane can be closed.
    pub(crate) fn close(self) -> Lane<BankLaneRules> {
        self.executor.lane
    }

    pub(crate) fn payto(&self, account: &str) -> String {
        self.addresses.payto(account)
    }

    /// A body's amount, in the bank's currency: 400, code 22 for another currency.
    fn money<T: DeserializeOwned>(&self, field: &str, amount: &Amount) -> Checked<Money> {
        amount.money_in(self.settings.config.currency).map_err(|_| wrong_member::<T>(field))
    }

    fn api_config(&self, name: &str) -> Response {
        let (version, currency) =
            (BANK_PROTOCOL_VERSION.to_owned(), self.settings.config.currency.to_string());
        Response::json(200, &api::BankConfig { version, currency, name: name.to_owned() })
    }

    fn amount(&self, money: Money) -> Amount {
        money.of(self.settings.config.currency)
    }

    /// Executes a command and wakes the polls that wait for its effect, even if the client disconnects
    /// meanwhile.
    async fn execute<C: TypedCommand>(self: &Arc<Self>, command: C) -> Checked<Result<C::Answer, Refusal>> {
        let (service, command) = (Arc::clone(self), command.into());
        let verdict = RunToEnd::new(async move {
            // Commands that involve the ledger wake their polls themselves.
            let ends = match &command {
                Command::AbortWithdrawal(abort) => Some(abort.wopid),
                _ => None,
            };
            let verdict = service.executor.execute(command).await;
            if let (Some(wopid), Ok(Ok(answer))) = (ends, &verdict) {
                service.wakes.ended(answer, &wopid);
            }
            verdict
        });
        match verdict.await {
            Ok(verdict) => Ok(verdict.map(C::answer)),
            Err(
                error @ (ExecuteError::Submit(SubmitError::Overloaded | SubmitError::Stopped)
                | ExecuteError::Ledger(Unsettled::Waiting)),
            ) => Err(FAILURES.try_later(&error.to_string())),
            Err(ExecuteError::Submit(SubmitError::Store(error))) => Err(FAILURES.store(&error)),
            Err(error) => {
                tracing::error!(%error, "a command failed");
                Err(Response::error(ErrorCode::BANK_UNMANAGED_EXCEPTION, ""))
            }
        }
    }

    /// Reads the store on a blocking thread.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Checked<T> {
        batzen_service::read_aside(&self.store, read).await.map_err(|error| FAILURES.store(&error))
    }

    async fn find_account(&self, name: &str) -> Checked<Option<AccountRow>> {
        if !names::is_account_name(name) {
            return Ok(None);
        }
        let key = AccountKey::new(name);
        self.read(move |store| Ok(store.get::<BankAccounts>(&key)?.map(|stored| stored.row))).await
    }

    /// Requires an account: 404, code 5106 if it does not exist.
    async fn account(&self, name: &str) -> Checked<AccountRow> {
        self.find_account(name).await?.ok_or_else(|| unknown_account(name))
    }

    /// An account's balances in the ledger: credits and debits in units, without headroom, and the reserved
    /// amount.
    async fn balances(&self, account: &AccountRow) -> Checked<AccountTotals> {
        let lookup = || self.ledger.lookup_accounts(vec![account.ledger_id]);
        let found = match account.is_opened {
            true => tokio::time::timeout(READ_MAX, answered(lookup))
                .await
                .map_err(|_| FAILURES.try_later("the ledger does not answer"))?,
            false => Vec::new(),
        };
        Ok(AccountTotals::of(String::new(), found.first(), self.settings.chart.headroom()))
    }

    /// Requires a withdrawal operation: 404, code 5107 if it does not exist.
    async fn operation(&self, text: &str) -> Checked<([u8; 32], WithdrawalRow)> {
        let unknown = || Response::error(ErrorCode::BANK_TRANSACTION_NOT_FOUND, text);
        let wopid = batzen_crypto::base32::decode_array::<32>(text).map_err(|_| unknown())?;
        let get = move |store: &Store| store.get::<BankWithdrawals>(&WithdrawalKey { wopid });
        let stored = self.read(get).await?.ok_or_else(unknown)?;
        Ok((wopid, stored.row))
    }

    /// Checks name and password of a request for an account, if this bank checks passwords.
    async fn authorize(&self, head: &Head, account: &str) -> Checked<()> {
        if !self.settings.config.check_passwords {
            return head.require_own_name();
        }
        let Some((user, password)) = head.basic_auth() else {
            let response = Response::error_status(ErrorCode::BANK_LOGIN_FAILED, 401, "");
            return Err(
                response.with_header(header::WWW_AUTHENTICATE, "Basic realm=\"bank\", charset=\"UTF-8\"")
            );
        };
        self.check_password(head, &user, &password).await?;
        if user == account { Ok(()) } else { Err(Response::error(ErrorCode::BANK_REJECT_NO_RIGHTS, "")) }
    }
}

/// Work that always completes. If its caller drops it, it continues as a task of its own. While the caller
/// waits it needs no task and no thread switch.
struct RunToEnd<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> RunToEnd<T> {
    fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl<T: Send + 'static> Future for RunToEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let work = self.0.as_mut().expect("nobody asks after the end");
        let output = std::task::ready!(work.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for RunToEnd<T> {
    fn drop(&mut self) {
        // Without a runtime the process ends, so nobody waits for the result.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

/// The advice to a payer whose text has no reserve key.
const NO_RESERVE_KEY: &str = "no reserve key, or several different ones, were found in the text. Write the key that the \
                              wallet shows, and nothing else, such as 52 letters and digits in groups";

fn unknown_account(name: &str) -> Response {
    Response::error(ErrorCode::BANK_UNKNOWN_ACCOUNT, name)
}

/// The response to a refusal. `detail` is for refusals that do not name their subject.
fn refused(refusal: &Refusal, detail: &str) -> Response {
    match refusal {
        Refusal::UnknownAccount(name) => unknown_account(name),
        Refusal::RegisterConflict => Response::error(refusal.code(), "password"),
        Refusal::ExchangeAccount => Response::error(refusal.code(), NO_RESERVE_KEY),
        Refusal::UnknownWithdrawal | Refusal::RequestUidReused => Response::error(refusal.code(), detail),
        Refusal::Unresolved | Refusal::InFlight { .. } | Refusal::ReservationExpired => {
            FAILURES.try_later("")
        }
        _ => Response::error(refusal.code(), ""),
    }
}

/// The body of a request: 400, code 22 if it is not JSON, or a member is missing or malformed.
fn body<T: DeserializeOwned>(request: &Request) -> Checked<T> {
    parse_body(&request.body).map_err(|error| {
        let detail = if error.field.is_none() { error.message.clone() } else { String::new() };
        let answer = error.to_error_body();
        Response::error_with(answer.code, None, &answer.detail.unwrap_or(detail), answer.extra)
    })
}

/// The response to a well-formed but unacceptable member of a body.
fn wrong_member<T: DeserializeOwned>(field: &str) -> Response {
    let answer = field_error::<T>(field, "").to_error_body();
    Response::error_with(answer.code, None, "", answer.extra)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_completes_after_its_caller_is_dropped() {
        let done = Arc::new(AtomicBool::new(false));
        let work = |release: oneshot::Receiver<()>| {
            let done = Arc::clone(&done);
            RunToEnd::new(async move {
                release.await.unwrap();
                done.store(true, Ordering::SeqCst);
            })
        };
        let (go, release) = oneshot::channel();
        let mut waiting = work(release);
        let is_pending =
            std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut waiting).poll(context).is_pending()));
        assert!(is_pending.await);
        drop(waiting);
        go.send(()).unwrap();
        while !done.swap(false, Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        let (go, release) = oneshot::channel();
        go.send(()).unwrap();
        work(release).await;
        assert!(done.load(Ordering::SeqCst));
    }
}

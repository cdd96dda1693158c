//! The HTTP interface of the bank: routes, and code that all endpoints share.

mod access;
mod gateway;
mod guesses;
mod integration;
mod logins;
mod web;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use batzen_engine::{Lane, SubmitError};
use batzen_http::{
    Admission, Checks, Drain, ErrorCode, Handler, Head, Method, MetricsPage, Operations, Readiness, Request,
    Response, Routes, StaticPage, Stats, Style, Waiter, Woken, header, health,
};
use batzen_ledger::Ledger;
use batzen_metrics::Page;
use batzen_protocol::api::bank::{self as api, BANK_PROTOCOL_VERSION};
use batzen_protocol::api::{field_error, parse_body};
use batzen_protocol::{Amount, Money};
use batzen_store::{Store, StoreError};
use batzen_tables::bank::{
    AccountKey, AccountRow, BankAccounts, BankWithdrawals, WithdrawalKey, WithdrawalRow,
};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::MAX_BODY_BYTES;
use crate::books::AccountTotals;
use crate::chart::Chart;
use crate::config::BankConfig;
use crate::executor::{CommandExecutor, ExecuteError};
use crate::lane_rules::BankLaneRules;
use crate::money::MoneySums;
use crate::names::{self, Addresses};
use crate::rules::{Command, Refusal, TypedCommand};
use crate::settler::{Unsettled, answered};
use crate::wakes::{Direction, Wakes};
use logins::Logins;
use web::Sessions;

/// Most concurrent long polls. Further ones are answered at once.
pub(crate) const WAITERS_MAX: usize = 65_536;

/// Largest body of requests with little content, in bytes.
const SMALL_BODY_BYTES: usize = 1024;

/// Longest wait of one long poll. The client may then ask again.
const LONG_POLL_MAX: Duration = Duration::from_secs(600);

/// How long a client waits for a balance.
const READ_MAX: Duration = Duration::from_secs(5);

/// A response, successful or not. Both are sent.
type Answer = Result<Response, Response>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Home,
    Metrics,
    Health,
    Ready,
    Dashboard,
    IntegrationConfig,
    WithdrawalStatus,
    WithdrawalSelect,
    AccessConfig,
    PublicAccounts,
    Register,
    AccountStatus,
    WithdrawalCreate,
    WithdrawalDetails,
    WithdrawalConfirm,
    WithdrawalAbort,
    GatewayConfig,
    HistoryIncoming,
    HistoryOutgoing,
    Transfer,
    AddIncoming,
    WebLogin,
    WebRegister,
    WebLogout,
    WebAccount,
    WebWithdraw,
    WebWithdrawal,
    WebConfirm,
    WebAbort,
    WebPay,
}

fn routes(with_dashboard: bool) -> Routes<Endpoint> {
    use Endpoint as E;
    let (get, post) = (Method::GET, Method::POST);
    let mut routes = Routes::new(Style::ByPath)
        .route(get.clone(), "/", E::Home)
        .route(get.clone(), "/metrics", E::Metrics)
        .route(get.clone(), "/health", E::Health)
        .route(get.clone(), "/ready", E::Ready)
        .route(get.clone(), "/taler-bank-integration/config", E::IntegrationConfig)
        .route(get.clone(), "/taler-bank-integration/withdrawal-operation/:wopid", E::WithdrawalStatus)
        .route(post.clone(), "/taler-bank-integration/withdrawal-operation/:wopid", E::WithdrawalSelect)
        .route(get.clone(), "/taler-bank-access/config", E::AccessConfig)
        .route(get.clone(), "/taler-bank-access/public-accounts", E::PublicAccounts)
        .route(post.clone(), "/taler-bank-access/testing/register", E::Register)
        .route(get.clone(), "/taler-bank-access/accounts/:account", E::AccountStatus)
        .route(post.clone(), "/taler-bank-access/accounts/:account/withdrawals", E::WithdrawalCreate)
        .route(get.clone(), "/taler-bank-access/accounts/:account/withdrawals/:wid", E::WithdrawalDetails)
        .route(
            post.clone(),
            "/taler-bank-access/accounts/:account/withdrawals/:wid/confirm",
            E::WithdrawalConfirm,
        )
        .route(
            post.clone(),
            "/taler-bank-access/accounts/:account/withdrawals/:wid/abort",
            E::WithdrawalAbort,
        );
    routes = routes
        .route(post.clone(), "/web/login", E::WebLogin)
        .route(post.clone(), "/web/register", E::WebRegister)
        .route(post.clone(), "/web/logout", E::WebLogout)
        .route(get.clone(), "/web/account", E::WebAccount)
        .route(post.clone(), "/web/payments", E::WebPay)
        .route(post.clone(), "/web/withdrawals", E::WebWithdraw)
        .route(get.clone(), "/web/withdrawals/:wid", E::WebWithdrawal)
        .route(post.clone(), "/web/withdrawals/:wid/confirm", E::WebConfirm)
        .route(post.clone(), "/web/withdrawals/:wid/abort", E::WebAbort);
    if with_dashboard {
        routes = routes.route(get.clone(), "/dashboard", E::Dashboard).route(
            get.clone(),
            "/dashboard/:part",
            E::Dashboard,
        );
    }
    // The gateway has two base URLs for each account. Older set-ups, and most tests, use the second.
    for base in ["/taler-wire-gateway/:account", "/:account"] {
        let path = |rest: &str| format!("{base}/{rest}");
        routes = routes
            .route(get.clone(), &path("config"), E::GatewayConfig)
            .route(get.clone(), &path("history/incoming"), E::HistoryIncoming)
            .route(get.clone(), &path("history/outgoing"), E::HistoryOutgoing)
            .route(post.clone(), &path("transfer"), E::Transfer)
            .route(post.clone(), &path("admin/add-incoming"), E::AddIncoming);
    }
    routes
}

/// Values of the label `operation`.
const OPERATIONS: [&str; 7] =
    ["transfer", "add-incoming", "history", "withdrawal", "account", "config", "other"];

impl Endpoint {
    /// Largest body, in bytes, both compressed and decompressed.
    const fn body_bytes_max(self) -> usize {
        match self {
            // Two URIs, a hash and an identifier.
            Self::Transfer | Self::AddIncoming | Self::WithdrawalSelect | Self::WebPay => MAX_BODY_BYTES,
            // A name and a password, which may contain JSON escapes.
            Self::Register | Self::WebLogin | Self::WebRegister => MAX_BODY_BYTES,
            // An amount, or nothing.
            _ => SMALL_BODY_BYTES,
        }
    }

    /// The endpoint's index in [`OPERATIONS`].
    const fn operation(self) -> usize {
        match self {
            Self::Transfer | Self::WebPay => 0,
            Self::AddIncoming => 1,
            Self::HistoryIncoming | Self::HistoryOutgoing => 2,
            Self::WithdrawalStatus
            | Self::WithdrawalSelect
            | Self::WithdrawalCreate
            | Self::WithdrawalDetails
            | Self::WithdrawalConfirm
            | Self::WithdrawalAbort
            | Self::WebWithdraw
            | Self::WebWithdrawal
            | Self::WebConfirm
            | Self::WebAbort => 3,
            Self::PublicAccounts | Self::Register | Self::AccountStatus => 4,
            Self::WebLogin | Self::WebRegister | Self::WebLogout | Self::WebAccount => 4,
            Self::IntegrationConfig | Self::AccessConfig | Self::GatewayConfig => 5,
            Self::Home | Self::Metrics | Self::Health | Self::Ready | Self::Dashboard => 6,
        }
    }
}

/// State of the endpoints.
pub(crate) struct Settings {
    pub base_url: String,
    pub password_salt: [u8; 16],
    pub chart: Chart,
    pub config: BankConfig,
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
    http_stats: Arc<Stats>,
    metrics_page: MetricsPage,
    checks: Checks,
    /// Counters of requests.
    operations_run: Operations,
    sums: Arc<MoneySums>,
    /// The page shown to browsers at the root.
    page: StaticPage,
}

/// The handler of the server.
pub(crate) struct Api {
    routes: Routes<Endpoint>,
    service: Arc<Service>,
}

impl Api {
    pub(crate) fn new(service: Arc<Service>) -> Self {
        Self { routes: routes(service.settings.config.dashboard), service }
    }

    async fn dispatch(&self, request: Request) -> Answer {
        let matched = self.routes.resolve(&request.head)?;
        let param = |index: usize| matched.params.get(index).copied().unwrap_or_default();
        let service = &self.service;
        let running = service.operations_run.begin(matched.endpoint.operation());
        let answer = match *matched.endpoint {
            Endpoint::Home => Ok(service.home(&request)),
            Endpoint::Dashboard => Ok(service.metrics_page.dashboard(&request.head)),
            Endpoint::Health => Ok(health()),
            Endpoint::Ready => Ok(service.ready().await),
            Endpoint::Metrics => {
                let parts = Arc::clone(service);
                Ok(service.metrics_page.answer(move |page| parts.write_metrics(page)).await)
            }
            Endpoint::IntegrationConfig => Ok(service.api_config("taler-bank-integration")),
            Endpoint::WithdrawalStatus => {
                let operation = param(0).to_owned();
                service.withdrawal_status(request, &operation).await
            }
            Endpoint::WithdrawalSelect => service.withdrawal_select(&request, param(0)).await,
            Endpoint::AccessConfig => Ok(service.api_config("taler-bank-access")),
            Endpoint::PublicAccounts => Ok(service.public_accounts()),
            Endpoint::Register => service.register(&request).await,
            Endpoint::AccountStatus => service.account_status(&request, param(0)).await,
            Endpoint::WithdrawalCreate => service.withdrawal_create(&request, param(0)).await,
            Endpoint::WithdrawalDetails => service.withdrawal_details(&request, param(0), param(1)).await,
            Endpoint::WithdrawalConfirm => service.withdrawal_confirm(&request, param(0), param(1)).await,
            Endpoint::WithdrawalAbort => service.withdrawal_abort(&request, param(0), param(1)).await,
            Endpoint::GatewayConfig => Ok(service.api_config("taler-wire-gateway")),
            Endpoint::HistoryIncoming => {
                let account = param(0).to_owned();
                service.history(request, &account, Direction::Incoming).await
            }
            Endpoint::HistoryOutgoing => {
                let account = param(0).to_owned();
                service.history(request, &account, Direction::Outgoing).await
            }
            Endpoint::Transfer => service.transfer(&request, param(0)).await,
            Endpoint::AddIncoming => service.add_incoming(&request, param(0)).await,
            Endpoint::WebLogin => service.web_login(&request).await,
            Endpoint::WebRegister => service.web_register(&request).await,
            Endpoint::WebLogout => service.web_logout(&request),
            Endpoint::WebAccount => service.web_account(&request).await,
            Endpoint::WebWithdraw => service.web_withdraw(&request).await,
            Endpoint::WebWithdrawal => service.web_withdrawal(&request, param(0)).await,
            Endpoint::WebConfirm => service.web_confirm(&request, param(0)).await,
            Endpoint::WebAbort => service.web_abort(&request, param(0)).await,
            Endpoint::WebPay => service.web_pay(&request).await,
        };
        let (Ok(response) | Err(response)) = &answer;
        running.end(response.status);
        answer
    }
}

impl Handler for Api {
    async fn handle(&self, request: Request) -> Response {
        self.dispatch(request).await.unwrap_or_else(|error| error)
    }

    fn admit(&self, head: &Head) -> Result<Admission, Response> {
        self.routes.resolve(head).map(|matched| Admission::limited(matched.endpoint.body_bytes_max()))
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
        let operations_run = Operations::new(&OPERATIONS);
        let sessions = Sessions::default();
        let logins = Logins::new(settings.password_salt, settings.config.password_cost);
        let page = web::page(&settings.config);
        let addresses = Arc::new(Addresses {
            hostname: settings.config.hostname.clone(),
            iban_bank: settings.config.iban_bank.clone(),
        });
        let metrics_page = MetricsPage::new("bank").in_currency(settings.config.currency.to_string());
        Self {
            executor,
            ledger,
            store,
            settings,
            addresses,
            wakes,
            sessions,
            logins,
            http_stats,
            metrics_page,
            checks: Checks::default(),
            operations_run,
            sums: Arc::default(),
            page,
        }
    }

    /// Whether the bank can serve its customers: store or database, clock, and ledger.
    async fn ready(&self) -> Response {
        let store = self.store.clone();
        let name = if self.place().is_database() { "database" } else { "store" };
        let ledger = async {
            let answer = self.ledger.lookup_accounts(vec![1]).await;
            answer.map_err(|error| format!("the ledger does not answer: {error}"))
        };
        Readiness::new()
            .check_within(name, self.checks.blocking(move || store.check_writable()))
            .await
            .check("clock", self.checks.clock(self.settings.config.clock.now().as_micros()))
            .check_within("ledger", ledger)
            .await
            .into_response()
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

    /// Fills the dashboard, if there is one.
    pub(crate) fn fill_dashboard(self: &Arc<Self>) {
        if self.settings.config.dashboard {
            let service = Arc::downgrade(self);
            self.metrics_page.sample(move |page| {
                let service = service.upgrade();
                service.is_some_and(|service| {
                    service.write_metrics(page);
                    true
                })
            });
        }
    }

    /// Ends the sampling for the dashboard, which holds the service while it reads.
    pub(crate) async fn end_sampling(&self) {
        self.metrics_page.idle().await;
    }

    /// Accepts no more commands. Commands under way end; after that the returned lane can be closed.
    pub(crate) fn close(self) -> Lane<BankLaneRules> {
        self.executor.lane
    }

    pub(crate) fn payto(&self, account: &str) -> String {
        self.addresses.payto(account)
    }

    /// A body's amount, in the bank's currency: 400, code 22 for another currency.
    fn money<T: DeserializeOwned>(&self, field: &str, amount: &Amount) -> Result<Money, Response> {
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
    async fn execute<C: TypedCommand>(
        self: &Arc<Self>,
        command: C,
    ) -> Result<Result<C::Answer, Refusal>, Response> {
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
            ) => Err(try_later(&error.to_string())),
            Err(ExecuteError::Submit(SubmitError::Store(error))) => Err(store_failed(&error)),
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
    ) -> Result<T, Response> {
        let store = self.store.clone();
        match tokio::task::spawn_blocking(move || read(&store)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(store_failed(&error)),
            Err(_) => Err(Response::error(ErrorCode::BANK_UNMANAGED_EXCEPTION, "")),
        }
    }

    async fn find_account(&self, name: &str) -> Result<Option<AccountRow>, Response> {
        if !names::is_account_name(name) {
            return Ok(None);
        }
        let key = AccountKey::new(name);
        self.read(move |store| Ok(store.get::<BankAccounts>(&key)?.map(|stored| stored.row))).await
    }

    /// Requires an account: 404, code 5106 if it does not exist.
    async fn account(&self, name: &str) -> Result<AccountRow, Response> {
        self.find_account(name).await?.ok_or_else(|| unknown_account(name))
    }

    /// An account's balances in the ledger: credits and debits in units, without headroom, and the reserved
    /// amount.
    async fn balances(&self, account: &AccountRow) -> Result<AccountTotals, Response> {
        let lookup = || self.ledger.lookup_accounts(vec![account.ledger_id]);
        let found = match account.is_opened {
            true => tokio::time::timeout(READ_MAX, answered(lookup))
                .await
                .map_err(|_| try_later("the ledger does not answer"))?,
            false => Vec::new(),
        };
        Ok(AccountTotals::of(String::new(), found.first(), self.settings.chart.headroom()))
    }

    /// Requires a withdrawal operation: 404, code 5107 if it does not exist.
    async fn operation(&self, text: &str) -> Result<([u8; 32], WithdrawalRow), Response> {
        let unknown = || Response::error(ErrorCode::BANK_TRANSACTION_NOT_FOUND, text);
        let wopid = batzen_crypto::base32::decode_array::<32>(text).map_err(|_| unknown())?;
        let get = move |store: &Store| store.get::<BankWithdrawals>(&WithdrawalKey { wopid });
        let stored = self.read(get).await?.ok_or_else(unknown)?;
        Ok((wopid, stored.row))
    }

    /// Checks name and password of a request for an account, if this bank checks passwords.
    async fn authorize(&self, head: &Head, account: &str) -> Result<(), Response> {
        if !self.settings.config.check_passwords {
            return Ok(());
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

    /// The bank's part of the page `/metrics`.
    fn write_metrics(&self, page: &mut Page) {
        self.operations_run.write(page);
        self.executor.lane.metrics().write(page);
        let open = self.executor.settler.open() as u64;
        page.gauge("batzen_bank_intents_open", "Movements of money waiting for the ledger", open);
        self.sums.write(page);
        self.store.write_metrics(page, batzen_tables::bank::ALL);
        self.http_stats.write(page);
    }

    /// Browsers get a page, programs a few lines.
    fn home(&self, head: &Head) -> Response {
        if head.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html")) {
            return self.page.response().with_header(header::VARY, "accept");
        }
        let Settings { base_url, config, .. } = &self.settings;
        Response::text(
            200,
            format!(
                "A Batzen bank for {currency}.\n\n\
                 Wire gateway:      {base_url}taler-wire-gateway/ACCOUNT/\n\
                 Bank integration:  {base_url}taler-bank-integration/\n\
                 Bank access:       {base_url}taler-bank-access/\n",
                currency = config.currency,
            ),
        )
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

/// The deadline of a long poll, if the client asked for one.
fn poll_deadline(long_poll_ms: Option<u64>) -> Option<Instant> {
    let poll = Duration::from_millis(long_poll_ms.filter(|ms| *ms > 0)?).min(LONG_POLL_MAX);
    Some(Instant::now() + poll)
}

/// Waits for one event. False: answer now with the current state.
async fn wait<K: Eq + std::hash::Hash + Clone>(
    waiter: &mut Waiter<K>,
    deadline: Instant,
    drain: &Drain,
) -> bool {
    waiter.wait_until(Some(deadline), drain).await == Woken::Event
}

/// The response if the outcome of a request is not known yet: repeating the request finds it out.
fn try_later(detail: &str) -> Response {
    Response::error_status(ErrorCode::BANK_SOFT_EXCEPTION, 503, detail).with_header(header::RETRY_AFTER, "1")
}

/// The response to a failed store.
fn store_failed(error: &StoreError) -> Response {
    tracing::error!(%error, "the store failed");
    match error {
        StoreError::Unavailable(_) => try_later("the database is not available"),
        StoreError::Full(_) => try_later("no space left"),
        _ => Response::error(ErrorCode::BANK_UNMANAGED_EXCEPTION, ""),
    }
}

fn unknown_account(name: &str) -> Response {
    Response::error(ErrorCode::BANK_UNKNOWN_ACCOUNT, name)
}

/// The response to a refusal. `detail` is for refusals that do not name their subject.
fn refused(refusal: &Refusal, detail: &str) -> Response {
    match refusal {
        Refusal::UnknownAccount(name) => unknown_account(name),
        Refusal::RegisterConflict => Response::error(refusal.code(), "password"),
        Refusal::UnknownWithdrawal | Refusal::RequestUidReused => Response::error(refusal.code(), detail),
        Refusal::Unresolved | Refusal::InFlight { .. } | Refusal::ReservationExpired => try_later(""),
        _ => Response::error(refusal.code(), ""),
    }
}

/// The body of a request: 400, code 22 if it is not JSON, or a member is missing or malformed.
fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Response> {
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

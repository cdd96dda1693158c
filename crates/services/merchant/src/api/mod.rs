//! The HTTP interface: routes, access, and code that all endpoints share.
//!
//! Everything below an instance's base URL is reachable at `/` for the instance `default`, and at `/instances/$ID/`
//! for all (merchant chapter 1.1).

mod audits;
mod background;
mod kyc;
mod management;
mod openapi;
mod orders;
mod page;
mod pay;
mod products;
mod refunds;
mod reserves;
mod routes;
mod shops;
mod status;
mod templates;
mod tips;
mod tokens;
mod tracking;
mod transfers;
mod wallets;
mod webhooks;
mod webui;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batzen_crypto::HashCode;
use batzen_crypto::hash::sha512_parts;
use batzen_engine::{Collector, CollectorOptions, CpuPool, Lane, SubmitError};
use batzen_http::client::Client;
use batzen_http::{Admission, Handler, Head, Request, Response, Routes, Stats, header};
use batzen_metrics::Page;
use batzen_protocol::api::merchant::{MERCHANT_PROTOCOL_VERSION, MerchantConfig as ConfigAnswer};
use batzen_protocol::api::parse_body;
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp};
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{Checks, MetricsPage, Operations, Readiness, health};
use batzen_store::{Store, StoreError};
use batzen_tables::merchant::{
    InstanceAccountKey, InstanceAccountRow, InstanceAccounts, InstanceKey, Instances, MerchantStateRow,
    OrderKey, OrderRef, OrderRow, Orders, order_ref,
};
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use self::audits::Audits;
use self::background::Background;
use self::kyc::KycPace;
use self::pay::Confirmation;
use self::routes::{Endpoint, Entry, OPERATIONS, routes};
use self::shops::{Shop, Shops};
use self::templates::Pace;
use self::tokens::Scope;
pub(crate) use self::webhooks::HOOK_TIMEOUT;

use crate::config::MerchantConfig;
use crate::exchanges::Exchanges;
use crate::notices::Notices;
use crate::rules::{MerchantRules, Refusal, TypedCommand};
use crate::urls::{self, DEFAULT};

/// Single jobs of the CPU pool that may wait.
const POOL_JOBS_MAX: usize = 1_024;
/// The longest wait of one long poll. The client may then ask again.
const LONG_POLL_MAX: Duration = Duration::from_secs(600);
/// The dashboard.
const DASHBOARD: Layout = Layout { sections: COMMON, work: &["refund", "transfer"] };
/// A response, successful or not. Both are sent.
type Answer = Result<Response, Response>;

/// State that all endpoints share.
pub(crate) struct Service {
    config: MerchantConfig,
    state: MerchantStateRow,
    lane: Lane<MerchantRules>,
    store: Store,
    shops: Shops,
    pool: CpuPool,
    /// Checks of what exchanges confirm. The answer is whether the signature is valid.
    confirmations: Collector<Confirmation, bool>,
    exchanges: Exchanges,
    notices: Arc<Notices>,
    /// The number of the latest order, transfer, tip or token.
    last_row_id: AtomicU64,
    /// For the receivers of web hooks.
    hook_client: Client,
    /// What nobody waits for.
    background: Background,
    /// What auditors get to see.
    audits: Audits,
    /// Those that show it to them.
    audit_tasks: Background,
    /// How fast anybody may create orders.
    template_pace: Pace,
    kyc_pace: KycPace,
    http_stats: Arc<Stats>,
    metrics_page: MetricsPage,
    checks: Checks,
    operations_run: Operations,
}

/// The handler of the server.
pub(crate) struct Api {
    routes: Routes<Entry>,
    service: Arc<Service>,
}

impl Api {
    pub(crate) fn new(service: Arc<Service>) -> Self {
        Self { routes: routes(), service }
    }

    async fn dispatch(&self, request: Request) -> Answer {
        let matched = self.routes.resolve(&request.head)?;
        let (endpoint, has_instance) = *matched.endpoint;
        let params: Vec<String> = matched.params.iter().map(|param| (*param).to_owned()).collect();
        let mut params = params.into_iter();
        let instance = if has_instance { params.next().unwrap_or_default() } else { DEFAULT.to_owned() };
        let param = params.next().unwrap_or_default();
        let running = self.service.operations_run.begin(endpoint.operation());
        let answer = self.service.answer(endpoint, request, instance, param).await;
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
        self.routes.resolve(head).map(|matched| Admission::limited(matched.endpoint.0.body_bytes_max()))
    }
}

impl Service {
    pub(crate) fn new(
        config: MerchantConfig,
        state: MerchantStateRow,
        lane: Lane<MerchantRules>,
        instance_changes: Arc<AtomicU64>,
        exchanges: Exchanges,
        hook_client: Client,
        http_stats: Arc<Stats>,
    ) -> Self {
        let store = lane.store().clone();
        let notices = Notices::new(&store);
        let pool = CpuPool::new(0, POOL_JOBS_MAX);
        let confirmations = pool.collector("confirmation", CollectorOptions::default(), pay::check);
        let metrics_page = MetricsPage::new("merchant", &DASHBOARD).in_currency(config.currency.to_string());
        Self {
            config,
            state,
            lane,
            store,
            shops: Shops::new(instance_changes),
            pool,
            confirmations,
            exchanges,
            notices,
            last_row_id: AtomicU64::new(0),
            hook_client,
            background: Background::default(),
            audits: Audits::default(),
            audit_tasks: Background::with_limit(audits::TASKS_MAX),
            template_pace: Pace::default(),
            kyc_pace: KycPace::default(),
            http_stats,
            metrics_page,
            checks: Checks::default(),
            operations_run: Operations::new(&OPERATIONS),
        }
    }

    async fn answer(
        self: &Arc<Self>,
        endpoint: Endpoint,
        request: Request,
        instance: String,
        param: String,
    ) -> Answer {
        let head = &request.head;
        // Most futures are boxed: this one would have room for the largest of them, and is moved with each request.
        match endpoint {
            Endpoint::Home => Ok(webui::home(head)),
            Endpoint::OpenApi => Ok(openapi::document()),
            Endpoint::WebUi => self.web_ui(head, &instance).await,
            Endpoint::WebUiFile => webui::web_ui_file(head, &param),
            Endpoint::QrCode => self.qr_code(&request, &instance).await,
            Endpoint::Health => Ok(health()),
            Endpoint::Ready => Ok(self.ready().await),
            Endpoint::Dashboard | Endpoint::DashboardPart => Ok(self.metrics_page.dashboard(head)),
            Endpoint::Metrics => {
                let parts = Arc::clone(self);
                Ok(self.metrics_page.answer(move |page| parts.write_metrics(page)).await)
            }
            Endpoint::Config => self.config_of(&instance).await,
            Endpoint::ListInstances => self.list_instances(head).await,
            Endpoint::CreateInstance => Box::pin(self.create_instance(&request)).await,
            Endpoint::ShowInstance => {
                let shop = self.managed(head, &param).await?;
                Box::pin(self.show_instance(&shop)).await
            }
            Endpoint::ChangeInstance => {
                let shop = self.managed(head, &param).await?;
                Box::pin(self.change_instance(&request, &shop)).await
            }
            Endpoint::DeleteInstance => {
                let shop = self.managed(head, &param).await?;
                Box::pin(self.delete_instance(head, &shop)).await
            }
            Endpoint::SetAuth => {
                let shop = self.managed(head, &param).await?;
                Box::pin(self.set_auth(&request, &shop)).await
            }
            Endpoint::ShowSelf => {
                let shop = self.may(Scope::ReadOnly, head, &instance).await?;
                Box::pin(self.show_instance(&shop)).await
            }
            Endpoint::ChangeSelf => {
                let shop = self.own(head, &instance).await?;
                Box::pin(self.change_instance(&request, &shop)).await
            }
            Endpoint::DeleteSelf => {
                let shop = self.own(head, &instance).await?;
                Box::pin(self.delete_instance(head, &shop)).await
            }
            Endpoint::SetOwnAuth => {
                let shop = self.own(head, &instance).await?;
                Box::pin(self.set_auth(&request, &shop)).await
            }
            Endpoint::CreateOrder => {
                let shop = self.may(Scope::Orders, head, &instance).await?;
                Box::pin(self.create_order(&request, &shop)).await
            }
            Endpoint::ListOrders => {
                let shop = self.may(Scope::ReadOnly, head, &instance).await?;
                Box::pin(self.list_orders(request, &shop)).await
            }
            Endpoint::ShowOrder => {
                let shop = self.may(Scope::ReadOnly, head, &instance).await?;
                Box::pin(self.show_order(request, &shop, &param)).await
            }
            Endpoint::Claim => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.claim(&request, &shop, &param)).await
            }
            Endpoint::Pay => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.pay(request, &shop, &param)).await
            }
            Endpoint::Paid => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.replay(&request, &shop, &param)).await
            }
            Endpoint::ApproveRefund => {
                let shop = self.may(Scope::Orders, head, &instance).await?;
                Box::pin(self.approve_refund(&request, &shop, &param)).await
            }
            Endpoint::PickUpRefund => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.pick_up_refund(request, &shop, &param)).await
            }
            Endpoint::Abort => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.abort(request, &shop, &param)).await
            }
            Endpoint::OrderStatus => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.order_status(request, &shop, &param)).await
            }
            Endpoint::TipStatus => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.tip_status(head, &shop, &param)).await
            }
            Endpoint::PickUpTip => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.pick_up_tip(request, &shop, &param)).await
            }
            Endpoint::OfferTemplate => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.template_for_customer(head, &shop, &param)).await
            }
            Endpoint::UseTemplate => {
                let shop = self.shop(&instance).await?;
                Box::pin(self.use_template(&request, &shop, &param)).await
            }
            Endpoint::ManagedKyc => {
                let shop = self.managed(head, &param).await?;
                Box::pin(self.kyc(request, &shop)).await
            }
            Endpoint::Forget
            | Endpoint::DeleteOrder
            | Endpoint::CreateProduct
            | Endpoint::ChangeProduct
            | Endpoint::DeleteProduct
            | Endpoint::ReportTransfer
            | Endpoint::DeleteTransfer
            | Endpoint::CreateReserve
            | Endpoint::DeleteReserve
            | Endpoint::AuthorizeTip
            | Endpoint::AuthorizeAnyTip
            | Endpoint::CreateWebhook
            | Endpoint::ChangeWebhook
            | Endpoint::DeleteWebhook
            | Endpoint::CreateTemplate
            | Endpoint::ChangeTemplate
            | Endpoint::DeleteTemplate
            | Endpoint::CreateToken
            | Endpoint::DeleteToken => {
                let shop = self.own(head, &instance).await?;
                Box::pin(self.change_own(endpoint, request, &shop, &param)).await
            }
            Endpoint::LockProduct => {
                let shop = self.may(Scope::Orders, head, &instance).await?;
                Box::pin(self.lock_product(&request, &shop, &param)).await
            }
            Endpoint::ListProducts
            | Endpoint::ShowProduct
            | Endpoint::ListTransfers
            | Endpoint::Kyc
            | Endpoint::ListReserves
            | Endpoint::ShowReserve
            | Endpoint::ListTips
            | Endpoint::ShowTip
            | Endpoint::ListWebhooks
            | Endpoint::ShowWebhook
            | Endpoint::ListTemplates
            | Endpoint::ShowTemplate
            | Endpoint::ListTokens => {
                let shop = self.may(Scope::ReadOnly, head, &instance).await?;
                Box::pin(self.show_own(endpoint, request, &shop, &param)).await
            }
        }
    }

    /// What only the owner of a shop may do.
    async fn change_own(
        self: &Arc<Self>,
        endpoint: Endpoint,
        request: Request,
        shop: &Shop,
        param: &str,
    ) -> Answer {
        match endpoint {
            Endpoint::Forget => self.forget(&request, shop, param).await,
            Endpoint::DeleteOrder => self.delete_order(&request, shop, param).await,
            Endpoint::CreateProduct => self.create_product(&request, shop).await,
            Endpoint::ChangeProduct => self.change_product(&request, shop, param).await,
            Endpoint::DeleteProduct => self.delete_product(shop, param).await,
            Endpoint::ReportTransfer => self.report_transfer(request, shop).await,
            Endpoint::DeleteTransfer => self.delete_transfer(shop, param).await,
            Endpoint::CreateReserve => self.create_reserve(request, shop).await,
            Endpoint::DeleteReserve => self.delete_reserve(&request, shop, param).await,
            Endpoint::AuthorizeTip => self.authorize_tip(request, shop, Some(param)).await,
            Endpoint::AuthorizeAnyTip => self.authorize_tip(request, shop, None).await,
            Endpoint::CreateWebhook => self.create_webhook(&request, shop).await,
            Endpoint::ChangeWebhook => self.change_webhook(&request, shop, param).await,
            Endpoint::DeleteWebhook => self.delete_webhook(shop, param).await,
            Endpoint::CreateTemplate => self.create_template(&request, shop).await,
            Endpoint::ChangeTemplate => self.change_template(&request, shop, param).await,
            Endpoint::DeleteTemplate => self.delete_template(shop, param).await,
            Endpoint::CreateToken => self.create_token(&request, shop).await,
            Endpoint::DeleteToken => self.delete_token(shop, param).await,
            other => unreachable!("{other:?} changes nothing"),
        }
    }

    /// What every token of a shop may see.
    async fn show_own(&self, endpoint: Endpoint, request: Request, shop: &Shop, param: &str) -> Answer {
        match endpoint {
            Endpoint::ListProducts => self.list_products(shop).await,
            Endpoint::ShowProduct => self.show_product(shop, param).await,
            Endpoint::ListTransfers => self.list_transfers(&request, shop).await,
            Endpoint::Kyc => self.kyc(request, shop).await,
            Endpoint::ListReserves => self.list_reserves(&request, shop).await,
            Endpoint::ShowReserve => self.show_reserve(&request, shop, param).await,
            Endpoint::ListTips => self.list_tips(&request, shop).await,
            Endpoint::ShowTip => self.show_tip(&request, shop, param).await,
            Endpoint::ListWebhooks => self.list_webhooks(shop).await,
            Endpoint::ShowWebhook => self.show_webhook(shop, param).await,
            Endpoint::ListTemplates => self.list_templates(shop).await,
            Endpoint::ShowTemplate => self.show_template(shop, param).await,
            Endpoint::ListTokens => self.list_tokens(shop).await,
            other => unreachable!("{other:?} shows nothing"),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) async fn end_sampling(&self) {
        self.background.end().await;
        self.audit_tasks.end().await;
        self.metrics_page.idle().await;
    }

    /// Accepts no more commands. Commands under way end; after that the lane can be closed.
    pub(crate) fn into_lane(self) -> Lane<MerchantRules> {
        self.lane
    }

    fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    fn amount(&self, money: Money) -> Amount {
        money.of(self.config.currency)
    }

    async fn ready(&self) -> Response {
        let store = self.store.clone();
        let name = if self.config.store.is_database() { "database" } else { "store" };
        Readiness::new()
            .check_within(name, self.checks.blocking(move || store.check_writable()))
            .await
            .check("clock", self.checks.clock(self.now().as_micros()))
            .into_response()
    }

    fn write_metrics(&self, page: &mut Page) {
        self.operations_run.write(page);
        self.audits.write(page);
        self.lane.metrics().write(page);
        self.pool.write(page);
        self.store.write_metrics(page, batzen_tables::merchant::ALL);
        self.http_stats.write(page);
    }

    /// `config` works before there is any instance, but not for one that does not exist.
    async fn config_of(&self, instance: &str) -> Answer {
        if instance != DEFAULT {
            self.shop(instance).await?;
        }
        let config = ConfigAnswer {
            version: MERCHANT_PROTOCOL_VERSION.to_owned(),
            name: "taler-merchant".to_owned(),
            currency: self.config.currency.to_string(),
        };
        Ok(Response::json(200, &config))
    }

    /// Executes a command.
    async fn execute<C: TypedCommand>(&self, command: C) -> Result<Result<C::Answer, Refusal>, Response> {
        match self.lane.submit(command.into()).await {
            Ok(verdict) => Ok(verdict.map(C::answer)),
            Err(SubmitError::Store(error)) => Err(store_failed(&error)),
            Err(SubmitError::Overloaded) => Err(try_later("busy")),
            Err(SubmitError::Stopped) => Err(try_later("ending")),
        }
    }

    /// Reads the store. Reads of a database block, so they run on threads that may.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Response> {
        if !self.store.backend().is_remote() {
            return read(&self.store).map_err(|error| store_failed(&error));
        }
        let store = self.store.clone();
        let value = tokio::task::spawn_blocking(move || read(&store)).await.expect("reading does not panic");
        value.map_err(|error| store_failed(&error))
    }

    async fn find_shop(&self, id: &str) -> Result<Option<Arc<Shop>>, Response> {
        // Other processes change the rows of a database without notice.
        let is_shared = self.store.backend().is_remote();
        if !is_shared && let Some(shop) = self.shops.get(id) {
            return Ok(Some(shop));
        }
        let changes = self.shops.changes();
        let key = InstanceKey::new(id);
        let Some(found) = self.read(move |store| store.get::<Instances>(&key)).await? else {
            return Ok(None);
        };
        let shop = Arc::new(Shop::new(id, found.row));
        if !is_shared {
            self.shops.keep(&shop, changes);
        }
        Ok(Some(shop))
    }

    /// Requires an instance: 404, code 2000 if it does not exist.
    async fn shop(&self, id: &str) -> Result<Arc<Shop>, Response> {
        let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_INSTANCE_UNKNOWN, id);
        self.find_shop(id).await?.ok_or_else(unknown)
    }

    /// Requires an instance and a token that opens everything: 401, code 2015.
    async fn own(&self, head: &Head, id: &str) -> Result<Arc<Shop>, Response> {
        self.may(Scope::All, head, id).await
    }

    /// Requires an instance and a token that opens a scope: 401, code 2015.
    async fn may(&self, needed: Scope, head: &Head, id: &str) -> Result<Arc<Shop>, Response> {
        let shop = self.shop(id).await?;
        if let Err(refused) = self.authorize(head, &shop) {
            let Some(token) = head.bearer_token() else { return Err(refused) };
            let scope = self.scope_of(&shop, token).await?;
            if scope.is_none_or(|scope| scope < needed) {
                return Err(refused);
            }
        }
        Ok(shop)
    }

    /// Requires an instance and the administrator's token.
    async fn managed(&self, head: &Head, id: &str) -> Result<Arc<Shop>, Response> {
        self.authorize_management(head).await?;
        self.shop(id).await
    }

    fn token_hash(&self, instance: &str, token: &str) -> HashCode {
        sha512_parts(&[&self.state.token_salt, instance.as_bytes(), &[0], token.as_bytes()])
    }

    fn authorize(&self, head: &Head, shop: &Shop) -> Result<(), Response> {
        let Some(expected) = shop.row.token_hash else { return Ok(()) };
        let given = head.bearer_token().map(|token| self.token_hash(&shop.id, token));
        if given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(expected.as_bytes()))) {
            return Ok(());
        }
        let answer = Response::error(ErrorCode::MERCHANT_GENERIC_UNAUTHORIZED, "");
        Err(answer.with_header(header::WWW_AUTHENTICATE, "Bearer realm=\"merchant\""))
    }

    /// The token of the instance `default` opens the management, which is open before it exists.
    async fn authorize_management(&self, head: &Head) -> Result<(), Response> {
        match self.find_shop(DEFAULT).await? {
            Some(shop) => self.authorize(head, &shop),
            None => Ok(()),
        }
    }

    /// The accounts of an instance, in the order in which they were added.
    async fn accounts(&self, id: &str) -> Result<Vec<(InstanceAccountKey, InstanceAccountRow)>, Response> {
        let id = id.to_owned();
        let read = move |store: &Store| store.lookup::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, &id);
        let found = self.read(read).await?;
        let mut accounts: Vec<_> = found.into_iter().map(|found| (found.key, found.row)).collect();
        accounts.sort_by(|(one, a), (other, b)| (a.added, &one.h_wire).cmp(&(b.added, &other.h_wire)));
        Ok(accounts)
    }

    async fn find_order(
        &self,
        shop: &Shop,
        order_id: &str,
    ) -> Result<Option<(OrderRef, OrderRow)>, Response> {
        let order = order_ref(&shop.id, order_id);
        let found = self.read(move |store| store.get::<Orders>(&OrderKey { order })).await?;
        Ok(found.map(|found| (order, found.row)))
    }

    /// Requires an order: 404, code 2005.
    async fn order(&self, shop: &Shop, order_id: &str) -> Result<(OrderRef, OrderRow), Response> {
        let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, order_id);
        self.find_order(shop, order_id).await?.ok_or_else(unknown)
    }

    /// A number for a new order: the time in microseconds, or the next number.
    fn next_row_id(&self) -> u64 {
        let now = self.now().as_micros();
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.last_row_id.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        now.max(last.unwrap_or_default() + 1)
    }

    /// The instance's base URL in the customer's browser: 400, code 25 if the request has no usable host.
    fn base_url(head: &Head, shop: &Shop) -> Result<String, Response> {
        let missing = || Response::error(ErrorCode::GENERIC_PARAMETER_MISSING, "Host");
        urls::base_url(head, &shop.id).ok_or_else(missing)
    }
}

/// The deadline of a long poll, if the client asked for one.
fn poll_deadline(timeout_ms: Option<u64>) -> Option<Instant> {
    let poll = Duration::from_millis(timeout_ms.filter(|ms| *ms > 0)?).min(LONG_POLL_MAX);
    Some(Instant::now() + poll)
}

/// The body of a request: 400, code 22 if it is not JSON, or a member is missing or malformed.
fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Response> {
    parse_body(&request.body).map_err(|error| Response::json(400, &error.to_error_body()))
}

/// The response if the outcome of a request is not known yet: repeating the request finds it out.
fn try_later(detail: &str) -> Response {
    Response::error_status(ErrorCode::GENERIC_DB_SOFT_FAILURE, 503, detail)
        .with_header(header::RETRY_AFTER, "1")
}

/// The response to a failed store.
fn store_failed(error: &StoreError) -> Response {
    tracing::error!(%error, "the store failed");
    match error {
        StoreError::Unavailable(_) => try_later("the database is not available"),
        StoreError::Full(_) => Response::error(ErrorCode::GENERIC_DB_STORE_FAILED, "no space left"),
        StoreError::Corrupt { .. } => Response::error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, ""),
        _ => Response::error(ErrorCode::GENERIC_DB_COMMIT_FAILED, ""),
    }
}

/// The response to a refusal about something that has a name.
fn named(refusal: &Refusal, detail: &str) -> Response {
    match refusal {
        Refusal::NameTaken => Response::error_status(refusal.code(), 409, detail),
        Refusal::NameUnknown => Response::error_status(refusal.code(), 404, detail),
        refusal => refused(refusal, detail),
    }
}

/// The response to a refusal.
fn refused(refusal: &Refusal, detail: &str) -> Response {
    Response::error(refusal.code(), detail)
}

//! The HTTP interface: routes, access, and code that all endpoints share.
//!
//! Everything below an instance's base URL is reachable at `/` for the instance `default`, and at `/instances/$ID/`
//! for all (merchant chapter 1.1).

mod management;
mod orders;
mod page;
mod pay;
mod refunds;
mod status;
mod wallets;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batzen_crypto::hash::sha512_parts;
use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_engine::{Lane, SubmitError};
use batzen_http::{
    Admission, Checks, Handler, Head, Method, MetricsPage, Operations, Readiness, Request, Response, Routes,
    Stats, Style, Waiters, header, health,
};
use batzen_metrics::Page;
use batzen_protocol::api::merchant::{MERCHANT_PROTOCOL_VERSION, MerchantConfig as ConfigAnswer};
use batzen_protocol::api::parse_body;
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp};
use batzen_store::{Store, StoreError};
use batzen_tables::merchant::{
    InstanceAccountKey, InstanceAccountRow, InstanceAccounts, InstanceKey, InstanceRow, Instances,
    MerchantStateRow, OrderKey, OrderRef, OrderRow, Orders, order_ref,
};
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use crate::BODY_BYTES_MAX;
use crate::config::MerchantConfig;
use crate::exchanges::Exchanges;
use crate::rules::{MerchantRules, Refusal, TypedCommand};
use crate::urls::{self, DEFAULT};

/// The maximum number of long polls. Further ones are answered at once.
const WAITERS_MAX: usize = 65_536;
/// The longest wait of one long poll. The client may then ask again.
const LONG_POLL_MAX: Duration = Duration::from_secs(600);
/// The largest body of requests with little content, in bytes.
const SMALL_BODY_BYTES_MAX: usize = 4 << 10;
/// The largest body with an instance's settings, whose logo is an image, in bytes.
const SETTINGS_BYTES_MAX: usize = 512 << 10;

/// A response, successful or not. Both are sent.
type Answer = Result<Response, Response>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Home,
    Metrics,
    Health,
    Ready,
    Config,
    ListInstances,
    CreateInstance,
    ShowInstance,
    ChangeInstance,
    DeleteInstance,
    SetAuth,
    ShowSelf,
    ChangeSelf,
    DeleteSelf,
    SetOwnAuth,
    CreateOrder,
    ListOrders,
    ShowOrder,
    Claim,
    Pay,
    Paid,
    OrderStatus,
    ApproveRefund,
    PickUpRefund,
    Abort,
}

/// Values of the label `operation`.
const OPERATIONS: [&str; 7] = ["order", "claim", "pay", "status", "instance", "refund", "other"];

impl Endpoint {
    /// The largest body, in bytes, both compressed and decompressed.
    const fn body_bytes_max(self) -> usize {
        match self {
            Self::CreateOrder | Self::Pay | Self::Abort => BODY_BYTES_MAX,
            Self::CreateInstance | Self::ChangeInstance | Self::ChangeSelf => SETTINGS_BYTES_MAX,
            _ => SMALL_BODY_BYTES_MAX,
        }
    }

    /// The endpoint's index in [`OPERATIONS`].
    const fn operation(self) -> usize {
        match self {
            Self::CreateOrder | Self::ListOrders | Self::ShowOrder => 0,
            Self::Claim => 1,
            Self::Pay | Self::Paid => 2,
            Self::OrderStatus => 3,
            Self::ApproveRefund | Self::PickUpRefund | Self::Abort => 5,
            Self::Home | Self::Metrics | Self::Health | Self::Ready | Self::Config => 6,
            _ => 4,
        }
    }
}

/// An endpoint, and whether the instance is the first parameter of its path.
type Entry = (Endpoint, bool);

fn routes() -> Routes<Entry> {
    use Endpoint as E;
    let (get, post, patch, delete) = (Method::GET, Method::POST, Method::PATCH, Method::DELETE);
    let mut routes = Routes::new(Style::ByFirstSegment);
    for (method, path, endpoint) in [
        (&get, "/", E::Home),
        (&get, "/metrics", E::Metrics),
        (&get, "/health", E::Health),
        (&get, "/ready", E::Ready),
        (&get, "/management/instances", E::ListInstances),
        (&post, "/management/instances", E::CreateInstance),
        (&get, "/management/instances/:id", E::ShowInstance),
        (&patch, "/management/instances/:id", E::ChangeInstance),
        (&delete, "/management/instances/:id", E::DeleteInstance),
        (&post, "/management/instances/:id/auth", E::SetAuth),
    ] {
        routes = routes.route(method.clone(), path, (endpoint, false));
    }
    for (base, has_instance) in [("", false), ("/instances/:instance", true)] {
        for (method, path, endpoint) in [
            (&get, "/config", E::Config),
            (&get, "/private", E::ShowSelf),
            (&patch, "/private", E::ChangeSelf),
            (&delete, "/private", E::DeleteSelf),
            (&post, "/private/auth", E::SetOwnAuth),
            (&post, "/private/orders", E::CreateOrder),
            (&get, "/private/orders", E::ListOrders),
            (&get, "/private/orders/:order", E::ShowOrder),
            (&post, "/orders/:order/claim", E::Claim),
            (&post, "/orders/:order/pay", E::Pay),
            (&post, "/orders/:order/paid", E::Paid),
            (&post, "/private/orders/:order/refund", E::ApproveRefund),
            (&post, "/orders/:order/refund", E::PickUpRefund),
            (&post, "/orders/:order/abort", E::Abort),
            (&get, "/orders/:order", E::OrderStatus),
        ] {
            routes = routes.route(method.clone(), &format!("{base}{path}"), (endpoint, has_instance));
        }
    }
    routes
}

/// State that all endpoints share.
pub(crate) struct Service {
    config: MerchantConfig,
    state: MerchantStateRow,
    lane: Lane<MerchantRules>,
    store: Store,
    exchanges: Exchanges,
    /// Polls for the payment of an order, and for its refunds.
    payments: Arc<Waiters<OrderRef>>,
    /// Polls for new orders of an instance.
    lists: Arc<Waiters<String>>,
    /// The number of the latest order.
    last_row_id: AtomicU64,
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

/// An instance that exists.
struct Shop {
    id: String,
    row: InstanceRow,
}

impl Shop {
    /// Its private key: 404, code 2016 if it was deleted.
    fn key(&self) -> Result<EddsaPrivateKey, Response> {
        let deleted = || Response::error(ErrorCode::MERCHANT_GENERIC_INSTANCE_DELETED, &self.id);
        self.row.merchant_priv.map(EddsaPrivateKey::from_bytes).ok_or_else(deleted)
    }
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
        store: Store,
        exchanges: Exchanges,
        http_stats: Arc<Stats>,
    ) -> Self {
        let metrics_page = MetricsPage::new("merchant").in_currency(config.currency.to_string());
        Self {
            config,
            state,
            lane,
            store,
            exchanges,
            payments: Arc::new(Waiters::new(WAITERS_MAX)),
            lists: Arc::new(Waiters::new(WAITERS_MAX)),
            last_row_id: AtomicU64::new(0),
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
        match endpoint {
            Endpoint::Home => Ok(home()),
            Endpoint::Health => Ok(health()),
            Endpoint::Ready => Ok(self.ready().await),
            Endpoint::Metrics => {
                let parts = Arc::clone(self);
                Ok(self.metrics_page.answer(move |page| parts.write_metrics(page)).await)
            }
            Endpoint::Config => self.config_of(&instance).await,
            Endpoint::ListInstances => self.list_instances(head).await,
            Endpoint::CreateInstance => self.create_instance(&request).await,
            Endpoint::ShowInstance => self.show_instance(&self.managed(head, &param).await?).await,
            Endpoint::ChangeInstance => {
                self.change_instance(&request, &self.managed(head, &param).await?).await
            }
            Endpoint::DeleteInstance => self.delete_instance(head, &self.managed(head, &param).await?).await,
            Endpoint::SetAuth => self.set_auth(&request, &self.managed(head, &param).await?).await,
            Endpoint::ShowSelf => self.show_instance(&self.own(head, &instance).await?).await,
            Endpoint::ChangeSelf => self.change_instance(&request, &self.own(head, &instance).await?).await,
            Endpoint::DeleteSelf => self.delete_instance(head, &self.own(head, &instance).await?).await,
            Endpoint::SetOwnAuth => self.set_auth(&request, &self.own(head, &instance).await?).await,
            Endpoint::CreateOrder => self.create_order(&request, &self.own(head, &instance).await?).await,
            Endpoint::ListOrders => {
                let shop = self.own(head, &instance).await?;
                self.list_orders(request, &shop).await
            }
            Endpoint::ShowOrder => {
                let shop = self.own(head, &instance).await?;
                self.show_order(request, &shop, &param).await
            }
            Endpoint::Claim => self.claim(&request, &self.shop(&instance).await?, &param).await,
            Endpoint::Pay => {
                let shop = self.shop(&instance).await?;
                self.pay(request, &shop, &param).await
            }
            Endpoint::Paid => self.replay(&request, &self.shop(&instance).await?, &param).await,
            Endpoint::ApproveRefund => {
                self.approve_refund(&request, &self.own(head, &instance).await?, &param).await
            }
            Endpoint::PickUpRefund => {
                let shop = self.shop(&instance).await?;
                self.pick_up_refund(request, &shop, &param).await
            }
            Endpoint::Abort => {
                let shop = self.shop(&instance).await?;
                self.abort(request, &shop, &param).await
            }
            Endpoint::OrderStatus => {
                let shop = self.shop(&instance).await?;
                self.order_status(request, &shop, &param).await
            }
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) async fn end_sampling(&self) {
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
        self.lane.metrics().write(page);
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
    async fn execute<C: TypedCommand>(&self, command: C) -> Result<Result<C::Outcome, Refusal>, Response> {
        match self.lane.submit(command.into()).await {
            Ok(verdict) => Ok(verdict.map(C::outcome)),
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

    async fn find_shop(&self, id: &str) -> Result<Option<Shop>, Response> {
        let key = InstanceKey::new(id);
        let found = self.read(move |store| store.get::<Instances>(&key)).await?;
        Ok(found.map(|found| Shop { id: id.to_owned(), row: found.row }))
    }

    /// Requires an instance: 404, code 2000 if it does not exist.
    async fn shop(&self, id: &str) -> Result<Shop, Response> {
        let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_INSTANCE_UNKNOWN, id);
        self.find_shop(id).await?.ok_or_else(unknown)
    }

    /// Requires an instance and its access token: 401, code 2015.
    async fn own(&self, head: &Head, id: &str) -> Result<Shop, Response> {
        let shop = self.shop(id).await?;
        self.authorize(head, &shop)?;
        Ok(shop)
    }

    /// Requires an instance and the administrator's token.
    async fn managed(&self, head: &Head, id: &str) -> Result<Shop, Response> {
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

fn home() -> Response {
    Response::text(
        200,
        "A Batzen merchant backend.\n\n\
         Shops:           /management/instances\n\
         Orders:          /private/orders, /instances/$ID/private/orders\n\
         For wallets:     /orders/$ORDER_ID, /instances/$ID/orders/$ORDER_ID\n\
         Metrics:         /metrics\n",
    )
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

/// The response to a refusal.
fn refused(refusal: &Refusal, detail: &str) -> Response {
    Response::error(refusal.code(), detail)
}

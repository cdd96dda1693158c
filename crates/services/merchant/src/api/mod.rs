//! The HTTP interface: one file per family of endpoints, each with its rows of the table.
//!
//! Everything below an instance's base URL is reachable at `/` for the instance `default`, and at `/instances/$ID/`
//! for all (merchant chapter 1.1).

mod access;
mod auditors;
mod background;
mod core;
mod deliveries;
mod kyc;
mod management;
mod openapi;
mod orders;
mod page;
mod pay;
mod problems;
mod products;
mod refunds;
mod reserves;
mod returns;
mod root;
mod shops;
mod status;
mod table;
mod templates;
mod tips;
mod tokens;
mod tracking;
mod transfers;
mod wallets;
mod webhooks;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_engine::{Collector, CollectorOptions, CpuPool, Lane};
use batzen_http::client::{Client, ClientError, ClientOptions, Destinations};
use batzen_http::{Head, Request, Response, Stats, Style};
use batzen_metrics::Page;
use batzen_protocol::ErrorCode;
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{Answer, Api, App, Checked, Failures, Monitor, Readiness, body, poll_deadline};
use batzen_tables::merchant::MerchantStateRow;

use self::access::Gate;
use self::auditors::Auditors;
use self::background::Background;
pub(crate) use self::background::start as start_background;
use self::deliveries::{HOOK_TIMEOUT, Queues};
use self::kyc::KycPace;
use self::pay::Confirmation;
pub(crate) use self::returns::{ask_due, end_claims};
pub(crate) use self::shops::Shop;
use self::shops::Shops;
use self::table::{BASES, OPERATIONS, Row};
use self::templates::Pace;

use self::core::Core;
use crate::HOOK_REPLY_BYTES_MAX;
use crate::config::MerchantConfig;
use crate::exchanges::Exchanges;
use crate::rules::{MerchantRules, Refusal};
use crate::surroundings::Surroundings;
use crate::urls;

/// Single jobs of the CPU pool that may wait.
pub(crate) const POOL_JOBS_MAX: usize = 1_024;
/// The longest wait of one long poll. The client may then ask again.
const LONG_POLL_MAX: Duration = Duration::from_secs(600);
const DASHBOARD: Layout = Layout { sections: COMMON, work: &["refund", "transfer"] };

/// Answers to failures of the backend itself.
pub(crate) const FAILURES: Failures = Failures::GENERIC;

/// A merchant backend.
pub(crate) struct Merchant {
    pub(crate) core: Core,
    gate: Gate,
    exchanges: Exchanges,
    pool: CpuPool,
    /// Checks of signatures of exchanges; true if valid.
    confirmations: Collector<Confirmation, bool>,
    auditors: Arc<Auditors>,
    /// For the receivers of web hooks.
    hook_client: Client,
    hook_queues: Arc<Queues>,
    background: Background,
    template_pace: Mutex<Pace>,
    kyc_pace: KycPace,
    monitor: Monitor,
}

impl Merchant {
    pub(crate) fn new(
        config: MerchantConfig,
        state: MerchantStateRow,
        lane: Lane<MerchantRules>,
        instance_changes: Arc<AtomicU64>,
        http_stats: Arc<Stats>,
        pool: CpuPool,
        surroundings: &Surroundings,
    ) -> Result<Self, ClientError> {
        let (auditors, networks) = (config.auditors.clone(), config.exchange_networks.clone());
        let exchanges = Exchanges::new(
            config.currency,
            &config.exchanges,
            auditors,
            networks,
            lane.clone(),
            surroundings,
        )?;
        let hooks = ClientOptions {
            timeout: HOOK_TIMEOUT,
            max_reply_bytes: HOOK_REPLY_BYTES_MAX,
            destinations: Destinations::Public(config.webhook_networks.clone()),
            ..Default::default()
        };
        let hook_client = surroundings.client(&hooks)?;
        let confirmations = pool.collector("confirmation", CollectorOptions::default(), pay::check);
        let monitor =
            Monitor::new("merchant", &OPERATIONS, &DASHBOARD, http_stats).in_currency(config.currency);
        Ok(Self {
            core: Core::new(config, lane, surroundings),
            gate: Gate::new(Shops::new(instance_changes), state.token_salt),
            auditors: Arc::new(Auditors::new()),
            exchanges,
            pool,
            confirmations,
            hook_client,
            hook_queues: Arc::default(),
            background: Background::default(),
            template_pace: Mutex::default(),
            kyc_pace: KycPace::default(),
            monitor,
        })
    }

    /// Ends the work that no request waits for.
    pub(crate) async fn end_background(&self) {
        self.background.end().await;
        self.auditors.end().await;
    }
}

impl App for Merchant {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    async fn ready(&self) -> Readiness {
        self.monitor.check(&self.core.store, self.core.now()).await
    }

    fn write_metrics(&self, page: &mut Page) {
        self.auditors.write(page);
        self.core.lane().metrics().write(page);
        self.pool.write(page);
        self.core.store.write_metrics(page, batzen_tables::merchant::ALL);
    }
}

/// The rows of all endpoints.
fn rows() -> Vec<Row> {
    let families = [
        root::routes,
        management::routes,
        kyc::routes,
        orders::routes,
        wallets::routes,
        pay::routes,
        refunds::routes,
        products::routes,
        transfers::routes,
        reserves::routes,
        tips::routes,
        webhooks::routes,
        templates::routes,
        tokens::routes,
        status::routes,
    ];
    families.into_iter().flat_map(|family| family().rows).collect()
}

fn table() -> batzen_service::Table<Merchant> {
    let mut table = batzen_service::Table::new(Style::ByFirstSegment, &OPERATIONS)
        .with_get_limit(table::SMALL_BODY_BYTES_MAX)
        .monitored("other")
        .with_dashboard("other");
    for base in BASES {
        for row in rows() {
            table = row.add(table, base);
        }
    }
    table
}

/// Method, pattern and reach of every endpoint, for documents.
#[must_use]
pub fn endpoints() -> Vec<(String, batzen_service::Reach)> {
    table().endpoints()
}

/// The interface of a backend.
pub(crate) fn api(app: Arc<Merchant>) -> Api<Merchant> {
    Api::new(app, table())
}

/// The instance's base URL in the customer's browser: 400, code 25 if the request has no usable host.
fn base_url(head: &Head, shop: &Shop) -> Checked<String> {
    let missing = || Response::error(ErrorCode::GENERIC_PARAMETER_MISSING, "Host");
    urls::base_url(head, &shop.id).ok_or_else(missing)
}

/// Returns whether a parameter of the query says yes.
fn is_yes(request: &Request, name: &str) -> bool {
    request.query_text(name).is_some_and(|text| text.eq_ignore_ascii_case("yes"))
}

/// The choice of a parameter of the query; none if it says `all` or is missing.
fn yes_or_no(request: &Request, name: &str) -> Checked<Option<bool>> {
    match request.query_text(name).map(str::to_ascii_lowercase).as_deref() {
        None | Some("all") => Ok(None),
        Some("yes") => Ok(Some(true)),
        Some("no") => Ok(Some(false)),
        Some(_) => Err(malformed(name)),
    }
}

/// The answer to a parameter that is malformed.
fn malformed(name: &str) -> Response {
    Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, name)
}

/// The answer to a refusal.
pub(crate) fn refused(refusal: &Refusal, detail: &str) -> Response {
    match refusal {
        Refusal::NameTaken => Response::error_status(refusal.code(), 409, detail),
        Refusal::TooMany(_) => Response::error_status(refusal.code(), 409, &refusal.to_string()),
        Refusal::NameUnknown => Response::error_status(refusal.code(), 404, detail),
        refusal => Response::error(refusal.code(), detail),
    }
}

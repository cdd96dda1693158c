//! The operators' interface. It is synchronous, and each request carries an operator's bearer token.

mod approvals;
mod bodies;
mod books;
mod changes;
pub mod dashboard;
mod funds;
mod metrics;
mod reports;
mod settlements;

use std::sync::Arc;

use batzen_engine::SubmitError;
use batzen_http::{Handler, Method, Request, Response, Routes, Stats, Style, header};
use batzen_service::{Checks, MetricsPage, Readiness, health};
use serde::de::DeserializeOwned;
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::errors::ApiError;
use crate::rules::Refusal;
use crate::service::Service;
use crate::treasury::OperatorError;

/// The name of the hub in paths.
pub const HUB_NAME: &str = "Hub";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Health,
    Ready,
    Metrics,
    Dashboard,
    Participants,
    ParticipantCreate,
    Participant,
    ParticipantChange,
    Callbacks,
    CallbackSet,
    InitialLimits,
    AllLimits,
    Limits,
    LimitChange,
    Positions,
    Accounts,
    AccountCreate,
    AccountChange,
    Funds,
    FundsFinish,
    Approvals,
    Approval,
    ApprovalDecide,
    Windows,
    Window,
    WindowClose,
    Models,
    ModelSet,
    ModelChange,
    Settlements,
    SettlementCreate,
    Settlement,
    SettlementChange,
    SettlementReport,
    Balances,
    Statement,
    Transfer,
    TransferReport,
}

fn routes() -> Routes<Endpoint> {
    use Endpoint as E;
    let (get, post, put) = (Method::GET, Method::POST, Method::PUT);
    Routes::new(Style::ByPath)
        .route(get.clone(), "/health", E::Health)
        .route(get.clone(), "/ready", E::Ready)
        .route(get.clone(), "/metrics", E::Metrics)
        .route(get.clone(), "/dashboard", E::Dashboard)
        .route(get.clone(), "/dashboard/:part", E::Dashboard)
        .route(get.clone(), "/participants", E::Participants)
        .route(post.clone(), "/participants", E::ParticipantCreate)
        .route(get.clone(), "/participants/limits", E::AllLimits)
        .route(get.clone(), "/participants/:name", E::Participant)
        .route(put.clone(), "/participants/:name", E::ParticipantChange)
        .route(get.clone(), "/participants/:name/endpoints", E::Callbacks)
        .route(post.clone(), "/participants/:name/endpoints", E::CallbackSet)
        .route(post.clone(), "/participants/:name/initialPositionAndLimits", E::InitialLimits)
        .route(get.clone(), "/participants/:name/limits", E::Limits)
        .route(put.clone(), "/participants/:name/limits", E::LimitChange)
        .route(get.clone(), "/participants/:name/positions", E::Positions)
        .route(get.clone(), "/participants/:name/statement", E::Statement)
        .route(get.clone(), "/participants/:name/accounts", E::Accounts)
        .route(post.clone(), "/participants/:name/accounts", E::AccountCreate)
        .route(put.clone(), "/participants/:name/accounts/:id", E::AccountChange)
        .route(post.clone(), "/participants/:name/accounts/:id", E::Funds)
        .route(put.clone(), "/participants/:name/accounts/:id/transfers/:transfer", E::FundsFinish)
        .route(get.clone(), "/approvals", E::Approvals)
        .route(get.clone(), "/approvals/:id", E::Approval)
        .route(post.clone(), "/approvals/:id", E::ApprovalDecide)
        .route(get.clone(), "/settlementWindows", E::Windows)
        .route(get.clone(), "/settlementWindows/:id", E::Window)
        .route(post.clone(), "/settlementWindows/:id", E::WindowClose)
        .route(get.clone(), "/settlementModels", E::Models)
        .route(post.clone(), "/settlementModels", E::ModelSet)
        .route(put.clone(), "/settlementModels/:name", E::ModelChange)
        .route(get.clone(), "/settlements", E::Settlements)
        .route(post, "/settlements", E::SettlementCreate)
        .route(get.clone(), "/settlements/:id", E::Settlement)
        .route(put, "/settlements/:id", E::SettlementChange)
        .route(get.clone(), "/settlements/:id/report", E::SettlementReport)
        .route(get.clone(), "/balances", E::Balances)
        .route(get.clone(), "/transfers/:id", E::Transfer)
        .route(get, "/transfers/:id/report", E::TransferReport)
}

/// The handler of the operators' listener.
pub struct AdminApi {
    service: Arc<Service>,
    routes: Routes<Endpoint>,
    stats: Arc<Stats>,
    metrics_page: MetricsPage,
    checks: Checks,
}

/// Either variant is sent to the client.
type Answer = Result<Response, Response>;

/// A request by a known operator.
struct Wish<'a> {
    request: &'a Request,
    operator: &'a str,
    params: Vec<&'a str>,
}

impl Wish<'_> {
    fn param(&self, place: usize) -> &str {
        self.params.get(place).copied().unwrap_or_default()
    }

    fn json<T: DeserializeOwned>(&self) -> Result<T, Response> {
        serde_json::from_slice(&self.request.body)
            .map_err(|error| fault(400, ApiError::MalformedSyntax, &error.to_string()))
    }
}

/// An error answer in the form of the participants' interface.
fn fault(status: u16, error: ApiError, text: &str) -> Response {
    let text = if text.is_empty() { error.text() } else { text };
    let body =
        json!({ "errorInformation": { "errorCode": error.code().to_string(), "errorDescription": text } });
    Response::json(status, &body)
}

fn failed(error: &OperatorError) -> Response {
    let text = error.to_string();
    match error {
        OperatorError::Refused(Refusal::Unknown(_)) => fault(404, ApiError::IdNotFound, &text),
        OperatorError::Refused(Refusal::Conflict(_) | Refusal::NotDone(_)) => {
            fault(409, ApiError::ValidationError, &text)
        }
        OperatorError::Refused(Refusal::Forbidden(_)) => fault(403, ApiError::ClientError, &text),
        OperatorError::Refused(Refusal::Overtaken) | OperatorError::Lane(SubmitError::Overloaded) => {
            fault(503, ApiError::ServerBusy, &text).with_header(header::RETRY_AFTER, "1")
        }
        OperatorError::Lane(_) => fault(503, ApiError::ServiceUnavailable, &text),
        OperatorError::Insufficient(_) => fault(409, ApiError::PayerFspInsufficientLiquidity, &text),
        OperatorError::Malformed(_) => fault(400, ApiError::MalformedSyntax, &text),
        OperatorError::Store(_) | OperatorError::Ledger(_) => {
            tracing::error!(%error, "an operator's request failed");
            fault(500, ApiError::InternalServerError, &text)
        }
    }
}

impl AdminApi {
    /// The interface of this service; `stats` are the counters of the participants' server. Must be called
    /// within a tokio runtime.
    pub fn new(service: Arc<Service>, stats: Arc<Stats>) -> Self {
        let metrics_page = MetricsPage::new("switch", &dashboard::DASHBOARD);
        let api = Self { service, routes: routes(), stats, metrics_page, checks: Checks::default() };
        api.fill_dashboard();
        api
    }

    /// The operator who sends the request, by its token.
    fn operator(&self, request: &Request) -> Result<&str, Response> {
        let denied = || {
            fault(401, ApiError::ClientError, "an operator's bearer token is required")
                .with_header(header::WWW_AUTHENTICATE, "Bearer")
        };
        let hash: [u8; 32] = Sha256::digest(request.bearer_token().ok_or_else(denied)?).into();
        let mut found = None;
        for operator in &self.service.config().operators {
            if bool::from(operator.token_hash.ct_eq(&hash)) {
                found = Some(operator.name.as_str());
            }
        }
        found.ok_or_else(denied)
    }

    async fn dispatch(&self, request: &Request) -> Answer {
        use Endpoint as E;
        let matched = self.routes.resolve(&request.head).map_err(of_the_interface)?;
        match matched.endpoint {
            E::Health => return Ok(health()),
            E::Ready => return Ok(self.ready().await),
            E::Metrics => return Ok(self.metrics().await),
            E::Dashboard => return Ok(self.metrics_page.dashboard(&request.head)),
            _ => {}
        }
        let wish = Wish { request, operator: self.operator(request)?, params: matched.params };
        let wish = &wish;
        match matched.endpoint {
            E::Health | E::Ready | E::Metrics | E::Dashboard => unreachable!("answered above"),
            E::Participants => self.participants(),
            E::ParticipantCreate => self.participant_create(wish).await,
            E::Participant => self.participant(wish.param(0)),
            E::ParticipantChange => self.participant_change(wish).await,
            E::Callbacks => self.endpoints(wish.param(0)),
            E::CallbackSet => self.endpoint_set(wish).await,
            E::InitialLimits => self.initial_limits(wish).await,
            E::AllLimits => self.limits(None),
            E::Limits => self.limits(Some(wish.param(0))),
            E::LimitChange => self.limit_change(wish).await,
            E::Positions => self.positions(wish.param(0)).await,
            E::Accounts => self.accounts(wish.param(0)).await,
            E::AccountCreate => self.account_create(wish).await,
            E::AccountChange => self.account_change(wish).await,
            E::Funds => self.funds(wish).await,
            E::FundsFinish => self.funds_finish(wish).await,
            E::Approvals => self.approvals(wish),
            E::Approval => self.approval(wish.param(0)),
            E::ApprovalDecide => self.approval_decide(wish).await,
            E::Windows => self.windows(wish),
            E::Window => self.window(wish.param(0)),
            E::WindowClose => self.window_close(wish).await,
            E::Models => self.models(),
            E::ModelSet => self.model_set(wish, None).await,
            E::ModelChange => self.model_set(wish, Some(wish.param(0))).await,
            E::Settlements => self.settlements(),
            E::SettlementCreate => self.settlement_create(wish).await,
            E::Settlement => self.settlement(wish.param(0)),
            E::SettlementChange => self.settlement_change(wish).await,
            E::SettlementReport => self.settlement_report(wish),
            E::Balances => self.balances().await,
            E::Statement => match wish.request.query_text("window") {
                Some(window) => self.window_statement(wish, window).await,
                None => self.statement(wish),
            },
            E::Transfer => self.transfer(wish.param(0)),
            E::TransferReport => self.transfer_report(wish),
        }
    }

    /// Checks whether the switch can clear: store or database, clock, ledger, and an open settlement
    /// window.
    async fn ready(&self) -> Response {
        let store = self.service.store().clone();
        let config = self.service.config();
        let name = if config.store.is_database() { "database" } else { "store" };
        let ledger = async {
            let answer = self.service.treasury().ledger().check().await;
            answer.map_err(|error| format!("the ledger does not answer: {error}"))
        };
        Readiness::new()
            .check_within(name, self.checks.blocking(move || store.check_writable()))
            .await
            .check("clock", self.checks.clock((config.clock)()))
            .check_within("ledger", ledger)
            .await
            .check("window", self.service.state())
            .into_response()
    }
}

/// Converts an error of the HTTP frame to the format of this interface.
pub(crate) fn of_the_interface(mut frame: Response) -> Response {
    let error = match frame.status {
        ..400 => return frame,
        404 => ApiError::UnknownUri,
        413 | 414 | 431 => ApiError::TooLarge,
        405 | 408 => ApiError::ClientError,
        503 => ApiError::ServerBusy,
        500.. => ApiError::InternalServerError,
        _ => ApiError::MalformedSyntax,
    };
    let text = match frame.status {
        404 => "there is no such path".to_owned(),
        405 => format!("the method is not allowed here: {}", frame.header(&header::ALLOW).unwrap_or("none")),
        _ => frame.json_value()["detail"].as_str().unwrap_or_default().to_owned(),
    };
    frame.body = fault(frame.status, error, &text).body;
    frame
}

impl Handler for AdminApi {
    async fn handle(&self, request: Request) -> Response {
        self.dispatch(&request).await.unwrap_or_else(|error| error)
    }
}

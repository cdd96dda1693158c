//! All endpoints except the event stream: decode, ask the ledger, encode.

use batzen_http::{Request, Response};
use batzen_ledger::{
    Account, AccountFilter, CreateAccountStatus, CreateResult, CreateTransferStatus, LedgerError,
    QueryFilter, Transfer,
};
use batzen_service::{Answer, endpoint};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{BODY_BYTES_MAX, ErrorJson, LedgerApi, Table, error, malformed, refused};
use crate::net::json::{
    AccountFilterJson, AccountJson, BalanceJson, QueryFilterJson, ResultJson, TransferJson, Wide,
};

pub(super) fn routes(table: Table) -> Table {
    table
        .post("/v1/accounts", BODY_BYTES_MAX, "create_accounts", endpoint!(create_accounts))
        .post("/v1/transfers", BODY_BYTES_MAX, "create_transfers", endpoint!(create_transfers))
        .post("/v1/accounts/lookup", BODY_BYTES_MAX, "lookup", endpoint!(lookup_accounts))
        .post("/v1/transfers/lookup", BODY_BYTES_MAX, "lookup", endpoint!(lookup_transfers))
        .post("/v1/accounts/query", BODY_BYTES_MAX, "query", endpoint!(query_accounts))
        .post("/v1/transfers/query", BODY_BYTES_MAX, "query", endpoint!(query_transfers))
        .get("/v1/accounts/:id", "lookup", endpoint!(account))
        .get("/v1/transfers/:id", "lookup", endpoint!(transfer))
        .get("/v1/accounts/:id/transfers", "query", endpoint!(account_transfers))
        .get("/v1/accounts/:id/balances", "query", endpoint!(account_balances))
}

/// Accounts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Accounts {
    /// In order.
    pub accounts: Vec<AccountJson>,
}

/// Transfers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfers {
    /// In order.
    pub transfers: Vec<TransferJson>,
}

/// Results.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Results {
    /// One for each event, in order.
    pub results: Vec<ResultJson>,
}

/// Balances.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Balances {
    /// In order.
    pub balances: Vec<BalanceJson>,
}

/// Ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ids {
    /// In order; at most 8,189.
    pub ids: Vec<Wide>,
}

fn body<'a, T: Deserialize<'a>>(request: &'a Request) -> Result<T, Response> {
    serde_json::from_slice(&request.body).map_err(|error| malformed(&error.to_string()))
}

fn id(text: &str) -> Result<u128, Response> {
    text.parse::<Wide>().map(|id| id.0).map_err(|error| malformed(&error.to_string()))
}

fn accounts(accounts: Result<Vec<Account>, LedgerError>) -> Answer {
    let accounts = accounts.map_err(|error| refused(&error))?;
    Ok(Response::json(200, &Accounts { accounts: accounts.iter().map(Into::into).collect() }))
}

fn transfers(transfers: Result<Vec<Transfer>, LedgerError>) -> Answer {
    let transfers = transfers.map_err(|error| refused(&error))?;
    Ok(Response::json(200, &Transfers { transfers: transfers.iter().map(Into::into).collect() }))
}

fn results<S>(results: Result<Vec<CreateResult<S>>, LedgerError>) -> Answer
where
    for<'a> ResultJson: From<&'a CreateResult<S>>,
{
    let results = results.map_err(|error| refused(&error))?;
    Ok(Response::json(200, &Results { results: results.iter().map(Into::into).collect() }))
}

/// The events of a body. An error names the position of the first mistake.
fn events<'a, J, R>(json: &'a [J]) -> Result<Vec<R>, Response>
where
    R: TryFrom<&'a J, Error = crate::net::json::JsonError>,
{
    let read =
        |(place, event)| R::try_from(event).map_err(|error| malformed(&format!("event {place}: {error}")));
    json.iter().enumerate().map(read).collect()
}

#[utoipa::path(
    post, path = "/v1/accounts", request_body = Accounts,
    responses(
        (status = 200, description = "Durable; one result for each event", body = Results),
        (status = 400, description = "Ill-formed: nothing was done", body = ErrorJson),
        (status = 413, description = "More than 8,189 events: nothing was done", body = ErrorJson),
        (status = 503, description = "Busy: nothing was done, try later", body = ErrorJson),
        (status = 504, description = "Unknown: repeat under the same ids", body = ErrorJson),
    )
)]
/// Creates accounts.
pub(super) async fn create_accounts(api: &LedgerApi, request: &Request) -> Answer {
    let body: Accounts = body(request)?;
    let answer: Result<Vec<CreateResult<CreateAccountStatus>>, _> =
        api.ledger.create_accounts(events(&body.accounts)?).await;
    results(answer)
}

#[utoipa::path(
    post, path = "/v1/transfers", request_body = Transfers,
    responses(
        (status = 200, description = "Durable; one result for each event", body = Results),
        (status = 400, description = "Ill-formed: nothing was done", body = ErrorJson),
        (status = 413, description = "More than 8,189 events: nothing was done", body = ErrorJson),
        (status = 503, description = "Busy: nothing was done, try later", body = ErrorJson),
        (status = 504, description = "Unknown: repeat under the same ids", body = ErrorJson),
    )
)]
/// Creates transfers.
pub(super) async fn create_transfers(api: &LedgerApi, request: &Request) -> Answer {
    let body: Transfers = body(request)?;
    let answer: Result<Vec<CreateResult<CreateTransferStatus>>, _> =
        api.ledger.create_transfers(events(&body.transfers)?).await;
    results(answer)
}

#[utoipa::path(
    post, path = "/v1/accounts/lookup", request_body = Ids,
    responses((status = 200, description = "Those that exist, in order", body = Accounts))
)]
/// Accounts by id.
pub(super) async fn lookup_accounts(api: &LedgerApi, request: &Request) -> Answer {
    let ids = body::<Ids>(request)?.ids;
    accounts(api.ledger.lookup_accounts(ids.into_iter().map(|id| id.0).collect()).await)
}

#[utoipa::path(
    post, path = "/v1/transfers/lookup", request_body = Ids,
    responses((status = 200, description = "Those that exist, in order", body = Transfers))
)]
/// Transfers by id.
pub(super) async fn lookup_transfers(api: &LedgerApi, request: &Request) -> Answer {
    let ids = body::<Ids>(request)?.ids;
    transfers(api.ledger.lookup_transfers(ids.into_iter().map(|id| id.0).collect()).await)
}

#[utoipa::path(
    get, path = "/v1/accounts/{id}", params(("id" = String, Path, description = "The account's id")),
    responses((status = 200, body = AccountJson), (status = 404, body = ErrorJson))
)]
/// One account.
pub(super) async fn account(api: &LedgerApi, request: &Request) -> Answer {
    let id_text = request.param("id");
    let found = api.ledger.lookup_accounts(vec![id(id_text)?]).await.map_err(|error| refused(&error))?;
    let found =
        found.first().ok_or_else(|| error(404, "not_found", &format!("there is no account {id_text}")))?;
    Ok(Response::json(200, &AccountJson::from(found)))
}

#[utoipa::path(
    get, path = "/v1/transfers/{id}", params(("id" = String, Path, description = "The transfer's id")),
    responses((status = 200, body = TransferJson), (status = 404, body = ErrorJson))
)]
/// One transfer.
pub(super) async fn transfer(api: &LedgerApi, request: &Request) -> Answer {
    let id_text = request.param("id");
    let found = api.ledger.lookup_transfers(vec![id(id_text)?]).await.map_err(|error| refused(&error))?;
    let found =
        found.first().ok_or_else(|| error(404, "not_found", &format!("there is no transfer {id_text}")))?;
    Ok(Response::json(200, &TransferJson::from(found)))
}

/// Parameters for the history of an account.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "describes a query string; it is read by name")]
struct HistoryParams {
    /// Free data of the client; left out: any.
    user_data_128: Option<String>,
    /// Free data of the client; left out: any.
    user_data_64: Option<String>,
    /// Free data of the client; left out: any.
    user_data_32: Option<u32>,
    /// Code; left out: any.
    code: Option<u16>,
    /// Inclusive.
    timestamp_min: Option<String>,
    /// Inclusive.
    timestamp_max: Option<String>,
    /// At most 8,189, which is the default.
    limit: Option<u32>,
    /// Whether to include debits. Default: yes.
    debits: Option<bool>,
    /// Whether to include credits. Default: yes.
    credits: Option<bool>,
    /// Latest first.
    reversed: Option<bool>,
}

fn account_filter(request: &Request) -> Result<AccountFilter, Response> {
    let wide = |name| Ok::<_, Response>(request.query_opt::<Wide>(name)?.unwrap_or_default());
    let all = AccountFilter::all(id(request.param("id"))?);
    let json = AccountFilterJson {
        account_id: Wide(all.account_id),
        user_data_128: wide("user_data_128")?,
        user_data_64: wide("user_data_64")?,
        user_data_32: request.query_opt("user_data_32")?.unwrap_or_default(),
        code: request.query_opt("code")?.unwrap_or_default(),
        timestamp_min: wide("timestamp_min")?,
        timestamp_max: wide("timestamp_max")?,
        limit: request.query_opt("limit")?.unwrap_or(all.limit),
        debits: request.query_opt("debits")?.unwrap_or(true),
        credits: request.query_opt("credits")?.unwrap_or(true),
        reversed: request.query_opt("reversed")?.unwrap_or(false),
    };
    AccountFilter::try_from(&json).map_err(|error| malformed(&error.to_string()))
}

#[utoipa::path(
    get, path = "/v1/accounts/{id}/transfers",
    params(("id" = String, Path, description = "The account's id"), HistoryParams),
    responses(
        (status = 200, description = "In the order of their timestamps", body = Transfers),
        (status = 422, description = "The search reached its limit: see `until`", body = ErrorJson),
    )
)]
/// The transfers of an account.
pub(super) async fn account_transfers(api: &LedgerApi, request: &Request) -> Answer {
    transfers(api.ledger.get_account_transfers(account_filter(request)?).await)
}

#[utoipa::path(
    get, path = "/v1/accounts/{id}/balances",
    params(("id" = String, Path, description = "The account's id"), HistoryParams),
    responses(
        (status = 200, description = "Of accounts that keep history", body = Balances),
        (status = 422, description = "The search reached its limit: see `until`", body = ErrorJson),
    )
)]
/// The balances of an account after each of its transfers.
pub(super) async fn account_balances(api: &LedgerApi, request: &Request) -> Answer {
    let answer = api.ledger.get_account_balances(account_filter(request)?).await;
    let balances = answer.map_err(|error| refused(&error))?;
    Ok(Response::json(200, &Balances { balances: balances.iter().map(Into::into).collect() }))
}

fn query_filter(request: &Request) -> Result<QueryFilter, Response> {
    let json: QueryFilterJson = body(request)?;
    QueryFilter::try_from(&json).map_err(|error| malformed(&error.to_string()))
}

#[utoipa::path(
    post, path = "/v1/accounts/query", request_body = QueryFilterJson,
    responses(
        (status = 200, description = "In the order of their timestamps", body = Accounts),
        (status = 422, description = "The search reached its limit: see `until`", body = ErrorJson),
    )
)]
/// Accounts that match a filter.
pub(super) async fn query_accounts(api: &LedgerApi, request: &Request) -> Answer {
    accounts(api.ledger.query_accounts(query_filter(request)?).await)
}

#[utoipa::path(
    post, path = "/v1/transfers/query", request_body = QueryFilterJson,
    responses(
        (status = 200, description = "In the order of their timestamps", body = Transfers),
        (status = 422, description = "The search reached its limit: see `until`", body = ErrorJson),
    )
)]
/// Transfers that match a filter.
pub(super) async fn query_transfers(api: &LedgerApi, request: &Request) -> Answer {
    transfers(api.ledger.query_transfers(query_filter(request)?).await)
}

//! The OpenAPI document, generated from the endpoints.

use std::sync::OnceLock;

use utoipa::OpenApi;

use super::{ErrorJson, endpoints, events};
use crate::net::json::{AccountJson, BalanceJson, EventJson, QueryFilterJson, ResultJson, TransferJson};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Batzen ledger",
        description = "Two-phase double-entry ledger. Integers of 64 and 128 bits are strings. Ids are idempotency keys: repeat a request that was not answered under the same ids.",
        license(name = "Apache-2.0 OR MIT"),
    ),
    paths(
        endpoints::create_accounts,
        endpoints::create_transfers,
        endpoints::lookup_accounts,
        endpoints::lookup_transfers,
        endpoints::account,
        endpoints::transfer,
        endpoints::account_transfers,
        endpoints::account_balances,
        endpoints::query_accounts,
        endpoints::query_transfers,
        events::events,
    ),
    components(schemas(
        AccountJson,
        TransferJson,
        ResultJson,
        BalanceJson,
        EventJson,
        QueryFilterJson,
        ErrorJson,
        endpoints::Accounts,
        endpoints::Transfers,
        endpoints::Results,
        endpoints::Balances,
        endpoints::Ids,
    ))
)]
struct Document;

/// The OpenAPI document as JSON.
///
/// # Panics
/// Never: it is a constant.
#[must_use]
pub fn document() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| Document::openapi().to_pretty_json().expect("strings and numbers only"))
}

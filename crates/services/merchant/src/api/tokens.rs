//! Further access tokens of an instance: `/private/token` and `/private/tokens`.

use std::sync::Arc;

use batzen_crypto::{HashCode, base32};
use batzen_http::{Request, Response};
use batzen_protocol::Timestamp;
use batzen_protocol::api::merchant::{CreateTokenRequest, CreateTokenResponse, TokenList, TokenSummary};
use batzen_store::{Found, Store};
use batzen_tables::merchant::{AccessTokenKey, AccessTokenRow, AccessTokens};

use super::access::Scope;
use super::core::Core;
use super::table::{Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, malformed, refused};
use crate::rules::{Edit, EditToken, Refusal};

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("instance");
    rows.post("/private/token", endpoint!(Owner, create_token), "Create a further access token")
        .takes::<CreateTokenRequest>(SMALL_BODY_BYTES_MAX)
        .gives::<CreateTokenResponse>();
    rows.get("/private/tokens", endpoint!(Reader, list_tokens), "List further access tokens")
        .gives::<TokenList>();
    rows.delete("/private/tokens/:serial", endpoint!(Owner, delete_token), "Delete a further access token")
        .gives_nothing();
    rows
}

/// The longest description, in bytes.
const TEXT_BYTES_MAX: usize = 256;

async fn tokens(core: &Core, shop: &Shop) -> Checked<Vec<Found<AccessTokens>>> {
    let id = shop.id.clone();
    let read = move |store: &Store| store.lookup::<AccessTokens>(AccessTokens::BY_INSTANCE, &id);
    let mut all = core.read(read).await?;
    all.sort_by_key(|found| found.row.row_id);
    Ok(all)
}

/// The scope of a further token; none if it is unknown or has ended.
pub(super) async fn scope_of(core: &Core, shop: &Shop, token_hash: HashCode) -> Checked<Option<Scope>> {
    let key = AccessTokenKey { instance: shop.id.clone(), token_hash };
    let found = core.read(move |store| store.get::<AccessTokens>(&key)).await?;
    let valid = found.filter(|found| core.now() < found.row.expires);
    Ok(valid.and_then(|found| Scope::from_name(&found.row.scope)))
}

async fn create_token(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let CreateTokenRequest { scope, duration, description } = body(request)?;
    if Scope::from_name(&scope).is_none() {
        return Err(malformed("scope"));
    }
    let description = description.unwrap_or_default();
    if description.len() > TEXT_BYTES_MAX {
        return Err(malformed("description"));
    }
    let now = app.core.now();
    let token = format!("secret-token:{}", base32::encode(&app.core.random::<32>()));
    let expires = if duration.is_forever() { Timestamp::NEVER } else { now.saturating_add(duration) };
    let key = AccessTokenKey { instance: shop.id.clone(), token_hash: app.gate.token_hash(&shop.id, &token) };
    let row = AccessTokenRow {
        row_id: app.core.next_row_id(),
        scope: scope.clone(),
        description,
        created: Timestamp::from_secs(now.as_micros() / 1_000_000),
        expires,
    };
    app.core.decide(EditToken { key, edit: Edit::Create(row) }, "").await?;
    Ok(Response::json(200, &CreateTokenResponse { token, scope, expiration: expires }))
}

async fn list_tokens(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, _: &str) -> Answer {
    let tokens = tokens(&app.core, shop).await?.into_iter().map(|found| TokenSummary {
        serial: found.row.row_id,
        scope: found.row.scope,
        description: found.row.description,
        creation_time: found.row.created,
        expiration: found.row.expires,
    });
    Ok(Response::json(200, &TokenList { tokens: tokens.collect() }))
}

async fn delete_token(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, serial: &str) -> Answer {
    let unknown = || refused(&Refusal::NameUnknown, serial);
    let row_id: u64 = serial.parse().map_err(|_| unknown())?;
    let found = tokens(&app.core, shop).await?.into_iter().find(|found| found.row.row_id == row_id);
    let key = found.ok_or_else(unknown)?.key;
    app.core.decide(EditToken { key, edit: Edit::Delete }, serial).await?;
    Ok(Response::empty(204))
}

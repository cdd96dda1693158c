//! Further access tokens of an instance: `/private/token` and `/private/tokens`.

use batzen_crypto::{base32, fill_random};
use batzen_http::{Request, Response};
use batzen_protocol::api::merchant::{CreateTokenRequest, CreateTokenResponse, TokenList, TokenSummary};
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_store::{Found, Store};
use batzen_tables::merchant::{AccessTokenKey, AccessTokenRow, AccessTokens};

use super::{Answer, Service, Shop, body, named};
use crate::rules::{Edit, EditToken, Refusal};

/// The maximum number of further tokens of an instance.
const TOKENS_MAX: usize = 256;
/// The longest description, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// What a token opens. Each opens what the ones before open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Reads.
    ReadOnly,
    /// Also creates orders, locks products, and approves refunds.
    Orders,
    /// Everything.
    All,
}

impl Scope {
    /// From the name in the API.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "readonly" => Some(Self::ReadOnly),
            "orders" => Some(Self::Orders),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

impl Service {
    async fn tokens(&self, shop: &Shop) -> Result<Vec<Found<AccessTokens>>, Response> {
        let id = shop.id.clone();
        let read = move |store: &Store| store.lookup::<AccessTokens>(AccessTokens::BY_INSTANCE, &id);
        let mut all = self.read(read).await?;
        all.sort_by_key(|found| found.row.row_id);
        Ok(all)
    }

    /// What a further token opens; none if it is unknown or has ended.
    pub(super) async fn scope_of(&self, shop: &Shop, token: &str) -> Result<Option<Scope>, Response> {
        let key = AccessTokenKey { instance: shop.id.clone(), token_hash: self.token_hash(&shop.id, token) };
        let found = self.read(move |store| store.get::<AccessTokens>(&key)).await?;
        let valid = found.filter(|found| self.now() < found.row.expires);
        Ok(valid.and_then(|found| Scope::parse(&found.row.scope)))
    }

    pub(super) async fn create_token(&self, request: &Request, shop: &Shop) -> Answer {
        let CreateTokenRequest { scope, duration, description } = body(request)?;
        let malformed = |name: &str| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, name);
        if Scope::parse(&scope).is_none() {
            return Err(malformed("scope"));
        }
        let description = description.unwrap_or_default();
        if description.len() > TEXT_BYTES_MAX {
            return Err(malformed("description"));
        }
        let now = self.now();
        let known = self.tokens(shop).await?;
        for found in known.iter().filter(|found| found.row.expires <= now) {
            let ended = EditToken { key: found.key.clone(), edit: Edit::Delete };
            // Another request may have removed it.
            let _ = self.execute(ended).await?;
        }
        if known.iter().filter(|found| now < found.row.expires).count() >= TOKENS_MAX {
            return Err(Response::error_status(
                ErrorCode::GENERIC_PARAMETER_MALFORMED,
                409,
                "too many tokens",
            ));
        }
        let mut random = [0; 32];
        fill_random(&mut random);
        let token = format!("secret-token:{}", base32::encode(&random));
        let expires = if duration.is_forever() { Timestamp::NEVER } else { now.saturating_add(duration) };
        let key = AccessTokenKey { instance: shop.id.clone(), token_hash: self.token_hash(&shop.id, &token) };
        let row = AccessTokenRow {
            row_id: self.next_row_id(),
            scope: scope.clone(),
            description,
            created: Timestamp::from_secs(now.as_micros() / 1_000_000),
            expires,
        };
        let verdict = self.execute(EditToken { key, edit: Edit::Create(row) }).await?;
        verdict.map_err(|refusal| named(&refusal, ""))?;
        Ok(Response::json(200, &CreateTokenResponse { token, scope, expiration: expires }))
    }

    pub(super) async fn list_tokens(&self, shop: &Shop) -> Answer {
        let tokens = self.tokens(shop).await?.into_iter().map(|found| TokenSummary {
            serial: found.row.row_id,
            scope: found.row.scope,
            description: found.row.description,
            creation_time: found.row.created,
            expiration: found.row.expires,
        });
        Ok(Response::json(200, &TokenList { tokens: tokens.collect() }))
    }

    pub(super) async fn delete_token(&self, shop: &Shop, serial: &str) -> Answer {
        let unknown = || named(&Refusal::NameUnknown, serial);
        let row_id: u64 = serial.parse().map_err(|_| unknown())?;
        let found = self.tokens(shop).await?.into_iter().find(|found| found.row.row_id == row_id);
        let key = found.ok_or_else(unknown)?.key;
        let verdict = self.execute(EditToken { key, edit: Edit::Delete }).await?;
        verdict.map_err(|refusal| named(&refusal, serial))?;
        Ok(Response::empty(204))
    }
}

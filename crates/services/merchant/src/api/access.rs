//! Access to a shop: everybody, its tokens by their scope, its owner, or the administrator.

use std::sync::Arc;

use batzen_crypto::HashCode;
use batzen_crypto::hash::sha512_parts;
use batzen_http::{Head, Response, header};
use batzen_protocol::ErrorCode;
use batzen_service::{Guesses, TooMany};
use batzen_tables::merchant::{InstanceKey, Instances};
use subtle::ConstantTimeEq;

use super::Checked;
use super::core::Core;
use super::shops::{Shop, Shops};
use super::table::{instance, parameter};
use super::tokens;
use crate::urls::DEFAULT;

batzen_protocol::enumeration! {
    /// The endpoints that a token opens. Each opens those of the ones before.
    pub(super) enum Scope {
        ReadOnly => "readonly",
        /// Also creates orders, locks products, and approves refunds.
        Orders => "orders",
        /// Everything.
        All => "all",
    }
}

/// The access that an endpoint of a shop requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Anyone,
    /// A token of any scope.
    Reader,
    /// A token that takes orders.
    Seller,
    /// A token that opens everything.
    Owner,
    /// The administrator's token.
    Admin,
}

pub(crate) struct Gate {
    shops: Shops,
    token_salt: [u8; 16],
    guesses: Guesses,
}

impl Gate {
    pub(super) fn new(shops: Shops, token_salt: [u8; 16]) -> Self {
        Self { shops, token_salt, guesses: Guesses::default() }
    }

    /// Requires a shop, and the access that an endpoint demands.
    pub(super) async fn require(&self, core: &Core, access: Access, head: &Head) -> Checked<Arc<Shop>> {
        match access {
            Access::Anyone => self.require_shop(core, instance(head)).await,
            Access::Reader => self.require_scope(core, Scope::ReadOnly, head).await,
            Access::Seller => self.require_scope(core, Scope::Orders, head).await,
            Access::Owner => self.require_owner(core, head).await,
            Access::Admin => {
                self.require_admin(core, head).await?;
                self.require_shop(core, parameter(head)).await
            }
        }
    }

    /// Requires an instance: 404, code 2000 if it does not exist.
    pub(crate) async fn require_shop(&self, core: &Core, id: &str) -> Checked<Arc<Shop>> {
        let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_INSTANCE_UNKNOWN, id);
        self.find_shop(core, id).await?.ok_or_else(unknown)
    }

    /// Requires a token that opens everything: 401, code 2015.
    async fn require_owner(&self, core: &Core, head: &Head) -> Checked<Arc<Shop>> {
        self.require_scope(core, Scope::All, head).await
    }

    /// Requires a token that opens a scope: 401, code 2015.
    async fn require_scope(&self, core: &Core, needed: Scope, head: &Head) -> Checked<Arc<Shop>> {
        let shop = self.require_shop(core, instance(head)).await?;
        let Some((expected, token)) = credential(head, &shop)? else { return Ok(shop) };
        let attempt = self.guesses.begin(head, &shop.id).map_err(too_many)?;
        let given = self.token_hash(&shop.id, token);
        if is_same(&given, &expected) {
            attempt.succeeded();
            return Ok(shop);
        }
        match tokens::scope_of(core, &shop, given).await {
            Ok(Some(scope)) => {
                attempt.succeeded();
                if scope >= needed { Ok(shop) } else { Err(unauthorized()) }
            }
            Ok(None) => Err(unauthorized()),
            Err(response) => {
                attempt.undo();
                Err(response)
            }
        }
    }

    /// Requires the token of the instance `default`. Everybody is administrator before that instance exists.
    pub(crate) async fn require_admin(&self, core: &Core, head: &Head) -> Checked<()> {
        match self.find_shop(core, DEFAULT).await? {
            Some(shop) => self.authorize(head, &shop),
            None => head.require_own_name(),
        }
    }

    pub(super) fn token_hash(&self, instance: &str, token: &str) -> HashCode {
        sha512_parts(&[&self.token_salt, instance.as_bytes(), &[0], token.as_bytes()])
    }

    fn authorize(&self, head: &Head, shop: &Shop) -> Checked<()> {
        let Some((expected, token)) = credential(head, shop)? else { return Ok(()) };
        let attempt = self.guesses.begin(head, &shop.id).map_err(too_many)?;
        if !is_same(&self.token_hash(&shop.id, token), &expected) {
            return Err(unauthorized());
        }
        attempt.succeeded();
        Ok(())
    }

    async fn find_shop(&self, core: &Core, id: &str) -> Checked<Option<Arc<Shop>>> {
        // Other processes change the rows of a database without notice.
        let is_shared = core.store.backend().is_remote();
        if !is_shared && let Some(shop) = self.shops.get(id) {
            return Ok(Some(shop));
        }
        let changes = self.shops.changes();
        let key = InstanceKey::new(id);
        let Some(found) = core.read(move |store| store.get::<Instances>(&key)).await? else {
            return Ok(None);
        };
        let shop = Arc::new(Shop::new(id, found.row));
        if !is_shared {
            self.shops.keep(&shop, changes);
        }
        Ok(Some(shop))
    }
}

/// The hash of a shop's token, and the token that a request shows. None if the shop leaves access to a proxy.
fn credential<'a>(head: &'a Head, shop: &Shop) -> Checked<Option<(HashCode, &'a str)>> {
    let Some(expected) = shop.row.token_hash else { return head.require_own_name().map(|()| None) };
    head.bearer_token().map(|token| Some((expected, token))).ok_or_else(unauthorized)
}

/// Compares in constant time.
fn is_same(given: &HashCode, expected: &HashCode) -> bool {
    given.as_bytes()[..].ct_eq(&expected.as_bytes()[..]).into()
}

fn unauthorized() -> Response {
    let answer = Response::error(ErrorCode::MERCHANT_GENERIC_UNAUTHORIZED, "");
    answer.with_header(header::WWW_AUTHENTICATE, "Bearer realm=\"merchant\"")
}

fn too_many(wait: TooMany) -> Response {
    wait.wait(Response::error_status(ErrorCode::MERCHANT_GENERIC_UNAUTHORIZED, 429, TooMany::DETAIL))
}

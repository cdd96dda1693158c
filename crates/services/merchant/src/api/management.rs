//! Instances: `/management/instances`, and `/private` of each (merchant chapter 5).

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use batzen_crypto::{EddsaPrivateKey, HashCode, WireSalt};
use batzen_http::{Request, Response};
use batzen_protocol::api::merchant::{
    CreateInstanceRequest, InstanceAccount, InstanceAuth, InstanceAuthMethod, InstanceDetails, InstanceList,
    InstanceSettings, InstanceSummary,
};
use batzen_protocol::{ErrorCode, PaytoUri};
use batzen_service::{TOKEN_PREFIX, weak_token};
use batzen_store::{Found, Store, StoreError, Table};
use batzen_tables::merchant::{
    AccessTokens, AccountKycs, InstanceAccounts, InstanceRow, Instances, Orders, PendingWebhooks,
    ProductLocks, Products, Templates, TipPickups, TipReserves, Tips, Transfers, Webhooks, row_value,
};
use serde_json::{Map, Value};

use super::core::Core;
use super::openapi::YES_NO;
use super::table::{IMAGE_BYTES_MAX, Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, is_yes, malformed, refused};
use crate::order_form::is_plain;
use crate::rules::{
    ChangeInstance, CreateInstance, DeleteInstance, NewAccount, PurgeOrders, PurgeRest, Refusal, SetAuth,
    order_range,
};
use crate::urls;

/// The parameter `purge` of a deletion.
const PURGE: &str = "Whether to forget its orders, too.";

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("instance");
    rows.get("/management/instances", endpoint!(list_instances), "List the shops").gives::<InstanceList>();
    rows.post(
        "/management/instances",
        endpoint!(create_instance),
        "Create a shop. Open to everybody before the shop default exists",
    )
    .takes::<CreateInstanceRequest>(IMAGE_BYTES_MAX)
    .gives_nothing();
    rows.get("/management/instances/:id", endpoint!(Admin, show_instance), "A shop's settings")
        .gives::<InstanceDetails>();
    rows.patch("/management/instances/:id", endpoint!(Admin, change_instance), "Replace a shop's settings")
        .takes::<InstanceSettings>(IMAGE_BYTES_MAX)
        .gives_nothing();
    rows.delete(
        "/management/instances/:id",
        endpoint!(Admin, delete_instance),
        "Destroy a shop's private key, and with purge everything",
    )
    .query("purge", YES_NO, PURGE)
    .gives_nothing();
    rows.post(
        "/management/instances/:id/auth",
        endpoint!(Admin, set_instance_auth),
        "Change a shop's access",
    )
    .takes::<InstanceAuth>(SMALL_BODY_BYTES_MAX)
    .gives_nothing();
    rows.get("/private", endpoint!(Reader, show_instance), "The shop's settings")
        .named("show_self")
        .gives::<InstanceDetails>();
    rows.patch("/private", endpoint!(Owner, change_instance), "Replace the shop's settings")
        .named("change_self")
        .takes::<InstanceSettings>(IMAGE_BYTES_MAX)
        .gives_nothing();
    rows.delete(
        "/private",
        endpoint!(Owner, delete_instance),
        "Destroy the shop's private key, and with purge everything",
    )
    .named("delete_self")
    .query("purge", YES_NO, PURGE)
    .gives_nothing();
    rows.post("/private/auth", endpoint!(Owner, set_instance_auth), "Change the shop's access")
        .named("set_own_auth")
        .takes::<InstanceAuth>(SMALL_BODY_BYTES_MAX)
        .gives_nothing();
    rows
}

/// The longest id of an instance, in bytes.
const ID_BYTES_MAX: usize = 64;
/// The longest text of a setting other than the logo, in bytes.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// An account with an escaped name.
const PAYTO_EXAMPLE: &str = "payto://iban/DE89370400440532013000?receiver-name=B%C3%BCcher%20M%C3%BCller";
/// Orders that one command forgets.
const PURGE_ORDERS: usize = 128;
/// Other rows of each kind that one command forgets.
const PURGE_ROWS: usize = 128;

/// Returns whether an instance can have this id: it is part of URLs.
fn is_instance_id(id: &str) -> bool {
    urls::is_id(id, ID_BYTES_MAX)
}

async fn list_instances(app: &Arc<Merchant>, request: &mut Request) -> Answer {
    app.gate.require_admin(&app.core, request).await?;
    let read = |store: &Store| Ok((store.all::<Instances>()?, store.all::<InstanceAccounts>()?));
    let (instances, accounts) = app.core.read(read).await?;
    let summary = |id: &str, row: &InstanceRow| {
        let active = accounts.iter().filter(|found| found.key.instance == id && found.row.active);
        let methods: BTreeSet<String> = active
            .filter_map(|found| PaytoUri::parse(found.row.payto_uri.as_str()).ok())
            .map(|payto| payto.method().to_owned())
            .collect();
        InstanceSummary {
            name: row.name.clone(),
            id: id.to_owned(),
            merchant_pub: row.merchant_pub,
            payment_targets: methods.into_iter().collect(),
            deleted: row.merchant_priv.is_none(),
        }
    };
    let instances = instances.iter().map(|found| summary(&found.key.id, &found.row)).collect();
    Ok(Response::json(200, &InstanceList { instances }))
}

async fn create_instance(app: &Arc<Merchant>, request: &mut Request) -> Answer {
    app.gate.require_admin(&app.core, request).await?;
    let CreateInstanceRequest { id, auth, settings } = body(request)?;
    if !is_instance_id(&id) {
        return Err(malformed("id"));
    }
    let code = ErrorCode::MERCHANT_PRIVATE_POST_INSTANCES_BAD_AUTH;
    let token_hash = hash_of(app, &id, &auth, code)?;
    let (row, accounts) = rows_of(&app.core, &settings, &app.core.new_key(), token_hash)?;
    app.core.decide(CreateInstance { id: id.clone(), row, accounts }, &id).await?;
    Ok(Response::empty(204))
}

/// The salted hash of a token: 400 with `code` if it has not the form of one, or can be guessed.
fn hash_of(app: &Merchant, id: &str, auth: &InstanceAuth, code: ErrorCode) -> Checked<Option<HashCode>> {
    let InstanceAuth::Token { token } = auth else { return Ok(None) };
    if !token.starts_with(TOKEN_PREFIX) || token.len() > TEXT_BYTES_MAX {
        return Err(Response::error(code, &format!("auth.token: a token begins with {TOKEN_PREFIX}")));
    }
    match weak_token(token) {
        Some(why) => Err(Response::error(code, &format!("auth.token: {why}"))),
        None => Ok(Some(app.gate.token_hash(id, token))),
    }
}

/// The row and the accounts that settings describe, with these keys and this token.
fn rows_of(
    core: &Core,
    settings: &InstanceSettings,
    key: &EddsaPrivateKey,
    token_hash: Option<HashCode>,
) -> Checked<(InstanceRow, Vec<NewAccount>)> {
    for (name, text) in [
        ("name", Some(&settings.name)),
        ("email", settings.email.as_ref()),
        ("website", settings.website.as_ref()),
    ] {
        // The name is part of every contract.
        if text.is_some_and(|text| text.len() > TEXT_BYTES_MAX || !is_plain(text)) {
            return Err(malformed(name));
        }
    }
    let place = |name: &str, members: &Map<String, Value>| -> Checked<String> {
        let text = serde_json::to_string(members).expect("members have string keys");
        if text.len() <= TEXT_BYTES_MAX { Ok(text) } else { Err(malformed(name)) }
    };
    let mut accounts = Vec::with_capacity(settings.payto_uris.len());
    for uri in &settings.payto_uris {
        let wrong = |error| {
            let detail = format!("payto_uris: {uri}: {error}; such as {PAYTO_EXAMPLE}");
            Response::error(ErrorCode::GENERIC_PAYTO_URI_MALFORMED, &detail)
        };
        // As exchanges accept them, since they pay there.
        let payto = PaytoUri::parse(uri.as_str()).map_err(wrong)?;
        let salt = WireSalt::from_bytes(core.random());
        accounts.push(NewAccount { payto_uri: uri.clone(), salt, h_wire: payto.wire_hash(&salt) });
    }
    let row = InstanceRow {
        merchant_pub: key.public_key(),
        merchant_priv: Some(*key.as_bytes()),
        token_hash,
        name: settings.name.clone(),
        address: place("address", &settings.address)?,
        jurisdiction: place("jurisdiction", &settings.jurisdiction)?,
        email: settings.email.clone(),
        website: settings.website.clone(),
        logo: settings.logo.clone(),
        default_max_wire_fee: core.money(&settings.default_max_wire_fee, "default_max_wire_fee")?,
        default_max_deposit_fee: core.money(&settings.default_max_deposit_fee, "default_max_deposit_fee")?,
        default_wire_fee_amortization: settings.default_wire_fee_amortization.max(1),
        default_wire_transfer_delay: settings.default_wire_transfer_delay,
        default_pay_delay: settings.default_pay_delay,
    };
    Ok((row, accounts))
}

async fn show_instance(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, _: &str) -> Answer {
    let accounts = app.core.accounts(&shop.id).await?.into_iter().map(|(key, row)| InstanceAccount {
        payto_uri: row.payto_uri,
        h_wire: key.h_wire,
        salt: row.salt,
        active: row.active,
    });
    let row = &shop.row;
    let place = |text: &str| serde_json::from_str(text).unwrap_or_default();
    let details = InstanceDetails {
        accounts: accounts.collect(),
        merchant_pub: row.merchant_pub,
        auth: match row.token_hash {
            Some(_) => InstanceAuthMethod::Token,
            None => InstanceAuthMethod::External,
        },
        name: row.name.clone(),
        address: place(&row.address),
        jurisdiction: place(&row.jurisdiction),
        email: row.email.clone(),
        website: row.website.clone(),
        logo: row.logo.clone(),
        default_max_wire_fee: app.core.amount(row.default_max_wire_fee),
        default_max_deposit_fee: app.core.amount(row.default_max_deposit_fee),
        default_wire_fee_amortization: row.default_wire_fee_amortization,
        default_wire_transfer_delay: row.default_wire_transfer_delay,
        default_pay_delay: row.default_pay_delay,
    };
    Ok(Response::json(200, &details))
}

async fn change_instance(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let settings: InstanceSettings = body(request)?;
    // The rules keep the instance's own keys and token.
    let (row, accounts) = rows_of(&app.core, &settings, &app.core.new_key(), None)?;
    match app.core.execute(ChangeInstance { id: shop.id.clone(), row, accounts }).await? {
        Ok(()) => Ok(Response::empty(204)),
        Err(Refusal::InstanceDeleted) => {
            Err(Response::error(ErrorCode::MERCHANT_PRIVATE_PATCH_INSTANCES_PURGE_REQUIRED, &shop.id))
        }
        Err(refusal) => Err(refused(&refusal, &shop.id)),
    }
}

async fn set_instance_auth(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let auth: InstanceAuth = body(request)?;
    let code = ErrorCode::MERCHANT_PRIVATE_POST_INSTANCE_AUTH_BAD_AUTH;
    let token_hash = hash_of(app, &shop.id, &auth, code)?;
    app.core.decide(SetAuth { id: shop.id.clone(), token_hash }, &shop.id).await?;
    Ok(Response::empty(204))
}

async fn delete_instance(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let purge = is_yes(request, "purge");
    let delete = |purge| DeleteInstance { id: shop.id.clone(), purge };
    // From now on nobody can order. Then the orders are forgotten, and the shop last.
    app.core.decide(delete(false), &shop.id).await?;
    if !purge {
        return Ok(Response::empty(204));
    }
    loop {
        let (from, to) = order_range(&shop.id);
        let read =
            move |store: &Store| store.range_bytes::<Orders>(Orders::BY_ROW, from, to, PURGE_ORDERS, false);
        let orders: Vec<_> = app.core.read(read).await?.into_iter().map(|found| found.key.order).collect();
        if orders.is_empty() {
            break;
        }
        let command = PurgeOrders { id: shop.id.clone(), orders };
        app.core.decide(command, &shop.id).await?;
    }
    loop {
        let id = shop.id.clone();
        let rest = app.core.read(move |store| rest_of(store, &id)).await?;
        if rest.is_empty() {
            break;
        }
        app.core.decide(rest, &shop.id).await?;
    }
    match app.core.execute(delete(true)).await? {
        // Somebody else has finished it.
        Ok(()) | Err(Refusal::InstanceUnknown) => Ok(Response::empty(204)),
        Err(refusal) => Err(refused(&refusal, &shop.id)),
    }
}

/// A part of what a shop has beside orders.
fn rest_of(store: &Store, id: &String) -> Result<PurgeRest, StoreError> {
    fn keys<T: Table>(found: Vec<Found<T>>) -> Vec<T::Key> {
        found.into_iter().take(PURGE_ROWS).map(|found| found.key).collect()
    }
    let all = |value: Vec<u8>| {
        let mut end = value.clone();
        // After everything that begins with it.
        end.extend([u8::MAX; 9]);
        (Bound::Included(value), Bound::Excluded(end))
    };
    let (from, to) = all(Products::id_value(id, None));
    let products = keys(store.range_bytes::<Products>(Products::BY_ID, from, to, PURGE_ROWS, false)?);
    let (from, to) = all(row_value(id, None));
    let transfers = keys(store.range_bytes::<Transfers>(Transfers::BY_ROW, from, to, PURGE_ROWS, false)?);
    let (from, to) = all(row_value(id, None));
    let tips = keys(store.range_bytes::<Tips>(Tips::BY_ROW, from, to, PURGE_ROWS, false)?);
    let mut pickups = Vec::new();
    for tip in &tips {
        pickups.extend(keys(store.lookup::<TipPickups>(TipPickups::BY_TIP, &tip.tip_id)?));
    }
    // There is no index of locks by shop, and there are few locks.
    let locks = store.all::<ProductLocks>()?.into_iter().filter(|found| found.row.instance == *id).collect();
    Ok(PurgeRest {
        id: id.clone(),
        products,
        locks: keys(locks),
        transfers,
        kycs: keys(store.lookup::<AccountKycs>(AccountKycs::BY_INSTANCE, id)?),
        reserves: keys(store.lookup::<TipReserves>(TipReserves::BY_INSTANCE, id)?),
        tips,
        pickups,
        webhooks: keys(store.lookup::<Webhooks>(Webhooks::BY_INSTANCE, id)?),
        pending: keys(store.lookup::<PendingWebhooks>(PendingWebhooks::BY_INSTANCE, id)?),
        templates: keys(store.lookup::<Templates>(Templates::BY_INSTANCE, id)?),
        tokens: keys(store.lookup::<AccessTokens>(AccessTokens::BY_INSTANCE, id)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_instances() {
        assert!(is_instance_id("default") && is_instance_id("books-2.zurich"));
        for wrong in ["", "a/b", "a b", "ä", "a?b", &"x".repeat(65)] {
            assert!(!is_instance_id(wrong), "{wrong}");
        }
    }
}

//! Reserves from which a shop gives tips: `/private/reserves` (merchant chapter 6.11).

use std::sync::Arc;
use std::time::Duration as StdDuration;

use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::ReserveBalance;
use batzen_protocol::api::merchant::{
    CreateTipReserveRequest, CreateTipReserveResponse, TipOfReserve, TipReserveDetails, TipReserveList,
    TipReserveState, TipReserveSummary,
};
use batzen_protocol::{Amount, ErrorCode, Money, PaytoUri, Timestamp};
use batzen_store::Store;
use batzen_tables::merchant::{TipReserveKey, TipReserveRow, TipReserves};

use super::core::Core;
use super::openapi::{INTEGER, YES_NO, YES_NO_ALL};
use super::problems::unknown_exchange;
use super::table::{Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, is_yes, malformed, refused, tips, yes_or_no};
use crate::exchanges::{Exchange, ExchangeError, is_base_url};
use crate::rules::{CreateTipReserve, DeleteTipReserve, FundTipReserve, Refusal};

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("tip");
    rows.post("/private/reserves", endpoint!(Owner, create_reserve), "Set up a reserve for tips")
        .takes::<CreateTipReserveRequest>(SMALL_BODY_BYTES_MAX)
        .gives::<CreateTipReserveResponse>();
    rows.get("/private/reserves", endpoint!(Reader, list_reserves), "List reserves for tips")
        .query("after", INTEGER, "Only created after this time, in seconds.")
        .query("active", YES_NO_ALL, "Only those from which tips can be given, or others.")
        .query("failures", YES_NO_ALL, "Only those that got another amount than announced, or others.")
        .gives::<TipReserveList>();
    rows.get("/private/reserves/:reserve", endpoint!(Reader, show_reserve), "A reserve for tips")
        .query("tips", YES_NO, "Whether to list its tips.")
        .gives::<TipReserveDetails>();
    rows.delete("/private/reserves/:reserve", endpoint!(Owner, delete_reserve), "Give up a reserve for tips")
        .query("purge", YES_NO, "Whether to forget its tips, too.")
        .gives_nothing();
    rows
}

/// Time that an exchange is asked to wait for a reserve's money.
const FUNDING_POLL: StdDuration = StdDuration::from_secs(8);
/// The pause after an exchange gave no answer about a reserve.
const FUNDING_PAUSE: StdDuration = StdDuration::from_secs(5);

fn reserve_state(core: &Core, row: &TipReserveRow) -> TipReserveState {
    TipReserveState {
        creation_time: row.created,
        expiration_time: row.expires,
        merchant_initial_amount: core.amount(row.merchant_initial),
        exchange_initial_amount: core.amount(row.exchange_initial),
        pickup_amount: core.amount(row.picked_up),
        committed_amount: core.amount(row.committed),
        active: row.reserve_priv.is_some() && !row.exchange_initial.is_zero() && core.now() < row.expires,
    }
}

pub(super) async fn reserves(core: &Core, id: &str) -> Checked<Vec<(TipReserveKey, TipReserveRow)>> {
    let id = id.to_owned();
    let read = move |store: &Store| store.lookup::<TipReserves>(TipReserves::BY_INSTANCE, &id);
    let found = core.read(read).await?;
    let mut all: Vec<_> = found.into_iter().map(|found| (found.key, found.row)).collect();
    all.sort_by_key(|(key, row)| (row.created, key.reserve_pub));
    Ok(all)
}

/// Requires a reserve of the instance.
pub(super) async fn reserve(
    core: &Core,
    shop: &Shop,
    reserve_pub: &str,
) -> Checked<(TipReserveKey, TipReserveRow)> {
    let unknown =
        || Response::error(ErrorCode::MERCHANT_PRIVATE_GET_RESERVES_ID_RESERVE_UNKNOWN, reserve_pub);
    let key = TipReserveKey { reserve_pub: reserve_pub.parse().map_err(|_| unknown())? };
    let read = {
        let key = key.clone();
        move |store: &Store| store.get::<TipReserves>(&key)
    };
    let found = core.read(read).await?.filter(|found| found.row.instance == shop.id);
    Ok((key, found.ok_or_else(unknown)?.row))
}

async fn tip_exchange(app: &Merchant, url: &str) -> Checked<Arc<Exchange>> {
    match app.exchanges.named(url, |_| true).await {
        Ok(exchange) => Ok(exchange),
        Err(ExchangeError::NotAccepted) => {
            let code = ErrorCode::MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE;
            Err(Response::error(code, "the backend does not accept this exchange"))
        }
        Err(error) => Err(unknown_exchange(&error, url)),
    }
}

async fn create_reserve(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let CreateTipReserveRequest { initial_balance, exchange_url, wire_method } = body(request)?;
    shop.key()?;
    let merchant_initial = app.core.money(&initial_balance, "initial_balance")?;
    if !is_base_url(&exchange_url) {
        return Err(malformed("exchange_url"));
    }
    request.leave_slot();
    let exchange = tip_exchange(app, &exchange_url).await?;
    let is_method = |uri: &&String| {
        PaytoUri::parse(uri.as_str()).is_ok_and(|payto| payto.method().eq_ignore_ascii_case(&wire_method))
    };
    let unsupported =
        || Response::error(ErrorCode::MERCHANT_PRIVATE_POST_RESERVES_UNSUPPORTED_WIRE_METHOD, &wire_method);
    let payto_uri = exchange.accounts.iter().find(is_method).ok_or_else(unsupported)?.clone();
    let reserve_priv = app.core.new_key();
    let now = app.core.now();
    let row = TipReserveRow {
        instance: shop.id.clone(),
        reserve_priv: Some(*reserve_priv.as_bytes()),
        exchange_url: exchange.url().to_owned(),
        payto_uri: payto_uri.clone(),
        created: Timestamp::from_secs(now.as_micros() / 1_000_000),
        expires: now.saturating_add(exchange.closing_delay),
        merchant_initial,
        exchange_initial: Money::ZERO,
        committed: Money::ZERO,
        picked_up: Money::ZERO,
    };
    let key = TipReserveKey { reserve_pub: reserve_priv.public_key() };
    app.core.decide(CreateTipReserve { key: key.clone(), row }, &shop.id).await?;
    watch(app, key.clone());
    Ok(Response::json(200, &CreateTipReserveResponse { reserve_pub: key.reserve_pub, payto_uri }))
}

async fn list_reserves(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let active = yes_or_no(request, "active")?;
    let failures = yes_or_no(request, "failures")?;
    let after = request.query_opt::<u64>("after")?.map(Timestamp::from_secs);
    let summaries = reserves(&app.core, &shop.id).await?.into_iter().map(|(key, row)| TipReserveSummary {
        reserve_pub: key.reserve_pub,
        state: reserve_state(&app.core, &row),
    });
    let is_wanted = |summary: &TipReserveSummary| {
        let is_failure = summary.state.merchant_initial_amount != summary.state.exchange_initial_amount;
        active.is_none_or(|active| active == summary.state.active)
            && failures.is_none_or(|failures| failures == is_failure)
            && after.is_none_or(|after| summary.state.creation_time > after)
    };
    Ok(Response::json(200, &TipReserveList { reserves: summaries.filter(is_wanted).collect() }))
}

async fn show_reserve(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, reserve_pub: &str) -> Answer {
    let (key, row) = reserve(&app.core, shop, reserve_pub).await?;
    let tips = match yes_or_no(request, "tips")? {
        Some(true) => {
            let tips =
                tips::tips_of(&app.core, key.reserve_pub).await?.into_iter().map(|(key, row)| TipOfReserve {
                    tip_id: key.tip_id,
                    total_amount: app.core.amount(row.amount),
                    reason: row.justification,
                });
            Some(tips.collect())
        }
        _ => None,
    };
    let details = TipReserveDetails {
        state: reserve_state(&app.core, &row),
        payto_uri: row.payto_uri,
        exchange_url: row.exchange_url,
        tips,
    };
    Ok(Response::json(200, &details))
}

async fn delete_reserve(
    app: &Arc<Merchant>,
    request: &mut Request,
    shop: &Shop,
    reserve_pub: &str,
) -> Answer {
    let (key, _) = reserve(&app.core, shop, reserve_pub).await?;
    let purge = is_yes(request, "purge");
    let mut pickups = Vec::new();
    for (tip, _) in tips::tips_of(&app.core, key.reserve_pub).await? {
        pickups.extend(tips::pickups(&app.core, tip.tip_id).await?.into_iter().map(|found| found.key));
    }
    match app.core.execute(DeleteTipReserve { key, purge, pickups }).await? {
        Ok(()) => Ok(Response::empty(204)),
        Err(Refusal::TipsOpen) => {
            let code = ErrorCode::GENERIC_PARAMETER_MALFORMED;
            Err(Response::error_status(code, 409, "customers can still pick up tips: purge the reserve"))
        }
        Err(refusal) => Err(refused(&refusal, reserve_pub)),
    }
}

/// Asks an exchange whether money has arrived for a reserve, and books it. Returns whether there is nothing more
/// to wait for; `None`: the exchange did not say.
pub(super) async fn look_for_funding(
    app: &Merchant,
    key: &TipReserveKey,
    row: &TipReserveRow,
    wait: Option<StdDuration>,
) -> Option<bool> {
    let exchange = app.exchanges.get(&row.exchange_url, |_| true).await.ok()?;
    let mut ask = exchange.get(&format!("reserves/{}", key.reserve_pub));
    if let Some(wait) = wait {
        ask = ask.query("timeout_ms", wait.as_millis());
    }
    let reply = ask.send().await.ok()?;
    match reply.status {
        200 => {
            let ReserveBalance { balance } = reply.json().ok()?;
            let balance: Money = Amount::money_in(&balance, app.core.config.currency).ok()?;
            if balance.is_zero() {
                return Some(false);
            }
            let expires = app.core.now().saturating_add(exchange.closing_delay);
            let verdict =
                app.core.execute(FundTipReserve { key: key.clone(), balance, expires }).await.ok()?;
            Some(verdict.is_ok())
        }
        404 => Some(false),
        _ => None,
    }
}

/// Waits in the background until a reserve is filled, deleted or expired.
fn watch(app: &Arc<Merchant>, key: TipReserveKey) {
    let merchant = Arc::clone(app);
    app.background.spawn(async move { wait_for_funding(&merchant, &key).await });
}

async fn wait_for_funding(app: &Merchant, key: &TipReserveKey) {
    loop {
        let read = {
            let key = key.clone();
            move |store: &Store| store.get::<TipReserves>(&key)
        };
        let row = match app.core.read(read).await {
            Ok(Some(found)) => found.row,
            Ok(None) => return,
            Err(_) => {
                tokio::time::sleep(FUNDING_PAUSE).await;
                continue;
            }
        };
        let is_over =
            row.reserve_priv.is_none() || !row.exchange_initial.is_zero() || row.expires <= app.core.now();
        if is_over {
            return;
        }
        let began = tokio::time::Instant::now();
        match look_for_funding(app, key, &row, Some(FUNDING_POLL)).await {
            Some(true) => return,
            // An exchange that does not wait would be asked without a pause.
            Some(false) if began.elapsed() > FUNDING_POLL / 2 => {}
            Some(false) | None => tokio::time::sleep(FUNDING_PAUSE).await,
        }
    }
}

/// Waits for the money of all reserves that have none, after a start.
pub(super) async fn watch_all(app: &Arc<Merchant>) -> Checked<()> {
    let found = app.core.read(|store: &Store| store.all::<TipReserves>()).await?;
    for found in found {
        if found.row.exchange_initial.is_zero() && found.row.reserve_priv.is_some() {
            watch(app, found.key);
        }
    }
    Ok(())
}

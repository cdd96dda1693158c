//! Tips: reserves of the shop, what it gives from them, and what customers pick up (merchant chapters 2.9 and 6.11).

use std::ops::Bound;
use std::sync::Arc;

use batzen_crypto::hash::sha512_parts;
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{BatchWithdrawRequest, BlindSignatures, WithdrawRequest};
use batzen_protocol::api::merchant::{
    AuthorizeTipRequest, AuthorizeTipResponse, PickUpTipRequest, PickUpTipResponse, TipBlindSig, TipDetails,
    TipList, TipPickupSummary, TipPlanchet, TipStatus, TipSummary,
};
use batzen_protocol::signatures::{SignedMessage, WalletReserveWithdraw};
use batzen_protocol::{ErrorCode, Money, Timestamp};
use batzen_store::{Found, Store};
use batzen_tables::merchant::{
    TipKey, TipPickupKey, TipPickups, TipReserveKey, TipReserves, TipRow, Tips, row_value,
};
use serde_json::Value;

use super::core::Core;
use super::openapi::{INTEGER, LIMIT, YES_NO};
use super::problems::{exchange_problem, malformed_reply, unanswered, unknown_exchange};
use super::status::{TALER, wants_page};
use super::table::{Rows, TEXTS_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, base_url, body, malformed, page, refused, reserves, yes_or_no};
use crate::exchanges::Exchange;
use crate::order_form::is_plain;
use crate::rules::{AuthorizeTip, PickUpTip, RecordTipPickup, Refusal, TakeBackPickup};
use crate::urls;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("tip");
    rows.post(
        "/private/reserves/:reserve/authorize-tip",
        endpoint!(Owner, authorize_tip),
        "Give a tip from this reserve",
    )
    .takes::<AuthorizeTipRequest>(TEXTS_BYTES_MAX)
    .gives::<AuthorizeTipResponse>();
    rows.post("/private/tips", endpoint!(Owner, authorize_tip), "Give a tip from any reserve")
        .named("authorize_any_tip")
        .takes::<AuthorizeTipRequest>(TEXTS_BYTES_MAX)
        .gives::<AuthorizeTipResponse>();
    rows.get("/private/tips", endpoint!(Reader, list_tips), "List tips")
        .query("limit", LIMIT, "How many: the latest first if negative.")
        .query("offset", INTEGER, "The row_id after which the list begins.")
        .gives::<TipList>();
    rows.get("/private/tips/:tip", endpoint!(Reader, show_tip), "A tip")
        .query("pickups", YES_NO, "Whether to list what was picked up.")
        .gives::<TipDetails>();
    rows.get(
        "/tips/:tip",
        endpoint!(Anyone, tip_status),
        "A tip for its customer: JSON, or a page for browsers",
    )
    .gives::<TipStatus>();
    rows.post("/tips/:tip/pickup", endpoint!(Anyone, pick_up_tip), "A wallet picks up a tip")
        .takes::<PickUpTipRequest>(TEXTS_BYTES_MAX)
        .gives::<PickUpTipResponse>();
    rows
}

/// The longest justification or URL of a tip, in bytes.
const TEXT_BYTES_MAX: usize = 2_048;
/// The maximum number of planchets that are picked up at once.
const PLANCHETS_MAX: usize = 64;
/// Tips in a list, if the client does not say how many.
const LIST_LIMIT: i64 = -20;
/// The maximum number of tips in a list.
const LIST_MAX: usize = 1_024;

fn unknown_tip(tip_id: &str) -> Response {
    Response::error(ErrorCode::MERCHANT_GENERIC_TIP_ID_UNKNOWN, tip_id)
}

/// Identifies what a customer picks up, so that a repetition is recognised.
fn pickup_id(tip_id: &HashCode, planchets: &[TipPlanchet]) -> HashCode {
    let hashes: Vec<HashCode> =
        planchets.iter().map(|planchet| planchet.coin_ev.hash(&planchet.denom_pub_hash)).collect();
    let mut parts: Vec<&[u8]> = vec![b"batzen-merchant-tip-pickup", tip_id.as_bytes()];
    parts.extend(hashes.iter().map(|hash| hash.as_bytes().as_slice()));
    sha512_parts(&parts)
}

/// An answer that was stored as JSON.
fn json_text(text: String) -> Response {
    Response::bytes(200, "application/json", text)
}

pub(super) async fn tips_of(core: &Core, reserve_pub: EddsaPublicKey) -> Checked<Vec<(TipKey, TipRow)>> {
    let read = move |store: &Store| store.lookup::<Tips>(Tips::BY_RESERVE, &reserve_pub);
    let mut tips: Vec<_> = core.read(read).await?.into_iter().map(|found| (found.key, found.row)).collect();
    tips.sort_by_key(|(_, row)| row.row_id);
    Ok(tips)
}

pub(super) async fn pickups(core: &Core, tip_id: HashCode) -> Checked<Vec<Found<TipPickups>>> {
    core.read(move |store| store.lookup::<TipPickups>(TipPickups::BY_TIP, &tip_id)).await
}

/// From a reserve, or from any if the path names none.
async fn authorize_tip(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, reserve_pub: &str) -> Answer {
    let AuthorizeTipRequest { amount, justification, next_url } = body(request)?;
    let money = app.core.money(&amount, "amount")?;
    shop.key()?;
    for (name, text) in [("justification", &justification), ("next_url", &next_url)] {
        if text.len() > TEXT_BYTES_MAX || !is_plain(text) {
            return Err(malformed(name));
        }
    }
    // The wallet opens it after the pickup.
    if !next_url.is_empty() && !urls::is_web_url(&next_url) {
        return Err(malformed("next_url"));
    }
    if money.is_zero() {
        return Err(malformed("amount"));
    }
    let base_url = base_url(&request.head, shop)?;
    request.leave_slot();
    let candidates = match reserve_pub {
        "" => reserves::reserves(&app.core, &shop.id).await?,
        reserve_pub => {
            let unknown = |_| {
                let code = ErrorCode::MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_UNKNOWN;
                Response::error_status(code, 404, reserve_pub)
            };
            vec![reserves::reserve(&app.core, shop, reserve_pub).await.map_err(unknown)?]
        }
    };
    // Money may have arrived that nobody has told the backend about.
    for (key, row) in candidates.iter().filter(|(_, row)| row.exchange_initial.is_zero()) {
        reserves::look_for_funding(app, key, row, None).await;
    }
    let none = ErrorCode::MERCHANT_PRIVATE_POST_TIP_AUTHORIZE_RESERVE_NOT_FOUND;
    let mut refusal = Response::error(none, "");
    for (reserve, _) in candidates {
        let key = TipKey { tip_id: HashCode::from_bytes(app.core.random()) };
        let row = TipRow {
            instance: shop.id.clone(),
            row_id: app.core.next_row_id(),
            reserve_pub: reserve.reserve_pub,
            amount: money,
            picked_up: Money::ZERO,
            justification: justification.clone(),
            next_url: next_url.clone(),
            expires: Timestamp::NEVER,
        };
        match app.core.execute(AuthorizeTip { key: key.clone(), row }).await? {
            Ok(tip_expiration) => {
                let answer = AuthorizeTipResponse {
                    tip_id: key.tip_id,
                    taler_tip_uri: urls::tip_uri(&base_url, &key.tip_id),
                    tip_status_url: urls::tip_status_url(&base_url, &key.tip_id),
                    tip_expiration,
                };
                return Ok(Response::json(200, &answer));
            }
            // Another reserve may do.
            Err(Refusal::ReserveUnknown) => {}
            Err(other) => refusal = refused(&other, ""),
        }
    }
    Err(refusal)
}

async fn find_tip(core: &Core, shop: &Shop, tip_id: &str) -> Checked<(TipKey, TipRow)> {
    let key = TipKey { tip_id: tip_id.parse().map_err(|_| unknown_tip(tip_id))? };
    let read = {
        let key = key.clone();
        move |store: &Store| store.get::<Tips>(&key)
    };
    let found = core.read(read).await?.filter(|found| found.row.instance == shop.id);
    Ok((key, found.ok_or_else(|| unknown_tip(tip_id))?.row))
}

async fn list_tips(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let limit = request.query_opt::<i64>("limit")?.unwrap_or(LIST_LIMIT);
    let offset = request.query_opt::<u64>("offset")?;
    let descending = limit < 0;
    let count = usize::try_from(limit.unsigned_abs()).unwrap_or(LIST_MAX).min(LIST_MAX);
    let id = shop.id.clone();
    let read = move |store: &Store| {
        let value = |row_id| row_value(&id, Some(row_id));
        let (low, high) = match (offset, descending) {
            (None, _) => (Bound::Included(value(0)), Bound::Included(value(u64::MAX))),
            (Some(row_id), false) => (Bound::Excluded(value(row_id)), Bound::Included(value(u64::MAX))),
            (Some(row_id), true) => (Bound::Included(value(0)), Bound::Excluded(value(row_id))),
        };
        store.range_bytes::<Tips>(Tips::BY_ROW, low, high, count, descending)
    };
    let tips = app.core.read(read).await?.into_iter().map(|found| TipSummary {
        row_id: found.row.row_id,
        tip_id: found.key.tip_id,
        tip_amount: app.core.amount(found.row.amount),
    });
    Ok(Response::json(200, &TipList { tips: tips.collect() }))
}

async fn show_tip(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, tip_id: &str) -> Answer {
    let (key, row) = find_tip(&app.core, shop, tip_id).await?;
    let pickups = match yes_or_no(request, "pickups")? {
        Some(true) => {
            let found = pickups(&app.core, key.tip_id).await?.into_iter().map(|found| TipPickupSummary {
                pickup_id: found.key.pickup_id,
                num_planchets: found.row.planchets,
                requested_amount: app.core.amount(found.row.amount),
            });
            Some(found.collect())
        }
        _ => None,
    };
    let base_url = base_url(&request.head, shop)?;
    let details = TipDetails {
        total_authorized: app.core.amount(row.amount),
        total_picked_up: app.core.amount(row.picked_up),
        reason: row.justification,
        expiration: row.expires,
        reserve_pub: row.reserve_pub,
        tip_status_url: urls::tip_status_url(&base_url, &key.tip_id),
        pickups,
    };
    Ok(Response::json(200, &details))
}

/// The state of a tip for its customer.
async fn tip_status(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, tip_id: &str) -> Answer {
    let is_page = wants_page(request);
    let found = find_tip(&app.core, shop, tip_id).await;
    let (key, row) = match found {
        Err(error) if is_page && error.status == 404 => {
            return Err(page::message(404, "There is no such tip."));
        }
        found => found?,
    };
    let left = row.amount.checked_sub(row.picked_up).unwrap_or(Money::ZERO);
    if row.expires <= app.core.now() {
        return Err(match is_page {
            true => page::message(410, "This tip can no longer be picked up."),
            false => Response::error(ErrorCode::MERCHANT_TIP_PICKUP_HAS_EXPIRED, tip_id),
        });
    }
    let reserve = TipReserveKey { reserve_pub: row.reserve_pub };
    let reserve = app.core.read(move |store| store.get::<TipReserves>(&reserve)).await?;
    let exchange_url = reserve.ok_or_else(|| unknown_tip(tip_id))?.row.exchange_url;
    if is_page {
        if left.is_zero() {
            return Ok(page::message(200, "This tip was picked up. Enjoy it!"));
        }
        let uri = urls::tip_uri(&base_url(request, shop)?, &key.tip_id);
        let amount = app.core.amount(left).to_string();
        return Ok(page::tip(&row.justification, &amount, &uri).with_header(TALER, &uri));
    }
    let status = TipStatus {
        tip_amount: app.core.amount(left),
        exchange_url,
        expiration: row.expires,
        next_url: (!row.next_url.is_empty()).then_some(row.next_url),
    };
    Ok(Response::json(200, &status))
}

async fn pick_up_tip(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, tip_id: &str) -> Answer {
    let PickUpTipRequest { planchets } = body(request)?;
    if planchets.is_empty() || planchets.len() > PLANCHETS_MAX {
        return Err(malformed("planchets"));
    }
    let (key, row) = find_tip(&app.core, shop, tip_id).await?;
    let pickup = TipPickupKey { tip_id: key.tip_id, pickup_id: pickup_id(&key.tip_id, &planchets) };
    let read = {
        let (pickup, reserve) = (pickup.clone(), TipReserveKey { reserve_pub: row.reserve_pub });
        move |store: &Store| Ok((store.get::<TipPickups>(&pickup)?, store.get::<TipReserves>(&reserve)?))
    };
    let (known, reserve) = app.core.read(read).await?;
    if let Some(signatures) = known.and_then(|known| known.row.signatures) {
        return Ok(json_text(signatures));
    }
    let reserve = reserve.ok_or_else(|| unknown_tip(tip_id))?.row;
    let expired = || Response::error(ErrorCode::MERCHANT_TIP_PICKUP_HAS_EXPIRED, tip_id);
    let reserve_priv = reserve.reserve_priv.map(EddsaPrivateKey::from_bytes).ok_or_else(expired)?;
    request.leave_slot();
    let knows = |exchange: &Exchange| {
        planchets.iter().all(|planchet| exchange.denoms.contains_key(&planchet.denom_pub_hash))
    };
    let exchange = app.exchanges.get(&reserve.exchange_url, knows).await;
    let exchange = exchange.map_err(|error| unknown_exchange(&error, &reserve.exchange_url))?;
    let mut withdrawals = Vec::with_capacity(planchets.len());
    let mut costs = Vec::with_capacity(planchets.len());
    for TipPlanchet { denom_pub_hash, coin_ev } in planchets {
        let unknown = || {
            let code = ErrorCode::MERCHANT_TIP_PICKUP_DENOMINATION_UNKNOWN;
            Response::error(code, &denom_pub_hash.to_string())
        };
        let denom = exchange.denoms.get(&denom_pub_hash).filter(|denom| denom.is_rsa).ok_or_else(unknown)?;
        costs.push(denom.cost);
        let message = WalletReserveWithdraw {
            amount_with_fee: app.core.amount(denom.cost),
            h_denom_pub: denom_pub_hash,
            h_coin_envelope: coin_ev.hash(&denom_pub_hash),
        };
        let reserve_sig = message.sign(&reserve_priv);
        withdrawals.push(WithdrawRequest { reserve_sig, denom_pub_hash, coin_ev });
    }
    let too_large = |_| Response::error(ErrorCode::MERCHANT_TIP_PICKUP_SUMMATION_FAILED, tip_id);
    let amount = Money::checked_sum(costs).map_err(too_large)?;
    let count = u32::try_from(withdrawals.len()).expect("it is limited");
    let take = PickUpTip { key: pickup.clone(), reserve_pub: row.reserve_pub, amount, planchets: count };
    let known = app.core.decide(take, tip_id).await?;
    if let Some(signatures) = known {
        return Ok(json_text(signatures));
    }
    // From here on these coins belong to the customer: the exchange signs the same planchets as often as it is
    // asked, and charges for them once.
    let signatures = match withdraw(&exchange, row.reserve_pub, withdrawals).await {
        // These coins will never be signed: no such denomination, or its time is over.
        Err((problem, 404 | 410)) => {
            app.core.decide(TakeBackPickup { key: pickup, reserve_pub: row.reserve_pub }, tip_id).await?;
            return Err(problem);
        }
        answer => answer.map_err(|(problem, _)| problem)?,
    };
    let answer = PickUpTipResponse {
        blind_sigs: signatures.ev_sigs.into_iter().map(|sig| TipBlindSig { blind_sig: sig.ev_sig }).collect(),
    };
    let text = serde_json::to_string(&answer).expect("it has a JSON form");
    let record = RecordTipPickup { key: pickup, signatures: text.clone() };
    // The coins are the customer's, even if the shop has purged the tip meanwhile.
    _ = app.core.execute(record).await?;
    Ok(json_text(text))
}

/// Withdraws the coins of a tip. An error comes with the exchange's status, 0 if it gave none.
async fn withdraw(
    exchange: &Exchange,
    reserve_pub: EddsaPublicKey,
    planchets: Vec<WithdrawRequest>,
) -> Result<BlindSignatures, (Response, u16)> {
    let count = planchets.len();
    let call = exchange.post(&format!("reserves/{reserve_pub}/batch-withdraw"));
    let reply = call.json(&BatchWithdrawRequest { planchets }).send().await;
    let reply = reply.map_err(|error| (unanswered(&error), 0))?;
    let code = ErrorCode::MERCHANT_TIP_PICKUP_EXCHANGE_ERROR;
    if reply.status != 200 {
        let body = reply.json::<Value>().ok().map(|body| (reply.status, body));
        return Err((exchange_problem(code, None, body), reply.status));
    }
    let signatures = reply.json::<BlindSignatures>().map_err(|_| (malformed_reply(), 0))?;
    if signatures.ev_sigs.len() == count { Ok(signatures) } else { Err((malformed_reply(), 0)) }
}

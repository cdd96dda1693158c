//! `/liabilities`: what the exchange has published about its debts, read from files, and receipts for blind signatures.
//! Only there if `[exchange-liabilities]` is configured.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use batzen_crypto::{EddsaSignature, HashCode};
use batzen_http::{Request, Response, header};
use batzen_protocol::ErrorCode;
use batzen_protocol::liabilities::{Kind, Receipt, files};
use batzen_protocol::signatures::SignedMessage;
use batzen_tables::exchange::{DenomKey, Denominations, Reveals, Withdrawals};

use super::check::Checked;
use super::signing::sign_messages;
use super::{FAILURES, Table, endpoint, error, path_value};
use crate::app::Exchange;
use crate::keys::OnlineKey;
use crate::workers::liabilities::{file, index};

/// Epochs never change.
const FOREVER: &str = "public, max-age=31536000, immutable";
/// A new epoch may come at any time.
const SHORT: &str = "public, max-age=60";
/// The most files that are read at the same time.
static READERS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(8);

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/liabilities", "other", endpoint!(list))
        .get("/liabilities/receipt/:h_coin_ev", "other", endpoint!(receipt))
        .get("/liabilities/:epoch", "other", endpoint!(statement))
        .get("/liabilities/:epoch/:h_denom_pub/:kind/:prefix", "other", endpoint!(bucket))
}

fn unknown(what: &str) -> Response {
    error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, what)
}

/// Reads a file, off the threads that serve requests.
async fn read(path: PathBuf) -> Option<Vec<u8>> {
    let _turn = READERS.acquire().await.expect("never closed");
    let bytes = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
    bytes.expect("reading a file does not panic").ok()
}

async fn serve(path: PathBuf, caching: &str) -> Response {
    match read(path).await {
        Some(bytes) => Response::json_text(200, bytes).with_header(header::CACHE_CONTROL, caching),
        None => unknown("nothing is published there"),
    }
}

async fn list(app: &Exchange, _: &Request) -> Response {
    let Some(config) = &app.core.config.liabilities else { return unknown("") };
    serve(file(&config.dir, files::INDEX), SHORT).await
}

/// An epoch that is published. Its directory may be there before the index names it.
async fn published(app: &Exchange, request: &Request) -> Checked<u64> {
    let epoch: u64 = path_value(request, "epoch", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let known = &app.last_epoch;
    if epoch > known.load(Ordering::Acquire)
        && let Some(config) = &app.core.config.liabilities
    {
        let dir = config.dir.clone();
        let _turn = READERS.acquire().await.expect("never closed");
        let index = tokio::task::spawn_blocking(move || index(&dir)).await;
        match index.expect("reading the index does not panic") {
            Ok(index) => {
                let last = index.and_then(|index| index.epochs.last().map(|last| last.epoch)).unwrap_or(0);
                known.fetch_max(last, Ordering::AcqRel);
            }
            Err(fault) => {
                tracing::error!(error = %fault, "the index of liabilities cannot be read");
                return Err(error(ErrorCode::GENERIC_DB_FETCH_FAILED, "index"));
            }
        }
    }
    if (1..=known.load(Ordering::Acquire)).contains(&epoch) {
        Ok(epoch)
    } else {
        Err(unknown("this epoch is not published"))
    }
}

async fn statement(app: &Exchange, request: &Request) -> Checked<Response> {
    let Some(config) = &app.core.config.liabilities else { return Err(unknown("")) };
    let epoch = published(app, request).await?;
    Ok(serve(file(&config.dir, &files::statement(epoch)), FOREVER).await)
}

async fn bucket(app: &Exchange, request: &Request) -> Checked<Response> {
    let Some(config) = &app.core.config.liabilities else { return Err(unknown("")) };
    let epoch = published(app, request).await?;
    let denom: HashCode = path_value(request, "h_denom_pub", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let kind = Kind::from_name(request.param("kind")).ok_or_else(|| unknown("no such tree"))?;
    // A bucket's name has only hexadecimal digits, so that no path leads elsewhere.
    let name = request.param("prefix");
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if name.is_empty() || name.len() > 8 || !name.bytes().all(is_hex) {
        return Err(unknown("no such bucket"));
    }
    let path = format!("{}/{name}", files::tree(epoch, &denom, kind));
    Ok(serve(file(&config.dir, &path), FOREVER).await)
}

/// A receipt for a blind signature. Who knows the planchet's hash has made it, or is the exchange.
async fn receipt(app: &Arc<Exchange>, request: &Request) -> Checked<Response> {
    if app.core.config.liabilities.is_none() {
        return Err(unknown(""));
    }
    let h_coin_ev: HashCode = path_value(request, "h_coin_ev", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    let found = app.core.read(move |store| {
        let withdrawn = store.lookup::<Withdrawals>(Withdrawals::BY_COIN_EV, &h_coin_ev)?;
        let found = match withdrawn.first() {
            Some(found) => Some((found.row.denom, found.row.time)),
            None => {
                let revealed = store.lookup::<Reveals>(Reveals::BY_COIN_EV, &h_coin_ev)?;
                revealed.first().and_then(|found| {
                    let fresh = &found.row.fresh.0;
                    let coin = fresh.iter().find(|coin| coin.h_coin_ev == h_coin_ev)?;
                    Some((coin.denom, found.row.time))
                })
            }
        };
        let Some((serial, time)) = found else { return Ok(None) };
        let denom = store.get::<Denominations>(&DenomKey { serial })?;
        Ok(denom.map(|denom| (denom.row.h_denom_pub, time)))
    });
    let Some((h_denom_pub, timestamp)) = found.await.map_err(|fault| FAILURES.store(&fault))? else {
        return Err(unknown("no such signature"));
    };
    let keys = app.keys();
    let key = keys.online_key().ok().and_then(|key| keys.signing_key(&key.public_key()));
    let Some(signing_key) = key.map(OnlineKey::signed) else {
        return Err(error(ErrorCode::EXCHANGE_SIGNKEY_HELPER_UNAVAILABLE, ""));
    };
    let mut receipt = Receipt {
        timestamp,
        h_denom_pub,
        h_coin_ev,
        exchange_sig: EddsaSignature::from_bytes([0; 64]),
        signing_key,
    };
    let message = receipt.message().message().as_ref().into();
    let (_, signatures) = sign_messages(app, &keys, vec![message])?.await?;
    receipt.exchange_sig = signatures[0];
    Ok(Response::json(200, &receipt).with_header(header::CACHE_CONTROL, "no-store"))
}

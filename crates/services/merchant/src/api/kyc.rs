//! Whether exchanges ask who owns the shop's accounts: `/private/kyc` (merchant chapter 6.12).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_http::client::ClientError;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::KycRedirect;
use batzen_protocol::api::merchant::{KycOpen, PendingKyc, TimeoutKyc};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{ErrorCode, ErrorDetail, Timestamp};
use batzen_store::Store;
use batzen_tables::merchant::{
    AccountKycKey, AccountKycRow, AccountKycs, OrderDepositRow, OrderDeposits, OrderRef, OrderRow,
};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::openapi::TEXT;
use super::table::{Rows, endpoint};
use super::tracking::Tracked;
use super::{Answer, Checked, Merchant, Shop, refunds, tracking};
use crate::rules::RecordKyc;
use crate::urls::is_web_url;

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("instance");
    let endpoints = [
        ("/private/kyc", endpoint!(Reader, kyc), "kyc"),
        ("/management/instances/:id/kyc", endpoint!(Admin, kyc), "instance_kyc"),
    ];
    for (path, endpoint, name) in endpoints {
        rows.get(path, endpoint, "What exchanges ask about the owners of accounts")
            .named(name)
            .query("h_wire", TEXT, "Only this account, by its hash.")
            .query("exchange_url", TEXT, "Only this exchange.")
            .polls()
            .answers::<KycOpen>(202, "Exchanges ask who owns an account.")
            .answers_empty(204, "Nothing is open.");
    }
    rows
}

/// After this time, an exchange is asked again whether it wants to know who owns an account.
const ASK_AGAIN: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(3_600);
/// Interval at which the payments of an instance are a reason to look whether an exchange was asked.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The maximum number of instances of which something is remembered.
const INSTANCES_MAX: usize = 65_536;
/// Questions to exchanges that are under way at the same time.
const QUESTIONS_AT_ONCE: usize = 16;
/// The longest that an exchange is asked to wait for an identification.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// An exchange's answer about an account.
enum Kyc {
    /// The owner shall identify there.
    Open(PendingKyc),
    /// It asks for nothing.
    Done,
    /// It did not say.
    NoAnswer(TimeoutKyc),
}

/// When the payments of each instance last led to the question whether an exchange wants to know its owner.
#[derive(Default)]
pub(super) struct KycPace {
    asked: Mutex<HashMap<String, Instant>>,
}

impl KycPace {
    /// Returns whether the latest payment is a reason to look again.
    fn is_due(&self, instance: &str) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.get(instance).is_some_and(|asked| asked.elapsed() < LOOK_AGAIN) {
            return false;
        }
        if asked.len() >= INSTANCES_MAX {
            // Whatever is thrown away is looked up in the store.
            asked.clear();
        }
        asked.insert(instance.to_owned(), Instant::now());
        true
    }
}

/// After a payment: asks the exchange, in the background, whether it pays the account without knowing who owns
/// it, if that was not asked for a while.
pub(super) fn look_for_kyc(
    app: &Arc<Merchant>,
    shop: &Shop,
    order: OrderRef,
    h_contract: HashCode,
    row: &OrderRow,
) {
    if !app.kyc_pace.is_due(&shop.id) {
        return;
    }
    let Ok(key) = shop.key() else { return };
    let (merchant, shop, row) = (Arc::clone(app), shop.clone(), row.clone());
    app.background.spawn(async move {
        // If this fails, the next payment asks again.
        let _ = ask_after_payment(&merchant, &shop, &key, order, h_contract, &row).await;
    });
}

async fn ask_after_payment(
    app: &Merchant,
    shop: &Shop,
    key: &EddsaPrivateKey,
    order: OrderRef,
    h_contract: HashCode,
    row: &OrderRow,
) -> Checked<()> {
    let h_wire = refunds::contract_terms(row)?.h_wire;
    let read = move |store: &Store| store.lookup::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
    let Some(found) = app.core.read(read).await?.into_iter().next() else { return Ok(()) };
    let OrderDepositRow { exchange_url, .. } = &found.row;
    let kyc = AccountKycKey { instance: shop.id.clone(), h_wire, exchange_url: exchange_url.clone() };
    let known = app.core.read(move |store| store.get::<AccountKycs>(&kyc)).await?;
    if known.is_some_and(|known| app.core.now() < known.row.checked.saturating_add(ASK_AGAIN)) {
        return Ok(());
    }
    let answer = tracking::track(app, shop, key, h_contract, h_wire, found.key.coin_pub, &found.row).await;
    match answer {
        Ok(Tracked::Pending(pending)) => {
            tracking::note_kyc(&app.core, shop, h_wire, exchange_url, &pending).await
        }
        _ => Ok(()),
    }
}

async fn kyc(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let h_wire = request.query_opt::<HashCode>("h_wire")?;
    let exchange_url = request.query_text("exchange_url").map(str::to_owned);
    let timeout_ms = request.query_opt::<u64>("timeout_ms")?;
    let id = shop.id.clone();
    let read = move |store: &Store| store.lookup::<AccountKycs>(AccountKycs::BY_INSTANCE, &id);
    let known = app.core.read(read).await?;
    let accounts = app.core.accounts(&shop.id).await?;
    let asked = known.into_iter().filter(|found| {
        h_wire.is_none_or(|h_wire| h_wire == found.key.h_wire)
            && exchange_url.as_ref().is_none_or(|url| *url == found.key.exchange_url)
    });
    let questions: Vec<_> = asked
        .filter_map(|found| {
            let requirement_row = found.row.requirement_row?;
            let (_, account) =
                accounts.iter().find(|(key, row)| key.h_wire == found.key.h_wire && row.active)?;
            Some((found.key, requirement_row, account.payto_uri.clone()))
        })
        .collect();
    if questions.is_empty() {
        return Ok(Response::empty(204));
    }
    request.leave_slot();
    let wait = timeout_ms.map(|ms| Duration::from_millis(ms).min(WAIT_MAX));
    let answers = stream::iter(questions.into_iter().map(|(key, requirement_row, payto_uri)| async move {
        let answer = ask_for_kyc(app, &key, requirement_row, &payto_uri, wait).await;
        if matches!(answer, Kyc::Done) {
            let row = AccountKycRow {
                requirement_row: None,
                checked: Timestamp::ZERO,
                http_status: 0,
                exchange_code: 0,
            };
            app.core.decide(RecordKyc { key, row }, "").await?;
        }
        Ok::<Kyc, Response>(answer)
    }));
    let answers: Vec<_> = answers.buffered(QUESTIONS_AT_ONCE).collect().await;
    let mut open = KycOpen { pending_kycs: Vec::new(), timeout_kycs: Vec::new() };
    for answer in answers {
        match answer? {
            Kyc::Open(pending) => open.pending_kycs.push(pending),
            Kyc::NoAnswer(timeout) => open.timeout_kycs.push(timeout),
            Kyc::Done => {}
        }
    }
    if open.pending_kycs.is_empty() && open.timeout_kycs.is_empty() {
        return Ok(Response::empty(204));
    }
    let status = match (open.pending_kycs.is_empty(), open.timeout_kycs.first()) {
        // Nothing is known, because of the exchanges.
        (true, Some(timeout)) if timeout.exchange_http_status == 0 => 504,
        (true, Some(_)) => 502,
        _ => 202,
    };
    Ok(Response::json(status, &open))
}

async fn ask_for_kyc(
    app: &Merchant,
    key: &AccountKycKey,
    requirement_row: u64,
    payto_uri: &str,
    wait: Option<Duration>,
) -> Kyc {
    let no_answer = |exchange_code, exchange_http_status| {
        let exchange_url = key.exchange_url.clone();
        Kyc::NoAnswer(TimeoutKyc { exchange_url, exchange_code, exchange_http_status })
    };
    let Ok(exchange) = app.exchanges.get(&key.exchange_url, |_| true).await else {
        return no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE.to_u32(), 0);
    };
    let mut ask = exchange.get(&format!("kyc-check/{requirement_row}/{}/business", h_payto(payto_uri)));
    if let Some(wait) = wait {
        ask = ask.query("timeout_ms", wait.as_millis());
    }
    let reply = match ask.send().await {
        Ok(reply) => reply,
        Err(ClientError::Timeout { .. }) => {
            return no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_TIMEOUT.to_u32(), 0);
        }
        Err(_) => return no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE.to_u32(), 0),
    };
    match reply.status {
        200 | 204 => Kyc::Done,
        202 => match reply.json::<KycRedirect>() {
            // The back office makes it a link.
            Ok(KycRedirect { kyc_url }) if is_web_url(&kyc_url) => Kyc::Open(PendingKyc {
                kyc_url,
                exchange_url: key.exchange_url.clone(),
                payto_uri: payto_uri.to_owned(),
            }),
            Ok(_) | Err(_) => no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_REPLY_MALFORMED.to_u32(), 202),
        },
        status => {
            let code = reply.json::<ErrorDetail>().map_or(0, |body| body.code.to_u32());
            no_answer(code, status.into())
        }
    }
}

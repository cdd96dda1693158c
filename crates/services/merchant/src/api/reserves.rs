//! Reserves from which a shop gives tips: `/private/reserves` (merchant chapter 6.11).

use std::sync::Arc;
use std::time::Duration as StdDuration;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::ReserveBalance;
use batzen_protocol::api::merchant::{
    CreateTipReserveRequest, CreateTipReserveResponse, TipOfReserve, TipReserveDetails, TipReserveList,
    TipReserveState, TipReserveSummary,
};
use batzen_protocol::{Amount, ErrorCode, Money, PaytoUri, Timestamp};
use batzen_store::Store;
use batzen_tables::merchant::{TipReserveKey, TipReserveRow, TipReserves};

use super::orders::yes_or_no;
use super::{Answer, Service, Shop, body, refused};
use crate::exchanges::{Exchange, is_base_url};
use crate::rules::{CreateTipReserve, DeleteTipReserve, FundTipReserve, Refusal};

/// The maximum number of reserves of an instance.
const RESERVES_MAX: usize = 1_024;
/// How long an exchange is asked to wait for a reserve's money.
const FUNDING_POLL: StdDuration = StdDuration::from_secs(8);
/// The pause after an exchange gave no answer about a reserve.
const FUNDING_PAUSE: StdDuration = StdDuration::from_secs(5);

impl Service {
    fn reserve_state(&self, row: &TipReserveRow) -> TipReserveState {
        TipReserveState {
            creation_time: row.created,
            expiration_time: row.expires,
            merchant_initial_amount: self.amount(row.merchant_initial),
            exchange_initial_amount: self.amount(row.exchange_initial),
            pickup_amount: self.amount(row.picked_up),
            committed_amount: self.amount(row.committed),
            active: row.reserve_priv.is_some() && !row.exchange_initial.is_zero() && self.now() < row.expires,
        }
    }

    pub(super) async fn reserves(&self, id: &str) -> Result<Vec<(TipReserveKey, TipReserveRow)>, Response> {
        let id = id.to_owned();
        let read = move |store: &Store| store.lookup::<TipReserves>(TipReserves::BY_INSTANCE, &id);
        let found = self.read(read).await?;
        let mut all: Vec<_> = found.into_iter().map(|found| (found.key, found.row)).collect();
        all.sort_by_key(|(key, row)| (row.created, key.reserve_pub));
        Ok(all)
    }

    /// Requires a reserve of the instance.
    pub(super) async fn reserve(
        &self,
        shop: &Shop,
        reserve_pub: &str,
    ) -> Result<(TipReserveKey, TipReserveRow), Response> {
        let unknown =
            || Response::error(ErrorCode::MERCHANT_PRIVATE_GET_RESERVES_ID_RESERVE_UNKNOWN, reserve_pub);
        let key = TipReserveKey { reserve_pub: reserve_pub.parse().map_err(|_| unknown())? };
        let read = {
            let key = key.clone();
            move |store: &Store| store.get::<TipReserves>(&key)
        };
        let found = self.read(read).await?.filter(|found| found.row.instance == shop.id);
        Ok((key, found.ok_or_else(unknown)?.row))
    }

    /// An exchange for tips.
    async fn tip_exchange(&self, url: &str) -> Result<Arc<Exchange>, Response> {
        match self.exchanges.get(url, |_| true).await {
            Ok(exchange) if self.exchanges.accepts_some(&exchange) => Ok(exchange),
            Ok(_) => {
                let code = ErrorCode::MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE;
                Err(Response::error(code, "the backend does not accept this exchange"))
            }
            Err(error) => Err(super::pay::unknown_exchange(&error)),
        }
    }

    pub(super) async fn create_reserve(self: &Arc<Self>, mut request: Request, shop: &Shop) -> Answer {
        let CreateTipReserveRequest { initial_balance, exchange_url, wire_method } = body(&request)?;
        shop.key()?;
        let other = |_| Response::error(ErrorCode::GENERIC_CURRENCY_MISMATCH, "initial_balance");
        let merchant_initial = initial_balance.money_in(self.config.currency).map_err(other)?;
        if !is_base_url(&exchange_url) {
            return Err(Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "exchange_url"));
        }
        if self.reserves(&shop.id).await?.len() >= RESERVES_MAX {
            return Err(Response::error_status(
                ErrorCode::GENERIC_PARAMETER_MALFORMED,
                409,
                "too many reserves",
            ));
        }
        request.leave_slot();
        let exchange = self.tip_exchange(&exchange_url).await?;
        let is_method = |uri: &&String| {
            PaytoUri::parse(uri.as_str()).is_ok_and(|payto| payto.method().eq_ignore_ascii_case(&wire_method))
        };
        let unsupported = || {
            Response::error(ErrorCode::MERCHANT_PRIVATE_POST_RESERVES_UNSUPPORTED_WIRE_METHOD, &wire_method)
        };
        let payto_uri = exchange.accounts.iter().find(is_method).ok_or_else(unsupported)?.clone();
        let reserve_priv = EddsaPrivateKey::generate();
        let now = self.now();
        let row = TipReserveRow {
            instance: shop.id.clone(),
            reserve_priv: Some(*reserve_priv.as_bytes()),
            exchange_url,
            payto_uri: payto_uri.clone(),
            created: Timestamp::from_secs(now.as_micros() / 1_000_000),
            expires: now.saturating_add(exchange.closing_delay),
            merchant_initial,
            exchange_initial: Money::ZERO,
            committed: Money::ZERO,
            picked_up: Money::ZERO,
        };
        let key = TipReserveKey { reserve_pub: reserve_priv.public_key() };
        let verdict = self.execute(CreateTipReserve { key: key.clone(), row }).await?;
        verdict.map_err(|refusal| refused(&refusal, &shop.id))?;
        self.watch_reserve(key.clone());
        Ok(Response::json(200, &CreateTipReserveResponse { reserve_pub: key.reserve_pub, payto_uri }))
    }

    pub(super) async fn list_reserves(&self, request: &Request, shop: &Shop) -> Answer {
        let active = yes_or_no(request, "active")?;
        let failures = yes_or_no(request, "failures")?;
        let after = request.query_opt::<u64>("after")?.map(Timestamp::from_secs);
        let summaries = self.reserves(&shop.id).await?.into_iter().map(|(key, row)| TipReserveSummary {
            reserve_pub: key.reserve_pub,
            state: self.reserve_state(&row),
        });
        let is_wanted = |summary: &TipReserveSummary| {
            let is_failure = summary.state.merchant_initial_amount != summary.state.exchange_initial_amount;
            active.is_none_or(|active| active == summary.state.active)
                && failures.is_none_or(|failures| failures == is_failure)
                && after.is_none_or(|after| summary.state.creation_time > after)
        };
        Ok(Response::json(200, &TipReserveList { reserves: summaries.filter(is_wanted).collect() }))
    }

    pub(super) async fn show_reserve(&self, request: &Request, shop: &Shop, reserve_pub: &str) -> Answer {
        let (key, row) = self.reserve(shop, reserve_pub).await?;
        let tips = match yes_or_no(request, "tips")? {
            Some(true) => {
                let tips = self.tips_of(key.reserve_pub).await?.into_iter().map(|(key, row)| TipOfReserve {
                    tip_id: key.tip_id,
                    total_amount: self.amount(row.amount),
                    reason: row.justification,
                });
                Some(tips.collect())
            }
            _ => None,
        };
        let details = TipReserveDetails {
            state: self.reserve_state(&row),
            payto_uri: row.payto_uri,
            exchange_url: row.exchange_url,
            tips,
        };
        Ok(Response::json(200, &details))
    }

    pub(super) async fn delete_reserve(&self, request: &Request, shop: &Shop, reserve_pub: &str) -> Answer {
        let (key, _) = self.reserve(shop, reserve_pub).await?;
        let purge = request.query_text("purge").is_some_and(|text| text.eq_ignore_ascii_case("yes"));
        let mut pickups = Vec::new();
        if purge {
            for (tip, _) in self.tips_of(key.reserve_pub).await? {
                pickups.extend(self.pickups(tip.tip_id).await?.into_iter().map(|found| found.key));
            }
        }
        match self.execute(DeleteTipReserve { key, purge, pickups }).await? {
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
        &self,
        key: &TipReserveKey,
        row: &TipReserveRow,
        wait: Option<StdDuration>,
    ) -> Option<bool> {
        let exchange = self.exchanges.get(&row.exchange_url, |_| true).await.ok()?;
        let mut ask = self.exchanges.client.get(format!("{}reserves/{}", row.exchange_url, key.reserve_pub));
        if let Some(wait) = wait {
            ask = ask.query("timeout_ms", wait.as_millis());
        }
        let reply = ask.send().await.ok()?;
        match reply.status {
            200 => {
                let ReserveBalance { balance } = reply.json().ok()?;
                let balance: Money = Amount::money_in(&balance, self.config.currency).ok()?;
                if balance.is_zero() {
                    return Some(false);
                }
                let expires = self.now().saturating_add(exchange.closing_delay);
                let verdict =
                    self.execute(FundTipReserve { key: key.clone(), balance, expires }).await.ok()?;
                Some(verdict.is_ok())
            }
            404 => Some(false),
            _ => None,
        }
    }

    /// Waits in the background until a reserve is filled, deleted or expired.
    pub(crate) fn watch_reserve(self: &Arc<Self>, key: TipReserveKey) {
        let service = Arc::clone(self);
        self.background.spawn(async move {
            loop {
                let read = {
                    let key = key.clone();
                    move |store: &Store| store.get::<TipReserves>(&key)
                };
                let row = match service.read(read).await {
                    Ok(Some(found)) => found.row,
                    Ok(None) => return,
                    Err(_) => {
                        tokio::time::sleep(FUNDING_PAUSE).await;
                        continue;
                    }
                };
                let is_over = row.reserve_priv.is_none()
                    || !row.exchange_initial.is_zero()
                    || row.expires <= service.now();
                if is_over {
                    return;
                }
                let began = tokio::time::Instant::now();
                match service.look_for_funding(&key, &row, Some(FUNDING_POLL)).await {
                    Some(true) => return,
                    // An exchange that does not wait would be asked without a pause.
                    Some(false) if began.elapsed() > FUNDING_POLL / 2 => {}
                    Some(false) | None => tokio::time::sleep(FUNDING_PAUSE).await,
                }
            }
        });
    }

    /// Waits for the money of all reserves that have none, after a start.
    pub(crate) async fn watch_reserves(self: &Arc<Self>) -> Result<(), Response> {
        let found = self.read(|store: &Store| store.all::<TipReserves>()).await?;
        for found in found {
            if found.row.exchange_initial.is_zero() && found.row.reserve_priv.is_some() {
                self.watch_reserve(found.key);
            }
        }
        Ok(())
    }
}

//! Recoup: returns coins of revoked denominations to their origin, which is a reserve or the coin that was
//! refreshed.
//!
//! The exchange does not sign its answer to a recoup. So the wallet asks for the reserve's history, where
//! each recoup has the exchange's signature, and repeats the recoup until the history shows it.

mod record;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_protocol::signatures::{
    SignedMessage, WalletCoinRecoup, WalletCoinRecoupRefresh, WalletReserveStatus,
};
use batzen_protocol::{Duration, ErrorCode, Money, Timestamp};

use super::coin::{CoinSource, CoinStatus};
use super::http::{Context, HttpRequest, HttpResponse};
use super::operation::{Operation, Step, View, is_busy};
use super::proof::coin as coin_proof;
use super::proof::denomination::{self, Problem, Use};
use super::proof::known::Known;
use super::proof::reserve as reserve_proof;
use super::row::{Transaction, Wait, units};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{CoreError, planchet, withdraw};
use crate::core::error::{Result, false_proof};
use batzen_protocol::api::exchange::{RecoupRefreshResponse, RecoupRequest, RecoupResponse, ReserveRequest};

pub(crate) use record::*;

/// A reserve's free history covers five weeks. A wallet that asks later finds no proof in it.
const PROVABLE: Duration = Duration::from_days(28);

/// A request for a history that is older than this may be refused for its age.
const STALE: Duration = Duration::from_secs(600);

/// Begins the recoups that are due.
pub(crate) fn plan(draft: &mut Draft<'_>, now: Timestamp) -> Result<()> {
    let (mut due, mut lost) = (Vec::new(), Vec::new());
    for coin in draft.coins() {
        let wanted = !coin.remaining.is_zero() && matches!(coin.status, CoinStatus::Fresh | CoinStatus::Used);
        let denom = draft.exchange(&coin.exchange).and_then(|exchange| exchange.denom(&coin.h_denom_pub));
        if !wanted || !denom.is_ok_and(|denom| denom.revoked && now <= denom.stamp_expire_deposit) {
            continue;
        }
        // The money would go to the merchant, into whose reserve the exchange pays it back.
        if matches!(coin.source, CoinSource::Tip { .. }) {
            lost.push(coin.coin_pub);
        } else {
            due.push((coin.coin_pub, coin.remaining, coin.exchange.clone()));
        }
    }
    for coin_pub in lost {
        draft.coin_mut(&coin_pub)?.status = CoinStatus::Lost;
    }
    due.retain(|(coin_pub, ..)| !is_busy(draft, coin_pub));
    for (coin_pub, amount, exchange) in due {
        draft.debit_coin(&coin_pub, amount)?;
        let record = Recoup {
            coin_pub,
            amount,
            missing: Money::ZERO,
            stage: RecoupStage::Send,
            answered: None,
            reason: None,
        };
        draft.begin(now, &exchange, record);
    }
    Ok(())
}

impl Operation for Recoup {
    fn name(&self) -> &'static str {
        "recoup"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, _poll_ms: u64) -> Result<HttpRequest> {
        let coin = state.coin(&self.coin_pub)?;
        if let (RecoupStage::Confirm { time }, CoinSource::Withdrawal { operation: id, reserve_pub }) =
            (self.stage, coin.source)
        {
            let message = WalletReserveStatus { request_timestamp: time };
            let reserve_sig = message.sign(reserve_priv(state.operation(id)?)?);
            let body = ReserveRequest { request_timestamp: time, reserve_sig };
            let url = format!("{}reserves/{reserve_pub}/status", operation.exchange);
            return Ok(HttpRequest::post(Context::Refresh, url, &body));
        }
        let (path, coin_sig) = match coin.source {
            CoinSource::Withdrawal { .. } => {
                let message =
                    WalletCoinRecoup { h_denom_pub: coin.h_denom_pub, coin_blind: coin.blinding.clone() };
                ("recoup", message.sign(&coin.coin_priv))
            }
            CoinSource::Tip { .. } => return Err(of_tip(operation)),
            CoinSource::Refresh { .. } => {
                let message = WalletCoinRecoupRefresh {
                    h_denom_pub: coin.h_denom_pub,
                    coin_blind: coin.blinding.clone(),
                };
                ("recoup-refresh", message.sign(&coin.coin_priv))
            }
        };
        let body = RecoupRequest {
            denom_pub_hash: coin.h_denom_pub,
            denom_sig: coin.denom_sig.clone(),
            ewv: planchet::withdraw_values(coin.cs.as_ref()),
            coin_blind_key_secret: coin.blinding.clone(),
            coin_sig,
            h_age_commitment: coin.h_age()?,
            cs_nonce: coin.cs.map(|session| session.nonce),
        };
        Ok(HttpRequest::post(
            Context::Refresh,
            format!("{}coins/{}/{path}", operation.exchange, coin.coin_pub),
            &body,
        ))
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let mut record = *self;
        let coin = step.draft.coin(&record.coin_pub)?.clone();
        if let (RecoupStage::Confirm { .. }, CoinSource::Withdrawal { operation, reserve_pub }) =
            (record.stage, coin.source)
        {
            return after_history(step, record, operation, &reserve_pub, response);
        }
        match (response.status, response.code()) {
            (200, _) => {
                match coin.source {
                    CoinSource::Withdrawal { reserve_pub, .. } => {
                        let answer: RecoupResponse = response.json("paying back a coin")?;
                        if answer.reserve_pub != reserve_pub {
                            return Err(wrong_owner());
                        }
                        record.answered.get_or_insert(step.now);
                        record.stage = RecoupStage::Confirm { time: step.now };
                        step.proceed(record);
                        return Ok(());
                    }
                    CoinSource::Tip { .. } => return Err(of_tip(&step.operation)),
                    CoinSource::Refresh { old_coin_pub, .. } => {
                        let answer: RecoupRefreshResponse = response.json("paying back a coin")?;
                        if answer.old_coin_pub != old_coin_pub {
                            return Err(wrong_owner());
                        }
                        step.draft.credit_coin(&old_coin_pub, record.amount)?;
                        // Whatever it was debited for, it is now a used coin with remaining value, to be
                        // refreshed.
                        step.draft.coin_mut(&old_coin_pub)?.status = CoinStatus::Used;
                    }
                }
                record.stage = RecoupStage::Done;
                step.finish(record);
                Ok(())
            }
            (
                410,
                ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED
                | ErrorCode::EXCHANGE_RECOUP_NOT_ELIGIBLE
                | ErrorCode::EXCHANGE_RECOUP_REFRESH_NOT_ELIGIBLE,
            ) => {
                let exchange = step.draft.exchange(&step.operation.exchange)?;
                let asked = [coin.h_denom_pub];
                let operations = ["RECOUP", "RECOUP-REFRESH"];
                let (_, problem) =
                    denomination::verify(exchange, &asked, &operations, Use::Spend, response, step.now)?;
                if problem != Problem::NotRevoked {
                    return fail(step, record, "the coin has expired", CoinStatus::Lost);
                }
                // The exchange says that it was not revoked, so the coin is good.
                if let Some(denom) =
                    step.draft.exchange_mut(&step.operation.exchange)?.denoms.get_mut(&coin.h_denom_pub)
                {
                    denom.revoked = false;
                }
                fail(step, record, "the denomination is not revoked", CoinStatus::Used)
            }
            _ if coin_proof::is_conflict(response) => {
                let coin_pub = record.coin_pub;
                let about = coin_proof::Asked::Recoup;
                let accept = step.accept_refused;
                let proof = coin_proof::verify(&step.draft, &coin_pub, about, accept, response, step.now)?;
                let reason = "the coin was spent elsewhere, perhaps by a copy of this wallet";
                fail(step, record, reason, CoinStatus::Used)?;
                coin_proof::accept(step, &coin_pub, &proof)
            }
            // The coin is good and its denomination revoked: a refusal needs proof.
            (400..=499, code) if code != ErrorCode::NONE => {
                let reason = response.refusal("paying back a coin").to_string();
                Err(false_proof("the exchange's refusal to pay back a valid coin", reason))
            }
            _ => Err(response.refusal("paying back a coin")),
        }
    }

    fn holds(&self, coin_pub: &EddsaPublicKey) -> bool {
        self.coin_pub == *coin_pub
    }

    fn held(&self, _: View<'_>) -> Result<Money> {
        Ok(self.amount)
    }

    fn effect(&self, View { state, .. }: View<'_>) -> Result<i128> {
        if self.stage != RecoupStage::Done {
            return Ok(0);
        }
        Ok(match state.coin(&self.coin_pub)?.source {
            // A withdrawal from the reserve brings the money back.
            CoinSource::Withdrawal { .. } => -units(self.amount.checked_add(self.missing)?),
            CoinSource::Refresh { .. } | CoinSource::Tip { .. } => -units(self.missing),
        })
    }

    fn coin_changes(&self, state: &WalletState, change: &mut dyn FnMut(&EddsaPublicKey, i128)) -> Result<()> {
        if self.stage == RecoupStage::Failed {
            change(&self.coin_pub, 0);
            return Ok(());
        }
        change(&self.coin_pub, -units(self.amount.checked_add(self.missing)?));
        if let (RecoupStage::Done, CoinSource::Refresh { old_coin_pub, .. }) =
            (self.stage, state.coin(&self.coin_pub)?.source)
        {
            change(&old_coin_pub, units(self.amount));
        }
        Ok(())
    }

    fn describe(&self, View { exchange, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        row.amount = exchange.amount(self.amount);
        row.coins = 1;
        row.description = format!(
            "The exchange revoked a coin's denomination and pays {} back, free of charge",
            row.amount
        );
        row.fail_if(self.reason.is_some());
        if !self.missing.is_zero() {
            row.message = Some(format!(
                "{} of the coin had been spent before, perhaps by a copy of this wallet: the exchange has signed what it paid back",
                exchange.amount(self.missing)
            ));
        }
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, View { state, exchange, .. }: View<'_>) -> Result<Wait> {
        let reason = match self.stage {
            RecoupStage::Confirm { .. } => "waits for the reserve's history to show the recoup",
            _ => "waits for the exchange to pay back the coin",
        };
        let until = state.spendable_until(exchange, &self.coin_pub)?;
        Ok(Wait { reason, until: Some((until, "coin expires")) })
    }

    fn add_known(
        &self,
        draft: &Draft<'_>,
        _: OpId,
        coin_pub: &EddsaPublicKey,
        known: &mut Known,
    ) -> Result<()> {
        if self.stage != RecoupStage::Done {
            return Ok(());
        }
        if self.coin_pub == *coin_pub {
            known.recoups += 1;
        }
        let source = draft.coin(&self.coin_pub)?.source;
        if matches!(source, CoinSource::Refresh { old_coin_pub, .. } if old_coin_pub == *coin_pub) {
            let sum = known.returned.entry(self.coin_pub).or_default();
            *sum = sum.checked_add(self.amount)?;
        }
        Ok(())
    }
}

/// Processes the reserve's history. The recoup is sent again if it is missing.
fn after_history(
    step: &mut Step<'_, '_>,
    mut record: Recoup,
    withdrawal: OpId,
    reserve_pub: &EddsaPublicKey,
    response: &HttpResponse,
) -> Result<()> {
    let RecoupStage::Confirm { time } = record.stage else {
        return Err(response.refusal("paying back a coin"));
    };
    let missing = match (response.status, response.code()) {
        (200, _) => {
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            let earlier = reserve_proof::confirmed_recoups(&step.draft, reserve_pub)?;
            let earlier = earlier.get(&record.coin_pub).copied().unwrap_or(Money::ZERO);
            let returned =
                reserve_proof::returned(exchange, reserve_pub, &record.coin_pub, response, step.now)?;
            // A coin that was spent elsewhere, or by a payment whose answer was lost, pays back less than
            // expected.
            let now = returned.checked_sub(earlier).unwrap_or(Money::ZERO).min(record.amount);
            if now.is_zero() {
                Some("the exchange says that it has paid a coin back, but its history does not show it")
            } else {
                record.missing = record.amount.checked_sub(now)?;
                record.amount = now;
                None
            }
        }
        // The wallet has not run since then: the request is older than the exchange allows.
        (400, ErrorCode::EXCHANGE_GENERIC_CLOCK_SKEW) if step.now >= time.saturating_add(STALE) => {
            record.stage = RecoupStage::Send;
            step.proceed(record);
            return Ok(());
        }
        (404, _) => Some("the exchange says that it has paid a coin back, but does not know the reserve"),
        _ => return Err(response.refusal("asking for a reserve's history")),
    };
    let is_provable = record.answered.is_none_or(|answered| step.now <= answered.saturating_add(PROVABLE));
    if let Some(reason) = missing
        && is_provable
    {
        record.stage = RecoupStage::Send;
        step.wait(record, reason);
        return Ok(());
    }
    let reserve_priv = reserve_priv(step.draft.operation(withdrawal)?)?.clone();
    withdraw::start_from_recoup(step, &reserve_priv, record.amount)?;
    record.stage = RecoupStage::Done;
    step.finish(record);
    Ok(())
}

fn reserve_priv(operation: &WalletOperation) -> Result<&EddsaPrivateKey> {
    match &operation.kind {
        OpKind::Withdrawal(withdrawal) => Ok(&withdrawal.reserve_priv),
        _ => Err(CoreError::Inconsistent(format!("operation {} is no withdrawal", operation.id))),
    }
}

/// Coins of tips are never recouped.
fn of_tip(operation: &WalletOperation) -> CoreError {
    CoreError::Inconsistent(format!("operation {} recoups a tip", operation.id))
}

fn wrong_owner() -> CoreError {
    false_proof("the exchange's confirmation of a recoup", "it names another owner of the money")
}

fn fail(step: &mut Step<'_, '_>, mut record: Recoup, reason: &str, status: CoinStatus) -> Result<()> {
    step.draft.credit_coin(&record.coin_pub, record.amount)?;
    step.draft.coin_mut(&record.coin_pub)?.status = status;
    record.stage = RecoupStage::Failed;
    record.reason = Some(reason.to_owned());
    step.finish(record);
    Ok(())
}

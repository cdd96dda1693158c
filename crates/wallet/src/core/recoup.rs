//! Recoup: returns coins of revoked denominations to their origin, which is a reserve or the coin that was
//! refreshed.
//!
//! The exchange does not sign its answer to a recoup. So the wallet asks for the reserve's history, where
//! each recoup has the exchange's signature, and repeats the recoup until the history shows it.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_protocol::signatures::{
    SignedMessage, WalletCoinRecoup, WalletCoinRecoupRefresh, WalletReserveStatus,
};
use batzen_protocol::{Duration, ErrorCode, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::coin::{CoinSource, CoinStatus};
use super::encoding::text;
use super::http::{Context, HttpRequest, HttpResponse};
use super::machine::Step;
use super::proof::coin as coin_proof;
use super::proof::denomination::{self, Problem, Use};
use super::proof::reserve as reserve_proof;
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::{CoreError, planchet, refresh, withdraw};
use batzen_protocol::api::exchange::{RecoupRefreshResponse, RecoupRequest, RecoupResponse, ReserveRequest};

/// A reserve's free history covers five weeks. A wallet that asks later finds no proof in it.
const PROVABLE: Duration = Duration::from_days(28);

/// A request for a history that is older than this may be refused for its age.
const STALE: Duration = Duration::from_secs(600);

/// Stage of a recoup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoupStage {
    /// To be sent.
    Send,
    /// Answered. The reserve's history has to confirm it.
    Confirm {
        /// Timestamp of the history request. The exchange accepts only its current time.
        time: Timestamp,
    },
    /// The money was paid back.
    Done,
    /// Refused.
    Failed,
}

/// A recoup of one coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recoup {
    /// The coin's public key.
    pub coin_pub: EddsaPublicKey,
    /// The coin's remaining value; after the exchange's statement, the amount that was paid back.
    #[serde(with = "text")]
    pub amount: Money,
    /// The part of the remaining value, by this wallet's books, that was not paid back.
    #[serde(with = "text", default)]
    pub missing: Money,
    /// Its stage.
    pub stage: RecoupStage,
    /// When the exchange first said that the money is in the reserve again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<Timestamp>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Begins the recoups that are due.
pub(crate) fn plan(draft: &mut Draft<'_>, now: Timestamp) -> Result<(), CoreError> {
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
    due.retain(|(coin_pub, ..)| !refresh::is_busy(draft, coin_pub));
    for (coin_pub, amount, exchange) in due {
        draft.debit_coin(&coin_pub, amount)?;
        draft.put_operation(WalletOperation {
            id: draft.next_id(),
            created: now,
            finished: None,
            exchange,
            last_error: None,
            dispute: None,
            kind: OpKind::Recoup(Box::new(Recoup {
                coin_pub,
                amount,
                missing: Money::ZERO,
                stage: RecoupStage::Send,
                answered: None,
                reason: None,
            })),
        });
    }
    Ok(())
}

pub(crate) fn next(
    state: &WalletState,
    operation: &WalletOperation,
    record: &Recoup,
) -> Result<HttpRequest, CoreError> {
    let coin = state.coin(&record.coin_pub)?;
    if let (RecoupStage::Confirm { time }, CoinSource::Withdrawal { operation: id, reserve_pub }) =
        (record.stage, coin.source)
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
            let message =
                WalletCoinRecoupRefresh { h_denom_pub: coin.h_denom_pub, coin_blind: coin.blinding.clone() };
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

pub(crate) fn receive(
    step: &mut Step<'_, '_>,
    mut record: Recoup,
    response: &HttpResponse,
) -> Result<(), CoreError> {
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
                    step.proceed(OpKind::Recoup(Box::new(record)));
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
            step.finish(OpKind::Recoup(Box::new(record)));
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
        (
            409,
            ErrorCode::EXCHANGE_GENERIC_COIN_CONFLICTING_DENOMINATION_KEY
            | ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS
            | ErrorCode::EXCHANGE_GENERIC_COIN_CONFLICTING_AGE_HASH,
        ) => {
            let coin_pub = record.coin_pub;
            let about = coin_proof::Asked::Recoup;
            let accept = step.accept_refused;
            let proof = coin_proof::verify(&step.draft, &coin_pub, about, accept, response, step.now)?;
            let reason = "the coin was spent elsewhere, perhaps by a copy of this wallet";
            fail(step, record, reason, CoinStatus::Used)?;
            coin_proof::accept(step, &coin_pub, &proof)
        }
        // The coin is good and its denomination revoked: a refusal needs proof.
        (400..=499, code) if code != ErrorCode::NONE => Err(CoreError::FalseProof {
            what: "the exchange's refusal to pay back a valid coin",
            reason: response.refusal("paying back a coin").to_string(),
        }),
        _ => Err(response.refusal("paying back a coin")),
    }
}

/// Processes the reserve's history. The recoup is sent again if it is missing.
fn after_history(
    step: &mut Step<'_, '_>,
    mut record: Recoup,
    withdrawal: OpId,
    reserve_pub: &EddsaPublicKey,
    response: &HttpResponse,
) -> Result<(), CoreError> {
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
            step.proceed(OpKind::Recoup(Box::new(record)));
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
        step.wait(OpKind::Recoup(Box::new(record)), reason);
        return Ok(());
    }
    let reserve_priv = reserve_priv(step.draft.operation(withdrawal)?)?.clone();
    withdraw::start_from_recoup(step, &reserve_priv, record.amount)?;
    record.stage = RecoupStage::Done;
    step.finish(OpKind::Recoup(Box::new(record)));
    Ok(())
}

fn reserve_priv(operation: &WalletOperation) -> Result<&EddsaPrivateKey, CoreError> {
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
    CoreError::FalseProof {
        what: "the exchange's confirmation of a recoup",
        reason: "it names somebody else as the owner of the money".to_owned(),
    }
}

fn fail(
    step: &mut Step<'_, '_>,
    mut record: Recoup,
    reason: &str,
    status: CoinStatus,
) -> Result<(), CoreError> {
    step.draft.credit_coin(&record.coin_pub, record.amount)?;
    step.draft.coin_mut(&record.coin_pub)?.status = status;
    record.stage = RecoupStage::Failed;
    record.reason = Some(reason.to_owned());
    step.finish(OpKind::Recoup(Box::new(record)));
    Ok(())
}

//! Coins of revoked denominations back to where they came from: to the reserve, or to the coin that was refreshed.

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::signatures::{SignedMessage, WalletCoinRecoup, WalletCoinRecoupRefresh};
use batzen_protocol::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::coin::{CoinSource, CoinStatus};
use super::encoding::text;
use super::http::{Context, HttpRequest, HttpResponse};
use super::machine::Step;
use super::proof::coin as coin_proof;
use super::proof::denomination::{self, Problem, Use};
use super::state::{Draft, OpKind, Operation, State};
use super::{CoreError, planchet, refresh, withdraw};
use batzen_protocol::api::exchange::{RecoupRefreshResponse, RecoupRequest, RecoupResponse};

/// How far a recoup got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoupStage {
    /// To be sent.
    Send,
    /// The money is back.
    Done,
    /// Refused.
    Failed,
}

/// A recoup of one coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recoup {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// What was left on it.
    #[serde(with = "text")]
    pub amount: Money,
    /// How far it got.
    pub stage: RecoupStage,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Begins the recoups that are due.
pub(crate) fn plan(draft: &mut Draft<'_>, now: Timestamp) -> Result<(), CoreError> {
    let mut due = Vec::new();
    for coin in draft.coins() {
        let wanted = !coin.remaining.is_zero() && matches!(coin.status, CoinStatus::Fresh | CoinStatus::Used);
        let denom = draft.exchange(&coin.exchange).and_then(|exchange| exchange.denom(&coin.h_denom_pub));
        if wanted && denom.is_ok_and(|denom| denom.revoked && now <= denom.stamp_expire_deposit) {
            due.push((coin.coin_pub, coin.remaining, coin.exchange.clone()));
        }
    }
    due.retain(|(coin_pub, ..)| !refresh::is_busy(draft, coin_pub));
    for (coin_pub, amount, exchange) in due {
        draft.debit_coin(&coin_pub, amount)?;
        draft.put_operation(Operation {
            id: draft.next_id(),
            created: now,
            finished: None,
            exchange,
            last_error: None,
            dispute: None,
            kind: OpKind::Recoup(Box::new(Recoup {
                coin_pub,
                amount,
                stage: RecoupStage::Send,
                reason: None,
            })),
        });
    }
    Ok(())
}

pub(crate) fn next(state: &State, operation: &Operation, record: &Recoup) -> Result<HttpRequest, CoreError> {
    let coin = state.coin(&record.coin_pub)?;
    let (path, coin_sig) = match coin.source {
        CoinSource::Withdrawal { .. } => {
            let message =
                WalletCoinRecoup { h_denom_pub: coin.h_denom_pub, coin_blind: coin.blinding.clone() };
            ("recoup", message.sign(&coin.coin_priv))
        }
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
        h_age_commitment: None,
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
    match (response.status, response.code()) {
        (200, _) => {
            match coin.source {
                CoinSource::Withdrawal { operation, reserve_pub } => {
                    let answer: RecoupResponse = response.json("paying back a coin")?;
                    if answer.reserve_pub != reserve_pub {
                        return Err(wrong_owner());
                    }
                    let OpKind::Withdrawal(withdrawal) = &step.draft.operation(operation)?.kind else {
                        return Err(CoreError::Inconsistent(format!(
                            "coin {} has no withdrawal",
                            coin.coin_pub
                        )));
                    };
                    let reserve_priv = withdrawal.reserve_priv.clone();
                    withdraw::start_from_recoup(step, &reserve_priv, record.amount)?;
                }
                CoinSource::Refresh { old_coin_pub, .. } => {
                    let answer: RecoupRefreshResponse = response.json("paying back a coin")?;
                    if answer.old_coin_pub != old_coin_pub {
                        return Err(wrong_owner());
                    }
                    step.draft.credit_coin(&old_coin_pub, record.amount)?;
                    // Whatever it was taken for, now it is a used coin with something on it, to be refreshed.
                    step.draft.coin_mut(&old_coin_pub)?.status = CoinStatus::Used;
                }
            }
            record.stage = RecoupStage::Done;
            step.finish(OpKind::Recoup(Box::new(record)));
            Ok(())
        }
        (410, 1009 | 1555 | 1580) => {
            let exchange = step.draft.exchange(&step.operation.exchange)?;
            let asked = [coin.h_denom_pub];
            let operations = ["RECOUP", "RECOUP-REFRESH"];
            let (_, problem) =
                denomination::verify(exchange, &asked, &operations, Use::Spend, response, step.now)?;
            if problem != Problem::NotRevoked {
                return fail(step, record, "the coin has expired", CoinStatus::Lost);
            }
            // Not revoked after all, says the exchange: the coin is good.
            if let Some(denom) =
                step.draft.exchange_mut(&step.operation.exchange)?.denoms.get_mut(&coin.h_denom_pub)
            {
                denom.revoked = false;
            }
            fail(step, record, "the denomination is not revoked", CoinStatus::Used)
        }
        (409, 1003 | 1012 | 1015) => {
            let coin_pub = record.coin_pub;
            let about = coin_proof::Asked::Recoup;
            let accept = step.accept_refused;
            let proof = coin_proof::verify(&step.draft, &coin_pub, about, accept, response, step.now)?;
            let reason = "the coin was spent elsewhere, perhaps by a copy of this wallet";
            fail(step, record, reason, CoinStatus::Used)?;
            coin_proof::accept(step, &coin_pub, &proof)
        }
        // The coin is good and its denomination revoked, so there is nothing to refuse without proof.
        (400..=499, code) if code != 0 => Err(CoreError::FalseProof {
            what: "the exchange's refusal to pay back a valid coin",
            reason: response.refusal("paying back a coin").to_string(),
        }),
        _ => Err(response.refusal("paying back a coin")),
    }
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

//! What an open operation waits for, and its deadline.

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::Timestamp;

use super::super::purchase::PurchaseStage;
use super::super::purse::{IncomeStage, PayStage};
use super::super::state::{OpKind, WalletOperation, WalletState};
use super::super::withdraw::WithdrawStage;
use super::super::{CoreError, recoup::RecoupStage};

/// What an open operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The next step, in plain words.
    pub reason: &'static str,
    /// The next deadline, with the event at that time, such as "reserve expires".
    pub until: Option<(Timestamp, &'static str)>,
}

/// What an open operation waits for.
///
/// # Errors
/// If records contradict each other.
pub fn wait(state: &WalletState, operation: &WalletOperation) -> Result<Wait, CoreError> {
    let exchange = state.exchange(&operation.exchange)?;
    let spendable_until = |coin_pub: &EddsaPublicKey| -> Result<Timestamp, CoreError> {
        Ok(exchange.denom(&state.coin(coin_pub)?.h_denom_pub)?.stamp_expire_deposit)
    };
    let (reason, until) = match &operation.kind {
        OpKind::Withdrawal(record) => {
            let reason = match record.stage {
                _ if record.kyc.is_some() => "waits for the identity check",
                WithdrawStage::Select => "has to give the bank its reserve key",
                WithdrawStage::Confirm => "has to be confirmed at the bank",
                WithdrawStage::AwaitTransfer | WithdrawStage::AwaitReserve => "waits for the bank transfer",
                _ => "fetches coins from the exchange",
            };
            let expiry = operation.created.saturating_add(exchange.reserve_closing_delay);
            (reason, Some((expiry, "reserve expires")))
        }
        OpKind::Payment(record) => {
            let mut expiry = None;
            for part in &record.coins {
                let until = spendable_until(&part.coin_pub)?;
                expiry = Some(expiry.map_or(until, |earliest: Timestamp| earliest.min(until)));
            }
            ("waits for the exchange's confirmation", expiry.map(|until| (until, "coins expire")))
        }
        OpKind::Purchase(record) if record.stage == PurchaseStage::Abort => {
            ("waits for the shop to give the money back", None)
        }
        OpKind::Purchase(record) => {
            ("waits for the shop's receipt", Some((record.terms().pay_deadline, "offer expires")))
        }
        OpKind::Refresh(record) => {
            let until = spendable_until(&record.old_coin_pub)?;
            ("waits for the exchange to make change", Some((until, "coin expires")))
        }
        OpKind::Recoup(record) => {
            let reason = match record.stage {
                RecoupStage::Confirm { .. } => "waits for the reserve's history to show the recoup",
                _ => "waits for the exchange to pay back the coin",
            };
            (reason, Some((spendable_until(&record.coin_pub)?, "coin expires")))
        }
        OpKind::PickUp(record) => {
            ("asks the shop for refunds", record.until.map(|until| (until, "the shop's promise ends")))
        }
        OpKind::Refund(_) => ("waits for the exchange's confirmation", None),
        OpKind::Tip(record) => ("waits for the shop's tip", Some((record.expiration, "it expires"))),
        OpKind::PursePayment(record) => {
            let reason = match record.stage {
                PayStage::Open => "waits for the receiver to accept it",
                PayStage::Delete | PayStage::Decided => "waits for the exchange to give the money back",
                _ => "waits for the exchange's confirmation",
            };
            (reason, Some((record.terms.expiration, "it expires")))
        }
        OpKind::PurseIncome(record) => {
            let reason = match record.stage {
                _ if record.kyc.is_some() => "waits for the identity check",
                IncomeStage::Await => "waits for somebody to pay it",
                _ => "waits for the exchange's confirmation",
            };
            (reason, Some((record.terms.expiration, "it expires")))
        }
    };
    let until = match operation.dispute {
        Some(dispute) => Some((dispute.retry_at, "request is sent again")),
        None => until,
    };
    let reason =
        if operation.dispute.is_some() { "waits for a valid answer of the exchange" } else { reason };
    Ok(Wait { reason, until: until.filter(|(time, _)| !time.is_never()) })
}

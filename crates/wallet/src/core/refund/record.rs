//! Permissions for refunds, and the stored record of a refund.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Amount, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::CoreError;
use super::super::encoding::text;
use super::super::id::OpId;

/// A merchant's permission to refund a part of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundPermission {
    /// The coin that paid.
    pub coin_pub: EddsaPublicKey,
    /// The merchant's number of this refund of this coin.
    pub rtransaction_id: u64,
    /// The amount, refund fee included.
    pub amount: Amount,
    /// The `MERCHANT_REFUND` signature.
    pub merchant_sig: EddsaSignature,
}

/// Stage of one permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason", rename_all = "kebab-case")]
pub(crate) enum RefundState {
    /// To be sent to the exchange.
    Open,
    /// The coin was credited.
    Done,
    /// Refused.
    Failed(String),
}

/// One permission with its stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundItem {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// The merchant's number.
    pub(crate) rtransaction_id: u64,
    /// The amount, fee included.
    #[serde(with = "text")]
    pub(crate) amount: Money,
    #[serde(with = "text")]
    pub(crate) fee_refund: Money,
    /// The merchant's signature, if the wallet sends the permission itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merchant_sig: Option<EddsaSignature>,
    /// The exchange's signing key, and its confirmation, if the merchant has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confirmation: Option<(EddsaPublicKey, EddsaSignature)>,
    /// Its stage.
    pub(crate) progress: RefundState,
}

/// A refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The payment or purchase.
    pub(crate) payment: OpId,
    pub(crate) h_contract_terms: HashCode,
    pub(crate) merchant_pub: EddsaPublicKey,
    /// When the merchant approved it, if the wallet picks it up at the merchant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) approved: Option<Timestamp>,
    /// The permissions, or the merchant's entries.
    pub items: Vec<RefundItem>,
}

impl Refund {
    /// The amount refunded, and the fees taken from it.
    ///
    /// # Errors
    /// Cannot happen in this wallet's records.
    pub(crate) fn totals(&self) -> Result<(Money, Money), CoreError> {
        let done = || self.items.iter().filter(|item| item.progress == RefundState::Done);
        let amount = Money::checked_sum(done().map(|item| item.amount))?;
        let fees = Money::checked_sum(done().map(|item| item.fee_refund))?;
        Ok((amount.checked_sub(fees)?, fees))
    }
}

//! Tips: the user's actions.

use super::{Wallet, WalletError};
use crate::core::OpId;
use crate::core::state::OpKind;
use crate::core::tip::{self, TipOffer, TipStage, TipUri};

impl Wallet {
    /// Asks a shop about the tip of a `taler://tip` URI. Records nothing.
    ///
    /// # Errors
    /// If the URI is malformed, or the shop gives no valid answer.
    pub async fn inspect_tip(&self, uri: &TipUri) -> Result<TipOffer, WalletError> {
        let answer = self.send(&uri.request()).await?;
        Ok(uri.clone().read(&answer)?)
    }

    /// Accepts a tip, and returns when its coins are in the wallet. The exchange must be known, and its terms
    /// accepted.
    ///
    /// # Errors
    /// [`WalletError::Failed`] if the shop refuses, or as [`Wallet::finish`]: the tip is then picked up with the
    /// next run.
    pub async fn accept_tip(&self, offer: &TipOffer) -> Result<OpId, WalletError> {
        let id = self.step(|state, now, entropy| tip::start(state, offer, now, entropy))?;
        self.finish_tip(id).await
    }

    /// Continues to pick up a tip.
    ///
    /// # Errors
    /// As [`Wallet::accept_tip`].
    pub async fn finish_tip(&self, id: OpId) -> Result<OpId, WalletError> {
        self.finish(id).await?;
        self.with_state(|state| match state.operation(id).map(|operation| &operation.kind) {
            Ok(OpKind::Tip(record)) if record.stage == TipStage::Failed => {
                let message = record.reason.clone().unwrap_or_default();
                Err(WalletError::Failed { operation: id, message })
            }
            _ => Ok(id),
        })
    }
}

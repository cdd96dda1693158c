//! Purchases: the user's actions.

use super::{Wallet, WalletError};
use crate::core::purchase::ContractTerms;
use crate::core::purchase::order::{PayUri, paid_before, purchase_of};
use crate::core::purchase::refunds::{self, PickUpStage};
use crate::core::purchase::{PurchaseReceipt, PurchaseStage, SignedContract, abort, pay, replay};
use crate::core::state::OpKind;
use crate::core::{CoreError, Entropy, OpId, WalletState};

/// Most exchanges of a contract that the wallet asks for their keys.
const MAX_ASKED: usize = 3;

/// The offer behind a `taler://pay` URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurchaseOffer {
    /// The contract, which the wallet has checked.
    pub(crate) contract: SignedContract,
    /// The session to which the payment is to be bound; may be empty.
    pub(crate) session_id: String,
    /// The operation that has paid the order, or is paying it.
    pub known: Option<OpId>,
    /// An earlier purchase of the same web page: showing its receipt is enough.
    pub paid_before: Option<OpId>,
}

impl PurchaseOffer {
    /// Its terms.
    #[must_use]
    pub const fn terms(&self) -> &ContractTerms {
        &self.contract.terms
    }

    /// Returns whether accepting it costs money.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.known.is_none() && self.paid_before.is_none()
    }
}

impl Wallet {
    /// Claims the order of a `taler://pay` URI and checks the contract. From then on no other wallet can pay
    /// the order. A repetition gets the same contract.
    ///
    /// # Errors
    /// If the URI is malformed, the merchant refuses, or the contract is not acceptable.
    pub async fn inspect_purchase(&self, uri: &str) -> Result<PurchaseOffer, WalletError> {
        let uri = PayUri::parse(uri)?;
        let known = self.with_state(|state| {
            let id = purchase_of(state, &uri.key())?;
            match &state.operation(id).ok()?.kind {
                OpKind::Purchase(record) => Some((id, record.contract.clone())),
                _ => None,
            }
        });
        if let Some((id, contract)) = known {
            let session_id = uri.session_id;
            return Ok(PurchaseOffer { contract, session_id, known: Some(id), paid_before: None });
        }
        let contract = self.claim(&uri).await?;
        self.prepare_exchanges(&contract.terms).await;
        let paid_before = self.with_state(|state| paid_before(state, &contract.terms));
        Ok(PurchaseOffer { contract, session_id: uri.session_id, known: None, paid_before })
    }

    async fn claim(&self, uri: &PayUri) -> Result<SignedContract, WalletError> {
        let known = self.with_state(|state| state.orders.get(&uri.key())?.contract.clone());
        if let Some(contract) = known {
            return Ok(contract);
        }
        let config = self.send(&uri.config_request()).await?;
        uri.check_config(&config)?;
        let order = self.step(|state, now, entropy| Ok(uri.open(state, now, entropy)))?;
        let answer = self.send(&order.claim_request()).await?;
        let order = order.read_claim(&answer)?;
        let contract = order.contract.clone();
        let change = crate::core::Change::Order(Box::new(order));
        self.step(|_, _, _| Ok(((), vec![change])))?;
        contract.ok_or_else(|| CoreError::Inconsistent("a claimed order has no contract".to_owned()).into())
    }

    /// Updates the known exchanges that the merchant accepts. For an order that is free, one suffices to
    /// record it, so it may be a new one. If they do not answer, the stored data is used.
    async fn prepare_exchanges(&self, terms: &ContractTerms) {
        let known: Vec<String> = self.with_state(|state| {
            let accepted = state.exchanges.values().filter(|exchange| terms.accepts(exchange));
            accepted.map(|exchange| exchange.base_url.clone()).collect()
        });
        for url in &known {
            if let Err(error) = self.fresh_exchange(url).await {
                tracing::debug!(%url, %error, "the exchange could not be updated");
            }
        }
        if !known.is_empty() || !terms.amount.is_zero() {
            return;
        }
        for accepted in terms.exchanges.iter().take(MAX_ASKED) {
            match self.add_exchange(&accepted.url).await {
                Ok(exchange) if terms.accepts(&exchange) => return,
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "the exchange could not be added"),
            }
        }
    }

    /// Pays an offer, and returns when the merchant has signed a receipt. An order that was paid before is not
    /// paid again: the merchant gets the receipt for the new session. [`Wallet::run_pending`] refreshes the
    /// change.
    ///
    /// # Errors
    /// [`WalletError::Failed`] if the merchant refused for good. [`WalletError::Pending`] and related errors
    /// if it did not answer: the payment then continues with the next run and must not be repeated.
    pub async fn pay_purchase(&self, offer: &PurchaseOffer) -> Result<OpId, WalletError> {
        if let (None, Some(id)) = (offer.known, offer.paid_before) {
            self.replay_purchase(id, &offer.session_id).await?;
            return Ok(id);
        }
        let start = |state: &WalletState, now, entropy: &mut dyn Entropy| {
            pay::start(state, &offer.contract, &offer.session_id, now, entropy)
        };
        let id = self.spend(start).await?;
        self.finish(id).await?;
        let (failure, session_id) = self.with_state(|state| match state.operation(id).map(|op| &op.kind) {
            Ok(OpKind::Purchase(record)) => {
                let failure = record.reason.clone().filter(|_| record.stage == PurchaseStage::Failed);
                (failure, record.session_id.clone())
            }
            _ => (None, String::new()),
        });
        if let Some(message) = failure {
            return Err(WalletError::Failed { operation: id, message });
        }
        if session_id != offer.session_id {
            self.replay_purchase(id, &offer.session_id).await?;
        }
        Ok(id)
    }

    /// Shows a merchant the receipt of a paid purchase, so that it counts in another session.
    ///
    /// # Errors
    /// If the purchase is not paid, or the merchant does not accept the receipt.
    pub async fn replay_purchase(&self, id: OpId, session_id: &str) -> Result<(), WalletError> {
        let request = self.with_state(|state| replay::request(state, id, session_id))?;
        let answer = self.send(&request).await?;
        Ok(replay::check(&answer)?)
    }

    /// Gives up a purchase that is not paid, or that failed although the shop had deposited coins of it: the
    /// shop gives back what it has. If the shop says that it is paid, the wallet fetches the receipt instead.
    /// [`Wallet::run_pending`] refreshes the coins.
    ///
    /// # Errors
    /// If it is no such purchase, or as [`Wallet::finish`].
    pub async fn abort_purchase(&self, id: OpId) -> Result<(), WalletError> {
        self.step(|state, _, _| Ok(((), abort::start(state, id)?)))?;
        self.finish(id).await
    }

    /// The paid purchase that a `taler://refund` URI is about.
    ///
    /// # Errors
    /// If the URI is malformed, or this wallet has not paid the order.
    pub fn purchase_of_refund(&self, uri: &str) -> Result<OpId, WalletError> {
        let key = refunds::parse_uri(uri)?;
        Ok(self.with_state(|state| refunds::paid_purchase(state, &key))?)
    }

    /// Picks up what the shop refunds of a paid purchase. Returns the operations of all its refunds, oldest
    /// first; [`Wallet::run_pending`] refreshes the coins, and asks again for what the exchange has not
    /// confirmed yet.
    ///
    /// # Errors
    /// [`WalletError::Failed`] if the shop refuses, or as [`Wallet::finish`].
    pub async fn pick_up_refunds(&self, purchase: OpId) -> Result<Vec<OpId>, WalletError> {
        let id = self.step(|state, now, _| refunds::start(state, purchase, now))?;
        self.finish(id).await?;
        self.with_state(|state| match state.operation(id).map(|operation| &operation.kind) {
            Ok(OpKind::PickUp(record)) if record.stage == PickUpStage::Failed => {
                let message = record.reason.clone().unwrap_or_default();
                Err(WalletError::Failed { operation: id, message })
            }
            _ => Ok(refunds::of_purchase(state, purchase).map(|(id, _)| id).collect()),
        })
    }

    /// The contract and the merchant's receipt of a paid purchase.
    ///
    /// # Errors
    /// If the operation is no purchase, or is not paid.
    pub fn purchase_receipt(&self, id: OpId) -> Result<PurchaseReceipt, WalletError> {
        Ok(self.with_state(|state| pay::receipt(state, id))?)
    }
}

//! Payments between people: the user's actions.

use batzen_protocol::{Amount, Timestamp};

use super::{Wallet, WalletError};
use crate::core::purse::lookup::{PeerPayment, PeerUri};
use crate::core::purse::{
    self, Direction, IncomeStage, PayStage, PurseReceipt, income, payment as purse_payment,
};
use crate::core::state::OpKind;
use crate::core::url::normalise_base_url;
use crate::core::{CoreError, Entropy, OpId, WalletState, bad_input};

/// Money to be sent or requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// Base URL of the exchange. Default: the cheapest one for sending, the first one for requesting.
    pub exchange: Option<String>,
    /// The amount for the receiver.
    pub amount: Amount,
    /// Its purpose; the other person reads it.
    pub summary: String,
    /// When the offer or request expires.
    pub expiration: Timestamp,
    /// Minimum age of the payer; 0 for none.
    pub min_age: u32,
}

impl PeerRequest {
    fn terms(&self) -> (&str, Timestamp, u32) {
        (&self.summary, self.expiration, self.min_age)
    }
}

impl Wallet {
    /// Sends money: pays it into a purse, and returns when the exchange has confirmed that. The transaction's
    /// URI is for the receiver.
    ///
    /// # Errors
    /// [`WalletError::Failed`] if the exchange refused. [`WalletError::Pending`] and related errors if it did
    /// not answer: the payment then continues with the next run and must not be repeated.
    pub async fn send_money(&self, request: &PeerRequest) -> Result<OpId, WalletError> {
        let named = request.exchange.as_deref().map(normalise_base_url).transpose()?;
        let start = |state: &WalletState, now, entropy: &mut dyn Entropy| {
            let base_url = match &named {
                Some(base_url) => base_url.clone(),
                None => purse_payment::cheapest(state, request.amount, request.min_age, now)?,
            };
            purse_payment::start_send(state, &base_url, request.amount, request.terms(), now, entropy)
        };
        let id = self.spend(start).await?;
        self.finish_peer(id).await?;
        Ok(id)
    }

    /// Requests money: creates a purse for it, and returns when the exchange has confirmed that. The
    /// transaction's URI is for the payer.
    ///
    /// # Errors
    /// As [`Wallet::send_money`].
    pub async fn request_money(&self, request: &PeerRequest) -> Result<OpId, WalletError> {
        let url = match &request.exchange {
            Some(url) => url.clone(),
            None => self.with_state(|state| {
                let mut known = state.exchanges.values();
                let suits = known.find(|exchange| exchange.currency == request.amount.currency);
                suits.map(|exchange| exchange.base_url.clone()).ok_or_else(|| {
                    let currency = request.amount.currency;
                    let advice = "add one with `batzen wallet exchanges add URL`";
                    bad_input("exchange", format!("the wallet knows none for {currency}; {advice}"))
                })
            })?,
        };
        let base_url = self.fresh_exchange(&url).await?.base_url;
        let id = self.step(|state, now, entropy| {
            income::start_request(state, &base_url, request.amount, request.terms(), now, entropy)
        })?;
        self.finish_peer(id).await?;
        Ok(id)
    }

    /// Asks the exchange what a `taler://pay-push` or `taler://pay-pull` URI is about. Records nothing but the
    /// exchange.
    ///
    /// # Errors
    /// If the URI is malformed, or the payment was taken back or has expired.
    pub async fn inspect_peer(&self, uri: &str) -> Result<PeerPayment, WalletError> {
        let uri = PeerUri::parse(uri)?;
        let mut exchange = self.fresh_exchange(&uri.exchange).await?;
        let answer = self.send(&uri.contract_request()).await?;
        let contract = uri.read_contract(&exchange, &answer)?;
        let answer = self.send(&contract.status_request()).await?;
        match contract.clone().read_status(&exchange, &answer, self.now()) {
            // The key may be newer than the stored listing.
            Err(CoreError::UnknownSigningKey { base_url, .. }) => {
                exchange = self.add_exchange(&base_url).await?;
                Ok(contract.read_status(&exchange, &answer, self.now())?)
            }
            result => Ok(result?),
        }
    }

    /// Accepts offered money, or pays a request. Returns when the exchange has confirmed that. An offer that
    /// was accepted before is not accepted again.
    ///
    /// # Errors
    /// As [`Wallet::send_money`]. [`WalletError::Pending`] also if the exchange requires an identity check.
    pub async fn accept_peer(&self, peer: &PeerPayment) -> Result<OpId, WalletError> {
        let start = |state: &WalletState, now, entropy: &mut dyn Entropy| {
            if let Some(id) = peer.known(state) {
                return Ok((id, Vec::new()));
            }
            match peer.direction {
                Direction::Push => income::start_accept(state, peer, now, entropy),
                Direction::Pull => purse_payment::start_pay(state, peer, now, entropy),
            }
        };
        let id = self.spend(start).await?;
        self.finish_peer(id).await?;
        Ok(id)
    }

    /// Records that the user neither accepts an offer nor pays a request. Nobody else learns it.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if it was accepted before.
    pub fn decline_peer(&self, peer: &PeerPayment) -> Result<OpId, WalletError> {
        self.step(|state, now, entropy| match (peer.known(state), peer.direction) {
            (Some(id), _) => {
                Err(bad_input("taler URI", format!("this wallet has accepted it before, as operation {id}")))
            }
            (None, Direction::Push) => income::decline(state, peer, now, entropy),
            (None, Direction::Pull) => purse_payment::decline(state, peer, now),
        })
    }

    /// The exchange's signed statements about a payment between people.
    ///
    /// # Errors
    /// If the operation is no such payment.
    pub fn purse_receipt(&self, id: OpId) -> Result<PurseReceipt, WalletError> {
        Ok(self.with_state(|state| purse::receipt(state, id))?)
    }

    /// Drives a payment between people until the exchange has confirmed it. Waiting for the other person is
    /// no part of that.
    async fn finish_peer(&self, id: OpId) -> Result<(), WalletError> {
        let finished = self.finish(id).await;
        let (is_open, failure) = self.with_state(|state| match state.operation(id).map(|op| &op.kind) {
            Ok(OpKind::PursePayment(record)) => {
                let failure = record.reason.clone().filter(|_| record.stage == PayStage::Failed);
                (record.stage == PayStage::Open, failure)
            }
            Ok(OpKind::PurseIncome(record)) => {
                let failure = record.reason.clone().filter(|_| record.stage == IncomeStage::Failed);
                (record.stage == IncomeStage::Await, failure)
            }
            _ => (false, None),
        });
        match (finished, failure) {
            (_, Some(message)) => Err(WalletError::Failed { operation: id, message }),
            (Err(WalletError::Pending { .. }), None) if is_open => Ok(()),
            (result, None) => result,
        }
    }
}

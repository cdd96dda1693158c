//! Tips: money of a shop that becomes coins of this wallet.
//!
//! The shop holds a reserve and signs the withdrawal; the wallet sends its planchets to the shop and gets blind
//! signatures. All secrets derive from a stored seed, and the planchets are fixed before anything is sent: the
//! shop answers a repeated request with the same signatures and takes nothing more from the tip. Only RSA coins
//! can be picked up, because the protocol has no first message for Clause-Schnorr here. If their denomination is
//! revoked, the reserve to which a recoup pays belongs to the shop, so they are lost.

mod record;

use batzen_crypto::PlanchetMasterSecret;
use batzen_protocol::api::merchant::{PickUpTipRequest, PickUpTipResponse, TipPlanchet, TipStatus};
use batzen_protocol::{Amount, Money, TalerUri, Timestamp};

use super::coin::{Coin, CoinSource, CoinStatus};
use super::exchange::{CipherChoice, Exchange};
use super::http::{Context, HttpRequest, HttpResponse};
use super::operation::{Operation, Step, View};
use super::purchase::printable;
use super::row::{Transaction, Wait, describe_fees, units};
use super::select::{IssuePlan, split_into_coins};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::url::normalise_base_url;
use super::{Change, CoreError, Entropy};
use crate::core::error::{Result, bad_input};

pub use record::*;

/// Most coins of one tip.
pub(crate) const MAX_COINS: usize = 64;
/// Longest identifier of a tip, in bytes.
const MAX_ID_SIZE: usize = 255;

const ASK: &str = "asking the shop about the tip";
const TAKE: &str = "picking up the tip";

/// The content of a `taler://tip` URI.
#[derive(Clone, PartialEq, Eq)]
pub struct TipUri {
    /// Base URL of the merchant.
    pub merchant_base_url: String,
    /// Identifies the tip there. Whoever knows it can pick up the tip.
    pub(crate) tip_id: String,
}

impl std::fmt::Debug for TipUri {
    /// Omits the identifier: whoever has it can pick up the tip.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TipUri").field("merchant_base_url", &self.merchant_base_url).finish_non_exhaustive()
    }
}

impl TipUri {
    /// Parses a URI.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if it is not one.
    pub fn parse(uri: &str) -> Result<Self> {
        let malformed = |reason: String| bad_input("taler URI", reason);
        let parsed = TalerUri::parse(uri.trim()).map_err(|error| malformed(error.to_string()))?;
        let TalerUri::Tip { merchant_url, tip_id } = parsed else {
            return Err(malformed("it is not about a tip".to_owned()));
        };
        if tip_id.is_empty() || tip_id.len() > MAX_ID_SIZE || matches!(tip_id.as_str(), "." | "..") {
            return Err(malformed("the number of the tip cannot be used".to_owned()));
        }
        Ok(Self { merchant_base_url: normalise_base_url(&merchant_url)?, tip_id })
    }

    /// Asks the merchant about the tip.
    pub(crate) fn request(&self) -> HttpRequest {
        HttpRequest::get(Context::Merchant, format!("{}tips/{}", self.merchant_base_url, self.tip_id))
    }

    /// Reads the merchant's answer.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if there is no such tip, or as the answer says.
    pub(crate) fn read(self, response: &HttpResponse) -> Result<TipOffer> {
        match (response.status, response.code().to_u32()) {
            (200, _) => {}
            (404, code) if code != 0 => return Err(bad_input("taler URI", "the shop knows no such tip")),
            (410, code) if code != 0 => return Err(bad_input("taler URI", "the tip has expired")),
            _ => return Err(response.refusal(ASK)),
        }
        let TipStatus { tip_amount, exchange_url, expiration, next_url } = response.json(ASK)?;
        let exchange_url = normalise_base_url(&exchange_url)?;
        let next_url = next_url.map(|url| printable(&url));
        Ok(TipOffer { uri: self, amount: tip_amount, exchange_url, expiration, next_url })
    }

    /// The operation that picks up this tip, or has picked it up. Failed ones do not count.
    #[must_use]
    pub fn known(&self, state: &WalletState) -> Option<OpId> {
        let is_it = |operation: &&WalletOperation| match &operation.kind {
            OpKind::Tip(record) => {
                record.stage != TipStage::Failed
                    && record.merchant_base_url == self.merchant_base_url
                    && record.tip_id == self.tip_id
            }
            _ => false,
        };
        state.operations.values().rev().find(is_it).map(|operation| operation.id)
    }
}

/// A tip that can be picked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TipOffer {
    /// Where it is.
    pub uri: TipUri,
    /// The rest of it, withdraw fees included.
    pub amount: Amount,
    /// Base URL of the exchange that issues the coins.
    pub exchange_url: String,
    /// It must be picked up before this time.
    pub expiration: Timestamp,
    /// The page that the shop shows afterwards.
    pub next_url: Option<String>,
}

/// The coins that a tip yields.
///
/// # Errors
/// The reason why nothing is offered, or [`CoreError::TooSmall`].
pub fn preview(exchange: &Exchange, amount: Amount, now: Timestamp) -> Result<IssuePlan> {
    let sum = amount.money_in(exchange.currency)?;
    let mut offers = exchange.offers(CipherChoice::Rsa, now);
    // Offers of the other cipher are listed only if there are none of the wanted one.
    offers.retain(|offer| exchange.denom(&offer.h_denom_pub).is_ok_and(|denom| !denom.is_cs()));
    let mut smallest: Option<Money> = None;
    for offer in &offers {
        let cost = offer.value.checked_add(offer.fee_withdraw)?;
        smallest = Some(smallest.map_or(cost, |other| other.min(cost)));
    }
    let Some(smallest) = smallest else {
        return Err(exchange.why_nothing_is_offered(now));
    };
    let plan = split_into_coins(&offers, sum, MAX_COINS)?;
    if plan.denoms.is_empty() {
        let (base_url, smallest) = (exchange.base_url.clone(), exchange.amount(smallest));
        return Err(CoreError::TooSmall { amount, base_url, smallest });
    }
    Ok(plan)
}

/// Records that the user accepts a tip, and fixes its planchets. A tip that is picked up already continues.
///
/// # Errors
/// If the exchange is unknown, its terms are not accepted, or the tip fits no coin.
pub(crate) fn start(
    state: &WalletState,
    offer: &TipOffer,
    now: Timestamp,
    entropy: &mut dyn Entropy,
) -> Result<(OpId, Vec<Change>)> {
    if let Some(id) = offer.uri.known(state) {
        return Ok((id, Vec::new()));
    }
    let exchange = state.exchange(&offer.exchange_url)?;
    exchange.require_terms()?;
    let plan = preview(exchange, offer.amount, now)?;
    let mut draft = Draft::new(state);
    let record = Tip {
        merchant_base_url: offer.uri.merchant_base_url.clone(),
        tip_id: offer.uri.tip_id.clone(),
        amount: plan.value.checked_add(plan.fees)?,
        fees: plan.fees,
        expiration: offer.expiration,
        seed: PlanchetMasterSecret::from_bytes(entropy.array()),
        denoms: plan.denoms,
        stage: TipStage::PickUp,
        reason: None,
    };
    let id = draft.begin(now, &exchange.base_url, record);
    Ok((id, draft.into_changes()))
}

impl Operation for Tip {
    fn name(&self) -> &'static str {
        "tip"
    }

    fn next(&self, state: &WalletState, operation: &WalletOperation, _poll_ms: u64) -> Result<HttpRequest> {
        let planchets = self.planchets(state.exchange(&operation.exchange)?)?;
        let planchets = planchets.into_iter().zip(&self.denoms).map(|(planchet, h_denom_pub)| TipPlanchet {
            denom_pub_hash: *h_denom_pub,
            coin_ev: planchet.blinded,
        });
        let body = PickUpTipRequest { planchets: planchets.collect() };
        let url = format!("{}tips/{}/pickup", self.merchant_base_url, self.tip_id);
        Ok(HttpRequest::post(Context::Merchant, url, &body))
    }

    fn receive(self: Box<Self>, step: &mut Step<'_, '_>, response: &HttpResponse) -> Result<()> {
        let record = *self;
        /// Some backends say so when the exchange has failed.
        const FAILED_DEPENDENCY: u16 = 424;
        match (response.status, response.code().to_u32()) {
            (200, _) => take_coins(step, record, response),
            (FAILED_DEPENDENCY, _) => Err(response.refusal(TAKE)),
            (400..=499, code) if code != 0 => {
                end(step, record, TipStage::Failed, Some(response.refusal(TAKE).to_string()));
                Ok(())
            }
            _ => Err(response.refusal(TAKE)),
        }
    }

    fn held(&self, _: View<'_>) -> Result<Money> {
        self.value()
    }

    fn effect(&self, _: View<'_>) -> Result<i128> {
        if self.stage == TipStage::Failed { Ok(0) } else { Ok(units(self.value()?)) }
    }

    fn describe(&self, View { exchange, .. }: View<'_>, row: &mut Transaction) -> Result<()> {
        row.amount = exchange.amount(self.amount);
        row.fees = exchange.amount(self.fees);
        row.coins = self.denoms.len();
        row.merchant = Some(self.merchant_base_url.clone());
        let fees = describe_fees(&[("withdrawal", row.fees)]);
        row.description = format!("Tip of {}: {}, {fees}", self.merchant_base_url, row.amount);
        row.fail_if(self.stage == TipStage::Failed);
        row.explain(self.reason.as_deref());
        Ok(())
    }

    fn wait(&self, _: View<'_>) -> Result<Wait> {
        Ok(Wait { reason: "waits for the shop's tip", until: Some((self.expiration, "it expires")) })
    }
}

fn end(step: &mut Step<'_, '_>, mut record: Tip, stage: TipStage, reason: Option<String>) {
    record.stage = stage;
    record.reason = reason;
    step.finish(record);
}

fn take_coins(step: &mut Step<'_, '_>, record: Tip, response: &HttpResponse) -> Result<()> {
    let answer: PickUpTipResponse = response.json(TAKE)?;
    let exchange = step.draft.exchange(&step.operation.exchange)?.clone();
    let planchets = record.planchets(&exchange)?;
    if answer.blind_sigs.len() != planchets.len() {
        let reason = format!("{} signatures for {} coins", answer.blind_sigs.len(), planchets.len());
        return Err(response.malformed(TAKE, reason));
    }
    for ((planchet, h_denom_pub), signed) in planchets.into_iter().zip(&record.denoms).zip(&answer.blind_sigs)
    {
        let denom_sig = planchet.unblind(&signed.blind_sig)?;
        step.draft.put_coin(Coin {
            coin_pub: planchet.coin_pub,
            coin_priv: planchet.coin_priv,
            blinding: planchet.blinding,
            cs: None,
            age: None,
            exchange: exchange.base_url.clone(),
            h_denom_pub: *h_denom_pub,
            denom_sig,
            source: CoinSource::Tip { operation: step.operation.id },
            status: CoinStatus::Fresh,
            remaining: exchange.denom(h_denom_pub)?.value,
            created: step.now,
            refresh_at: None,
            receipt: None,
        });
    }
    end(step, record, TipStage::Done, None);
    Ok(())
}

/// The changes that give up a tip. If the shop has answered the request already, its coins are lost.
///
/// # Errors
/// [`CoreError::BadInput`] if it is no tip, or finished.
pub(crate) fn cancel(state: &WalletState, id: OpId, now: Timestamp) -> Result<Vec<Change>> {
    let mut operation = state.operation(id)?.clone();
    let OpKind::Tip(record) = &mut operation.kind else {
        return Err(bad_input("operation", "it is no tip"));
    };
    if operation.finished.is_some() {
        return Err(bad_input("operation", "it is finished"));
    }
    record.stage = TipStage::Failed;
    record.reason = Some("cancelled by you".to_owned());
    operation.end(now);
    Ok(vec![Change::Operation(Box::new(operation))])
}

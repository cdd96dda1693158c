//! The stored records of orders and purchases.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::api::merchant::ContractExchange;
use batzen_protocol::{Amount, Money, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::CoreError;
use super::super::encoding::text;
use super::super::id::OpId;
use super::super::select::Contribution;

/// Identifies an order: the merchant's base URL and the order's number there.
pub type OrderKey = (String, String);

/// An order that this wallet claims or has claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Base URL of the merchant, as the URI gives it.
    pub merchant_base_url: String,
    /// The order's number.
    pub order_id: String,
    /// The URI's token that permits the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_token: Option<String>,
    /// Private key of the claim: the order belongs to whoever has it.
    pub nonce_priv: EddsaPrivateKey,
    /// When the wallet saw it first.
    pub created: Timestamp,
    /// The merchant's contract, once it is claimed and checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<SignedContract>,
}

impl Order {
    /// Its key among the orders.
    pub(crate) fn key(&self) -> OrderKey {
        (self.merchant_base_url.clone(), self.order_id.clone())
    }
}

/// The terms of a contract that matter to the wallet, with the whole contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractTerms {
    /// The order's number.
    pub order_id: String,
    /// Base URL of the merchant.
    pub merchant_base_url: String,
    pub(crate) merchant_pub: EddsaPublicKey,
    /// The shop's name.
    pub merchant_name: String,
    /// Its subject, in one line.
    pub summary: String,
    /// The price.
    pub amount: Amount,
    /// Largest sum of fees that the merchant bears.
    pub(crate) max_fee: Amount,
    /// Largest wire fee that the merchant bears.
    pub(crate) max_wire_fee: Amount,
    /// The payer bears this part of the wire fee above that: one of so many.
    pub(crate) wire_fee_amortization: u64,
    /// The wire method by which the exchange pays the merchant.
    pub(crate) wire_method: String,
    /// Salted hash of the merchant's account.
    pub(crate) h_wire: HashCode,
    /// When the contract was made.
    pub(crate) timestamp: Timestamp,
    /// End of the refund period.
    pub refund_deadline: Timestamp,
    /// When the offer expires.
    pub pay_deadline: Timestamp,
    /// When the exchange must pay the merchant.
    pub wire_transfer_deadline: Timestamp,
    /// The exchanges whose coins the merchant accepts.
    pub(crate) exchanges: Vec<ContractExchange>,
    /// Minimum age of the payer; 0 if there is none.
    pub min_age: u32,
    /// Where the merchant delivers, if it is a web page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fulfillment_url: Option<String>,
    /// The public key with which the order was claimed.
    pub(crate) nonce: EddsaPublicKey,
    /// The contract's hash, which everybody signs.
    pub(crate) h_contract_terms: HashCode,
    /// The contract as the merchant signed it.
    pub(crate) contract: Value,
}

/// A contract with the merchant's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedContract {
    pub(crate) terms: ContractTerms,
    /// `MERCHANT_CONTRACT`, by the terms' `merchant_pub`.
    pub(crate) merchant_sig: EddsaSignature,
}

/// The stage of a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PurchaseStage {
    /// Without receipt: not sent yet, or sent without an answer.
    Pay,
    /// To be given up: the merchant has to give back what it has deposited.
    Abort,
    /// The merchant has signed a receipt.
    Done,
    /// Refused, or given up by the user.
    Failed,
}

/// A coin of a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurchaseCoin {
    /// The coin's public key.
    pub coin_pub: EddsaPublicKey,
    /// Its contribution, deposit fee included.
    #[serde(with = "text")]
    pub(crate) amount: Money,
    #[serde(with = "text")]
    pub(crate) fee_deposit: Money,
    /// Whether it is back on the coin by this wallet's books. The merchant may have deposited it before; then
    /// the exchange proves that when the coin is refreshed.
    #[serde(default)]
    pub(crate) is_back: bool,
    /// Whether the merchant has given it back after it had deposited it. The refund is an operation of its own.
    #[serde(default)]
    pub(crate) is_refunded: bool,
}

/// A purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purchase {
    pub(crate) contract: SignedContract,
    /// The session to which the payment is bound; may be empty.
    pub(crate) session_id: String,
    /// The payer's share of the exchanges' wire fees, as it was when the coins were selected.
    #[serde(with = "text")]
    pub(crate) wire_fee_share: Money,
    /// The coins, in the random order in which they are sent.
    pub(crate) coins: Vec<PurchaseCoin>,
    /// The stage that it has reached.
    pub stage: PurchaseStage,
    /// `MERCHANT_PAYMENT_OK`: the merchant's receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<EddsaSignature>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Purchase {
    /// The contract's terms.
    #[must_use]
    pub const fn terms(&self) -> &ContractTerms {
        &self.contract.terms
    }

    /// Adds coins that were taken for it.
    pub(crate) fn take(&mut self, contributions: Vec<Contribution>) {
        self.coins.extend(contributions.into_iter().map(|part| PurchaseCoin {
            coin_pub: part.coin_pub,
            amount: part.amount,
            fee_deposit: part.fee_deposit,
            is_back: false,
            is_refunded: false,
        }));
    }

    /// The contributions that are neither back nor refunded.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = &PurchaseCoin> {
        self.spent().filter(|part| !part.is_refunded)
    }

    /// A contribution of this record.
    pub(crate) fn part_mut(&mut self, part: &PurchaseCoin) -> &mut PurchaseCoin {
        let found = self.coins.iter_mut().find(|other| *other == part);
        found.expect("the contribution was read from this record")
    }

    /// The contributions that are not back.
    pub fn spent(&self) -> impl Iterator<Item = &PurchaseCoin> {
        self.coins.iter().filter(|part| !part.is_back)
    }

    /// Sum of the contributions that are not back, and of the deposit fees in them.
    ///
    /// # Errors
    /// On overflow, which cannot happen in this wallet's records.
    pub(crate) fn totals(&self) -> Result<(Money, Money), CoreError> {
        let total = Money::checked_sum(self.spent().map(|part| part.amount))?;
        let fees = Money::checked_sum(self.spent().map(|part| part.fee_deposit))?;
        Ok((total, fees))
    }

    /// Records that the merchant has deposited a coin of the failed purchase, as the exchange has proved.
    pub(crate) fn deposited_after_all(&mut self, coin_pub: &EddsaPublicKey) {
        const NOTE: &str = "; the shop had deposited coins of it before, as the exchange has proven";
        for part in self.coins.iter_mut().filter(|part| part.coin_pub == *coin_pub) {
            part.is_back = false;
        }
        let reason = self.reason.get_or_insert_default();
        if !reason.ends_with(NOTE) {
            reason.push_str(NOTE);
        }
    }

    /// The proof of the merchant's obligations, without secrets.
    pub(crate) fn proof(&self) -> PurchaseProof {
        let terms = self.terms();
        PurchaseProof {
            merchant_base_url: terms.merchant_base_url.clone(),
            merchant_pub: terms.merchant_pub,
            contract_terms: terms.contract.clone(),
            h_contract_terms: terms.h_contract_terms,
            merchant_sig: self.contract.merchant_sig,
            receipt: self.receipt,
        }
    }
}

/// The contract that a merchant has signed for a purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurchaseProof {
    /// Base URL of the merchant.
    pub merchant_base_url: String,
    /// The merchant's key.
    pub merchant_pub: EddsaPublicKey,
    /// The contract.
    pub contract_terms: Value,
    /// Its hash.
    pub h_contract_terms: HashCode,
    /// `MERCHANT_CONTRACT` over the hash.
    pub(crate) merchant_sig: EddsaSignature,
    /// `MERCHANT_PAYMENT_OK` over the hash, once the merchant has confirmed the payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<EddsaSignature>,
}

/// The receipt of a purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PurchaseReceipt {
    /// Number of the operation.
    pub(crate) operation: OpId,
    /// Base URLs of the exchanges whose coins paid.
    pub exchanges: Vec<String>,
    /// The total that left the wallet.
    pub(crate) total: Amount,
    /// The fees in it that the merchant does not bear.
    pub fees: Amount,
    /// Where the merchant delivers, if it is a web page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fulfillment_url: Option<String>,
    /// The data that the merchant has signed.
    #[serde(flatten)]
    pub proof: PurchaseProof,
}

//! Requests, receipts and the stored record of a payment.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_protocol::{Amount, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::CoreError;
use super::super::encoding::text;
use super::super::id::OpId;
use super::super::select::Contribution;

/// A payment as a merchant's contract describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentRequest {
    /// Base URL of the exchange whose coins pay. Default: the cheapest exchange with enough coins.
    pub exchange: Option<String>,
    /// Amount for the merchant, before the wire fee.
    pub amount: Amount,
    /// Largest sum of deposit fees that the merchant bears.
    pub max_fee: Money,
    /// The merchant's key.
    pub merchant_pub: EddsaPublicKey,
    /// The merchant's bank account.
    pub merchant_payto: String,
    /// Salt of the account's hash.
    pub wire_salt: WireSalt,
    /// Hash of the contract.
    pub h_contract_terms: HashCode,
    /// When the contract was made. Default: now.
    pub timestamp: Option<Timestamp>,
    /// End of the refund period; zero for none.
    pub refund_deadline: Timestamp,
    /// When the exchange must pay the merchant.
    pub wire_transfer_deadline: Timestamp,
    /// Description for the history.
    pub summary: String,
}

/// A coin in a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReceiptCoin {
    /// The coin's public key.
    pub coin_pub: EddsaPublicKey,
    pub(crate) h_denom_pub: HashCode,
    /// Its contribution, fee included.
    pub contribution: Amount,
    /// The deposit fee in it.
    pub deposit_fee: Amount,
    /// The exchange's confirmation.
    pub exchange_sig: EddsaSignature,
}

/// Receipt of a payment: the exchange's confirmation for each coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaymentReceipt {
    /// Number of the operation.
    pub operation: OpId,
    /// Base URL of the exchange.
    pub(crate) exchange: String,
    /// The total that left the wallet.
    pub total: Amount,
    /// The deposit fees in it. The receiver gets the rest, less the wire fee.
    pub fees: Amount,
    /// Coins in the order of the request.
    pub coins: Vec<ReceiptCoin>,
    /// The signing key of the exchange.
    pub exchange_pub: EddsaPublicKey,
    /// When the exchange accepted it.
    pub exchange_timestamp: Timestamp,
    /// Hash of the receiver's account with its salt.
    pub(crate) h_wire: HashCode,
}

/// Stage of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PaymentStage {
    /// Not confirmed: not sent yet, or sent without an answer.
    Send,
    /// Confirmed by the exchange.
    Done,
    /// Refused. The coins that the exchange did not take are available again.
    Failed,
}

/// One coin of a payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentCoin {
    /// The coin's public key.
    pub coin_pub: EddsaPublicKey,
    /// Its contribution, deposit fee included.
    #[serde(with = "text")]
    pub amount: Money,
    /// The deposit fee, which the amount includes.
    #[serde(with = "text")]
    pub fee_deposit: Money,
    /// The exchange's confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exchange_sig: Option<EddsaSignature>,
}

/// A payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// Private key for asking the exchange about a deposit into the owner's account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merchant_priv: Option<EddsaPrivateKey>,
    /// The receiver's key.
    pub merchant_pub: EddsaPublicKey,
    /// The receiver's account.
    pub payto: String,
    /// Salt of the account's hash.
    pub wire_salt: WireSalt,
    /// Hash of the contract. Random for deposits into the owner's account.
    pub h_contract_terms: HashCode,
    /// The wallet's time at the payment.
    pub timestamp: Timestamp,
    /// End of the refund period; zero for none.
    pub refund_deadline: Timestamp,
    /// When the exchange must pay.
    pub wire_deadline: Timestamp,
    /// Amount for the receiver, before the wire fee.
    #[serde(with = "text")]
    pub amount: Money,
    /// Largest sum of deposit fees that the receiver bears.
    #[serde(with = "text")]
    pub max_fee: Money,
    /// Description for the history.
    pub summary: String,
    /// The coins, in the random order in which they are sent.
    pub coins: Vec<PaymentCoin>,
    /// Refused contributions. If the exchange lists one of these deposits later, one of its answers was
    /// false.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<PaymentCoin>,
    /// Whether one request carries all coins. False for exchanges that do not support this.
    pub batch: bool,
    /// Its stage.
    pub stage: PaymentStage,
    /// The exchange's signing key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_pub: Option<EddsaPublicKey>,
    /// When the exchange accepted it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_timestamp: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Payment {
    /// Adds coins that were taken for it.
    pub(crate) fn take(&mut self, contributions: Vec<Contribution>) {
        self.coins.extend(contributions.into_iter().map(|part| PaymentCoin {
            coin_pub: part.coin_pub,
            amount: part.amount,
            fee_deposit: part.fee_deposit,
            exchange_sig: None,
        }));
    }

    /// Sum of the contributions, and of the deposit fees in them.
    ///
    /// # Errors
    /// On overflow, which cannot happen in this wallet's records.
    pub(crate) fn totals(&self) -> Result<(Money, Money), CoreError> {
        let total = Money::checked_sum(self.coins.iter().map(|coin| coin.amount))?;
        let fees = Money::checked_sum(self.coins.iter().map(|coin| coin.fee_deposit))?;
        Ok((total, fees))
    }

    /// Hash of the receiver's account with its salt.
    #[must_use]
    pub fn h_wire(&self) -> HashCode {
        batzen_protocol::payto::h_wire(&self.payto, &self.wire_salt)
    }

    /// Returns whether it is a deposit into the owner's account.
    pub(crate) const fn is_own_account(&self) -> bool {
        self.merchant_priv.is_some()
    }
}

/// Amount of a deposit into the owner's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepositAmount {
    /// Credit this amount, before the wire fee. Deposit fees come on top.
    Exact(Amount),
    /// Deposit everything at the exchange.
    All,
}

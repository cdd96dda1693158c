//! Requests, receipts, and what a payment remembers.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, WireSalt};
use batzen_protocol::{Amount, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::CoreError;
use super::super::encoding::text;
use super::super::state::OpId;

/// A payment as a merchant's contract describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentRequest {
    /// Base URL of the exchange whose coins are used; the cheapest that has enough if not given.
    pub exchange: Option<String>,
    /// What the merchant shall get before the wire fee.
    pub amount: Amount,
    /// Deposit fees up to this sum are on the merchant.
    pub max_fee: Money,
    /// The merchant's key.
    pub merchant_pub: EddsaPublicKey,
    /// The merchant's bank account.
    pub merchant_payto: String,
    /// Salt of its hash.
    pub wire_salt: WireSalt,
    /// Hash of the contract.
    pub h_contract_terms: HashCode,
    /// When the contract was made; now if not given.
    pub timestamp: Option<Timestamp>,
    /// The time until which the merchant may refund; zero for not at all.
    pub refund_deadline: Timestamp,
    /// When the exchange must pay the merchant.
    pub wire_transfer_deadline: Timestamp,
    /// For the history: what for.
    pub summary: String,
}

/// A coin in a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReceiptCoin {
    /// Which coin.
    pub coin_pub: EddsaPublicKey,
    /// Its denomination.
    pub h_denom_pub: HashCode,
    /// What it gave, fee included.
    pub contribution: Amount,
    /// Deposit fee in it.
    pub deposit_fee: Amount,
    /// The exchange's confirmation.
    pub exchange_sig: EddsaSignature,
}

/// Proof of a payment: what an exchange confirmed, coin by coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaymentReceipt {
    /// Number of the operation.
    pub operation: OpId,
    /// Base URL of the exchange.
    pub exchange: String,
    /// What left the wallet.
    pub total: Amount,
    /// The deposit fees in it; the receiver gets the rest, less the wire fee.
    pub fees: Amount,
    /// Coins in the order of the request.
    pub coins: Vec<ReceiptCoin>,
    /// The signing key of the exchange.
    pub exchange_pub: EddsaPublicKey,
    /// When the exchange accepted it.
    pub exchange_timestamp: Timestamp,
    /// Hash of the receiver's account with its salt.
    pub h_wire: HashCode,
}

/// How far a payment got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PaymentStage {
    /// To be sent, perhaps sent already.
    Send,
    /// Confirmed by the exchange.
    Done,
    /// Refused; the coins that were not taken are back.
    Failed,
}

/// One coin of a payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentCoin {
    /// Which coin.
    pub coin_pub: EddsaPublicKey,
    /// What it gives, deposit fee included.
    #[serde(with = "text")]
    pub amount: Money,
    /// The fee in it.
    #[serde(with = "text")]
    pub fee_deposit: Money,
    /// The exchange's confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_sig: Option<EddsaSignature>,
}

/// A payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// Set for payments to one's own account: the key under which the exchange can be asked about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merchant_priv: Option<EddsaPrivateKey>,
    /// Who is paid.
    pub merchant_pub: EddsaPublicKey,
    /// To which account.
    pub payto: String,
    /// Salt of its hash.
    pub wire_salt: WireSalt,
    /// Hash of the contract; random for payments to one's own account.
    pub h_contract_terms: HashCode,
    /// The wallet's time.
    pub timestamp: Timestamp,
    /// The time until which the merchant may refund; zero for not at all.
    pub refund_deadline: Timestamp,
    /// When the exchange must pay.
    pub wire_deadline: Timestamp,
    /// What the receiver shall get before the wire fee.
    #[serde(with = "text")]
    pub amount: Money,
    /// Deposit fees up to this sum are on the receiver.
    #[serde(with = "text")]
    pub max_fee: Money,
    /// For the history: what for.
    pub summary: String,
    /// The coins, in the random order in which they are sent.
    pub coins: Vec<PaymentCoin>,
    /// Coins of requests that the exchange refused. If it lists one of these deposits later, one of its answers was false.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<PaymentCoin>,
    /// Whether one request carries all coins; not with exchanges that cannot.
    pub batch: bool,
    /// How far it got.
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
    /// Sum of the contributions, and of the deposit fees in them.
    ///
    /// # Errors
    /// On overflow, which records cannot have.
    pub fn totals(&self) -> Result<(Money, Money), CoreError> {
        let total = Money::checked_sum(self.coins.iter().map(|coin| coin.amount))?;
        let fees = Money::checked_sum(self.coins.iter().map(|coin| coin.fee_deposit))?;
        Ok((total, fees))
    }

    /// Hash of the receiver's account with its salt.
    #[must_use]
    pub fn h_wire(&self) -> HashCode {
        batzen_protocol::payto::h_wire(&self.payto, &self.wire_salt)
    }

    /// Whether this pays the wallet's owner out.
    #[must_use]
    pub const fn is_own_account(&self) -> bool {
        self.merchant_priv.is_some()
    }
}

/// What to deposit into one's own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepositAmount {
    /// This much is credited, before the wire fee; deposit fees come on top.
    Exact(Amount),
    /// Everything at the exchange.
    All,
}

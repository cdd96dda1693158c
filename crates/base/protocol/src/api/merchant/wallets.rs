//! Requests of wallets to a merchant backend.

use batzen_crypto::{
    AgePublicKey, AgeSignature, DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, ShortHash,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::limits::{PAY_COINS_READ_MAX, array};
use crate::{Amount, Timestamp};

/// `POST orders/$ORDER_ID/claim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimRequest {
    /// The wallet's fresh public key, in base32.
    pub nonce: String,
    /// The claim token of the pay URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Answer to a claim, with the contract as `T`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimResponse<T = Value> {
    /// The contract, with the wallet's nonce.
    pub contract_terms: T,
    /// `MERCHANT_CONTRACT`.
    pub sig: EddsaSignature,
}

/// `POST orders/$ORDER_ID/pay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PayRequest {
    /// The coins; none if there is nothing to pay.
    #[serde(deserialize_with = "array::<_, _, PAY_COINS_READ_MAX>")]
    pub coins: Vec<PayCoin>,
    /// The browser's session; may be empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// A coin that pays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PayCoin {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// `WALLET_COIN_DEPOSIT`.
    pub coin_sig: EddsaSignature,
    /// The denomination's signature.
    pub ub_sig: DenomSignature,
    /// The denomination.
    pub h_denom: HashCode,
    /// The contribution, deposit fee included.
    pub contribution: Amount,
    /// Base URL of the exchange that signed the coin.
    pub exchange_url: String,
    /// Proof of the contract's minimum age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_age_sig: Option<AgeSignature>,
    /// Age commitment, if the contract has a minimum age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_commitment: Option<Vec<AgePublicKey>>,
    /// Its hash, if the contract has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_age_commitment: Option<ShortHash>,
}

/// Answer to a payment: the receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PayResponse {
    /// `MERCHANT_PAYMENT_OK`.
    pub sig: EddsaSignature,
}

/// `POST orders/$ORDER_ID/paid`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PaidRequest {
    /// Hash of the contract.
    pub h_contract: HashCode,
    /// The receipt.
    pub sig: EddsaSignature,
    /// The session to bind the payment to; may be empty.
    pub session_id: String,
}

/// Answer 402 to `GET orders/$ORDER_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderDue {
    /// The URI that the wallet opens.
    pub taler_pay_uri: String,
    /// The page that the customer gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fulfillment_url: Option<String>,
    /// Another order by which this session bought the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub already_paid_order_id: Option<String>,
}

/// Answer 202 to `GET orders/$ORDER_ID`, for somebody who does not know the order's secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderReorder {
    /// Where to buy the same.
    pub public_reorder_url: String,
}

/// Answer 200 to `GET orders/$ORDER_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderPaid {
    /// Whether a refund was approved.
    pub refunded: bool,
    /// Whether some of it was not taken yet.
    pub refund_pending: bool,
    /// The sum of the approved refunds.
    pub refund_amount: Amount,
    /// The sum that the wallet has taken.
    pub refund_taken: Amount,
    /// The page that the customer gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fulfillment_url: Option<String>,
}

/// `POST orders/$ORDER_ID/refund`: the wallet picks up what the shop has approved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PickUpRefundRequest {
    /// Hash of the contract.
    pub h_contract: HashCode,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PickUpRefundResponse {
    /// The sum of the approved refunds.
    pub refund_amount: Amount,
    /// The refunds, one for each coin and approval.
    pub refunds: Vec<RefundEntry>,
    /// The shop's key.
    pub merchant_pub: EddsaPublicKey,
    /// Hash of the contract, which older wallets expect.
    pub h_contract: HashCode,
}

/// A refund of a coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefundEntry {
    /// The exchange's answer.
    #[serde(flatten)]
    pub result: RefundResult,
    /// Distinguishes the refunds of a coin.
    pub rtransaction_id: u64,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// The amount, refund fee included.
    pub refund_amount: Amount,
    /// When the shop approved it.
    pub execution_time: Timestamp,
}

/// An exchange's answer about a refund.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RefundResult {
    /// The coin has its value back.
    Success {
        /// 200.
        exchange_status: u16,
        /// `EXCHANGE_CONFIRM_REFUND`.
        exchange_sig: EddsaSignature,
        /// Signing key.
        exchange_pub: EddsaPublicKey,
    },
    /// It has not, or not yet.
    Failure {
        /// The exchange's HTTP status; 502 if it did not answer.
        exchange_status: u16,
        /// The exchange's error code.
        #[serde(skip_serializing_if = "Option::is_none")]
        exchange_code: Option<u32>,
        /// The exchange's answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        exchange_reply: Option<Value>,
    },
}

/// `POST orders/$ORDER_ID/abort`: the wallet gives up a payment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AbortRequest {
    /// Hash of the contract.
    pub h_contract: HashCode,
    /// The coins that may have been deposited.
    #[serde(deserialize_with = "array::<_, _, PAY_COINS_READ_MAX>")]
    pub coins: Vec<AbortCoin>,
}

/// A coin of an aborted payment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AbortCoin {
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// Its contribution.
    pub contribution: Amount,
    /// Its exchange.
    pub exchange_url: String,
}

/// Answer to an abort.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AbortResponse {
    /// For each coin, in the order of the request, what the exchange says.
    pub refunds: Vec<RefundResult>,
}

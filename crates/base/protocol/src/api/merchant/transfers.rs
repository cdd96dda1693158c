//! Transfers (`private/transfers`), and identifications that exchanges ask for (`private/kyc`).

use batzen_crypto::{EddsaPublicKey, Wtid};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Amount, Timestamp};

/// `POST private/transfers`: the shop's bank has booked a transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportTransferRequest {
    /// The sum that the account received.
    pub credit_amount: Amount,
    /// The transfer's subject.
    pub wtid: Wtid,
    /// The account that got it.
    pub payto_uri: String,
    /// The exchange that sent it.
    pub exchange_url: String,
}

/// Answer to it: what the transfer pays for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportTransferResponse {
    /// The sum that the exchange paid.
    pub total: Amount,
    /// The wire fee that it took.
    pub wire_fee: Amount,
    /// When it made the transfer.
    pub execution_time: Timestamp,
    /// For each order.
    pub deposits_sums: Vec<OrderSum>,
}

/// The share of an order in a transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderSum {
    /// The order.
    pub order_id: String,
    /// The coins' contributions, after refunds.
    pub deposit_value: Amount,
    /// Their deposit fees.
    pub deposit_fee: Amount,
}

/// Answer to `GET private/transfers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferList {
    /// The transfers, in the order asked for.
    pub transfers: Vec<TransferSummary>,
}

/// A transfer in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferSummary {
    /// The sum that the account received; of a transfer that only the exchange has named, the sum that the
    /// exchange states.
    pub credit_amount: Amount,
    /// The transfer's subject.
    pub wtid: Wtid,
    /// The account.
    pub payto_uri: String,
    /// The exchange.
    pub exchange_url: String,
    /// Its number, by which lists continue and transfers are deleted.
    pub transfer_serial_id: u64,
    /// When the exchange made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_time: Option<Timestamp>,
    /// Whether the exchange's statement adds up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<bool>,
    /// Whether the shop has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
}

/// A transfer that has a part of a paid order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WireDetail {
    /// The exchange.
    pub exchange_url: String,
    /// The transfer's subject.
    pub wtid: Wtid,
    /// When the exchange made it.
    pub execution_time: Timestamp,
    /// The share of the order.
    pub amount: Amount,
    /// Whether the shop has reported it.
    pub confirmed: bool,
}

/// Why nothing is known of the transfer that pays for a coin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WireReport {
    /// The error code.
    pub code: u32,
    /// Its meaning.
    pub hint: String,
    /// The exchange's error code; 0 if there is none.
    pub exchange_ec: u32,
    /// The exchange's HTTP status; 0 if it did not answer.
    pub exchange_hc: u32,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
}

/// Answer 202 to `GET private/kyc`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KycOpen {
    /// Exchanges that ask who owns an account.
    pub pending_kycs: Vec<PendingKyc>,
    /// Exchanges that did not answer.
    pub timeout_kycs: Vec<TimeoutKyc>,
}

/// An identification that an exchange asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PendingKyc {
    /// Where the owner identifies.
    pub kyc_url: String,
    /// The exchange.
    pub exchange_url: String,
    /// The account.
    pub payto_uri: String,
}

/// An exchange that did not say whether it asks for an identification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TimeoutKyc {
    /// The exchange.
    pub exchange_url: String,
    /// Its error code; 0 if there is none.
    pub exchange_code: u32,
    /// Its HTTP status; 0 if it did not answer.
    pub exchange_http_status: u32,
}

//! Requests of the shop's own programs (`private/orders`), and the contract's terms.

use batzen_crypto::{EddsaPublicKey, HashCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{InventoryProduct, WireDetail, WireReport};
use crate::{Amount, Duration, Timestamp};

/// `POST private/orders`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateOrderRequest {
    /// Members of the contract; at least `amount` and `summary`.
    #[schema(value_type = Object)]
    pub order: Map<String, Value>,
    /// Time after the order during which it can be refunded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refund_delay: Option<Duration>,
    /// The wire method of the account to pay to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payment_target: Option<String>,
    /// Products of the inventory, which are added to the contract's products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inventory_products: Option<Vec<InventoryProduct>>,
    /// Locks of products that the order replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_uuids: Option<Vec<String>>,
    /// Whether only those who know a token may claim the order; by default yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_token: Option<bool>,
}

/// Answer to `POST private/orders`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateOrderResponse {
    /// The order.
    pub order_id: String,
    /// Its claim token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Answer to `GET private/orders`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderList {
    /// The orders, in the order asked for.
    pub orders: Vec<OrderSummary>,
}

/// An order in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderSummary {
    /// The order.
    pub order_id: String,
    /// Its number, by which lists continue.
    pub row_id: u64,
    /// When it was created.
    pub timestamp: Timestamp,
    /// The amount.
    pub amount: Amount,
    /// One line.
    pub summary: String,
    /// Whether it can be refunded.
    pub refundable: bool,
    /// Whether it was paid.
    pub paid: bool,
}

/// Answer to `GET private/orders/$ORDER_ID`, with the contract as `T`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "order_status", rename_all = "lowercase")]
pub enum OrderStatus<T = Value> {
    /// No wallet has claimed it.
    Unpaid(Box<UnpaidOrder>),
    /// A wallet has claimed it, or it was not paid in this session.
    Claimed(Box<ClaimedOrder<T>>),
    /// It was paid.
    Paid(Box<PaidOrder<T>>),
}

/// An order that no wallet has claimed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnpaidOrder {
    /// The URI that a wallet opens.
    pub taler_pay_uri: String,
    /// The page for the customer.
    pub order_status_url: String,
    /// When it was created.
    pub creation_time: Timestamp,
    /// One line.
    pub summary: String,
    /// The amount.
    pub total_amount: Amount,
    /// Another order by which this session bought the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub already_paid_order_id: Option<String>,
    /// The page that it paid for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub already_paid_fulfillment_url: Option<String>,
}

/// An order that a wallet has claimed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimedOrder<T = Value> {
    /// The contract.
    pub contract_terms: T,
    /// The page for the customer.
    pub order_status_url: String,
}

/// A paid order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PaidOrder<T = Value> {
    /// Whether a refund was approved.
    pub refunded: bool,
    /// Whether some of it was not taken yet.
    pub refund_pending: bool,
    /// Whether the bank has reported all of the money.
    pub wired: bool,
    /// The sum that the coins paid, less their deposit fees.
    pub deposit_total: Amount,
    /// The exchange's error code at the last tracking; 0 if there is none.
    pub exchange_ec: u32,
    /// The exchange's HTTP status at the last tracking; 0 if there is none.
    pub exchange_hc: u32,
    /// The sum of the approved refunds.
    pub refund_amount: Amount,
    /// The contract.
    pub contract_terms: T,
    /// Transfers of the exchange.
    pub wire_details: Vec<WireDetail>,
    /// Problems of tracking.
    pub wire_reports: Vec<WireReport>,
    /// The steps of refunds.
    pub refund_details: Vec<RefundDetail>,
    /// The page for the customer.
    pub order_status_url: String,
}

/// The members of a contract that programs act on. There may be others.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
pub struct ContractTerms {
    /// The order.
    pub(crate) order_id: String,
    /// One line.
    pub(crate) summary: String,
    /// The price.
    pub amount: Amount,
    /// The deposit fees that the shop pays.
    pub max_fee: Amount,
    /// The wire fee that the shop pays.
    #[serde(default)]
    pub max_wire_fee: Option<Amount>,
    /// Over how many payments the customer's part of the wire fee is spread.
    #[serde(default)]
    pub wire_fee_amortization: Option<i64>,
    /// The contract's date.
    pub timestamp: Timestamp,
    /// Refunds are possible before this time.
    pub refund_deadline: Timestamp,
    /// It must be paid before this time.
    pub pay_deadline: Timestamp,
    /// The exchange pays the shop by this time.
    pub wire_transfer_deadline: Timestamp,
    /// The shop's key.
    pub merchant_pub: EddsaPublicKey,
    /// The shop's base URL.
    pub(crate) merchant_base_url: String,
    /// The shop's account.
    pub h_wire: HashCode,
    /// The account's wire method.
    pub wire_method: String,
    /// The exchanges that the shop accepts.
    pub(crate) exchanges: Vec<ContractExchange>,
    /// The auditors whose exchanges the shop accepts.
    #[serde(default)]
    pub(crate) auditors: Vec<ContractAuditor>,
    /// The page that the customer gets.
    #[serde(default)]
    pub fulfillment_url: Option<String>,
    /// Where others can buy the same.
    #[serde(default)]
    pub(crate) public_reorder_url: Option<String>,
    /// The age that the customer must have.
    #[serde(default)]
    pub minimum_age: Option<u8>,
    /// The wallet's key.
    #[serde(default)]
    pub nonce: Option<String>,
}

/// An exchange in a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContractExchange {
    /// Its base URL.
    pub url: String,
    /// Its master key.
    pub master_pub: EddsaPublicKey,
}

/// An auditor in a contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContractAuditor {
    /// Its name.
    pub name: String,
    /// Its key.
    pub auditor_pub: EddsaPublicKey,
    /// Its base URL.
    pub url: String,
}

/// `POST private/orders/$ORDER_ID/refund`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApproveRefundRequest {
    /// The total to refund, earlier refunds included.
    pub refund: Amount,
    /// Why.
    pub reason: String,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApproveRefundResponse {
    /// The URI that the wallet opens.
    pub taler_refund_uri: String,
    /// Hash of the contract.
    pub h_contract: HashCode,
}

/// An approved refund of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefundDetail {
    /// Why.
    pub reason: String,
    /// When it was approved.
    pub timestamp: Timestamp,
    /// Whether the wallet has not taken all of it.
    pub pending: bool,
    /// The amount.
    pub amount: Amount,
}

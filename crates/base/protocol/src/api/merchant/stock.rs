//! Products (`private/products`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::limits::{ARRAY_READ_MAX, array};
use crate::{Amount, Duration, Timestamp};

/// The description of a product for customers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProductDetails {
    /// A description.
    pub description: String,
    /// The same in other languages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub description_i18n: Option<Map<String, Value>>,
    /// The unit of sale, for example `piece`.
    pub unit: String,
    /// A data URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Taxes in the price of a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taxes: Option<Vec<Tax>>,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub(crate) address: Option<Map<String, Value>>,
    /// When there will be more. Zero: unknown; never: not planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_restock: Option<Timestamp>,
}

/// A tax in a price.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tax {
    /// Its name.
    pub name: String,
    /// The amount.
    pub tax: Amount,
}

/// `POST private/products`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateProductRequest {
    /// The product's id within the instance.
    pub product_id: String,
    /// The description for customers.
    #[serde(flatten)]
    pub details: ProductDetails,
    /// The price of a unit.
    pub price: Amount,
    /// Units in stock; -1 for any number.
    pub total_stock: i64,
    /// The age that a customer must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_age: Option<u8>,
}

/// `PATCH private/products/$PRODUCT_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangeProductRequest {
    /// The description for customers.
    #[serde(flatten)]
    pub details: ProductDetails,
    /// The price of a unit.
    pub price: Amount,
    /// Units that were ever in stock; -1 for any number. It never shrinks.
    pub total_stock: i64,
    /// Units that were lost. It never shrinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_lost: Option<u64>,
    /// The age that a customer must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_age: Option<u8>,
}

/// Answer to `GET private/products/$PRODUCT_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProductAnswer {
    /// The description for customers.
    #[serde(flatten)]
    pub details: ProductDetails,
    /// The price of a unit.
    pub price: Amount,
    /// Units that were ever in stock; -1 for any number.
    pub total_stock: i64,
    /// Units in paid orders.
    pub total_sold: u64,
    /// Units that were lost.
    pub total_lost: u64,
    /// Units that carts and unpaid orders hold. Beyond the protocol.
    #[serde(default)]
    pub total_locked: u64,
    /// The age that a customer must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_age: Option<u8>,
}

/// Answer to `GET private/products`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProductList {
    /// All products.
    pub products: Vec<ProductSummary>,
}

/// A product in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProductSummary {
    /// The product.
    pub product_id: String,
}

/// `POST private/products/$PRODUCT_ID/lock`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LockProductRequest {
    /// The lock, which the shop chooses. One lock may hold several products.
    pub lock_uuid: String,
    /// The validity of the lock.
    pub duration: Duration,
    /// Units; 0 releases the lock.
    pub quantity: u64,
}

/// A product of the inventory in `POST private/orders`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InventoryProduct {
    /// The product.
    pub product_id: String,
    /// Units.
    pub quantity: u64,
}

/// Answer 410 to an order or a lock for more than there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutOfStock {
    /// The product.
    pub product_id: String,
    /// Units that were wanted.
    pub requested_quantity: u64,
    /// Units that there are.
    pub available_quantity: u64,
    /// When there will be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restock_expected: Option<Timestamp>,
}

/// `PATCH private/orders/$ORDER_ID/forget`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForgetRequest {
    /// Paths, for example `$.products[*].image`.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub fields: Vec<String>,
}

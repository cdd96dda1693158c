//! Instances: the shops of a backend (`management/instances`, and `private/` of each).

use batzen_crypto::{EddsaPublicKey, HashCode, WireSalt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::limits::{ARRAY_READ_MAX, array};
use crate::{Amount, Duration};

/// The access check of `private/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "method", rename_all = "lowercase")]
pub enum InstanceAuth {
    /// A proxy in front of the backend decides.
    External,
    /// By this token.
    Token {
        /// Begins with `secret-token:`, followed by 8 characters or more.
        #[schema(pattern = "^secret-token:")]
        token: String,
    },
}

/// The same without the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "method", rename_all = "lowercase")]
pub enum InstanceAuthMethod {
    /// A proxy in front of the backend decides.
    External,
    /// By a token.
    Token,
}

/// The facts that an instance tells its customers, and its defaults for orders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceSettings {
    /// The shop's name.
    pub name: String,
    /// The shop's bank accounts.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub payto_uris: Vec<String>,
    /// Where the shop is.
    #[schema(value_type = Object)]
    pub address: Map<String, Value>,
    /// The jurisdiction whose law applies.
    #[schema(value_type = Object)]
    pub jurisdiction: Map<String, Value>,
    /// The shop's e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The shop's web site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub website: Option<String>,
    /// The shop's logo, a data URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logo: Option<String>,
    /// Default of the contract's `max_wire_fee`.
    pub default_max_wire_fee: Amount,
    /// Default of the contract's `max_fee`.
    pub default_max_deposit_fee: Amount,
    /// Default of the contract's `wire_fee_amortization`.
    pub default_wire_fee_amortization: u32,
    /// From an order to the latest transfer.
    pub default_wire_transfer_delay: Duration,
    /// From an order to the latest payment.
    pub default_pay_delay: Duration,
}

/// `POST management/instances`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateInstanceRequest {
    /// The instance's id, as in URLs.
    #[schema(pattern = r"^[A-Za-z0-9\-._~:@+]{1,64}$")]
    pub id: String,
    /// The access check of `private/`.
    pub auth: InstanceAuth,
    /// Everything else.
    #[serde(flatten)]
    pub settings: InstanceSettings,
}

/// Answer to `GET management/instances`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceList {
    /// All instances.
    pub instances: Vec<InstanceSummary>,
}

/// An instance in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceSummary {
    /// The shop's name.
    pub name: String,
    /// The instance's id.
    pub id: String,
    /// The instance's key.
    pub merchant_pub: EddsaPublicKey,
    /// The wire methods of the active accounts.
    pub payment_targets: Vec<String>,
    /// Whether it was deleted, but not purged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

/// Answer to `GET management/instances/$ID` and `GET private`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceDetails {
    /// All accounts.
    pub accounts: Vec<InstanceAccount>,
    /// The instance's key.
    pub merchant_pub: EddsaPublicKey,
    /// The method of the access check.
    pub auth: InstanceAuthMethod,
    /// The shop's name.
    pub name: String,
    /// Where the shop is.
    #[schema(value_type = Object)]
    pub address: Map<String, Value>,
    /// The jurisdiction whose law applies.
    #[schema(value_type = Object)]
    pub jurisdiction: Map<String, Value>,
    /// The shop's e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The shop's web site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub website: Option<String>,
    /// The shop's logo, a data URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logo: Option<String>,
    /// Default of the contract's `max_wire_fee`.
    pub default_max_wire_fee: Amount,
    /// Default of the contract's `max_fee`.
    pub default_max_deposit_fee: Amount,
    /// Default of the contract's `wire_fee_amortization`.
    pub default_wire_fee_amortization: u32,
    /// From an order to the latest transfer.
    pub default_wire_transfer_delay: Duration,
    /// From an order to the latest payment.
    pub default_pay_delay: Duration,
}

/// A bank account of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceAccount {
    /// The account.
    pub payto_uri: String,
    /// Its salted hash.
    pub h_wire: HashCode,
    /// The salt.
    pub salt: WireSalt,
    /// Whether new orders may use it.
    pub active: bool,
}

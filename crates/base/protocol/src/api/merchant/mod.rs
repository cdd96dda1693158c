//! The merchant backend's interfaces: for wallets, for the shop's own programs, and for administrators.

mod extras;
mod instances;
mod orders;
mod stock;
mod tips;
mod transfers;
mod wallets;

pub use extras::*;
pub use instances::*;
pub use orders::*;
pub use stock::*;
pub use tips::*;
pub use transfers::*;
pub use wallets::*;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The version of the protocol that the backend announces: current, revision, age.
pub const MERCHANT_PROTOCOL_VERSION: &str = "2:0:1";

/// Answer to `GET config`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MerchantConfig {
    /// The version of the protocol: current, revision, age.
    pub version: String,
    /// `taler-merchant`.
    pub name: String,
    /// The currency of all orders.
    pub currency: String,
}

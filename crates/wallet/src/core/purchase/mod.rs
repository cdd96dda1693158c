//! Purchases: a merchant's order, from its `taler://pay` URI to the merchant's receipt.
//!
//! The wallet claims the order with a fresh key ([`order`]), checks the contract (`contract`), shows it to
//! the user, selects coins by the contract's rule about fees ([`fees`]), and sends deposit permissions to the
//! merchant, who deposits the coins (`pay`). The merchant signs a receipt, with which the wallet can show
//! the payment again in another session (`replay`) and gets what the merchant refunds ([`refunds`]). A purchase that cannot be paid is given up at the merchant (`abort`).

pub(crate) mod abort;
pub(crate) mod contract;
mod failure;
pub mod fees;
pub mod order;
pub(crate) mod pay;
mod record;
pub mod refunds;
pub(crate) mod replay;

use super::CoreError;

pub use record::*;

/// The version of the merchant's protocol that this wallet speaks, libtool style.
pub(crate) const PROTOCOL_VERSION: &str = "2:0:1";

/// Most coins in one purchase.
pub(crate) const MAX_COINS: usize = 256;

/// Time that the wallet waits longer for each coin, in milliseconds: the merchant asks the exchange for each.
const COIN_MS: u64 = 3_000;

fn bad(what: &'static str, reason: impl Into<String>) -> CoreError {
    CoreError::BadInput { what, reason: reason.into() }
}

/// Most characters of a merchant's text that the wallet shows.
const MAX_TEXT_CHARS: usize = 1000;

/// Text of a merchant for the terminal: without control characters, and not too long.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT_CHARS).collect()
}

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
pub mod pay;
mod record;
pub mod refunds;
pub(crate) mod replay;

pub use record::*;

/// The version of the merchant's protocol that this wallet speaks, libtool style.
pub(crate) const PROTOCOL_VERSION: &str = "2:0:1";

pub(crate) use batzen_protocol::limits::PAY_COINS_MAX as MAX_COINS;

/// Time that the wallet waits longer for each coin, in milliseconds: the merchant may ask the exchange for each.
const COIN_MS: u64 = 3_000;
/// Most of that time.
const COINS_MS_MAX: u64 = 600_000;

/// Most characters of a merchant's text that the wallet shows.
const MAX_TEXT_CHARS: usize = 1000;

/// Text of somebody else for the terminal: without control characters, without those that change the direction of what
/// follows (Unicode Standard Annex 9), and not too long. Joiners stay, since names and emoji need them.
pub(super) fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = |c: char| matches!(c, '\u{2028}' | '\u{2029}');
    text.chars().filter(|&c| !c.is_control() && !turns(c) && !breaks(c)).take(MAX_TEXT_CHARS).collect()
}

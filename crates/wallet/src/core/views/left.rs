//! Money that a deposit of everything leaves in the wallet, and why.

use batzen_protocol::{Amount, Money, Timestamp};
use serde::Serialize;

use super::super::CoreError;
use super::super::state::{Draft, WalletState};
use super::exchange_balance;
use super::part::{Part, part_of};

/// Money that cannot be deposited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Base URL of the exchange.
    pub exchange: String,
    /// The amount.
    pub amount: Amount,
    /// `deposit-fee`, `dust`, `incoming`, `outgoing`, `disputed` or `expired`; `not-deposited` for spendable
    /// coins.
    pub(crate) code: &'static str,
    /// Why, in plain words.
    pub reason: &'static str,
}

/// Money at one exchange that a deposit of everything leaves.
///
/// # Errors
/// If records contradict each other.
pub fn left(state: &WalletState, base_url: &str, now: Timestamp) -> Result<Vec<Left>, CoreError> {
    let exchange = state.exchange(base_url)?;
    let balance = exchange_balance(state, exchange, now)?;
    let draft = Draft::new(state);
    let (mut spendable, mut too_small, mut expired) = (Money::ZERO, Money::ZERO, Money::ZERO);
    for coin in state.coins.values().filter(|coin| coin.exchange == exchange.base_url) {
        let denom = exchange.denom(&coin.h_denom_pub)?;
        let sum = match part_of(&draft, coin, denom, now) {
            Part::Available if coin.remaining > denom.fee_deposit => &mut spendable,
            Part::Available => &mut too_small,
            Part::Lost => &mut expired,
            Part::Incoming | Part::Dust => continue,
        };
        *sum = sum.checked_add(coin.remaining)?;
    }
    let parts = [
        (exchange.amount(spendable), "not-deposited", "available, but not deposited"),
        (exchange.amount(too_small), "deposit-fee", "in coins worth no more than their deposit fee"),
        (balance.dust, "dust", "left on used coins, and too little for a fresh coin after fees"),
        (balance.pending_incoming, "incoming", "coming in, and not available yet"),
        (balance.pending_outgoing, "outgoing", "in payments that are not finished yet"),
        (balance.disputed, "disputed", "disputed, because the exchange gave a false answer"),
        (exchange.amount(expired), "expired", "in expired coins, which nobody accepts any more"),
    ];
    let kept = parts.into_iter().filter(|(amount, ..)| !amount.is_zero());
    Ok(kept
        .map(|(amount, code, reason)| Left { exchange: exchange.base_url.clone(), amount, code, reason })
        .collect())
}

//! The part of the balance in which a coin counts.

use batzen_protocol::Timestamp;

use super::super::coin::{Coin, CoinStatus};
use super::super::exchange::Denom;
use super::super::operation::is_busy;
use super::super::state::Draft;

/// The part of the balance in which a coin counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Available,
    Incoming,
    Dust,
    /// In none: expired, or proven to be spent elsewhere.
    Lost,
}

/// The part in which a coin counts.
pub(super) fn part_of(draft: &Draft<'_>, coin: &Coin, denom: &Denom, now: Timestamp) -> Part {
    match coin.status {
        CoinStatus::Fresh if denom.can_deposit(now) && denom.is_worth_paying(coin.remaining) => {
            Part::Available
        }
        // Paying with it costs all that is left of it.
        CoinStatus::Fresh if denom.can_deposit(now) => Part::Dust,
        // It is refreshed when the operation that holds it ends, or at its time. If no operation holds it, it was too little
        // for a refresh.
        CoinStatus::Used if is_busy(draft, &coin.coin_pub) || denom.revoked || coin.refresh_at.is_some() => {
            Part::Incoming
        }
        CoinStatus::Used => Part::Dust,
        // To be recouped, or refreshed before it expires.
        CoinStatus::Fresh if denom.revoked => Part::Incoming,
        CoinStatus::Fresh | CoinStatus::Lost => Part::Lost,
    }
}

//! Coins for a payment: which can pay, which are cheapest, and which replace those that an exchange refused.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Amount, Currency, Money, Timestamp};

use super::coin::CoinStatus;
use super::exchange::Exchange;
use super::http::HttpResponse;
use super::operation::Step;
use super::proof::coin::{self as coin_proof, CoinProof};
use super::proof::denomination::{self, Problem, Use};
use super::select::{Candidate, PaymentPlan, Target, select_all, select_coins};
use super::state::WalletState;
use super::{CoreError, refresh};
use crate::core::error::Result;

/// The coins of `exchange` that can pay now.
pub(crate) fn candidates(state: &WalletState, exchange: &Exchange, now: Timestamp) -> Result<Vec<Candidate>> {
    state
        .fresh_coins(&exchange.base_url, now)
        .map(|coin| {
            let fee_deposit = exchange.denom(&coin.h_denom_pub)?.fee_deposit;
            Ok(Candidate { coin_pub: coin.coin_pub, remaining: coin.remaining, fee_deposit })
        })
        .collect()
}

/// Selects the cheapest of these coins, which may be of several exchanges.
pub(crate) fn choose(
    state: &WalletState,
    currency: Currency,
    have: &[Candidate],
    target: Target,
    now: Timestamp,
) -> Result<PaymentPlan> {
    let change_cost = |coin_pub: &EddsaPublicKey, change: Money| {
        let coin = state.coin(coin_pub);
        let priced = coin.and_then(|coin| Ok((coin, state.exchange(&coin.exchange)?)));
        priced.map_or(change, |(coin, exchange)| refresh::cost_of_change(exchange, coin, change, now))
    };
    if let Some(plan) = select_coins(have, target, &change_cost)? {
        return Ok(plan);
    }
    let available = Money::checked_sum(have.iter().map(|coin| coin.remaining))?;
    let all = select_all(have, usize::MAX)?;
    if all.total.checked_sub(all.fees)? >= target.amount {
        let mut worth: Vec<Money> =
            have.iter().filter_map(|coin| coin.remaining.checked_sub(coin.fee_deposit).ok()).collect();
        worth.sort_unstable_by_key(|worth| std::cmp::Reverse(*worth));
        let most = Money::checked_sum(worth.into_iter().take(target.max_coins))?.of(currency);
        return Err(CoreError::TooManyCoins { max: target.max_coins, most });
    }
    Err(CoreError::InsufficientFunds {
        needed: target.amount.of(currency),
        available: available.of(currency),
    })
}

/// The exchange that pays an amount at the least cost, with the coins that `preview` selects there.
///
/// # Errors
/// [`CoreError::InsufficientFunds`] or the error of a preview.
pub(crate) fn cheapest(
    state: &WalletState,
    needed: Amount,
    preview: impl Fn(&str) -> Result<PaymentPlan>,
) -> Result<(String, PaymentPlan)> {
    let mut best: Option<(u128, String, PaymentPlan)> = None;
    let mut failure = None;
    for exchange in state.exchanges.values().filter(|exchange| exchange.currency == needed.currency) {
        match preview(&exchange.base_url) {
            Ok(plan) => {
                let cost = plan.total.units() + plan.change_cost.units();
                if best.as_ref().is_none_or(|(other, ..)| cost < *other) {
                    best = Some((cost, exchange.base_url.clone(), plan));
                }
            }
            Err(error) => failure = Some(error),
        }
    }
    match (best, failure) {
        (Some((_, base_url, plan)), _) => Ok((base_url, plan)),
        (None, Some(error)) => Err(error),
        (None, None) => {
            let available = Amount::zero(needed.currency);
            Err(CoreError::InsufficientFunds { needed, available })
        }
    }
}

/// Verifies the statement that a denomination of one of these coins cannot be used. Returns the denomination,
/// and the status of its coins.
pub(crate) fn unusable<'c>(
    step: &mut Step<'_, '_>,
    coins: impl Iterator<Item = &'c EddsaPublicKey>,
    operation: &str,
    response: &HttpResponse,
) -> Result<(HashCode, CoinStatus)> {
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    let hashes = coins.map(|coin_pub| Ok(step.draft.coin(coin_pub)?.h_denom_pub));
    let hashes = hashes.collect::<Result<Vec<HashCode>>>()?;
    let (h_denom_pub, problem) =
        denomination::verify(exchange, &hashes, &[operation], Use::Spend, response, step.now)?;
    if problem != Problem::Revoked {
        return Ok((h_denom_pub, CoinStatus::Lost));
    }
    step.draft.revoke(&step.operation.exchange, &h_denom_pub, step.now)?;
    Ok((h_denom_pub, CoinStatus::Used))
}

/// The coins from which a refused payment selects again: first those that are taken back from it and for which
/// `drop_coin` does not hold, then the others that can prove the age. Returns also how many are taken back.
pub(crate) fn take_back(
    step: &mut Step<'_, '_>,
    parts: impl Iterator<Item = (EddsaPublicKey, Money, Money)>,
    min_age: u32,
    mut drop_coin: impl FnMut(&mut Step<'_, '_>, EddsaPublicKey) -> Result<bool>,
) -> Result<(Vec<Candidate>, usize)> {
    let mut have: Vec<Candidate> = Vec::new();
    for (coin_pub, amount, fee_deposit) in parts {
        step.draft.credit_coin(&coin_pub, amount)?;
        if !drop_coin(step, coin_pub)? {
            // A repeated payment tells the receiver nothing new.
            let remaining = step.draft.coin(&coin_pub)?.remaining;
            have.push(Candidate { coin_pub, remaining, fee_deposit });
        }
    }
    let back = have.len();
    let exchange = step.draft.exchange(&step.operation.exchange)?;
    for other in candidates(step.draft.base(), exchange, step.now)? {
        let coin = step.draft.coin(&other.coin_pub)?;
        let is_usable = coin.status == CoinStatus::Fresh
            && coin.can_attest(min_age)
            && !exchange.denom(&coin.h_denom_pub)?.revoked;
        if is_usable && !have[..back].iter().any(|candidate| candidate.coin_pub == other.coin_pub) {
            have.push(other);
        }
    }
    Ok((have, back))
}

/// Marks the coins of a denomination that cannot be used; for [`take_back`].
pub(crate) fn drop_denomination(
    h_denom_pub: HashCode,
    status: CoinStatus,
) -> impl FnMut(&mut Step<'_, '_>, EddsaPublicKey) -> Result<bool> {
    move |step, coin_pub| {
        let coin = step.draft.coin_mut(&coin_pub)?;
        if coin.h_denom_pub == h_denom_pub {
            coin.status = status;
            return Ok(true);
        }
        Ok(false)
    }
}

/// Applies the proof that a coin was spent elsewhere; for [`take_back`].
pub(crate) fn drop_coin(
    spent: EddsaPublicKey,
    proof: CoinProof,
) -> impl FnMut(&mut Step<'_, '_>, EddsaPublicKey) -> Result<bool> {
    move |step, coin_pub| {
        if coin_pub == spent {
            coin_proof::accept(step, &coin_pub, &proof)?;
        }
        Ok(coin_pub == spent)
    }
}

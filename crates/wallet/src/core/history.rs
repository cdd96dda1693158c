//! Coin histories: the proof that an exchange gives when it says that a coin has less on it than the wallet thinks.

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash};
use batzen_protocol::Money;
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::api::exchange::CoinHistoryItem;
use batzen_protocol::signatures::{
    MerchantRefund, SignedMessage, WalletCoinDeposit, WalletCoinMelt, WalletCoinRecoup,
    WalletCoinRecoupRefresh,
};
use batzen_protocol::{Amount, Timestamp};
use serde::Deserialize;

use super::CoreError;
use super::coin::Coin;
use super::exchange::Exchange;
use super::http::HttpResponse;
use super::state::Draft;

/// The coin that a conflict answer is about.
pub(crate) fn coin_in(response: &HttpResponse) -> Option<EddsaPublicKey> {
    #[derive(Deserialize)]
    struct Named {
        coin_pub: EddsaPublicKey,
    }
    serde_json::from_slice::<Named>(&response.body).ok().map(|named| named.coin_pub)
}

/// What the proof in a conflict answer leaves on a coin of ours. Every debit in it must carry our own signature: an
/// exchange cannot make up payments that we did not make.
///
/// # Errors
/// [`CoreError::BadAnswer`] or [`CoreError::BadSignature`] if the proof is none.
pub(crate) fn remaining_after_conflict(
    draft: &Draft<'_>,
    coin_pub: &EddsaPublicKey,
    response: &HttpResponse,
) -> Result<Money, CoreError> {
    let conflict: CoinConflict = response.json("the exchange's proof about a coin")?;
    let coin = draft.coin(coin_pub)?;
    let exchange = draft.exchange(&coin.exchange)?;
    let denom = exchange.denom(&coin.h_denom_pub)?;
    if conflict.coin_pub != *coin_pub {
        return Err(bad(response, "it is about another coin"));
    }
    balance(exchange, coin, denom.value, &conflict.history, response)
}

fn bad(response: &HttpResponse, reason: &str) -> CoreError {
    CoreError::BadAnswer {
        what: "the exchange's proof about a coin",
        status: response.status,
        reason: reason.to_owned(),
    }
}

fn balance(
    exchange: &Exchange,
    coin: &Coin,
    value: Money,
    history: &[CoinHistoryItem],
    response: &HttpResponse,
) -> Result<Money, CoreError> {
    let money = |amount: &Amount| amount.money_in(exchange.currency);
    let (mut debits, mut credits) = (Money::ZERO, Money::ZERO);
    for item in history {
        let (debit, amount, proven) = match item {
            CoinHistoryItem::Deposit(item) => {
                let message = WalletCoinDeposit {
                    h_contract_terms: item.h_contract_terms,
                    h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
                    h_policy: item.h_policy.unwrap_or(HashCode::ZERO),
                    h_wire: item.h_wire,
                    h_denom_pub: coin.h_denom_pub,
                    wallet_timestamp: item.timestamp,
                    refund_deadline: item.refund_deadline.unwrap_or(Timestamp::ZERO),
                    amount_with_fee: item.amount,
                    deposit_fee: item.deposit_fee,
                    merchant_pub: item.merchant_pub,
                };
                (true, item.amount, message.verify(&coin.coin_pub, &item.coin_sig))
            }
            CoinHistoryItem::Melt(item) => {
                let message = WalletCoinMelt {
                    refresh_commitment: item.rc,
                    h_denom_pub: coin.h_denom_pub,
                    h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
                    amount_with_fee: item.amount,
                    melt_fee: item.melt_fee,
                };
                (true, item.amount, message.verify(&coin.coin_pub, &item.coin_sig))
            }
            CoinHistoryItem::Refund(item) => {
                let message = MerchantRefund {
                    h_contract_terms: item.h_contract_terms,
                    coin_pub: coin.coin_pub,
                    rtransaction_id: item.rtransaction_id,
                    refund_amount: item.amount.checked_add(&item.refund_fee)?,
                };
                (false, item.amount, message.verify(&item.merchant_pub, &item.merchant_sig))
            }
            CoinHistoryItem::Recoup(item) => {
                let message =
                    WalletCoinRecoup { h_denom_pub: coin.h_denom_pub, coin_blind: item.coin_blind.clone() };
                (true, item.amount, message.verify(&coin.coin_pub, &item.coin_sig))
            }
            CoinHistoryItem::RecoupRefresh(item) => {
                let message = WalletCoinRecoupRefresh {
                    h_denom_pub: coin.h_denom_pub,
                    coin_blind: item.coin_blind.clone(),
                };
                (true, item.amount, message.verify(&coin.coin_pub, &item.coin_sig))
            }
            // Credits only help us, so they need no proof.
            CoinHistoryItem::OldCoinRecoup(item) => (false, item.amount, true),
            CoinHistoryItem::PurseRefund(item) => (false, item.amount.checked_add(&item.refund_fee)?, true),
            // This wallet does not use purses, nor does it pay for reserves.
            CoinHistoryItem::PurseDeposit(_) | CoinHistoryItem::ReserveOpenDeposit(_) => {
                return Err(bad(response, "it names a kind of payment that this wallet never makes"));
            }
        };
        if !proven {
            return Err(CoreError::BadSignature {
                what: "our own signature in the exchange's proof about a coin",
            });
        }
        let sum = if debit { &mut debits } else { &mut credits };
        *sum = sum.checked_add(money(&amount)?)?;
    }
    value
        .checked_add(credits)?
        .checked_sub(debits)
        .map_err(|_| bad(response, "it takes more from the coin than the coin was worth"))
}

//! Histories of coins and reserves, and the errors that carry them.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::api::errors::{
    CoinConflict, DenominationUnknown, DenominationUnusable, InsufficientReserve,
};
use batzen_protocol::api::exchange::{CoinHistoryItem, ReserveHistoryItem};
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, ErrorBody, Money, PaytoUri, hash_text, payto};

use crate::http_vectors::keys::{Exchange, Tally};
use crate::http_vectors::recording::Recording;

/// Checks the proofs in an error answer.
pub(super) fn check_error(exchange: &Exchange, recording: &Recording, tally: &mut Tally) {
    let body = &recording.response.body;
    let has = |name: &str| body.get(name).is_some();
    if has("oper") {
        let ErrorBody::<DenominationUnusable> { extra, .. } = recording.response();
        let message = ExchangeAffirmDenomExpired {
            timestamp: extra.timestamp,
            operation: OperationName::new(&extra.oper),
            h_denom_pub: extra.h_denom_pub,
        };
        exchange.online(tally, &message, &extra.exchange_pub, &extra.exchange_sig);
    } else if has("h_denom_pub") && has("exchange_sig") {
        let ErrorBody::<DenominationUnknown> { extra, .. } = recording.response();
        let message =
            ExchangeAffirmDenomUnknown { timestamp: extra.timestamp, h_denom_pub: extra.h_denom_pub };
        exchange.online(tally, &message, &extra.exchange_pub, &extra.exchange_sig);
    } else if has("history") && has("coin_pub") {
        let ErrorBody::<CoinConflict> { extra, .. } = recording.response();
        let spent = coin_history(exchange, tally, &extra.coin_pub, &extra.h_denom_pub, &extra.history);
        let value = exchange.denomination(&extra.h_denom_pub).terms.value.money;
        assert!(spent <= value, "a coin was spent beyond its value");
    } else if has("history") {
        let ErrorBody::<InsufficientReserve> { extra, .. } = recording.response();
        let (_, path) = recording.route();
        let balance = reserve_history(exchange, tally, &path[1].parse().unwrap(), &extra.history);
        assert_eq!(balance, extra.balance.money, "balance");
        assert!(extra.balance.money < extra.requested_amount.money);
    }
}

/// Checks every item, and returns the net amount spent.
fn coin_history(
    exchange: &Exchange,
    tally: &mut Tally,
    coin: &EddsaPublicKey,
    h_denom_pub: &HashCode,
    history: &[CoinHistoryItem],
) -> Money {
    assert!(!history.is_empty());
    let terms = exchange.denomination(h_denom_pub).terms;
    let (mut spent, mut got) = (Money::ZERO, Money::ZERO);
    let add = |sum: &mut Money, amount: &Amount| *sum = sum.checked_add(amount.money).unwrap();
    for item in history {
        match item {
            CoinHistoryItem::Deposit(deposit) => {
                assert_eq!(deposit.deposit_fee, terms.fee_deposit);
                let message = WalletCoinDeposit {
                    h_contract_terms: deposit.h_contract_terms,
                    h_age_commitment: deposit.h_age_commitment.unwrap_or_default(),
                    h_policy: deposit.h_policy.unwrap_or_default(),
                    h_wire: deposit.h_wire,
                    h_denom_pub: *h_denom_pub,
                    wallet_timestamp: deposit.timestamp,
                    refund_deadline: deposit.refund_deadline.unwrap_or_default(),
                    amount_with_fee: deposit.amount,
                    deposit_fee: deposit.deposit_fee,
                    merchant_pub: deposit.merchant_pub,
                };
                tally.good(&message, coin, &deposit.coin_sig);
                add(&mut spent, &deposit.amount);
            }
            CoinHistoryItem::Melt(melt) => {
                assert_eq!(melt.melt_fee, terms.fee_refresh);
                let message = WalletCoinMelt {
                    refresh_commitment: melt.rc,
                    h_denom_pub: *h_denom_pub,
                    h_age_commitment: melt.h_age_commitment.unwrap_or_default(),
                    amount_with_fee: melt.amount,
                    melt_fee: melt.melt_fee,
                };
                tally.good(&message, coin, &melt.coin_sig);
                add(&mut spent, &melt.amount);
            }
            CoinHistoryItem::Refund(refund) => {
                let message = MerchantRefund {
                    h_contract_terms: refund.h_contract_terms,
                    coin_pub: *coin,
                    rtransaction_id: refund.rtransaction_id,
                    refund_amount: refund.amount.checked_add(&refund.refund_fee).unwrap(),
                };
                tally.good(&message, &refund.merchant_pub, &refund.merchant_sig);
                add(&mut got, &refund.amount);
            }
            CoinHistoryItem::Recoup(recoup) => {
                let confirmation = ExchangeConfirmRecoup {
                    timestamp: recoup.timestamp,
                    recoup_amount: recoup.amount,
                    coin_pub: *coin,
                    reserve_pub: recoup.reserve_pub,
                };
                exchange.online(tally, &confirmation, &recoup.exchange_pub, &recoup.exchange_sig);
                let message =
                    WalletCoinRecoup { h_denom_pub: *h_denom_pub, coin_blind: recoup.coin_blind.clone() };
                tally.good(&message, coin, &recoup.coin_sig);
                add(&mut spent, &recoup.amount);
            }
            CoinHistoryItem::RecoupRefresh(recoup) => {
                let confirmation = ExchangeConfirmRecoupRefresh {
                    timestamp: recoup.timestamp,
                    recoup_amount: recoup.amount,
                    coin_pub: *coin,
                    old_coin_pub: recoup.old_coin_pub,
                };
                exchange.online(tally, &confirmation, &recoup.exchange_pub, &recoup.exchange_sig);
                let message = WalletCoinRecoupRefresh {
                    h_denom_pub: *h_denom_pub,
                    coin_blind: recoup.coin_blind.clone(),
                };
                tally.good(&message, coin, &recoup.coin_sig);
                add(&mut spent, &recoup.amount);
            }
            CoinHistoryItem::OldCoinRecoup(recoup) => {
                let confirmation = ExchangeConfirmRecoupRefresh {
                    timestamp: recoup.timestamp,
                    recoup_amount: recoup.amount,
                    coin_pub: recoup.coin_pub,
                    old_coin_pub: *coin,
                };
                exchange.online(tally, &confirmation, &recoup.exchange_pub, &recoup.exchange_sig);
                add(&mut got, &recoup.amount);
            }
            CoinHistoryItem::PurseDeposit(deposit) => {
                let message = WalletPurseDeposit {
                    coin_amount: deposit.amount,
                    h_denom_pub: *h_denom_pub,
                    h_age_commitment: deposit.h_age_commitment.unwrap_or_default(),
                    purse_pub: deposit.purse_pub,
                    h_exchange_base_url: hash_text(&deposit.exchange_base_url),
                };
                tally.good(&message, coin, &deposit.coin_sig);
                add(&mut spent, &deposit.amount);
            }
            CoinHistoryItem::PurseRefund(refund) => {
                let message = ExchangeConfirmPurseRefund {
                    purse_pub: refund.purse_pub,
                    coin_pub: *coin,
                    refunded_amount: refund.amount,
                    refund_fee: refund.refund_fee,
                };
                exchange.online(tally, &message, &refund.exchange_pub, &refund.exchange_sig);
                add(&mut got, &refund.amount);
            }
            CoinHistoryItem::ReserveOpenDeposit(open) => {
                let message = WalletReserveOpenDeposit {
                    reserve_sig: open.reserve_sig,
                    coin_contribution: open.coin_contribution,
                };
                tally.good(&message, coin, &open.coin_sig);
                add(&mut spent, &open.coin_contribution);
            }
        }
    }
    spent.checked_sub(got).unwrap()
}

/// Checks every item, and returns the balance.
pub(super) fn reserve_history(
    exchange: &Exchange,
    tally: &mut Tally,
    reserve: &EddsaPublicKey,
    history: &[ReserveHistoryItem],
) -> Money {
    let (mut credits, mut debits) = (Money::ZERO, Money::ZERO);
    let add = |sum: &mut Money, amount: &Amount| *sum = sum.checked_add(amount.money).unwrap();
    for item in history {
        match item {
            ReserveHistoryItem::Credit(credit) => {
                PaytoUri::parse(credit.sender_account_url.as_str()).unwrap();
                add(&mut credits, &credit.amount);
            }
            ReserveHistoryItem::Withdraw(withdraw) => {
                let terms = exchange.denomination(&withdraw.h_denom_pub).terms;
                assert_eq!(terms.withdraw_cost().unwrap(), withdraw.amount);
                assert_eq!(terms.fee_withdraw, withdraw.withdraw_fee);
                let message = WalletReserveWithdraw {
                    amount_with_fee: withdraw.amount,
                    h_denom_pub: withdraw.h_denom_pub,
                    h_coin_envelope: withdraw.h_coin_envelope,
                };
                tally.good(&message, reserve, &withdraw.reserve_sig);
                add(&mut debits, &withdraw.amount);
            }
            ReserveHistoryItem::Recoup(recoup) => {
                let message = ExchangeConfirmRecoup {
                    timestamp: recoup.timestamp,
                    recoup_amount: recoup.amount,
                    coin_pub: recoup.coin_pub,
                    reserve_pub: *reserve,
                };
                exchange.online(tally, &message, &recoup.exchange_pub, &recoup.exchange_sig);
                add(&mut credits, &recoup.amount);
            }
            ReserveHistoryItem::Closing(closing) => {
                let message = ExchangeReserveClosed {
                    timestamp: closing.timestamp,
                    closing_amount: closing.amount,
                    closing_fee: closing.closing_fee,
                    reserve_pub: *reserve,
                    h_payto: payto::h_payto(&closing.receiver_account_details),
                    wtid: closing.wtid,
                };
                exchange.online(tally, &message, &closing.exchange_pub, &closing.exchange_sig);
                add(&mut debits, &closing.amount);
            }
            ReserveHistoryItem::Merge(merge) => {
                let message = WalletAccountMerge {
                    purse_expiration: merge.purse_expiration,
                    purse_amount: merge.amount,
                    purse_fee: merge.purse_fee,
                    h_contract_terms: merge.h_contract_terms,
                    purse_pub: merge.purse_pub,
                    merge_timestamp: merge.merge_timestamp,
                    min_age: merge.min_age,
                    flags: merge.flags,
                };
                tally.good(&message, reserve, &merge.reserve_sig);
                if merge.merged {
                    add(&mut credits, &merge.amount);
                }
                add(&mut debits, &merge.purse_fee);
            }
            ReserveHistoryItem::History(request) => {
                let message = WalletReserveHistory {
                    request_timestamp: request.request_timestamp,
                    history_fee: request.amount,
                };
                tally.good(&message, reserve, &request.reserve_sig);
                add(&mut debits, &request.amount);
            }
            ReserveHistoryItem::Open(open) => add(&mut debits, &open.open_fee),
            ReserveHistoryItem::Close(close) => {
                let message = WalletReserveClose {
                    request_timestamp: close.request_timestamp,
                    target_h_payto: close.h_payto.unwrap_or_default(),
                };
                tally.good(&message, reserve, &close.reserve_sig);
            }
        }
    }
    credits.checked_sub(debits).unwrap()
}

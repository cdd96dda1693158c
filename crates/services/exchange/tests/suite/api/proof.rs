//! The evidence in refusals, checked as a client would check it: against published keys and the client's own
//! requests.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::Reply;
use batzen_protocol::ErrorDetail;
use batzen_protocol::Money;
use batzen_protocol::api::exchange::errors::{
    CoinConflict, DenominationUnknown, DenominationUnusable, InsufficientReserve,
};
use batzen_protocol::api::exchange::{CoinHistoryItem, ReserveHistoryItem};
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{
    ExchangeAffirmDenomExpired, ExchangeAffirmDenomUnknown, ExchangeConfirmRecoup,
    ExchangeConfirmRecoupRefresh, ExchangeReserveClosed, MerchantRefund, OperationName, SignedMessage,
    WalletCoinDeposit, WalletCoinMelt, WalletCoinRecoup, WalletCoinRecoupRefresh, WalletReserveHistory,
    WalletReserveWithdraw,
};
use batzen_protocol::{Amount, Timestamp};
use serde::de::DeserializeOwned;

use crate::api::wallet::{NO_AGE, NO_POLICY};
use crate::api::world::*;

fn extra<T: DeserializeOwned>(reply: &Reply) -> T {
    reply.json::<ErrorDetail>().unwrap().typed::<T>().unwrap().extra
}

/// Expects 404 with the exchange's signed statement that it does not know the denomination (1005), or that
/// its cipher does not have this operation (1016).
pub(super) fn denom_unknown(site: &Site, reply: &Reply, code: u32, h_denom_pub: &HashCode) {
    is_error(reply, 404, code);
    let proof: DenominationUnknown = extra(reply);
    assert_eq!((proof.timestamp, proof.h_denom_pub), (site.now(), *h_denom_pub));
    assert!(site.is_online_key(&proof.exchange_pub));
    let message = ExchangeAffirmDenomUnknown { timestamp: proof.timestamp, h_denom_pub: *h_denom_pub };
    assert!(message.verify(&proof.exchange_pub, &proof.exchange_sig));
}

/// Expects 410 with the exchange's signed statement that the denomination is not usable for this operation
/// now.
pub(super) fn denom_unusable(site: &Site, reply: &Reply, code: u32, oper: &str, h_denom_pub: &HashCode) {
    is_error(reply, 410, code);
    let proof: DenominationUnusable = extra(reply);
    assert_eq!((proof.oper.as_str(), proof.timestamp), (oper, site.now()));
    assert_eq!(proof.h_denom_pub, *h_denom_pub);
    assert!(site.is_online_key(&proof.exchange_pub));
    let message = ExchangeAffirmDenomExpired {
        timestamp: proof.timestamp,
        operation: OperationName::new(oper),
        h_denom_pub: *h_denom_pub,
    };
    assert!(message.verify(&proof.exchange_pub, &proof.exchange_sig));
}

/// Returns the debits and credits of the items of a coin's history. Checks every signature.
fn coin_effects(
    site: &Site,
    denom: &Denom,
    coin_pub: EddsaPublicKey,
    items: &[CoinHistoryItem],
) -> [Money; 2] {
    let terms = &denom.terms;
    let (mut taken, mut given) = (Money::ZERO, Money::ZERO);
    let mut take = |amount: &Amount| taken = taken.checked_add(amount.money()).unwrap();
    let mut give = |amount: &Amount| given = given.checked_add(amount.money()).unwrap();
    for item in items {
        match item {
            CoinHistoryItem::Deposit(item) => {
                let message = WalletCoinDeposit {
                    h_contract_terms: item.h_contract_terms,
                    h_age_commitment: item.h_age_commitment.unwrap_or(NO_AGE),
                    h_policy: item.h_policy.unwrap_or(NO_POLICY),
                    h_wire: item.h_wire,
                    h_denom_pub: denom.h,
                    wallet_timestamp: item.timestamp,
                    refund_deadline: item.refund_deadline.unwrap_or(Timestamp::ZERO),
                    amount_with_fee: item.amount,
                    deposit_fee: item.deposit_fee,
                    merchant_pub: item.merchant_pub,
                };
                assert!(message.verify(&coin_pub, &item.coin_sig), "a deposit in the history");
                assert_eq!(item.deposit_fee, terms.fee_deposit);
                take(&item.amount);
            }
            CoinHistoryItem::Melt(item) => {
                let message = WalletCoinMelt {
                    refresh_commitment: item.rc,
                    h_denom_pub: denom.h,
                    h_age_commitment: item.h_age_commitment.unwrap_or(NO_AGE),
                    amount_with_fee: item.amount,
                    melt_fee: item.melt_fee,
                };
                assert!(message.verify(&coin_pub, &item.coin_sig), "a melt in the history");
                assert_eq!(item.melt_fee, terms.fee_refresh);
                take(&item.amount);
            }
            CoinHistoryItem::Refund(item) => {
                assert_eq!(item.refund_fee, terms.fee_refund);
                let message = MerchantRefund {
                    h_contract_terms: item.h_contract_terms,
                    coin_pub,
                    rtransaction_id: item.rtransaction_id,
                    refund_amount: item.amount.checked_add(&item.refund_fee).unwrap(),
                };
                assert!(message.verify(&item.merchant_pub, &item.merchant_sig), "a refund in the history");
                give(&item.amount);
            }
            CoinHistoryItem::Recoup(item) => {
                let message = WalletCoinRecoup { h_denom_pub: denom.h, coin_blind: item.coin_blind.clone() };
                assert!(message.verify(&coin_pub, &item.coin_sig), "a recoup in the history");
                assert!(site.is_online_key(&item.exchange_pub));
                let message = ExchangeConfirmRecoup {
                    timestamp: item.timestamp,
                    recoup_amount: item.amount,
                    coin_pub,
                    reserve_pub: item.reserve_pub,
                };
                assert!(message.verify(&item.exchange_pub, &item.exchange_sig));
                take(&item.amount);
            }
            CoinHistoryItem::RecoupRefresh(item) => {
                let message =
                    WalletCoinRecoupRefresh { h_denom_pub: denom.h, coin_blind: item.coin_blind.clone() };
                assert!(message.verify(&coin_pub, &item.coin_sig), "a recoup-refresh in the history");
                assert!(site.is_online_key(&item.exchange_pub));
                let message = ExchangeConfirmRecoupRefresh {
                    timestamp: item.timestamp,
                    recoup_amount: item.amount,
                    coin_pub,
                    old_coin_pub: item.old_coin_pub,
                };
                assert!(message.verify(&item.exchange_pub, &item.exchange_sig));
                take(&item.amount);
            }
            CoinHistoryItem::OldCoinRecoup(item) => {
                assert!(site.is_online_key(&item.exchange_pub));
                let message = ExchangeConfirmRecoupRefresh {
                    timestamp: item.timestamp,
                    recoup_amount: item.amount,
                    coin_pub: item.coin_pub,
                    old_coin_pub: coin_pub,
                };
                assert!(message.verify(&item.exchange_pub, &item.exchange_sig));
                give(&item.amount);
            }
            other => panic!("an unexpected item: {other:?}"),
        }
    }
    [taken, given]
}

/// Expects a conflict over a coin that is known under this denomination. Returns its history and what is
/// left.
pub(super) fn coin_conflict(
    site: &Site,
    reply: &Reply,
    (status, code): (u16, u32),
    coin_pub: EddsaPublicKey,
    denom: &Denom,
) -> (Vec<CoinHistoryItem>, Money) {
    is_error(reply, status, code);
    let conflict: CoinConflict = extra(reply);
    assert_eq!((conflict.coin_pub, conflict.h_denom_pub), (coin_pub, denom.h));
    let [taken, given] = coin_effects(site, denom, coin_pub, &conflict.history);
    let value = denom.terms.value.money();
    let left = value.checked_add(given).unwrap().checked_sub(taken).expect("never overspent");
    assert!(left <= value);
    (conflict.history, left)
}

/// Expects 409/1012, with a history that proves that the coin cannot pay this amount.
pub(super) fn overspent(
    site: &Site,
    reply: &Reply,
    coin_pub: EddsaPublicKey,
    denom: &Denom,
    asked: &str,
) -> Money {
    let (_, left) = coin_conflict(site, reply, (409, 1012), coin_pub, denom);
    assert!(left < m(asked), "{left} is left, which does not prove that {asked} is too much");
    left
}

/// The sum of a reserve's history. Checks every signature.
pub(super) fn reserve_sum(site: &Site, reserve_pub: EddsaPublicKey, items: &[ReserveHistoryItem]) -> Money {
    let (mut taken, mut given) = (Money::ZERO, Money::ZERO);
    let mut take = |amount: &Amount| taken = taken.checked_add(amount.money()).unwrap();
    let mut give = |amount: &Amount| given = given.checked_add(amount.money()).unwrap();
    for item in items {
        match item {
            ReserveHistoryItem::Credit(item) => {
                assert_eq!(item.sender_account_url, CUSTOMER);
                give(&item.amount);
            }
            ReserveHistoryItem::Withdraw(item) => {
                let message = WalletReserveWithdraw {
                    amount_with_fee: item.amount,
                    h_denom_pub: item.h_denom_pub,
                    h_coin_envelope: item.h_coin_envelope,
                };
                assert!(message.verify(&reserve_pub, &item.reserve_sig), "a withdrawal in the history");
                take(&item.amount);
            }
            ReserveHistoryItem::Recoup(item) => {
                assert!(site.is_online_key(&item.exchange_pub));
                let message = ExchangeConfirmRecoup {
                    timestamp: item.timestamp,
                    recoup_amount: item.amount,
                    coin_pub: item.coin_pub,
                    reserve_pub,
                };
                assert!(message.verify(&item.exchange_pub, &item.exchange_sig));
                give(&item.amount);
            }
            ReserveHistoryItem::Closing(item) => {
                assert!(site.is_online_key(&item.exchange_pub));
                let message = ExchangeReserveClosed {
                    timestamp: item.timestamp,
                    closing_amount: item.amount,
                    closing_fee: item.closing_fee,
                    reserve_pub,
                    h_payto: h_payto(&item.receiver_account_details),
                    wtid: item.wtid,
                };
                assert!(message.verify(&item.exchange_pub, &item.exchange_sig));
                take(&item.amount);
            }
            ReserveHistoryItem::History(item) => {
                let message = WalletReserveHistory {
                    request_timestamp: item.request_timestamp,
                    history_fee: item.amount,
                };
                assert!(message.verify(&reserve_pub, &item.reserve_sig), "a history fee in the history");
                take(&item.amount);
            }
            other => panic!("an unexpected item: {other:?}"),
        }
    }
    given.checked_sub(taken).expect("never overdrawn")
}

/// Expects 409/1150, with a history that proves that the reserve cannot pay this amount.
pub(super) fn reserve_short(
    site: &Site,
    reply: &Reply,
    reserve: &EddsaPrivateKey,
    requested: Money,
) -> Money {
    is_error(reply, 409, 1150);
    let proof: InsufficientReserve = extra(reply);
    assert_eq!(proof.requested_amount.money(), requested);
    let sum = reserve_sum(site, reserve.public_key(), &proof.history);
    assert_eq!(sum, proof.balance.money());
    assert!(sum < requested);
    sum
}

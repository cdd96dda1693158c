//! Answers that contain the history of a coin or a reserve. Long histories are encoded off the threads that
//! serve requests.

use std::sync::Arc;

use batzen_crypto::{BlindingSecret, EddsaPublicKey, EddsaSignature};
use batzen_engine::Length;
use batzen_http::Response;
use batzen_protocol::api::exchange as bodies;
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::{
    ExchangeConfirmPurseRefund, ExchangeConfirmRecoup, ExchangeConfirmRecoupRefresh, ExchangeReserveClosed,
    SignedMessage,
};
use batzen_protocol::{Amount, Currency, ErrorCode, Money, Timestamp};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{PurseState, ReservePub};

use super::check::Checked;
use super::error;
use super::response;
use super::signing::{busy, sign_messages};
use crate::app::Exchange;
use crate::keys::KeyState;
use crate::rules::{CoinHistory, CoinHistoryItem, HISTORY_EVENTS_LONG, ReserveHistoryItem};

/// Supplies the signatures of a history's items. Signed items are built twice: the first pass collects the
/// messages, which are then signed together on the CPU pool; the second pass inserts the signatures.
#[derive(Default)]
pub(crate) struct Proofs {
    exchange_pub: Option<EddsaPublicKey>,
    /// The messages to sign, in the order of the items.
    messages: Vec<Box<[u8]>>,
    signatures: std::vec::IntoIter<EddsaSignature>,
}

impl Proofs {
    fn sign(&mut self, message: &impl SignedMessage) -> (EddsaPublicKey, EddsaSignature) {
        match self.exchange_pub {
            None => {
                self.messages.push(message.message().as_ref().into());
                (EddsaPublicKey::ZERO, EddsaSignature::ZERO)
            }
            Some(key) => (key, self.signatures.next().expect("the same items as the first time")),
        }
    }

    fn recoup(
        &mut self,
        timestamp: Timestamp,
        recoup_amount: Amount,
        coin_pub: EddsaPublicKey,
        reserve_pub: ReservePub,
    ) -> (EddsaPublicKey, EddsaSignature) {
        self.sign(&ExchangeConfirmRecoup { timestamp, recoup_amount, coin_pub, reserve_pub })
    }

    fn recoup_refresh(
        &mut self,
        timestamp: Timestamp,
        recoup_amount: Amount,
        coin_pub: EddsaPublicKey,
        old_coin_pub: EddsaPublicKey,
    ) -> (EddsaPublicKey, EddsaSignature) {
        self.sign(&ExchangeConfirmRecoupRefresh { timestamp, recoup_amount, coin_pub, old_coin_pub })
    }
}

/// Builds an answer that contains a history of `events` events, with its signatures. A long history takes
/// milliseconds to encode, so it is encoded off the threads that serve requests.
///
/// # Errors
/// When there is no usable signing key, or too much is waiting.
pub(crate) async fn with_history(
    app: &Exchange,
    keys: &KeyState,
    owner: &[u8],
    events: usize,
    build: impl Fn(&mut Proofs) -> Checked<Response> + Send + Sync + 'static,
) -> Checked<Response> {
    let build = Arc::new(build);
    let first = Arc::clone(&build);
    let (answer, messages) = run_if_long(app, owner, events, move || {
        let mut proofs = Proofs::default();
        (first(&mut proofs), proofs.messages)
    })
    .await?;
    if messages.is_empty() {
        return answer;
    }
    let (exchange_pub, signatures) = sign_messages(app, keys, messages)?.await?;
    let signatures = signatures.into_iter();
    let mut proofs = Proofs { exchange_pub: Some(exchange_pub), messages: Vec::new(), signatures };
    run_if_long(app, owner, events, move || build(&mut proofs)).await?
}

/// Runs a computation over `events` events, off the threads that serve requests if there are many.
///
/// # Errors
/// When too much is waiting.
pub(crate) async fn run_if_long<T: Send + 'static>(
    app: &Exchange,
    owner: &[u8],
    events: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Checked<T> {
    if events <= HISTORY_EVENTS_LONG {
        return Ok(work());
    }
    app.readers.read(owner, || (work(), Length::Long)).await.map_err(busy)
}

/// Reads an owner's rows, which may be many, off the threads that serve requests. The read returns their
/// number as well.
///
/// # Errors
/// When the store cannot be read, or too much is waiting.
pub(super) async fn read<T: Send + 'static>(
    app: &Exchange,
    owner: &[u8],
    read: impl FnOnce(&Store) -> Result<(T, usize), StoreError> + Send + 'static,
) -> Checked<T> {
    let store = app.core.store.clone();
    let reading = app.readers.read(owner, move || match read(&store) {
        Ok((value, events)) if events > HISTORY_EVENTS_LONG => (Ok(value), Length::Long),
        Ok((value, _)) => (Ok(value), Length::Short),
        Err(error) => (Err(error), Length::Short),
    });
    reading.await.map_err(busy)?.map_err(response::store)
}

/// A coin's history in the form that answers contain.
pub(crate) fn coin_items(
    currency: Currency,
    exchange_base_url: &str,
    history: &CoinHistory,
    proofs: &mut Proofs,
) -> Vec<bodies::CoinHistoryItem> {
    let of = |money: Money| -> Amount { money.of(currency) };
    let coin_pub = history.coin_pub;
    let mut items = Vec::with_capacity(history.items.len());
    for item in &history.items {
        items.push(match item {
            CoinHistoryItem::Deposit {
                amount,
                deposit_fee,
                wallet_time,
                refund_deadline,
                merchant_pub,
                h_contract_terms,
                payto_uri,
                wire_salt,
                coin_sig,
            } => bodies::CoinHistoryItem::Deposit(bodies::CoinDeposit {
                amount: of(*amount),
                deposit_fee: of(*deposit_fee),
                timestamp: *wallet_time,
                refund_deadline: Some(*refund_deadline).filter(|deadline| *deadline != Timestamp::ZERO),
                merchant_pub: *merchant_pub,
                h_contract_terms: *h_contract_terms,
                h_wire: h_wire(payto_uri, wire_salt),
                h_age_commitment: history.h_age,
                h_policy: None,
                coin_sig: *coin_sig,
            }),
            CoinHistoryItem::Melt { amount, melt_fee, rc, coin_sig } => {
                bodies::CoinHistoryItem::Melt(bodies::CoinMelt {
                    amount: of(*amount),
                    melt_fee: of(*melt_fee),
                    rc: *rc,
                    h_age_commitment: history.h_age,
                    coin_sig: *coin_sig,
                })
            }
            CoinHistoryItem::Refund {
                amount,
                refund_fee,
                h_contract_terms,
                merchant_pub,
                rtransaction_id,
                merchant_sig,
            } => bodies::CoinHistoryItem::Refund(bodies::CoinRefund {
                amount: of(amount.checked_sub(*refund_fee).expect("a refund covers its fee")),
                refund_fee: of(*refund_fee),
                h_contract_terms: *h_contract_terms,
                merchant_pub: *merchant_pub,
                rtransaction_id: *rtransaction_id,
                merchant_sig: *merchant_sig,
            }),
            CoinHistoryItem::Recoup { amount, reserve_pub, coin_sig, coin_blind, time } => {
                let (exchange_pub, exchange_sig) = proofs.recoup(*time, of(*amount), coin_pub, *reserve_pub);
                bodies::CoinHistoryItem::Recoup(bodies::CoinRecoup {
                    amount: of(*amount),
                    exchange_sig,
                    exchange_pub,
                    reserve_pub: *reserve_pub,
                    coin_sig: *coin_sig,
                    coin_blind: BlindingSecret::from_bytes(*coin_blind),
                    timestamp: *time,
                })
            }
            CoinHistoryItem::RecoupRefresh { amount, old_coin_pub, coin_sig, coin_blind, time } => {
                let (exchange_pub, exchange_sig) =
                    proofs.recoup_refresh(*time, of(*amount), coin_pub, *old_coin_pub);
                bodies::CoinHistoryItem::RecoupRefresh(bodies::CoinRecoupRefresh {
                    amount: of(*amount),
                    exchange_sig,
                    exchange_pub,
                    old_coin_pub: *old_coin_pub,
                    coin_sig: *coin_sig,
                    coin_blind: BlindingSecret::from_bytes(*coin_blind),
                    timestamp: *time,
                })
            }
            CoinHistoryItem::OldCoinRecoup { amount, coin_pub: fresh_coin_pub, time } => {
                let (exchange_pub, exchange_sig) =
                    proofs.recoup_refresh(*time, of(*amount), *fresh_coin_pub, coin_pub);
                bodies::CoinHistoryItem::OldCoinRecoup(bodies::OldCoinRecoup {
                    amount: of(*amount),
                    exchange_sig,
                    exchange_pub,
                    coin_pub: *fresh_coin_pub,
                    timestamp: *time,
                })
            }
            CoinHistoryItem::PurseDeposit { amount, purse_pub, refunded, coin_sig } => {
                bodies::CoinHistoryItem::PurseDeposit(bodies::CoinPurseDeposit {
                    amount: of(*amount),
                    exchange_base_url: exchange_base_url.to_owned(),
                    h_age_commitment: history.h_age,
                    purse_pub: *purse_pub,
                    refunded: *refunded,
                    coin_sig: *coin_sig,
                })
            }
            CoinHistoryItem::PurseRefund { amount, refund_fee, purse_pub } => {
                // A coin may have contributed less than the fee, which nobody pays here.
                let amount = of(amount.checked_sub(*refund_fee).unwrap_or(Money::ZERO));
                let (purse_pub, refund_fee) = (*purse_pub, of(*refund_fee));
                let message =
                    ExchangeConfirmPurseRefund { purse_pub, coin_pub, refunded_amount: amount, refund_fee };
                let (exchange_pub, exchange_sig) = proofs.sign(&message);
                bodies::CoinHistoryItem::PurseRefund(bodies::CoinPurseRefund {
                    amount,
                    refund_fee,
                    exchange_sig,
                    exchange_pub,
                    purse_pub,
                })
            }
            CoinHistoryItem::ReserveOpenDeposit { amount, reserve_sig, coin_sig } => {
                bodies::CoinHistoryItem::ReserveOpenDeposit(bodies::CoinReserveOpen {
                    coin_contribution: of(*amount),
                    amount: Some(of(*amount)),
                    reserve_sig: *reserve_sig,
                    coin_sig: *coin_sig,
                })
            }
        });
    }
    items
}

/// A reserve's history in the form that answers contain.
///
/// # Errors
/// When a denomination is unknown.
pub(crate) fn reserve_items(
    currency: Currency,
    keys: &KeyState,
    reserve_pub: ReservePub,
    history: &[ReserveHistoryItem],
    proofs: &mut Proofs,
) -> Checked<Vec<bodies::ReserveHistoryItem>> {
    let of = |money: Money| -> Amount { money.of(currency) };
    let mut items = Vec::with_capacity(history.len());
    for item in history {
        items.push(match item {
            ReserveHistoryItem::Credit { time, payto_uri, bank_row, amount } => {
                bodies::ReserveHistoryItem::Credit(bodies::ReserveCredit {
                    timestamp: *time,
                    sender_account_url: payto_uri.clone(),
                    wire_reference: *bank_row,
                    amount: of(*amount),
                })
            }
            ReserveHistoryItem::Withdraw { reserve_sig, h_coin_ev, denom, fee, amount, .. } => {
                let Some(denom) = keys.find_denomination_by_serial(*denom) else {
                    return Err(error(
                        ErrorCode::GENERIC_DB_INVARIANT_FAILURE,
                        "denomination of a withdrawal",
                    ));
                };
                bodies::ReserveHistoryItem::Withdraw(bodies::ReserveWithdraw {
                    reserve_sig: *reserve_sig,
                    h_coin_envelope: *h_coin_ev,
                    h_denom_pub: denom.h_denom_pub,
                    withdraw_fee: of(*fee),
                    amount: of(*amount),
                })
            }
            ReserveHistoryItem::Recoup { time, coin_pub, amount } => {
                let (exchange_pub, exchange_sig) = proofs.recoup(*time, of(*amount), *coin_pub, reserve_pub);
                bodies::ReserveHistoryItem::Recoup(bodies::ReserveRecoup {
                    exchange_pub,
                    exchange_sig,
                    timestamp: *time,
                    amount: of(*amount),
                    coin_pub: *coin_pub,
                })
            }
            ReserveHistoryItem::Closing { time: timestamp, payto_uri, wtid, fee, amount } => {
                let timestamp = *timestamp;
                let (exchange_pub, exchange_sig) = proofs.sign(&ExchangeReserveClosed {
                    timestamp,
                    closing_amount: of(*amount),
                    closing_fee: of(*fee),
                    reserve_pub,
                    h_payto: batzen_protocol::payto::h_payto(payto_uri),
                    wtid: *wtid,
                });
                bodies::ReserveHistoryItem::Closing(bodies::ReserveClosing {
                    receiver_account_details: payto_uri.clone(),
                    wtid: *wtid,
                    exchange_pub,
                    exchange_sig,
                    timestamp,
                    amount: of(*amount),
                    closing_fee: of(*fee),
                })
            }
            ReserveHistoryItem::History { request_time, reserve_sig, amount } => {
                bodies::ReserveHistoryItem::History(bodies::ReserveHistoryFee {
                    reserve_sig: *reserve_sig,
                    request_timestamp: *request_time,
                    amount: of(*amount),
                })
            }
            ReserveHistoryItem::Merge { purse_pub, purse, merge } => {
                bodies::ReserveHistoryItem::Merge(bodies::ReserveMerge {
                    h_contract_terms: purse.h_contract_terms,
                    merge_pub: purse.merge_pub,
                    min_age: purse.min_age,
                    flags: u32::from(purse.mode as u8),
                    purse_pub: *purse_pub,
                    reserve_sig: merge.reserve_sig,
                    merge_timestamp: merge.merge_time,
                    purse_expiration: purse.expiration,
                    purse_fee: of(purse.purse_fee),
                    amount: of(purse.target),
                    merged: purse.state == PurseState::Paid,
                })
            }
            ReserveHistoryItem::Open {
                request_time,
                reserve_sig,
                requested_expiration,
                requested_purses,
                amount,
            } => bodies::ReserveHistoryItem::Open(bodies::ReserveOpen {
                requested_min_purses: *requested_purses,
                reserve_sig: *reserve_sig,
                request_timestamp: *request_time,
                requested_expiration: *requested_expiration,
                open_fee: of(*amount),
                amount: Some(of(*amount)),
            }),
            ReserveHistoryItem::Close { request_time, reserve_sig, h_payto } => {
                bodies::ReserveHistoryItem::Close(bodies::ReserveClose {
                    reserve_sig: *reserve_sig,
                    h_payto: *h_payto,
                    request_timestamp: *request_time,
                    amount: Some(of(Money::ZERO)),
                })
            }
        });
    }
    Ok(items)
}

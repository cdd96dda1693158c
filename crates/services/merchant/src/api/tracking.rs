//! Tracking: the transfers that pay for an order, by its exchanges (merchant chapter 9.3).

use std::collections::BTreeMap;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, Wtid};
use batzen_http::client::{ClientError, Reply};
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{DepositPending, DepositTransfer};
use batzen_protocol::api::merchant::{WireDetail, WireReport};
use batzen_protocol::signatures::{ExchangeConfirmWire, MerchantTrackTransaction, SignedMessage};
use batzen_protocol::{ErrorCode, ErrorDetail};
use batzen_store::Found;
use batzen_tables::merchant::{
    AccountKycKey, AccountKycRow, OrderDepositRow, OrderRef, OrderRow, OrderWireKey, OrderWireRow,
    OrderWires, TransferKey, TransferRef, TransferRow, transfer_ref,
};
use futures_util::{StreamExt as _, stream};

use super::core::Core;
use super::refunds::OrderMoney;
use super::{Checked, Merchant, Shop, refunds};
use crate::rules::{CheckedTransfer, NoteTransfer, RecordKyc, RecordWires};

/// Coins that one command books.
const WIRES: usize = 128;
/// Questions about an order's coins that are under way at the same time.
const QUESTIONS_AT_ONCE: usize = 16;

/// An exchange's answer about a coin that it owes.
pub(super) enum Tracked {
    /// It was paid by this transfer.
    Paid(Box<DepositTransfer>),
    /// It is to be paid.
    Pending(DepositPending),
}

/// Why an exchange did not say anything about a coin.
pub(super) struct NotTracked {
    pub(crate) code: ErrorCode,
    pub(crate) exchange_code: u32,
    pub(crate) http_status: u16,
}

impl NotTracked {
    fn new(code: ErrorCode) -> Self {
        Self { code, exchange_code: 0, http_status: 0 }
    }
}

impl From<&ClientError> for NotTracked {
    fn from(error: &ClientError) -> Self {
        Self::new(match error {
            ClientError::Timeout { .. } => ErrorCode::MERCHANT_GENERIC_EXCHANGE_TIMEOUT,
            _ => ErrorCode::MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE,
        })
    }
}

fn exchange_code(reply: &Reply) -> u32 {
    reply.json::<ErrorDetail>().map_or(0, |body| body.code.to_u32())
}

/// Asks an exchange which transfer pays for a coin.
pub(super) async fn track(
    app: &Merchant,
    shop: &Shop,
    key: &EddsaPrivateKey,
    h_contract_terms: HashCode,
    h_wire: HashCode,
    coin_pub: EddsaPublicKey,
    deposit: &OrderDepositRow,
) -> Result<Tracked, NotTracked> {
    let keys_failed = |_| NotTracked::new(ErrorCode::MERCHANT_GENERIC_EXCHANGE_KEYS_FAILURE);
    let exchange = app.exchanges.get(&deposit.exchange_url, |_| true).await.map_err(keys_failed)?;
    let message = MerchantTrackTransaction { h_contract_terms, h_wire, coin_pub };
    let path = format!("deposits/{h_wire}/{}/{h_contract_terms}/{coin_pub}", shop.row.merchant_pub);
    let ask = exchange.get(&path).query("merchant_sig", message.sign(key));
    let reply = ask.send().await.map_err(|error| NotTracked::from(&error))?;
    let malformed = || NotTracked {
        http_status: reply.status,
        ..NotTracked::new(ErrorCode::MERCHANT_GENERIC_EXCHANGE_REPLY_MALFORMED)
    };
    match reply.status {
        200 => {
            let answer: DepositTransfer = reply.json().map_err(|_| malformed())?;
            let confirmation = ExchangeConfirmWire {
                h_wire,
                h_contract_terms,
                wtid: answer.wtid,
                coin_pub,
                execution_time: answer.execution_time,
                coin_contribution: answer.coin_contribution,
            };
            let is_right = exchange.signs_with(&answer.exchange_pub, answer.execution_time)
                && confirmation.verify(&answer.exchange_pub, &answer.exchange_sig)
                && answer.coin_contribution.money_in(app.core.config.currency).is_ok();
            if is_right { Ok(Tracked::Paid(Box::new(answer))) } else { Err(malformed()) }
        }
        202 => Ok(Tracked::Pending(reply.json().map_err(|_| malformed())?)),
        status => Err(NotTracked {
            code: ErrorCode::MERCHANT_GET_ORDERS_EXCHANGE_TRACKING_FAILURE,
            exchange_code: exchange_code(&reply),
            http_status: status,
        }),
    }
}

/// Asks the exchanges for the transfers of an order's coins of which none is known, and books what they say.
/// Returns what they did not say.
pub(super) async fn track_order(
    app: &Merchant,
    request: &mut Request,
    shop: &Shop,
    order: OrderRef,
    row: &OrderRow,
    money: &OrderMoney,
) -> Checked<Vec<WireReport>> {
    let (Ok(key), Some(h_contract)) = (shop.key(), row.h_contract) else { return Ok(Vec::new()) };
    let terms = refunds::contract_terms(row)?;
    let known = wires(&app.core, order).await?;
    let left = money
        .deposits
        .iter()
        .filter(|(deposit, _)| !known.iter().any(|found| found.key.coin_pub == deposit.coin_pub));
    request.leave_slot();
    let key = &key;
    let questions = left.map(|(deposit, row)| async move {
        (deposit, row, track(app, shop, key, h_contract, terms.h_wire, deposit.coin_pub, row).await)
    });
    let questions: Vec<_> = questions.collect();
    let answers: Vec<_> = stream::iter(questions).buffered(QUESTIONS_AT_ONCE).collect().await;
    let mut reports = Vec::new();
    let mut wires = Vec::new();
    for (deposit, deposit_row, answer) in answers {
        match answer {
            Ok(Tracked::Paid(paid)) => {
                let transfer =
                    note_tracked(&app.core, shop, &deposit_row.exchange_url, &paid, &terms.h_wire).await?;
                let row = OrderWireRow {
                    transfer,
                    exchange_url: deposit_row.exchange_url.clone(),
                    wtid: paid.wtid,
                    execution_time: paid.execution_time,
                    amount: paid.coin_contribution.money,
                    confirmed: false,
                };
                wires.push((OrderWireKey { order, coin_pub: deposit.coin_pub }, row));
            }
            Ok(Tracked::Pending(pending)) => {
                note_kyc(&app.core, shop, terms.h_wire, &deposit_row.exchange_url, &pending).await?;
            }
            Err(problem) => reports.push(WireReport {
                code: problem.code.to_u32(),
                hint: problem.code.hint().to_owned(),
                exchange_ec: problem.exchange_code,
                exchange_hc: problem.http_status.into(),
                coin_pub: deposit.coin_pub,
            }),
        }
    }
    if !wires.is_empty() {
        record_wires(&app.core, wires, None).await?;
    }
    Ok(reports)
}

/// Books what pays for coins; with the statement that confirms it, all of them or none are confirmed in the end.
pub(super) async fn record_wires(
    core: &Core,
    mut wires: Vec<(OrderWireKey, OrderWireRow)>,
    checked: Option<CheckedTransfer>,
) -> Checked<()> {
    loop {
        let rest = wires.split_off(wires.len().min(WIRES));
        let is_last = rest.is_empty();
        let checked = checked.clone().map(|checked| CheckedTransfer { is_last, ..checked });
        core.decide(RecordWires { wires, checked }, "").await?;
        if is_last {
            return Ok(());
        }
        wires = rest;
    }
}

/// Books a transfer that an exchange has named, and that the shop may not have seen at its bank.
async fn note_tracked(
    core: &Core,
    shop: &Shop,
    exchange_url: &str,
    paid: &DepositTransfer,
    h_wire: &HashCode,
) -> Checked<TransferRef> {
    let transfer = transfer_ref(&shop.id, exchange_url, &paid.wtid.to_string());
    let accounts = core.accounts(&shop.id).await?;
    let account = accounts.into_iter().find(|(key, _)| key.h_wire == *h_wire);
    let unknown = || Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_WIRE_HASH_UNKNOWN, "");
    let (_, account) = account.ok_or_else(unknown)?;
    let mut row = new_transfer(core, shop, exchange_url, paid.wtid, account.payto_uri);
    row.execution_time = Some(paid.execution_time);
    core.decide(NoteTransfer { key: TransferKey { transfer }, row }, "").await?;
    Ok(transfer)
}

pub(super) fn new_transfer(
    core: &Core,
    shop: &Shop,
    exchange_url: &str,
    wtid: Wtid,
    payto_uri: String,
) -> TransferRow {
    TransferRow {
        instance: shop.id.clone(),
        row_id: core.next_row_id(),
        exchange_url: exchange_url.to_owned(),
        wtid,
        payto_uri,
        credit_amount: None,
        total: None,
        wire_fee: None,
        execution_time: None,
        verified: false,
        problem: 0,
        exchange_pub: None,
        exchange_sig: None,
    }
}

/// Books whether an exchange asks who owns an account.
pub(super) async fn note_kyc(
    core: &Core,
    shop: &Shop,
    h_wire: HashCode,
    exchange_url: &str,
    pending: &DepositPending,
) -> Checked<()> {
    let requirement_row = pending.requirement_row.filter(|_| !pending.kyc_ok);
    let key = AccountKycKey { instance: shop.id.clone(), h_wire, exchange_url: exchange_url.to_owned() };
    let row = AccountKycRow { requirement_row, checked: core.now(), http_status: 0, exchange_code: 0 };
    core.decide(RecordKyc { key, row }, "").await
}

async fn wires(core: &Core, order: OrderRef) -> Checked<Vec<Found<OrderWires>>> {
    core.read(move |store| store.lookup::<OrderWires>(OrderWires::BY_ORDER, &order)).await
}

/// The transfers that have parts of an order.
pub(super) async fn wire_details(core: &Core, order: OrderRef) -> Checked<Vec<WireDetail>> {
    let mut details: BTreeMap<TransferRef, WireDetail> = BTreeMap::new();
    for found in wires(core, order).await? {
        let row = found.row;
        match details.get_mut(&row.transfer) {
            Some(detail) => {
                let sum = detail.amount.money.checked_add(row.amount);
                let overflow =
                    |_| Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AMOUNT_OVERFLOW, "");
                detail.amount = core.amount(sum.map_err(overflow)?);
                detail.confirmed &= row.confirmed;
            }
            None => {
                let detail = WireDetail {
                    exchange_url: row.exchange_url,
                    wtid: row.wtid,
                    execution_time: row.execution_time,
                    amount: core.amount(row.amount),
                    confirmed: row.confirmed,
                };
                details.insert(row.transfer, detail);
            }
        }
    }
    Ok(details.into_values().collect())
}

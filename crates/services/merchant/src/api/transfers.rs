//! Transfers of exchanges to the shop's accounts: `/private/transfers` (merchant chapters 6.8 to 6.10).

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use batzen_crypto::HashCode;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::TransferResponse;
use batzen_protocol::api::merchant::{
    OrderSum, ReportTransferRequest, ReportTransferResponse, TransferList, TransferSummary,
};
use batzen_protocol::denominations::wire_details_hash;
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{ExchangeConfirmWireDeposit, SignedMessage};
use batzen_protocol::{AmountError, ErrorCode, Money, PaytoUri, Timestamp};
use batzen_store::Store;
use batzen_tables::merchant::{
    OrderDepositRow, OrderDeposits, OrderRef, OrderRefunds, OrderWireKey, OrderWireRow, OrderWires, Orders,
    TransferKey, TransferRef, TransferRow, Transfers, row_value, transfer_ref,
};
use serde_json::{Map, Value, json};

use super::core::Core;
use super::openapi::{INTEGER, LIMIT, TEXT, YES_NO_ALL};
use super::problems::{exchange_problem, malformed_reply, unanswered, unknown_exchange};
use super::table::{Rows, SMALL_BODY_BYTES_MAX, endpoint};
use super::{Answer, Checked, Merchant, Shop, body, malformed, refused, tracking, yes_or_no};
use crate::exchanges::{Exchange, ExchangeError, is_base_url};
use crate::rules::{CheckedTransfer, DeleteTransfer, NoteTransfer, Refusal, RefuseTransfer, Statement};

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("transfer");
    rows.post(
        "/private/transfers",
        endpoint!(Owner, report_transfer),
        "Report a transfer that the bank has booked",
    )
    .takes::<ReportTransferRequest>(SMALL_BODY_BYTES_MAX)
    .gives::<ReportTransferResponse>();
    rows.get("/private/transfers", endpoint!(Reader, list_transfers), "List transfers of exchanges")
        .query("payto_uri", TEXT, "Only to this account.")
        .query("verified", YES_NO_ALL, "Only verified ones or others.")
        .query("before", INTEGER, "Only before this time, in seconds.")
        .query("after", INTEGER, "Only after this time, in seconds.")
        .query("limit", LIMIT, "How many: the latest first if negative.")
        .query("offset", INTEGER, "The serial number after which the list begins.")
        .gives::<TransferList>();
    rows.delete(
        "/private/transfers/:serial",
        endpoint!(Owner, delete_transfer),
        "Forget a transfer that was not verified",
    )
    .gives_nothing();
    rows
}

/// The maximum number of coins in a transfer.
const DEPOSITS_MAX: usize = 65_536;
/// Transfers in a list, if the client does not say how many.
const LIST_LIMIT: i64 = -20;
/// The maximum number of transfers in a list.
const LIST_MAX: usize = 1_024;
/// The maximum number of transfers that are read for a list.
const LIST_READ_MAX: usize = 65_536;

/// A deposit that a transfer pays for.
struct Part {
    key: OrderWireKey,
    amount: Money,
}

/// A contradiction between a transfer and what is known.
struct Conflict {
    code: ErrorCode,
    extra: Map<String, Value>,
}

impl Conflict {
    fn new(code: ErrorCode) -> Self {
        Self { code, extra: Map::new() }
    }
}

fn overflow(_: AmountError) -> Conflict {
    Conflict::new(ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_TRANSFERS)
}

async fn report_transfer(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let ReportTransferRequest { credit_amount, wtid, payto_uri, exchange_url } = body(request)?;
    let credit = app.core.money(&credit_amount, "credit_amount")?;
    if !is_base_url(&exchange_url) {
        return Err(malformed("exchange_url"));
    }
    let accounts = app.core.accounts(&shop.id).await?;
    if !accounts.iter().any(|(_, row)| row.payto_uri == payto_uri) {
        let code = ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_ACCOUNT_NOT_FOUND;
        return Err(Response::error(code, &payto_uri));
    }
    let exchange_url = app.exchanges.spelled(&exchange_url).to_owned();
    let transfer = transfer_ref(&shop.id, &exchange_url, &wtid.to_string());
    let key = TransferKey { transfer };
    let mut row = tracking::new_transfer(&app.core, shop, &exchange_url, wtid, payto_uri);
    row.credit_amount = Some(credit);
    let row = app.core.execute(NoteTransfer { key: key.clone(), row }).await?;
    let row = *row.map_err(|refusal| refused(&refusal, &wtid.to_string()))?;
    let row = match row.verified {
        true => row,
        false => {
            request.leave_slot();
            verify_transfer(app, shop, &key, row, credit).await?
        }
    };
    let (Some(total), Some(wire_fee), Some(execution_time)) = (row.total, row.wire_fee, row.execution_time)
    else {
        return Err(Response::error(ErrorCode::GENERIC_DB_INVARIANT_FAILURE, "transfer"));
    };
    let answer = ReportTransferResponse {
        total: app.core.amount(total),
        wire_fee: app.core.amount(wire_fee),
        execution_time,
        deposits_sums: sums(&app.core, transfer).await?,
    };
    Ok(Response::json(200, &answer))
}

/// For each order, what a transfer has of it.
async fn sums(core: &Core, transfer: TransferRef) -> Checked<Vec<OrderSum>> {
    let read = move |store: &Store| {
        let mut sums: BTreeMap<OrderRef, (String, Vec<Money>, Vec<Money>)> = BTreeMap::new();
        for found in store.lookup::<OrderWires>(OrderWires::BY_TRANSFER, &transfer)? {
            let order = found.key.order;
            let deposit = batzen_tables::merchant::OrderDepositKey { order, coin_pub: found.key.coin_pub };
            let Some(deposit) = store.get::<OrderDeposits>(&deposit)? else { continue };
            if let std::collections::btree_map::Entry::Vacant(entry) = sums.entry(order) {
                let row = store.get::<Orders>(&batzen_tables::merchant::OrderKey { order })?;
                let Some(row) = row else { continue };
                entry.insert((row.row.order_id, Vec::new(), Vec::new()));
            }
            let (_, values, fees) = sums.get_mut(&order).expect("it was just inserted");
            values.push(deposit.row.amount);
            fees.push(deposit.row.deposit_fee);
        }
        Ok(sums)
    };
    let overflow = |_| Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AMOUNT_OVERFLOW, "");
    let sums = core.read(read).await?.into_values();
    sums.map(|(order_id, values, fees)| {
        Ok(OrderSum {
            order_id,
            deposit_value: core.amount(Money::checked_sum(values).map_err(overflow)?),
            deposit_fee: core.amount(Money::checked_sum(fees).map_err(overflow)?),
        })
    })
    .collect()
}

/// Asks the exchange what a transfer pays for, checks that against the deposits, and books it.
async fn verify_transfer(
    app: &Merchant,
    shop: &Shop,
    key: &TransferKey,
    row: TransferRow,
    credit: Money,
) -> Checked<TransferRow> {
    let exchange = app.exchanges.get(&row.exchange_url, |_| true).await;
    let exchange = match exchange {
        Ok(exchange) => exchange,
        Err(ExchangeError::NotAccepted) => {
            let code = ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_REQUEST_ERROR;
            return Err(Response::error(code, "the backend does not accept this exchange"));
        }
        Err(error) => return Err(unknown_exchange(&error, &row.exchange_url)),
    };
    let reply = exchange.get_list(&format!("transfers/{}", row.wtid)).send().await;
    let reply = reply.map_err(|error| unanswered(&error))?;
    if reply.status != 200 {
        let code = match reply.status {
            404 => ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_EXCHANGE_UNKNOWN,
            _ => ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_REQUEST_ERROR,
        };
        refuse(&app.core, key, code).await?;
        let body = reply.json::<Value>().ok().map(|body| (reply.status, body));
        return Err(exchange_problem(code, None, body));
    }
    let Ok(answer) = reply.json::<TransferResponse>() else { return Err(malformed_reply()) };
    match parts(&app.core, shop, &row, &exchange, &answer, credit).await? {
        Ok(parts) => {
            let wires = parts.into_iter().map(|part| {
                let wire = OrderWireRow {
                    transfer: key.transfer,
                    exchange_url: row.exchange_url.clone(),
                    wtid: row.wtid,
                    execution_time: answer.execution_time,
                    amount: part.amount,
                    confirmed: true,
                };
                (part.key, wire)
            });
            let wires: Vec<_> = wires.collect();
            let statement = Statement {
                total: answer.total.money,
                wire_fee: answer.wire_fee.money,
                execution_time: answer.execution_time,
                exchange_pub: answer.exchange_pub,
                exchange_sig: answer.exchange_sig,
            };
            let checked = CheckedTransfer {
                key: key.clone(),
                credit_amount: row.credit_amount,
                statement: statement.clone(),
                is_last: false,
            };
            tracking::record_wires(&app.core, wires.clone(), Some(checked)).await?;
            wires.iter().for_each(|(wire, _)| app.core.notices.order_changed(&wire.order));
            Ok(TransferRow {
                total: Some(statement.total),
                wire_fee: Some(statement.wire_fee),
                execution_time: Some(statement.execution_time),
                verified: true,
                ..row
            })
        }
        Err(conflict) => {
            refuse(&app.core, key, conflict.code).await?;
            Err(Response::error_with(conflict.code, None, &row.wtid.to_string(), conflict.extra))
        }
    }
}

async fn refuse(core: &Core, key: &TransferKey, problem: ErrorCode) -> Checked<()> {
    core.decide(RefuseTransfer { key: key.clone(), problem: problem.to_u32() }, "").await
}

/// Checks an exchange's statement about a transfer. Returns the shop's deposits that it pays for.
async fn parts(
    core: &Core,
    shop: &Shop,
    row: &TransferRow,
    exchange: &Exchange,
    answer: &TransferResponse,
    credit: Money,
) -> Checked<Result<Vec<Part>, Conflict>> {
    let currency = core.config.currency;
    let confirmation = ExchangeConfirmWireDeposit {
        total: answer.total,
        wire_fee: answer.wire_fee,
        merchant_pub: answer.merchant_pub,
        h_payto: answer.h_payto,
        h_details: wire_details_hash(answer.execution_time, &answer.deposits),
    };
    let is_signed = exchange.signs_with(&answer.exchange_pub, answer.execution_time)
        && confirmation.verify(&answer.exchange_pub, &answer.exchange_sig);
    let is_ours = answer.merchant_pub == shop.row.merchant_pub && answer.h_payto == h_payto(&row.payto_uri);
    let is_sane = answer.deposits.len() <= DEPOSITS_MAX
        && answer.total.money_in(currency).is_ok()
        && answer.wire_fee.money_in(currency).is_ok();
    if !is_signed || !is_sane {
        return Err(malformed_reply());
    }
    if !is_ours {
        return Ok(Err(Conflict::new(ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_TRANSFERS)));
    }
    let asked: Vec<_> =
        answer.deposits.iter().map(|deposit| (deposit.h_contract_terms, deposit.coin_pub)).collect();
    let instance = shop.id.clone();
    let read = move |store: &Store| {
        let mut orders: HashMap<HashCode, Option<OrderRef>> = HashMap::new();
        let mut found = Vec::with_capacity(asked.len());
        for (h_contract, coin_pub) in asked {
            let order = match orders.get(&h_contract) {
                Some(order) => *order,
                None => {
                    let rows = store.lookup::<Orders>(Orders::BY_CONTRACT, &h_contract)?;
                    let ours = rows.into_iter().find(|found| found.row.instance == instance);
                    let order = ours.map(|found| found.key.order);
                    orders.insert(h_contract, order);
                    order
                }
            };
            let Some(order) = order else {
                found.push(None);
                continue;
            };
            let key = batzen_tables::merchant::OrderDepositKey { order, coin_pub };
            let deposit = store.get::<OrderDeposits>(&key)?;
            let refunds = store.lookup::<OrderRefunds>(OrderRefunds::BY_ORDER, &order)?;
            let of_coin = refunds.into_iter().filter(|refund| refund.key.coin_pub == coin_pub);
            let refunded: Vec<Money> = of_coin.map(|refund| refund.row.amount).collect();
            found.push(deposit.map(|deposit| (order, deposit.row, refunded)));
        }
        Ok(found)
    };
    let known = core.read(read).await?;
    Ok(check_parts(row, exchange, answer, credit, known, core.config.currency))
}

/// The checks of chapter 9.3 against the deposits that are known.
fn check_parts(
    row: &TransferRow,
    exchange: &Exchange,
    answer: &TransferResponse,
    credit: Money,
    known: Vec<Option<(OrderRef, OrderDepositRow, Vec<Money>)>>,
    currency: batzen_protocol::Currency,
) -> Result<Vec<Part>, Conflict> {
    let conflicting_reports = ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_REPORTS;
    let mut sum = Money::ZERO;
    let mut refunds = Money::ZERO;
    let mut parts = Vec::with_capacity(known.len());
    for (offset, (deposit, known)) in answer.deposits.iter().zip(known).enumerate() {
        let money = |amount: &batzen_protocol::Amount| {
            amount.money_in(currency).map_err(|_| Conflict::new(conflicting_reports))
        };
        let (value, fee) = (money(&deposit.deposit_value)?, money(&deposit.deposit_fee)?);
        let after_fee = value.checked_sub(fee).map_err(|_| Conflict::new(conflicting_reports))?;
        sum = sum.checked_add(after_fee).map_err(overflow)?;
        // The answer to a deposit may have been lost with the wallet that paid: the money is the shop's anyway.
        let Some((order, confirmed, refunded)) = known else {
            tracing::warn!(wtid = %row.wtid, "a transfer pays for a deposit that is not known");
            continue;
        };
        if value != confirmed.amount || fee != confirmed.deposit_fee {
            let extra = json!({
                "conflict_offset": offset,
                "deposit_exchange_pub": confirmed.exchange_pub,
                "deposit_exchange_sig": confirmed.exchange_sig,
                "h_contract_terms": deposit.h_contract_terms,
                "deposit_timestamp": confirmed.exchange_time,
                "coin_pub": deposit.coin_pub,
                "amount_with_fee": confirmed.amount.of(currency),
                "deposit_fee": confirmed.deposit_fee.of(currency),
                "coin_value": deposit.deposit_value,
                "coin_fee": deposit.deposit_fee,
            });
            let Value::Object(extra) = extra else { unreachable!("it is an object") };
            return Err(Conflict { code: conflicting_reports, extra });
        }
        let back = Money::checked_sum(refunded).map_err(overflow)?.min(value);
        // A coin that was refunded in full costs no fee.
        let less = if back == value { after_fee } else { back.min(after_fee) };
        refunds = refunds.checked_add(less).map_err(overflow)?;
        let amount = after_fee.checked_sub(less).map_err(overflow)?;
        let key = OrderWireKey { order, coin_pub: deposit.coin_pub };
        parts.push(Part { key, amount });
    }
    let total = sum.checked_sub(answer.wire_fee.money).map_err(overflow)?;
    let conflicting = || Conflict::new(ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_CONFLICTING_TRANSFERS);
    if total != answer.total.money {
        return Err(conflicting());
    }
    let method = PaytoUri::parse(row.payto_uri.as_str()).map(|payto| payto.method().to_owned());
    let published = exchange.wire_fee(&method.unwrap_or_default(), answer.execution_time);
    let hole = || Conflict::new(ErrorCode::MERCHANT_GENERIC_HOLE_IN_WIRE_FEE_STRUCTURE);
    let published = published.ok_or_else(hole)?;
    if answer.wire_fee.money > published.wire_fee.money {
        let extra = json!({
            "wire_fee": answer.wire_fee,
            "expected_wire_fee": published.wire_fee,
            "expected_closing_fee": published.closing_fee,
            "execution_time": answer.execution_time,
            "start_date": published.start_date,
            "end_date": published.end_date,
            "master_sig": published.sig,
            "master_pub": exchange.master_pub,
        });
        let Value::Object(extra) = extra else { unreachable!("it is an object") };
        return Err(Conflict { code: ErrorCode::MERCHANT_PRIVATE_POST_TRANSFERS_BAD_WIRE_FEE, extra });
    }
    // The bank's smallest unit is at most one cent larger than what is due.
    let least = total.checked_sub(refunds).unwrap_or(Money::ZERO);
    let least = least.checked_sub(ROUNDING).unwrap_or(Money::ZERO);
    if credit < least || credit > total {
        return Err(conflicting());
    }
    Ok(parts)
}

/// An exchange rounds transfers down to units that banks can pay: this much is not missed.
const ROUNDING: Money = match Money::new(0, 1_000_000) {
    Ok(money) => money,
    Err(_) => unreachable!(),
};

/// The transfers that a list shows.
struct Wanted {
    payto_uri: Option<String>,
    is_verified: Option<bool>,
    before: Option<Timestamp>,
    after: Option<Timestamp>,
}

impl Wanted {
    fn has(&self, row: &TransferRow) -> bool {
        let time = row.execution_time;
        self.payto_uri.as_ref().is_none_or(|uri| *uri == row.payto_uri)
            && self.is_verified.is_none_or(|verified| verified == row.verified)
            && self.before.is_none_or(|before| time.is_none_or(|time| time < before))
            && self.after.is_none_or(|after| time.is_some_and(|time| time > after))
    }
}

async fn list_transfers(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, _: &str) -> Answer {
    let limit = request.query_opt::<i64>("limit")?.unwrap_or(LIST_LIMIT);
    let offset = request.query_opt::<u64>("offset")?;
    let wanted = Wanted {
        payto_uri: request.query_text("payto_uri").map(str::to_owned),
        is_verified: yes_or_no(request, "verified")?,
        before: request.query_opt::<u64>("before")?.map(Timestamp::from_secs),
        after: request.query_opt::<u64>("after")?.map(Timestamp::from_secs),
    };
    let descending = limit < 0;
    let limit = usize::try_from(limit.unsigned_abs()).unwrap_or(LIST_MAX).min(LIST_MAX);
    let id = shop.id.clone();
    let read = move |store: &Store| {
        let value = |row_id| row_value(&id, Some(row_id));
        let (mut from, mut found, mut seen) = (offset, Vec::new(), 0);
        while found.len() < limit && seen < LIST_READ_MAX {
            let (low, high) = match (from, descending) {
                (None, _) => (Bound::Included(value(0)), Bound::Included(value(u64::MAX))),
                (Some(row_id), false) => (Bound::Excluded(value(row_id)), Bound::Included(value(u64::MAX))),
                (Some(row_id), true) => (Bound::Included(value(0)), Bound::Excluded(value(row_id))),
            };
            let part = store.range_bytes::<Transfers>(Transfers::BY_ROW, low, high, LIST_MAX, descending)?;
            let is_last = part.len() < LIST_MAX;
            seen += part.len();
            from = part.last().map(|last| last.row.row_id);
            found.extend(part.into_iter().filter(|one| wanted.has(&one.row)));
            if is_last {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    };
    let transfers = app.core.read(read).await?.into_iter().map(|found| {
        let row = found.row;
        TransferSummary {
            credit_amount: app.core.amount(row.credit_amount.or(row.total).unwrap_or(Money::ZERO)),
            wtid: row.wtid,
            payto_uri: row.payto_uri,
            exchange_url: row.exchange_url,
            transfer_serial_id: row.row_id,
            execution_time: row.execution_time,
            verified: Some(row.verified),
            confirmed: Some(row.credit_amount.is_some()),
        }
    });
    Ok(Response::json(200, &TransferList { transfers: transfers.collect() }))
}

async fn delete_transfer(app: &Arc<Merchant>, _: &mut Request, shop: &Shop, serial: &str) -> Answer {
    let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_TRANSFER_UNKNOWN, serial);
    let row_id: u64 = serial.parse().map_err(|_| unknown())?;
    let value = row_value(&shop.id, Some(row_id));
    let read = move |store: &Store| {
        let (low, high) = (Bound::Included(value.clone()), Bound::Included(value));
        store.range_bytes::<Transfers>(Transfers::BY_ROW, low, high, 1, false)
    };
    let found = app.core.read(read).await?.into_iter().next().ok_or_else(unknown)?;
    match app.core.execute(DeleteTransfer { key: found.key }).await? {
        Ok(()) => Ok(Response::empty(204)),
        Err(Refusal::TransferUnknown) => Err(unknown()),
        Err(refusal) => Err(refused(&refusal, serial)),
    }
}

//! The wire gateway: what an exchange asks of its bank.

use std::ops::Bound;
use std::sync::Arc;

use batzen_http::{ErrorCode, Request, Response};
use batzen_protocol::api::bank::{
    AddIncomingRequest, IncomingHistory, IncomingTransaction, OutgoingHistory, OutgoingTransaction,
    TransactionResponse, TransferRequest,
};
use batzen_store::{Found, Store, StoreError};
use batzen_tables::bank::{BankTransactions, TransactionRow};

use super::{Answer, Direction, Service, body, poll_deadline, refused, unknown_account, wait};
use crate::names;
use crate::rules::{Command, Outcome};

/// Rows in one answer; whoever wants more asks again from the last one.
const ROWS_MAX: usize = 16_384;

impl Service {
    pub(super) async fn history(&self, mut request: Request, account: &str, direction: Direction) -> Answer {
        let delta =
            request.query_with("delta", |text| text.parse::<i64>().ok().filter(|delta| *delta != 0))?;
        let delta = delta.ok_or_else(|| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "delta"))?;
        let start = request.query_with("start", |text| text.parse::<u64>().ok())?;
        let long_poll_ms = request.query_with("long_poll_ms", |text| text.parse::<u64>().ok())?;
        self.authorize(&request, account).await?;
        self.account(account).await?;
        let deadline = poll_deadline(long_poll_ms).filter(|_| delta > 0);
        // Registered before the first look, so that no row can fall between the two.
        let mut waiter = deadline.and_then(|_| self.histories.register((direction, account.to_owned())).ok());
        loop {
            let name = account.to_owned();
            let rows = self.read(move |store| page(store, &name, direction, start, delta)).await?;
            if !rows.is_empty() {
                return Ok(self.encode(rows, direction));
            }
            let (Some(deadline), Some(waiter)) = (deadline, waiter.as_mut()) else { break };
            request.leave_slot();
            if !wait(waiter, deadline, &request.drain).await {
                break;
            }
        }
        Ok(Response::empty(204))
    }

    fn encode(&self, rows: Vec<TransactionRow>, direction: Direction) -> Response {
        match direction {
            Direction::Incoming => {
                let credit = |row: TransactionRow| IncomingTransaction {
                    row_id: row.row_id,
                    date: row.time,
                    amount: self.amount(row.amount),
                    credit_account: self.payto(&row.credit_account),
                    debit_account: self.payto(&row.debit_account),
                    reserve_pub: row.reserve_pub.expect("the index holds transactions with a reserve key"),
                };
                let incoming_transactions = rows.into_iter().map(credit).collect();
                Response::json(200, &IncomingHistory { incoming_transactions })
            }
            Direction::Outgoing => {
                let debit = |row: TransactionRow| OutgoingTransaction {
                    row_id: row.row_id,
                    date: row.time,
                    amount: self.amount(row.amount),
                    credit_account: self.payto(&row.credit_account),
                    debit_account: self.payto(&row.debit_account),
                    wtid: row.wtid.expect("the index holds transactions with a transfer identifier"),
                    exchange_base_url: row.exchange_base_url.unwrap_or_default(),
                };
                let outgoing_transactions = rows.into_iter().map(debit).collect();
                Response::json(200, &OutgoingHistory { outgoing_transactions })
            }
        }
    }

    pub(super) async fn transfer(self: &Arc<Self>, request: &Request, account: &str) -> Answer {
        self.authorize(request, account).await?;
        let body: TransferRequest = body(request)?;
        let amount = self.money::<TransferRequest>("amount", &body.amount)?;
        let credit_account = payto_account(&body.credit_account)?;
        let debit_account = gateway_account(account)?;
        let TransferRequest { request_uid, wtid, exchange_base_url, .. } = body;
        let command =
            Command::Transfer { request_uid, debit_account, credit_account, amount, wtid, exchange_base_url };
        match self.execute(command).await? {
            Ok(outcome) => Ok(transferred(&outcome)),
            Err(refusal) => Err(refused(&refusal, &request_uid.to_string())),
        }
    }

    pub(super) async fn add_incoming(self: &Arc<Self>, request: &Request, account: &str) -> Answer {
        self.authorize(request, account).await?;
        if !self.settings.config.allow_add_incoming {
            return Err(Response::error(ErrorCode::BANK_REJECT_NO_RIGHTS, "this bank has no test transfers"));
        }
        let body: AddIncomingRequest = body(request)?;
        let amount = self.money::<AddIncomingRequest>("amount", &body.amount)?;
        let debit_account = payto_account(&body.debit_account)?;
        let credit_account = gateway_account(account)?;
        let mut id = [0; 32];
        batzen_crypto::fill_random(&mut id);
        match self
            .execute(Command::AddIncoming {
                id,
                debit_account,
                credit_account,
                amount,
                reserve_pub: body.reserve_pub,
            })
            .await?
        {
            Ok(outcome) => Ok(transferred(&outcome)),
            Err(refusal) => Err(refused(&refusal, "")),
        }
    }
}

/// The account that a base URL names.
fn gateway_account(name: &str) -> Result<String, Response> {
    if names::is_account_name(name) { Ok(name.to_owned()) } else { Err(unknown_account(name)) }
}

/// The account that a payto URI names: 400, code 24 if it names none.
pub(super) fn payto_account(uri: &str) -> Result<String, Response> {
    let malformed = || Response::error(ErrorCode::GENERIC_PAYTO_URI_MALFORMED, uri);
    names::account_of_payto(uri).map(str::to_owned).ok_or_else(malformed)
}

fn transferred(outcome: &Outcome) -> Response {
    let Outcome::Booked { row_id, time } = *outcome else { unreachable!("a transfer is booked or refused") };
    Response::json(200, &TransactionResponse { row_id, timestamp: time })
}

/// A part of a history, by one range of an ordered index: as much work as it has rows.
fn page(
    store: &Store,
    account: &String,
    direction: Direction,
    start: Option<u64>,
    delta: i64,
) -> Result<Vec<TransactionRow>, StoreError> {
    let index = match direction {
        Direction::Incoming => BankTransactions::INCOMING,
        Direction::Outgoing => BankTransactions::OUTGOING,
    };
    let limit = usize::try_from(delta.unsigned_abs()).unwrap_or(usize::MAX).min(ROWS_MAX);
    let whole = Bound::Included(BankTransactions::history_value(account, None));
    let edge = start.map_or_else(
        || whole.clone(),
        |row_id| Bound::Excluded(BankTransactions::history_value(account, Some(row_id))),
    );
    let descending = delta < 0;
    let (from, to) = if descending { (whole, edge) } else { (edge, whole) };
    let found: Vec<Found<BankTransactions>> = store.range_bytes(index, from, to, limit, descending)?;
    Ok(found.into_iter().map(|found| found.row).collect())
}

//! The bank integration API, for wallets: a withdrawal that the user began at the bank.

use std::sync::Arc;

use batzen_http::{Request, Response};
use batzen_protocol::api::bank::{WithdrawalOperation, WithdrawalSelected, WithdrawalSelection};
use batzen_service::{Answer, Poll, endpoint, poll_deadline};

use super::{LONG_POLL_MAX, Service, Table, body, refused};
use crate::MAX_BODY_BYTES;
use crate::rules::{SelectWithdrawal, SelectionStands};

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/taler-bank-integration/config", "config", endpoint!(config))
        .get(
            "/taler-bank-integration/withdrawal-operation/:wopid",
            "withdrawal",
            endpoint!(withdrawal_status),
        )
        .post(
            "/taler-bank-integration/withdrawal-operation/:wopid",
            MAX_BODY_BYTES,
            "withdrawal",
            endpoint!(select_withdrawal),
        )
}

async fn config(bank: &Service, _: &Request) -> Response {
    bank.api_config("taler-bank-integration")
}

async fn withdrawal_status(bank: &Service, request: &mut Request) -> Answer {
    let text = request.param("wopid").to_owned();
    let long_poll_ms = request.query_with("long_poll_ms", |text| text.parse::<u64>().ok())?;
    let deadline = poll_deadline(long_poll_ms, LONG_POLL_MAX);
    let find = || async { Ok(bank.operation(&text).await?.1) };
    let (wopid, mut row) = bank.operation(&text).await?;
    let is_open = |row: &batzen_tables::bank::WithdrawalRow| row.row_id.is_none() && !row.aborted;
    if let Some(deadline) = deadline
        && is_open(&row)
        && let Ok(waiter) = bank.wakes.operations.register(wopid)
    {
        // Read again, now that later changes wake the poll.
        row = find().await?;
        row = Poll::of(waiter).until(request, deadline, row, |row| !is_open(row), find).await?;
    }
    Ok(Response::json(
        200,
        &WithdrawalOperation {
            aborted: row.aborted,
            selection_done: row.reserve_pub.is_some(),
            transfer_done: row.row_id.is_some(),
            amount: bank.amount(row.amount),
            wire_types: bank.addresses.wire_methods(),
            suggested_exchange: bank.settings.config.suggested_exchange.clone(),
            sender_wire: None,
            confirm_transfer_url: None,
        },
    ))
}

async fn select_withdrawal(bank: &Arc<Service>, request: &Request) -> Answer {
    let text = request.param("wopid");
    let WithdrawalSelection { reserve_pub, selected_exchange } = body(request)?;
    let exchange_account = bank.payto_account(&selected_exchange)?;
    let (wopid, _) = bank.operation(text).await?;
    match bank.execute(SelectWithdrawal { wopid, reserve_pub, exchange_account }).await? {
        Ok(SelectionStands { transfer_done }) => {
            Ok(Response::json(200, &WithdrawalSelected { transfer_done, confirm_transfer_url: None }))
        }
        Err(refusal) => Err(refused(&refusal, text)),
    }
}

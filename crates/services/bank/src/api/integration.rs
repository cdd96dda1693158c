//! The bank integration API, for wallets: a withdrawal that the user began at the bank.

use std::sync::Arc;

use batzen_http::{Request, Response};
use batzen_protocol::api::bank::{WithdrawalOperation, WithdrawalSelected, WithdrawalSelection};

use super::{Answer, Service, body, poll_deadline, refused, wait};
use crate::rules::{SelectWithdrawal, SelectionStands};

impl Service {
    pub(super) async fn withdrawal_status(&self, mut request: Request, text: &str) -> Answer {
        let long_poll_ms = request.query_with("long_poll_ms", |text| text.parse::<u64>().ok())?;
        let deadline = poll_deadline(long_poll_ms);
        let (wopid, mut row) = self.operation(text).await?;
        let is_open = |row: &batzen_tables::bank::WithdrawalRow| row.row_id.is_none() && !row.aborted;
        if let Some(deadline) = deadline
            && is_open(&row)
            && let Ok(mut waiter) = self.wakes.operations.register(wopid)
        {
            // Read again, now that later changes wake the poll.
            row = self.operation(text).await?.1;
            request.leave_slot();
            while is_open(&row) {
                let woken = wait(&mut waiter, deadline, &request.drain).await;
                row = self.operation(text).await?.1;
                if !woken {
                    break;
                }
            }
        }
        Ok(Response::json(
            200,
            &WithdrawalOperation {
                aborted: row.aborted,
                selection_done: row.reserve_pub.is_some(),
                transfer_done: row.row_id.is_some(),
                amount: self.amount(row.amount),
                wire_types: self.addresses.wire_methods(),
                suggested_exchange: self.settings.config.suggested_exchange.clone(),
                sender_wire: None,
                confirm_transfer_url: None,
            },
        ))
    }

    pub(super) async fn withdrawal_select(self: &Arc<Self>, request: &Request, text: &str) -> Answer {
        let WithdrawalSelection { reserve_pub, selected_exchange } = body(request)?;
        let exchange_account = self.payto_account(&selected_exchange)?;
        let (wopid, _) = self.operation(text).await?;
        match self.execute(SelectWithdrawal { wopid, reserve_pub, exchange_account }).await? {
            Ok(SelectionStands { transfer_done }) => {
                Ok(Response::json(200, &WithdrawalSelected { transfer_done, confirm_transfer_url: None }))
            }
            Err(refusal) => Err(refused(&refusal, text)),
        }
    }
}

//! Credits that fill no reserve: each is a row until an operator settles it. The money is at the bank and belongs to its
//! sender.

use batzen_crypto::hash::{sha512, shorten};
use batzen_service::wire_gateway::{IncomingRow, IncomingTransaction};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{AccountId, AsideKey, AsideRow};

use super::Watch;
use super::pages::credit;
use crate::config::AccountConfig;
use crate::core::Core;
use crate::reads::read as rows;
use crate::rules::{AsideCredit, Credit, Credits, SetAside, SettleAside};
use crate::workers::{ItemError, Mode, WorkerError, decide, read};

/// The most open rows that are counted for the gauge.
const COUNTED_MAX: usize = 1_000;

/// Number of credits that one command sets aside. Their texts may be long.
const COMMAND_CREDITS: usize = 64;

/// The note of a credit that a retry has booked.
const BOOKED: &str = "booked";

/// The row of the bank's history, to be set aside.
pub(super) fn of_row(account: AccountId, row: &IncomingRow, reason: &ItemError) -> AsideCredit {
    let text = match &row.transaction {
        Ok(transaction) => json(transaction),
        Err(unusable) => unusable.text.clone(),
    };
    let (bank_row, h_text) = match row.row_id {
        Some(id) => (id, [0; 32]),
        None => (0, *shorten(&sha512(text.as_bytes())).as_bytes()),
    };
    AsideCredit { key: AsideKey { account, bank_row, h_text }, reason: reason.to_string(), text }
}

/// The row of a credit that the rules refuse.
pub(super) fn of_credit(
    app: &Core,
    account: &AccountConfig,
    credit: &Credit,
    reason: &ItemError,
) -> AsideCredit {
    let transaction = IncomingTransaction {
        row_id: credit.bank_row,
        date: credit.time,
        amount: credit.amount.of(app.config.currency),
        credit_account: account.payto_uri.clone(),
        debit_account: credit.payto_uri.clone(),
        reserve_pub: credit.reserve_pub,
    };
    let row = IncomingRow { row_id: Some(credit.bank_row), transaction: Ok(transaction) };
    of_row(AccountId::of_payto(&account.payto_uri), &row, reason)
}

fn json(transaction: &IncomingTransaction) -> String {
    serde_json::to_string(transaction).expect("rows have string keys")
}

impl Watch<'_> {
    /// Sets credits aside. Returns how many were not known before.
    pub(super) async fn set_aside(&self, credits: Vec<AsideCredit>) -> Result<u64, WorkerError> {
        let mut all_new = 0;
        for part in credits.chunks(COMMAND_CREDITS) {
            let counted = decide(self.app, self.mode, SetAside { credits: part.to_vec() }).await?;
            let new = counted.map_err(|refusal| WorkerError::Refused(Box::new(refusal)))?.new as u64;
            if new > 0 {
                for AsideCredit { key, reason, .. } in part {
                    let (account, row) = (&self.account.section, key.bank_row);
                    tracing::error!(account, row, reason, "a credit fills no reserve and is set aside");
                }
            }
            all_new += new;
        }
        if all_new > 0 {
            self.app.metrics.workers.credits_set_aside.add(all_new);
            self.count_aside().await?;
        }
        Ok(all_new)
    }

    /// Updates the gauge of credits that wait for an operator, including those of earlier runs.
    pub(super) async fn count_aside(&self) -> Result<(), WorkerError> {
        let count =
            |store: &Store| Ok::<_, StoreError>(rows::credits_aside(store, COUNTED_MAX)?.len() as u64);
        let open = read(self.app, count).await?;
        let gauge = &self.app.metrics.workers.credits_aside;
        if open > gauge.get().unwrap_or(0) {
            tracing::error!(open, "credits at the bank fill no reserve: see `batzen exchange credits`");
        }
        gauge.set(open);
        Ok(())
    }
}

/// Tries again to book a credit that was set aside, with the configuration and program of now. Returns the reason if
/// it stays aside.
///
/// # Errors
/// [`WorkerError`] if the store fails.
pub async fn retry(app: &Core, key: &AsideKey, row: &AsideRow) -> Result<Result<(), String>, WorkerError> {
    let credit = match credit(app, &IncomingRow::parse(&row.text)) {
        Ok(credit) => credit,
        Err(reason) => return Ok(Err(reason.to_string())),
    };
    let credits = Credits { account: key.account, credits: vec![credit], cursor: 0, range: None };
    let command = SettleAside { key: key.clone(), note: BOOKED.to_owned(), credits: Some(credits) };
    Ok(match decide(app, Mode::UntilIdle, command).await? {
        Ok(settled) if settled.changed => Ok(()),
        Ok(_) => Err("it is settled already".to_owned()),
        Err(refusal) => Err(refusal.to_string()),
    })
}

/// Settles a credit by hand: the operator has returned the money or knows what it is. Returns whether it was open.
///
/// # Errors
/// [`WorkerError`] if the store fails.
pub async fn settle(app: &Core, key: &AsideKey, note: &str) -> Result<bool, WorkerError> {
    let command = SettleAside { key: key.clone(), note: note.to_owned(), credits: None };
    let settled = decide(app, Mode::UntilIdle, command).await?;
    Ok(settled.map_err(|refusal| WorkerError::Refused(Box::new(refusal)))?.changed)
}

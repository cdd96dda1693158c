//! The bank's history of the exchange's accounts, read through its wire gateway.

use crate::audit::{BankAccount, BankCredit, BankDebit};
use batzen_http::client::{Client, ClientError, ClientOptions};
use batzen_protocol::{Amount, Currency, Money, Timestamp};
use batzen_service::wire_gateway::{
    HistoryQuery, IncomingTransaction, OutgoingTransaction, WireGatewayClient,
};
use batzen_tables::exchange::AccountId;

use super::config::{Account, CheckConfig};
use crate::live::Since;

/// Number of rows that are asked for at once.
const PAGE: i64 = 1_024;

/// Why a bank's history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BankError {
    /// The bank refused, or did not answer.
    #[error("the bank's history of [{section}] at {url}: {error}")]
    Client {
        /// The account's section.
        section: String,
        /// The gateway.
        url: String,
        /// Why.
        error: Box<ClientError>,
    },
    /// A row has another currency than the exchange.
    #[error(
        "the bank's history of [{section}], row {row}: {amount} is in another currency than the exchange's"
    )]
    Currency {
        /// The account's section.
        section: String,
        /// The row.
        row: u64,
        /// Its amount.
        amount: Amount,
    },
}

/// Reads all accounts, one after the other. `since`: the rows after which each is read.
pub(super) async fn read(
    config: &CheckConfig,
    since: &Since,
    ignores_missing: bool,
) -> Result<Vec<BankAccount>, BankError> {
    let mut accounts = Vec::new();
    for account in &config.accounts {
        let since = since.bank.get(&AccountId::of_payto(&account.payto_uri)).copied().unwrap_or_default();
        accounts.push(read_account(account, config.subject.currency, since, ignores_missing).await?);
    }
    Ok(accounts)
}

async fn read_account(
    account: &Account,
    currency: Currency,
    since: [u64; 2],
    ignores_missing: bool,
) -> Result<BankAccount, BankError> {
    let failed = |error| BankError::Client {
        section: account.section.clone(),
        url: account.gateway_url.clone(),
        error: Box::new(error),
    };
    let read = Timestamp::from_system_time(std::time::SystemTime::now());
    let client = Client::new(&ClientOptions::default()).map_err(failed)?;
    let gateway = WireGatewayClient::new(client, &account.gateway_url, account.auth.clone());
    let units = |row: u64, amount: &Amount| {
        let wrong = |_| BankError::Currency { section: account.section.clone(), row, amount: *amount };
        amount.money_in(currency).map(Money::units).map_err(wrong)
    };
    let credits = if account.credits {
        let ask = async |query| gateway.credits(query).await;
        let rows = pages(ask, |(id, _)| *id, since[0], ignores_missing).await.map_err(failed)?;
        Some(rows.into_iter().filter_map(|(_, transaction)| transaction).collect::<Vec<_>>())
    } else {
        None
    };
    let debits = if account.debits {
        let ask = async |query| gateway.history_outgoing(query).await;
        Some(pages(ask, |row| row.row_id, since[1], ignores_missing).await.map_err(failed)?)
    } else {
        None
    };
    let credit = |row: IncomingTransaction| {
        Ok(BankCredit {
            row: row.row_id,
            time: row.date,
            units: units(row.row_id, &row.amount)?,
            reserve_pub: row.reserve_pub,
            sender: row.debit_account,
        })
    };
    let debit = |row: OutgoingTransaction| {
        Ok(BankDebit {
            row: row.row_id,
            time: row.date,
            units: units(row.row_id, &row.amount)?,
            wtid: row.wtid,
            receiver: row.credit_account,
        })
    };
    Ok(BankAccount {
        section: account.section.clone(),
        payto_uri: account.payto_uri.clone(),
        credits: credits.map(|rows| rows.into_iter().map(credit).collect()).transpose()?,
        debits: debits.map(|rows| rows.into_iter().map(debit).collect()).transpose()?,
        read,
    })
}

/// Reads a history from the row after `since` (0: the first) to its last. `ignores_missing`: an account that the bank does not know has none.
async fn pages<R>(
    mut ask: impl AsyncFnMut(HistoryQuery) -> Result<Vec<R>, ClientError>,
    number: impl Fn(&R) -> u64,
    since: u64,
    ignores_missing: bool,
) -> Result<Vec<R>, ClientError> {
    let mut rows: Vec<R> = Vec::new();
    let first = (since > 0).then_some(since);
    loop {
        let query = HistoryQuery { start: rows.last().map(&number).or(first), delta: PAGE, long_poll_ms: 0 };
        match ask(query).await {
            Ok(page) if page.is_empty() => return Ok(rows),
            Ok(page) => rows.extend(page),
            Err(error) if ignores_missing && error.status() == Some(404) => return Ok(rows),
            Err(error) => return Err(error),
        }
    }
}

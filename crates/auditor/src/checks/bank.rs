//! The bank's history of the exchange's accounts, read through its wire gateway.

use batzen_audit::{BankAccount, BankCredit, BankDebit};
use batzen_http_client::{Client, ClientError, ClientOptions};
use batzen_protocol::{Amount, Currency, Money, Timestamp};
use batzen_wire_gateway::{HistoryQuery, WireGatewayClient};

use super::config::{Account, CheckConfig};

/// How many rows are asked for at once.
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

/// Reads all accounts, one after the other.
pub(super) async fn read(config: &CheckConfig, ignores_missing: bool) -> Result<Vec<BankAccount>, BankError> {
    let mut accounts = Vec::new();
    for account in &config.accounts {
        accounts.push(read_account(account, config.subject.currency, ignores_missing).await?);
    }
    Ok(accounts)
}

async fn read_account(
    account: &Account,
    currency: Currency,
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
    let is_missing = |error: &ClientError| ignores_missing && error.status() == Some(404);
    let mut credits = Vec::new();
    let mut start = None;
    let mut more = account.credits;
    while more {
        let page = match gateway.history_incoming(query(start)).await {
            Ok(page) => page,
            Err(error) if is_missing(&error) => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        start = page.last().map(|row| row.row_id).or(start);
        more = !page.is_empty();
        for row in page {
            credits.push(BankCredit {
                row: row.row_id,
                time: row.date,
                units: units(row.row_id, &row.amount)?,
                reserve_pub: row.reserve_pub,
                sender: row.debit_account,
            });
        }
    }
    let mut debits = Vec::new();
    let mut start = None;
    let mut more = account.debits;
    while more {
        let page = match gateway.history_outgoing(query(start)).await {
            Ok(page) => page,
            Err(error) if is_missing(&error) => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        start = page.last().map(|row| row.row_id).or(start);
        more = !page.is_empty();
        for row in page {
            debits.push(BankDebit {
                row: row.row_id,
                time: row.date,
                units: units(row.row_id, &row.amount)?,
                wtid: row.wtid,
                receiver: row.credit_account,
            });
        }
    }
    Ok(BankAccount {
        section: account.section.clone(),
        payto_uri: account.payto_uri.clone(),
        credits: account.credits.then_some(credits),
        debits: account.debits.then_some(debits),
        read,
    })
}

fn query(start: Option<u64>) -> HistoryQuery {
    HistoryQuery { start, delta: PAGE, long_poll_ms: 0 }
}

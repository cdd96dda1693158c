//! A client of a wire gateway, for the command line: shows histories, makes transfers and test transfers.

use std::io::{self, Write};

use batzen_crypto::{EddsaPublicKey, HashCode, Wtid, fill_random};
use batzen_http::client::ClientError;
use batzen_protocol::Amount;
use batzen_service::wire_gateway::{AddIncomingRequest, HistoryQuery, TransferRequest, WireGatewayClient};

/// Number of rows shown.
const ROWS_SHOWN: i64 = -10;

/// A command.
#[derive(Clone, Debug)]
pub enum GatewayCommand {
    /// Show the last ten credits (before a row).
    CreditHistory {
        /// The row; `None`: the end of the history.
        start: Option<u64>,
    },
    /// Show the last ten debits (before a row).
    DebitHistory {
        /// The row; `None`: the end of the history.
        start: Option<u64>,
    },
    /// Send money from the account.
    Transfer {
        /// The payto URI of the receiver.
        credit_account: String,
        /// The amount.
        amount: Amount,
        /// The subject; `None`: random.
        wtid: Option<Wtid>,
    },
    /// Move money to the account, at banks that allow this to everybody.
    AddIncoming {
        /// The payto URI of the sender.
        debit_account: String,
        /// The amount.
        amount: Amount,
        /// The subject; `None`: random.
        reserve_pub: Option<EddsaPublicKey>,
    },
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum GatewayCommandError {
    /// The gateway did not answer, or refused.
    #[error(transparent)]
    Gateway(#[from] ClientError),
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] io::Error),
}

/// Runs a command and writes its result, one line per row: id, time in seconds, amount, partner, subject.
///
/// A transfer gets a fresh request uid each time, so running the command again sends the money again.
///
/// # Errors
/// [`GatewayCommandError`].
pub async fn run(
    client: &WireGatewayClient,
    command: GatewayCommand,
    out: &mut (impl Write + Send),
) -> Result<(), GatewayCommandError> {
    match command {
        GatewayCommand::CreditHistory { start } => {
            let query = HistoryQuery { start, delta: ROWS_SHOWN, long_poll_ms: 0 };
            for row in client.history_incoming(query).await? {
                let time_s = row.date.as_secs().unwrap_or(u64::MAX);
                writeln!(
                    out,
                    "{} {time_s} {} {} {}",
                    row.row_id, row.amount, row.debit_account, row.reserve_pub
                )?;
            }
        }
        GatewayCommand::DebitHistory { start } => {
            let query = HistoryQuery { start, delta: ROWS_SHOWN, long_poll_ms: 0 };
            for row in client.history_outgoing(query).await? {
                let time_s = row.date.as_secs().unwrap_or(u64::MAX);
                writeln!(out, "{} {time_s} {} {} {}", row.row_id, row.amount, row.credit_account, row.wtid)?;
            }
        }
        GatewayCommand::Transfer { credit_account, amount, wtid } => {
            let request = TransferRequest {
                request_uid: HashCode::random(),
                amount,
                exchange_base_url: "http://exchange.example.com/".to_owned(),
                wtid: wtid.unwrap_or_else(Wtid::random),
                credit_account,
            };
            let done = client.transfer(&request).await?;
            writeln!(out, "{} {}", done.row_id, request.wtid)?;
        }
        GatewayCommand::AddIncoming { debit_account, amount, reserve_pub } => {
            let random = || {
                let mut bytes = [0; 32];
                fill_random(&mut bytes);
                EddsaPublicKey::from_bytes(bytes)
            };
            let reserve_pub = reserve_pub.unwrap_or_else(random);
            let done =
                client.add_incoming(&AddIncomingRequest { amount, reserve_pub, debit_account }).await?;
            writeln!(out, "{}", done.row_id)?;
        }
    }
    Ok(())
}

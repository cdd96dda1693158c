//! A client of a wire gateway, for the command line: shows histories, makes transfers and test transfers.

use std::io::{self, Write};

use batzen_crypto::hash::{sha512, shorten};
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid, fill_random};
use batzen_http::client::ClientError;
use batzen_protocol::Amount;
use batzen_service::wire_gateway::{AddIncomingRequest, HistoryQuery, TransferRequest, WireGatewayClient};
use serde_json::json;

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
        /// The subject; `None`: it follows from the request uid.
        wtid: Option<Wtid>,
        /// The transfer's identity: the same uid again sends nothing more.
        request_uid: HashCode,
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

/// Runs a command and writes its result: one line per row (id, time in seconds, amount, partner, subject), or JSON.
///
/// # Errors
/// [`GatewayCommandError`].
pub async fn run(
    client: &WireGatewayClient,
    command: GatewayCommand,
    is_json: bool,
    out: &mut (impl Write + Send),
) -> Result<(), GatewayCommandError> {
    match command {
        GatewayCommand::CreditHistory { start } => {
            let query = HistoryQuery { start, delta: ROWS_SHOWN, long_poll_ms: 0 };
            let rows = client.history_incoming(query).await?;
            if is_json {
                return Ok(writeln!(out, "{}", json!(rows))?);
            }
            for row in rows {
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
            let rows = client.history_outgoing(query).await?;
            if is_json {
                return Ok(writeln!(out, "{}", json!(rows))?);
            }
            for row in rows {
                let time_s = row.date.as_secs().unwrap_or(u64::MAX);
                writeln!(out, "{} {time_s} {} {} {}", row.row_id, row.amount, row.credit_account, row.wtid)?;
            }
        }
        GatewayCommand::Transfer { credit_account, amount, wtid, request_uid } => {
            // A repetition must have the same.
            let of_uid = || Wtid::from_bytes(*shorten(&sha512(request_uid.as_bytes())).as_bytes());
            let request = TransferRequest {
                request_uid,
                amount,
                exchange_base_url: "http://exchange.example.com/".to_owned(),
                wtid: wtid.unwrap_or_else(of_uid),
                credit_account,
            };
            let done = client.transfer(&request).await?;
            let TransferRequest { wtid, request_uid, .. } = request;
            match is_json {
                true => {
                    let done = json!({ "row_id": done.row_id, "wtid": wtid, "request_uid": request_uid });
                    writeln!(out, "{done}")?;
                }
                false => writeln!(out, "{} {wtid}", done.row_id)?,
            }
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
            match is_json {
                true => writeln!(out, "{}", json!({ "row_id": done.row_id, "reserve_pub": reserve_pub }))?,
                false => writeln!(out, "{}", done.row_id)?,
            }
        }
    }
    Ok(())
}

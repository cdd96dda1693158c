//! The client of a bank's wire gateway: how an exchange sees money arrive and sends it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_config::{Config, ConfigError};
use batzen_http::client::correlation::{CORRELATION_ID, new_correlation_id};
use batzen_http::client::{Call, Client, ClientError, Reply};
pub use batzen_protocol::api::bank::{
    AddIncomingRequest, IncomingTransaction, OutgoingHistory, OutgoingTransaction, TransactionResponse,
    TransferRequest,
};
use batzen_protocol::api::bank::{IncomingPage, ReserveCredit};
use batzen_protocol::api::parse_body;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Time that a client waits for the response longer than the long poll itself.
const POLL_MARGIN: Duration = Duration::from_secs(10);
/// The largest response to a transfer, in bytes.
const TRANSFER_REPLY_BYTES_MAX: usize = 64 << 10;
/// Number of transfers that may be under way unless the owner says otherwise.
const TRANSFERS_MAX: usize = 256;
/// Maximum length of the text that is kept of an unusable row, in characters.
const ROW_TEXT_MAX: usize = 16_000;

/// The rows of a history to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// A row id, itself not included. `None`: before the first row for a positive delta, after the last for a
    /// negative one.
    pub start: Option<u64>,
    /// Positive: that many rows after the start, ascending. Negative: that many before it, descending. Not 0.
    pub delta: i64,
    /// Time that the bank may wait for a first row, in milliseconds. Only used with a positive delta.
    pub long_poll_ms: u64,
}

/// One row of a history as the bank sent it. An unusable row does not affect the others.
#[derive(Clone, Debug, PartialEq)]
pub struct IncomingRow {
    /// Its id, if it has a usable one.
    pub row_id: Option<u64>,
    /// The transfer to a reserve, or why it is none.
    pub transaction: Result<IncomingTransaction, Unusable>,
}

/// A row of a history that credits no reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The reason, for the operator.
    pub reason: String,
    /// The row as the bank sent it, in JSON; its beginning, if it is very long.
    pub text: String,
    /// Whether it is of a known type that has no reserve.
    pub has_known_type: bool,
}

/// The type of rows by which a sender proves that a key is his. The money is his, so it fills the reserve of this key, which he
/// may spend, or which is closed: then it goes back to him.
const KEY_PROOF: &str = "KYCAUTH";
/// The type of rows without a reserve: another exchange sends money for several wallets.
const WAD: &str = "WAD";

/// Authentication of the exchange at the bank.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum GatewayAuth {
    /// No authentication.
    #[default]
    None,
    /// HTTP basic authentication (RFC 7617).
    Basic {
        /// The user.
        username: String,
        /// The password.
        password: String,
    },
}

impl GatewayAuth {
    /// Reads it from a section with the credentials of an account.
    ///
    /// # Errors
    /// The first option that is missing or invalid, with its place.
    pub fn read(config: &Config, section: &str) -> Result<Self, ConfigError> {
        let choices = [("none", false), ("basic", true)];
        if !config.choice(section, "WIRE_GATEWAY_AUTH_METHOD", &choices)?.unwrap_or(false) {
            return Ok(Self::None);
        }
        let (username, password) = (config.string(section, "USERNAME")?, config.string(section, "PASSWORD")?);
        Ok(Self::Basic { username, password })
    }
}

impl fmt::Debug for GatewayAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Basic { username, .. } => write!(f, "Basic({username}, password redacted)"),
        }
    }
}

impl IncomingRow {
    fn of(transaction: IncomingTransaction) -> Self {
        Self { row_id: Some(transaction.row_id), transaction: Ok(transaction) }
    }

    /// Reads a row again that was kept as text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(value) => Self::read(&value, None),
            Err(error) => {
                let (reason, text) = (format!("not JSON: {error}"), text.to_owned());
                Self { row_id: None, transaction: Err(Unusable { reason, text, has_known_type: false }) }
            }
        }
    }

    fn read(value: &serde_json::Value, account: Option<&str>) -> Self {
        let row_id = value.get("row_id").and_then(serde_json::Value::as_u64);
        let kind = value.get("type").and_then(serde_json::Value::as_str);
        let mut text = value.to_string();
        let parse =
            |text: &str| parse_body::<ReserveCredit>(text.as_bytes()).map_err(|error| error.to_string());
        let read = match kind {
            Some(WAD) => Err("a row of type WAD credits no reserve".to_owned()),
            Some(KEY_PROOF) => parse(&as_reserve(value)),
            _ => parse(&text),
        };
        if let Some((end, _)) = text.char_indices().nth(ROW_TEXT_MAX) {
            text.truncate(end);
        }
        let transaction = read.map(|row| row.into_transaction(account)).map_err(|reason| Unusable {
            reason,
            text,
            has_known_type: matches!(kind, Some(WAD | KEY_PROOF)),
        });
        Self { row_id, transaction }
    }
}

/// A row that proves a key, as one that fills the reserve of this key.
fn as_reserve(row: &serde_json::Value) -> String {
    let mut row = row.clone();
    if let Some(members) = row.as_object_mut() {
        members.remove("type");
        members.remove("reserve_pub");
        if let Some(key) = members.remove("account_pub") {
            members.insert("reserve_pub".to_owned(), key);
        }
    }
    row.to_string()
}

/// A request to the bank, for the log.
struct Correlation {
    url: String,
    id: String,
    began: Instant,
}

impl Correlation {
    fn new(url: String) -> Self {
        Self { url, id: new_correlation_id(), began: Instant::now() }
    }

    fn log(self, sent: &Result<Reply>) {
        let Self { url, id, began } = self;
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        match sent {
            Ok(reply) => tracing::debug!(url, id, status = reply.status, micros, "the bank answered"),
            Err(error) => tracing::debug!(url, id, %error, micros, "the bank did not answer"),
        }
    }
}

/// A client of one account's wire gateway.
///
/// All calls fail with [`ClientError`]. Its status and code are the bank's, and [`ClientError::is_transient`]
/// tells whether the same call may succeed later. A transfer may be repeated any number of times.
#[derive(Clone, Debug)]
pub struct WireGatewayClient {
    client: Client,
    base_url: String,
    auth: GatewayAuth,
    /// Limits the connections that transfers use at the same time.
    transfers: Arc<Semaphore>,
}

impl WireGatewayClient {
    /// A client of the gateway at this base URL, which names the account (a missing final slash is added).
    #[must_use]
    pub fn new(client: Client, base_url: &str, auth: GatewayAuth) -> Self {
        let mut base_url = base_url.to_owned();
        if !base_url.ends_with('/') {
            base_url.push('/');
        }
        Self { client, base_url, auth, transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)) }
    }

    /// Sets how many transfers may be under way, each on a connection of its own. Further ones wait.
    #[must_use]
    pub fn with_transfer_connections(self, connections: usize) -> Self {
        Self { transfers: Arc::new(Semaphore::new(connections)), ..self }
    }

    /// The transfers to reserves that the account received. An empty history is not an error, whether the bank sends
    /// 204 or an empty list.
    ///
    /// # Errors
    /// [`ClientError`]; also [`ClientError::BadReply`] for rows that are unreadable or not in the order of their ids.
    pub async fn history_incoming(&self, query: HistoryQuery) -> Result<Vec<IncomingTransaction>> {
        let rows = self.credits(query).await?;
        Ok(rows.into_iter().filter_map(|(_, transaction)| transaction).collect())
    }

    /// All transfers that the account received, with their ids; `None` for rows of a known type that credit no reserve.
    ///
    /// # Errors
    /// As [`Self::history_incoming`].
    pub async fn credits(&self, query: HistoryQuery) -> Result<Vec<(u64, Option<IncomingTransaction>)>> {
        let read = |IncomingRow { row_id, transaction }| match (row_id, transaction) {
            (Some(id), Ok(transaction)) => Ok((id, Some(transaction))),
            (Some(id), Err(Unusable { has_known_type: true, .. })) => Ok((id, None)),
            (_, unusable) => {
                Err(self.bad_history(unusable.map_or_else(|unusable| unusable.reason, |_| String::new())))
            }
        };
        let rows = self.history_incoming_rows(query).await?;
        let rows = rows.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        self.in_order(rows, query, |(id, _)| *id)
    }

    /// The same row by row, for readers that one unusable row must not block. The order of ids is not
    /// checked.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::BadReply`] only if the answer is not a history at all.
    pub async fn history_incoming_rows(&self, query: HistoryQuery) -> Result<Vec<IncomingRow>> {
        let Some(reply) = self.history_reply("history/incoming", query).await? else { return Ok(Vec::new()) };
        // Nearly always all rows are well-formed.
        if let Ok(page) = serde_json::from_slice::<IncomingPage<ReserveCredit>>(&reply.body) {
            let account = page.credit_account.as_deref();
            let read = |row: ReserveCredit| IncomingRow::of(row.into_transaction(account));
            return Ok(page.incoming_transactions.into_iter().map(read).collect());
        }
        let page: IncomingPage<serde_json::Value> = reply.json()?;
        let account = page.credit_account.as_deref();
        Ok(page.incoming_transactions.iter().map(|row| IncomingRow::read(row, account)).collect())
    }

    /// The transfers that the account sent through the gateway. Otherwise like [`Self::history_incoming`].
    ///
    /// # Errors
    /// Like [`Self::history_incoming`].
    pub async fn history_outgoing(&self, query: HistoryQuery) -> Result<Vec<OutgoingTransaction>> {
        let history: Option<OutgoingHistory> = self.history("history/outgoing", query).await?;
        let rows = history.map_or_else(Vec::new, |history| history.outgoing_transactions);
        self.in_order(rows, query, |row| row.row_id)
    }

    /// Sends a transfer. A repetition returns the same response.
    ///
    /// # Errors
    /// [`ClientError`]; 409 with code 5112 means that the request uid names another transfer.
    ///
    /// # Panics
    /// Never: the semaphore is not closed.
    pub async fn transfer(&self, request: &TransferRequest) -> Result<TransactionResponse> {
        let _permit = self.transfers.acquire().await.expect("it is never closed");
        let call = self.client.post(self.url("transfer")).max_reply_bytes(TRANSFER_REPLY_BYTES_MAX);
        self.send(call.json(request)).await?.ok()
    }

    /// Moves money to the account, with a reserve key as subject. Only test banks have this endpoint. It is
    /// not idempotent.
    ///
    /// # Errors
    /// [`ClientError`]; 409 with code 5114 means that the reserve key was used before.
    pub async fn add_incoming(&self, request: &AddIncomingRequest) -> Result<TransactionResponse> {
        self.send(self.client.post(self.url("admin/add-incoming")).json(request)).await?.ok()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url)
    }

    /// Sends a call with a correlation id of its own, which the bank's log has, too.
    async fn send(&self, call: Call<'_>) -> Result<Reply> {
        let correlation = Correlation::new(call.url().to_owned());
        let call = call.header(CORRELATION_ID, &correlation.id);
        let sent = match &self.auth {
            GatewayAuth::None => call,
            GatewayAuth::Basic { username, password } => call.basic_auth(username, password),
        }
        .send()
        .await;
        correlation.log(&sent);
        sent
    }

    async fn history<H: DeserializeOwned>(&self, path: &str, query: HistoryQuery) -> Result<Option<H>> {
        self.history_reply(path, query).await?.map(|reply| reply.json()).transpose()
    }

    /// A history that is not empty.
    async fn history_reply(&self, path: &str, query: HistoryQuery) -> Result<Option<Reply>> {
        let mut call = self.client.get(self.url(path)).query("delta", query.delta);
        // Some banks refuse a start before the first or after the last row.
        let is_end = |start: u64| if query.delta > 0 { start == 0 } else { start >= i64::MAX as u64 };
        if let Some(start) = query.start.filter(|start| !is_end(*start)) {
            call = call.query("start", start);
        }
        if query.delta > 0 && query.long_poll_ms > 0 {
            let poll = Duration::from_millis(query.long_poll_ms);
            call = call.query("long_poll_ms", query.long_poll_ms).timeout(poll.saturating_add(POLL_MARGIN));
        }
        let reply = self.send(call).await?;
        reply.expect(&[200, 204])?;
        Ok(Some(reply).filter(|reply| reply.status != 204 && !reply.body.is_empty()))
    }

    /// Readers move a cursor along the ids and never go back, so rows out of order would lose money.
    fn in_order<R>(&self, rows: Vec<R>, query: HistoryQuery, id: impl Fn(&R) -> u64) -> Result<Vec<R>> {
        let follows = |before: u64, after: u64| if query.delta > 0 { before < after } else { before > after };
        let begins = match (query.start, rows.first()) {
            (Some(start), Some(first)) => follows(start, id(first)),
            _ => true,
        };
        if begins && rows.windows(2).all(|pair| follows(id(&pair[0]), id(&pair[1]))) {
            return Ok(rows);
        }
        Err(self.bad_history("the rows of a history are not in the order of their ids".to_owned()))
    }

    fn bad_history(&self, reason: String) -> ClientError {
        ClientError::BadReply { url: self.base_url.clone(), status: 200, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "9VP76NT49PVYQ8BK0QBE5W9TGRF035FZPJ9P6S441ZC5H7F7BZY0";

    fn row(members: &str) -> IncomingRow {
        IncomingRow::parse(&format!(
            r#"{{"row_id":7,"date":{{"t_s":1}},"amount":"EUR:2","debit_account":"payto://x-taler-bank/b/a"{members}}}"#
        ))
    }

    #[test]
    fn rows_of_both_forms_credit_reserves() {
        let key = format!(r#","reserve_pub":"{KEY}""#);
        for (members, account) in [
            (
                format!(r#"{key},"credit_account":"payto://x-taler-bank/b/exchange""#),
                "payto://x-taler-bank/b/exchange",
            ),
            (format!(r#"{key},"type":"RESERVE","credit_fee":"EUR:0.1""#), ""),
            (format!(r#","type":"KYCAUTH","account_pub":"{KEY}""#), ""),
        ] {
            let row = row(&members);
            let transaction = row.transaction.unwrap();
            assert_eq!((row.row_id, transaction.credit_account.as_str()), (Some(7), account));
            assert_eq!(transaction.reserve_pub.to_string(), KEY);
        }
    }

    #[test]
    fn rows_without_a_reserve_are_told_apart() {
        let key = format!(r#","reserve_pub":"{KEY}""#);
        for (members, has_known_type, reason) in [
            (format!(r#"{key},"type":"KYCAUTH""#), true, "missing field `reserve_pub`"),
            (format!(r#","type":"WAD","wad_id":"{KEY}""#), true, "type WAD"),
            (format!(r#"{key},"type":"FUTURE""#), false, "unknown variant `FUTURE`"),
            (String::new(), false, "missing field `reserve_pub`"),
        ] {
            let unusable = row(&members).transaction.unwrap_err();
            assert_eq!(unusable.has_known_type, has_known_type, "{members}");
            assert!(unusable.reason.contains(reason), "{unusable:?}");
            assert_eq!(
                IncomingRow::parse(&unusable.text).transaction,
                Err(unusable),
                "what is kept is read alike"
            );
        }
    }
}

//! The wire gateway, for exchanges.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_http::{ErrorCode, Request, Response};
use batzen_protocol::api::bank::{AddIncomingRequest, TransactionResponse, TransferRequest};
use batzen_protocol::limits;
use batzen_protocol::{Amount, Currency, Timestamp};
use batzen_service::{Answer, Checked, Poll, Reach, endpoint, poll_deadline};
use batzen_store::{Found, Store, StoreError};
use batzen_tables::bank::{AccountKey, BankExchanges, BankTransactions, TransactionRow};
use serde::{Deserialize, Serialize};

use super::{LONG_POLL_MAX, Service, Table, body, refused, unknown_account, wrong_member};
use crate::MAX_BODY_BYTES;
use crate::names::{self, Addresses, NoAccount};
use crate::rules::{AddIncoming, Booking, MarkExchange, Transfer};
use crate::wakes::Direction;

/// Most rows in one answer. To get more, a client asks again from the last row.
const ROWS_MAX: usize = 16_384;

/// A gateway has two base URLs for each account. Older set-ups, and most tests, use the second, which matches many
/// paths: these routes come last.
pub(super) fn routes(table: Table) -> Table {
    ["/taler-wire-gateway/:account", "/:account"].into_iter().fold(table, |table, base| {
        let path = |rest: &str| format!("{base}/{rest}");
        table
            .reaching(Reach::Everyone, |table| table.get(&path("config"), "config", endpoint!(config)))
            .get(&path("history/incoming"), "history", endpoint!(incoming))
            .get(&path("history/outgoing"), "history", endpoint!(outgoing))
            .post(&path("transfer"), MAX_BODY_BYTES, "transfer", endpoint!(transfer))
            .post(&path("admin/add-incoming"), MAX_BODY_BYTES, "add-incoming", endpoint!(add_incoming))
    })
}

async fn config(bank: &Service, _: &Request) -> Response {
    bank.api_config("taler-wire-gateway")
}

async fn incoming(bank: &Arc<Service>, request: &mut Request) -> Answer {
    history(bank, request, Direction::Incoming).await
}

async fn outgoing(bank: &Arc<Service>, request: &mut Request) -> Answer {
    history(bank, request, Direction::Outgoing).await
}

impl Service {
    /// The account of a payto URI: 400, code 24 if it has none; 404, code 5106 if it belongs to another bank.
    pub(super) fn payto_account(&self, uri: &str) -> Checked<String> {
        self.addresses.account(uri).map(Cow::into_owned).map_err(|no_account| match no_account {
            NoAccount::Malformed => Response::error(ErrorCode::GENERIC_PAYTO_URI_MALFORMED, uri),
            NoAccount::OtherBank => self.other_bank(),
        })
    }

    /// 404, code 5106: nobody takes money to other banks.
    pub(super) fn other_bank(&self) -> Response {
        let own = self.addresses.payto("NAME");
        unknown_account(&format!(
            "the IBAN or host name is that of another bank; an account of this one is {own}"
        ))
    }

    /// Remembers that an account is an exchange's, once its owner waits for credits or follows them: from then on it takes
    /// no money that its history would not show. (Whoever just looks into an empty history may be anybody.)
    async fn mark_exchange(self: &Arc<Self>, name: &str) -> Checked<()> {
        if self.settings.config.exchange_accounts.is_some() {
            return Ok(());
        }
        if self.exchanges.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
            return Ok(());
        }
        let key = AccountKey::new(name);
        if self.read(move |store| store.get::<BankExchanges>(&key)).await?.is_none() {
            let marked = self.execute(MarkExchange { name: name.to_owned() }).await?;
            marked.map_err(|refusal| refused(&refusal, ""))?;
            tracing::info!(
                account = name,
                "the account is an exchange's: it takes only money with a reserve key"
            );
        }
        let mut known = self.exchanges.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= EXCHANGES_KNOWN_MAX {
            known.clear();
        }
        known.insert(name.to_owned());
        Ok(())
    }
}

/// Most accounts that are remembered as exchanges'. Others are looked up.
const EXCHANGES_KNOWN_MAX: usize = 1_000;

/// Accounts that are marked as exchanges' in the store, so that not every request reads it.
#[derive(Default)]
pub(super) struct KnownExchanges(Mutex<HashSet<String>>);

async fn history(bank: &Arc<Service>, request: &mut Request, direction: Direction) -> Answer {
    let account = request.param("account").to_owned();
    let delta = request.query_with("delta", |text| text.parse::<i64>().ok().filter(|delta| *delta != 0))?;
    let delta = delta.ok_or_else(|| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "delta"))?;
    let start = request.query_with("start", |text| text.parse::<u64>().ok())?;
    let long_poll_ms = request.query_with("long_poll_ms", |text| text.parse::<u64>().ok())?;
    bank.authorize(request, &account).await?;
    bank.account(&account).await?;
    let deadline = poll_deadline(long_poll_ms, LONG_POLL_MAX).filter(|_| delta > 0);
    let follows = direction == Direction::Incoming && delta > 0;
    if follows && deadline.is_some() {
        bank.mark_exchange(&account).await?;
    }
    // Registered before the first read, so that no new row is missed between the two.
    let waiter = deadline.and_then(|_| bank.wakes.histories.register((direction, account.clone())).ok());
    let find = || {
        let name = account.clone();
        let (addresses, currency) = (Arc::clone(&bank.addresses), bank.settings.config.currency);
        bank.read(move |store| {
            let rows = page(store, &name, direction, start, delta)?;
            // Rendered on a blocking thread as well.
            Ok((!rows.is_empty()).then(|| encode(&rows, direction, &addresses, currency)))
        })
    };
    let mut found = find().await?;
    if let (Some(deadline), Some(waiter)) = (deadline, waiter) {
        found = Poll::of(waiter).until(request, deadline, found, Option::is_some, find).await?;
    }
    if follows && found.is_some() {
        bank.mark_exchange(&account).await?;
    }
    Ok(found.map_or_else(|| Response::empty(204), |body| Response::bytes(200, "application/json", body)))
}

async fn transfer(bank: &Arc<Service>, request: &Request) -> Answer {
    let account = request.param("account");
    bank.authorize(request, account).await?;
    let TransferBody { request_uid, amount, exchange_base_url, wtid, credit_account } =
        TransferBody::read(request)?;
    let amount = bank.money::<TransferRequest>("amount", &amount)?;
    if exchange_base_url.len() > limits::URL_BYTES_MAX {
        return Err(wrong_member::<TransferRequest>("exchange_base_url"));
    }
    let credit_account = bank.payto_account(&credit_account)?;
    let debit_account = gateway_account(account)?;
    let exchange_base_url = exchange_base_url.into_owned();
    let command = Transfer { request_uid, debit_account, credit_account, amount, wtid, exchange_base_url };
    match bank.execute(command).await? {
        Ok(booking) => Ok(transferred(booking)),
        Err(refusal) => Err(refused(&refusal, &request_uid.to_string())),
    }
}

async fn add_incoming(bank: &Arc<Service>, request: &Request) -> Answer {
    let account = request.param("account");
    bank.authorize(request, account).await?;
    if !bank.settings.config.allow_add_incoming {
        return Err(Response::error(ErrorCode::BANK_REJECT_NO_RIGHTS, "this bank has no test transfers"));
    }
    let body: AddIncomingRequest = body(request)?;
    let amount = bank.money::<AddIncomingRequest>("amount", &body.amount)?;
    let debit_account = bank.payto_account(&body.debit_account)?;
    let credit_account = gateway_account(account)?;
    let mut id = [0; 32];
    batzen_crypto::fill_random(&mut id);
    match bank
        .execute(AddIncoming { id, debit_account, credit_account, amount, reserve_pub: body.reserve_pub })
        .await?
    {
        Ok(booking) => Ok(transferred(booking)),
        Err(refusal) => Err(refused(&refusal, "")),
    }
}

/// A [`TransferRequest`] that borrows its texts from the body: this is the bank's most frequent request.
#[derive(Deserialize)]
struct TransferBody<'a> {
    request_uid: HashCode,
    amount: Amount,
    #[serde(borrow)]
    exchange_base_url: Cow<'a, str>,
    wtid: Wtid,
    #[serde(borrow)]
    credit_account: Cow<'a, str>,
}

impl<'a> TransferBody<'a> {
    fn read(request: &'a Request) -> Checked<Self> {
        let text: &[u8] = &request.body;
        // serde would also accept an array of members, which the protocol does not allow.
        if text.first() == Some(&b'{')
            && let Ok(body) = serde_json::from_slice(text)
        {
            return Ok(body);
        }
        // The slower parser, for its error message.
        let TransferRequest { request_uid, amount, exchange_base_url, wtid, credit_account } = body(request)?;
        let (exchange_base_url, credit_account) = (exchange_base_url.into(), credit_account.into());
        Ok(Self { request_uid, amount, exchange_base_url, wtid, credit_account })
    }
}

/// The account named in a base URL.
fn gateway_account(name: &str) -> Checked<String> {
    if names::is_account_name(name) { Ok(name.to_owned()) } else { Err(unknown_account(name)) }
}

fn transferred(Booking { row_id, time }: Booking) -> Response {
    Response::json(200, &TransactionResponse { row_id, timestamp: time })
}

/// A transaction with a reserve key, as `IncomingTransaction` but without copies.
#[derive(Serialize)]
struct IncomingRow<'a> {
    row_id: u64,
    date: Timestamp,
    amount: Amount,
    credit_account: &'a str,
    debit_account: &'a str,
    reserve_pub: &'a EddsaPublicKey,
}

/// A transaction of an exchange, as `OutgoingTransaction` but without copies.
#[derive(Serialize)]
struct OutgoingRow<'a> {
    row_id: u64,
    date: Timestamp,
    amount: Amount,
    credit_account: &'a str,
    debit_account: &'a str,
    wtid: &'a Wtid,
    exchange_base_url: &'a str,
}

/// Approximate size of a row in JSON, in bytes.
const ROW_BYTES: usize = 384;

/// A page of a history as JSON.
fn encode(
    rows: &[TransactionRow],
    direction: Direction,
    addresses: &Addresses,
    currency: Currency,
) -> Vec<u8> {
    let mut json = Vec::with_capacity(64 + rows.len() * ROW_BYTES);
    let list = match direction {
        Direction::Incoming => "incoming_transactions",
        Direction::Outgoing => "outgoing_transactions",
    };
    json.extend_from_slice(format!("{{\"{list}\":[").as_bytes());
    // One side is the same in all rows, the other often in several.
    let (mut credited, mut debited) = (Account::default(), Account::default());
    for (n, row) in rows.iter().enumerate() {
        if n > 0 {
            json.push(b',');
        }
        let TransactionRow { row_id, time: date, .. } = *row;
        let amount = row.amount.of(currency);
        let credit_account = credited.payto(addresses, &row.credit_account);
        let debit_account = debited.payto(addresses, &row.debit_account);
        let written = match direction {
            Direction::Incoming => {
                let reserve_pub =
                    row.reserve_pub.as_ref().expect("the index holds transactions with a reserve key");
                let row = IncomingRow { row_id, date, amount, credit_account, debit_account, reserve_pub };
                serde_json::to_writer(&mut json, &row)
            }
            Direction::Outgoing => {
                let wtid =
                    row.wtid.as_ref().expect("the index holds transactions with a transfer identifier");
                let exchange_base_url = row.exchange_base_url.as_deref().unwrap_or_default();
                let row = OutgoingRow {
                    row_id,
                    date,
                    amount,
                    credit_account,
                    debit_account,
                    wtid,
                    exchange_base_url,
                };
                serde_json::to_writer(&mut json, &row)
            }
        };
        written.expect("rows have string keys, and memory takes everything");
    }
    json.extend_from_slice(b"]}");
    json
}

/// The previous row's account, with its payto URI.
#[derive(Default)]
struct Account {
    name: String,
    payto: String,
}

impl Account {
    fn payto(&mut self, addresses: &Addresses, name: &str) -> &str {
        if self.payto.is_empty() || self.name != name {
            name.clone_into(&mut self.name);
            self.payto = addresses.payto(name);
        }
        &self.payto
    }
}

/// A part of a history: one range of an ordered index, so the work is proportional to the number of rows.
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

#[cfg(test)]
mod tests {
    use batzen_protocol::Money;
    use batzen_protocol::api::bank::{IncomingHistory, OutgoingHistory};

    use super::*;

    #[test]
    fn pages_are_what_the_protocol_says() {
        let currency = Currency::new("EUR").unwrap();
        let hosts = crate::names::Hosts::default();
        let addresses = Addresses { hostname: "bank.example".to_owned(), hosts, iban_bank: None };
        let row = |row_id, is_incoming: bool| TransactionRow {
            row_id,
            debit_account: format!("d{}", row_id / 2),
            credit_account: "exchange".to_owned(),
            amount: Money::UNIT,
            time: Timestamp::from_secs(row_id),
            reserve_pub: is_incoming.then(|| EddsaPublicKey::from_bytes([7; 32])),
            wtid: (!is_incoming).then(|| Wtid::from_bytes([8; 32])),
            exchange_base_url: (!is_incoming).then(|| "http://e/\"x\"".to_owned()),
            text: None,
        };
        let rows: Vec<_> = (1..=4).map(|n| row(n, true)).collect();
        let json = encode(&rows, Direction::Incoming, &addresses, currency);
        let page: IncomingHistory = serde_json::from_slice(&json).unwrap();
        assert_eq!(serde_json::to_vec(&page).unwrap(), json, "member for member");
        let debited: Vec<_> =
            page.incoming_transactions.iter().map(|row| row.debit_account.as_str()).collect();
        let payto = |name: &str| addresses.payto(name);
        assert_eq!(debited, [payto("d0"), payto("d1"), payto("d1"), payto("d2")]);
        let rows: Vec<_> = (1..=2).map(|n| row(n, false)).collect();
        let json = encode(&rows, Direction::Outgoing, &addresses, currency);
        let page: OutgoingHistory = serde_json::from_slice(&json).unwrap();
        assert_eq!(serde_json::to_vec(&page).unwrap(), json);
        assert_eq!(page.outgoing_transactions[1].exchange_base_url, "http://e/\"x\"");
    }
}

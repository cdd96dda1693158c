//! Reports of settlements, windows and transfers for the settlement bank and the participants.

use std::ops::ControlFlow;

use crate::reports::camt053::Window;
use crate::reports::data::{Agent, Currency, Instant, Net, Settlement as Reported};
use crate::reports::head001::{self, Header};
use crate::reports::pacs009::Leg;
use crate::reports::tables::{self, Entry, EntryKind, Statement};
use crate::reports::transfer::{PACS002, PACS008, Status, Transfer};
use crate::reports::{ReportError, camt053, camt054, pacs009};
use batzen_http::{Request, Response};
use batzen_protocol::calendar::format_ms;
use batzen_store::StoreError;
use batzen_tables::switch::{NetKey, NetRow, Nets, TransferKey, TransferRow, Transfers, WindowKey, Windows};
use serde_json::{Value, json};

use super::{ADMIN, Answer, HUB_NAME, OperatorRequest, Table, bodies, failed, fault, operator};
use crate::errors::ApiError;
use crate::messages::TransferState;
use crate::rules::Refusal;
use crate::rules::settlements::{SettlementState, windows_of};
use crate::rules::state::{TransferStage, received_millis};
use crate::rules::windows::WindowState;
use crate::settlement::{Settlement, net};
use crate::treasury::OperatorError;
use crate::values::{currency_text, format_signed, format_uuid, parse_uuid};

/// The settlement bank's name in headers of messages.
const SETTLEMENT_BANK: &str = "SETTLEMENT-BANK";
/// The longest account number other than an IBAN.
const ACCOUNT_CHARS_MAX: usize = 34;
/// The most transfers in one statement.
const ENTRIES_MAX: usize = 100_000;

const CSV: &str = "text/csv; charset=utf-8";
const XML: &str = "application/xml; charset=utf-8";

fn malformed(text: &str) -> Response {
    failed(&OperatorError::Malformed(text.to_owned()))
}

fn conflict(text: &str) -> Response {
    failed(&Refusal::Conflict(text.to_owned()).into())
}

/// Reports that would mislead are refused: the settlement or its currency does not allow them.
fn not_made(error: &ReportError) -> Response {
    conflict(&error.to_string())
}

fn nothing(text: &str) -> Response {
    fault(404, ApiError::IdNotFound, text)
}

fn agent(name: &str) -> Agent {
    Agent { name: name.to_owned(), bic: None, account: format!("SETTLEMENT-{name}") }
}

/// A message, or with `part=header` the business application header that goes with it.
fn message(request: &Request, header: &Header<'_>, text: String) -> Answer {
    match request.query_text("part") {
        None | Some("document") => Ok(Response::bytes(200, XML, text)),
        Some("header") => {
            let header = head001::write(header).map_err(|error| not_made(&error))?;
            Ok(Response::bytes(200, XML, header))
        }
        Some(_) => Err(malformed("part is document or header")),
    }
}

/// The settlement leg named in a request.
fn leg(request: &Request) -> Result<Leg, Response> {
    match request.query_text("leg") {
        Some("collection") => Ok(Leg::Collection),
        Some("payout") => Ok(Leg::Payout),
        _ => Err(malformed("leg is collection or payout")),
    }
}

pub(super) fn routes(table: Table) -> Table {
    table.get("/settlements/:id/report", ADMIN, operator!(settlement_report)).get(
        "/transfers/:id/report",
        ADMIN,
        operator!(transfer_report),
    )
}

impl OperatorRequest<'_> {
    /// A settlement as JSON, or for one currency as CSV, `pacs.009` (by leg) or `camt.054` (by participant).
    async fn settlement_report(&self) -> Answer {
        let settlement = self.settlement_of(self.param("id"))?;
        let format = self.request.query_text("format").unwrap_or("json");
        if format == "json" {
            return Ok(Response::json(200, &self.settlement_json(&settlement)?));
        }
        let currency = currency_of(&settlement, self.request)?;
        let reported = self.reported(&settlement, currency)?;
        match format {
            "csv" => {
                let text = tables::settlement(&reported).map_err(|error| not_made(&error))?;
                Ok(Response::bytes(200, CSV, text))
            }
            "pacs009" => {
                if matches!(settlement.state(), SettlementState::Aborting | SettlementState::Aborted) {
                    return Err(conflict("a settlement that is given up gives no instructions"));
                }
                let leg = leg(self.request)?;
                let text = pacs009::write(&reported, leg).map_err(|error| not_made(&error))?;
                let text = text.ok_or_else(|| nothing("nobody owes anything"))?;
                let id = pacs009::message_id(&reported, leg);
                let (to, namespace) = (SETTLEMENT_BANK, pacs009::NAMESPACE);
                let header = Header { from: HUB_NAME, to, id: &id, namespace, created: reported.created };
                message(self.request, &header, text)
            }
            "camt054" => {
                let name = self.request.query_text("participant").unwrap_or_default();
                let number = self.number(name)?;
                let mut own =
                    settlement.accounts.iter().filter(|(key, _)| key.currency == currency).enumerate();
                let found = own.find(|(_, (key, _))| key.participant == number);
                let (index, (_, row)) =
                    found.ok_or_else(|| nothing("the participant has no part in this settlement"))?;
                // The message states that the bank has booked the settlement.
                if row.state != SettlementState::Settled as u8 {
                    return Err(conflict("the participant's account is not SETTLED yet"));
                }
                let text = camt054::write(&reported, index).map_err(|error| not_made(&error))?;
                let text = text.ok_or_else(|| nothing("the participant pays and is paid nothing"))?;
                let id = camt054::message_id(&reported, index);
                let (to, namespace) = (&reported.nets[index].participant.name, camt054::NAMESPACE);
                let header = Header { from: HUB_NAME, to, id: &id, namespace, created: reported.created };
                message(self.request, &header, text)
            }
            _ => Err(malformed("the format is json, csv, pacs009 or camt054")),
        }
    }

    /// The input for reports on one currency of a settlement.
    fn reported(&self, settlement: &Settlement, currency: u32) -> Result<Reported, Response> {
        let directory = self.service.directory();
        let windows = windows_of(&settlement.row);
        let mut nets = Vec::new();
        for (key, row) in settlement.accounts.iter().filter(|(key, _)| key.currency == currency) {
            let (mut sent_count, mut received_count) = (0, 0);
            for window in &windows {
                if let Some(part) = self.net_row(*window, key.participant, currency)? {
                    sent_count += part.sent_count;
                    received_count += part.received_count;
                }
            }
            nets.push(Net {
                participant: agent(directory.name(key.participant)),
                sent_count,
                sent: row.sent,
                received_count,
                received: row.received,
                net: net(row),
            });
        }
        Ok(Reported {
            id: settlement.id.to_string(),
            currency: Currency::new(&currency_text(currency)).map_err(|error| not_made(&error))?,
            created: Instant(settlement.row.created.as_micros() / 1000),
            windows,
            hub: agent(HUB_NAME),
            nets,
        })
    }

    fn net_row(&self, window: u64, participant: u32, currency: u32) -> Result<Option<NetRow>, Response> {
        let found = self.service.store().get::<Nets>(&NetKey { window, participant, currency });
        Ok(found.map_err(|error| failed(&error.into()))?.map(|stored| stored.row))
    }

    /// A participant's transfers of one window in order, as JSON or CSV, which must add up to its net.
    pub(super) async fn window_statement(&self, window: &str) -> Answer {
        let number = self.number(self.param("name"))?;
        let unknown = || failed(&Refusal::Unknown("settlement window").into());
        let window: u64 = window.parse().map_err(|_| unknown())?;
        let stored = self.service.store().get::<Windows>(&WindowKey { id: window });
        let row = stored.map_err(|error| failed(&error.into()))?.ok_or_else(unknown)?.row;
        let currency = self.request.query_text("currency").ok_or_else(|| malformed("name a currency"))?;
        let currency = bodies::currency(currency).map_err(|error| failed(&error))?;
        let before = self.net_row(window, number, currency)?;
        let mut transfers = self.transfers_of(window, number, currency).await?;
        // If the window is still open, more transfers may have been committed between the two reads.
        if before != self.net_row(window, number, currency)? {
            return Err(fault(503, ApiError::ServerBusy, "the window is moving; close it first"));
        }
        transfers.sort_by_key(|(id, row)| (row.completed, *id));
        let directory = self.service.directory();
        let entry = |(id, row): &(u128, TransferRow)| {
            let amount = i128::try_from(row.amount).expect("amounts are below 10^22");
            let (kind, other, change) = if row.payer == number {
                (EntryKind::Sent, row.payee, amount)
            } else {
                (EntryKind::Received, row.payer, -amount)
            };
            Entry {
                at: Instant(row.completed),
                kind,
                reference: format_uuid(*id),
                counterparty: directory.name(other).to_owned(),
                change,
            }
        };
        let closing = before.map_or(Ok(0), |row| {
            let signed = |amount: u128| i128::try_from(amount).map_err(|_| not_made(&ReportError::TooLarge));
            Ok::<i128, Response>(signed(row.sent)? - signed(row.received)?)
        })?;
        let statement = Statement {
            participant: directory.name(number).to_owned(),
            currency: Currency::new(&currency_text(currency)).map_err(|error| not_made(&error))?,
            opening: 0,
            entries: transfers.iter().map(entry).collect(),
            closing,
        };
        // Also checked for JSON: a statement that does not lead to the net would be wrong.
        let table = tables::statement(&statement).map_err(|error| not_made(&error))?;
        match self.request.query_text("format") {
            Some("csv") => Ok(Response::bytes(200, CSV, table)),
            None | Some("json") => Ok(Response::json(200, &statement_json(window, &statement))),
            Some("camt053") => {
                if WindowState::of(&row) == WindowState::Open {
                    return Err(conflict("the window is open: its statement is made once it is closed"));
                }
                let millis = |time: batzen_protocol::Timestamp| Instant(time.as_micros() / 1000);
                let name = &statement.participant;
                let about = Window {
                    id: window,
                    opened: millis(row.created),
                    closed: millis(row.changed),
                    account: Agent {
                        name: name.clone(),
                        bic: None,
                        account: format!("POSITION-{name}").chars().take(ACCOUNT_CHARS_MAX).collect(),
                    },
                };
                let text = camt053::write(&about, number, &statement).map_err(|error| not_made(&error))?;
                let id = about.message_id(&statement.currency, number);
                let (namespace, created) = (camt053::NAMESPACE, about.closed);
                message(self.request, &Header { from: HUB_NAME, to: name, id: &id, namespace, created }, text)
            }
            Some(_) => Err(malformed("the format is json, csv or camt053")),
        }
    }

    /// A transfer as a credit transfer (`pacs.008`), or its status (`pacs.002`).
    async fn transfer_report(&self) -> Answer {
        let unknown = || failed(&Refusal::Unknown("transfer").into());
        let id = parse_uuid(self.param("id")).ok_or_else(unknown)?;
        let stored = self.service.store().get::<Transfers>(&TransferKey { id });
        let row = stored.map_err(|error| failed(&error.into()))?.ok_or_else(unknown)?.row;
        let directory = self.service.directory();
        let (payer, payee) = (directory.name(row.payer), directory.name(row.payee));
        if payer.is_empty() || payee.is_empty() {
            return Err(conflict("payer or payee of this transfer is not a participant"));
        }
        let status = match TransferStage::of(&row).external() {
            TransferState::Committed => Status::Cleared,
            TransferState::Aborted => Status::Rejected { code: row.error_code, text: row.error_text.clone() },
            TransferState::Received | TransferState::Reserved => Status::Pending,
        };
        let at = if row.completed == 0 { self.service.now().as_micros() / 1000 } else { row.completed };
        let transfer = Transfer {
            id: format_uuid(id),
            payer: agent(payer),
            payee: agent(payee),
            currency: Currency::new(&currency_text(row.currency)).map_err(|error| not_made(&error))?,
            amount: row.amount,
            received: Instant(received_millis(&row)),
            at: Instant(at),
            status,
            hub: HUB_NAME.to_owned(),
        };
        let (text, to, id, namespace) = match self.request.query_text("format") {
            Some("pacs008") => {
                let text = transfer.credit_transfer().map_err(|error| not_made(&error))?;
                let text =
                    text.ok_or_else(|| conflict("the transfer is not cleared: pacs.002 says how it stands"))?;
                (text, payee, transfer.short_id(), PACS008)
            }
            Some("pacs002") => {
                let text = transfer.status_report().map_err(|error| not_made(&error))?;
                (text, payer, format!("{}-S", transfer.short_id()), PACS002)
            }
            _ => return Err(malformed("the format is pacs008 or pacs002")),
        };
        let header = Header { from: HUB_NAME, to, id: &id, namespace, created: transfer.at };
        message(self.request, &header, text)
    }

    /// A participant's committed transfers of a window that count towards nets. It reads all transfers.
    async fn transfers_of(
        &self,
        window: u64,
        number: u32,
        currency: u32,
    ) -> Result<Vec<(u128, TransferRow)>, Response> {
        let store = self.service.store().clone();
        let read = move || {
            let mut transfers = Vec::new();
            store.scan::<Transfers>(|found| {
                let row = found.row;
                let is_own = row.payer == number || row.payee == number;
                let is_committed =
                    matches!(TransferStage::of(&row), TransferStage::Committed | TransferStage::Settled);
                if is_own && is_committed && !row.gross && row.window == window && row.currency == currency {
                    transfers.push((found.key.id, row));
                }
                if transfers.len() > ENTRIES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            Ok::<_, StoreError>(transfers)
        };
        let transfers = tokio::task::spawn_blocking(read).await.expect("reading does not panic");
        let transfers = transfers.map_err(|error| failed(&error.into()))?;
        if transfers.len() > ENTRIES_MAX {
            return Err(conflict("the window has too many transfers of this participant for one statement"));
        }
        Ok(transfers)
    }
}

/// The currency named in a request; optional if there is only one.
fn currency_of(settlement: &Settlement, request: &Request) -> Result<u32, Response> {
    let is_in = |currency: u32| settlement.accounts.iter().any(|(key, _)| key.currency == currency);
    if let Some(text) = request.query_text("currency") {
        let currency = bodies::currency(text).map_err(|error| failed(&error))?;
        return if is_in(currency) {
            Ok(currency)
        } else {
            Err(nothing("the settlement has nothing in this currency"))
        };
    }
    let first = settlement.accounts.first().ok_or_else(|| nothing("the settlement has no accounts"))?;
    let currency = first.0.currency;
    if settlement.accounts.iter().any(|(key, _)| key.currency != currency) {
        return Err(malformed("the settlement has several currencies: name one"));
    }
    Ok(currency)
}

fn statement_json(window: u64, statement: &Statement) -> Value {
    let mut position = statement.opening;
    let entries: Vec<Value> = statement
        .entries
        .iter()
        .map(|entry| {
            // The table of the same statement has checked it.
            position += entry.change;
            json!({
                "time": format_ms(entry.at.0), "kind": entry.kind.name(), "transferId": entry.reference,
                "counterparty": entry.counterparty, "change": format_signed(entry.change),
                "position": format_signed(position),
            })
        })
        .collect();
    json!({
        "participant": statement.participant, "currency": statement.currency.code,
        "settlementWindowId": window, "opening": format_signed(statement.opening), "entries": entries,
        "closing": format_signed(statement.closing),
    })
}

//! Reports of settlements for the settlement bank and the participants.

use std::ops::ControlFlow;

use batzen_http::Response;
use batzen_store::StoreError;
use batzen_switch_reports::data::{Agent, Currency, Instant, Net, Settlement as Reported};
use batzen_switch_reports::pacs009::Leg;
use batzen_switch_reports::tables::{self, Entry, EntryKind, Statement};
use batzen_switch_reports::{ReportError, camt054, pacs009};
use batzen_tables::switch::{NetKey, NetRow, Nets, TransferRow, Transfers, WindowKey, Windows};
use serde_json::{Value, json};

use super::{AdminApi, Answer, HUB_NAME, Wish, bodies, failed, fault};
use crate::errors::ApiError;
use crate::rules::Refusal;
use crate::rules::settlements::{SettlementState, windows_of};
use crate::rules::state::TransferStage;
use crate::settlement::{Settlement, net};
use crate::treasury::OperatorError;
use crate::values::{currency_text, format_signed, format_time, format_uuid};

/// Transfers in one statement.
const ENTRIES_MAX: usize = 100_000;

const CSV: &str = "text/csv; charset=utf-8";
const XML: &str = "application/xml; charset=utf-8";

fn malformed(text: &str) -> Response {
    failed(&OperatorError::Malformed(text.to_owned()))
}

fn conflict(text: &str) -> Response {
    failed(&Refusal::Conflict(text.to_owned()).into())
}

/// A report that would mislead is not made: the settlement or its currency does not allow it.
fn not_made(error: &ReportError) -> Response {
    conflict(&error.to_string())
}

fn nothing(text: &str) -> Response {
    fault(404, ApiError::IdNotFound, text)
}

fn agent(name: &str) -> Agent {
    Agent { name: name.to_owned(), bic: None, account: format!("SETTLEMENT-{name}") }
}

/// The settlement bank's leg that a request names.
fn leg(wish: &Wish<'_>) -> Result<Leg, Response> {
    match wish.request.query_text("leg") {
        Some("collection") => Ok(Leg::Collection),
        Some("payout") => Ok(Leg::Payout),
        _ => Err(malformed("leg is collection or payout")),
    }
}

impl AdminApi {
    /// A settlement as JSON, or for one currency as CSV, `pacs.009` (by leg) or `camt.054` (by participant).
    pub(super) fn settlement_report(&self, wish: &Wish<'_>) -> Answer {
        let settlement = self.settlement_of(wish.param(0))?;
        let format = wish.request.query_text("format").unwrap_or("json");
        if format == "json" {
            return Ok(Response::json(200, &self.settlement_json(&settlement)?));
        }
        let currency = currency_of(&settlement, wish)?;
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
                let message = pacs009::write(&reported, leg(wish)?).map_err(|error| not_made(&error))?;
                Ok(Response::bytes(200, XML, message.ok_or_else(|| nothing("nobody owes anything"))?))
            }
            "camt054" => {
                let name = wish.request.query_text("participant").unwrap_or_default();
                let number = self.number(name)?;
                let mut own =
                    settlement.accounts.iter().filter(|(key, _)| key.currency == currency).enumerate();
                let found = own.find(|(_, (key, _))| key.participant == number);
                let (index, (_, row)) =
                    found.ok_or_else(|| nothing("the participant has no part in this settlement"))?;
                // The message says that the bank has booked it.
                if row.state != SettlementState::Settled as u8 {
                    return Err(conflict("the participant's account is not SETTLED yet"));
                }
                let message = camt054::write(&reported, index).map_err(|error| not_made(&error))?;
                let message = message.ok_or_else(|| nothing("the participant pays and is paid nothing"))?;
                Ok(Response::bytes(200, XML, message))
            }
            _ => Err(malformed("the format is json, csv, pacs009 or camt054")),
        }
    }

    /// What reports of one currency of a settlement are made from.
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

    /// A participant's transfers of one window in their order, as JSON or CSV, which must make its net.
    pub(super) async fn window_statement(&self, wish: &Wish<'_>, window: &str) -> Answer {
        let number = self.number(wish.param(0))?;
        let unknown = || failed(&Refusal::Unknown("settlement window").into());
        let window: u64 = window.parse().map_err(|_| unknown())?;
        let stored = self.service.store().get::<Windows>(&WindowKey { id: window });
        stored.map_err(|error| failed(&error.into()))?.ok_or_else(unknown)?;
        let currency = wish.request.query_text("currency").ok_or_else(|| malformed("name a currency"))?;
        let currency = bodies::currency(currency).map_err(|error| failed(&error))?;
        let before = self.net_row(window, number, currency)?;
        let mut transfers = self.transfers_of(window, number, currency).await?;
        // Of a window that is still open, more may have been committed between the two.
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
            Ok(signed(row.sent)? - signed(row.received)?)
        })?;
        let statement = Statement {
            participant: directory.name(number).to_owned(),
            currency: Currency::new(&currency_text(currency)).map_err(|error| not_made(&error))?,
            opening: 0,
            entries: transfers.iter().map(entry).collect(),
            closing,
        };
        // Checked for JSON too: a statement that does not lead to the net is no statement.
        let table = tables::statement(&statement).map_err(|error| not_made(&error))?;
        match wish.request.query_text("format") {
            Some("csv") => Ok(Response::bytes(200, CSV, table)),
            None | Some("json") => Ok(Response::json(200, &statement_json(window, &statement))),
            Some(_) => Err(malformed("the format is json or csv")),
        }
    }

    /// A participant's committed transfers of a window that count towards nets. Reads all transfers.
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

/// The currency that a request names; it need not if there is only one.
fn currency_of(settlement: &Settlement, wish: &Wish<'_>) -> Result<u32, Response> {
    let is_in = |currency: u32| settlement.accounts.iter().any(|(key, _)| key.currency == currency);
    if let Some(text) = wish.request.query_text("currency") {
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
            // Checked by the table of the same statement.
            position += entry.change;
            json!({
                "time": format_time(entry.at.0), "kind": entry.kind.name(), "transferId": entry.reference,
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

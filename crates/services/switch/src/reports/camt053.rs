//! A participant's statement of a settlement window: `camt.053.001.08`, bank to customer statement.
//!
//! The account is the participant's position: a debt is a debit balance, a claim a credit balance.

use crate::reports::ReportError;
use crate::reports::data::{Agent, Currency, Instant};
use crate::reports::entry::BookedEntry;
use crate::reports::tables::{Entry, EntryKind, Statement};
use crate::reports::xml::Document;

/// The namespace of the message.
pub const NAMESPACE: &str = "urn:iso:std:iso:20022:tech:xsd:camt.053.001.08";

/// The facts of a statement other than its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The window.
    pub id: u64,
    /// When it was opened.
    pub opened: Instant,
    /// When it was closed, or when the statement was made; this is the date of the message.
    pub closed: Instant,
    /// The participant, with the name of its position account.
    pub account: Agent,
}

impl Window {
    /// The id of the message.
    #[must_use]
    pub fn message_id(&self, currency: &Currency, participant: u32) -> String {
        format!("W{}-{}-{participant}", self.id, currency.code)
    }
}

const fn indicator(position: i128) -> &'static str {
    if position > 0 { "DBIT" } else { "CRDT" }
}

/// The message for the participant of this number.
///
/// # Errors
/// When the entries do not lead from the opening to the closing position, or contain data that the message
/// cannot carry.
pub fn write(window: &Window, participant: u32, statement: &Statement) -> Result<String, ReportError> {
    statement.check()?;
    let currency = &statement.currency;
    let id = window.message_id(currency, participant);
    Document::write(NAMESPACE, |document| {
        document.element("BkToCstmrStmt", |document| {
            document.element("GrpHdr", |document| {
                document.id("MsgId", &id)?;
                document.text("CreDtTm", &window.closed.date_time());
                Ok(())
            })?;
            document.element("Stmt", |document| {
                document.id("Id", &id)?;
                document.text("ElctrncSeqNb", &window.id.to_string());
                document.text("CreDtTm", &window.closed.date_time());
                document.element("FrToDt", |document| {
                    document.text("FrDtTm", &window.opened.date_time());
                    document.text("ToDtTm", &window.closed.date_time());
                    Ok(())
                })?;
                document.account("Acct", &window.account.account, Some(currency))?;
                balance(document, "OPBD", currency, statement.opening, window.opened)?;
                balance(document, "CLBD", currency, statement.closing, window.closed)?;
                summary(document, currency, &statement.entries)?;
                statement.entries.iter().try_for_each(|one| entry(document, currency, one))
            })
        })
    })
}

fn balance(
    document: &mut Document,
    code: &str,
    currency: &Currency,
    position: i128,
    at: Instant,
) -> Result<(), ReportError> {
    document.element("Bal", |document| {
        document.element("Tp", |document| {
            document.element("CdOrPrtry", |document| {
                document.text("Cd", code);
                Ok(())
            })
        })?;
        document.amount("Amt", currency, position.unsigned_abs())?;
        document.text("CdtDbtInd", indicator(position));
        document.element("Dt", |document| {
            document.text("DtTm", &at.date_time());
            Ok(())
        })
    })
}

fn summary(document: &mut Document, currency: &Currency, entries: &[Entry]) -> Result<(), ReportError> {
    document.element("TxsSummry", |document| {
        for (name, kind) in [("TtlCdtNtries", "CRDT"), ("TtlDbtNtries", "DBIT")] {
            let own = || entries.iter().filter(|entry| indicator(entry.change) == kind);
            let sum = own().try_fold(0_u128, |sum, entry| sum.checked_add(entry.change.unsigned_abs()));
            let sum = currency.format(sum.ok_or(ReportError::TooLarge)?)?;
            document.element(name, |document| {
                document.text("NbOfNtries", &own().count().to_string());
                document.text("Sum", &sum);
                Ok(())
            })?;
        }
        Ok(())
    })
}

fn entry(document: &mut Document, currency: &Currency, entry: &Entry) -> Result<(), ReportError> {
    let family = match entry.kind {
        EntryKind::Sent => "ICDT",
        EntryKind::Received => "RCDT",
        EntryKind::Settlement => "MCOP",
    };
    let id = entry.reference.replace('-', "");
    let entry = BookedEntry {
        id: &id,
        amount: entry.change.unsigned_abs(),
        indicator: indicator(entry.change),
        families: [family, "OTHR"],
        date: ("DtTm", &entry.at.date_time()),
    };
    entry.write(document, currency)
}

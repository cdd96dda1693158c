//! CSV by RFC 4180: a header, one record per line, quotes where needed, lines end with CR LF.

use csv::{Terminator, WriterBuilder};

use crate::reports::ReportError;
use crate::reports::data::{Currency, Instant, Settlement};

/// The settlement report: one record per participant. Debtors have a positive net.
///
/// # Errors
/// If the settlement does not add up, or an amount does not fit the currency.
pub fn settlement(settlement: &Settlement) -> Result<String, ReportError> {
    settlement.check()?;
    let mut table = Table::new([
        "settlement",
        "date",
        "currency",
        "windows",
        "participant",
        "account",
        "sent_count",
        "sent",
        "received_count",
        "received",
        "net",
    ]);
    let currency = &settlement.currency;
    let windows: Vec<String> = settlement.windows.iter().map(u64::to_string).collect();
    let (windows, date) = (windows.join(" "), settlement.created.date());
    for net in &settlement.nets {
        table.record([
            &settlement.id,
            &date,
            &currency.code,
            &windows,
            &net.participant.name,
            &net.participant.account,
            &net.sent_count.to_string(),
            &currency.format(net.sent)?,
            &net.received_count.to_string(),
            &currency.format(net.received)?,
            &currency.format_signed(net.net)?,
        ]);
    }
    Ok(table.finish())
}

batzen_protocol::enumeration! {
    /// Kind of a movement of a position.
    pub enum EntryKind {
        /// A committed transfer to another participant.
        Sent => "sent",
        /// A committed transfer from another participant.
        Received => "received",
        /// The effect of a settlement.
        Settlement => "settlement",
    }
}

/// One movement of a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its time.
    pub at: Instant,
    /// Its kind.
    pub kind: EntryKind,
    /// The transfer or settlement.
    pub reference: String,
    /// The other participant; empty for a settlement.
    pub counterparty: String,
    /// The change of the position: sent amounts raise it, received amounts lower it.
    pub change: i128,
}

/// A participant's statement: opening position, every movement, closing position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The participant.
    pub participant: String,
    /// The currency.
    pub currency: Currency,
    /// The position before the first entry.
    pub opening: i128,
    /// The movements in their order.
    pub entries: Vec<Entry>,
    /// The position after the last entry.
    pub closing: i128,
}

impl Statement {
    /// # Errors
    /// When the entries do not lead from the opening to the closing position.
    pub fn check(&self) -> Result<(), ReportError> {
        let add = |position: i128, entry: &Entry| position.checked_add(entry.change);
        let computed = self.entries.iter().try_fold(self.opening, add).ok_or(ReportError::TooLarge)?;
        if computed == self.closing {
            return Ok(());
        }
        let (participant, closing) = (self.participant.clone(), self.closing);
        Err(ReportError::WrongStatement { participant, computed, closing })
    }
}

/// The statement as a table: one record per movement with the position after it, between two records for
/// opening and closing position.
///
/// # Errors
/// If the entries do not lead from the opening to the closing position, or an amount does not fit the
/// currency.
pub fn statement(statement: &Statement) -> Result<String, ReportError> {
    statement.check()?;
    let mut table =
        Table::new(["time", "kind", "reference", "counterparty", "currency", "change", "position"]);
    let currency = &statement.currency;
    let mut position = statement.opening;
    table.record(["", "opening", "", "", &currency.code, "", &currency.format_signed(position)?]);
    for entry in &statement.entries {
        position = position.checked_add(entry.change).ok_or(ReportError::TooLarge)?;
        table.record([
            &entry.at.date_time(),
            entry.kind.name(),
            &entry.reference,
            &entry.counterparty,
            &currency.code,
            &currency.format_signed(entry.change)?,
            &currency.format_signed(position)?,
        ]);
    }
    table.record(["", "closing", "", "", &currency.code, "", &currency.format_signed(position)?]);
    Ok(table.finish())
}

/// A table whose records have the length of its header.
struct Table<const N: usize>(csv::Writer<Vec<u8>>);

impl<const N: usize> Table<N> {
    fn new(header: [&str; N]) -> Self {
        let mut table = Self(WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new()));
        table.record(header);
        table
    }

    fn record(&mut self, fields: [&str; N]) {
        self.0.write_record(fields).expect("memory takes records of one length");
    }

    fn finish(self) -> String {
        let bytes = self.0.into_inner().map_err(|error| error.to_string()).expect("memory takes everything");
        String::from_utf8(bytes).expect("made of strings only")
    }
}

//! One transfer that the switch cleared or refused: `pacs.008.001.08`, customer credit transfer, and
//! `pacs.002.001.10`, payment status report.
//!
//! The switch knows the participants but not their customers, so debtor and creditor are `NOTPROVIDED`, the
//! usual value of that field.

use crate::reports::ReportError;
use crate::reports::data::{Agent, Currency, Instant};
use crate::reports::xml::Document;

/// The namespace of the credit transfer.
pub const PACS008: &str = "urn:iso:std:iso:20022:tech:xsd:pacs.008.001.08";
/// The namespace of the status report.
pub const PACS002: &str = "urn:iso:std:iso:20022:tech:xsd:pacs.002.001.10";
/// The placeholder for a customer whom the switch does not know.
const NOT_PROVIDED: &str = "NOTPROVIDED";
/// Characters of a status reason's text (Max105Text).
const REASON_CHARS_MAX: usize = 105;

/// The state of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Accepted but not yet decided (`PDNG`).
    Pending,
    /// Cleared (`ACSC`).
    Cleared,
    /// Refused, rejected or expired (`RJCT`).
    Rejected {
        /// The error code of the participants' interface.
        code: u16,
        /// The reason.
        text: String,
    },
}

impl Status {
    const fn code(&self) -> &'static str {
        match self {
            Self::Pending => "PDNG",
            Self::Cleared => "ACSC",
            Self::Rejected { .. } => "RJCT",
        }
    }
}

/// A transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its id: a UUID with hyphens.
    pub id: String,
    /// The participant that pays.
    pub payer: Agent,
    /// The participant that is paid.
    pub payee: Agent,
    /// The currency.
    pub currency: Currency,
    /// The amount in ten-thousandths.
    pub amount: u128,
    /// When the switch received it.
    pub received: Instant,
    /// When it was decided or queried; this is the date of messages.
    pub at: Instant,
    /// Its state.
    pub status: Status,
    /// The clearing system.
    pub hub: String,
}

impl Transfer {
    /// The id without hyphens: identifiers have at most 35 characters.
    #[must_use]
    pub fn short_id(&self) -> String {
        self.id.replace('-', "")
    }

    /// The id as the end-to-end reference of the transaction, if it is a version 4 UUID.
    fn uetr(&self) -> Option<&str> {
        let bytes = self.id.as_bytes();
        let is_v4 = bytes.len() == 36 && bytes[14] == b'4' && b"89ab".contains(&bytes[19]);
        is_v4.then_some(self.id.as_str())
    }

    /// The credit transfer; `None` if it was not cleared.
    ///
    /// # Errors
    /// When it contains data that the message cannot carry.
    pub fn credit_transfer(&self) -> Result<Option<String>, ReportError> {
        if self.status != Status::Cleared {
            return Ok(None);
        }
        let id = self.short_id();
        let message = Document::write(PACS008, |document| {
            document.element("FIToFICstmrCdtTrf", |document| {
                document.element("GrpHdr", |document| {
                    document.id("MsgId", &id)?;
                    document.text("CreDtTm", &self.at.date_time());
                    document.text("NbOfTxs", "1");
                    document.element("SttlmInf", |document| {
                        document.text("SttlmMtd", "CLRG");
                        document.element("ClrSys", |document| document.id("Prtry", &self.hub))
                    })
                })?;
                document.element("CdtTrfTxInf", |document| {
                    document.element("PmtId", |document| {
                        document.id("InstrId", &id)?;
                        document.id("EndToEndId", &id)?;
                        document.id("TxId", &id)?;
                        if let Some(uetr) = self.uetr() {
                            document.text("UETR", uetr);
                        }
                        Ok(())
                    })?;
                    document.amount("IntrBkSttlmAmt", &self.currency, self.amount)?;
                    document.text("IntrBkSttlmDt", &self.at.date());
                    document.text("AccptncDtTm", &self.received.date_time());
                    document.text("ChrgBr", "SLEV");
                    document.agent("InstgAgt", &self.payer)?;
                    document.agent("InstdAgt", &self.payee)?;
                    customer(document, "Dbtr")?;
                    document.agent("DbtrAgt", &self.payer)?;
                    document.agent("CdtrAgt", &self.payee)?;
                    customer(document, "Cdtr")
                })
            })
        })?;
        Ok(Some(message))
    }

    /// The status report.
    ///
    /// # Errors
    /// When it contains data that the message cannot carry.
    pub fn status_report(&self) -> Result<String, ReportError> {
        let id = self.short_id();
        Document::write(PACS002, |document| {
            document.element("FIToFIPmtStsRpt", |document| {
                document.element("GrpHdr", |document| {
                    document.id("MsgId", &format!("{id}-S"))?;
                    document.text("CreDtTm", &self.at.date_time());
                    Ok(())
                })?;
                document.element("TxInfAndSts", |document| {
                    document.id("OrgnlInstrId", &id)?;
                    document.id("OrgnlEndToEndId", &id)?;
                    document.id("OrgnlTxId", &id)?;
                    if let Some(uetr) = self.uetr() {
                        document.text("OrgnlUETR", uetr);
                    }
                    document.text("TxSts", self.status.code());
                    if let Status::Rejected { code, text } = &self.status {
                        reason(document, *code, text)?;
                    }
                    document.text("AccptncDtTm", &self.received.date_time());
                    document.agent("InstgAgt", &self.payer)?;
                    document.agent("InstdAgt", &self.payee)
                })
            })
        })
    }
}

fn customer(document: &mut Document, name: &str) -> Result<(), ReportError> {
    document.element(name, |document| {
        document.text("Nm", NOT_PROVIDED);
        Ok(())
    })
}

fn reason(document: &mut Document, code: u16, text: &str) -> Result<(), ReportError> {
    document.element("StsRsnInf", |document| {
        document.element("Rsn", |document| document.id("Prtry", &format!("{code:04}")))?;
        let text: String =
            text.chars().filter(|character| !character.is_control()).take(REASON_CHARS_MAX).collect();
        if !text.is_empty() {
            document.text("AddtlInf", &text);
        }
        Ok(())
    })
}

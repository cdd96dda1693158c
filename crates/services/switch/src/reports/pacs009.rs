//! Instructions to the settlement bank: `pacs.009.001.08`, financial institution credit transfer.
//!
//! All money passes through the clearing system's account at the settlement bank. First the debtors pay into
//! it ([`Leg::Collection`], a transaction for each); then the creditors are paid from it ([`Leg::Payout`]).
//! Both messages have the same total. End-to-end ids name settlement and participant, so that a bank
//! recognises a repeated message.

use crate::reports::ReportError;
use crate::reports::data::{Agent, Net, Settlement};
use crate::reports::xml::Document;

/// The namespace of the message.
pub const NAMESPACE: &str = "urn:iso:std:iso:20022:tech:xsd:pacs.009.001.08";

/// The half of a settlement that a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// Debtors pay the clearing system.
    Collection,
    /// The clearing system pays the creditors.
    Payout,
}

impl Leg {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Collection => "C",
            Self::Payout => "P",
        }
    }

    const fn concerns(self, net: &Net) -> bool {
        match self {
            Self::Collection => net.net > 0,
            Self::Payout => net.net < 0,
        }
    }
}

/// The end-to-end id of a participant's part of a settlement; `index` is its position among the nets.
#[must_use]
pub fn end_to_end_id(settlement: &Settlement, index: usize) -> String {
    format!("S{}-{}-{index}", settlement.id, settlement.currency.code)
}

/// The id of the message for one leg.
#[must_use]
pub fn message_id(settlement: &Settlement, leg: Leg) -> String {
    format!("S{}-{}-{}", settlement.id, settlement.currency.code, leg.suffix())
}

/// The message for one leg; `None` if all nets are zero.
///
/// # Errors
/// If the settlement does not add up, or contains data that the message cannot carry.
pub fn write(settlement: &Settlement, leg: Leg) -> Result<Option<String>, ReportError> {
    let total = settlement.check()?;
    let concerned: Vec<(usize, &Net)> =
        settlement.nets.iter().enumerate().filter(|(_, net)| leg.concerns(net)).collect();
    if concerned.is_empty() {
        return Ok(None);
    }
    let currency = &settlement.currency;
    let id = message_id(settlement, leg);
    let message = Document::write(NAMESPACE, |document| {
        document.element("FICdtTrf", |document| {
            document.element("GrpHdr", |document| {
                document.id("MsgId", &id)?;
                document.text("CreDtTm", &settlement.created.date_time());
                document.text("NbOfTxs", &concerned.len().to_string());
                document.text("CtrlSum", &currency.format(total)?);
                document.amount("TtlIntrBkSttlmAmt", currency, total)?;
                // The date is here, so it must not be in the transactions.
                document.text("IntrBkSttlmDt", &settlement.created.date());
                document.element("SttlmInf", |document| {
                    document.text("SttlmMtd", "CLRG");
                    document.element("ClrSys", |document| document.id("Prtry", &settlement.hub.name))
                })
            })?;
            for (index, net) in &concerned {
                transaction(document, settlement, leg, *index, net)?;
            }
            Ok(())
        })
    })?;
    Ok(Some(message))
}

fn transaction(
    document: &mut Document,
    settlement: &Settlement,
    leg: Leg,
    index: usize,
    net: &Net,
) -> Result<(), ReportError> {
    let (debtor, creditor): (&Agent, &Agent) = match leg {
        Leg::Collection => (&net.participant, &settlement.hub),
        Leg::Payout => (&settlement.hub, &net.participant),
    };
    let id = end_to_end_id(settlement, index);
    document.element("CdtTrfTxInf", |document| {
        document.element("PmtId", |document| {
            document.id("InstrId", &id)?;
            document.id("EndToEndId", &id)?;
            document.id("TxId", &id)
        })?;
        document.amount("IntrBkSttlmAmt", &settlement.currency, net.net.unsigned_abs())?;
        document.agent("Dbtr", debtor)?;
        document.account("DbtrAcct", &debtor.account, None)?;
        document.agent("Cdtr", creditor)?;
        document.account("CdtrAcct", &creditor.account, None)
    })
}

//! Notification of a participant about its part of a settlement: `camt.054.001.08`, bank to customer debit
//! credit notification.

use crate::reports::ReportError;
use crate::reports::data::Settlement;
use crate::reports::entry::BookedEntry;
use crate::reports::pacs009::end_to_end_id;
use crate::reports::xml::Document;

/// The namespace of the message.
pub const NAMESPACE: &str = "urn:iso:std:iso:20022:tech:xsd:camt.054.001.08";

/// The id of the message for participant `index`.
#[must_use]
pub fn message_id(settlement: &Settlement, index: usize) -> String {
    format!("{}-N", end_to_end_id(settlement, index))
}

/// The message for participant `index` of the settlement's nets; `None` if it does not exist or its net is
/// zero.
///
/// # Errors
/// If the settlement does not add up, or contains data that the message cannot carry.
pub fn write(settlement: &Settlement, index: usize) -> Result<Option<String>, ReportError> {
    settlement.check()?;
    let Some(net) = settlement.nets.get(index).filter(|net| net.net != 0) else { return Ok(None) };
    let currency = &settlement.currency;
    let id = end_to_end_id(settlement, index);
    // A participant that owes money is debited.
    let (indicator, family, totals) =
        if net.net > 0 { ("DBIT", "ICDT", "TtlDbtNtries") } else { ("CRDT", "RCDT", "TtlCdtNtries") };
    let amount = net.net.unsigned_abs();
    let message = Document::write(NAMESPACE, |document| {
        document.element("BkToCstmrDbtCdtNtfctn", |document| {
            document.element("GrpHdr", |document| {
                document.id("MsgId", &message_id(settlement, index))?;
                document.text("CreDtTm", &settlement.created.date_time());
                Ok(())
            })?;
            document.element("Ntfctn", |document| {
                document.id("Id", &message_id(settlement, index))?;
                document.text("CreDtTm", &settlement.created.date_time());
                document.account("Acct", &net.participant.account, Some(currency))?;
                document.element("TxsSummry", |document| {
                    document.element(totals, |document| {
                        document.text("NbOfNtries", "1");
                        document.text("Sum", &currency.format(amount)?);
                        Ok(())
                    })
                })?;
                let entry = BookedEntry {
                    id: &id,
                    amount,
                    indicator,
                    families: [family, "FICT"],
                    date: ("Dt", &settlement.created.date()),
                };
                entry.write(document, currency)
            })
        })
    })?;
    Ok(Some(message))
}

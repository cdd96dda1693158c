//! A booked entry of an account, as statements and notifications show it.

use crate::reports::ReportError;
use crate::reports::data::Currency;
use crate::reports::xml::Document;

/// A booked entry.
pub(super) struct BookedEntry<'a> {
    pub id: &'a str,
    pub amount: u128,
    /// Debit or credit.
    pub indicator: &'a str,
    /// Family and sub-family of the payment.
    pub families: [&'a str; 2],
    /// The element that holds the date of booking and value, and its text.
    pub date: (&'a str, &'a str),
}

impl BookedEntry<'_> {
    pub(super) fn write(&self, document: &mut Document, currency: &Currency) -> Result<(), ReportError> {
        document.element("Ntry", |document| {
            document.id("NtryRef", self.id)?;
            document.amount("Amt", currency, self.amount)?;
            document.text("CdtDbtInd", self.indicator);
            document.element("Sts", |document| {
                document.text("Cd", "BOOK");
                Ok(())
            })?;
            for name in ["BookgDt", "ValDt"] {
                document.element(name, |document| {
                    document.text(self.date.0, self.date.1);
                    Ok(())
                })?;
            }
            document.element("BkTxCd", |document| {
                document.element("Domn", |document| {
                    document.text("Cd", "PMNT");
                    document.element("Fmly", |document| {
                        document.text("Cd", self.families[0]);
                        document.text("SubFmlyCd", self.families[1]);
                        Ok(())
                    })
                })
            })?;
            document.element("NtryDtls", |document| {
                document.element("TxDtls", |document| {
                    document.element("Refs", |document| document.id("EndToEndId", self.id))?;
                    document.amount("Amt", currency, self.amount)?;
                    document.text("CdtDbtInd", self.indicator);
                    Ok(())
                })
            })
        })
    }
}

//! The business application header that goes with a message: `head.001.001.02`. How both are packed is a
//! matter of the transport.

use crate::ReportError;
use crate::data::Instant;
use crate::xml::Document;

/// The namespace of the header.
pub const NAMESPACE: &str = "urn:iso:std:iso:20022:tech:xsd:head.001.001.02";

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Who sends, by its member id of the clearing system.
    pub from: &'a str,
    /// Who receives.
    pub to: &'a str,
    /// The message's id.
    pub id: &'a str,
    /// The message's namespace.
    pub namespace: &'a str,
    /// When the message was made.
    pub created: Instant,
}

/// The header.
///
/// # Errors
/// When it holds what the header cannot carry.
pub fn write(header: &Header<'_>) -> Result<String, ReportError> {
    let definition = header.namespace.rsplit(':').next().unwrap_or_default();
    Document::write_as("AppHdr", NAMESPACE, |document| {
        for (name, member) in [("Fr", header.from), ("To", header.to)] {
            document.element(name, |document| {
                document.element("FIId", |document| {
                    document.element("FinInstnId", |document| {
                        document.element("ClrSysMmbId", |document| document.id("MmbId", member))
                    })
                })
            })?;
        }
        document.id("BizMsgIdr", header.id)?;
        document.id("MsgDefIdr", definition)?;
        document.text("CreDt", &header.created.date_time());
        Ok(())
    })
}

//! The business application header that accompanies a message: `head.001.001.02`. How both are packed depends
//! on the transport.

use crate::reports::ReportError;
use crate::reports::data::Instant;
use crate::reports::xml::Document;

/// The namespace of the header.
pub const NAMESPACE: &str = "urn:iso:std:iso:20022:tech:xsd:head.001.001.02";

/// The content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The sender, by its member id in the clearing system.
    pub from: &'a str,
    /// The receiver.
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
/// When it contains data that the header cannot carry.
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

//! Writes elements in order with quick-xml's writer, which escapes them.

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use crate::reports::ReportError;
use crate::reports::data::{Agent, Currency};

type Result<T> = std::result::Result<T, ReportError>;

/// The longest identifier of an ISO 20022 message (Max35Text).
const ID_CHARS_MAX: usize = 35;
/// The longest account number other than an IBAN (Max34Text).
const ACCOUNT_CHARS_MAX: usize = 34;

/// A document under construction.
pub(crate) struct Document {
    writer: Writer<Vec<u8>>,
}

impl Document {
    /// Writes a whole document in this namespace.
    pub(super) fn write(namespace: &str, content: impl FnOnce(&mut Self) -> Result<()>) -> Result<String> {
        Self::write_as("Document", namespace, content)
    }

    /// Writes a whole document whose first element has this name.
    pub(super) fn write_as(
        root: &str,
        namespace: &str,
        content: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<String> {
        let mut document = Self { writer: Writer::new_with_indent(Vec::new(), b' ', 2) };
        document.event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
        document.event(Event::Start(BytesStart::new(root).with_attributes([("xmlns", namespace)])));
        content(&mut document)?;
        document.event(Event::End(BytesEnd::new(root)));
        let mut bytes = document.writer.into_inner();
        bytes.push(b'\n');
        Ok(String::from_utf8(bytes).expect("made of strings only"))
    }

    fn event(&mut self, event: Event<'_>) {
        self.writer.write_event(event).expect("writing to memory does not fail");
    }

    /// An element with child elements.
    pub(super) fn element(
        &mut self,
        name: &str,
        content: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.event(Event::Start(BytesStart::new(name)));
        content(self)?;
        self.event(Event::End(BytesEnd::new(name)));
        Ok(())
    }

    /// An element with a text from this program.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.event(Event::Start(BytesStart::new(name)));
        self.event(Event::Text(BytesText::new(text)));
        self.event(Event::End(BytesEnd::new(name)));
    }

    /// An element with an identifier of 1 to 35 characters.
    pub(super) fn id(&mut self, name: &'static str, text: &str) -> Result<()> {
        checked(name, text, ID_CHARS_MAX, "an identifier of 1 to 35 visible characters")?;
        self.text(name, text);
        Ok(())
    }

    /// An element with an amount and its currency.
    pub(super) fn amount(&mut self, name: &str, currency: &Currency, amount: u128) -> Result<()> {
        let text = currency.format(amount)?;
        self.event(Event::Start(BytesStart::new(name).with_attributes([("Ccy", currency.code.as_str())])));
        self.event(Event::Text(BytesText::new(&text)));
        self.event(Event::End(BytesEnd::new(name)));
        Ok(())
    }

    /// Identifies a bank: by its BIC if it has one, and always by its member id in the clearing system.
    pub(super) fn agent(&mut self, name: &str, agent: &Agent) -> Result<()> {
        self.element(name, |document| {
            document.element("FinInstnId", |document| {
                if let Some(bic) = &agent.bic {
                    check_bic(bic)?;
                    document.text("BICFI", bic);
                }
                document.element("ClrSysMmbId", |document| document.id("MmbId", &agent.name))
            })
        })
    }

    /// An account by a number other than an IBAN.
    pub(super) fn account(&mut self, name: &str, account: &str, currency: Option<&Currency>) -> Result<()> {
        checked("Acct", account, ACCOUNT_CHARS_MAX, "an account number of 1 to 34 visible characters")?;
        self.element(name, |document| {
            document.element("Id", |document| {
                document.element("Othr", |document| {
                    document.text("Id", account);
                    Ok(())
                })
            })?;
            if let Some(currency) = currency {
                document.text("Ccy", &currency.code);
            }
            Ok(())
        })
    }
}

fn checked(field: &'static str, text: &str, chars_max: usize, expected: &'static str) -> Result<()> {
    let chars = text.chars().count();
    // XML cannot contain control characters, not even escaped.
    if (1..=chars_max).contains(&chars) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ReportError::Text { field, text: text.to_owned(), expected })
}

/// Four letters or digits, two letters of the country, two letters or digits, and optionally three for the
/// branch.
fn check_bic(bic: &str) -> Result<()> {
    let bytes = bic.as_bytes();
    let is_right = matches!(bytes.len(), 8 | 11)
        && bytes.iter().enumerate().all(|(index, byte)| {
            byte.is_ascii_uppercase() || (byte.is_ascii_digit() && !(4..6).contains(&index))
        });
    if is_right {
        return Ok(());
    }
    Err(ReportError::Text { field: "BICFI", text: bic.to_owned(), expected: "a BIC" })
}

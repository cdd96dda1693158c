//! A switch's reports about settlements, windows and transfers, for the settlement bank and the participants:
//! pure functions from plain data.
//!
//! | module | content |
//! |---|---|
//! | [`pacs009`] | instructions to the settlement bank: ISO 20022 financial institution credit transfers |
//! | [`camt054`] | notification of a participant's debit or credit: ISO 20022 |
//! | [`camt053`] | a participant's statement of a window: ISO 20022 |
//! | [`transfer`] | one transfer, and how it stands: ISO 20022 `pacs.008` and `pacs.002` |
//! | [`head001`] | the business application header that goes with a message: ISO 20022 |
//! | [`tables`] | settlement report and participant's statement as CSV |
//! | [`data`] | their input |
//!
//! Misleading reports are refused: nets that do not sum to zero, amounts finer than the currency, names that
//! the message cannot carry. Equal data gives equal bytes.

pub mod camt053;
pub mod camt054;
pub mod data;
mod entry;
pub mod head001;
pub mod pacs009;
pub mod tables;
pub mod transfer;
mod xml;

/// Why a report cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The participants' debts and claims do not balance.
    #[error("the nets of settlement {settlement} sum to {sum} ten-thousandths instead of zero")]
    Unbalanced {
        /// The settlement.
        settlement: String,
        /// The sum, in ten-thousandths of the currency.
        sum: i128,
    },
    /// A participant's net is not sent minus received.
    #[error("{participant}: {sent} sent and {received} received do not make a net of {net}")]
    WrongNet {
        /// The participant.
        participant: String,
        /// Amount sent, in ten-thousandths.
        sent: u128,
        /// Amount received, in ten-thousandths.
        received: u128,
        /// Net stated in the settlement, in ten-thousandths.
        net: i128,
    },
    /// An amount is finer than its currency, so no bank can book it.
    #[error("{amount} ten-thousandths are not a whole number of the smallest unit of {currency}")]
    TooFine {
        /// The amount in ten-thousandths.
        amount: u128,
        /// The currency.
        currency: String,
    },
    /// An amount or a sum is too large for a report.
    #[error("amount overflow in a report")]
    TooLarge,
    /// A text is not valid for its field.
    #[error("{field}: \"{text}\" is not {expected}")]
    Text {
        /// The element or column.
        field: &'static str,
        /// The text.
        text: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The entries of a statement do not lead from its opening to its closing position.
    #[error("the statement of {participant} ends at {computed} instead of {closing} ten-thousandths")]
    WrongStatement {
        /// The participant.
        participant: String,
        /// Opening position plus all entries.
        computed: i128,
        /// The stated closing position.
        closing: i128,
    },
}

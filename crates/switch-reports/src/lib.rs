//! What a switch tells the settlement bank and its participants about a settlement, as pure functions from plain data.
//!
//! | module | what |
//! |---|---|
//! | [`pacs009`] | instructions to the settlement bank: ISO 20022 financial institution credit transfers |
//! | [`camt054`] | notification of a participant's debit or credit: ISO 20022 |
//! | [`tables`] | settlement report and participant's statement as CSV |
//! | [`data`] | what all of them are made from |
//!
//! A report that would mislead is refused: nets that do not sum to zero, amounts finer than the currency, names that the
//! message cannot carry. The same data gives the same bytes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod camt054;
pub mod data;
pub mod pacs009;
pub mod tables;
mod xml;

/// Why a report is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// What the participants owe is not what others are owed.
    #[error("the nets of settlement {settlement} sum to {sum} ten-thousandths instead of zero")]
    Unbalanced {
        /// The settlement.
        settlement: String,
        /// The sum, in ten-thousandths of the currency.
        sum: i128,
    },
    /// A participant's net is not what it sent less what it received.
    #[error("{participant}: {sent} sent and {received} received do not make a net of {net}")]
    WrongNet {
        /// The participant.
        participant: String,
        /// What it sent, in ten-thousandths.
        sent: u128,
        /// What it received, in ten-thousandths.
        received: u128,
        /// What the settlement says, in ten-thousandths.
        net: i128,
    },
    /// An amount has more digits after the point than its currency, so no bank can book it.
    #[error("{amount} ten-thousandths are no whole number of the smallest unit of {currency}")]
    TooFine {
        /// The amount in ten-thousandths.
        amount: u128,
        /// The currency.
        currency: String,
    },
    /// An amount is beyond what the messages can carry, or a sum beyond what can be computed.
    #[error("an amount is too large for a report")]
    TooLarge,
    /// A text does not fit the field that it is for.
    #[error("{field}: \"{text}\" is not {expected}")]
    Text {
        /// The element or column.
        field: &'static str,
        /// What was given.
        text: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// The entries of a statement do not lead from its opening to its closing position.
    #[error("the statement of {participant} ends at {computed} instead of {closing} ten-thousandths")]
    WrongStatement {
        /// The participant.
        participant: String,
        /// Opening position and all entries.
        computed: i128,
        /// The closing position that was given.
        closing: i128,
    },
}

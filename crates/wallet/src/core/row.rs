//! A row of the history, and what an operation waits for, in plain words.

use batzen_protocol::{Amount, Money, Timestamp};
use serde::Serialize;

use super::id::{EvidenceId, OpId};

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Not finished.
    Pending,
    /// Finished successfully.
    Done,
    /// Given up or refused. The money is where it was.
    Failed,
}

/// One row of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transaction {
    /// Number of the operation; `None` for a row that stands for no single operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<OpId>,
    /// `withdrawal`, `payment`, `deposit`, `refresh`, `recoup`, `refund`, `pick-up`, `tip`, `send`, `receive`, `request` or
    /// `pay-request`; without number `refreshes`, `expired` or `spent-elsewhere`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// When it began.
    pub timestamp: Timestamp,
    /// Whether it is finished.
    pub status: Status,
    /// Base URL of the exchange.
    pub exchange: String,
    /// The amount of the operation: the sum that left the bank, that the receiver gets (before the wire fee),
    /// that was melted, or that was paid back.
    pub amount: Amount,
    /// Signed change of [`Balance::total`](super::views::Balance::total), fees included: `+CUR:X` or `-CUR:X`. While the operation is
    /// pending, the expected change.
    pub effect: String,
    /// Fees of the exchange.
    pub fees: Amount,
    /// Number of coins.
    pub coins: usize,
    /// Description in plain words.
    pub description: String,
    /// The fault, or the event that the operation waits for, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of the evidence, if the exchange's latest answer was false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceId>,
    /// Source or destination of the money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payto: Option<String>,
    /// Subject for the bank transfer of a manual withdrawal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_pub: Option<String>,
    /// The shop that a payment is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merchant: Option<String>,
    /// The sum that the shop has refunded of a payment, without the refund fees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refunded: Option<Amount>,
    /// The contract of a payment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_contract_terms: Option<String>,
    /// The URI to give to the other person, while money that was sent or requested waits for her.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

impl Transaction {
    /// Marks it as failed if `failed` holds.
    pub(crate) fn fail_if(&mut self, failed: bool) {
        if failed {
            self.status = Status::Failed;
        }
    }

    /// Says what is wrong, unless the row says so already.
    pub(crate) fn explain(&mut self, reason: Option<&str>) {
        if self.message.is_none() {
            self.message = reason.map(str::to_owned);
        }
    }
}

/// The event that an open operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The next step, in plain words.
    pub(crate) reason: &'static str,
    /// The next deadline, with the event at that time, such as "reserve expires".
    pub(crate) until: Option<(Timestamp, &'static str)>,
}

/// The summary of a payment in a description.
pub(crate) fn about(summary: &str) -> String {
    if summary.is_empty() { String::new() } else { format!(" for \"{summary}\"") }
}

/// `no fee`, or the fees that are not zero: `EUR:0.02 withdrawal fee`.
#[must_use]
pub fn describe_fees(fees: &[(&str, Amount)]) -> String {
    let parts: Vec<String> = fees
        .iter()
        .filter(|(_, fee)| !fee.is_zero())
        .map(|(name, fee)| format!("{fee} {name} fee"))
        .collect();
    if parts.is_empty() { "no fee".to_owned() } else { parts.join(" and ") }
}

/// Signed units of 10⁻⁸.
pub(crate) fn units(money: Money) -> i128 {
    money.units() as i128
}

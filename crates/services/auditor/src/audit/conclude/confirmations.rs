//! Deposits that merchants proved must be on the books (auditor chapter 4).

use batzen_crypto::HashCode;
use batzen_protocol::Timestamp;
use batzen_protocol::payto::h_wire;
use batzen_store::{Record, Result, Table};
use batzen_tables::exchange::{DepositKey, Deposits};

use super::Conclusion;
use crate::audit::finding::{Finding, RowName, Rule};

/// A deposit that the exchange has confirmed to a merchant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// Its number at the auditor.
    pub serial: u64,
    /// The deposit.
    pub deposit: DepositKey,
    /// The merchant's account with its salt.
    pub h_wire: HashCode,
    /// The time until which the merchant may refund it.
    pub refund_deadline: Timestamp,
    /// When the exchange accepted it.
    pub time: Timestamp,
    /// The exchange's debt for it, in units of 10⁻⁸.
    pub units: u128,
}

/// Number of confirmations that are looked up at once.
const PAGE: usize = 1_024;

impl Conclusion<'_> {
    /// Looks up what merchants have shown. Returns the serials of those that are on the books.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub(crate) fn confirmations(&mut self, confirmations: &[Confirmation]) -> Result<Vec<u64>> {
        let mut settled = Vec::new();
        for page in confirmations.chunks(PAGE) {
            let keys: Vec<_> = page.iter().map(|confirmation| confirmation.deposit.clone()).collect();
            let found = self.store.get_many::<Deposits>(&keys)?;
            for (confirmation, deposit) in page.iter().zip(found) {
                let is_there = deposit.is_some_and(|deposit| {
                    let account = self.terms.account(&deposit.row.h_payto).unwrap_or_default();
                    deposit.row.refund_deadline == confirmation.refund_deadline
                        && h_wire(account, &deposit.row.wire_salt) == confirmation.h_wire
                });
                if is_there {
                    settled.push(confirmation.serial);
                    continue;
                }
                if self.may_be_newer(confirmation.time) {
                    continue;
                }
                let name = RowName::new(Deposits::DEF, confirmation.serial, &confirmation.deposit.to_bytes());
                let finding = Finding::new(Rule::DepositMissing, name).about(confirmation.h_wire.as_bytes());
                self.found(finding.risking(confirmation.units).because(confirmation.time.to_string()));
            }
        }
        Ok(settled)
    }
}

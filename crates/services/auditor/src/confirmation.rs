//! Confirmations of exchanges that merchants have shown, with their numbers.

use batzen_tables::auditor::DepositConfirmationRow;
use batzen_tables::exchange::DepositKey;

use crate::audit::Confirmation;

/// The most confirmations that are read at once.
pub(crate) const CONFIRMATIONS_MAX: usize = 1_024;

/// A confirmation that a merchant has shown, with its number in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Its serial.
    pub serial: u64,
    /// The confirmation.
    pub row: DepositConfirmationRow,
}

impl From<Numbered> for Confirmation {
    fn from(Numbered { serial, row }: Numbered) -> Self {
        Self {
            serial,
            deposit: DepositKey {
                coin_pub: row.coin_pub,
                merchant_pub: row.merchant_pub,
                h_contract_terms: row.h_contract_terms,
            },
            h_wire: row.h_wire,
            refund_deadline: row.refund_deadline,
            time: row.exchange_timestamp,
            units: row.amount_without_fee.units(),
        }
    }
}

//! A running digest of the log.

use std::fmt;

use super::log::{LogRecord, Side};

/// 128 bits over all records in order: equal logs have equal digests on any machine. It finds divergence, not
/// forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u64; 2]);

impl Default for Digest {
    fn default() -> Self {
        Self([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

/// The halves of the product: every bit of the inputs reaches every bit of the result.
#[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Digest {
    /// The digest as a number, for storage.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        (self.0[0] as u128) << 64 | self.0[1] as u128
    }

    /// The inverse of [`Digest::to_u128`].
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    pub const fn from_u128(number: u128) -> Self {
        Self([(number >> 64) as u64, number as u64])
    }

    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    const fn wide(&mut self, value: u128) {
        self.pair(value as u64, (value >> 64) as u64);
    }

    const fn pair(&mut self, a: u64, b: u64) {
        self.0[0] = fold(self.0[0] ^ a, 0x9e37_79b9_7f4a_7c15).wrapping_add(b);
        self.0[1] = fold(self.0[1] ^ b, 0xc2b2_ae3d_27d4_eb4f).wrapping_add(a);
    }

    fn side(&mut self, side: &Side) {
        self.pair(u64::from(side.account) << 16 | u64::from(side.flags.0), side.previous);
        self.wide(side.balances.debits_pending);
        self.wide(side.balances.debits_posted);
        self.wide(side.balances.credits_pending);
        self.wide(side.balances.credits_posted);
    }

    /// Adds a record.
    pub fn add(&mut self, record: &LogRecord) {
        match record {
            LogRecord::Account(account) => {
                self.pair(1, account.timestamp);
                for chunk in account.to_bytes().chunks_exact(16) {
                    self.wide(u128::from_le_bytes(chunk.try_into().expect("chunks are of 16 bytes")));
                }
            }
            LogRecord::Movement(movement) => {
                let transfer = &movement.transfer;
                self.pair(2 | (movement.kind as u64) << 8, movement.timestamp);
                self.wide(transfer.id);
                self.wide(transfer.amount);
                self.wide(transfer.pending_id);
                self.wide(transfer.user_data_128);
                self.pair(transfer.user_data_64, transfer.timestamp);
                self.pair(
                    u64::from(transfer.user_data_32) << 32 | u64::from(transfer.timeout),
                    u64::from(transfer.code) << 16 | u64::from(transfer.flags.0),
                );
                self.side(&movement.debit);
                self.side(&movement.credit);
            }
            LogRecord::Burnt { id, timestamp } => {
                self.pair(3, *timestamp);
                self.wide(*id);
            }
        }
    }
}

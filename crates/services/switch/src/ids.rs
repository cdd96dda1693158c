//! Ledger ids derived from a transfer's id.

use sha2::{Digest, Sha256};

/// The purpose of a derived id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Posting a transfer.
    Post = b'P',
    /// Voiding a transfer.
    Void = b'V',
    /// Gross settlement: positions are reset.
    GrossPositions = b'p',
    /// Gross settlement: the payer's headroom goes with its liquidity.
    GrossHeadroom = b'h',
    /// Gross settlement: liquidity goes from payer to payee.
    GrossLiquidity = b'l',
    /// Funds out: headroom that goes with the liquidity.
    FundsHeadroom = b'H',
    /// A movement of the switch itself, by its number.
    Movement = b'M',
    /// A net settlement's reservation for a sender.
    NetSender = b's',
    /// A net settlement's entry for a recipient.
    NetRecipient = b'r',
    /// The same, with headroom granted beyond the limit: the grant.
    NetBeyondGrant = b'g',
    /// The same: the entry.
    NetBeyondEntry = b'e',
    /// Taking back a recipient's entry.
    NetReverse = b'R',
}

/// An id for this role: SHA-256 of role and id, truncated to 128 bits. The version field of these ids is 15,
/// which no UUID has, so that no participant can occupy one with a transfer of its own.
#[must_use]
pub fn derive(role: Role, id: u128) -> u128 {
    let mut hash = Sha256::new();
    hash.update([role as u8]);
    hash.update(id.to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let (head, _) = digest.split_first_chunk::<16>().expect("32 bytes");
    u128::from_be_bytes(*head) | (0xf << 76)
}

/// The id of a participant's part of a settlement, as input of `derive`.
#[must_use]
pub fn settlement_part(settlement: u64, participant: u32, currency: u32) -> u128 {
    (u128::from(settlement) << 64) | (u128::from(participant) << 32) | u128::from(currency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_are_no_uuids() {
        for id in [0, 1, u128::MAX, 0x1234] {
            let derived = derive(Role::Post, id);
            assert_ne!(derived, derive(Role::Void, id));
            assert_eq!(crate::values::parse_uuid(&crate::values::format_uuid(derived)), None);
            assert!(derived != u128::MAX || id != 0);
        }
    }
}

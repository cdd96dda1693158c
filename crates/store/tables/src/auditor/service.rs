//! Rows of the auditor's service and its programs.
//!
//! All amounts are in the one currency of the auditor.

use batzen_crypto::hash::{sha512_parts, shorten};
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, table};

use crate::SingletonKey;

/// Identifies the one row of [`AuditorStates`].
pub type AuditorStateKey = SingletonKey;

table! {
    /// The auditor's global data. Written once.
    pub struct AuditorStateRow {
        /// The currency of all amounts.
        pub currency: String,
    }

    /// The auditor's state: one row, written by the first program that opens the store.
    pub AuditorStates(514, "auditor_state"): AuditorStateKey => AuditorStateRow;
}

table! {
    /// Identifies an audited exchange.
    pub key struct AuditedExchangeKey {
        /// Its master key.
        pub master_pub: EddsaPublicKey,
    }

    /// An exchange that the auditor audits.
    pub struct AuditedExchangeRow {
        /// Its base URL, with a final slash.
        pub url: String,
        /// When it was added.
        pub added: Timestamp,
    }

    /// The audited exchanges.
    pub AuditedExchanges(510, "auditor_exchanges"): AuditedExchangeKey => AuditedExchangeRow;
}

table! {
    /// Identifies what a master key has said about a signing key.
    pub key struct SigningKeyKey {
        /// The exchange.
        pub master_pub: EddsaPublicKey,
        /// The signing key.
        pub exchange_pub: EddsaPublicKey,
        /// Start of the period in which it signs.
        pub start: Timestamp,
        /// The time until which it signs.
        pub expire: Timestamp,
        /// The time until which its signatures are legally valid.
        pub end: Timestamp,
    }

    /// A signing key of an exchange, as merchants have shown it.
    pub struct SigningKeyRow {
        /// The master key's signature (`MASTER_SIGNING_KEY_VALIDITY`).
        pub master_sig: EddsaSignature,
        /// When it was first shown.
        pub seen: Timestamp,
    }

    /// The signing keys of confirmations.
    pub SigningKeys(511, "auditor_signing_keys"): SigningKeyKey => SigningKeyRow;
    /// By exchange.
    BY_EXCHANGE = 1, "by_exchange", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_EXCHANGE, &key.master_pub);
    }
}

table! {
    /// Identifies a revoked signing key.
    pub key struct SigningKeyRevocationKey {
        /// The exchange.
        pub master_pub: EddsaPublicKey,
        /// The signing key.
        pub exchange_pub: EddsaPublicKey,
    }

    /// The revocation of a signing key.
    pub struct SigningKeyRevocationRow {
        /// The master key's signature (`MASTER_SIGNING_KEY_REVOKED`).
        pub master_sig: EddsaSignature,
        /// When it was found.
        pub seen: Timestamp,
    }

    /// The revoked signing keys. They stay revoked.
    pub SigningKeyRevocations(512, "auditor_revocations"): SigningKeyRevocationKey => SigningKeyRevocationRow;
    /// By exchange.
    BY_EXCHANGE = 1, "by_exchange", Prefix { key_bytes: 32 };
    |key, _, out| {
        out.add(Self::BY_EXCHANGE, &key.master_pub);
    }
}

table! {
    /// Identifies a deposit confirmation.
    pub key struct DepositConfirmationKey {
        /// See [`DepositConfirmationRow::key`].
        pub(crate) id: ShortHash,
    }

    /// An exchange's confirmation to a merchant: that it accepted a deposit.
    pub struct DepositConfirmationRow {
        /// The exchange's master key.
        pub master_pub: EddsaPublicKey,
        /// The contract that the coin paid for.
        pub h_contract_terms: HashCode,
        /// The deposit's policy; zero without one.
        pub h_policy: HashCode,
        /// The merchant's account with its salt.
        pub h_wire: HashCode,
        /// When the exchange accepted the deposit.
        pub exchange_timestamp: Timestamp,
        /// The time until which the merchant may refund it.
        pub refund_deadline: Timestamp,
        /// The time until which the exchange must pay it.
        pub wire_deadline: Timestamp,
        /// The exchange's debt for it.
        pub amount_without_fee: Money,
        /// The coin.
        pub coin_pub: EddsaPublicKey,
        /// The merchant.
        pub merchant_pub: EddsaPublicKey,
        /// The exchange's signature (`EXCHANGE_CONFIRM_DEPOSIT`).
        pub exchange_sig: EddsaSignature,
        /// The signing key of that signature.
        pub exchange_pub: EddsaPublicKey,
        /// The master key's signature on the signing key, which is in [`SigningKeys`].
        pub master_sig: EddsaSignature,
        /// When the merchant showed it.
        pub seen: Timestamp,
    }

    /// The deposit confirmations that merchants have shown. They stay, also after their exchange is no longer audited.
    pub DepositConfirmations(513, "auditor_deposit_confirmations"): DepositConfirmationKey
        => DepositConfirmationRow;
    /// Confirmations of an exchange, in the order of their serials.
    BY_SERIAL = 1, "by_serial", Serial;
    |_, row, out| {
        out.add(Self::BY_SERIAL, &row.master_pub);
    }
}

impl DepositConfirmationRow {
    /// The key: a hash of contract, account, coin, merchant, the exchange's signature and key, and the master key's
    /// signature. Two confirmations that agree in these are one.
    #[must_use]
    pub fn key(&self) -> DepositConfirmationKey {
        let parts: [&[u8]; 8] = [
            b"batzen-auditor-confirmation\0",
            self.h_contract_terms.as_bytes(),
            self.h_wire.as_bytes(),
            self.coin_pub.as_bytes(),
            self.merchant_pub.as_bytes(),
            self.exchange_sig.as_bytes(),
            self.exchange_pub.as_bytes(),
            self.master_sig.as_bytes(),
        ];
        DepositConfirmationKey { id: shorten(&sha512_parts(&parts)) }
    }
}

impl DepositConfirmations {
    /// The position after which the confirmations of an exchange begin that follow a serial; for
    /// [`range_positions`](batzen_store::Store::range_positions).
    #[must_use]
    pub fn position(master_pub: &EddsaPublicKey, serial: u64) -> Vec<u8> {
        let mut position = Vec::new();
        Column::encode(master_pub, &mut position);
        position.extend(serial.to_be_bytes());
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> DepositConfirmationRow {
        let key = |byte| EddsaPublicKey::from_bytes([byte; 32]);
        let hash = |byte| HashCode::from_bytes([byte; 64]);
        let signature = |byte| EddsaSignature::from_bytes([byte; 64]);
        DepositConfirmationRow {
            master_pub: key(1),
            h_contract_terms: hash(2),
            h_policy: hash(3),
            h_wire: hash(4),
            exchange_timestamp: Timestamp::from_secs(5),
            refund_deadline: Timestamp::from_secs(6),
            wire_deadline: Timestamp::from_secs(7),
            amount_without_fee: Money::UNIT,
            coin_pub: key(8),
            merchant_pub: key(9),
            exchange_sig: signature(10),
            exchange_pub: key(11),
            master_sig: signature(12),
            seen: Timestamp::from_secs(13),
        }
    }

    #[test]
    fn what_identifies_a_confirmation_is_in_its_key() {
        let hash = HashCode::from_bytes([99; 64]);
        let key = EddsaPublicKey::from_bytes([99; 32]);
        let signature = EddsaSignature::from_bytes([99; 64]);
        for changed in [
            DepositConfirmationRow { h_contract_terms: hash, ..row() },
            DepositConfirmationRow { h_wire: hash, ..row() },
            DepositConfirmationRow { coin_pub: key, ..row() },
            DepositConfirmationRow { merchant_pub: key, ..row() },
            DepositConfirmationRow { exchange_sig: signature, ..row() },
            DepositConfirmationRow { exchange_pub: key, ..row() },
            DepositConfirmationRow { master_sig: signature, ..row() },
        ] {
            assert_ne!(changed.key(), row().key());
        }
        let seen_again = DepositConfirmationRow { seen: Timestamp::from_secs(99), ..row() };
        assert_eq!(seen_again.key(), row().key());
    }
}

//! Data signed by the offline master key: denominations, signing keys, accounts, fees, auditors. Small
//! tables, copied to every node and cached in memory.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_store::table;

use super::{Cipher, DenomSerial, WireTargetKey};
use crate::SingletonKey;

table! {
    /// Identifies a denomination.
    pub key struct DenomKey {
        /// Its number.
        pub serial: DenomSerial,
    }

    /// A denomination with a master signature. Its terms never change.
    pub struct DenomRow {
        /// Hash of its public key, age mask included.
        pub h_denom_pub: HashCode,
        /// Its cipher.
        pub cipher: Cipher,
        /// Its bare public key: the RSA public key encoding, or the 32 bytes of the Clause Blind Schnorr key.
        pub public_key: Vec<u8>,
        /// Its age groups; zero without age restriction.
        pub age_mask: u32,
        /// Value of a coin.
        pub value: Money,
        /// Fee of a withdrawal, and of each fresh coin in a refresh.
        pub fee_withdraw: Money,
        /// Fee of a deposit.
        pub fee_deposit: Money,
        /// Fee of a melt.
        pub fee_refresh: Money,
        /// Fee of a refund.
        pub fee_refund: Money,
        /// Start of the period in which it can be withdrawn and spent.
        pub start: Timestamp,
        /// The time until which it can be withdrawn.
        pub expire_withdraw: Timestamp,
        /// The time until which it can be spent.
        pub expire_deposit: Timestamp,
        /// The time until which records are kept and zombies melted.
        pub expire_legal: Timestamp,
        /// The master key's signature (`MASTER_DENOMINATION_KEY_VALIDITY`).
        pub master_sig: EddsaSignature,
    }

    /// Denominations.
    pub Denominations(50, "denominations"): DenomKey => DenomRow;
    /// By h_denom_pub.
    BY_HASH = 1, "by_hash", Hash;
    |_, row, out| {
        out.add(Self::BY_HASH, &row.h_denom_pub);
    }
}

table! {
    /// A revoked denomination. Permanent.
    pub struct RevocationRow {
        /// The master key's signature (`MASTER_DENOMINATION_KEY_REVOKED`).
        pub master_sig: EddsaSignature,
        /// When the exchange received the revocation.
        pub time: Timestamp,
    }

    /// Revoked denominations.
    pub Revocations(51, "revocations"): DenomKey => RevocationRow;
}

table! {
    /// Identifies an online signing key.
    pub key struct SigningKeyKey {
        /// The key.
        pub exchange_pub: EddsaPublicKey,
    }

    /// An online signing key with a master signature.
    pub struct SigningKeyRow {
        /// Start of the period in which it signs.
        pub start: Timestamp,
        /// The time until which it signs.
        pub expire: Timestamp,
        /// The time until which its signatures are legally valid.
        pub end: Timestamp,
        /// The master key's signature (`MASTER_SIGNING_KEY_VALIDITY`).
        pub master_sig: EddsaSignature,
        /// The master key's revocation (`MASTER_SIGNING_KEY_REVOKED`), if it is revoked.
        pub revoked: Option<EddsaSignature>,
    }

    /// Online signing keys.
    pub SigningKeys(52, "signing_keys"): SigningKeyKey => SigningKeyRow;
}

table! {
    /// One of the exchange's accounts, as the master key published it.
    pub struct WireAccountRow {
        /// Its payto URI.
        pub payto_uri: String,
        /// The master key's signature (`MASTER_WIRE_DETAILS`).
        pub master_sig: EddsaSignature,
        /// When it was last enabled or disabled, by the signed time.
        pub last_change: Timestamp,
        /// Whether it is published.
        pub enabled: bool,
    }

    /// The exchange's accounts by hash of their payto URI.
    pub WireAccounts(53, "wire_accounts"): WireTargetKey => WireAccountRow;
}

table! {
    /// Identifies a wire fee period.
    pub key struct WireFeeKey {
        /// The wire method: the part after `payto://`.
        pub method: String,
        /// The first moment of the period.
        pub start: Timestamp,
    }

    /// The wire fees of a period.
    pub struct WireFeeRow {
        /// The first moment after the period.
        pub end: Timestamp,
        /// Fee of an aggregated transfer.
        pub wire_fee: Money,
        /// Fee of closing a reserve.
        pub closing_fee: Money,
        /// The master key's signature (`MASTER_WIRE_FEES`).
        pub master_sig: EddsaSignature,
    }

    /// Wire fees. Periods of one method do not overlap.
    pub WireFees(54, "wire_fees"): WireFeeKey => WireFeeRow;
    /// By method.
    BY_METHOD = 1, "by_method", Hash;
    |key, _, out| {
        out.add(Self::BY_METHOD, &key.method);
    }
}

table! {
    /// Identifies a global fee period.
    pub key struct GlobalFeeKey {
        /// Its first moment.
        pub start: Timestamp,
    }

    /// The global fees of a period.
    pub struct GlobalFeeRow {
        /// The first moment after the period.
        pub end: Timestamp,
        /// Fee of a full reserve history.
        pub history_fee: Money,
        /// Yearly fee of an open reserve.
        pub account_fee: Money,
        /// Fee of a purse beyond the free ones.
        pub purse_fee: Money,
        /// Time that a purse waits to be merged.
        pub purse_timeout: Duration,
        /// Time that histories are kept.
        pub history_expiration: Duration,
        /// Number of purses that an open reserve has for free.
        pub purse_account_limit: u32,
        /// The master key's signature (`MASTER_GLOBAL_FEES`).
        pub master_sig: EddsaSignature,
    }

    /// Global fees. Periods do not overlap.
    pub GlobalFees(55, "global_fees"): GlobalFeeKey => GlobalFeeRow;
    /// All of them (the value is the byte 0).
    ALL = 1, "all", Hash;
    |_, _, out| {
        out.add(Self::ALL, &0u8);
    }
}

table! {
    /// Identifies an auditor.
    pub key struct AuditorKey {
        /// Its public key.
        pub auditor_pub: EddsaPublicKey,
    }

    /// An auditor.
    pub struct AuditorRow {
        /// Its base URL.
        pub url: String,
        /// Its name.
        pub name: String,
        /// When it was last enabled or disabled, by the signed time.
        pub last_change: Timestamp,
        /// Whether it is published.
        pub enabled: bool,
    }

    /// Auditors.
    pub Auditors(56, "auditors"): AuditorKey => AuditorRow;
}

table! {
    /// Identifies an auditor's signature on a denomination.
    pub key struct AuditorDenomKey {
        /// The auditor.
        pub auditor_pub: EddsaPublicKey,
        /// The denomination.
        pub serial: DenomSerial,
    }

    /// An auditor's signature on a denomination.
    pub struct AuditorDenomRow {
        /// The signature (`AUDITOR_EXCHANGE_KEYS`).
        pub auditor_sig: EddsaSignature,
    }

    /// Auditors' signatures on denominations.
    pub AuditorDenoms(57, "auditor_denoms"): AuditorDenomKey => AuditorDenomRow;
}

/// Identifies the one extensions row.
pub type ExtensionsKey = SingletonKey;

table! {
    /// The extensions that the exchange announces.
    pub struct ExtensionsRow {
        /// The manifests: the JSON object as signed.
        pub manifests: String,
        /// The master key's signature (`MASTER_EXTENSION`).
        pub master_sig: EddsaSignature,
    }

    /// Signed extensions: at most one row.
    pub Extensions(58, "extensions"): ExtensionsKey => ExtensionsRow;
}

table! {
    /// Identifies a counter.
    pub key struct CounterKey {
        /// Its name.
        pub name: String,
    }

    /// A counter.
    pub struct CounterRow {
        /// The last number assigned.
        pub value: u64,
    }

    /// Counters.
    pub Counters(59, "counters"): CounterKey => CounterRow, updated();
}

impl Counters {
    /// The last denomination serial assigned.
    pub const DENOM_SERIAL: &'static str = "denom_serial";
    /// The number of changes to the key set, that is, to anything the offline keys sign.
    pub const KEY_SET: &'static str = "key_set";
    /// The number of the last run that moved rows to an archive.
    pub const ARCHIVE_RUN: &'static str = "archive_run";
}

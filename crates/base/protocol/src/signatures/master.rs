//! Signatures made by the operator with the offline master key.

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, Wtid};

use super::signed_messages;
use crate::{Amount, Duration, Timestamp};

signed_messages! {
    /// Denomination key validity (by the master key): a denomination key with its times, value and fees.
    1025 MasterDenominationKeyValidity(256) {
        /// The master key itself.
        master_pub: EddsaPublicKey,
        /// Start of the period in which the key is used.
        start: Timestamp,
        /// The time until which coins can be withdrawn.
        expire_withdraw: Timestamp,
        /// The time until which coins can be deposited.
        expire_deposit: Timestamp,
        /// The time until which the key is kept for legal disputes.
        expire_legal: Timestamp,
        /// Value of a coin.
        value: Amount,
        /// Fee for withdrawing a coin.
        fee_withdraw: Amount,
        /// Fee for depositing a coin.
        fee_deposit: Amount,
        /// Fee for melting a coin.
        fee_refresh: Amount,
        /// Fee for refunding a coin.
        fee_refund: Amount,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
    }
    /// Signing key validity (by the master key): an online signing key of the exchange.
    1024 MasterSigningKeyValidity(64) {
        /// Start of the period in which the key is used.
        start: Timestamp,
        /// The time until which the key is used.
        expire: Timestamp,
        /// The time until which its signatures are valid.
        end: Timestamp,
        /// The signing key.
        signkey_pub: EddsaPublicKey,
    }
    /// Denomination revocation (by the master key): revocation of a denomination (starts recoup).
    1029 MasterDenominationKeyRevoked(72) {
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
    }
    /// Signing key revocation (by the master key): revocation of an online signing key.
    1020 MasterSigningKeyRevoked(40) {
        /// The signing key.
        signkey_pub: EddsaPublicKey,
    }
    /// Auditor add (by the master key): adding an auditor.
    1026 MasterAddAuditor(112) {
        /// Start of the validity.
        start_date: Timestamp,
        /// The auditor.
        auditor_pub: EddsaPublicKey,
        /// Hash of the auditor's URL.
        h_auditor_url: HashCode,
    }
    /// Auditor removal (by the master key): removing an auditor.
    1027 MasterDelAuditor(48) {
        /// End of the validity.
        end_date: Timestamp,
        /// The auditor.
        auditor_pub: EddsaPublicKey,
    }
    /// Wire account add (by the master key): adding a bank account (management request).
    1021 MasterAddWire(48) {
        /// Start of the validity.
        start_date: Timestamp,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
    }
    /// Wire account removal (by the master key): removing a bank account.
    1023 MasterDelWire(48) {
        /// End of the validity.
        end_date: Timestamp,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
    }
    /// Wire account (by the master key): a bank account shown to wallets and merchants in the wire
    /// information.
    1030 MasterWireDetails(40) {
        /// Hash of the account's payto URI.
        h_wire_details: ShortHash,
    }
    /// Wire fees (by the master key): wire and closing fee of a wire method for a period.
    1028 MasterWireFees(136) {
        /// Hash of the name of the wire method.
        h_wire_method: HashCode,
        /// Start of the validity.
        start_date: Timestamp,
        /// End of the validity.
        end_date: Timestamp,
        /// Fee for a wire transfer.
        wire_fee: Amount,
        /// Fee for closing a reserve.
        closing_fee: Amount,
    }
    /// Global fees (by the master key): global fees and limits for a period.
    1022 MasterGlobalFees(116) {
        /// Start of the validity.
        start_date: Timestamp,
        /// End of the validity.
        end_date: Timestamp,
        /// Time that an expired purse stays readable.
        purse_timeout: Duration,
        /// Time that histories reach back.
        history_expiration: Duration,
        /// Fee for a complete history.
        history_fee: Amount,
        /// Yearly fee of an account.
        account_fee: Amount,
        /// Fee for creating a purse.
        purse_fee: Amount,
        /// Purses that an account may have open.
        purse_account_limit: u32,
    }
    /// Extensions (by the master key): the set of extension manifests.
    1031 MasterExtension(72) {
        /// Hash of the extension manifests.
        h_manifests: HashCode,
    }
    /// Partner exchange (by the master key): configuration of a partner exchange (wads).
    1019 MasterPartnerDetails(152) {
        /// Master key of the partner.
        partner_pub: EddsaPublicKey,
        /// Start of the validity.
        start_date: Timestamp,
        /// End of the validity.
        end_date: Timestamp,
        /// Interval at which transfers are made.
        wad_frequency: Duration,
        /// Fee for a transfer.
        wad_fee: Amount,
        /// Hash of the partner's base URL.
        h_url: HashCode,
    }
    /// Profit drain (by the master key): wiring profit out of the escrow account.
    1018 MasterDrainProfit(168) {
        /// Wire transfer identifier.
        wtid: Wtid,
        /// When to pay.
        date: Timestamp,
        /// Amount to pay.
        amount: Amount,
        /// Hash of the name of the account's configuration section.
        h_section: HashCode,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
    }
    /// AML officer (by the master key): enabling or disabling an AML officer.
    1017 MasterAmlKey(116) {
        /// Time of the change.
        change_date: Timestamp,
        /// The officer.
        officer_pub: EddsaPublicKey,
        /// Hash of the officer's name.
        h_officer_name: HashCode,
        /// 1 if active, plus 2 if read-only.
        is_active: u32,
    }
}

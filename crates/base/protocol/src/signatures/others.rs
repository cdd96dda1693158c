//! Signatures made by security modules, auditors, AML officers, merchants and backup accounts.

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash};

use super::{Zeros, signed_messages};
use crate::{Amount, Duration, Timestamp};

signed_messages! {
    /// RSA key announcement (by the RSA security module key): a fresh RSA denomination key of a coin
    /// section.
    1250 SmRsaDenominationKey(152) {
        /// Hash of the encoded RSA public key (not the denomination hash).
        h_rsa: HashCode,
        /// Hash of the name of the configuration section.
        h_section_name: HashCode,
        /// Start of the period in which the key is used.
        anchor_time: Timestamp,
        /// Time that coins can be withdrawn.
        duration_withdraw: Duration,
    }
    /// CS key announcement (by the CS security module key): a fresh CS denomination key of a coin section.
    1252 SmCsDenominationKey(152) {
        /// Hash of the CS public key (not the denomination hash).
        h_cs: HashCode,
        /// Hash of the name of the configuration section.
        h_section_name: HashCode,
        /// Start of the period in which the key is used.
        anchor_time: Timestamp,
        /// Time that coins can be withdrawn.
        duration_withdraw: Duration,
    }
    /// Signing key announcement (by the EdDSA security module key): a fresh online signing key.
    1251 SmSigningKey(56) {
        /// The signing key.
        exchange_pub: EddsaPublicKey,
        /// Start of the period in which the key is used.
        anchor_time: Timestamp,
        /// Time that the key is used.
        duration: Duration,
    }
    /// Auditor approval of a denomination (by the auditor key): the auditor audits this denomination.
    1064 AuditorExchangeKeys(320) {
        /// Hash of the auditor's URL.
        h_auditor_url: HashCode,
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
    /// AML decision (by the AML officer key): an AML decision on an account.
    1350 AmlDecision(140) {
        /// SHA-512 of the justification, without terminating zero byte.
        h_justification: HashCode,
        /// Always zero in this version.
        decision_time: Zeros<8>,
        /// The amount from which on the account is reviewed again.
        new_threshold: Amount,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
        /// 0 normal, 1 pending, 2 frozen.
        new_state: u32,
    }
    /// Contract (by the merchant key): the contract offered to the wallet.
    1101 MerchantContract(72) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
    }
    /// Refund request (by the merchant key): a refund of a deposited coin.
    1102 MerchantRefund(136) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// Distinguishes several refunds of one coin.
        rtransaction_id: u64,
        /// Amount refunded, fee included.
        refund_amount: Amount,
    }
    /// Deposit tracking (by the merchant key): asking for the wire transfer of a deposit.
    1103 MerchantTrackTransaction(168) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Salted hash of the merchant's account.
        h_wire: HashCode,
        /// The coin.
        coin_pub: EddsaPublicKey,
    }
    /// Deposit tracking as wallets of protocol 12 sign it (by the merchant key): with the merchant key in the
    /// message. An exchange that serves such wallets accepts both forms.
    1103 MerchantTrackTransactionWallet(200) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Salted hash of the merchant's account.
        h_wire: HashCode,
        /// The merchant.
        merchant_pub: EddsaPublicKey,
        /// The coin.
        coin_pub: EddsaPublicKey,
    }
    /// Payment confirmation (by the merchant key): the payment was received.
    1104 MerchantPaymentOk(72) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
    }
    /// Merchant wire details (by the merchant key): the own salted bank account of the merchant (hardly
    /// used).
    1107 MerchantWireDetails(72) {
        /// Salted hash of the merchant's account.
        h_wire: HashCode,
    }
    /// Backup upload (by the backup account key): replacing a wallet backup.
    1450 SyncBackupUpload(136) {
        /// Hash of the backup that is replaced; all zero for the first one.
        h_old: HashCode,
        /// Hash of the new backup.
        h_new: HashCode,
    }
}

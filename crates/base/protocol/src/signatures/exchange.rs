//! Signatures made by the exchange with its online signing keys.

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, Wtid};

use super::{OperationName, signed_messages};
use crate::{Amount, Timestamp};

signed_messages! {
    /// Deposit confirmation (by the exchange signing key): the deposit was accepted; also sent to auditors.
    1033 ExchangeConfirmDeposit(312) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Salted hash of the merchant's account.
        h_wire: HashCode,
        /// Hash of the policy; all zero if there is none.
        h_policy: HashCode,
        /// When the deposit was accepted.
        exchange_timestamp: Timestamp,
        /// The time until which the merchant is paid.
        wire_deadline: Timestamp,
        /// The time until which the merchant may refund.
        refund_deadline: Timestamp,
        /// Amount after fees.
        amount_without_fee: Amount,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// The merchant.
        merchant_pub: EddsaPublicKey,
    }
    /// Melt confirmation (by the exchange signing key): the melt was accepted, and which index need not be
    /// revealed.
    1034 ExchangeConfirmMelt(76) {
        /// The refresh commitment.
        refresh_commitment: HashCode,
        /// The index of the candidate that need not be revealed.
        noreveal_index: u32,
    }
    /// Key set (by the exchange signing key): the set of denomination keys in the key listing (used twice).
    1035 ExchangeKeySet(80) {
        /// Date of the key listing.
        list_issue_date: Timestamp,
        /// Hash over the denomination hashes.
        hc: HashCode,
    }
    /// Deposit tracking confirmation (by the exchange signing key): the deposit was (or will be) wired with
    /// the given transfer.
    1036 ExchangeConfirmWire(232) {
        /// Salted hash of the merchant's account.
        h_wire: HashCode,
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Wire transfer identifier.
        wtid: Wtid,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// When the transfer is made.
        execution_time: Timestamp,
        /// Contribution of the coin.
        coin_contribution: Amount,
    }
    /// Aggregate transfer confirmation (by the exchange signing key): contents of one aggregated wire
    /// transfer.
    1037 ExchangeConfirmWireDeposit(184) {
        /// Total of the transfer.
        total: Amount,
        /// Fee for a wire transfer.
        wire_fee: Amount,
        /// The merchant.
        merchant_pub: EddsaPublicKey,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
        /// Hash over the details.
        h_details: HashCode,
    }
    /// Refund confirmation (by the exchange signing key): the refund was accepted.
    1038 ExchangeConfirmRefund(168) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// The merchant.
        merchant_pub: EddsaPublicKey,
        /// Distinguishes several refunds of one coin.
        rtransaction_id: u64,
        /// Amount refunded, fee included.
        refund_amount: Amount,
    }
    /// Recoup confirmation (by the exchange signing key): the recouped amount was credited to the reserve.
    1039 ExchangeConfirmRecoup(104) {
        /// When this was confirmed.
        timestamp: Timestamp,
        /// Amount credited.
        recoup_amount: Amount,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// The reserve.
        reserve_pub: EddsaPublicKey,
    }
    /// Recoup-refresh confirmation (by the exchange signing key): the recouped amount was credited to the
    /// old coin.
    1041 ExchangeConfirmRecoupRefresh(104) {
        /// When this was confirmed.
        timestamp: Timestamp,
        /// Amount credited.
        recoup_amount: Amount,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// The coin that was melted.
        old_coin_pub: EddsaPublicKey,
    }
    /// Reserve closed (by the exchange signing key): the reserve was closed and its rest wired out.
    1040 ExchangeReserveClosed(160) {
        /// When this was confirmed.
        timestamp: Timestamp,
        /// Amount taken from the reserve, fee included.
        closing_amount: Amount,
        /// Fee for closing a reserve.
        closing_fee: Amount,
        /// The reserve.
        reserve_pub: EddsaPublicKey,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
        /// Wire transfer identifier.
        wtid: Wtid,
    }
    /// Denomination unknown (by the exchange signing key): at this time the exchange does not know the
    /// denomination.
    1042 ExchangeAffirmDenomUnknown(80) {
        /// When this was confirmed.
        timestamp: Timestamp,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
    }
    /// Denomination expired (by the exchange signing key): the denomination is not valid for an operation
    /// at this time.
    1043 ExchangeAffirmDenomExpired(88) {
        /// When this was confirmed.
        timestamp: Timestamp,
        /// The refused operation.
        operation: OperationName,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
    }
    /// KYC passed (by the exchange signing key): the account passed the KYC checks.
    1044 ExchangeAccountSetupSuccess(112) {
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
        /// Plain hash of the details.
        h_kyc: HashCode,
        /// When this was confirmed.
        timestamp: Timestamp,
    }
    /// Purse created / deposited (by the exchange signing key): the purse exists with this deposit total.
    1045 ExchangeConfirmPurseCreation(168) {
        /// Time of the exchange.
        exchange_time: Timestamp,
        /// When the purse expires.
        purse_expiration: Timestamp,
        /// Amount after fees.
        amount_without_fee: Amount,
        /// Deposited so far, after fees.
        total_deposited: Amount,
        /// The purse.
        purse_pub: EddsaPublicKey,
        /// Hash of the contract.
        h_contract_terms: HashCode,
    }
    /// Purse merged (by the exchange signing key): the purse was merged into the reserve.
    1046 ExchangeConfirmPurseMerged(240) {
        /// Time of the exchange.
        exchange_time: Timestamp,
        /// When the purse expires.
        purse_expiration: Timestamp,
        /// Amount after fees.
        amount_without_fee: Amount,
        /// The purse.
        purse_pub: EddsaPublicKey,
        /// The reserve.
        reserve_pub: EddsaPublicKey,
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Hash of the base URL of the exchange that has the reserve.
        h_provider_url: HashCode,
    }
    /// Purse status (by the exchange signing key): state of a purse.
    1047 ExchangePurseStatus(48) {
        /// When the purse was merged.
        merge_timestamp: Timestamp,
        /// When the purse was full; never if it is not.
        deposit_timestamp: Timestamp,
        /// Balance of the purse.
        balance: Amount,
    }
    /// Attribute attestation (by the exchange signing key): identity attributes of the reserve owner.
    1048 ExchangeReserveAttestDetails(120) {
        /// When the attributes were attested.
        attest_timestamp: Timestamp,
        /// The time until which they are valid.
        expiration_time: Timestamp,
        /// The reserve.
        reserve_pub: EddsaPublicKey,
        /// Plain hash of the attributes.
        h_attributes: HashCode,
    }
    /// Purse refund (by the exchange signing key): the coin got its purse deposit back (purse expired or
    /// deleted).
    1049 ExchangeConfirmPurseRefund(120) {
        /// The purse.
        purse_pub: EddsaPublicKey,
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// Amount given back, after the fee.
        refunded_amount: Amount,
        /// Refund fee of the denomination.
        refund_fee: Amount,
    }
}

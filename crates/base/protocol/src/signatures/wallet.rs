//! Signatures made by wallets with reserve, coin, purse and merge keys.

use batzen_crypto::{BlindingSecret, EcdhePublicKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash};

use super::{Zeros, signed_messages};
use crate::{Amount, Timestamp};

signed_messages! {
    /// Withdraw (by the reserve key): debiting the reserve by the amount for one blinded coin. Batch
    /// withdraw carries one such signature per planchet; there is no separate batch purpose in this
    /// version.
    1200 WalletReserveWithdraw(160) {
        /// Amount including the fee.
        amount_with_fee: Amount,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// Hash of the blinded planchet.
        h_coin_envelope: HashCode,
    }
    /// Deposit (by the coin key): transferring a contribution from the coin to the merchant account
    /// identified by `h_wire`. Used unchanged for each coin of a batch deposit.
    1201 WalletCoinDeposit(392) {
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Hash of the age commitment; all zero if there is none.
        h_age_commitment: ShortHash,
        /// Hash of the policy; all zero if there is none.
        h_policy: HashCode,
        /// Salted hash of the merchant's account.
        h_wire: HashCode,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// Time of the wallet.
        wallet_timestamp: Timestamp,
        /// The time until which the merchant may refund.
        refund_deadline: Timestamp,
        /// Amount including the fee.
        amount_with_fee: Amount,
        /// Deposit fee of the denomination.
        deposit_fee: Amount,
        /// The merchant.
        merchant_pub: EddsaPublicKey,
    }
    /// Melt (by the coin key): spending the coin for a refresh operation.
    1202 WalletCoinMelt(216) {
        /// The refresh commitment.
        refresh_commitment: HashCode,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// Hash of the age commitment; all zero if there is none.
        h_age_commitment: ShortHash,
        /// Amount including the fee.
        amount_with_fee: Amount,
        /// Melt fee of the denomination.
        melt_fee: Amount,
    }
    /// Recoup (by the coin key): crediting the rest of a coin of a revoked denomination back to the reserve
    /// it was withdrawn from.
    1203 WalletCoinRecoup(104) {
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// The coin's blinding secret.
        coin_blind: BlindingSecret,
    }
    /// Recoup-refresh (by the coin key): crediting the rest of a coin of a revoked denomination back to the
    /// old coin it was refreshed from.
    1206 WalletCoinRecoupRefresh(104) {
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// The coin's blinding secret.
        coin_blind: BlindingSecret,
    }
    /// Link (by the old coin key): authenticates the link data of one fresh coin (sent at reveal time,
    /// checked by whoever later uses the link protocol).
    1204 WalletCoinLink(200) {
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// Transfer key of the candidate that was not revealed.
        transfer_pub: EcdhePublicKey,
        /// Hash of the age commitment; all zero if there is none.
        h_age_commitment: Zeros<32>,
        /// Hash of the blinded planchet.
        h_coin_envelope: HashCode,
    }
    /// KYC account setup (by the reserve key): asking for a KYC requirement row for the wallet for a
    /// balance threshold.
    1205 WalletAccountSetup(32) {
        /// Balance to be allowed.
        threshold: Amount,
    }
    /// Reserve history (by the reserve key): full reserve history, paying the history fee.
    1208 WalletReserveHistory(40) {
        /// When the request was made.
        request_timestamp: Timestamp,
        /// Fee for a complete history.
        history_fee: Amount,
    }
    /// Reserve status (by the reserve key): detailed reserve status (free).
    1209 WalletReserveStatus(16) {
        /// When the request was made.
        request_timestamp: Timestamp,
    }
    /// Reserve open (by the reserve key): keeping the reserve open until the given time with the given
    /// number of purses, paying from the reserve.
    1217 WalletReserveOpen(52) {
        /// Part of the cost that the reserve pays.
        reserve_payment: Amount,
        /// When the request was made.
        request_timestamp: Timestamp,
        /// The time until which the reserve stays open.
        reserve_expiration: Timestamp,
        /// Number of purses that it shall have.
        purse_limit: u32,
    }
    /// Reserve open payment by coin (by the coin key): paying a part of a reserve-open operation with a
    /// coin.
    1218 WalletReserveOpenDeposit(96) {
        /// The signature of the reserve over the request.
        reserve_sig: EddsaSignature,
        /// Contribution of the coin.
        coin_contribution: Amount,
    }
    /// Reserve close (by the reserve key): closing the reserve and wiring the rest out.
    1215 WalletReserveClose(48) {
        /// When the request was made.
        request_timestamp: Timestamp,
        /// Hash of the account to pay; all zero for the account of origin.
        target_h_payto: ShortHash,
    }
    /// Reserve attest request (by the reserve key): asking the exchange to attest the listed KYC
    /// attributes.
    1219 WalletReserveAttestDetails(80) {
        /// When the request was made.
        request_timestamp: Timestamp,
        /// Hash over the details.
        h_details: HashCode,
    }
    /// Purse create (by the purse key): creating a purse.
    1210 WalletPurseCreate(140) {
        /// When the purse expires.
        purse_expiration: Timestamp,
        /// Target amount of the purse, after deposit fees.
        purse_amount: Amount,
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// Public merge key.
        merge_pub: EddsaPublicKey,
        /// Minimum age of the payer; 0 if there is none.
        min_age: u32,
    }
    /// Purse deposit (by the coin key): depositing the coin into a purse.
    1211 WalletPurseDeposit(224) {
        /// Contribution of the coin, deposit fee included.
        coin_amount: Amount,
        /// Hash of the denomination key.
        h_denom_pub: HashCode,
        /// Hash of the age commitment; all zero if there is none.
        h_age_commitment: ShortHash,
        /// The purse.
        purse_pub: EddsaPublicKey,
        /// Hash of the base URL of the exchange.
        h_exchange_base_url: HashCode,
    }
    /// Purse status (by the purse key): reserved: reading purse status (not needed by any endpoint in this
    /// version).
    1212 WalletPurseStatus(8) {
    }
    /// Purse delete (by the purse key): deleting a purse that is not yet merged.
    1220 WalletPurseDelete(8) {
    }
    /// Purse merge (by the merge key): merging the purse into a reserve.
    1213 WalletPurseMerge(80) {
        /// When the purse was merged.
        merge_timestamp: Timestamp,
        /// The purse.
        purse_pub: EddsaPublicKey,
        /// Hash of the account's payto URI.
        h_payto: ShortHash,
    }
    /// Account merge (by the reserve key): accepting the merge of the purse into this reserve.
    1214 WalletAccountMerge(176) {
        /// When the purse expires.
        purse_expiration: Timestamp,
        /// Target amount of the purse, after deposit fees.
        purse_amount: Amount,
        /// Fee for creating a purse.
        purse_fee: Amount,
        /// Hash of the contract.
        h_contract_terms: HashCode,
        /// The purse.
        purse_pub: EddsaPublicKey,
        /// When the purse was merged.
        merge_timestamp: Timestamp,
        /// Minimum age of the payer; 0 if there is none.
        min_age: u32,
        /// The way in which the purse was created: 1 merged, 2 created from the quota, 3 created for a fee.
        flags: u32,
    }
    /// Encrypted contract upload (by the purse key): associating an encrypted contract with the purse.
    1216 WalletPurseEcontract(104) {
        /// SHA-512 of the encrypted contract.
        h_econtract: HashCode,
        /// Public contract key.
        contract_pub: EddsaPublicKey,
    }
}

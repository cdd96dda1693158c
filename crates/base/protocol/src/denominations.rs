//! The terms of a denomination, and the hashes over lists of denominations and deposits.

use batzen_crypto::hash::{Digest, Sha512, finish};
use batzen_crypto::refresh::{self, KAPPA};
use batzen_crypto::{
    BlindedPlanchet, CryptoError, DenomPublicKey, EcdhePublicKey, EddsaPublicKey, HashCode,
    RefreshMasterSecret,
};
use serde::{Deserialize, Serialize};

use crate::api::exchange::TransferDeposit;
use crate::signatures::{AuditorExchangeKeys, MasterDenominationKeyValidity};
use crate::{Amount, AmountError, Timestamp, hash_text};

/// Value, fees and times of a denomination, which the master key (and auditors) sign together with the key
/// itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DenominationTerms {
    /// Value of a coin.
    pub value: Amount,
    /// Fee for withdrawing a coin.
    pub fee_withdraw: Amount,
    /// Fee for depositing a coin.
    pub fee_deposit: Amount,
    /// Fee for melting a coin.
    pub fee_refresh: Amount,
    /// Fee for refunding a coin.
    pub fee_refund: Amount,
    /// Start of the period in which coins are issued.
    pub stamp_start: Timestamp,
    /// End of the period in which coins are issued.
    pub stamp_expire_withdraw: Timestamp,
    /// End of the period in which coins can be spent.
    pub stamp_expire_deposit: Timestamp,
    /// End of the period in which records are kept.
    pub stamp_expire_legal: Timestamp,
}

impl DenominationTerms {
    /// The cost of a coin to a reserve: its value and the withdraw fee.
    ///
    /// # Errors
    /// [`AmountError::Overflow`], or [`AmountError::CurrencyMismatch`].
    pub fn withdraw_cost(&self) -> Result<Amount, AmountError> {
        self.value.checked_add(&self.fee_withdraw)
    }

    /// The message that the master key signs for a denomination with these terms.
    pub fn validity(
        &self,
        master_pub: EddsaPublicKey,
        h_denom_pub: HashCode,
    ) -> MasterDenominationKeyValidity {
        MasterDenominationKeyValidity {
            master_pub,
            start: self.stamp_start,
            expire_withdraw: self.stamp_expire_withdraw,
            expire_deposit: self.stamp_expire_deposit,
            expire_legal: self.stamp_expire_legal,
            value: self.value,
            fee_withdraw: self.fee_withdraw,
            fee_deposit: self.fee_deposit,
            fee_refresh: self.fee_refresh,
            fee_refund: self.fee_refund,
            h_denom_pub,
        }
    }

    /// The message that an auditor signs for a denomination with these terms.
    pub fn auditor_approval(
        &self,
        auditor_url: &str,
        master_pub: EddsaPublicKey,
        h_denom_pub: HashCode,
    ) -> AuditorExchangeKeys {
        self.validity(master_pub, h_denom_pub).approved_by(auditor_url)
    }
}

impl MasterDenominationKeyValidity {
    /// The message that an auditor signs for the same denomination.
    #[must_use]
    pub fn approved_by(&self, auditor_url: &str) -> AuditorExchangeKeys {
        AuditorExchangeKeys {
            h_auditor_url: hash_text(auditor_url),
            master_pub: self.master_pub,
            start: self.start,
            expire_withdraw: self.expire_withdraw,
            expire_deposit: self.expire_deposit,
            expire_legal: self.expire_legal,
            value: self.value,
            fee_withdraw: self.fee_withdraw,
            fee_deposit: self.fee_deposit,
            fee_refresh: self.fee_refresh,
            fee_refund: self.fee_refund,
            h_denom_pub: self.h_denom_pub,
        }
    }
}

/// A denomination: key, hash of the key, and terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenominationInfo {
    /// The key.
    pub denom_pub: DenomPublicKey,
    /// Its hash, which identifies the denomination.
    pub h_denom_pub: HashCode,
    /// Value, fees and times.
    pub terms: DenominationTerms,
}

impl DenominationInfo {
    /// Computes the hash.
    pub fn new(denom_pub: DenomPublicKey, terms: DenominationTerms) -> Self {
        let h_denom_pub = denom_pub.h_denom_pub();
        Self { denom_pub, h_denom_pub, terms }
    }
}

/// Hash of the flat key listing: SHA-512 over all denomination hashes in the order of the listing.
pub fn key_set_hash<'a>(h_denom_pubs: impl IntoIterator<Item = &'a HashCode>) -> HashCode {
    let mut hasher = Sha512::new();
    for hash in h_denom_pubs {
        hasher.update(hash.as_bytes());
    }
    finish(hasher)
}

/// Hash of the grouped key listing, and of each group: XOR of all denomination hashes, in any order.
pub fn key_set_xor<'a>(h_denom_pubs: impl IntoIterator<Item = &'a HashCode>) -> HashCode {
    let mut out = [0u8; HashCode::SIZE];
    for hash in h_denom_pubs {
        for (out, byte) in out.iter_mut().zip(hash.as_bytes()) {
            *out ^= byte;
        }
    }
    HashCode::from_bytes(out)
}

/// `h_details` of an aggregated transfer: SHA-512 over its deposits in the order of the listing.
pub fn wire_details_hash<'a>(
    execution_time: Timestamp,
    deposits: impl IntoIterator<Item = &'a TransferDeposit>,
) -> HashCode {
    let mut hasher = Sha512::new();
    for deposit in deposits {
        hasher.update(deposit.h_contract_terms.as_bytes());
        hasher.update(execution_time.to_nbo());
        hasher.update(deposit.coin_pub.as_bytes());
        hasher.update(deposit.deposit_value.to_nbo());
        hasher.update(deposit.deposit_fee.to_nbo());
    }
    finish(hasher)
}

/// The refresh commitment `rc` over all candidates of a melt.
///
/// `rms` is needed if a fresh coin is of a CS denomination. `planchets` are those of the three candidates,
/// each in the order of `h_denom_pubs`.
///
/// # Errors
/// [`CryptoError::WrongCount`] unless there are 1 to 255 fresh coins and as many planchets in each candidate,
/// [`CryptoError::CipherMismatch`] if `rms` is missing.
pub fn refresh_commitment(
    rms: Option<&RefreshMasterSecret>,
    transfer_pubs: &[EcdhePublicKey; KAPPA],
    h_denom_pubs: &[HashCode],
    old_coin_pub: &EddsaPublicKey,
    amount_with_fee: &Amount,
    planchets: [&[BlindedPlanchet]; KAPPA],
) -> Result<HashCode, CryptoError> {
    let amount_with_fee = amount_with_fee.to_nbo();
    refresh::RefreshCommitment {
        rms,
        transfer_pubs,
        h_denom_pubs,
        old_coin_pub,
        amount_with_fee: &amount_with_fee,
        planchets,
    }
    .hash()
}

//! Refresh: change for a partly spent coin that nobody can link to it, except its owner.
//!
//! The wallet prepares [`KAPPA`] candidates, the exchange lets it reveal all but one and checks them, then signs the
//! fresh coins of the last one. Everything about a candidate follows from its transfer secret, which the owner of the
//! old coin can always compute again: so change cannot be used to pay somebody else unseen.

use crate::age::AgeCommitment;
use crate::denom::{BlindedPlanchet, Cipher, DenomPublicKey, ExchangeWithdrawValues, UnblindState};
use crate::ecdh::{ecdh_eddsa_priv, ecdh_eddsa_pub};
use crate::hash::{Digest, Sha512, finish};
use crate::kdf::kdf_array;
use crate::planchet::CoinSecrets;
use crate::{
    CryptoError, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, HashCode,
    PlanchetMasterSecret, RefreshMasterSecret, TransferSecret,
};

/// Number of candidates.
pub const KAPPA: usize = 3;

/// Largest number of fresh coins of one refresh.
pub const MAX_FRESH_COINS: usize = 255;

/// The transfer key of candidate `k` as wallets derive it from a refresh seed.
#[must_use]
pub fn transfer_priv_from_seed(seed: &[u8; 32], k: u32) -> EcdhePrivateKey {
    EcdhePrivateKey::from_bytes(kdf_array(&k.to_be_bytes(), seed, &[b"taler-transfer-pub-derivation"]))
}

/// The transfer key of candidate `k` as exchange-side tools derive it from a refresh master secret.
#[must_use]
pub fn transfer_priv_from_master_secret(
    rms: &RefreshMasterSecret,
    old_coin_priv: &EddsaPrivateKey,
    k: u32,
) -> EcdhePrivateKey {
    let info: [&[u8]; 2] = [rms.as_bytes(), b"taler-transfer-priv-derivation"];
    EcdhePrivateKey::from_bytes(kdf_array(&k.to_be_bytes(), old_coin_priv.as_bytes(), &info))
}

/// The transfer secret from the transfer private key: the wallet's way, and the exchange's at reveal time.
///
/// # Errors
///
/// [`CryptoError::InvalidPoint`] if the old coin's key is not a valid one.
pub fn transfer_secret(
    transfer_priv: &EcdhePrivateKey,
    old_coin_pub: &EddsaPublicKey,
) -> Result<TransferSecret, CryptoError> {
    ecdh_eddsa_pub(transfer_priv, old_coin_pub)
}

/// The same transfer secret from the old coin's private key: the way of the link protocol.
#[must_use]
pub fn link_transfer_secret(
    old_coin_priv: &EddsaPrivateKey,
    transfer_pub: &EcdhePublicKey,
) -> TransferSecret {
    ecdh_eddsa_priv(old_coin_priv, transfer_pub)
}

impl TransferSecret {
    /// The secret of the fresh coin at position `coin_index` in the list of all fresh coins.
    #[must_use]
    pub fn planchet_master_secret(&self, coin_index: u32) -> PlanchetMasterSecret {
        let secret = kdf_array(&coin_index.to_be_bytes(), self.as_bytes(), &[b"taler-coin-derivation"]);
        PlanchetMasterSecret::from_bytes(secret)
    }
}

/// The denomination of one fresh coin, with what the exchange gave for it.
#[derive(Clone, Copy, Debug)]
pub struct FreshDenom<'a> {
    /// The denomination.
    pub denom: &'a DenomPublicKey,
    /// The R values for the coin's nonce (Clause Blind Schnorr).
    pub values: ExchangeWithdrawValues,
}

/// One fresh coin of a candidate.
#[derive(Clone, Debug)]
pub struct FreshCoin {
    /// Its secrets.
    pub secrets: CoinSecrets,
    /// Its public key.
    pub coin_pub: EddsaPublicKey,
    /// The planchet to be signed.
    pub planchet: BlindedPlanchet,
    /// What finishes the coin when it is signed.
    pub unblind: UnblindState,
}

/// All fresh coins of the candidate with this transfer secret. `rms` is needed if one of the denominations is
/// Clause Blind Schnorr. `old_age` is the old coin's age commitment if it has one; the fresh coins' is
/// [`AgeCommitment::derive`] of it with the transfer secret.
///
/// # Errors
///
/// [`CryptoError::WrongCount`] for no or too many coins, [`CryptoError::CipherMismatch`] if values or `rms` are
/// missing, [`CryptoError::MaliciousKey`] or [`CryptoError::InvalidPoint`] if a key is not what it should be.
pub fn derive_candidate(
    secret: &TransferSecret,
    fresh: &[FreshDenom<'_>],
    rms: Option<&RefreshMasterSecret>,
    old_age: Option<&AgeCommitment>,
) -> Result<Vec<FreshCoin>, CryptoError> {
    if fresh.is_empty() || fresh.len() > MAX_FRESH_COINS {
        return Err(CryptoError::WrongCount);
    }
    let age = old_age.map(|age| age.derive(secret.as_bytes())).transpose()?;
    let h_age_commitment = age.map(|age| age.hash());
    fresh
        .iter()
        .zip(0u32..)
        .map(|(FreshDenom { denom, values }, index)| {
            let secrets = CoinSecrets::from_master(&secret.planchet_master_secret(index), values);
            let nonce = rms.map(|rms| rms.cs_nonce(index));
            let coin_pub = secrets.coin_pub();
            let (planchet, unblind) = crate::denom::prepare_planchet(
                denom,
                values,
                nonce.as_ref(),
                &coin_pub,
                &secrets.blinding,
                h_age_commitment.as_ref(),
            )?;
            Ok(FreshCoin { secrets, coin_pub, planchet, unblind })
        })
        .collect()
}

/// The planchets of a revealed candidate, recomputed by the exchange; arguments and errors as for
/// [`derive_candidate`].
///
/// # Errors
///
/// As [`derive_candidate`].
pub fn recompute_candidate(
    transfer_priv: &EcdhePrivateKey,
    old_coin_pub: &EddsaPublicKey,
    fresh: &[FreshDenom<'_>],
    rms: Option<&RefreshMasterSecret>,
    old_age: Option<&AgeCommitment>,
) -> Result<Vec<BlindedPlanchet>, CryptoError> {
    let secret = transfer_secret(transfer_priv, old_coin_pub)?;
    let coins = derive_candidate(&secret, fresh, rms, old_age)?;
    Ok(coins.into_iter().map(|coin| coin.planchet).collect())
}

/// What the refresh commitment rc covers.
#[derive(Clone, Copy, Debug)]
pub struct RefreshCommitment<'a> {
    /// The refresh master secret; it is part of the commitment if one of the fresh coins is Clause Blind Schnorr.
    pub rms: Option<&'a RefreshMasterSecret>,
    /// The transfer public keys of all candidates.
    pub transfer_pubs: &'a [EcdhePublicKey; KAPPA],
    /// `h_denom_pub` of every fresh coin, in order.
    pub h_denom_pubs: &'a [HashCode],
    /// The old coin.
    pub old_coin_pub: &'a EddsaPublicKey,
    /// The full amount melted, in binary form.
    pub amount_with_fee: &'a [u8; 24],
    /// The planchets of all candidates, in the order of the fresh coins.
    pub planchets: [&'a [BlindedPlanchet]; KAPPA],
}

impl RefreshCommitment<'_> {
    /// The commitment hash rc.
    ///
    /// # Errors
    ///
    /// [`CryptoError::WrongCount`] unless there are 1 to [`MAX_FRESH_COINS`] denominations and as many planchets in
    /// each candidate; [`CryptoError::CipherMismatch`] if there is a Clause Blind Schnorr planchet but no `rms`.
    pub fn hash(&self) -> Result<HashCode, CryptoError> {
        let count = self.h_denom_pubs.len();
        if !(1..=MAX_FRESH_COINS).contains(&count) || self.planchets.iter().any(|list| list.len() != count) {
            return Err(CryptoError::WrongCount);
        }
        let mut hasher = Sha512::new();
        if self.planchets.iter().flat_map(|list| *list).any(|planchet| planchet.cipher() == Cipher::Cs) {
            hasher.update(self.rms.ok_or(CryptoError::CipherMismatch)?);
        }
        for transfer_pub in self.transfer_pubs {
            hasher.update(transfer_pub);
        }
        for h_denom_pub in self.h_denom_pubs {
            hasher.update(h_denom_pub);
        }
        hasher.update(self.old_coin_pub);
        hasher.update(self.amount_with_fee);
        for planchet in self.planchets.iter().flat_map(|list| *list) {
            planchet.write_part(&mut hasher);
        }
        Ok(finish(hasher))
    }
}

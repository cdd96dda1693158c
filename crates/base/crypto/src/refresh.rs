//! Refresh: change for a partly spent coin that nobody can link to it, except its owner.
//!
//! The wallet prepares [`KAPPA`] candidates. The exchange has it reveal all but one, checks them, and then
//! signs the fresh coins of the remaining one. Everything in a candidate derives from its transfer secret,
//! which the owner of the old coin can always recompute. So a refresh cannot be used to pay somebody else
//! unnoticed.

use crate::age::AgeCommitment;
use crate::denom::{
    BlindedPlanchet, Cipher, DenomPublicKey, ExchangeWithdrawValues, PlanchetRequest, UnblindState,
    prepare_planchets_by,
};
use crate::ecdh::{self, ecdh_eddsa_priv, ecdh_eddsa_pub};
use crate::eddsa::public_keys_by;
use crate::hash::{Digest, Sha512, finish};
use crate::kdf::{Derivation, kdf_array, kdf_each};
use crate::lanes::Choice;
use crate::planchet::CoinSecrets;
use crate::{
    CryptoError, CsNonce, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, HashCode, Path,
    PlanchetMasterSecret, RefreshMasterSecret, ShortHash, TransferSecret,
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
/// [`CryptoError::InvalidPoint`] if the old coin's key is invalid.
pub fn transfer_secret(
    transfer_priv: &EcdhePrivateKey,
    old_coin_pub: &EddsaPublicKey,
) -> Result<TransferSecret, CryptoError> {
    ecdh_eddsa_pub(transfer_priv, old_coin_pub)
}

/// The same transfer secret from the old coin's private key, as in the link protocol.
#[must_use]
pub fn link_transfer_secret(
    old_coin_priv: &EddsaPrivateKey,
    transfer_pub: &EcdhePublicKey,
) -> TransferSecret {
    ecdh_eddsa_priv(old_coin_priv, transfer_pub)
}

/// The domain separator for fresh coins.
const COIN_DERIVATION: &[&[u8]] = &[b"taler-coin-derivation"];

impl TransferSecret {
    /// The secret of the fresh coin at position `coin_index` in the list of all fresh coins.
    #[must_use]
    pub fn planchet_master_secret(&self, coin_index: u32) -> PlanchetMasterSecret {
        let secret = kdf_array(&coin_index.to_be_bytes(), self.as_bytes(), COIN_DERIVATION);
        PlanchetMasterSecret::from_bytes(secret)
    }
}

/// The denomination of one fresh coin, with the exchange's values.
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
    /// The state to unblind the coin once it is signed.
    pub unblind: UnblindState,
}

/// All fresh coins of the candidate with this transfer secret. `rms` is needed if one of the denominations is
/// Clause Blind Schnorr. `old_age` is the old coin's age commitment if it has one; the fresh coins' is
/// [`AgeCommitment::derive`] of it with the transfer secret.
///
/// # Errors
///
/// [`CryptoError::WrongCount`] for no or too many coins, [`CryptoError::CipherMismatch`] if values or `rms`
/// are missing, [`CryptoError::MaliciousKey`] or [`CryptoError::InvalidPoint`] if a key is invalid.
pub fn derive_candidate(
    secret: &TransferSecret,
    fresh: &[FreshDenom<'_>],
    rms: Option<&RefreshMasterSecret>,
    old_age: Option<&AgeCommitment>,
) -> Result<Vec<FreshCoin>, CryptoError> {
    derive_candidates(&[Candidate { secret, fresh, rms, old_age }]).remove(0)
}

/// A candidate to derive; see [`derive_candidate`].
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The transfer secret.
    pub secret: &'a TransferSecret,
    /// The denominations of the fresh coins.
    pub fresh: &'a [FreshDenom<'a>],
    /// The refresh master secret (Clause Blind Schnorr).
    pub rms: Option<&'a RefreshMasterSecret>,
    /// The old coin's age commitment.
    pub old_age: Option<&'a AgeCommitment>,
}

/// All fresh coins of many candidates, in the order of the arguments. The coins of all candidates are
/// computed together, eight at once if the processor can, in time that does not depend on the secrets.
///
/// Errors of a candidate are those of [`derive_candidate`]; they do not affect the others.
#[must_use]
pub fn derive_candidates(candidates: &[Candidate<'_>]) -> Vec<Result<Vec<FreshCoin>, CryptoError>> {
    derive(Choice::Fastest, candidates)
}

/// [`derive_candidates`] by the chosen implementation, however few coins there are.
#[must_use]
pub fn derive_candidates_with(
    path: Path,
    candidates: &[Candidate<'_>],
) -> Vec<Result<Vec<FreshCoin>, CryptoError>> {
    derive(Choice::Only(path), candidates)
}

/// One of the coins of all candidates.
struct CandidateCoin<'a> {
    candidate: &'a Candidate<'a>,
    /// Position among the candidate's fresh coins, big endian.
    index: [u8; 4],
    denom: &'a FreshDenom<'a>,
    h_age: Option<&'a ShortHash>,
}

impl<'a> CandidateCoin<'a> {
    /// The secret from which the coin's nonce is derived, if it has one.
    fn nonce_secret(&self) -> Option<&'a RefreshMasterSecret> {
        self.candidate.rms.filter(|_| self.denom.denom.cipher() == Cipher::Cs)
    }
}

fn derive(choice: Choice, candidates: &[Candidate<'_>]) -> Vec<Result<Vec<FreshCoin>, CryptoError>> {
    let h_ages: Vec<Result<Option<ShortHash>, CryptoError>> = candidates
        .iter()
        .map(|Candidate { secret, fresh, old_age, .. }| {
            if fresh.is_empty() || fresh.len() > MAX_FRESH_COINS {
                return Err(CryptoError::WrongCount);
            }
            let age = old_age.map(|age| age.derive(secret.as_bytes())).transpose()?;
            Ok(age.map(|age| age.hash()))
        })
        .collect();
    let mut places = Vec::with_capacity(candidates.iter().map(|candidate| candidate.fresh.len()).sum());
    for (candidate, h_age) in candidates.iter().zip(&h_ages) {
        if let Ok(h_age) = h_age {
            places.extend(candidate.fresh.iter().zip(0u32..).map(|(denom, index)| CandidateCoin {
                candidate,
                index: index.to_be_bytes(),
                denom,
                h_age: h_age.as_ref(),
            }));
        }
    }
    let mut coins = derive_coins(choice, &places).into_iter();
    candidates
        .iter()
        .zip(&h_ages)
        .map(|(candidate, h_age)| {
            h_age.as_ref().map_err(|error| *error)?;
            // Process all of them, whatever the first results are.
            let coins: Vec<_> = coins.by_ref().take(candidate.fresh.len()).collect();
            coins.into_iter().collect()
        })
        .collect()
}

fn derive_coins(choice: Choice, places: &[CandidateCoin<'_>]) -> Vec<Result<FreshCoin, CryptoError>> {
    let masters: Vec<_> = places
        .iter()
        .map(|place| Derivation {
            salt: &place.index,
            ikm: place.candidate.secret.as_bytes(),
            info: COIN_DERIVATION,
        })
        .collect();
    let masters = kdf_each(choice, &masters);
    let masters: Vec<_> = masters.0.iter().map(|secret| PlanchetMasterSecret::from_bytes(*secret)).collect();
    let masters: Vec<_> =
        masters.iter().zip(places).map(|(secret, place)| (secret, &place.denom.values)).collect();
    let secrets = CoinSecrets::from_masters(choice, &masters);
    let nonces = cs_nonces(choice, places);
    let privs: Vec<_> = secrets.iter().map(|secrets| &secrets.coin_priv).collect();
    let coin_pubs = public_keys_by(choice, &privs);
    let requests: Vec<_> = places
        .iter()
        .zip(secrets.iter().zip(&coin_pubs).zip(&nonces))
        .map(|(place, ((secrets, coin_pub), nonce))| PlanchetRequest {
            denom: place.denom.denom,
            values: &place.denom.values,
            nonce: nonce.as_ref(),
            coin_pub,
            blinding: &secrets.blinding,
            h_age_commitment: place.h_age,
        })
        .collect();
    let planchets = prepare_planchets_by(choice, &requests);
    planchets
        .into_iter()
        .zip(secrets.into_iter().zip(coin_pubs))
        .map(|(prepared, (secrets, coin_pub))| {
            let (planchet, unblind) = prepared?;
            Ok(FreshCoin { secrets, coin_pub, planchet, unblind })
        })
        .collect()
}

/// The nonces of the coins that need one, where it can be computed.
fn cs_nonces(choice: Choice, places: &[CandidateCoin<'_>]) -> Vec<Option<CsNonce>> {
    let needed: Vec<_> = places.iter().filter(|place| place.nonce_secret().is_some()).collect();
    let infos: Vec<[&[u8]; 1]> =
        needed.iter().filter_map(|place| Some([&place.nonce_secret()?.as_bytes()[..]])).collect();
    let derivations: Vec<_> = needed
        .iter()
        .zip(&infos)
        .map(|(place, info)| Derivation { salt: &place.index, ikm: b"refresh-n", info })
        .collect();
    let nonces = kdf_each(choice, &derivations);
    let mut nonces = nonces.0.iter().map(|nonce| CsNonce::from_bytes(*nonce));
    places.iter().map(|place| place.nonce_secret().and_then(|_| nonces.next())).collect()
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
    let revealed = Revealed { transfer_priv, old_coin_pub, fresh, rms, old_age };
    let candidate = recompute_candidates(&[revealed]).remove(0)?;
    Ok(candidate.planchets)
}

/// A revealed candidate to recompute; see [`recompute_candidate`].
#[derive(Clone, Copy, Debug)]
pub struct Revealed<'a> {
    /// The transfer private key.
    pub transfer_priv: &'a EcdhePrivateKey,
    /// The old coin.
    pub old_coin_pub: &'a EddsaPublicKey,
    /// The denominations of the fresh coins.
    pub fresh: &'a [FreshDenom<'a>],
    /// The refresh master secret (Clause Blind Schnorr).
    pub rms: Option<&'a RefreshMasterSecret>,
    /// The old coin's age commitment.
    pub old_age: Option<&'a AgeCommitment>,
}

/// The values derived from a revealed transfer private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputed {
    /// The transfer public key.
    pub transfer_pub: EcdhePublicKey,
    /// The planchets, in the order of the fresh coins.
    pub planchets: Vec<BlindedPlanchet>,
}

/// Recomputes many revealed candidates, of one refresh or of several, in the order of the arguments. They are
/// computed together, as in [`derive_candidates`].
///
/// Errors of a candidate are those of [`derive_candidate`]; they do not affect the others.
#[must_use]
pub fn recompute_candidates(candidates: &[Revealed<'_>]) -> Vec<Result<Recomputed, CryptoError>> {
    recompute(Choice::Fastest, candidates)
}

/// [`recompute_candidates`] by the chosen implementation, however few there are.
#[must_use]
pub fn recompute_candidates_with(
    path: Path,
    candidates: &[Revealed<'_>],
) -> Vec<Result<Recomputed, CryptoError>> {
    recompute(Choice::Only(path), candidates)
}

fn recompute(choice: Choice, candidates: &[Revealed<'_>]) -> Vec<Result<Recomputed, CryptoError>> {
    let privs: Vec<_> = candidates.iter().map(|candidate| candidate.transfer_priv).collect();
    let transfer_pubs = ecdh::public_keys_by(choice, &privs);
    let pairs: Vec<_> =
        candidates.iter().map(|candidate| (candidate.transfer_priv, candidate.old_coin_pub)).collect();
    let secrets = ecdh::ecdh_eddsa_pubs_by(choice, &pairs);
    let derivable: Vec<_> = candidates
        .iter()
        .zip(&secrets)
        .filter_map(|(&Revealed { fresh, rms, old_age, .. }, secret)| {
            Some(Candidate { secret: secret.as_ref().ok()?, fresh, rms, old_age })
        })
        .collect();
    let mut derived = derive(choice, &derivable).into_iter();
    secrets
        .iter()
        .zip(transfer_pubs)
        .map(|(secret, transfer_pub)| {
            secret.as_ref().map_err(|error| *error)?;
            let coins = derived.next().expect("one result a candidate")?;
            let planchets = coins.into_iter().map(|coin| coin.planchet).collect();
            Ok(Recomputed { transfer_pub, planchets })
        })
        .collect()
}

/// The values covered by the refresh commitment rc.
#[derive(Clone, Copy, Debug)]
pub struct RefreshCommitment<'a> {
    /// The refresh master secret; it is part of the commitment if one of the fresh coins is Clause Blind
    /// Schnorr.
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
    /// [`CryptoError::WrongCount`] unless there are 1 to [`MAX_FRESH_COINS`] denominations and as many
    /// planchets in each candidate; [`CryptoError::CipherMismatch`] if there is a Clause Blind Schnorr
    /// planchet but no `rms`.
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

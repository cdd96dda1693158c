//! Refreshing a coin: everything that does not depend on the exchange's choice is prepared in advance.

use batzen_crypto::refresh::{self, Candidate, FreshDenom, KAPPA, RefreshCommitment};
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, DenomSignature, EcdhePrivateKey, EcdhePublicKey,
    EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues, HashCode, RefreshMasterSecret,
    ShortHash, ecdh,
};
use batzen_protocol::Amount;
use batzen_protocol::api::exchange::{
    CsrMeltCoin, CsrMeltRequest, CsrMeltResponse, MeltRequest, RevealRequest,
};
use batzen_protocol::signatures::{SignedMessage, WalletCoinLink, WalletCoinMelt, Zeros};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Planchet, wrong};
use crate::bench::load::wire;
use crate::bench::scenarios::world::Denom;

/// The terms of a change.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The seed of its secrets.
    pub seed: [u8; 32],
    /// The amount taken from the old coin, which is the value of the fresh coins.
    pub amount: Amount,
    /// Denominations of the fresh coins.
    pub fresh: Vec<Denom>,
}

impl Terms {
    fn rms(&self) -> RefreshMasterSecret {
        RefreshMasterSecret::from_bytes(batzen_crypto::kdf::kdf_array(b"rms", &self.seed, &[]))
    }

    /// Returns whether the exchange must be asked for R values first.
    pub(crate) fn needs_values(&self) -> bool {
        self.fresh.iter().any(|denom| denom.key.cipher() == Cipher::Cs)
    }

    /// The HTTP request for the R values of the fresh coins.
    pub(crate) fn csr_request(&self) -> Vec<u8> {
        let nks = (0..)
            .zip(&self.fresh)
            .map(|(coin_offset, denom)| CsrMeltCoin { coin_offset, denom_pub_hash: denom.h_denom_pub })
            .collect();
        wire::post("/csr-melt", &CsrMeltRequest { rms: self.rms(), nks })
    }

    /// The R values in the answer to it.
    ///
    /// # Errors
    /// [`BenchError::WrongAnswer`].
    pub(crate) fn csr_answer(&self, body: &[u8]) -> Result<Vec<ExchangeWithdrawValues>> {
        let answer: CsrMeltResponse = coins::read("csr-melt", body)?;
        if answer.ewvs.len() != self.fresh.len() {
            return Err(BenchError::WrongAnswer("csr-melt: wrong number of R values".into()));
        }
        Ok(answer.ewvs.into_iter().map(|values| values.ewv).collect())
    }

    /// The R values for denominations that need none.
    pub(crate) fn no_values(&self) -> Vec<ExchangeWithdrawValues> {
        vec![ExchangeWithdrawValues::Rsa; self.fresh.len()]
    }
}

/// A prepared change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The commitment.
    pub(crate) rc: HashCode,
    amount: Amount,
    old_priv: EddsaPrivateKey,
    old_pub: EddsaPublicKey,
    h_old_denom: HashCode,
    confirm_sig: EddsaSignature,
    transfer_privs: [EcdhePrivateKey; KAPPA],
    transfer_pubs: [EcdhePublicKey; KAPPA],
    candidates: [Vec<Planchet>; KAPPA],
    h_denom_pubs: Vec<HashCode>,
    rms: Option<RefreshMasterSecret>,
}

impl Change {
    /// Prepares all three candidates and commits to them.
    pub(crate) fn new(
        terms: &Terms,
        old_priv: &EddsaPrivateKey,
        old_pub: &EddsaPublicKey,
        old_denom: &Denom,
        values: &[ExchangeWithdrawValues],
    ) -> Result<Self> {
        let rms = terms.needs_values().then(|| terms.rms());
        let fresh: Vec<FreshDenom<'_>> = terms
            .fresh
            .iter()
            .zip(values)
            .map(|(denom, values)| FreshDenom { denom: &denom.key, values: *values })
            .collect();
        let transfer_privs: [EcdhePrivateKey; KAPPA] =
            [0, 1, 2].map(|k| refresh::transfer_priv_from_seed(&terms.seed, k));
        let transfer_pubs = [0, 1, 2].map(|k: usize| transfer_privs[k].public_key());
        let bad = wrong("a key of the exchange");
        let pairs = transfer_privs.each_ref().map(|transfer_priv| (transfer_priv, old_pub));
        let secrets =
            ecdh::ecdh_eddsa_pubs(&pairs).into_iter().collect::<Result<Vec<_>, _>>().map_err(&bad)?;
        let derivable: Vec<_> = secrets
            .iter()
            .map(|secret| Candidate { secret, fresh: &fresh, rms: rms.as_ref(), old_age: None })
            .collect();
        let mut candidates: [Vec<Planchet>; KAPPA] = Default::default();
        for (candidate, coins) in candidates.iter_mut().zip(refresh::derive_candidates(&derivable)) {
            *candidate = coins.map_err(&bad)?.into_iter().map(Planchet::from).collect();
        }
        let h_denom_pubs: Vec<HashCode> = terms.fresh.iter().map(|denom| denom.h_denom_pub).collect();
        let planchets: [Vec<BlindedPlanchet>; KAPPA] =
            [0, 1, 2].map(|k: usize| candidates[k].iter().map(|planchet| planchet.blinded.clone()).collect());
        let rc = RefreshCommitment {
            rms: rms.as_ref(),
            transfer_pubs: &transfer_pubs,
            h_denom_pubs: &h_denom_pubs,
            old_coin_pub: old_pub,
            amount_with_fee: &terms.amount.to_nbo(),
            planchets: [&planchets[0], &planchets[1], &planchets[2]],
        }
        .hash()
        .map_err(wrong("a commitment"))?;
        let confirm_sig = WalletCoinMelt {
            refresh_commitment: rc,
            h_denom_pub: old_denom.h_denom_pub,
            h_age_commitment: ShortHash::from_bytes([0; 32]),
            amount_with_fee: terms.amount,
            melt_fee: Amount::zero(terms.amount.currency),
        }
        .sign(old_priv);
        Ok(Self {
            rc,
            amount: terms.amount,
            old_priv: old_priv.clone(),
            old_pub: *old_pub,
            h_old_denom: old_denom.h_denom_pub,
            confirm_sig,
            transfer_privs,
            transfer_pubs,
            candidates,
            h_denom_pubs,
            rms,
        })
    }

    /// The HTTP request that melts the old coin; `signature` is the exchange's signature on it.
    pub(crate) fn melt(&self, signature: &DenomSignature) -> Vec<u8> {
        let body = MeltRequest {
            denom_sig: signature.clone(),
            denom_pub_hash: self.h_old_denom,
            age_commitment_hash: None,
            confirm_sig: self.confirm_sig,
            value_with_fee: self.amount,
            rc: self.rc,
            rms: self.rms.clone(),
            coin_pub: None,
        };
        wire::post(&format!("/coins/{}/melt", self.old_pub), &body)
    }

    /// The HTTP request that opens all candidates but this one, and asks for the signatures of its coins.
    pub(crate) fn reveal(&self, noreveal_index: usize) -> Vec<u8> {
        let transfer_pub = self.transfer_pubs[noreveal_index];
        let coins = &self.candidates[noreveal_index];
        let link_sigs = coins
            .iter()
            .zip(&self.h_denom_pubs)
            .map(|(coin, h_denom_pub)| {
                WalletCoinLink {
                    h_denom_pub: *h_denom_pub,
                    transfer_pub,
                    h_age_commitment: Zeros,
                    h_coin_envelope: coin.blinded.hash(h_denom_pub),
                }
                .sign(&self.old_priv)
            })
            .collect();
        let opened = (0..KAPPA).filter(|k| *k != noreveal_index);
        let body = RevealRequest {
            transfer_pub,
            transfer_privs: opened.map(|k| self.transfer_privs[k].clone()).collect(),
            link_sigs,
            coin_evs: coins.iter().map(|coin| coin.blinded.clone()).collect(),
            new_denoms_h: self.h_denom_pubs.clone(),
            old_age_commitment: None,
            rms: self.rms.clone(),
        };
        wire::post(&format!("/refreshes/{}/reveal", self.rc), &body)
    }

    /// The fresh coins of a candidate, still without their signatures.
    pub(crate) fn into_planchets(self, noreveal_index: usize) -> Vec<Planchet> {
        self.candidates.into_iter().nth(noreveal_index).unwrap_or_default()
    }
}

/// A coin without its signature, or with the blind signature only.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    /// The coin.
    pub(crate) planchet: Planchet,
    /// The exchange's blind signature.
    pub(crate) blind: BlindedDenomSignature,
}

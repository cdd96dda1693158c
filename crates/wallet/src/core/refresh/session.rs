//! The candidates of a refresh and their commitment. Pure: load generators use it without a wallet.

use batzen_crypto::ecdh::{ecdh_eddsa_pub, ecdh_eddsa_pubs};
use batzen_crypto::refresh::{
    Candidate, FreshCoin, FreshDenom, KAPPA, RefreshCommitment, derive_candidates,
    transfer_priv_from_master_secret,
};
use batzen_crypto::{
    AgeCommitment, EcdhePrivateKey, EcdhePublicKey, EddsaPublicKey, ExchangeWithdrawValues, HashCode,
    RefreshMasterSecret, TransferSecret,
};
use batzen_protocol::Amount;

use super::super::exchange::Denom;
use crate::core::error::Result;

/// A refresh session: the candidates and their commitment. Pure; load generators use it without a wallet.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    /// Private and public key of the melted coin.
    pub(crate) old_coin: (&'a batzen_crypto::EddsaPrivateKey, EddsaPublicKey),
    pub secret: &'a RefreshMasterSecret,
    /// Fresh denominations, with the exchange's first messages for Clause-Schnorr.
    pub fresh: Vec<(&'a Denom, ExchangeWithdrawValues)>,
    /// The age commitment of the melted coin, if it has one.
    pub old_age: Option<AgeCommitment>,
}

impl Session<'_> {
    fn has_cs(&self) -> bool {
        self.fresh.iter().any(|(_, values)| !matches!(values, ExchangeWithdrawValues::Rsa))
    }

    /// The secret in the request: present only with Clause-Schnorr coins.
    pub(crate) fn rms(&self) -> Option<&RefreshMasterSecret> {
        self.has_cs().then_some(self.secret)
    }

    /// Transfer key of a candidate.
    pub(crate) fn transfer_priv(&self, candidate: u32) -> EcdhePrivateKey {
        transfer_priv_from_master_secret(self.secret, self.old_coin.0, candidate)
    }

    /// The secret that a candidate's transfer key shares with the melted coin.
    pub(super) fn transfer_secret(&self, candidate: u32) -> Result<TransferSecret> {
        Ok(ecdh_eddsa_pub(&self.transfer_priv(candidate), &self.old_coin.1)?)
    }

    /// The coins of a candidate.
    ///
    /// # Errors
    /// If a key or an R value would mark coins.
    pub(crate) fn candidate(&self, candidate: u32) -> Result<Vec<FreshCoin>> {
        let [coins] = self.candidates([candidate])?;
        Ok(coins)
    }

    /// The coins of several candidates, computed side by side.
    fn candidates<const N: usize>(&self, candidates: [u32; N]) -> Result<[Vec<FreshCoin>; N]> {
        let fresh: Vec<FreshDenom<'_>> = self
            .fresh
            .iter()
            .map(|(denom, values)| FreshDenom { denom: &denom.key, values: *values })
            .collect();
        let privs = candidates.map(|candidate| self.transfer_priv(candidate));
        let secrets =
            ecdh_eddsa_pubs(&privs.each_ref().map(|transfer_priv| (transfer_priv, &self.old_coin.1)));
        let secrets = secrets.into_iter().collect::<Result<Vec<_>, _>>()?;
        let derivable: Vec<_> = secrets
            .iter()
            .map(|secret| Candidate {
                secret,
                fresh: &fresh,
                rms: self.rms(),
                old_age: self.old_age.as_ref(),
            })
            .collect();
        let mut lists: [Vec<FreshCoin>; N] = [const { Vec::new() }; N];
        for (list, coins) in lists.iter_mut().zip(derive_candidates(&derivable)) {
            *list = coins?;
        }
        Ok(lists)
    }

    /// The commitment to all candidates.
    ///
    /// # Errors
    /// As [`Session::candidate`].
    pub(crate) fn commitment(&self, amount_with_fee: &Amount) -> Result<HashCode> {
        let planchets = self
            .candidates([0, 1, 2])?
            .map(|coins| coins.into_iter().map(|coin| coin.planchet).collect::<Vec<_>>());
        let [first, second, third] = &planchets;
        let transfer_pubs: [EcdhePublicKey; KAPPA] =
            [0, 1, 2].map(|candidate| self.transfer_priv(candidate).public_key());
        let h_denom_pubs: Vec<HashCode> = self.fresh.iter().map(|(denom, _)| denom.h_denom_pub).collect();
        let commitment = RefreshCommitment {
            rms: self.rms(),
            transfer_pubs: &transfer_pubs,
            h_denom_pubs: &h_denom_pubs,
            old_coin_pub: &self.old_coin.1,
            amount_with_fee: &amount_with_fee.to_nbo(),
            planchets: [first, second, third],
        };
        Ok(commitment.hash()?)
    }
}

//! Derivation of the secrets of coins.

use zeroize::Zeroizing;

use crate::denom::{self, BlindedPlanchet, DenomPublicKey, ExchangeWithdrawValues, UnblindState};
use crate::kdf::{Derivation, kdf, kdf_array, kdf_each};
use crate::lanes::Choice;
use crate::{
    BlindingSecret, CryptoError, CsNonce, EddsaPrivateKey, EddsaPublicKey, PlanchetMasterSecret, ShortHash,
};

/// The secrets of one coin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoinSecrets {
    /// The coin's private key.
    pub coin_priv: EddsaPrivateKey,
    /// Its blinding secret: the RSA blinding secret, or the Clause Blind Schnorr blinding seed.
    pub blinding: BlindingSecret,
}

impl CoinSecrets {
    /// Coin number `coin_index` of a withdrawal, as wallets derive it from the withdrawal's seed (RSA).
    #[must_use]
    pub fn from_withdrawal_seed(seed: &[u8; 32], coin_index: u32) -> Self {
        Self::from_wallet_seed(seed, coin_index, b"taler-withdrawal-coin-derivation")
    }

    /// Coin number `coin_index` of a tip, as wallets derive it from the tip's seed (RSA).
    #[must_use]
    pub fn from_tip_seed(seed: &[u8; 64], coin_index: u32) -> Self {
        Self::from_wallet_seed(seed, coin_index, b"taler-tip-coin-derivation")
    }

    fn from_wallet_seed(seed: &[u8], coin_index: u32, label: &[u8]) -> Self {
        let mut out = Zeroizing::new([0; 64]);
        kdf(&mut *out, &coin_index.to_be_bytes(), seed, &[label]);
        Self {
            coin_priv: EddsaPrivateKey::from_bytes(*out.first_chunk().expect("64 bytes hold 32")),
            blinding: BlindingSecret::from_bytes(*out.last_chunk().expect("64 bytes hold 32")),
        }
    }

    /// The coin of a planchet master secret. With Clause Blind Schnorr it depends on the exchange's R values.
    #[must_use]
    pub fn from_master(secret: &PlanchetMasterSecret, values: &ExchangeWithdrawValues) -> Self {
        let derive = |label: &[u8], info: &[&[u8]]| kdf_array(label, secret.as_bytes(), info);
        let (coin_priv, blinding) = match values {
            ExchangeWithdrawValues::Rsa => (derive(b"coin", &[]), derive(b"bks", &[])),
            ExchangeWithdrawValues::Cs { r0, r1 } => {
                let info: [&[u8]; 2] = [r0.as_bytes(), r1.as_bytes()];
                (derive(b"coin", &info), derive(b"bseed", &info))
            }
        };
        Self {
            coin_priv: EddsaPrivateKey::from_bytes(coin_priv),
            blinding: BlindingSecret::from_bytes(blinding),
        }
    }

    /// The coins of many planchet master secrets, equal to those of [`Self::from_master`], in the order of
    /// the arguments.
    pub(crate) fn from_masters(
        choice: Choice,
        items: &[(&PlanchetMasterSecret, &ExchangeWithdrawValues)],
    ) -> Vec<Self> {
        let r_values = |values: &ExchangeWithdrawValues| match values {
            ExchangeWithdrawValues::Rsa => None,
            ExchangeWithdrawValues::Cs { r0, r1 } => Some([*r0.as_bytes(), *r1.as_bytes()]),
        };
        let infos: Vec<_> = items.iter().map(|(_, values)| r_values(values)).collect();
        let infos: Vec<_> =
            infos.iter().map(|info| info.as_ref().map_or(&[][..], |r| r.as_flattened())).collect();
        let infos: Vec<_> = infos.iter().map(|info| [*info]).collect();
        let derivations: Vec<_> = items
            .iter()
            .zip(&infos)
            .flat_map(|((secret, values), info)| {
                let blinding: &[u8] = match values {
                    ExchangeWithdrawValues::Rsa => b"bks",
                    ExchangeWithdrawValues::Cs { .. } => b"bseed",
                };
                [&b"coin"[..], blinding].map(|salt| Derivation { salt, ikm: secret.as_bytes(), info })
            })
            .collect();
        let keys = kdf_each(choice, &derivations);
        let secrets = keys.0.as_chunks::<2>().0.iter().map(|[coin_priv, blinding]| Self {
            coin_priv: EddsaPrivateKey::from_bytes(*coin_priv),
            blinding: BlindingSecret::from_bytes(*blinding),
        });
        secrets.collect()
    }

    /// The coin's public key.
    #[must_use]
    pub fn coin_pub(&self) -> EddsaPublicKey {
        self.coin_priv.public_key()
    }

    /// Blinds the coin for `denom`; arguments and errors as for [`denom::prepare_planchet`].
    ///
    /// # Errors
    ///
    /// As [`denom::prepare_planchet`].
    pub fn prepare(
        &self,
        denom: &DenomPublicKey,
        values: &ExchangeWithdrawValues,
        nonce: Option<&CsNonce>,
        h_age_commitment: Option<&ShortHash>,
    ) -> Result<(BlindedPlanchet, UnblindState), CryptoError> {
        denom::prepare_planchet(denom, values, nonce, &self.coin_pub(), &self.blinding, h_age_commitment)
    }
}

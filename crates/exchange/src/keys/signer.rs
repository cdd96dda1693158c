//! Blind signing with the private keys of one snapshot.

use std::sync::Arc;

use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, ExchangeWithdrawValues, blind_sign_batch,
};
use batzen_crypto::{CryptoError, CsNonce};
use batzen_protocol::ErrorCode;
use batzen_tables::exchange::DenomSerial;

use super::state::Denom;
use crate::metrics::Metrics;

/// Why a planchet was not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// The private key is not (or no longer) here.
    #[error("the private key is not available")]
    KeyUnavailable,
    /// The planchet is not one of this denomination: wrong cipher, wrong size, or not below the modulus.
    #[error("planchet: {0}")]
    Planchet(CryptoError),
    /// Our own computation failed its check.
    #[error("signing failed: {0}")]
    Failed(CryptoError),
}

impl NotSigned {
    /// The code to answer with.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::KeyUnavailable => ErrorCode::EXCHANGE_DENOMINATION_HELPER_UNAVAILABLE,
            Self::Planchet(_) => ErrorCode::GENERIC_PARAMETER_MALFORMED,
            Self::Failed(_) => ErrorCode::EXCHANGE_DENOMINATION_HELPER_BUG,
        }
    }
}

/// Signs with the denomination keys of one snapshot. Cheap to clone, for jobs on the CPU pool.
#[derive(Clone, Debug)]
pub struct Signer {
    denoms: Arc<[Arc<Denom>]>,
    metrics: Arc<Metrics>,
}

impl Signer {
    pub(super) fn new(denoms: Vec<Arc<Denom>>, metrics: Arc<Metrics>) -> Self {
        Self { denoms: denoms.into(), metrics }
    }

    fn denom(&self, serial: DenomSerial) -> Option<&Denom> {
        self.denoms.get((serial.0 as usize).checked_sub(1)?).map(Arc::as_ref)
    }

    /// Signs blinded planchets, each with the key of its denomination; the results stand in the order of the arguments.
    /// Takes its time: call it on the CPU pool.
    ///
    /// The caller has checked windows and revocation, and makes sure (by the rules' nonce locks) that no Clause Blind
    /// Schnorr signature leaves for a nonce that was signed with other challenges.
    pub fn blind_sign_batch(
        &self,
        items: &[(DenomSerial, &BlindedPlanchet, CsOperation)],
    ) -> Vec<Result<BlindedDenomSignature, NotSigned>> {
        let mut results: Vec<Result<BlindedDenomSignature, NotSigned>> =
            vec![Err(NotSigned::KeyUnavailable); items.len()];
        let mut requests = Vec::with_capacity(items.len());
        let mut places = Vec::with_capacity(items.len());
        for (place, (serial, planchet, operation)) in items.iter().enumerate() {
            if let Some(key) = self.denom(*serial).and_then(Denom::key) {
                requests.push((&key.secret, *planchet, *operation));
                places.push(place);
            }
        }
        for (place, result) in places.into_iter().zip(blind_sign_batch(&requests)) {
            results[place] = result.map_err(|error| match error {
                CryptoError::Fault | CryptoError::Internal => NotSigned::Failed(error),
                _ => NotSigned::Planchet(error),
            });
            if results[place].is_ok() {
                match items[place].1.cipher() {
                    Cipher::Rsa => self.metrics.signatures.rsa.inc(),
                    Cipher::Cs => self.metrics.signatures.cs.inc(),
                }
            }
        }
        results
    }

    /// The values that a wallet needs before it can blind a coin: the R values of a Clause Blind Schnorr denomination,
    /// nothing for RSA. Changes nothing and can be asked any number of times.
    pub fn withdraw_values(
        &self,
        serial: DenomSerial,
        nonce: &CsNonce,
        operation: CsOperation,
    ) -> Result<ExchangeWithdrawValues, NotSigned> {
        let key = self.denom(serial).and_then(Denom::key).ok_or(NotSigned::KeyUnavailable)?;
        Ok(ExchangeWithdrawValues::derive(&key.secret, nonce, operation))
    }
}

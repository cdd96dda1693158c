//! Blind signing with the private keys of one snapshot.

use std::sync::Arc;

use batzen_crypto::cs::{self, CsOperation, CsRequest};
use batzen_crypto::denom::{
    self, BlindedDenomSignature, BlindedPlanchet, Cipher, DenomPrivateKey, ExchangeWithdrawValues,
};
use batzen_crypto::{CryptoError, CsNonce};
use batzen_protocol::ErrorCode;
use batzen_tables::exchange::DenomSerial;

use super::modules::HeldKey;
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

    fn key(&self, serial: DenomSerial) -> Result<Arc<HeldKey>, NotSigned> {
        let denom = (serial.0 as usize).checked_sub(1).and_then(|index| self.denoms.get(index));
        denom.and_then(|denom| denom.key().cloned()).ok_or(NotSigned::KeyUnavailable)
    }

    /// A planchet to be signed with the key of its denomination.
    ///
    /// The caller has checked windows and revocation, and makes sure (by the rules' nonce locks) that no Clause Blind
    /// Schnorr signature leaves for a nonce that was signed with other challenges.
    pub fn order(
        &self,
        serial: DenomSerial,
        planchet: BlindedPlanchet,
        operation: CsOperation,
    ) -> Result<BlindOrder, NotSigned> {
        Ok(BlindOrder { key: self.key(serial)?, planchet, operation })
    }

    /// The values for a nonce, to be derived with [`derive_values`].
    pub fn order_values(
        &self,
        serial: DenomSerial,
        nonce: CsNonce,
        operation: CsOperation,
    ) -> Result<ValuesOrder, NotSigned> {
        Ok(ValuesOrder { key: self.key(serial)?, nonce, operation })
    }

    /// Signs blinded planchets at once; the results stand in the order of the arguments. See [`Signer::order`] and
    /// [`blind_sign_batch`].
    pub fn blind_sign_batch(
        &self,
        items: &[(DenomSerial, &BlindedPlanchet, CsOperation)],
    ) -> Vec<Result<BlindedDenomSignature, NotSigned>> {
        let mut results = Vec::with_capacity(items.len());
        let mut orders = Vec::with_capacity(items.len());
        for (serial, planchet, operation) in items {
            let order = self.order(*serial, (*planchet).clone(), *operation);
            results.push(order.map(|order| orders.push(order)));
        }
        let mut signed = blind_sign_batch(&orders, &self.metrics).into_iter();
        let result = |order: Result<(), _>| order.and_then(|()| signed.next().expect("one result an order"));
        results.into_iter().map(result).collect()
    }

    /// The values that a wallet needs before it can blind a coin: the R values of a Clause Blind Schnorr denomination,
    /// nothing for RSA. Changes nothing and can be asked any number of times.
    pub fn withdraw_values(
        &self,
        serial: DenomSerial,
        nonce: &CsNonce,
        operation: CsOperation,
    ) -> Result<ExchangeWithdrawValues, NotSigned> {
        let order = self.order_values(serial, *nonce, operation)?;
        Ok(derive_values(&[order]).pop().expect("one answer an order"))
    }
}

/// A planchet and the private key to sign it with.
#[derive(Debug)]
pub struct BlindOrder {
    key: Arc<HeldKey>,
    planchet: BlindedPlanchet,
    operation: CsOperation,
}

/// A nonce and the private key to derive R values with.
#[derive(Debug)]
pub struct ValuesOrder {
    key: Arc<HeldKey>,
    nonce: CsNonce,
    operation: CsOperation,
}

/// Derives the values that were ordered, by whomever, in the order of the arguments: two multiplications of the base
/// point each. Call it on the CPU pool.
pub fn derive_values(orders: &[ValuesOrder]) -> Vec<ExchangeWithdrawValues> {
    let requests: Vec<_> = orders
        .iter()
        .filter_map(|order| match &order.key.secret {
            DenomPrivateKey::Rsa(_) => None,
            DenomPrivateKey::Cs(key) => {
                Some(CsRequest { key, nonce: &order.nonce, operation: order.operation })
            }
        })
        .collect();
    let mut values = cs::r_pubs_batch(&requests).into_iter();
    let value = |order: &ValuesOrder| match order.key.secret {
        DenomPrivateKey::Rsa(_) => ExchangeWithdrawValues::Rsa,
        DenomPrivateKey::Cs(_) => {
            let [r0, r1] = values.next().expect("one answer a request");
            ExchangeWithdrawValues::Cs { r0, r1 }
        }
    };
    orders.iter().map(value).collect()
}

/// Signs what was ordered, by whomever; the results stand in the order of the arguments. Takes its time: call it on the
/// CPU pool, with as many orders at once as there are.
pub fn blind_sign_batch(
    orders: &[BlindOrder],
    metrics: &Metrics,
) -> Vec<Result<BlindedDenomSignature, NotSigned>> {
    let items: Vec<_> =
        orders.iter().map(|order| (&order.key.secret, &order.planchet, order.operation)).collect();
    let results = denom::blind_sign_batch(&items).into_iter().zip(orders);
    let results = results.map(|(result, order)| {
        let signature = result.map_err(|error| match error {
            CryptoError::Fault | CryptoError::Internal => NotSigned::Failed(error),
            _ => NotSigned::Planchet(error),
        })?;
        match order.planchet.cipher() {
            Cipher::Rsa => metrics.signatures.rsa.inc(),
            Cipher::Cs => metrics.signatures.cs.inc(),
        }
        Ok(signature)
    });
    results.collect()
}

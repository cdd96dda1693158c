//! Signing with private keys in this process, in batches on the CPU pool.

use std::sync::Arc;

use batzen_crypto::cs::{self, CsOperation, CsRequest};
use batzen_crypto::denom::{
    self, BlindedDenomSignature, BlindedPlanchet, DenomPrivateKey, ExchangeWithdrawValues,
};
use batzen_crypto::{CryptoError, CsNonce, EddsaSignature, eddsa};
use batzen_engine::{Collector, CollectorOptions, CpuPool};

use crate::modules::{HeldKey, SigningKey};

/// A planchet and the private key to sign it with.
#[derive(Debug)]
pub(crate) struct HeldBlind {
    pub(crate) key: Arc<HeldKey>,
    pub(crate) planchet: BlindedPlanchet,
    /// Purpose.
    pub(crate) operation: CsOperation,
}

/// A nonce and the private key to derive R values with.
#[derive(Debug)]
pub(crate) struct HeldValues {
    pub(crate) key: Arc<HeldKey>,
    pub(crate) nonce: CsNonce,
    /// Purpose.
    pub(crate) operation: CsOperation,
}

/// A message to sign with an online key.
pub(crate) struct HeldSign {
    pub(crate) key: Arc<SigningKey>,
    pub(crate) message: Box<[u8]>,
}

/// The collectors of a process with private keys. Items refer to their keys, so a batch may mix requests,
/// nodes and keys.
pub struct LocalSigner {
    pub(crate) blind: Collector<HeldBlind, Result<BlindedDenomSignature, CryptoError>>,
    /// Signatures of answers.
    pub(crate) sign: Collector<HeldSign, EddsaSignature>,
    /// The first messages of Clause Blind Schnorr coins.
    pub(crate) values: Collector<HeldValues, ExchangeWithdrawValues>,
}

/// Number of items of each kind that may wait: at most a second of work on one core, except for blind
/// signatures, where the number of requests in flight limits the time.
const QUEUE_ITEMS_MAX: usize = 16_384;

impl LocalSigner {
    /// Creates the collectors on this pool.
    pub fn new(pool: &CpuPool) -> Self {
        let options = CollectorOptions { queue_items_max: QUEUE_ITEMS_MAX, batch_items_max: 64, lanes: 8 };
        Self {
            blind: pool.collector("blind-sign", options, blind_sign_batch),
            sign: pool.collector("sign", options, sign_batch),
            values: pool.collector("csr", options, derive_values),
        }
    }
}

fn sign_batch(orders: &[HeldSign]) -> Vec<EddsaSignature> {
    let items: Vec<_> = orders.iter().map(|order| (&order.key.signer, &*order.message)).collect();
    eddsa::sign_batch(&items)
}

/// Derives the requested values, in the order of the arguments. Each costs two multiplications of the base
/// point.
fn derive_values(orders: &[HeldValues]) -> Vec<ExchangeWithdrawValues> {
    let requests: Vec<_> = orders
        .iter()
        .filter_map(|order| match &order.key.secret {
            DenomPrivateKey::Rsa(_) => None,
            DenomPrivateKey::Cs(key) => {
                Some(CsRequest { key: key.secret(), nonce: &order.nonce, operation: order.operation })
            }
        })
        .collect();
    let mut values = cs::r_pubs_batch(&requests).into_iter();
    let value = |order: &HeldValues| match order.key.secret {
        DenomPrivateKey::Rsa(_) => ExchangeWithdrawValues::Rsa,
        DenomPrivateKey::Cs(_) => {
            let [r0, r1] = values.next().expect("one answer a request");
            ExchangeWithdrawValues::Cs { r0, r1 }
        }
    };
    orders.iter().map(value).collect()
}

fn blind_sign_batch(orders: &[HeldBlind]) -> Vec<Result<BlindedDenomSignature, CryptoError>> {
    let items: Vec<_> =
        orders.iter().map(|order| (&order.key.secret, &order.planchet, order.operation)).collect();
    denom::blind_sign_batch(&items)
}

//! Checks of signatures and recomputations of coins that requests wait for, collected over all requests and
//! executed on the CPU pool in batches. Signing is done by the [`batzen_signer::Custody`], in this process or
//! elsewhere.
//!
//! Items are self-contained, so that a batch may mix requests and denominations. Which keys may be used is
//! decided before for each request, and again by the rules afterwards.

use std::sync::Arc;

use batzen_crypto::denom;
use batzen_crypto::refresh::{
    FreshDenom, KAPPA, Recomputed, RefreshCommitment, Revealed, recompute_candidates,
};
use batzen_crypto::{
    AgeCommitment, BlindedPlanchet, CryptoError, DenomPublicKey, DenomSignature, EddsaPublicKey,
    EddsaSignature, ExchangeWithdrawValues, HashCode, ShortHash, eddsa,
};
use batzen_engine::{Collector, CollectorOptions, CpuPool};
use batzen_protocol::Amount;
use batzen_protocol::api::exchange::RevealRequest;
use batzen_protocol::signatures::SignedMessage;

/// One signature to check.
pub(crate) enum Check {
    /// A denomination's signature on a coin.
    Coin {
        coin_pub: EddsaPublicKey,
        /// Hash of its age commitment.
        h_age: Option<ShortHash>,
        denom_pub: DenomPublicKey,
        signature: DenomSignature,
    },
    /// An Ed25519 signature.
    Eddsa {
        /// The signer's key.
        public: EddsaPublicKey,
        /// The signed message.
        message: Box<[u8]>,
        signature: EddsaSignature,
    },
}

impl Check {
    /// Makes the check that `signature` is that of `public` over `message`.
    pub(crate) fn eddsa(
        public: EddsaPublicKey,
        message: &impl SignedMessage,
        signature: EddsaSignature,
    ) -> Self {
        Self::Eddsa { public, message: message.message().as_ref().into(), signature }
    }
}

/// A refresh whose opened candidates must be recomputed to find the commitment.
pub(crate) struct Opening {
    pub(crate) old_coin_pub: EddsaPublicKey,
    /// The full amount melted.
    pub(crate) amount_with_fee: Amount,
    /// The candidate that stays secret, below [`KAPPA`].
    pub(crate) noreveal_index: usize,
    /// The denominations of the fresh coins.
    pub(crate) denoms: Vec<DenomPublicKey>,
    /// Their R values, one for each.
    pub(crate) values: Vec<ExchangeWithdrawValues>,
    /// The old coin's age commitment.
    pub(crate) old_age: Option<AgeCommitment>,
    /// The keys that the wallet reveals: `KAPPA − 1` transfer keys, and as many planchets as there are
    /// denominations.
    pub(crate) body: RevealRequest,
}

/// The collectors of one exchange.
pub(crate) struct Crypto {
    /// Checks of signatures. The answer is whether the signature is valid.
    pub(crate) checks: Collector<Check, bool>,
    /// Opened refreshes. The answer is the commitment, or None if the derivation fails, which it does only
    /// for values that no honest wallet sends.
    pub(crate) openings: Collector<Arc<Opening>, Option<HashCode>>,
}

/// Number of items that may wait: at most a second of work on one core.
const QUEUE_ITEMS_MAX: usize = 16_384;

impl Crypto {
    /// Collectors on this pool.
    pub(crate) fn new(pool: &CpuPool) -> Self {
        // A payment needs two checks, and each kind has its own lanes.
        let options = CollectorOptions { queue_items_max: QUEUE_ITEMS_MAX, batch_items_max: 128, lanes: 16 };
        // Four refreshes need eight key exchanges, and a few more planchets.
        let of_openings =
            CollectorOptions { queue_items_max: QUEUE_ITEMS_MAX, batch_items_max: 16, lanes: 4 };
        Self {
            checks: pool.collector("check", options, check),
            openings: pool.collector("reveal", of_openings, commitments),
        }
    }
}

fn check(checks: &[Check]) -> Vec<bool> {
    let mut coins = Vec::with_capacity(checks.len());
    let mut h_coin_pubs = Vec::with_capacity(checks.len());
    let mut signatures = Vec::with_capacity(checks.len());
    for check in checks {
        match check {
            Check::Coin { coin_pub, h_age, .. } => {
                h_coin_pubs.push(denom::h_coin_pub(coin_pub, h_age.as_ref()));
            }
            Check::Eddsa { public, message, signature } => signatures.push((public, &**message, signature)),
        }
    }
    let mut hashes = h_coin_pubs.iter();
    for check in checks {
        if let Check::Coin { denom_pub, signature, .. } = check {
            coins.push((denom_pub, hashes.next().expect("one hash a coin"), signature));
        }
    }
    let mut coins = denom::verify_batch(&coins).into_iter();
    let mut signatures = eddsa::verify_batch(&signatures).into_iter();
    let verdicts = checks.iter().map(|check| match check {
        Check::Coin { .. } => coins.next().expect("one verdict a coin"),
        Check::Eddsa { .. } => signatures.next().expect("one verdict a signature"),
    });
    verdicts.collect()
}

/// The commitment of each opened refresh.
fn commitments(openings: &[Arc<Opening>]) -> Vec<Option<HashCode>> {
    let fresh: Vec<Vec<FreshDenom<'_>>> = openings
        .iter()
        .map(|opening| {
            let pairs = opening.denoms.iter().zip(&opening.values);
            pairs.map(|(denom, values)| FreshDenom { denom, values: *values }).collect()
        })
        .collect();
    let revealed: Vec<Revealed<'_>> = openings
        .iter()
        .zip(&fresh)
        .flat_map(|(opening, fresh)| {
            opening.body.transfer_privs.iter().map(|transfer_priv| Revealed {
                transfer_priv,
                old_coin_pub: &opening.old_coin_pub,
                fresh,
                rms: opening.body.rms.as_ref(),
                old_age: opening.old_age.as_ref(),
            })
        })
        .collect();
    let mut recomputed = recompute_candidates(&revealed).into_iter();
    openings
        .iter()
        .map(|opening| {
            let opened: Vec<_> = recomputed.by_ref().take(opening.body.transfer_privs.len()).collect();
            opening.commitment(opened).ok()
        })
        .collect()
}

impl Opening {
    /// The commitment of the opened candidates, in their order, and of the one that stays secret.
    fn commitment(&self, opened: Vec<Result<Recomputed, CryptoError>>) -> Result<HashCode, CryptoError> {
        let mut opened = opened.into_iter();
        let mut planchets: [Vec<BlindedPlanchet>; KAPPA] = Default::default();
        let mut transfer_pubs = [self.body.transfer_pub; KAPPA];
        for k in 0..KAPPA {
            if k == self.noreveal_index {
                planchets[k].clone_from(&self.body.coin_evs);
            } else {
                let candidate = opened.next().ok_or(CryptoError::WrongCount)??;
                transfer_pubs[k] = candidate.transfer_pub;
                planchets[k] = candidate.planchets;
            }
        }
        RefreshCommitment {
            rms: self.body.rms.as_ref(),
            transfer_pubs: &transfer_pubs,
            h_denom_pubs: &self.body.new_denoms_h,
            old_coin_pub: &self.old_coin_pub,
            amount_with_fee: &self.amount_with_fee.to_nbo(),
            planchets: [&planchets[0], &planchets[1], &planchets[2]],
        }
        .hash()
    }
}

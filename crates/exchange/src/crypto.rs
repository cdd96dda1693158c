//! The checks of signatures that requests wait for, gathered over all requests and executed on the CPU pool in batches.
//! What is signed is signed by the [`batzen_signer::Custody`], here or elsewhere.
//!
//! Items carry all they need, so that a batch may mix the requests and denominations of that moment. Which keys may be used
//! is decided before, per request, and by the rules after.

use batzen_crypto::denom;
use batzen_crypto::{DenomPublicKey, DenomSignature, EddsaPublicKey, EddsaSignature, ShortHash, eddsa};
use batzen_engine::{Collector, CollectorOptions, CpuPool};
use batzen_protocol::signatures::SignedMessage;

/// One signature to check.
pub enum Check {
    /// A denomination's signature on a coin.
    Coin {
        /// The coin.
        coin_pub: EddsaPublicKey,
        /// Hash of its age commitment.
        h_age: Option<ShortHash>,
        /// The denomination's key.
        denom_pub: DenomPublicKey,
        /// Its signature.
        signature: DenomSignature,
    },
    /// An Ed25519 signature.
    Eddsa {
        /// Who signed.
        public: EddsaPublicKey,
        /// What was signed.
        message: Box<[u8]>,
        /// The signature.
        signature: EddsaSignature,
    },
}

impl Check {
    /// Whether `signature` is that of `public` over `message`.
    pub fn eddsa(public: EddsaPublicKey, message: &impl SignedMessage, signature: EddsaSignature) -> Self {
        Self::Eddsa { public, message: message.message().as_ref().into(), signature }
    }
}

/// The collectors of one exchange.
pub struct Crypto {
    /// Checks of signatures; answers whether they are valid.
    pub checks: Collector<Check, bool>,
}

/// Items that may wait: a second of work or less on one core.
const QUEUE_ITEMS_MAX: usize = 16_384;

impl Crypto {
    /// Collectors on this pool.
    pub fn new(pool: &CpuPool) -> Self {
        // A payment brings two checks, one for each kind of lanes.
        let options = CollectorOptions { queue_items_max: QUEUE_ITEMS_MAX, batch_items_max: 128, lanes: 16 };
        Self { checks: pool.collector("check", options, check) }
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

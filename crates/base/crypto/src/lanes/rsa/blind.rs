//! Blinding in lanes: f · r^e modulo n for secret r.

use std::sync::LazyLock;

use zeroize::Zeroize;

use super::modular::{Modulus, Scratch, blinded_power, zero};
use super::{HASHES, LANES, PublicKey, Size, full_domain_hashes_into, gather, lane_items, scatter};
use crate::lanes::hkdf::{self, Salt};
use crate::lanes::wipe;
use crate::rsa::{BLINDING_CONTEXT, BLINDING_SALT, RsaPublicKey};
use crate::{BlindingSecret, HashCode};

/// A message to blind.
#[derive(Clone, Copy)]
pub(crate) struct BlindItem<'a> {
    pub(crate) key: &'a PublicKey,
    /// The public key of `key`.
    pub(crate) public: &'a RsaPublicKey,
    pub(crate) message: &'a HashCode,
    pub(crate) secret: &'a BlindingSecret,
}

/// Numbers of one size, one after another, that are wiped when dropped.
struct Secrets(Vec<u8>);

impl Drop for Secrets {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// The blinded messages of one to sixteen items with keys of one size, in the size of the modulus. `None`
/// where the lanes cannot decide, which never happens by chance, and where `is_good` returns false.
///
/// `is_good` gets a key, and the hashes and blinding factors of neighbouring items with this key, and
/// returns whether all of these are coprime to the modulus. Constant time, except for `is_good` itself.
pub(crate) fn blind_each(
    items: &[BlindItem<'_>],
    is_good: impl Fn(&RsaPublicKey, &[&[u8]], &[&[u8]]) -> bool,
) -> Vec<Option<Vec<u8>>> {
    static SALT: LazyLock<Salt> = LazyLock::new(|| Salt::new(BLINDING_SALT));
    assert!((1..=HASHES).contains(&items.len()), "one to sixteen items");
    let size = items[0].key.size;
    assert!(items.iter().all(|item| item.key.size == size), "keys of one size");
    let bytes = size.bytes();
    let mut hashes = vec![0; items.len() * bytes];
    let of_messages = items.iter().map(|item| (item.key, item.public, item.message));
    let mut undecided = full_domain_hashes_into(of_messages, &mut hashes);
    let mut factors = Secrets(vec![0; items.len() * bytes]);
    let moduli: Vec<_> = items.iter().map(|item| item.public.modulus()).collect();
    let prks = hkdf::extract_each(items.iter().map(|item| (&*SALT, &item.secret.as_bytes()[..])));
    undecided |= hkdf::expand_below_each(&prks.0, &moduli, BLINDING_CONTEXT, &mut factors.0);
    let hashes: Vec<_> = hashes.chunks_exact(bytes).collect();
    let factors: Vec<_> = factors.0.chunks_exact(bytes).collect();

    // Undecided numbers are not below the modulus, so they must not be used.
    let usable: Vec<_> = (0..items.len()).filter(|lane| undecided >> lane & 1 == 0).collect();
    let mut results = vec![None; items.len()];
    for group in usable.chunks(LANES) {
        let lanes: Vec<_> = group.iter().map(|&i| (items[i].key, hashes[i], factors[i])).collect();
        for (&index, blinded) in group.iter().zip(blind_in_lanes(size, &lanes)) {
            results[index] = Some(blinded);
        }
    }
    for same in usable.chunk_by(|&a, &b| items[a].public.is_same_object(items[b].public)) {
        let hashes: Vec<_> = same.iter().map(|&index| hashes[index]).collect();
        let factors: Vec<_> = same.iter().map(|&index| factors[index]).collect();
        if !is_good(items[same[0]].public, &hashes, &factors) {
            for &index in same {
                results[index] = None;
            }
        }
    }
    results
}

/// f · r^e modulo n for one to eight keys with f and r, big endian below the modulus and in its size.
fn blind_in_lanes(size: Size, items: &[(&PublicKey, &[u8], &[u8])]) -> Vec<Vec<u8>> {
    assert!(crate::lanes::ifma(), "callers ask first");
    #[allow(unsafe_code)]
    // SAFETY: the processor has the instructions, see the assertion.
    unsafe {
        match size {
            Size::Bits1024 => powers::<2>(size, items),
            Size::Bits2048 => powers::<4>(size, items),
            Size::Bits3072 => powers::<6>(size, items),
        }
    }
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn powers<const F: usize>(size: Size, items: &[(&PublicKey, &[u8], &[u8])]) -> Vec<Vec<u8>> {
    let lanes = lane_items(items);
    let mut modulus = Modulus::<F>::new();
    modulus.set(lanes.map(|(key, ..)| &key.odd));
    let mut value = zero::<F>();
    let mut factor = zero::<F>();
    for (lane, (_, hash, secret)) in lanes.iter().enumerate() {
        scatter(&mut value, lane, hash);
        scatter(&mut factor, lane, secret);
    }
    let mut scratch = Scratch::new();
    blinded_power(&mut value, &mut factor, &lanes.map(|(key, ..)| key.exponent), &modulus, &mut scratch);
    wipe(factor.as_flattened_mut());
    scratch.zeroize();
    let blinded = |lane| {
        let mut bytes = vec![0; size.bytes()];
        gather(&value, lane, &mut bytes);
        bytes
    };
    (0..items.len()).map(blinded).collect()
}

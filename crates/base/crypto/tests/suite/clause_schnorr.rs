//! Clause Blind Schnorr in batches: compares both implementations with single operations, for valid and
//! invalid input.
use batzen_crypto::cs::{self, CsOperation, CsRequest, CsSignRequest};
use batzen_crypto::{
    BlindingSecret, CsPrivateKey, CsPublicKey, CsRPub, CsScalar, CsSignature, CsSigningKey, CsVerifyingKey,
    HashCode, Path, PlanchetMasterSecret,
};
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::{EdwardsPoint, Scalar};

fn keys(count: u8) -> Vec<CsPrivateKey> {
    let scalar = |i: u8| Scalar::from_bytes_mod_order_wide(&[i + 1; 64]);
    (0..count).map(|i| CsPrivateKey::from_bytes(scalar(i).to_bytes())).collect()
}

#[test]
fn r_values_in_batches_equal_single_ones() {
    let keys = keys(3);
    let nonces: Vec<_> = (0..150).map(|i| PlanchetMasterSecret::from_bytes([i; 32]).cs_nonce()).collect();
    let operations = [CsOperation::Withdraw, CsOperation::Melt];
    let items: Vec<_> = (0..nonces.len())
        .map(|i| CsRequest { key: &keys[i / 3 % 3], nonce: &nonces[i], operation: operations[i % 2] })
        .collect();
    let expected: Vec<_> =
        items.iter().map(|item| cs::r_pubs(item.key, item.nonce, item.operation)).collect();
    for size in [0, 1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 64, 65, items.len()] {
        let (items, expected) = (&items[..size], &expected[..size]);
        assert_eq!(cs::r_pubs_batch(items), expected);
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(cs::r_pubs_batch_with(path, items), expected);
        }
    }
}

/// A signature made by the protocol.
fn signature(key: &CsPrivateKey, public: &CsVerifyingKey, message: &HashCode, number: u8) -> CsSignature {
    let nonce = PlanchetMasterSecret::from_bytes([number; 32]).cs_nonce();
    let operation = CsOperation::Withdraw;
    let r_pubs = cs::r_pubs(key, &nonce, operation);
    let seed = BlindingSecret::from_bytes([number; 32]);
    let (challenges, unblind) = cs::blind(public, &r_pubs, message, &seed).unwrap();
    let challenges = [&challenges[0], &challenges[1]];
    let key = &CsSigningKey::new(key.clone()).unwrap();
    let blind = cs::sign_batch(&[CsSignRequest { key, nonce: &nonce, operation, challenges }])[0];
    unblind.unblind(&blind.unwrap()).unwrap()
}

const L: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// Good signatures, and each with every kind of change, in batches of all kinds.
#[test]
fn verdicts_in_batches_are_those_of_single_verification() {
    let secrets = keys(4);
    let publics: Vec<_> = secrets.iter().map(|key| CsVerifyingKey::new(&key.public()).unwrap()).collect();
    let mut cases = Vec::new();
    for number in 0..40u8 {
        let i = usize::from(number) % secrets.len();
        let message = HashCode::from_bytes([number; 64]);
        let good = signature(&secrets[i], &publics[i], &message, number);
        cases.push((i, message, good));
        cases.push(((i + 1) % secrets.len(), message, good));
        cases.push((i, HashCode::from_bytes([number ^ 1; 64]), good));
        for bit in 0..8 {
            let (mut r, mut s) = (*good.r.as_bytes(), *good.s.as_bytes());
            let at = usize::from(number) % 32;
            r[at] ^= 1 << bit;
            s[at] ^= 1 << bit;
            cases.push((i, message, CsSignature { r: CsRPub::from_bytes(r), s: good.s }));
            cases.push((i, message, CsSignature { r: good.r, s: CsScalar::from_bytes(s) }));
        }
        let mut sum = *good.s.as_bytes();
        let mut carry = 0u16;
        for (byte, order) in sum.iter_mut().zip(L) {
            carry += u16::from(*byte) + u16::from(order);
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        cases.push((i, message, CsSignature { r: good.r, s: CsScalar::from_bytes(sum) }));
        // R' with components of small order, or neutral, or not in canonical form.
        let r = curve25519_dalek::edwards::CompressedEdwardsY(*good.r.as_bytes()).decompress().unwrap();
        for point in EIGHT_TORSION.iter().flat_map(|&torsion| [torsion, r + torsion]) {
            let r = CsRPub::from_bytes(point.compress().to_bytes());
            cases.push((i, message, CsSignature { r, s: good.s }));
            cases.push((i, message, CsSignature { r, s: CsScalar::ZERO }));
        }
        cases.push((i, message, CsSignature { r: CsRPub::from_bytes([0xff; 32]), s: good.s }));
    }
    let items: Vec<_> =
        cases.iter().map(|(i, message, signature)| (&publics[*i], message, signature)).collect();
    let expected: Vec<_> =
        items.iter().map(|(key, message, signature)| cs::verify(key, message, signature)).collect();
    assert_eq!(expected.iter().filter(|&&valid| valid).count(), 40 + 40, "the good ones, and R' itself");
    for size in [1, 2, 7, 8, 9, 64, 65, 200, items.len()] {
        for (items, expected) in items.chunks(size).zip(expected.chunks(size)) {
            // From library to lanes once a key has been used often.
            assert_eq!(cs::verify_batch(items), expected);
            for path in [Path::Library, Path::Lanes] {
                assert_eq!(cs::verify_batch_with(path, items), expected);
            }
        }
    }
}

/// A neutral R' is valid for s = c'·x: its order is not checked, alone or in batches.
#[test]
fn neutral_r_is_verified_like_any_other() {
    let neutral = EdwardsPoint::default().compress().to_bytes();
    let secret = keys(1).remove(0);
    let public = CsVerifyingKey::new(&secret.public()).unwrap();
    let message = HashCode::from_bytes([1; 64]);
    let hash = batzen_crypto::hash::sha512_parts(&[&neutral, message.as_bytes()]);
    let mut order = L;
    order.reverse();
    // Computes c' as the wallet does.
    let mut c: [u8; 32] =
        batzen_crypto::kdf::kdf_mod(&order, secret.public().as_bytes(), hash.as_bytes(), b"Curve25519FDH")
            .try_into()
            .unwrap();
    c.reverse();
    let s = Scalar::from_bytes_mod_order(c) * Scalar::from_bytes_mod_order(*secret.as_bytes());
    let signature = CsSignature { r: CsRPub::from_bytes(neutral), s: CsScalar::from_bytes(s.to_bytes()) };
    assert!(cs::verify(&public, &message, &signature));
    assert_eq!(cs::verify_batch_with(Path::Lanes, &[(&public, &message, &signature)]), [true]);
}

/// Keys that are used rarely and often, side by side.
#[test]
fn batches_may_mix_keys_with_and_without_tables() {
    let secrets = keys(6);
    let publics: Vec<_> = secrets.iter().map(|key| CsVerifyingKey::new(&key.public()).unwrap()).collect();
    let message = HashCode::from_bytes([7; 64]);
    let signatures: Vec<_> =
        (0..secrets.len()).map(|i| signature(&secrets[i], &publics[i], &message, i as u8)).collect();
    let other = HashCode::from_bytes([8; 64]);
    for round in 0..40 {
        let mut items = Vec::new();
        let mut expected = Vec::new();
        for i in 0..secrets.len() {
            for n in 0..i * i {
                let valid = (n + round) % 3 != 0;
                items.push((&publics[i], if valid { &message } else { &other }, &signatures[i]));
                expected.push(valid);
            }
        }
        let shift = round % items.len();
        items.rotate_left(shift);
        expected.rotate_left(shift);
        assert_eq!(cs::verify_batch(&items), expected);
    }
    assert!(CsVerifyingKey::new(&CsPublicKey::from_bytes([0; 32])).is_err());
}

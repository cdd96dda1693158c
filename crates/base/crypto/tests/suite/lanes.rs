//! The batch operations of a refresh: compares every implementation with the single functions.
use std::sync::LazyLock;

use batzen_crypto::age::{AgeCommitmentProof, AgeMask};
use batzen_crypto::cs::{self, CsBlindRequest, CsSignRequest};
use batzen_crypto::denom::{self, PlanchetRequest};
use batzen_crypto::refresh::{self, Candidate, FreshDenom, Revealed};
use batzen_crypto::{
    BlindingSecret, CoinSecrets, CryptoError, CsOperation, CsPrivateKey, CsRPub, CsSigningKey,
    CsVerifyingKey, DenomKey, DenomPrivateKey, DenomPublicKey, EcdhePrivateKey, EcdhePublicKey,
    EddsaPrivateKey, EddsaPublicKey, ExchangeWithdrawValues, HashCode, Path, PlanchetMasterSecret,
    RefreshMasterSecret, RsaPrivateKey, RsaPublicKey, TransferSecret, ecdh, eddsa, fill_random, kdf, rsa,
};
use curve25519_dalek::constants::EIGHT_TORSION;
use num_bigint::BigUint;

const PATHS: [Path; 2] = [Path::Library, Path::Lanes];

/// The number of rounds of the random checks: more with `BATZEN_SOAK_FACTOR`, as in `make soak`.
fn rounds(normal: usize) -> usize {
    let factor = std::env::var("BATZEN_SOAK_FACTOR").ok().and_then(|factor| factor.parse().ok());
    normal * factor.unwrap_or(1)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill_random(&mut bytes);
    bytes
}

/// A random number below `n`, which is at most 256.
fn below(n: usize) -> usize {
    usize::from(random::<1>()[0]) % n
}

/// The key as others decode it, not known to be a product of two large primes.
fn foreign(key: &RsaPublicKey) -> RsaPublicKey {
    RsaPublicKey::decode(key.encode()).unwrap()
}

/// Own and foreign keys of all sizes that the lanes support, and of one that they do not.
static RSA_KEYS: LazyLock<Vec<RsaPublicKey>> = LazyLock::new(|| {
    let sizes = [1024, 2048, 3072, 1152, 1024, 2048];
    let own: Vec<_> =
        sizes.into_iter().map(|bits| RsaPrivateKey::generate(bits).unwrap().public().clone()).collect();
    own.iter().flat_map(|key| [key.clone(), foreign(key)]).collect()
});

fn check_blinding(items: &[(&RsaPublicKey, HashCode, BlindingSecret)]) -> Vec<Result<Vec<u8>, CryptoError>> {
    let items: Vec<_> = items.iter().map(|(key, message, secret)| (*key, message, secret)).collect();
    let expected: Vec<_> =
        items.iter().map(|(key, message, secret)| rsa::blind(key, message, secret)).collect();
    for path in PATHS {
        assert!(rsa::blind_batch_with(path, &items) == expected, "{path:?} differs");
    }
    assert!(rsa::blind_batch(&items) == expected, "the mixture differs");
    expected
}

/// Random messages with a mix of key sizes and numbers of items; neighbours often have the same key.
#[test]
fn lanes_blind_like_the_library() {
    let mut done = 0;
    while done < rounds(1500) {
        let mut key = &RSA_KEYS[0];
        let items: Vec<_> = (0..1 + done % 37)
            .map(|_| {
                if below(3) == 0 {
                    key = &RSA_KEYS[below(RSA_KEYS.len())];
                }
                (key, HashCode::random(), BlindingSecret::generate())
            })
            .collect();
        assert!(check_blinding(&items).iter().all(Result::is_ok));
        done += items.len();
    }
    assert!(rsa::blind_batch(&[]).is_empty());
}

/// The largest and the smallest moduli of their size with all sizes of exponents, and moduli with many small
/// factors.
#[test]
fn lanes_blind_with_extreme_keys_like_the_library() {
    let one = BigUint::from(1u8);
    let mut keys = Vec::new();
    for bits in [1024u32, 2048, 3072] {
        let (low, high) = (&one << (bits - 1), &one << bits);
        for n in [&high - 1u8, &low + 1u8, &low + (&one << 52) - 1u8] {
            for e in [&[3][..], &[1, 0, 1], &[0xff; 4], &[0x80, 0, 0, 1]] {
                let key = RsaPublicKey::from_parts(&n.to_bytes_be(), e).unwrap();
                keys.extend([RsaPublicKey::decode_own(key.encode()).unwrap(), key]);
            }
        }
        // Odd numbers up to some limit, and a large cofactor.
        let small = (1..60u32).fold(one.clone(), |product, i| product * (2 * i + 1));
        let n = &small * (&low / &small + 1u8) + &small * ((&low / &small) % 2u8);
        let n = if n.bit(0) { n } else { n + &small };
        keys.push(RsaPublicKey::from_parts(&n.to_bytes_be(), &[1, 0, 1]).unwrap());
        assert_eq!(keys.last().unwrap().bits(), bits);
    }
    let (mut good, mut bad) = (0, 0);
    for round in 0..rounds(12) {
        let items: Vec<_> = keys
            .iter()
            .flat_map(|key| vec![key; 1 + round % 4])
            .map(|key| (key, HashCode::random(), BlindingSecret::generate()))
            .collect();
        for result in check_blinding(&items) {
            match result {
                Ok(_) => good += 1,
                Err(error) => {
                    assert_eq!(error, CryptoError::MaliciousKey);
                    bad += 1;
                }
            }
        }
    }
    assert!(good > 50 && bad > 50, "{good} good, {bad} bad");
}

/// Keys whose modulus begins like a blinding factor, which anyone who knows the secret could make: the lanes
/// cannot decide which is larger, and leave the message to the library.
#[test]
fn lanes_blind_with_keys_made_for_a_secret_like_the_library() {
    let mut made = 0;
    while made < 20 {
        let secret = BlindingSecret::generate();
        let mut n = vec![[0x00, 0xff][made % 2]; [128, 256, 384][made % 3]];
        let info: [&[u8]; 2] = [b"Blinding KDF", &[0, 0]];
        kdf::kdf(&mut n[..32], b"Blinding KDF extractor HMAC key", secret.as_bytes(), &info);
        if n[0] & 0x80 == 0 {
            continue;
        }
        n[64..96].copy_from_slice(&random::<32>());
        *n.last_mut().unwrap() |= 1;
        let key = RsaPublicKey::from_parts(&n, &[1, 0, 1]).unwrap();
        let own = RsaPublicKey::decode_own(key.encode()).unwrap();
        let mut items: Vec<_> = (0..1 + below(20))
            .map(|_| ([&key, &own, &RSA_KEYS[0]][below(3)], HashCode::random(), BlindingSecret::generate()))
            .collect();
        for key in [&key, &own] {
            items.insert(below(items.len()), (key, HashCode::random(), secret.clone()));
        }
        check_blinding(&items);
        made += 1;
    }
}

#[test]
fn lanes_make_public_keys_like_the_library() {
    let mut keys: Vec<_> = (0..rounds(300)).map(|_| random::<32>()).collect();
    keys.extend([[0; 32], [0xff; 32]]);
    let eddsa_keys: Vec<_> = keys.iter().map(|key| EddsaPrivateKey::from_bytes(*key)).collect();
    let ecdhe_keys: Vec<_> = keys.iter().map(|key| EcdhePrivateKey::from_bytes(*key)).collect();
    let eddsa_keys: Vec<_> = eddsa_keys.iter().collect();
    let ecdhe_keys: Vec<_> = ecdhe_keys.iter().collect();
    let eddsa_pubs: Vec<_> = eddsa_keys.iter().map(|key| key.public_key()).collect();
    let ecdhe_pubs: Vec<_> = ecdhe_keys.iter().map(|key| key.public_key()).collect();
    for count in [0, 1, 2, 7, 8, 9, 16, 17, 64, 65, 129, keys.len()] {
        for path in PATHS {
            assert_eq!(eddsa::public_keys_with(path, &eddsa_keys[..count]), eddsa_pubs[..count]);
            assert_eq!(ecdh::public_keys_with(path, &ecdhe_keys[..count]), ecdhe_pubs[..count]);
        }
        assert_eq!(eddsa::public_keys(&eddsa_keys[..count]), eddsa_pubs[..count]);
        assert_eq!(ecdh::public_keys(&ecdhe_keys[..count]), ecdhe_pubs[..count]);
    }
}

/// u-coordinates of every kind: any 32 bytes, of small order, from p on, with the highest bit.
fn coordinate() -> [u8; 32] {
    let mut u = random::<32>();
    match below(8) {
        0 => {
            u = EIGHT_TORSION[below(8)].to_montgomery().to_bytes();
            u[31] ^= [0, 0x80][below(2)];
        }
        1 => {
            u = [0xff; 32];
            u[0] = 0xec + below(20) as u8;
            u[31] = [0x7f, 0xff][below(2)];
        }
        2 => {
            u = [0; 32];
            u[0] = below(10) as u8;
        }
        _ => {}
    }
    u
}

#[test]
fn lanes_exchange_keys_like_the_library() {
    let mut zeros = 0;
    let mut done = 0;
    while done < rounds(2000) {
        let items: Vec<_> = (0..1 + done % 70)
            .map(|_| {
                let scalar = match below(10) {
                    0 => [[0; 32], [0xff; 32]][below(2)],
                    _ => random(),
                };
                (EcdhePrivateKey::from_bytes(scalar), EcdhePublicKey::from_bytes(coordinate()))
            })
            .collect();
        let items: Vec<_> = items.iter().map(|(private, public)| (private, public)).collect();
        let expected: Vec<_> = items.iter().map(|(private, public)| ecdh::ecdh(private, public)).collect();
        for path in PATHS {
            assert_eq!(ecdh::ecdh_batch_with(path, &items), expected);
        }
        assert_eq!(ecdh::ecdh_batch(&items), expected);
        let zero = batzen_crypto::hash::sha512(&[0; 32]);
        zeros += expected.iter().filter(|secret| secret.as_bytes() == zero.as_bytes()).count();
        done += items.len();
    }
    assert!(zeros > done / 50, "{zeros} of {done} are of small order");
}

/// EdDSA public keys of every kind, most of which are invalid.
fn eddsa_public() -> EddsaPublicKey {
    let mut key = EddsaPrivateKey::generate().public_key();
    match below(6) {
        0 => key = EddsaPublicKey::from_bytes(random()),
        1 => {
            let mut encoding = EIGHT_TORSION[below(8)].compress().to_bytes();
            encoding[31] ^= [0, 0x80][below(2)];
            key = EddsaPublicKey::from_bytes(encoding);
        }
        2 => {
            let mut encoding = [0xff; 32];
            encoding[0] = 0xe8 + below(0x18) as u8;
            encoding[31] = [0x7f, 0xff][below(2)];
            key = EddsaPublicKey::from_bytes(encoding);
        }
        3 => {
            let point = curve25519_dalek::edwards::CompressedEdwardsY(*key.as_bytes()).decompress().unwrap();
            key = EddsaPublicKey::from_bytes((point + EIGHT_TORSION[below(8)]).compress().to_bytes());
        }
        _ => {}
    }
    key
}

#[test]
fn lanes_exchange_with_eddsa_keys_like_the_library() {
    let (mut refused, mut done) = (0, 0);
    while done < rounds(2000) {
        let items: Vec<_> =
            (0..1 + done % 70).map(|_| (EcdhePrivateKey::generate(), eddsa_public())).collect();
        let items: Vec<_> = items.iter().map(|(private, public)| (private, public)).collect();
        let expected: Vec<_> =
            items.iter().map(|(private, public)| ecdh::ecdh_eddsa_pub(private, public)).collect();
        for path in PATHS {
            assert_eq!(ecdh::ecdh_eddsa_pubs_with(path, &items), expected);
        }
        assert_eq!(ecdh::ecdh_eddsa_pubs(&items), expected);
        refused += expected.iter().filter(|result| result.is_err()).count();
        done += items.len();
    }
    assert!(refused > done / 10 && refused < done / 2, "{refused} of {done}");
}

/// An R value, sometimes one that is refused.
fn r_pub(key: &CsPrivateKey, may_be_bad: bool) -> [CsRPub; 2] {
    let nonce = PlanchetMasterSecret::generate().cs_nonce();
    let mut pair = cs::r_pubs(key, &nonce, CsOperation::Withdraw);
    if may_be_bad && below(8) == 0 {
        pair[below(2)] = CsRPub::from_bytes(*eddsa_public().as_bytes());
    }
    pair
}

#[test]
fn lanes_blind_clause_schnorr_like_the_library() {
    let keys: Vec<_> = (0..5).map(|_| CsPrivateKey::generate()).collect();
    let publics: Vec<_> = keys.iter().map(|key| CsVerifyingKey::new(&key.public()).unwrap()).collect();
    let (mut done, mut refused) = (0, 0);
    while done < rounds(1000) {
        let coins: Vec<_> = (0..1 + done % 41)
            .map(|_| {
                let which = below(1 + done % keys.len());
                (which, r_pub(&keys[which], true), HashCode::random(), BlindingSecret::generate())
            })
            .collect();
        let items: Vec<_> = coins
            .iter()
            .map(|(which, [r0, r1], message, seed)| CsBlindRequest {
                key: &publics[*which],
                r_pubs: [r0, r1],
                message,
                seed,
            })
            .collect();
        let mut batches: Vec<_> = PATHS.map(|path| cs::blind_batch_with(path, &items)).into();
        batches.push(cs::blind_batch(&items));
        for (index, (which, r_pubs, message, seed)) in coins.iter().enumerate() {
            let expected = cs::blind(&publics[*which], r_pubs, message, seed);
            refused += usize::from(expected.is_err());
            for batch in &batches {
                match (&expected, &batch[index]) {
                    (Ok((challenges, unblind)), Ok((other, other_unblind))) => {
                        assert_eq!(challenges, other);
                        assert_eq!(unblind.blinded_r(), other_unblind.blinded_r());
                    }
                    (expected, found) => assert_eq!(expected.as_ref().err(), found.as_ref().err()),
                }
            }
        }
        done += items.len();
    }
    assert!(refused > done / 100, "{refused} of {done}");
}

/// Coins blinded in lanes can be signed and unblinded, so the state is correct, too.
#[test]
fn coins_blinded_in_lanes_verify() {
    let key = CsPrivateKey::generate();
    let signing = CsSigningKey::new(key.clone()).unwrap();
    let public = CsVerifyingKey::new(&key.public()).unwrap();
    let nonces: Vec<_> = (0..20).map(|_| PlanchetMasterSecret::generate().cs_nonce()).collect();
    let r_pubs: Vec<_> = nonces.iter().map(|nonce| cs::r_pubs(&key, nonce, CsOperation::Withdraw)).collect();
    let (message, seed) = (HashCode::random(), BlindingSecret::generate());
    let items: Vec<_> = r_pubs
        .iter()
        .map(|[r0, r1]| CsBlindRequest { key: &public, r_pubs: [r0, r1], message: &message, seed: &seed })
        .collect();
    for (nonce, blinded) in nonces.iter().zip(cs::blind_batch_with(Path::Lanes, &items)) {
        let ([c0, c1], unblind) = blinded.unwrap();
        let request =
            CsSignRequest { key: &signing, nonce, operation: CsOperation::Withdraw, challenges: [&c0, &c1] };
        let signature = unblind.unblind(&cs::sign_batch(&[request])[0].unwrap()).unwrap();
        assert!(cs::verify(&public, &message, &signature));
    }
}

struct Denoms {
    denoms: Vec<(DenomPublicKey, Option<CsPrivateKey>)>,
    age: AgeCommitmentProof,
}

/// Denominations of all kinds, own and foreign.
static DENOMS: LazyLock<Denoms> = LazyLock::new(|| {
    let mask: AgeMask = "8:10:12:14:16:18:21".parse().unwrap();
    let mut denoms: Vec<_> = RSA_KEYS
        .iter()
        .map(|key| (DenomPublicKey { age_mask: mask.bits(), key: DenomKey::Rsa(key.clone()) }, None))
        .collect();
    for _ in 0..4 {
        let key = CsSigningKey::generate();
        let secret = key.secret().clone();
        denoms.push((DenomPrivateKey::Cs(key).public(mask.bits()), Some(secret)));
    }
    Denoms { denoms, age: AgeCommitmentProof::from_wallet_seed(mask, 14, &[7; 32]) }
});

/// The coins computed with the single functions, one after another.
fn expected_coins(
    candidate: &Candidate<'_>,
) -> Result<Vec<(CoinSecrets, EddsaPublicKey, denom::BlindedPlanchet, HashCode)>, CryptoError> {
    if candidate.fresh.is_empty() || candidate.fresh.len() > refresh::MAX_FRESH_COINS {
        return Err(CryptoError::WrongCount);
    }
    let age = candidate.old_age.map(|age| age.derive(candidate.secret.as_bytes())).transpose()?;
    let h_age = age.map(|age| age.hash());
    let coin = |(index, fresh): (u32, &FreshDenom<'_>)| {
        let master = candidate.secret.planchet_master_secret(index);
        let secrets = CoinSecrets::from_master(&master, &fresh.values);
        let nonce = candidate.rms.map(|rms| rms.cs_nonce(index));
        let (planchet, state) =
            secrets.prepare(fresh.denom, &fresh.values, nonce.as_ref(), h_age.as_ref())?;
        let coin_pub = secrets.coin_pub();
        Ok((secrets, coin_pub, planchet, *state.h_coin_pub()))
    };
    (0u32..).zip(candidate.fresh).map(coin).collect()
}

/// Candidates with coins of all kinds, of one refresh and of several, valid and invalid.
#[test]
fn lanes_derive_candidates_like_the_library() {
    let rms = RefreshMasterSecret::generate();
    for round in 0..rounds(40) {
        let lists: Vec<Vec<FreshDenom<'_>>> = (0..1 + round % 5)
            .map(|_| {
                let kinds = if below(2) == 0 { RSA_KEYS.len() } else { DENOMS.denoms.len() };
                let coins = if below(12) == 0 { 0 } else { 1 + below(9) };
                (0..coins as u32)
                    .map(|index| {
                        let (denom, key) = &DENOMS.denoms[below(kinds)];
                        let mut values = ExchangeWithdrawValues::Rsa;
                        if let Some(key) = key {
                            let [r0, r1] = cs::r_pubs(key, &rms.cs_nonce(index), CsOperation::Melt);
                            values = ExchangeWithdrawValues::Cs { r0, r1 };
                        }
                        // Values of the other cipher.
                        if below(60) == 0 {
                            let [r0, r1] = r_pub(&CsPrivateKey::generate(), false);
                            values = ExchangeWithdrawValues::Cs { r0, r1 };
                        }
                        FreshDenom { denom, values }
                    })
                    .collect()
            })
            .collect();
        let secrets: Vec<_> = lists
            .iter()
            .map(|_| {
                let (private, public) = (EcdhePrivateKey::generate(), eddsa_public());
                let secret = ecdh::ecdh_eddsa_pub(&private, &public);
                (private, public, secret)
            })
            .collect();
        let dummy = TransferSecret::from_bytes(random());
        let flags: Vec<_> = lists.iter().map(|_| (below(10) > 0, below(2) == 0)).collect();
        let candidates: Vec<_> = lists
            .iter()
            .zip(&secrets)
            .zip(&flags)
            .map(|((fresh, (.., secret)), (with_rms, with_age))| Candidate {
                secret: secret.as_ref().unwrap_or(&dummy),
                fresh,
                rms: with_rms.then_some(&rms),
                old_age: with_age.then(|| DENOMS.age.commitment()),
            })
            .collect();
        let revealed: Vec<_> = candidates
            .iter()
            .zip(&secrets)
            .map(|(&Candidate { fresh, rms, old_age, .. }, (transfer_priv, old_coin_pub, _))| Revealed {
                transfer_priv,
                old_coin_pub,
                fresh,
                rms,
                old_age,
            })
            .collect();
        let expected: Vec<_> = candidates.iter().map(expected_coins).collect();
        let derived = PATHS.map(|path| refresh::derive_candidates_with(path, &candidates));
        for found in derived.iter().chain([&refresh::derive_candidates(&candidates)]) {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                let found = found.as_ref().map(|coins| {
                    let parts = coins.iter().map(|coin| {
                        let hash = *coin.unblind.h_coin_pub();
                        (coin.secrets.clone(), coin.coin_pub, coin.planchet.clone(), hash)
                    });
                    parts.collect::<Vec<_>>()
                });
                assert_eq!(found.map_err(|error| *error), *expected);
            }
        }
        let recomputed = PATHS.map(|path| refresh::recompute_candidates_with(path, &revealed));
        for found in recomputed.iter().chain([&refresh::recompute_candidates(&revealed)]) {
            for ((found, expected), (private, _, secret)) in found.iter().zip(&expected).zip(&secrets) {
                let expected = secret.as_ref().map_err(|error| *error).and_then(|_| expected.clone());
                let planchets =
                    expected.map(|coins| coins.into_iter().map(|(_, _, planchet, _)| planchet).collect());
                if let Ok(found) = found {
                    assert_eq!(found.transfer_pub, private.public_key());
                }
                assert_eq!(found.clone().map(|found| found.planchets), planchets);
            }
        }
    }
}

/// The largest refresh, with all its candidates at once.
#[test]
fn lanes_derive_the_largest_refresh() {
    let (denom, _) = &DENOMS.denoms[0];
    let fresh = vec![FreshDenom { denom, values: ExchangeWithdrawValues::Rsa }; refresh::MAX_FRESH_COINS];
    let secrets: Vec<_> = (0..3).map(|_| TransferSecret::from_bytes(random())).collect();
    let candidate = |secret| Candidate { secret, fresh: &fresh, rms: None, old_age: None };
    let candidates: Vec<_> = secrets.iter().map(candidate).collect();
    for (found, candidate) in refresh::derive_candidates(&candidates).into_iter().zip(&candidates) {
        let found: Vec<_> = found.unwrap().into_iter().map(|coin| coin.planchet).collect();
        let expected = expected_coins(candidate).unwrap();
        assert!(found.iter().eq(expected.iter().map(|(_, _, planchet, _)| planchet)));
    }
    let too_many = vec![fresh[0]; refresh::MAX_FRESH_COINS + 1];
    let candidate = Candidate { fresh: &too_many, ..candidates[0] };
    assert_eq!(refresh::derive_candidates(&[candidate])[0].as_ref().err(), Some(&CryptoError::WrongCount));
}

/// Planchets alone, as a wallet prepares them for a withdrawal.
#[test]
fn lanes_prepare_planchets_like_the_library() {
    let nonce = PlanchetMasterSecret::generate().cs_nonce();
    for count in 0..40 {
        let coins: Vec<_> = (0..count)
            .map(|_| {
                let (denom, key) = &DENOMS.denoms[below(DENOMS.denoms.len())];
                let mut values = ExchangeWithdrawValues::Rsa;
                if let Some(key) = key {
                    let [r0, r1] = r_pub(key, true);
                    values = ExchangeWithdrawValues::Cs { r0, r1 };
                }
                (denom, values, CoinSecrets::from_master(&PlanchetMasterSecret::generate(), &values))
            })
            .collect();
        let coin_pubs: Vec<_> = coins.iter().map(|(.., secrets)| secrets.coin_pub()).collect();
        let requests: Vec<_> = coins
            .iter()
            .zip(&coin_pubs)
            .map(|((denom, values, secrets), coin_pub)| PlanchetRequest {
                denom,
                values,
                nonce: (below(9) > 0).then_some(&nonce),
                coin_pub,
                blinding: &secrets.blinding,
                h_age_commitment: None,
            })
            .collect();
        for (found, request) in denom::prepare_planchets(&requests).into_iter().zip(&requests) {
            let PlanchetRequest { denom, values, nonce, coin_pub, blinding, h_age_commitment } = *request;
            let expected =
                denom::prepare_planchet(denom, values, nonce, coin_pub, blinding, h_age_commitment);
            assert_eq!(found.map(|(planchet, _)| planchet), expected.map(|(planchet, _)| planchet));
        }
    }
}

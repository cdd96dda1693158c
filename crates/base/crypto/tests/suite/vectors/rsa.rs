//! RSA keys and blind signatures, hashes of denominations, coins and planchets.

use batzen_crypto::denom::{self, BlindedPlanchet, DenomKey, DenomPrivateKey, DenomPublicKey};
use batzen_crypto::rsa::{self, RsaPrivateKey, RsaPublicKey};
use batzen_crypto::{CsVerifyingKey, HashCode, Path, ShortHash};

use crate::vectors::Case;
use crate::vectors::for_each;

/// The private key of a case.
fn private_key(case: Case<'_>) -> RsaPrivateKey {
    let key = Case(case.value("key"));
    RsaPrivateKey::from_primes(&key.bytes("p"), &key.bytes("q"), &key.bytes("e")).unwrap()
}

#[test]
fn vectors_rsa_public_key_encoding() {
    for_each("rsa_public_key_encoding", |case| {
        let key = Case(case.value("key"));
        let public = RsaPublicKey::decode(&case.bytes("encoded")).unwrap();
        assert_eq!(public.modulus(), key.bytes("n"));
        assert_eq!(public.exponent(), key.bytes("e"));
        assert_eq!(public.encode(), case.bytes("encoded"));
        assert_eq!(public.h_rsa(), case.get("h_rsa"));
        let private = private_key(case);
        assert_eq!(*private.public(), public);
        assert_eq!(*RsaPrivateKey::from_der(&private.to_der().unwrap()).unwrap().public(), public);
    });
}

#[test]
fn vectors_rsa_blind_sign() {
    for_each("rsa_blind_sign", |case| {
        let foreign = RsaPublicKey::decode(&case.bytes("rsa_public_key")).unwrap();
        let private = private_key(case);
        assert_eq!(*private.public(), foreign);
        let message: HashCode = case.get("hash");
        let secret = case.get("blinding_secret");
        // The exchange's own keys skip the search for common factors; the results are the same.
        for public in [&foreign, private.public()] {
            let blinded = rsa::blind(public, &message, &secret).unwrap();
            assert_eq!(blinded, case.bytes("blinded_message"));
            for path in [Path::Library, Path::Lanes] {
                for result in rsa::blind_batch_with(path, &[(public, &message, &secret); 3]) {
                    assert_eq!(result.unwrap(), blinded);
                }
            }
            let mut padded = vec![0];
            padded.extend_from_slice(&blinded);
            for path in [Path::Library, Path::Lanes] {
                let items = [(&private, blinded.as_slice()), (&private, &padded)];
                for result in rsa::sign_batch_with(path, &items).into_iter().chain(rsa::sign_batch(&items)) {
                    assert_eq!(result.unwrap(), case.bytes("blinded_signature"));
                }
            }
            let signature = rsa::unblind(public, &case.bytes("blinded_signature"), &secret).unwrap();
            assert_eq!(signature, case.bytes("signature"));
            assert!(rsa::verify(public, &message, &signature));
            for path in [Path::Library, Path::Lanes] {
                assert_eq!(rsa::verify_batch_with(path, &[(public, &message, &signature)]), [true]);
            }
        }
    });
}

#[test]
fn vectors_rsa_verify() {
    for_each("rsa_verify", |case| {
        let public = RsaPublicKey::decode(&case.bytes("rsa_public_key")).unwrap();
        let (hash, signature) = (case.get("hash"), case.bytes("signature"));
        let valid = rsa::verify(&public, &hash, &signature);
        assert_eq!(valid, case.bool("valid"), "{}", case.text("case"));
        for path in [Path::Library, Path::Lanes] {
            let items = [(&public, &hash, signature.as_slice()); 9];
            assert_eq!(rsa::verify_batch_with(path, &items), [valid; 9], "{}", case.text("case"));
        }
    });
}

#[test]
fn vectors_rsa_malicious_key() {
    for_each("rsa_malicious_key", |case| {
        let blinded = RsaPublicKey::decode(&case.bytes("rsa_public_key"))
            .and_then(|key| rsa::blind(&key, &case.get("hash"), &case.get("blinding_secret")));
        assert_eq!(blinded.is_ok(), case.bool("blinding_accepted"));
    });
}

#[test]
fn vectors_h_denom_pub() {
    for_each("h_denom_pub", |case| {
        let key = match case.text("cipher") {
            "RSA" => DenomKey::Rsa(RsaPublicKey::decode(&case.bytes("rsa_public_key")).unwrap()),
            "CS" => DenomKey::Cs(CsVerifyingKey::new(&case.get("cs_public_key")).unwrap()),
            other => panic!("unknown cipher {other}"),
        };
        let denom = DenomPublicKey { age_mask: case.u32("age_mask"), key };
        assert_eq!(denom.h_denom_pub(), case.get("h_denom_pub"));
        if case.has("h_cs") {
            assert_eq!(denom.h_key(), case.get("h_cs"));
        }
    });
}

#[test]
fn vectors_coin_hashes() {
    for_each("coin_ev_hash", |case| {
        let planchet = match case.text("cipher") {
            "RSA" => BlindedPlanchet::Rsa { blinded: case.bytes("rsa_blinded_planchet") },
            _ => BlindedPlanchet::Cs {
                nonce: case.get("cs_nonce"),
                c0: case.get("cs_blinded_c0"),
                c1: case.get("cs_blinded_c1"),
            },
        };
        assert_eq!(planchet.hash(&case.get("h_denom_pub")), case.get("h_coin_ev"));
    });
    for_each("coin_pub_hash", |case| {
        let age = case.has("h_age_commitment").then(|| case.get::<ShortHash>("h_age_commitment"));
        assert_eq!(denom::h_coin_pub(&case.get("coin_pub"), age.as_ref()), case.get("coin_pub_hash"));
    });
}

#[test]
fn vectors_private_keys_survive_storage() {
    for_each("rsa_public_key_encoding", |case| {
        let private = DenomPrivateKey::Rsa(private_key(case));
        let again = DenomPrivateKey::from_bytes(&private.to_bytes().unwrap()).unwrap();
        assert_eq!(again.public(0), private.public(0));
    });
}

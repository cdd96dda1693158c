//! Encodings, hashes, key derivation, Ed25519, X25519, Edx25519, age restriction, Clause Blind Schnorr.

use batzen_crypto::age::{AgeCommitment, AgeCommitmentProof, AgeMask};
use batzen_crypto::cs::{self, CsOperation, CsSignRequest, CsVerifyingKey};
use batzen_crypto::denom::{
    self, BlindedDenomSignature, BlindedPlanchet, DenomPrivateKey, DenomSignature, ExchangeWithdrawValues,
};
use batzen_crypto::hash::sha512;
use batzen_crypto::kdf::{kdf, kdf_mod};
use batzen_crypto::{
    AgePrivateKey, AgePublicKey, AgeSignature, CoinSecrets, CsNonce, CsPrivateKey, CsPublicKey, CsRPub,
    CsScalar, CsSignature, CsSigningKey, EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey,
    EddsaSignature, ExpandedSigner, HashCode, Path, PlanchetMasterSecret, RefreshMasterSecret, ShortHash,
    base32, ecdh, eddsa,
};

use crate::vectors::Case;
use crate::vectors::for_each;

#[test]
fn vectors_base32() {
    for_each("base32", |case| {
        assert_eq!(base32::encode(&case.bytes("data")), case.text("encoded"));
        assert_eq!(base32::decode(case.text("encoded")).unwrap(), case.bytes("data"));
    });
}

#[test]
fn vectors_base32_decode() {
    for_each("base32_decode", |case| {
        let text = case.text("encoded");
        let expected = case.bool("ok").then(|| case.bytes("data"));
        let decoded = match case.u32("expected_length") {
            16 => base32::decode_array::<16>(text).ok().map(Vec::from),
            32 => base32::decode_array::<32>(text).ok().map(Vec::from),
            64 => base32::decode_array::<64>(text).ok().map(Vec::from),
            len => base32::decode(text).ok().filter(|bytes| bytes.len() == len as usize),
        };
        assert_eq!(decoded, expected, "{text}");
    });
}

#[test]
fn vectors_sha512() {
    for_each("sha512", |case| assert_eq!(sha512(&case.bytes("data")), case.get("hash")));
}

#[test]
fn vectors_kdf() {
    for_each("kdf", |case| {
        let mut out = vec![0; case.u32("output_length") as usize];
        kdf(&mut out, &case.bytes("salt"), &case.bytes("ikm"), &[&case.bytes("info")]);
        assert_eq!(out, case.bytes("output"));
    });
}

#[test]
fn vectors_kdf_mod_mpi() {
    for_each("kdf_mod_mpi", |case| {
        let ctx = case.text("ctx").as_bytes();
        let result = kdf_mod(&case.bytes("n"), &case.bytes("salt"), &case.bytes("ikm"), ctx);
        let zeros = result.iter().take_while(|&&byte| byte == 0).count();
        let expected = case.bytes("result");
        let expected_zeros = expected.iter().take_while(|&&byte| byte == 0).count();
        assert_eq!(result[zeros..], expected[expected_zeros..]);
    });
}

#[test]
fn vectors_eddsa_key() {
    for_each("eddsa_key", |case| {
        assert_eq!(case.get::<EddsaPrivateKey>("private_key").public_key(), case.get("public_key"));
    });
}

#[test]
fn vectors_eddsa_sign_purpose() {
    for_each("eddsa_sign_purpose", |case| {
        let body = case.bytes("body");
        let mut message = Vec::new();
        message.extend_from_slice(&(8 + body.len() as u32).to_be_bytes());
        message.extend_from_slice(&case.u32("purpose").to_be_bytes());
        message.extend_from_slice(&body);
        assert_eq!(message, case.bytes("message"));
        let signature = case.get::<EddsaPrivateKey>("private_key").sign(&message);
        assert_eq!(signature, case.get("signature"));
        let signer = ExpandedSigner::new(&case.get("private_key"));
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(eddsa::sign_batch_with(path, &[(&signer, &message)]), [signature]);
        }
        assert!(eddsa::verify(&case.get("public_key"), &message, &signature));
    });
}

#[test]
fn vectors_eddsa_verify() {
    for_each("eddsa_verify", |case| {
        let (public, signature): (EddsaPublicKey, EddsaSignature) =
            (case.get("public_key"), case.get("signature"));
        // The verifier puts its own purpose into the message.
        let mut message = case.bytes("message");
        message[4..8].copy_from_slice(&case.u32("expected_purpose").to_be_bytes());
        let valid = case.bool("valid");
        assert_eq!(eddsa::verify(&public, &message, &signature), valid, "{}", case.text("case"));
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(eddsa::verify_batch_with(path, &[(&public, &message, &signature)]), [valid]);
        }
    });
}

#[test]
fn vectors_ecdh() {
    for_each("ecdhe_key", |case| {
        let private = case.get::<EcdhePrivateKey>("private_key");
        assert_eq!(private.public_key(), case.get("public_key"));
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(ecdh::public_keys_with(path, &[&private]), [case.get("public_key")]);
        }
    });
    for_each("ecdh_ecc", |case| {
        for (private, public) in [("private_key_a", "public_key_b"), ("private_key_b", "public_key_a")] {
            let (private, public) = (case.get(private), case.get(public));
            assert_eq!(ecdh::ecdh(&private, &public), case.get("shared_key"));
            for path in [Path::Library, Path::Lanes] {
                assert_eq!(ecdh::ecdh_batch_with(path, &[(&private, &public)]), [case.get("shared_key")]);
            }
        }
    });
    for_each("ecdh_eddsa", |case| {
        let ecdhe: EcdhePrivateKey = case.get("ecdhe_private_key");
        let ecdhe_pub: EcdhePublicKey = case.get("ecdhe_public_key");
        let eddsa: EddsaPrivateKey = case.get("eddsa_private_key");
        assert_eq!(ecdhe.public_key(), ecdhe_pub);
        assert_eq!(eddsa.public_key(), case.get("eddsa_public_key"));
        let key = case.get("shared_key");
        let public = case.get("eddsa_public_key");
        assert_eq!(ecdh::ecdh_eddsa_pub(&ecdhe, &public).unwrap(), key);
        for path in [Path::Library, Path::Lanes] {
            assert_eq!(eddsa::public_keys_with(path, &[&eddsa]), [public]);
            assert_eq!(ecdh::ecdh_eddsa_pubs_with(path, &[(&ecdhe, &public)])[0].as_ref(), Ok(&key));
        }
        assert_eq!(ecdh::ecdh_eddsa_priv(&eddsa, &ecdhe_pub), key);
    });
}

#[test]
fn vectors_edx25519() {
    for_each("edx25519", |case| {
        let key = AgePrivateKey::from_seed(&case.bytes("seed"));
        assert_eq!(key, case.get("private_key"));
        let public = key.public_key();
        assert_eq!(public, case.get("public_key"));
        let salt = case.array("derive_salt");
        let derived = key.derive(&salt);
        assert_eq!(derived, case.get("derived_private_key"));
        assert_eq!(derived.public_key(), case.get("derived_public_key"));
        assert_eq!(public.derive(&salt).unwrap(), case.get("derived_public_key"));
        let message = case.bytes("message");
        for (key, name) in [(&key, "signature"), (&derived, "signature_by_derived")] {
            assert_eq!(key.sign(&message), case.get(name));
            assert!(key.public_key().verify(&message, &case.get(name)));
        }
    });
}

#[test]
fn vectors_age_groups() {
    for_each("age_groups", |case| {
        let mask = case.text("groups").parse::<AgeMask>();
        assert_eq!(mask.is_ok(), case.bool("ok"));
        if let Ok(mask) = mask {
            assert_eq!(mask.bits(), case.u32("mask"));
            assert_eq!(mask.to_string(), case.text("canonical"));
            assert_eq!(AgeMask::new(mask.bits()).unwrap(), mask);
        }
    });
    for_each("age_group_index", |case| {
        let mask = AgeMask::new(case.u32("mask")).unwrap();
        assert_eq!(mask.group(case.u32("age").try_into().unwrap()), case.u32("group") as usize);
        assert_eq!(mask.groups() + 1, case.u32("num_groups") as usize);
    });
}

fn check_age_commitment(case: Case<'_>, proof: &AgeCommitmentProof) {
    assert_eq!(proof.commitment().keys(), case.values::<AgePublicKey>("public_keys"));
    assert_eq!(proof.private_keys(), case.values::<AgePrivateKey>("private_keys"));
    assert_eq!(proof.commitment().hash(), case.get("h_age_commitment"));
    let again = AgeCommitmentProof::new(proof.commitment().clone(), proof.private_keys().to_vec());
    assert_eq!(again.as_ref(), Ok(proof));
}

#[test]
fn vectors_age_commitment() {
    for_each("age_commitment", |case| {
        let mask = AgeMask::new(case.u32("mask")).unwrap();
        let age = case.u32("age").try_into().unwrap();
        let proof = AgeCommitmentProof::from_counter_seed(mask, age, &case.array("seed"));
        check_age_commitment(case, &proof);
        let public = AgeCommitment::new(mask, case.values("public_keys")).unwrap();
        for case in case.list("attestations") {
            let age = case.u32("age").try_into().unwrap();
            let attestation = proof.attest(age);
            assert_eq!(attestation.is_ok(), case.bool("possible"));
            if let Ok(attestation) = attestation {
                assert_eq!(attestation, case.get("attestation"));
                assert!(public.verify(age, &attestation));
            }
            assert_eq!(public.verify(age, &AgeSignature::ZERO), mask.group(age) == 0);
        }
        let derived_case = Case(case.value("derived"));
        let derived = proof.derive(&derived_case.array("salt")).unwrap();
        check_age_commitment(derived_case, &derived);
        assert_eq!(&public.derive(&derived_case.array("salt")).unwrap(), derived.commitment());
        if derived_case.has("attestation") {
            let age = derived_case.u32("attested_age").try_into().unwrap();
            assert_eq!(derived.attest(age).unwrap(), derived_case.get("attestation"));
        }
    });
    for_each("wallet_age_commitment_seeded", |case| {
        let mask = AgeMask::new(case.u32("mask")).unwrap();
        let age = case.u32("age").try_into().unwrap();
        check_age_commitment(case, &AgeCommitmentProof::from_wallet_seed(mask, age, &case.bytes("seed")));
    });
}

#[test]
fn vectors_cs_blind_sign() {
    for_each("cs_blind_sign", |case| {
        let key: CsPrivateKey = case.get("denom_private_key");
        assert_eq!(key.public(), case.get::<CsPublicKey>("denom_public_key"));
        let signing = CsSigningKey::new(key.clone()).unwrap();
        let private =
            DenomPrivateKey::from_bytes(&DenomPrivateKey::Cs(signing.clone()).to_bytes().unwrap()).unwrap();
        let denom = private.public(case.u32("age_mask"));
        assert_eq!(denom.h_denom_pub(), case.get("h_denom_pub"));

        let master: PlanchetMasterSecret = case.get("planchet_master_secret");
        let (operation, nonce) = match case.text("mode") {
            "withdraw" => (CsOperation::Withdraw, master.cs_nonce()),
            "melt" => {
                let rms: RefreshMasterSecret = case.get("refresh_master_secret");
                (CsOperation::Melt, rms.cs_nonce(case.u32("coin_index")))
            }
            other => panic!("unknown mode {other}"),
        };
        assert_eq!(nonce, case.get::<CsNonce>("nonce"));
        let [r0, r1] = cs::r_pubs(&key, &nonce, operation);
        assert_eq!([r0, r1], [case.get("r_pub_0"), case.get("r_pub_1")]);
        let values = ExchangeWithdrawValues::derive(&private, &nonce, operation);
        assert_eq!(values, ExchangeWithdrawValues::Cs { r0, r1 });

        let secrets = CoinSecrets::from_master(&master, &values);
        assert_eq!(secrets.coin_priv, case.get("coin_priv"));
        assert_eq!(secrets.blinding, case.get("blinding_seed"));
        let coin_pub = secrets.coin_pub();
        assert_eq!(coin_pub, case.get("coin_pub"));
        let age = case.has("h_age_commitment").then(|| case.get::<ShortHash>("h_age_commitment"));
        let h_coin_pub = denom::h_coin_pub(&coin_pub, age.as_ref());
        assert_eq!(h_coin_pub, case.get("coin_pub_hash"));

        let verifying = CsVerifyingKey::new(&key.public()).unwrap();
        let (_, unblind) = cs::blind(&verifying, &[r0, r1], &h_coin_pub, &secrets.blinding).unwrap();
        assert_eq!(unblind.blinded_r(), &[case.get("blinded_r_pub_0"), case.get("blinded_r_pub_1")]);

        let (planchet, state) = secrets.prepare(&denom, &values, Some(&nonce), age.as_ref()).unwrap();
        let (c0, c1): (CsScalar, CsScalar) = (case.get("c_0"), case.get("c_1"));
        assert_eq!(planchet, BlindedPlanchet::Cs { nonce, c0, c1 });
        assert_eq!(planchet.hash(&denom.h_denom_pub()), case.get("h_coin_ev"));

        let request = CsSignRequest { key: &signing, nonce: &nonce, operation, challenges: [&c0, &c1] };
        let blind = cs::sign_batch(&[request])[0].unwrap();
        assert_eq!(u32::from(blind.b), case.u32("b"));
        assert_eq!(blind.s, case.get("blinded_signature_s"));
        let signature = state.unblind(&BlindedDenomSignature::Cs(blind)).unwrap();
        let expected = CsSignature { r: case.get("signature_r"), s: case.get("signature_s") };
        assert_eq!(signature, DenomSignature::Cs(expected));
        assert!(cs::verify(&verifying, &h_coin_pub, &expected));
    });
}

#[test]
fn vectors_cs_verify() {
    for_each("cs_verify", |case| {
        let key = CsVerifyingKey::new(&case.get("denom_public_key")).unwrap();
        let signature = CsSignature { r: case.get::<CsRPub>("signature_r"), s: case.get("signature_s") };
        let message: HashCode = case.get("message");
        assert_eq!(cs::verify(&key, &message, &signature), case.bool("valid"), "{}", case.text("case"));
        for path in [Path::Library, Path::Lanes] {
            let verdicts = cs::verify_batch_with(path, &[(&key, &message, &signature)]);
            assert_eq!(verdicts, [case.bool("valid")]);
        }
    });
}

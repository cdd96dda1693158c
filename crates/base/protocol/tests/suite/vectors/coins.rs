//! Primitives, coins, refresh, age restriction.

use batzen_crypto::age::{AgeCommitment, AgeCommitmentProof, AgeMask};
use batzen_crypto::cs::{self, CsOperation, CsSignature, CsVerifyingKey};
use batzen_crypto::denom::{blind_sign_batch, h_coin_pub};
use batzen_crypto::ecdh::{ecdh, ecdh_eddsa_priv, ecdh_eddsa_pub};
use batzen_crypto::hash::sha512;
use batzen_crypto::kdf::{kdf, kdf_mod};
use batzen_crypto::refresh::{self, FreshDenom};
use batzen_crypto::{
    AgePrivateKey, AgePublicKey, AgeSignature, BlindedDenomSignature, BlindedPlanchet, BlindingSecret,
    CoinSecrets, CsPrivateKey, CsSigningKey, DenomKey, DenomPrivateKey, DenomPublicKey, DenomSignature,
    EcdhePrivateKey, EcdhePublicKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues,
    HashCode, PlanchetMasterSecret, RefreshMasterSecret, RsaPrivateKey, RsaPublicKey, ShortHash,
    TransferSecret, eddsa, rsa,
};
use batzen_protocol::denominations::refresh_commitment;
use batzen_protocol::signatures::{
    SignedMessage, WalletCoinLink, WalletCoinMelt, WalletReserveWithdraw, Zeros,
};

use crate::vectors::case::{Case, hex};

pub(super) fn sha512_hash(case: Case<'_>) {
    assert_eq!(sha512(&case.hex("data")), case.value("hash"));
}

pub(super) fn kdf_output(case: Case<'_>) {
    let mut out = vec![0; usize::try_from(case.u32("output_length")).unwrap()];
    kdf(&mut out, &case.hex("salt"), &case.hex("ikm"), &[&case.hex("info")]);
    assert_eq!(out, case.hex("output"));
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..]
}

pub(super) fn kdf_mod_mpi(case: Case<'_>) {
    let result = kdf_mod(&case.hex("n"), &case.hex("salt"), &case.hex("ikm"), case.text("ctx").as_bytes());
    assert_eq!(trimmed(&result), trimmed(&case.hex("result")));
}

pub(super) fn eddsa_key(case: Case<'_>) {
    assert_eq!(case.value::<EddsaPrivateKey>("private_key").public_key(), case.value("public_key"));
}

pub(super) fn eddsa_sign_purpose(case: Case<'_>) {
    let body = case.hex("body");
    let size = u32::try_from(body.len() + 8).unwrap();
    let message = [&size.to_be_bytes()[..], &case.u32("purpose").to_be_bytes(), &body].concat();
    assert_eq!(message, case.hex("message"));
    let key: EddsaPrivateKey = case.value("private_key");
    let signature = key.sign(&message);
    assert_eq!(signature, case.value("signature"));
    assert!(eddsa::verify(&case.value("public_key"), &message, &signature));
}

pub(super) fn eddsa_verify(case: Case<'_>) {
    let message = case.hex("message");
    let (key, signature): (EddsaPublicKey, EddsaSignature) =
        (case.value("public_key"), case.value("signature"));
    // A verifier knows size and purpose itself.
    let size = u32::try_from(message.len()).unwrap();
    let header_ok =
        message[..4] == size.to_be_bytes() && message[4..8] == case.u32("expected_purpose").to_be_bytes();
    assert_eq!(
        header_ok && eddsa::verify(&key, &message, &signature),
        case.flag("valid"),
        "{}",
        case.text("case")
    );
    assert_eq!(
        header_ok && eddsa::verify_batch(&[(&key, message.as_slice(), &signature); 3]) == [true; 3],
        case.flag("valid"),
        "{}",
        case.text("case")
    );
}

pub(super) fn ecdhe_key(case: Case<'_>) {
    assert_eq!(case.value::<EcdhePrivateKey>("private_key").public_key(), case.value("public_key"));
}

pub(super) fn ecdh_eddsa(case: Case<'_>) {
    let ecdhe: EcdhePrivateKey = case.value("ecdhe_private_key");
    let eddsa: EddsaPrivateKey = case.value("eddsa_private_key");
    assert_eq!(ecdhe.public_key(), case.value("ecdhe_public_key"));
    assert_eq!(eddsa.public_key(), case.value("eddsa_public_key"));
    let shared: TransferSecret = case.value("shared_key");
    assert_eq!(ecdh_eddsa_pub(&ecdhe, &eddsa.public_key()).unwrap(), shared);
    assert_eq!(ecdh_eddsa_priv(&eddsa, &ecdhe.public_key()), shared);
}

pub(super) fn ecdh_ecc(case: Case<'_>) {
    let (a, b): (EcdhePrivateKey, EcdhePrivateKey) =
        (case.value("private_key_a"), case.value("private_key_b"));
    assert_eq!(a.public_key(), case.value("public_key_a"));
    assert_eq!(b.public_key(), case.value("public_key_b"));
    let shared: TransferSecret = case.value("shared_key");
    assert_eq!(ecdh(&a, &b.public_key()), shared);
    assert_eq!(ecdh(&b, &a.public_key()), shared);
}

pub(super) fn edx25519(case: Case<'_>) {
    let key = AgePrivateKey::from_seed(&case.hex("seed"));
    assert_eq!(key, case.value("private_key"));
    let public = key.public_key();
    assert_eq!(public, case.value("public_key"));
    let salt = case.bytes("derive_salt");
    let derived = key.derive(&salt);
    assert_eq!(derived, case.value("derived_private_key"));
    assert_eq!(public.derive(&salt).unwrap(), case.value("derived_public_key"));
    let message = case.hex("message");
    assert_eq!(key.sign(&message), case.value("signature"));
    assert_eq!(derived.sign(&message), case.value("signature_by_derived"));
    assert!(public.verify(&message, &case.value("signature")));
    assert!(derived.public_key().verify(&message, &case.value("signature_by_derived")));
}

fn rsa_private(case: Case<'_>) -> RsaPrivateKey {
    let key = Case(case.get("key"));
    let private = RsaPrivateKey::from_primes(&key.hex("p"), &key.hex("q"), &key.hex("e")).unwrap();
    assert_eq!(private.public().modulus(), key.hex("n"));
    assert_eq!(private.public().exponent(), key.hex("e"));
    private
}

fn rsa_public(encoded: &[u8]) -> RsaPublicKey {
    let key = RsaPublicKey::decode(encoded).unwrap();
    assert_eq!(key.encode(), encoded);
    key
}

pub(super) fn rsa_public_key_encoding(case: Case<'_>) {
    let key = Case(case.get("key"));
    let public = RsaPublicKey::from_parts(&key.hex("n"), &key.hex("e")).unwrap();
    assert_eq!(public.encode(), case.hex("encoded"));
    assert_eq!(public.h_rsa(), case.value("h_rsa"));
    assert_eq!(rsa_public(&case.hex("encoded")), public);
}

pub(super) fn rsa_blind_sign(case: Case<'_>) {
    let private = rsa_private(case);
    let public = rsa_public(&case.hex("rsa_public_key"));
    assert_eq!(private.public(), &public);
    let (hash, secret): (HashCode, BlindingSecret) = (case.value("hash"), case.value("blinding_secret"));
    let n = public.modulus();
    let fdh = kdf_mod(n, public.encode(), hash.as_bytes(), b"RSA-FDA FTpsW!");
    assert_eq!(trimmed(&fdh), case.hex("fdh"));
    let factor = kdf_mod(n, b"Blinding KDF extractor HMAC key", secret.as_bytes(), b"Blinding KDF");
    assert_eq!(trimmed(&factor), case.hex("blinding_factor"));
    let blinded = rsa::blind(&public, &hash, &secret).unwrap();
    assert_eq!(blinded, case.hex("blinded_message"));
    let signed = rsa::sign_batch(&[(&private, &blinded), (&private, &blinded)]);
    assert_eq!(signed, vec![Ok(case.hex("blinded_signature")); 2]);
    let signature = rsa::unblind(&public, &case.hex("blinded_signature"), &secret).unwrap();
    assert_eq!(signature, case.hex("signature"));
    assert!(rsa::verify(&public, &hash, &signature));
}

pub(super) fn rsa_verify(case: Case<'_>) {
    // A signature above the modulus never occurs in honest use; it may count as valid or not.
    if case.text("case").contains("plus modulus") {
        return;
    }
    let public = rsa_public(&case.hex("rsa_public_key"));
    let (hash, signature) = (case.value("hash"), case.hex("signature"));
    assert_eq!(rsa::verify(&public, &hash, &signature), case.flag("valid"), "{}", case.text("case"));
    assert_eq!(rsa::verify_batch(&[(&public, &hash, &signature)]), [case.flag("valid")]);
}

pub(super) fn rsa_malicious_key(case: Case<'_>) {
    let blinded = RsaPublicKey::decode(&case.hex("rsa_public_key"))
        .and_then(|key| rsa::blind(&key, &case.value("hash"), &case.value("blinding_secret")));
    assert_eq!(blinded.is_ok(), case.flag("blinding_accepted"));
}

fn denom_public(case: Case<'_>) -> DenomPublicKey {
    let key = if case.has("rsa_public_key") {
        DenomKey::Rsa(rsa_public(&case.hex("rsa_public_key")))
    } else {
        DenomKey::Cs(CsVerifyingKey::new(&case.value("cs_public_key")).unwrap())
    };
    DenomPublicKey { age_mask: if case.has("age_mask") { case.u32("age_mask") } else { 0 }, key }
}

pub(super) fn h_denom_pub(case: Case<'_>) {
    let denom = denom_public(case);
    assert_eq!(denom.cipher().name(), case.text("cipher"));
    assert_eq!(denom.h_denom_pub(), case.value("h_denom_pub"));
    if case.has("h_cs") {
        assert_eq!(denom.h_key(), case.value("h_cs"));
    }
    let json = serde_json::to_string(&denom).unwrap();
    assert_eq!(serde_json::from_str::<DenomPublicKey>(&json).unwrap(), denom);
}

pub(super) fn coin_pub_hash(case: Case<'_>) {
    let commitment = case.optional("h_age_commitment");
    assert_eq!(h_coin_pub(&case.value("coin_pub"), commitment.as_ref()), case.value("coin_pub_hash"));
}

pub(super) fn coin_ev_hash(case: Case<'_>) {
    let planchet = if case.has("rsa_blinded_planchet") {
        BlindedPlanchet::Rsa { blinded: case.hex("rsa_blinded_planchet") }
    } else {
        let (c0, c1) = (case.value("cs_blinded_c0"), case.value("cs_blinded_c1"));
        BlindedPlanchet::Cs { nonce: case.value("cs_nonce"), c0, c1 }
    };
    assert_eq!(planchet.cipher().name(), case.text("cipher"));
    assert_eq!(planchet.hash(&case.value("h_denom_pub")), case.value("h_coin_ev"));
}

pub(super) fn cs_blind_sign(case: Case<'_>) {
    let private: CsPrivateKey = case.value("denom_private_key");
    let key = CsVerifyingKey::new(&case.value("denom_public_key")).unwrap();
    assert_eq!(&private.public(), key.as_public_key());
    let denom = DenomPublicKey { age_mask: case.u32("age_mask"), key: DenomKey::Cs(key.clone()) };
    assert_eq!(denom.h_denom_pub(), case.value("h_denom_pub"));
    let master: PlanchetMasterSecret = case.value("planchet_master_secret");
    let (operation, nonce) = match case.text("mode") {
        "withdraw" => (CsOperation::Withdraw, master.cs_nonce()),
        "melt" => {
            let rms: RefreshMasterSecret = case.value("refresh_master_secret");
            (CsOperation::Melt, rms.cs_nonce(case.u32("coin_index")))
        }
        other => panic!("unknown mode {other}"),
    };
    assert_eq!(nonce, case.value("nonce"));
    let private = DenomPrivateKey::Cs(CsSigningKey::new(private).unwrap());
    let values = ExchangeWithdrawValues::derive(&private, &nonce, operation);
    let r = [case.value("r_pub_0"), case.value("r_pub_1")];
    assert_eq!(values, ExchangeWithdrawValues::Cs { r0: r[0], r1: r[1] });
    let secrets = CoinSecrets::from_master(&master, &values);
    assert_eq!(secrets.coin_priv, case.value("coin_priv"));
    assert_eq!(secrets.coin_pub(), case.value("coin_pub"));
    assert_eq!(secrets.blinding, case.value("blinding_seed"));
    let age = case.optional("h_age_commitment");
    let (planchet, state) = secrets.prepare(&denom, &values, Some(&nonce), age.as_ref()).unwrap();
    assert_eq!(state.h_coin_pub(), &case.value("coin_pub_hash"));
    assert_eq!(planchet, BlindedPlanchet::Cs { nonce, c0: case.value("c_0"), c1: case.value("c_1") });
    assert_eq!(planchet.hash(&denom.h_denom_pub()), case.value("h_coin_ev"));
    let (challenges, unblind) = cs::blind(&key, &r, &case.value("coin_pub_hash"), &secrets.blinding).unwrap();
    assert_eq!(challenges, [case.value("c_0"), case.value("c_1")]);
    assert_eq!(unblind.blinded_r(), &[case.value("blinded_r_pub_0"), case.value("blinded_r_pub_1")]);
    let signed = blind_sign_batch(&[(&private, &planchet, operation)]).remove(0).unwrap();
    let BlindedDenomSignature::Cs(blind) = &signed else { panic!("wrong cipher") };
    assert_eq!(u32::from(blind.b), case.u32("b"));
    assert_eq!(blind.s, case.value("blinded_signature_s"));
    let expected = CsSignature { r: case.value("signature_r"), s: case.value("signature_s") };
    assert_eq!(state.unblind(&signed).unwrap(), DenomSignature::Cs(expected));
}

pub(super) fn cs_verify(case: Case<'_>) {
    let signature = CsSignature { r: case.value("signature_r"), s: case.value("signature_s") };
    let valid = CsVerifyingKey::new(&case.value("denom_public_key"))
        .is_ok_and(|key| cs::verify(&key, &case.value("message"), &signature));
    assert_eq!(valid, case.flag("valid"), "{}", case.text("case"));
}

pub(super) fn planchet_from_master_secret(case: Case<'_>) {
    let master: PlanchetMasterSecret = case.value("planchet_master_secret");
    assert_eq!(master.cs_nonce(), case.value("cs_withdraw_nonce"));
    let values = match case.text("cipher") {
        "RSA" => ExchangeWithdrawValues::Rsa,
        _ => ExchangeWithdrawValues::Cs { r0: case.value("r_pub_0"), r1: case.value("r_pub_1") },
    };
    let secrets = CoinSecrets::from_master(&master, &values);
    assert_eq!(secrets.coin_priv, case.value("coin_priv"));
    assert_eq!(secrets.coin_pub(), case.value("coin_pub"));
    assert_eq!(secrets.blinding, case.value("blinding_secret"));
}

/// Checks secrets and planchet of a coin of a wallet.
fn wallet_planchet(case: Case<'_>, secrets: &CoinSecrets, h_age_commitment: Option<&ShortHash>) -> HashCode {
    assert_eq!(secrets.coin_priv, case.value("coin_priv"));
    assert_eq!(secrets.coin_pub(), case.value("coin_pub"));
    assert_eq!(secrets.blinding, case.value("blinding_secret"));
    let denom = denom_public(case);
    let (planchet, _) =
        secrets.prepare(&denom, &ExchangeWithdrawValues::Rsa, None, h_age_commitment).unwrap();
    assert_eq!(planchet, BlindedPlanchet::Rsa { blinded: case.hex("rsa_blinded_planchet") });
    let h_coin_ev = planchet.hash(&denom.h_denom_pub());
    assert_eq!(h_coin_ev, case.value("h_coin_ev"));
    h_coin_ev
}

pub(super) fn wallet_withdrawal_planchet(case: Case<'_>) {
    let seed = case.bytes("withdrawal_secret_seed");
    let secrets = CoinSecrets::from_withdrawal_seed(&seed, case.u32("coin_index"));
    let age: Option<ShortHash> = case.optional("h_age_commitment");
    let h_coin_envelope = wallet_planchet(case, &secrets, age.as_ref());
    let denom = denom_public(case);
    assert_eq!(denom.h_denom_pub(), case.value("h_denom_pub"));
    assert_eq!(h_coin_pub(&secrets.coin_pub(), age.as_ref()), case.value("coin_pub_hash"));
    let amount_with_fee = case.amount("value").checked_add(&case.amount("fee_withdraw")).unwrap();
    assert_eq!(amount_with_fee, case.amount("amount_with_fee"));
    let reserve: EddsaPrivateKey = case.value("reserve_priv");
    assert_eq!(reserve.public_key(), case.value("reserve_pub"));
    let request =
        WalletReserveWithdraw { amount_with_fee, h_denom_pub: denom.h_denom_pub(), h_coin_envelope };
    assert_eq!(request.sign(&reserve), case.value("withdraw_signature"));
    let (_, state) = secrets.prepare(&denom, &ExchangeWithdrawValues::Rsa, None, age.as_ref()).unwrap();
    let signature = state.unblind(&BlindedDenomSignature::Rsa(case.hex("blinded_rsa_signature"))).unwrap();
    assert_eq!(signature, DenomSignature::Rsa(case.hex("rsa_signature")));
}

/// The age commitment of a case, if it has one, with the private keys that are given.
fn age_commitment_of(case: Case<'_>) -> Option<AgeCommitmentProof> {
    if !case.has("age_commitment_public_keys") {
        return None;
    }
    let mask = AgeMask::new(case.u32("age_mask")).unwrap();
    let commitment = AgeCommitment::new(mask, case.values("age_commitment_public_keys")).unwrap();
    assert_eq!(commitment.hash(), case.value("h_age_commitment"));
    Some(AgeCommitmentProof::new(commitment, case.values("age_commitment_private_keys")).unwrap())
}

pub(super) fn wallet_tip_planchet(case: Case<'_>) {
    let secrets = CoinSecrets::from_tip_seed(&case.bytes("tip_secret_seed"), case.u32("planchet_index"));
    let age = age_commitment_of(case).map(|age| age.commitment().hash());
    wallet_planchet(case, &secrets, age.as_ref());
}

pub(super) fn refresh_transfer_secret_to_planchet(case: Case<'_>) {
    let secret: TransferSecret = case.value("transfer_secret");
    let planchet = secret.planchet_master_secret(case.u32("coin_index"));
    assert_eq!(planchet, case.value("planchet_master_secret"));
}

/// Checks a complete refresh; `transfer_priv` derives the transfer key of a candidate.
fn check_refresh(
    case: Case<'_>,
    fresh: &[FreshDenom<'_>],
    rms: Option<&RefreshMasterSecret>,
    transfer_priv: impl Fn(u32) -> EcdhePrivateKey,
) {
    let coin: EddsaPrivateKey = case.value("melt_coin_priv");
    let coin_pub = coin.public_key();
    assert_eq!(coin_pub, case.value("melt_coin_pub"));
    let age = age_commitment_of(case);
    let old_age = age.as_ref().map(AgeCommitmentProof::commitment);
    let hashes: Vec<HashCode> = fresh.iter().map(|fresh| fresh.denom.h_denom_pub()).collect();
    let candidates = case.list("candidates");
    let mut planchets = Vec::new();
    let mut transfer_pubs = [EcdhePublicKey::ZERO; refresh::KAPPA];
    for (k, candidate) in (0u32..).zip(&candidates) {
        let private = transfer_priv(k);
        assert_eq!(private, candidate.value("transfer_priv"));
        let public = private.public_key();
        assert_eq!(public, candidate.value("transfer_pub"));
        transfer_pubs[usize::try_from(k).unwrap()] = public;
        let secret = refresh::transfer_secret(&private, &coin_pub).unwrap();
        assert_eq!(secret, candidate.value("transfer_secret"));
        assert_eq!(refresh::link_transfer_secret(&coin, &public), secret);
        let coins = refresh::derive_candidate(&secret, fresh, rms, old_age).unwrap();
        let expected = candidate.list("coins");
        assert_eq!(coins.len(), expected.len());
        for ((fresh, expected), h_denom_pub) in coins.iter().zip(&expected).zip(&hashes) {
            assert_eq!(fresh.secrets.coin_priv, expected.value("coin_priv"));
            assert_eq!(fresh.coin_pub, expected.value("coin_pub"));
            assert_eq!(fresh.secrets.blinding, expected.value("blinding_secret"));
            assert_eq!(fresh.planchet.hash(h_denom_pub), expected.value("h_coin_ev"));
            match &fresh.planchet {
                BlindedPlanchet::Rsa { blinded } => {
                    assert_eq!(*blinded, expected.hex("rsa_blinded_planchet"));
                }
                BlindedPlanchet::Cs { c0, c1, .. } => {
                    assert_eq!(
                        (*c0, *c1),
                        (expected.value("cs_blinded_c0"), expected.value("cs_blinded_c1"))
                    );
                }
            }
        }
        if candidate.has("link_signatures") {
            for (i, signature) in candidate.values::<EddsaSignature>("link_signatures").iter().enumerate() {
                let message = WalletCoinLink {
                    h_denom_pub: hashes[i],
                    transfer_pub: public,
                    h_age_commitment: Zeros,
                    h_coin_envelope: coins[i].planchet.hash(&hashes[i]),
                };
                assert_eq!(message.sign(&coin), *signature);
            }
        }
        let list: Vec<BlindedPlanchet> = coins.into_iter().map(|coin| coin.planchet).collect();
        assert_eq!(refresh::recompute_candidate(&private, &coin_pub, fresh, rms, old_age).unwrap(), list);
        planchets.push(list);
    }
    let amount = case.amount("amount_with_fee");
    let lists = [planchets[0].as_slice(), &planchets[1], &planchets[2]];
    let rc = refresh_commitment(rms, &transfer_pubs, &hashes, &coin_pub, &amount, lists).unwrap();
    assert_eq!(rc, case.value("refresh_commitment"));
    if case.has("melt_signature") {
        let melt = WalletCoinMelt {
            refresh_commitment: rc,
            h_denom_pub: case.value("melt_coin_h_denom_pub"),
            h_age_commitment: old_age.map(AgeCommitment::hash).unwrap_or_default(),
            amount_with_fee: amount,
            melt_fee: case.amount("fee_melt"),
        };
        assert_eq!(melt.sign(&coin), case.value("melt_signature"));
    }
}

pub(super) fn wallet_refresh(case: Case<'_>) {
    let mut denoms = Vec::new();
    let mut total = case.amount("fee_melt");
    for denom in case.list("fresh_denominations") {
        let key = denom_public(denom);
        assert_eq!(key.h_denom_pub(), denom.value("h_denom_pub"));
        let cost = denom.amount("value").checked_add(&denom.amount("fee_withdraw")).unwrap();
        for _ in 0..denom.u32("count") {
            denoms.push(key.clone());
            total = total.checked_add(&cost).unwrap();
        }
    }
    assert_eq!(total, case.amount("amount_with_fee"));
    let fresh: Vec<_> =
        denoms.iter().map(|denom| FreshDenom { denom, values: ExchangeWithdrawValues::Rsa }).collect();
    let seed = case.bytes("refresh_secret_seed");
    check_refresh(case, &fresh, None, |k| refresh::transfer_priv_from_seed(&seed, k));
}

pub(super) fn refresh_with_master_secret(case: Case<'_>) {
    let rms: RefreshMasterSecret = case.value("refresh_master_secret");
    assert_eq!(case.u32("kappa"), u32::try_from(refresh::KAPPA).unwrap());
    let mut denoms = Vec::new();
    for (index, denom) in (0u32..).zip(case.list("fresh_denominations")) {
        let key = denom_public(denom);
        assert_eq!(key.h_denom_pub(), denom.value("h_denom_pub"));
        let values = if denom.text("cipher") == "CS" {
            let nonce = rms.cs_nonce(index);
            assert_eq!(nonce, denom.value("nonce"));
            let private = DenomPrivateKey::Cs(CsSigningKey::new(denom.value("cs_private_key")).unwrap());
            let values = ExchangeWithdrawValues::derive(&private, &nonce, CsOperation::Melt);
            let expected =
                ExchangeWithdrawValues::Cs { r0: denom.value("r_pub_0"), r1: denom.value("r_pub_1") };
            assert_eq!(values, expected);
            values
        } else {
            ExchangeWithdrawValues::Rsa
        };
        denoms.push((key, values));
    }
    let any_cs = denoms.iter().any(|(_, values)| *values != ExchangeWithdrawValues::Rsa);
    assert_eq!(any_cs, case.flag("commitment_includes_refresh_master_secret"));
    let fresh: Vec<_> = denoms.iter().map(|(denom, values)| FreshDenom { denom, values: *values }).collect();
    let coin: EddsaPrivateKey = case.value("melt_coin_priv");
    check_refresh(case, &fresh, Some(&rms), |k| refresh::transfer_priv_from_master_secret(&rms, &coin, k));
}

pub(super) fn age_groups(case: Case<'_>) {
    let mask: Option<AgeMask> = case.text("groups").parse().ok();
    assert_eq!(mask.map(AgeMask::bits), case.flag("ok").then(|| case.u32("mask")));
    if let Some(mask) = mask {
        assert_eq!(mask.to_string(), case.text("canonical"));
    }
}

pub(super) fn age_group_index(case: Case<'_>) {
    let mask = AgeMask::new(case.u32("mask")).unwrap();
    let age = u8::try_from(case.u32("age")).unwrap();
    assert_eq!(mask.group(age), usize::try_from(case.u32("group")).unwrap());
    assert_eq!(mask.groups() + 1, usize::try_from(case.u32("num_groups")).unwrap());
}

fn check_commitment(case: Case<'_>, proof: &AgeCommitmentProof) {
    assert_eq!(proof.commitment().keys(), case.values::<AgePublicKey>("public_keys"));
    assert_eq!(proof.private_keys(), case.values::<AgePrivateKey>("private_keys"));
    assert_eq!(proof.commitment().hash(), case.value("h_age_commitment"));
}

pub(super) fn age_commitment(case: Case<'_>) {
    let mask = AgeMask::new(case.u32("mask")).unwrap();
    let age = u8::try_from(case.u32("age")).unwrap();
    let proof = AgeCommitmentProof::from_counter_seed(mask, age, &case.bytes("seed"));
    check_commitment(case, &proof);
    for attestation in case.list("attestations") {
        let age = u8::try_from(attestation.u32("age")).unwrap();
        let made = proof.attest(age);
        assert_eq!(made.is_ok(), attestation.flag("possible"), "age {age}");
        if let Ok(made) = made {
            assert_eq!(made, attestation.value("attestation"));
            assert!(proof.commitment().verify(age, &made));
        }
    }
    if case.has("derived") {
        let derived = Case(case.get("derived"));
        let proof = proof.derive(&derived.bytes("salt")).unwrap();
        check_commitment(derived, &proof);
        assert_eq!(proof.commitment().derive(&[0; 64]).is_ok(), proof.derive(&[0; 64]).is_ok());
        if derived.has("attestation") {
            let age = u8::try_from(derived.u32("attested_age")).unwrap();
            let expected = AgeSignature::try_from(hex(derived.text("attestation")).as_slice()).unwrap();
            assert_eq!(proof.attest(age).unwrap(), expected);
            assert!(proof.commitment().verify(age, &expected));
        }
    }
}

pub(super) fn wallet_age_commitment_seeded(case: Case<'_>) {
    let mask = AgeMask::new(case.u32("mask")).unwrap();
    let age = u8::try_from(case.u32("age")).unwrap();
    check_commitment(case, &AgeCommitmentProof::from_wallet_seed(mask, age, &case.hex("seed")));
}

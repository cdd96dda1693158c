//! The whole life of coins, with both ciphers: blinding, signing, unblinding, recoup, refresh and link.
use std::sync::LazyLock;

use batzen_crypto::age::{self, AgeCommitmentProof, AgeMask};
use batzen_crypto::denom::{self, BlindedPlanchet, DenomPrivateKey, DenomSignature, ExchangeWithdrawValues};
use batzen_crypto::refresh::{self, FreshDenom, KAPPA, RefreshCommitment};
use batzen_crypto::{
    BlindedDenomSignature, CoinSecrets, CryptoError, CsBlindSignature, CsOperation, CsRPub, CsScalar,
    CsVerifyingKey, DenomKey, DenomPublicKey, EcdhePrivateKey, EddsaPrivateKey, HashCode,
    PlanchetMasterSecret, RefreshMasterSecret, RsaPublicKey, ShortHash, blob, rsa,
};
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::edwards::CompressedEdwardsY;
use proptest::prelude::*;

/// Key generation is slow, so all tests share these.
static KEYS: LazyLock<[DenomPrivateKey; 4]> = LazyLock::new(|| {
    let rsa = || DenomPrivateKey::generate_rsa(1024).unwrap();
    [rsa(), DenomPrivateKey::generate_cs(), rsa(), DenomPrivateKey::generate_cs()]
});

/// The public key as others parse it from the key listing.
fn foreign(public: &DenomPublicKey) -> DenomPublicKey {
    let key = match &public.key {
        DenomKey::Rsa(key) => DenomKey::Rsa(RsaPublicKey::decode(key.encode()).unwrap()),
        DenomKey::Cs(key) => DenomKey::Cs(CsVerifyingKey::new(key.as_public_key()).unwrap()),
    };
    DenomPublicKey { age_mask: public.age_mask, key }
}

/// Withdraws the coin of a master secret: the steps of wallet and exchange.
fn withdraw(
    key: &DenomPrivateKey,
    master: &PlanchetMasterSecret,
    age: Option<&ShortHash>,
) -> (CoinSecrets, BlindedPlanchet, DenomSignature) {
    let denom = foreign(&key.public(0));
    let nonce = master.cs_nonce();
    let values = ExchangeWithdrawValues::derive(key, &nonce, CsOperation::Withdraw);
    let secrets = CoinSecrets::from_master(master, &values);
    let (planchet, state) = secrets.prepare(&denom, &values, Some(&nonce), age).unwrap();
    let blind = denom::blind_sign_batch(&[(key, &planchet, CsOperation::Withdraw)]).remove(0).unwrap();
    let signature = state.unblind(&blind).unwrap();
    (secrets, planchet, signature)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn withdrawn_coins_verify(master: [u8; 32], age: Option<[u8; 32]>, which in 0usize..4) {
        let (key, other) = (&KEYS[which], &KEYS[(which + 2) % 4]);
        let master = PlanchetMasterSecret::from_bytes(master);
        let age = age.map(ShortHash::from_bytes);
        let (secrets, planchet, signature) = withdraw(key, &master, age.as_ref());
        let hash = denom::h_coin_pub(&secrets.coin_pub(), age.as_ref());
        let wrong = HashCode::from_bytes([1; 64]);
        for denom in [key.public(0), foreign(&key.public(0))] {
            prop_assert!(denom.verify(&hash, &signature));
            prop_assert!(!denom.verify(&wrong, &signature));
            let batch = [
                (&denom, &hash, &signature),
                (&other.public(0), &hash, &signature),
                (&KEYS[(which + 1) % 4].public(0), &hash, &signature),
                (&denom, &wrong, &signature),
                (&denom, &hash, &signature),
            ];
            prop_assert_eq!(denom::verify_batch(&batch), [true, false, false, false, true]);
        }

        // Recoup finds the planchet by the blinding secret.
        let denom = key.public(0);
        let nonce = master.cs_nonce();
        let values = ExchangeWithdrawValues::derive(key, &nonce, CsOperation::Withdraw);
        let found = denom::recoup_h_coin_ev(
            &denom, &values, Some(&nonce), &secrets.coin_pub(), &secrets.blinding, age.as_ref(),
        );
        prop_assert_eq!(found.unwrap(), planchet.hash(&denom.h_denom_pub()));
    }

    /// Wallet, exchange and link protocol derive the same fresh coins, and the coins are valid.
    #[test]
    fn refresh_round_trip(
        seed: [u8; 32],
        rms: [u8; 32],
        choice in proptest::collection::vec(0usize..4, 1..4),
        restricted_to in proptest::option::of(0u8..33),
        gamma in 0usize..3,
    ) {
        let old = EddsaPrivateKey::from_bytes(seed);
        let rms = RefreshMasterSecret::from_bytes(rms);
        let mask: AgeMask = "8:10:12:14:16:18:21".parse().unwrap();
        let age = restricted_to.map(|age| AgeCommitmentProof::from_wallet_seed(mask, age, &seed));
        let public_age = age.as_ref().map(AgeCommitmentProof::commitment);

        let denoms: Vec<_> = choice.iter().map(|&which| foreign(&KEYS[which].public(mask.bits()))).collect();
        let values = |(index, which): (u32, &usize)| {
            ExchangeWithdrawValues::derive(&KEYS[*which], &rms.cs_nonce(index), CsOperation::Melt)
        };
        let values: Vec<_> = (0..).zip(&choice).map(values).collect();
        let fresh: Vec<_> =
            denoms.iter().zip(&values).map(|(denom, values)| FreshDenom { denom, values: *values }).collect();

        let mut transfer_pubs = Vec::new();
        let mut candidates = Vec::new();
        for k in 0..KAPPA {
            let transfer = refresh::transfer_priv_from_seed(&seed, k as u32);
            let secret = refresh::transfer_secret(&transfer, &old.public_key()).unwrap();
            let coins = refresh::derive_candidate(&secret, &fresh, Some(&rms), public_age).unwrap();
            let planchets: Vec<_> = coins.iter().map(|coin| coin.planchet.clone()).collect();
            if k == gamma {
                // Only the planchets of this candidate are revealed; link recomputes it from the old coin.
                let linked = refresh::link_transfer_secret(&old, &transfer.public_key());
                prop_assert_eq!(&linked, &secret);
                let again = refresh::derive_candidate(&linked, &fresh, Some(&rms), public_age).unwrap();
                for (index, (coin, which)) in again.iter().zip(&choice).enumerate() {
                    prop_assert_eq!(&coin.planchet, &planchets[index]);
                    prop_assert_eq!(&coin.secrets, &coins[index].secrets);
                    let items = [(&KEYS[*which], &coin.planchet, CsOperation::Melt)];
                    let blind = denom::blind_sign_batch(&items).remove(0).unwrap();
                    let signature = coin.unblind.unblind(&blind).unwrap();
                    let derived = age.as_ref().map(|age| age.derive(secret.as_bytes()).unwrap());
                    let h_age = derived.as_ref().map(|age| age.commitment().hash());
                    let hash = denom::h_coin_pub(&coin.coin_pub, h_age.as_ref());
                    prop_assert!(denoms[index].verify(&hash, &signature));
                    if let (Some(derived), Some(limit)) = (derived, restricted_to) {
                        prop_assert!(derived.commitment().verify(limit, &derived.attest(limit).unwrap()));
                        if limit < 21 {
                            prop_assert!(derived.attest(21).is_err());
                        }
                    }
                }
            } else {
                let recomputed = refresh::recompute_candidate(
                    &transfer, &old.public_key(), &fresh, Some(&rms), public_age,
                ).unwrap();
                prop_assert_eq!(&recomputed, &planchets);
            }
            transfer_pubs.push(transfer.public_key());
            candidates.push(planchets);
        }

        let h_denom_pubs: Vec<_> = denoms.iter().map(DenomPublicKey::h_denom_pub).collect();
        let old_coin_pub = old.public_key();
        let commitment = RefreshCommitment {
            rms: Some(&rms),
            transfer_pubs: &transfer_pubs.try_into().unwrap(),
            h_denom_pubs: &h_denom_pubs,
            old_coin_pub: &old_coin_pub,
            amount_with_fee: &[7; 24],
            planchets: [&candidates[0], &candidates[1], &candidates[2]],
        };
        let hash = commitment.hash().unwrap();
        let swapped = RefreshCommitment {
            planchets: [&candidates[1], &candidates[0], &candidates[2]],
            ..commitment
        };
        prop_assert_ne!(swapped.hash().unwrap(), hash);
        let without_rms = RefreshCommitment { rms: None, ..commitment }.hash();
        if choice.iter().any(|which| which % 2 == 1) {
            prop_assert_eq!(without_rms, Err(CryptoError::CipherMismatch));
        } else {
            prop_assert_eq!(without_rms.unwrap(), hash, "RSA alone does not hash it");
        }
        let uneven = RefreshCommitment { planchets: [&candidates[0], &candidates[0][1..], &candidates[2]], ..commitment };
        prop_assert_eq!(uneven.hash(), Err(CryptoError::WrongCount));
    }

    #[test]
    fn only_unmodified_blobs_decrypt(plain in proptest::collection::vec(any::<u8>(), 0..100), flip: usize) {
        let key = [3; 64];
        let mut sealed = blob::seal(&key, b"label", &plain);
        prop_assert_eq!(&*blob::open(&key, b"label", &sealed).unwrap(), &plain);
        let bit = flip % (sealed.len() * 8);
        sealed[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(blob::open(&key, b"label", &sealed).err(), Some(CryptoError::DecryptionFailed));
        prop_assert!(blob::open(&key, b"label", &sealed[..sealed.len().min(39)]).is_err());
    }
}

#[test]
fn rsa_refuses_what_is_out_of_range() {
    let DenomPrivateKey::Rsa(key) = &KEYS[0] else { panic!("an RSA key") };
    let n = key.public().modulus().to_vec();
    let mut below = n.clone();
    *below.last_mut().unwrap() -= 1;
    let mut too_long = n.clone();
    too_long.push(0);
    // Leading zeros are allowed up to the size of the modulus, and one more that some encoders add. A
    // planchet is hashed unchanged, so more zeros would only be more bytes to store.
    let padded = |bytes: usize| [vec![0; bytes - 1], vec![2]].concat();
    for bytes in [1, n.len(), n.len() + 1] {
        assert_eq!(rsa::sign_batch(&[(key, &padded(bytes))]), rsa::sign_batch(&[(key, &[2][..])]));
    }
    let zeros = padded(n.len() + 2);
    for blinded in
        [vec![], vec![0], vec![1], vec![0, 0, 1], below, n.clone(), too_long, vec![0xff; 128], zeros]
    {
        assert_eq!(rsa::sign_batch(&[(key, &blinded)]), [Err(CryptoError::OutOfRange)]);
    }
    let secret = batzen_crypto::BlindingSecret::generate();
    assert_eq!(rsa::unblind(key.public(), &n, &secret), Err(CryptoError::OutOfRange));
    // Two is as good as any other number: two to the power of d, to the power of e, is two again.
    let signature = rsa::sign_batch(&[(key, &[2][..])]).remove(0).unwrap();
    let power = num_bigint::BigUint::from_bytes_be(&signature)
        .modpow(&num_bigint::BigUint::from(65537u32), &num_bigint::BigUint::from_bytes_be(&n));
    assert_eq!(power, num_bigint::BigUint::from(2u8));
}

#[test]
fn ciphers_do_not_mix() {
    let master = PlanchetMasterSecret::generate();
    let (_, rsa_planchet, rsa_signature) = withdraw(&KEYS[0], &master, None);
    let (_, cs_planchet, cs_signature) = withdraw(&KEYS[1], &master, None);
    let results = denom::blind_sign_batch(&[
        (&KEYS[0], &cs_planchet, CsOperation::Withdraw),
        (&KEYS[0], &rsa_planchet, CsOperation::Withdraw),
        (&KEYS[1], &rsa_planchet, CsOperation::Withdraw),
        (&KEYS[1], &cs_planchet, CsOperation::Withdraw),
    ]);
    assert_eq!(results[0], Err(CryptoError::CipherMismatch));
    assert!(matches!(results[1], Ok(BlindedDenomSignature::Rsa(_))));
    assert_eq!(results[2], Err(CryptoError::CipherMismatch));
    assert!(matches!(results[3], Ok(BlindedDenomSignature::Cs(_))));
    let hash = HashCode::from_bytes([0; 64]);
    assert!(!KEYS[0].public(0).verify(&hash, &cs_signature));
    assert!(!KEYS[1].public(0).verify(&hash, &rsa_signature));

    let denom = KEYS[1].public(0);
    let nonce = master.cs_nonce();
    let values = ExchangeWithdrawValues::derive(&KEYS[1], &nonce, CsOperation::Withdraw);
    let secrets = CoinSecrets::from_master(&master, &values);
    let mismatch = |result: Result<_, CryptoError>| {
        let result: Result<(BlindedPlanchet, denom::UnblindState), _> = result;
        assert_eq!(result.err(), Some(CryptoError::CipherMismatch));
    };
    mismatch(secrets.prepare(&denom, &values, None, None));
    mismatch(secrets.prepare(&denom, &ExchangeWithdrawValues::Rsa, Some(&nonce), None));
    mismatch(secrets.prepare(&KEYS[0].public(0), &values, Some(&nonce), None));
    let (_, state) = secrets.prepare(&denom, &values, Some(&nonce), None).unwrap();
    assert_eq!(state.unblind(&BlindedDenomSignature::Rsa(vec![1])), Err(CryptoError::CipherMismatch));
    for (b, s) in [(2, [0; 32]), (0, [0xff; 32]), (0, [0; 32]), (1, [0; 32])] {
        let blind = CsBlindSignature { b, s: CsScalar::from_bytes(s) };
        assert_eq!(state.unblind(&BlindedDenomSignature::Cs(blind)), Err(CryptoError::InvalidSignature));
    }
}

/// Points with a component of small order would let the exchange mark coins.
#[test]
fn cs_refuses_marked_points() {
    let public = KEYS[1].public(0);
    let DenomKey::Cs(key) = &public.key else { panic!("a CS key") };
    let point = CompressedEdwardsY(*key.as_public_key().as_bytes()).decompress().unwrap();
    for torsion in &EIGHT_TORSION[1..] {
        let marked = (point + torsion).compress().to_bytes();
        assert_eq!(CsVerifyingKey::new(&marked.into()).err(), Some(CryptoError::InvalidPoint));
    }
    let [.., small] = EIGHT_TORSION;
    for bad in [small.compress().to_bytes(), [0xff; 32], [2; 32]] {
        let r = CsRPub::from_bytes(bad);
        let values = ExchangeWithdrawValues::Cs { r0: r, r1: r };
        let master = PlanchetMasterSecret::generate();
        let secrets = CoinSecrets::from_master(&master, &values);
        let result = secrets.prepare(&public, &values, Some(&master.cs_nonce()), None);
        assert_eq!(result.err(), Some(CryptoError::InvalidPoint));
    }
}

#[test]
fn private_denomination_keys_survive_storage() {
    for key in &*KEYS {
        let bytes = key.to_bytes().unwrap();
        let again = DenomPrivateKey::from_bytes(&bytes).unwrap();
        assert_eq!(again.public(5), key.public(5));
        assert!(DenomPrivateKey::from_bytes(&bytes[..bytes.len() - 1]).is_err());
    }
    assert!(DenomPrivateKey::from_bytes(&[]).is_err());
    assert!(DenomPrivateKey::from_bytes(&[0, 0, 0, 3, 1]).is_err());
    let mut zero = vec![0; 36];
    zero[3] = 2;
    assert!(DenomPrivateKey::from_bytes(&zero).is_err(), "zero is no key");
}

#[test]
fn refresh_limits_the_number_of_coins() {
    let denom = KEYS[0].public(0);
    let old = EddsaPrivateKey::generate();
    let transfer = EcdhePrivateKey::generate();
    let fresh = FreshDenom { denom: &denom, values: ExchangeWithdrawValues::Rsa };
    let recompute = |count: usize| {
        refresh::recompute_candidate(&transfer, &old.public_key(), &vec![fresh; count], None, None)
    };
    assert_eq!(recompute(0), Err(CryptoError::WrongCount));
    assert_eq!(recompute(refresh::MAX_FRESH_COINS + 1), Err(CryptoError::WrongCount));
    assert_eq!(recompute(2).unwrap().len(), 2);
}

#[test]
fn unrestricted_commitments_attest_every_age() {
    let mask: AgeMask = "12:18".parse().unwrap();
    let proof = AgeCommitmentProof::generate(mask, age::UNRESTRICTED);
    assert_eq!(proof.private_keys().len(), 2);
    for age in 0..=40 {
        let attestation = proof.attest(age).unwrap();
        assert!(proof.commitment().verify(age, &attestation));
        assert!(!proof.commitment().verify(if age < 18 { 18 } else { 12 }, &attestation));
    }
    assert_eq!(
        [mask.lowest_age(0), mask.lowest_age(1), mask.lowest_age(2), mask.lowest_age(3)],
        [Some(0), Some(12), Some(18), None]
    );
}

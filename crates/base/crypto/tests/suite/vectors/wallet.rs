//! Derivations of wallets: planchets, refresh and link, encrypted blobs.

use batzen_crypto::age::{AgeCommitment, AgeCommitmentProof, AgeMask};
use batzen_crypto::denom::{DenomKey, DenomPublicKey, DenomSignature, ExchangeWithdrawValues};
use batzen_crypto::refresh::{self, Candidate, FreshCoin, FreshDenom, KAPPA, RefreshCommitment, Revealed};
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, CoinSecrets, CsVerifyingKey, EcdhePrivateKey, EddsaPrivateKey,
    HashCode, Path, PlanchetMasterSecret, RefreshMasterSecret, RsaPublicKey, TransferSecret, blob, ecdh,
};
use serde_json::Value;

use crate::vectors::Case;
use crate::vectors::for_each;

/// The denomination of a case (or of a member of it) with the members `age_mask` and `rsa_public_key` or
/// `cs_public_key`.
fn denom(case: Case<'_>) -> DenomPublicKey {
    let key = if case.has("cs_public_key") {
        DenomKey::Cs(CsVerifyingKey::new(&case.get("cs_public_key")).unwrap())
    } else {
        DenomKey::Rsa(RsaPublicKey::decode(&case.bytes("rsa_public_key")).unwrap())
    };
    DenomPublicKey { age_mask: case.u32("age_mask"), key }
}

#[test]
fn vectors_planchet_from_master_secret() {
    for_each("planchet_from_master_secret", |case| {
        let master: PlanchetMasterSecret = case.get("planchet_master_secret");
        let secrets = CoinSecrets::from_master(&master, &ExchangeWithdrawValues::Rsa);
        assert_eq!(secrets.coin_priv, case.get("coin_priv"));
        assert_eq!(secrets.coin_pub(), case.get("coin_pub"));
        assert_eq!(secrets.blinding, case.get("blinding_secret"));
        assert_eq!(master.cs_nonce(), case.get("cs_withdraw_nonce"));
    });
}

fn check_coin(case: Case<'_>, secrets: &CoinSecrets) {
    assert_eq!(secrets.coin_priv, case.get("coin_priv"));
    assert_eq!(secrets.coin_pub(), case.get("coin_pub"));
    assert_eq!(secrets.blinding, case.get("blinding_secret"));
}

#[test]
fn vectors_wallet_withdrawal_planchet() {
    for_each("wallet_withdrawal_planchet", |case| {
        let seed = case.array("withdrawal_secret_seed");
        let secrets = CoinSecrets::from_withdrawal_seed(&seed, case.u32("coin_index"));
        check_coin(case, &secrets);
        let denom = denom(case);
        assert_eq!(denom.h_denom_pub(), case.get("h_denom_pub"));
        let (planchet, state) = secrets.prepare(&denom, &ExchangeWithdrawValues::Rsa, None, None).unwrap();
        assert_eq!(planchet, BlindedPlanchet::Rsa { blinded: case.bytes("rsa_blinded_planchet") });
        assert_eq!(planchet.hash(&denom.h_denom_pub()), case.get("h_coin_ev"));
        assert_eq!(*state.h_coin_pub(), case.get("coin_pub_hash"));
        let blind = BlindedDenomSignature::Rsa(case.bytes("blinded_rsa_signature"));
        let signature = state.unblind(&blind).unwrap();
        assert_eq!(signature, DenomSignature::Rsa(case.bytes("rsa_signature")));
    });
}

#[test]
fn vectors_wallet_tip_planchet() {
    for_each("wallet_tip_planchet", |case| {
        let secrets = CoinSecrets::from_tip_seed(&case.array("tip_secret_seed"), case.u32("planchet_index"));
        check_coin(case, &secrets);
        let age = case.has("age_commitment_public_keys").then(|| age_commitment(case).commitment().hash());
        if let Some(age) = age {
            assert_eq!(age, case.get("h_age_commitment"));
        }
        let denom = denom(case);
        let (planchet, _) =
            secrets.prepare(&denom, &ExchangeWithdrawValues::Rsa, None, age.as_ref()).unwrap();
        assert_eq!(planchet, BlindedPlanchet::Rsa { blinded: case.bytes("rsa_blinded_planchet") });
        assert_eq!(planchet.hash(&denom.h_denom_pub()), case.get("h_coin_ev"));
    });
}

fn age_commitment(case: Case<'_>) -> AgeCommitmentProof {
    let mask = AgeMask::new(case.u32("age_mask")).unwrap();
    let public = AgeCommitment::new(mask, case.values("age_commitment_public_keys")).unwrap();
    AgeCommitmentProof::new(public, case.values("age_commitment_private_keys")).unwrap()
}

#[test]
fn vectors_refresh_transfer_secret_to_planchet() {
    for_each("refresh_transfer_secret_to_planchet", |case| {
        let secret: TransferSecret = case.get("transfer_secret");
        let planchet = secret.planchet_master_secret(case.u32("coin_index"));
        assert_eq!(planchet, case.get("planchet_master_secret"));
    });
}

/// The binary form of an amount in text form; enough for the texts in the vectors.
fn amount(text: &str) -> [u8; 24] {
    let (currency, number) = text.split_once(':').unwrap();
    let (value, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut out = [0; 24];
    out[..8].copy_from_slice(&value.parse::<u64>().unwrap().to_be_bytes());
    out[8..12].copy_from_slice(&format!("{fraction:0<8}").parse::<u32>().unwrap().to_be_bytes());
    out[12..12 + currency.len()].copy_from_slice(currency.as_bytes());
    out
}

/// Checks that the coins of a candidate are those of the vectors.
fn check_coins(
    secret: &TransferSecret,
    coins: &[FreshCoin],
    cases: &[Case<'_>],
    denoms: &[(DenomPublicKey, ExchangeWithdrawValues)],
) {
    assert_eq!(coins.len(), cases.len());
    for (index, (coin, case)) in coins.iter().zip(cases).enumerate() {
        if case.has("planchet_master_secret") {
            let master = secret.planchet_master_secret(index.try_into().unwrap());
            assert_eq!(master, case.get("planchet_master_secret"));
        }
        assert_eq!(coin.secrets.coin_priv, case.get("coin_priv"));
        assert_eq!(coin.coin_pub, case.get("coin_pub"));
        if case.has("coin_pub_hash") {
            assert_eq!(*coin.unblind.h_coin_pub(), case.get("coin_pub_hash"));
        }
        assert_eq!(coin.secrets.blinding, case.get("blinding_secret"));
        if case.has("rsa_blinded_planchet") {
            let blinded = case.bytes("rsa_blinded_planchet");
            assert_eq!(coin.planchet, BlindedPlanchet::Rsa { blinded });
        }
        assert_eq!(coin.planchet.hash(&denoms[index].0.h_denom_pub()), case.get("h_coin_ev"));
    }
}

/// A whole refresh, seen by wallet, exchange and link.
fn check_refresh(case: Case<'_>, transfer_priv: impl Fn(u32) -> EcdhePrivateKey) {
    let old_coin_priv: EddsaPrivateKey = case.get("melt_coin_priv");
    let old_coin_pub = old_coin_priv.public_key();
    assert_eq!(old_coin_pub, case.get("melt_coin_pub"));
    let age = case.has("age_commitment_public_keys").then(|| age_commitment(case));
    let old_age = age.as_ref().map(AgeCommitmentProof::commitment);
    let rms =
        case.has("refresh_master_secret").then(|| case.get::<RefreshMasterSecret>("refresh_master_secret"));

    let mut denoms = Vec::new();
    for case in case.list("fresh_denominations") {
        let count = case.0.get("count").map_or(1, |count| count.as_u64().unwrap());
        let denom = denom(case);
        assert_eq!(denom.h_denom_pub(), case.get("h_denom_pub"));
        let values = match denom.key {
            DenomKey::Rsa(_) => ExchangeWithdrawValues::Rsa,
            DenomKey::Cs(_) => {
                ExchangeWithdrawValues::Cs { r0: case.get("r_pub_0"), r1: case.get("r_pub_1") }
            }
        };
        if case.has("nonce") {
            assert_eq!(rms.as_ref().unwrap().cs_nonce(denoms.len() as u32), case.get("nonce"));
        }
        for _ in 0..count {
            denoms.push((denom.clone(), values));
        }
    }
    let candidates = case.list("candidates");
    assert_eq!(candidates.len(), KAPPA);
    let mut transfer_pubs = Vec::new();
    let mut planchets = Vec::new();
    for (k, case) in (0u32..).zip(candidates) {
        let transfer = transfer_priv(k);
        assert_eq!(transfer, case.get("transfer_priv"));
        assert_eq!(transfer.public_key(), case.get("transfer_pub"));
        let secret = refresh::transfer_secret(&transfer, &old_coin_pub).unwrap();
        assert_eq!(secret, case.get("transfer_secret"));
        assert_eq!(refresh::link_transfer_secret(&old_coin_priv, &transfer.public_key()), secret);

        let coin_cases = case.list("coins");
        assert_eq!(coin_cases.len(), denoms.len());
        let fresh: Vec<_> =
            denoms.iter().map(|(denom, values)| FreshDenom { denom, values: *values }).collect();
        let candidate = Candidate { secret: &secret, fresh: &fresh, rms: rms.as_ref(), old_age };
        let revealed = Revealed {
            transfer_priv: &transfer,
            old_coin_pub: &old_coin_pub,
            fresh: &fresh,
            rms: rms.as_ref(),
            old_age,
        };
        for path in [Path::Library, Path::Lanes] {
            let coins = refresh::derive_candidates_with(path, &[candidate]).remove(0).unwrap();
            let again = refresh::recompute_candidates_with(path, &[revealed]).remove(0).unwrap();
            assert_eq!(again.transfer_pub, transfer.public_key());
            assert!(again.planchets.iter().eq(coins.iter().map(|coin| &coin.planchet)));
            check_coins(&secret, &coins, &coin_cases, &denoms);
        }
        let coins = refresh::derive_candidate(&secret, &fresh, rms.as_ref(), old_age).unwrap();
        check_coins(&secret, &coins, &coin_cases, &denoms);
        let recomputed =
            refresh::recompute_candidate(&transfer, &old_coin_pub, &fresh, rms.as_ref(), old_age).unwrap();
        assert!(recomputed.iter().eq(coins.iter().map(|coin| &coin.planchet)));
        transfer_pubs.push(transfer.public_key());
        planchets.push(recomputed);
    }
    let h_denom_pubs: Vec<HashCode> = denoms.iter().map(|(denom, _)| denom.h_denom_pub()).collect();
    let commitment = RefreshCommitment {
        rms: rms.as_ref(),
        transfer_pubs: &transfer_pubs.try_into().unwrap(),
        h_denom_pubs: &h_denom_pubs,
        old_coin_pub: &old_coin_pub,
        amount_with_fee: &amount(case.text("amount_with_fee")),
        planchets: [&planchets[0], &planchets[1], &planchets[2]],
    };
    assert_eq!(commitment.hash().unwrap(), case.get("refresh_commitment"));
}

#[test]
fn vectors_wallet_refresh() {
    for_each("wallet_refresh", |case| {
        let seed = case.array("refresh_secret_seed");
        check_refresh(case, |k| refresh::transfer_priv_from_seed(&seed, k));
    });
}

#[test]
fn vectors_refresh_with_master_secret() {
    for_each("refresh_with_master_secret", |case| {
        let rms: RefreshMasterSecret = case.get("refresh_master_secret");
        let old: EddsaPrivateKey = case.get("melt_coin_priv");
        check_refresh(case, |k| refresh::transfer_priv_from_master_secret(&rms, &old, k));
    });
}

#[test]
fn vectors_wallet_econtract() {
    for_each("wallet_econtract", |case| {
        let contract: EcdhePrivateKey = case.get("contract_priv");
        assert_eq!(contract.public_key(), case.get("contract_pub"));
        let key = ecdh::ecdh_eddsa_pub(&contract, &case.get("purse_pub")).unwrap();
        assert_eq!(key, case.get("shared_key"));
        let label: &[u8] = match case.text("kind") {
            "merge" => b"p2p-merge-contract",
            _ => b"p2p-deposit-contract",
        };
        let sealed =
            blob::seal_with_nonce(&case.array("nonce"), key.as_bytes(), label, &case.bytes("plaintext"));
        assert_eq!(sealed, case.bytes("econtract"));
        assert_eq!(*blob::open(key.as_bytes(), label, &sealed).unwrap(), case.bytes("plaintext"));
        assert!(blob::open(key.as_bytes(), b"another label", &sealed).is_err());
    });
}

/// The plain text is compressed JSON there, so this checks only that the blob is authentic.
#[test]
fn vectors_kyc_attributes_encryption() {
    for_each("kyc_attributes_encryption", |case| {
        assert!(matches!(case.value("attributes"), Value::Object(_)));
        let label = b"kyc-attributes";
        blob::open(&case.bytes("key"), label, &case.bytes("encrypted")).unwrap();
    });
}

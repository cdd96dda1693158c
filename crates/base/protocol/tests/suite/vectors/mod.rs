//! Test vectors of the protocol's byte formats and computations.
//!
//! The vectors come with the project; the environment variable `BATZEN_VECTORS` names a further file of the
//! same format. A group that this test does not know is a failure.

mod case;
mod coins;
mod formats;
mod signatures;

use std::collections::BTreeMap;

use case::Case;
use serde_json::Value;

fn check(group: &str, case: Case<'_>) {
    match group {
        "base32" => formats::base32_encode(case),
        "sha512" => coins::sha512_hash(case),
        "kdf" => coins::kdf_output(case),
        "kdf_mod_mpi" => coins::kdf_mod_mpi(case),
        "eddsa_key" => coins::eddsa_key(case),
        "eddsa_sign_purpose" => coins::eddsa_sign_purpose(case),
        "eddsa_verify" => coins::eddsa_verify(case),
        "ecdhe_key" => coins::ecdhe_key(case),
        "ecdh_eddsa" => coins::ecdh_eddsa(case),
        "ecdh_ecc" => coins::ecdh_ecc(case),
        "edx25519" => coins::edx25519(case),
        "rsa_public_key_encoding" => coins::rsa_public_key_encoding(case),
        "rsa_blind_sign" => coins::rsa_blind_sign(case),
        "rsa_verify" => coins::rsa_verify(case),
        "rsa_malicious_key" => coins::rsa_malicious_key(case),
        "h_denom_pub" => coins::h_denom_pub(case),
        "coin_pub_hash" => coins::coin_pub_hash(case),
        "coin_ev_hash" => coins::coin_ev_hash(case),
        "cs_blind_sign" => coins::cs_blind_sign(case),
        "cs_verify" => coins::cs_verify(case),
        "planchet_from_master_secret" => coins::planchet_from_master_secret(case),
        "wallet_withdrawal_planchet" => coins::wallet_withdrawal_planchet(case),
        "wallet_tip_planchet" => coins::wallet_tip_planchet(case),
        "refresh_transfer_secret_to_planchet" => coins::refresh_transfer_secret_to_planchet(case),
        "wallet_refresh" => coins::wallet_refresh(case),
        "refresh_with_master_secret" => coins::refresh_with_master_secret(case),
        "age_groups" => coins::age_groups(case),
        "age_group_index" => coins::age_group_index(case),
        "age_commitment" => coins::age_commitment(case),
        "wallet_age_commitment_seeded" => coins::wallet_age_commitment_seeded(case),
        "base32_decode" => formats::base32_decode(case),
        "amount_parse" => formats::amount_parse(case),
        "amount_nbo" => formats::amount_nbo(case),
        "amount_add_sub_cmp" => formats::amount_add_sub_cmp(case),
        "amount_mult_div" => formats::amount_mult_div(case),
        "amount_round_down" => formats::amount_round_down(case),
        "timestamp" => formats::timestamp(case),
        "timestamp_parse" => formats::timestamp_parse(case),
        "timestamp_round" => formats::timestamp_round(case),
        "duration" => formats::duration(case),
        "duration_parse" => formats::duration_parse(case),
        "canonical_json" => formats::canonical_json(case),
        "canonical_json_key_order_divergence" => formats::canonical_json_key_order_divergence(case),
        "contract_hash" => formats::contract_hash(case),
        "contract_forget" => formats::contract_forget(case),
        "policy_hash" => formats::policy_hash(case),
        "extension_manifests_hash" => formats::extension_manifests_hash(case),
        "payto_hash" => formats::payto_hash(case),
        "payto_validate" => formats::payto_validate(case),
        "reserve_payto" => formats::reserve_payto(case),
        "wire_hash" => formats::wire_hash(case),
        "key_set_hash" => formats::key_set_hash(case),
        "wire_deposit_details_hash" => formats::wire_deposit_details_hash(case),
        "wallet_econtract" => formats::wallet_econtract(case),
        "econtract_reference" => formats::econtract_reference(case),
        "kyc_attributes_encryption" => formats::kyc_attributes_encryption(case),
        _ => assert!(signatures::signature(group, case), "unknown group"),
    }
}

fn run(text: &str) -> BTreeMap<String, usize> {
    let groups: BTreeMap<String, Vec<Value>> = serde_json::from_str(text).expect("an object of arrays");
    let mut counts = BTreeMap::new();
    for (group, cases) in &groups {
        for (index, case) in cases.iter().enumerate() {
            let outcome = std::panic::catch_unwind(|| check(group, Case(case)));
            assert!(outcome.is_ok(), "{group}[{index}] failed: {case}");
        }
        counts.insert(group.clone(), cases.len());
    }
    counts
}

#[test]
fn vectors_all_groups() {
    let counts = run(include_str!("../../vectors/crypto.json"));
    assert_eq!(counts.len(), 120, "groups");
    assert!(counts.values().all(|count| *count > 0));
}

#[test]
fn vectors_further_file() {
    let Some(path) = std::env::var_os("BATZEN_VECTORS") else { return };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(!run(&text).is_empty());
}

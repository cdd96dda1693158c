//! Amounts, times, JSON, payto URIs, lists, contracts.

use std::cmp::Ordering;

use batzen_crypto::blob;
use batzen_crypto::ecdh::ecdh_eddsa_pub;
use batzen_crypto::hash::sha512;
use batzen_crypto::kdf::kdf_array;
use batzen_crypto::{EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, HashCode, base32};
use batzen_protocol::api::exchange::TransferDeposit;
use batzen_protocol::econtract::{self, PeerContract};
use batzen_protocol::{
    Amount, AmountError, Duration, PaytoUri, Timestamp, canonical, denominations, hash_text, payto,
};
use serde_json::Value;

use crate::vectors::case::Case;

pub(super) fn base32_encode(case: Case<'_>) {
    let data = case.hex("data");
    assert_eq!(base32::encode(&data), case.text("encoded"));
    assert_eq!(base32::decode(case.text("encoded")).unwrap(), data);
}

pub(super) fn base32_decode(case: Case<'_>) {
    let expected = usize::try_from(case.int("expected_length")).unwrap();
    let decoded = base32::decode(case.text("encoded")).ok().filter(|data| data.len() == expected);
    assert_eq!(decoded, case.flag("ok").then(|| case.hex("data")));
}

pub(super) fn amount_parse(case: Case<'_>) {
    let parsed = Amount::parse(case.text("string"));
    assert_eq!(parsed.is_ok(), case.flag("parse_ok") && case.flag("valid"));
    let json = Value::String(case.text("string").to_owned());
    assert_eq!(serde_json::from_value::<Amount>(json).ok(), parsed.ok());
    let Ok(amount) = parsed else { return };
    assert_eq!(i64::try_from(amount.money.value()), Ok(case.int("value")));
    assert_eq!(amount.money.fraction(), case.u32("fraction"));
    assert_eq!(amount.currency.as_str(), case.text("currency"));
    assert_eq!(amount.to_string(), case.text("canonical"));
    assert_eq!(amount.to_nbo(), case.bytes("nbo"));
    assert_eq!(Amount::from_nbo(&case.bytes("nbo")), Ok(amount));
}

pub(super) fn amount_nbo(case: Case<'_>) {
    assert_eq!(case.amount("amount").to_nbo(), case.bytes("nbo"));
}

fn result_code(result: &Result<Amount, AmountError>) -> i64 {
    match result {
        Ok(amount) => i64::from(!amount.is_zero()),
        Err(AmountError::Negative) => -1,
        Err(AmountError::Overflow) => -2,
        Err(AmountError::CurrencyMismatch) => -4,
        Err(other) => panic!("unexpected {other}"),
    }
}

fn result_text(result: &Result<Amount, AmountError>) -> Option<String> {
    result.as_ref().ok().map(ToString::to_string)
}

fn expected_text(case: Case<'_>, name: &str) -> Option<String> {
    case.has(name).then(|| case.text(name).to_owned())
}

pub(super) fn amount_add_sub_cmp(case: Case<'_>) {
    let (a, b) = (case.amount("a"), case.amount("b"));
    let (sum, difference) = (a.checked_add(&b), a.checked_sub(&b));
    assert_eq!(result_code(&sum), case.int("add_result_code"));
    assert_eq!(result_text(&sum), expected_text(case, "sum"));
    assert_eq!(result_code(&difference), case.int("sub_result_code"));
    assert_eq!(result_text(&difference), expected_text(case, "difference"));
    let order = case.has("cmp").then(|| case.int("cmp").cmp(&0));
    assert_eq!(a.checked_cmp(&b).ok(), order);
    assert_eq!(b.checked_cmp(&a).ok(), order.map(Ordering::reverse));
}

pub(super) fn amount_mult_div(case: Case<'_>) {
    let (amount, factor) = (case.amount("a"), u64::try_from(case.int("factor")).unwrap());
    let product = amount.checked_mul(factor);
    assert_eq!(result_code(&product), case.int("mult_result_code"));
    assert_eq!(result_text(&product), expected_text(case, "product"));
    assert_eq!(result_text(&amount.checked_div(factor)), expected_text(case, "quotient"));
}

pub(super) fn amount_round_down(case: Case<'_>) {
    let amount = case.amount("amount");
    let rounded = amount.round_down(&case.amount("unit"));
    let code = match rounded {
        Ok(rounded) => i64::from(rounded != amount),
        Err(_) => -1,
    };
    assert_eq!(code, case.int("result_code"));
    assert_eq!(rounded.unwrap_or(amount).to_string(), case.text("rounded"));
}

pub(super) fn timestamp(case: Case<'_>) {
    let time = case.time("json");
    assert_eq!(time.to_nbo(), case.bytes("nbo"));
    assert_eq!(Timestamp::from_nbo(case.bytes("nbo")), time);
    assert_eq!(&serde_json::to_value(time).unwrap(), case.get("json"));
}

pub(super) fn timestamp_parse(case: Case<'_>) {
    let time: Option<Timestamp> = serde_json::from_str(case.text("text")).ok();
    assert_eq!(time.map(Timestamp::to_nbo), case.flag("ok").then(|| case.bytes("nbo")));
}

pub(super) fn timestamp_round(case: Case<'_>) {
    let micros = case.text("microseconds").parse().unwrap();
    assert_eq!(Timestamp::from_micros(micros).as_micros().to_string(), case.text("rounded_microseconds"));
}

pub(super) fn duration(case: Case<'_>) {
    let duration = case.duration("json");
    assert_eq!(duration.to_nbo(), case.bytes("nbo"));
    assert_eq!(Duration::from_nbo(case.bytes("nbo")), duration);
    assert_eq!(&serde_json::to_value(duration).unwrap(), case.get("json"));
}

pub(super) fn duration_parse(case: Case<'_>) {
    let duration: Option<Duration> = serde_json::from_str(case.text("text")).ok();
    assert_eq!(duration.map(Duration::to_nbo), case.flag("ok").then(|| case.bytes("nbo")));
}

pub(super) fn canonical_json(case: Case<'_>) {
    let value = canonical::parse(case.text("json_text").as_bytes()).unwrap();
    assert_eq!(canonical::to_canonical(&value).unwrap(), case.text("canonical"));
    if case.has("json_hash") {
        assert_eq!(canonical::plain_hash(&value).unwrap(), case.value("json_hash"));
    }
}

pub(super) fn canonical_json_key_order_divergence(case: Case<'_>) {
    let value = canonical::parse(case.text("json_text").as_bytes()).unwrap();
    assert_eq!(canonical::to_canonical(&value).unwrap(), case.text("canonical_exchange"));
    assert_eq!(canonical::contract_hash(&value).unwrap(), case.value("h_contract_terms_exchange"));
    assert_eq!(hash_text(case.text("canonical_wallet")), case.value::<HashCode>("h_contract_terms_wallet"));
}

pub(super) fn contract_hash(case: Case<'_>) {
    let hash = canonical::parse(case.text("contract_json").as_bytes())
        .and_then(|value| canonical::contract_hash(&value));
    assert_eq!(hash.ok(), case.flag("ok").then(|| case.value("h_contract_terms")));
}

pub(super) fn contract_forget(case: Case<'_>) {
    let mut contract = canonical::parse(case.text("contract_json").as_bytes()).unwrap();
    let hash: HashCode = case.value("h_contract_terms");
    assert_eq!(canonical::contract_hash(&contract).unwrap(), hash);
    canonical::forget(&mut contract, case.text("forget_field")).unwrap();
    assert_eq!(canonical::contract_hash(&contract).unwrap(), hash);
    let expected = canonical::parse(case.text("result_canonical").as_bytes()).unwrap();
    assert_eq!(contract, expected);
}

pub(super) fn policy_hash(case: Case<'_>) {
    let policy = canonical::parse(case.text("policy_json").as_bytes()).unwrap();
    assert_eq!(canonical::policy_hash(&policy).unwrap(), case.value("h_policy"));
}

pub(super) fn extension_manifests_hash(case: Case<'_>) {
    let manifests = canonical::parse(case.text("manifests_json").as_bytes()).unwrap();
    assert_eq!(canonical::manifests_hash(&manifests).unwrap(), case.value("h_manifest"));
}

pub(super) fn payto_hash(case: Case<'_>) {
    let uri = case.text("payto_uri");
    assert_eq!(hash_text(uri), case.value::<HashCode>("full_sha512"));
    assert_eq!(payto::h_payto(uri), case.value("h_payto"));
    let parsed = PaytoUri::parse_strict(uri);
    assert_eq!(parsed.is_ok(), case.flag("valid"));
    if let Ok(parsed) = parsed {
        assert_eq!(parsed.method(), case.text("method"));
        assert_eq!(parsed.hash(), case.value("h_payto"));
    }
}

pub(super) fn payto_validate(case: Case<'_>) {
    assert_eq!(PaytoUri::parse_strict(case.text("payto_uri")).is_ok(), case.flag("valid"));
}

pub(super) fn reserve_payto(case: Case<'_>) {
    let reserve_pub: EddsaPublicKey = case.value("reserve_pub");
    let uri = PaytoUri::reserve(case.text("exchange_base_url"), &reserve_pub).unwrap();
    assert_eq!(uri.as_str(), case.text("payto_uri"));
    assert_eq!(uri.hash(), case.value("h_payto"));
    assert_eq!(uri.to_reserve().unwrap(), (case.text("exchange_base_url").to_owned(), reserve_pub));
}

pub(super) fn wire_hash(case: Case<'_>) {
    assert_eq!(payto::h_wire(case.text("payto_uri"), &case.value("salt")), case.value("h_wire"));
}

pub(super) fn key_set_hash(case: Case<'_>) {
    let hashes: Vec<HashCode> = case.values("h_denom_pubs_in_list_order");
    assert_eq!(denominations::key_set_hash(&hashes), case.value("hc_concatenated"));
    assert_eq!(denominations::key_set_xor(&hashes), case.value("hc_xor"));
}

pub(super) fn wire_deposit_details_hash(case: Case<'_>) {
    let deposits: Vec<TransferDeposit> = case
        .inputs()
        .list("deposits")
        .into_iter()
        .map(|deposit| TransferDeposit {
            h_contract_terms: deposit.value("h_contract_terms"),
            coin_pub: deposit.value("coin_pub"),
            deposit_value: deposit.amount("deposit_value"),
            deposit_fee: deposit.amount("deposit_fee"),
        })
        .collect();
    let hash = denominations::wire_details_hash(case.inputs().time("execution_time"), &deposits);
    assert_eq!(hash, case.value("h_details"));
}

/// Decrypts either form of contract.
fn decrypt(case: Case<'_>) -> PeerContract {
    let contract_priv: EcdhePrivateKey = case.value("contract_priv");
    let purse_pub: EddsaPublicKey = case.value("purse_pub");
    assert_eq!(case.value::<EddsaPrivateKey>("purse_priv").public_key(), purse_pub);
    assert_eq!(contract_priv.public_key(), case.value("contract_pub"));
    assert_eq!(
        ecdh_eddsa_pub(&contract_priv, &purse_pub).unwrap().as_bytes(),
        &case.bytes::<64>("shared_key")
    );
    let blob = case.hex("econtract");
    assert_eq!(sha512(&blob), case.value("h_econtract"));
    let contract = match case.text("kind") {
        "merge" => PeerContract::decrypt_offer(&contract_priv, &purse_pub, &blob).unwrap(),
        "deposit" => PeerContract::decrypt_request(&contract_priv, &purse_pub, &blob).unwrap(),
        other => panic!("unknown kind {other}"),
    };
    assert_eq!(contract.contract(), case.get("contract_terms"));
    match &contract {
        PeerContract::Offer { merge_priv, .. } => assert_eq!(*merge_priv, case.value("merge_priv")),
        PeerContract::Request { .. } => assert_eq!(case.text("kind"), "deposit"),
    }
    contract
}

pub(super) fn wallet_econtract(case: Case<'_>) {
    let contract = decrypt(case);
    let contract_priv: EcdhePrivateKey = case.value("contract_priv");
    assert_eq!(econtract::contract_pub(&contract_priv), case.value("contract_pub_as_sent_by_wallet"));
    let label: &[u8] =
        if case.text("kind") == "merge" { b"p2p-merge-contract" } else { b"p2p-deposit-contract" };
    let (nonce, shared) = (case.bytes::<24>("nonce"), case.hex("shared_key"));
    assert_eq!(kdf_array::<32>(&nonce, &shared, &[label]), case.bytes("symmetric_key"));
    assert_eq!(blob::seal_with_nonce(&nonce, &shared, label, &case.hex("plaintext")), case.hex("econtract"));
    // Compressors differ, so what we encrypt is compared after decryption.
    let blob = contract.encrypt_with_nonce(&nonce, &contract_priv, &case.value("purse_pub")).unwrap();
    assert_eq!(blob[..24], nonce);
    let purse_pub = case.value("purse_pub");
    let again = match &contract {
        PeerContract::Offer { .. } => PeerContract::decrypt_offer(&contract_priv, &purse_pub, &blob),
        PeerContract::Request { .. } => PeerContract::decrypt_request(&contract_priv, &purse_pub, &blob),
    };
    assert_eq!(again.unwrap(), contract);
}

pub(super) fn econtract_reference(case: Case<'_>) {
    decrypt(case);
    let blob = case.hex("econtract");
    let nonce_at = if case.text("kind") == "deposit" { 32 } else { 0 };
    assert_eq!(blob[nonce_at..nonce_at + 24], case.hex("nonce"));
}

pub(super) fn kyc_attributes_encryption(case: Case<'_>) {
    let key = case.bytes("key");
    let encrypted = case.hex("encrypted");
    assert_eq!(&econtract::open_attributes(&key, &encrypted).unwrap(), case.get("attributes"));
    assert_eq!(encrypted[..24], case.hex("nonce"));
    let again = econtract::seal_attributes(&[1; 24], &key, case.get("attributes")).unwrap();
    assert_eq!(&econtract::open_attributes(&key, &again).unwrap(), case.get("attributes"));
}

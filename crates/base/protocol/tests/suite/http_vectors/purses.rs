//! Purses and contracts.

use std::collections::HashMap;

use batzen_crypto::denom::h_coin_pub;
use batzen_crypto::hash::{sha512, sha512_parts, shorten};
use batzen_crypto::{EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, ShortHash};
use batzen_protocol::api::errors::{PurseCreateConflict, PurseMergeConflict};
use batzen_protocol::api::exchange::*;
use batzen_protocol::econtract::{self, PeerContract};
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, ErrorBody, Money, PaytoUri, Timestamp, canonical, hash_text, payto};
use serde_json::Value;

use crate::http_vectors::keys::{Exchange, Tally};
use crate::http_vectors::recording::Recording;

/// The terms of a purse from its creation.
#[derive(Clone)]
struct Purse {
    value: Amount,
    min_age: u32,
    expiration: Timestamp,
    merge_pub: EddsaPublicKey,
    h_contract_terms: batzen_crypto::HashCode,
}

/// Purses of a recording.
#[derive(Default)]
pub(super) struct Purses(HashMap<EddsaPublicKey, Purse>);

pub(super) fn check(exchange: &Exchange, purses: &mut Purses, recording: &Recording, tally: &mut Tally) {
    let (method, path) = recording.route();
    let (ok, code) = (recording.ok(), recording.code());
    match (method, path.as_slice()) {
        ("POST", ["purses", purse, "create"]) if ok || matches!(code, Some(1850 | 1855 | 1856 | 1975)) => {
            create(exchange, purses, recording, tally, purse.parse().unwrap());
        }
        ("POST", ["purses", purse, "deposit"]) if ok => {
            let purse_pub: EddsaPublicKey = purse.parse().unwrap();
            let request: PurseDepositRequest = recording.request();
            for coin in &request.deposits {
                purse_coin(exchange, tally, &purse_pub, coin);
            }
            let answer: PurseDepositConfirmation = recording.response();
            let message = ExchangeConfirmPurseCreation {
                exchange_time: answer.exchange_timestamp,
                purse_expiration: answer.purse_expiration,
                amount_without_fee: answer.purse_value_after_fees,
                total_deposited: answer.total_deposited,
                purse_pub,
                h_contract_terms: answer.h_contract_terms,
            };
            exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
        }
        ("POST", ["purses", purse, "merge"]) => {
            merge(exchange, purses, recording, tally, purse.parse().unwrap());
        }
        ("GET", ["purses", _, "merge" | "deposit"]) if ok => {
            let answer: PurseStatus = recording.response();
            let message = ExchangePurseStatus {
                merge_timestamp: answer.merge_timestamp.unwrap_or_default(),
                deposit_timestamp: answer.deposit_timestamp.unwrap_or_default(),
                balance: answer.balance,
            };
            exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
        }
        ("GET", ["contracts", contract_pub]) if ok => {
            let answer: ContractResponse = recording.response();
            let message = WalletPurseEcontract {
                h_econtract: sha512(&answer.econtract.0),
                contract_pub: contract_pub.parse().unwrap(),
            };
            tally.good(&message, &answer.purse_pub, &answer.econtract_sig);
        }
        ("POST", ["reserves", reserve, "purse"]) if ok || matches!(code, Some(1028 | 1677 | 1678)) => {
            reserve_purse(exchange, purses, recording, tally, reserve.parse().unwrap());
        }
        _ => {}
    }
}

fn h_age_commitment(coin: &PurseCoin) -> Option<ShortHash> {
    let keys: Vec<&[u8]> =
        coin.age_commitment.as_ref()?.iter().map(|key| key.as_bytes().as_slice()).collect();
    Some(shorten(&sha512_parts(&keys)))
}

fn coin_message(exchange: &Exchange, purse_pub: &EddsaPublicKey, coin: &PurseCoin) -> WalletPurseDeposit {
    WalletPurseDeposit {
        coin_amount: coin.amount,
        h_denom_pub: coin.denom_pub_hash,
        h_age_commitment: h_age_commitment(coin).unwrap_or_default(),
        purse_pub: *purse_pub,
        h_exchange_base_url: hash_text(&exchange.base_url),
    }
}

/// Checks a coin, and returns its contribution after the fee.
fn purse_coin(
    exchange: &Exchange,
    tally: &mut Tally,
    purse_pub: &EddsaPublicKey,
    coin: &PurseCoin,
) -> Amount {
    let info = exchange.denomination(&coin.denom_pub_hash);
    tally.good(&coin_message(exchange, purse_pub, coin), &coin.coin_pub, &coin.coin_sig);
    let hash = h_coin_pub(&coin.coin_pub, h_age_commitment(coin).as_ref());
    assert!(info.denom_pub.verify(&hash, &coin.ub_sig), "coin is valid");
    tally.add("coin");
    coin.amount.checked_sub(&info.terms.fee_deposit).unwrap()
}

fn contract(tally: &mut Tally, purse_pub: &EddsaPublicKey, contract: &EncryptedContract, good: bool) {
    let message = WalletPurseEcontract {
        h_econtract: sha512(&contract.econtract.0),
        contract_pub: contract.contract_pub,
    };
    tally.either(good, &message, purse_pub, &contract.econtract_sig);
}

fn create(
    exchange: &Exchange,
    purses: &mut Purses,
    recording: &Recording,
    tally: &mut Tally,
    purse_pub: EddsaPublicKey,
) {
    let code = recording.code();
    let request: PurseCreateRequest = recording.request();
    let message = WalletPurseCreate {
        purse_expiration: request.purse_expiration,
        purse_amount: request.amount,
        h_contract_terms: request.h_contract_terms,
        merge_pub: request.merge_pub,
        min_age: request.min_age,
    };
    if code == Some(1850) {
        let ErrorBody::<PurseCreateConflict> { extra, .. } = recording.response();
        let stored = WalletPurseCreate {
            purse_expiration: extra.purse_expiration,
            purse_amount: extra.amount,
            h_contract_terms: extra.h_contract_terms,
            merge_pub: extra.merge_pub,
            min_age: extra.min_age,
        };
        assert_ne!(stored, message);
        tally.good(&stored, &purse_pub, &extra.purse_sig);
        return;
    }
    if code == Some(1975) {
        let check = |coin: &PurseCoin| {
            coin_message(exchange, &purse_pub, coin).verify(&coin.coin_pub, &coin.coin_sig)
        };
        assert!(!request.deposits.iter().all(check), "one signature is wrong");
        tally.add("refused signature");
        return;
    }
    let mut total = Money::ZERO;
    for coin in &request.deposits {
        let net = purse_coin(exchange, tally, &purse_pub, coin);
        total = total.checked_add(net.money).unwrap();
    }
    tally.either(code != Some(1855), &message, &purse_pub, &request.purse_sig);
    if let Some(econtract) = &request.econtract {
        contract(tally, &purse_pub, econtract, code != Some(1856));
    }
    if code.is_some() {
        return;
    }
    let answer: PurseConfirmation = recording.response();
    assert_eq!(answer.total_deposited.money, total);
    let message = ExchangeConfirmPurseCreation {
        exchange_time: answer.exchange_timestamp,
        purse_expiration: request.purse_expiration,
        amount_without_fee: request.amount,
        total_deposited: answer.total_deposited,
        purse_pub,
        h_contract_terms: request.h_contract_terms,
    };
    exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
    let purse = Purse {
        value: request.amount,
        min_age: request.min_age,
        expiration: request.purse_expiration,
        merge_pub: request.merge_pub,
        h_contract_terms: request.h_contract_terms,
    };
    purses.0.insert(purse_pub, purse);
}

fn merge(
    exchange: &Exchange,
    purses: &Purses,
    recording: &Recording,
    tally: &mut Tally,
    purse_pub: EddsaPublicKey,
) {
    let code = recording.code();
    // Every signature needs the purse's terms.
    let Some(purse) = purses.0.get(&purse_pub) else { return };
    let request: PurseMergeRequest = recording.request();
    let Ok((base_url, reserve_pub)) =
        PaytoUri::parse(request.payto_uri.as_str()).and_then(|uri| uri.to_reserve())
    else {
        assert_eq!(code, Some(26));
        return;
    };
    let message = WalletPurseMerge {
        merge_timestamp: request.merge_timestamp,
        purse_pub,
        h_payto: payto::h_payto(&request.payto_uri),
    };
    tally.either(code != Some(1876), &message, &purse.merge_pub, &request.merge_sig);
    let message = WalletAccountMerge {
        purse_expiration: purse.expiration,
        purse_amount: purse.value,
        purse_fee: Amount::zero(purse.value.currency),
        h_contract_terms: purse.h_contract_terms,
        purse_pub,
        merge_timestamp: request.merge_timestamp,
        min_age: purse.min_age,
        flags: 1,
    };
    if code != Some(1876) {
        tally.either(code != Some(1877), &message, &reserve_pub, &request.reserve_sig);
    }
    if recording.ok() {
        let answer: PurseMergeConfirmation = recording.response();
        assert_eq!(answer.merge_amount, purse.value);
        assert_eq!(base_url, exchange.base_url);
        let message = ExchangeConfirmPurseMerged {
            exchange_time: answer.exchange_timestamp,
            purse_expiration: purse.expiration,
            amount_without_fee: answer.merge_amount,
            purse_pub,
            reserve_pub,
            h_contract_terms: purse.h_contract_terms,
            h_provider_url: hash_text(&base_url),
        };
        exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
    } else if recording.response.status == 409 && code.is_none() {
        let stored: PurseMergeConflict = recording.response();
        let uri = PaytoUri::reserve(stored.partner_url.as_deref().unwrap_or(&base_url), &stored.reserve_pub)
            .unwrap();
        let message =
            WalletPurseMerge { merge_timestamp: stored.merge_timestamp, purse_pub, h_payto: uri.hash() };
        tally.good(&message, &purse.merge_pub, &stored.merge_sig);
    }
}

fn reserve_purse(
    exchange: &Exchange,
    purses: &mut Purses,
    recording: &Recording,
    tally: &mut Tally,
    reserve_pub: EddsaPublicKey,
) {
    let request: ReservePurseRequest = recording.request();
    let purse_pub = request.purse_pub;
    let uri = PaytoUri::reserve(&exchange.base_url, &reserve_pub).unwrap();
    let message =
        WalletPurseMerge { merge_timestamp: request.merge_timestamp, purse_pub, h_payto: uri.hash() };
    tally.good(&message, &request.merge_pub, &request.merge_sig);
    if recording.code() == Some(1678) {
        // Refused before the other signatures were checked.
        return;
    }
    let message = WalletAccountMerge {
        purse_expiration: request.purse_expiration,
        purse_amount: request.purse_value,
        purse_fee: request.purse_fee.unwrap_or(Amount::zero(request.purse_value.currency)),
        h_contract_terms: request.h_contract_terms,
        purse_pub,
        merge_timestamp: request.merge_timestamp,
        min_age: request.min_age,
        flags: if request.purse_fee.is_some() { 3 } else { 2 },
    };
    tally.good(&message, &reserve_pub, &request.reserve_sig);
    let message = WalletPurseCreate {
        purse_expiration: request.purse_expiration,
        purse_amount: request.purse_value,
        h_contract_terms: request.h_contract_terms,
        merge_pub: request.merge_pub,
        min_age: request.min_age,
    };
    tally.good(&message, &purse_pub, &request.purse_sig);
    if let Some(econtract) = &request.econtract {
        contract(tally, &purse_pub, econtract, true);
    }
    if !recording.ok() {
        return;
    }
    let answer: PurseConfirmation = recording.response();
    let message = ExchangeConfirmPurseCreation {
        exchange_time: answer.exchange_timestamp,
        purse_expiration: request.purse_expiration,
        amount_without_fee: request.purse_value,
        total_deposited: answer.total_deposited,
        purse_pub,
        h_contract_terms: request.h_contract_terms,
    };
    exchange.online(tally, &message, &answer.exchange_pub, &answer.exchange_sig);
    let purse = Purse {
        value: request.purse_value,
        min_age: request.min_age,
        expiration: request.purse_expiration,
        merge_pub: request.merge_pub,
        h_contract_terms: request.h_contract_terms,
    };
    purses.0.insert(purse_pub, purse);
}

/// Decrypts the contracts whose private keys are published, and compares them with the purses.
pub(super) fn contracts(secrets: &Value, files: &[Vec<Recording>], tally: &mut Tally) {
    for secret in secrets["contracts"].as_array().into_iter().flatten() {
        let text = |name: &str| secret[name].as_str().unwrap_or_else(|| panic!("{name} of a contract"));
        let purse_pub: EddsaPublicKey = text("purse_pub").parse().unwrap();
        let contract_priv: EcdhePrivateKey = text("contract_private_key").parse().unwrap();
        let terms = &secret["contract_terms"];
        let name = format!("{}.jsonl", text("flow"));
        let Some(file) = files.iter().find(|file| file[0].file == name) else { continue };
        for recording in file.iter().filter(|recording| recording.ok()) {
            let (method, path) = recording.route();
            match (method, path.as_slice()) {
                ("GET", ["contracts", contract_pub]) => {
                    let answer: ContractResponse = recording.response();
                    if answer.purse_pub != purse_pub {
                        continue;
                    }
                    assert_eq!(econtract::contract_pub(&contract_priv), contract_pub.parse().unwrap());
                    let blob = &answer.econtract.0;
                    let contract = match text("kind") {
                        "push" => PeerContract::decrypt_offer(&contract_priv, &purse_pub, blob).unwrap(),
                        _ => PeerContract::decrypt_request(&contract_priv, &purse_pub, blob).unwrap(),
                    };
                    assert_eq!(contract.contract(), terms);
                    if let PeerContract::Offer { merge_priv, .. } = &contract {
                        let expected: EddsaPrivateKey = text("merge_private_key").parse().unwrap();
                        assert_eq!(*merge_priv, expected);
                    }
                    tally.add("decrypted contract");
                }
                ("POST", ["purses", purse, "create"]) if purse.parse() == Ok(purse_pub) => {
                    let request: PurseCreateRequest = recording.request();
                    assert_eq!(canonical::contract_hash(terms).unwrap(), request.h_contract_terms);
                    tally.add("contract hash");
                }
                _ => {}
            }
        }
    }
}

//! Recorded exchanges of messages: what the recorded exchanges confirmed is a confirmation that an auditor accepts, and
//! what the recorded auditor signed is what the offline tool signs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use batzen_auditor::books::Books;
use batzen_auditor::offline::{OfflineError, approve};
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::api::auditor::DepositConfirmationRequest;
use batzen_protocol::api::exchange::{
    AuditorSignatureRequest, Denomination, DenominationGroup, DepositConfirmation, DepositRequest,
    KeysResponse,
};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::SignedMessage;
use batzen_protocol::{Amount, Currency, Timestamp};
use serde_json::Value;

use crate::common::Auditor;

/// The lines of a recording.
fn lines(name: &str) -> Vec<Value> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../base/protocol/tests/vectors/http");
    let text = std::fs::read_to_string(dir.join(format!("{name}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys_in(lines: &[Value]) -> Vec<KeysResponse> {
    let is_keys = |line: &&Value| {
        let path = line["request"]["path"].as_str().unwrap();
        path.split('?').next() == Some("/keys") && line["response"]["status"] == 200
    };
    let bodies = lines.iter().filter(is_keys).map(|line| line["response"]["body"].clone());
    bodies.filter_map(|body| serde_json::from_value(body).ok()).collect()
}

fn terms_in(keys: &KeysResponse) -> BTreeMap<HashCode, DenominationTerms> {
    let listed = keys.denoms.iter().map(|denom| (denom.denom_pub.h_denom_pub(), Denomination::terms(denom)));
    let grouped = keys.denominations.iter().flat_map(|group| {
        group
            .denoms
            .iter()
            .map(|member| (group.key(member).unwrap().h_denom_pub(), DenominationGroup::terms(group, member)))
    });
    listed.chain(grouped).collect()
}

/// The confirmations that a merchant would have shown.
fn confirmations(lines: &[Value]) -> Vec<DepositConfirmationRequest> {
    let keys = keys_in(lines);
    let mut found = Vec::new();
    for line in lines {
        let path: Vec<&str> = line["request"]["path"].as_str().unwrap().split('/').collect();
        let (["", "coins", coin, "deposit"], true) = (path.as_slice(), line["response"]["status"] == 200)
        else {
            continue;
        };
        let request: DepositRequest = serde_json::from_value(line["request"]["body"].clone()).unwrap();
        let answer: DepositConfirmation = serde_json::from_value(line["response"]["body"].clone()).unwrap();
        let known = keys.iter().find_map(|keys| {
            let signkey = keys.signkeys.iter().find(|signkey| signkey.key == answer.exchange_pub)?;
            Some((keys, signkey, *terms_in(keys).get(&request.denom_pub_hash)?))
        });
        let Some((keys, signkey, terms)) = known else { continue };
        let currency: Currency = request.contribution.currency;
        let money = request.contribution.money.checked_sub(terms.fee_deposit.money).unwrap();
        found.push(DepositConfirmationRequest {
            h_contract_terms: request.h_contract_terms,
            h_policy: HashCode::from_bytes([0; 64]),
            h_wire: h_wire(&request.merchant_payto_uri, &request.wire_salt),
            exchange_timestamp: answer.exchange_timestamp,
            refund_deadline: request.refund_deadline.unwrap_or(Timestamp::ZERO),
            wire_deadline: request.wire_transfer_deadline,
            amount_without_fee: Amount { currency, money },
            coin_pub: coin.parse().unwrap(),
            merchant_pub: request.merchant_pub,
            exchange_sig: answer.exchange_sig,
            exchange_pub: answer.exchange_pub,
            master_pub: keys.master_public_key,
            ep_start: signkey.stamp_start,
            ep_expire: signkey.stamp_expire,
            ep_end: signkey.stamp_end,
            master_sig: signkey.master_sig,
        });
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_confirmations_are_accepted() {
    let mut accepted = BTreeMap::new();
    for name in ["exchange-api-rsa", "exchange-api-cs", "wallet-single", "wallet-age-restricted"] {
        let shown = confirmations(&lines(name));
        let first = shown.first().unwrap_or_else(|| panic!("{name} has no deposits"));
        let currency = first.amount_without_fee.currency;
        let auditor = Auditor::with(|config| config.currency = currency).await;
        let masters: std::collections::BTreeSet<EddsaPublicKey> =
            shown.iter().map(|body| body.master_pub).collect();
        let add = move |books: &Books| {
            for master_pub in masters {
                books.add_exchange(master_pub, "http://localhost:8081/").unwrap();
            }
        };
        auditor.books(add).await;
        for body in &shown {
            auditor.now.store(body.exchange_timestamp.as_micros() / 1_000_000, Ordering::SeqCst);
            let reply = auditor.put(body).await;
            assert_eq!(reply.status, 200, "{name}: {}", String::from_utf8_lossy(&reply.body));
        }
        accepted.insert(name, (shown.len(), auditor.stored()));
        auditor.running.shutdown().await.unwrap();
    }
    assert!(accepted.values().all(|(shown, stored)| *stored > 0 && stored <= shown), "{accepted:?}");
    assert!(accepted.values().map(|(shown, _)| shown).sum::<usize>() > 30, "{accepted:?}");
}

/// The recorded auditor's key and URL, and what it signed.
fn recorded_auditor(lines: &[Value]) -> (EddsaPublicKey, String, BTreeMap<HashCode, EddsaSignature>) {
    let (mut auditor, mut signed) = (None, BTreeMap::new());
    for line in lines {
        let path: Vec<&str> = line["request"]["path"].as_str().unwrap().split('/').collect();
        let body = line["request"]["body"].clone();
        match path.as_slice() {
            ["", "management", "auditors"] => {
                auditor = Some((
                    body["auditor_pub"].as_str().unwrap().parse().unwrap(),
                    body["auditor_url"].as_str().unwrap().to_owned(),
                ));
            }
            ["", "auditors", _, denom] => {
                let body: AuditorSignatureRequest = serde_json::from_value(body).unwrap();
                signed.insert(denom.parse().unwrap(), body.auditor_sig);
            }
            _ => {}
        }
    }
    let (key, url) = auditor.unwrap();
    (key, url, signed)
}

#[test]
fn the_tool_approves_what_the_recorded_auditor_approved() {
    let lines = lines("auditor");
    let keys = keys_in(&lines).pop().unwrap();
    let (auditor_pub, url, signed) = recorded_auditor(&lines);
    let (currency, master_pub) = ("EUR".parse().unwrap(), keys.master_public_key);
    let key = EddsaPrivateKey::generate();
    let approvals = approve(&key, &url, master_pub, currency, &keys).unwrap();
    let terms = terms_in(&keys);
    assert_eq!(approvals.len(), signed.len());
    for approval in &approvals {
        let message = terms[&approval.h_denom_pub].auditor_approval(&url, master_pub, approval.h_denom_pub);
        assert!(message.verify(&key.public_key(), &approval.auditor_sig));
        assert!(
            message.verify(&auditor_pub, &signed[&approval.h_denom_pub]),
            "the same statement was recorded"
        );
    }
    let refused = |keys: &KeysResponse, master_pub, currency: &str| {
        let approved = approve(&key, &url, master_pub, currency.parse().unwrap(), keys);
        assert!(matches!(approved, Err(OfflineError::Refused(_))), "{approved:?}");
    };
    refused(&keys, key.public_key(), "EUR");
    refused(&keys, master_pub, "CHF");
    let mut altered = keys.clone();
    let first = altered.denominations.first_mut();
    match first {
        Some(group) => group.value = "EUR:99".parse().unwrap(),
        None => altered.denoms[0].value = "EUR:99".parse().unwrap(),
    }
    refused(&altered, master_pub, "EUR");
}

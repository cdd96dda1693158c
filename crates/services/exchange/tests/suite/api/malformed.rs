//! Malformed bodies: each member missing, of another type, or in another currency; truncated bodies; random
//! mutations. The answer must blame the client's request and never be a failure of the exchange.

use batzen_crypto::{CsNonce, RefreshMasterSecret};
use batzen_protocol::api::exchange::{
    CsrMeltCoin, CsrMeltRequest, CsrWithdrawRequest, KycWalletRequest, ReserveRequest,
};
use batzen_protocol::signatures::{SignedMessage, WalletAccountSetup, WalletReserveStatus};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::wallet::*;
use crate::api::world::*;

/// An endpoint with a body that it accepts.
struct Sample {
    path: String,
    body: Value,
}

/// Members that may be left out.
const OPTIONAL: [&str; 11] = [
    "h_age_commitment",
    "refund_deadline",
    "policy",
    "age_commitment_hash",
    "rms",
    "coin_pub",
    "old_age_commitment",
    "cs_nonce",
    "transaction_base_url",
    "age_mask",
    "detail",
];

/// Amounts, by member.
const AMOUNTS: [&str; 4] = ["contribution", "value_with_fee", "refund_amount", "balance"];

async fn samples(site: &Site) -> Vec<Sample> {
    let reserve = site.reserve("30").await;
    let planchet = site.planchet(&site.denom(CS_5)).await;
    let (coin, other) = (site.coin(RSA_AGE_4).await, site.coin(CS_5).await);
    let contract = Contract::new(site);
    let paid = contract.next();
    site.pay(&paid, &coin, "1").await;
    let denoms = [site.denom(RSA_1), site.denom(CS_FREE)];
    let melted = site.plan_refresh(&coin, &denoms, "1.55").await;
    let noreveal_index = site.melt(&melted).await;
    let refresh = site.plan_refresh(&other, &denoms, "1.55").await;
    let mut samples = Vec::new();
    let mut add = |path: String, body: &dyn erased::Body| samples.push(Sample { path, body: body.json() });
    add(at_reserve(&reserve, "withdraw"), &planchet.request(&reserve));
    add(at_reserve(&reserve, "batch-withdraw"), &batch_of(&[planchet.clone(), planchet], &reserve));
    let request_timestamp = site.now();
    let reserve_sig = WalletReserveStatus { request_timestamp }.sign(&reserve);
    add(at_reserve(&reserve, "status"), &ReserveRequest { request_timestamp, reserve_sig });
    add(at_reserve(&reserve, "history"), &ReserveRequest { request_timestamp, reserve_sig });
    let csr = CsrWithdrawRequest { nonce: CsNonce::from_bytes([1; 32]), denom_pub_hash: denoms[1].h };
    add("csr-withdraw".into(), &csr);
    let nks = vec![CsrMeltCoin { coin_offset: 0, denom_pub_hash: denoms[1].h }];
    add("csr-melt".into(), &CsrMeltRequest { rms: RefreshMasterSecret::generate(), nks });
    add(coin.path("deposit"), &contract.deposit(&coin, "1"));
    add("batch-deposit".into(), &contract.batch(&[(&other, "1"), (&coin, "1")]));
    add(other.path("melt"), &refresh.melt());
    add(melted.reveal_path(), &melted.reveal(noreveal_index));
    add(coin.path("refund"), &paid.refund(&coin, "1", 1));
    add(other.path("recoup"), &other.recoup());
    add(other.path("recoup-refresh"), &other.recoup_refresh());
    let wallet = KycWalletRequest {
        balance: amount("1"),
        reserve_pub: reserve.public_key(),
        reserve_sig: WalletAccountSetup { threshold: amount("1") }.sign(&reserve),
    };
    add("kyc-wallet".into(), &wallet);
    samples
}

mod erased {
    use super::{Serialize, Value, edited};

    pub(super) trait Body {
        fn json(&self) -> Value;
    }

    impl<T: Serialize> Body for T {
        fn json(&self) -> Value {
            edited(self, |_| {})
        }
    }
}

/// Expects 400/22, with the member's name in `field` or `detail`.
async fn names_field(site: &Site, path: &str, body: &Value, field: &str) {
    let reply = site.refused(path, body, 400, 22).await;
    let answer: Value = reply.json().unwrap();
    assert!(
        answer["field"] == field || answer["detail"] == field,
        "{path}: {field} is not named in {answer}"
    );
}

#[tokio::test]
async fn missing_members_and_wrong_types_are_refused() {
    let site = Site::start().await;
    for Sample { path, body } in samples(&site).await {
        for name in body.as_object().unwrap().keys() {
            if !OPTIONAL.contains(&name.as_str()) {
                let missing = edited(&body, |body| drop(body.as_object_mut().unwrap().remove(name)));
                names_field(&site, &path, &missing, name).await;
                names_field(&site, &path, &edited(&body, |body| body[name] = json!(null)), name).await;
            }
            if name == "policy" || (name == "coin_pub" && path.ends_with("melt")) {
                continue;
            }
            for wrong in [json!(true), json!(-1), json!(1.5), json!("!"), json!([[]]), json!({ "cipher": 1 })]
            {
                let wrong = edited(&body, |body| body[name] = wrong);
                if name == "merchant_payto_uri" && wrong[name].is_string() {
                    site.refused(&path, &wrong, 400, 26).await;
                } else if name == "timestamp" || !wrong[name].is_null() {
                    names_field(&site, &path, &wrong, name).await;
                }
            }
        }
        for name in AMOUNTS {
            if body.get(name).is_some() {
                for wrong in [
                    "EUR:1",
                    "testkudos:1",
                    "TESTKUDOS:",
                    "TESTKUDOS:1.",
                    "TESTKUDOS:4503599627370497",
                    "1",
                    "TESTKUDOS:-1",
                    "TESTKUDOS:0.000000001",
                ] {
                    let wrong = edited(&body, |body| body[name] = json!(wrong));
                    names_field(&site, &path, &wrong, name).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn missing_members_of_array_elements_are_refused() {
    let site = Site::start().await;
    for Sample { path, body } in samples(&site).await {
        for (list, value) in body.as_object().unwrap() {
            let Some(elements) = value.as_array().filter(|elements| elements[0].is_object()) else {
                continue;
            };
            for name in elements[0].as_object().unwrap().keys() {
                if OPTIONAL.contains(&name.as_str()) && !(name == "coin_pub" && list == "coins") {
                    continue;
                }
                if list == "coin_evs" {
                    continue;
                }
                let last = elements.len() - 1;
                let missing =
                    edited(&body, |body| drop(body[list][last].as_object_mut().unwrap().remove(name)));
                names_field(&site, &path, &missing, name).await;
                for wrong in [json!(null), json!(true), json!("!"), json!([])] {
                    let wrong = edited(&body, |body| body[list][last][name] = wrong);
                    names_field(&site, &path, &wrong, name).await;
                }
                if AMOUNTS.contains(&name.as_str()) {
                    let wrong = edited(&body, |body| body[list][last][name] = json!("EUR:1"));
                    names_field(&site, &path, &wrong, name).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn truncated_bodies_and_other_json_types_are_refused() {
    let site = Site::start().await;
    for Sample { path, body } in samples(&site).await {
        let bytes = serde_json::to_vec(&body).unwrap();
        for cut in [0, 1, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
            let call = site.client.post(site.url(&path)).body("application/json", bytes[..cut].to_vec());
            let reply = call.send().await.unwrap();
            is_error(&reply, 400, 22);
            assert_eq!(reply.json::<Value>().unwrap().get("field"), None);
        }
        for other in [
            "null",
            "1",
            "\"text\"",
            "[]",
            "[1,2]",
            "{}",
            "{}{}",
            "\u{feff}{}",
            "{\"a\":\"\u{1}\"}",
            "{'a':1}",
        ] {
            let call = site.client.post(site.url(&path)).body("text/plain", other.to_owned());
            is_error(&call.send().await.unwrap(), 400, 22);
        }
        let mut deep = "[".repeat(5_000).into_bytes();
        deep.extend("]".repeat(5_000).bytes());
        let call = site.client.post(site.url(&path)).body("application/json", deep);
        is_error(&call.send().await.unwrap(), 400, 22);
    }
}

/// A seeded generator, so that failures can be reproduced.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// Changes one value somewhere in a body.
fn shake(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let at = dice.roll(members.len());
            let name = members.keys().nth(at).unwrap().clone();
            shake(&mut members[&name], dice);
        }
        Value::Array(elements) if !elements.is_empty() => {
            let at = dice.roll(elements.len());
            match dice.roll(6) {
                0 => drop(elements.remove(at)),
                1 => elements.push(elements[at].clone()),
                2 => elements.clear(),
                3 => elements.extend(std::iter::repeat_n(elements[at].clone(), 300)),
                _ => shake(&mut elements[at], dice),
            }
        }
        Value::String(text) => {
            let letter = b"0Z19AQ"[dice.roll(6)];
            match dice.roll(8) {
                0 => text.clear(),
                1 => *text = char::from(letter).to_string().repeat(text.len()),
                2 => drop(text.pop()),
                3 => text.push(char::from(letter)),
                4 => *text = "CS".into(),
                5 => *text = "TESTKUDOS:4503599627370496.99999999".into(),
                _ if !text.is_empty() && text.is_ascii() => {
                    let at = dice.roll(text.len());
                    text.replace_range(at..=at, &char::from(letter).to_string());
                }
                _ => *text = "\u{0}\u{10ffff}".repeat(1_000),
            }
        }
        other => {
            let values = [
                json!(0),
                json!(u64::MAX),
                json!(i64::MIN),
                json!(1e300),
                json!(null),
                json!("never"),
                json!(9_007_199_254_740_992_u64),
            ];
            *other = values[dice.roll(values.len())].clone();
        }
    }
}

#[tokio::test]
async fn random_mutations_are_refused() {
    let mut site = Site::start().await;
    let samples = samples(&site).await;
    // So that recoups get past the check of the denomination.
    let denom = site.denom(CS_5);
    site.revoke(&denom).await;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..100 {
        let mut requests = Vec::new();
        for Sample { path, body } in &samples {
            let mut body = body.clone();
            for _ in 0..=dice.roll(3) {
                shake(&mut body, &mut dice);
            }
            requests.push((path.clone(), body));
        }
        let sent = requests.clone();
        for (reply, (path, body)) in site.at_once(requests).await.iter().zip(sent) {
            assert!(reply.status < 500, "round {round}, {path}: {}\n{body:#}", text(reply));
        }
    }
    // The exchange still works.
    assert_eq!(site.get("keys").await.status, 200);
    site.coin(RSA_8).await;
}

//! Tips: reserves, promises, and what customers pick up.

use std::sync::atomic::Ordering;

use batzen_crypto::denom::prepare_planchet;
use batzen_crypto::{BlindingSecret, EddsaPrivateKey, ExchangeWithdrawValues};
use serde_json::{Value, json};

use crate::common::{eventually, is_error, market};
use crate::exchange::{ACCOUNT, Exchange};

/// A planchet of a new coin.
fn planchet(exchange: &Exchange) -> Value {
    let denom = &exchange.denom().denom_pub;
    let coin_pub = EddsaPrivateKey::generate().public_key();
    let blinding = BlindingSecret::from_bytes([7; 32]);
    let made = prepare_planchet(denom, &ExchangeWithdrawValues::Rsa, None, &coin_pub, &blinding, None);
    json!({ "denom_pub_hash": denom.h_denom_pub(), "coin_ev": made.unwrap().0 })
}

fn reserve(exchange: &Exchange) -> Value {
    json!({ "initial_balance": "KUDOS:20", "exchange_url": exchange.url, "wire_method": "x-taler-bank" })
}

fn tip(amount: &str) -> Value {
    json!({ "amount": amount, "justification": "a survey", "next_url": "https://shop.example/thanks" })
}

#[tokio::test]
async fn reserves_are_filled_and_tips_are_picked_up_once() {
    let (exchange, backend) = market().await;
    is_error(&backend.post("private/tips", &tip("KUDOS:5")).await, 503, 2753);
    let mut iban = reserve(&exchange);
    iban["wire_method"] = json!("iban");
    is_error(&backend.post("private/reserves", &iban).await, 409, 2700);
    let mut euro = reserve(&exchange);
    euro["initial_balance"] = json!("EUR:1");
    is_error(&backend.post("private/reserves", &euro).await, 400, 30);
    let mut away = reserve(&exchange);
    away["exchange_url"] = json!("http://localhost:1/");
    is_error(&backend.post("private/reserves", &away).await, 502, 2010);
    let made: Value = backend.post("private/reserves", &reserve(&exchange)).await.ok().unwrap();
    assert_eq!(made["payto_uri"], ACCOUNT, "exactly as the exchange names it");
    let reserve_pub = made["reserve_pub"].as_str().unwrap().to_owned();
    let path = format!("private/reserves/{reserve_pub}");
    let seen: Value = backend.get(&path).await.ok().unwrap();
    assert_eq!((&seen["exchange_initial_amount"], &seen["active"]), (&json!("KUDOS:0"), &json!(false)));
    is_error(&backend.get(&format!("private/reserves/{}", "0".repeat(52))).await, 404, 2710);
    is_error(&backend.post(&format!("{path}/authorize-tip"), &tip("KUDOS:5")).await, 412, 2752);

    // The transfer arrives, and nobody tells the backend.
    exchange.credit(&reserve_pub, "KUDOS:20").await;
    let first: Value = backend.post("private/tips", &tip("KUDOS:10.04")).await.ok().unwrap();
    let seen: Value = backend.get(&format!("{path}?tips=yes")).await.ok().unwrap();
    assert_eq!(seen["exchange_initial_amount"], seen["merchant_initial_amount"]);
    assert_eq!(
        (&seen["committed_amount"], &seen["pickup_amount"]),
        (&json!("KUDOS:10.04"), &json!("KUDOS:0"))
    );
    assert_eq!(
        seen["tips"],
        json!([{ "tip_id": first["tip_id"], "total_amount": "KUDOS:10.04", "reason": "a survey" }])
    );
    is_error(&backend.post(&format!("{path}/authorize-tip"), &tip("KUDOS:9.97")).await, 412, 2752);
    is_error(&backend.post(&format!("{path}/authorize-tip"), &tip("EUR:1")).await, 400, 30);
    let unknown = format!("private/reserves/{}/authorize-tip", "0".repeat(52));
    is_error(&backend.post(&unknown, &tip("KUDOS:1")).await, 404, 2751);

    let tip_id = first["tip_id"].as_str().unwrap();
    let uri = first["taler_tip_uri"].as_str().unwrap();
    assert!(uri.starts_with("taler+http://tip/") && uri.ends_with(&format!("/{tip_id}")), "{uri}");
    let public = format!("tips/{tip_id}");
    assert_eq!(first["tip_status_url"], backend.url(&public));
    let status: Value = backend.get(&public).await.ok().unwrap();
    assert_eq!(
        (&status["tip_amount"], &status["exchange_url"]),
        (&json!("KUDOS:10.04"), &json!(exchange.url))
    );
    assert_eq!(status["next_url"], "https://shop.example/thanks");
    let page = backend.page(&public).await;
    assert!(page.status == 200 && page.header("taler") == Some(uri));
    is_error(&backend.get(&format!("tips/{}", "0".repeat(103))).await, 404, 2007);
    assert_eq!(backend.page("tips/x").await.status, 404);

    let pickup = format!("{public}/pickup");
    let planchets = |planchets: &[&Value]| json!({ "planchets": planchets });
    let (one, two, three) = (planchet(&exchange), planchet(&exchange), planchet(&exchange));
    is_error(&backend.post(&pickup, &planchets(&[])).await, 400, 26);
    is_error(&backend.post("tips/x/pickup", &planchets(&[&one])).await, 404, 2007);
    let mut other = one.clone();
    other["denom_pub_hash"] = json!("0".repeat(103));
    is_error(&backend.post(&pickup, &planchets(&[&other])).await, 409, 2407);
    is_error(&backend.post(&pickup, &planchets(&[&one, &two, &three])).await, 400, 2406);
    // The exchange fails after the coins are promised: a repetition gets them, and takes nothing more.
    exchange.answer(&format!("POST /reserves/{reserve_pub}/batch-withdraw"), 500, json!({ "code": 51 }));
    is_error(&backend.post(&pickup, &planchets(&[&one])).await, 502, 2403);
    let picked_up = async || {
        let seen: Value = backend.get(&format!("private/tips/{tip_id}")).await.ok().unwrap();
        seen["total_picked_up"].clone()
    };
    assert_eq!(picked_up().await, "KUDOS:5.02");
    // What it will never sign is taken back.
    exchange.answer(&format!("POST /reserves/{reserve_pub}/batch-withdraw"), 410, json!({ "code": 1003 }));
    is_error(&backend.post(&pickup, &planchets(&[&one])).await, 502, 2403);
    assert_eq!(picked_up().await, "KUDOS:0");
    exchange.answer(&format!("POST /reserves/{reserve_pub}/batch-withdraw"), 500, json!({ "code": 51 }));
    is_error(&backend.post(&pickup, &planchets(&[&one])).await, 502, 2403);
    exchange.recover();
    let answer: Value = backend.post(&pickup, &planchets(&[&one])).await.ok().unwrap();
    assert_eq!(answer["blind_sigs"][0]["blind_sig"]["cipher"], "RSA");
    let asked = exchange.count("POST /reserves/");
    let again: Value = backend.post(&pickup, &planchets(&[&one])).await.ok().unwrap();
    assert_eq!((answer, exchange.count("POST /reserves/")), (again, asked));
    let status: Value = backend.get(&public).await.ok().unwrap();
    assert_eq!(status["tip_amount"], "KUDOS:5.02");
    is_error(&backend.post(&pickup, &planchets(&[&two, &three])).await, 400, 2406);
    // The reserve's key stays while it may be needed.
    exchange.answer(&format!("POST /reserves/{reserve_pub}/batch-withdraw"), 500, json!({ "code": 51 }));
    is_error(&backend.post(&pickup, &planchets(&[&two])).await, 502, 2403);
    assert_eq!(backend.delete(&path).await.status, 409, "a pickup is open");
    exchange.recover();
    assert_eq!(backend.post(&pickup, &planchets(&[&two])).await.status, 200);
    let seen: Value = backend.get(&format!("private/tips/{tip_id}?pickups=yes")).await.ok().unwrap();
    assert_eq!(
        (&seen["total_authorized"], &seen["total_picked_up"]),
        (&json!("KUDOS:10.04"), &json!("KUDOS:10.04"))
    );
    assert_eq!(seen["pickups"].as_array().unwrap().len(), 2);
    assert_eq!(seen["pickups"][0]["requested_amount"], "KUDOS:5.02");
    let list: Value = backend.get("private/tips").await.ok().unwrap();
    assert_eq!(list["tips"].as_array().unwrap().len(), 1);
    is_error(&backend.get("private/tips/x").await, 404, 2007);

    let second: Value = backend.post("private/tips", &tip("KUDOS:9.96")).await.ok().unwrap();
    assert_eq!(backend.delete(&path).await.status, 409, "a tip is open");
    // Whatever is left ends with the reserve.
    backend.now.fetch_add(29 * 86_400, Ordering::SeqCst);
    let tip_id = second["tip_id"].as_str().unwrap();
    is_error(&backend.get(&format!("tips/{tip_id}")).await, 410, 2405);
    assert_eq!(backend.page(&format!("tips/{tip_id}")).await.status, 410);
    is_error(&backend.post(&format!("tips/{tip_id}/pickup"), &planchets(&[&three])).await, 410, 2405);
    is_error(&backend.post(&format!("{path}/authorize-tip"), &tip("KUDOS:0.01")).await, 410, 2750);
    assert_eq!(backend.delete(&format!("{path}?purge=YES")).await.status, 204);
    is_error(&backend.delete(&path).await, 404, 2710);
    is_error(&backend.get(&format!("tips/{tip_id}")).await, 404, 2007);
    backend.end().await;
}

#[tokio::test]
async fn a_reserve_is_watched_until_it_is_filled() {
    let (exchange, backend) = market().await;
    let made: Value = backend.post("private/reserves", &reserve(&exchange)).await.ok().unwrap();
    let reserve_pub = made["reserve_pub"].as_str().unwrap();
    let path = format!("private/reserves/{reserve_pub}");
    exchange.credit(reserve_pub, "KUDOS:20").await;
    let is_active = async || backend.get(&path).await.ok::<Value>().unwrap()["active"] == true;
    eventually("the money", is_active).await;
    for (query, count) in
        [("", 1), ("?active=yes", 1), ("?active=no", 0), ("?failures=no", 1), ("?after=9999999999", 0)]
    {
        let list: Value = backend.get(&format!("private/reserves{query}")).await.ok().unwrap();
        assert_eq!(list["reserves"].as_array().unwrap().len(), count, "{query}");
    }
    // Nothing is promised, so it can go; its key is forgotten.
    assert_eq!(backend.delete(&path).await.status, 204);
    let seen: Value = backend.get(&path).await.ok().unwrap();
    assert_eq!(seen["active"], false);
    is_error(&backend.post("private/tips", &tip("KUDOS:1")).await, 503, 2753);
    backend.end().await;
}

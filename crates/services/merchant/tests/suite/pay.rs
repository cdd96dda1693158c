//! Payments with coins: every answer of an exchange, and what the wallet gets to hear.

use std::sync::atomic::Ordering;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::SignKey;
use batzen_protocol::signatures::{ExchangeConfirmDeposit, SignedMessage};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::common::{Backend, is_error, market};
use crate::exchange::{Coin, Exchange};
use crate::extras::{receiver, wait_for};

#[tokio::test]
async fn several_coins_go_to_the_exchange_in_one_request() {
    let (exchange, backend) = market().await;
    let (id, claimed) = backend.offer().await;
    let coins = exchange.coins(2, "KUDOS:5").await;
    for _ in 0..2 {
        assert_eq!(backend.pay_with(&exchange, &id, &claimed, &coins).await.status, 200);
    }
    assert_eq!((exchange.count("POST /batch-deposit"), exchange.count("POST /coins/")), (1, 0));
    // Other coins do not pay it a second time.
    let other = exchange.coin("KUDOS:5").await;
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&other]).await, 409, 2160);

    // An exchange that does not know this endpoint is asked for each coin, and remembered.
    exchange.answer("POST /batch-deposit", 404, json!({ "code": 21 }));
    for expected in [1, 2] {
        let (id, claimed) = backend.offer().await;
        let coins = exchange.coins(2, "KUDOS:5").await;
        assert_eq!(backend.pay_with(&exchange, &id, &claimed, &coins).await.status, 200);
        assert_eq!(
            (exchange.count("POST /batch-deposit"), exchange.count("POST /coins/")),
            (2, 2 * expected)
        );
    }
    backend.end().await;
}

/// Two devices of one customer, or one that lost its answer and chose other coins.
#[tokio::test]
async fn an_order_takes_money_once() {
    let (exchange, backend) = market().await;
    for round in 1..=5 {
        let (id, claimed) = backend.offer().await;
        let mut coins = Vec::new();
        for _ in 0..8 {
            coins.push(exchange.coin("KUDOS:10").await);
        }
        let attempts: Vec<[&Coin; 1]> = coins.iter().map(|coin| [coin]).collect();
        let payments = attempts.iter().map(|coin| backend.pay_with(&exchange, &id, &claimed, coin));
        let replies = futures_util::future::join_all(payments).await;
        let paid: Vec<usize> = (0..replies.len()).filter(|n| replies[*n].status == 200).collect();
        assert_eq!(paid.len(), 1, "round {round}");
        for reply in replies.iter().filter(|reply| reply.status != 200) {
            is_error(reply, 409, 2160);
        }
        assert_eq!(exchange.count("POST /coins/"), round, "the others were not even deposited");
        let order: Value = backend.get(&format!("private/orders/{id}")).await.ok().unwrap();
        assert_eq!(order["deposit_total"], "KUDOS:9.99", "less the deposit fee");
        // The payment that counted stays one.
        let again = backend.pay_with(&exchange, &id, &claimed, &attempts[paid[0]]).await;
        assert_eq!(again.status, 200);
    }
    // A payment that failed leaves the order to others; one whose outcome is not known does not.
    let (id, claimed) = backend.offer().await;
    let [spent, unclear, good] =
        [exchange.coin("KUDOS:10").await, exchange.coin("KUDOS:10").await, exchange.coin("KUDOS:10").await];
    exchange.answer(&format!("POST /coins/{}/", spent.coin_pub()), 409, json!({ "code": 1012 }));
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&spent]).await, 409, 2150);
    exchange.answer(&format!("POST /coins/{}/", unclear.coin_pub()), 500, json!({ "code": 51 }));
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&unclear]).await, 502, 2014);
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&good]).await.status, 503);
    exchange.recover();
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&unclear]).await.status, 200);
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&good]).await, 409, 2160);
    backend.end().await;
}

/// A payment loses its claim if it takes too long: what it then brings is given back without being asked for.
#[tokio::test]
async fn coins_that_come_too_late_are_given_back() {
    let (exchange, backend) = market().await;
    let wish = json!({
        "order": { "amount": "KUDOS:10", "summary": "two books" }, "refund_delay": { "d_us": 3_600_000_000_u64 },
    });
    let (id, claimed) = backend.claimed_order(&wish).await;
    let (slow, quick) = (exchange.coin("KUDOS:10").await, exchange.coin("KUDOS:10").await);
    let deposit = format!("POST /coins/{}/deposit", slow.coin_pub());
    exchange.hold(&deposit);
    let slow_coins = [&slow];
    let late = backend.pay_with(&exchange, &id, &claimed, &slow_coins);
    let in_time = async {
        exchange.wait_for(&deposit, 1).await;
        backend.now.fetch_add(60, Ordering::SeqCst);
        let reply = backend.pay_with(&exchange, &id, &claimed, &[&quick]).await;
        exchange.recover();
        reply
    };
    let (late, in_time) = tokio::join!(late, in_time);
    assert_eq!(in_time.status, 200);
    is_error(&late, 409, 2160);
    exchange.wait_for_refund(&slow).await;
    // The payment that counted still does.
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&quick]).await.status, 200);
    is_error(&backend.pay_with(&exchange, &id, &claimed, &slow_coins).await, 409, 2160);
    assert_eq!(exchange.count(&format!("POST /coins/{}/refund", quick.coin_pub())), 0);
    backend.end().await;
}

/// The process that deposited coins was killed before it could book them, and others have paid.
#[tokio::test]
async fn coins_of_a_lost_payment_are_given_back() {
    let (exchange, backend) = market().await;
    let wish = json!({
        "order": { "amount": "KUDOS:10", "summary": "two books" }, "refund_delay": { "d_us": 3_600_000_000_u64 },
    });
    let (id, claimed) = backend.claimed_order(&wish).await;
    let (lost, other) = (exchange.coin("KUDOS:10").await, exchange.coin("KUDOS:10").await);
    exchange.hold(&format!("POST /coins/{}/deposit", lost.coin_pub()));
    // The exchange has the coin; the backend gets no answer, and keeps the order for it.
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&lost]).await, 504, 2011);
    backend.now.fetch_add(60, Ordering::SeqCst);
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&other]).await.status, 200);
    // Nobody asks for it.
    exchange.wait_for_refund(&lost).await;
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&lost]).await, 409, 2160);
    let order: Value = backend.get(&format!("private/orders/{id}")).await.ok().unwrap();
    assert_eq!((&order["order_status"], &order["deposit_total"]), (&json!("paid"), &json!("KUDOS:9.99")));
    exchange.recover();
    backend.end().await;
}

/// The process that deposited coins was killed, and nobody pays any more.
#[tokio::test]
async fn coins_of_a_payment_that_nobody_completes_are_given_back() {
    let (exchange, backend) = market().await;
    let wish = json!({
        "order": { "amount": "KUDOS:10", "summary": "two books" }, "refund_delay": { "d_us": 9_000_000_000_u64 },
    });
    let (id, claimed) = backend.claimed_order(&wish).await;
    let lost = exchange.coin("KUDOS:10").await;
    exchange.hold(&format!("POST /coins/{}/deposit", lost.coin_pub()));
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&lost]).await, 504, 2011);
    exchange.recover();
    // The order can be paid for an hour, and a payment takes a quarter of an hour at most.
    backend.now.fetch_add(3_600 + 901, Ordering::SeqCst);
    assert_eq!(backend.delete(&format!("private/orders/{id}")).await.status, 409);
    exchange.wait_for_refund(&lost).await;
    backend.end().await;
}

/// One coin is refused, and the fate of another one is unknown.
#[tokio::test]
async fn a_refusal_does_not_release_coins_that_may_be_deposited() {
    let (exchange, backend) = market().await;
    let (id, claimed) = backend.offer().await;
    let coins = exchange.coins(2, "KUDOS:5").await;
    exchange.answer("POST /batch-deposit", 405, json!({ "code": 20 }));
    exchange.hold(&format!("POST /coins/{}/deposit", coins[0].coin_pub()));
    exchange.answer(&format!("POST /coins/{}/", coins[1].coin_pub()), 409, json!({ "code": 1012 }));
    is_error(&backend.pay_with(&exchange, &id, &claimed, &coins).await, 409, 2150);
    let other = exchange.coin("KUDOS:10").await;
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&other]).await.status, 503);
    backend.now.fetch_add(60, Ordering::SeqCst);
    exchange.recover();
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&other]).await.status, 200);
    exchange.wait_for_refund(&coins[0]).await;
    backend.end().await;
}

#[tokio::test]
async fn what_an_exchange_refuses_is_passed_on() {
    let (exchange, backend) = market().await;
    let (id, claimed) = backend.offer().await;
    let coins = exchange.coins(2, "KUDOS:5").await;
    for path in ["POST /batch-deposit", "POST /coins/"] {
        for (status, body, expected, code) in [
            (409, json!({ "code": 1012, "coin_pub": coins[0].coin_pub() }), 409, 2150),
            (403, json!({ "code": 1205 }), 403, 2157),
            (403, json!({ "code": 1006 }), 502, 2170),
            (404, json!({ "code": 1005 }), 502, 2170),
            (500, json!({ "code": 51 }), 502, 2014),
            (429, json!({}), 502, 2014),
            (200, json!({ "nonsense": 1 }), 502, 2013),
        ] {
            exchange.answer(path, status, body.clone());
            let reply = backend.pay_with(&exchange, &id, &claimed, &coins).await;
            is_error(&reply, expected, code);
            if code != 2013 {
                let answer: Value = reply.json().unwrap();
                let seen = (&answer["exchange_http_status"], &answer["exchange_reply"]);
                assert_eq!(seen, (&json!(status), &body), "{path}");
            }
        }
        // From here on, each coin is deposited alone.
        exchange.answer("POST /batch-deposit", 405, json!({ "code": 20 }));
    }
    // One coin is accepted, the other one was spent: the next attempt only sends the one that replaces it.
    exchange.recover();
    exchange.answer("POST /batch-deposit", 405, json!({ "code": 20 }));
    exchange.answer(&format!("POST /coins/{}/", coins[1].coin_pub()), 409, json!({ "code": 1012 }));
    is_error(&backend.pay_with(&exchange, &id, &claimed, &coins).await, 409, 2150);
    let fresh = exchange.coin("KUDOS:5").await;
    let before = exchange.count("POST /coins/");
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &[&coins[0], &fresh]).await.status, 200);
    assert_eq!(exchange.count("POST /coins/") - before, 1);

    // Or the wallet gives up: the coin that was accepted has its value back, the other one was never there.
    let (id, claimed) = backend.offer().await;
    let coins = exchange.coins(2, "KUDOS:5").await;
    exchange.answer(&format!("POST /coins/{}/", coins[1].coin_pub()), 409, json!({ "code": 1012 }));
    is_error(&backend.pay_with(&exchange, &id, &claimed, &coins).await, 409, 2150);
    exchange.answer(&format!("POST /coins/{}/", coins[1].coin_pub()), 404, json!({ "code": 1500 }));
    let given_up = |coin: &Coin| json!({ "coin_pub": coin.coin_pub(), "contribution": "KUDOS:5", "exchange_url": exchange.url });
    let abort =
        json!({ "h_contract": claimed.h_contract, "coins": [given_up(&coins[1]), given_up(&coins[0])] });
    let path = format!("orders/{id}/abort");
    let answer: Value = backend.post(&path, &abort).await.ok().unwrap();
    let kinds = [&answer["refunds"][0]["type"], &answer["refunds"][1]["type"]];
    assert_eq!(kinds, [&json!("failure"), &json!("success")]);
    let asked = exchange.count("POST /coins/");
    let again: Value = backend.post(&path, &abort).await.ok().unwrap();
    assert_eq!((&again["refunds"][1], exchange.count("POST /coins/") - asked), (&answer["refunds"][1], 1));
    // What was given up does not pay, whether it was there or not.
    is_error(
        &backend.pay_with(&exchange, &id, &claimed, &[&coins[0], &exchange.coin("KUDOS:5").await]).await,
        402,
        2167,
    );
    is_error(&backend.pay_with(&exchange, &id, &claimed, &[&coins[1]]).await, 402, 2167);
    backend.end().await;
}

#[tokio::test]
async fn bad_payments_are_refused() {
    let (exchange, backend) = market().await;
    let (id, claimed) = backend.offer().await;
    let path = format!("orders/{id}/pay");
    let coin = exchange.coin("KUDOS:10").await;
    let good = coin.pay(&exchange, &claimed.terms, claimed.h_contract);
    let with = |name: &str, value: Value| {
        let mut bad = good.clone();
        bad[name] = value;
        json!({ "coins": [bad] })
    };
    is_error(&backend.post("orders/none/pay", &json!({ "coins": [] })).await, 404, 2005);
    is_error(&backend.post(&path, &json!({ "coins": [good, good] })).await, 400, 26);
    is_error(&backend.post(&path, &with("contribution", json!("EUR:10"))).await, 400, 30);
    is_error(&backend.post(&path, &with("h_denom", json!(HashCode::from_bytes([1; 64])))).await, 400, 2151);
    is_error(&backend.post(&path, &with("exchange_url", json!("file:///"))).await, 400, 26);
    let stranger = Exchange::with_values(&[1000, 700]).await;
    let coin_of_stranger = stranger.coin("KUDOS:10").await.pay(&stranger, &claimed.terms, claimed.h_contract);
    is_error(&backend.post(&path, &json!({ "coins": [coin_of_stranger] })).await, 400, 2152);
    for (contribution, status, code) in [("KUDOS:9.99", 406, 2156), ("KUDOS:0.001", 400, 2154)] {
        let coin = exchange.coin(contribution).await;
        is_error(&backend.pay_with(&exchange, &id, &claimed, &[&coin]).await, status, code);
    }
    assert_eq!(exchange.count("POST /coins/"), 0, "no coin was deposited");
    // The shop pays no fees here: a cent of the coin is missing.
    let wish = json!({
        "order": { "amount": "KUDOS:10", "summary": "x", "max_fee": "KUDOS:0", "max_wire_fee": "KUDOS:0" },
    });
    let (poor, contract) = backend.claimed_order(&wish).await;
    is_error(
        &backend.pay_with(&exchange, &poor, &contract, &[&exchange.coin("KUDOS:10").await]).await,
        406,
        2155,
    );
    // The offer ends.
    backend.now.fetch_add(3_600, std::sync::atomic::Ordering::SeqCst);
    is_error(&backend.post(&path, &json!({ "coins": [good] })).await, 410, 2161);
    // The denomination ends.
    let wish =
        json!({ "order": { "amount": "KUDOS:10", "summary": "x", "pay_deadline": { "t_s": "never" } } });
    let (late, contract) = backend.claimed_order(&wish).await;
    backend.now.fetch_add(101 * 86_400, std::sync::atomic::Ordering::SeqCst);
    is_error(
        &backend.pay_with(&exchange, &late, &contract, &[&exchange.coin("KUDOS:10").await]).await,
        410,
        2165,
    );
    backend.end().await;
}

#[tokio::test]
async fn as_many_coins_pay_as_the_manual_says() {
    let exchange = Exchange::with_values(&[10]).await;
    let backend = Backend::with_exchange(&exchange).await;
    let (id, claimed) = backend.offer().await;
    let coins = exchange.coins(1_025, "KUDOS:0.02").await;
    is_error(&backend.pay_with(&exchange, &id, &claimed, &coins).await, 400, 26);
    let reply = backend.pay_with(&exchange, &id, &claimed, &coins[..1_024]).await;
    assert_eq!(reply.status, 200, "{:?}", reply.json::<Value>());
    assert_eq!(exchange.count("POST /batch-deposit"), 4);
    backend.end().await;
}

#[tokio::test]
async fn auditors_see_a_sample_of_confirmations() {
    let (hook, got, drain) = receiver(0).await;
    let url = hook.strip_suffix("hook").unwrap().to_owned();
    let approval = |exchange: &Exchange| vec![exchange.approval(&EddsaPrivateKey::generate(), &url)];
    let exchange = Exchange::with_auditors(&[10], approval).await;
    let backend = Backend::with_exchange(&exchange).await;
    let (id, claimed) = backend.offer().await;
    // One of sixteen: that none of 200 is seen happens once in 400,000 runs.
    let coins = exchange.coins(200, "KUDOS:0.07").await;
    assert_eq!(backend.pay_with(&exchange, &id, &claimed, &coins).await.status, 200);
    wait_for(&got, 1).await;
    let (_, seen) = got.lock().unwrap()[0].clone();
    let message = ExchangeConfirmDeposit {
        h_contract_terms: claimed.h_contract,
        h_wire: read(&seen["h_wire"]),
        h_policy: read(&seen["h_policy"]),
        exchange_timestamp: read(&seen["exchange_timestamp"]),
        wire_deadline: read(&seen["wire_deadline"]),
        refund_deadline: read(&seen["refund_deadline"]),
        amount_without_fee: "KUDOS:0.06".parse().unwrap(),
        coin_pub: read(&seen["coin_pub"]),
        merchant_pub: claimed.merchant_pub,
    };
    let exchange_pub: EddsaPublicKey = read(&seen["exchange_pub"]);
    assert!(message.verify(&exchange_pub, &read(&seen["exchange_sig"])));
    let master_pub: EddsaPublicKey = read(&seen["master_pub"]);
    let signkey = SignKey {
        key: exchange_pub,
        stamp_start: read(&seen["ep_start"]),
        stamp_expire: read(&seen["ep_expire"]),
        stamp_end: read(&seen["ep_end"]),
        master_sig: read(&seen["master_sig"]),
    };
    assert!(signkey.validity().verify(&master_pub, &signkey.master_sig));
    drain.trigger();
    backend.end().await;
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

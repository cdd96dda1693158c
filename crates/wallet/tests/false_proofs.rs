//! Planted lies: an exchange that refuses with proofs that prove nothing. None of them may cost the wallet money, each is
//! kept as evidence, and what was disputed goes on when the exchange becomes honest.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use batzen_crypto::{EddsaPrivateKey, HashCode, WireSalt};
use batzen_protocol::signatures::{MerchantRefund, SignedMessage};
use batzen_protocol::{Duration, ErrorBody, ErrorCode, Money, payto};
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use batzen_wallet::{
    CipherChoice, CoinStatus, PaymentRequest, RefundPermission, Status, Wallet, WalletError,
};
use common::{BANK, EXCHANGE, START, World, amount};
use serde_json::{Value, json};

const PAYTO: &str = "payto://x-taler-bank/bank.test/alice?receiver-name=alice";

async fn ready(world: &World, sum: &str) -> Wallet {
    let wallet = Wallet::in_memory_with(world.options(1));
    fill(&wallet, sum).await;
    wallet
}

async fn fill(wallet: &Wallet, sum: &str) {
    wallet.add_exchange(EXCHANGE).await.unwrap();
    wallet.accept_terms(EXCHANGE).unwrap();
    let id =
        wallet.withdraw_from_bank(BANK, "alice", "pw", amount(sum), None, CipherChoice::Rsa).await.unwrap();
    wallet.finish(id).await.unwrap();
}

fn request(merchant: &EddsaPrivateKey, sum: &str, contract: u8) -> PaymentRequest {
    PaymentRequest {
        exchange: None,
        amount: amount(sum),
        max_fee: Money::ZERO,
        merchant_pub: merchant.public_key(),
        merchant_payto: PAYTO.to_owned(),
        wire_salt: WireSalt::from_bytes([7; 16]),
        h_contract_terms: HashCode::from_bytes([contract; 64]),
        timestamp: None,
        refund_deadline: START.saturating_add(Duration::from_days(1)),
        wire_transfer_deadline: START.saturating_add(Duration::from_days(2)),
        summary: "a book".to_owned(),
    }
}

/// All money of the wallet, wherever it is.
fn holdings(wallet: &Wallet) -> Money {
    let balance = &wallet.balance().unwrap()[0];
    let parts = [balance.available, balance.pending_incoming, balance.pending_outgoing, balance.dust];
    Money::checked_sum(parts.iter().map(|part| part.money))
        .unwrap()
        .checked_add(balance.disputed.money)
        .unwrap()
}

fn error(status: u16, code: u32, extra: Value) -> HttpResponse {
    let body = ErrorBody::with(ErrorCode::from_u32(code), extra);
    HttpResponse { status, body: serde_json::to_vec(&body).unwrap(), ..HttpResponse::default() }
}

fn body(request: &HttpRequest) -> Value {
    serde_json::from_slice(request.body.as_ref().unwrap()).unwrap()
}

fn json_of(response: &HttpResponse) -> Value {
    serde_json::from_slice(&response.body).unwrap()
}

fn with_json(response: &HttpResponse, value: &Value) -> HttpResponse {
    HttpResponse { body: serde_json::to_vec(value).unwrap(), ..response.clone() }
}

/// A deposit of the request as an item of the coin's history.
fn own_deposit(request: &Value, coin: &Value) -> Value {
    let salt: WireSalt = request["wire_salt"].as_str().unwrap().parse().unwrap();
    let h_wire = payto::h_wire(request["merchant_payto_uri"].as_str().unwrap(), &salt);
    let mut item = json!({
        "type": "DEPOSIT", "amount": coin["contribution"], "deposit_fee": "KUDOS:0.01",
        "timestamp": request["timestamp"], "merchant_pub": request["merchant_pub"],
        "h_contract_terms": request["h_contract_terms"], "h_wire": h_wire, "coin_sig": coin["coin_sig"],
    });
    if let Some(deadline) = request.get("refund_deadline") {
        item["refund_deadline"] = deadline.clone();
    }
    item
}

/// The coin that a request for one coin is about.
fn coin_in_url(request: &HttpRequest) -> String {
    request.url.split('/').nth_back(1).unwrap().to_owned()
}

fn is_deposit(request: &HttpRequest) -> bool {
    request.url.ends_with("deposit")
}

/// Refuses deposits with a proof that lists the wallet's own new signature so many times.
fn lie_with_own_deposit(world: &World, times: usize) {
    world.network.lie(move |request, _, _| {
        if !is_deposit(request) {
            return None;
        }
        let sent = body(request);
        let (coin, coin_pub) = match sent.get("coins") {
            Some(coins) => (coins[0].clone(), coins[0]["coin_pub"].clone()),
            None => (sent.clone(), coin_in_url(request).into()),
        };
        let history = vec![own_deposit(&sent, &coin); times];
        let extra =
            json!({ "coin_pub": coin_pub, "h_denom_pub": coin["denom_pub_hash"], "history": history });
        Some(error(409, 1012, extra))
    });
}

/// The wallet saw a lie: `before` is all there, in dispute, with evidence that gives this reason.
fn check_disputed(wallet: &Wallet, before: Money, reason: &str) {
    // What is disputed counts in full, without the fees of the change to come.
    assert!(holdings(wallet) >= before, "{} of {before} are left", holdings(wallet));
    assert!(wallet.coins().iter().all(|coin| coin.status != CoinStatus::Lost));
    let evidence = wallet.evidence();
    let found = evidence.iter().find(|item| item.reason.contains(reason) && item.settled.is_none());
    let found = found.unwrap_or_else(|| panic!("no evidence says {reason:?}: {evidence:#?}"));
    let id = found.operation.unwrap();
    let line = wallet.transaction(id).unwrap();
    assert_eq!((line.status, line.evidence), (Status::Pending, Some(found.id)));
    assert!(!wallet.balance().unwrap()[0].disputed.is_zero());
}

/// The exchange has become honest: everything disputed goes on and ends, and the books agree coin by coin.
async fn check_recovered(world: &World, wallet: &Wallet) {
    world.network.be_honest();
    wallet.retry_disputed().unwrap();
    let report = wallet.run_pending().await.unwrap();
    assert!(report.pending.is_empty(), "{report:?}");
    assert!(wallet.evidence().iter().all(|item| item.settled.is_some()));
    assert!(wallet.balance().unwrap()[0].disputed.is_zero());
    let exchange = world.exchange.lock().unwrap();
    exchange.check_conservation();
    for coin in wallet.coins() {
        let value = exchange.denom(&coin.h_denom_pub).unwrap().terms.value.money;
        let remaining = exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
        assert_eq!(remaining, coin.remaining, "coin {} in state {:?}", coin.coin_pub, coin.status);
    }
}

#[tokio::test]
async fn a_refused_deposit_does_not_prove_that_it_was_made() {
    // Once, twice; a payment with one coin, and with several.
    for (times, sum, reason) in [
        (1, "KUDOS:3", "the very deposit that it refuses"),
        (2, "KUDOS:3", "the very deposit that it refuses"),
        (1, "KUDOS:14", "the very deposit that it refuses"),
    ] {
        let world = World::new();
        let wallet = ready(&world, "KUDOS:20").await;
        let before = holdings(&wallet);
        lie_with_own_deposit(&world, times);
        let merchant = EddsaPrivateKey::generate();
        let refused = wallet.pay(&request(&merchant, sum, 1)).await;
        assert!(matches!(refused, Err(WalletError::Disputed { evidence: 1, .. })), "{refused:?}");
        check_disputed(&wallet, before, reason);
        // It rests: the same request is not sent again at once.
        let sent = world.exchange.lock().unwrap().requests.len();
        assert_eq!(wallet.run_pending().await.unwrap().pending.len(), 1);
        assert_eq!(world.exchange.lock().unwrap().requests.len(), sent);
        check_recovered(&world, &wallet).await;
        let paid =
            wallet.transactions(false).unwrap().into_iter().find(|line| line.kind == "payment").unwrap();
        assert_eq!(paid.status, Status::Done);
    }
}

#[tokio::test]
async fn a_refused_melt_does_not_prove_that_it_was_made() {
    for times in [1, 2] {
        let world = World::new();
        let wallet = ready(&world, "KUDOS:8.01").await;
        let merchant = EddsaPrivateKey::generate();
        wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
        let before = holdings(&wallet);
        world.network.lie(move |request, exchange, _| {
            if !request.url.ends_with("/melt") {
                return None;
            }
            let sent = body(request);
            let coin_pub = coin_in_url(request);
            // The history so far is genuine: a second payment with the whole coin fails with it.
            let mut history = exchange.history_of(&coin_pub.parse().unwrap());
            let melt = json!({
                "type": "MELT", "amount": sent["value_with_fee"], "melt_fee": "KUDOS:0.01", "rc": sent["rc"],
                "coin_sig": sent["confirm_sig"],
            });
            history.extend(vec![melt; times]);
            let extra =
                json!({ "coin_pub": coin_pub, "h_denom_pub": sent["denom_pub_hash"], "history": history });
            Some(error(409, 1012, extra))
        });
        let report = wallet.run_pending().await.unwrap();
        assert!(report.pending[0].evidence.is_some(), "{report:?}");
        check_disputed(&wallet, before, "the very melt that it refuses");
        check_recovered(&world, &wallet).await;
        assert!(wallet.balance().unwrap()[0].available.money > amount("KUDOS:4").money);
    }
}

/// A wallet, a copy of it that spent a coin, and what the copy got back as refund.
async fn wallet_with_busy_copy(world: &World) -> (Wallet, Wallet) {
    let wallet = ready(world, "KUDOS:8.01").await;
    let copy = Wallet::in_memory_with(world.options(9));
    copy.import(wallet.export()).unwrap();
    let merchant = EddsaPrivateKey::generate();
    for contract in [1, 2] {
        let _ = copy.pay(&request(&merchant, "KUDOS:3", contract)).await;
    }
    (wallet, copy)
}

#[tokio::test]
async fn a_genuine_history_is_believed_only_unaltered() {
    type Alteration = fn(&mut Value);
    let alterations: [(Alteration, &str); 13] = [
        (|it| it["history"][0]["amount"] = "KUDOS:7.5".into(), "did not sign"),
        (|it| it["history"][0]["amount"] = "KUDOS:9".into(), "larger than the coin's value"),
        (|it| it["history"][0]["amount"] = "EUR:3.01".into(), ""),
        (|it| it["history"][0]["deposit_fee"] = "KUDOS:0.5".into(), "not that of the coin's denomination"),
        (|it| it["history"][0]["timestamp"]["t_s"] = 1_700_000_001.into(), "did not sign"),
        (|it| it["history"][0]["h_wire"] = it["history"][0]["h_contract_terms"].clone(), "did not sign"),
        (|it| it["history"][0]["type"] = "MELT".into(), "cannot be read"),
        (
            |it| {
                let item = it["history"][0].clone();
                it["history"].as_array_mut().unwrap().push(item);
            },
            "a deposit twice",
        ),
        (|it| it["history"] = json!([]), "is empty"),
        (|it| it["coin_pub"] = it["history"][0]["merchant_pub"].clone(), "not in the request"),
        (|it| it["h_denom_pub"] = it["history"][0]["h_wire"].clone(), "other terms"),
        (|it| it["code"] = 1003.into(), "other terms"),
        (|it| drop(it.as_object_mut().unwrap().remove("history")), "cannot be read"),
    ];
    for (alter, reason) in alterations {
        let world = World::new();
        let (wallet, _copy) = wallet_with_busy_copy(&world).await;
        let before = holdings(&wallet);
        world.network.lie(move |request, exchange, now| {
            let response = exchange.handle(request, now);
            if !is_deposit(request) || response.status != 409 {
                return Some(response);
            }
            let mut value = json_of(&response);
            alter(&mut value);
            Some(with_json(&response, &value))
        });
        let merchant = EddsaPrivateKey::generate();
        let refused = wallet.pay(&request(&merchant, "KUDOS:7.5", 9)).await;
        assert!(matches!(refused, Err(WalletError::Disputed { .. })), "{reason}: {refused:?}");
        check_disputed(&wallet, before, reason);
        // The unaltered history is believed: the copy did spend the coin.
        check_recovered(&world, &wallet).await;
        let paid =
            wallet.transactions(false).unwrap().into_iter().find(|line| line.kind == "payment").unwrap();
        assert_eq!(paid.status, Status::Failed, "too little is left");
    }
}

#[tokio::test]
async fn a_proof_needs_more_spending_than_the_coin_can_bear() {
    let world = World::new();
    let (wallet, _copy) = wallet_with_busy_copy(&world).await;
    let before = holdings(&wallet);
    // The coin has 4.99 left, by the very history that comes with the refusal of 3.01.
    world.network.lie(|request, exchange, _| {
        is_deposit(request).then(|| {
            let (coin, h_denom) = (coin_in_url(request), body(request)["denom_pub_hash"].clone());
            let history = exchange.history_of(&coin.parse().unwrap());
            error(409, 1012, json!({ "coin_pub": coin, "h_denom_pub": h_denom, "history": history }))
        })
    });
    let merchant = EddsaPrivateKey::generate();
    let refused = wallet.pay(&request(&merchant, "KUDOS:1.5", 9)).await;
    assert!(matches!(refused, Err(WalletError::Disputed { .. })), "{refused:?}");
    check_disputed(&wallet, before, "by its own figures enough is left");
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn a_history_without_a_confirmed_refund_is_no_proof() {
    let world = World::new();
    let wallet = ready(&world, "KUDOS:8.01").await;
    let merchant = EddsaPrivateKey::generate();
    let pay = request(&merchant, "KUDOS:7.99", 1);
    let receipt = wallet.pay(&pay).await.unwrap();
    let permission = RefundPermission {
        coin_pub: receipt.coins[0].coin_pub,
        rtransaction_id: 1,
        amount: receipt.coins[0].contribution,
        merchant_sig: MerchantRefund {
            h_contract_terms: pay.h_contract_terms,
            coin_pub: receipt.coins[0].coin_pub,
            rtransaction_id: 1,
            refund_amount: receipt.coins[0].contribution,
        }
        .sign(&merchant),
    };
    wallet.refund(&pay.h_contract_terms, &[permission]).await.unwrap();
    let before = holdings(&wallet);
    world.network.lie(|request, exchange, _| {
        request.url.ends_with("/melt").then(|| {
            let (coin, h_denom) = (coin_in_url(request), body(request)["denom_pub_hash"].clone());
            let mut history = exchange.history_of(&coin.parse().unwrap());
            history.retain(|item| item["type"] == "DEPOSIT");
            error(409, 1012, json!({ "coin_pub": coin, "h_denom_pub": h_denom, "history": history }))
        })
    });
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "leaves out a refund");
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn what_was_refused_does_not_count_as_spent() {
    let world = World::new();
    let wallet = ready(&world, "KUDOS:8.01").await;
    let before = holdings(&wallet);
    // The exchange books the payment, says that it did not, and lists it later.
    world.network.lie(|request, exchange, now| {
        is_deposit(request).then(|| {
            assert_eq!(exchange.handle(request, now).status, 200);
            error(400, 26, json!({}))
        })
    });
    let merchant = EddsaPrivateKey::generate();
    let refused = wallet.pay(&request(&merchant, "KUDOS:3", 1)).await;
    assert!(matches!(refused, Err(WalletError::Failed { .. })), "{refused:?}");
    world.network.be_honest();
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "which the exchange had refused");
    // It stays so until the user accepts what the exchange says now.
    wallet.retry_disputed().unwrap();
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "which the exchange had refused");
    assert!(wallet.accept_refused(7).is_err(), "there is no such evidence");
    wallet.accept_refused(1).unwrap();
    check_recovered(&world, &wallet).await;
    assert!(wallet.balance().unwrap()[0].available.money < amount("KUDOS:5").money);
}

#[tokio::test]
async fn disputed_payments_can_be_cancelled() {
    let world = World::new();
    let wallet = ready(&world, "KUDOS:20").await;
    let before = holdings(&wallet);
    lie_with_own_deposit(&world, 1);
    let merchant = EddsaPrivateKey::generate();
    let Err(WalletError::Disputed { operation, .. }) = wallet.pay(&request(&merchant, "KUDOS:14", 1)).await
    else {
        panic!("a lie was believed");
    };
    wallet.cancel(operation).unwrap();
    assert_eq!(holdings(&wallet), before);
    assert_eq!(wallet.transaction(operation).unwrap().status, Status::Failed);
    assert!(wallet.cancel(operation).is_err());
    world.network.be_honest();
    assert!(wallet.run_pending().await.unwrap().pending.is_empty());
    assert!(wallet.balance().unwrap()[0].available.money > amount("KUDOS:19").money);
}

#[tokio::test]
async fn coins_are_not_lost_because_the_exchange_says_so() {
    // Refusals of payment and melt: unsigned, about another operation, and signed against the published terms.
    for step in ["deposit", "melt"] {
        for (signed, code) in
            [(false, 1009), (true, 1009), (false, 1010), (false, 1005), (false, 1305), (false, 1006)]
        {
            let world = World::new();
            let wallet = ready(&world, "KUDOS:8.01").await;
            let merchant = EddsaPrivateKey::generate();
            if step == "melt" {
                wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
            }
            let before = holdings(&wallet);
            world.network.lie(move |request, exchange, now| {
                if !request.url.ends_with(step) {
                    return None;
                }
                let h_denom = body(request)["denom_pub_hash"].as_str().unwrap().parse().unwrap();
                Some(if signed {
                    exchange.unusable(&h_denom, &step.to_uppercase(), code, now)
                } else {
                    let status = if code == 1005 {
                        404
                    } else if code < 1020 {
                        410
                    } else {
                        400
                    };
                    error(status, code, json!({ "h_denom_pub": h_denom }))
                })
            });
            if step == "deposit" && !matches!(code, 1005 | 1009 | 1010) {
                continue; // Such a refusal returns the coin.
            }
            if step == "deposit" {
                let refused = wallet.pay(&request(&merchant, "KUDOS:3", 1)).await;
                assert!(matches!(refused, Err(WalletError::Disputed { .. })), "{code}: {refused:?}");
            } else {
                wallet.run_pending().await.unwrap();
            }
            check_disputed(&wallet, before, "");
            check_recovered(&world, &wallet).await;
        }
    }
}

#[tokio::test]
async fn change_is_not_lost_because_the_exchange_says_so() {
    for (status, code) in [(410, 1009), (410, 1010), (404, 1355), (409, 1353)] {
        let world = World::new();
        let wallet = ready(&world, "KUDOS:8.01").await;
        let merchant = EddsaPrivateKey::generate();
        wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
        let before = holdings(&wallet);
        world.network.lie(move |request, _, _| {
            request.url.ends_with("/reveal").then(|| error(status, code, json!({})))
        });
        wallet.run_pending().await.unwrap();
        check_disputed(&wallet, before, "");
        check_recovered(&world, &wallet).await;
    }
}

/// Revokes the denomination of the one coin in the wallet.
async fn revoke(world: &World, wallet: &Wallet) {
    {
        let mut exchange = world.exchange.lock().unwrap();
        let h_denom = wallet.coins()[0].h_denom_pub;
        exchange.denom_mut(&h_denom).revoked = true;
    }
    wallet.add_exchange(EXCHANGE).await.unwrap();
}

#[tokio::test]
async fn recoups_are_believed_only_with_the_right_owner_and_proof() {
    let other = EddsaPrivateKey::generate().public_key();
    for lie in ["owner", "own signature", "expired", "not found"] {
        let world = World::new();
        let wallet = ready(&world, "KUDOS:8.01").await;
        let before = holdings(&wallet);
        world.network.lie(move |request, _, _| {
            if !request.url.ends_with("/recoup") {
                return None;
            }
            let (sent, coin) = (body(request), coin_in_url(request));
            Some(match lie {
                "owner" => with_json(
                    &HttpResponse { status: 200, ..HttpResponse::default() },
                    &json!({ "reserve_pub": other }),
                ),
                "own signature" => {
                    let item = json!({
                        "type": "RECOUP", "amount": "KUDOS:8", "exchange_sig": sent["coin_sig"],
                        "exchange_pub": other, "reserve_pub": other, "coin_sig": sent["coin_sig"],
                        "coin_blind": sent["coin_blind_key_secret"], "timestamp": { "t_s": 1_700_000_000 },
                    });
                    let h_denom = sent["denom_pub_hash"].clone();
                    error(409, 1012, json!({ "coin_pub": coin, "h_denom_pub": h_denom, "history": [item] }))
                }
                "expired" => error(410, 1009, json!({ "h_denom_pub": sent["denom_pub_hash"] })),
                _ => error(404, 1551, json!({})),
            })
        });
        revoke(&world, &wallet).await;
        wallet.run_pending().await.unwrap();
        check_disputed(&wallet, before, "");
        check_recovered(&world, &wallet).await;
        assert!(wallet.balance().unwrap()[0].available.money > amount("KUDOS:7.6").money);
    }
}

#[tokio::test]
async fn a_recoup_by_a_copy_is_fetched_from_the_reserve() {
    // The coin is recouped behind the wallet's back, so that its own melt fails with a genuine proof.
    let world = World::new();
    let wallet = ready(&world, "KUDOS:8.01").await;
    let merchant = EddsaPrivateKey::generate();
    wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
    let copy = Wallet::in_memory_with(world.options(9));
    copy.import(wallet.export()).unwrap();
    // The copy gets as far as the recoup, and then is lost.
    world.network.lie(|request, _, _| {
        let about_reserve = request.url.contains("/reserves/");
        about_reserve.then(|| HttpResponse { status: 503, ..HttpResponse::default() })
    });
    revoke(&world, &copy).await;
    copy.run_pending().await.unwrap();
    world.network.be_honest();
    {
        let mut exchange = world.exchange.lock().unwrap();
        let h_denom = wallet.coins()[0].h_denom_pub;
        exchange.denom_mut(&h_denom).revoked = false;
    }
    wallet.run_pending().await.unwrap();
    check_recovered(&world, &wallet).await;
    assert!(wallet.evidence().is_empty());
    assert!(wallet.balance().unwrap()[0].available.money > amount("KUDOS:4.5").money);
}

#[tokio::test]
async fn reserves_are_not_empty_because_the_exchange_says_so() {
    // A balance below what the bank transferred, then proofs that prove nothing.
    type Alteration = fn(&mut Value);
    let alterations: [(Alteration, &str); 5] = [
        (|it| it["history"] = json!([]), "is empty"),
        (
            |it| {
                it["history"][0]["amount"] = "KUDOS:1".into();
                it["balance"] = "KUDOS:1".into();
            },
            "leaves out money",
        ),
        (|it| it["balance"] = "KUDOS:0".into(), "not the sum"),
        (|it| it["requested_amount"] = "KUDOS:100".into(), "another amount"),
        (|_| {}, "holds enough"),
    ];
    for (alter, reason) in alterations {
        let world = World::new();
        let wallet = Wallet::in_memory_with(world.options(1));
        wallet.add_exchange(EXCHANGE).await.unwrap();
        wallet.accept_terms(EXCHANGE).unwrap();
        world.network.lie(move |request, exchange, _| {
            if request.url.contains("/reserves/") && request.body.is_none() {
                let value = json!({ "balance": "KUDOS:0" });
                return Some(with_json(&HttpResponse { status: 200, ..HttpResponse::default() }, &value));
            }
            request.url.ends_with("withdraw").then(|| {
                let (reserve, balance, history) = exchange.only_reserve();
                assert!(request.url.contains(&reserve));
                let mut value = json!({
                    "balance": balance, "requested_amount": "KUDOS:19.92", "history": history,
                });
                alter(&mut value);
                error(409, 1150, value)
            })
        });
        let id = wallet
            .withdraw_from_bank(BANK, "alice", "pw", amount("KUDOS:20"), None, CipherChoice::Rsa)
            .await
            .unwrap();
        let disputed = wallet.finish(id).await;
        assert!(matches!(disputed, Err(WalletError::Disputed { .. })), "{reason}: {disputed:?}");
        check_disputed(&wallet, wallet.balance().unwrap()[0].disputed.money, reason);
        check_recovered(&world, &wallet).await;
        assert_eq!(wallet.balance().unwrap()[0].available, amount("KUDOS:19.8"));
    }
}

#[tokio::test]
async fn a_transfer_that_came_short_waits_for_the_rest() {
    let world = World::new();
    let wallet = Wallet::in_memory_with(world.options(1));
    wallet.add_exchange(EXCHANGE).await.unwrap();
    wallet.accept_terms(EXCHANGE).unwrap();
    let manual = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:10"), CipherChoice::Rsa).await.unwrap();
    let credit = |sum| world.exchange.lock().unwrap().credit_reserve(manual.reserve_pub, amount(sum));
    credit("KUDOS:4.01");
    let report = wallet.run_pending().await.unwrap();
    let message = report.pending[0].message.clone().unwrap();
    assert!(message.contains("KUDOS:5.99 of your transfer have not reached"), "{message}");
    assert_eq!(wallet.balance().unwrap()[0].available, amount("KUDOS:4"));
    assert!(wallet.evidence().is_empty());
    credit("KUDOS:5.99");
    wallet.run_pending().await.unwrap();
    check_recovered(&world, &wallet).await;
    assert_eq!(wallet.balance().unwrap()[0].available, amount("KUDOS:9.8"));
}

#[tokio::test]
async fn signatures_by_unpublished_keys_are_evidence() {
    let world = World::new();
    let wallet = ready(&world, "KUDOS:8.01").await;
    let before = holdings(&wallet);
    let other = EddsaPrivateKey::generate().public_key();
    world.network.lie(move |request, exchange, now| {
        is_deposit(request).then(|| {
            let response = exchange.handle(request, now);
            let mut value = json_of(&response);
            value["exchange_pub"] = other.to_string().into();
            with_json(&response, &value)
        })
    });
    let merchant = EddsaPrivateKey::generate();
    let disputed = wallet.pay(&request(&merchant, "KUDOS:3", 1)).await;
    assert!(matches!(disputed, Err(WalletError::Disputed { .. })), "{disputed:?}");
    check_disputed(&wallet, before, "that it does not publish");
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn false_listings_are_evidence_and_change_nothing() {
    type Alteration = fn(&mut Value);
    let alterations: [Alteration; 3] = [
        |it| it["denoms"][0]["fee_deposit"] = "KUDOS:0.5".into(),
        |it| it["signkeys"][0]["master_sig"] = it["eddsa_sig"].clone(),
        |it| it["master_public_key"] = it["eddsa_pub"].clone(),
    ];
    for alter in alterations {
        let world = World::new();
        let wallet = ready(&world, "KUDOS:8.01").await;
        let before = wallet.with_state(|state| (state.exchanges.clone(), state.coins.clone()));
        world.network.lie(move |request, exchange, now| {
            request.url.ends_with("keys").then(|| {
                let response = exchange.handle(request, now);
                let mut value = json_of(&response);
                alter(&mut value);
                with_json(&response, &value)
            })
        });
        assert!(wallet.add_exchange(EXCHANGE).await.is_err());
        assert_eq!(wallet.with_state(|state| (state.exchanges.clone(), state.coins.clone())), before);
        assert_eq!(wallet.evidence().len(), 1);
        world.network.be_honest();
        wallet.add_exchange(EXCHANGE).await.unwrap();
        assert!(wallet.evidence()[0].settled.is_some());
    }
}

#[tokio::test]
async fn evidence_is_durable_counted_and_free_of_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wallet.db");
    let world = World::new();
    let wallet = Wallet::open_with(&file, world.options(1)).unwrap();
    fill(&wallet, "KUDOS:8.01").await;
    lie_with_own_deposit(&world, 1);
    let merchant = EddsaPrivateKey::generate();
    assert!(wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.is_err());
    for _ in 0..3 {
        wallet.retry_disputed().unwrap();
        wallet.run_pending().await.unwrap();
    }
    let evidence = wallet.evidence();
    assert_eq!((evidence.len(), evidence[0].times), (1, 4), "the same lie is counted");
    drop(wallet);
    let wallet = Wallet::open_with(&file, world.options(2)).unwrap();
    assert_eq!(wallet.evidence(), evidence);
    let kept = &evidence[0];
    let master_pub = wallet.with_state(|state| state.exchange(EXCHANGE).unwrap().master_pub);
    assert_eq!((kept.exchange.as_str(), kept.master_pub), (EXCHANGE, master_pub));
    assert_eq!((kept.answer.status, kept.first_seen), (409, START));
    let sent = kept.request.body.as_ref().unwrap();
    assert_eq!(sent["merchant_pub"], merchant.public_key().to_string());
    assert_eq!(kept.answer.body.as_ref().map(String::len), Some(kept.answer.body_size as usize));
    // Neither keys nor seeds of anything in the wallet are in it.
    let text = serde_json::to_string(&evidence).unwrap();
    for coin in wallet.coins() {
        let record = serde_json::to_value(&coin).unwrap();
        for secret in ["coin_priv", "blinding"] {
            assert!(!text.contains(record[secret].as_str().unwrap()), "{secret} is in the evidence");
        }
    }
    wallet.with_state(|state| {
        for operation in state.operations.values() {
            let record = serde_json::to_value(operation).unwrap();
            for secret in ["reserve_priv", "seed", "secret", "merchant_priv"] {
                let value = record["kind"][secret].as_str();
                assert!(value.is_none_or(|value| !text.contains(value)), "{secret} is in the evidence");
            }
        }
    });
    // A backup has it too.
    let copy = Wallet::in_memory_with(world.options(3));
    copy.import(batzen_wallet::backup::open(&batzen_wallet::backup::to_json(wallet.export()), None).unwrap())
        .unwrap();
    assert_eq!(copy.evidence(), evidence);
    check_recovered(&world, &wallet).await;
}

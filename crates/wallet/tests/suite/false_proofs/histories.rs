//! Coin histories that do not prove what the exchange claims.

use super::*;

#[tokio::test]
async fn a_refused_deposit_does_not_prove_that_it_was_made() {
    // Once and twice; a payment with one coin and with several.
    for (times, sum, reason) in [
        (1, "KUDOS:3", "the very deposit that it refuses"),
        (2, "KUDOS:3", "the very deposit that it refuses"),
        (1, "KUDOS:14", "the very deposit that it refuses"),
    ] {
        let (world, wallet, merchant) = ready("KUDOS:20").await;
        let before = holdings(&wallet);
        lie_with_own_deposit(&world, times);
        let refused = wallet.pay(&request(&merchant, sum, 1)).await;
        assert!(matches!(refused, Err(WalletError::Disputed { evidence: 1, .. })), "{refused:?}");
        check_disputed(&wallet, before, reason);
        // The operation rests: the same request is not sent again at once.
        let sent = world.network.requests().len();
        assert_eq!(wallet.run_pending().await.unwrap().pending.len(), 1);
        assert_eq!(world.network.requests().len(), sent);
        check_recovered(&world, &wallet).await;
        let paid = latest(&wallet, "payment");
        assert_eq!(paid.status, Status::Done);
    }
}

#[tokio::test]
async fn a_refused_melt_does_not_prove_that_it_was_made() {
    for times in [1, 2] {
        let (world, wallet, before) = with_change().await;
        // The history up to now is genuine: it proves the refusal of a second payment with the whole coin.
        let genuine = world.coin_history(&wallet.coins()[0]).await;
        world.network.answer_instead(move |request| {
            if !request.url.ends_with("/melt") {
                return None;
            }
            let sent = body(request);
            let mut history = genuine.clone();
            let melt = json!({
                "type": "MELT", "amount": sent["value_with_fee"], "melt_fee": "KUDOS:0.01", "rc": sent["rc"],
                "coin_sig": sent["confirm_sig"],
            });
            history.extend(vec![melt; times]);
            Some(overspent(request, &history))
        });
        let report = wallet.run_pending().await.unwrap();
        assert!(report.pending[0].evidence.is_some(), "{report:?}");
        check_disputed(&wallet, before, "the very melt that it refuses");
        check_recovered(&world, &wallet).await;
        assert!(available(&wallet).money > amount("KUDOS:4").money);
    }
}

/// A wallet, of which a copy has spent a coin; and the wallet's money.
async fn with_busy_copy() -> (World, Wallet, Money) {
    let (world, wallet, merchant) = ready("KUDOS:8.01").await;
    let copy = copy_of(&wallet, &world, 9);
    for contract in [1, 2] {
        let _ = copy.pay(&request(&merchant, "KUDOS:3", contract)).await;
    }
    let before = holdings(&wallet);
    (world, wallet, before)
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
        let (world, wallet, before) = with_busy_copy().await;
        alter_answers(&world, |request, response| is_deposit(request) && response.status == 409, alter);
        let merchant = EddsaPrivateKey::generate();
        is_disputed(wallet.pay(&request(&merchant, "KUDOS:7.5", 9)).await, reason);
        check_disputed(&wallet, before, reason);
        // The wallet believes the unaltered history: the copy did spend the coin.
        check_recovered(&world, &wallet).await;
        let paid = latest(&wallet, "payment");
        assert_eq!(paid.status, Status::Failed, "too little is left");
    }
}

#[tokio::test]
async fn a_proof_must_show_too_little_value_for_the_request() {
    let (world, wallet, before) = with_busy_copy().await;
    // The history that comes with the refusal of 3.01 leaves 4.99 on the coin.
    let history = world.coin_history(&wallet.coins()[0]).await;
    world.network.answer_instead(move |request| is_deposit(request).then(|| overspent(request, &history)));
    let merchant = EddsaPrivateKey::generate();
    is_disputed(wallet.pay(&request(&merchant, "KUDOS:1.5", 9)).await, "");
    check_disputed(&wallet, before, "by its own figures the coin's balance suffices");
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn a_history_without_a_confirmed_refund_is_no_proof() {
    let (world, wallet, merchant) = ready("KUDOS:8.01").await;
    let pay = request(&merchant, "KUDOS:7.99", 1);
    let receipt = wallet.pay(&pay).await.unwrap();
    let coin = &receipt.coins[0];
    let permission = permission(&merchant, pay.h_contract_terms, coin, 1, coin.contribution);
    wallet.refund(&pay.h_contract_terms, &[permission]).await.unwrap();
    let before = holdings(&wallet);
    let mut history = world.coin_history(&wallet.coins()[0]).await;
    history.retain(|item| item["type"] == "DEPOSIT");
    world
        .network
        .answer_instead(move |request| request.url.ends_with("/melt").then(|| overspent(request, &history)));
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "leaves out a refund");
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn refused_operations_do_not_count_as_spent() {
    let (world, wallet, merchant) = ready("KUDOS:8.01").await;
    let before = holdings(&wallet);
    // The exchange books the payment, denies it, and lists it later.
    world.network.change_answers(|request, response| {
        if !is_deposit(request) {
            return response;
        }
        assert_eq!(response.status, 200);
        error(400, 26, &json!({}))
    });
    let refused = wallet.pay(&request(&merchant, "KUDOS:3", 1)).await;
    assert!(matches!(refused, Err(WalletError::Failed { .. })), "{refused:?}");
    world.network.be_honest();
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "which the exchange had refused");
    // The dispute lasts until the user accepts the exchange's current statement.
    wallet.retry_disputed().unwrap();
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "which the exchange had refused");
    assert!(wallet.accept_refused(7).is_err(), "there is no such evidence");
    wallet.accept_refused(1).unwrap();
    check_recovered(&world, &wallet).await;
    assert!(available(&wallet).money < amount("KUDOS:5").money);
    let paid = latest(&wallet, "payment");
    assert!(paid.message.unwrap().contains("which you accepted"));
}

#[tokio::test]
async fn disputed_payments_can_be_cancelled() {
    let (world, wallet, merchant) = ready("KUDOS:20").await;
    let before = holdings(&wallet);
    lie_with_own_deposit(&world, 1);
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
    assert!(available(&wallet).money > amount("KUDOS:19").money);
}

//! Exchanges that understate the balance of a reserve.

use super::*;

#[tokio::test]
async fn false_balances_cost_no_money_in_reserves() {
    // A balance below the bank's transfer, then invalid proofs.
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
        let world = World::new().await;
        let wallet = empty(&world, 1).await;
        world.network.answer_instead(move |request| {
            if request.url.contains("/reserves/") && request.body.is_none() {
                let value = json!({ "balance": "KUDOS:0" });
                return Some(with_json(&HttpResponse { status: 200, ..HttpResponse::default() }, &value));
            }
            request.url.ends_with("withdraw").then(|| {
                let credit = json!({
                    "type": "CREDIT", "amount": "KUDOS:20", "timestamp": START, "wire_reference": 1,
                    "sender_account_url": "payto://x-taler-bank/bank.test/alice?receiver-name=alice",
                });
                let mut value = json!({
                    "balance": "KUDOS:20", "requested_amount": "KUDOS:19.92", "history": [credit],
                });
                alter(&mut value);
                error(409, 1150, &value)
            })
        });
        is_disputed(try_fill(&wallet, amount("KUDOS:20"), CipherChoice::Rsa).await, reason);
        check_disputed(&wallet, wallet.balance().unwrap()[0].disputed.money, reason);
        check_recovered(&world, &wallet).await;
        assert_eq!(available(&wallet), amount("KUDOS:19.8"));
    }
}

#[tokio::test]
async fn a_transfer_below_the_amount_waits_for_the_rest() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let manual = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:10"), CipherChoice::Rsa).await.unwrap();
    world.credit(manual.reserve_pub, amount("KUDOS:4.01")).await;
    let report = wallet.run_pending().await.unwrap();
    let message = report.pending[0].message.clone().unwrap();
    assert!(message.contains("KUDOS:5.99 of your transfer have not reached"), "{message}");
    assert_eq!(available(&wallet), amount("KUDOS:4"));
    assert!(wallet.evidence().is_empty());
    world.credit(manual.reserve_pub, amount("KUDOS:5.99")).await;
    wallet.run_pending().await.unwrap();
    check_recovered(&world, &wallet).await;
    assert_eq!(available(&wallet), amount("KUDOS:9.8"));
}

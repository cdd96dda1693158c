//! Purchases that cannot be paid are given up: the shop gives back what it has deposited.

use super::*;
use batzen_testkit::world::{kill_at_every_point, open_wallet};

/// An order of which the shop has deposited a part of the coins. Returns the operation.
async fn half_paid(wallet: &Wallet, shop: &Shop, id: &str) -> u64 {
    let uri = order(shop, id, "KUDOS:8.5").await;
    shop.set_stop_after(Some(1));
    buy(wallet, &uri).await.unwrap_err();
    assert!(shop.deposited(id) > 0 && !shop.is_paid(id));
    shop.set_stop_after(None);
    wallet.pending().iter().find(|operation| operation.kind == "payment").unwrap().id
}

/// Changes the answers to aborts.
fn answer_aborts(shop: &Shop, mut change: impl FnMut(&mut Value) + Send + 'static) {
    shop.lie(move |request, answer| {
        if !request.url.ends_with("/abort") || answer.status != 200 {
            return answer;
        }
        altered(answer, |body| change(&mut body["refunds"]))
    });
}

#[tokio::test]
async fn the_shop_gives_back_what_it_has_deposited() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:10", CipherChoice::Any).await;
    let before = available(&alice);
    let shop = Shop::open(&world).await;
    let id = half_paid(&alice, &shop, "chair").await;
    alice.abort_purchase(id).await.unwrap();
    settle(&alice).await;
    let failed = row(&alice, id);
    assert_eq!(failed.status, Status::Failed);
    assert_eq!(failed.message.as_deref(), Some("given up by you"));
    assert_eq!(paid(&failed), shop.deposited("chair"), "only what the shop had");
    let refund = latest(&alice, "refund");
    assert_eq!((refund.status, refund.coins), (Status::Done, 1));
    assert_eq!(refund.amount.money.units() as i128, shop.deposited("chair"));
    assert!(available(&alice).money.units() + 50_000_000 > before.money.units(), "only fees are gone");
    for error in [alice.abort_purchase(id).await.unwrap_err(), alice.pick_up_refunds(id).await.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("no coin of it is at the shop") || text.contains("is not paid"), "{text}");
    }
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// Offers expire, and money runs short: the wallet gives up by itself.
#[tokio::test]
async fn a_refused_payment_is_given_up_without_being_asked() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let id = half_paid(&alice, &shop, "chair").await;
    world.set_time(START.saturating_add(Duration::from_days(2))).await;
    settle(&alice).await;
    let failed = row(&alice, id);
    assert_eq!(failed.status, Status::Failed);
    assert!(failed.message.unwrap().contains("code 2161"));
    assert!(failed.refunded.is_some(), "what was deposited is refunded");
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn a_copy_of_the_wallet_may_have_spent_the_rest() {
    let (world, alice, shop) = visit("KUDOS:13").await;
    let copy = copy_of(&alice, &world, 2);
    buy(&copy, &order(&shop, "first", "KUDOS:3.5").await).await.unwrap();
    let error = buy(&alice, &order(&shop, "second", "KUDOS:12").await).await.unwrap_err();
    assert!(error.to_string().contains("not enough money"), "{error}");
    settle(&alice).await;
    assert!(!shop.is_paid("second"));
    if shop.deposited("second") > 0 {
        let kinds: Vec<_> = alice.transactions(false).unwrap().iter().map(|row| row.kind).collect();
        assert!(kinds.contains(&"refund"), "{kinds:?}");
    }
    check_history(&alice);
    world.exchange.check_conservation();
}

#[tokio::test]
async fn a_paid_order_is_not_given_up() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let uri = order(&shop, "chair", "KUDOS:3").await;
    // The receipt is lost.
    shop.lie(|request, answer| if request.url.ends_with("/pay") { with_status(answer, 502) } else { answer });
    buy(&alice, &uri).await.unwrap_err();
    shop.be_honest();
    assert!(shop.is_paid("chair"));
    let id = alice.pending()[0].id;
    alice.abort_purchase(id).await.unwrap();
    let done = row(&alice, id);
    assert_eq!((done.status, done.message), (Status::Done, None));
    assert!(alice.purchase_receipt(id).is_ok());
    let error = alice.abort_purchase(id).await.unwrap_err().to_string();
    assert!(error.contains("it is paid; ask the shop for a refund"), "{error}");
    settle(&alice).await;
    check_books(&world, &[&alice]);
}

/// An exchange that does not answer the shop is asked again, and then the wallet knows the rest.
#[tokio::test]
async fn coins_without_answer_are_asked_for_again() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let id = half_paid(&alice, &shop, "chair").await;
    shop.set_exchange_away(true);
    let error = alice.abort_purchase(id).await.unwrap_err();
    assert!(matches!(&error, WalletError::Pending { .. }), "{error}");
    check_history(&alice);
    // The exchange answers about all but the first coin.
    shop.set_exchange_away(false);
    answer_aborts(&shop, |refunds| {
        if refunds.as_array().unwrap().len() > 1 {
            refunds[0] = json!({ "type": "failure", "exchange_status": 503 });
        }
    });
    let error = alice.abort_purchase(id).await.unwrap_err();
    assert!(matches!(&error, WalletError::Pending { .. }), "{error}");
    check_history(&alice);
    settle(&alice).await;
    assert_eq!(row(&alice, id).status, Status::Failed);
    assert!(row(&alice, id).refunded.is_some());
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// Shops that claim to have deposited nothing are found out by the exchange, and can be asked again.
#[tokio::test]
async fn shops_cannot_keep_what_they_deny() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let id = half_paid(&alice, &shop, "chair").await;
    let taken = shop.deposited("chair");
    // The shop keeps the money: it does not even ask the exchange.
    world.network.answer_instead(|request| {
        let path = request.url.strip_prefix(MERCHANT)?;
        path.ends_with("/abort").then(|| {
            let body: Value = serde_json::from_slice(request.body.as_ref().unwrap()).unwrap();
            let coins = body["coins"].as_array().unwrap().len();
            let nothing = vec![json!({ "type": "failure", "exchange_status": 404 }); coins];
            let body = serde_json::to_vec(&json!({ "refunds": nothing })).unwrap();
            HttpResponse { status: 200, body, ..HttpResponse::default() }
        })
    });
    alice.abort_purchase(id).await.unwrap();
    settle(&alice).await;
    assert_eq!(paid(&row(&alice, id)), taken);
    assert!(row(&alice, id).message.unwrap().contains("the shop had deposited coins of it before"));
    check_history(&alice);
    // Asked again, it gives it back.
    shop.be_honest();
    alice.abort_purchase(id).await.unwrap();
    settle(&alice).await;
    let refunded = row(&alice, id).refunded.unwrap().money.units() as i128;
    assert!(refunded > 0 && refunded < taken);
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn false_answers_to_an_abort_change_nothing() {
    type Forge = fn(&mut Value);
    let cases: [(Forge, &str); 2] = [
        (
            |refunds| {
                for refund in refunds.as_array_mut().unwrap() {
                    *refund = json!({
                        "type": "success", "exchange_status": 200,
                        "exchange_sig": batzen_crypto::EddsaSignature::ZERO,
                        "exchange_pub": EddsaPrivateKey::generate().public_key(),
                    });
                }
            },
            "that it does not publish",
        ),
        (|refunds| drop(refunds.as_array_mut().unwrap().pop()), "answers for"),
    ];
    for (forge, reason) in cases {
        let (world, alice, shop) = visit("KUDOS:10").await;
        let id = half_paid(&alice, &shop, "chair").await;
        let before = available(&alice);
        answer_aborts(&shop, forge);
        let error = alice.abort_purchase(id).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(available(&alice), before);
        shop.be_honest();
        alice.retry_disputed().unwrap();
        settle(&alice).await;
        assert_eq!(row(&alice, id).status, Status::Failed);
        check_books(&world, &[&alice]);
        check_no_loss(&alice);
    }
}

async fn live(alice: &Wallet, shop: &Shop) -> Result<(), WalletError> {
    resume_with(alice, "KUDOS:10").await?;
    if alice.transactions(false)?.iter().all(|row| row.kind != "payment") {
        // The shop's exchange fails after the first coin.
        let _ = buy(alice, &shop.uri("chair", "")).await;
    }
    let rows = alice.transactions(false)?;
    let row = rows.iter().find(|row| row.kind == "payment");
    let Some(row) = row else {
        return Err(WalletError::Failed { operation: 0, message: "again".to_owned() });
    };
    if row.status == Status::Pending {
        alice.abort_purchase(row.id.unwrap()).await?;
    }
    alice.run_pending().await?;
    Ok(())
}

#[tokio::test]
async fn a_kill_at_any_point_of_an_abort_loses_nothing() {
    let begin = async |world: &World| {
        let shop = Shop::open(world).await;
        order(&shop, "chair", "KUDOS:8.5").await;
        shop.set_stop_after(Some(1));
        shop
    };
    let script = async |_: &World, alice: &Wallet, shop: &Shop| live(alice, shop).await;
    let points = kill_at_every_point(3, begin, open_wallet, script, |world, shop, alice, _, context| {
        assert!(alice.pending().is_empty(), "{context}: {:?}", alice.pending());
        let rows = alice.transactions(false).unwrap();
        let failed = rows.iter().find(|row| row.kind == "payment").unwrap();
        assert_eq!((failed.status, paid(failed)), (Status::Failed, shop.deposited("chair")));
        check_books(world, &[&alice]);
        check_no_loss(&alice);
    });
    let points = points.await;
    assert!(points > 30, "the script has {points} points");
}

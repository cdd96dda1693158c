//! Refunds that shops approve are picked up, once, whatever happens in between.

use super::*;
use batzen_testkit::world::{kill_at_every_point, open_wallet};
use batzen_wallet::RunReport;

/// Rows of refunds, oldest first.
fn refunds(wallet: &Wallet) -> Vec<Transaction> {
    let rows = wallet.transactions(false).unwrap();
    rows.into_iter().rev().filter(|row| row.kind == "refund").collect()
}

async fn approve(shop: &Shop, id: &str, sum: &str, seconds: u64) {
    shop.approve(id, sum, START.saturating_add(Duration::from_secs(seconds))).await;
}

async fn pick_up(wallet: &Wallet, id: &str) -> Result<Vec<u64>, WalletError> {
    let purchase = wallet.purchase_of_refund(&Shop::refund_uri(id))?;
    wallet.pick_up_refunds(purchase).await
}

fn picks(shop: &Shop, id: &str) -> usize {
    shop.refunds(id).iter().filter(|refund| refund.exchange_sig.is_some()).count()
}

async fn run_once(wallet: &Wallet) -> RunReport {
    wallet.run_pending().await.unwrap()
}

#[tokio::test]
async fn refunds_come_back_and_those_of_one_time_are_one() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let id = buy(&alice, &order(&shop, "chair", "KUDOS:8.5").await).await.unwrap();
    settle(&alice).await;
    let before = available(&alice);
    assert_eq!(pick_up(&alice, "chair").await.unwrap(), Vec::<u64>::new(), "nothing is approved");

    // One refund of two coins, then another one.
    approve(&shop, "chair", "KUDOS:8.2", 10).await;
    let first = pick_up(&alice, "chair").await.unwrap();
    assert_eq!(first.len(), 1);
    assert_eq!(pick_up(&alice, "chair").await.unwrap(), first, "a refund is credited once");
    approve(&shop, "chair", "KUDOS:0.2", 20).await;
    assert_eq!(pick_up(&alice, "chair").await.unwrap().len(), 2);
    assert!(picks(&shop, "chair") >= 3);
    settle(&alice).await;

    let rows = refunds(&alice);
    assert_eq!((rows[0].amount, rows[1].amount), (amount("KUDOS:8.2"), amount("KUDOS:0.2")), "{rows:#?}");
    assert_eq!((rows[0].status, rows[0].coins > 1), (Status::Done, true));
    assert_eq!(rows[0].merchant.as_deref(), Some("Kiosk"));
    assert!(rows[0].description.starts_with("Refund of Kiosk for \"a chair\": KUDOS:8.2"), "{rows:#?}");
    let fees: Vec<_> = rows.iter().map(|row| row.fees.money.units()).collect();
    let fee = amount("KUDOS:0.01").money.units();
    assert_eq!(fees, [fee * rows[0].coins as u128, fee * rows[1].coins as u128]);
    let paid = row(&alice, id);
    let refunded = amount("KUDOS:8.4").money.units() - fees.iter().sum::<u128>();
    assert_eq!(paid.refunded.unwrap().money.units(), refunded);
    assert!(paid.description.ends_with("refunded"), "{}", paid.description);
    assert!(available(&alice).money > before.checked_add(&amount("KUDOS:8")).unwrap().money);
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

#[tokio::test]
async fn what_was_not_paid_is_not_refunded() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    order(&shop, "chair", "KUDOS:1").await;
    let error = pick_up(&alice, "chair").await.unwrap_err().to_string();
    assert!(error.contains("this wallet has not paid that order"), "{error}");
    let error = alice.purchase_of_refund("taler://pay/shop.test/x/").unwrap_err().to_string();
    assert!(error.contains("it is not about a refund"), "{error}");
    let withdrawal = alice.transactions(false).unwrap()[0].id.unwrap();
    let error = alice.pick_up_refunds(withdrawal).await.unwrap_err().to_string();
    assert!(error.contains("is no purchase"), "{error}");
    // The shop forgets the order.
    let id = buy(&alice, &shop.uri("chair", "")).await.unwrap();
    world.network.answer_instead(|request| {
        request.url.starts_with(MERCHANT).then(|| batzen_testkit::world::error(404, 2005, &json!({})))
    });
    let error = alice.pick_up_refunds(id).await.unwrap_err().to_string();
    assert!(error.contains("code 2005"), "{error}");
    settle(&alice).await;
    check_books(&world, &[&alice]);
}

/// An exchange that does not answer is asked again; one that refuses is not.
#[tokio::test]
async fn open_refunds_are_retried_and_refused_ones_are_final() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    buy(&alice, &order(&shop, "chair", "KUDOS:3").await).await.unwrap();
    settle(&alice).await;
    approve(&shop, "chair", "KUDOS:2", 10).await;
    shop.set_exchange_away(true);
    pick_up(&alice, "chair").await.unwrap();
    let report = run_once(&alice).await;
    let waits = "the exchange has not confirmed the refund to the shop yet";
    assert_eq!(report.pending[0].message.as_deref(), Some(waits), "{report:?}");
    assert_eq!((refunds(&alice)[0].status, refunds(&alice).len()), (Status::Pending, 1));
    check_history(&alice);
    // The user asks twice.
    for _ in 0..2 {
        assert_eq!(pick_up(&alice, "chair").await.unwrap().len(), 1);
    }
    shop.set_exchange_away(false);
    run_once(&alice).await;
    assert_eq!(refunds(&alice)[0].status, Status::Done);
    settle(&alice).await;
    check_books(&world, &[&alice]);

    // Too late: the shop has been paid.
    approve(&shop, "chair", "KUDOS:0.5", 20).await;
    lie(&shop, "/refund", |body| {
        let last = body["refunds"].as_array_mut().unwrap().last_mut().unwrap();
        last["type"] = json!("failure");
        last["exchange_status"] = json!(410);
    });
    pick_up(&alice, "chair").await.unwrap();
    let failed = refunds(&alice).pop().unwrap();
    assert_eq!((failed.status, failed.effect.as_str()), (Status::Failed, "+KUDOS:0"));
    assert!(failed.message.unwrap().contains("too late"));
    settle(&alice).await;
    // The exchange has refunded after all: its word counts.
    shop.be_honest();
    approve(&shop, "chair", "KUDOS:0.1", 30).await;
    pick_up(&alice, "chair").await.unwrap();
    assert!(refunds(&alice).iter().all(|row| row.status == Status::Done), "{:#?}", refunds(&alice));
    settle_without_loss(&world, &alice).await;
}

/// Nothing is credited that the exchange has not signed, or that exceeds what was paid.
#[tokio::test]
async fn false_refunds_are_kept_as_evidence() {
    type Forge = fn(&mut Value);
    let cases: [(Forge, &str); 6] = [
        (|entry| entry["exchange_sig"] = json!(batzen_crypto::EddsaSignature::ZERO), "invalid signature"),
        (|entry| entry["refund_amount"] = json!("KUDOS:0.3"), "invalid signature"),
        (|entry| entry["refund_amount"] = json!("KUDOS:9"), "exceed what it paid"),
        (|entry| entry["refund_amount"] = json!("KUDOS:0.001"), "smaller than the refund fee"),
        (|entry| entry["coin_pub"] = json!(EddsaPrivateKey::generate().public_key()), "has not paid"),
        (|entry| entry["rtransaction_id"] = json!(77), "invalid signature"),
    ];
    for (n, (forge, reason)) in cases.into_iter().enumerate() {
        let world = World::new().await;
        let alice = filled(&world, n as u64, "KUDOS:10", CipherChoice::Any).await;
        let shop = Shop::open(&world).await;
        buy(&alice, &order(&shop, "chair", "KUDOS:3").await).await.unwrap();
        settle(&alice).await;
        approve(&shop, "chair", "KUDOS:0.5", 10).await;
        let before = alice.balance().unwrap();
        lie(&shop, "/refund", move |body| forge(&mut body["refunds"][0]));
        let error = pick_up(&alice, "chair").await.unwrap_err();
        assert!(matches!(&error, WalletError::Disputed { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
        assert!(alice.evidence()[0].purchase.is_some(), "the contract is part of the evidence");
        assert_eq!((alice.balance().unwrap(), refunds(&alice).len()), (before, 0));
        // It is asked again later, and the truth counts.
        shop.be_honest();
        alice.retry_disputed().unwrap();
        run_once(&alice).await;
        assert_eq!(refunds(&alice).len(), 1);
        settle(&alice).await;
        assert!(alice.evidence().iter().all(|item| item.settled.is_some()));
        check_books(&world, &[&alice]);
    }
}

#[tokio::test]
async fn promised_refunds_are_picked_up_without_being_asked_for() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let promise = |contract: &mut Value| contract["auto_refund"] = json!({ "d_us": 600_000_000_u64 });
    buy(&alice, &shop.order("drink", "KUDOS:3", promise).await).await.unwrap();
    let report = run_once(&alice).await;
    assert_eq!((report.pending.len(), report.pending[0].kind), (1, "pick-up"), "{report:?}");
    assert_eq!(report.pending[0].until, Some(START.saturating_add(Duration::from_secs(600))));
    assert!(refunds(&alice).is_empty());
    // The machine is empty; then it finds something after all, twice.
    for (sum, seconds) in [("KUDOS:1", 10), ("KUDOS:0.5", 20)] {
        approve(&shop, "drink", sum, seconds).await;
        world.set_time(START.saturating_add(Duration::from_secs(seconds))).await;
        assert!(!run_once(&alice).await.pending.is_empty());
    }
    assert_eq!(refunds(&alice).len(), 2);
    // A refund that the exchange confirms later does not end with the period.
    shop.set_exchange_away(true);
    approve(&shop, "drink", "KUDOS:0.2", 30).await;
    run_once(&alice).await;
    world.set_time(START.saturating_add(Duration::from_secs(601))).await;
    let pending = run_once(&alice).await.pending;
    assert_eq!((pending.len(), pending[0].kind), (1, "refund"), "{pending:?}");
    shop.set_exchange_away(false);
    settle(&alice).await;
    assert_eq!(refunds(&alice).len(), 3);
    check_books(&world, &[&alice]);
    check_no_loss(&alice);

    // Without refund period there is nothing to wait for.
    let uri = shop
        .order("snack", "KUDOS:1", |contract| {
            promise(contract);
            contract["refund_deadline"] = contract["timestamp"].clone();
        })
        .await;
    buy(&alice, &uri).await.unwrap();
    settle(&alice).await;
    let uri = order(&shop, "odd", "KUDOS:1").await;
    shop.forge_contracts(|contract| contract["auto_refund"] = json!("ten minutes"));
    let error = buy(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("auto_refund is malformed"), "{error}");
}

#[tokio::test]
async fn pick_ups_and_open_refunds_can_be_given_up() {
    let (world, alice, shop) = visit("KUDOS:10").await;
    let promise = |contract: &mut Value| contract["auto_refund"] = json!({ "d_us": "forever" });
    buy(&alice, &shop.order("drink", "KUDOS:3", promise).await).await.unwrap();
    let pending = run_once(&alice).await.pending;
    assert_eq!(pending[0].until, Some(START.saturating_add(Duration::from_days(1))), "the refund period");
    approve(&shop, "drink", "KUDOS:1", 10).await;
    shop.set_exchange_away(true);
    for operation in run_once(&alice).await.pending {
        alice.cancel(operation.id).unwrap();
    }
    // The user may still ask.
    shop.set_exchange_away(false);
    approve(&shop, "drink", "KUDOS:0.1", 20).await;
    pick_up(&alice, "drink").await.unwrap();
    assert!(refunds(&alice).iter().all(|row| row.status == Status::Done));
    settle(&alice).await;
    check_books(&world, &[&alice]);
}

/// The script. People follow the links again until they work.
async fn live(alice: &Wallet, shop: &Shop) -> Result<(), WalletError> {
    resume_with(alice, "KUDOS:7.3").await?;
    buy(alice, &shop.uri("chair", "")).await?;
    alice.run_pending().await?;
    for (seconds, sum) in [(10, "KUDOS:2"), (20, "KUDOS:1.5")] {
        let is_new = {
            let time = START.saturating_add(Duration::from_secs(seconds));
            shop.refunds("chair").iter().all(|refund| refund.time != time)
        };
        if is_new {
            approve(shop, "chair", sum, seconds).await;
        }
        pick_up(alice, "chair").await?;
        alice.run_pending().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_kill_at_any_point_of_a_refund_loses_nothing() {
    let begin = async |world: &World| {
        let shop = Shop::open(world).await;
        order(&shop, "chair", "KUDOS:5.2").await;
        shop
    };
    let script = async |_: &World, alice: &Wallet, shop: &Shop| live(alice, shop).await;
    let points = kill_at_every_point(3, begin, open_wallet, script, |world, _, alice, _, context| {
        let rows: Vec<_> = refunds(&alice).into_iter().map(|row| (row.status, row.amount)).collect();
        let expected = [(Status::Done, amount("KUDOS:2")), (Status::Done, amount("KUDOS:1.5"))];
        assert_eq!(rows, expected, "{context}");
        assert!(alice.pending().is_empty(), "{context}: {:?}", alice.pending());
        check_books(world, &[&alice]);
        check_no_loss(&alice);
        assert_eq!(world.network.conflicts(), 0, "no coin was spent twice");
    });
    let points = points.await;
    assert!(points > 40, "the script has {points} points");
}

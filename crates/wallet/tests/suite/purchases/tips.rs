//! Tips become coins, once, whatever happens in between.

use super::*;
use batzen_testkit::world::{kill_at_every_point, open_wallet};
use batzen_wallet::TipUri;

async fn tip(world: &World, shop: &Shop, id: &str, sum: &str) -> TipUri {
    TipUri::parse(&shop.tip(world, id, sum).await).unwrap()
}

/// A world with a shop, and a wallet without money.
async fn guest() -> (World, Wallet, Shop) {
    let world = World::new().await;
    let (alice, shop) = (empty(&world, 1).await, Shop::open(&world).await);
    (world, alice, shop)
}

async fn accept(wallet: &Wallet, uri: &TipUri) -> Result<u64, WalletError> {
    match wallet.with_state(|state| uri.known(state)) {
        Some(id) => wallet.finish_tip(id).await,
        None => {
            let offer = wallet.inspect_tip(uri).await?;
            wallet.accept_tip(&offer).await
        }
    }
}

#[tokio::test]
async fn a_tip_becomes_coins_that_can_be_spent() {
    let (world, alice, shop) = guest().await;
    let uri = tip(&world, &shop, "thanks", "KUDOS:3.17").await;
    let offer = alice.inspect_tip(&uri).await.unwrap();
    assert_eq!((offer.amount, offer.exchange_url.as_str()), (amount("KUDOS:3.17"), EXCHANGE));
    let id = accept(&alice, &uri).await.unwrap();
    // 2 + 1 + 0.1, each for a fee of 0.01; the rest fits no coin.
    let done = row(&alice, id);
    assert_eq!((done.kind, done.status, done.coins), ("tip", Status::Done, 3));
    assert_eq!((done.amount, done.fees), (amount("KUDOS:3.13"), amount("KUDOS:0.03")));
    assert_eq!(done.effect, "+KUDOS:3.1");
    assert_eq!(done.merchant.as_deref(), Some(MERCHANT));
    assert_eq!(available(&alice), amount("KUDOS:3.1"));
    let given = shop.tip_row("thanks");
    assert_eq!(given.amount.checked_sub(given.picked_up).unwrap(), amount("KUDOS:0.04").money);
    assert_eq!(accept(&alice, &uri).await.unwrap(), id, "a tip is picked up once");
    assert_eq!(shop.pickups("thanks"), 1);
    buy(&alice, &order(&shop, "coffee", "KUDOS:2.5").await).await.unwrap();
    settle_without_loss(&world, &alice).await;
}

#[tokio::test]
async fn what_is_no_tip_any_more_is_refused() {
    let (world, alice, shop) = guest().await;
    for (uri, reason) in
        [("taler://tip/", "taler URI"), ("taler://pay/shop.test/x/", "it is not about a tip")]
    {
        let error = TipUri::parse(uri).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let unknown = TipUri::parse("taler+http://tip/shop.test/instances/kiosk/never").unwrap();
    let error = accept(&alice, &unknown).await.unwrap_err().to_string();
    assert!(error.contains("the shop knows no such tip"), "{error}");
    let small = tip(&world, &shop, "small", "KUDOS:0.1").await;
    let error = accept(&alice, &small).await.unwrap_err().to_string();
    assert!(error.contains("is too little"), "{error}");
    // Two wallets see it, one gets it.
    let uri = tip(&world, &shop, "thanks", "KUDOS:2").await;
    let bob = empty(&world, 2).await;
    let (first, second) = (alice.inspect_tip(&uri).await.unwrap(), bob.inspect_tip(&uri).await.unwrap());
    alice.accept_tip(&first).await.unwrap();
    let error = bob.accept_tip(&second).await.unwrap_err();
    assert!(matches!(&error, WalletError::Failed { .. }), "{error}");
    assert!(error.to_string().contains("code 2406"), "{error}");
    // It expires with its reserve, while the request is under way.
    let uri = tip(&world, &shop, "late", "KUDOS:2").await;
    let offer = alice.inspect_tip(&uri).await.unwrap();
    world.network.break_path("/pickup", 503);
    alice.accept_tip(&offer).await.unwrap_err();
    world.set_time(START.saturating_add(Duration::from_days(29))).await;
    world.network.repair();
    let error = accept(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("code 2405"), "{error}");
    let error = accept(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("the tip has expired"), "{error}");
    check_books(&world, &[&alice, &bob]);
    assert!(alice.pending().is_empty() && bob.pending().is_empty());
}

#[tokio::test]
async fn the_terms_of_the_exchange_come_first() {
    let world = World::new().await;
    let shop = Shop::open(&world).await;
    let alice = Wallet::in_memory_with(world.options(1));
    let uri = tip(&world, &shop, "thanks", "KUDOS:2").await;
    let error = accept(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("does not know the exchange"), "{error}");
    alice.add_exchange(EXCHANGE).await.unwrap();
    let error = accept(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("are not accepted yet"), "{error}");
    alice.accept_terms(EXCHANGE).unwrap();
    accept(&alice, &uri).await.unwrap();
    check_books(&world, &[&alice]);
}

/// An exchange that does not answer the shop is asked again, with the same planchets.
#[tokio::test]
async fn a_tip_without_answer_is_asked_for_again() {
    let (world, alice, shop) = guest().await;
    let uri = tip(&world, &shop, "thanks", "KUDOS:5").await;
    shop.set_exchange_away(true);
    accept(&alice, &uri).await.unwrap_err();
    assert_eq!(alice.pending()[0].kind, "tip");
    check_history(&alice);
    shop.set_exchange_away(false);
    // The answer is lost, and then false.
    for _ in 0..2 {
        lie(&shop, "/pickup", |body| body["blind_sigs"].as_array_mut().unwrap().swap(0, 1));
        let error = accept(&alice, &uri).await.unwrap_err();
        assert!(matches!(&error, WalletError::Disputed { .. }), "{error}");
        assert!(alice.coins().is_empty());
        check_history(&alice);
    }
    shop.be_honest();
    alice.retry_disputed().unwrap();
    settle(&alice).await;
    assert_eq!(shop.pickups("thanks"), 1);
    assert_eq!(available(&alice).money.units(), amount("KUDOS:4.9").money.units());
    check_books(&world, &[&alice]);
    check_no_loss(&alice);
}

/// Nobody but the shop could have the money back of a revoked denomination.
#[tokio::test]
async fn revoked_coins_of_a_tip_are_lost() {
    let (world, alice, shop) = guest().await;
    accept(&alice, &tip(&world, &shop, "thanks", "KUDOS:2.02").await).await.unwrap();
    let h_denom_pub = alice.coins()[0].h_denom_pub;
    world.exchange.revoke(|denom| denom.h_denom_pub == h_denom_pub).await;
    alice.add_exchange(EXCHANGE).await.unwrap();
    settle(&alice).await;
    check_history(&alice);
    let lost = alice.history(false).unwrap().transactions;
    assert!(lost.iter().any(|row| row.kind == "expired"), "{lost:#?}");
    assert!(lost.iter().all(|row| row.kind != "recoup"), "{lost:#?}");
}

#[tokio::test]
async fn a_kill_at_any_point_of_a_tip_loses_nothing() {
    async fn live(alice: &Wallet, uri: &TipUri) -> Result<(), WalletError> {
        resume(alice).await?;
        accept(alice, uri).await?;
        alice.run_pending().await?;
        Ok(())
    }
    let begin = async |world: &World| {
        let shop = Shop::open(world).await;
        let uri = tip(world, &shop, "thanks", "KUDOS:3.2").await;
        (shop, uri)
    };
    let script = async |_: &World, alice: &Wallet, (_, uri): &(Shop, TipUri)| live(alice, uri).await;
    let points = kill_at_every_point(1, begin, open_wallet, script, |world, (shop, _), alice, _, context| {
        assert!(alice.pending().is_empty(), "{context}: {:?}", alice.pending());
        assert_eq!((shop.pickups("thanks"), available(&alice)), (1, amount("KUDOS:3.1")));
        check_books(world, &[&alice]);
        check_no_loss(&alice);
    });
    let points = points.await;
    assert!(points > 10, "the script has {points} points");
}

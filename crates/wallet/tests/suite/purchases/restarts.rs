//! Wallets that are killed at any point of a purchase lose nothing and pay nothing twice.

use super::*;
use batzen_testkit::world::{check_settled, kill_at_every_point, open_wallet};

/// The script. Each part is skipped if an earlier run got that far, as people would do.
async fn live(alice: &Wallet, shop: &Shop) -> Result<(), WalletError> {
    resume_with(alice, "KUDOS:7.3").await?;
    // People follow the link again until it is paid.
    buy(alice, &shop.uri("coffee", "A")).await?;
    alice.run_pending().await?;
    buy(alice, &shop.uri("article", "B")).await?;
    buy(alice, &shop.uri("article", "C")).await?;
    alice.run_pending().await?;
    Ok(())
}

async fn shop_with_orders(world: &World) -> Shop {
    let shop = Shop::open(world).await;
    order(&shop, "coffee", "KUDOS:2.7").await;
    shop.order("article", "KUDOS:1.3", |contract| {
        contract["fulfillment_url"] = json!("https://shop.test/article");
    })
    .await;
    shop
}

fn check(world: &World, shop: &Shop, alice: &Wallet, context: &str) {
    check_settled(world, &[alice], context);
    check_no_loss(alice);
    for id in ["coffee", "article"] {
        assert!(shop.is_paid(id), "{context}: {id}");
    }
    assert!(sessions(shop, "article").contains(&"C"), "{context}");
}

#[tokio::test]
async fn a_kill_at_any_point_of_a_purchase_loses_nothing() {
    let mut reference = None;
    let begin = async |world: &World| shop_with_orders(world).await;
    let script = async |_: &World, alice: &Wallet, shop: &Shop| live(alice, shop).await;
    let points =
        kill_at_every_point(3, begin, open_wallet, script, |world, shop, alice, directory, context| {
            check(world, shop, &alice, context);
            let story: Vec<_> = alice
                .transactions(false)
                .unwrap()
                .into_iter()
                .map(|row| (row.kind, row.status, row.effect))
                .collect();
            drop(alice);
            check(world, shop, &open_wallet(world, directory, 1), context);
            let reference = reference.get_or_insert_with(|| story.clone());
            assert_eq!(*reference, story, "{context}");
        });
    let points = points.await;
    assert!(points > 40, "the script has {points} points");
}

#[tokio::test]
async fn lost_answers_change_nothing_about_a_purchase() {
    for lose_every in [2, 3, 5] {
        let world = World::new().await;
        let shop = shop_with_orders(&world).await;
        let alice = Wallet::in_memory_with(world.options(lose_every));
        world.network.lose_every.store(lose_every, std::sync::atomic::Ordering::SeqCst);
        let mut tries = 0;
        while let Err(error) = live(&alice, &shop).await {
            assert!(matches!(error, WalletError::NoAnswer(_)), "{error}");
            tries += 1;
            assert!(tries < 30);
        }
        world.network.lose_every.store(0, std::sync::atomic::Ordering::SeqCst);
        alice.run_pending().await.unwrap();
        check(&world, &shop, &alice, &format!("one answer of {lose_every} lost"));
    }
}

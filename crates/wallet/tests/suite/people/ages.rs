//! Age-restricted coins, and payments that require an age.

use super::*;
use batzen_testkit::world::Ages;
use batzen_wallet::CoinWish;
use batzen_wallet::core::CoreError;

async fn world_with(ages: Ages) -> World {
    World::with(Terms { ages, ..Terms::default() }).await
}

async fn withdraw(wallet: &Wallet, sum: &str, cipher: CipherChoice, age_limit: Option<u8>) {
    fill(wallet, sum, CoinWish { cipher, age_limit }).await;
}

fn from(age: u32, sum: &str) -> PeerRequest {
    PeerRequest { min_age: age, ..of(sum) }
}

/// Coins of both ciphers keep their limit through payments and change.
#[tokio::test]
async fn a_child_pays_only_what_her_age_allows() {
    for cipher in [CipherChoice::Rsa, CipherChoice::Cs] {
        let world = world_with(Ages::Beside).await;
        let child = empty(&world, 1).await;
        let shop = empty(&world, 2).await;
        withdraw(&child, "KUDOS:9.1", cipher, Some(14)).await;
        let limits = |wallet: &Wallet| -> Vec<Option<u8>> {
            wallet.coins().iter().map(|coin| coin.age.as_ref().map(|age| age.limit)).collect()
        };
        assert!(limits(&child).iter().all(|limit| *limit == Some(14)));
        // For everybody, for those of 14 and 15, and for adults.
        for (age, sum, allowed) in [(0, "KUDOS:1.5", true), (15, "KUDOS:1.5", true), (16, "KUDOS:1", false)] {
            let id = shop.request_money(&from(age, sum)).await.unwrap();
            let asked = child.inspect_peer(&uri(&shop, id)).await.unwrap();
            assert_eq!(asked.terms.min_age, age);
            match child.accept_peer(&asked).await {
                Ok(_) => assert!(allowed, "{age}"),
                Err(WalletError::Core(CoreError::AgeNotProven { min_age, .. })) => {
                    assert!(!allowed && min_age == age);
                    shop.cancel(id).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
            settle(&[&child, &shop]).await;
        }
        let rows = child.transactions(true).unwrap();
        assert!(rows.iter().any(|row| row.kind == "refresh"), "change was made");
        assert!(limits(&child).iter().all(|limit| *limit == Some(14)), "and kept the limit");
        assert!(limits(&shop).iter().all(Option::is_none));
        check_books(&world, &[&child, &shop]);
        // An adult's coins in the same wallet can pay.
        withdraw(&child, "KUDOS:3.1", cipher, None).await;
        let id = child.send_money(&from(18, "KUDOS:2")).await.unwrap();
        accept(&shop, &uri(&child, id)).await;
        settle(&[&child, &shop]).await;
        check_books(&world, &[&child, &shop]);
    }
}

/// Merchants and bank accounts get age-restricted coins like others, and revoked ones are paid back.
#[tokio::test]
async fn age_restricted_coins_do_what_others_do() {
    let world = world_with(Ages::Beside).await;
    let child = empty(&world, 1).await;
    withdraw(&child, "KUDOS:5", CipherChoice::Rsa, Some(10)).await;
    let payto = "payto://x-taler-bank/bank.test/child?receiver-name=child";
    let part = batzen_wallet::DepositAmount::Exact(amount("KUDOS:1.2"));
    child.deposit(EXCHANGE, part, payto).await.unwrap();
    settle(&[&child]).await;
    check_books(&world, &[&child]);
    let small = [money("KUDOS:0.1"), money("KUDOS:1")];
    world.exchange.revoke(|denom| denom.public.age_mask != 0 && small.contains(&denom.value)).await;
    child.add_exchange(EXCHANGE).await.unwrap();
    child.run_pending().await.unwrap();
    assert!(child.transactions(false).unwrap().iter().any(|row| row.kind == "recoup"));
    check_books(&world, &[&child]);
}

/// Money is received without age limit. At an exchange that offers only coins with age groups, every coin
/// gets a commitment that can prove any age.
#[tokio::test]
async fn coins_without_limit_can_prove_any_age() {
    let world = world_with(Ages::Only).await;
    let alice = filled(&world, 1, "KUDOS:5", CipherChoice::Any).await;
    let bob = empty(&world, 2).await;
    let id = alice.send_money(&from(21, "KUDOS:2")).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    settle(&[&bob, &alice]).await;
    for coin in bob.coins() {
        assert!(coin.age.as_ref().is_some_and(|age| age.can_attest(99)), "{:?}", coin.age);
    }
    check_books(&world, &[&alice, &bob]);
}

#[tokio::test]
async fn an_exchange_without_age_groups_cannot_limit_ages() {
    let world = World::new().await;
    let wallet = empty(&world, 1).await;
    let wish = CoinWish { cipher: CipherChoice::Any, age_limit: Some(12) };
    let error = wallet.withdraw_manual(EXCHANGE, amount("KUDOS:5"), wish).await.unwrap_err();
    assert!(error.to_string().contains("no coins with an age limit"), "{error}");
}

//! Coins of several exchanges pay for one purchase, with the wire fee of each.

use super::*;
use batzen_testkit::world::{SECOND, Site};

/// A second exchange beside that of the world.
async fn second(world: &World, fee_wire: u64) -> Site {
    world.second(Terms { fee_wire, ..Terms::default() }).await
}

/// Withdraws from the second exchange.
async fn withdraw(world: &World, wallet: &Wallet, second: &Site, sum: &str) {
    wallet.add_exchange(SECOND).await.unwrap();
    wallet.accept_terms(SECOND).unwrap();
    let manual = wallet.withdraw_manual(SECOND, amount(sum), CipherChoice::Any).await.unwrap();
    world.credit_at(second, manual.reserve_pub, amount(sum)).await;
    wallet.finish(manual.operation).await.unwrap();
}

/// The books of each exchange agree with the wallet's, coin by coin.
fn check_both(world: &World, second: &Site, wallet: &Wallet) {
    check_history(wallet);
    world.exchange.check_conservation();
    second.check_conservation();
    for coin in wallet.coins() {
        let exchange = if coin.exchange == SECOND { second } else { &world.exchange };
        let value = exchange.value(&coin.h_denom_pub);
        let remaining = exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
        assert_eq!(remaining, coin.remaining, "coin {} in state {:?}", coin.coin_pub, coin.status);
    }
}

#[tokio::test]
async fn coins_of_two_exchanges_pay_if_one_does_not_suffice() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:5", CipherChoice::Any).await;
    let other = second(&world, 7).await;
    withdraw(&world, &alice, &other, "KUDOS:4").await;
    let shop = Shop::open_for_both(&world, &other).await;
    // One exchange suffices: no second wire fee.
    let id = buy(&alice, &order(&shop, "tea", "KUDOS:1").await).await.unwrap();
    assert_eq!(alice.purchase_receipt(id).unwrap().exchanges.len(), 1);
    settle(&alice).await;

    let uri = shop
        .order("chair", "KUDOS:6.5", |contract| {
            contract["max_fee"] = json!("KUDOS:0");
            contract["max_wire_fee"] = json!("KUDOS:0.03");
            contract["wire_fee_amortization"] = json!(2);
        })
        .await;
    let id = buy(&alice, &uri).await.unwrap();
    assert!(shop.is_paid("chair"));
    let receipt = alice.purchase_receipt(id).unwrap();
    assert_eq!(receipt.exchanges, [EXCHANGE, SECOND]);
    // Wire fees of 0.02 and 0.07, of which the shop bears 0.03 and half of the rest.
    let deposit_fees: i128 = shop.deposits("chair").iter().map(|row| row.deposit_fee.units() as i128).sum();
    let fees = receipt.fees.money.units() as i128;
    assert!(fees >= deposit_fees + 3_000_000, "{fees} {deposit_fees}");
    assert_eq!(paid(&row(&alice, id)), shop.deposited("chair"));
    settle(&alice).await;
    check_both(&world, &other, &alice);

    // A refund goes to the coins of both.
    shop.approve("chair", "KUDOS:6.4", START.saturating_add(Duration::from_secs(10))).await;
    assert_eq!(alice.pick_up_refunds(id).await.unwrap().len(), 1);
    settle(&alice).await;
    check_both(&world, &other, &alice);
    check_no_loss(&alice);
}

#[tokio::test]
async fn what_two_exchanges_cannot_pay_is_refused_at_once() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:3", CipherChoice::Any).await;
    let other = second(&world, 2).await;
    withdraw(&world, &alice, &other, "KUDOS:2").await;
    let shop = Shop::open_for_both(&world, &other).await;
    let uri = order(&shop, "car", "KUDOS:5").await;
    let error = buy(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("not enough money") && error.contains("KUDOS:4.8 available"), "{error}");
    // The shop does not accept the second exchange.
    shop.forge_contracts(|contract| drop(contract["exchanges"].as_array_mut().unwrap().pop()));
    let uri = order(&shop, "sofa", "KUDOS:4").await;
    let error = buy(&alice, &uri).await.unwrap_err().to_string();
    assert!(error.contains("KUDOS:2.9 available"), "{error}");
    assert_eq!(shop.pays(), 0);
    check_both(&world, &other, &alice);
}

/// The first coins are gone: those of the other exchange take their place, and what the shop has stays.
#[tokio::test]
async fn coins_that_are_spent_are_replaced_by_those_of_another_exchange() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:8.5", CipherChoice::Any).await;
    let copy = copy_of(&alice, &world, 2);
    let other = second(&world, 2).await;
    withdraw(&world, &alice, &other, "KUDOS:9").await;
    let shop = Shop::open_for_both(&world, &other).await;
    buy(&copy, &order(&shop, "first", "KUDOS:8").await).await.unwrap();
    // Only the first exchange has enough small coins; the copy has spent the large one.
    let uri = order(&shop, "second", "KUDOS:8.3").await;
    let id = buy(&alice, &uri).await.unwrap();
    assert!(shop.is_paid("second"));
    settle(&alice).await;
    assert_eq!(paid(&row(&alice, id)), shop.deposited("second"));
    assert!(alice.purchase_receipt(id).unwrap().exchanges.contains(&SECOND.to_owned()));
    assert!(alice.evidence().is_empty());
    check_history(&alice);
}

#[tokio::test]
async fn a_purchase_at_two_exchanges_is_given_up() {
    let world = World::new().await;
    let alice = filled(&world, 1, "KUDOS:5", CipherChoice::Any).await;
    let other = second(&world, 2).await;
    withdraw(&world, &alice, &other, "KUDOS:5").await;
    let shop = Shop::open_for_both(&world, &other).await;
    let uri = order(&shop, "chair", "KUDOS:9").await;
    shop.set_stop_after(Some(2));
    buy(&alice, &uri).await.unwrap_err();
    let balance = alice.balance().unwrap().remove(0);
    assert!(balance.exchanges.iter().all(|part| !part.pending_outgoing.is_zero()), "{balance:#?}");
    shop.set_stop_after(None);
    let id = alice.pending()[0].id;
    alice.abort_purchase(id).await.unwrap();
    settle(&alice).await;
    assert_eq!(row(&alice, id).status, Status::Failed);
    assert!(row(&alice, id).refunded.is_some());
    check_both(&world, &other, &alice);
    check_no_loss(&alice);
}

/// The best that any coins of any exchanges could pay, in cents: whole coins, after all fees that the payer bears.
fn best(world: &World, second: &Site, wallet: &Wallet, contract: (i128, i128, i128)) -> i128 {
    let (max_fee, max_wire_fee, amortization) = contract;
    let cent = 1_000_000;
    let sums = |url: &str| {
        let coins = wallet.coins().into_iter().filter(|coin| coin.exchange == url);
        coins.fold((0, 0), |(value, fee), coin| (value + coin.remaining.units() as i128, fee + cent))
    };
    let wire = |exchange: &Site| i128::from(exchange.terms.fee_wire) * cent;
    let one = (sums(EXCHANGE), wire(&world.exchange));
    let two = (sums(SECOND), wire(second));
    let sets = [vec![one], vec![two], vec![one, two]];
    let worth = |set: &Vec<((i128, i128), i128)>| {
        let value: i128 = set.iter().map(|((value, _), _)| value).sum();
        let fees: i128 = set.iter().map(|((_, fee), _)| fee).sum();
        let wire: i128 = set.iter().map(|(_, wire)| wire).sum();
        value - (fees + (wire - max_wire_fee).max(0) / amortization - max_fee).max(0)
    };
    sets.iter().map(worth).max().unwrap()
}

/// Prices around what the wallet can just pay, with different fees: the shop always accepts what the wallet offers,
/// and the wallet refuses only what no choice of coins could pay.
#[tokio::test]
async fn the_wallet_and_the_shop_agree_about_every_price() {
    let mut refused = 0;
    for (n, (max_fee, max_wire, amortization, wires)) in
        [(0, 0, 1, (2, 7)), (3, 5, 1, (30, 1)), (0, 9, 2, (4, 50)), (50, 0, 1, (40, 40)), (0, 0, 3, (0, 100))]
            .into_iter()
            .enumerate()
    {
        for price in [250, 405, 493, 497, 500, 505, 512, 530, 540, 545, 550, 560] {
            let world = World::with(Terms { fee_wire: wires.0, ..Terms::default() }).await;
            let alice = filled(&world, 100 * n as u64 + price, "KUDOS:3.3", CipherChoice::Any).await;
            let other = second(&world, wires.1).await;
            withdraw(&world, &alice, &other, "KUDOS:2.4").await;
            let shop = Shop::open_for_both(&world, &other).await;
            let money = |cents: u64| format!("KUDOS:{}.{:02}", cents / 100, cents % 100);
            let uri = shop
                .order("thing", &money(price), |contract| {
                    contract["max_fee"] = json!(money(max_fee));
                    contract["max_wire_fee"] = json!(money(max_wire));
                    contract["wire_fee_amortization"] = json!(amortization);
                })
                .await;
            let cents = |n: u64| i128::from(n) * 1_000_000;
            let best = best(&world, &other, &alice, (cents(max_fee), cents(max_wire), amortization));
            let context = format!("case {n}, price {price}, best {best}");
            match buy(&alice, &uri).await {
                Ok(_) => assert!(shop.is_paid("thing") && cents(price) <= best, "{context}"),
                Err(error) => {
                    assert!(matches!(error, WalletError::Core(_)), "{context}: {error}");
                    assert!(cents(price) > best, "{context}: {error}");
                    refused += 1;
                }
            }
            settle(&alice).await;
            check_both(&world, &other, &alice);
        }
    }
    assert!(refused > 5 && refused < 55, "{refused} prices were refused");
}

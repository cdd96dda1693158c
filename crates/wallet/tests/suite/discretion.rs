//! Wallets with discretion: change that waits, assortments of coins, common sums. None of it may lose money.

use std::path::Path;

use batzen_crypto::EddsaPrivateKey;
use batzen_protocol::{Duration, Money};
use batzen_testkit::world::{
    EXCHANGE, START, World, amount, check_books, check_settled, kill_at_every_point, open_wallet,
};
use batzen_wallet::core::{Change, CoreError, refresh};
use batzen_wallet::{
    CipherChoice, Coin, CoinStatus, DepositAmount, Discretion, PaymentRequest, Wallet, WalletError,
};

use crate::common::{PAYTO, count, fill, join, request, resume, try_fill};

const HALF_DAY: Duration = Duration::from_secs(12 * 3_600);

const PATIENT: Discretion = Discretion { round_sums: false, assortment: false, refresh_delay: HALF_DAY };
const DISCREET: Discretion = Discretion { round_sums: true, assortment: true, refresh_delay: HALF_DAY };

fn pay(sum: &str, contract: u8) -> PaymentRequest {
    request(&EddsaPrivateKey::from_bytes([3; 32]), sum, contract)
}

async fn ready(file: &Path, world: &World, discretion: Discretion, sum: &str) -> Wallet {
    let wallet = Wallet::open_with(file, world.options(1)).unwrap();
    join(&wallet).await;
    wallet.set_discretion(EXCHANGE, discretion).unwrap();
    fill(&wallet, sum, CipherChoice::Rsa).await;
    wallet
}

fn refreshes(wallet: &Wallet) -> usize {
    count(wallet, "refresh")
}

fn waiting(wallet: &Wallet) -> Money {
    wallet.with_state(|state| refresh::waiting_change(state, EXCHANGE)).unwrap()
}

#[tokio::test]
async fn waiting_change_survives_a_restart_and_is_refreshed_at_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wallet.db");
    let world = World::new().await;
    let wallet = ready(&file, &world, PATIENT, "KUDOS:8.5").await;
    wallet.pay(&pay("KUDOS:2.5", 1)).await.unwrap();
    wallet.run_pending().await.unwrap();
    let balance = wallet.balance().unwrap()[0].clone();
    assert_eq!((refreshes(&wallet), waiting(&wallet)), (0, balance.pending_incoming.money));
    assert!(!waiting(&wallet).is_zero() && balance.dust.is_zero(), "{balance:?}");
    check_books(&world, &[&wallet]);
    let due = wallet.with_state(refresh::next_due).unwrap();
    assert!(due > START && due <= START.saturating_add(HALF_DAY));
    drop(wallet);

    // The time was drawn once and is in the file. An update of the exchange keeps the options.
    let wallet = Wallet::open_with(&file, world.options(2)).unwrap();
    wallet.add_exchange(EXCHANGE).await.unwrap();
    wallet.run_pending().await.unwrap();
    assert_eq!(wallet.with_state(refresh::next_due), Some(due));
    assert_eq!(wallet.with_state(|state| state.exchanges[EXCHANGE].discretion), PATIENT);
    world.set_time(due).await;
    wallet.run_pending().await.unwrap();
    assert_eq!((refreshes(&wallet), waiting(&wallet)), (1, Money::ZERO));
    assert_eq!(wallet.with_state(refresh::next_due), None);
    assert!(wallet.balance().unwrap()[0].available.money > balance.available.money);
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn a_payment_that_needs_waiting_change_gets_it_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new().await;
    let wallet = ready(&directory.path().join("wallet.db"), &world, PATIENT, "KUDOS:8.5").await;
    wallet.pay(&pay("KUDOS:2.5", 1)).await.unwrap();
    wallet.run_pending().await.unwrap();
    let balance = wallet.balance().unwrap()[0].clone();
    assert!(balance.available.money < amount("KUDOS:4").money, "{balance:?}");
    wallet.pay(&pay("KUDOS:4", 2)).await.unwrap();
    assert_eq!(refreshes(&wallet), 1);
    // More than there is stays an error.
    let refused = wallet.pay(&pay("KUDOS:20", 3)).await;
    assert!(matches!(refused, Err(WalletError::Core(CoreError::InsufficientFunds { .. }))), "{refused:?}");
    // A deposit of everything takes the change along.
    wallet.run_pending().await.unwrap();
    wallet.deposit(EXCHANGE, DepositAmount::All, PAYTO).await.unwrap();
    wallet.run_pending().await.unwrap();
    assert!(waiting(&wallet).is_zero());
    let fresh = wallet.coins().into_iter().filter(|coin| coin.status == CoinStatus::Fresh);
    assert!(fresh.map(|coin| coin.remaining).all(|rest| rest < amount("KUDOS:0.2").money));
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn options_are_checked_and_can_be_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new().await;
    let wallet = ready(&directory.path().join("wallet.db"), &world, PATIENT, "KUDOS:8.5").await;
    let year = Discretion { refresh_delay: Duration::from_days(365), ..PATIENT };
    let refused = wallet.set_discretion(EXCHANGE, year);
    assert!(matches!(refused, Err(WalletError::Core(CoreError::BadInput { .. }))), "{refused:?}");
    assert!(wallet.set_discretion("http://elsewhere.test/", PATIENT).is_err());
    // Without delay, new change is refreshed at once, and change that waits can be hastened.
    wallet.pay(&pay("KUDOS:2.5", 1)).await.unwrap();
    wallet.run_pending().await.unwrap();
    assert!(!waiting(&wallet).is_zero());
    wallet.set_discretion(EXCHANGE, Discretion::default()).unwrap();
    assert!(wallet.hasten_change().await.unwrap());
    assert!(!wallet.hasten_change().await.unwrap(), "there is no more");
    assert_eq!((refreshes(&wallet), waiting(&wallet)), (1, Money::ZERO));
    check_books(&world, &[&wallet]);
}

#[tokio::test]
async fn change_of_a_coin_that_expires_soon_does_not_wait() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new().await;
    let week = Discretion { refresh_delay: Duration::from_days(7), ..PATIENT };
    let wallet = ready(&directory.path().join("wallet.db"), &world, week, "KUDOS:8.5").await;
    // The coins are to be refreshed when three quarters of the time from day 7 to day 100 are over, on day 76.
    let day = |n| START.saturating_add(Duration::from_days(n));
    world.set_time(day(76)).await;
    wallet.add_exchange(EXCHANGE).await.unwrap();
    let payment = pay("KUDOS:2.5", 1);
    let (refund_deadline, wire_transfer_deadline) = (day(77), day(78));
    wallet.pay(&PaymentRequest { refund_deadline, wire_transfer_deadline, ..payment }).await.unwrap();
    wallet.run_pending().await.unwrap();
    assert!(!waiting(&wallet).is_zero(), "it waits");
    // The same change with a later time.
    let late = day(80);
    let patient = wallet.coins().into_iter().filter(|coin| coin.refresh_at.is_some());
    let patient = patient.map(|coin| Change::Coin(Box::new(Coin { refresh_at: Some(late), ..coin })));
    let mut records = wallet.export();
    records.extend(patient);
    let wallet = Wallet::in_memory_with(world.options(2));
    wallet.import(records).unwrap();
    wallet.run_pending().await.unwrap();
    assert_eq!(wallet.with_state(refresh::next_due), Some(late));
    world.set_time(day(77)).await;
    wallet.run_pending().await.unwrap();
    assert!(waiting(&wallet).is_zero() && refreshes(&wallet) > 0);
    check_books(&world, &[&wallet]);
}

/// The script of a discreet wallet. Each part is skipped if an earlier run got that far.
async fn live(wallet: &Wallet, world: &World) -> Result<(), WalletError> {
    resume(wallet).await?;
    wallet.set_discretion(EXCHANGE, DISCREET)?;
    for (n, cipher) in [(1, CipherChoice::Rsa), (2, CipherChoice::Cs)] {
        if count(wallet, "withdrawal") < n {
            try_fill(wallet, amount("KUDOS:4"), cipher).await?;
        }
    }
    for (n, sum) in [(1, "KUDOS:1.35"), (2, "KUDOS:3.05"), (3, "KUDOS:1.15")] {
        if count(wallet, "payment") < usize::from(n) {
            wallet.pay(&pay(sum, n)).await?;
        }
    }
    wallet.run_pending().await?;
    world.set_time(START.saturating_add(HALF_DAY)).await;
    wallet.run_pending().await?;
    Ok(())
}

#[tokio::test]
async fn a_kill_at_any_point_loses_nothing_of_a_discreet_wallet() {
    let begin = async |_: &World| ();
    let script = async |world: &World, wallet: &Wallet, (): &()| live(wallet, world).await;
    let points = kill_at_every_point(3, begin, open_wallet, script, |world, (), wallet, _, context| {
        check_settled(world, &[&wallet], context);
        assert!(waiting(&wallet).is_zero(), "{context}");
    });
    let points = points.await;
    assert!(points > 20, "the script has {points} points");
}

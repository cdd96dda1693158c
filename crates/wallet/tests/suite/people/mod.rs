//! Payments between people.

mod ages;
mod endings;
mod restarts;

use batzen_protocol::{Duration, Money};
use batzen_testkit::world::{
    EXCHANGE, START, Terms, World, amount, check_books, check_no_loss, require_identification,
};
use batzen_wallet::{CipherChoice, PeerRequest, Status, Wallet, WalletError};

use crate::common::{self, available, begin, empty, fill, filled, latest, resume, resume_with};

/// A world with a wallet that has this much money, and one without.
async fn two(sum: &str) -> (World, Wallet, Wallet) {
    let (world, alice) = begin(sum, CipherChoice::Any).await;
    let bob = empty(&world, 2).await;
    (world, alice, bob)
}

fn of(sum: &str) -> PeerRequest {
    PeerRequest {
        exchange: None,
        amount: amount(sum),
        summary: "lunch".to_owned(),
        expiration: START.saturating_add(Duration::from_days(2)),
        min_age: 0,
    }
}

fn money(sum: &str) -> Money {
    amount(sum).money
}

fn uri(wallet: &Wallet, id: u64) -> String {
    wallet.transaction(id).unwrap().uri.expect("it waits for the other person")
}

async fn accept(wallet: &Wallet, uri: &str) -> u64 {
    let peer = wallet.inspect_peer(uri).await.unwrap();
    wallet.accept_peer(&peer).await.unwrap()
}

async fn settle(wallets: &[&Wallet]) {
    for wallet in wallets {
        common::settle(wallet).await;
    }
}

#[tokio::test]
async fn money_is_sent_to_somebody() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let before = available(&alice);
    let id = alice.send_money(&of("KUDOS:2.5")).await.unwrap();
    alice.run_pending().await.unwrap();
    let balance = alice.balance().unwrap()[0].clone();
    assert!(balance.pending_outgoing.money >= money("KUDOS:2.5"), "{balance:?}");
    // Change does not wait for the receiver.
    assert!(balance.pending_incoming.is_zero(), "{balance:?}");
    check_books(&world, &[&alice, &bob]);
    let sent = latest(&alice, "send");
    assert_eq!((sent.status, sent.amount), (Status::Pending, amount("KUDOS:2.5")));

    let uri = uri(&alice, id);
    assert!(uri.starts_with("taler+http://pay-push/exchange.test/"), "{uri}");
    let offer = bob.inspect_peer(&uri).await.unwrap();
    assert_eq!((offer.terms.amount, offer.terms.summary.as_str()), (money("KUDOS:2.5"), "lunch"));
    let accepted = bob.accept_peer(&offer).await.unwrap();
    assert_eq!(bob.accept_peer(&offer).await.unwrap(), accepted, "nothing is accepted twice");
    settle(&[&bob, &alice]).await;
    // 2 + 4 * 0.1 with five withdrawal fees; 0.05 stay in the reserve.
    assert_eq!(available(&bob), amount("KUDOS:2.4"));
    assert!(available(&alice).money >= before.money.checked_sub(money("KUDOS:2.7")).unwrap());
    assert_eq!(
        world.network.count("batch-withdraw"),
        1,
        "a reserve that only purses have paid into serves no batches"
    );
    let (sent, received) = (latest(&alice, "send"), latest(&bob, "receive"));
    assert_eq!((sent.status, received.status), (Status::Done, Status::Done));
    assert_eq!(received.effect, "+KUDOS:2.5");
    assert!(sent.uri.is_none() && received.uri.is_none());
    let (paid, got) = (alice.purse_receipt(id).unwrap(), bob.purse_receipt(accepted).unwrap());
    assert_eq!((paid.purse_pub, paid.h_contract_terms), (got.purse_pub, got.h_contract_terms));
    assert_eq!(paid.confirmation.unwrap().total, money("KUDOS:2.5"));
    assert!(paid.status.unwrap().is_merged() && got.merge.is_some());
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&alice);
    check_no_loss(&bob);
}

#[tokio::test]
async fn revoked_coins_of_received_money_are_paid_back() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let id = alice.send_money(&of("KUDOS:2.5")).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    settle(&[&bob, &alice]).await;
    world.exchange.revoke(|denom| denom.value == money("KUDOS:2")).await;
    bob.add_exchange(EXCHANGE).await.unwrap();
    let batches = world.network.count("batch-withdraw");
    settle(&[&bob]).await;
    // The coin of 2 becomes smaller ones, one by one, since only purses have paid into the reserve.
    assert_eq!(latest(&bob, "recoup").status, Status::Done);
    assert!(available(&bob).money > money("KUDOS:2"), "{}", available(&bob));
    assert_eq!(world.network.count("batch-withdraw"), batches);
    check_books(&world, &[&alice, &bob]);
    check_no_loss(&bob);
}

#[tokio::test]
async fn money_is_requested_from_somebody() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let request = PeerRequest { exchange: Some(EXCHANGE.to_owned()), ..of("KUDOS:2") };
    let id = bob.request_money(&request).await.unwrap();
    bob.run_pending().await.unwrap();
    let balance = &bob.balance().unwrap()[0];
    assert!(balance.total.is_zero(), "a request is no money yet: {balance:?}");
    let uri = uri(&bob, id);
    assert!(uri.starts_with("taler+http://pay-pull/exchange.test/"), "{uri}");
    let asked = alice.inspect_peer(&uri).await.unwrap();
    let paid = alice.accept_peer(&asked).await.unwrap();
    settle(&[&alice, &bob]).await;
    assert_eq!(available(&bob), amount("KUDOS:1.9"));
    assert_eq!(latest(&bob, "request").status, Status::Done);
    assert_eq!(latest(&alice, "pay-request").status, Status::Done);
    let receipt = alice.purse_receipt(paid).unwrap();
    assert_eq!(receipt.confirmation.unwrap().total, money("KUDOS:2"));
    // It can be looked up no more than it can be paid twice.
    let again = alice.inspect_peer(&uri).await.unwrap();
    assert_eq!(alice.accept_peer(&again).await.unwrap(), paid);
    let carol = filled(&world, 3, "KUDOS:10", CipherChoice::Any).await;
    let error = carol.accept_peer(&again).await.unwrap_err().to_string();
    assert!(error.contains("somebody has paid this request already"), "{error}");
    check_books(&world, &[&alice, &bob, &carol]);
    check_no_loss(&bob);
}

/// All purses pay into one reserve. What is too little for a coin waits there for the next payment, and
/// payments that come at the same time are withdrawn together.
#[tokio::test]
async fn all_received_money_goes_through_one_reserve() {
    let (world, alice, bob) = two("KUDOS:20").await;
    let mut uris = Vec::new();
    for _ in 0..3 {
        let id = alice.send_money(&of("KUDOS:1.06")).await.unwrap();
        alice.run_pending().await.unwrap();
        uris.push(uri(&alice, id));
    }
    for uri in &uris {
        accept(&bob, uri).await;
    }
    let withdrawals = |bob: &Wallet| {
        let rows = bob.transactions(false).unwrap();
        rows.into_iter().filter(|row| row.kind == "withdrawal").count()
    };
    assert_eq!(withdrawals(&bob), 1);
    settle(&[&bob, &alice]).await;
    // 3.18: a coin of 2, one of 1 and one of 0.1, with fees.
    assert_eq!(available(&bob), amount("KUDOS:3.1"));
    let id = alice.send_money(&of("KUDOS:0.06")).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    settle(&[&bob, &alice]).await;
    assert_eq!(available(&bob), amount("KUDOS:3.2"), "the rest of the first withdrawal helped");
    assert_eq!(withdrawals(&bob), 2);
    // Besides the reserve of the withdrawal at the bank.
    assert_eq!(world.exchange.reserves().len(), 2);
    check_books(&world, &[&alice, &bob]);
}

#[tokio::test]
async fn too_little_money_is_an_error_before_anything_is_sent() {
    let (world, alice) = begin("KUDOS:3", CipherChoice::Any).await;
    let before = world.network.requests().len();
    let error = alice.send_money(&of("KUDOS:5")).await.unwrap_err();
    assert!(error.to_string().contains("not enough money"), "{error}");
    for bad in [
        PeerRequest { amount: amount("KUDOS:0"), ..of("KUDOS:1") },
        PeerRequest { summary: "x".repeat(1001), ..of("KUDOS:1") },
        PeerRequest { expiration: START, ..of("KUDOS:1") },
    ] {
        assert!(matches!(alice.send_money(&bad).await, Err(WalletError::Core(_))), "{bad:?}");
    }
    assert_eq!(world.network.requests().len(), before);
    check_books(&world, &[&alice]);
}

#[tokio::test]
async fn an_exchange_with_a_fee_for_requests_is_not_asked() {
    let world = World::with(Terms { fee_purse: 5, ..Terms::default() }).await;
    let bob = empty(&world, 2).await;
    let error = bob.request_money(&of("KUDOS:1")).await.unwrap_err().to_string();
    assert!(error.contains("charges KUDOS:0.05 for each request"), "{error}");
    // Sending needs no such fee.
    let alice = filled(&world, 1, "KUDOS:3", CipherChoice::Any).await;
    let id = alice.send_money(&of("KUDOS:1")).await.unwrap();
    accept(&bob, &uri(&alice, id)).await;
    settle(&[&bob, &alice]).await;
    check_books(&world, &[&alice, &bob]);
}

/// An exchange may ask who its customer is before it credits a reserve, and again before it issues coins.
#[tokio::test]
async fn identity_checks_hold_payments_up_and_lose_nothing() {
    let (world, alice, bob) = two("KUDOS:10").await;
    let id = alice.send_money(&of("KUDOS:2")).await.unwrap();
    let offer = bob.inspect_peer(&uri(&alice, id)).await.unwrap();
    let kyc = |on: bool| require_identification(&world, on);
    let is_asked = |message: &str| {
        message.contains("your provider asks you to identify yourself here: http://kyc.test/")
    };
    kyc(true);
    let error = bob.accept_peer(&offer).await.unwrap_err();
    assert!(matches!(&error, WalletError::Pending { message, .. } if is_asked(message)), "{error}");
    let error = bob.request_money(&of("KUDOS:1")).await.unwrap_err();
    assert!(matches!(&error, WalletError::Pending { message, .. } if is_asked(message)), "{error}");
    let report = bob.run_pending().await.unwrap();
    assert_eq!(report.pending.len(), 2, "{report:#?}");
    for operation in &report.pending {
        assert!(is_asked(operation.message.as_deref().unwrap()), "{operation:?}");
        assert_eq!(operation.waits_for, "waits for the identity check");
    }
    assert_eq!(bob.balance().unwrap()[0].pending_incoming, amount("KUDOS:2"));
    kyc(false);
    bob.run_pending().await.unwrap();
    assert_eq!(available(&bob), amount("KUDOS:1.9"));
    let asked = uri(&bob, latest(&bob, "request").id.unwrap());
    accept(&alice, &asked).await;
    kyc(true);
    let report = bob.run_pending().await.unwrap();
    assert!(is_asked(report.pending[0].message.as_deref().unwrap()), "{report:#?}");
    kyc(false);
    settle(&[&bob, &alice]).await;
    assert!(available(&bob).money >= money("KUDOS:2.8"));
    check_books(&world, &[&alice, &bob]);
}

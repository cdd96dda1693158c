//! Wallets that are killed at any point of payments between people lose nothing and pay nothing twice.

use std::path::Path;

use super::*;
use batzen_testkit::world::{check_history, check_settled, kill_at_every_point};

/// The script. Each part is skipped if an earlier run got that far, as people would do.
async fn live(alice: &Wallet, bob: &Wallet) -> Result<(), WalletError> {
    resume_with(alice, "KUDOS:6.1").await?;
    resume(bob).await?;
    let find = |wallet: &Wallet, kind: &str, summary: &str| {
        let rows = wallet.transactions(false).unwrap();
        rows.into_iter().find(|row| row.kind == kind && row.description.contains(summary))
    };
    let named = |sum: &str, summary: &str| PeerRequest { summary: summary.to_owned(), ..of(sum) };
    // Sent and accepted.
    if find(alice, "send", "gift").is_none() {
        alice.send_money(&named("KUDOS:1.5", "gift")).await?;
    }
    if let Some(uri) = find(alice, "send", "gift").unwrap().uri {
        let offer = bob.inspect_peer(&uri).await;
        if let Ok(offer) = offer
            && !(offer.is_merged && offer.known(&bob.with_state(Clone::clone)).is_none())
        {
            bob.accept_peer(&offer).await?;
        }
    }
    alice.run_pending().await?;
    bob.run_pending().await?;
    // Requested and paid.
    if find(bob, "request", "rent").is_none() {
        bob.request_money(&named("KUDOS:0.7", "rent")).await?;
    }
    if find(alice, "pay-request", "rent").is_none()
        && let Some(uri) = find(bob, "request", "rent").unwrap().uri
    {
        let asked = alice.inspect_peer(&uri).await?;
        alice.accept_peer(&asked).await?;
    }
    alice.run_pending().await?;
    bob.run_pending().await?;
    // Sent and taken back.
    if find(alice, "send", "loan").is_none() {
        alice.send_money(&named("KUDOS:0.9", "loan")).await?;
    }
    let loan = find(alice, "send", "loan").unwrap();
    if loan.status == Status::Pending && loan.uri.is_some() {
        alice.cancel(loan.id.unwrap())?;
    }
    alice.run_pending().await?;
    bob.run_pending().await?;
    Ok(())
}

fn open(world: &World, directory: &Path, seed: u64) -> (Wallet, Wallet) {
    let wallet = |name: &str, seed| {
        let wallet = Wallet::open_with(&directory.join(name), world.options(seed)).unwrap();
        check_history(&wallet);
        wallet
    };
    (wallet("alice.db", seed), wallet("bob.db", seed + 1_000_000))
}

fn check(world: &World, wallets: &[&Wallet], context: &str) {
    check_settled(world, wallets, context);
    wallets.iter().for_each(|wallet| check_no_loss(wallet));
}

#[tokio::test]
async fn a_kill_at_any_point_loses_nothing() {
    let mut reference = None;
    let begin = async |_: &World| ();
    // Both wallets are killed.
    let script = async |_: &World, (alice, bob): &(Wallet, Wallet), (): &()| live(alice, bob).await;
    let points =
        kill_at_every_point(3, begin, open, script, |world, (), (alice, bob), directory, context| {
            check(world, &[&alice, &bob], context);
            let kinds = |wallet: &Wallet| -> Vec<_> {
                wallet.transactions(false).unwrap().iter().map(|row| (row.kind, row.status)).collect()
            };
            let story = (kinds(&alice), kinds(&bob));
            drop((alice, bob));
            let (alice, bob) = open(world, directory, 1);
            check(world, &[&alice, &bob], context);
            let reference = reference.get_or_insert_with(|| story.clone());
            assert_eq!(*reference, story, "{context}");
        });
    let points = points.await;
    assert!(points > 60, "the script has {points} points");
}

#[tokio::test]
async fn lost_answers_change_nothing() {
    for lose_every in [2, 3, 5] {
        let world = World::new().await;
        let (alice, bob) = (
            Wallet::in_memory_with(world.options(lose_every)),
            Wallet::in_memory_with(world.options(100 + lose_every)),
        );
        world.network.lose_every.store(lose_every, std::sync::atomic::Ordering::SeqCst);
        // When the attempts are exhausted, people try again.
        let mut tries = 0;
        while let Err(error) = live(&alice, &bob).await {
            assert!(matches!(error, WalletError::NoAnswer(_)), "{error}");
            tries += 1;
            assert!(tries < 30);
        }
        world.network.lose_every.store(0, std::sync::atomic::Ordering::SeqCst);
        alice.run_pending().await.unwrap();
        bob.run_pending().await.unwrap();
        check(&world, &[&alice, &bob], &format!("one answer of {lose_every} lost"));
    }
}

//! Goal: a wallet that is killed at any point loses nothing and spends nothing twice.
//!
//! Method: play a life of a wallet (withdraw in both ciphers, pay, take a refund, pay out). The process dies at the n-th point where a request is about to be sent or its answer
//! about to be read; that covers every write, since the wallet writes in one transaction between two
//! requests. Then the file is opened again and everything pending is finished. Repeat for every n, until the
//! whole script runs without dying.

use std::path::Path;

use batzen_crypto::EddsaPrivateKey;
use batzen_testkit::world::{EXCHANGE, World, amount, check_settled, kill_at_every_point, open_wallet};
use batzen_wallet::{CipherChoice, DepositAmount, Wallet, WalletError};

use crate::common::{PAYTO, count, permission, request, resume, try_fill};

/// The script. Each part is skipped if an earlier run got that far, as a user would do.
async fn live(wallet: &Wallet, merchant: &EddsaPrivateKey) -> Result<(), WalletError> {
    resume(wallet).await?;
    for (n, cipher, sum) in [(1, CipherChoice::Rsa, "KUDOS:3.03"), (2, CipherChoice::Cs, "KUDOS:2.35")] {
        if count(wallet, "withdrawal") < n {
            try_fill(wallet, amount(sum), cipher).await?;
        }
    }
    let pay = request(merchant, "KUDOS:2.5", 1);
    if count(wallet, "payment") == 0 {
        wallet.pay(&pay).await?;
    }
    wallet.run_pending().await?;
    let paid = wallet.transactions(true)?.into_iter().find(|line| line.kind == "payment").unwrap();
    let coin = wallet.receipt(paid.id.unwrap())?.coins[0].clone();
    let permission = permission(merchant, pay.h_contract_terms, &coin, 1, coin.contribution);
    wallet.refund(&pay.h_contract_terms, &[permission]).await?;
    wallet.run_pending().await?;
    if count(wallet, "deposit") == 0 {
        wallet.deposit(EXCHANGE, DepositAmount::Exact(amount("KUDOS:1.5")), PAYTO).await?;
    }
    wallet.run_pending().await?;
    Ok(())
}

#[tokio::test]
async fn a_kill_at_any_point_loses_nothing() {
    let mut reference: Option<String> = None;
    let begin = async |_: &World| EddsaPrivateKey::from_bytes([3; 32]);
    let script = async |_: &World, wallet: &Wallet, merchant: &EddsaPrivateKey| live(wallet, merchant).await;
    let points =
        kill_at_every_point(3, begin, open_wallet, script, |world, _, wallet, directory, context| {
            check_settled(world, &[&wallet], context);
            let balance = wallet.balance().unwrap()[0].clone();
            let kinds: Vec<_> =
                wallet.transactions(false).unwrap().iter().map(|line| (line.kind, line.status)).collect();
            let ending = format!("{:?} {kinds:?}", balance.available.checked_add(&balance.dust).unwrap());
            drop(wallet);
            // Finally, the file itself is checked.
            check_settled(world, &[&open_wallet(world, directory, 1)], context);
            match &reference {
                None => reference = Some(ending),
                // Chance decides which coins pay, and so the fees. The sequence of operations does not depend on
                // it.
                Some(reference) => {
                    let story = |text: &str| text[text.find('[').unwrap()..].to_owned();
                    assert_eq!(story(&ending), story(reference), "{context}");
                }
            }
        });
    let points = points.await;
    assert!(points > 40, "the script has {points} points");
}

#[tokio::test]
async fn lost_answers_change_nothing() {
    for lose_every in [2, 3, 5] {
        let merchant = EddsaPrivateKey::from_bytes([3; 32]);
        let world = World::new().await;
        let wallet = Wallet::in_memory_with(world.options(lose_every));
        world.network.lose_every.store(lose_every, std::sync::atomic::Ordering::SeqCst);
        // When the attempts are exhausted, the user tries again.
        let mut tries = 0;
        while let Err(error) = live(&wallet, &merchant).await {
            assert!(matches!(error, WalletError::NoAnswer(_)), "{error}");
            tries += 1;
            assert!(tries < 20);
        }
        wallet.run_pending().await.unwrap();
        check_settled(&world, &[&wallet], &format!("one answer of {lose_every} lost"));
    }
}

#[tokio::test]
async fn only_one_process_can_write() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("deep").join("wallet.db");
    let world = World::new().await;
    let wallet = Wallet::open_with(&file, world.options(1)).unwrap();
    let second = Wallet::open_with(&file, world.options(2));
    assert!(second.unwrap_err().to_string().contains("in use"));
    wallet.add_exchange(EXCHANGE).await.unwrap();
    let reader = Wallet::open_read_only(&file).unwrap();
    assert_eq!(reader.with_state(|state| state.exchanges.len()), 1);
    assert!(reader.accept_terms(EXCHANGE).unwrap_err().to_string().contains("read-only"));
    drop(wallet);
    Wallet::open_with(&file, world.options(3)).unwrap();
    #[cfg(unix)]
    {
        let mode = |path: &Path| {
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions())
        };
        assert_eq!(mode(&file) & 0o777, 0o600);
        assert_eq!(mode(file.parent().unwrap()) & 0o777, 0o700);
    }
}

#[tokio::test]
async fn files_of_other_programs_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new().await;
    let text = directory.path().join("notes.txt");
    std::fs::write(
        &text,
        "not a database, but long enough to be taken for one by a careless reader ".repeat(20),
    )
    .unwrap();
    assert!(Wallet::open_with(&text, world.options(1)).is_err());
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));
    let foreign = directory.path().join("foreign.db");
    let connection = rusqlite::Connection::open(&foreign).unwrap();
    connection.execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)").unwrap();
    drop(connection);
    assert!(Wallet::open_with(&foreign, world.options(1)).unwrap_err().to_string().contains("not a wallet"));
}

#[tokio::test]
async fn a_backup_restores_everything() {
    let world = World::new().await;
    let merchant = EddsaPrivateKey::from_bytes([3; 32]);
    let wallet = Wallet::in_memory_with(world.options(5));
    live(&wallet, &merchant).await.unwrap();
    let file = batzen_wallet::backup::seal(wallet.export(), "correct horse");
    let restored = Wallet::in_memory_with(world.options(6));
    restored.import(batzen_wallet::backup::open(&file, Some("correct horse")).unwrap()).unwrap();
    assert_eq!(restored.export(), wallet.export());
    assert!(restored.import(wallet.export()).is_err(), "two wallets cannot be made one");
    check_settled(&world, &[&restored], "restored");
}

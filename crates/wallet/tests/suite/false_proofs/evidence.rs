//! The evidence that the wallet keeps of false statements.

use super::*;

#[tokio::test]
async fn signatures_by_unpublished_keys_are_evidence() {
    let (world, wallet, merchant) = ready("KUDOS:8.01").await;
    let before = holdings(&wallet);
    let other = EddsaPrivateKey::generate().public_key();
    alter_answers(&world, |request, _| is_deposit(request), move |it| it["exchange_pub"] = json!(other));
    is_disputed(wallet.pay(&request(&merchant, "KUDOS:3", 1)).await, "");
    check_disputed(&wallet, before, "that it does not publish");
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn false_listings_are_evidence_and_change_nothing() {
    type Alteration = fn(&mut Value);
    let alterations: [Alteration; 3] = [
        |it| it["denoms"][0]["fee_deposit"] = "KUDOS:0.5".into(),
        |it| it["signkeys"][0]["master_sig"] = it["eddsa_sig"].clone(),
        |it| it["master_public_key"] = it["eddsa_pub"].clone(),
    ];
    for alter in alterations {
        let (world, wallet, _) = ready("KUDOS:8.01").await;
        let before = wallet.with_state(|state| (state.exchanges.clone(), state.coins.clone()));
        alter_answers(&world, |request, _| request.url.ends_with("keys"), alter);
        assert!(wallet.add_exchange(EXCHANGE).await.is_err());
        assert_eq!(wallet.with_state(|state| (state.exchanges.clone(), state.coins.clone())), before);
        assert_eq!(wallet.evidence().len(), 1);
        world.network.be_honest();
        wallet.add_exchange(EXCHANGE).await.unwrap();
        assert!(wallet.evidence()[0].settled.is_some());
    }
}

#[tokio::test]
async fn evidence_is_durable_counted_and_free_of_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wallet.db");
    let world = World::new().await;
    let wallet = Wallet::open_with(&file, world.options(1)).unwrap();
    join(&wallet).await;
    fill(&wallet, "KUDOS:8.01", CipherChoice::Rsa).await;
    lie_with_own_deposit(&world, 1);
    let merchant = EddsaPrivateKey::generate();
    assert!(wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.is_err());
    for _ in 0..3 {
        wallet.retry_disputed().unwrap();
        wallet.run_pending().await.unwrap();
    }
    let evidence = wallet.evidence();
    assert_eq!((evidence.len(), evidence[0].times), (1, 4), "the same lie is counted");
    drop(wallet);
    let wallet = Wallet::open_with(&file, world.options(2)).unwrap();
    assert_eq!(wallet.evidence(), evidence);
    let kept = &evidence[0];
    let master_pub = wallet.with_state(|state| state.exchange(EXCHANGE).unwrap().master_pub);
    assert_eq!((kept.exchange.as_str(), kept.master_pub), (EXCHANGE, master_pub));
    assert_eq!((kept.answer.status, kept.first_seen), (409, START));
    let sent = kept.request.body.as_ref().unwrap();
    assert_eq!(sent["merchant_pub"], merchant.public_key().to_string());
    assert_eq!(kept.answer.body.as_ref().map(String::len), Some(kept.answer.body_size as usize));
    // It contains no keys or seeds of the wallet.
    let text = serde_json::to_string(&evidence).unwrap();
    for coin in wallet.coins() {
        let record = serde_json::to_value(&coin).unwrap();
        for secret in ["coin_priv", "blinding"] {
            assert!(!text.contains(record[secret].as_str().unwrap()), "{secret} is in the evidence");
        }
    }
    wallet.with_state(|state| {
        for operation in state.operations.values() {
            let record = serde_json::to_value(operation).unwrap();
            for secret in ["reserve_priv", "seed", "secret", "merchant_priv"] {
                let value = record["kind"][secret].as_str();
                assert!(value.is_none_or(|value| !text.contains(value)), "{secret} is in the evidence");
            }
        }
    });
    // A backup contains it too.
    let copy = Wallet::in_memory_with(world.options(3));
    copy.import(batzen_wallet::backup::open(&batzen_wallet::backup::to_json(wallet.export()), None).unwrap())
        .unwrap();
    assert_eq!(copy.evidence(), evidence);
    check_recovered(&world, &wallet).await;
}

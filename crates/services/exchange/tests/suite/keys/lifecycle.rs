//! Keys over months, restarts, and changes of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::{BlindedPlanchet, Cipher, prepare_planchet};
use batzen_crypto::{BlindingSecret, CsNonce, EddsaPrivateKey};
use batzen_exchange::keys::{Denom, NotSigned};
use batzen_protocol::{Duration, Timestamp};

use crate::keys::caching::check_keys;
use crate::keys::support::{Site, config, start};

const DAY: Duration = Duration::from_days(1);

fn files(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Goal: at any time within four months, every denomination can be withdrawn and answers are signed, without
/// manual work. Method: a stand-alone exchange whose clock jumps by most of the lookahead at a time.
#[tokio::test]
async fn keys_cover_four_months_without_a_gap() {
    let site = Site::with(|directory| {
        let mut config = config(directory);
        config.signkey_duration = Duration::from_days(14);
        for module in [&mut config.module_rsa, &mut config.module_cs, &mut config.module_eddsa] {
            module.lookahead_sign = Duration::from_days(4);
            module.overlap_duration = Duration::from_secs(3600);
        }
        config
    })
    .await;
    let mut starts: BTreeMap<String, BTreeSet<Timestamp>> = BTreeMap::new();
    let mut signers = BTreeSet::new();
    for _ in 0..33 {
        let (keys, now) = (site.keys().await, site.clock.now());
        check_keys(&keys);
        for group in &keys.denominations {
            let current = |at: Timestamp| {
                group.denoms.iter().any(|key| key.stamp_start <= at && at <= key.stamp_expire_withdraw)
            };
            assert!(
                current(now) && current(now.saturating_add(Duration::from_days(4))),
                "there must be no gap ahead"
            );
            let group_starts = starts.entry(group.value.to_string()).or_default();
            group_starts.extend(group.denoms.iter().map(|key| key.stamp_start));
        }
        assert!(keys.signkeys.iter().all(|key| key.stamp_expire > now));
        signers.insert(keys.eddsa_pub);
        // Every key that is valid now can sign now, and expired keys cannot.
        let state = site.running.app().keys();
        for denom in state.denoms() {
            assert_eq!(denom.can_sign(), now <= denom.expire_withdraw, "{:?}", denom.serial);
        }
        site.advance(Duration::from_secs(4 * 86_400 - 600)).await;
    }
    assert!(signers.len() >= 8, "signing keys are replaced regularly");
    for starts in starts.values() {
        let starts: Vec<_> = starts.iter().map(|start| start.as_secs().unwrap()).collect();
        assert!(starts.len() >= 18);
        let spacing = 7 * 86_400 - 3600;
        assert!(
            starts.windows(2).all(|pair| pair[1] - pair[0] == spacing),
            "neighbours overlap by an hour: {starts:?}"
        );
    }
    // Only current and future keys are still on disk.
    let rsa = site.directory.path().join("exchange/secmod-rsa/keys/COIN_A");
    let now = site.clock.now();
    for name in files(&rsa) {
        let anchor = Timestamp::from_secs(name.parse().unwrap());
        assert!(anchor.saturating_add(Duration::from_days(7)) >= now, "{name}");
    }
    site.stop().await;
}

#[tokio::test]
async fn keys_survive_a_restart() {
    let site = Site::standalone().await;
    let before = site.keys().await;
    let state = site.running.app().keys();
    let denom = state.denoms()[0].h_denom_pub;
    let (directory, clock) = site.stop().await;
    let root = directory.path().join("exchange");
    for (module, section) in [("secmod-rsa", "COIN_A"), ("secmod-cs", "COIN_B")] {
        let names = files(&root.join(module).join("keys").join(section));
        assert!(names.contains(&crate::keys::support::START_SECS.to_string()), "{names:?}");
    }
    assert!(files(&root.join("secmod-eddsa/keys")).contains(&crate::keys::support::START_SECS.to_string()));

    let running = start(config(directory.path()), &clock).await;
    running.ready().await.unwrap();
    let app = running.app();
    let keys = app.keys();
    let again: batzen_protocol::api::exchange::KeysResponse =
        serde_json::from_slice(&keys.keys_answer(None).unwrap().body).unwrap();
    check_keys(&again);
    assert_eq!((&again.denoms, &again.signkeys), (&before.denoms, &before.signkeys));
    assert_eq!(again.eddsa_pub, before.eddsa_pub);
    assert!(keys.find_denomination(&denom).unwrap().can_sign());
    running.shutdown().await.unwrap();
}

/// The reference implementation would forget them; coins could then not be withdrawn although `/keys` offers
/// them.
#[tokio::test]
async fn keys_of_a_removed_section_are_used_until_they_expire() {
    let site = Site::standalone().await;
    let before = site.keys().await;
    let (directory, clock) = site.stop().await;
    let mut smaller = config(directory.path());
    smaller.coins.retain(|coin| coin.section != "COIN_A");
    clock.advance(DAY);
    let running = start(smaller, &clock).await;
    running.ready().await.unwrap();
    let app = running.app();
    let state = app.keys();
    for denom in &before.denoms {
        assert!(state.find_denomination(&denom.denom_pub.h_denom_pub()).unwrap().can_sign());
    }
    clock.advance(Duration::from_days(30));
    app.keeper().round().await.unwrap();
    let state = app.keys();
    let (old, new): (Vec<_>, Vec<_>) =
        state.denoms().iter().partition(|denom| denom.expire_withdraw < clock.now());
    assert!(old.iter().all(|denom| !denom.can_sign()));
    assert!(
        new.iter().all(|denom| denom.value == crate::keys::support::money(500)),
        "the section gets no new keys"
    );
    assert!(files(&directory.path().join("exchange/secmod-rsa/keys/COIN_A")).is_empty());
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn changed_terms_apply_to_new_keys_only() {
    let site = Site::standalone().await;
    let before = site.keys().await;
    let (directory, clock) = site.stop().await;
    let mut dearer = config(directory.path());
    dearer.coins[0].fees.deposit = crate::keys::support::money(50);
    clock.advance(Duration::from_days(6));
    let running = start(dearer, &clock).await;
    running.ready().await.unwrap();
    let state = running.app().keys();
    for denom in &before.denoms {
        let now = state.find_denomination(&denom.denom_pub.h_denom_pub()).unwrap();
        assert_eq!(now.fee_deposit, denom.fee_deposit.money);
    }
    let newest = state
        .denoms()
        .iter()
        .filter(|denom| denom.value == crate::keys::support::money(100))
        .max_by_key(|d| d.start);
    assert_eq!(newest.unwrap().fee_deposit, crate::keys::support::money(50));
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn blind_signing_with_both_ciphers() {
    let site = Site::standalone().await;
    let (keys, custody) = (site.running.app().keys(), &site.running.app().custody);
    let signer = keys.signer();
    let nonce = CsNonce::from_bytes([7; 32]);
    let coin = EddsaPrivateKey::generate().public_key();
    let mut prepared = Vec::new();
    for denom in keys.denoms() {
        let order = || signer.order_values(denom.serial, nonce, CsOperation::Withdraw).unwrap();
        let values = custody.values(vec![order(), order()]).await.unwrap();
        assert_eq!(values[0], values[1]);
        let values = values[0].unwrap();
        let (planchet, unblind) =
            prepare_planchet(&denom.public, &values, Some(&nonce), &coin, &BlindingSecret::generate(), None)
                .unwrap();
        prepared.push((denom.serial, planchet, unblind));
    }
    let order =
        |serial, planchet: &BlindedPlanchet| signer.order(serial, planchet.clone(), CsOperation::Withdraw);
    let orders = prepared.iter().map(|(serial, planchet, _)| order(*serial, planchet).unwrap()).collect();
    let signatures = custody.blind_sign(orders).await.unwrap();
    for ((serial, _, unblind), signature) in prepared.iter().zip(signatures) {
        let signature = unblind.unblind(&signature.unwrap()).unwrap();
        assert!(keys.denomination_by_serial(*serial).public.verify(unblind.h_coin_pub(), &signature));
    }
    // The wrong cipher is the client's fault; a missing key is ours.
    let (first, last) = (&prepared[0], &prepared[prepared.len() - 1]);
    assert_ne!(first.1.cipher(), last.1.cipher());
    let crossed = custody.blind_sign(vec![order(first.0, &last.1).unwrap()]).await.unwrap();
    assert!(matches!(crossed[0], Err(NotSigned::Planchet(_))));
    let missing = order(batzen_tables::exchange::DenomSerial(99), &first.1);
    assert_eq!(missing.unwrap_err(), NotSigned::KeyUnavailable);
    site.stop().await;
}

#[tokio::test]
async fn a_wrong_master_key_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = config(directory.path());
    wrong.master_public_key = Some(EddsaPrivateKey::generate().public_key());
    let error =
        batzen_exchange::service::RunningExchange::start(wrong, Default::default()).await.err().unwrap();
    assert!(error.to_string().contains("MASTER_PUBLIC_KEY"), "{error}");
}

/// Goal: a crash between the revocation's commit and the destruction of the key leaves no way to use it.
/// Method: put the old key file back before the restart.
#[tokio::test]
async fn a_revoked_key_stays_revoked_when_its_file_is_restored() {
    let site = Site::standalone().await;
    let app = Arc::clone(site.running.app());
    let master_file = &app.core.config.standalone.as_ref().unwrap().master_priv_file;
    let master = EddsaPrivateKey::from_bytes(std::fs::read(master_file).unwrap().try_into().unwrap());
    // COIN_A, whichever key was ready first.
    let is_rsa = |denom: &&Arc<Denom>| denom.public.cipher() == Cipher::Rsa;
    let (denom, anchor) = {
        let keys = app.keys();
        let found = keys.denoms().iter().find(is_rsa).unwrap();
        (found.h_denom_pub, found.start.as_secs().unwrap())
    };
    let keys = site.directory.path().join("exchange/secmod-rsa/keys/COIN_A");
    let file = keys.join(anchor.to_string());
    let old_key = std::fs::read(&file).unwrap();
    let revocation = batzen_exchange::offline::revoke_denomination(&master, denom);
    assert!(
        batzen_exchange::offline::upload(&site.client, site.running.base_url(), &revocation).await.unwrap()
    );
    assert!(!app.keys().find_denomination(&denom).unwrap().can_sign(), "the key is out of use at once");
    site.settle().await;
    assert_ne!(std::fs::read(&file).unwrap(), old_key, "replaced under the same name");
    drop(app);
    let (directory, clock) = site.stop().await;

    std::fs::write(&file, &old_key).unwrap();
    let running = start(config(directory.path()), &clock).await;
    assert!(!running.app().keys().find_denomination(&denom).unwrap().can_sign());
    running.ready().await.unwrap();
    assert!(!running.app().keys().find_denomination(&denom).unwrap().can_sign());
    assert_ne!(std::fs::read(&file).unwrap(), old_key);
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_store_of_another_exchange_is_refused() {
    let (directory, _) = Site::standalone().await.stop().await;
    for change in ["key", "currency"] {
        let mut other = config(directory.path());
        if change == "key" {
            other.standalone = None;
            other.master_public_key = Some(EddsaPrivateKey::generate().public_key());
        } else {
            other.currency = batzen_protocol::Currency::new("EUR").unwrap();
        }
        let error =
            batzen_exchange::service::RunningExchange::start(other, Default::default()).await.err().unwrap();
        assert!(error.to_string().contains("belongs to another"), "{error}");
    }
}

#[tokio::test]
async fn waiting_requests_are_answered_when_the_start_is_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let mut slow = config(directory.path());
    slow.coins[0].cipher = batzen_exchange::config::CipherConfig::Rsa { bits: 4096 };
    let running = start(slow, &crate::keys::support::TestClock::new()).await;
    let app = std::sync::Arc::clone(running.app());
    app.core.drain.trigger();
    let _ = running.ready().await;
    drop(app);
    running.shutdown().await.unwrap();
}

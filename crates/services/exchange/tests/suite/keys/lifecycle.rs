//! Keys over months, restarts, and changes of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::{BlindedPlanchet, Cipher, prepare_planchet};
use batzen_crypto::{BlindingSecret, CsNonce, EddsaPrivateKey};
use batzen_exchange::config::{CipherConfig, ExchangeConfig};
use batzen_exchange::keys::{Denom, NotSigned};
use batzen_exchange::offline;
use batzen_exchange::service::RunningExchange;
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::api::exchange::FutureKeys;
use batzen_protocol::{Duration, Timestamp};
use batzen_testkit::process::PATIENCE;

use crate::keys::caching::check_keys;
use crate::keys::support::{START_SECS, Site, TestClock, code, config, money, operated, start};
use crate::running::start_ready;

const DAY: Duration = Duration::from_days(1);

fn files(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Keys are erased when they end, not a day later.
fn erase_at_once(config: &mut ExchangeConfig) {
    for module in [&mut config.module_rsa, &mut config.module_cs, &mut config.module_eddsa] {
        module.erase_delay = Duration::ZERO;
    }
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
        erase_at_once(&mut config);
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
        assert!(names.contains(&START_SECS.to_string()), "{names:?}");
    }
    assert!(files(&root.join("secmod-eddsa/keys")).contains(&START_SECS.to_string()));

    let running = start_ready(config(directory.path()), &clock).await;
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

/// The files of all private keys with their contents.
fn key_files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let dirs = ["secmod-rsa/keys/COIN_A", "secmod-cs/keys/COIN_B", "secmod-eddsa/keys"];
    let dirs = dirs.iter().map(|dir| directory.join("exchange").join(dir));
    let of = |dir: PathBuf| files(&dir).into_iter().map(move |name| dir.join(name));
    dirs.flat_map(of).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[tokio::test]
async fn a_clock_that_jumps_ahead_and_back_destroys_no_key() {
    let jump = Duration::from_days(40);
    let site = Site::standalone().await;
    let (before, offered) = (key_files(site.directory.path()), site.keys().await.denoms.len());
    assert!(before.len() >= 3, "{:?}", before.keys());
    let is_unchanged = |directory: &Path| {
        let now = key_files(directory);
        before.iter().all(|(path, contents)| now.get(path) == Some(contents))
    };
    site.advance(jump).await;
    assert!(is_unchanged(site.directory.path()), "a key that had not ended is gone");
    let (directory, clock) = site.stop().await;
    // Another start, with the clock still ahead.
    let running = start_ready(config(directory.path()), &clock).await;
    assert!(is_unchanged(directory.path()), "a key that had not ended is gone after a start");
    running.shutdown().await.unwrap();

    clock.set_back(jump);
    let running = start_ready(config(directory.path()), &clock).await;
    assert!(is_unchanged(directory.path()));
    let (keys, now) = (running.app().keys(), clock.now());
    let is_usable = |denom: &&Arc<Denom>| denom.start <= now && now < denom.expire_withdraw;
    let usable: Vec<_> = keys.denoms().iter().filter(is_usable).collect();
    assert!(usable.len() >= 2 && usable.len() <= offered && usable.iter().all(|denom| denom.can_sign()));
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
    erase_at_once(&mut smaller);
    clock.advance(DAY);
    let running = start_ready(smaller, &clock).await;
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
    assert!(new.iter().all(|denom| denom.value == money(500)), "the section gets no new keys");
    assert!(files(&directory.path().join("exchange/secmod-rsa/keys/COIN_A")).is_empty());
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn changed_terms_apply_to_new_keys_only() {
    let site = Site::standalone().await;
    let before = site.keys().await;
    let (directory, clock) = site.stop().await;
    let mut dearer = config(directory.path());
    dearer.coins[0].fees.deposit = money(50);
    clock.advance(Duration::from_days(6));
    let running = start_ready(dearer, &clock).await;
    let state = running.app().keys();
    for denom in &before.denoms {
        let now = state.find_denomination(&denom.denom_pub.h_denom_pub()).unwrap();
        assert_eq!(now.fee_deposit, denom.fee_deposit.money);
    }
    let newest = state.denoms().iter().filter(|denom| denom.value == money(100)).max_by_key(|d| d.start);
    assert_eq!(newest.unwrap().fee_deposit, money(50));
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
    let error = RunningExchange::start(wrong, Default::default()).await.err().unwrap();
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
    let revocation = offline::revoke_denomination(&master, denom);
    assert!(offline::upload(&site.client, site.running.base_url(), &revocation).await.unwrap());
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
        let error = RunningExchange::start(other, Default::default()).await.err().unwrap();
        assert!(error.to_string().contains("belongs to another"), "{error}");
    }
}

#[tokio::test]
async fn waiting_requests_are_answered_when_the_start_is_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let mut slow = config(directory.path());
    slow.coins[0].cipher = CipherConfig::Rsa { bits: 4096 };
    let running = start(slow, &TestClock::new()).await;
    let app = Arc::clone(running.app());
    app.core.drain.trigger();
    let _ = running.ready().await;
    drop(app);
    running.shutdown().await.unwrap();
}

/// The first keys that an exchange shows for signing, asked for without a pause.
async fn first_shown(client: &Client, url: &str) -> FutureKeys {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = client.get(url.to_owned()).send().await.unwrap();
        if reply.status == 200 {
            return reply.ok().unwrap();
        }
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(Instant::now() < deadline, "no keys are created: {reply:?}");
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// The starts of the keys that are not over yet, by section.
fn current(keys: &FutureKeys, now: Timestamp) -> BTreeMap<String, Vec<Timestamp>> {
    let mut starts: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for key in keys.future_denoms.iter().filter(|key| key.stamp_expire_withdraw > now) {
        starts.entry(key.section_name.clone()).or_default().push(key.stamp_start);
    }
    let signing = keys.future_signkeys.iter().filter(|key| key.stamp_expire > now);
    starts.insert("signing".into(), signing.map(|key| key.stamp_start).collect());
    starts.values_mut().for_each(|starts| starts.sort());
    starts
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_shown_for_signing_once_all_are_created_also_after_the_clock_was_shifted() {
    let (master, directory, clock) =
        (EddsaPrivateKey::generate(), tempfile::tempdir().unwrap(), TestClock::new());
    let mut config = operated(directory.path(), &master);
    for module in [&mut config.module_rsa, &mut config.module_cs, &mut config.module_eddsa] {
        module.lookahead_sign = Duration::from_days(40);
    }
    let running = start(config, &clock).await;
    let client = Client::new(&ClientOptions::default()).unwrap();
    let url = format!("{}management/keys", running.base_url());
    let at_start = current(&first_shown(&client, &url).await, clock.now());
    assert!(at_start["COIN_A"].len() >= 6 && at_start["COIN_B"].len() >= 6, "{at_start:?}");

    // Every key that was there has ended, so all are created again while requests come in.
    clock.advance(Duration::from_days(60));
    let refused = client.get(url.clone()).send().await.unwrap();
    assert_eq!((refused.status, code(&refused)), (503, 1007), "{refused:?}");
    let keeper = running.app().keeper();
    let (after, round) = tokio::join!(first_shown(&client, &url), keeper.round());
    round.unwrap();
    let after = current(&after, clock.now());
    assert_eq!(after["COIN_A"].len(), at_start["COIN_A"].len(), "{after:?}");
    let settled: FutureKeys = client.get(url).send().await.unwrap().ok().unwrap();
    assert_eq!(after, current(&settled, clock.now()), "nothing comes after what was shown first");
    running.shutdown().await.unwrap();
}

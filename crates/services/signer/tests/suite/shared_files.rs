//! Services on one machine share the key files: a key that one creates is available to all.

use std::collections::BTreeSet;
use std::path::Path;

use batzen_protocol::{Duration, Timestamp};
use batzen_signer::SecurityModules;
use batzen_signer::config::KeysConfig;

use crate::service::keys_config;

const DAY: u64 = 86_400;
const START: Timestamp = Timestamp::from_secs(1_795_132_800);

/// Keys that are made for weeks ahead.
fn config(dir: &Path) -> KeysConfig {
    let mut config = keys_config(dir);
    for module in [&mut config.rsa, &mut config.cs, &mut config.eddsa] {
        module.lookahead_sign = Duration::from_days(20);
    }
    config.signkey_duration = Duration::from_days(7);
    config
}

/// All public keys.
fn keys(modules: &SecurityModules) -> BTreeSet<String> {
    let denoms = modules.denominations().into_iter().map(|key| key.info.h_bare.to_string());
    let signing = modules.signing_keys().into_iter().map(|key| key.info.exchange_pub.to_string());
    denoms.chain(signing).collect()
}

async fn generate(modules: &SecurityModules, now: Timestamp) {
    modules.generate(now, 2, &|_, _| {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_make_each_key_once() {
    let dir = tempfile::tempdir().unwrap();
    let open = || SecurityModules::open(&config(dir.path())).unwrap();
    // Both start at the same moment without any files.
    let (one, two) = std::thread::scope(|scope| {
        let two = scope.spawn(open);
        (open(), two.join().unwrap())
    });
    assert_eq!(one.module_keys(), two.module_keys(), "the modules' own keys");
    tokio::join!(generate(&one, START), generate(&two, START));
    for modules in [&one, &two] {
        modules.refresh().await.unwrap();
    }
    assert_eq!(keys(&one), keys(&two));
    assert_eq!(keys(&one), keys(&open()), "the keys in memory are on disk");
    assert!(keys(&one).len() >= 9, "at least three keys of each kind");

    // A revoked key is destroyed and replaced only once, whichever process learns of it first.
    let revoked = one.denominations().remove(0).info.h_bare;
    let signing = one.signing_keys().remove(0).info.exchange_pub;
    let before = keys(&one);
    let replace = async |modules: &SecurityModules| {
        modules.replace_revoked_denominations(|key| *key == revoked, START).await.unwrap()
            + modules.replace_revoked_signing_keys(|key| *key == signing, START).await.unwrap()
    };
    let (by_one, by_two) = tokio::join!(replace(&one), replace(&two));
    assert_eq!(by_one + by_two, 2);
    for modules in [&one, &two] {
        modules.refresh().await.unwrap();
    }
    assert_eq!(keys(&one), keys(&two));
    assert_eq!(keys(&one), keys(&open()));
    assert_eq!(keys(&one).intersection(&before).count(), before.len() - 2);

    // The same some time later. Expired keys disappear in both.
    let later = START.saturating_add(Duration::from_secs(10 * DAY));
    tokio::join!(generate(&one, later), generate(&two, later));
    let erase = async |modules: &SecurityModules| {
        modules.erase_expired(later, |_| None, |_| None).await.unwrap();
    };
    tokio::join!(erase(&one), erase(&two));
    one.refresh().await.unwrap();
    assert_eq!(keys(&one), keys(&two));
    assert_eq!(keys(&one), keys(&open()));
    assert!(keys(&one).is_disjoint(&BTreeSet::from([revoked.to_string(), signing.to_string()])));

    // An operator may remove all files while the services run: they continue, and later keys are new.
    for name in ["rsa", "cs", "eddsa"] {
        std::fs::remove_dir_all(dir.path().join(name).join("keys")).unwrap();
    }
    let held = keys(&one);
    one.refresh().await.unwrap();
    assert_eq!(keys(&one), held);
}

#[tokio::test]
async fn an_ended_key_stays_until_its_end_has_been_seen_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, delay) = (config(dir.path()), std::time::Duration::from_millis(200));
    for module in [&mut config.rsa, &mut config.cs, &mut config.eddsa] {
        module.erase_delay = delay.into();
    }
    let modules = SecurityModules::open(&config).unwrap();
    generate(&modules, START).await;
    let (held, later) = (keys(&modules), START.saturating_add(Duration::from_secs(10 * DAY)));
    let erase = async |now| modules.erase_expired(now, |_| None, |_| None).await.unwrap();
    assert_eq!(erase(later).await, 0);
    tokio::time::sleep(delay).await;
    // The clock is set back, so nothing has ended.
    assert_eq!(erase(START).await, 0);
    assert_eq!(erase(later).await, 0, "the wait starts over");
    assert_eq!(keys(&modules), held);
    tokio::time::sleep(delay).await;
    let erased = erase(later).await;
    assert!(erased > 0);
    assert_eq!(keys(&modules).len(), held.len() - erased);
    assert_eq!(keys(&SecurityModules::open(&config).unwrap()), keys(&modules));
}

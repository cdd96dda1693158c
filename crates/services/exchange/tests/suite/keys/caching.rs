//! `/keys` and `/wire`: content, signatures, caching, waiting.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration as StdDuration;

use batzen_crypto::hash::sha512;
use batzen_crypto::{EddsaPrivateKey, HashCode};
use batzen_protocol::api::exchange::{KeysResponse, WireResponse};
use batzen_protocol::signatures::{ExchangeKeySet, SignedMessage};
use batzen_protocol::time::year_start;
use batzen_protocol::{Duration, Timestamp};

use crate::keys::support::{PAYTO, Site, code, config};

fn xor(hashes: impl Iterator<Item = HashCode>) -> HashCode {
    HashCode::from_bytes(hashes.fold([0; 64], |mut sum, hash| {
        sum.iter_mut().zip(hash.as_bytes()).for_each(|(byte, other)| *byte ^= other);
        sum
    }))
}

/// Checks everything that a client can check by itself.
pub(super) fn check_keys(keys: &KeysResponse) {
    let master = &keys.master_public_key;
    let signer = keys.signkeys.iter().find(|key| key.key == keys.eddsa_pub).expect("signed by a listed key");
    for key in &keys.signkeys {
        assert!(key.validity().verify(master, &key.master_sig));
    }
    let mut concatenated = Vec::new();
    let mut flat = BTreeSet::new();
    for denom in &keys.denoms {
        let hash = denom.denom_pub.h_denom_pub();
        assert!(denom.terms().validity(*master, hash).verify(master, &denom.master_sig));
        concatenated.extend_from_slice(hash.as_bytes());
        assert!(flat.insert(hash), "no denomination twice");
    }
    assert!(keys.denoms.is_sorted_by_key(|denom| std::cmp::Reverse(denom.stamp_start)));
    assert_eq!(keys.list_issue_date, keys.denoms.last().unwrap().stamp_start);
    let sign = |hc| ExchangeKeySet { list_issue_date: keys.list_issue_date, hc };
    assert!(sign(sha512(&concatenated)).verify(&signer.key, &keys.eddsa_sig));
    let grouped = xor(keys.denominations.iter().map(|group| group.hash));
    assert!(sign(grouped).verify(&signer.key, &keys.denominations_sig));
    assert_eq!(grouped, xor(flat.iter().copied()));
    let by_start: HashMap<_, _> = keys
        .denoms
        .iter()
        .map(|denom| (denom.master_sig.to_string(), denom.denom_pub.h_denom_pub()))
        .collect();
    for group in &keys.denominations {
        let members = group.denoms.iter().map(|member| by_start[&member.master_sig.to_string()]);
        assert_eq!(group.hash, xor(members));
    }
    for fee in &keys.global_fees {
        assert!(fee.message().verify(master, &fee.master_sig));
    }
}

#[tokio::test]
async fn standalone_publishes_everything_signed() {
    let site = Site::standalone().await;
    let keys = site.keys().await;
    check_keys(&keys);
    assert_eq!(
        (keys.version.as_str(), keys.currency.as_str(), keys.asset_type.as_str()),
        ("14:0:2", "TESTKUDOS", "fiat")
    );
    assert_eq!(keys.base_url, site.running.base_url());
    assert_eq!(keys.master_public_key, site.master_pub());
    assert_eq!(keys.reserve_closing_delay, Duration::from_days(28));
    assert_eq!(keys.recoup, Some(Vec::new()));
    assert_eq!(keys.denominations.len(), 2);
    assert!(keys.wallet_balance_limit_without_kyc.is_none() && keys.extensions.is_none());
    let years: Vec<_> = keys.global_fees.iter().map(|fee| (fee.start_date, fee.end_date)).collect();
    assert_eq!(years, [(year_start(2026), year_start(2027)), (year_start(2027), year_start(2028))]);

    let reply = site.get("wire").await;
    let wire: WireResponse = reply.ok().unwrap();
    assert_eq!(wire.accounts.len(), 1);
    assert_eq!(wire.accounts[0].payto_uri, PAYTO);
    assert!(wire.accounts[0].message().verify(&keys.master_public_key, &wire.accounts[0].master_sig));
    let fees = &wire.fees["x-taler-bank"];
    assert_eq!(fees.len(), 2);
    for fee in fees {
        assert!(fee.message("x-taler-bank").verify(&keys.master_public_key, &fee.sig));
    }
    assert_eq!(reply.header("expires"), Some("Sat, 01 Jan 2028 00:00:00 GMT"));
    assert_eq!(reply.header("cache-control"), Some("public,max-age=86400"));
    assert_eq!(reply.header("vary"), Some("Accept-Encoding"));
    assert_eq!(reply.headers.get_all("vary").iter().count(), 1, "the header appears once");
    let etag = reply.header("etag").unwrap();
    assert_eq!(etag, sha512(&reply.body).to_string());
    let reply = site.get_with("wire", &[("if-none-match", etag)]).await;
    assert_eq!((reply.status, reply.body.len()), (304, 0));
    assert_eq!(reply.header("etag"), Some(etag));
    site.stop().await;
}

#[tokio::test]
async fn keys_are_cached_and_cherry_picked() {
    let site = Site::with(|directory| {
        let mut config = config(directory);
        for module in [&mut config.module_rsa, &mut config.module_cs] {
            module.lookahead_sign = Duration::from_days(20);
        }
        config
    })
    .await;
    let reply = site.get("keys").await;
    let full: KeysResponse = reply.ok().unwrap();
    check_keys(&full);
    let etag = reply.header("etag").unwrap();
    assert_eq!(etag, sha512(&reply.body).to_string());
    assert_eq!(reply.header("cache-control"), Some("public,max-age=3600"));
    assert_eq!(reply.header("vary"), Some("Accept-Encoding"));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("last-modified"), Some("Fri, 20 Nov 2026 00:00:00 GMT"));
    // New denominations appear once a week.
    assert_eq!(reply.header("expires"), Some("Fri, 27 Nov 2026 00:00:00 GMT"));
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    for (known, status) in [(etag.to_owned(), 304), (format!("\"{etag}\""), 304), ("X".into(), 200)] {
        let reply = site.get_with("keys", &[("if-none-match", &known)]).await;
        assert_eq!((reply.status, reply.body.is_empty()), (status, status == 304), "{known}");
        assert_eq!(reply.header("etag"), Some(etag));
    }

    let starts: BTreeSet<u64> =
        full.denoms.iter().map(|denom| denom.stamp_start.as_secs().unwrap()).collect();
    assert!(starts.len() >= 3, "several generations of keys: {starts:?}");
    for start in &starts {
        let reply = site.get(&format!("keys?last_issue_date={start}")).await;
        let part: KeysResponse = reply.ok().unwrap();
        check_keys(&part);
        assert_eq!(part.list_issue_date, Timestamp::from_secs(*start));
        let expected: Vec<_> =
            full.denoms.iter().filter(|d| d.stamp_start.as_secs().unwrap() >= *start).cloned().collect();
        assert_eq!(part.denoms, expected);
        assert_eq!(
            (part.signkeys.clone(), part.global_fees.clone()),
            (full.signkeys.clone(), full.global_fees.clone())
        );
    }
    for other in ["0", "1", &(starts.last().unwrap() + 1).to_string()] {
        assert_eq!(
            site.get(&format!("keys?last_issue_date={other}")).await.ok::<KeysResponse>().unwrap(),
            full
        );
    }
    for malformed in ["abc", "", "-1", "1.5"] {
        let reply = site.get(&format!("keys?last_issue_date={malformed}")).await;
        assert_eq!((reply.status, code(&reply)), (400, 26), "{malformed:?}");
    }
    let plain = site.get_with("keys", &[("accept-encoding", "identity")]).await;
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.ok::<KeysResponse>().unwrap(), full);
    site.stop().await;
}

#[tokio::test]
async fn max_keys_caching_bounds_expires() {
    let site = Site::with(|directory| {
        let mut config = config(directory);
        config.max_keys_caching = Duration::from_secs(60);
        config
    })
    .await;
    let first = site.get("keys").await;
    assert_eq!(first.header("expires"), Some("Fri, 20 Nov 2026 00:01:00 GMT"));
    site.advance(Duration::from_secs(61)).await;
    let second = site.get("keys").await;
    assert_eq!(second.header("last-modified"), Some("Fri, 20 Nov 2026 00:01:01 GMT"));
    assert_eq!(second.header("expires"), Some("Fri, 20 Nov 2026 00:02:01 GMT"));
    site.stop().await;
}

#[tokio::test]
async fn requests_wait_for_the_first_keys() {
    let master = EddsaPrivateKey::generate();
    let site = Site::operated(&master).await;
    let get = || {
        let (client, url) = (site.client.clone(), site.url("keys"));
        tokio::spawn(async move { client.get(url).timeout(StdDuration::from_secs(50)).send().await })
    };
    let waiting = get();
    tokio::time::sleep(StdDuration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "there is nothing to answer yet");
    // At most 32 requests may wait: one more ends the oldest.
    let others: Vec<_> = (0..32).map(|_| get()).collect();
    let oldest = waiting.await.unwrap().unwrap();
    assert_eq!((oldest.status, code(&oldest)), (503, 1007));
    site.sign_keys(&master).await;
    for other in others {
        check_keys(&other.await.unwrap().unwrap().ok().unwrap());
    }
    let wire = site.get("wire").await;
    assert_eq!((wire.status, code(&wire)), (500, 1651));
    site.stop().await;
}

#[tokio::test]
async fn waiting_requests_end_with_the_process() {
    let site = Site::operated(&EddsaPrivateKey::generate()).await;
    let (client, url) = (site.client.clone(), site.url("keys"));
    let waiting = tokio::spawn(async move { client.get(url).send().await });
    tokio::time::sleep(StdDuration::from_secs(1)).await;
    site.stop().await;
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!((reply.status, code(&reply)), (503, 1007));
}

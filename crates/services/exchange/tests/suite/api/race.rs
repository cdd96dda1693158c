//! The same coin, reserve or request many times at once.

use batzen_protocol::Money;
use batzen_protocol::api::exchange::{BlindSignature, DepositConfirmation};
use serde::Serialize;
use serde_json::Value;

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

fn json(body: &impl Serialize) -> Value {
    edited(body, |_| {})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_coin_pays_one_of_64_concurrent_merchants() {
    let site = Site::start().await;
    for (value, part, pays) in [(RSA_8, "0.3", 26), (CS_5, "0.5", 10)] {
        let coin = site.coin(value).await;
        let contracts: Vec<Contract> = (0..64).map(|_| Contract::new(&site)).collect();
        let requests =
            contracts.iter().map(|it| (coin.path("deposit"), json(&it.deposit(&coin, part)))).collect();
        let replies = site.at_once(requests).await;
        let (mut accepted, mut refused) = (0, 0);
        let rest = m(value).units() - m(part).units() * pays;
        for (contract, reply) in contracts.iter().zip(&replies) {
            if reply.status == 200 {
                contract.confirmed(&site, &coin, part, &reply.json::<DepositConfirmation>().unwrap());
                accepted += 1;
            } else {
                let left = proof::overspent(&site, reply, coin.coin_pub, &coin.denom, part);
                assert_eq!(left.units(), rest);
                refused += 1;
            }
        }
        assert_eq!((accepted, refused), (pays, 64 - pays));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_deposits_melts_and_refunds_never_overspend_a_coin() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let paid = Contract::new(&site);
    site.pay(&paid, &coin, "4").await;
    let mut requests = Vec::new();
    for n in 0..8 {
        requests.push((coin.path("deposit"), json(&Contract::new(&site).deposit(&coin, "1"))));
        let refresh = site.plan_refresh(&coin, &[site.denom(RSA_1)], "1.04").await;
        requests.push((coin.path("melt"), json(&refresh.melt())));
        requests.push((coin.path("refund"), json(&paid.refund(&coin, "1.01", n))));
    }
    let replies = site.at_once(requests).await;
    let accepted = |kind: usize| {
        replies.iter().skip(kind).step_by(3).filter(|reply| reply.status == 200).count() as u128
    };
    let (deposits, melts, refunds) = (accepted(0), accepted(1), accepted(2));
    assert_eq!(refunds, 3);
    for (reply, kind) in replies.iter().zip((0..3).cycle()) {
        match (reply.status, kind) {
            (200, _) => {}
            (_, 0) => drop(proof::overspent(&site, reply, coin.coin_pub, &coin.denom, "1")),
            (_, 1) => drop(proof::overspent(&site, reply, coin.coin_pub, &coin.denom, "1.04")),
            _ => drop(proof::coin_conflict(&site, reply, (409, 1501), coin.coin_pub, &coin.denom)),
        }
    }
    let left = m("8").units() + refunds * m("1").units()
        - m("4").units()
        - deposits * m("1").units()
        - melts * m("1.04").units();
    site.is_left(&coin, &Money::from_units(left).unwrap().to_string()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_withdrawals_never_overdraw_a_reserve() {
    let site = Site::start().await;
    let reserve = site.reserve("20").await;
    let mut planchets = Vec::new();
    for _ in 0..64 {
        planchets.push(site.planchet(&site.denom(RSA_1)).await);
    }
    // Half of them in batches of two.
    let mut requests = Vec::new();
    for planchet in &planchets[..32] {
        requests.push((at_reserve(&reserve, "withdraw"), json(&planchet.request(&reserve))));
    }
    for pair in planchets[32..].chunks(2) {
        requests.push((at_reserve(&reserve, "batch-withdraw"), json(&batch_of(pair, &reserve))));
    }
    let replies = site.at_once(requests).await;
    let mut coins = 0;
    for (reply, index) in replies.iter().zip(0..) {
        match (reply.status, index < 32) {
            (200, true) => coins += 1,
            (200, false) => coins += 2,
            (_, true) => drop(proof::reserve_short(&site, reply, &reserve, m("1.01"))),
            (_, false) => drop(proof::reserve_short(&site, reply, &reserve, m("2.02"))),
        }
    }
    // The reserve can pay for 19 coins; a batch of two may miss the last one.
    assert!(coins == 19 || coins == 18, "{coins}");
    let left = m("20").units() - coins * m("1.01").units();
    assert_eq!(site.balance(&reserve.public_key()).await.units(), left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_repetitions_take_effect_once() {
    let mut site = Site::start().await;
    let reserve = site.reserve("40").await;
    let same = async |site: &Site, path: String, body: Value| {
        let replies = site.at_once(vec![(path.clone(), body); 8]).await;
        for reply in &replies {
            assert_eq!(reply.status, 200, "{path}: {}", text(reply));
            assert_eq!(reply.body, replies[0].body, "{path}");
        }
        replies.into_iter().next().unwrap()
    };
    let planchet = site.planchet(&site.denom(RSA_8)).await;
    let reply = same(&site, at_reserve(&reserve, "withdraw"), json(&planchet.request(&reserve))).await;
    let coin = planchet.finish(&reply.json::<BlindSignature>().unwrap().ev_sig);
    assert_eq!(site.balance(&reserve.public_key()).await, m("31.99"));
    let batch = [site.planchet(&site.denom(CS_5)).await, site.planchet(&site.denom(RSA_1)).await];
    same(&site, at_reserve(&reserve, "batch-withdraw"), json(&batch_of(&batch, &reserve))).await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("25.97"));

    let contract = Contract::new(&site);
    same(&site, coin.path("deposit"), json(&contract.deposit(&coin, "2"))).await;
    let other = site.coin(CS_5).await;
    let pair = contract.next().batch(&[(&coin, "1"), (&other, "1")]);
    same(&site, "batch-deposit".to_owned(), json(&pair)).await;
    same(&site, coin.path("refund"), json(&contract.refund(&coin, "1", 1))).await;
    let refresh = site.plan_refresh(&coin, &[site.denom(CS_FREE), site.denom(RSA_1)], "1.54").await;
    let reply = same(&site, coin.path("melt"), json(&refresh.melt())).await;
    let noreveal_index = reply.json::<Value>().unwrap()["noreveal_index"].as_u64().unwrap();
    let reveal = refresh.reveal(u32::try_from(noreveal_index).unwrap());
    let reply = same(&site, refresh.reveal_path(), json(&reveal)).await;
    let fresh = refresh.finish(u32::try_from(noreveal_index).unwrap(), &reply.json().unwrap());

    // 8 − 2 − 1 + 0.99 − 1.54, and 1 from the fresh coin.
    site.revoke(&fresh[1].denom).await;
    same(&site, fresh[1].path("recoup-refresh"), json(&fresh[1].recoup_refresh())).await;
    site.revoke(&coin.denom).await;
    same(&site, coin.path("recoup"), json(&coin.recoup())).await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("31.42"));
}

//! `/melt`, `/reveal` and `/link`.

use batzen_crypto::{
    AgePrivateKey, BlindedPlanchet, CoinSecrets, CsNonce, CsScalar, EddsaSignature, HashCode,
    PlanchetMasterSecret, RefreshMasterSecret, ShortHash, denom,
};
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::{BlindSignatures, LinkEntry, MeltConfirmation, RevealRequest};
use batzen_protocol::signatures::{SignedMessage, WalletCoinLink, Zeros};
use serde_json::json;

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

#[tokio::test]
async fn refresh_makes_fresh_coins_that_link_finds_by_the_old_key() {
    let site = Site::start().await;
    // From, to, amount: within and between ciphers, with and without age.
    for (old, fresh, money) in [
        (RSA_8, vec![RSA_1, CS_5, CS_FREE, RSA_1], "7.57"),
        (CS_5, vec![RSA_1, RSA_1], "2.05"),
        (RSA_AGE_4, vec![CS_AGE_2, RSA_1], "3.1"),
        (CS_AGE_2, vec![CS_FREE], "1"),
    ] {
        let old = site.coin(old).await;
        let denoms: Vec<Denom> = fresh.iter().map(|value| site.denom(value)).collect();
        is_error(&site.get(&old.path("link")).await, 404, 1400);
        let refresh = site.plan_refresh(&old, &denoms, money).await;
        let noreveal_index = site.melt(&refresh).await;
        // A repeated melt gets the same index.
        for _ in 0..3 {
            assert_eq!(site.melt(&refresh).await, noreveal_index);
        }
        is_error(&site.get(&old.path("link")).await, 404, 1400);
        let coins = site.reveal(&refresh, noreveal_index).await;
        let again = site.reveal(&refresh, noreveal_index).await;
        assert!(coins.iter().map(|coin| &coin.denom_sig).eq(again.iter().map(|coin| &coin.denom_sig)));

        let entries: Vec<LinkEntry> = site.get(&old.path("link")).await.ok().unwrap();
        assert_eq!(entries.len(), 1);
        let linked = linked_coins(&old, &entries[0]);
        let own: Vec<_> = coins.iter().map(|coin| (coin.coin_pub, coin.denom_sig.clone())).collect();
        assert_eq!(linked, own);
        // The fresh coins can pay, each with its own age commitment.
        let contract = Contract::new(&site);
        for coin in &coins {
            assert_eq!(coin.age.is_some(), old.age.is_some());
            site.pay(&contract, coin, &coin.denom.terms.value.money().to_string()).await;
        }
        let rest = old.denom.terms.value.money().checked_sub(m(money)).unwrap();
        site.is_left(&old, &rest.to_string()).await;
    }
}

#[tokio::test]
async fn link_lists_every_revealed_melt_of_a_coin() {
    let site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let mut own = Vec::new();
    let mut seen = [false; 3];
    for round in 0..6 {
        let denom = site.denom(if round % 2 == 0 { CS_FREE } else { RSA_1 });
        let refresh = site.plan_refresh(&old, &[denom], "1.1").await;
        let noreveal_index = site.melt(&refresh).await;
        seen[noreveal_index as usize] = true;
        let coins = site.reveal(&refresh, noreveal_index).await;
        own.push((coins[0].coin_pub, coins[0].denom_sig.clone()));
    }
    // A melt without a reveal has no link.
    let refresh = site.plan_refresh(&old, &[site.denom(RSA_1)], "1.04").await;
    site.melt(&refresh).await;
    let entries: Vec<LinkEntry> = site.get(&old.path("link")).await.ok().unwrap();
    let mut linked: Vec<_> = entries.iter().flat_map(|entry| linked_coins(&old, entry)).collect();
    let bytes =
        |coins: &mut Vec<(batzen_crypto::EddsaPublicKey, _)>| coins.sort_by_key(|coin| *coin.0.as_bytes());
    bytes(&mut linked);
    bytes(&mut own);
    assert_eq!(linked, own);
    is_error(&site.get("coins/ABC/link").await, 400, 1004);
    site.is_left(&old, "0.36").await;
}

#[tokio::test]
async fn invalid_melts_are_refused() {
    let mut site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let path = old.path("melt");
    let refresh = site.plan_refresh(&old, &[site.denom(CS_5)], "5.04").await;
    let request = refresh.melt();
    let unknown = HashCode::random();
    let wrong = with(&request, "denom_pub_hash", json!(unknown));
    proof::denom_unknown(&site, &site.post(&path, &wrong).await, 1005, &unknown);
    site.refused(&path, &with(&request, "value_with_fee", json!("TESTKUDOS:0.02")), 400, 1302).await;
    site.refused(&path, &with(&request, "denom_pub_hash", json!(site.denom(CS_5).h)), 400, 1017).await;
    let other = site.coin(RSA_8).await;
    site.refused(&path, &with(&request, "denom_sig", json!(other.denom_sig)), 403, 1006).await;
    let age = json!(ShortHash::random());
    site.refused(&path, &with(&request, "age_commitment_hash", age), 403, 1006).await;
    for (member, value) in [
        ("rc", json!(unknown)),
        ("value_with_fee", json!("TESTKUDOS:5.03")),
        ("confirm_sig", json!(EddsaSignature::from_bytes([1; 64]))),
    ] {
        site.refused(&path, &edited(&request, |body| body[member] = value), 403, 1303).await;
    }
    site.refused("coins/ABC/melt", &request, 400, 1004).await;
    site.refused(&other.path("melt"), &request, 403, 1006).await;
    // More than the coin is worth, before and after its first use.
    let large = site.plan_refresh(&old, &[site.denom(CS_5)], "8.01").await;
    let reply = site.post(&path, &large.melt()).await;
    assert_eq!(proof::overspent(&site, &reply, old.coin_pub, &old.denom, "8.01"), m("8"));
    site.melt(&refresh).await;
    let again = site.plan_refresh(&old, &[site.denom(RSA_1)], "3").await;
    let reply = site.post(&path, &again.melt()).await;
    assert_eq!(proof::overspent(&site, &reply, old.coin_pub, &old.denom, "3"), m("2.96"));

    let future = site.future_denom(RSA_8).await;
    let wrong = with(&request, "denom_pub_hash", json!(future.h));
    proof::denom_unusable(&site, &site.post(&path, &wrong).await, 1008, "MELT", &future.h);
}

#[tokio::test]
async fn a_refresh_master_secret_is_accepted_for_one_commitment_only() {
    let site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let denoms = [site.denom(CS_FREE)];
    let rms = RefreshMasterSecret::generate();
    let first = site.plan_refresh_with(&old, &denoms, "0.53", rms.clone()).await;
    let second = site.plan_refresh_with(&old, &denoms, "0.53", rms.clone()).await;
    let noreveal_index = site.melt(&first).await;
    site.refused(&old.path("melt"), &second.melt(), 409, 1160).await;
    site.reveal(&first, noreveal_index).await;
    // A melt may omit the secret; the reveal checks it then.
    let quiet = with(&second.melt(), "rms", json!(null));
    let melted: MeltConfirmation = site.ok(&old.path("melt"), &quiet).await;
    site.refused(&second.reveal_path(), &second.reveal(melted.noreveal_index), 409, 1160).await;
    // Two melts without the secret: the first reveal locks it.
    let rms = RefreshMasterSecret::generate();
    let mut quiet = Vec::new();
    for _ in 0..2 {
        let refresh = site.plan_refresh_with(&old, &denoms, "0.53", rms.clone()).await;
        let request = with(&refresh.melt(), "rms", json!(null));
        let melted: MeltConfirmation = site.ok(&old.path("melt"), &request).await;
        quiet.push((refresh, melted.noreveal_index));
    }
    site.reveal(&quiet[1].0, quiet[1].1).await;
    site.refused(&quiet[0].0.reveal_path(), &quiet[0].0.reveal(quiet[0].1), 409, 1160).await;
    site.reveal(&quiet[1].0, quiet[1].1).await;
    site.is_left(&old, "5.88").await;
}

/// Two signatures under one nonce reveal the private key. Only the client knows the nonces of the candidate
/// that stays secret, so they must be derived from the refresh master secret, which the rules lock.
#[tokio::test]
async fn nonces_that_are_not_derived_from_the_secret_are_refused() {
    let site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let denoms = [site.denom(RSA_1), site.denom(CS_FREE)];
    let mut refresh = site.plan_refresh(&old, &denoms, "1.54").await;
    for coins in &mut refresh.candidates {
        let BlindedPlanchet::Cs { nonce, .. } = &mut coins[1].planchet else { panic!() };
        *nonce = CsNonce::from_bytes([9; 32]);
    }
    refresh.rc = refresh.commitment();
    let noreveal_index = site.melt(&refresh).await;
    let reply = site.refused(&refresh.reveal_path(), &refresh.reveal(noreveal_index), 400, 26).await;
    assert!(detail(&reply).contains("nonce"));
    // The nonce of another position is refused as well.
    let mut refresh = site.plan_refresh(&old, &denoms, "1.54").await;
    for coins in &mut refresh.candidates {
        let BlindedPlanchet::Cs { nonce, .. } = &mut coins[1].planchet else { panic!() };
        *nonce = refresh.rms.cs_nonce(0);
    }
    refresh.rc = refresh.commitment();
    let noreveal_index = site.melt(&refresh).await;
    site.refused(&refresh.reveal_path(), &refresh.reveal(noreveal_index), 400, 26).await;
    is_error(&site.get(&old.path("link")).await, 404, 1400);
}

#[tokio::test]
async fn invalid_reveals_are_refused() {
    let site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let denoms = [site.denom(CS_FREE), site.denom(RSA_1)];
    let refresh = site.plan_refresh(&old, &denoms, "1.54").await;
    let path = refresh.reveal_path();
    site.refused(&path, &refresh.reveal(0), 404, 1355).await;
    let noreveal_index = site.melt(&refresh).await;
    let request = refresh.reveal(noreveal_index);
    site.refused("refreshes/ABC/reveal", &request, 400, 1362).await;
    site.refused(&format!("refreshes/{}/conceal", refresh.rc), &request, 400, 1363).await;

    let (one, two) = (request.transfer_privs[0].clone(), request.transfer_privs[1].clone());
    for transfer_privs in [vec![], vec![one.clone()], vec![one.clone(), two.clone(), one.clone()]] {
        site.refused(&path, &RevealRequest { transfer_privs, ..request.clone() }, 400, 1356).await;
    }
    let count = |n: usize| RevealRequest {
        new_denoms_h: vec![denoms[1].h; n],
        coin_evs: vec![request.coin_evs[1].clone(); n],
        link_sigs: vec![request.link_sigs[1]; n],
        ..request.clone()
    };
    site.refused(&path, &count(0), 400, 1018).await;
    site.refused(&path, &count(256), 400, 1018).await;
    let mut wrong = request.clone();
    wrong.coin_evs.pop();
    assert_eq!(detail(&site.refused(&path, &wrong, 400, 1358).await), "new_denoms/coin_evs");
    let mut wrong = request.clone();
    wrong.link_sigs.pop();
    assert_eq!(detail(&site.refused(&path, &wrong, 400, 1358).await), "new_denoms/link_sigs");

    let unknown = HashCode::random();
    let mut wrong = request.clone();
    wrong.new_denoms_h[1] = unknown;
    proof::denom_unknown(&site, &site.post(&path, &wrong).await, 1005, &unknown);
    let reply = site.refused(&path, &RevealRequest { rms: None, ..request.clone() }, 400, 25).await;
    assert_eq!(detail(&reply), "rms");
    let mut wrong = request.clone();
    wrong.link_sigs[0] = wrong.link_sigs[1];
    site.refused(&path, &wrong, 403, 1361).await;
    let mut wrong = request.clone();
    wrong.transfer_pub = refresh.transfer_privs[(noreveal_index as usize + 1) % 3].public_key();
    site.refused(&path, &wrong, 403, 1361).await;
    // Planchets of the other cipher, which the old coin signed as such.
    let mut crossed = refresh.clone();
    for coins in &mut crossed.candidates {
        coins[1].planchet = BlindedPlanchet::Cs {
            nonce: CsNonce::from_bytes([1; 32]),
            c0: CsScalar::from_bytes([1; 32]),
            c1: CsScalar::from_bytes([2; 32]),
        };
    }
    site.refused(&path, &crossed.reveal(noreveal_index), 400, 1017).await;
    let mut wrong = request.clone();
    wrong.old_age_commitment = Some(vec![AgePrivateKey::generate().public_key(); 7]);
    site.refused(&path, &wrong, 400, 1365).await;

    // Requests that do not match the commitment: other transfer keys, other planchets, another secret,
    // another order.
    let violation = async |wrong: &RevealRequest| {
        let reply = site.refused(&path, wrong, 409, 1353).await;
        let expected: HashCode =
            reply.json::<serde_json::Value>().unwrap()["rc_expected"].as_str().unwrap().parse().unwrap();
        assert_ne!(expected, refresh.rc);
    };
    violation(&RevealRequest { transfer_privs: vec![two.clone(), one.clone()], ..request.clone() }).await;
    violation(&RevealRequest { transfer_privs: vec![one.clone(), one], ..request.clone() }).await;
    violation(&refresh.reveal((noreveal_index + 1) % 3)).await;
    let mut other = refresh.clone();
    for coins in &mut other.candidates {
        coins[1].planchet = BlindedPlanchet::Rsa { blinded: vec![5; 128] };
    }
    violation(&other.reveal(noreveal_index)).await;
    // Afterwards the valid request succeeds.
    let coins = site.reveal(&refresh, noreveal_index).await;
    assert_eq!(coins.len(), 2);
    // A repetition must name the same planchets.
    violation(&other.reveal(noreveal_index)).await;
    assert_eq!(site.get(&old.path("link")).await.ok::<Vec<LinkEntry>>().unwrap().len(), 1);
}

#[tokio::test]
async fn fresh_coins_above_the_melted_amount_are_refused() {
    let site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let denoms = [site.denom(RSA_1), site.denom(CS_5)];
    // Melt fee 0.03, two withdraw fees of 0.01, values of 6: the amount is one unit short.
    let refresh = site.plan_refresh(&old, &denoms, "6.04999999").await;
    let noreveal_index = site.melt(&refresh).await;
    site.refused(&refresh.reveal_path(), &refresh.reveal(noreveal_index), 400, 1360).await;
    is_error(&site.get(&old.path("link")).await, 404, 1400);
    // A surplus is lost.
    let refresh = site.plan_refresh(&old, &denoms[..1], "1.9").await;
    let noreveal_index = site.melt(&refresh).await;
    site.reveal(&refresh, noreveal_index).await;
    site.is_left(&old, "0.05000001").await;
}

#[tokio::test]
async fn fresh_coins_keep_the_age_restriction() {
    let site = Site::start().await;
    for value in [RSA_AGE_4, CS_AGE_2] {
        let old = site.coin(value).await;
        let denoms = [site.denom(CS_AGE_2), site.denom(RSA_1)];
        let refresh = site.plan_refresh(&old, &denoms[1..], "1.04").await;
        let hash = with(&refresh.melt(), "age_commitment_hash", json!(null));
        site.refused(&old.path("melt"), &hash, 403, 1006).await;
        let noreveal_index = site.melt(&refresh).await;
        let request = refresh.reveal(noreveal_index);
        let own = request.old_age_commitment.clone().unwrap();
        assert_eq!(own.len(), 7);
        let mut other = own.clone();
        other[6] = AgePrivateKey::generate().public_key();
        let mut swapped = own.clone();
        swapped.swap(0, 1);
        let longer = [own.clone(), own[..1].to_vec()].concat();
        for keys in [None, Some(vec![]), Some(own[..6].to_vec()), Some(longer), Some(other), Some(swapped)] {
            let wrong = RevealRequest { old_age_commitment: keys, ..request.clone() };
            site.refused(&refresh.reveal_path(), &wrong, 400, 1365).await;
        }
        let coins = site.reveal(&refresh, noreveal_index).await;
        // The fresh commitment is the coin's own, and attests the same ages as the old one: 14, not 16.
        let age = coins[0].age.as_ref().unwrap();
        let attested = age.attest(14).unwrap();
        assert!(age.commitment().verify(14, &attested));
        assert!(age.attest(16).is_err());
        assert_ne!(coins[0].h_age(), old.h_age());
        site.pay(&Contract::new(&site), &coins[0], "1").await;

        // A wallet that puts a commitment of its own choice into one candidate is caught unless it guesses
        // the index.
        if value == CS_AGE_2 {
            continue;
        }
        let mut caught = 0;
        for _ in 0..2 {
            let mut refresh = site.plan_refresh(&old, &denoms[1..], "1.04").await;
            let grown = age_for(&old.denom, 21).unwrap().commitment().hash();
            for coins in &mut refresh.candidates {
                let coin = &mut coins[0];
                let (planchet, _) = denom::prepare_planchet(
                    &denoms[1].terms.denom_pub,
                    &refresh.values[0],
                    None,
                    &coin.coin_pub,
                    &coin.secrets.blinding,
                    Some(&grown),
                )
                .unwrap();
                coin.planchet = planchet;
            }
            refresh.rc = refresh.commitment();
            let noreveal_index = site.melt(&refresh).await;
            site.refused(&refresh.reveal_path(), &refresh.reveal(noreveal_index), 409, 1353).await;
            caught += 1;
        }
        assert_eq!(caught, 2);
    }
}

#[tokio::test]
async fn fresh_denominations_must_be_withdrawable_at_the_first_reveal() {
    let mut site = Site::start().await;
    let old = site.coin(RSA_8).await;
    let (rsa, cs) = (site.denom(RSA_1), site.denom(CS_FREE));
    let done = site.plan_refresh(&old, &[rsa.clone(), cs.clone()], "1.54").await;
    let late = site.plan_refresh(&old, &[rsa.clone(), cs.clone()], "1.54").await;
    let done_index = site.melt(&done).await;
    let late_index = site.melt(&late).await;
    let first: BlindSignatures = site.ok(&done.reveal_path(), &done.reveal(done_index)).await;

    let future = site.future_denom(RSA_1).await;
    let early = site.plan_refresh(&old, std::slice::from_ref(&future), "1.04").await;
    let early_index = site.melt(&early).await;
    let reply = site.post(&early.reveal_path(), &early.reveal(early_index)).await;
    proof::denom_unusable(&site, &reply, 1008, "REVEAL", &future.h);
    site.advance(Duration::from_days(1)).await;
    site.reveal(&early, early_index).await;

    let reply = site.post(&late.reveal_path(), &late.reveal(late_index)).await;
    proof::denom_unusable(&site, &reply, 1009, "REVEAL", &rsa.h);
    assert_eq!(site.ok::<BlindSignatures>(&done.reveal_path(), &done.reveal(done_index)).await, first);

    // For a revoked denomination, the error is plain, without a signature.
    let now = site.denom(CS_FREE);
    let done = site.plan_refresh(&old, std::slice::from_ref(&now), "0.53").await;
    let late = site.plan_refresh(&old, std::slice::from_ref(&now), "0.53").await;
    let done_index = site.melt(&done).await;
    let late_index = site.melt(&late).await;
    let first: BlindSignatures = site.ok(&done.reveal_path(), &done.reveal(done_index)).await;
    site.revoke(&now).await;
    site.refused(&late.reveal_path(), &late.reveal(late_index), 410, 1010).await;
    assert_eq!(site.ok::<BlindSignatures>(&done.reveal_path(), &done.reveal(done_index)).await, first);
    // The link works even if the denominations have expired or are revoked.
    let entries: Vec<LinkEntry> = site.get(&old.path("link")).await.ok().unwrap();
    assert_eq!(entries.iter().map(|entry| linked_coins(&old, entry).len()).sum::<usize>(), 4);
}

#[tokio::test]
async fn expired_coins_are_not_melted() {
    let mut site = Site::start().await;
    let (known, unknown) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let (first, _) = site.refresh(&known, &[site.denom(RSA_1)], "1.04").await;
    site.advance(Duration::from_days(38)).await;
    let fresh = [site.denom(CS_FREE)];
    for (coin, money) in [(&known, "0.53"), (&unknown, "0.53")] {
        let refresh = site.plan_refresh(coin, &fresh, money).await;
        let reply = site.post(&coin.path("melt"), &refresh.melt()).await;
        if coin.coin_pub == known.coin_pub {
            is_error(&reply, 400, 1305);
        } else {
            proof::denom_unusable(&site, &reply, 1009, "MELT", &coin.denom.h);
        }
    }
    // A melt that was made in time is confirmed again.
    site.melt(&first).await;
    site.advance(Duration::from_days(60)).await;
    let refresh = site.plan_refresh(&known, &[site.denom(CS_FREE)], "0.53").await;
    let reply = site.post(&known.path("melt"), &refresh.melt()).await;
    proof::denom_unusable(&site, &reply, 1009, "MELT", &known.denom.h);
}

#[tokio::test]
async fn a_commitment_belongs_to_one_coin() {
    let site = Site::start().await;
    let (a, b) = (site.coin(RSA_8).await, site.coin(RSA_8).await);
    let refresh = site.plan_refresh(&a, &[site.denom(RSA_1)], "1.04").await;
    let copied = Refresh { old: b.clone(), ..refresh.clone() };
    site.melt(&refresh).await;
    site.refused(&b.path("melt"), &copied.melt(), 400, 26).await;
    site.is_left(&b, "8").await;
    // A link signature concerns only the old coin.
    let secrets = CoinSecrets::from_master(&PlanchetMasterSecret::generate(), &refresh.values[0]);
    let message = WalletCoinLink {
        h_denom_pub: refresh.denoms[0].h,
        transfer_pub: refresh.transfer_privs[0].public_key(),
        h_age_commitment: Zeros,
        h_coin_envelope: HashCode::random(),
    };
    assert!(!message.verify(&a.coin_pub, &message.sign(&secrets.coin_priv)));
}

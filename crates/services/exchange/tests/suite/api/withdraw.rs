//! `/withdraw` and `/batch-withdraw`.

use batzen_crypto::{BlindedPlanchet, DenomKey, EddsaPrivateKey, HashCode, PlanchetMasterSecret};
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::{BatchWithdrawRequest, BlindSignature, BlindSignatures};
use serde_json::json;

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

#[tokio::test]
async fn withdraws_coins_of_both_ciphers_with_and_without_age() {
    let site = Site::start().await;
    let reserve = site.reserve("25").await;
    let mut left = m("25");
    for value in [RSA_8, CS_5, CS_FREE, RSA_AGE_4, CS_AGE_2] {
        let denom = site.denom(value);
        assert_eq!(denom.terms.denom_pub.age_mask != 0, [RSA_AGE_4, CS_AGE_2].contains(&value));
        let planchet = site.planchet(&denom).await;
        let path = at_reserve(&reserve, "withdraw");
        let first: BlindSignature = site.ok(&path, &planchet.request(&reserve)).await;
        planchet.finish(&first.ev_sig);
        left = left.checked_sub(denom.cost()).unwrap();
        assert_eq!(site.balance(&reserve.public_key()).await, left);
        // A repetition returns the same signature and charges nothing.
        let again: BlindSignature = site.ok(&path, &planchet.request(&reserve)).await;
        assert_eq!(again, first);
        assert_eq!(site.balance(&reserve.public_key()).await, left);
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_again() {
    let site = Site::start().await;
    let reserve = site.reserve("30").await;
    let mut planchets = Vec::new();
    for value in [CS_5, RSA_8, RSA_1, CS_FREE, RSA_AGE_4] {
        planchets.push(site.planchet(&site.denom(value)).await);
    }
    let path = at_reserve(&reserve, "batch-withdraw");
    let request = batch_of(&planchets, &reserve);
    let first: BlindSignatures = site.ok(&path, &request).await;
    for (planchet, signed) in planchets.iter().zip(&first.ev_sigs) {
        planchet.finish(&signed.ev_sig);
    }
    assert_eq!(first.ev_sigs.len(), 5);
    let left = site.balance(&reserve.public_key()).await;
    assert_eq!(left, m("11.46"));
    assert_eq!(site.ok::<BlindSignatures>(&path, &request).await, first);
    // In another order, or one of them alone: the stored signatures are returned.
    planchets.reverse();
    let reversed: BlindSignatures = site.ok(&path, &batch_of(&planchets, &reserve)).await;
    assert!(reversed.ev_sigs.iter().rev().eq(&first.ev_sigs));
    let one: BlindSignature =
        site.ok(&at_reserve(&reserve, "withdraw"), &planchets[0].request(&reserve)).await;
    assert_eq!(one, reversed.ev_sigs[0]);
    // Old and new planchets together are refused.
    planchets.push(site.planchet(&site.denom(RSA_1)).await);
    site.refused(&path, &batch_of(&planchets, &reserve), 409, 1175).await;
    assert_eq!(site.balance(&reserve.public_key()).await, left);
}

#[tokio::test]
async fn a_batch_has_1_to_256_different_planchets() {
    let site = Site::start().await;
    let reserve = site.reserve("100").await;
    let path = at_reserve(&reserve, "batch-withdraw");
    let planchet = site.planchet(&site.denom(RSA_1)).await;
    let empty = BatchWithdrawRequest { planchets: vec![] };
    assert_eq!(detail(&site.refused(&path, &empty, 400, 26).await), "planchets");
    let many = batch_of(&vec![planchet.clone(); 257], &reserve);
    assert_eq!(detail(&site.refused(&path, &many, 400, 26).await), "too many planchets");
    let twice = batch_of(&[planchet.clone(), planchet.clone()], &reserve);
    assert_eq!(detail(&site.refused(&path, &twice, 400, 26).await), "duplicate planchet");
    let reply = site.refused(&path, &json!({ "planchets": {} }), 400, 22).await;
    assert_eq!(reply.json::<serde_json::Value>().unwrap()["field"], "planchets");
    // A duplicate is refused even if its planchet is already withdrawn.
    site.withdraw(&reserve, &planchet).await;
    site.refused(&path, &twice, 400, 26).await;
    // The largest batch. The rest of the money is enough for only 98 coins, so the batch fails as a whole,
    // and the error names the sum.
    let denom = site.denom(CS_FREE);
    let secret = PlanchetMasterSecret::generate();
    let (values, nonce) = site.values(&denom, &secret).await;
    let mut planchets = Vec::new();
    for _ in 0..256 {
        let secrets = batzen_crypto::CoinSecrets::from_master(&PlanchetMasterSecret::generate(), &values);
        planchets.push(Planchet::prepare(&denom, secrets, values, nonce, None));
    }
    let reply = site.post(&path, &batch_of(&planchets, &reserve)).await;
    proof::reserve_short(&site, &reply, &reserve, m("128"));
    assert_eq!(site.balance(&reserve.public_key()).await, m("98.99"));
}

#[tokio::test]
async fn insufficient_funds_are_proven_before_a_blind_signature_is_made() {
    let site = Site::start().await;
    let reserve = site.reserve("9").await;
    let rsa = site.denom(RSA_8);
    site.withdraw(&reserve, &site.planchet(&site.denom(CS_FREE)).await).await;
    let signed = [
        site.metric("taler_exchange_num_signatures", "rsa").await,
        site.metric("taler_exchange_num_signatures", "cs").await,
    ];
    let planchets = [site.planchet(&rsa).await, site.planchet(&site.denom(CS_5)).await];
    let reply = site.post(&at_reserve(&reserve, "batch-withdraw"), &batch_of(&planchets, &reserve)).await;
    assert_eq!(proof::reserve_short(&site, &reply, &reserve, m("13.02")), m("8.5"));
    site.withdraw(&reserve, &planchets[0]).await;
    let request = planchets[1].request(&reserve);
    let reply = site.post(&at_reserve(&reserve, "withdraw"), &request).await;
    assert_eq!(proof::reserve_short(&site, &reply, &reserve, m("5.01")), m("0.49"));
    let now = [
        site.metric("taler_exchange_num_signatures", "rsa").await,
        site.metric("taler_exchange_num_signatures", "cs").await,
    ];
    assert_eq!(now, [signed[0] + 1, signed[1]]);
    // After a credit, the same request succeeds.
    site.credit(reserve.public_key(), "5").await;
    let answer: BlindSignature = site.ok(&at_reserve(&reserve, "withdraw"), &request).await;
    planchets[1].finish(&answer.ev_sig);
    assert_eq!(site.balance(&reserve.public_key()).await, m("0.48"));
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let site = Site::start().await;
    let reserve = site.reserve("20").await;
    let (rsa, cs) = (site.denom(RSA_8), site.denom(CS_5));
    let planchet = site.planchet(&rsa).await;
    let request = planchet.request(&reserve);
    let path = at_reserve(&reserve, "withdraw");
    let batch = at_reserve(&reserve, "batch-withdraw");
    let in_batch = |request: &serde_json::Value| json!({ "planchets": [request] });

    let unknown = HashCode::random();
    let wrong = with(&request, "denom_pub_hash", json!(unknown));
    proof::denom_unknown(&site, &site.post(&path, &wrong).await, 1005, &unknown);
    proof::denom_unknown(&site, &site.post(&batch, &in_batch(&wrong)).await, 1005, &unknown);

    let wrong = with(&request, "denom_pub_hash", json!(cs.h));
    site.refused(&path, &wrong, 400, 1017).await;
    site.refused(&batch, &in_batch(&wrong), 400, 1017).await;

    // Signed by another reserve, over another amount, for another planchet, or not at all.
    let other = site.reserve("20").await;
    for signature in [
        planchet.request(&other).reserve_sig,
        site.planchet(&rsa).await.request(&reserve).reserve_sig,
        batzen_crypto::EddsaSignature::from_bytes([0; 64]),
        batzen_crypto::EddsaSignature::from_bytes([0xff; 64]),
    ] {
        let wrong = with(&request, "reserve_sig", json!(signature));
        site.refused(&path, &wrong, 403, 1154).await;
        site.refused(&batch, &in_batch(&wrong), 403, 1154).await;
    }
    // One wrong signature makes the whole batch fail.
    let mut both = batch_of(&[planchet.clone(), site.planchet(&rsa).await], &reserve);
    both.planchets[1].reserve_sig = both.planchets[0].reserve_sig;
    site.refused(&batch, &both, 403, 1154).await;

    let nobody = EddsaPrivateKey::generate();
    site.refused(&at_reserve(&nobody, "withdraw"), &planchet.request(&nobody), 404, 1027).await;
    let request = batch_of(std::slice::from_ref(&planchet), &nobody);
    site.refused(&at_reserve(&nobody, "batch-withdraw"), &request, 404, 1027).await;

    // Reserves that are not valid keys: too short, not a point, a point of small order.
    let request = planchet.request(&reserve);
    for operation in ["withdraw", "batch-withdraw"] {
        site.refused(&format!("reserves/ABC/{operation}"), &request, 400, 27).await;
    }
    for key in [[2; 32], [0; 32], [0xff; 32]] {
        let key = batzen_crypto::EddsaPublicKey::from_bytes(key);
        site.refused(&format!("reserves/{key}/withdraw"), &request, 403, 1154).await;
    }
    site.refused(&format!("reserves/{}/withdrew", reserve.public_key()), &request, 404, 1001).await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("20"));
    assert_eq!(site.balance(&other.public_key()).await, m("20"));
}

#[tokio::test]
async fn malformed_blinded_planchets_are_refused() {
    let site = Site::start().await;
    let reserve = site.reserve("20").await;
    let denom = site.denom(RSA_8);
    let DenomKey::Rsa(key) = &denom.terms.denom_pub.key else { panic!() };
    let encoded = key.encode();
    let size = usize::from(u16::from_be_bytes([encoded[0], encoded[1]]));
    let modulus = encoded[4..4 + size].to_vec();
    // The modulus plus one: the carry propagates through bytes of 0xff.
    let mut above = modulus.clone();
    for byte in above.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    let mut planchet = site.planchet(&denom).await;
    for blinded in
        [vec![], vec![0], vec![0; 128], modulus, above, vec![0xff; 128], vec![1; 129], vec![7; 5_000]]
    {
        planchet.blinded = BlindedPlanchet::Rsa { blinded };
        site.refused(&at_reserve(&reserve, "withdraw"), &planchet.request(&reserve), 400, 26).await;
        let batch = batch_of(&[site.planchet(&denom).await, planchet.clone()], &reserve);
        site.refused(&at_reserve(&reserve, "batch-withdraw"), &batch, 400, 26).await;
    }
    assert_eq!(site.balance(&reserve.public_key()).await, m("20"));
}

#[tokio::test]
async fn after_expiration_only_repeated_withdrawals_are_answered() {
    let mut site = Site::start().await;
    let reserve = site.reserve("50").await;
    let (rsa, cs) = (site.denom(RSA_8), site.denom(CS_5));
    let planchets = [site.planchet(&rsa).await, site.planchet(&cs).await];
    let fresh = [site.planchet(&rsa).await, site.planchet(&cs).await];
    let single = at_reserve(&reserve, "withdraw");
    let batch = at_reserve(&reserve, "batch-withdraw");
    let request = batch_of(&planchets, &reserve);
    let first: BlindSignatures = site.ok(&batch, &request).await;

    let future = site.future_denom(RSA_8).await;
    let early = site.planchet(&future).await;
    let reply = site.post(&single, &early.request(&reserve)).await;
    proof::denom_unusable(&site, &reply, 1008, "WITHDRAW", &future.h);

    site.advance(Duration::from_days(1)).await;
    for planchet in &fresh {
        let reply = site.post(&single, &planchet.request(&reserve)).await;
        proof::denom_unusable(&site, &reply, 1009, "WITHDRAW", &planchet.denom.h);
    }
    let reply = site.post(&batch, &batch_of(&fresh, &reserve)).await;
    proof::denom_unusable(&site, &reply, 1009, "WITHDRAW", &rsa.h);
    assert_eq!(site.ok::<BlindSignatures>(&batch, &request).await, first);
    let again: BlindSignature = site.ok(&single, &planchets[1].request(&reserve)).await;
    assert_eq!(again, first.ev_sigs[1]);
    // The signature of another reserve is refused.
    let stranger = EddsaPrivateKey::generate();
    let mut wrong = planchets[1].request(&reserve);
    wrong.reserve_sig = planchets[1].request(&stranger).reserve_sig;
    site.refused(&single, &wrong, 403, 1154).await;
}

#[tokio::test]
async fn after_revocation_only_repeated_withdrawals_are_answered() {
    let mut site = Site::start().await;
    let reserve = site.reserve("50").await;
    let (rsa, cs) = (site.denom(RSA_8), site.denom(CS_5));
    let planchets = [site.planchet(&rsa).await, site.planchet(&cs).await];
    let fresh = [site.planchet(&rsa).await, site.planchet(&cs).await];
    let single = at_reserve(&reserve, "withdraw");
    let batch = at_reserve(&reserve, "batch-withdraw");
    let request = batch_of(&planchets, &reserve);
    let first: BlindSignatures = site.ok(&batch, &request).await;
    let left = site.balance(&reserve.public_key()).await;
    for denom in [&rsa, &cs] {
        site.revoke(denom).await;
    }
    for planchet in &fresh {
        let reply = site.post(&single, &planchet.request(&reserve)).await;
        proof::denom_unusable(&site, &reply, 1010, "WITHDRAW", &planchet.denom.h);
    }
    let reply = site.post(&batch, &batch_of(&fresh, &reserve)).await;
    proof::denom_unusable(&site, &reply, 1010, "WITHDRAW", &rsa.h);
    assert_eq!(site.ok::<BlindSignatures>(&batch, &request).await, first);
    assert_eq!(site.balance(&reserve.public_key()).await, left);
    // The replacement works.
    let replacement = site.denom(RSA_8);
    assert_ne!(replacement.h, rsa.h);
    site.withdraw(&reserve, &site.planchet(&replacement).await).await;
}

#[tokio::test]
async fn a_nonce_is_accepted_for_one_planchet_only() {
    let site = Site::start().await;
    let reserve = site.reserve("50").await;
    let denom = site.denom(CS_5);
    let single = at_reserve(&reserve, "withdraw");
    let batch = at_reserve(&reserve, "batch-withdraw");
    let used = site.planchet(&denom).await;
    // Another coin with the nonce of the first.
    let other = |used: &Planchet| {
        let secrets =
            batzen_crypto::CoinSecrets::from_master(&PlanchetMasterSecret::generate(), &used.values);
        Planchet::prepare(&denom, secrets, used.values, used.nonce, None)
    };
    let coin = site.withdraw(&reserve, &used).await;
    let left = site.balance(&reserve.public_key()).await;
    site.refused(&single, &other(&used).request(&reserve), 409, 1160).await;
    site.refused(&batch, &batch_of(&[other(&used)], &reserve), 400, 1160).await;
    let fresh = site.planchet(&denom).await;
    site.refused(&batch, &batch_of(&[fresh.clone(), other(&used)], &reserve), 400, 1160).await;
    // Twice in one batch: both are refused, and the nonce stays free.
    site.refused(&batch, &batch_of(&[fresh.clone(), other(&fresh)], &reserve), 400, 1160).await;
    assert_eq!(site.balance(&reserve.public_key()).await, left);
    site.withdraw(&reserve, &fresh).await;
    // Another reserve may not use the nonce for another planchet either, but it may withdraw the same
    // planchet with its own money.
    let second = site.reserve("20").await;
    site.refused(&at_reserve(&second, "withdraw"), &other(&used).request(&second), 409, 1160).await;
    assert_eq!(site.withdraw(&second, &used).await.denom_sig, coin.denom_sig);
    assert_eq!(site.balance(&second.public_key()).await, m("14.99"));
    // A reserve that cannot pay gets that error first.
    let poor = site.reserve("1").await;
    let reply = site.post(&at_reserve(&poor, "withdraw"), &other(&used).request(&poor)).await;
    assert_eq!(proof::reserve_short(&site, &reply, &poor, m("5.01")), m("1"));
}

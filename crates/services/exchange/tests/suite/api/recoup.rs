//! `/recoup` and `/recoup-refresh`, and the zombie coins that the latter creates.

use batzen_crypto::{BlindingSecret, CsNonce, EddsaSignature, HashCode, PlanchetMasterSecret, ShortHash};
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::{
    CoinHistoryItem, RecoupRefreshResponse, RecoupResponse, ReserveHistoryItem, ReserveRequest, ReserveStatus,
};
use batzen_protocol::signatures::{SignedMessage, WalletReserveStatus};
use serde_json::json;

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

#[tokio::test]
async fn recoup_returns_the_remaining_value_to_the_reserve() {
    let mut site = Site::start().await;
    for value in [RSA_8, CS_5, RSA_AGE_4, CS_AGE_2] {
        let denom = site.denom(value);
        let reserve = site.reserve("20").await;
        let coin = site.withdraw(&reserve, &site.planchet(&denom).await).await;
        let unspent = site.withdraw(&reserve, &site.planchet(&denom).await).await;
        let contract = Contract::new(&site);
        site.pay(&contract, &coin, "0.5").await;
        site.refused(&coin.path("recoup"), &coin.recoup(), 410, 1555).await;
        site.revoke(&denom).await;

        let before = site.balance(&reserve.public_key()).await;
        let answer: RecoupResponse = site.ok(&coin.path("recoup"), &coin.recoup()).await;
        assert_eq!(answer.reserve_pub, reserve.public_key());
        let rest = m(value).checked_sub(m("0.5")).unwrap();
        let after = before.checked_add(rest).unwrap();
        assert_eq!(site.balance(&reserve.public_key()).await, after);
        // The same request again: the same answer, and no further effect.
        assert_eq!(site.ok::<RecoupResponse>(&coin.path("recoup"), &coin.recoup()).await, answer);
        assert_eq!(site.balance(&reserve.public_key()).await, after);
        site.ok::<RecoupResponse>(&unspent.path("recoup"), &unspent.recoup()).await;
        let after = after.checked_add(m(value)).unwrap();
        assert_eq!(site.balance(&reserve.public_key()).await, after);

        // Both histories prove it.
        let request_timestamp = site.now();
        let reserve_sig = WalletReserveStatus { request_timestamp }.sign(&reserve);
        let request = ReserveRequest { request_timestamp, reserve_sig };
        let status: ReserveStatus = site.ok(&at_reserve(&reserve, "status"), &request).await;
        assert_eq!(proof::reserve_sum(&site, reserve.public_key(), &status.history), after);
        let recouped = status.history.iter().filter(|item| matches!(item, ReserveHistoryItem::Recoup(_)));
        assert_eq!(recouped.count(), 2);
        // A refund to the coin is recouped to the reserve as well.
        site.refund(&contract, &coin, "0.2", 1).await;
        site.ok::<RecoupResponse>(&coin.path("recoup"), &coin.recoup()).await;
        let after = after.checked_add(m("0.19")).unwrap();
        assert_eq!(site.balance(&reserve.public_key()).await, after);
        // A conflicting refund returns the coin's history, with both recoups.
        let reply = site.post(&coin.path("refund"), &contract.refund(&coin, "0.5", 2)).await;
        let (history, left) = proof::coin_conflict(&site, &reply, (409, 1501), coin.coin_pub, &denom);
        let recouped = history.iter().filter(|item| matches!(item, CoinHistoryItem::Recoup(_)));
        assert_eq!((recouped.count(), left), (2, m("0")));
    }
}

#[tokio::test]
async fn a_spent_coin_cannot_be_recouped() {
    let mut site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let fresh = site.refresh(&coin, &[site.denom(RSA_1)], "1.04").await.1.remove(0);
    site.pay(&Contract::new(&site), &coin, "6.96").await;
    site.pay(&Contract::new(&site), &fresh, "1").await;
    site.revoke(&coin.denom).await;
    site.revoke(&fresh.denom).await;
    let reply = site.post(&coin.path("recoup"), &coin.recoup()).await;
    let (_, left) = proof::coin_conflict(&site, &reply, (409, 1012), coin.coin_pub, &coin.denom);
    assert_eq!(left, m("0"));
    let reply = site.post(&fresh.path("recoup-refresh"), &fresh.recoup_refresh()).await;
    let (_, left) = proof::coin_conflict(&site, &reply, (409, 1012), fresh.coin_pub, &fresh.denom);
    assert_eq!(left, m("0"));
}

#[tokio::test]
async fn invalid_recoups_are_refused() {
    let mut site = Site::start().await;
    for (operation, not_eligible, bad_signature, not_found, oper) in
        [("recoup", 1555, 1550, 1551, "RECOUP"), ("recoup-refresh", 1580, 1575, 1576, "RECOUP-REFRESH")]
    {
        let is_recoup = operation == "recoup";
        let old = site.coin(RSA_8).await;
        let mut coins = Vec::new();
        for value in [RSA_1, CS_5] {
            coins.push(if is_recoup {
                site.coin(value).await
            } else {
                let money = if value == RSA_1 { "1.04" } else { "5.04" };
                site.refresh(&old, &[site.denom(value)], money).await.1.remove(0)
            });
        }
        let request = |coin: &Coin| if is_recoup { coin.recoup() } else { coin.recoup_refresh() };
        let (rsa, cs) = (&coins[0], &coins[1]);
        let unknown = HashCode::random();
        let wrong = with(&request(rsa), "denom_pub_hash", json!(unknown));
        proof::denom_unknown(&site, &site.post(&rsa.path(operation), &wrong).await, 1005, &unknown);
        for coin in &coins {
            let reply = site.post(&coin.path(operation), &request(coin)).await;
            proof::denom_unusable(&site, &reply, not_eligible, oper, &coin.denom.h);
        }
        let other = site.coin(RSA_1).await;
        for coin in &coins {
            site.revoke(&coin.denom).await;
        }
        for coin in &coins {
            let path = coin.path(operation);
            let good = request(coin);
            site.refused(&format!("coins/ABC/{operation}"), &good, 400, 1004).await;
            let age = json!(ShortHash::random());
            site.refused(&path, &with(&good, "h_age_commitment", age), 403, 1006).await;
            let forged = json!(EddsaSignature::from_bytes([7; 64]));
            site.refused(&path, &with(&good, "coin_sig", forged), 403, bad_signature).await;
            // The signature for the other operation.
            let crossed = if is_recoup { coin.recoup_refresh() } else { coin.recoup() };
            site.refused(&path, &crossed, 403, bad_signature).await;
            // The other operation: the coin was not obtained that way.
            let (elsewhere, code) = if is_recoup { ("recoup-refresh", 1576) } else { ("recoup", 1551) };
            site.refused(&coin.path(elsewhere), &crossed, 404, code).await;
            // A correctly signed request with another blinding secret: there is no such planchet.
            let mut moved = coin.clone();
            moved.secrets.blinding = BlindingSecret::generate();
            site.refused(&path, &request(&moved), 404, not_found).await;
        }
        let wrong = with(&request(rsa), "denom_sig", json!(other.denom_sig));
        site.refused(&rsa.path(operation), &wrong, 403, 1006).await;
        let wrong = with(&request(rsa), "denom_sig", json!(cs.denom_sig));
        site.refused(&rsa.path(operation), &wrong, 400, 1017).await;
        let wrong = with(&request(rsa), "ewv", json!(cs.values));
        site.refused(&rsa.path(operation), &wrong, 400, 1017).await;
        let wrong = with(&request(cs), "ewv", json!(rsa.values));
        site.refused(&cs.path(operation), &wrong, 400, 1017).await;
        let wrong = with(&request(cs), "cs_nonce", json!(null));
        site.refused(&cs.path(operation), &wrong, 400, 25).await;
        let nonce = json!(CsNonce::from_bytes([1; 32]));
        site.refused(&cs.path(operation), &with(&request(cs), "cs_nonce", nonce), 404, not_found).await;
        let points = json!({ "cipher": "CS", "r_pub_0": unknown_point(), "r_pub_1": unknown_point() });
        let reply = site.post(&cs.path(operation), &with(&request(cs), "ewv", points)).await;
        is_error(&reply, 400, 26);
        assert_eq!(detail(&reply), "ewv, cs_nonce or coin_blind_key_secret: invalid curve point");
        // The coins are unchanged.
        for coin in &coins {
            let reply = site.post(&coin.path(operation), &request(coin)).await;
            assert_eq!(reply.status, 200, "{}", text(&reply));
        }
    }
}

/// 32 bytes that are not a point on the curve.
fn unknown_point() -> CsNonce {
    CsNonce::from_bytes([2; 32])
}

#[tokio::test]
async fn an_expired_coin_cannot_be_recouped() {
    let mut site = Site::start().await;
    let reserve = site.reserve("30").await;
    let coin = site.withdraw(&reserve, &site.planchet(&site.denom(RSA_8)).await).await;
    let fresh = site.refresh(&coin, &[site.denom(CS_FREE)], "0.53").await.1.remove(0);
    site.revoke(&coin.denom).await;
    site.revoke(&fresh.denom).await;
    let future = site.future_denom(RSA_8).await;
    let early = with(&coin.recoup(), "denom_pub_hash", json!(future.h));
    proof::denom_unusable(&site, &site.post(&coin.path("recoup"), &early).await, 1008, "RECOUP", &future.h);
    site.advance(Duration::from_days(31)).await;
    let reply = site.post(&coin.path("recoup"), &coin.recoup()).await;
    proof::denom_unusable(&site, &reply, 1009, "RECOUP", &coin.denom.h);
    let reply = site.post(&fresh.path("recoup-refresh"), &fresh.recoup_refresh()).await;
    proof::denom_unusable(&site, &reply, 1009, "RECOUP-REFRESH", &fresh.denom.h);
}

#[tokio::test]
async fn a_coin_of_two_denominations_or_ages_conflicts() {
    let mut site = Site::start().await;
    let reserve = site.reserve("30").await;
    let secret = PlanchetMasterSecret::generate();
    let mut coins = Vec::new();
    for value in [RSA_8, RSA_1] {
        let planchet = site.planchet_of(&site.denom(value), &secret, None).await;
        coins.push(site.withdraw(&reserve, &planchet).await);
    }
    let ages = site.denom(RSA_AGE_4);
    let mut aged = Vec::new();
    for age in [8, 18] {
        let planchet = site.planchet_of(&ages, &secret_of(7), age_for(&ages, age)).await;
        aged.push(site.withdraw(&reserve, &planchet).await);
    }
    site.pay(&Contract::new(&site), &coins[0], "1").await;
    site.pay(&Contract::new(&site), &aged[0], "1").await;
    for denom in [&coins[1].denom, &ages] {
        site.revoke(denom).await;
    }
    let reply = site.post(&coins[1].path("recoup"), &coins[1].recoup()).await;
    proof::coin_conflict(&site, &reply, (409, 1003), coins[0].coin_pub, &coins[0].denom);
    let reply = site.post(&aged[1].path("recoup"), &aged[1].recoup()).await;
    proof::coin_conflict(&site, &reply, (409, 1015), aged[0].coin_pub, &ages);
    site.ok::<RecoupResponse>(&aged[0].path("recoup"), &aged[0].recoup()).await;
}

fn secret_of(n: u8) -> PlanchetMasterSecret {
    PlanchetMasterSecret::from_bytes([n; 32])
}

#[tokio::test]
async fn recoup_credits_the_first_reserve_that_withdrew_an_equal_planchet() {
    let mut site = Site::start().await;
    let (first, second) = (site.reserve("10").await, site.reserve("10").await);
    let planchet = site.planchet(&site.denom(CS_5)).await;
    let coin = site.withdraw(&first, &planchet).await;
    site.clock.advance(Duration::from_secs(1));
    site.withdraw(&second, &planchet).await;
    site.revoke(&coin.denom).await;
    let answer: RecoupResponse = site.ok(&coin.path("recoup"), &coin.recoup()).await;
    assert_eq!(answer.reserve_pub, first.public_key());
    site.ok::<RecoupResponse>(&coin.path("recoup"), &coin.recoup()).await;
    assert_eq!(site.balance(&first.public_key()).await, m("9.99"));
    assert_eq!(site.balance(&second.public_key()).await, m("4.99"));
}

#[tokio::test]
async fn recoup_refresh_returns_the_value_to_the_old_coin() {
    let mut site = Site::start().await;
    for (old, fresh, money) in [
        (RSA_8, CS_5, "5.04"),
        (CS_5, RSA_1, "1.04"),
        (RSA_AGE_4, CS_AGE_2, "2.04"),
        (CS_AGE_2, CS_FREE, "0.53"),
    ] {
        let old = site.coin(old).await;
        let denom = site.denom(fresh);
        let coin = site.refresh(&old, std::slice::from_ref(&denom), money).await.1.remove(0);
        site.pay(&Contract::new(&site), &coin, "0.3").await;
        site.revoke(&denom).await;
        let answer: RecoupRefreshResponse =
            site.ok(&coin.path("recoup-refresh"), &coin.recoup_refresh()).await;
        assert_eq!(answer.old_coin_pub, old.coin_pub);
        let again: RecoupRefreshResponse =
            site.ok(&coin.path("recoup-refresh"), &coin.recoup_refresh()).await;
        assert_eq!(again, answer);
        let value = old.denom.terms.value.money();
        let back = m(fresh).checked_sub(m("0.3")).unwrap();
        let left = value.checked_sub(m(money)).unwrap().checked_add(back).unwrap();
        // The old coin's evidence names the fresh coin.
        let text = value.to_string();
        let reply = site.post(&old.path("deposit"), &Contract::new(&site).deposit(&old, &text)).await;
        assert_eq!(proof::overspent(&site, &reply, old.coin_pub, &old.denom, &text), left);
        let (history, _) = proof::coin_conflict(&site, &reply, (409, 1012), old.coin_pub, &old.denom);
        assert!(history.iter().any(
            |item| matches!(item, CoinHistoryItem::OldCoinRecoup(it) if it.coin_pub == coin.coin_pub && it.amount.money() == back)
        ));
        site.is_left(&old, &left.to_string()).await;
        // The fresh coin's evidence names the old one.
        let reply = site.post(&coin.path("recoup"), &coin.recoup()).await;
        is_error(&reply, 404, 1551);
        let reply = site.post(&coin.path("refund"), &Contract::new(&site).refund(&coin, "1", 1)).await;
        is_error(&reply, 404, 1502);
    }
}

#[tokio::test]
async fn expired_zombies_can_be_melted() {
    let mut site = Site::start().await;
    let (zombie, known, revoked) = (site.coin(RSA_8).await, site.coin(RSA_8).await, site.coin(RSA_8).await);
    let denom = site.denom(CS_5);
    let fresh = site.refresh(&zombie, std::slice::from_ref(&denom), "5.04").await.1.remove(0);
    site.pay(&Contract::new(&site), &known, "1").await;
    site.revoke(&denom).await;
    site.ok::<RecoupRefreshResponse>(&fresh.path("recoup-refresh"), &fresh.recoup_refresh()).await;

    // After its own denomination is revoked, the zombie may be melted. Other coins, known or not, may not
    // (M8).
    site.revoke(&zombie.denom).await;
    let one = [site.denom(RSA_1)];
    for coin in [&known, &revoked] {
        let refresh = site.plan_refresh(coin, &one, "1.04").await;
        let reply = site.post(&coin.path("melt"), &refresh.melt()).await;
        proof::denom_unusable(&site, &reply, 1010, "MELT", &coin.denom.h);
    }
    site.refresh(&zombie, &one, "1.04").await;
    let reply = site.post(&zombie.path("deposit"), &Contract::new(&site).deposit(&zombie, "1")).await;
    proof::denom_unusable(&site, &reply, 1010, "DEPOSIT", &zombie.denom.h);

    // After expire_deposit, only the zombie can be melted, and for no more than is left of it.
    site.advance(Duration::from_days(38)).await;
    let one = [site.denom(RSA_1)];
    let refresh = site.plan_refresh(&known, &one, "1.04").await;
    site.refused(&known.path("melt"), &refresh.melt(), 400, 1305).await;
    let refresh = site.plan_refresh(&revoked, &one, "1.04").await;
    let reply = site.post(&revoked.path("melt"), &refresh.melt()).await;
    proof::denom_unusable(&site, &reply, 1009, "MELT", &revoked.denom.h);
    let (_, coins) = site.refresh(&zombie, &one, "1.04").await;
    site.pay(&Contract::new(&site), &coins[0], "1").await;
    let refresh = site.plan_refresh(&zombie, &one, "7").await;
    let reply = site.post(&zombie.path("melt"), &refresh.melt()).await;
    let left = proof::overspent(&site, &reply, zombie.coin_pub, &zombie.denom, "7");
    assert_eq!(left, m("5.88"));

    // After expire_legal, no coin can be melted.
    site.advance(Duration::from_days(60)).await;
    let refresh = site.plan_refresh(&zombie, &[site.denom(RSA_1)], "1.04").await;
    let reply = site.post(&zombie.path("melt"), &refresh.melt()).await;
    proof::denom_unusable(&site, &reply, 1009, "MELT", &zombie.denom.h);
}

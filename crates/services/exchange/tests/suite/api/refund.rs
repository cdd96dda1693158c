//! `/refund`.

use batzen_crypto::EddsaPrivateKey;
use batzen_exchange::reads::read;
use batzen_protocol::Duration;
use serde_json::json;

use crate::api::proof;
use crate::api::wallet::*;
use crate::api::world::*;

#[tokio::test]
async fn refunds_go_back_to_the_coin_less_the_fee() {
    let site = Site::start().await;
    for value in [RSA_8, CS_5, RSA_AGE_4] {
        let coin = site.coin(value).await;
        let contract = Contract::new(&site);
        site.pay(&contract, &coin, value).await;
        site.refund(&contract, &coin, "1", 1).await;
        site.refund(&contract, &coin, "0.01", 2).await;
        site.refund(&contract, &coin, "2", 0).await;
        site.refund(&contract, &coin, "0.99", u64::MAX).await;
        // The same refund again has no effect.
        site.refund(&contract, &coin, "1", 1).await;
        // 1 + 0.01 + 2 + 0.99, less four fees.
        let reply = site.post(&coin.path("deposit"), &contract.next().deposit(&coin, value)).await;
        assert_eq!(proof::overspent(&site, &reply, coin.coin_pub, &coin.denom, value), m("3.96"));
        site.is_left(&coin, "3.96").await;
    }
}

#[tokio::test]
async fn a_complete_refund_waives_the_deposit_fee() {
    let mut site = Site::start().await;
    let (refunded, kept) = (site.coin(RSA_8).await, site.coin(CS_5).await);
    let contract = Contract::new(&site);
    let (first, second) = (contract.next(), contract.next());
    site.pay(&first, &refunded, "8").await;
    site.pay(&second, &kept, "5").await;
    site.refund(&first, &refunded, "5", 1).await;
    site.refund(&first, &refunded, "3", 2).await;
    // Both refund fees are charged, and the deposit fee is not credited in addition.
    site.is_left(&refunded, "7.98").await;
    site.advance(Duration::from_secs(7_300)).await;
    site.aggregate().await;
    let transfers = read::open_transfers(&site.app().core.store, 10).unwrap();
    let mut amounts: Vec<_> = transfers.iter().map(|(_, row)| row.amount).collect();
    amounts.sort_unstable();
    // 5 less deposit fee and wire fee for this merchant; 7.98 less both for the merchant that `is_left` paid.
    assert_eq!(amounts, [m("4.88"), m("7.86")]);
}

#[tokio::test]
async fn invalid_refunds_are_refused() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &coin, "5").await;
    let path = coin.path("refund");
    let request = contract.refund(&coin, "1", 1);

    let other = Contract { merchant: EddsaPrivateKey::generate(), ..contract.clone() };
    let forged = with(&request, "merchant_sig", json!(other.refund(&coin, "1", 1).merchant_sig));
    site.refused(&path, &forged, 403, 1506).await;
    for (member, value) in [("refund_amount", json!("TESTKUDOS:2")), ("rtransaction_id", json!(2))] {
        site.refused(&path, &edited(&request, |body| body[member] = value.clone()), 403, 1506).await;
    }
    site.refused("coins/ABC/refund", &request, 400, 1004).await;
    site.refused(&path, &contract.refund(&coin, "0.009", 1), 400, 1505).await;
    site.refused(&path, &contract.refund(&coin, "0", 1), 400, 1505).await;
    let unused = site.coin(RSA_8).await;
    site.refused(&unused.path("refund"), &contract.refund(&unused, "1", 1), 404, 1500).await;
    site.refused(&path, &contract.next().refund(&coin, "1", 1), 404, 1502).await;
    site.refused(&path, &other.refund(&coin, "1", 1), 404, 1502).await;

    // More than was paid, in one refund and in sum.
    let reply = site.post(&path, &contract.refund(&coin, "5.01", 1)).await;
    let (history, left) = proof::coin_conflict(&site, &reply, (409, 1501), coin.coin_pub, &coin.denom);
    assert_eq!((history.len(), left), (1, m("3")));
    site.refund(&contract, &coin, "4", 1).await;
    let reply = site.post(&path, &contract.refund(&coin, "1.01", 2)).await;
    let (history, left) = proof::coin_conflict(&site, &reply, (409, 1501), coin.coin_pub, &coin.denom);
    assert_eq!((history.len(), left), (2, m("6.99")));
    // The same number with another amount.
    let reply = site.post(&path, &contract.refund(&coin, "1", 1)).await;
    let (history, _) = proof::coin_conflict(&site, &reply, (424, 1510), coin.coin_pub, &coin.denom);
    assert_eq!(history.len(), 2);
    let huge = with(&request, "refund_amount", json!("TESTKUDOS:4503599627370496"));
    site.refused(&path, &huge, 403, 1506).await;
    let reply = site.post(&path, &contract.refund(&coin, "4503599627370496.99999999", 9)).await;
    proof::coin_conflict(&site, &reply, (409, 1501), coin.coin_pub, &coin.denom);
    site.refund(&contract, &coin, "1", 2).await;
    site.is_left(&coin, "7.98").await;
}

#[tokio::test]
async fn after_aggregation_only_earlier_refunds_are_confirmed() {
    let mut site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &coin, "5").await;
    site.refund(&contract, &coin, "1", 1).await;
    // The deadline alone changes nothing.
    site.advance(Duration::from_secs(7_300)).await;
    site.refund(&contract, &coin, "1", 2).await;
    site.aggregate().await;
    let path = coin.path("refund");
    site.refused(&path, &contract.refund(&coin, "1", 3), 410, 1503).await;
    site.refund(&contract, &coin, "1", 1).await;
    let reply = site.post(&path, &contract.refund(&coin, "2", 1)).await;
    proof::coin_conflict(&site, &reply, (424, 1510), coin.coin_pub, &coin.denom);
    site.is_left(&coin, "4.98").await;
}

#[tokio::test]
async fn coins_of_a_revoked_denomination_are_refunded() {
    let mut site = Site::start().await;
    let coin = site.coin(CS_5).await;
    let contract = Contract::new(&site);
    site.pay(&contract, &coin, "5").await;
    site.revoke(&coin.denom).await;
    site.refund(&contract, &coin, "2", 1).await;
    site.clock.advance(Duration::from_days(50));
    site.refund(&contract, &coin, "1", 2).await;
}

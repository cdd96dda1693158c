//! `/csr-withdraw` and `/csr-melt`.

use batzen_crypto::{CsNonce, HashCode, PlanchetMasterSecret, RefreshMasterSecret};
use batzen_protocol::Duration;
use batzen_protocol::api::exchange::{
    CsrMeltCoin, CsrMeltRequest, CsrMeltResponse, CsrWithdrawRequest, WithdrawValues,
};

use crate::api::proof;
use crate::api::wallet::age_for;
use crate::api::world::*;

#[tokio::test]
async fn r_values_follow_from_key_nonce_and_context() {
    let site = Site::start().await;
    let (five, free) = (site.denom(CS_5), site.denom(CS_FREE));
    let withdraw = |nonce, denom: &Denom| CsrWithdrawRequest { nonce, denom_pub_hash: denom.h };
    let nonce = CsNonce::from_bytes([7; 32]);
    let first: WithdrawValues = site.ok("csr-withdraw", &withdraw(nonce, &five)).await;
    assert_eq!(site.ok::<WithdrawValues>("csr-withdraw", &withdraw(nonce, &five)).await, first);
    assert_ne!(site.ok::<WithdrawValues>("csr-withdraw", &withdraw(nonce, &free)).await, first);
    let other = CsNonce::from_bytes([8; 32]);
    assert_ne!(site.ok::<WithdrawValues>("csr-withdraw", &withdraw(other, &five)).await, first);

    let rms = RefreshMasterSecret::generate();
    let coin = |coin_offset, denom: &Denom| CsrMeltCoin { coin_offset, denom_pub_hash: denom.h };
    let nks = vec![coin(3, &five), coin(0, &free), coin(3, &free), coin(u32::MAX, &five)];
    let request = CsrMeltRequest { rms: rms.clone(), nks };
    let answer: CsrMeltResponse = site.ok("csr-melt", &request).await;
    assert_eq!(answer.ewvs.len(), 4);
    assert!((1..4).all(|i| !answer.ewvs[..i].contains(&answer.ewvs[i])));
    assert_eq!(site.ok::<CsrMeltResponse>("csr-melt", &request).await, answer);
    // The same nonce gives other values in the other context.
    let crossed: WithdrawValues = site.ok("csr-withdraw", &withdraw(rms.cs_nonce(3), &five)).await;
    assert_ne!(crossed, answer.ewvs[0]);
}

#[tokio::test]
async fn refusals() {
    let mut site = Site::start().await;
    let (rsa, five) = (site.denom(RSA_8), site.denom(CS_5));
    let nonce = CsNonce::from_bytes([7; 32]);
    let withdraw = |h: &HashCode| CsrWithdrawRequest { nonce, denom_pub_hash: *h };
    let rms = RefreshMasterSecret::generate();
    let melt = |hs: &[&HashCode]| CsrMeltRequest {
        rms: rms.clone(),
        nks: hs
            .iter()
            .zip(0..)
            .map(|(h, coin_offset)| CsrMeltCoin { coin_offset, denom_pub_hash: **h })
            .collect(),
    };
    let unknown = HashCode::random();
    proof::denom_unknown(&site, &site.post("csr-withdraw", &withdraw(&unknown)).await, 1005, &unknown);
    proof::denom_unknown(&site, &site.post("csr-melt", &melt(&[&five.h, &unknown])).await, 1005, &unknown);
    proof::denom_unknown(&site, &site.post("csr-withdraw", &withdraw(&rsa.h)).await, 1016, &rsa.h);
    proof::denom_unknown(&site, &site.post("csr-melt", &melt(&[&five.h, &rsa.h])).await, 1016, &rsa.h);
    site.refused("csr-melt", &melt(&[]), 400, 1018).await;
    site.refused("csr-melt", &melt(&[&five.h; 256]), 400, 1018).await;
    let answer: CsrMeltResponse = site.ok("csr-melt", &melt(&[&five.h; 255])).await;
    assert_eq!(answer.ewvs.len(), 255);

    let future = site.future_denom(CS_5).await;
    let reply = site.post("csr-withdraw", &withdraw(&future.h)).await;
    proof::denom_unusable(&site, &reply, 1008, "csr-withdraw", &future.h);
    let reply = site.post("csr-melt", &melt(&[&five.h, &future.h])).await;
    proof::denom_unusable(&site, &reply, 1008, "csr-melt", &future.h);
    site.advance(Duration::from_days(1)).await;
    let reply = site.post("csr-withdraw", &withdraw(&five.h)).await;
    proof::denom_unusable(&site, &reply, 1009, "csr-withdraw", &five.h);
    let reply = site.post("csr-melt", &melt(&[&future.h, &five.h])).await;
    proof::denom_unusable(&site, &reply, 1009, "csr-melt", &five.h);
    site.revoke(&future).await;
    let reply = site.post("csr-withdraw", &withdraw(&future.h)).await;
    proof::denom_unusable(&site, &reply, 1010, "csr-withdraw", &future.h);
    let reply = site.post("csr-melt", &melt(&[&future.h])).await;
    proof::denom_unusable(&site, &reply, 1010, "csr-melt", &future.h);
}

#[tokio::test]
async fn csr_requests_change_no_state() {
    let site = Site::start().await;
    let reserve = site.reserve("20").await;
    let denom = site.denom(CS_AGE_2);
    let secret = PlanchetMasterSecret::generate();
    for _ in 0..3 {
        site.values(&denom, &secret).await;
    }
    let planchet = site.planchet_of(&denom, &secret, age_for(&denom, 8)).await;
    site.withdraw(&reserve, &planchet).await;
    site.values(&denom, &secret).await;
    assert_eq!(site.balance(&reserve.public_key()).await, m("17.99"));
}

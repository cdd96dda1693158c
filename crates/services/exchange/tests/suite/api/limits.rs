//! Requests that are too large: bodies, texts, arrays. Also the memory used by requests without valid
//! signatures.

use std::io::Write as _;

use batzen_crypto::EddsaSignature;
use batzen_protocol::limits::{
    BATCH_BODY_BYTES_MAX, DEPOSIT_COINS_MAX, FRESH_COINS_MAX, KEYS_BODY_BYTES_MAX, LIST_BODY_BYTES_MAX,
    PAYTO_BYTES_MAX, PLANCHETS_MAX, SMALL_BODY_BYTES_MAX,
};
use serde_json::json;

use crate::api::wallet::*;
use crate::api::world::*;

/// An account whose URI has this many bytes.
fn payto(bytes: usize) -> String {
    let start = "payto://x-taler-bank/localhost/merchant?receiver-name=";
    format!("{start}{}", "x".repeat(bytes - start.len()))
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[tokio::test]
async fn a_body_above_the_endpoint_limit_is_refused_without_reading_it() {
    let site = Site::start().await;
    let key = "0".repeat(52);
    let coin = |operation: &str| format!("coins/{key}/{operation}");
    for (path, limit) in [
        (coin("deposit"), SMALL_BODY_BYTES_MAX),
        (coin("melt"), SMALL_BODY_BYTES_MAX),
        (coin("refund"), SMALL_BODY_BYTES_MAX),
        (coin("recoup"), SMALL_BODY_BYTES_MAX),
        (coin("recoup-refresh"), SMALL_BODY_BYTES_MAX),
        (format!("reserves/{key}/withdraw"), SMALL_BODY_BYTES_MAX),
        (format!("reserves/{key}/status"), SMALL_BODY_BYTES_MAX),
        (format!("reserves/{key}/batch-withdraw"), BATCH_BODY_BYTES_MAX),
        (format!("refreshes/{}/reveal", "0".repeat(103)), BATCH_BODY_BYTES_MAX),
        ("batch-deposit".to_owned(), BATCH_BODY_BYTES_MAX),
        ("csr-melt".to_owned(), LIST_BODY_BYTES_MAX),
        ("management/keys".to_owned(), KEYS_BODY_BYTES_MAX),
        ("management/wire".to_owned(), SMALL_BODY_BYTES_MAX),
    ] {
        for (bytes, status) in [(limit, 400), (limit + 1, 413)] {
            let body = vec![b' '; bytes];
            let reply =
                site.client.post(site.url(&path)).body("application/json", body).send().await.unwrap();
            assert_eq!(reply.status, status, "{path}, {bytes} bytes: {}", text(&reply));
        }
        // A body that is small when sent and too large when inflated.
        let packed = vec![b' '; limit + 1];
        let packed = deflated(&packed);
        let call = site.client.post(site.url(&path)).header("content-encoding", "deflate");
        let reply = call.body("application/json", packed).send().await.unwrap();
        assert_eq!(reply.status, 413, "{path}: {}", text(&reply));
    }
}

#[tokio::test]
async fn a_merchant_account_must_be_a_valid_payto_uri() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let long = Contract { payto_uri: payto(PAYTO_BYTES_MAX + 1), ..Contract::new(&site) };
    let reply = site.refused(&coin.path("deposit"), &long.deposit(&coin, "1"), 400, 26).await;
    assert_eq!(detail(&reply), "merchant_payto_uri: over the limit of 2048 bytes");
    site.refused("batch-deposit", &long.batch(&[(&coin, "1")]), 400, 26).await;
    let fits = Contract { payto_uri: payto(PAYTO_BYTES_MAX), ..Contract::new(&site) };
    site.pay(&fits, &coin, "1").await;
}

#[tokio::test]
async fn accounts_are_remembered_only_when_a_deposit_is_signed() {
    let site = Site::start().await;
    let coin = site.coin(RSA_8).await;
    let contract = Contract { payto_uri: payto(PAYTO_BYTES_MAX), ..Contract::new(&site) };
    for number in 0..20 {
        let contract = Contract { payto_uri: format!("{CUSTOMER}{number}"), ..contract.next() };
        let mut request = contract.deposit(&coin, "1");
        request.coin_sig = EddsaSignature::from_bytes([number; 64]);
        site.refused(&coin.path("deposit"), &request, 403, 1205).await;
    }
    assert_eq!(site.app().account_hashes.bytes(), 0);
    site.pay(&contract, &coin, "1").await;
    let bytes = site.app().account_hashes.bytes();
    assert!(bytes > PAYTO_BYTES_MAX);
    site.pay(&contract, &coin, "1").await;
    assert_eq!(site.app().account_hashes.bytes(), bytes);
}

#[tokio::test]
async fn arrays_have_a_limit() {
    let site = Site::start().await;
    let reserve = site.reserve("10").await;
    let planchet = site.planchet(&site.denom(CS_5)).await.request(&reserve);
    for (count, detail_text) in
        [(PLANCHETS_MAX + 1, "too many planchets"), (PLANCHETS_MAX + 2, "over the limit of 257 elements")]
    {
        let body = json!({ "planchets": vec![&planchet; count] });
        let reply = site.post(&at_reserve(&reserve, "batch-withdraw"), &body).await;
        assert_eq!(reply.status, 400, "{}", text(&reply));
        assert!(detail(&reply).starts_with(detail_text), "{}", text(&reply));
    }
    let coin = site.coin(RSA_8).await;
    let contract = Contract::new(&site);
    let coins: Vec<_> = (0..DEPOSIT_COINS_MAX + 2).map(|_| (&coin, "1")).collect();
    let reply = site.post("batch-deposit", &contract.batch(&coins)).await;
    assert_eq!(reply.status, 400, "{}", text(&reply));
    let nks = vec![json!({ "coin_offset": 0, "denom_pub_hash": site.denom(CS_5).h }); FRESH_COINS_MAX + 1];
    let body = json!({ "rms": "0".repeat(103), "nks": nks });
    assert_eq!(site.post("csr-melt", &body).await.status, 400);
    // Elements of the wrong type are refused with 400, too, however many there are.
    let body = json!({ "denom_sigs": vec![1; 5_000], "signkey_sigs": [] });
    assert_eq!(site.post("management/keys", &body).await.status, 400);
}

/// An amount of zero without fees would lengthen histories at no cost.
#[tokio::test]
async fn an_amount_of_zero_is_refused_and_leaves_no_trace() {
    let site = Site::start().await;
    let coin = site.coin(CS_FREE).await;
    let contract = Contract::new(&site);
    site.refused(&coin.path("deposit"), &contract.deposit(&coin, "0"), 400, 1207).await;
    site.refused("batch-deposit", &contract.batch(&[(&coin, "0")]), 400, 1207).await;
    let refresh = site.plan_refresh(&coin, &[site.denom(CS_FREE)], "0").await;
    site.refused(&coin.path("melt"), &refresh.melt(), 400, 1302).await;
    site.pay(&contract, &coin, "0.1").await;
    let refusal = site.refused(&coin.path("refund"), &contract.refund(&coin, "0", 1), 400, 1505).await;
    assert_eq!(detail(&refusal), "the amount must be above zero and not below the fee");
    let reply = site.post(&coin.path("deposit"), &contract.next().deposit(&coin, CS_FREE)).await;
    assert_eq!(reply.status, 409, "{}", text(&reply));
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["history"].as_array().unwrap().len(), 1, "{body}");
}

//! `/kyc-wallet` and `/kyc-check`: without rules, no identification is required.

use batzen_crypto::{EddsaPrivateKey, ShortHash};
use batzen_protocol::api::exchange::KycWalletRequest;
use batzen_protocol::signatures::{SignedMessage, WalletAccountSetup};

use crate::api::world::*;

#[tokio::test]
async fn wallet_balance_is_never_limited() {
    let site = Site::start().await;
    let key = EddsaPrivateKey::generate();
    let request = KycWalletRequest {
        balance: amount("10000"),
        reserve_pub: key.public_key(),
        reserve_sig: WalletAccountSetup { threshold: amount("10000") }.sign(&key),
    };
    let reply = site.post("kyc-wallet", &request).await;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    let wrong = KycWalletRequest { balance: amount("10001"), ..request };
    site.refused("kyc-wallet", &wrong, 403, 1925).await;
    let foreign = edited(&wrong, |body| body["balance"] = "EUR:1".into());
    site.refused("kyc-wallet", &foreign, 400, 22).await;
}

#[tokio::test]
async fn kyc_check_finds_no_requirement() {
    let site = Site::start().await;
    let h_payto = ShortHash::random();
    for user in ["individual", "BUSINESS"] {
        let reply = site.get(&format!("kyc-check/1/{h_payto}/{user}?timeout_ms=100000")).await;
        assert_eq!((reply.status, reply.body.len()), (204, 0));
    }
    for (path, what) in [
        (format!("kyc-check/x/{h_payto}/individual"), "requirement_row"),
        ("kyc-check/1/ABC/individual".to_owned(), "h_payto"),
        (format!("kyc-check/1/{h_payto}/robot"), "usertype"),
        (format!("kyc-check/1/{h_payto}/business?timeout_ms=x"), "timeout_ms"),
    ] {
        let reply = site.get(&path).await;
        is_error(&reply, 400, 26);
        assert_eq!(detail(&reply), what);
    }
}

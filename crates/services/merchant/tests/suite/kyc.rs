//! Whether exchanges ask who owns the shop's accounts.

use serde_json::{Value, json};

use crate::common::{eventually, is_error, market};

#[tokio::test]
async fn identifications_are_asked_for() {
    let (exchange, backend) = market().await;
    assert_eq!(backend.get("private/kyc").await.status, 204);
    is_error(&backend.get("private/kyc?h_wire=x").await, 400, 26);
    // The exchange says at the first payment that it wants to know.
    let pending = json!({ "execution_time": { "t_s": 1 }, "kyc_ok": false, "requirement_row": 7 });
    exchange.answer("GET /deposits/", 202, pending);
    exchange.answer("GET /kyc-check/7/", 202, json!({ "kyc_url": "http://id.example/" }));
    backend.sale(&exchange, &exchange.coin("KUDOS:5").await).await;
    eventually("the question", async || backend.get("private/kyc").await.status == 202).await;
    let seen = backend.get("private/kyc").await;
    let payto = "payto://x-taler-bank/localhost/books?receiver-name=books";
    let expected = json!({
        "pending_kycs": [{ "kyc_url": "http://id.example/", "exchange_url": exchange.url, "payto_uri": payto }],
        "timeout_kycs": [],
    });
    assert_eq!((seen.status, seen.json::<Value>().unwrap()), (202, expected));
    assert_eq!(backend.get("management/instances/default/kyc").await.status, 202);
    assert_eq!(backend.get("private/kyc?exchange_url=http://other/").await.status, 204);
    let other = format!("private/kyc?h_wire={}", "0".repeat(103));
    assert_eq!(backend.get(&other).await.status, 204);
    // It does not say, and then it is satisfied.
    exchange.answer("GET /kyc-check/7/", 500, json!({ "code": 1932 }));
    let seen = backend.get("private/kyc").await;
    let expected =
        json!([{ "exchange_url": exchange.url, "exchange_code": 1932, "exchange_http_status": 500 }]);
    assert_eq!((seen.status, &seen.json::<Value>().unwrap()["timeout_kycs"]), (502, &expected));
    exchange.answer("GET /kyc-check/7/", 204, json!({}));
    assert_eq!(backend.get("private/kyc").await.status, 204);
    exchange.answer("GET /kyc-check/7/", 202, json!({ "kyc_url": "http://id.example/" }));
    assert_eq!(backend.get("private/kyc").await.status, 204, "what is done is not asked again");
    backend.end().await;
}

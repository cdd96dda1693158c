//! Requests that share a connection are each checked for a password, as they are when sent alone.
use crate::common;

use batzen_bank::BankConfig;
use batzen_service::wire_gateway::{GatewayAuth, WireGatewayClient};
use common::{Fixture, config, transfer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_for_many_requests_needs_a_password() {
    let strict =
        BankConfig { check_passwords: true, create_accounts: false, allow_add_incoming: false, ..config() };
    let bank = Fixture::start(strict).await;
    for name in ["exchange", "shop"] {
        let account = serde_json::json!({ "username": name, "password": "secret" });
        let registered = bank.post("taler-bank-access/testing/register", account).await;
        assert!(registered.status < 300, "{registered:?}");
    }
    for (credentials, status) in [
        ("", "401"),
        // exchange:wrong, nobody:secret, exchange:secret
        ("authorization: Basic ZXhjaGFuZ2U6d3Jvbmc=\r\n", "403"),
        ("authorization: Basic bm9ib2R5OnNlY3JldA==\r\n", "403"),
        ("authorization: Basic ZXhjaGFuZ2U6c2VjcmV0\r\n", "101"),
    ] {
        let mut stream = TcpStream::connect(bank.bank.addr).await.unwrap();
        let client_request = format!(
            "OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: batzen-concurrent\r\n{credentials}\r\n"
        );
        stream.write_all(client_request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer[9..], status.as_bytes(), "{credentials:?}");
    }
    // The exchange's client authenticates.
    let auth = GatewayAuth::Basic { username: "exchange".into(), password: "secret".into() };
    let url = format!("{}taler-wire-gateway/exchange/", bank.base);
    let gateway = WireGatewayClient::new(bank.client.clone(), &url, auth).with_transfer_connections(4);
    gateway.transfer(&transfer(1, "1", "shop")).await.unwrap();
    bank.end().await;
}

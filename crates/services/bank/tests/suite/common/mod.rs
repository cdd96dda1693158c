//! Shared by the tests: a bank on a free port, and calls that return status and body.

pub(crate) mod fenced;
pub(crate) mod harness;

use batzen_bank::{Bank, BankConfig, PasswordCost, RunningBank};
use batzen_crypto::{EddsaPublicKey, HashCode, Wtid};
use batzen_http::client::{Client, ClientError, ClientOptions, Method, Reply};
use batzen_protocol::{Amount, ErrorCode, Money};
use batzen_service::wire_gateway::{
    AddIncomingRequest, GatewayAuth, HistoryQuery, TransferRequest, WireGatewayClient,
};
use serde_json::Value;

/// A test bank in memory on a free port, with a sign-up bonus of 100.
pub(crate) fn config() -> BankConfig {
    BankConfig {
        http_port: 0,
        signup_bonus: money("100"),
        password_cost: PasswordCost::LEAST,
        suggested_exchange: Some("http://exchange.test/".to_owned()),
        ..BankConfig::new("KUDOS".parse().unwrap())
    }
}

pub(crate) fn money(text: &str) -> Money {
    text.parse().unwrap()
}

pub(crate) fn kudos(text: &str) -> Amount {
    format!("KUDOS:{text}").parse().unwrap()
}

pub(crate) fn payto(account: &str) -> String {
    format!("payto://x-taler-bank/localhost/{account}?receiver-name={account}")
}

pub(crate) fn client() -> Client {
    // Like clients of the 0.9 generation: every body is compressed.
    Client::new(&ClientOptions { deflate_from_bytes: Some(0), ..ClientOptions::default() }).unwrap()
}

/// Status and code of an error response.
pub(crate) fn refusal(error: &ClientError) -> (u16, u32) {
    (error.status().unwrap_or(0), error.code().map_or(0, ErrorCode::to_u32))
}

pub(crate) fn key(byte: u8) -> EddsaPublicKey {
    EddsaPublicKey::from_bytes([byte; 32])
}

pub(crate) fn wtid(byte: u8) -> Wtid {
    Wtid::from_bytes([byte; 32])
}

pub(crate) fn uid(byte: u8) -> HashCode {
    HashCode::from_bytes([byte; 64])
}

pub(crate) fn last(delta: i64) -> HistoryQuery {
    HistoryQuery { start: None, delta, long_poll_ms: 0 }
}

pub(crate) fn transfer(id: u8, amount: &str, to: &str) -> TransferRequest {
    TransferRequest {
        request_uid: uid(id),
        amount: kudos(amount),
        exchange_base_url: "http://exchange.test/".to_owned(),
        wtid: wtid(id),
        credit_account: payto(to),
    }
}

pub(crate) fn incoming(id: u8, amount: &str, from: &str) -> AddIncomingRequest {
    AddIncomingRequest { amount: kudos(amount), reserve_pub: key(id), debit_account: payto(from) }
}

/// A bank with a client of it.
pub(crate) struct Fixture {
    pub bank: RunningBank,
    pub client: Client,
    pub base: String,
}

impl Fixture {
    pub(crate) async fn start(config: BankConfig) -> Self {
        let bank = Bank::start(config).await.unwrap();
        let base = format!("http://{}/", bank.addr);
        Self { bank, client: client(), base }
    }

    pub(crate) fn gateway(&self, account: &str) -> WireGatewayClient {
        let url = format!("{}taler-wire-gateway/{account}/", self.base);
        WireGatewayClient::new(self.client.clone(), &url, GatewayAuth::None)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.client.get_json(format!("{}{path}", self.base)).await.unwrap())
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        Answer::of(self.client.post_json(format!("{}{path}", self.base), &body).await.unwrap())
    }

    pub(crate) async fn post_as(&self, user: &str, password: &str, path: &str, body: Value) -> Answer {
        let call = self.client.call(Method::POST, format!("{}{path}", self.base)).json(&body);
        Answer::of(call.basic_auth(user, password).send().await.unwrap())
    }

    pub(crate) async fn get_as(&self, user: &str, password: &str, path: &str) -> Answer {
        let call = self.client.get(format!("{}{path}", self.base));
        Answer::of(call.basic_auth(user, password).send().await.unwrap())
    }

    /// Registers an account and creates a withdrawal operation for it. Returns its id.
    pub(crate) async fn withdrawal(&self, account: &str, amount: &str) -> String {
        let answer = self
            .post(
                &format!("taler-bank-access/accounts/{account}/withdrawals"),
                serde_json::json!({ "amount": kudos(amount) }),
            )
            .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["withdrawal_id"].as_str().unwrap().to_owned()
    }

    /// The books balance, whatever the test did.
    pub(crate) async fn end(self) {
        self.bank.check().await.unwrap();
        self.bank.shutdown().await.unwrap();
    }
}

/// Status and JSON body (`Null` when empty).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    pub(crate) fn of(reply: Reply) -> Self {
        let body = if reply.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&reply.body)
                .unwrap_or_else(|_| String::from_utf8_lossy(&reply.body).into_owned().into())
        };
        Self { status: reply.status, body }
    }

    /// Status and error code.
    pub(crate) fn error(&self) -> (u16, u64) {
        (self.status, self.body["code"].as_u64().unwrap_or(0))
    }
}

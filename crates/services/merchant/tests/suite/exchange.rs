//! An exchange that accepts every coin, or gives whatever answer a test has set.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use batzen_crypto::denom::blind_sign_batch;
use batzen_crypto::{
    CsOperation, DenomPrivateKey, DenomPublicKey, DenomSignature, EddsaPrivateKey, EddsaPublicKey,
    EddsaSignature, HashCode, ShortHash, Wtid,
};
use batzen_http::{Drain, Handler, Listen, Request, Response, Server, ServerOptions};
use batzen_protocol::api::exchange::{
    BatchDepositConfirmation, BatchDepositRequest, BatchWithdrawRequest, BlindSignature, BlindSignatures,
    ConfirmationSignature, Denomination, DepositConfirmation, DepositRequest, DepositTransfer, KeysResponse,
    RefundConfirmation, RefundRequest, SignKey, TransferDeposit, TransferResponse, WireAccount, WireFee,
    WireResponse,
};
use batzen_protocol::api::parse_body;
use batzen_protocol::denominations::wire_details_hash;
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{
    ExchangeConfirmDeposit, ExchangeConfirmRefund, ExchangeConfirmWire, ExchangeConfirmWireDeposit,
    SignedMessage, WalletCoinDeposit,
};
use batzen_protocol::{Amount, Duration, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use crate::common::NOW_S;

pub const ACCOUNT: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
const DEPOSIT_FEE: &str = "KUDOS:0.01";
const NO_HASH: HashCode = HashCode::from_bytes([0; 64]);

/// What the exchange is told to answer, by the beginning of "METHOD /path".
type Orders = HashMap<String, (u16, Value)>;

pub struct Books {
    pub master: EddsaPrivateKey,
    pub signer: EddsaPrivateKey,
    pub denom: DenomPrivateKey,
    pub answers: Mutex<Orders>,
    /// The requests so far.
    pub asked: Mutex<Vec<String>>,
    pub wire_fee: Amount,
    pub auditors: Vec<Value>,
}

/// A running exchange.
pub struct Exchange {
    pub url: String,
    pub books: Arc<Books>,
    drain: Drain,
}

struct Endpoints(Arc<Books>);

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn at(days: u64) -> Timestamp {
    Timestamp::from_secs(NOW_S).saturating_add(Duration::from_days(days))
}

fn ok(value: &impl Serialize) -> Response {
    Response::json(200, value)
}

impl Books {
    pub fn denom_pub(&self) -> DenomPublicKey {
        self.denom.public(0)
    }

    pub fn terms(&self) -> Denomination {
        let mut denom = Denomination {
            denom_pub: self.denom_pub(),
            value: amount("KUDOS:5"),
            fee_withdraw: amount("KUDOS:0.02"),
            fee_deposit: amount(DEPOSIT_FEE),
            fee_refresh: amount("KUDOS:0"),
            fee_refund: amount("KUDOS:0"),
            stamp_start: Timestamp::from_secs(NOW_S - 86_400),
            stamp_expire_withdraw: at(30),
            stamp_expire_deposit: at(60),
            stamp_expire_legal: at(90),
            master_sig: EddsaSignature::ZERO,
        };
        let message = denom.terms().validity(self.master.public_key(), denom.denom_pub.h_denom_pub());
        denom.master_sig = message.sign(&self.master);
        denom
    }

    fn keys(&self) -> Response {
        let mut signkey = SignKey {
            key: self.signer.public_key(),
            stamp_start: Timestamp::from_secs(NOW_S - 86_400),
            stamp_expire: at(30),
            stamp_end: at(60),
            master_sig: EddsaSignature::ZERO,
        };
        signkey.master_sig = signkey.validity().sign(&self.master);
        let auditors = self.auditors.iter().map(|auditor| serde_json::from_value(auditor.clone()).unwrap());
        ok(&KeysResponse {
            version: "14:0:2".to_owned(),
            base_url: String::new(),
            currency: "KUDOS".to_owned(),
            asset_type: "fiat".to_owned(),
            master_public_key: self.master.public_key(),
            reserve_closing_delay: Duration::from_days(28),
            signkeys: vec![signkey],
            recoup: None,
            denoms: vec![self.terms()],
            denominations: Vec::new(),
            auditors: auditors.collect(),
            global_fees: Vec::new(),
            list_issue_date: Timestamp::from_secs(NOW_S),
            eddsa_pub: self.signer.public_key(),
            eddsa_sig: EddsaSignature::ZERO,
            denominations_sig: EddsaSignature::ZERO,
            wallet_balance_limit_without_kyc: None,
            extensions: None,
            extensions_sig: None,
        })
    }

    fn wire(&self) -> Response {
        let mut account = WireAccount { payto_uri: ACCOUNT.to_owned(), master_sig: EddsaSignature::ZERO };
        account.master_sig = account.message().sign(&self.master);
        let mut fee = WireFee {
            wire_fee: self.wire_fee,
            closing_fee: amount("KUDOS:0.02"),
            start_date: Timestamp::from_secs(NOW_S - 86_400),
            end_date: at(365),
            sig: EddsaSignature::ZERO,
        };
        fee.sig = fee.message("x-taler-bank").sign(&self.master);
        ok(&WireResponse {
            accounts: vec![account],
            fees: BTreeMap::from([("x-taler-bank".to_owned(), vec![fee])]),
            master_public_key: self.master.public_key(),
        })
    }

    fn confirm(&self, message: &ExchangeConfirmDeposit) -> DepositConfirmation {
        DepositConfirmation {
            exchange_timestamp: message.exchange_timestamp,
            exchange_sig: message.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
            transaction_base_url: None,
        }
    }

    fn deposit(&self, coin_pub: EddsaPublicKey, body: &DepositRequest) -> DepositConfirmation {
        self.confirm(&ExchangeConfirmDeposit {
            h_contract_terms: body.h_contract_terms,
            h_wire: h_wire(&body.merchant_payto_uri, &body.wire_salt),
            h_policy: NO_HASH,
            exchange_timestamp: Timestamp::from_secs(NOW_S),
            wire_deadline: body.wire_transfer_deadline,
            refund_deadline: body.refund_deadline.unwrap_or(Timestamp::ZERO),
            amount_without_fee: body.contribution.checked_sub(&amount(DEPOSIT_FEE)).unwrap(),
            coin_pub,
            merchant_pub: body.merchant_pub,
        })
    }

    fn batch(&self, body: &BatchDepositRequest) -> Response {
        let confirm = |coin: &batzen_protocol::api::exchange::BatchDepositCoin| {
            let message = ExchangeConfirmDeposit {
                h_contract_terms: body.h_contract_terms,
                h_wire: h_wire(&body.merchant_payto_uri, &body.wire_salt),
                h_policy: NO_HASH,
                exchange_timestamp: Timestamp::from_secs(NOW_S),
                wire_deadline: body.wire_transfer_deadline,
                refund_deadline: body.refund_deadline.unwrap_or(Timestamp::ZERO),
                amount_without_fee: coin.contribution.checked_sub(&amount(DEPOSIT_FEE)).unwrap(),
                coin_pub: coin.coin_pub,
                merchant_pub: body.merchant_pub,
            };
            ConfirmationSignature { exchange_sig: message.sign(&self.signer) }
        };
        ok(&BatchDepositConfirmation {
            exchange_timestamp: Timestamp::from_secs(NOW_S),
            exchange_pub: self.signer.public_key(),
            exchange_sigs: body.coins.iter().map(confirm).collect(),
        })
    }

    fn refund(&self, coin_pub: EddsaPublicKey, body: &RefundRequest) -> Response {
        let message = ExchangeConfirmRefund {
            h_contract_terms: body.h_contract_terms,
            coin_pub,
            merchant_pub: body.merchant_pub,
            rtransaction_id: body.rtransaction_id,
            refund_amount: body.refund_amount,
        };
        let exchange_sig = message.sign(&self.signer);
        ok(&RefundConfirmation { exchange_sig, exchange_pub: self.signer.public_key() })
    }

    fn withdraw(&self, body: &BatchWithdrawRequest) -> Response {
        let items: Vec<_> = body
            .planchets
            .iter()
            .map(|planchet| (&self.denom, &planchet.coin_ev, CsOperation::Withdraw))
            .collect();
        let signed = blind_sign_batch(&items).into_iter();
        ok(&BlindSignatures { ev_sigs: signed.map(|sig| BlindSignature { ev_sig: sig.unwrap() }).collect() })
    }

    /// The answer of `/transfers/$WTID` about deposits, with the wire fee that is given.
    pub fn transfer(
        &self,
        merchant_pub: EddsaPublicKey,
        payto_uri: &str,
        deposits: &[(HashCode, EddsaPublicKey, &str, &str)],
        wire_fee: &str,
        total: &str,
    ) -> Value {
        let execution_time = Timestamp::from_secs(NOW_S);
        let deposits: Vec<TransferDeposit> = deposits
            .iter()
            .map(|(h_contract_terms, coin_pub, value, fee)| TransferDeposit {
                h_contract_terms: *h_contract_terms,
                coin_pub: *coin_pub,
                deposit_value: amount(value),
                deposit_fee: amount(fee),
            })
            .collect();
        let confirmation = ExchangeConfirmWireDeposit {
            total: amount(total),
            wire_fee: amount(wire_fee),
            merchant_pub,
            h_payto: h_payto(payto_uri),
            h_details: wire_details_hash(execution_time, &deposits),
        };
        json!(TransferResponse {
            total: confirmation.total,
            wire_fee: confirmation.wire_fee,
            merchant_pub,
            h_payto: confirmation.h_payto,
            execution_time,
            deposits,
            exchange_sig: confirmation.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
        })
    }

    /// The answer 200 of `/deposits/…`.
    pub fn tracked(
        &self,
        h_wire: HashCode,
        h_contract: HashCode,
        coin_pub: EddsaPublicKey,
        wtid: Wtid,
    ) -> Value {
        let confirmation = ExchangeConfirmWire {
            h_wire,
            h_contract_terms: h_contract,
            wtid,
            coin_pub,
            execution_time: Timestamp::from_secs(NOW_S),
            coin_contribution: amount("KUDOS:4.99"),
        };
        json!(DepositTransfer {
            wtid,
            execution_time: confirmation.execution_time,
            coin_contribution: confirmation.coin_contribution,
            exchange_sig: confirmation.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
        })
    }
}

impl Handler for Endpoints {
    async fn handle(&self, request: Request) -> Response {
        let books = &self.0;
        let what = format!("{} {}", request.head.method, request.head.path);
        books.asked.lock().unwrap().push(what.clone());
        {
            let answers = books.answers.lock().unwrap();
            let told = answers
                .iter()
                .filter(|(start, _)| what.starts_with(*start))
                .max_by_key(|(start, _)| start.len());
            if let Some((_, (status, body))) = told {
                return Response::json(*status, body);
            }
        }
        let coin = || request.segment(1).parse::<EddsaPublicKey>().unwrap();
        match (request.segment(0), request.segment(2)) {
            ("keys", _) => books.keys(),
            ("wire", _) => books.wire(),
            ("coins", "deposit") => ok(&books.deposit(coin(), &parse_body(&request.body).unwrap())),
            ("batch-deposit", _) => books.batch(&parse_body(&request.body).unwrap()),
            ("coins", "refund") => books.refund(coin(), &parse_body(&request.body).unwrap()),
            ("reserves", "batch-withdraw") => books.withdraw(&parse_body(&request.body).unwrap()),
            ("deposits", _) => Response::json(202, &json!({ "execution_time": at(1), "kyc_ok": true })),
            _ => Response::json(404, &json!({ "code": 21 })),
        }
    }
}

/// A coin of the exchange, which signs whatever it is told to pay.
pub struct Coin {
    pub key: EddsaPrivateKey,
    pub contribution: &'static str,
}

impl Coin {
    pub fn new(contribution: &'static str) -> Self {
        Self { key: EddsaPrivateKey::generate(), contribution }
    }

    pub fn coin_pub(&self) -> EddsaPublicKey {
        self.key.public_key()
    }

    /// Its part of a payment.
    pub fn pay(&self, exchange: &Exchange, terms: &Value, h_contract: HashCode) -> Value {
        let h_denom = exchange.books.denom_pub().h_denom_pub();
        let time = |name: &str| serde_json::from_value::<Timestamp>(terms[name].clone()).unwrap();
        let message = WalletCoinDeposit {
            h_contract_terms: h_contract,
            h_age_commitment: ShortHash::from_bytes([0; 32]),
            h_policy: NO_HASH,
            h_wire: terms["h_wire"].as_str().unwrap().parse().unwrap(),
            h_denom_pub: h_denom,
            wallet_timestamp: time("timestamp"),
            refund_deadline: time("refund_deadline"),
            amount_with_fee: amount(self.contribution),
            deposit_fee: amount(DEPOSIT_FEE),
            merchant_pub: terms["merchant_pub"].as_str().unwrap().parse().unwrap(),
        };
        json!({
            "coin_pub": self.coin_pub(), "coin_sig": message.sign(&self.key), "h_denom": h_denom,
            "ub_sig": DenomSignature::Rsa(vec![1; 128]), "contribution": self.contribution,
            "exchange_url": exchange.url,
        })
    }
}

impl Exchange {
    pub async fn start() -> Self {
        Self::with_auditors(EddsaPrivateKey::generate(), |_| Vec::new()).await
    }

    pub async fn with_auditors(master: EddsaPrivateKey, auditors: impl FnOnce(&Books) -> Vec<Value>) -> Self {
        let mut books = Books {
            master,
            signer: EddsaPrivateKey::generate(),
            denom: DenomPrivateKey::generate_rsa(1024).unwrap(),
            answers: Mutex::default(),
            asked: Mutex::default(),
            wire_fee: amount("KUDOS:0.02"),
            auditors: Vec::new(),
        };
        books.auditors = auditors(&books);
        let books = Arc::new(books);
        let listen = Listen::Tcp { host: Some("127.0.0.1".to_owned()), port: 0, share_port: false };
        let server = Server::bind(listen).await.unwrap();
        let url = format!("http://localhost:{}/", server.bound().port().unwrap());
        let drain = Drain::new();
        let endpoints = Arc::new(Endpoints(Arc::clone(&books)));
        tokio::spawn(server.serve(endpoints, ServerOptions::default(), drain.clone()));
        Self { url, books, drain }
    }

    /// From now on it answers so.
    pub fn answer(&self, start: &str, status: u16, body: Value) {
        self.books.answers.lock().unwrap().insert(start.to_owned(), (status, body));
    }

    /// It answers as an exchange again.
    pub fn recover(&self) {
        self.books.answers.lock().unwrap().clear();
    }

    /// How often it was asked for something.
    pub fn count(&self, start: &str) -> usize {
        self.books.asked.lock().unwrap().iter().filter(|asked| asked.starts_with(start)).count()
    }

    pub fn end(self) {
        self.drain.trigger();
    }
}

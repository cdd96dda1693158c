//! The exchange and the bank of the tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use super::purses::FakePurse;
use batzen_crypto::denom::blind_sign_batch;
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, CsNonce, CsOperation, DenomPrivateKey, DenomPublicKey,
    EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues, HashCode, ShortHash,
};
use batzen_protocol::api::errors::{DenominationUnknown, DenominationUnusable, InsufficientReserve};
use batzen_protocol::api::exchange::*;
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, Currency, Duration, ErrorBody, ErrorCode, Money, Timestamp, hash_text};
use batzen_wallet::core::http::{HttpRequest, HttpResponse, Method};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const EXCHANGE: &str = "http://exchange.test/";
/// Base URL of a second exchange.
pub const SECOND: &str = "http://second.test/";
pub const BANK: &str = "http://bank.test/";
pub const ACCOUNT: &str = "payto://x-taler-bank/bank.test/exchange?receiver-name=exchange";

/// Fees, in the smallest unit of the test coins (0.01).
#[derive(Clone, Copy)]
pub struct FakeTerms {
    pub fee_withdraw: u64,
    pub fee_deposit: u64,
    pub fee_refresh: u64,
    pub fee_refund: u64,
    pub has_batch: bool,
    /// Repeated batches are refused, as old exchanges do.
    pub refuses_batch_repetition: bool,
    /// Age groups of additional denominations; 0 for none.
    pub age_mask: u32,
    /// Fee for a purse that a reserve creates.
    pub fee_purse: u64,
    /// Wire fee of every transfer.
    pub fee_wire: u64,
}

impl Default for FakeTerms {
    fn default() -> Self {
        Self {
            fee_withdraw: 1,
            fee_deposit: 1,
            fee_refresh: 1,
            fee_refund: 1,
            has_batch: true,
            refuses_batch_repetition: false,
            age_mask: 0,
            fee_purse: 0,
            fee_wire: 2,
        }
    }
}

pub(super) fn cents(n: u64) -> Money {
    Money::from_units(u128::from(n) * 1_000_000).unwrap()
}

pub(super) fn currency() -> Currency {
    "KUDOS".parse().unwrap()
}

pub struct FakeDenom {
    pub key: DenomPrivateKey,
    pub public: DenomPublicKey,
    pub h: HashCode,
    pub terms: DenominationTerms,
    master_sig: EddsaSignature,
    pub listed: bool,
    pub revoked: bool,
}

#[derive(Clone)]
pub(super) struct CoinRow {
    pub(super) h_denom: HashCode,
    pub(super) remaining: Money,
    pub(super) h_age: Option<ShortHash>,
    pub(super) history: Vec<CoinHistoryItem>,
}

pub(super) struct MeltRow {
    pub(super) old_coin: EddsaPublicKey,
    pub(super) amount: Money,
    pub(super) noreveal_index: u32,
    pub(super) revealed: Option<Vec<BlindedDenomSignature>>,
    /// Blinded coin hashes after the reveal, which recoup-refresh looks up.
    pub(super) h_coin_evs: Vec<HashCode>,
}

pub(super) struct DepositRow {
    pub(super) coin_sig: EddsaSignature,
    pub(super) contribution: Money,
    pub(super) time: Timestamp,
    pub(super) refunded: Money,
    pub(super) refunds: BTreeMap<u64, Money>,
}

struct BankOp {
    amount: Amount,
    selected: Option<(EddsaPublicKey, String)>,
    done: bool,
    aborted: bool,
}

/// Test keys are made once for all tests of a process, because RSA keys are slow to make.
fn keys() -> &'static (Vec<DenomPrivateKey>, Vec<DenomPrivateKey>) {
    static KEYS: OnceLock<(Vec<DenomPrivateKey>, Vec<DenomPrivateKey>)> = OnceLock::new();
    KEYS.get_or_init(|| {
        let rsa = (0..5).map(|_| DenomPrivateKey::generate_rsa(1024).unwrap()).collect();
        let cs = (0..5).map(|_| DenomPrivateKey::generate_cs()).collect();
        (rsa, cs)
    })
}

/// Values of the coins, in units of 0.01.
const VALUES: [u64; 5] = [800, 400, 200, 100, 10];

pub struct FakeExchange {
    pub terms: FakeTerms,
    pub(super) master: EddsaPrivateKey,
    pub signer: EddsaPrivateKey,
    pub start: Timestamp,
    pub denoms: Vec<FakeDenom>,
    pub reserves: HashMap<EddsaPublicKey, Money>,
    pub(super) reserve_histories: HashMap<EddsaPublicKey, Vec<ReserveHistoryItem>>,
    pub(super) withdrawals: HashMap<(EddsaPublicKey, HashCode), (HashCode, BlindedDenomSignature)>,
    pub(super) nonces: HashMap<CsNonce, HashCode>,
    pub(super) rms: HashMap<[u8; 32], HashCode>,
    pub(super) coins: HashMap<EddsaPublicKey, CoinRow>,
    pub(super) deposits: HashMap<(EddsaPublicKey, EddsaPublicKey, HashCode), DepositRow>,
    pub(super) melts: HashMap<HashCode, MeltRow>,
    pub(super) purses: HashMap<EddsaPublicKey, FakePurse>,
    bank: HashMap<String, BankOp>,
    pub(super) accounts: HashMap<String, String>,
    /// Sum of the values of all signed coins.
    pub issued: Money,
    /// Money received from the bank.
    pub bank_in: Money,
    /// Amounts owed to merchants, less fees and refunds, in units. A partial refund may take money owed for
    /// another payment.
    pub owed: i128,
    /// Fees earned, including the remainders of melts and rounding.
    pub fees: Money,
    /// Conflict answers given, that is, attempts to spend twice.
    pub conflicts: u64,
    /// Paths that are always answered with 451 / 1028.
    pub kyc: bool,
    /// Paths that are always answered with this status.
    pub broken: Option<(String, u16)>,
    pub requests: Vec<String>,
    pub(super) draws: u32,
}

pub(super) fn ok(body: &impl Serialize) -> HttpResponse {
    HttpResponse { status: 200, body: serde_json::to_vec(body).unwrap(), ..HttpResponse::default() }
}

pub(super) fn error(status: u16, code: u32) -> HttpResponse {
    error_with(status, code, json!({}))
}

pub(super) fn error_with(status: u16, code: u32, extra: impl Serialize) -> HttpResponse {
    let body = ErrorBody::with(ErrorCode::from_u32(code), serde_json::to_value(extra).unwrap());
    HttpResponse { status, body: serde_json::to_vec(&body).unwrap(), ..HttpResponse::default() }
}

/// The answer of an exchange that wants to know who its customer is.
pub(super) fn kyc_required() -> HttpResponse {
    let kyc = batzen_protocol::api::errors::KycRequired { h_payto: ShortHash::ZERO, requirement_row: 7 };
    error_with(451, 1028, kyc)
}

pub(super) fn body<T: DeserializeOwned>(request: &HttpRequest) -> T {
    serde_json::from_slice(request.body.as_ref().expect("a body")).expect("a well-formed body")
}

impl FakeExchange {
    pub fn new(start: Timestamp, terms: FakeTerms) -> Self {
        let mut exchange = Self {
            terms,
            master: EddsaPrivateKey::generate(),
            signer: EddsaPrivateKey::generate(),
            start,
            denoms: Vec::new(),
            reserves: HashMap::new(),
            reserve_histories: HashMap::new(),
            withdrawals: HashMap::new(),
            nonces: HashMap::new(),
            rms: HashMap::new(),
            coins: HashMap::new(),
            deposits: HashMap::new(),
            melts: HashMap::new(),
            purses: HashMap::new(),
            bank: HashMap::new(),
            accounts: HashMap::new(),
            issued: Money::ZERO,
            bank_in: Money::ZERO,
            owed: 0,
            fees: Money::ZERO,
            conflicts: 0,
            kyc: false,
            broken: None,
            requests: Vec::new(),
            draws: 0,
        };
        let (rsa, cs) = keys();
        for keys in [rsa, cs] {
            for (key, value) in keys.iter().zip(VALUES) {
                exchange.add_denom(key.clone(), value, start);
                if terms.age_mask != 0 {
                    exchange.add_denom_of(key.clone(), terms.age_mask, value, start);
                }
            }
        }
        exchange
    }

    pub fn add_denom(&mut self, key: DenomPrivateKey, value: u64, start: Timestamp) {
        self.add_denom_of(key, 0, value, start);
    }

    fn add_denom_of(&mut self, key: DenomPrivateKey, age_mask: u32, value: u64, start: Timestamp) {
        let amount = |n| cents(n).of(currency());
        let days = |n| start.saturating_add(Duration::from_days(n));
        let terms = DenominationTerms {
            value: amount(value),
            fee_withdraw: amount(self.terms.fee_withdraw),
            fee_deposit: amount(self.terms.fee_deposit),
            fee_refresh: amount(self.terms.fee_refresh),
            fee_refund: amount(self.terms.fee_refund),
            stamp_start: start,
            stamp_expire_withdraw: days(7),
            stamp_expire_deposit: days(100),
            stamp_expire_legal: days(400),
        };
        let public = key.public(age_mask);
        let h = public.h_denom_pub();
        let master_sig = terms.validity(self.master.public_key(), h).sign(&self.master);
        self.denoms.push(FakeDenom { key, public, h, terms, master_sig, listed: true, revoked: false });
    }

    /// The master key.
    pub fn master_pub(&self) -> EddsaPublicKey {
        self.master.public_key()
    }

    /// The remaining value of a coin by the exchange's books; `None` if it never saw the coin.
    pub fn coin_remaining(&self, coin_pub: &EddsaPublicKey) -> Option<Money> {
        self.coins.get(coin_pub).map(|row| row.remaining)
    }

    pub fn credit_reserve(&mut self, reserve_pub: EddsaPublicKey, amount: Amount) {
        let balance = self.reserves.entry(reserve_pub).or_default();
        *balance = balance.checked_add(amount.money).unwrap();
        let history = self.reserve_histories.entry(reserve_pub).or_default();
        let wire_reference = history.len() as u64;
        history.push(ReserveHistoryItem::Credit(ReserveCredit {
            timestamp: self.start,
            sender_account_url: "payto://x-taler-bank/bank.test/user?receiver-name=user".to_owned(),
            wire_reference,
            amount,
        }));
        self.bank_in = self.bank_in.checked_add(amount.money).unwrap();
    }

    /// bank_in = reserves + coins outstanding + owed + fees, where the coins outstanding are those issued
    /// less what was taken from them; money between melt and reveal is in none of them and is returned.
    pub fn unrevealed(&self) -> Money {
        let mut sum = Money::ZERO;
        for melt in self.melts.values().filter(|melt| melt.revealed.is_none()) {
            sum = sum.checked_add(melt.amount).unwrap();
        }
        sum
    }

    pub fn check_conservation(&self) {
        let reserves = Money::checked_sum(self.reserves.values().copied()).unwrap();
        let mut taken = 0i128;
        for row in self.coins.values() {
            let value = self.denom(&row.h_denom).unwrap().terms.value.money;
            taken += value.units() as i128 - row.remaining.units() as i128;
        }
        let outstanding = self.issued.units() as i128 - taken;
        let sum = reserves.units() as i128
            + outstanding
            + self.owed
            + self.in_purses().units() as i128
            + self.fees.units() as i128
            + self.unrevealed().units() as i128;
        assert_eq!(sum, self.bank_in.units() as i128, "the exchange's books add up");
    }

    pub fn denom(&self, h: &HashCode) -> Option<&FakeDenom> {
        self.denoms.iter().find(|denom| denom.h == *h)
    }

    pub fn denom_mut(&mut self, h: &HashCode) -> &mut FakeDenom {
        self.denoms.iter_mut().find(|denom| denom.h == *h).unwrap()
    }

    pub(super) fn add_fee(&mut self, fee: Money) {
        self.fees = self.fees.checked_add(fee).unwrap();
    }

    pub fn handle(&mut self, request: &HttpRequest, now: Timestamp) -> HttpResponse {
        let url = request.url.split('?').next().unwrap();
        let path = url.strip_prefix(EXCHANGE).or_else(|| url.strip_prefix(BANK)).expect("a known host");
        self.requests.push(format!("{} {path}", request.method.as_str()));
        if let Some((broken, status)) = &self.broken
            && path.contains(broken.as_str())
        {
            return HttpResponse { status: *status, ..HttpResponse::default() };
        }
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        match (request.method, segments.as_slice()) {
            (Method::Get, ["keys"]) => self.keys(now),
            (Method::Get, ["wire"]) => self.wire(),
            (Method::Get, ["terms"]) => HttpResponse {
                status: 200,
                etag: Some("tos-1".to_owned()),
                content_type: Some("text/plain".to_owned()),
                body: b"Be nice.".to_vec(),
                ..HttpResponse::default()
            },
            (Method::Get, ["reserves", reserve]) => match self.reserves.get(&reserve.parse().unwrap()) {
                Some(balance) => ok(&ReserveBalance { balance: balance.of(currency()) }),
                None => error(404, 1250),
            },
            (Method::Post, ["reserves", reserve, "status"]) => {
                let reserve: EddsaPublicKey = reserve.parse().unwrap();
                let asked: ReserveRequest = body(request);
                let message = WalletReserveStatus { request_timestamp: asked.request_timestamp };
                assert!(message.verify(&reserve, &asked.reserve_sig), "reserve signature");
                let skew = Duration::from_secs(900);
                match self.reserves.get(&reserve) {
                    _ if now > asked.request_timestamp.saturating_add(skew) => error(400, 1020),
                    Some(balance) => ok(&ReserveStatus {
                        balance: balance.of(currency()),
                        history: self.reserve_histories[&reserve].clone(),
                    }),
                    None => error(404, 1250),
                }
            }
            (Method::Post, ["reserves", reserve, "withdraw"]) => {
                let planchet: WithdrawRequest = body(request);
                match self.withdraw(reserve.parse().unwrap(), std::slice::from_ref(&planchet), false, now) {
                    Ok(mut signatures) => ok(&signatures.remove(0)),
                    Err(response) => *response,
                }
            }
            (Method::Post, ["reserves", reserve, "batch-withdraw"]) if self.terms.has_batch => {
                let batch: BatchWithdrawRequest = body(request);
                match self.withdraw(reserve.parse().unwrap(), &batch.planchets, true, now) {
                    Ok(ev_sigs) => ok(&BlindSignatures { ev_sigs }),
                    Err(response) => *response,
                }
            }
            (Method::Post, ["csr-withdraw"]) => {
                let csr: CsrWithdrawRequest = body(request);
                match self.usable(&csr.denom_pub_hash, "csr-withdraw", now) {
                    Ok(denom) => {
                        let ewv =
                            ExchangeWithdrawValues::derive(&denom.key, &csr.nonce, CsOperation::Withdraw);
                        ok(&WithdrawValues { ewv })
                    }
                    Err(response) => *response,
                }
            }
            (Method::Post, ["csr-melt"]) => {
                let csr: CsrMeltRequest = body(request);
                let mut ewvs = Vec::new();
                for coin in &csr.nks {
                    match self.usable(&coin.denom_pub_hash, "csr-melt", now) {
                        Ok(denom) => {
                            let nonce = csr.rms.cs_nonce(coin.coin_offset);
                            let ewv = ExchangeWithdrawValues::derive(&denom.key, &nonce, CsOperation::Melt);
                            ewvs.push(WithdrawValues { ewv });
                        }
                        Err(response) => return *response,
                    }
                }
                ok(&CsrMeltResponse { ewvs })
            }
            (Method::Post, ["coins", coin, "deposit"]) => {
                let deposit: DepositRequest = body(request);
                let part = BatchDepositCoin {
                    contribution: deposit.contribution,
                    denom_pub_hash: deposit.denom_pub_hash,
                    ub_sig: deposit.ub_sig,
                    coin_pub: coin.parse().unwrap(),
                    h_age_commitment: deposit.h_age_commitment,
                    coin_sig: deposit.coin_sig,
                };
                let batch = BatchDepositRequest {
                    merchant_payto_uri: deposit.merchant_payto_uri,
                    wire_salt: deposit.wire_salt,
                    merchant_pub: deposit.merchant_pub,
                    h_contract_terms: deposit.h_contract_terms,
                    coins: vec![part],
                    timestamp: deposit.timestamp,
                    refund_deadline: deposit.refund_deadline,
                    wire_transfer_deadline: deposit.wire_transfer_deadline,
                    policy: None,
                };
                match self.deposit(&batch, now) {
                    Ok(answer) => ok(&DepositConfirmation {
                        exchange_timestamp: answer.exchange_timestamp,
                        exchange_sig: answer.exchange_sigs[0].exchange_sig,
                        exchange_pub: answer.exchange_pub,
                        transaction_base_url: None,
                    }),
                    Err(response) => *response,
                }
            }
            (Method::Post, ["batch-deposit"]) if self.terms.has_batch => {
                match self.deposit(&body(request), now) {
                    Ok(answer) => ok(&answer),
                    Err(response) => *response,
                }
            }
            (Method::Post, ["coins", coin, "melt"]) => self.melt(coin.parse().unwrap(), &body(request), now),
            (Method::Post, ["refreshes", rc, "reveal"]) => {
                self.reveal(rc.parse().unwrap(), &body(request), now)
            }
            (Method::Post, ["coins", coin, "refund"]) => self.refund(coin.parse().unwrap(), &body(request)),
            (Method::Post, ["coins", coin, "recoup"]) => {
                self.recoup(coin.parse().unwrap(), &body(request), now, false)
            }
            (Method::Post, ["coins", coin, "recoup-refresh"]) => {
                self.recoup(coin.parse().unwrap(), &body(request), now, true)
            }
            (_, ["purses" | "contracts", ..]) | (Method::Post, ["reserves", _, "purse"]) => {
                self.people(request, &segments, now)
            }
            (Method::Get, ["kyc-check", ..]) => {
                if self.kyc {
                    let body =
                        serde_json::to_vec(&KycRedirect { kyc_url: "http://kyc.test/".to_owned() }).unwrap();
                    HttpResponse { status: 202, body, ..HttpResponse::default() }
                } else {
                    HttpResponse { status: 204, ..HttpResponse::default() }
                }
            }
            (method, ["taler-bank-integration" | "taler-bank-access", rest @ ..]) => {
                self.bank(method, rest, request)
            }
            _ => error(404, 21),
        }
    }

    fn keys(&self, now: Timestamp) -> HttpResponse {
        let listed: Vec<&FakeDenom> =
            self.denoms.iter().filter(|denom| denom.listed && !denom.revoked).collect();
        let mut flat = Vec::new();
        let mut groups: Vec<DenominationGroup> = Vec::new();
        let mut all = [0u8; 64];
        for denom in &listed {
            flat.extend_from_slice(denom.h.as_bytes());
            let (cipher, rsa_pub, cs_pub) = match &denom.public.key {
                batzen_crypto::DenomKey::Rsa(key) => {
                    (GroupCipher::Rsa, Some(key.encode().to_vec().into()), None)
                }
                batzen_crypto::DenomKey::Cs(key) => (GroupCipher::Cs, None, Some(*key.as_public_key())),
            };
            let age_mask = Some(denom.public.age_mask).filter(|mask| *mask != 0);
            let cipher = match (age_mask, cipher) {
                (Some(_), GroupCipher::Rsa) => GroupCipher::RsaAgeRestricted,
                (Some(_), _) => GroupCipher::CsAgeRestricted,
                (None, cipher) => cipher,
            };
            for (sum, byte) in all.iter_mut().zip(denom.h.as_bytes()) {
                *sum ^= byte;
            }
            groups.push(DenominationGroup {
                cipher,
                value: denom.terms.value,
                fee_withdraw: denom.terms.fee_withdraw,
                fee_deposit: denom.terms.fee_deposit,
                fee_refresh: denom.terms.fee_refresh,
                fee_refund: denom.terms.fee_refund,
                age_mask,
                hash: denom.h,
                denoms: vec![GroupMember {
                    rsa_pub,
                    cs_pub,
                    stamp_start: denom.terms.stamp_start,
                    stamp_expire_withdraw: denom.terms.stamp_expire_withdraw,
                    stamp_expire_deposit: denom.terms.stamp_expire_deposit,
                    stamp_expire_legal: denom.terms.stamp_expire_legal,
                    master_sig: denom.master_sig,
                }],
            });
        }
        let denoms = listed
            .iter()
            .map(|denom| Denomination {
                denom_pub: denom.public.clone(),
                value: denom.terms.value,
                fee_withdraw: denom.terms.fee_withdraw,
                fee_deposit: denom.terms.fee_deposit,
                fee_refresh: denom.terms.fee_refresh,
                fee_refund: denom.terms.fee_refund,
                stamp_start: denom.terms.stamp_start,
                stamp_expire_withdraw: denom.terms.stamp_expire_withdraw,
                stamp_expire_deposit: denom.terms.stamp_expire_deposit,
                stamp_expire_legal: denom.terms.stamp_expire_legal,
                master_sig: denom.master_sig,
            })
            .collect();
        let list_issue_date = self.start;
        let key_set = |hc| ExchangeKeySet { list_issue_date, hc }.sign(&self.signer);
        let mut signkey = SignKey {
            key: self.signer.public_key(),
            stamp_start: self.start,
            stamp_expire: now.saturating_add(Duration::from_days(30)),
            stamp_end: now.saturating_add(Duration::from_days(60)),
            master_sig: EddsaSignature::ZERO,
        };
        signkey.master_sig = signkey.validity().sign(&self.master);
        let recoup = self.denoms.iter().filter(|denom| denom.revoked);
        ok(&KeysResponse {
            version: "14:0:2".to_owned(),
            base_url: EXCHANGE.to_owned(),
            currency: "KUDOS".to_owned(),
            asset_type: "fiat".to_owned(),
            master_public_key: self.master.public_key(),
            reserve_closing_delay: Duration::from_days(28),
            signkeys: vec![signkey],
            recoup: Some(recoup.map(|denom| RecoupDenomination { h_denom_pub: denom.h }).collect()),
            denoms,
            denominations: groups,
            auditors: Vec::new(),
            global_fees: vec![self.global_fee()],
            list_issue_date,
            eddsa_pub: self.signer.public_key(),
            eddsa_sig: key_set(batzen_crypto::hash::sha512(&flat)),
            denominations_sig: key_set(HashCode::from_bytes(all)),
            wallet_balance_limit_without_kyc: None,
            extensions: None,
            extensions_sig: None,
        })
    }

    fn wire(&self) -> HttpResponse {
        let mut account = WireAccount { payto_uri: ACCOUNT.to_owned(), master_sig: EddsaSignature::ZERO };
        account.master_sig = account.message().sign(&self.master);
        let mut fee = WireFee {
            wire_fee: cents(self.terms.fee_wire).of(currency()),
            closing_fee: cents(2).of(currency()),
            start_date: self.start,
            end_date: self.start.saturating_add(Duration::from_days(365)),
            sig: EddsaSignature::ZERO,
        };
        fee.sig = fee.message("x-taler-bank").sign(&self.master);
        ok(&WireResponse {
            accounts: vec![account],
            fees: BTreeMap::from([("x-taler-bank".to_owned(), vec![fee])]),
            master_public_key: self.master.public_key(),
        })
    }

    pub(super) fn usable(
        &self,
        h: &HashCode,
        oper: &str,
        now: Timestamp,
    ) -> Result<&FakeDenom, Box<HttpResponse>> {
        let Some(denom) = self.denom(h) else {
            let message = ExchangeAffirmDenomUnknown { timestamp: now, h_denom_pub: *h };
            let statement = DenominationUnknown {
                timestamp: now,
                h_denom_pub: *h,
                exchange_pub: self.signer.public_key(),
                exchange_sig: message.sign(&self.signer),
            };
            return Err(Box::new(error_with(404, 1005, statement)));
        };
        let expire = match oper {
            "DEPOSIT" | "MELT" | "PURSE CREATE" => denom.terms.stamp_expire_deposit,
            _ => denom.terms.stamp_expire_withdraw,
        };
        let code = if denom.revoked {
            1010
        } else if now > expire {
            1009
        } else {
            return Ok(denom);
        };
        Err(Box::new(self.unusable(h, oper, code, now)))
    }

    /// The signed statement that a denomination cannot be used.
    pub fn unusable(&self, h: &HashCode, oper: &str, code: u32, now: Timestamp) -> HttpResponse {
        let message = ExchangeAffirmDenomExpired {
            timestamp: now,
            operation: batzen_protocol::signatures::OperationName::new(oper),
            h_denom_pub: *h,
        };
        let statement = DenominationUnusable {
            oper: oper.to_owned(),
            timestamp: now,
            h_denom_pub: *h,
            exchange_pub: self.signer.public_key(),
            exchange_sig: message.sign(&self.signer),
        };
        error_with(410, code, statement)
    }

    pub(super) fn sign_blind(
        &self,
        denom: &FakeDenom,
        planchet: &BlindedPlanchet,
        operation: CsOperation,
    ) -> BlindedDenomSignature {
        blind_sign_batch(&[(&denom.key, planchet, operation)]).remove(0).expect("signs")
    }

    fn withdraw(
        &mut self,
        reserve: EddsaPublicKey,
        planchets: &[WithdrawRequest],
        batch: bool,
        now: Timestamp,
    ) -> Result<Vec<BlindSignature>, Box<HttpResponse>> {
        let h_evs: Vec<HashCode> =
            planchets.iter().map(|planchet| planchet.coin_ev.hash(&planchet.denom_pub_hash)).collect();
        let known: Vec<_> =
            h_evs.iter().filter_map(|h| self.withdrawals.get(&(reserve, *h))).cloned().collect();
        if known.len() == planchets.len() && !(batch && self.terms.refuses_batch_repetition) {
            return Ok(known.into_iter().map(|(_, ev_sig)| BlindSignature { ev_sig }).collect());
        }
        // Batches do not find reserves that only purses have paid into.
        let is_credit = |item: &ReserveHistoryItem| matches!(item, ReserveHistoryItem::Credit(_));
        let has_credit =
            self.reserve_histories.get(&reserve).is_some_and(|items| items.iter().any(is_credit));
        if batch && !has_credit {
            return Err(Box::new(error(404, 1027)));
        }
        if batch && !known.is_empty() {
            return Err(Box::new(error(409, 1175)));
        }
        let (mut cost, mut fees, mut values) = (Money::ZERO, Money::ZERO, Money::ZERO);
        let mut signatures = Vec::new();
        for (planchet, h_coin_envelope) in planchets.iter().zip(&h_evs) {
            let denom = self.usable(&planchet.denom_pub_hash, "WITHDRAW", now)?;
            let amount_with_fee = denom.terms.withdraw_cost().unwrap();
            let message = WalletReserveWithdraw {
                amount_with_fee,
                h_denom_pub: denom.h,
                h_coin_envelope: *h_coin_envelope,
            };
            assert!(message.verify(&reserve, &planchet.reserve_sig), "reserve signature");
            assert_eq!(planchet.coin_ev.cipher(), denom.public.cipher());
            if let BlindedPlanchet::Cs { nonce, .. } = &planchet.coin_ev {
                let bound = *self.nonces.get(nonce).unwrap_or(h_coin_envelope);
                assert_eq!(bound, *h_coin_envelope, "a nonce serves one coin only");
            }
            cost = cost.checked_add(amount_with_fee.money).unwrap();
            fees = fees.checked_add(denom.terms.fee_withdraw.money).unwrap();
            values = values.checked_add(denom.terms.value.money).unwrap();
            signatures.push(self.sign_blind(denom, &planchet.coin_ev, CsOperation::Withdraw));
        }
        if self.kyc {
            return Err(Box::new(kyc_required()));
        }
        let Some(balance) = self.reserves.get_mut(&reserve) else { return Err(Box::new(error(404, 1027))) };
        let Ok(rest) = balance.checked_sub(cost) else {
            let proof = InsufficientReserve {
                balance: balance.of(currency()),
                requested_amount: cost.of(currency()),
                history: self.reserve_histories[&reserve].clone(),
            };
            return Err(Box::new(error_with(409, 1150, proof)));
        };
        *balance = rest;
        for (planchet, h_coin_envelope) in planchets.iter().zip(&h_evs) {
            let terms = &self.denom(&planchet.denom_pub_hash).unwrap().terms;
            let item = ReserveHistoryItem::Withdraw(ReserveWithdraw {
                reserve_sig: planchet.reserve_sig,
                h_coin_envelope: *h_coin_envelope,
                h_denom_pub: planchet.denom_pub_hash,
                withdraw_fee: terms.fee_withdraw,
                amount: terms.withdraw_cost().unwrap(),
            });
            self.reserve_histories.get_mut(&reserve).unwrap().push(item);
        }
        self.add_fee(fees);
        self.issued = self.issued.checked_add(values).unwrap();
        for ((planchet, h), signature) in planchets.iter().zip(&h_evs).zip(&signatures) {
            if let BlindedPlanchet::Cs { nonce, .. } = &planchet.coin_ev {
                self.nonces.insert(*nonce, *h);
            }
            self.withdrawals.insert((reserve, *h), (planchet.denom_pub_hash, signature.clone()));
        }
        Ok(signatures.into_iter().map(|ev_sig| BlindSignature { ev_sig }).collect())
    }

    fn bank(&mut self, method: Method, path: &[&str], request: &HttpRequest) -> HttpResponse {
        match (method, path) {
            (Method::Get, ["config"]) => {
                ok(&json!({ "version": "0:0:0", "currency": "KUDOS", "name": "taler-bank-integration" }))
            }
            (Method::Post, ["testing", "register"]) => {
                let account: Value = body(request);
                let (user, password) =
                    (account["username"].as_str().unwrap(), account["password"].as_str().unwrap());
                let known = self.accounts.entry(user.to_owned()).or_insert_with(|| password.to_owned());
                if known == password {
                    HttpResponse { status: 204, ..HttpResponse::default() }
                } else {
                    error(409, 5118)
                }
            }
            (Method::Post, ["accounts", _, "withdrawals"]) => {
                let amount: Amount = body::<Value>(request)["amount"].as_str().unwrap().parse().unwrap();
                let id = format!("OP{}", self.bank.len());
                self.bank.insert(id.clone(), BankOp { amount, selected: None, done: false, aborted: false });
                let host = BANK.trim_start_matches("http://");
                ok(&json!({
                    "withdrawal_id": id,
                    "taler_withdraw_uri": format!("taler+http://withdraw/{host}taler-bank-integration/{id}"),
                }))
            }
            (Method::Post, ["accounts", _, "withdrawals", id, "confirm"]) => {
                let operation = self.bank.get_mut(*id).unwrap();
                let Some((reserve, _)) = operation.selected else { return error(400, 5119) };
                if operation.aborted {
                    return error(409, 5117);
                }
                if !std::mem::replace(&mut operation.done, true) {
                    let amount = operation.amount;
                    self.credit_reserve(reserve, amount);
                }
                ok(&json!({}))
            }
            (Method::Get, ["withdrawal-operation", id]) => {
                let Some(operation) = self.bank.get(*id) else { return error(404, 5107) };
                ok(&json!({
                    "aborted": operation.aborted,
                    "selection_done": operation.selected.is_some(),
                    "transfer_done": operation.done,
                    "amount": operation.amount,
                    "suggested_exchange": EXCHANGE,
                    "wire_types": ["x-taler-bank"],
                }))
            }
            (Method::Post, ["withdrawal-operation", id]) => {
                let selection: Value = body(request);
                let Some(operation) = self.bank.get_mut(*id) else { return error(404, 5107) };
                let wanted = (
                    selection["reserve_pub"].as_str().unwrap().parse().unwrap(),
                    selection["selected_exchange"].as_str().unwrap().to_owned(),
                );
                if *operation.selected.get_or_insert(wanted.clone()) != wanted {
                    return error(409, 5113);
                }
                ok(&json!({ "transfer_done": operation.done }))
            }
            _ => error(404, 21),
        }
    }

    /// Confirms at the bank, as the user does on the bank's page.
    pub fn confirm_at_bank(&mut self) {
        let open: Vec<String> = self
            .bank
            .iter()
            .filter(|(_, op)| op.selected.is_some() && !op.done)
            .map(|(id, _)| id.clone())
            .collect();
        for id in open {
            let url = format!("{BANK}taler-bank-access/accounts/user/withdrawals/{id}/confirm");
            let request = HttpRequest::post(batzen_wallet::core::http::Context::Bank, url, &json!({}));
            assert_eq!(self.handle(&request, self.start).status, 200);
        }
    }

    pub fn create_bank_operation(&mut self, amount: Amount) -> String {
        let url = format!("{BANK}taler-bank-access/accounts/user/withdrawals");
        let request =
            HttpRequest::post(batzen_wallet::core::http::Context::Bank, url, &json!({ "amount": amount }));
        let response = self.handle(&request, self.start);
        let body: Value = serde_json::from_slice(&response.body).unwrap();
        body["taler_withdraw_uri"].as_str().unwrap().to_owned()
    }

    /// The history of a coin, as in conflict answers.
    pub fn history_of(&self, coin_pub: &EddsaPublicKey) -> Vec<Value> {
        let items = self.coins.get(coin_pub).map(|row| row.history.clone()).unwrap_or_default();
        items.iter().map(|item| serde_json::to_value(item).unwrap()).collect()
    }

    /// Key, balance and history of the only reserve.
    pub fn only_reserve(&self) -> (String, Amount, Vec<Value>) {
        assert_eq!(self.reserves.len(), 1);
        let (key, balance) = self.reserves.iter().next().unwrap();
        let history = &self.reserve_histories[key];
        let history = history.iter().map(|item| serde_json::to_value(item).unwrap()).collect();
        (key.to_string(), balance.of(currency()), history)
    }
}

#[test]
fn hash_of_a_method_includes_its_end() {
    assert_ne!(hash_text("x-taler-bank"), batzen_crypto::hash::sha512(b"x-taler-bank"));
}

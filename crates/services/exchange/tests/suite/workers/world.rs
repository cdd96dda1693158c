//! An exchange and its bank with their own clock. The coins have no valid signatures, since the rules do not
//! check them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_bank::{Bank, BankConfig, RunningBank};
use batzen_crypto::{
    BlindedDenomSignature, DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, WireSalt,
};
use batzen_exchange::app::Exchange;
use batzen_exchange::config::{CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig};
use batzen_exchange::reads::read;
use batzen_exchange::reads::totals::{Totals, totals};
use batzen_exchange::rules::{
    Answer, Command, Deposit, DepositCoin, Planchet, PresentedCoin, Refund, Refusal, Withdraw,
};
use batzen_exchange::service::RunningExchange;
use batzen_exchange::workers::{Progress, WorkerError, aggregator, closer, drain, transfer, wirewatch};
use batzen_http::client::{Client, ClientOptions};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{Amount, Currency, Duration, Money, MoneySum, Timestamp};
use batzen_service::wire_gateway::{
    AddIncomingRequest, HistoryQuery, OutgoingTransaction, WireGatewayClient,
};
use batzen_tables::exchange::{
    AccountId, CounterKey, Counters, DenomSerial, DepositKey, Deposits, Prepared, RefundKey,
};
use tempfile::TempDir;

use crate::running::{TestClock, start_ready};
use crate::workers::proxy::Proxy;

pub(super) const EUR: Currency = match Currency::new("EUR") {
    Ok(currency) => currency,
    Err(_) => panic!("a currency"),
};
pub(super) const OUR_PAYTO: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=exchange";
/// Seconds until a reserve expires.
pub(super) const EXPIRED: u64 = 3_601;
/// The value of a coin; its deposit fee is 0.1.
pub(super) const COIN: &str = "10";

/// A sum of many amounts.
pub(super) fn sum(text: &str) -> MoneySum {
    m(text).into()
}

pub(super) fn m(text: &str) -> Money {
    text.parse().unwrap()
}

pub(super) fn eur(text: &str) -> Amount {
    m(text).of(EUR)
}

pub(super) fn payto(account: &str) -> String {
    format!("payto://x-taler-bank/localhost/{account}?receiver-name={account}")
}

pub(super) fn our_account() -> AccountId {
    AccountId::of_payto(OUR_PAYTO)
}

/// A public key that stands for something in a test.
pub(super) fn key(kind: u8, n: u64) -> EddsaPublicKey {
    let mut bytes = [kind; 32];
    bytes[24..].copy_from_slice(&n.to_be_bytes());
    EddsaPublicKey::from_bytes(bytes)
}

pub(super) fn reserve(n: u64) -> EddsaPublicKey {
    key(1, n)
}

pub(super) fn merchant(name: &str) -> EddsaPublicKey {
    key(3, name.bytes().fold(0, |n, byte| n * 256 + u64::from(byte)))
}

fn hash(kind: u8, n: u64) -> HashCode {
    let mut bytes = [kind; 64];
    bytes[56..].copy_from_slice(&n.to_be_bytes());
    HashCode::from_bytes(bytes)
}

pub(super) struct World {
    pub bank: RunningBank,
    pub proxy: Proxy,
    pub exchange: RunningExchange,
    /// The bank's gateway for our account, bypassing the proxy.
    pub gateway: WireGatewayClient,
    config: ExchangeConfig,
    clock: TestClock,
    next: AtomicU64,
    _directory: TempDir,
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(|_| {}, |_| {}).await
    }

    pub(super) async fn with(
        adapt_bank: impl FnOnce(&mut BankConfig),
        adapt: impl FnOnce(&mut ExchangeConfig),
    ) -> Self {
        let clock = TestClock::new();
        let mut bank_config = BankConfig::new(EUR);
        bank_config.http_port = 0;
        let of_bank = clock.clone();
        bank_config.clock = Arc::new(move || of_bank.now());
        bank_config.allow_repeated_reserve_pub = true;
        adapt_bank(&mut bank_config);
        let bank = Bank::start(bank_config).await.unwrap();
        let proxy = Proxy::start(bank.addr.port()).await;
        let client = Client::new(&ClientOptions::default()).unwrap();
        let base = |port: u16| format!("http://127.0.0.1:{port}/taler-wire-gateway/exchange/");
        let gateway = WireGatewayClient::new(client, &base(bank.addr.port()), Default::default());

        let directory = tempfile::tempdir().unwrap();
        let fees = CoinFees { deposit: m("0.1"), refund: m("0.02"), ..CoinFees::FREE };
        let gateway_config = GatewayConfig { url: base(proxy.port), auth: GatewayAuth::None };
        let mut config = ExchangeConfig::local(EUR, directory.path(), 0)
            .with_coin("coin_ten", m(COIN), fees, CipherConfig::Cs)
            .with_account("exchange-account-1", OUR_PAYTO, gateway_config);
        config.crypto_threads = 1;
        // Short, because the tests kill many workers.
        config.workers.lease = Duration::from_micros(200_000);
        config.idle_reserve_expiration = Duration::from_secs(EXPIRED - 1);
        let standalone = config.standalone.as_mut().unwrap();
        (standalone.fees.wire, standalone.fees.closing) = (m("0.01"), m("0.01"));
        adapt(&mut config);
        let exchange = start_ready(config.clone(), &clock).await;
        let next = AtomicU64::new(1);
        Self { bank, proxy, exchange, gateway, config, clock, next, _directory: directory }
    }

    /// Stops the exchange and starts it again on the same data.
    pub(super) async fn restart(self, adapt: impl FnOnce(&mut ExchangeConfig)) -> Self {
        let Self { bank, proxy, exchange, gateway, mut config, clock, next, _directory } = self;
        exchange.shutdown().await.unwrap();
        adapt(&mut config);
        let exchange = start_ready(config.clone(), &clock).await;
        Self { bank, proxy, exchange, gateway, config, clock, next, _directory }
    }

    pub(super) fn app(&self) -> &Arc<Exchange> {
        self.exchange.app()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) async fn wirewatch(&self) -> Result<Progress, WorkerError> {
        wirewatch::run_until_idle(&self.app().core).await
    }

    pub(super) async fn aggregate(&self) -> Result<Progress, WorkerError> {
        aggregator::run_until_idle(&self.app().core).await
    }

    pub(super) async fn transfer(&self) -> Result<Progress, WorkerError> {
        transfer::run_until_idle(&self.app().core).await
    }

    pub(super) async fn close(&self) -> Result<Progress, WorkerError> {
        closer::run_until_idle(&self.app().core).await
    }

    pub(super) async fn drain(&self) -> Result<Progress, WorkerError> {
        drain::run_until_idle(&self.app().core).await
    }

    /// Runs as many workers at once, and returns what they returned.
    pub(super) async fn at_once<T: Send + 'static, F>(
        &self,
        workers: usize,
        work: impl Fn(Arc<Exchange>) -> F,
    ) -> Vec<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let tasks: Vec<_> = (0..workers).map(|_| tokio::spawn(work(Arc::clone(self.app())))).collect();
        let mut done = Vec::new();
        for task in tasks {
            done.push(task.await.unwrap());
        }
        done
    }

    /// The page of metrics.
    pub(super) async fn metrics(&self) -> String {
        let client = Client::new(&ClientOptions::default()).unwrap();
        let reply = client.get_json(format!("{}metrics", self.exchange.base_url())).await.unwrap();
        String::from_utf8(reply.body.to_vec()).unwrap()
    }

    pub(super) async fn submit(&self, command: Command) -> Result<Answer, Refusal> {
        self.app().core.submit(command).await.unwrap()
    }

    /// Wires money to a reserve.
    pub(super) async fn add_incoming(&self, reserve_pub: EddsaPublicKey, amount: &str, from: &str) -> u64 {
        let request = AddIncomingRequest { reserve_pub, amount: eur(amount), debit_account: payto(from) };
        self.gateway.add_incoming(&request).await.unwrap().row_id
    }

    pub(super) fn balance(&self, reserve_pub: EddsaPublicKey) -> Option<Money> {
        read::reserve(&self.app().core.store, reserve_pub).unwrap().map(|row| row.balance)
    }

    /// New coins, paid for with money at the bank.
    pub(super) async fn coins(&self, count: u64) -> Vec<EddsaPublicKey> {
        let reserve_pub = reserve(1_000_000 + self.number());
        let amount = Money::from_units(m(COIN).units() * u128::from(count)).unwrap();
        self.add_incoming(reserve_pub, &amount.to_string(), "customer").await;
        self.wirewatch().await.unwrap();
        let numbers: Vec<u64> = (0..count).map(|_| self.number()).collect();
        for part in numbers.chunks(256) {
            let planchet = |n: &u64| Planchet {
                denom: DenomSerial(1),
                h_coin_ev: hash(4, *n),
                reserve_sig: EddsaSignature::from_bytes([1; 64]),
                ev_sig: Some(BlindedDenomSignature::Rsa(vec![1])),
                nonce: None,
            };
            let planchets = part.iter().map(planchet).collect();
            let command = Command::Withdraw(Withdraw { reserve_pub, planchets, batch: true, origin: None });
            self.submit(command).await.unwrap();
        }
        numbers.into_iter().map(|n| key(2, n)).collect()
    }

    /// Deposits new coins, one for each amount. They are due in `wire_s` seconds, and refundable until one
    /// second before, or not at all.
    pub(super) async fn deposit(
        &self,
        name: &str,
        account: &str,
        amounts: &[&str],
        wire_s: u64,
    ) -> Vec<DepositKey> {
        self.deposit_into(merchant(name), &payto(account), amounts, (0, wire_s)).await
    }

    pub(super) async fn deposit_into(
        &self,
        merchant_pub: EddsaPublicKey,
        payto_uri: &str,
        amounts: &[&str],
        (refund_s, wire_s): (u64, u64),
    ) -> Vec<DepositKey> {
        let coins = self.coins(amounts.len() as u64).await;
        let after = |seconds: u64| self.now().saturating_add(Duration::from_secs(seconds));
        let mut keys = Vec::new();
        for (coins, amounts) in coins.chunks(256).zip(amounts.chunks(256)) {
            let h_contract_terms = hash(5, self.number());
            let pay = |(coin_pub, amount): (&EddsaPublicKey, &&str)| DepositCoin {
                coin: PresentedCoin {
                    coin_pub: *coin_pub,
                    denom: DenomSerial(1),
                    h_age: None,
                    denom_sig: DenomSignature::Rsa(vec![1]),
                },
                contribution: m(amount),
                coin_sig: EddsaSignature::from_bytes([2; 64]),
            };
            let command = Command::Deposit(Deposit {
                merchant_pub,
                h_contract_terms,
                payto_uri: payto_uri.to_owned(),
                h_payto: h_payto(payto_uri),
                wire_salt: WireSalt::from_bytes([9; 16]),
                wallet_time: self.now(),
                refund_deadline: after(refund_s),
                wire_deadline: after(wire_s),
                coins: coins.iter().zip(amounts).map(pay).collect(),
            });
            self.submit(command).await.unwrap();
            let key = |coin_pub: &EddsaPublicKey| DepositKey {
                coin_pub: *coin_pub,
                merchant_pub,
                h_contract_terms,
            };
            keys.extend(coins.iter().map(key));
        }
        keys
    }

    pub(super) async fn refund(&self, deposit: &DepositKey, amount: &str) -> Result<Answer, Refusal> {
        let key = RefundKey {
            coin_pub: deposit.coin_pub,
            merchant_pub: deposit.merchant_pub,
            h_contract_terms: deposit.h_contract_terms,
            rtransaction_id: self.number(),
        };
        let merchant_sig = EddsaSignature::from_bytes([3; 64]);
        self.submit(Command::Refund(Refund { key, amount: m(amount), merchant_sig })).await
    }

    /// All transfers that the bank executed for the exchange.
    pub(super) async fn outgoing(&self) -> Vec<OutgoingTransaction> {
        let mut rows: Vec<OutgoingTransaction> = Vec::new();
        loop {
            let start = rows.last().map(|row| row.row_id);
            let query = HistoryQuery { start, delta: 1_000, long_poll_ms: 0 };
            let page = match self.gateway.history_outgoing(query).await {
                Err(error) if error.status() == Some(404) => Vec::new(),
                page => page.unwrap(),
            };
            if page.is_empty() {
                return rows;
            }
            rows.extend(page);
        }
    }

    /// The accounts and amounts of those transfers from the given row on, ordered by account.
    pub(super) async fn paid_after(&self, row: &mut u64) -> Vec<(String, Money)> {
        let mut paid = Vec::new();
        for debit in self.outgoing().await.into_iter().filter(|debit| debit.row_id > *row).collect::<Vec<_>>()
        {
            *row = debit.row_id;
            let account = debit.credit_account.rsplit('/').next().unwrap();
            let account = account.split('?').next().unwrap().to_owned();
            paid.push((account, debit.amount.money_in(EUR).unwrap()));
        }
        paid.sort();
        paid
    }

    pub(super) async fn paid(&self) -> Vec<(String, Money)> {
        self.paid_after(&mut 0).await
    }

    pub(super) fn open_transfers(&self) -> usize {
        read::open_transfers(&self.app().core.store, 100_000).unwrap().len()
    }

    /// The number of changes to the key set.
    pub(super) fn key_set(&self) -> u64 {
        let key = CounterKey { name: Counters::KEY_SET.to_owned() };
        self.app().core.store.get::<Counters>(&key).unwrap().map_or(0, |found| found.row.value)
    }

    pub(super) fn totals(&self) -> Totals {
        totals(&self.app().core.store, &self.app().core.rules.denoms).unwrap()
    }

    /// Checks the invariants of the workers (Taler exchange, background workers) once all work is done: the
    /// books add up and agree with the bank's, each deposit is in one aggregate or waiting, and each transfer
    /// happened once.
    pub(super) async fn check(&self) -> Totals {
        let totals = self.totals();
        assert!(totals.conserved(), "the books do not add up: {totals:?}");
        let flow = self.bank.account_flow("exchange").await.unwrap();
        assert_eq!(totals.wired_in, flow.incoming_with_reserve_pub, "credits are booked once each");
        assert_eq!(totals.wired_out, flow.outgoing_transfers, "transfers are executed once each");

        let store = &self.app().core.store;
        let deposits = store.all::<Deposits>().unwrap();
        let wtids: HashSet<_> = deposits.iter().filter_map(|deposit| deposit.row.wtid).collect();
        let tracked =
            wtids.iter().map(|wtid| store.lookup::<Deposits>(Deposits::BY_WTID, wtid).unwrap().len());
        let taken = deposits.iter().filter(|deposit| deposit.row.wtid.is_some()).count();
        assert_eq!(tracked.sum::<usize>(), taken, "a deposit is found by its transfer");
        let mut waiting = 0;
        let every = std::ops::Bound::Unbounded;
        store
            .positions::<Deposits>(Deposits::BY_READY, every, every, |_| {
                waiting += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(waiting + taken, deposits.len(), "either waiting or aggregated");

        let mut at_bank = BTreeMap::new();
        for debit in self.outgoing().await {
            let amount = debit.amount.money_in(EUR).unwrap();
            let before = at_bank.insert(*debit.wtid.as_bytes(), amount);
            assert_eq!(before, None, "{} was paid twice", debit.wtid);
            assert!(!debit.exchange_base_url.is_empty());
        }
        for prepared in store.all::<Prepared>().unwrap() {
            let paid = at_bank.remove(prepared.key.wtid.as_bytes());
            if prepared.row.finished.is_some() {
                assert_eq!(paid, Some(prepared.row.amount));
            } else {
                assert_eq!(paid, None, "{} is not marked", prepared.key.wtid);
            }
        }
        assert!(at_bank.is_empty(), "the bank made payments that were never decided: {at_bank:?}");
        totals
    }

    pub(super) async fn end(self) {
        self.check().await;
        let Self { bank, exchange, .. } = self;
        exchange.shutdown().await.unwrap();
        bank.check().await.unwrap();
        bank.shutdown().await.unwrap();
    }
}

//! `kill -9` on the exchange under load, again and again; then the proof that nothing that was acknowledged is lost, that no
//! coin was accepted beyond its value, and that the books of exchange and bank agree.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use batzen_crypto::{
    BlindedDenomSignature, CoinSecrets, CsNonce, DenomSignature, EddsaPrivateKey, EddsaPublicKey,
    ExchangeWithdrawValues, HashCode, PlanchetMasterSecret, RefreshMasterSecret, ShortHash, WireSalt,
};
use batzen_http::gateway::{AddIncomingRequest, GatewayAuth, WireGatewayClient};
use batzen_http::{Client, ClientOptions};
use batzen_protocol::api::exchange::{
    BlindSignature, BlindSignatures, CsrMeltCoin, CsrMeltRequest, CsrMeltResponse, CsrWithdrawRequest,
    DepositRequest, MeltConfirmation, MeltRequest, RevealRequest, WithdrawValues,
};
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::{SignedMessage, WalletCoinDeposit, WalletCoinLink, WalletCoinMelt, Zeros};
use batzen_protocol::{ErrorCode, Money, Timestamp};
use batzen_wallet::core::coin::CsSession;
use batzen_wallet::core::exchange::Denom;
use batzen_wallet::core::planchet::{Planchet, withdraw_request};
use batzen_wallet::core::refresh::Session;
use batzen_wallet::{Exchange, Wallet};
use common::{PATIENCE, Service};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Users at the same time.
const USERS: usize = 6;
/// What each user sends to the exchange.
const FUNDS: &str = "2000";
const MERCHANT: &str = "payto://x-taler-bank/localhost/merchant?receiver-name=merchant";

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_secs(Timestamp::from_system_time(SystemTime::now()).as_secs().unwrap())
}

/// Good enough to choose what to do next.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A request that was answered with success, and the answer.
struct Ack {
    url: String,
    body: Vec<u8>,
    answer: Value,
}

/// What the users know of their money. All requests are repeated until they are answered, so it is exact.
#[derive(Default, Clone, Copy)]
struct Ledger {
    withdrawn_with_fees: Money,
    issued: Money,
    redeemed: Money,
}

struct Coin {
    denom: Denom,
    coin_priv: EddsaPrivateKey,
    coin_pub: EddsaPublicKey,
    sig: DenomSignature,
    remaining: Money,
}

struct Load {
    base: String,
    client: Client,
    exchange: Exchange,
    merchant: EddsaPrivateKey,
    salt: WireSalt,
    acks: Mutex<Vec<Ack>>,
    spent: Mutex<Vec<Coin>>,
    ledger: Mutex<Ledger>,
    retries: AtomicU64,
    is_over: AtomicBool,
}

fn add(sum: &mut Money, amount: Money) {
    *sum = sum.checked_add(amount).unwrap();
}

impl Load {
    /// Sends a request until it is answered with success, and notes both.
    async fn call<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> T {
        let url = format!("{}{path}", self.base);
        let body = serde_json::to_vec(body).unwrap();
        let answer = self.send(&url, &body).await;
        let typed =
            serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{url}: {error}: {answer}"));
        self.acks.lock().unwrap().push(Ack { url, body, answer });
        typed
    }

    async fn send(&self, url: &str, body: &[u8]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sent = self.client.post(url).body("application/json", body.to_vec()).send().await;
            match sent {
                Ok(reply) if reply.status == 200 => return reply.json().unwrap(),
                Ok(reply) if ![429, 500, 502, 503, 504].contains(&reply.status) => {
                    panic!("{}", reply.status_error());
                }
                Ok(_) | Err(_) => {
                    assert!(Instant::now() < deadline, "{url} is not answered");
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    fn pick(&self, dice: &mut Dice, at_most: Money) -> Option<Denom> {
        let fitting: Vec<&Denom> = self
            .exchange
            .denoms
            .values()
            .filter(|denom| denom.value.checked_add(denom.fee_withdraw).unwrap() <= at_most)
            .collect();
        let index = dice.below(fitting.len().max(1) as u64) as usize;
        fitting.get(index).map(|denom| (*denom).clone())
    }

    async fn withdraw(&self, reserve: &EddsaPrivateKey, denom: Denom) -> Coin {
        let master = PlanchetMasterSecret::generate();
        let session = if denom.is_cs() {
            let nonce: CsNonce = master.cs_nonce();
            let request = CsrWithdrawRequest { nonce, denom_pub_hash: denom.h_denom_pub };
            let values: WithdrawValues = self.call("csr-withdraw", &request).await;
            Some(CsSession::new(nonce, &values.ewv).unwrap())
        } else {
            None
        };
        let values = session.as_ref().map_or(ExchangeWithdrawValues::Rsa, |session| {
            ExchangeWithdrawValues::Cs { r0: session.r_0, r1: session.r_1 }
        });
        let secrets = CoinSecrets::from_master(&master, &values);
        let planchet = Planchet::new(secrets, &denom, session.as_ref()).unwrap();
        let request = withdraw_request(reserve, self.exchange.currency, &denom, &planchet).unwrap();
        let path = format!("reserves/{}/withdraw", reserve.public_key());
        let answer: BlindSignature = self.call(&path, &request).await;
        let mut ledger = self.ledger.lock().unwrap();
        add(&mut ledger.withdrawn_with_fees, denom.value.checked_add(denom.fee_withdraw).unwrap());
        add(&mut ledger.issued, denom.value);
        let sig = planchet.unblind(&answer.ev_sig).unwrap();
        Coin {
            remaining: denom.value,
            coin_priv: planchet.coin_priv,
            coin_pub: planchet.coin_pub,
            sig,
            denom,
        }
    }

    fn deposit_request(&self, coin: &Coin, amount: Money) -> DepositRequest {
        let (timestamp, h_contract_terms) = (now(), HashCode::random());
        let merchant_pub = self.merchant.public_key();
        let contribution = self.exchange.amount(amount);
        let message = WalletCoinDeposit {
            h_contract_terms,
            h_age_commitment: ShortHash::from_bytes([0; 32]),
            h_policy: HashCode::from_bytes([0; 64]),
            h_wire: h_wire(MERCHANT, &self.salt),
            h_denom_pub: coin.denom.h_denom_pub,
            wallet_timestamp: timestamp,
            refund_deadline: Timestamp::ZERO,
            amount_with_fee: contribution,
            deposit_fee: self.exchange.amount(coin.denom.fee_deposit),
            merchant_pub,
        };
        DepositRequest {
            merchant_payto_uri: MERCHANT.to_owned(),
            wire_salt: self.salt,
            contribution,
            denom_pub_hash: coin.denom.h_denom_pub,
            ub_sig: coin.sig.clone(),
            merchant_pub,
            h_contract_terms,
            h_age_commitment: None,
            coin_sig: message.sign(&coin.coin_priv),
            timestamp,
            refund_deadline: None,
            wire_transfer_deadline: timestamp,
            policy: None,
        }
    }

    async fn deposit(&self, coin: &mut Coin, amount: Money) {
        let request = self.deposit_request(coin, amount);
        let _: Value = self.call(&format!("coins/{}/deposit", coin.coin_pub), &request).await;
        coin.remaining = coin.remaining.checked_sub(amount).unwrap();
        add(&mut self.ledger.lock().unwrap().redeemed, amount);
    }

    /// Melts what is left on a coin and reveals. None if it is too little for any fresh coin.
    async fn refresh(&self, dice: &mut Dice, coin: &mut Coin) -> Option<Vec<Coin>> {
        let amount = coin.remaining;
        let mut left = amount.checked_sub(coin.denom.fee_refresh).ok()?;
        let mut denoms = Vec::new();
        while let Some(denom) = self.pick(dice, left).filter(|_| denoms.len() < 4) {
            left = left.checked_sub(denom.value).unwrap().checked_sub(denom.fee_withdraw).unwrap();
            denoms.push(denom);
        }
        if denoms.is_empty() {
            return None;
        }
        let secret = RefreshMasterSecret::generate();
        let nks: Vec<CsrMeltCoin> = (0u32..)
            .zip(&denoms)
            .filter(|(_, denom)| denom.is_cs())
            .map(|(coin_offset, denom)| CsrMeltCoin { coin_offset, denom_pub_hash: denom.h_denom_pub })
            .collect();
        let mut values = vec![ExchangeWithdrawValues::Rsa; denoms.len()];
        if !nks.is_empty() {
            let request = CsrMeltRequest { rms: secret.clone(), nks: nks.clone() };
            let answer: CsrMeltResponse = self.call("csr-melt", &request).await;
            for (coin, got) in nks.iter().zip(answer.ewvs) {
                values[coin.coin_offset as usize] = got.ewv;
            }
        }
        let session = Session {
            old_coin: (&coin.coin_priv, coin.coin_pub),
            secret: &secret,
            fresh: denoms.iter().zip(values).collect(),
        };
        let value_with_fee = self.exchange.amount(amount);
        let rc = session.commitment(&value_with_fee).unwrap();
        let melt = MeltRequest {
            denom_sig: coin.sig.clone(),
            denom_pub_hash: coin.denom.h_denom_pub,
            age_commitment_hash: None,
            confirm_sig: WalletCoinMelt {
                refresh_commitment: rc,
                h_denom_pub: coin.denom.h_denom_pub,
                h_age_commitment: ShortHash::from_bytes([0; 32]),
                amount_with_fee: value_with_fee,
                melt_fee: self.exchange.amount(coin.denom.fee_refresh),
            }
            .sign(&coin.coin_priv),
            value_with_fee,
            rc,
            rms: session.rms().cloned(),
            coin_pub: None,
        };
        let confirmation: MeltConfirmation = self.call(&format!("coins/{}/melt", coin.coin_pub), &melt).await;
        coin.remaining = Money::ZERO;
        add(&mut self.ledger.lock().unwrap().redeemed, amount);

        let chosen = confirmation.noreveal_index;
        let transfer_pub = session.transfer_priv(chosen).public_key();
        let fresh = session.candidate(chosen).unwrap();
        let link_sigs = fresh
            .iter()
            .zip(&denoms)
            .map(|(coin_to_be, denom)| {
                let message = WalletCoinLink {
                    h_denom_pub: denom.h_denom_pub,
                    transfer_pub,
                    h_age_commitment: Zeros,
                    h_coin_envelope: coin_to_be.planchet.hash(&denom.h_denom_pub),
                };
                message.sign(&coin.coin_priv)
            })
            .collect();
        let reveal = RevealRequest {
            transfer_pub,
            transfer_privs: (0..3)
                .filter(|index| *index != chosen)
                .map(|index| session.transfer_priv(index))
                .collect(),
            link_sigs,
            coin_evs: fresh.iter().map(|coin_to_be| coin_to_be.planchet.clone()).collect(),
            new_denoms_h: denoms.iter().map(|denom| denom.h_denom_pub).collect(),
            old_age_commitment: None,
            rms: session.rms().cloned(),
        };
        let answer: BlindSignatures = self.call(&format!("refreshes/{rc}/reveal"), &reveal).await;
        assert_eq!(answer.ev_sigs.len(), denoms.len());
        let mut coins = Vec::new();
        for ((coin_to_be, denom), signed) in fresh.into_iter().zip(denoms).zip(answer.ev_sigs) {
            let blind: BlindedDenomSignature = signed.ev_sig;
            let sig = coin_to_be.unblind.unblind(&blind).unwrap();
            add(&mut self.ledger.lock().unwrap().issued, denom.value);
            coins.push(Coin {
                remaining: denom.value,
                coin_pub: coin_to_be.coin_pub,
                coin_priv: coin_to_be.secrets.coin_priv,
                sig,
                denom,
            });
        }
        Some(coins)
    }

    /// Withdraws, pays and changes until it is over.
    async fn user(self: Arc<Self>, reserve: EddsaPrivateKey, seed: u64) {
        let mut dice = Dice(seed);
        let mut coins: Vec<Coin> = Vec::new();
        while !self.is_over.load(Ordering::Acquire) {
            let Some(mut coin) = coins.pop() else {
                let denom = self.pick(&mut dice, money("6")).unwrap();
                let coin = self.withdraw(&reserve, denom).await;
                // Some coins stay unspent for ever.
                if dice.below(5) > 0 {
                    coins.push(coin);
                }
                continue;
            };
            match dice.below(4) {
                0 => {
                    if let Some(fresh) = self.refresh(&mut dice, &mut coin).await {
                        coins.extend(fresh);
                    }
                }
                1 => {
                    let half = coin.remaining.checked_div(2).unwrap();
                    if half > coin.denom.fee_deposit {
                        self.deposit(&mut coin, half).await;
                        if let Some(fresh) = self.refresh(&mut dice, &mut coin).await {
                            coins.extend(fresh);
                        }
                    }
                }
                _ => {}
            }
            if coin.remaining >= coin.denom.fee_deposit && !coin.remaining.is_zero() {
                let rest = coin.remaining;
                self.deposit(&mut coin, rest).await;
            }
            self.spent.lock().unwrap().push(coin);
        }
    }

    /// Repeats an acknowledged request: the answer must be the same.
    async fn repeat(&self, ack: &Ack) {
        let answer = self.send(&ack.url, &ack.body).await;
        assert_eq!(answer, ack.answer, "{} was answered differently before", ack.url);
    }

    /// Tries to spend a coin once more.
    async fn spend_again(&self, coin: &Coin) {
        let request = self.deposit_request(coin, coin.denom.value);
        let url = format!("{}coins/{}/deposit", self.base, coin.coin_pub);
        let reply = self.client.post_json(url, &request).await.unwrap();
        assert_eq!(reply.status, 409, "{}", reply.status_error());
        assert_eq!(reply.code(), Some(ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS));
        let history = reply.json::<Value>().unwrap()["history"].as_array().unwrap().len();
        assert!(history > 0, "a refusal without proof");
    }
}

struct Town {
    dir: tempfile::TempDir,
    bank_port: u16,
    exchange_port: u16,
}

impl Town {
    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn bank(&self) -> Service {
        let (data, port) = (self.path("bank"), self.bank_port.to_string());
        Service::start(
            self.dir.path(),
            "bank",
            &["bank", "serve", "--currency", "KUDOS", "--data", &data, "--port", &port],
        )
    }

    fn exchange(&self) -> Service {
        let (data, port) = (self.path("exchange-data"), self.exchange_port.to_string());
        let bank = format!("http://localhost:{}/", self.bank_port);
        let arguments = [
            "exchange",
            "serve",
            "--standalone",
            "--data",
            &data,
            "--port",
            &port,
            "--bank",
            &bank,
            "--rsa-bits",
            "1024",
        ];
        Service::start(self.dir.path(), "exchange", &arguments)
    }

    fn totals(&self) -> Value {
        let output = common::run(&["exchange", "totals", "--json", &self.path("exchange-data")]);
        assert!(output.status.success(), "{}{}", common::stdout(&output), common::stderr(&output));
        serde_json::from_str(&common::stdout(&output)).unwrap()
    }
}

impl Drop for Town {
    /// What the services said is needed to understand a failure.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["bank", "exchange"] {
                let text =
                    std::fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!(
                    "--- the last lines of {name}:\n{}",
                    lines[lines.len().saturating_sub(40)..].join("\n")
                );
            }
        }
    }
}

/// Waits until a service answers.
async fn wait_for(client: &Client, url: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !matches!(client.get_json(url).await, Ok(reply) if reply.status == 200) {
        assert!(Instant::now() < deadline, "{url} does not answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn fund(client: &Client, town: &Town, load: &Load) -> Vec<EddsaPrivateKey> {
    let gateway = format!("http://localhost:{}/taler-wire-gateway/exchange/", town.bank_port);
    let gateway = WireGatewayClient::new(client.clone(), &gateway, GatewayAuth::None);
    let mut reserves = Vec::new();
    for user in 0..USERS {
        let reserve = EddsaPrivateKey::generate();
        let request = AddIncomingRequest {
            amount: load.exchange.amount(money(FUNDS)),
            reserve_pub: reserve.public_key(),
            debit_account: format!("payto://x-taler-bank/localhost/user{user}?receiver-name=user{user}"),
        };
        gateway.add_incoming(&request).await.unwrap();
        wait_for(client, &format!("{}reserves/{}", load.base, reserve.public_key())).await;
        reserves.push(reserve);
    }
    reserves
}

fn bank_flow(dir: &Path) -> batzen_bank::AccountFlow {
    let embedded = batzen_store::embedded::EmbeddedStore::open(
        dir,
        batzen_tables::bank::ALL,
        batzen_store::embedded::Options::default(),
    );
    let store = batzen_store::Store::new(embedded.unwrap());
    batzen_bank::books::check(&store).unwrap();
    let flow = batzen_bank::books::account_flow(&store, "exchange").unwrap();
    store.close().unwrap();
    flow
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_under_load_loses_nothing() {
    let cycles: u32 =
        std::env::var("BATZEN_SOAK_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let town = Town {
        dir: tempfile::tempdir().unwrap(),
        bank_port: common::free_port(),
        exchange_port: common::free_port(),
    };
    let client =
        Client::new(&ClientOptions { timeout: Duration::from_secs(10), ..ClientOptions::default() }).unwrap();
    let bank = town.bank();
    wait_for(&client, &format!("http://localhost:{}/taler-bank-integration/config", town.bank_port)).await;
    let mut exchange = town.exchange();
    let base = format!("http://localhost:{}/", town.exchange_port);
    for page in ["keys", "wire"] {
        wait_for(&client, &format!("{base}{page}")).await;
    }
    let load = Arc::new(Load {
        exchange: Wallet::in_memory().unwrap().add_exchange(&base).await.unwrap(),
        base: base.clone(),
        client: client.clone(),
        merchant: EddsaPrivateKey::generate(),
        salt: WireSalt::from_bytes([7; 16]),
        acks: Mutex::default(),
        spent: Mutex::default(),
        ledger: Mutex::default(),
        retries: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let reserves = fund(&client, &town, &load).await;

    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = u64::from(seed) | 1;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let mut users = tokio::task::JoinSet::new();
    for reserve in reserves {
        let seed = 1 + dice.below(u64::MAX - 1);
        users.spawn(Arc::clone(&load).user(reserve, seed));
    }
    for cycle in 1..=cycles {
        let before = load.acks.lock().unwrap().len();
        // Each life must do something, so that there is something to lose.
        let deadline = Instant::now() + PATIENCE;
        while load.acks.lock().unwrap().len() < before + 10 {
            assert!(Instant::now() < deadline, "the exchange does not answer");
            exchange.assert_runs();
            // A user that fails ends the test at once.
            if let Some(ended) = users.try_join_next() {
                ended.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.below(700))).await;
        exchange.kill_9();
        let acknowledged = load.acks.lock().unwrap().len() - before;
        println!("cycle {cycle}: killed after {acknowledged} acknowledged requests");
        exchange = town.exchange();
    }
    wait_for(&client, &format!("{base}keys")).await;
    load.is_over.store(true, Ordering::Release);
    while let Some(ended) = users.join_next().await {
        ended.unwrap();
    }

    let acks = std::mem::take(&mut *load.acks.lock().unwrap());
    let spent = std::mem::take(&mut *load.spent.lock().unwrap());
    println!(
        "{} acknowledged requests, {} repeats, {} coins spent",
        acks.len(),
        load.retries.load(Ordering::Relaxed),
        spent.len()
    );
    assert!(!spent.is_empty());
    let (acks, spent) = (Arc::new(acks), Arc::new(spent));
    let mut checks = tokio::task::JoinSet::new();
    for part in 0..8 {
        let (load, acks, spent) = (Arc::clone(&load), Arc::clone(&acks), Arc::clone(&spent));
        checks.spawn(async move {
            for ack in acks.iter().skip(part).step_by(8) {
                load.repeat(ack).await;
            }
            for coin in spent.iter().skip(part).step_by(8) {
                load.spend_again(coin).await;
            }
        });
    }
    while let Some(ended) = checks.join_next().await {
        ended.unwrap();
    }

    // What is decided is to be paid: wait for the transfers, which may have been cut off in the middle.
    let mut totals = Value::Null;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (status, _) = exchange.terminate();
        assert!(status.success(), "the exchange ended with {status}");
        totals = town.totals();
        if totals["in_flight"] == "0" && totals["deposits"] == "0" {
            break;
        }
        exchange = town.exchange();
        wait_for(&client, &format!("{base}keys")).await;
    }
    let (status, _) = bank.terminate();
    assert!(status.success(), "the bank ended with {status}");

    let ledger = *load.ledger.lock().unwrap();
    let funded = money(FUNDS).checked_mul(USERS as u64).unwrap();
    let flow = bank_flow(Path::new(&town.path("bank")));
    let sum = |name: &str| -> Money { totals[name].as_str().unwrap().parse().unwrap() };
    assert_eq!(totals["conserved"], true, "{totals:#}");
    assert_eq!(flow.incoming_with_reserve_pub, funded);
    assert_eq!(sum("wired_in"), funded);
    assert_eq!(sum("wired_out"), flow.outgoing_transfers, "{totals:#}");
    assert!(!flow.outgoing_transfers.is_zero());
    assert_eq!(sum("reserves"), funded.checked_sub(ledger.withdrawn_with_fees).unwrap());
    assert_eq!(sum("issued"), ledger.issued);
    assert_eq!(sum("redeemed"), ledger.redeemed);
    assert_eq!(sum("unrevealed_melts"), Money::ZERO);
    let owed = ["reserves", "outstanding", "pending", "unrevealed_melts", "fees"].map(sum);
    let owed = Money::checked_sum(owed).unwrap().checked_add(flow.outgoing_transfers).unwrap();
    assert_eq!(owed, flow.incoming_with_reserve_pub, "the books of exchange and bank differ: {totals:#}");
}

//! The load: customers who withdraw, pay, change and get refunds, all at the same time, whatever happens to
//! the exchange.
//!
//! A request that got no answer is either repeated unchanged or abandoned and left open. Open requests are
//! settled at the end by repeating them ([`Load::settle`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batzen_crypto::{
    EddsaPrivateKey, EddsaPublicKey, ExchangeWithdrawValues, HashCode, PlanchetMasterSecret,
    RefreshMasterSecret,
};
use batzen_http::client::{Client, ClientError, Reply};
use batzen_protocol::api::exchange::{
    BatchWithdrawRequest, BlindSignature, BlindSignatures, CsrMeltCoin, CsrMeltRequest, CsrMeltResponse,
    CsrWithdrawRequest, MeltConfirmation, WithdrawValues,
};
use batzen_protocol::{Duration as Lifetime, ErrorCode, Money};
use batzen_service::wire_gateway::{AddIncomingRequest, GatewayAuth, WireGatewayClient};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::common::PATIENCE;
use crate::crash::coins::{CURRENCY, Coin, Contract, Denom, Planchet, Refresh, Shop, minus, money, plus};
use crate::crash::log::{Answer, Failures, Kind, Log, Request};
use crate::crash::purses::Purse;

/// The effect of an acknowledged request.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Nothing.
    Nothing,
    /// Took coins out of a reserve: h_coin_ev and denomination of each.
    Withdraw { reserve: EddsaPublicKey, coins: Vec<(HashCode, HashCode)> },
    /// Paid a shop with coins: the amount from each. Contested: the same coins were offered to two shops at
    /// the same time.
    Deposit {
        shop: usize,
        contract: HashCode,
        coins: Vec<(EddsaPublicKey, Money)>,
        is_refundable: bool,
        is_contested: bool,
    },
    /// Took value from a coin.
    Melt { coin: EddsaPublicKey, rc: HashCode, amount: Money },
    /// Created fresh coins from it.
    Reveal { coin: EddsaPublicKey, rc: HashCode, coins: Vec<(HashCode, HashCode)> },
    /// Paid into a new purse: the amount from each coin, and the purse's target.
    PurseCreate { purse: EddsaPublicKey, coins: Vec<(EddsaPublicKey, Money)>, target: Money },
    /// Paid a purse out into a reserve. Contested: two reserves asked for it at the same time.
    PurseMerge { purse: EddsaPublicKey, reserve: EddsaPublicKey, amount: Money, is_contested: bool },
    /// Gave value back to a coin.
    Refund { coin: EddsaPublicKey, shop: usize, contract: HashCode, number: u64, amount: Money },
}

/// A generator good enough to choose what to do next (xorshift64).
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The lower bits are weaker.
        (self.0 >> 16) % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    #[allow(dead_code, reason = "not every test makes keys of it")]
    pub(crate) fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = self.below(items.len().max(1) as u64);
        items.get(usize::try_from(index).unwrap())
    }

    pub(crate) fn child(&mut self) -> Self {
        Self::new(self.below(u64::MAX))
    }
}

/// Longer than any test.
const OUTLIVES_THE_TEST: Lifetime = Lifetime::from_days(1);

/// One attempt at a request.
enum Attempt {
    Answered(Answer),
    /// It certainly had no effect.
    Unseen,
    /// It may have had an effect.
    Doubtful,
}

pub(crate) struct Load {
    pub base_url: String,
    pub client: Client,
    bank: WireGatewayClient,
    pub denoms: Vec<Arc<Denom>>,
    pub shops: Vec<Shop>,
    pub log: Log<Effect>,
    /// Reserves that the bank has credited, and with how much.
    pub credits: Mutex<Vec<(EddsaPublicKey, Money)>>,
    /// The sums that purses may have paid into each reserve.
    pub asked: Mutex<HashMap<EddsaPublicKey, Money>>,
    /// All coins that were ever held.
    pub coins: Mutex<HashMap<EddsaPublicKey, Arc<Coin>>>,
    /// Operations that failed at the exchange.
    pub failures: Failures,
    /// Time that purses last, and how long shops may give refunds. Unless it is long, requests may come too late.
    pub lifetime: Lifetime,
    is_over: AtomicBool,
}

struct Reserve {
    key: EddsaPrivateKey,
    left: Money,
}

/// A coin and the amount left on it.
type Held = (Arc<Coin>, Money);

impl Load {
    pub(crate) async fn new(client: Client, exchange_url: &str, bank_url: &str) -> Self {
        let gateway = format!("{bank_url}taler-wire-gateway/exchange/");
        Self {
            denoms: Denom::offered(&client, exchange_url).await,
            base_url: exchange_url.to_owned(),
            bank: WireGatewayClient::new(client.clone(), &gateway, GatewayAuth::None),
            client,
            shops: ["bakery", "bookshop", "barber"].map(Shop::new).into(),
            log: Log::new(),
            credits: Mutex::default(),
            asked: Mutex::default(),
            coins: Mutex::default(),
            failures: Failures::default(),
            lifetime: OUTLIVES_THE_TEST,
            is_over: AtomicBool::new(false),
        }
    }

    /// Lets the customers finish their current operation.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns whether the customers were told to finish.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    async fn attempt(&self, request: &Request) -> Attempt {
        let url = format!("{}{}", self.base_url, request.path);
        match self.client.post(url).body("application/json", request.body.clone()).send().await {
            Ok(reply) if reply.status == 429 => Attempt::Unseen,
            Ok(reply) if self.is_failure(&request.path, &reply) => Attempt::Doubtful,
            Ok(reply) => {
                Attempt::Answered(Answer { status: reply.status, body: reply.json().unwrap_or(Value::Null) })
            }
            Err(ClientError::Connect { .. }) => Attempt::Unseen,
            Err(error) if error.is_transient() => Attempt::Doubtful,
            Err(error) => panic!("{error}"),
        }
    }

    fn is_failure(&self, path: &str, reply: &Reply) -> bool {
        self.failures.is_one(reply.status, || format!("{path}: {}", String::from_utf8_lossy(&reply.body)))
    }

    /// Returns whether the exchange answers that it has each coin of a deposit.
    pub(crate) async fn knows_deposit(
        &self,
        shop: usize,
        contract: HashCode,
        coins: &[(EddsaPublicKey, Money)],
    ) -> bool {
        for (coin, _) in coins {
            let path = self.shops[shop].deposit_status(*coin, contract);
            match self.client.get(format!("{}{path}", self.base_url)).send().await {
                Ok(reply) if self.is_failure(&path, &reply) || reply.status == 429 => return false,
                Ok(reply) if matches!(reply.status, 200 | 202) => {}
                Ok(reply) if reply.status == 404 => return false,
                Ok(reply) => panic!("{path}: HTTP {}", reply.status),
                Err(error) if error.is_transient() => return false,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }

    /// Retries until there is an answer.
    pub(crate) async fn ask(&self, request: &Request) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Attempt::Answered(answer) = self.attempt(request).await {
                return answer;
            }
            assert!(Instant::now() < deadline, "{} is not answered", request.path);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns whether reserves, purses and refunds may come to their end during the test.
    fn may_be_late(&self) -> bool {
        self.lifetime < OUTLIVES_THE_TEST
    }

    /// The statuses with which a valid request may be refused.
    fn refusals(&self, effect: &Effect) -> &'static [u16] {
        let may_be_late = self.may_be_late();
        match effect {
            // A reserve is closed, and its rest paid back, when its time is over.
            Effect::Withdraw { .. } if may_be_late => &[409],
            Effect::PurseCreate { .. } | Effect::PurseMerge { .. } | Effect::Refund { .. } if may_be_late => {
                &[400, 404, 409, 410]
            }
            Effect::Deposit { is_contested: true, .. } | Effect::PurseMerge { is_contested: true, .. } => {
                &[409]
            }
            _ => &[],
        }
    }

    /// Sends a request. `None`: it was refused for a valid reason, or its customer abandoned it.
    async fn send<T: DeserializeOwned>(
        &self,
        dice: &mut Dice,
        kind: Kind,
        path: String,
        body: &impl Serialize,
        effect: Effect,
    ) -> Option<T> {
        let request = Request { kind, path, body: serde_json::to_vec(body).unwrap() };
        let refusals = self.refusals(&effect);
        let number = self.log.open(request.clone(), effect);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.attempt(&request).await {
                Attempt::Answered(answer) => {
                    let Answer { status, body } = &answer;
                    let typed = (*status == 200).then(|| serde_json::from_value(body.clone()).unwrap());
                    assert!(
                        typed.is_some() || refusals.contains(status),
                        "{}: {status} {body}",
                        request.path
                    );
                    self.log.close(number, answer);
                    return typed;
                }
                Attempt::Unseen => {}
                Attempt::Doubtful => {
                    self.log.doubt(number);
                    if dice.one_in(3) {
                        return None;
                    }
                }
            }
            assert!(Instant::now() < deadline, "{} is not answered", request.path);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Settles all open requests by repeating them. Returns their number.
    pub(crate) async fn settle(&self) -> usize {
        let entries = self.log.entries();
        let open = entries.iter().enumerate().filter(|(_, entry)| entry.is_open());
        let mut settled = 0;
        for (number, entry) in open {
            let answer = self.ask(&entry.request).await;
            self.log.close(number, answer);
            settled += 1;
        }
        settled
    }

    /// Opens a new reserve. The bank may be killed meanwhile, too.
    async fn reserve(&self, dice: &mut Dice) -> Reserve {
        let key = EddsaPrivateKey::generate();
        let left = money("30").checked_mul(1 + dice.below(3)).unwrap();
        let customer = format!("customer{}", dice.below(10));
        let request = AddIncomingRequest {
            reserve_pub: key.public_key(),
            amount: left.of(CURRENCY),
            debit_account: format!("payto://x-taler-bank/localhost/{customer}?receiver-name={customer}"),
        };
        let deadline = Instant::now() + PATIENCE;
        let mut is_doubtful = false;
        loop {
            match self.bank.add_incoming(&request).await {
                Ok(_) => break,
                Err(error)
                    if is_doubtful && error.code() == Some(ErrorCode::BANK_DUPLICATE_RESERVE_PUB_SUBJECT) =>
                {
                    break;
                }
                Err(ClientError::Connect { .. }) => {}
                Err(error) if error.is_transient() => is_doubtful = true,
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < deadline, "the bank does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.credits.lock().unwrap().push((key.public_key(), left));
        let url = format!("{}reserves/{}", self.base_url, key.public_key());
        while !matches!(self.client.get_json(&url).await, Ok(reply) if reply.status == 200) {
            assert!(Instant::now() < deadline, "a credit does not arrive at the exchange");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Reserve { key, left }
    }

    fn affordable(&self, dice: &mut Dice, at_most: Money) -> Option<Arc<Denom>> {
        let fitting: Vec<&Arc<Denom>> = self.denoms.iter().filter(|denom| denom.cost() <= at_most).collect();
        dice.pick(&fitting).map(|denom| Arc::clone(denom))
    }

    fn hold(&self, coins: Vec<Coin>) -> Vec<Held> {
        let mut known = self.coins.lock().unwrap();
        let mut held = Vec::new();
        for coin in coins {
            let coin = Arc::new(coin);
            known.insert(coin.key_pub, Arc::clone(&coin));
            held.push((Arc::clone(&coin), coin.denom.value));
        }
        held
    }

    async fn planchet(&self, dice: &mut Dice, denom: Arc<Denom>) -> Option<Planchet> {
        let master = PlanchetMasterSecret::generate();
        let mut values = ExchangeWithdrawValues::Rsa;
        if denom.is_cs() {
            let request = CsrWithdrawRequest { nonce: master.cs_nonce(), denom_pub_hash: denom.hash };
            let answer: WithdrawValues =
                self.send(dice, Kind::CsrWithdraw, "csr-withdraw".into(), &request, Effect::Nothing).await?;
            values = answer.ewv;
        }
        Some(Planchet::new(&master, denom, &values))
    }

    async fn withdraw(&self, dice: &mut Dice, reserve: &mut Reserve) -> Option<Vec<Held>> {
        let is_batch = dice.one_in(2);
        let count = if is_batch { 1 + dice.below(4) } else { 1 };
        let mut planchets = Vec::new();
        for _ in 0..count {
            let Some(denom) = self.affordable(dice, reserve.left) else { break };
            let cost = denom.cost();
            planchets.push(self.planchet(dice, denom).await?);
            reserve.left = minus(reserve.left, cost);
        }
        if planchets.is_empty() {
            *reserve = self.reserve(dice).await;
            return None;
        }
        let reserve_pub = reserve.key.public_key();
        let coins = planchets.iter().map(|planchet| (planchet.h_coin_ev, planchet.denom.hash)).collect();
        let effect = Effect::Withdraw { reserve: reserve_pub, coins };
        let mut requests: Vec<_> = planchets.iter().map(|planchet| planchet.request(&reserve.key)).collect();
        let ev_sigs = if is_batch {
            let path = format!("reserves/{reserve_pub}/batch-withdraw");
            let body = BatchWithdrawRequest { planchets: requests };
            let answer: BlindSignatures = self.send(dice, Kind::BatchWithdraw, path, &body, effect).await?;
            answer.ev_sigs
        } else {
            let path = format!("reserves/{reserve_pub}/withdraw");
            let body = requests.pop().unwrap();
            let answer: BlindSignature = self.send(dice, Kind::Withdraw, path, &body, effect).await?;
            vec![answer]
        };
        assert_eq!(ev_sigs.len(), planchets.len());
        let coins = planchets.into_iter().zip(&ev_sigs).map(|(planchet, sig)| planchet.finish(&sig.ev_sig));
        Some(self.hold(coins.collect()))
    }

    /// Pays with one coin. Returns whether the payment is certain.
    async fn pay(
        &self,
        dice: &mut Dice,
        coin: &Coin,
        shop: usize,
        contract: &Contract,
        amount: Money,
        (is_refundable, is_contested): (bool, bool),
    ) -> bool {
        let effect = Effect::Deposit {
            shop,
            contract: contract.hash,
            coins: vec![(coin.key_pub, amount)],
            is_refundable,
            is_contested,
        };
        let body = coin.deposit(&self.shops[shop], contract, amount);
        let path = format!("coins/{}/deposit", coin.key_pub);
        self.send::<Value>(dice, Kind::Deposit, path, &body, effect).await.is_some()
    }

    async fn pay_together(&self, dice: &mut Dice, coins: Vec<Held>) {
        let (shop, contract) = (self.any_shop(dice), Contract::due());
        let effect = Effect::Deposit {
            shop,
            contract: contract.hash,
            coins: coins.iter().map(|(coin, amount)| (coin.key_pub, *amount)).collect(),
            is_refundable: false,
            is_contested: false,
        };
        let body = Coin::batch_deposit(&coins, &self.shops[shop], &contract);
        let _: Option<Value> =
            self.send(dice, Kind::BatchDeposit, "batch-deposit".into(), &body, effect).await;
    }

    /// Offers the whole coin to two shops at the same time.
    async fn pay_twice(&self, dice: &mut Dice, (coin, left): &Held) {
        let (first, second) = (Contract::due(), Contract::due());
        let (mut left_hand, mut right_hand) = (dice.child(), dice.child());
        tokio::join!(
            self.pay(&mut left_hand, coin, 0, &first, *left, (false, true)),
            self.pay(&mut right_hand, coin, 1, &second, *left, (false, true)),
        );
    }

    /// Pays, and gets all or half of it refunded. Returns the amount left on the coin, if that is certain.
    async fn pay_and_return(&self, dice: &mut Dice, (coin, left): &Held) -> Option<Held> {
        let (shop, contract) = (self.any_shop(dice), Contract::refundable(self.lifetime));
        if !self.pay(dice, coin, shop, &contract, *left, (true, false)).await {
            return None;
        }
        let amount = if dice.one_in(2) { *left } else { left.checked_div(2).unwrap() };
        if amount < coin.denom.fee_refund {
            return None;
        }
        let number = dice.below(1_000_000);
        let effect = Effect::Refund { coin: coin.key_pub, shop, contract: contract.hash, number, amount };
        let body = self.shops[shop].refund(coin.key_pub, contract.hash, number, amount);
        let path = format!("coins/{}/refund", coin.key_pub);
        let _: Value = self.send(dice, Kind::Refund, path, &body, effect).await?;
        Some((Arc::clone(coin), minus(amount, coin.denom.fee_refund)))
    }

    /// Refreshes the rest of a coin. Some customers never ask for the fresh coins.
    async fn refresh(&self, dice: &mut Dice, (coin, amount): Held) -> Option<Vec<Held>> {
        let mut left = amount.checked_sub(coin.denom.fee_refresh).ok()?;
        let mut denoms = Vec::new();
        while let Some(denom) = self.affordable(dice, left).filter(|_| denoms.len() < 4) {
            left = minus(left, denom.cost());
            denoms.push(denom);
        }
        if denoms.is_empty() {
            return None;
        }
        let secret = RefreshMasterSecret::generate();
        let nks: Vec<CsrMeltCoin> = (0..)
            .zip(&denoms)
            .filter(|(_, denom)| denom.is_cs())
            .map(|(coin_offset, denom)| CsrMeltCoin { coin_offset, denom_pub_hash: denom.hash })
            .collect();
        let mut values = vec![ExchangeWithdrawValues::Rsa; denoms.len()];
        if !nks.is_empty() {
            let body = CsrMeltRequest { rms: secret.clone(), nks: nks.clone() };
            let answer: CsrMeltResponse =
                self.send(dice, Kind::CsrMelt, "csr-melt".into(), &body, Effect::Nothing).await?;
            for (coin, got) in nks.iter().zip(answer.ewvs) {
                values[coin.coin_offset as usize] = got.ewv;
            }
        }
        let coin_pub = coin.key_pub;
        let refresh = Refresh::new(coin, amount, secret, denoms, &values);
        let rc = refresh.rc;
        let effect = Effect::Melt { coin: coin_pub, rc, amount };
        let path = format!("coins/{coin_pub}/melt");
        let melted: MeltConfirmation = self.send(dice, Kind::Melt, path, &refresh.melt(), effect).await?;
        if dice.one_in(12) {
            return None;
        }
        let index = melted.noreveal_index as usize;
        let body = refresh.reveal(index);
        let coins = body
            .coin_evs
            .iter()
            .zip(&body.new_denoms_h)
            .map(|(planchet, denom)| (planchet.hash(denom), *denom));
        let effect = Effect::Reveal { coin: coin_pub, rc, coins: coins.collect() };
        let path = format!("refreshes/{rc}/reveal");
        let revealed: BlindSignatures = self.send(dice, Kind::Reveal, path, &body, effect).await?;
        let ev_sigs: Vec<_> = revealed.ev_sigs.into_iter().map(|signed| signed.ev_sig).collect();
        Some(self.hold(refresh.finish(index, &ev_sigs)))
    }

    /// Pays somebody with a purse: mostly the customer, whose reserve it fills. Sometimes two people ask for it at
    /// the same time, and sometimes nobody does.
    async fn pay_a_person(&self, dice: &mut Dice, coins: &[Held], reserve: &mut Reserve) {
        let purse = Purse::of(coins, self.lifetime);
        let (purse_pub, amount) = (purse.key_pub, purse.target);
        let effect = Effect::PurseCreate {
            purse: purse_pub,
            coins: coins.iter().map(|(coin, amount)| (coin.key_pub, *amount)).collect(),
            target: amount,
        };
        let path = format!("purses/{purse_pub}/create");
        let body = purse.create(coins, &self.base_url);
        if self.send::<Value>(dice, Kind::PurseCreate, path, &body, effect).await.is_none() || dice.one_in(8)
        {
            return;
        }
        let merge = |mut dice: Dice, key: EddsaPrivateKey, is_contested: bool| {
            let mut asked = self.asked.lock().unwrap();
            let sum = asked.entry(key.public_key()).or_default();
            *sum = plus(*sum, amount);
            drop(asked);
            let body = purse.merge(&key, &self.base_url);
            let effect =
                Effect::PurseMerge { purse: purse_pub, reserve: key.public_key(), amount, is_contested };
            let path = format!("purses/{purse_pub}/merge");
            async move { self.send::<Value>(&mut dice, Kind::PurseMerge, path, &body, effect).await.is_some() }
        };
        let is_contested = dice.one_in(3);
        let mine = merge(dice.child(), reserve.key.clone(), is_contested);
        let is_mine = match is_contested {
            true => tokio::join!(mine, merge(dice.child(), EddsaPrivateKey::generate(), true)).0,
            false => mine.await,
        };
        if is_mine {
            reserve.left = plus(reserve.left, amount);
        }
    }

    fn any_shop(&self, dice: &mut Dice) -> usize {
        usize::try_from(dice.below(self.shops.len() as u64)).unwrap()
    }

    /// Does something with a coin; returns coins to continue with.
    async fn spend(
        &self,
        dice: &mut Dice,
        held: Held,
        other: &mut Option<Held>,
        reserve: &mut Reserve,
    ) -> Vec<Held> {
        let (coin, left) = &held;
        let half = left.checked_div(2).unwrap();
        match dice.below(10) {
            0 | 1 => self.refresh(dice, held).await.unwrap_or_default(),
            2 => self.pay_and_return(dice, &held).await.into_iter().collect(),
            3 if *left == coin.denom.value => {
                self.pay_twice(dice, &held).await;
                Vec::new()
            }
            4 if other.is_some() => {
                let coins = vec![held, other.take().expect("it was there")];
                self.pay_together(dice, coins).await;
                Vec::new()
            }
            // A purse must not be worth nothing.
            7 | 8 if *left > coin.denom.fee_deposit => {
                let mut coins = vec![held];
                coins.extend(other.take());
                self.pay_a_person(dice, &coins, reserve).await;
                Vec::new()
            }
            5 | 6 if half >= coin.denom.fee_deposit => {
                let (shop, contract) = (self.any_shop(dice), Contract::due());
                let rest = (Arc::clone(coin), minus(*left, half));
                // If the amount left on a coin is uncertain, the coin is not used again.
                if self.pay(dice, coin, shop, &contract, half, (false, false)).await {
                    vec![rest]
                } else {
                    Vec::new()
                }
            }
            _ => {
                let (shop, contract) = (self.any_shop(dice), Contract::due());
                self.pay(dice, coin, shop, &contract, *left, (false, false)).await;
                Vec::new()
            }
        }
    }

    /// A customer who only withdraws and pays, until the load ends: mostly with several coins together.
    pub(crate) async fn payer(self: Arc<Self>, mut dice: Dice) {
        let mut reserve = self.reserve(&mut dice).await;
        let mut purse: Vec<Held> = Vec::new();
        while !self.is_over.load(Ordering::Acquire) {
            if purse.len() < 4 {
                purse.extend(self.withdraw(&mut dice, &mut reserve).await.unwrap_or_default());
                continue;
            }
            let coins = std::mem::take(&mut purse);
            if !dice.one_in(4) {
                self.pay_together(&mut dice, coins).await;
                continue;
            }
            for (coin, left) in coins {
                let (shop, contract) = (self.any_shop(&mut dice), Contract::due());
                self.pay(&mut dice, &coin, shop, &contract, left, (false, false)).await;
            }
        }
    }

    /// One customer, until the load ends.
    pub(crate) async fn customer(self: Arc<Self>, mut dice: Dice) {
        let mut reserve = self.reserve(&mut dice).await;
        let mut purse: Vec<Held> = Vec::new();
        while !self.is_over.load(Ordering::Acquire) {
            // Some reserves are left alone, and closed.
            if self.may_be_late() && dice.one_in(50) {
                reserve = self.reserve(&mut dice).await;
            }
            if purse.is_empty() || (purse.len() < 6 && dice.one_in(3)) {
                purse.extend(self.withdraw(&mut dice, &mut reserve).await.unwrap_or_default());
                continue;
            }
            let index = usize::try_from(dice.below(purse.len() as u64)).unwrap();
            let (coin, left) = purse.swap_remove(index);
            // Too little to pay with, or kept forever.
            if left < coin.denom.fee_deposit || left.is_zero() || dice.one_in(10) {
                continue;
            }
            let is_usable = |(coin, left): &Held| *left >= coin.denom.fee_deposit && !left.is_zero();
            let mut other = purse.iter().position(is_usable).map(|index| purse.swap_remove(index));
            purse.extend(self.spend(&mut dice, (coin, left), &mut other, &mut reserve).await);
            purse.extend(other);
        }
    }
}

/// The amounts of a coin according to the log: spent, and given back less the refund fees.
pub(crate) fn spent(
    effects: impl IntoIterator<Item = Effect>,
    coins: &HashMap<EddsaPublicKey, Arc<Coin>>,
) -> HashMap<EddsaPublicKey, (Money, Money)> {
    let mut sums: HashMap<EddsaPublicKey, (Money, Money)> = HashMap::new();
    for effect in effects {
        match effect {
            Effect::Deposit { coins, .. } | Effect::PurseCreate { coins, .. } => {
                for (coin, amount) in coins {
                    let sum = sums.entry(coin).or_default();
                    sum.0 = plus(sum.0, amount);
                }
            }
            Effect::Melt { coin, amount, .. } => {
                let sum = sums.entry(coin).or_default();
                sum.0 = plus(sum.0, amount);
            }
            Effect::Refund { coin, amount, .. } => {
                let fee = coins.get(&coin).map_or(Money::ZERO, |coin| coin.denom.fee_refund);
                let sum = sums.entry(coin).or_default();
                sum.1 = plus(sum.1, minus(amount, fee));
            }
            Effect::Nothing | Effect::Withdraw { .. } | Effect::Reveal { .. } | Effect::PurseMerge { .. } => {
            }
        }
    }
    sums
}

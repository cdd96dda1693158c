//! The load of an experiment: real wallet cores in memory that withdraw, pay, take change, return goods and send each other
//! money, and participants of a switch that send each other transfers.
//!
//! A generator is a process on one host. It reads orders from standard input, a line of JSON each, and writes a line each
//! second of what its wallets did. The controller adds up the lines of all generators.
//!
//! With a rate the loop is open: operations begin at planned times, whatever the services do, and their latency counts from
//! the planned time, also while no wallet was free (coordinated omission). Without a rate each wallet acts, thinks, and acts
//! again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use batzen_crypto::{EddsaPrivateKey, HashCode, WireSalt};
use batzen_http::client::correlation::{CORRELATION_ID, new_correlation_id};
use batzen_http::client::{Client, ClientOptions};
use batzen_http::{Drain, OwnNames};
use batzen_protocol::{Amount, Currency, Money, Timestamp};
use batzen_service::{OwnPages, PagesAddress};
use batzen_wallet::core::http::HttpRequest;
use batzen_wallet::transport::{ResponseFuture, Transport};
use batzen_wallet::{
    CoinWish, PaymentRequest, PeerRequest, RunUntil, Status, Wallet, WalletError, WalletOptions,
};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Notify, watch};

use super::metrics::LoadMetrics;
use super::tally::{Second, Tally};
use super::{lock, now_ms};
use crate::bench::load::random::{Numbers, Seed};
use crate::participants::{self, Behaviour, Fsps, FspsConfig};

/// Time that an operation may wait for others, such as for the money of a withdrawal.
const PATIENCE: Duration = Duration::from_secs(60);
/// The least time between two looks of a wallet at the exchange's keys after something failed.
const KEYS_PAUSE: Duration = Duration::from_secs(5);
/// The largest price in whole units.
const PRICE_MAX: u64 = 15;
/// A hundredth in units of a fraction.
const CENT: u32 = 1_000_000;
/// The largest transfer in hundredths.
const CENTS_MAX: u64 = 10_000;
/// Time that a transfer may take before it expires.
const EXPIRATION: Duration = Duration::from_secs(20);
/// The amount of a withdrawal in whole units.
const WITHDRAWAL: u64 = 60;
/// Operations after which a wallet is replaced by a new one, so that histories do not grow for ever.
const OPERATIONS_MAX: u32 = 200;
/// The most operations that wait for a wallet. Those beyond it are counted as missed.
const BACKLOG_MAX: usize = 100_000;

/// The services that a generator uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// The currency.
    pub(crate) currency: String,
    /// The services of wallets, if there is an exchange.
    pub(crate) cash: Option<Cash>,
    /// The switch, if there is one.
    pub(crate) clearing: Option<Clearing>,
}

/// The services that wallets use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cash {
    /// The exchange.
    pub(crate) exchange_url: String,
    /// The bank.
    pub(crate) bank_url: String,
    /// Address and port of each merchant backend. Without one, wallets deposit at the exchange.
    pub(crate) merchants: Vec<String>,
    /// The access token of all shops.
    pub(crate) merchant_token: String,
    /// The account of the merchant without a backend.
    pub(crate) merchant_payto: String,
}

/// The switch, and the participants that a generator plays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clearing {
    /// The address of the switch for transfers.
    pub(crate) switch: SocketAddr,
    /// The address at which the switch calls back.
    pub(crate) host: String,
    /// The names of the participants.
    pub(crate) names: Vec<String>,
    /// The ports of their callbacks.
    pub(crate) ports: Vec<u16>,
}

/// The weights of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mix {
    /// A purchase.
    pub(crate) pay: u32,
    /// A purchase that the shop gives back, where there are shops.
    pub(crate) refund: u32,
    /// Money sent to another wallet.
    pub(crate) send: u32,
    /// A transfer between two participants of the switch.
    #[serde(default)]
    pub(crate) transfer: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Self { pay: 1, ..Self::NOTHING }
    }
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Pay,
    Refund,
    Send,
    Transfer,
}

impl Mix {
    const NOTHING: Self = Self { pay: 0, refund: 0, send: 0, transfer: 0 };
    /// Transfers only.
    pub(crate) const TRANSFERS: Self = Self { transfer: 1, ..Self::NOTHING };

    fn weights(self) -> [(Act, u64); 4] {
        let all = [
            (Act::Pay, self.pay),
            (Act::Refund, self.refund),
            (Act::Send, self.send),
            (Act::Transfer, self.transfer),
        ];
        all.map(|(act, weight)| (act, u64::from(weight)))
    }

    fn draw(self, numbers: &mut Numbers) -> Act {
        let weights = self.weights();
        let mut drawn = numbers.below(weights.iter().map(|(_, weight)| weight).sum());
        for (act, weight) in weights {
            match drawn.checked_sub(weight) {
                Some(left) => drawn = left,
                None => return act,
            }
        }
        Act::Pay
    }
}

impl std::str::FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self::NOTHING;
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let weight: u32 = weight.trim().parse().map_err(|error| format!("{part}: {error}"))?;
            match name.trim() {
                "pay" => mix.pay = weight,
                "refund" => mix.refund = weight,
                "send" => mix.send = weight,
                "transfer" => mix.transfer = weight,
                other => {
                    return Err(format!(
                        "{other}: expected pay, refund, send or transfer, such as pay=90,refund=5,send=5"
                    ));
                }
            }
        }
        if mix == Self::NOTHING {
            return Err("at least one weight must be above zero".to_owned());
        }
        Ok(mix)
    }
}

/// The size and kind of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadPlan {
    /// Wallets.
    pub(crate) wallets: usize,
    /// Operations begun a second; without it each wallet acts again after its pause.
    pub(crate) rate_per_s: Option<f64>,
    /// The average pause of a wallet between two operations, in milliseconds.
    pub(crate) think_ms: u64,
    /// Weights of their operations.
    pub(crate) mix: Mix,
    /// The seed of all choices.
    pub(crate) seed: u64,
}

/// A line for a generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// The services to use from now on.
    Target(Target),
    /// The load from now on.
    Plan(LoadPlan),
}

tokio::task_local! {
    /// The correlation id of the operation that a wallet is at.
    static OPERATION: String;
}

/// Sends requests with the id of their operation, so that the logs of all services tell what came of it.
struct Tagged(Arc<dyn Transport>);

impl Transport for Tagged {
    fn send<'a>(&'a self, request: &'a HttpRequest) -> ResponseFuture<'a> {
        let tagged = HttpRequest { correlation_id: OPERATION.try_with(Clone::clone).ok(), ..request.clone() };
        Box::pin(async move { self.0.send(&tagged).await })
    }
}

/// Operations whose time has come.
#[derive(Default)]
struct Arrivals {
    due: Mutex<VecDeque<Instant>>,
    came: Notify,
    offered: AtomicU64,
    missed: AtomicU64,
}

impl Arrivals {
    fn add(&self, due: Instant) {
        self.offered.fetch_add(1, Relaxed);
        let mut queue = lock(&self.due);
        if queue.len() >= BACKLOG_MAX {
            self.missed.fetch_add(1, Relaxed);
            return;
        }
        queue.push_back(due);
        drop(queue);
        self.came.notify_one();
    }

    async fn next(&self) -> Instant {
        loop {
            let came = self.came.notified();
            if let Some(due) = lock(&self.due).pop_front() {
                return due;
            }
            came.await;
        }
    }

    fn clear(&self) {
        lock(&self.due).clear();
    }
}

/// The parts of a generator that its wallets use together.
struct Generator {
    target: watch::Receiver<Target>,
    currency: Currency,
    client: Client,
    tally: Mutex<Tally>,
    metrics: Arc<LoadMetrics>,
    arrivals: Arrivals,
    /// The wallets, for those who send each other money.
    wallets: Mutex<BTreeMap<usize, Wallet>>,
    /// The money that each could spend before its latest operation.
    held: Mutex<BTreeMap<usize, Money>>,
    /// The numbers of the wallets at work.
    active: Mutex<BTreeSet<usize>>,
    /// The participants of the switch, if there is one.
    fsps: Option<Fsps>,
    /// The merchant without a backend.
    merchant_priv: EddsaPrivateKey,
    wire_salt: WireSalt,
}

/// Options of a generator.
#[derive(Args, Clone, Debug)]
pub(crate) struct GeneratorArgs {
    /// Address of its /metrics, /health and /ready
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<PagesAddress>,
}

/// Runs a generator until its input ends.
///
/// # Errors
/// When the input has another form, or the address of its metrics cannot be used.
pub(crate) fn run(args: &GeneratorArgs) -> anyhow::Result<ExitCode> {
    batzen_cli_support::services::block_on(async {
        let metrics = Arc::new(LoadMetrics::new());
        let names = args
            .metrics
            .as_ref()
            .map_or_else(OwnNames::default, |at| OwnNames::default().and(&at.to_string()));
        // It is started again after a kill, when the system may still hold the address.
        let pages = OwnPages::serve(args.metrics.as_ref(), &metrics, &names, true, &Drain::new()).await?;
        let (orders, plans) = watch::channel(LoadPlan::default());
        let (targets, mut target) = watch::channel(None);
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                match serde_json::from_str(&line) {
                    Ok(Order::Target(target)) => {
                        let _ = targets.send(Some(target));
                    }
                    Ok(Order::Plan(plan)) => {
                        let _ = orders.send(plan);
                    }
                    Err(error) => tracing::error!(%error, "not an order"),
                }
            }
        });
        let first =
            target.wait_for(Option::is_some).await.context("the input ended before the target came")?.clone();
        let first = first.context("the target is there")?;
        let (latest, target_now) = watch::channel(first.clone());
        tokio::spawn(async move {
            while target.changed().await.is_ok() {
                if let Some(target) = target.borrow_and_update().clone() {
                    // Only the generator reads it.
                    let _ = latest.send(target);
                }
            }
            // The last one stays.
            std::future::pending::<()>().await;
        });
        let generator = Arc::new(Generator::new(&first, target_now, metrics)?);
        generate(generator, plans).await;
        drop(pages);
        Ok(ExitCode::SUCCESS)
    })
}

/// Follows the plans until no more can come.
async fn generate(generator: Arc<Generator>, mut plans: watch::Receiver<LoadPlan>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let arrivals = tokio::spawn(arrive(Arc::clone(&generator), plans.clone()));
    loop {
        tokio::select! {
            changed = plans.changed() => {
                if changed.is_err() {
                    break;
                }
                generator.arrivals.clear();
            }
            _ = second.tick() => {
                let line = serde_json::to_string(&generator.second()).unwrap_or_default();
                // A full disk must not end the load.
                let _ = writeln!(std::io::stdout(), "{line}");
            }
        }
        // Wallets above the number end by themselves after their operation, so one that is ending may be missing only later.
        let count = plans.borrow_and_update().wallets;
        for number in 0..count {
            if lock(&generator.active).insert(number) {
                tokio::spawn(live(Arc::clone(&generator), number, plans.clone()));
            }
        }
    }
    arrivals.abort();
}

/// Lets operations come at the planned rate.
async fn arrive(generator: Arc<Generator>, mut plans: watch::Receiver<LoadPlan>) {
    loop {
        let rate = plans.borrow_and_update().rate_per_s.filter(|rate| *rate > 0.0);
        let Some(rate) = rate else {
            if plans.changed().await.is_err() {
                return;
            }
            continue;
        };
        let begin = Instant::now();
        let mut begun: u32 = 0;
        while !plans.has_changed().unwrap_or(true) {
            let due = begin + Duration::from_secs_f64(f64::from(begun) / rate);
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {
                    generator.arrivals.add(due);
                    begun = begun.saturating_add(1);
                }
                changed = plans.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    plans.mark_changed();
                }
            }
        }
        if plans.has_changed().is_err() {
            return;
        }
    }
}

/// The life of a wallet: it acts until there are fewer wallets than its number.
async fn live(generator: Arc<Generator>, number: usize, mut plans: watch::Receiver<LoadPlan>) {
    let mut numbers = Seed::new(plans.borrow().seed).numbers(&format!("wallet {number}"));
    let mut wallet: Option<(Wallet, u32)> = None;
    let transport =
        WalletOptions::system().map(|options| Arc::new(Tagged(options.transport)) as Arc<dyn Transport>);
    let mut looked: Option<Instant> = None;
    loop {
        let plan = *plans.borrow_and_update();
        if number >= plan.wallets {
            break;
        }
        let begun = if plan.rate_per_s.is_some() {
            tokio::select! {
                due = generator.arrivals.next() => due,
                changed = plans.changed() => {
                    if changed.is_err() { break; }
                    continue;
                }
            }
        } else {
            Instant::now()
        };
        let act = plan.mix.draw(&mut numbers);
        let work = async {
            if act == Act::Transfer {
                return generator.transfer(begun, &mut numbers).await;
            }
            let transport = transport.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
            let wallet = with_uses(&generator, &mut wallet, number, transport)?;
            generator.act(wallet, number, act, begun, &mut numbers).await
        };
        let id = new_correlation_id();
        if let Err(error) = OPERATION.scope(id.clone(), work).await {
            generator.fail(&error, &id);
            if let Some((wallet, _)) = &wallet
                && may_be_revoked(&error)
                && looked.is_none_or(|at| at.elapsed() > KEYS_PAUSE)
            {
                looked = Some(Instant::now());
                // The next operation goes on with what is left.
                if let Err(error) = OPERATION.scope(id, generator.recover(wallet)).await {
                    tracing::debug!("{error:#}");
                }
            }
            // What failed once may fail at once again.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if plan.rate_per_s.is_none() && plan.think_ms > 0 {
            // Exponential pauses, as of people who do not know each other.
            let factor = -(1.0 - numbers.unit()).ln();
            let pause = Duration::from_millis(plan.think_ms).mul_f64(factor.min(10.0));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = plans.changed() => if changed.is_err() { break },
            }
        }
    }
    lock(&generator.wallets).remove(&number);
    lock(&generator.held).remove(&number);
    lock(&generator.active).remove(&number);
}

/// Plays the participants of a switch.
fn play(clearing: &Clearing, currency: &str) -> anyhow::Result<Fsps> {
    let mut config = FspsConfig::new(clearing.names.len(), clearing.switch, currency);
    config.names.clone_from(&clearing.names);
    config.ports.clone_from(&clearing.ports);
    config.callback_bind = clearing.host.parse().ok();
    config.callback_host = Some(clearing.host.clone());
    Fsps::start(config).context("the participants cannot listen")
}

/// The wallet for one more operation: a new one if there is none, or it has done enough.
fn with_uses<'a>(
    generator: &Generator,
    wallet: &'a mut Option<(Wallet, u32)>,
    number: usize,
    transport: &Arc<dyn batzen_wallet::transport::Transport>,
) -> anyhow::Result<&'a Wallet> {
    if wallet.as_ref().is_none_or(|(_, used)| *used >= OPERATIONS_MAX) {
        *wallet = Some((generator.new_wallet(number, transport)?, 0));
    }
    let (wallet, used) = wallet.as_mut().context("it was made")?;
    *used += 1;
    Ok(wallet)
}

/// Returns whether revoked coins may be why an operation failed: somebody has answered.
fn may_be_revoked(error: &anyhow::Error) -> bool {
    !matches!(error.downcast_ref::<WalletError>(), Some(WalletError::NoAnswer(_)))
}

impl Generator {
    fn new(
        first: &Target,
        target: watch::Receiver<Target>,
        metrics: Arc<LoadMetrics>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            currency: first.currency.parse().map_err(|error| anyhow::anyhow!("currency: {error}"))?,
            client: Client::new(&ClientOptions::default())?,
            tally: Mutex::default(),
            metrics,
            held: Mutex::default(),
            arrivals: Arrivals::default(),
            wallets: Mutex::default(),
            active: Mutex::default(),
            merchant_priv: EddsaPrivateKey::from_bytes(Seed::new(0).bytes("merchant", 0)),
            wire_salt: WireSalt::from_bytes(Seed::new(0).bytes::<32>("salt", 0)[..16].try_into()?),
            fsps: first.clearing.as_ref().map(|clearing| play(clearing, &first.currency)).transpose()?,
            target,
        })
    }

    fn new_wallet(&self, number: usize, transport: &Arc<dyn Transport>) -> anyhow::Result<Wallet> {
        let mut options = WalletOptions::system()?;
        options.transport = Arc::clone(transport);
        let wallet = Wallet::in_memory_with(options);
        lock(&self.wallets).insert(number, wallet.clone());
        Ok(wallet)
    }

    fn second(&self) -> Second {
        let tally = lock(&self.tally).take();
        let second = Second {
            time_ms: now_ms(),
            wallets: lock(&self.active).len(),
            offered: self.arrivals.offered.swap(0, Relaxed),
            backlog: lock(&self.arrivals.due).len(),
            missed: self.arrivals.missed.swap(0, Relaxed),
            ..tally
        };
        self.metrics.offered.add(second.offered);
        self.metrics.missed.add(second.missed);
        self.metrics.wallets.set(second.wallets as u64);
        self.metrics.waiting.set(second.backlog as u64);
        *lock(&self.metrics.money) =
            Money::checked_sum(lock(&self.held).values().copied()).unwrap_or(Money::MAX);
        second
    }

    fn fail(&self, error: &anyhow::Error, id: &str) {
        lock(&self.tally).fail(error, id);
        self.metrics.fail(error);
    }

    fn count(&self, kind: &'static str, size: (Money, usize), begun: Instant) {
        let took = begun.elapsed();
        lock(&self.tally).count(kind, size, took);
        self.metrics.count(kind, took);
    }

    fn cash(&self) -> anyhow::Result<Cash> {
        self.target.borrow().cash.clone().context("there is no exchange: use the mix transfer=1")
    }

    fn amount(&self, units: u64) -> anyhow::Result<Amount> {
        Ok(Money::new(units, 0)?.of(self.currency))
    }

    fn available(&self, wallet: &Wallet) -> anyhow::Result<Money> {
        let balances = wallet.balance()?;
        let found = balances.iter().find(|balance| balance.available.currency == self.currency);
        Ok(found.map_or(Money::ZERO, |balance| balance.available.money))
    }

    /// One operation of a wallet, with the withdrawal that it needs before and the change that it takes after.
    async fn act(
        &self,
        wallet: &Wallet,
        number: usize,
        act: Act,
        begun: Instant,
        numbers: &mut Numbers,
    ) -> anyhow::Result<()> {
        let price = self.amount(1 + numbers.below(PRICE_MAX))?;
        let mut begun = begun;
        let available = self.available(wallet)?;
        lock(&self.held).insert(number, available);
        if available < price.money {
            let withdrawal = Instant::now();
            self.withdraw(wallet, number).await.context("withdraw")?;
            // The time of a withdrawal is its own. The wait before it stays that of the operation.
            begun += withdrawal.elapsed();
        }
        if act == Act::Send {
            let receiver = self.another(number, numbers);
            self.send(wallet, receiver.as_ref(), price, begun).await.context("send")?;
        } else if self.cash()?.merchants.is_empty() {
            self.deposit(wallet, price, begun).await.context("pay")?;
        } else {
            self.buy(wallet, price, act == Act::Refund, begun, numbers).await.context("pay")?;
        }
        self.follow_up(wallet).await.context("change")
    }

    /// Does what the owner of a wallet does when paying fails: looks whether the exchange has revoked coins, and then gives
    /// up what was to be paid with them.
    async fn recover(&self, wallet: &Wallet) -> anyhow::Result<()> {
        let exchange = wallet.add_exchange(&self.cash()?.exchange_url).await?;
        if exchange.denoms.values().any(|denom| denom.revoked) {
            for purchase in wallet.pending().into_iter().filter(|pending| pending.kind == "payment") {
                // The shop may have been paid meanwhile, or not answer.
                let _ = wallet.abort_purchase(purchase.id).await;
            }
        }
        self.follow_up(wallet).await
    }

    /// Takes the change that is due, and gets the money of revoked coins back.
    async fn follow_up(&self, wallet: &Wallet) -> anyhow::Result<()> {
        let begun = Instant::now();
        let report = wallet.run(RunUntil::Idle).await?;
        let rows = report.finished.iter().map(|id| wallet.transaction(*id));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        for (kind, name) in [("change", "refresh"), ("recoup", "recoup")] {
            let done = rows.iter().filter(|row| row.kind == name && row.status == Status::Done);
            let coins: usize = done.clone().map(|row| row.coins).sum();
            if coins > 0 {
                self.count(kind, (Money::checked_sum(done.map(|row| row.amount.money))?, coins), begun);
            }
        }
        Ok(())
    }

    async fn withdraw(&self, wallet: &Wallet, number: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        let user = format!("wallet-{}-{number}", std::process::id());
        let cash = self.cash()?;
        let (bank, exchange) = (&cash.bank_url, &cash.exchange_url);
        let amount = self.amount(WITHDRAWAL)?;
        wallet.fresh_exchange(exchange).await?;
        wallet.accept_terms(exchange)?;
        let before = wallet.coins().len();
        let id = wallet
            .withdraw_from_bank(bank, &user, "laboratory", amount, Some(exchange), CoinWish::default())
            .await?;
        wallet.finish_within(id, PATIENCE).await?;
        self.count("withdraw", (amount.money, wallet.coins().len().saturating_sub(before)), begun);
        Ok(())
    }

    /// Pays a merchant without a backend: its coins are deposited.
    async fn deposit(&self, wallet: &Wallet, price: Amount, begun: Instant) -> anyhow::Result<()> {
        let deadline = Timestamp::from_system_time(std::time::SystemTime::now());
        let cash = self.cash()?;
        let receipt = wallet
            .pay(&PaymentRequest {
                exchange: Some(cash.exchange_url),
                amount: price,
                max_fee: Money::ZERO,
                merchant_pub: self.merchant_priv.public_key(),
                merchant_payto: cash.merchant_payto,
                wire_salt: self.wire_salt,
                h_contract_terms: HashCode::random(),
                timestamp: None,
                refund_deadline: deadline,
                wire_transfer_deadline: deadline,
                summary: "a measured article".to_owned(),
            })
            .await?;
        self.count("pay", (price.money, receipt.coins.len()), begun);
        Ok(())
    }

    async fn merchant_call(
        &self,
        method: http::Method,
        url: String,
        body: Option<serde_json::Value>,
    ) -> anyhow::Result<serde_json::Value> {
        let call = self.client.call(method, url);
        let call = call.header("authorization", &format!("Bearer {}", self.cash()?.merchant_token));
        let call = call.header(CORRELATION_ID, &OPERATION.try_with(Clone::clone).unwrap_or_default());
        let call = if let Some(body) = body { call.json(&body) } else { call };
        let reply = call.send().await?;
        reply.expect(&[200, 204])?;
        if reply.body.is_empty() {
            Ok(serde_json::Value::Null)
        } else {
            Ok(serde_json::from_slice(&reply.body)?)
        }
    }

    /// The shop of a purchase: the n-th gets 1/n of the share of the first.
    fn shop(&self, numbers: &mut Numbers) -> anyhow::Result<String> {
        let merchants = self.cash()?.merchants;
        let shares: Vec<f64> = (1..=merchants.len()).map(|rank| 1.0 / rank as f64).collect();
        let mut left = numbers.unit() * shares.iter().sum::<f64>();
        let drawn = shares.iter().position(|share| {
            left -= share;
            left < 0.0
        });
        merchants.into_iter().nth(drawn.unwrap_or(0)).context("there are no shops")
    }

    async fn buy(
        &self,
        wallet: &Wallet,
        price: Amount,
        is_refunded: bool,
        begun: Instant,
        numbers: &mut Numbers,
    ) -> anyhow::Result<()> {
        let orders = format!("http://{}/private/orders", self.shop(numbers)?);
        let order = json!({ "amount": price, "summary": "a measured article", "fulfillment_url": "https://shop.example/${ORDER_ID}" });
        let body = if is_refunded {
            json!({ "order": order, "refund_delay": { "d_us": 3_600_000_000_u64 } })
        } else {
            json!({ "order": order })
        };
        let made =
            self.merchant_call(http::Method::POST, orders.clone(), Some(body)).await.context("order")?;
        let id = made["order_id"].as_str().context("the order has no order_id")?;
        let path = format!("{orders}/{id}");
        let shown = self.merchant_call(http::Method::GET, path.clone(), None).await.context("order")?;
        let uri = shown["taler_pay_uri"].as_str().context("the order has no taler_pay_uri")?;
        let offer = wallet.inspect_purchase(uri).await?;
        let purchase = wallet.pay_purchase(&offer).await?;
        let coins = wallet.transaction(purchase)?.coins;
        self.count("pay", (price.money, coins), begun);
        if is_refunded {
            let begun = Instant::now();
            let body = json!({ "refund": price, "reason": "torn" });
            self.merchant_call(http::Method::POST, format!("{path}/refund"), Some(body))
                .await
                .context("refund")?;
            let ids = wallet.pick_up_refunds(purchase).await.context("refund")?;
            if ids.is_empty() {
                bail!("refund: the shop gives nothing back");
            }
            self.count("refund", (price.money, coins), begun);
        }
        Ok(())
    }

    /// A transfer between two participants of the switch, until its payer knows how it ended.
    async fn transfer(&self, begun: Instant, numbers: &mut Numbers) -> anyhow::Result<()> {
        let fsps = self.fsps.as_ref().context("transfer: the topology has no switch")?;
        let count = fsps.names().len();
        let payer = numbers.index(count);
        let cents = 1 + numbers.below(CENTS_MAX);
        let amount = Money::new(cents / 100, u32::try_from(cents % 100).expect("below 100") * CENT)?;
        let order = participants::Order {
            payer,
            payee: (payer + 1 + numbers.index(count - 1)) % count,
            cents,
            behaviour: Behaviour::Accept,
            expiration: EXPIRATION,
        };
        let notice = tokio::time::timeout(PATIENCE, fsps.transfer(order)).await;
        let notice = notice.context("transfer: nobody tells the payer how it ended")??;
        if !notice.is_committed() {
            bail!("transfer: {notice}");
        }
        self.count("transfer", (amount, 0), begun);
        Ok(())
    }

    /// Another wallet, or none if there is only one.
    fn another(&self, number: usize, numbers: &mut Numbers) -> Option<Wallet> {
        let wallets = lock(&self.wallets);
        let others: Vec<&Wallet> =
            wallets.iter().filter(|(other, _)| **other != number).map(|(_, wallet)| wallet).collect();
        others.get(numbers.index(others.len())).map(|wallet| (*wallet).clone())
    }

    async fn send(
        &self,
        wallet: &Wallet,
        receiver: Option<&Wallet>,
        price: Amount,
        begun: Instant,
    ) -> anyhow::Result<()> {
        let hour = batzen_protocol::Duration::from_secs(3600);
        let request = PeerRequest {
            exchange: Some(self.cash()?.exchange_url),
            amount: price,
            summary: "a present".to_owned(),
            expiration: wallet.now().saturating_add(hour),
            min_age: 0,
        };
        let id = wallet.send_money(&request).await?;
        let sent = wallet.transaction(id)?;
        let uri = sent.uri.context("money that was sent has a link")?;
        let receiver = receiver.unwrap_or(wallet);
        let offer = receiver.inspect_peer(&uri).await?;
        let accepted = receiver.accept_peer(&offer).await?;
        receiver.finish_within(accepted, PATIENCE).await?;
        self.count("send", (price.money, sent.coins), begun);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_weights() {
        assert_eq!("pay=9,send=1".parse(), Ok(Mix { pay: 9, send: 1, ..Mix::NOTHING }));
        let (mix, mut numbers) = ("pay=3,transfer=1".parse::<Mix>().unwrap(), Seed::new(7).numbers("mix"));
        let drawn: Vec<Act> = (0..400).map(|_| mix.draw(&mut numbers)).collect();
        let count = |act| drawn.iter().filter(|drawn| **drawn == act).count();
        assert_eq!(count(Act::Pay) + count(Act::Transfer), 400);
        assert!((60..140).contains(&count(Act::Transfer)), "a quarter of 400: {}", count(Act::Transfer));
        for wrong in ["", "pay=0", "steal=1", "pay=x"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn what_is_late_counts_from_its_planned_time() {
        let arrivals = Arrivals::default();
        let planned = Instant::now() - Duration::from_secs(5);
        arrivals.add(planned);
        assert_eq!(arrivals.next().await, planned);
        assert_eq!(arrivals.offered.load(Relaxed), 1);
    }
}

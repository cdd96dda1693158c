//! An exchange and a bank in memory, so that wallets can be tested without a network.
//!
//! They are as strict as real ones wherever the wallet could notice: they check and make signatures, requests
//! are idempotent, coins cannot be overspent, Clause-Schnorr nonces cannot be reused.

mod coins;
mod exchange;
mod merchant;
mod purses;
mod refunds;
mod tips;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use batzen_protocol::{Amount, Money, Timestamp};
use batzen_wallet::core::SeededEntropy;
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use batzen_wallet::transport::{Transport, TransportError};
use batzen_wallet::{Clock, Transaction, Wallet, WalletOptions};

pub use merchant::{FakeMerchant, MERCHANT, Shop};

pub use exchange::{BANK, EXCHANGE, FakeExchange, FakeTerms, SECOND};

pub fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

/// Checks that the effects of the history sum to the balance, with and without rows for refreshes.
pub fn check_history(wallet: &Wallet) {
    let balances = wallet.balance().unwrap();
    let Some(balance) = balances.first() else { return };
    for with_refreshes in [false, true] {
        let history = wallet.history(with_refreshes).unwrap();
        let sum: i128 = history.transactions.iter().map(effect).sum();
        assert_eq!(sum, balance.total.money.units() as i128, "{balance:#?}\n{:#?}", history.transactions);
        assert_eq!(history.totals[0].total, format!("+{}", balance.total));
    }
}

/// The exchange's books add up, and agree with the wallet's coin by coin.
pub fn check_books(world: &World, wallets: &[&Wallet]) {
    wallets.iter().for_each(|wallet| check_history(wallet));
    let exchange = world.exchange.lock().unwrap();
    exchange.check_conservation();
    let mut held = Money::ZERO;
    for wallet in wallets {
        for coin in wallet.coins() {
            let value = exchange.denom(&coin.h_denom_pub).unwrap().terms.value.money;
            held = held.checked_add(value).unwrap();
            let remaining = exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
            assert_eq!(remaining, coin.remaining, "coin {} in state {:?}", coin.coin_pub, coin.status);
        }
    }
    assert_eq!(held, exchange.issued, "every coin that was signed is in a wallet");
}

/// Checks that no value left the wallet without an operation.
pub fn check_no_loss(wallet: &Wallet) {
    for row in wallet.history(true).unwrap().transactions {
        assert!(!["expired", "spent-elsewhere"].contains(&row.kind), "{row:#?}");
    }
}

fn effect(row: &Transaction) -> i128 {
    let units = amount(row.effect.trim_start_matches(['+', '-'])).money.units() as i128;
    if row.effect.starts_with('-') { -units } else { units }
}

/// A clock that moves only on request.
pub struct TestClock(AtomicU64);

impl TestClock {
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

pub const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The wallet's environment.
#[derive(Clone)]
pub struct World {
    pub exchange: Arc<Mutex<FakeExchange>>,
    pub clock: Arc<TestClock>,
    pub network: Arc<Network>,
}

/// Answers a request instead of the exchange, or passes it on.
pub type Liar = Box<dyn FnMut(&HttpRequest, &mut FakeExchange, Timestamp) -> Option<HttpResponse> + Send>;

/// Faults of the network.
pub struct Network {
    exchange: Arc<Mutex<FakeExchange>>,
    clock: Arc<TestClock>,
    /// Counts down at every point where a process could be killed. At zero the request hangs forever.
    fuse: AtomicI64,
    pub points: AtomicU64,
    dead: tokio::sync::Notify,
    /// If not zero, every n-th answer is lost.
    pub lose_every: AtomicU64,
    pub sent: AtomicU64,
    /// A second exchange.
    pub second: Mutex<Option<Arc<Mutex<FakeExchange>>>>,
    /// A proxy between the wallet and the exchange.
    pub liar: Mutex<Option<Liar>>,
}

impl Network {
    /// Installs a proxy between the wallet and the exchange.
    pub fn lie(
        &self,
        liar: impl FnMut(&HttpRequest, &mut FakeExchange, Timestamp) -> Option<HttpResponse> + Send + 'static,
    ) {
        *self.liar.lock().unwrap() = Some(Box::new(liar));
    }

    /// Removes the proxy.
    pub fn be_honest(&self) {
        *self.liar.lock().unwrap() = None;
    }

    fn answer(&self, request: &HttpRequest) -> HttpResponse {
        let now = self.clock.now();
        if let Some(path) = request.url.strip_prefix(SECOND) {
            let request = HttpRequest { url: format!("{EXCHANGE}{path}"), ..request.clone() };
            let second = self.second.lock().unwrap().clone().expect("a second exchange");
            return second.lock().unwrap().handle(&request, now);
        }
        let mut exchange = self.exchange.lock().unwrap();
        let lie = match self.liar.lock().unwrap().as_mut() {
            Some(liar) => liar(request, &mut exchange, now),
            None => None,
        };
        lie.unwrap_or_else(|| exchange.handle(request, now))
    }

    /// Kills the process at the `n`-th point from now.
    pub fn set_fuse(&self, n: i64) {
        self.fuse.store(n, Ordering::SeqCst);
        self.points.store(0, Ordering::SeqCst);
    }

    /// Waits until the process is killed.
    pub async fn died(&self) {
        self.dead.notified().await;
    }

    async fn point(&self) {
        self.points.fetch_add(1, Ordering::SeqCst);
        if self.fuse.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.dead.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

impl Transport for Network {
    fn send<'a>(
        &'a self,
        request: &'a HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, TransportError>> + Send + 'a>> {
        Box::pin(async move {
            // Killed after the records were written and before anything was sent.
            self.point().await;
            let response = self.answer(request);
            // Killed after the request was done, with the answer lost.
            self.point().await;
            let sent = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
            let lose_every = self.lose_every.load(Ordering::SeqCst);
            if lose_every > 0 && sent.is_multiple_of(lose_every) {
                return Err(TransportError { url: request.url.clone(), reason: "lost".to_owned() });
            }
            Ok(response)
        })
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(FakeTerms::default())
    }

    pub fn with(terms: FakeTerms) -> Self {
        let clock = Arc::new(TestClock(AtomicU64::new(START.as_micros())));
        let exchange = Arc::new(Mutex::new(FakeExchange::new(START, terms)));
        let network = Arc::new(Network {
            exchange: Arc::clone(&exchange),
            clock: Arc::clone(&clock),
            fuse: AtomicI64::new(0),
            points: AtomicU64::new(0),
            dead: tokio::sync::Notify::new(),
            lose_every: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            second: Mutex::new(None),
            liar: Mutex::new(None),
        });
        Self { exchange, clock, network }
    }

    pub fn options(&self, seed: u64) -> WalletOptions {
        WalletOptions {
            transport: Arc::clone(&self.network) as Arc<dyn Transport>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Box::new(SeededEntropy::new(seed)),
            attempts: 3,
            first_backoff: Duration::from_millis(1),
        }
    }
}

/// An answer with another status.
pub fn with_status(answer: HttpResponse, status: u16) -> HttpResponse {
    HttpResponse { status, ..answer }
}

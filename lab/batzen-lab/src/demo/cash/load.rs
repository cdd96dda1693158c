//! `--load`: customers who keep paying while the demo serves, so that its dashboards show a busy exchange.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration as StdDuration;

use anyhow::Context;
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp};
use batzen_wallet::core::CoreError;
use batzen_wallet::{CipherChoice, Wallet, WalletError};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::merchant::{Merchant, deadline};
use super::world::World;

/// Customers at the same time. Each pays with one request at a time.
const CUSTOMERS_MAX: u64 = 8;
/// The sum that a customer withdraws when there is nothing left.
const WITHDRAWAL: &str = "20";
/// The prices, in turn. Some need change.
const PRICES: [&str; 5] = ["0.37", "1.2", "0.5", "0.83", "0.1"];
/// Time that a withdrawal may take.
const PATIENCE: StdDuration = StdDuration::from_secs(60);
/// The pause of a customer after a failure.
const PAUSE: StdDuration = StdDuration::from_secs(1);

/// Customers who pay at a steady rate, with wallets in memory.
pub(super) struct Load {
    shared: Arc<LoadState>,
    customers: JoinSet<()>,
}

struct LoadState {
    bank_url: String,
    exchange_url: String,
    currency: Currency,
    merchant: Merchant,
    pace: Mutex<Interval>,
    stop: AtomicBool,
    paid: AtomicU64,
    /// The number of accounts opened at the bank. Their bonus is limited, so customers open new ones.
    accounts: AtomicU64,
    run: u64,
}

impl Load {
    /// Starts customers who make `per_second` payments per second together.
    pub(crate) fn start(world: &World, per_second: u64) -> Self {
        let mut pace =
            interval(StdDuration::from_secs(1) / u32::try_from(per_second.max(1)).unwrap_or(u32::MAX));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shared = Arc::new(LoadState {
            bank_url: world.bank.base_url.clone(),
            exchange_url: world.exchange.base_url().to_owned(),
            currency: world.currency,
            merchant: world.merchant.clone(),
            pace: Mutex::new(pace),
            stop: AtomicBool::new(false),
            paid: AtomicU64::new(0),
            accounts: AtomicU64::new(0),
            run: world.run,
        });
        let mut customers = JoinSet::new();
        for _ in 0..per_second.clamp(1, CUSTOMERS_MAX) {
            customers.spawn(Arc::clone(&shared).customer());
        }
        Self { shared, customers }
    }

    /// Lets the customers finish their payments, and returns how many they made.
    pub(crate) async fn stop(mut self) -> u64 {
        self.shared.stop.store(true, Ordering::Release);
        while let Some(ended) = self.customers.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a customer ended abnormally");
            }
        }
        self.shared.paid.load(Ordering::Acquire)
    }
}

impl LoadState {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Pays until the load stops. After a failure the customer comes back with a new account and a new wallet.
    async fn customer(self: Arc<Self>) {
        while !self.stops() {
            if let Err(error) = self.shop().await {
                tracing::warn!(error = format!("{error:#}"), "a customer of the load starts again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn shop(&self) -> anyhow::Result<()> {
        let account = format!("customer-{}-{}", self.run, self.accounts.fetch_add(1, Ordering::AcqRel));
        let wallet = Wallet::in_memory()?;
        wallet.add_exchange(&self.exchange_url).await?;
        wallet.accept_terms(&self.exchange_url)?;
        for price in PRICES.iter().cycle() {
            self.pace.lock().await.tick().await;
            if self.stops() {
                return Ok(());
            }
            loop {
                let until = deadline(
                    Timestamp::from_system_time(std::time::SystemTime::now()),
                    Duration::from_secs(1),
                );
                let sale =
                    self.merchant.sell(&self.exchange_url, self.amount(price)?, "something small", until)?;
                match wallet.pay(&sale.request).await {
                    Ok(_) => break,
                    Err(WalletError::Core(CoreError::InsufficientFunds { .. })) => {
                        self.withdraw(&wallet, &account).await.context("withdraw")?;
                    }
                    Err(error) => return Err(error).context("pay"),
                }
            }
            self.paid.fetch_add(1, Ordering::AcqRel);
            // Makes change.
            wallet.run_pending().await.context("make change")?;
        }
        unreachable!("the prices repeat for ever")
    }

    async fn withdraw(&self, wallet: &Wallet, account: &str) -> anyhow::Result<()> {
        let amount = self.amount(WITHDRAWAL)?;
        let exchange = Some(self.exchange_url.as_str());
        let id = wallet
            .withdraw_from_bank(&self.bank_url, account, account, amount, exchange, CipherChoice::Rsa)
            .await?;
        Ok(wallet.finish_within(id, PATIENCE).await?)
    }

    fn amount(&self, text: &str) -> anyhow::Result<Amount> {
        Ok(text.parse::<Money>().context("amount")?.of(self.currency))
    }
}

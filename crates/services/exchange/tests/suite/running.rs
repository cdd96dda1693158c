//! Exchanges on 127.0.0.1 without workers, on a clock that only tests move, and with credits that need no bank.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_crypto::EddsaPublicKey;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::rules::{Command, Credit, Credits};
use batzen_exchange::service::{RunningExchange, StartOptions};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::AccountId;

/// 20 November 2026.
pub(crate) const START_SECS: u64 = 1_795_132_800;

/// A clock that moves only when the test moves it.
#[derive(Clone)]
pub(crate) struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub(crate) fn new() -> Self {
        Self::at(Timestamp::from_secs(START_SECS))
    }

    pub(crate) fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(time.as_micros())))
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn set(&self, time: Timestamp) {
        self.0.store(time.as_micros(), Ordering::SeqCst);
    }

    pub(crate) fn advance(&self, duration: Duration) {
        self.0.fetch_add(duration.as_micros(), Ordering::SeqCst);
    }

    pub(crate) fn set_back(&self, duration: Duration) {
        self.0.fetch_sub(duration.as_micros(), Ordering::SeqCst);
    }
}

/// Starts an exchange, which may not have its keys yet.
pub(crate) async fn start(config: ExchangeConfig, clock: &TestClock) -> RunningExchange {
    let now = clock.clone();
    let options =
        StartOptions { clock: Arc::new(move || now.now()), workers: false, ..StartOptions::default() };
    RunningExchange::start(config, options).await.unwrap()
}

/// Starts an exchange, and waits for its keys.
pub(crate) async fn start_ready(config: ExchangeConfig, clock: &TestClock) -> RunningExchange {
    let running = start(config, clock).await;
    running.ready().await.unwrap();
    running
}

/// A transfer to a reserve, as the bank reports it.
pub(crate) fn credit(
    bank_row: u64,
    reserve_pub: EddsaPublicKey,
    amount: Money,
    payto: &str,
    time: Timestamp,
) -> Credit {
    Credit { bank_row, reserve_pub, amount, payto_uri: payto.to_owned(), h_payto: h_payto(payto), time }
}

/// The booking of a transfer at an account of the exchange.
pub(crate) fn book(account: AccountId, credit: Credit) -> Command {
    let cursor = credit.bank_row;
    Command::Credits(Credits { account, credits: vec![credit], cursor, range: None })
}

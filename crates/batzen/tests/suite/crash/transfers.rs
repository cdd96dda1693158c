//! The load on a ledger, and what its event stream must contain afterwards.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) use batzen_ledger::testing::{problems, stream};
use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFlags, CreateTransferStatus, Ledger, LedgerError, Transfer, TransferFlags,
};
use batzen_ledger_service::net::{ClientOptions, LedgerClient};

use crate::common::{PATIENCE, Service};

pub(crate) const ACCOUNTS: u128 = 12;
/// Accounts with this id or a higher one must not be overdrawn.
const LIMITED_FROM: u128 = 9;

pub(crate) type Statuses = BTreeMap<u128, CreateTransferStatus>;

pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// One to `max` transfers. Every third is reserved, and the next batch posts every other reserved one.
pub(crate) fn batch(
    dice: &mut Dice,
    max: u64,
    next_id: &mut u128,
    reserved: &mut Vec<u128>,
) -> Vec<Transfer> {
    let mut events: Vec<Transfer> = Vec::new();
    for pending_id in reserved.drain(..) {
        *next_id += 1;
        let flags = TransferFlags::POST_PENDING_TRANSFER;
        events.push(Transfer { id: *next_id, pending_id, amount: AMOUNT_MAX, flags, ..Transfer::default() });
    }
    for _ in 0..=dice.below(max) {
        *next_id += 1;
        let debit = 1 + u128::from(dice.below(12));
        let credit = 1 + (debit + u128::from(dice.below(10))) % ACCOUNTS;
        let is_pending = dice.below(3) == 0;
        if is_pending && dice.below(2) == 0 {
            reserved.push(*next_id);
        }
        events.push(Transfer {
            id: *next_id,
            debit_account_id: debit,
            credit_account_id: credit,
            amount: u128::from(dice.below(1000)),
            timeout: if is_pending { 3600 } else { 0 },
            flags: if is_pending { TransferFlags::PENDING } else { TransferFlags::NONE },
            ledger: 1,
            code: 1,
            ..Transfer::default()
        });
    }
    events
}

/// Starts a ledger with its store in a directory.
pub(crate) fn start(dir: &Path, data: &str, port: u16) -> Service {
    let tcp = format!("127.0.0.1:{port}");
    Service::start(dir, "ledger", &["ledger", "serve", "--data", data, "--tcp", &tcp])
}

pub(crate) async fn connect(url: &str) -> LedgerClient {
    let options = ClientOptions {
        retry_for: PATIENCE,
        backoff_max: Duration::from_millis(50),
        ..ClientOptions::default()
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match LedgerClient::connect(url.parse().unwrap(), options.clone()).await {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Creates transfers, retrying as often as necessary.
pub(crate) async fn create(ledger: &LedgerClient, events: &[Transfer]) -> Vec<CreateTransferStatus> {
    loop {
        match ledger.create_transfers(events.to_vec()).await {
            Ok(results) => return results.iter().map(|result| result.status).collect(),
            // The outcome is unknown, or nothing was done: send the same again.
            Err(LedgerError::Unknown(_) | LedgerError::Busy(_)) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) async fn client(
    url: String,
    number: u64,
    seed: u64,
    ends: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
) -> Statuses {
    let ledger = connect(&url).await;
    let mut dice = Dice(seed ^ (number << 48));
    let (mut statuses, mut reserved) = (Statuses::new(), Vec::new());
    let mut next_id = u128::from(number + 1) << 64;
    while !ends.load(Ordering::SeqCst) {
        let events = batch(&mut dice, 50, &mut next_id, &mut reserved);
        let results = create(&ledger, &events).await;
        statuses.extend(events.iter().zip(results).map(|(event, status)| (event.id, status)));
        answers.fetch_add(1, Ordering::Relaxed);
    }
    statuses
}

/// The accounts of the load.
pub(crate) fn accounts() -> Vec<Account> {
    let account = |id| {
        let limit = AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS;
        let flags = if id >= LIMITED_FROM { limit } else { AccountFlags::NONE };
        Account { id, ledger: 1, code: 1, flags, ..Account::default() }
    };
    (1..=ACCOUNTS).map(account).collect()
}

//! `kill -9` on the ledger under load, again and again, and the proof that it forgets nothing.
//!
//! The ledger is a real process of the real program. This process is its clients: each keeps sending until it is answered, and
//! writes down every answer. The ledger is killed at random moments and started again. Then it is proven that
//!
//! 1. every transfer that was acknowledged is in the event stream exactly once, and what was refused is not there;
//! 2. timestamps only grow, no limit was ever broken, the balances are those of the last events, debits equal credits;
//! 3. `batzen ledger verify` re-executes the whole log without a difference, `backup` and `restore` give the same digest;
//! 4. the proof can fail: a transfer that nobody made, and a stream without its last event are found.
//!
//! `BATZEN_SOAK_CYCLES` sets the number of kills (default 5; `make soak` does 50).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFlags, BATCH_EVENTS_MAX, ChangeEvent, ChangeFilter, ChangeKind,
    CreateTransferStatus, Ledger, LedgerError, Transfer, TransferFlags,
};
use batzen_ledger_net::{ClientOptions, LedgerClient};
use common::{PATIENCE, Service, free_port, run, stderr, stdout};
use serde_json::Value;

const ACCOUNTS: u128 = 12;
/// Accounts from here on must not be overdrawn.
const LIMITED_FROM: u128 = 9;
const CLIENTS: u64 = 8;

type Told = BTreeMap<u128, CreateTransferStatus>;

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// One to fifty transfers; every third is reserved, and every other of these posted by the next batch.
fn batch(dice: &mut Dice, next_id: &mut u128, reserved: &mut Vec<u128>) -> Vec<Transfer> {
    let mut events: Vec<Transfer> = Vec::new();
    for pending_id in reserved.drain(..) {
        *next_id += 1;
        let flags = TransferFlags::POST_PENDING_TRANSFER;
        events.push(Transfer { id: *next_id, pending_id, amount: AMOUNT_MAX, flags, ..Transfer::default() });
    }
    for _ in 0..=dice.below(50) {
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

async fn connect(url: &str) -> LedgerClient {
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

async fn client(url: String, number: u64, seed: u64, ends: Arc<AtomicBool>, answers: Arc<AtomicU64>) -> Told {
    let ledger = connect(&url).await;
    let mut dice = Dice(seed ^ (number << 48));
    let (mut told, mut reserved) = (Told::new(), Vec::new());
    let mut next_id = u128::from(number + 1) << 64;
    while !ends.load(Ordering::SeqCst) {
        let events = batch(&mut dice, &mut next_id, &mut reserved);
        let results = loop {
            match ledger.create_transfers(events.clone()).await {
                Ok(results) => break results,
                // Nobody knows, or nothing was done: the same again.
                Err(LedgerError::Unknown(_) | LedgerError::Busy(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        told.extend(events.iter().zip(&results).map(|(event, result)| (event.id, result.status)));
        answers.fetch_add(1, Ordering::Relaxed);
    }
    told
}

async fn stream(ledger: &dyn Ledger) -> Vec<ChangeEvent> {
    let limit = u32::try_from(BATCH_EVENTS_MAX).unwrap();
    let mut out: Vec<ChangeEvent> = Vec::new();
    loop {
        let timestamp_min = out.last().map_or(0, |event| event.timestamp + 1);
        let page =
            ledger.get_change_events(ChangeFilter { timestamp_min, timestamp_max: 0, limit }).await.unwrap();
        if page.is_empty() {
            return out;
        }
        out.extend(page);
    }
}

/// What is wrong, if anything.
fn problems(told: &Told, events: &[ChangeEvent], accounts: &[Account]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    let mut balances: BTreeMap<u128, Account> = BTreeMap::new();
    let mut last = 0;
    for event in events {
        if event.timestamp <= last {
            problems.push(format!("{} is out of order", event.timestamp));
        }
        last = event.timestamp;
        if event.kind != ChangeKind::TwoPhaseExpired && !seen.insert(event.transfer.id) {
            problems.push(format!("{:x} is there twice", event.transfer.id));
        }
        for account in [event.debit_account, event.credit_account] {
            let is_limited = account.flags.contains(AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS);
            if is_limited && account.debits_pending + account.debits_posted > account.credits_posted {
                problems.push(format!("account {} is overdrawn at {}", account.id, event.timestamp));
            }
            balances.insert(account.id, account);
        }
    }
    for (id, status) in told {
        if status.stands() != seen.contains(id) {
            problems.push(format!("{id:x} was answered {status}; in the stream: {}", seen.contains(id)));
        }
    }
    problems.extend(seen.iter().filter(|id| !told.contains_key(id)).map(|id| format!("nobody made {id:x}")));
    for account in accounts {
        if balances.get(&account.id).is_some_and(|shown| shown != account) {
            problems.push(format!("account {} is not as its last event says", account.id));
        }
    }
    let sum = |of: fn(&Account) -> u128| accounts.iter().map(of).sum::<u128>();
    if sum(|account| account.debits_posted) != sum(|account| account.credits_posted)
        || sum(|account| account.debits_pending) != sum(|account| account.credits_pending)
    {
        problems.push("debits are not credits".to_owned());
    }
    problems
}

fn facts(words: &[&str]) -> Value {
    let output = run(words);
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn start(dir: &Path, data: &str, port: u16) -> Service {
    let tcp = format!("127.0.0.1:{port}");
    Service::start(dir, "ledger", &["ledger", "serve", "--data", data, "--tcp", &tcp])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_of_the_ledger_under_load_forgets_nothing() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let cycles = number("BATZEN_SOAK_CYCLES").unwrap_or(5);
    let seed = number("BATZEN_SOAK_SEED").unwrap_or_else(|| {
        let mut bytes = [0; 8];
        batzen_crypto::fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    });
    println!("BATZEN_SOAK_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("ledger");
    let data = data.to_str().unwrap();
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let mut service = start(dir.path(), data, port);
    let control = connect(&url).await;
    let accounts = (1..=ACCOUNTS).map(|id| {
        let limit = AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS;
        let flags = if id >= LIMITED_FROM { limit } else { AccountFlags::NONE };
        Account { id, ledger: 1, code: 1, flags, ..Account::default() }
    });
    control.create_accounts(accounts.collect()).await.unwrap();
    let (ends, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            tokio::spawn(client(url.clone(), number, seed, Arc::clone(&ends), Arc::clone(&answers)))
        })
        .collect();
    let mut dice = Dice(seed);
    for cycle in 1..=cycles {
        let before = answers.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        // A ledger that comes up slowly is killed only once it works again.
        while answers.load(Ordering::Relaxed) == before {
            service.assert_runs();
            assert!(Instant::now() < deadline, "the ledger does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let for_ms = 10 + dice.below(800);
        tokio::time::sleep(Duration::from_millis(for_ms)).await;
        service.assert_runs();
        service.kill_9();
        let answered = answers.load(Ordering::Relaxed) - before;
        println!("cycle {cycle}: killed after {for_ms} ms and {answered} answers");
        service = start(dir.path(), data, port);
    }
    ends.store(true, Ordering::SeqCst);
    let mut told = Told::new();
    for client in clients {
        told.extend(client.await.unwrap());
    }
    let events = stream(&control).await;
    let accounts = control.lookup_accounts((1..=ACCOUNTS).collect()).await.unwrap();
    let found = problems(&told, &events, &accounts);
    assert!(found.is_empty(), "{} problems, the first: {:#?}", found.len(), &found[..found.len().min(20)]);
    // The proof can fail.
    let mut claims = told.clone();
    claims.insert(77, CreateTransferStatus::Created);
    assert_eq!(problems(&claims, &events, &accounts).len(), 1);
    assert!(!problems(&told, &events[..events.len() - 1], &accounts).is_empty());

    let standing = told.values().filter(|status| status.stands()).count() as u64;
    service.kill_9();
    let verified = facts(&["ledger", "verify", data, "--json"]);
    assert_eq!(verified["transfers"], standing);
    let (backup, restored) = (dir.path().join("backup"), dir.path().join("restored"));
    let (backup, restored) = (backup.to_str().unwrap(), restored.to_str().unwrap());
    let copied = facts(&["ledger", "backup", data, backup, "--json"]);
    let again = facts(&["ledger", "restore", backup, restored, "--json"]);
    let inspected = facts(&["ledger", "inspect", restored, "--json"]);
    for other in [&copied, &again, &inspected] {
        assert_eq!(other["digest"], verified["digest"]);
        assert_eq!(other["transfers"], standing);
    }
    let repeated = told.values().filter(|status| **status == CreateTransferStatus::Exists).count();
    println!(
        "{cycles} kills; {} transfers answered, {standing} stand, {repeated} of them first answered after a repetition; \
         {} events; lost 0, twice 0; the log verifies",
        told.len(),
        events.len(),
    );
}

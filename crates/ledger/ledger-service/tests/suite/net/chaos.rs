//! Conservation of money over a faulty network: many clients over a line that disconnects, loses and flips
//! bits. Every acknowledged transfer is in the event stream exactly once, the stream contains nothing else,
//! and the books balance.
//!
//! `BATZEN_SOAK_CYCLES` sets the length (default 5; `make soak` uses 50), `BATZEN_SOAK_SEED` repeats a run's
//! choices.

use crate::net::common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::testing::{problems, stream};
use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFlags, ChangeKind, CreateTransferStatus, Ledger, LedgerError, MemoryLedger,
    Transfer, TransferFlags,
};
use batzen_ledger_service::net::{ClientOptions, LedgerClient, NetOptions};
use common::{Dice, Proxy, Served, account, transfer};

const ACCOUNTS: u128 = 8;
const CLIENTS: u64 = 6;
/// Accounts with this id or a higher one must not be overdrawn.
const LIMITED_FROM: u128 = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// The next request of a client: singles, pending transfers with posts and voids, chains.
fn batch(dice: &mut Dice, next_id: &mut u128, open: &mut Vec<u128>) -> Vec<Transfer> {
    let mut id = || {
        *next_id += 1;
        *next_id
    };
    let count = 1 + dice.below(20);
    let mut events = Vec::new();
    for _ in 0..count {
        let debit = 1 + u128::from(dice.below(8));
        let credit = 1 + (debit + u128::from(dice.below(6))) % ACCOUNTS;
        let event = transfer(id(), debit, credit, u128::from(dice.below(100)));
        match dice.below(10) {
            0..=4 => events.push(event),
            5 | 6 => {
                open.push(event.id);
                events.push(Transfer { flags: TransferFlags::PENDING, ..event });
            }
            7 if !open.is_empty() => {
                let pending_id = open.swap_remove(usize::try_from(dice.below(open.len() as u64)).unwrap());
                let flags = TransferFlags::POST_PENDING_TRANSFER;
                events.push(Transfer {
                    id: event.id,
                    pending_id,
                    amount: AMOUNT_MAX,
                    flags,
                    ..Transfer::default()
                });
            }
            8 if !open.is_empty() => {
                let pending_id = open.swap_remove(usize::try_from(dice.below(open.len() as u64)).unwrap());
                let flags = TransferFlags::VOID_PENDING_TRANSFER;
                events.push(Transfer { id: event.id, pending_id, flags, ..Transfer::default() });
            }
            _ => {
                events.push(Transfer { flags: TransferFlags::LINKED, ..event });
                events.push(transfer(id(), debit, credit, 1));
            }
        }
    }
    events
}

/// One client: repeats each request until it is answered, and records the answers.
async fn client(
    url: String,
    number: u64,
    seed: u64,
    until: tokio::sync::watch::Receiver<bool>,
) -> BTreeMap<u128, CreateTransferStatus> {
    let mut dice = Dice::new(seed ^ (number << 32));
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(500),
        answer_timeout: Duration::from_millis(1500),
        retry_for: Duration::from_secs(3),
        backoff_max: Duration::from_millis(20),
        ..ClientOptions::default()
    };
    let ledger = loop {
        match LedgerClient::connect(url.parse().unwrap(), options.clone()).await {
            Ok(ledger) => break ledger,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let mut acknowledged = BTreeMap::new();
    let mut next_id = u128::from(number + 1) << 64;
    let mut open = Vec::new();
    while !*until.borrow() {
        let events = batch(&mut dice, &mut next_id, &mut open);
        let results = loop {
            match ledger.create_transfers(events.clone()).await {
                Ok(results) => break results,
                Err(LedgerError::Unknown(_) | LedgerError::Busy(_) | LedgerError::Refused(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        let mut chain_exists = false;
        for (event, result) in events.iter().zip(&results) {
            // In a repeated chain the first member exists, which fails the others: the chain was executed.
            let status = if chain_exists { CreateTransferStatus::Exists } else { result.status };
            acknowledged.insert(event.id, status);
            chain_exists =
                event.flags.contains(TransferFlags::LINKED) && status == CreateTransferStatus::Exists;
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_and_flipped_bits_conserve_money() {
    let cycles = number("BATZEN_SOAK_CYCLES").unwrap_or(5);
    let seed = number("BATZEN_SOAK_SEED").unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_secs() ^ u64::from(since.subsec_nanos())
    });
    println!("BATZEN_SOAK_SEED={seed}");
    let memory = Arc::new(MemoryLedger::with_system_clock());
    let served = Served::start(Arc::clone(&memory) as Arc<dyn Ledger>, NetOptions::default()).await;
    let accounts: Vec<Account> = (1..=ACCOUNTS)
        .map(|id| match id {
            LIMITED_FROM.. => Account { flags: AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS, ..account(id) },
            _ => account(id),
        })
        .collect();
    memory.create_accounts(accounts).await.unwrap();
    let proxy = Proxy::start_lossy(&served.url, seed).await;
    let (end, until) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(proxy.url.clone(), number, seed, until.clone())))
        .collect();
    let mut dice = Dice::new(seed);
    // A busy machine sends little meanwhile, so there may be more cycles.
    let (mut cycle, begun) = (0, std::time::Instant::now());
    while cycle < cycles || (memory.counts().transfers < 400 && begun.elapsed() < Duration::from_secs(120)) {
        tokio::time::sleep(Duration::from_millis(100 + dice.below(300))).await;
        proxy.cut();
        cycle += 1;
    }
    end.send_replace(true);
    let mut acknowledged = BTreeMap::new();
    for client in clients {
        acknowledged.extend(client.await.unwrap());
    }
    let events = stream(memory.as_ref()).await;
    let accounts = memory.lookup_accounts((1..=ACCOUNTS).collect()).await.unwrap();
    let found = problems(&acknowledged, &events, &accounts);
    assert!(found.is_empty(), "{} problems, the first: {:#?}", found.len(), &found[..found.len().min(10)]);
    memory.verify().unwrap();
    let standing = acknowledged.values().filter(|status| status.stands()).count();
    assert!(standing > 100, "only {standing} transfers: the line is too bad");
    assert!(
        acknowledged.values().any(|status| *status == CreateTransferStatus::Exists),
        "no answer was ever lost"
    );
    println!(
        "{} transfers acknowledged, {standing} stand, {} events, {} faults",
        acknowledged.len(),
        events.len(),
        proxy.faults()
    );

    // Shows that the check can fail.
    let mut false_claim = acknowledged.clone();
    false_claim.insert(77, CreateTransferStatus::Created);
    assert_eq!(problems(&false_claim, &events, &accounts).len(), 1);
    assert!(!problems(&acknowledged, &events[..events.len() - 1], &accounts).is_empty());
    let mut twice = events.clone();
    let mut again = *events.last().unwrap();
    again.timestamp += 1;
    twice.push(again);
    assert!(
        !problems(&acknowledged, &twice, &accounts).is_empty() || again.kind == ChangeKind::TwoPhaseExpired
    );
    served.stop().await;
}

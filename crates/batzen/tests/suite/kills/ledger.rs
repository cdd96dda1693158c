//! The ledger under the load of its clients.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batzen_ledger::{CreateTransferStatus, Ledger, Transfer};
use batzen_ledger_service::net::LedgerClient;

use crate::common::{PATIENCE, free_port, must_json};
use crate::crash::customers;
use crate::crash::transfers::{
    ACCOUNTS, Dice, Statuses, accounts, batch, connect, create, problems, start, stream,
};
use crate::kills::kill_point::kill_at_random_point;
use crate::kills::score::Score;

/// The number of kills before the complete proof and a new ledger.
const ROUND: u64 = 250;
const AUDIT_CYCLES: u64 = 20;
const CLIENTS: u64 = 4;
/// The most transfers in a batch, not counting those that post earlier ones.
const BATCH: u64 = 8;
/// The pause of a client between two batches, which keeps the event stream of a round short.
const PAUSE: Duration = Duration::from_millis(4);

/// The number of batches audited together.
const AUDIT_BATCHES: usize = 16;
/// Clients wait while more batches than this have not been audited.
const UNSEEN_MAX: usize = 150;

/// A batch and its answers.
type Answered = (Vec<Transfer>, Vec<CreateTransferStatus>);

/// The answers that clients received.
#[derive(Default)]
struct Log {
    /// The number of transfers in all batches below.
    count: AtomicU64,
    /// Batches not yet audited, in the order of the answers.
    waiting: Mutex<VecDeque<Answered>>,
    statuses: Mutex<Statuses>,
    ends: AtomicBool,
}

async fn client(url: String, number: u64, seed: u64, log: Arc<Log>) {
    let ledger = connect(&url).await;
    let (mut dice, mut reserved) = (Dice(seed), Vec::new());
    let mut next_id = u128::from(number + 1) << 64;
    while !log.ends.load(Ordering::SeqCst) {
        if log.waiting.lock().unwrap().len() > UNSEEN_MAX {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let events = batch(&mut dice, BATCH, &mut next_id, &mut reserved);
        let statuses = create(&ledger, &events).await;
        log.statuses
            .lock()
            .unwrap()
            .extend(events.iter().zip(&statuses).map(|(event, status)| (event.id, *status)));
        let count = events.len() as u64;
        log.waiting.lock().unwrap().push_back((events, statuses));
        log.count.fetch_add(count, Ordering::SeqCst);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Looks for the transfers of a batch, and repeats the batch. Returns any problem.
async fn audit(ledger: &LedgerClient, (events, statuses): &Answered) -> Vec<String> {
    let ids: Vec<u128> = events.iter().map(|event| event.id).collect();
    let found = loop {
        match ledger.lookup_transfers(ids.clone()).await {
            Ok(found) => break found,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let mut problems = Vec::new();
    for (event, status) in events.iter().zip(statuses) {
        let shown = found.iter().filter(|transfer| transfer.id == event.id).count();
        if shown != usize::from(status.stands()) {
            let what = if shown == 0 { "lost" } else { "made though refused" };
            problems.push(format!("transfer {:x} was answered {status} and then {what}", event.id));
        }
    }
    let again = create(ledger, events).await;
    for ((event, status), again) in events.iter().zip(statuses).zip(again) {
        let is_same = if status.stands() { again == CreateTransferStatus::Exists } else { !again.stands() };
        if !is_same {
            problems.push(format!("transfer {:x} was answered {status}, repeated {again}", event.id));
        }
    }
    problems
}

pub(super) async fn round(score: &Arc<Score>, dice: &mut customers::Dice, is_first: bool) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("ledger");
    let data = data.to_str().unwrap();
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let mut service = start(dir.path(), data, port);
    let control = connect(&url).await;
    control.create_accounts(accounts()).await.unwrap();
    let log = Arc::new(Log::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(url.clone(), number, dice.below(u64::MAX), Arc::clone(&log))))
        .collect();
    // Batches that were answered before the last kill and have not been audited yet.
    let due = Arc::new(AtomicU64::new(0));
    let auditor = tokio::spawn({
        let (score, log, due, url) = (Arc::clone(score), Arc::clone(&log), Arc::clone(&due), url.clone());
        async move {
            let ledger = connect(&url).await;
            while !(log.ends.load(Ordering::SeqCst) && due.load(Ordering::SeqCst) == 0) {
                if due.load(Ordering::SeqCst) == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                }
                let count = usize::try_from(due.load(Ordering::SeqCst)).unwrap().min(AUDIT_BATCHES);
                let (events, statuses): (Vec<_>, Vec<_>) = log.waiting.lock().unwrap().drain(..count).unzip();
                let answered = (events.concat(), statuses.concat());
                let found = audit(&ledger, &answered).await;
                score.repeated(answered.0.len() as u64, &found);
                due.fetch_sub(count as u64, Ordering::SeqCst);
            }
        }
    });
    for cycle in 1..=score.left().min(ROUND) {
        let report = tokio::task::block_in_place(|| {
            kill_at_random_point(&mut service, dice, &|| log.count.load(Ordering::SeqCst))
        });
        if due.load(Ordering::SeqCst) == 0 {
            due.store(log.waiting.lock().unwrap().len() as u64, Ordering::SeqCst);
        }
        service = start(dir.path(), data, port);
        score.add_kill(report);
        assert!(!auditor.is_finished(), "the auditor has found something");
        if cycle % AUDIT_CYCLES == 0 {
            let deadline = Instant::now() + PATIENCE;
            while due.load(Ordering::SeqCst) > 0 && !auditor.is_finished() {
                assert!(Instant::now() < deadline, "the auditor gets no answers");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    log.ends.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    auditor.await.unwrap();
    let waiting = std::mem::take(&mut *log.waiting.lock().unwrap());
    for answered in waiting {
        let found = audit(&control, &answered).await;
        score.repeated(answered.0.len() as u64, &found);
    }
    let statuses = std::mem::take(&mut *log.statuses.lock().unwrap());
    score.acknowledged(statuses.len() as u64);

    let events = stream(&control).await;
    let accounts = control.lookup_accounts((1..=ACCOUNTS).collect()).await.unwrap();
    let mut found = problems(&statuses, &events, &accounts);
    if is_first {
        let mut claims = statuses.clone();
        claims.insert(77, CreateTransferStatus::Created);
        assert_eq!(
            problems(&claims, &events, &accounts).len(),
            found.len() + 1,
            "a false claim was not found"
        );
        let never = Transfer { id: 78, ledger: 1, code: 1, ..Transfer::default() };
        let planted = audit(&control, &(vec![never], vec![CreateTransferStatus::Created])).await;
        assert_eq!(planted.len(), 2, "a transfer that never was: {planted:?}");
    }
    service.kill_9();
    let verified = must_json(&["ledger", "verify", data, "--json"]);
    let standing = statuses.values().filter(|status| status.stands()).count() as u64;
    if verified["transfers"] != standing {
        found.push(format!("{standing} transfers stand, {} in the log", verified["transfers"]));
    }
    score.proven(&found);
}

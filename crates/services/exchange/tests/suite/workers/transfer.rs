//! Executing transfers: each exactly once, whatever happens to the answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use batzen_exchange::reads::read;
use batzen_exchange::rules::{Command, TransferRetry};
use batzen_exchange::workers::{WorkerError, WorkerOptions, transfer};
use batzen_tables::exchange::Prepared;

use crate::workers::chaos::killed_when;
use crate::workers::proxy::Action;
use crate::workers::world::{World, m, merchant, payto};

impl World {
    /// Prepares this many transfers of 0.89 to accounts t0, t1, …
    async fn prepare(&self, count: usize) {
        self.prepare_more(count).await;
        assert_eq!(self.open_transfers(), count);
    }

    async fn prepare_more(&self, count: usize) {
        for n in 0..count {
            self.deposit(&format!("m{n}"), &format!("t{n}"), &["1"], 0).await;
        }
        self.aggregate().await.unwrap();
    }

    async fn assert_paid(&self, count: usize) {
        let mut expected: Vec<_> = (0..count).map(|n| (format!("t{n}"), m("0.89"))).collect();
        expected.sort();
        assert_eq!(self.paid().await, expected);
    }
}

fn status(status: u16, code: u32) -> Action {
    Action::Answer(status, format!(r#"{{"code":{code},"hint":"scripted"}}"#))
}

#[tokio::test]
async fn transfers_are_executed_after_an_outage_of_the_bank() {
    let w = World::new().await;
    w.prepare(5).await;
    let mut left = 23;
    w.proxy.script(move |_, _| {
        left -= 1;
        match left {
            ..=0 => Action::Forward,
            _ if left % 4 == 0 => status(503, 0),
            _ if left % 4 == 1 => status(401, 5105),
            _ if left % 4 == 2 => Action::Refuse,
            _ => status(500, 5110),
        }
    });
    assert_eq!(w.transfer().await.unwrap().done, 5);
    w.assert_paid(5).await;
    assert_eq!(w.app().core.metrics.workers.transfer_failures.get(), 22);
    w.end().await;
}

#[tokio::test]
async fn a_bank_that_executes_and_drops_the_connection_pays_once() {
    let w = World::new().await;
    w.prepare(70).await;
    // The answer to each is lost three times; the last request even arrives twice.
    let mut asked: HashMap<String, u32> = HashMap::new();
    w.proxy.script(move |_, body| {
        let times = asked.entry(body.to_owned()).or_default();
        *times += 1;
        if *times <= 3 { Action::Lose } else { Action::Repeat }
    });
    assert_eq!(w.transfer().await.unwrap().done, 70);
    w.assert_paid(70).await;
    w.end().await;
}

#[tokio::test]
async fn transfers_refused_for_good_are_marked_and_do_not_block_others() {
    let w = World::new().await;
    w.prepare(6).await;
    w.proxy.script(|_, body| match body {
        _ if body.contains("/t0?") => status(404, 5106),
        _ if body.contains("/t1?") => status(409, 5112),
        _ if body.contains("/t2?") => status(400, 24),
        _ => Action::Forward,
    });
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside, progress.deferred), (3, 3, 0));
    assert_eq!(w.open_transfers(), 0, "they are not tried again");
    let failed: Vec<_> = w
        .app()
        .core
        .store
        .all::<Prepared>()
        .unwrap()
        .into_iter()
        .filter(|found| found.row.failed.is_some())
        .collect();
    assert_eq!(failed.len(), 3);
    assert!(failed.iter().any(|found| found.row.failed.as_ref().unwrap().contains("5106")));
    assert_eq!(w.check().await.in_flight, m("2.67"), "the money is still owed");

    // An operator retries them.
    w.proxy.heal();
    for found in failed {
        w.submit(Command::TransferRetry(TransferRetry { wtid: found.key.wtid })).await.unwrap();
    }
    assert_eq!(w.transfer().await.unwrap().done, 3);
    w.assert_paid(6).await;
    w.end().await;
}

/// Accounts that earlier builds accepted, and a bank that refuses such requests.
#[tokio::test]
async fn requests_that_are_too_large_are_refused_once_and_for_all() {
    let w = World::new().await;
    let long = |name: &str, bytes: usize| format!("{}&message={}", payto(name), "x".repeat(bytes));
    // The bank refuses the first; the exchange itself never sends the second, which is too large for any
    // bank.
    for (name, account) in [("a", long("big", 8 << 10)), ("b", long("huge", 15 << 20))] {
        w.deposit_into(merchant(name), &account, &["1"], (0, 0)).await;
    }
    w.prepare_more(3).await;
    let asked = count_requests(&w);
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside, progress.deferred), (3, 2, 0));
    w.assert_paid(3).await;
    assert_eq!(w.open_transfers(), 0);
    let requests = asked.lock().unwrap().clone();
    assert_eq!(requests.len(), 4, "the largest is not sent");
    assert!(requests.values().all(|times| *times == 1), "the bank is not asked twice");
    let failed: Vec<_> = w
        .app()
        .core
        .store
        .all::<Prepared>()
        .unwrap()
        .into_iter()
        .filter_map(|found| found.row.failed)
        .collect();
    assert!(failed.iter().any(|reason| reason.contains("413")), "{failed:?}");
    assert!(failed.iter().any(|reason| reason.contains("not asked")), "{failed:?}");
    assert!(failed.iter().all(|reason| reason.len() < 2_000));
    let metrics = &w.app().core.metrics.workers;
    assert_eq!((metrics.transfers_failed.get(), metrics.transfer_failures.get()), (2, 0));

    // They are reported after a restart, too, and the bank is not asked again.
    let w = w.restart(|_| ()).await;
    assert_eq!(w.transfer().await.unwrap().done, 0);
    assert_eq!(w.app().core.metrics.workers.transfers_refused.get(), Some(2));
    assert_eq!(w.check().await.in_flight, m("1.78"), "the money is still owed");
    w.end().await;
}

#[tokio::test]
async fn without_money_transfers_wait() {
    let w = World::new().await;
    w.prepare(4).await;
    w.proxy.script(|_, body| if body.contains("/t3?") { Action::Forward } else { status(409, 5102) });
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside, progress.deferred), (1, 0, 3));
    assert_eq!(w.open_transfers(), 3);
    w.proxy.heal();
    assert_eq!(w.transfer().await.unwrap().done, 3);
    w.assert_paid(4).await;
    w.end().await;
}

#[tokio::test]
async fn a_transfer_that_always_fails_does_not_delay_others() {
    let w = World::new().await;
    w.prepare(10).await;
    w.proxy.script(|_, body| if body.contains("/t0?") { status(500, 5110) } else { Action::Forward });
    let error = w.transfer().await.unwrap_err();
    assert!(matches!(error, WorkerError::Bank { .. }), "{error}");
    assert_eq!((w.open_transfers(), w.paid().await.len()), (1, 9));
    w.proxy.heal();
    assert_eq!(w.transfer().await.unwrap().done, 1);
    w.assert_paid(10).await;
    w.end().await;
}

/// Transfers that may have been paid must not be paid again from another account.
#[tokio::test]
async fn only_the_account_of_the_decision_pays() {
    let w = World::new().await;
    w.prepare(2).await;
    let ours = w.app().core.config.accounts.clone();
    let w = w
        .restart(|config| config.accounts[0].payto_uri = "payto://x-taler-bank/localhost/other".to_owned())
        .await;
    let progress = w.transfer().await.unwrap();
    assert_eq!((progress.done, progress.set_aside), (0, 2));
    assert_eq!(w.app().core.metrics.workers.transfers_set_aside.get(), Some(2));
    let w = w.restart(|config| config.accounts = ours).await;
    assert_eq!(w.transfer().await.unwrap().done, 2);
    w.assert_paid(2).await;
    w.end().await;
}

/// Counts how often each transfer is asked for.
fn count_requests(w: &World) -> Arc<Mutex<HashMap<String, u32>>> {
    let asked: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let count = Arc::clone(&asked);
    w.proxy.script(move |_, body| {
        *count.lock().unwrap().entry(body.to_owned()).or_default() += 1;
        Action::Forward
    });
    asked
}

async fn at_once(w: &World, workers: usize, options: WorkerOptions) -> u64 {
    let shared = w.at_once(workers, move |app| async move {
        let progress = transfer::share_until_idle(&app.core, options).await.unwrap();
        let open = read::open_transfers(&app.core.store, 9).unwrap().len();
        assert_eq!(open, 0, "a worker ends only when all transfers are executed");
        progress.done
    });
    shared.await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_workers_never_request_the_same_transfer() {
    let w =
        World::with(|_| {}, |config| config.workers.lease = batzen_protocol::Duration::from_secs(120)).await;
    w.prepare(150).await;
    let asked = count_requests(&w);
    let options = WorkerOptions { shard_size: Some(7), ..WorkerOptions::default() };
    assert_eq!(at_once(&w, 4, options).await, 150);
    let asked = asked.lock().unwrap().clone();
    assert!(asked.len() == 150 && asked.values().all(|times| *times == 1), "{asked:?}");
    w.assert_paid(150).await;
    w.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_without_leases_pay_each_transfer_once() {
    let w = World::new().await;
    w.prepare(60).await;
    let options = WorkerOptions { shard_size: Some(16), workers: Some(0), ..WorkerOptions::default() };
    assert!(at_once(&w, 3, options).await >= 60);
    w.assert_paid(60).await;
    w.end().await;
}

/// The worst moment for a kill: the bank has executed a whole page, and none of it is recorded. First the
/// worker is killed, and later the whole exchange.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_before_answers_are_recorded_pays_each_transfer_once() {
    let w = World::new().await;
    w.prepare(40).await;
    let options = WorkerOptions { shard_size: Some(25), ..WorkerOptions::default() };
    for worker in 0..2 {
        let executed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&executed);
        w.proxy.script(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Action::Lose
        });
        // The worker is dropped with all 25 requests in flight, so nobody receives the answers.
        let all_sent = || executed.load(Ordering::SeqCst) >= 25;
        assert!(killed_when(all_sent, transfer::share_until_idle(&w.app().core, options)).await.is_none());
        assert_eq!(w.open_transfers(), 40, "worker {worker}: nothing is recorded");
    }
    // The bank still executes the requests that it has received.
    let w = w.restart(|_| {}).await;
    for _ in 0..6_000 {
        if w.paid().await.len() >= 25 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(
        w.paid().await.len() >= 25 && w.open_transfers() == 40,
        "the transfers are executed but not recorded"
    );
    w.proxy.heal();
    assert_eq!(w.transfer().await.unwrap().done, 40, "a dead worker's claims block nobody");
    w.assert_paid(40).await;
    w.end().await;
}

/// Runs the future and counts how often it is polled.
async fn counting<F: Future>(turns: Arc<AtomicUsize>, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        turns.fetch_add(1, Ordering::SeqCst);
        future.as_mut().poll(context)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_taken_over_by_another_worker_are_not_retried() {
    let adapt = |config: &mut batzen_exchange::config::ExchangeConfig| {
        // Leases end at whole seconds.
        config.workers.lease = batzen_protocol::Duration::from_secs(3);
        config.workers.transfer_idle_sleep = batzen_protocol::Duration::from_micros(100_000);
    };
    let w = World::with(|_| {}, adapt).await;
    w.prepare(12).await;
    // Every transfer is retried for ever.
    w.proxy.script(|_, _| status(409, 5102));
    let failures = || w.app().core.metrics.workers.transfer_failures.get();
    let turns: [Arc<AtomicUsize>; 2] = Default::default();
    let mut workers = Vec::new();
    for turns in &turns {
        let (turns, app, before) = (Arc::clone(turns), Arc::clone(w.app()), failures());
        let serve = async move { transfer::serve(&app.core, WorkerOptions::default()).await };
        workers.push(tokio::spawn(counting(turns, serve)));
        while failures() < before + 6 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    // By then the first worker's retries would have been due, and the other worker holds half of the
    // transfers.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    let before = turns.each_ref().map(|turns| turns.load(Ordering::SeqCst));
    let begun = std::time::Instant::now();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let turns = turns.map(|turns| turns.load(Ordering::SeqCst));
    let in_a_second = [turns[0] - before[0], turns[1] - before[1]];
    let most = 300 * (1 + begun.elapsed().as_secs() as usize);
    assert!(in_a_second.iter().all(|turns| *turns < most), "{in_a_second:?}");
    w.proxy.heal();
    while w.open_transfers() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    w.app().core.drain.trigger();
    for worker in workers {
        worker.await.unwrap().unwrap();
    }
    w.assert_paid(12).await;
    w.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bank_that_does_not_answer_does_not_delay_the_end() {
    for is_service in [false, true] {
        let w = World::new().await;
        w.prepare(3).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        w.proxy.script(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Action::Stall
        });
        let app = Arc::clone(w.app());
        let worker = tokio::spawn(async move {
            if is_service {
                return transfer::serve(&app.core, WorkerOptions::default()).await;
            }
            transfer::share_until_idle(&app.core, WorkerOptions::default()).await.map(drop)
        });
        while asked.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let began = std::time::Instant::now();
        w.app().core.drain.trigger();
        let ended = worker.await.unwrap();
        assert!(matches!(ended, Ok(()) | Err(WorkerError::Stopped)), "{ended:?}");
        assert!(began.elapsed() < std::time::Duration::from_secs(25), "{:?}", began.elapsed());
        w.proxy.heal();
        let w = w.restart(|_| {}).await;
        assert_eq!(w.transfer().await.unwrap().done, 3);
        w.assert_paid(3).await;
        w.end().await;
    }
}

//! The workers as tasks of the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use batzen_exchange::notices::tag;
use batzen_protocol::Duration as Span;
use batzen_tables::exchange::{LeaseJob, WorkerLeases};

use crate::workers::proxy::Action;
use crate::workers::world::{EXPIRED, World, m, reserve};

/// Waits until the condition holds. The bound only ends a test that hangs; it measures nothing.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out waiting for {what}");
}

async fn world() -> World {
    let quick = Span::from_micros(20_000);
    World::with(
        |_| {},
        |config| {
            config.workers.wirewatch_idle_sleep = quick;
            config.workers.aggregator_idle_sleep = quick;
            config.workers.closer_idle_sleep = quick;
            // The other workers wake it.
            config.workers.transfer_idle_sleep = Span::from_secs(86_400);
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_flows_from_credit_to_transfer() {
    let w = world().await;
    w.exchange.start_workers();
    let mut poll = w.app().core.notices.reserves.poll(tag(&reserve(1))).unwrap();
    w.add_incoming(reserve(1), "5", "42").await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    assert!(poll.wait(deadline, &w.app().core.drain).await, "long polls are woken");
    assert_eq!(w.balance(reserve(1)), Some(m("5")));
    w.deposit("B", "43", &["1", "1"], 0).await;
    eventually("the merchant's money", async || w.paid().await == [("43".to_owned(), m("1.79"))]).await;
    w.advance(EXPIRED);
    eventually("the reserve's money", async || w.paid().await.contains(&("42".to_owned(), m("4.99")))).await;
    eventually("the marks", async || w.open_transfers() == 0).await;
    assert_eq!(w.app().core.metrics.workers.restarts.get(), 0);
    w.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_workers_continue_after_an_outage_of_the_bank() {
    let w = world().await;
    for n in 0..20 {
        w.deposit(&format!("m{n}"), &format!("t{n}"), &["1"], 0).await;
    }
    w.proxy.script(|line, _| {
        if line.contains("history") { Action::Answer(500, String::new()) } else { Action::Refuse }
    });
    w.exchange.start_workers();
    w.add_incoming(reserve(7), "1", "42").await;
    eventually("failures", async || {
        let metrics = &w.app().core.metrics.workers;
        metrics.transfer_failures.get() >= 8 && metrics.history_failures.get() >= 3
    })
    .await;
    assert_eq!(w.balance(reserve(7)), None);
    w.proxy.heal();
    eventually("the credit", async || w.balance(reserve(7)) == Some(m("1"))).await;
    eventually("the transfers", async || w.open_transfers() == 0).await;
    assert_eq!(w.paid().await.len(), 20);
    w.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_workers_shows_how_late_they_are() {
    let w = World::new().await;
    let has = async |line: &str| w.metrics().await.contains(&format!("\n{line}\n"));
    eventually("the first look", async || has("batzen_worker_aggregator_lag_seconds 0").await).await;
    w.deposit("B", "43", &["1"], 0).await;
    w.advance(1_000);
    eventually("the lag", async || !has("batzen_worker_aggregator_lag_seconds 0").await).await;
    let page = w.metrics().await;
    let value = |name: &str| -> u64 {
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} in {page}")).parse().unwrap()
    };
    assert!(value("batzen_worker_aggregator_lag_seconds") >= 900, "{page}");
    assert!(value("batzen_worker_unattended_seconds{worker=\"aggregator\"}") >= 900, "{page}");
    for idle in ["transfer", "closer", "expire", "drain"] {
        assert_eq!(value(&format!("batzen_worker_{idle}_lag_seconds")), 0, "{page}");
    }
    w.end().await;
}

/// Otherwise other processes could not tell it from one that has died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_watcher_renews_its_lease_while_the_bank_holds_its_request() {
    let w = World::with(|_| {}, |config| config.workers.lease = Span::from_micros(20_000)).await;
    w.add_incoming(reserve(1), "1", "42").await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    w.proxy.script(move |line, _| {
        counted.fetch_add(usize::from(line.contains("history")), Ordering::SeqCst);
        Action::Forward
    });
    w.exchange.start_workers();
    eventually("the credit", async || w.balance(reserve(1)) == Some(m("1"))).await;
    let until = || {
        let leases = w.app().core.store.all::<WorkerLeases>().unwrap();
        let watched = leases.iter().filter(|found| found.key.job == LeaseJob::Wirewatch);
        watched.map(|found| found.row.until).max().unwrap()
    };
    let mut signs = 0;
    let (mut seen, mut asked) = (until(), 0);
    eventually("signs of life during one request", async || {
        // Counted from the request that is under way.
        if asked != requests.load(Ordering::SeqCst) {
            (asked, signs) = (requests.load(Ordering::SeqCst), 0);
        }
        signs += usize::from(until() > seen);
        seen = until();
        signs >= 3
    })
    .await;
    w.add_incoming(reserve(2), "1", "42").await;
    eventually("the next credit", async || w.balance(reserve(2)) == Some(m("1"))).await;
    w.end().await;
}

/// An account appears with its first transfer; wrong ids delay only the account that they belong to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_the_bank_creates_later_is_imported() {
    let w = world().await;
    w.exchange.start_workers();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let page = r#"{"incoming_transactions":[{"row_id":2},{"row_id":2}]}"#;
    w.proxy.script(move |_, _| Action::Answer(200, page.to_owned()));
    eventually("the disorder", async || w.app().core.metrics.workers.history_failures.get() > 0).await;
    w.proxy.heal();
    for n in 0..50 {
        w.add_incoming(reserve(n % 10), "1", "42").await;
    }
    eventually("all credits", async || (0..10).all(|n| w.balance(reserve(n)) == Some(m("5")))).await;
    w.end().await;
}

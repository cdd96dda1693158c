//! The workers as tasks of the service.

use std::time::Duration;

use batzen_exchange::notices::tag;
use batzen_protocol::Duration as Span;

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

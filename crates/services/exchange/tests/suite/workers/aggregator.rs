//! Aggregation: large units, targets that cannot be paid, and concurrent refunds.

use std::sync::Arc;
use std::time::SystemTime;

use batzen_crypto::{HashCode, Wtid};
use batzen_exchange::reads::read;
use batzen_exchange::rules::{Aggregate, Aggregated, Answer, Command, Lease, Refusal, SlotsClaim, Trigger};
use batzen_exchange::workers::{aggregator, transfer};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{Aggregates, DepositTarget, LeaseJob, Prepared};

use crate::workers::world::{World, m, merchant, our_account, payto};

#[tokio::test]
async fn a_large_unit_is_one_transfer() {
    let w = World::new().await;
    let amounts = vec!["1"; 2_345];
    w.deposit("B", "42", &amounts, 0).await;
    assert_eq!(w.aggregate().await.unwrap().done, 1);
    w.transfer().await.unwrap();
    // 2345 × (1 − 0.1) − 0.01
    assert_eq!(w.paid().await, [("42".to_owned(), m("2110.49"))]);
    assert_eq!(w.app().core.metrics.workers.deposits.get(), 2_345);
    w.end().await;
}

#[tokio::test]
async fn a_due_deposit_at_the_end_of_a_large_unit_pays_the_unit() {
    let w = World::new().await;
    w.deposit("B", "42", &["1"; 1_024], 1_000).await;
    assert_eq!(w.aggregate().await.unwrap().done, 0);
    w.advance(1);
    w.deposit("B", "42", &["1"], 0).await;
    assert_eq!(w.aggregate().await.unwrap().done, 1);
    w.transfer().await.unwrap();
    assert_eq!(w.paid().await, [("42".to_owned(), m("922.49"))]);
    w.end().await;
}

#[tokio::test]
async fn an_interrupted_unit_is_resumed() {
    let w = World::new().await;
    w.deposit("B", "42", &["1"; 3], 0).await;
    let later = w.deposit("B", "42", &["2"; 3], 1_000).await;
    // An aggregator took the first part, which contained everything that was due, and was killed.
    let target = DepositTarget { h_payto: h_payto(&payto("42")), merchant_pub: merchant("B") };
    let outcome = w.submit(first_part(&w, target)).await.unwrap();
    assert!(matches!(outcome, Answer::Aggregate(Aggregated::Transient { taken: 3, .. })));
    assert_eq!(w.aggregate().await.unwrap().done, 1, "the unit is paid although nothing is due any more");
    w.transfer().await.unwrap();
    assert_eq!(w.paid().await, [("42".to_owned(), m("8.39"))]);
    assert_eq!(w.app().core.store.count::<Aggregates>().unwrap(), 0);
    for key in later {
        assert!(
            read::deposit(&w.app().core.store, &key).unwrap().unwrap().wtid.is_some(),
            "the rest is included"
        );
    }
    w.end().await;
}

#[tokio::test]
async fn an_interrupted_unit_is_resumed_by_the_next_holder_of_its_slots() {
    let w = World::new().await;
    w.deposit("B", "42", &["1"; 3], 0).await;
    w.deposit("B", "42", &["2"; 3], 1_000).await;
    let target = DepositTarget { h_payto: h_payto(&payto("42")), merchant_pub: merchant("B") };
    // The worker has all slots, took the first part, which contained everything that was due, and was killed.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let claim = SlotsClaim {
        job: LeaseJob::Aggregator,
        holder: 1,
        now: Timestamp::from_secs(now),
        lease: Some(Duration::from_secs(250)),
        gives: true,
    };
    w.submit(Command::Lease(Lease::Slots(claim))).await.unwrap();
    let outcome = w.submit(first_part(&w, target)).await.unwrap();
    assert!(matches!(outcome, Answer::Aggregate(Aggregated::Transient { taken: 3, .. })));
    // A deposit that stays due in its slots shows that the worker is idle, so others take over its slots, and
    // with them the unfinished unit.
    w.deposit("B", "43", &["1"], 0).await;
    assert_eq!(w.aggregate().await.unwrap().done, 2);
    w.transfer().await.unwrap();
    let mut paid = w.paid().await;
    paid.sort();
    assert_eq!(paid, [("42".to_owned(), m("8.39")), ("43".to_owned(), m("0.89"))]);
    w.end().await;
}

/// Aggregates three deposits of a unit that has more.
fn first_part(w: &World, target: DepositTarget) -> Command {
    Command::Aggregate(Aggregate {
        target,
        method: "x-taler-bank".to_owned(),
        account: our_account(),
        until: w.now(),
        deposits_max: 3,
        trigger: Trigger::Due,
        complete: false,
        wtid: Wtid::random(),
        request_uid: HashCode::random(),
        payee: None,
    })
}

#[tokio::test]
async fn targets_that_cannot_be_paid_do_not_block_others() {
    let w = World::new().await;
    let iban = "payto://iban/DE75512108001245126199?receiver-name=A";
    for n in 0..40 {
        w.deposit_into(merchant(&format!("i{n}")), iban, &["1"], (0, 0)).await;
    }
    w.advance(1);
    w.deposit("B", "42", &["1"], 0).await;
    // Wire methods are compared without case.
    let odd_case = "payto://X-Taler-Bank/localhost/43?receiver-name=43";
    w.deposit_into(merchant("C"), odd_case, &["1"], (0, 0)).await;
    for round in 0..2 {
        let progress = w.aggregate().await.unwrap();
        assert_eq!((progress.done, progress.set_aside), (2 * (1 - round), 40));
    }
    w.transfer().await.unwrap();
    assert_eq!(w.paid().await, [("42".to_owned(), m("0.89")), ("43".to_owned(), m("0.89"))]);
    assert_eq!(w.app().core.metrics.workers.targets_set_aside.get(), Some(40));
    let page = w.metrics().await;
    assert!(page.contains("\nbatzen_worker_aggregator_set_aside 40\n"), "{page}");
    assert!(page.contains("\nbatzen_worker_transfer_done_total 2\n"), "{page}");
    w.end().await;
}

/// A refund is either in time, and the merchant gets less, or too late, and the merchant gets the full
/// amount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_race_the_aggregator() {
    let w = Arc::new(World::new().await);
    for round in 0..6 {
        let account = format!("r{round}");
        let deposits = w.deposit("B", &account, &["2"; 150], 0).await;
        let refunds = {
            let w = Arc::clone(&w);
            let deposits = deposits.clone();
            tokio::spawn(async move {
                let mut accepted = 0;
                for (n, deposit) in deposits.iter().enumerate() {
                    // Every third one is refunded completely.
                    let amount = if n % 3 == 0 { "2" } else { "0.5" };
                    match w.refund(deposit, amount).await {
                        Ok(_) => accepted += 1,
                        Err(refusal) => {
                            assert!(matches!(refusal, Refusal::DepositPaid), "{refusal:?}");
                        }
                    }
                }
                accepted
            })
        };
        let in_time = if round == 0 {
            refunds.await.unwrap()
        } else {
            tokio::time::sleep(std::time::Duration::from_millis(3 * round)).await;
            w.aggregate().await.unwrap();
            refunds.await.unwrap()
        };
        assert!(round > 0 || in_time == 150, "before the aggregation, all refunds are in time");
        w.aggregate().await.unwrap();
        assert_eq!(
            w.refund(&deposits[1], "0.1").await,
            Err(Refusal::DepositPaid),
            "after the aggregation, none are"
        );
        let mut expected = Money::ZERO;
        for deposit in &deposits {
            let row = read::deposit(&w.app().core.store, deposit).unwrap().unwrap();
            assert!(row.wtid.is_some());
            let left = row.amount.checked_sub(row.refunded).unwrap();
            if !left.is_zero() {
                expected = expected.checked_add(left.checked_sub(m("0.1")).unwrap()).unwrap();
            }
        }
        w.transfer().await.unwrap();
        let paid = w.paid().await.into_iter().find(|(to, _)| *to == account).unwrap();
        assert_eq!(paid.1, expected.checked_sub(m("0.01")).unwrap());
        w.check().await;
    }
    assert_eq!(w.app().core.store.count::<Prepared>().unwrap(), 6);
    Arc::into_inner(w).unwrap().end().await;
}

/// Concurrent aggregators pay nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregators_and_transfer_workers_run_concurrently() {
    let w = World::new().await;
    for n in 0..30 {
        w.deposit(&format!("m{n}"), &format!("x{n}"), &["1", "2", "3"], 0).await;
    }
    w.deposit("big", "big", &["1"; 1_100], 0).await;
    let work = w.at_once(4, |app| async move {
        aggregator::run_until_idle(&app.core).await.unwrap();
        transfer::run_until_idle(&app.core).await.unwrap();
    });
    work.await;
    w.aggregate().await.unwrap();
    w.transfer().await.unwrap();
    // Two of them may have shared the large unit, each with its own transfer.
    let paid = w.paid().await;
    assert_eq!(paid.iter().filter(|(to, amount)| to.starts_with('x') && *amount == m("5.69")).count(), 30);
    let big = paid.iter().filter(|(to, _)| to == "big").map(|(_, amount)| *amount);
    let big = Money::checked_sum(big).unwrap();
    assert!(big == m("989.99") || big == m("989.98"), "{big}");
    w.end().await;
}

//! The CPU pool: which items share a batch, in which order, and what happens to requests that are too many,
//! are given up or panic.

use std::future::poll_fn;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use batzen_engine::{Collector, CollectorOptions, CpuPool, PoolBusy, WorkSnapshot, run_long};

const OPTIONS: CollectorOptions = CollectorOptions { queue_items_max: 1_000, batch_items_max: 64, lanes: 8 };

/// A pool whose only thread is held until the sender is used or dropped.
async fn held_pool() -> (CpuPool, Sender<()>) {
    let pool = CpuPool::new(1, 8);
    let release = hold(&pool).await;
    (pool, release)
}

/// Holds a pool's only thread until the sender is used or dropped.
async fn hold(pool: &CpuPool) -> Sender<()> {
    let (release, held) = channel::<()>();
    let (running, is_running) = tokio::sync::oneshot::channel();
    let pool = pool.clone();
    tokio::spawn(async move {
        let job = move || {
            running.send(()).unwrap();
            let _ = held.recv();
        };
        pool.run(job).await.unwrap();
    });
    is_running.await.unwrap();
    release
}

/// A collector that reports every batch.
fn reporting(pool: &CpuPool, options: CollectorOptions) -> (Collector<u32, u32>, Receiver<Vec<u32>>) {
    let (batches, told) = channel();
    let batches = Mutex::new(batches);
    let collector = pool.collector("double", options, move |items: &[u32]| {
        batches.lock().unwrap().send(items.to_vec()).unwrap();
        items.iter().map(|item| item * 2).collect()
    });
    (collector, told)
}

fn snapshot(pool: &CpuPool, kind: &str) -> WorkSnapshot {
    pool.snapshot().into_iter().find(|snapshot| snapshot.kind == kind).unwrap()
}

#[tokio::test]
async fn jobs_are_answered_and_bounded() {
    let (pool, release) = held_pool().await;
    let jobs: Vec<_> = (0..8)
        .map(|index| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.run(move || index * 7).await })
        })
        .collect();
    while pool.queued() < 8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.run(|| ()).await, Err(PoolBusy));
    drop(release);
    for (index, job) in jobs.into_iter().enumerate() {
        assert_eq!(job.await.unwrap(), Ok(index * 7));
    }
    let jobs = snapshot(&pool, "job");
    assert_eq!((jobs.items, jobs.rejected, jobs.queued), (9, 1, 0));
    let mut page = batzen_metrics::Page::new();
    pool.write(&mut page);
    let page = page.finish();
    for line in ["batzen_pool_items_total{kind=\"job\"} 9", "batzen_pool_rejected_total{kind=\"job\"} 1"] {
        assert!(page.lines().any(|found| found == line), "{line} in {page}");
    }
}

#[tokio::test]
async fn a_panic_of_a_job_reaches_its_caller_and_the_pool_works_on() {
    let pool = CpuPool::new(1, 8);
    let caller = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run(|| assert_eq!(1, 2)).await }
    });
    assert!(caller.await.unwrap_err().is_panic());
    assert_eq!(pool.run(|| 5).await, Ok(5));
    assert_eq!(run_long("long", || 6).await, 6);
    assert!(tokio::spawn(run_long("long", || assert_eq!(1, 2))).await.unwrap_err().is_panic());
}

#[tokio::test]
async fn items_of_many_requests_share_a_batch_while_the_thread_is_busy() {
    let (pool, release) = held_pool().await;
    let (collector, told) = reporting(&pool, OPTIONS);
    let tickets: Vec<_> = (0..20).map(|item| collector.submit(vec![item]).unwrap()).collect();
    assert_eq!(snapshot(&pool, "double").queued, 20);
    drop(release);
    for (item, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.await, [item as u32 * 2]);
    }
    // The rows are full, so the rest forms its own batch (nothing arrived in the meantime).
    let first = told.recv().unwrap();
    assert_eq!((first.len() % 8, first[0]), (0, 0));
    let all: Vec<u32> = first.into_iter().chain(told.try_iter().flatten()).collect();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    let counted = snapshot(&pool, "double");
    assert_eq!((counted.items, counted.queued), (20, 0));
    assert!(counted.batch_items_max >= 8 && counted.shares == 20 && counted.wait_ns > 0);
}

#[tokio::test]
async fn an_idle_pool_executes_at_once() {
    let pool = CpuPool::new(2, 8);
    let (collector, told) = reporting(&pool, OPTIONS);
    for item in 0..3 {
        assert_eq!(collector.run_one(item).await, Ok(item * 2));
        assert_eq!(told.recv().unwrap(), [item]);
    }
    assert_eq!(collector.run(Vec::new()).await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn items_submitted_in_one_turn_of_the_runtime_share_a_batch() {
    let pool = CpuPool::new(1, 8);
    let (collector, told) = reporting(&pool, OPTIONS);
    let begin = async move {
        let request = |item| {
            let collector = collector.clone();
            tokio::spawn(async move {
                // Long enough for a notified thread to take the waiting items.
                std::thread::sleep(Duration::from_millis(5));
                collector.run_one(item).await
            })
        };
        (0..8).map(request).collect::<Vec<_>>()
    };
    for (item, request) in (0..).zip(tokio::spawn(begin).await.unwrap()) {
        assert_eq!(request.await.unwrap(), Ok(item * 2));
    }
    let mut batches: Vec<_> = told.try_iter().collect();
    batches.iter_mut().for_each(|batch| batch.sort_unstable());
    assert_eq!(batches, [(0..8).collect::<Vec<_>>()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn giving_up_the_first_request_of_a_turn_does_not_affect_the_others() {
    let pool = CpuPool::new(1, 8);
    let (collector, _told) = reporting(&pool, OPTIONS);
    let mut first = Box::pin(collector.run_one(1));
    let mut second = Box::pin(collector.run_one(2));
    poll_fn(|context| {
        assert!(first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(first);
    let answer = tokio::time::timeout(Duration::from_secs(60), second).await;
    assert_eq!(answer.unwrap(), Ok(4));
}

/// Futures that were started but are not polled hold up neither others of the same turn nor others of the
/// same batch.
async fn unpolled_futures_hold_nothing_up() {
    let (pool, release) = held_pool().await;
    let (collector, _told) = reporting(&pool, OPTIONS);
    let mut resting: Vec<_> = (0..4).map(|item| Box::pin(collector.run_one(item))).collect();
    poll_fn(|context| {
        resting.iter_mut().for_each(|future| assert!(future.as_mut().poll(context).is_pending()));
        Poll::Ready(())
    })
    .await;
    let others: Vec<_> = (4..8)
        .map(|item| {
            let collector = collector.clone();
            tokio::spawn(async move { collector.run_one(item).await })
        })
        .collect();
    while pool.queued() < 8 {
        tokio::task::yield_now().await;
    }
    drop(release);
    for (item, other) in (4..).zip(others) {
        let answer = tokio::time::timeout(Duration::from_secs(60), other).await;
        assert_eq!(answer.unwrap().unwrap(), Ok(item * 2));
    }
    for (item, future) in (0..).zip(resting) {
        assert_eq!(future.await, Ok(item * 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unpolled_futures_hold_nothing_up_on_a_runtime_with_threads() {
    unpolled_futures_hold_nothing_up().await;
}

#[tokio::test]
async fn unpolled_futures_hold_nothing_up_on_a_runtime_without_threads() {
    unpolled_futures_hold_nothing_up().await;
}

#[tokio::test]
async fn a_large_request_shares_every_batch_with_small_ones() {
    let (pool, release) = held_pool().await;
    let (collector, told) = reporting(&pool, OPTIONS);
    let large = collector.submit((1_000..1_256).collect()).unwrap();
    let small: Vec<_> = (0..20).map(|item| collector.submit(vec![item]).unwrap()).collect();
    drop(release);
    assert_eq!(large.await, (2_000..2_512).step_by(2).collect::<Vec<_>>());
    for (item, ticket) in small.into_iter().enumerate() {
        assert_eq!(ticket.await, [item as u32 * 2]);
    }
    let order: Vec<u32> = told.try_iter().flatten().collect();
    let last_small = order.iter().rposition(|item| *item < 1_000).unwrap();
    // Eight of the large one and all the small ones: at most one more row of the large one is before them.
    assert!(last_small < 8 + 20 + 8, "{order:?}");
}

#[tokio::test]
async fn a_turn_ends_in_time_for_other_kinds() {
    let (pool, release) = held_pool().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let options = CollectorOptions { batch_items_max: 64, lanes: 1, ..OPTIONS };
    let told = Arc::clone(&order);
    let slow = pool.collector("slow", options, move |items: &[u32]| {
        std::thread::sleep(std::time::Duration::from_millis(3) * items.len() as u32);
        told.lock().unwrap().extend_from_slice(items);
        items.to_vec()
    });
    let told = Arc::clone(&order);
    let quick = pool.collector("quick", options, move |items: &[u32]| {
        told.lock().unwrap().extend_from_slice(items);
        items.to_vec()
    });
    // The cost of a row is known after the first one.
    drop(release);
    slow.run_one(0).await.unwrap();
    let release = hold(&pool).await;
    let slow_items = slow.submit((1..=10).collect()).unwrap();
    let quick_item = quick.submit(vec![100]).unwrap();
    drop(release);
    quick_item.await;
    slow_items.await;
    let order = order.lock().unwrap();
    let place = order.iter().position(|item| *item == 100).unwrap();
    assert!(place <= 2, "at most one slow item runs before the quick one: {order:?}");
}

#[tokio::test]
async fn a_full_queue_refuses_whole_requests() {
    let (pool, release) = held_pool().await;
    let options = CollectorOptions { queue_items_max: 64, ..OPTIONS };
    let (collector, _told) = reporting(&pool, options);
    let accepted = collector.submit((0..60).collect()).unwrap();
    assert_eq!(collector.submit((0..5).collect()).err(), Some(PoolBusy));
    let last = collector.submit((0..4).collect()).unwrap();
    assert_eq!(snapshot(&pool, "double").rejected, 5);
    drop(release);
    assert_eq!((accepted.await.len(), last.await.len()), (60, 4));
    assert_eq!(collector.run_one(1).await, Ok(2), "there is room again");
}

#[tokio::test]
async fn abandoned_requests_are_not_executed() {
    let (pool, release) = held_pool().await;
    let (collector, told) = reporting(&pool, OPTIONS);
    drop(collector.submit((0..10).collect()).unwrap());
    let kept = collector.submit(vec![50]).unwrap();
    drop(release);
    assert_eq!(kept.await, [100]);
    assert_eq!(told.try_iter().flatten().collect::<Vec<_>>(), [50]);
    let counted = snapshot(&pool, "double");
    assert_eq!((counted.abandoned, counted.queued), (10, 0));
}

#[tokio::test]
async fn a_panic_affects_only_the_request_that_causes_it() {
    let (pool, release) = held_pool().await;
    let collector = pool.collector("fragile", OPTIONS, |items: &[u32]| {
        assert!(!items.contains(&13), "thirteen");
        items.to_vec()
    });
    let tickets: Vec<_> = [vec![1, 2], vec![3, 13], vec![4]]
        .into_iter()
        .map(|items| collector.submit(items).unwrap())
        .collect();
    drop(release);
    let mut outcomes = Vec::new();
    for ticket in tickets {
        outcomes.push(tokio::spawn(ticket).await.ok());
    }
    assert_eq!(outcomes, [Some(vec![1, 2]), None, Some(vec![4])]);
    // A wrong number of results is a failed assertion as well.
    let short = pool.collector("short", OPTIONS, |_: &[u32]| Vec::<u32>::new());
    assert!(tokio::spawn(short.submit(vec![1]).unwrap()).await.unwrap_err().is_panic());
    assert_eq!(collector.run_one(9).await, Ok(9));
}

/// Many requests of random sizes from many tasks on several threads: each gets its own results, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_never_get_mixed_up() {
    let pool = CpuPool::new(3, 8);
    let collector = pool.collector("square", CollectorOptions { lanes: 4, ..CollectorOptions::default() }, {
        |items: &[u64]| items.iter().map(|item| item * item).collect()
    });
    let tasks: Vec<_> = (0..16_u64)
        .map(|task| {
            let collector = collector.clone();
            tokio::spawn(async move {
                for round in 0..200_u64 {
                    let count = (task * 31 + round * 17) % 40;
                    let items: Vec<u64> =
                        (0..count).map(|item| task * 1_000_000 + round * 1_000 + item).collect();
                    let expected: Vec<u64> = items.iter().map(|item| item * item).collect();
                    assert_eq!(collector.run(items).await.unwrap(), expected);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let counted = snapshot(&pool, "square");
    assert_eq!((counted.queued, counted.panics, counted.rejected), (0, 0, 0));
}

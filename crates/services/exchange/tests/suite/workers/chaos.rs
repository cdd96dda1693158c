//! Workers are killed at any point and started again, while the bank loses requests and answers: in the end
//! all work is done exactly once.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use batzen_exchange::workers::{aggregator, closer, transfer, wirewatch};

use crate::workers::proxy::Action;
use crate::workers::world::{EXPIRED, World, reserve};

/// Runs the future and drops it after this many waits. Whatever it has not handed over by then is lost, as
/// after a kill.
async fn killed_after<F: Future>(waits: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = waits;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Runs the future and drops it as soon as the condition holds. Whatever it has not handed over by then is
/// lost, as after a kill.
pub(super) async fn killed_when<F: Future>(
    mut condition: impl FnMut() -> bool,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut look = tokio::time::interval(std::time::Duration::from_millis(1));
    std::future::poll_fn(|context| {
        // The interval wakes the task, so the condition is checked even while the worker waits.
        while look.poll_tick(context).is_ready() {}
        if condition() {
            return Poll::Ready(None);
        }
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if condition() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Pseudo-random numbers, the same in every run (Marsaglia's xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_killed_repeatedly_lose_and_repeat_nothing() {
    let w = World::new().await;
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let (mut incoming, mut killed, mut ended) = (0, 0, 0);
    for round in 0..40 {
        // The bank works for customers; three of four requests of the exchange fail.
        let mut fate = Dice(round + 1);
        fate.roll(2);
        w.proxy.heal();
        for _ in 0..dice.roll(4) {
            let n = dice.roll(12);
            w.add_incoming(reserve(n), "1.25", &format!("c{n}")).await;
            incoming += 1;
        }
        for _ in 0..dice.roll(4) {
            let (name, account) = (dice.roll(3), dice.roll(4));
            let amounts = ["1.003", "0.2", "0.104", "3"];
            let count = 1 + dice.roll(4) as usize;
            let deposits =
                w.deposit(&format!("m{name}"), &format!("s{account}"), &amounts[..count], dice.roll(3)).await;
            if dice.roll(2) == 0 {
                // Whether it is aggregated by now does not matter.
                let _ = w.refund(&deposits[0], "0.5").await;
            }
        }
        if round % 8 == 7 {
            w.advance(EXPIRED);
        }
        w.advance(1);
        w.proxy.script(move |_, _| match fate.roll(8) {
            0 | 1 => Action::Lose,
            2 => Action::Refuse,
            3 => Action::Repeat,
            4 => Action::Answer(500, String::new()),
            5 => Action::Answer(504, "<html>".to_owned()),
            _ => Action::Forward,
        });
        for _ in 0..6 {
            let app = w.app();
            let waits = dice.roll(12);
            let was_killed = match dice.roll(4) {
                0 => killed_after(waits, wirewatch::run_until_idle(&app.core)).await.is_none(),
                1 => killed_after(waits, aggregator::run_until_idle(&app.core)).await.is_none(),
                2 => killed_after(waits, closer::run_until_idle(&app.core)).await.is_none(),
                _ => killed_after(waits * 2, transfer::run_until_idle(&app.core)).await.is_none(),
            };
            *(if was_killed { &mut killed } else { &mut ended }) += 1;
        }
    }
    w.proxy.heal();
    w.advance(EXPIRED + 10);
    w.wirewatch().await.unwrap();
    w.aggregate().await.unwrap();
    w.close().await.unwrap();
    w.transfer().await.unwrap();
    assert!(incoming > 20 && killed > 20 && ended > 20, "{incoming} credits, {killed} kills, {ended} ends");
    let totals = w.check().await;
    assert_eq!(w.open_transfers(), 0);
    assert!(totals.deposits.is_zero(), "everything that was due is aggregated: {totals:?}");
    assert!(!totals.wired_out.is_zero() && !totals.income.closing.is_zero());
    w.end().await;
}

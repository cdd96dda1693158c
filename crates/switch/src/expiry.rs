//! Expiry: sleeps until the earliest deadline of a reserved transfer, then has those decided that are due.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batzen_http::Drain;
use batzen_store::{Column, Store, StoreError};
use batzen_tables::switch::Transfers;
use tokio::sync::Notify;

use crate::config::SwitchClock;
use crate::pipeline::Lane;
use crate::rules::Command;

/// Transfers in one command.
const DUE_MAX: usize = 1024;
/// The longest sleep: a clock that is set forward is noticed after it.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The earliest deadline that the worker knows of, and how to wake it for an earlier one.
#[derive(Debug, Default)]
pub struct Alarm {
    /// Milliseconds since 1970; `u64::MAX` is never.
    next: AtomicU64,
    wake: Notify,
}

impl Alarm {
    /// Something expires at this time.
    pub fn set(&self, millis: u64) {
        if self.next.fetch_min(millis, Ordering::SeqCst) > millis {
            self.wake.notify_one();
        }
    }
}

/// Works until the drain fires.
pub async fn run(alarm: Arc<Alarm>, store: Store, lane: Lane, clock: SwitchClock, drain: Drain) {
    loop {
        // What is set from here on is earlier than what the table shows, or shown by it.
        alarm.next.store(u64::MAX, Ordering::SeqCst);
        let now = clock() / 1000;
        let next = match due(&store, now) {
            Ok((ids, _)) if !ids.is_empty() => {
                // Its answer is not needed: what was decided otherwise meanwhile is left alone.
                if lane.submit(Command::Expire(ids)).await.is_err() {
                    now + 100
                } else {
                    continue;
                }
            }
            Ok((_, next)) => next,
            Err(error) => {
                tracing::error!(%error, "deadlines cannot be read");
                now + 1000
            }
        };
        alarm.next.fetch_min(next, Ordering::SeqCst);
        let sleep = Duration::from_millis(next.saturating_sub(now)).min(SLEEP_MAX);
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = alarm.wake.notified() => {}
            () = drain.draining() => return,
        }
    }
}

/// The transfers that are due, and when the next one is.
fn due(store: &Store, now: u64) -> Result<(Vec<u128>, u64), StoreError> {
    let (mut ids, mut next) = (Vec::new(), u64::MAX);
    store.positions::<Transfers>(
        Transfers::BY_DEADLINE,
        Bound::Unbounded,
        Bound::Unbounded,
        |mut entry| {
            let deadline = u64::decode(&mut entry);
            let id = u128::decode(&mut entry);
            let (Ok(deadline), Ok(id)) = (deadline, id) else { return ControlFlow::Continue(()) };
            if deadline > now {
                next = deadline;
                return ControlFlow::Break(());
            }
            ids.push(id);
            if ids.len() < DUE_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
    )?;
    Ok((ids, next))
}

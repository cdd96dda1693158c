//! Expiry: sleeps until the earliest deadline of a reserved transfer, then submits the due transfers.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batzen_http::Drain;
use batzen_store::{Column, Store, StoreError};
use batzen_tables::switch::Transfers;
use tokio::sync::Notify;

use crate::clock::SwitchClock;
use crate::pipeline::Lane;
use crate::rules::Expire;

/// The most transfers in one command.
const DUE_MAX: usize = 1024;
/// The longest sleep, after which a clock that was set forward is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The earliest deadline known to the worker, and a way to wake it for an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// Milliseconds since 1970; `u64::MAX` means never.
    next: AtomicU64,
    wake: Notify,
}

impl Alarm {
    /// Reports a deadline at this time.
    pub(crate) fn set(&self, millis: u64) {
        if self.next.fetch_min(millis, Ordering::SeqCst) > millis {
            self.wake.notify_one();
        }
    }
}

/// Runs until the drain fires.
pub(crate) async fn run(alarm: Arc<Alarm>, store: Store, lane: Lane, clock: SwitchClock, drain: Drain) {
    loop {
        // A deadline set from here on is either earlier than the table's, or in the table.
        alarm.next.store(u64::MAX, Ordering::SeqCst);
        let now = clock() / 1000;
        let next = match due(&store, now) {
            Ok((ids, _)) if !ids.is_empty() => {
                // The answer is not needed: transfers decided meanwhile are left alone.
                if lane.submit(Expire(ids)).await.is_err() {
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

/// The due transfers, and the next deadline.
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

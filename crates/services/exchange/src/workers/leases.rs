//! A worker's share of a queue, held by a lease in the store.
//!
//! The workers of one kind, in one or several processes, each hold slots of their queue
//! ([`crate::rules::leases`]). A worker claims its share when there is work, renews it while there is work,
//! and returns it at the end. A killed worker's lease expires. Correctness never depends on leases.

use std::time::Duration;

use batzen_protocol::Timestamp;
use batzen_tables::exchange::LeaseJob;
use tokio::time::Instant;

use super::{Mode, WorkerError, decide};
use crate::core::Core;
use crate::rules::leases::{LEASE_MAX, Slots};
use crate::rules::{Lease, Leased, SlotsClaim, SlotsShare};

/// A lease is renewed after this part of it, because workers may have started or ended. For the same time, a
/// worker that waits for the end of all work leaves idle items to the workers that hold them.
const RENEWALS: u32 = 3;
/// Interval at which a waiting worker checks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The duration of a lease, as the rules grant it.
pub(super) fn lease(app: &Core) -> Duration {
    super::idle_interval(app.config.workers.lease.min(LEASE_MAX))
}

/// The time of leases, without the worker's clock shift: leases are shared between processes.
pub(super) fn now(app: &Core) -> Timestamp {
    app.lease_clock.now()
}

/// A unique number for a worker of this process.
pub(super) fn holder(app: &Core) -> u64 {
    let holder = (u64::from_le_bytes(app.random()) >> 1).max(1);
    app.metrics.workers.own_holders.add(holder);
    holder
}

/// A lease's length in the protocol's terms.
pub(super) fn length(lease: Duration) -> batzen_protocol::Duration {
    batzen_protocol::Duration::from_micros(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX))
}

/// The slots that a worker holds.
pub(super) struct Share<'a> {
    app: &'a Core,
    mode: Mode,
    job: LeaseJob,
    holder: u64,
    share: SlotsShare,
    claimed: Option<Instant>,
    /// The share must be claimed again, even if its lease has not expired.
    renews: bool,
    /// Whether it contains slots that are new, or that were lost for a while.
    has_gained: bool,
    /// When the wait for other workers started, and the number of their items.
    waits_for: Option<(usize, Instant)>,
    /// Whether it takes all items, including those of other workers.
    takes_all: bool,
}

impl<'a> Share<'a> {
    /// An empty share.
    pub(super) fn new(app: &'a Core, mode: Mode, job: LeaseJob) -> Self {
        Self {
            app,
            mode,
            job,
            holder: holder(app),
            share: SlotsShare::default(),
            claimed: None,
            renews: false,
            has_gained: false,
            waits_for: None,
            takes_all: false,
        }
    }

    /// All slots, regardless of other workers.
    pub(super) fn all(app: &'a Core, mode: Mode, job: LeaseJob) -> Self {
        Self { takes_all: true, ..Self::new(app, mode, job) }
    }

    /// The slots that it holds now, claimed again if necessary. Returns slots beyond its share, so none of
    /// their items may be in progress.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn slots(&mut self) -> Result<Slots, WorkerError> {
        self.renewed(true).await.map(|share| share.slots)
    }

    /// The same while items are in progress: keeps all slots, and returns whether they exceed its share.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn kept(&mut self) -> Result<SlotsShare, WorkerError> {
        self.renewed(false).await
    }

    /// Returns slots beyond its share.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn give(&mut self) -> Result<Slots, WorkerError> {
        self.renews = true;
        self.slots().await
    }

    /// Returns whether it has gained slots since the last call: their last holder may have been interrupted.
    pub(crate) fn has_gained(&mut self) -> bool {
        std::mem::take(&mut self.has_gained)
    }

    async fn renewed(&mut self, gives: bool) -> Result<SlotsShare, WorkerError> {
        let lease = lease(self.app);
        let age = self.claimed.map(|claimed| self.app.timers.now() - claimed);
        let lasted = self.takes_all || age.is_some_and(|age| age < lease);
        let before = if lasted { self.share.slots } else { Slots::default() };
        if self.takes_all {
            self.share = SlotsShare { slots: Slots::ALL, has_excess: false };
        } else if self.renews || age.is_none_or(|age| age >= lease / RENEWALS) {
            let claimed = self.app.timers.now();
            self.share = self.claim(Some(lease), gives).await?;
            (self.claimed, self.renews) = (Some(claimed), false);
        }
        self.has_gained |= !self.share.slots.is_subset_of(before);
        Ok(self.share)
    }

    /// Waits for other workers to finish this number of items. If they make no progress for a while, takes
    /// these items as well.
    ///
    /// # Errors
    /// When the service ends.
    pub(crate) async fn wait_for_others(&mut self, items: usize) -> Result<(), WorkerError> {
        let now = self.app.timers.now();
        let (_, since) = *self.waits_for.insert(match self.waits_for {
            Some((before, since)) if items >= before => (before, since),
            _ => (items, now),
        });
        self.takes_all |= now - since >= lease(self.app) / RENEWALS;
        super::pause(self.app, LOOK_AGAIN).await?;
        // They may have ended.
        self.renews = true;
        Ok(())
    }

    pub(super) async fn leave(&mut self) {
        if self.claimed.take().is_some()
            && let Err(error) = self.claim(None, true).await
        {
            // The lease expires anyway.
            tracing::debug!(%error, job = ?self.job, "a worker's share was not given back");
        }
    }

    async fn claim(&self, lease: Option<Duration>, gives: bool) -> Result<SlotsShare, WorkerError> {
        let (job, holder) = (self.job, self.holder);
        let claim = SlotsClaim { job, holder, now: now(self.app), lease: lease.map(length), gives };
        match decide(self.app, self.mode, Lease::Slots(claim)).await? {
            Ok(Leased::Slots(share)) => Ok(share),
            other => panic!("a claim of slots was answered with {other:?}"),
        }
    }
}

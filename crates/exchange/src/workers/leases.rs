//! A worker's share of a queue, held by a lease in the store.
//!
//! Workers of one kind, in whatever processes, have slots of their queue each ([`crate::rules::leases`]). A share is claimed when
//! there is something to do, kept as long as there is, and given back at the end; who is killed keeps it until his lease ends.
//! Correctness never rests on it.

use std::time::{Duration, SystemTime};

use batzen_protocol::Timestamp;
use batzen_tables::exchange::LeaseJob;
use tokio::time::Instant;

use super::{Mode, WorkerError, decide};
use crate::core::Core;
use crate::rules::leases::Slots;
use crate::rules::{Lease, Leased, SlotsClaim, SlotsShare};

/// After which part of a lease it is renewed: by then others may have come or gone. So long, too, somebody who waits for the end
/// of all work leaves others' share to them while nothing of it is done.
const RENEWALS: u32 = 3;
/// How often he looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a worker that says nothing keeps what it is at.
pub(super) fn lease(app: &Core) -> Duration {
    super::idle_interval(app.config.workers.lease)
}

/// The machine's time, whatever the worker's clock is shifted by: leases are between processes.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(0))
}

/// A number for a worker that no other one has.
pub(super) fn holder() -> u64 {
    let mut bytes = [0; 8];
    batzen_crypto::fill_random(&mut bytes);
    (u64::from_le_bytes(bytes) >> 1).max(1)
}

/// A lease's length in the protocol's terms.
pub(super) fn length(lease: Duration) -> batzen_protocol::Duration {
    batzen_protocol::Duration::from_micros(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX))
}

/// The slots that a worker has.
pub(super) struct Share<'a> {
    app: &'a Core,
    mode: Mode,
    job: LeaseJob,
    holder: u64,
    share: SlotsShare,
    claimed: Option<Instant>,
    /// It is to be claimed again, however long it lasts.
    renews: bool,
    /// Whether there are slots in it that it had not before, or has lost for a while.
    has_gained: bool,
    /// The time since which somebody has been waiting for so many items that others are at.
    waits_for: Option<(usize, Instant)>,
    /// Whether it takes everything, whoever is at it.
    takes_all: bool,
}

impl<'a> Share<'a> {
    /// Nothing yet.
    pub fn new(app: &'a Core, mode: Mode, job: LeaseJob) -> Self {
        Self {
            app,
            mode,
            job,
            holder: holder(),
            share: SlotsShare::default(),
            claimed: None,
            renews: false,
            has_gained: false,
            waits_for: None,
            takes_all: false,
        }
    }

    /// Everything, whatever others do.
    pub fn all(app: &'a Core, mode: Mode, job: LeaseJob) -> Self {
        Self { takes_all: true, ..Self::new(app, mode, job) }
    }

    /// The slots it has now, claimed again if need be. What is more than its share is given up: nothing of it may be under way.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn slots(&mut self) -> Result<Slots, WorkerError> {
        self.renewed(true).await.map(|share| share.slots)
    }

    /// The same while something is under way: what it has it keeps, and says whether that is too much.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn kept(&mut self) -> Result<SlotsShare, WorkerError> {
        self.renewed(false).await
    }

    /// Gives up what is more than its share.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn give(&mut self) -> Result<Slots, WorkerError> {
        self.renews = true;
        self.slots().await
    }

    /// Whether it has got slots since this was asked last: whoever had them may have left something half-way.
    pub fn has_gained(&mut self) -> bool {
        std::mem::take(&mut self.has_gained)
    }

    async fn renewed(&mut self, gives: bool) -> Result<SlotsShare, WorkerError> {
        let lease = lease(self.app);
        let age = self.claimed.map(|claimed| claimed.elapsed());
        let lasted = self.takes_all || age.is_some_and(|age| age < lease);
        let before = if lasted { self.share.slots } else { Slots::default() };
        if self.takes_all {
            self.share = SlotsShare { slots: Slots::ALL, has_excess: false };
        } else if self.renews || age.is_none_or(|age| age >= lease / RENEWALS) {
            let claimed = Instant::now();
            self.share = self.claim(Some(lease), gives).await?;
            (self.claimed, self.renews) = (Some(claimed), false);
        }
        self.has_gained |= !self.share.slots.are_in(before);
        Ok(self.share)
    }

    /// Waits for others to be done with so many items; when they do nothing for a while, it takes them, too.
    ///
    /// # Errors
    /// When the service ends.
    pub async fn wait_for_others(&mut self, items: usize) -> Result<(), WorkerError> {
        let now = Instant::now();
        let (_, since) = *self.waits_for.insert(match self.waits_for {
            Some((before, since)) if items >= before => (before, since),
            _ => (items, now),
        });
        self.takes_all |= since.elapsed() >= lease(self.app) / RENEWALS;
        super::pause(self.app, LOOK_AGAIN).await?;
        // They may have left.
        self.renews = true;
        Ok(())
    }

    /// Gives it back.
    pub async fn leave(&mut self) {
        if self.claimed.take().is_some()
            && let Err(error) = self.claim(None, true).await
        {
            // It ends by itself.
            tracing::debug!(%error, job = ?self.job, "a worker's share was not given back");
        }
    }

    async fn claim(&self, lease: Option<Duration>, gives: bool) -> Result<SlotsShare, WorkerError> {
        let (job, holder) = (self.job, self.holder);
        let claim = SlotsClaim { job, holder, now: now(), lease: lease.map(length), gives };
        match decide(self.app, self.mode, Lease::Slots(claim)).await? {
            Ok(Leased::Slots(share)) => Ok(share),
            other => panic!("a claim of slots was answered with {other:?}"),
        }
    }
}

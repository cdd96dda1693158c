//! expire: gives back what is in purses that were not paid in time.
//!
//! Each command decides one purse. Several workers each have a share of the purses (`leases`). The queue is an
//! index of open purses by expiration, so none is forgotten, whenever it became visible.

use std::time::Duration;

use batzen_store::Found;
use batzen_tables::exchange::{LeaseJob, PursePub, Purses};

use super::leases::{self, Share};
use super::{
    Aside, ItemError, Mode, Progress, WorkerError, check_drain, decide, idle_interval, pause, queues, read,
};
use crate::core::Core;
use crate::reads::read;
use crate::rules::{PurseExpire, PurseExpired, Refusal};

/// How many purses are read at once.
const PAGE: usize = 256;
/// How often a purse is read again because it has changed.
const RACES_MAX: u32 = 8;
/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Decides all expired purses.
///
/// # Errors
/// When the store fails repeatedly; what was decided before stays.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    let mut expirer = Expirer::new(app, Mode::UntilIdle);
    let mut progress = Progress::default();
    loop {
        let (round, others) = expirer.round().await?;
        progress = Progress { done: progress.done + round.done, ..round };
        if others == 0 {
            expirer.share.leave().await;
            return Ok(progress);
        }
        expirer.share.wait_for_others(others).await?;
    }
}

/// Decides expired purses until the service ends, in addition to the service's own worker.
///
/// # Errors
/// When the store fails.
pub async fn serve(app: &Core) -> Result<(), WorkerError> {
    run(app).await
}

/// Decides expired purses until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    let mut expirer = Expirer::new(app, Mode::Service);
    let ended = expirer.run().await;
    expirer.share.leave().await;
    ended
}

struct Expirer<'a> {
    app: &'a Core,
    mode: Mode,
    aside: Aside<PursePub>,
    share: Share<'a>,
}

impl<'a> Expirer<'a> {
    fn new(app: &'a Core, mode: Mode) -> Self {
        let share = Share::new(app, mode, LeaseJob::Expire);
        Self { app, mode, aside: Aside::new(), share }
    }

    async fn run(&mut self) -> Result<(), WorkerError> {
        let app = self.app;
        loop {
            let (_, others) = self.round().await?;
            let now = app.now();
            let next = read(app, move |store| queues::next_purse_expiration(store, now)).await?;
            let until = next.and_then(|next| next.saturating_since(now).to_std());
            let mut idle = idle_interval(app.config.workers.expire_idle_sleep);
            if others > 0 {
                idle = idle.min(leases::lease(app));
            }
            pause(app, until.map_or(idle, |until| until.clamp(PAUSE_MIN, idle.max(PAUSE_MIN)))).await?;
        }
    }

    /// One pass over all expired purses. Also returns how many of them belong to other workers.
    async fn round(&mut self) -> Result<(Progress, usize), WorkerError> {
        let (mut progress, mut others) = (Progress::default(), 0);
        let now = self.app.now();
        let mut position = None;
        loop {
            let from = position.take();
            let page = read(self.app, move |store| queues::expired_purses(store, now, from, PAGE)).await?;
            for found in &page {
                check_drain(self.app)?;
                let key = found.key.purse_pub.as_bytes();
                if !self.share.slots().await?.has(key[0], key[31]) {
                    others += 1;
                    continue;
                }
                match self.expire(found).await? {
                    Ok(true) => progress.done += 1,
                    Ok(false) => {}
                    Err(reason) => {
                        let purse_pub = found.key.purse_pub;
                        if self.aside.insert(purse_pub) {
                            tracing::error!(%purse_pub, %reason, "a purse cannot be given back, set aside");
                        }
                    }
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => position = Some(queues::purse_position(last)),
                _ => break,
            }
        }
        progress.set_aside = self.aside.end_round();
        self.app.metrics.workers.purses_set_aside.set(progress.set_aside);
        Ok((progress, others))
    }

    /// Decides a purse. True if this call decided it.
    async fn expire(&self, found: &Found<Purses>) -> Result<Result<bool, ItemError>, WorkerError> {
        let purse_pub = found.key.purse_pub;
        let mut races = 0;
        loop {
            let (reserve_pub, coins) =
                read(self.app, move |store| read::purse_parts(store, purse_pub)).await?;
            match decide(self.app, self.mode, PurseExpire { purse_pub, reserve_pub, coins }).await? {
                Ok(PurseExpired::NotDue) => return Ok(Ok(false)),
                Ok(PurseExpired::Expired) => {
                    self.app.metrics.workers.purses_expired.inc();
                    self.app.notices.purse_changed(&purse_pub);
                    return Ok(Ok(true));
                }
                Err(Refusal::PurseChanged) if races < RACES_MAX => races += 1,
                Err(refusal) => return Ok(Err(refusal.into())),
            }
        }
    }
}

//! expire: refunds purses that expired before they were paid.
//!
//! Each command decides one purse. Several workers each have a share of the purses (`leases`). The queue is an
//! index of open purses by expiration, so none is forgotten, whenever it became visible.

use batzen_protocol::Timestamp;
use batzen_store::{Found, Store, StoreError};
use batzen_tables::exchange::{LeaseJob, PursePub, Purses};
use futures_util::future::BoxFuture;

use super::leases::Share;
use super::rounds::{self, Rounds};
use super::{Aside, ItemError, Mode, Progress, WorkerError, check_drain, decide, queues, read};
use crate::core::Core;
use crate::reads::read;
use crate::rules::{PurseExpire, PurseExpired, Refusal};

/// Number of purses that are read at once.
const PAGE: usize = 256;
/// Number of times that a purse is read again because it has changed.
const RACES_MAX: u32 = 8;

/// Decides all expired purses.
///
/// # Errors
/// When the store fails repeatedly; what was decided before stays.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    rounds::until_idle(&mut Expirer::new(app, Mode::UntilIdle)).await
}

/// Decides expired purses until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    rounds::until_stopped(&mut Expirer::new(app, Mode::Service)).await
}

/// Refunds expired purses.
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
}

impl<'a> Rounds<'a> for Expirer<'a> {
    fn app(&self) -> &'a Core {
        self.app
    }

    fn share(&mut self) -> &mut Share<'a> {
        &mut self.share
    }

    fn idle_sleep(&self) -> batzen_protocol::Duration {
        self.app.config.workers.expire_idle_sleep
    }

    fn next_due(&self) -> fn(&Store, Timestamp) -> Result<Option<Timestamp>, StoreError> {
        queues::next_purse_expiration
    }

    fn round(&mut self) -> BoxFuture<'_, Result<(Progress, usize), WorkerError>> {
        Box::pin(self.pass())
    }
}

impl Expirer<'_> {
    async fn pass(&mut self) -> Result<(Progress, usize), WorkerError> {
        let (mut progress, mut others) = (Progress::default(), 0);
        let now = self.app.now();
        let mut position = None;
        loop {
            let from = position.take();
            let page = read(self.app, move |store| {
                queues::expired::<Purses>(store, Purses::BY_EXPIRATION, now, from, PAGE)
            });
            let page = page.await?;
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
                            tracing::error!(%purse_pub, %reason, "a purse cannot be refunded, set aside");
                        }
                    }
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => {
                    position = Some(queues::expiration_position(last.row.expiration, &last.key));
                }
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

//! closer: turns what is left in expired reserves into prepared transfers to where the money came from.
//!
//! Requests of owners come first. Each command closes one reserve. Several closers each have a share of the reserves (`leases`). Reserves
//! without an origin account are not in the queue. Reserves are skipped if no configured account can pay
//! their origin, or if no closing fee is known for the day of their expiration.

use batzen_crypto::{HashCode, Wtid};
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::{CloseRequests, LeaseJob, PaytoHash, ReservePub, Reserves};
use futures_util::future::BoxFuture;

use super::leases::Share;
use super::rounds::{self, Rounds};
use super::{
    Aside, ItemError, Mode, Progress, WorkerError, check_drain, debit_account, decide, queues, read,
};
use crate::core::Core;
use crate::reads::read;
use crate::rules::transfers::payto_method;
use crate::rules::{CloseReserve, Closed, Refusal};

/// Number of reserves that are read at once.
const PAGE: usize = 256;
/// Number of attempts at a closing whose transfer's identifier is taken.
const RACES_MAX: u32 = 8;

/// Closes all expired reserves that can be closed.
///
/// # Errors
/// When the store fails repeatedly; what was closed before stays.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    rounds::until_idle(&mut Closer::new(app, Mode::UntilIdle)).await
}

/// Closes until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    rounds::until_stopped(&mut Closer::new(app, Mode::Service)).await
}

struct Closer<'a> {
    app: &'a Core,
    mode: Mode,
    aside: Aside<ReservePub>,
    share: Share<'a>,
}

impl<'a> Closer<'a> {
    fn new(app: &'a Core, mode: Mode) -> Self {
        let share = Share::new(app, mode, LeaseJob::Closer);
        Self { app, mode, aside: Aside::new(), share }
    }
}

impl<'a> Rounds<'a> for Closer<'a> {
    fn app(&self) -> &'a Core {
        self.app
    }

    fn share(&mut self) -> &mut Share<'a> {
        &mut self.share
    }

    fn idle_sleep(&self) -> batzen_protocol::Duration {
        self.app.config.workers.closer_idle_sleep
    }

    fn next_due(&self) -> fn(&Store, Timestamp) -> Result<Option<Timestamp>, StoreError> {
        queues::next_expiration
    }

    fn round(&mut self) -> BoxFuture<'_, Result<(Progress, usize), WorkerError>> {
        Box::pin(self.pass())
    }
}

impl Closer<'_> {
    async fn pass(&mut self) -> Result<(Progress, usize), WorkerError> {
        let (mut progress, mut others) = (Progress::default(), 0);
        let mut position = None;
        loop {
            let from = position.take();
            let page = read(self.app, move |store| {
                queues::open::<CloseRequests>(store, CloseRequests::OPEN, from, PAGE)
            });
            let page = page.await?;
            for found in &page {
                let (key, h_payto) = (&found.key, found.row.h_payto);
                self.close_one(key.reserve_pub, Some(key.request_time), h_payto, &mut progress, &mut others)
                    .await?;
            }
            match page.last() {
                Some(last) if page.len() == PAGE => position = Some(queues::serial_position(last.serial)),
                _ => break,
            }
        }
        let now = self.app.now();
        let mut position = None;
        loop {
            let from = position.take();
            let page = read(self.app, move |store| {
                queues::expired::<Reserves>(store, Reserves::BY_EXPIRATION, now, from, PAGE)
            });
            let page = page.await?;
            for found in &page {
                let Some(h_payto) = found.row.origin else { continue };
                self.close_one(found.key.reserve_pub, None, h_payto, &mut progress, &mut others).await?;
            }
            match page.last() {
                Some(last) if page.len() == PAGE => {
                    position = Some(queues::expiration_position(last.row.expiration, &last.key));
                }
                _ => break,
            }
        }
        progress.set_aside = self.aside.end_round();
        self.app.metrics.workers.reserves_set_aside.set(progress.set_aside);
        Ok((progress, others))
    }

    /// Closes a reserve if it is in this worker's share, and counts it.
    async fn close_one(
        &mut self,
        reserve_pub: ReservePub,
        request_time: Option<Timestamp>,
        h_payto: PaytoHash,
        progress: &mut Progress,
        others: &mut usize,
    ) -> Result<(), WorkerError> {
        check_drain(self.app)?;
        let key = reserve_pub.as_bytes();
        if !self.share.slots().await?.has(key[0], key[31]) {
            *others += 1;
            return Ok(());
        }
        match self.close(reserve_pub, request_time, h_payto).await? {
            Ok(true) => progress.done += 1,
            Ok(false) => {}
            Err(reason) => {
                if self.aside.insert(reserve_pub) {
                    tracing::error!(%reserve_pub, %reason, "a reserve cannot be closed, set aside");
                }
            }
        }
        Ok(())
    }

    /// Closes a reserve. True if this call closed it.
    async fn close(
        &self,
        reserve_pub: ReservePub,
        request_time: Option<Timestamp>,
        h_payto: PaytoHash,
    ) -> Result<Result<bool, ItemError>, WorkerError> {
        let payto_uri = read(self.app, move |store| read::payto(store, h_payto)).await?;
        let Some(payto_uri) = payto_uri else { return Ok(Err(ItemError::UnknownAccount)) };
        let Some(method) = payto_method(&payto_uri) else {
            return Ok(Err(ItemError::NoWireMethod(payto_uri)));
        };
        let Some(account) = debit_account(self.app, method) else {
            return Ok(Err(ItemError::NoDebitAccount(method.to_owned())));
        };
        let mut races = 0;
        loop {
            let command = CloseReserve {
                reserve_pub,
                request_time,
                h_payto,
                method: account.method.to_owned(),
                account: account.id,
                wtid: Wtid::from_bytes(self.app.random()),
                request_uid: HashCode::from_bytes(self.app.random()),
            };
            match decide(self.app, self.mode, command).await? {
                Ok(Closed::NotDue | Closed::Empty) => return Ok(Ok(false)),
                Ok(Closed::Closed { wtid, amount, fee, paid }) => {
                    tracing::debug!(%reserve_pub, %wtid, %amount, %fee, %paid, "reserve closed");
                    self.app.metrics.workers.closings.inc();
                    if !paid.is_zero() {
                        self.app.notices.transfers.announce(&[]);
                    }
                    return Ok(Ok(true));
                }
                Err(Refusal::WtidTaken) if races < RACES_MAX => races += 1,
                Err(refusal) => return Ok(Err(refusal.into())),
            }
        }
    }
}

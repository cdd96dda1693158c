//! Finds the open transfers that are due, and requests them from the bank.

use std::collections::HashSet;

use batzen_crypto::Wtid;
use batzen_protocol::Timestamp;
use batzen_service::wire_gateway::TransferRequest;
use batzen_store::StoreError;
use batzen_tables::exchange::Prepared;

use super::Transfers;
use super::answers::{Answered, Retry, Verdict, classify};
use super::pages::{Open, PAYTO_BYTES_MAX, Page, Receiver, read_page};
use super::schedule::{self, Pass};
use crate::core::Core;
use crate::rules::leases::Slots;
use crate::workers::{Mode, WorkerError, check_drain, queues, read};

/// Number of transfers that are requested at the same time: twice the size of a bank's batch, so that the
/// bank never waits for requests.
const IN_FLIGHT_MAX: usize = 512;
/// Number of open transfers that a service with clients reads and claims at once, unless configured otherwise ...
const PAGE: usize = 1_024;
const PAGE_BESIDE_CLIENTS: usize = 128;
/// ... and at most.
const PAGE_MAX: usize = 65_536;
/// Number up to which refused transfers are counted.
const REFUSED_COUNTED_MAX: usize = 1_000;
/// The maximum number of unrecorded answers. No more transfers are requested once it is reached.
const UNRECORDED_MAX: usize = 1_024;

impl Transfers<'_> {
    /// Passes through the open transfers and requests those that are due. Returns their number.
    pub(super) async fn pass(&mut self, which: Pass) -> Result<usize, WorkerError> {
        self.just_ended.clear();
        let mut position = match which {
            Pass::All => {
                self.others = 0;
                None
            }
            Pass::New => self.seen.clone(),
        };
        let size = self.options.shard_size.map(|size| usize::try_from(size).unwrap_or(PAGE_MAX));
        let mut launched = 0;
        let mut still_open = HashSet::new();
        loop {
            let from = position.take();
            let again = from.clone();
            let suits = if self.is_beside_clients() { PAGE_BESIDE_CLIENTS } else { PAGE };
            let limit = size.unwrap_or(suits).clamp(1, PAGE_MAX);
            let page = read(self.app, move |store| read_page(store, from, limit)).await?;
            let Page { open: page, has_next } = page;
            let slots = if page.is_empty() { self.slots } else { self.slots().await? };
            if std::mem::replace(&mut self.slots, slots) != slots {
                // The last holder of these slots may have settled transfers of this page.
                position = again;
                continue;
            }
            if let Some(last) = page.last() {
                let last = queues::serial_position(last.found.serial);
                position = has_next.then(|| last.clone());
                self.seen = Some(last);
            }
            for open in page {
                let wtid = open.found.key.wtid;
                if !slots.has(wtid.as_bytes()[0], wtid.as_bytes()[31]) {
                    self.others += 1;
                    continue;
                }
                if self.retries.contains_key(&wtid) {
                    still_open.insert(wtid);
                }
                if !self.is_due(wtid) {
                    continue;
                }
                self.waited_s = self.age_s(open.found.row.time);
                while self.asking.len() >= self.in_flight_max() || self.answered.len() >= UNRECORDED_MAX {
                    self.step_or_end().await?;
                }
                check_drain(self.app)?;
                launched += usize::from(self.launch(open));
            }
            if position.is_none() {
                break;
            }
        }
        if which == Pass::New {
            return Ok(launched);
        }
        // Do not retry transfers that other workers have settled or hold now.
        let (in_flight, just_ended) = (&self.in_flight, &self.just_ended);
        self.retries.retain(|wtid, _| {
            still_open.contains(wtid) || in_flight.contains(wtid) || just_ended.contains(wtid)
        });
        let metrics = &self.app.metrics.workers;
        let set_aside = self.aside.end_round();
        metrics.transfers_set_aside.set(set_aside);
        count_refused(self.app).await?;
        self.progress.set_aside = self.failed + set_aside;
        Ok(launched)
    }

    /// The worker's current share of the queue. Slots beyond it are returned only when none of their
    /// transfers is in flight, so that the bank is not asked twice.
    async fn slots(&mut self) -> Result<Slots, WorkerError> {
        let share = self.share.kept().await?;
        if !share.has_excess {
            return Ok(share.slots);
        }
        while self.step_or_end().await? {}
        self.share.give().await
    }

    fn age_s(&self, time: Timestamp) -> u64 {
        self.app.now().saturating_since(time).as_micros() / 1_000_000
    }

    pub(super) fn is_beside_clients(&self) -> bool {
        self.mode == Mode::Service && self.app.lane.metrics().serves_clients()
    }

    fn in_flight_max(&self) -> usize {
        if self.is_beside_clients() {
            schedule::in_flight_beside_clients(self.waited_s).min(IN_FLIGHT_MAX)
        } else {
            IN_FLIGHT_MAX
        }
    }

    fn is_due(&self, wtid: Wtid) -> bool {
        let waits = |retry: &Retry| retry.not_before.is_none_or(|time| self.app.timers.now() < time);
        !self.in_flight.contains(&wtid)
            && !self.just_ended.contains(&wtid)
            && !self.retries.get(&wtid).is_some_and(waits)
    }

    /// Requests a transfer, if its account is configured.
    fn launch(&mut self, open: Open) -> bool {
        let (wtid, row, now) = (open.found.key.wtid, open.found.row, self.app.timers.now());
        let account = row.account;
        let paused_until = self.health.get(&account).and_then(|health| health.paused_until);
        if paused_until.is_some_and(|time| now < time) {
            return false;
        }
        // Only the account that was chosen with the decision may pay: another account would pay a second
        // time.
        let Some((_, gateway)) = self.gateways.get(&account) else {
            if self.aside.insert(wtid) {
                tracing::error!(%wtid, "a transfer's account is not configured (any more), set aside");
            }
            return false;
        };
        let credit_account = match open.receiver {
            Receiver::Account(payto_uri) => payto_uri.to_string(),
            Receiver::TooLong(bytes) => {
                let reason = format!(
                    "not asked: the receiver's payto URI has {bytes} bytes, and no bank takes more than {PAYTO_BYTES_MAX}"
                );
                self.in_flight.insert(wtid);
                self.handle_answer(Answered { wtid, account, verdict: Verdict::Failed(reason) });
                return true;
            }
        };
        let request = TransferRequest {
            request_uid: row.request_uid,
            amount: row.amount.of(self.app.config.currency),
            exchange_base_url: row.exchange_base_url,
            wtid,
            credit_account,
        };
        let gateway = gateway.clone();
        self.in_flight.insert(wtid);
        self.asking.push(Box::pin(async move {
            let verdict = classify(gateway.transfer(&request).await);
            Answered { wtid, account, verdict }
        }));
        true
    }
}

/// Updates the gauge of transfers that wait for an operator, including those of earlier runs.
async fn count_refused(app: &Core) -> Result<(), WorkerError> {
    let refused = read(app, |store| {
        let found = queues::open::<Prepared>(store, Prepared::FAILED, None, REFUSED_COUNTED_MAX)?;
        Ok::<_, StoreError>(found.len() as u64)
    })
    .await?;
    let gauge = &app.metrics.workers.transfers_refused;
    if refused > gauge.get().unwrap_or(0) {
        tracing::error!(
            refused,
            "the bank refuses transfers for good: see `batzen exchange transfers`, mend the cause, and retry them"
        );
    }
    gauge.set(refused);
    Ok(())
}

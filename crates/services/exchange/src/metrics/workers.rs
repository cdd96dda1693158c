//! Counters of the workers of this process, and the state of all workers as the store shows it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batzen_metrics::{Counter, Page};
use batzen_protocol::Timestamp;

/// Age at which a look at the store is too old to be shown.
const STANDINGS_AGE_MAX: Duration = Duration::from_secs(30);
/// Number of this process's latest leases that are remembered.
const HOLDERS_MAX: usize = 256;

/// A number that a process knows once it has measured it, and does not show before.
#[derive(Debug)]
pub struct Measured(AtomicU64);

impl Default for Measured {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NOT_YET))
    }
}

impl Measured {
    const NOT_YET: u64 = u64::MAX;

    /// Sets it.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The last value.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|value| *value != Self::NOT_YET)
    }
}

/// The leases on a worker's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leases {
    /// Number of workers that hold one now.
    pub(crate) holders: u64,
    /// The end of the last one, if there is any.
    pub(crate) until: Option<Timestamp>,
    /// Number of holders in this process.
    pub(crate) own: u64,
}

/// The source of a worker's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// In the store: when the oldest open item became due, if one is.
    Stored(Option<Timestamp>),
    /// At the bank, which the worker asks all the time.
    AtBank,
}

/// The work of one kind of worker, as the store shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The worker's name.
    pub(crate) worker: &'static str,
    /// Its work.
    pub(crate) queue: Queue,
    /// Its leases; none if it works without.
    pub(crate) leases: Option<Leases>,
}

impl Standing {
    /// Time that the oldest item has been due.
    fn lag(&self, now: Timestamp) -> Option<u64> {
        match self.queue {
            Queue::Stored(due) => Some(due.map_or(0, |due| seconds(now, due))),
            Queue::AtBank => None,
        }
    }

    /// Time that there has been work and nobody for it; none if leases cannot tell.
    fn unattended(&self, now: Timestamp, lease_now: Timestamp, watched: Timestamp) -> Option<u64> {
        let leases = self.leases?;
        if leases.holders > 0 {
            return Some(0);
        }
        let since_lease = |otherwise| seconds(lease_now, leases.until.unwrap_or(otherwise));
        Some(match self.queue {
            Queue::Stored(None) => 0,
            Queue::Stored(Some(due)) => seconds(now, due).min(since_lease(Timestamp::ZERO)),
            Queue::AtBank => since_lease(watched),
        })
    }
}

fn seconds(now: Timestamp, since: Timestamp) -> u64 {
    now.saturating_since(since).as_micros() / 1_000_000
}

/// The state of all workers, wherever they run, when this process looked at the store last.
#[derive(Debug, Default)]
pub(crate) struct Standings(Mutex<Option<Look>>);

#[derive(Debug)]
struct Look {
    at: Instant,
    /// The last look at which somebody watched the bank, or else the first look, by the clock of leases.
    watched: Timestamp,
    rows: Vec<Standing>,
}

impl Standings {
    fn lock(&self) -> MutexGuard<'_, Option<Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the last look.
    pub(crate) fn set(&self, rows: Vec<Standing>, lease_now: Timestamp) {
        let mut look = self.lock();
        let is_watched = |row: &Standing| {
            row.queue == Queue::AtBank && row.leases.is_some_and(|leases| leases.holders > 0)
        };
        let before = look.as_ref().filter(|_| !rows.iter().any(is_watched));
        let watched = before.map_or(lease_now, |look| look.watched);
        *look = Some(Look { at: Instant::now(), watched, rows });
    }

    /// Writes lags and leases, unless the store could not be read for a while. `lease_now` is the time by which leases
    /// end.
    pub(crate) fn write(&self, page: &mut Page, now: Timestamp, lease_now: Timestamp) {
        let look = self.lock();
        if let Some(Look { watched, rows, .. }) =
            look.as_ref().filter(|look| look.at.elapsed() <= STANDINGS_AGE_MAX)
        {
            write(page, rows, (now, lease_now, *watched));
        }
    }
}

fn write(page: &mut Page, rows: &[Standing], times: (Timestamp, Timestamp, Timestamp)) {
    let (now, lease_now, watched) = times;
    for row in rows {
        if let Some(lag) = row.lag(now) {
            let name = format!("batzen_worker_{}_lag_seconds", row.worker);
            page.gauge(&name, "Time that the oldest item in the store has been due", lag);
        }
    }
    let leases = || rows.iter().filter_map(|row| Some((row.worker, row.leases?)));
    page.gauges(
        "batzen_worker_lease_holders",
        "Workers of all processes that hold a lease; an idle worker needs none",
        "worker",
        leases().map(|(worker, leases)| (worker, leases.holders)),
    );
    page.gauges(
        "batzen_worker_lease_own",
        "Workers of this process that hold a lease",
        "worker",
        leases().map(|(worker, leases)| (worker, leases.own)),
    );
    page.gauges(
        "batzen_worker_lease_until_timestamp_seconds",
        "When the last lease of a worker ends or ended",
        "worker",
        leases().filter_map(|(worker, leases)| Some((worker, leases.until?.as_micros() / 1_000_000))),
    );
    page.gauges(
        "batzen_worker_unattended_seconds",
        "Time that there has been work and no worker that holds a lease",
        "worker",
        rows.iter().filter_map(|row| Some((row.worker, row.unattended(now, lease_now, watched)?))),
    );
}

/// The numbers under which this process's workers hold leases, the latest last.
#[derive(Debug, Default)]
pub(crate) struct OwnHolders(Mutex<VecDeque<u64>>);

impl OwnHolders {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one.
    pub(crate) fn add(&self, holder: u64) {
        let mut holders = self.lock();
        if holders.len() == HOLDERS_MAX {
            holders.pop_front();
        }
        holders.push_back(holder);
    }

    /// Returns whether a holder is a worker of this process.
    pub(crate) fn has(&self, holder: u64) -> bool {
        self.lock().contains(&holder)
    }
}

/// Counters of all workers of one process, `batzen_worker_*` in `/metrics`.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    /// Credits booked.
    pub credits: Counter,
    /// Imported pages of the bank's history.
    pub(crate) credit_pages: Counter,
    /// Rows of the bank's history that were set aside: unreadable, or in another currency.
    pub credits_set_aside: Counter,
    /// Rows set aside that wait for an operator, including those of earlier runs; counted up to 1,000.
    pub credits_aside: Measured,
    /// Failed or unusable answers to history requests.
    pub history_failures: Counter,
    /// Age of the newest credit of the last page when it was booked, in seconds.
    pub(crate) credit_lag_s: Measured,
    /// Deposits aggregated.
    pub deposits: Counter,
    /// Transfers to merchants prepared.
    pub(crate) aggregates: Counter,
    /// Units of aggregation below the smallest payable amount.
    pub(crate) transients: Counter,
    /// Targets that could not be paid.
    pub targets_set_aside: Measured,
    /// Transfers that the bank accepted.
    pub transfers: Counter,
    /// Transfers that the bank refused for good. An operator must act.
    pub transfers_failed: Counter,
    /// Transfers refused for good that wait for an operator, including those of earlier runs; counted up to
    /// 1,000.
    pub transfers_refused: Measured,
    /// Failed attempts at a transfer that will be repeated.
    pub transfer_failures: Counter,
    /// Transfers requested from the bank and not answered yet.
    pub(crate) transfers_in_flight: Measured,
    /// Transfers from accounts that are not configured.
    pub transfers_set_aside: Measured,
    /// Reserves closed.
    pub(crate) closings: Counter,
    /// Expired reserves that could not be closed.
    pub reserves_set_aside: Measured,
    /// Expired purses refunded.
    pub(crate) purses_expired: Counter,
    /// Expired purses that could not be refunded.
    pub(crate) purses_set_aside: Measured,
    /// Orders to pay out profit executed.
    pub(crate) drains: Counter,
    /// Workers that ended abnormally and were started again.
    pub restarts: Counter,
    /// The work and the leases of the workers of all processes.
    pub(crate) standings: Standings,
    /// The leases of this process's workers.
    pub(crate) own_holders: OwnHolders,
}

impl WorkerMetrics {
    /// For the metrics page: name, help text, whether it only grows, value; none if it is not known here.
    pub(crate) fn rows(&self) -> Vec<(&'static str, &'static str, bool, Option<u64>)> {
        let counter = |name, help, counter: &Counter| (name, help, true, Some(counter.get()));
        let gauge = |name, help, gauge: &Measured| (name, help, false, gauge.get());
        vec![
            counter("batzen_worker_wirewatch_credits_total", "Credits booked", &self.credits),
            counter("batzen_worker_wirewatch_pages_total", "Pages of credits imported", &self.credit_pages),
            counter(
                "batzen_worker_wirewatch_set_aside_total",
                "Rows of the bank that could not be booked",
                &self.credits_set_aside,
            ),
            gauge(
                "batzen_worker_wirewatch_set_aside",
                "Rows of the bank that fill no reserve and wait for an operator",
                &self.credits_aside,
            ),
            counter(
                "batzen_worker_wirewatch_failures_total",
                "Failed requests for the bank's history",
                &self.history_failures,
            ),
            gauge(
                "batzen_worker_wirewatch_lag_seconds",
                "Age of the last credit when it was booked",
                &self.credit_lag_s,
            ),
            counter("batzen_worker_aggregator_deposits_total", "Deposits aggregated", &self.deposits),
            counter(
                "batzen_worker_aggregator_transfers_total",
                "Transfers to merchants prepared",
                &self.aggregates,
            ),
            counter(
                "batzen_worker_aggregator_transients_total",
                "Units that were too small to be paid",
                &self.transients,
            ),
            gauge(
                "batzen_worker_aggregator_set_aside",
                "Targets that cannot be paid now",
                &self.targets_set_aside,
            ),
            counter("batzen_worker_transfer_done_total", "Transfers accepted by the bank", &self.transfers),
            counter(
                "batzen_worker_transfer_failed_total",
                "Transfers refused by the bank for good",
                &self.transfers_failed,
            ),
            gauge(
                "batzen_worker_transfer_refused",
                "Transfers refused for good that wait for an operator",
                &self.transfers_refused,
            ),
            counter(
                "batzen_worker_transfer_retries_total",
                "Attempts at transfers that have to be repeated",
                &self.transfer_failures,
            ),
            gauge("batzen_worker_transfer_in_flight", "Transfers being asked for", &self.transfers_in_flight),
            gauge(
                "batzen_worker_transfer_set_aside",
                "Transfers of accounts that are not configured",
                &self.transfers_set_aside,
            ),
            counter("batzen_worker_closer_reserves_total", "Reserves closed", &self.closings),
            gauge(
                "batzen_worker_closer_set_aside",
                "Expired reserves that cannot be closed now",
                &self.reserves_set_aside,
            ),
            counter("batzen_worker_expire_purses_total", "Expired purses refunded", &self.purses_expired),
            gauge(
                "batzen_worker_expire_set_aside",
                "Expired purses that cannot be refunded now",
                &self.purses_set_aside,
            ),
            counter("batzen_worker_drain_orders_total", "Orders to pay out profit executed", &self.drains),
            counter("batzen_worker_restarts_total", "Workers started again after a failure", &self.restarts),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = "aggregator";

    fn at(s: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + s)
    }

    fn standing(due: Option<u64>, holders: u64, until: Option<u64>) -> Standing {
        let leases = Leases { holders, until: until.map(at), own: 0 };
        Standing { worker: WORKER, queue: Queue::Stored(due.map(at)), leases: Some(leases) }
    }

    fn page(rows: Vec<Standing>, now: u64) -> String {
        let (standings, mut page) = (Standings::default(), Page::new());
        standings.set(rows, at(50));
        standings.write(&mut page, at(now), at(now));
        page.finish()
    }

    #[test]
    fn work_is_unattended_from_when_it_is_due_or_the_last_lease_has_ended() {
        let unattended = |standing: Standing| standing.unattended(at(100), at(100), at(50));
        assert_eq!(unattended(standing(None, 0, Some(10))), Some(0), "there is nothing to do");
        assert_eq!(unattended(standing(Some(10), 1, Some(103))), Some(0), "somebody is at it");
        assert_eq!(unattended(standing(Some(10), 0, Some(40))), Some(60), "the worker has died");
        assert_eq!(unattended(standing(Some(70), 0, Some(40))), Some(30), "there was nothing to do before");
        assert_eq!(unattended(standing(Some(10), 0, None)), Some(90), "there never was a worker");
        let bank = |holders, until| Standing { queue: Queue::AtBank, ..standing(None, holders, until) };
        assert_eq!(unattended(bank(0, Some(40))), Some(60));
        assert_eq!(unattended(bank(0, None)), Some(50), "as far as this process knows");
        assert_eq!(unattended(bank(1, Some(40))), Some(0));
        assert_eq!(unattended(Standing { leases: None, ..standing(Some(10), 0, None) }), None);
    }

    #[test]
    fn a_process_shows_only_what_it_knows() {
        let metrics = WorkerMetrics::default();
        assert!(metrics.rows().iter().all(|(.., grows, value)| *grows == value.is_some()));
        metrics.transfers_in_flight.set(0);
        let known = metrics.rows().into_iter().find(|row| row.0 == "batzen_worker_transfer_in_flight");
        assert_eq!(known.unwrap().3, Some(0));
        let mut nothing = Page::new();
        Standings::default().write(&mut nothing, at(0), at(0));
        assert_eq!(nothing.finish(), Page::new().finish(), "the store has not been read");
    }

    #[test]
    fn lags_and_leases_are_shown() {
        let drain = Standing { worker: "drain", leases: None, ..standing(None, 0, None) };
        let text = page(vec![standing(Some(10), 0, Some(40)), drain], 100);
        for line in [
            "batzen_worker_aggregator_lag_seconds 90",
            "batzen_worker_drain_lag_seconds 0",
            "batzen_worker_lease_holders{worker=\"aggregator\"} 0",
            "batzen_worker_lease_own{worker=\"aggregator\"} 0",
            "batzen_worker_lease_until_timestamp_seconds{worker=\"aggregator\"} 1040",
            "batzen_worker_unattended_seconds{worker=\"aggregator\"} 60",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} in {text}");
        }
        assert!(!text.contains("worker=\"drain\""), "it has no leases: {text}");
    }

    #[test]
    fn the_latest_holders_are_remembered() {
        let own = OwnHolders::default();
        (0..=HOLDERS_MAX as u64).for_each(|holder| own.add(holder));
        assert!(!own.has(0));
        assert!(own.has(1) && own.has(HOLDERS_MAX as u64));
    }
}

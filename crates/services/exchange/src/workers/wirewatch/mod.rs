//! wirewatch: imports incoming transfers from the bank.
//!
//! Watchers of an account, in one or several processes, divide its history into ranges of row ids
//! ([`crate::rules::leases`]). One cursor per account is stored: the row up to which all rows were processed.
//! Several commands book a page of the bank's history. The last one is sent when all others have taken
//! effect. It records the progress of the range, and moves the cursor as far as the earlier ranges permit.
//! Every row is booked once, even if it is reported again, so the process may end at any time. The cursor
//! never passes a row that was not processed. (Ids are compared, not counted, because gaps are normal.) While
//! a full page is being booked, the next one is fetched.
//!
//! A row that fills no reserve is set aside ([`aside`]) before the cursor passes it.

pub mod aside;
mod pages;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use batzen_http::client::{Client, ClientError};
use batzen_service::wire_gateway::{HistoryQuery, IncomingRow, WireGatewayClient};
use batzen_tables::exchange::AccountId;
use tokio::time::Instant;

use super::leases;
use super::{
    Mode, Progress, WorkerError, WorkerOptions, check_drain, client, decide, gateway, idle_interval, pause,
    read,
};
use crate::config::AccountConfig;
use crate::core::Core;
use crate::rules::leases::front;
use crate::rules::{Lease, Leased, RangeClaim, RangeState};
use pages::Imported;

/// The size of a range that a watcher claims, as a distance of row ids, unless configured otherwise.
pub(crate) const SHARD_ROWS: u64 = 65_536;
/// Interval at which an idle watcher checks the progress of others.
const STANDBY_LOOK: Duration = Duration::from_millis(500);
/// The longest time after the end of its lease until a single watcher renews it, so that other processes see that it
/// lives, and the number of leases that would fit into a shorter one.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);
const SIGN_OF_LIFE_LEASES: u32 = 7;
/// The shortest pause between two renewals while there is nothing to do.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Interval at which an idle watcher renews its lease.
const STANDBY_RENEW: Duration = Duration::from_secs(20);
/// Time between two counts of the credits that are set aside: operators settle them in other processes, too.
const COUNT_PAUSE: Duration = Duration::from_secs(60);
/// Number of rows that are requested at once.
const PAGE_ROWS: usize = 8_192;
/// A page counts as full if it has at least this many rows and as many as the page before: the bank's limit
/// is then smaller than ours.
const BANK_PAGE_ROWS_MIN: usize = 128;
/// Time between checks whether other watchers have imported the first range.
const OTHERS_PAUSE: Duration = Duration::from_millis(50);
/// The bank's long-poll timeout, unless configured otherwise.
const LONG_POLL: Duration = Duration::from_secs(60);
/// The longest value that is configured.
const LONG_POLL_MAX: Duration = Duration::from_secs(3_600);
/// The shortest pause after a page that was not full, so that the bank can collect more rows.
const PAGE_PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest such pause.
const PAGE_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The accounts that are watched.
pub(super) fn accounts(app: &Core) -> impl Iterator<Item = &AccountConfig> {
    app.config.accounts.iter().filter(|account| account.enable_credit && account.gateway.is_some())
}

fn is_asked_for(account: &AccountConfig, options: WorkerOptions) -> bool {
    options.account.is_none_or(|id| id == AccountId::of_payto(&account.payto_uri))
}

/// Imports all rows of the bank on all watched accounts. An account that the bank does not know counts as
/// empty.
///
/// # Errors
/// [`WorkerError::Bank`] when it fails repeatedly, or [`WorkerError::Disorder`]; what was imported before
/// stays.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    share_until_idle(app, WorkerOptions::default()).await
}

/// The same as one of several watchers.
///
/// # Errors
/// As [`run_until_idle`].
pub async fn share_until_idle(app: &Core, options: WorkerOptions) -> Result<Progress, WorkerError> {
    let mut progress = Progress::default();
    for account in accounts(app).filter(|account| is_asked_for(account, options)) {
        let watch = Watch::new(app, account, Mode::UntilIdle, options)?;
        tokio::select! {
            biased;
            () = app.drain.draining() => return Err(WorkerError::Stopped),
            result = watch.until_idle(&mut progress) => result?,
        }
        watch.leave().await;
    }
    Ok(progress)
}

/// Returns whether an immediate retry makes sense in a run until idle.
fn retries(error: &ClientError) -> bool {
    error.is_transient() || matches!(error, ClientError::BadReply { .. })
}

/// Watches all accounts until the service ends, as one of several watchers.
///
/// # Errors
/// The failure that ends the watch.
pub async fn serve(app: &Core, options: WorkerOptions) -> Result<(), WorkerError> {
    let watches = accounts(app)
        .filter(|account| is_asked_for(account, options))
        .map(|account| watch(app, account, options));
    futures_util::future::try_join_all(watches).await.map(|_| ())
}

/// Watches one account until the service ends.
pub(super) async fn run(app: &Core, account: &AccountConfig) -> Result<(), WorkerError> {
    watch(app, account, WorkerOptions::default()).await
}

async fn watch(app: &Core, account: &AccountConfig, options: WorkerOptions) -> Result<(), WorkerError> {
    let watch = Watch::new(app, account, Mode::Service, options)?;
    let ended = tokio::select! {
        biased;
        () = app.drain.draining() => Ok(()),
        result = watch.run() => result,
    };
    watch.leave().await;
    ended
}

/// The bank's answer.
enum Answer {
    Rows(Vec<IncomingRow>),
    /// 404: the bank may create the account with its first transfer.
    NoAccount,
}

/// An answer that was fetched ahead, and the row after which it starts.
struct Ahead {
    after: u64,
    answer: Result<Answer, ClientError>,
}

/// A range that is leased.
struct Held {
    range: RangeState,
    /// When others may take it over.
    until: Instant,
}

impl Held {
    /// Returns whether others may take it over.
    fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }
}

struct Watch<'a> {
    app: &'a Core,
    account: &'a AccountConfig,
    id: AccountId,
    gateway: WireGatewayClient,
    mode: Mode,
    options: WorkerOptions,
    holder: u64,
    is_missing: AtomicBool,
    /// Rows of the last page.
    last_rows: AtomicUsize,
}

impl<'a> Watch<'a> {
    fn new(
        app: &'a Core,
        account: &'a AccountConfig,
        mode: Mode,
        options: WorkerOptions,
    ) -> Result<Self, WorkerError> {
        let client: Client = client(app, &account.section, 1)?;
        let config = account.gateway.as_ref().expect("watched accounts have a gateway");
        let id = AccountId::of_payto(&account.payto_uri);
        let gateway = gateway(&client, config);
        Ok(Self {
            app,
            account,
            id,
            gateway,
            mode,
            options,
            holder: leases::holder(app),
            is_missing: AtomicBool::new(false),
            last_rows: AtomicUsize::new(0),
        })
    }

    fn bank_error(&self, source: ClientError) -> WorkerError {
        WorkerError::Bank { section: self.account.section.clone(), source: source.into() }
    }

    /// The long-poll timeout.
    fn long_poll(&self) -> Duration {
        self.options.long_poll_ms.map_or(LONG_POLL, Duration::from_millis).min(LONG_POLL_MAX)
    }

    /// Returns whether the bank's answer ends the watch.
    fn exits(&self, error: &ClientError) -> bool {
        let is_ignored = self.options.ignores_not_found && error.status() == Some(404);
        self.options.exits_on_error && !is_ignored
    }

    fn idle(&self) -> Duration {
        idle_interval(self.app.config.workers.wirewatch_idle_sleep)
    }

    /// The duration of the next lease. It is random, so that watchers do not act in step.
    fn lease(&self) -> Duration {
        if self.options.workers == Some(0) {
            return Duration::ZERO;
        }
        let longest = leases::lease(self.app);
        let random = u32::from_le_bytes(self.app.random());
        longest / 2 + (longest / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    async fn lease_range(&self, lease: Option<Duration>) -> Result<Option<RangeState>, WorkerError> {
        let claim = RangeClaim {
            account: self.id,
            holder: self.holder,
            now: leases::now(self.app),
            lease: lease.map(leases::length),
            size: self.options.shard_size.unwrap_or(SHARD_ROWS),
        };
        match decide(self.app, self.mode, Lease::Range(claim)).await? {
            Ok(Leased::Range(range)) => Ok(range),
            other => panic!("a claim of a range was answered with {other:?}"),
        }
    }

    /// Claims the first free range, instead of the current one.
    async fn claim(&self) -> Result<Held, WorkerError> {
        let lease = self.lease();
        let until = self.app.timers.now() + lease;
        let range = self.lease_range(Some(lease)).await?;
        Ok(Held { range: range.expect("a claim gets a range"), until })
    }

    /// Returns its range.
    async fn leave(&self) {
        if let Err(error) = self.lease_range(None).await {
            // The lease expires anyway.
            tracing::debug!(%error, "a watcher's lease was not given back");
        }
    }

    /// The row up to which all rows are imported, and whether a watcher holds the next range.
    async fn front(&self) -> Result<(u64, bool), WorkerError> {
        let (account, now) = (self.id, leases::now(self.app));
        read(self.app, move |store| front(store, account, now)).await
    }

    /// Waits until the first range is free, or until the lease must be renewed.
    async fn stand_by(&self) -> Result<(), WorkerError> {
        let end = self.app.timers.now() + STANDBY_RENEW;
        while self.app.timers.now() < end {
            pause(self.app, STANDBY_LOOK).await?;
            if !self.front().await?.1 {
                break;
            }
        }
        Ok(())
    }

    async fn until_idle(&self, progress: &mut Progress) -> Result<(), WorkerError> {
        let mut held = self.claim().await?;
        let (mut failures, mut ahead) = (0, None);
        loop {
            check_drain(self.app)?;
            if held.is_over(self.app.timers.now()) {
                held = self.claim().await?;
            }
            let answer = match self.fetched(&mut ahead, &held) {
                Some(answer) => answer,
                None => self.fetch(&held, Duration::ZERO).await,
            };
            match answer {
                Ok(Answer::NoAccount) => return Ok(()),
                Ok(Answer::Rows(rows)) => {
                    failures = 0;
                    let before = held.range.latest;
                    let imported;
                    (imported, held, ahead) = self.import_and_fetch(held, &rows).await?;
                    progress.done += imported.booked;
                    progress.set_aside += imported.set_aside;
                    if held.range.latest != before {
                        continue;
                    }
                    // Later ranges may be empty because others still import the first one.
                    if held.range.is_first {
                        return Ok(());
                    }
                    loop {
                        let (front, is_held) = self.front().await?;
                        let nothing = match self.fetch_after(front, 1, Duration::ZERO).await {
                            Ok(Answer::Rows(rows)) => rows.is_empty(),
                            Ok(Answer::NoAccount) => true,
                            Err(error) if self.exits(&error) => return Err(self.bank_error(error)),
                            // The other watchers will meet the same failure.
                            Err(_) => false,
                        };
                        if nothing {
                            return Ok(());
                        }
                        if !is_held {
                            break;
                        }
                        pause(self.app, OTHERS_PAUSE).await?;
                    }
                    held = self.claim().await?;
                }
                Err(source) => {
                    failures += 1;
                    if self.exits(&source) || self.mode.gives_up_after(failures) || !retries(&source) {
                        return Err(self.bank_error(source));
                    }
                    pause(self.app, self.mode.pause(self.app, failures)).await?;
                }
            }
        }
    }

    async fn run(&self) -> Result<(), WorkerError> {
        let (idle, long_poll) = (self.idle(), self.long_poll());
        let mut held = self.claim().await?;
        let mut page_pause = PAGE_PAUSE_MIN;
        let (mut failures, mut empty) = (0u32, 0u32);
        let mut ahead = None;
        let mut counted: Option<Instant> = None;
        loop {
            let now = self.app.timers.now();
            if counted.is_none_or(|at| now.saturating_duration_since(at) >= COUNT_PAUSE) {
                self.count_aside().await?;
                counted = Some(now);
            }
            if self.renewal(&held) <= self.app.timers.now() {
                held = self.claim().await?;
            }
            let asked = self.app.timers.now();
            let answer = match self.fetched(&mut ahead, &held) {
                Some(answer) => answer,
                None => match self.poll(&mut held, long_poll).await? {
                    Some(answer) => answer,
                    None => continue,
                },
            };
            let rows = match answer {
                Ok(Answer::Rows(rows)) => {
                    if failures > 0 {
                        tracing::info!(account = %self.account.section, failures, "the bank answers again");
                    }
                    failures = 0;
                    rows
                }
                Ok(Answer::NoAccount) => {
                    failures = 0;
                    pause(self.app, idle).await?;
                    continue;
                }
                Err(error) if self.exits(&error) => return Err(self.bank_error(error)),
                Err(error) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(account = %self.account.section, %error, failures, "the bank's history failed");
                    pause(self.app, self.mode.pause(self.app, failures)).await?;
                    continue;
                }
            };
            let is_full = self.is_full(rows.len(), &held);
            let before = held.range.latest;
            match self.part(&held, &rows) {
                Ok(_) => (_, held, ahead) = self.import_and_fetch(held, &rows).await?,
                Err(error) if self.options.exits_on_error => return Err(error),
                Err(error) => {
                    // Nothing in such a history can be trusted. The import continues when the bank has
                    // corrected it.
                    failures = failures.saturating_add(1);
                    self.app.metrics.workers.history_failures.inc();
                    tracing::error!(%error, failures, "the import is held up");
                    pause(self.app, self.mode.pause(self.app, failures)).await?;
                    continue;
                }
            }
            if held.range.latest != before {
                empty = 0;
                if matches!(&ahead, Some(Ahead { answer: Ok(Answer::Rows(rows)), .. }) if rows.is_empty()) {
                    // There is no row yet: the next request may wait for it.
                    ahead = None;
                }
                if let Some(pause_now) = next_pause(&mut page_pause, rows.len(), is_full) {
                    pause(self.app, pause_now.min(idle)).await?;
                }
            } else {
                // A bank with long polls has already waited. Other banks are asked at growing intervals.
                page_pause = PAGE_PAUSE_MIN;
                let until = asked + idle.saturating_mul(2u32.saturating_pow(empty)).min(long_poll.max(idle));
                empty =
                    if self.app.timers.now() - asked < long_poll / 2 { empty.saturating_add(1) } else { 0 };
                loop {
                    let now = self.app.timers.now();
                    let awake = until.min(self.renewal(&held).max(now + RENEWAL_PAUSE_MIN));
                    pause(self.app, awake.saturating_duration_since(now)).await?;
                    if awake == until || !held.range.is_first {
                        break;
                    }
                    // Other processes see by its lease that the watcher lives.
                    held = self.claim().await?;
                }
            }
        }
    }

    /// The time to renew the lease. Without others, or without leases, that is not necessary to keep the range.
    fn renewal(&self, held: &Held) -> Instant {
        let pause = SIGN_OF_LIFE.min(leases::lease(self.app) * SIGN_OF_LIFE_LEASES);
        let is_contended = held.range.has_others && self.options.workers != Some(0);
        if is_contended { held.until } else { held.until + pause }
    }

    /// Waits for the next page, and renews the lease meanwhile. None if the range has changed.
    async fn poll(
        &self,
        held: &mut Held,
        long_poll: Duration,
    ) -> Result<Option<Result<Answer, ClientError>>, WorkerError> {
        let RangeState { start, end, latest, .. } = held.range;
        let answer = self.fetch_after(latest, Self::page_rows(held), long_poll);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return Ok(Some(answer)),
                () = self.app.timers.sleep_until(self.renewal(held)), if held.range.is_first => {
                    *held = self.claim().await?;
                    let range = held.range;
                    if !range.is_first || (range.start, range.end, range.latest) != (start, end, latest) {
                        return Ok(None);
                    }
                }
                free = self.stand_by(), if !held.range.is_first => {
                    free?;
                    *held = self.claim().await?;
                    return Ok(None);
                }
            }
        }
    }

    /// The page fetched ahead, if it is the next one.
    fn fetched(&self, ahead: &mut Option<Ahead>, held: &Held) -> Option<Result<Answer, ClientError>> {
        ahead.take().filter(|ahead| ahead.after == held.range.latest).map(|ahead| ahead.answer)
    }

    /// Number of rows that fit into a page: at most as many as the range has.
    fn page_rows(held: &Held) -> usize {
        usize::try_from(held.range.end.saturating_sub(held.range.latest))
            .map_or(PAGE_ROWS, |rows| rows.clamp(1, PAGE_ROWS))
    }

    async fn fetch(&self, held: &Held, long_poll: Duration) -> Result<Answer, ClientError> {
        self.fetch_after(held.range.latest, Self::page_rows(held), long_poll).await
    }

    async fn fetch_after(
        &self,
        cursor: u64,
        rows: usize,
        long_poll: Duration,
    ) -> Result<Answer, ClientError> {
        let query = HistoryQuery {
            start: Some(cursor),
            delta: rows as i64,
            long_poll_ms: long_poll.as_millis() as u64,
        };
        match self.gateway.history_incoming_rows(query).await {
            Ok(rows) => {
                self.is_missing.store(false, Relaxed);
                Ok(Answer::Rows(rows))
            }
            Err(error) if self.exits(&error) => {
                self.app.metrics.workers.history_failures.inc();
                Err(error)
            }
            Err(error) if error.status() == Some(404) => {
                if !self.is_missing.load(Relaxed) {
                    tracing::info!(account = %self.account.section, %error, "the bank does not know the account yet");
                }
                self.is_missing.store(true, Relaxed);
                Ok(Answer::NoAccount)
            }
            // A bank that keeps a limited history answers this for every start outside of it.
            Err(error) if error.status() == Some(410) => {
                tracing::warn!(account = %self.account.section, cursor, %error, "the bank has lost the last row seen");
                Ok(Answer::Rows(Vec::new()))
            }
            Err(error) => {
                self.app.metrics.workers.history_failures.inc();
                Err(error)
            }
        }
    }

    /// Returns whether a page of this size is the largest that the bank returns, so that there are probably
    /// more rows.
    fn is_full(&self, rows: usize, held: &Held) -> bool {
        rows >= Self::page_rows(held) || rows >= BANK_PAGE_ROWS_MIN && rows == self.last_rows.load(Relaxed)
    }

    /// Books the rows of a page that belong to the range. After a full page, the next one is fetched
    /// meanwhile. When the range is complete or another watcher has taken it over, the next one is claimed.
    async fn import_and_fetch(
        &self,
        mut held: Held,
        rows: &[IncomingRow],
    ) -> Result<(Imported, Held, Option<Ahead>), WorkerError> {
        let is_full = self.is_full(rows.len(), &held);
        self.last_rows.store(rows.len(), Relaxed);
        let part = self.part(&held, rows)?;
        let left = held.range.end.saturating_sub(part.latest);
        let fetch = async {
            // The start of the next range is known only once it is claimed.
            if !is_full || part.latest == held.range.latest || left == 0 {
                return None;
            }
            let rows = usize::try_from(left).map_or(PAGE_ROWS, |left| left.clamp(1, PAGE_ROWS));
            let answer = self.fetch_after(part.latest, rows, Duration::ZERO).await;
            Some(Ahead { after: part.latest, answer })
        };
        let lease = self.lease();
        let until = self.app.timers.now() + lease;
        let (imported, ahead) = tokio::join!(self.import(&held, &part, lease), fetch);
        let imported = imported?;
        if part.latest == held.range.latest && part.seen_until.is_none() {
            return Ok((imported, held, None));
        }
        let is_kept = |range: &RangeState| range.is_ours || self.options.workers == Some(0);
        held = match imported.range.filter(is_kept) {
            Some(range) => Held { range, until },
            None => self.claim().await?,
        };
        Ok((imported, held, ahead))
    }
}

/// The pause after a page with this number of rows. A long poll ends with the first row, so under load,
/// asking again at once would fetch rows one by one, each with its own commit. The pause grows while pages
/// have several rows but are not full, and shrinks when they have one row.
fn next_pause(pause: &mut Duration, rows: usize, is_full: bool) -> Option<Duration> {
    if is_full {
        return None;
    }
    let next = if rows > 1 { pause.saturating_mul(2) } else { *pause / 2 };
    *pause = next.clamp(PAGE_PAUSE_MIN, PAGE_PAUSE_MAX);
    Some(*pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_follow_the_load() {
        let mut pause = PAGE_PAUSE_MIN;
        assert_eq!(
            next_pause(&mut pause, 1, false),
            Some(PAGE_PAUSE_MIN),
            "a single credit does not slow the next"
        );
        for _ in 0..20 {
            next_pause(&mut pause, 100, false);
        }
        assert_eq!(pause, PAGE_PAUSE_MAX);
        assert_eq!(next_pause(&mut pause, PAGE_ROWS, true), None, "a full page means that there is more");
        for _ in 0..20 {
            next_pause(&mut pause, 1, false);
        }
        assert_eq!(pause, PAGE_PAUSE_MIN);
    }
}

//! wirewatch: imports the transfers that the bank received for us.
//!
//! Watchers of an account share its history by ranges of row ids ([`super::shards`]); one cursor an account is stored: the
//! last bank row up to which everything was looked at. A page of the bank's history is booked by some commands; the last of
//! them, which is sent when all others have taken effect, moves the cursor as far as the ranges before permit. Every row is
//! booked once however often it is reported, so the process may end at any time, and the cursor never passes a row that was not
//! looked at. (Ids are compared, not counted: gaps are normal.) While a full page is being booked, the next one is fetched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use batzen_http::gateway::{HistoryQuery, IncomingRow, WireGatewayClient};
use batzen_http::{Client, ClientError};
use batzen_protocol::payto::h_payto;
use batzen_tables::exchange::AccountId;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::shards::{Held, Shards};
use super::{
    Mode, Progress, Sharing, WorkerError, check_drain, client, decide, gateway, idle_interval, pause, read,
};
use crate::config::AccountConfig;
use crate::rules::{self, Command, Credit, Credits, Outcome, Refusal};
use crate::service::Exchange;

/// Rows of a range that a watcher claims at once, by the distance of their ids, unless it is told otherwise.
pub const SHARD_ROWS: u64 = 65_536;
/// How many watchers are planned, unless a watcher is told otherwise: leases are so long that all of them may be busy.
const WATCHERS: u32 = 16;
/// Rows asked for at once.
const PAGE_ROWS: usize = 8_192;
/// Credits booked by one command, so that payments behind it in the lane do not wait long.
const COMMAND_CREDITS: usize = 1_024;
/// Commands on their way: one is executed while the other one waits.
const COMMANDS_IN_FLIGHT: usize = 2;
/// A page of at least so many rows that is as large as the one before is full, too: the bank gives no larger ones.
const BANK_PAGE_ROWS_MIN: usize = 128;
/// How often is looked whether others have imported what comes first.
const OTHERS_PAUSE: Duration = Duration::from_millis(20);
/// How long the bank may wait for a first row.
const LONG_POLL: Duration = Duration::from_secs(60);
/// After a page that was not full, the bank gets this long at least to collect the next one.
const PAGE_PAUSE_MIN: Duration = Duration::from_millis(5);
/// ... and this long at most.
const PAGE_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The accounts that are watched.
pub(super) fn accounts(app: &Exchange) -> impl Iterator<Item = &AccountConfig> {
    app.config.accounts.iter().filter(|account| account.enable_credit && account.gateway.is_some())
}

/// Imports everything that the bank has, on all watched accounts. An account that the bank does not know (yet) has nothing.
///
/// # Errors
/// [`WorkerError::Bank`] when it fails again and again, [`WorkerError::Disorder`]; what was imported before stays.
pub async fn run_until_idle(app: &Exchange) -> Result<Progress, WorkerError> {
    share_until_idle(app, Sharing::default()).await
}

/// The same as one of several watchers.
///
/// # Errors
/// As [`run_until_idle`].
pub async fn share_until_idle(app: &Exchange, sharing: Sharing) -> Result<Progress, WorkerError> {
    let mut progress = Progress::default();
    for account in accounts(app) {
        let watch = Watch::new(app, account, Mode::UntilIdle, sharing).await?;
        tokio::select! {
            biased;
            () = app.drain.draining() => return Err(WorkerError::Stopped),
            result = watch.until_idle(&mut progress) => result?,
        }
    }
    Ok(progress)
}

/// Whether it makes sense to ask again at once, when somebody waits for the end.
fn retries(error: &ClientError) -> bool {
    error.is_transient() || matches!(error, ClientError::BadReply { .. })
}

/// Watches all accounts until the service ends, as one of several watchers.
///
/// # Errors
/// What keeps it from that.
pub async fn serve(app: &Exchange, sharing: Sharing) -> Result<(), WorkerError> {
    let watches = accounts(app).map(|account| watch(app, account, sharing));
    futures_util::future::try_join_all(watches).await.map(|_| ())
}

/// Watches one account until the service ends.
pub(super) async fn run(app: &Exchange, account: &AccountConfig) -> Result<(), WorkerError> {
    watch(app, account, Sharing::default()).await
}

async fn watch(app: &Exchange, account: &AccountConfig, sharing: Sharing) -> Result<(), WorkerError> {
    tokio::select! {
        biased;
        () = app.drain.draining() => Ok(()),
        result = async { Watch::new(app, account, Mode::Service, sharing).await?.run().await } => result,
    }
}

/// What the bank said.
enum Answer {
    Rows(Vec<IncomingRow>),
    /// 404: the account comes into being with its first transfer.
    NoAccount,
}

/// An answer fetched ahead, and the row after which it begins.
struct Ahead {
    after: u64,
    answer: Result<Answer, ClientError>,
}

/// The part of a page that belongs to a range.
struct Part<'a> {
    rows: &'a [IncomingRow],
    /// Its last row, or the end of the range if that is reached.
    latest: u64,
    /// If the end of the range is reached: up to where there are no more rows.
    seen_until: Option<u64>,
}

/// What became of a page.
#[derive(Default)]
struct Imported {
    booked: u64,
    set_aside: u64,
}

struct Watch<'a> {
    app: &'a Exchange,
    account: &'a AccountConfig,
    id: AccountId,
    gateway: WireGatewayClient,
    mode: Mode,
    sharing: Sharing,
    shards: Arc<Shards>,
    /// How long the last range took, in microseconds.
    shard_us: AtomicU64,
    is_missing: AtomicBool,
    /// Rows of the last page.
    last_rows: AtomicUsize,
}

impl<'a> Watch<'a> {
    async fn new(
        app: &'a Exchange,
        account: &'a AccountConfig,
        mode: Mode,
        sharing: Sharing,
    ) -> Result<Self, WorkerError> {
        let client: Client = client(&account.section, 1)?;
        let config = account.gateway.as_ref().expect("watched accounts have a gateway");
        let id = AccountId::of_payto(&account.payto_uri);
        let gateway = gateway(&client, config);
        let cursor = read(app, move |store| rules::read::cursor(store, id)).await?;
        Ok(Self {
            app,
            account,
            id,
            gateway,
            mode,
            sharing,
            shards: app.claims.shards.of(id, cursor),
            shard_us: AtomicU64::new(0),
            is_missing: AtomicBool::new(false),
            last_rows: AtomicUsize::new(0),
        })
    }

    fn bank_error(&self, source: ClientError) -> WorkerError {
        WorkerError::Bank { section: self.account.section.clone(), source: source.into() }
    }

    fn idle(&self) -> Duration {
        idle_interval(self.app.config.workers.wirewatch_idle_sleep)
    }

    /// Claims a range, for a random time that suits so many watchers.
    fn claim(&self) -> Held {
        let watchers = self.sharing.workers.unwrap_or(WATCHERS);
        let lease = if watchers == 0 {
            Duration::ZERO
        } else {
            let shard = Duration::from_micros(self.shard_us.load(Relaxed));
            let longest = self.idle().max(shard.saturating_mul(watchers)).saturating_mul(4);
            let mut random = [0; 4];
            batzen_crypto::fill_random(&mut random);
            longest.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
        };
        self.shards.claim(self.sharing.shard_size.unwrap_or(SHARD_ROWS), lease)
    }

    async fn until_idle(&self, progress: &mut Progress) -> Result<(), WorkerError> {
        let mut held = self.claim();
        let (mut failures, mut ahead) = (0, None);
        loop {
            check_drain(self.app)?;
            if held.is_over() {
                drop(held);
                held = self.claim();
            }
            let answer = match self.fetched(&mut ahead, &held) {
                Some(answer) => answer,
                None => self.fetch(&held, Duration::ZERO).await,
            };
            match answer {
                Ok(Answer::NoAccount) => return Ok(()),
                Ok(Answer::Rows(rows)) => {
                    failures = 0;
                    let imported;
                    let before = held.latest;
                    (imported, held, ahead) = self.import_and_fetch(held, &rows).await;
                    let imported = imported?;
                    progress.done += imported.booked;
                    progress.set_aside += imported.set_aside;
                    if held.latest != before {
                        continue;
                    }
                    // Behind the first range there may be nothing because others are at it still.
                    if held.is_first() {
                        return Ok(());
                    }
                    drop(held);
                    loop {
                        let front = self.shards.imported_until();
                        let nothing = match self.fetch_after(front, 1, Duration::ZERO).await {
                            Ok(Answer::Rows(rows)) => rows.is_empty(),
                            Ok(Answer::NoAccount) => true,
                            // Whoever is at it meets the same.
                            Err(_) => false,
                        };
                        if nothing {
                            return Ok(());
                        }
                        let wait = tokio::time::timeout(OTHERS_PAUSE, self.shards.first_is_free());
                        if wait.await.is_ok() {
                            break;
                        }
                    }
                    held = self.claim();
                }
                Err(source) => {
                    failures += 1;
                    if self.mode.gives_up_after(failures) || !retries(&source) {
                        return Err(self.bank_error(source));
                    }
                    pause(self.app, self.mode.pause(failures)).await?;
                }
            }
        }
    }

    async fn run(&self) -> Result<(), WorkerError> {
        let idle = self.idle();
        let mut held = self.claim();
        let mut page_pause = PAGE_PAUSE_MIN;
        let (mut failures, mut empty) = (0u32, 0u32);
        let mut ahead = None;
        loop {
            if held.is_over() {
                drop(held);
                held = self.claim();
            }
            let asked = Instant::now();
            let answer = match self.fetched(&mut ahead, &held) {
                Some(answer) => answer,
                None if held.is_first() => self.fetch(&held, LONG_POLL).await,
                None => tokio::select! {
                    answer = self.fetch(&held, LONG_POLL) => answer,
                    // Somebody has left what comes first.
                    () = self.shards.first_is_free() => {
                        drop(held);
                        held = self.claim();
                        continue;
                    }
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
                Err(error) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(account = %self.account.section, %error, failures, "the bank's history failed");
                    pause(self.app, self.mode.pause(failures)).await?;
                    continue;
                }
            };
            let is_full = self.is_full(rows.len(), &held);
            let imported;
            let before = held.latest;
            (imported, held, ahead) = self.import_and_fetch(held, &rows).await;
            match imported {
                Ok(_) => {}
                Err(error @ WorkerError::Disorder { .. }) => {
                    // Nobody can say what else is wrong with such a history: nothing of it is used. Should the bank mend
                    // it, we go on.
                    failures = failures.saturating_add(1);
                    self.app.metrics.workers.history_failures.inc();
                    tracing::error!(%error, failures, "the import is held up");
                    pause(self.app, self.mode.pause(failures)).await?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if held.latest != before {
                empty = 0;
                if matches!(&ahead, Some(Ahead { answer: Ok(Answer::Rows(rows)), .. }) if rows.is_empty()) {
                    // Nothing had come yet: the next question may wait for it.
                    ahead = None;
                }
                if let Some(pause_now) = next_pause(&mut page_pause, rows.len(), is_full) {
                    pause(self.app, pause_now.min(idle)).await?;
                }
            } else {
                // A bank that waits has waited. One that does not is asked ever less often.
                page_pause = PAGE_PAUSE_MIN;
                let until = asked + idle.saturating_mul(2u32.saturating_pow(empty)).min(LONG_POLL);
                empty = if asked.elapsed() < LONG_POLL / 2 { empty.saturating_add(1) } else { 0 };
                pause(self.app, until.saturating_duration_since(Instant::now())).await?;
            }
        }
    }

    /// What was fetched ahead, if it is what comes next.
    fn fetched(&self, ahead: &mut Option<Ahead>, held: &Held) -> Option<Result<Answer, ClientError>> {
        ahead.take().filter(|ahead| ahead.after == held.latest).map(|ahead| ahead.answer)
    }

    /// Rows that fit into a page: no more than the range has.
    fn page_rows(held: &Held) -> usize {
        usize::try_from(held.end.saturating_sub(held.latest))
            .map_or(PAGE_ROWS, |rows| rows.clamp(1, PAGE_ROWS))
    }

    async fn fetch(&self, held: &Held, long_poll: Duration) -> Result<Answer, ClientError> {
        self.fetch_after(held.latest, Self::page_rows(held), long_poll).await
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
            Err(error) if error.status() == Some(404) => {
                if !self.is_missing.load(Relaxed) {
                    tracing::info!(account = %self.account.section, %error, "the bank does not know the account yet");
                }
                self.is_missing.store(true, Relaxed);
                Ok(Answer::NoAccount)
            }
            // Rings that have wrapped say so of every start that is ahead of them.
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

    /// Whether a page of so many rows is all that the bank gives at once, so that there is probably more.
    fn is_full(&self, rows: usize, held: &Held) -> bool {
        rows >= Self::page_rows(held) || rows >= BANK_PAGE_ROWS_MIN && rows == self.last_rows.load(Relaxed)
    }

    /// Books what of a page belongs to the range; if it was full, the next one is fetched meanwhile. A completed range gives
    /// way to the next one.
    async fn import_and_fetch(
        &self,
        mut held: Held,
        rows: &[IncomingRow],
    ) -> (Result<Imported, WorkerError>, Held, Option<Ahead>) {
        let is_full = self.is_full(rows.len(), &held);
        self.last_rows.store(rows.len(), Relaxed);
        let part = match self.part(&held, rows) {
            Ok(part) => part,
            Err(error) => return (Err(error), held, None),
        };
        // Over a gap the next range begins elsewhere, which is known only later.
        let next = (part.seen_until == Some(held.end)).then(|| self.claim());
        let fetch = async {
            if !is_full || part.latest == held.latest {
                return None;
            }
            let after = next.as_ref().map_or(part.latest, |next| next.latest);
            // Only what follows directly is worth it.
            if after != part.latest {
                return None;
            }
            let left = next.as_ref().map_or(held.end - part.latest, |next| next.end - next.latest);
            let rows = usize::try_from(left).map_or(PAGE_ROWS, |left| left.clamp(1, PAGE_ROWS));
            let answer = self.fetch_after(after, rows, Duration::ZERO).await;
            Some(Ahead { after, answer })
        };
        let (imported, ahead) = tokio::join!(self.import(&held, &part), fetch);
        if imported.is_err() {
            return (imported, held, None);
        }
        held.imported(part.latest, part.seen_until);
        if part.seen_until.is_some() {
            self.shard_us.store(u64::try_from(held.since.elapsed().as_micros()).unwrap_or(u64::MAX), Relaxed);
            drop(held);
            // Claimed before the end of this one was known.
            let next = next.filter(|next| !next.is_over());
            held = next.unwrap_or_else(|| self.claim());
        }
        // Ranges behind may have been waiting for this one.
        if let Some(cursor) = self.shards.unstored()
            && let Err(error) = self.move_cursor(cursor).await
        {
            return (Err(error), held, None);
        }
        (imported, held, ahead)
    }

    async fn move_cursor(&self, cursor: u64) -> Result<(), WorkerError> {
        let page = Credits { account: self.id, credits: Vec::new(), cursor };
        self.book(page).await?.map_err(|refusal| WorkerError::Refused(refusal.to_string()))?;
        self.shards.stored(cursor);
        Ok(())
    }

    /// What of a page belongs to the range.
    fn part<'r>(&self, held: &Held, rows: &'r [IncomingRow]) -> Result<Part<'r>, WorkerError> {
        let mut last = None;
        for id in rows.iter().filter_map(|row| row.row_id) {
            if let Some(before) = last.replace(id).filter(|before| *before >= id) {
                return Err(WorkerError::Disorder {
                    section: self.account.section.clone(),
                    before,
                    after: id,
                });
            }
        }
        let beyond = rows.iter().position(|row| row.row_id.is_some_and(|id| id > held.end));
        let seen_until = match beyond {
            Some(index) => rows[index].row_id.map(|id| id - 1),
            None => last.filter(|last| *last == held.end),
        };
        let rows = &rows[..beyond.unwrap_or(rows.len())];
        let latest = if seen_until.is_some() { held.end } else { last.unwrap_or(0).max(held.latest) };
        Ok(Part { rows, latest, seen_until })
    }

    /// Books a page.
    async fn import(&self, held: &Held, page: &Part<'_>) -> Result<Imported, WorkerError> {
        let (rows, before) = (page.rows, held.latest);
        let mut imported = Imported::default();
        let mut newest = None;
        let mut in_flight = FuturesUnordered::new();
        let mut parts = rows.chunks(COMMAND_CREDITS).peekable();
        while let Some(part) = parts.next() {
            let mut credits = Vec::with_capacity(part.len());
            for row in part {
                match self.credit(row) {
                    Ok(credit) => credits.push(credit),
                    Err(reason) if row.row_id.is_none_or(|id| id > before) => {
                        self.set_aside(row.row_id, &reason, &mut imported);
                    }
                    // Reported before.
                    Err(_) => {}
                }
            }
            newest = credits.last().map(|credit| credit.time).or(newest);
            let is_last = parts.peek().is_none();
            // The cursor moves with the last part, when all others are booked.
            let running = if is_last { 0 } else { COMMANDS_IN_FLIGHT - 1 };
            while in_flight.len() > running {
                if let Some(booked) = in_flight.next().await {
                    Self::add(booked?, &mut imported);
                }
            }
            let moves = is_last && page.latest != before;
            let cursor = moves.then(|| held.cursor(page.latest, page.seen_until.is_some()));
            if !credits.is_empty() || moves {
                in_flight.push(self.book_part(credits, cursor.unwrap_or(0)));
            }
        }
        while let Some(booked) = in_flight.next().await {
            Self::add(booked?, &mut imported);
        }
        let metrics = &self.app.metrics.workers;
        if !rows.is_empty() {
            metrics.credit_pages.inc();
        }
        if let Some(time) = newest {
            metrics.credit_lag_s.set(self.app.now().saturating_since(time).as_micros() / 1_000_000);
        }
        Ok(imported)
    }

    fn add(part: Imported, imported: &mut Imported) {
        imported.booked += part.booked;
        imported.set_aside += part.set_aside;
    }

    /// Books a part of a page and moves the cursor, if that is ahead of it.
    async fn book_part(&self, credits: Vec<Credit>, cursor: u64) -> Result<Imported, WorkerError> {
        let mut imported = Imported::default();
        let page = Credits { account: self.id, credits, cursor };
        match self.book(page.clone()).await? {
            Ok(booked) => imported.booked += booked,
            // One of them would make its reserve larger than any amount: find it.
            Err(refusal) => {
                tracing::warn!(%refusal, "credits were refused, booking them one by one");
                for credit in page.credits {
                    let row = credit.bank_row;
                    let one = Credits { account: self.id, credits: vec![credit], cursor: 0 };
                    match self.book(one).await? {
                        Ok(booked) => imported.booked += booked,
                        Err(refusal) => self.set_aside(Some(row), &refusal.to_string(), &mut imported),
                    }
                }
                let rest = Credits { account: self.id, credits: Vec::new(), cursor };
                self.book(rest).await?.map_err(|refusal| WorkerError::Refused(refusal.to_string()))?;
            }
        }
        self.shards.stored(cursor);
        Ok(imported)
    }

    fn set_aside(&self, row: Option<u64>, reason: &str, imported: &mut Imported) {
        tracing::error!(account = %self.account.section, row, reason, "a credit cannot be booked and is set aside");
        self.app.metrics.workers.credits_set_aside.inc();
        imported.set_aside += 1;
    }

    fn credit(&self, row: &IncomingRow) -> Result<Credit, String> {
        let transaction = row.transaction.as_ref().map_err(Clone::clone)?;
        let amount = transaction.amount.money_in(self.app.config.currency).map_err(|_| {
            format!("{} for {} is another currency", transaction.amount, transaction.reserve_pub)
        })?;
        let payto_uri = transaction.debit_account.clone();
        Ok(Credit {
            bank_row: transaction.row_id,
            reserve_pub: transaction.reserve_pub,
            amount,
            h_payto: h_payto(&payto_uri),
            payto_uri,
            time: transaction.date,
        })
    }

    async fn book(&self, page: Credits) -> Result<Result<u64, Refusal>, WorkerError> {
        match decide(self.app, self.mode, Command::Credits(page)).await? {
            Ok(Outcome::Credits(credited)) => {
                for reserve_pub in &credited.reserves {
                    self.app.reserve_waiters.wake(reserve_pub);
                }
                self.app.metrics.workers.credits.add(credited.booked as u64);
                Ok(Ok(credited.booked as u64))
            }
            Ok(other) => panic!("credits were answered with {other:?}"),
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

/// How long to wait after a page with so many rows. A long poll ends with the first row, so under load asking again at once
/// would fetch rows one by one, each with a commit of its own: the pause grows while pages come with several rows and are
/// not full, and shrinks when they come with one.
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

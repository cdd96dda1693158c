//! wirewatch: imports the transfers that the bank received for us.
//!
//! One cursor an account, stored: the last bank row that was looked at. A page of the bank's history is booked by some
//! commands; the last of them, which is sent when all others have taken effect, moves the cursor. Every row is booked once
//! however often it is reported, so the process may end at any time, the cursor never passes a row that was not looked at,
//! and several watchers of one account do no harm. (Ids are compared, not counted: gaps are normal.) While a full page is
//! being booked, the next one is fetched.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use batzen_http::gateway::{HistoryQuery, IncomingRow, WireGatewayClient};
use batzen_http::{Client, ClientError};
use batzen_protocol::payto::h_payto;
use batzen_tables::exchange::AccountId;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::{Mode, Progress, WorkerError, check_drain, client, decide, gateway, idle_interval, pause, read};
use crate::config::AccountConfig;
use crate::rules::{self, Command, Credit, Credits, Outcome, Refusal};
use crate::service::Exchange;

/// Rows asked for at once.
const PAGE_ROWS: usize = 8_192;
/// Credits booked by one command, so that payments behind it in the lane do not wait long.
const COMMAND_CREDITS: usize = 1_024;
/// Commands on their way: one is executed while the other one waits.
const COMMANDS_IN_FLIGHT: usize = 2;
/// A page of at least so many rows that is as large as the one before is full, too: the bank gives no larger ones.
const BANK_PAGE_ROWS_MIN: usize = 128;
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
    let mut progress = Progress::default();
    for account in accounts(app) {
        let watch = Watch::new(app, account, Mode::UntilIdle)?;
        let mut failures = 0;
        let mut cursor = watch.cursor().await?;
        let mut ahead = None;
        loop {
            check_drain(app)?;
            let answer = match ahead.take() {
                Some(answer) => answer,
                None => watch.fetch(cursor, Duration::ZERO).await,
            };
            match answer {
                Ok(Answer::NoAccount) => break,
                Ok(Answer::Rows(rows)) => {
                    failures = 0;
                    let imported;
                    (imported, ahead) = watch.import_and_fetch(cursor, &rows, Duration::ZERO).await;
                    let imported = imported?;
                    progress.done += imported.booked;
                    progress.set_aside += imported.set_aside;
                    if imported.cursor == cursor {
                        break;
                    }
                    cursor = imported.cursor;
                }
                Err(source) => {
                    failures += 1;
                    if Mode::UntilIdle.gives_up_after(failures) || !retries(&source) {
                        return Err(watch.bank_error(source));
                    }
                    pause(app, Mode::UntilIdle.pause(failures)).await?;
                }
            }
        }
    }
    Ok(progress)
}

/// Whether it makes sense to ask again at once, when somebody waits for the end.
fn retries(error: &ClientError) -> bool {
    error.is_transient() || matches!(error, ClientError::BadReply { .. })
}

/// Watches one account until the service ends.
pub(super) async fn run(app: &Exchange, account: &AccountConfig) -> Result<(), WorkerError> {
    let watch = Watch::new(app, account, Mode::Service)?;
    tokio::select! {
        biased;
        () = app.drain.draining() => Ok(()),
        result = watch.run() => result,
    }
}

/// What the bank said.
enum Answer {
    Rows(Vec<IncomingRow>),
    /// 404: the account comes into being with its first transfer.
    NoAccount,
}

/// What became of a page.
struct Imported {
    booked: u64,
    set_aside: u64,
    /// The new cursor.
    cursor: u64,
}

struct Watch<'a> {
    app: &'a Exchange,
    account: &'a AccountConfig,
    id: AccountId,
    gateway: WireGatewayClient,
    mode: Mode,
    is_missing: AtomicBool,
    /// Rows of the last page.
    last_rows: AtomicUsize,
}

impl<'a> Watch<'a> {
    fn new(app: &'a Exchange, account: &'a AccountConfig, mode: Mode) -> Result<Self, WorkerError> {
        let client: Client = client(&account.section, 1)?;
        let config = account.gateway.as_ref().expect("watched accounts have a gateway");
        let id = AccountId::of_payto(&account.payto_uri);
        let gateway = gateway(&client, config);
        Ok(Self {
            app,
            account,
            id,
            gateway,
            mode,
            is_missing: AtomicBool::new(false),
            last_rows: AtomicUsize::new(0),
        })
    }

    fn bank_error(&self, source: ClientError) -> WorkerError {
        WorkerError::Bank { section: self.account.section.clone(), source: source.into() }
    }

    async fn cursor(&self) -> Result<u64, WorkerError> {
        let id = self.id;
        read(self.app, move |store| rules::read::cursor(store, id)).await
    }

    async fn run(&self) -> Result<(), WorkerError> {
        let idle = idle_interval(self.app.config.workers.wirewatch_idle_sleep);
        let mut cursor = self.cursor().await?;
        let mut page_pause = PAGE_PAUSE_MIN;
        let (mut failures, mut empty) = (0u32, 0u32);
        let mut ahead = None;
        loop {
            let asked = Instant::now();
            let answer = match ahead.take() {
                Some(answer) => answer,
                None => self.fetch(cursor, LONG_POLL).await,
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
            let is_full = self.is_full(rows.len());
            let imported;
            (imported, ahead) = self.import_and_fetch(cursor, &rows, Duration::ZERO).await;
            let imported = match imported {
                Ok(imported) => imported,
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
            };
            let is_news = imported.cursor != cursor;
            cursor = imported.cursor;
            if is_news {
                empty = 0;
                if matches!(&ahead, Some(Ok(Answer::Rows(rows))) if rows.is_empty()) {
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

    async fn fetch(&self, cursor: u64, long_poll: Duration) -> Result<Answer, ClientError> {
        let query = HistoryQuery {
            start: Some(cursor),
            delta: PAGE_ROWS as i64,
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
    fn is_full(&self, rows: usize) -> bool {
        rows >= PAGE_ROWS || rows >= BANK_PAGE_ROWS_MIN && rows == self.last_rows.load(Relaxed)
    }

    /// Books a page; if it was full, the next one is fetched meanwhile.
    async fn import_and_fetch(
        &self,
        cursor: u64,
        rows: &[IncomingRow],
        long_poll: Duration,
    ) -> (Result<Imported, WorkerError>, Option<Result<Answer, ClientError>>) {
        let is_full = self.is_full(rows.len());
        self.last_rows.store(rows.len(), Relaxed);
        let last = rows.iter().rev().find_map(|row| row.row_id).filter(|last| is_full && *last > cursor);
        let fetch = async {
            match last {
                Some(last) => Some(self.fetch(last, long_poll).await),
                None => None,
            }
        };
        let (imported, ahead) = tokio::join!(self.import(cursor, rows), fetch);
        // Only what lies directly behind the page may be used.
        let fits = imported.as_ref().is_ok_and(|imported| Some(imported.cursor) == last);
        (imported, ahead.filter(|_| fits))
    }

    /// Books a page.
    async fn import(&self, cursor: u64, rows: &[IncomingRow]) -> Result<Imported, WorkerError> {
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
        let mut imported = Imported { booked: 0, set_aside: 0, cursor: last.unwrap_or(cursor).max(cursor) };
        let mut newest = None;
        let mut in_flight = FuturesUnordered::new();
        let mut parts = rows.chunks(COMMAND_CREDITS).peekable();
        while let Some(part) = parts.next() {
            let mut credits = Vec::with_capacity(part.len());
            for row in part {
                match self.credit(row) {
                    Ok(credit) => credits.push(credit),
                    Err(reason) if row.row_id.is_none_or(|id| id > cursor) => {
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
            let page_cursor = if is_last { imported.cursor } else { cursor };
            if !credits.is_empty() || page_cursor != cursor {
                in_flight.push(self.book_part(credits, page_cursor));
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

    /// Books a part of a page and moves the cursor.
    async fn book_part(&self, credits: Vec<Credit>, cursor: u64) -> Result<Imported, WorkerError> {
        let mut imported = Imported { booked: 0, set_aside: 0, cursor };
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

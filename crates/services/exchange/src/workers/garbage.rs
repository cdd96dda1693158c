//! garbage: removes rows that are no longer needed. It is not one of the service's workers, but runs once, by
//! order of an operator (`dbinit -g`).
//!
//! It reads each table once, from a view, and submits candidates in small commands, so that payments never
//! wait for it. The rules decide on each candidate. So several collectors may run at the same time, beside
//! any other work, and one that was interrupted is simply run again.

use std::ops::ControlFlow;

use batzen_store::{Found, StoreError, Table};
use batzen_tables::exchange::{CsNonces, KycProcesses, KycRequirements, Prepared, Purses, Reserves};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{Mode, WorkerError, check_drain, decide, read};
use crate::core::Core;
use crate::reads::garbage::{nonce_candidates, purse_candidates, reserve_candidates};
use crate::rules::garbage::{COLLECT_ROWS_MAX, is_requirement_over, is_reserve_over, is_transfer_over};
use crate::rules::purses::PURSE_COINS_MAX;
use crate::rules::{Collect, Collected, ReserveCandidate};

/// The maximum number of candidates in a command.
const CANDIDATES_MAX: usize = 64;
/// The maximum number of purses in a command, each of which may have many coins.
const PURSES_MAX: usize = COLLECT_ROWS_MAX / PURSE_COINS_MAX as usize;
/// Number of pages of candidates that the reader may be ahead.
const PAGES_AHEAD: usize = 4;

/// The result for one kind of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Swept {
    /// Number of rows found, whether or not they could be removed.
    pub seen: u64,
    /// Number of those that were removed.
    pub removed: u64,
    /// Number of rows in total, with those that belonged to them.
    pub rows: u64,
}

impl Swept {
    fn add(&mut self, collected: Collected) {
        self.removed += collected.removed;
        self.rows += collected.rows;
    }
}

/// The report of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Transfers that the bank executed.
    pub transfers: Swept,
    /// Reserves.
    pub reserves: Swept,
    /// Locks of Clause Blind Schnorr nonces.
    pub nonces: Swept,
    /// Purses that were refunded.
    pub purses: Swept,
    /// KYC requirements that nobody has acted on.
    pub kyc_requirements: Swept,
    /// Identifications that were never completed, or that expired long ago.
    pub kyc_processes: Swept,
}

impl Report {
    /// Each kind with its name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Swept); 6] {
        [
            ("transfers", self.transfers),
            ("purses", self.purses),
            ("reserves", self.reserves),
            ("nonces", self.nonces),
            ("kyc_processes", self.kyc_processes),
            ("kyc_requirements", self.kyc_requirements),
        ]
    }
}

/// Removes everything that is no longer needed, and passes the intermediate results to `progress`.
///
/// # Errors
/// When the store fails repeatedly; what was removed before stays removed.
pub async fn run(app: &Core, mut progress: impl FnMut(&Report)) -> Result<Report, WorkerError> {
    // The rules decide by the terms of all denominations.
    let rules = app.rules.clone();
    read(app, move |store| rules.denoms.reload(store)).await?;
    let now = app.now();
    let mut report = Report::default();

    let mut pages = Pages::<Prepared>::of(app, move |found| is_transfer_over(&found.row, now));
    while let Some(page) = pages.next().await? {
        let wtids = page.found.into_iter().map(|found| found.key.wtid).collect();
        report.transfers.seen += page.seen;
        report.transfers.add(submit(app, Collect::Transfers(wtids)).await?);
        progress(&report);
    }

    let rules = app.rules.clone();
    let mut pages = Pages::<Purses>::of(app, move |found| rules.is_purse_over(&found.row, now));
    while let Some(page) = pages.next().await? {
        report.purses.seen += page.seen;
        let candidates = read(app, move |store| purse_candidates(store, &page.found)).await?;
        for part in candidates.chunks(PURSES_MAX) {
            report.purses.add(submit(app, Collect::Purses(part.to_vec())).await?);
        }
        progress(&report);
    }

    // After the transfers and the purses: a closing's transfer must be done before its reserve is removed.
    let mut pages = Pages::<Reserves>::of(app, move |found| is_reserve_over(&found.row, now));
    while let Some(page) = pages.next().await? {
        report.reserves.seen += page.seen;
        let candidates = read(app, move |store| reserve_candidates(store, &page.found)).await?;
        for command in reserve_commands(candidates) {
            report.reserves.add(submit(app, command).await?);
        }
        progress(&report);
    }

    let ended_max = app.rules.signing_ended_max(now);
    let mut pages = Pages::<CsNonces>::of(app, move |found| found.row.denom_max <= ended_max);
    while let Some(page) = pages.next().await? {
        report.nonces.seen += page.seen;
        let candidates = read(app, move |store| nonce_candidates(store, page.found)).await?;
        report.nonces.add(submit(app, Collect::Nonces(candidates)).await?);
        progress(&report);
    }

    let rules = app.rules.clone();
    let mut pages = Pages::<KycProcesses>::of(app, move |found| rules.is_process_over(&found.row, now));
    while let Some(page) = pages.next().await? {
        report.kyc_processes.seen += page.seen;
        let keys = page.found.into_iter().map(|found| found.key).collect();
        report.kyc_processes.add(submit(app, Collect::KycProcesses(keys)).await?);
        progress(&report);
    }

    let mut pages = Pages::<KycRequirements>::of(app, move |found| is_requirement_over(&found.row, now));
    while let Some(page) = pages.next().await? {
        report.kyc_requirements.seen += page.seen;
        let keys = page.found.into_iter().map(|found| found.key).collect();
        report.kyc_requirements.add(submit(app, Collect::KycRequirements(keys)).await?);
        progress(&report);
    }
    Ok(report)
}

async fn submit(app: &Core, command: Collect) -> Result<Collected, WorkerError> {
    check_drain(app)?;
    decide(app, Mode::UntilIdle, command).await?.map_err(|refusal| WorkerError::Refused(Box::new(refusal)))
}

/// Rows of a table that may be removed.
struct Page<T: Table> {
    found: Vec<Found<T>>,
    /// Number of rows of the table that were read for them.
    seen: u64,
}

/// Searches a table on a thread of its own, page by page.
struct Pages<T: Table>(mpsc::Receiver<Result<Page<T>, StoreError>>);

impl<T: Table> Pages<T> {
    fn of(app: &Core, is_candidate: impl Fn(&Found<T>) -> bool + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel(PAGES_AHEAD);
        let store = app.store.clone();
        tokio::task::spawn_blocking(move || {
            let mut page = Page { found: Vec::new(), seen: 0 };
            let searched = store.scan::<T>(|found| {
                page.seen += 1;
                if is_candidate(&found) {
                    page.found.push(found);
                }
                if page.found.len() < CANDIDATES_MAX {
                    return ControlFlow::Continue(());
                }
                let full = std::mem::replace(&mut page, Page { found: Vec::new(), seen: 0 });
                match sender.blocking_send(Ok(full)) {
                    Ok(()) => ControlFlow::Continue(()),
                    // The collector has ended.
                    Err(_) => ControlFlow::Break(()),
                }
            });
            let _ = sender.blocking_send(searched.map(|()| page));
        });
        Self(receiver)
    }

    async fn next(&mut self) -> Result<Option<Page<T>>, WorkerError> {
        Ok(self.0.recv().await.transpose()?)
    }
}

/// Divides candidates into commands whose rows fit into a commit. Too large reserves are left out.
fn reserve_commands(candidates: Vec<(ReserveCandidate, usize)>) -> Vec<Collect> {
    let mut commands = Vec::new();
    let (mut part, mut part_rows) = (Vec::new(), 0);
    for (candidate, rows) in candidates {
        if rows > COLLECT_ROWS_MAX {
            tracing::warn!(
                reserve_pub = %candidate.reserve_pub, rows, "a reserve has too many rows to be removed, and is kept"
            );
            continue;
        }
        if part_rows + rows > COLLECT_ROWS_MAX {
            commands.push(Collect::Reserves(std::mem::take(&mut part)));
            part_rows = 0;
        }
        part.push(candidate);
        part_rows += rows;
    }
    if !part.is_empty() {
        commands.push(Collect::Reserves(part));
    }
    commands
}

//! archive: moves rows whose legal time is over to a store of their own. It is not one of the service's workers,
//! but runs once, by order of an operator (`batzen exchange archive`).
//!
//! It finds units of rows, copies a batch of them to the archive, which syncs them, and then has the rules remove
//! them from the store. So a row is in one of the two at any moment, or in both, and whoever continues an
//! interrupted run takes copies out of the archive again whose originals are still there (`mover.rs`).

mod files;
mod mover;

use std::collections::BTreeMap;

use batzen_protocol::Timestamp;
use batzen_store::StoreError;
use batzen_tables::exchange::{ArchiveCountRow, ArchiveRunRow, DenomSerial};
use tokio::sync::{mpsc, oneshot};

use super::{Mode, WorkerError, check_drain, decide, read};
use crate::core::Core;
use crate::rules::{Archive, Archived, Refusal, Stays};

pub use files::{ArchiveDir, Archives, Contents, contents, examine};
pub use mover::{Mover, Task, Times};

/// The result for one kind of units.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Number of units examined.
    pub seen: u64,
    /// Number that left, or would leave.
    pub left: u64,
    /// Number that stay, for each reason.
    pub stay: BTreeMap<Stays, u64>,
}

/// The report of an archiver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The run; none if nothing left.
    pub run: Option<u32>,
    /// Transfers to merchants, with their deposits.
    pub transfers: Moved,
    /// Purses whose deposits left.
    pub purses: Moved,
    /// Coins.
    pub coins: Moved,
    /// Number of rows that left, by number of the table and by denomination.
    pub counts: BTreeMap<(u16, DenomSerial), ArchiveCountRow>,
}

impl Report {
    /// Each kind with its name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, &Moved); 3] {
        [("transfers", &self.transfers), ("purses", &self.purses), ("coins", &self.coins)]
    }

    /// Number of units that were examined.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.named().iter().map(|(_, moved)| moved.seen).sum()
    }

    /// The number of rows that left, and their bytes.
    #[must_use]
    pub fn rows(&self) -> (u64, u64) {
        self.counts.values().fold((0, 0), |(rows, bytes), count| (rows + count.rows, bytes + count.bytes))
    }
}

/// Why an archiver stopped. What left before is in the archive; the next run continues.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A store could not be read or written.
    #[error("{place}: {source}")]
    Store {
        /// Its name.
        place: &'static str,
        /// The error.
        source: StoreError,
    },
    /// The archive and the store contradict each other.
    #[error("the archive of run {run} {what}")]
    Differs {
        /// The run.
        run: u32,
        /// The difference.
        what: String,
    },
    /// A rule refused a command: somebody else is at it.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The worker could not go on.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A file could not be removed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

type Decision = Result<Archived, ArchiveError>;

async fn submit(app: &Core, command: Archive) -> Decision {
    check_drain(app)?;
    let verdict = decide(app, Mode::UntilIdle, command).await?;
    verdict.map_err(|refusal| ArchiveError::Refused(Box::new(refusal)))
}

/// Moves everything whose legal time was over at a time to an archive, or only counts it, and passes intermediate results to
/// `progress`.
///
/// # Errors
/// The reason why it stopped before it was done.
pub async fn run(
    app: &Core,
    archives: impl Archives + Send + 'static,
    task: Task,
    until: Timestamp,
    progress: impl FnMut(&Report) + Send + 'static,
) -> Result<Report, ArchiveError> {
    // The rules decide by the terms of all denominations.
    let rules = app.rules.clone();
    read(app, move |store| rules.denoms.reload(store)).await?;
    // The sums for the metrics read related rows from the store, so they come first.
    while app.rules.flow.is_summing() {
        super::pause(app, std::time::Duration::from_millis(20)).await?;
    }
    let (commands, mut asked) = mpsc::channel::<(Archive, oneshot::Sender<Decision>)>(1);
    let (store, rules) = (app.store.clone(), app.rules.clone());
    let times = Times { now: app.now(), until };
    let worker = tokio::task::spawn_blocking(move || {
        let mut decide = |command| {
            let (answer, decision) = oneshot::channel();
            commands.blocking_send((command, answer)).map_err(|_| WorkerError::Stopped)?;
            decision.blocking_recv().map_err(|_| WorkerError::Stopped)?
        };
        Mover::new(&store, &rules, times, &archives, &mut decide, progress).run(&task)
    });
    while let Some((command, answer)) = asked.recv().await {
        // If the archiver has ended, nobody waits for the answer.
        let _ = answer.send(submit(app, command).await);
    }
    match worker.await {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(WorkerError::Stopped.into()),
    }
}

/// Records that a run's archive is dropped, if the run ended before a time. The caller then removes the files.
///
/// # Errors
/// [`Refusal::ArchiveTooYoung`] if it must be kept longer.
pub async fn drop_run(
    app: &Core,
    run: u32,
    before: Timestamp,
    reason: String,
) -> Result<ArchiveRunRow, ArchiveError> {
    match submit(app, Archive::Drop { run, reason, before }).await? {
        Archived::Dropped(row) => Ok(*row),
        other => unreachable!("an answer belongs to its command: {other:?}"),
    }
}

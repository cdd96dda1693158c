//! Follows an exchange, and checks what it ships: the rows, the results and the position are one commit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_audit::{AuditError, Options, Outcome, Progress, RowChange, Subject, Version, increment};
use batzen_feed::Clock;
use batzen_feed::client::{
    self, Batch, Comparison, FeedError, Follower, FollowerOptions, Next, SharedProgress,
};
use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Store, StoreError};

use super::findings::{self, Changes};
use super::{CopyPosition, Live};
use crate::checks::Outside;

/// Why following stopped.
#[derive(Debug, thiserror::Error)]
pub enum FollowingError {
    /// The stream.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The checks.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl From<StoreError> for FollowingError {
    fn from(error: StoreError) -> Self {
        Self::Feed(FeedError::Store(error))
    }
}

impl FollowingError {
    /// Whether another attempt would fail, too.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Feed(error) => error.is_final(),
            Self::Audit(_) => true,
        }
    }
}

/// What a step has brought.
#[derive(Debug)]
pub enum Followed {
    /// Changes, stored and checked. `is_state`: the copy is a state of the exchange now.
    Batch {
        /// Whether it is.
        is_state: bool,
    },
    /// The answer to [`Following::ask_comparison`].
    Compared(Comparison),
    /// Nothing, within the time.
    Idle,
}

/// How far it is, for other threads.
#[derive(Debug)]
pub struct Status {
    /// The stream.
    pub feed: Arc<SharedProgress>,
    /// The whole check, while there is one.
    pub checks: Progress,
    /// Whether all rows are being checked.
    pub is_checking_all: AtomicBool,
    /// Why it does not go on.
    failure: Mutex<Option<String>>,
}

impl Status {
    /// Why it does not go on, if so.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says why it does not go on, or that it does.
    pub fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// Follows an exchange. Its methods block, and must not be called on a thread that runs asynchronous tasks.
pub struct Following {
    follower: Follower,
    store: Store,
    /// The exchange; `None`: its rows are only copied.
    subject: Option<Subject>,
    threads: usize,
    clock: Clock,
    live: Option<Live>,
    status: Arc<Status>,
}

impl Following {
    /// Prepares to follow an exchange into this store, from where it stopped before. Without a `subject`, rows are
    /// copied and not checked.
    ///
    /// # Errors
    /// If the key cannot be used or the store cannot be read.
    pub fn new(
        options: FollowerOptions,
        store: Store,
        subject: Option<Subject>,
        threads: usize,
    ) -> Result<Self, FeedError> {
        let clock = Arc::clone(&options.clock);
        let follower = Follower::new(options, store.clone())?;
        let status = Arc::new(Status {
            feed: follower.progress(),
            checks: Progress::default(),
            is_checking_all: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        Ok(Self { follower, store, subject, threads, clock, live: None, status })
    }

    /// How far it is, for other threads.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Whether the exchange has said on this connection that it has nothing more.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.follower.is_up_to_date()
    }

    /// Asks the exchange for the digest of all its audited rows. The answer comes from [`Following::step`].
    pub fn ask_comparison(&mut self) {
        self.follower.ask_comparison();
    }

    /// The results, if the copy is whole and its rows are checked.
    ///
    /// # Errors
    /// If the store fails.
    pub fn live(&mut self) -> Result<Option<&mut Live>, FollowingError> {
        let Some(subject) = &self.subject else { return Ok(None) };
        if self.live.is_none() {
            self.live = Live::open(&self.store, subject, self.threads)?;
            if self.live.is_none() && CopyPosition::of(&self.store)?.is_some() {
                self.status.is_checking_all.store(true, Ordering::Relaxed);
                let checked =
                    Live::check_all(&self.store, subject, self.threads, (self.clock)(), &self.status.checks);
                self.status.is_checking_all.store(false, Ordering::Relaxed);
                self.live = Some(checked?);
            }
        }
        Ok(self.live.as_mut())
    }

    /// Waits for the next changes, at most this long, and stores them together with the results of their checks. After an
    /// error, the next call connects again.
    ///
    /// # Errors
    /// See [`FollowingError`].
    pub fn step(&mut self, wait: Duration) -> Result<Followed, FollowingError> {
        self.live()?;
        match self.follower.next(wait)? {
            Next::Batch(batch) => {
                let (is_state, is_snapshot) = (batch.head.is_some(), batch.is_snapshot);
                let results = self.results(&batch);
                // What could not be stored is not in the results.
                let stored = results.and_then(|results| Ok(self.follower.commit(batch, results)?));
                if stored.is_err() || is_snapshot {
                    self.live = None;
                }
                stored.map(|()| Followed::Batch { is_state })
            }
            Next::Compared(comparison) => Ok(Followed::Compared(comparison)),
            Next::Idle => Ok(Followed::Idle),
        }
    }

    /// What is to be stored about a batch.
    fn results(&mut self, batch: &Batch) -> Result<ChangeSet, FollowingError> {
        let now = (self.clock)();
        let version = |row: &Option<Vec<u8>>, serial| row.clone().map(|row| Version { row, serial });
        if self.subject.is_none() {
            return Ok(ChangeSet::new());
        }
        let changes: Vec<RowChange> = batch
            .changes
            .iter()
            .map(|change| RowChange {
                table: change.table,
                key: change.key.clone(),
                old: version(&change.old, change.serial),
                new: version(&change.new, change.serial),
            })
            .collect();
        match (&mut self.live, &batch.head) {
            (Some(live), Some(head)) if !batch.is_snapshot => {
                let snapshots = live.state().map_or(0, |row| row.snapshots);
                let position = CopyPosition { next: head.position.next, snapshots };
                Ok(live.apply(changes, position, now)?)
            }
            _ => {
                // Other rules are checked when the snapshot is complete.
                let mut noted = Changes::default();
                increment::rewritten(&changes)?.into_iter().for_each(|finding| noted.found(finding, false));
                let mut set = ChangeSet::new();
                noted.write(&self.store, now, &mut set)?;
                Ok(set)
            }
        }
    }

    /// Compares with the bank and with what merchants have shown, and looks for what is overdue. `None` if the rows are
    /// not checked yet.
    ///
    /// # Errors
    /// If the store fails.
    pub fn compare(&mut self, outside: Outside) -> Result<Option<Outcome>, FollowingError> {
        let (now, threads) = ((self.clock)(), self.threads);
        let copied = client::position(&self.store)?.map(|row| row.time);
        let Some(live) = self.live()? else { return Ok(None) };
        let options = Options {
            now,
            internal: true,
            threads,
            bank: outside.bank,
            confirmations: outside.confirmations,
            copied: Some(copied.unwrap_or(Timestamp::ZERO)),
        };
        Ok(Some(live.compare(&options, outside.asked, &Progress::default())?))
    }

    /// All findings with their stories.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn findings(&self) -> Result<Vec<findings::Kept>, StoreError> {
        findings::all(&self.store)
    }
}

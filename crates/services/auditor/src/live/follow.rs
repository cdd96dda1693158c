//! Follows an exchange, and checks what it ships: the rows, the results and the position are one commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::audit::{AuditError, AuditOutcome, Options, Progress, RowChange, Subject, Version, increment};
use batzen_feed::Clock;
use batzen_feed::client::{
    self as feed, Batch, Comparison, FeedError, Follower, FollowerOptions, SharedProgress,
};
use batzen_protocol::Timestamp;
use batzen_store::{ChangeSet, Store, StoreError};

use super::findings::{self, Changes};
use super::reach::Reach;
use super::replica::{self, ReplicaFollower, ReplicaOptions};
use super::{CopyPosition, Live, Outside};

/// Interval at which a database is asked whether it is still this process's, while there is nothing to store.
const STORE_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Returns whether another attempt would fail, too.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Feed(error) => error.is_final(),
            // A database may be away for a while, and a full disk may get space.
            Self::Audit(AuditError::Store(StoreError::Unavailable(_) | StoreError::Full(_))) => false,
            Self::Audit(_) => true,
        }
    }
}

/// The result of a step.
#[derive(Debug)]
pub enum Followed {
    /// Changes, stored and checked.
    Batch {
        /// Whether the copy is a state of the exchange now, and it is known how much more there is.
        is_state: bool,
    },
    /// The answer to [`Following::ask_comparison`].
    Compared(Comparison),
    /// Nothing, within the time.
    Idle,
}

/// Its progress, for other threads.
#[derive(Debug)]
pub struct Status {
    /// The stream.
    pub feed: Arc<SharedProgress>,
    /// The whole check, while there is one.
    pub(crate) checks: Progress,
    /// Whether all rows are being checked.
    pub(crate) is_checking_all: AtomicBool,
    /// When the copy was complete for the last time, in microseconds since 1970.
    complete: AtomicU64,
}

impl Status {
    /// When the copy was complete for the last time, as far as this process knows.
    pub(crate) fn complete(&self) -> Timestamp {
        Timestamp::from_micros(self.complete.load(Ordering::Acquire))
    }

    /// The rows of the copy are stored that it had at this time.
    fn set_complete(&self, complete: Timestamp) {
        self.complete.fetch_max(complete.as_micros(), Ordering::Release);
    }
}

/// Where the exchange's changes come from.
#[derive(Clone)]
pub enum SourceOptions {
    /// The serial stream of an exchange with an embedded store.
    Stream(FollowerOptions),
    /// The publication of an exchange's database.
    Database(ReplicaOptions),
}

enum Source {
    Stream(Box<Follower>),
    Database(Box<ReplicaFollower>),
}

/// Follows an exchange. Its methods block, and must not be called on a thread that runs asynchronous tasks.
pub struct Following {
    source: Source,
    store: Store,
    /// The exchange; `None`: its rows are only copied.
    subject: Option<Subject>,
    threads: usize,
    clock: Clock,
    live: Option<Live>,
    /// The age of the copy; `None` if it has to be read again.
    reach: Option<Reach>,
    status: Arc<Status>,
    /// When the store was last asked.
    asked_store: Instant,
}

impl Following {
    /// Prepares to follow an exchange into this store, from where it stopped before. Without a `subject`, rows are
    /// copied and not checked.
    ///
    /// # Errors
    /// If the key cannot be used or the store cannot be read.
    pub fn new(
        options: SourceOptions,
        store: Store,
        subject: Option<Subject>,
        threads: usize,
    ) -> Result<Self, FeedError> {
        let (source, clock, feed) = match options {
            SourceOptions::Stream(options) => {
                let clock = Arc::clone(&options.clock);
                let follower = Follower::new(options, store.clone())?;
                let progress = follower.progress();
                (Source::Stream(Box::new(follower)), clock, progress)
            }
            SourceOptions::Database(options) => {
                let clock = Arc::clone(&options.clock);
                let follower = ReplicaFollower::new(options, store.clone())?;
                let progress = follower.progress();
                (Source::Database(Box::new(follower)), clock, progress)
            }
        };
        let status = Arc::new(Status {
            feed,
            checks: Progress::default(),
            is_checking_all: AtomicBool::new(false),
            complete: AtomicU64::new(0),
        });
        let asked_store = Instant::now();
        Ok(Self { source, store, subject, threads, clock, live: None, reach: None, status, asked_store })
    }

    /// Returns its progress, for other threads.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Returns whether the exchange has said on this connection that it has nothing more.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        match &self.source {
            Source::Stream(follower) => follower.is_up_to_date(),
            Source::Database(follower) => follower.is_up_to_date(),
        }
    }

    /// Asks the exchange for the digest of all its audited rows. The answer comes from [`Following::step`]. Returns
    /// whether it can be asked: a database cannot.
    pub fn ask_comparison(&mut self) -> bool {
        match &mut self.source {
            Source::Stream(follower) => follower.ask_comparison(),
            Source::Database(_) => return false,
        }
        true
    }

    /// The results, if the copy is whole and its rows are checked.
    ///
    /// # Errors
    /// If the store fails.
    pub fn live(&mut self) -> Result<Option<&mut Live>, FollowingError> {
        let Some(subject) = &self.subject else { return Ok(None) };
        if self.live.is_none() {
            self.live = Live::open(&self.store, subject, self.threads)?;
            if self.live.is_none() {
                self.check_all()?;
            }
        }
        Ok(self.live.as_mut())
    }

    /// Checks all rows again, whether that is necessary or not. Returns whether it did: not in the middle of a snapshot,
    /// and not if rows are only copied.
    ///
    /// # Errors
    /// If the store fails, or somebody stopped it.
    pub(crate) fn check_all(&mut self) -> Result<bool, FollowingError> {
        let Some(subject) = &self.subject else { return Ok(false) };
        if CopyPosition::of(&self.store)?.is_none() {
            return Ok(false);
        }
        let status = &self.status;
        status.checks.rows.store(0, Ordering::Relaxed);
        status.checks.signatures.store(0, Ordering::Relaxed);
        status.is_checking_all.store(true, Ordering::Relaxed);
        let checked = Live::check_all(&self.store, subject, self.threads, (self.clock)(), &status.checks);
        status.is_checking_all.store(false, Ordering::Relaxed);
        // A check that was stopped may have left nothing to go on from.
        self.live = None;
        self.live = Some(checked?);
        Ok(true)
    }

    /// Waits for the next changes, at most this long, and stores them together with the results of their checks. After an
    /// error, the next call connects again.
    ///
    /// # Errors
    /// See [`FollowingError`].
    pub fn step(&mut self, wait: Duration) -> Result<Followed, FollowingError> {
        self.live()?;
        let reach = match &mut self.reach {
            Some(reach) => reach,
            unread => unread.insert(Reach::of(&self.store)?),
        };
        // What could not be stored is not in the results, so they are read again.
        let (stored, is_state, is_stream) = match &mut self.source {
            Source::Stream(follower) => match follower.next(wait)? {
                feed::Next::Batch(batch) => {
                    let now = (self.clock)();
                    let next = batch.head.as_ref().map(|head| head.position.next);
                    if let (Some(next), Some(end)) = (next, batch.end()) {
                        reach.took(next, end, now);
                    }
                    let is_stream = !batch.is_snapshot;
                    let changes = stream_changes(&batch);
                    let checking = Checking { store: &self.store, live: &mut self.live, now };
                    let is_checked = self.subject.is_some();
                    let results = if is_checked {
                        checking.results(changes, next, is_stream)
                    } else {
                        Ok(ChangeSet::new())
                    };
                    let stored = results.and_then(|mut results| {
                        reach.write(&mut results);
                        Ok(follower.commit(batch, results)?)
                    });
                    (stored, next.is_some(), is_stream)
                }
                feed::Next::Compared(comparison) => return Ok(Followed::Compared(comparison)),
                feed::Next::Idle => return self.idle(),
            },
            Source::Database(follower) => match follower.next(wait)? {
                replica::Next::Taken(taken) => {
                    let (next, is_stream) = (taken.next(), taken.is_stream);
                    let checking = Checking { store: &self.store, live: &mut self.live, now: (self.clock)() };
                    // Parts of a first copy are no changes.
                    let is_checked = self.subject.is_some() && (is_stream || taken.is_judged);
                    let results = if is_checked {
                        checking.results(taken.changes.clone(), next, is_stream)
                    } else {
                        Ok(ChangeSet::new())
                    };
                    if let (Some(_), Some(time)) = (next, taken.time()) {
                        reach.has_all(time);
                    }
                    let stored = results.and_then(|mut results| {
                        reach.write(&mut results);
                        Ok(follower.commit(taken, results)?)
                    });
                    if stored.is_err() {
                        follower.forget();
                    }
                    // How much more there is, a database does not say.
                    (stored, false, is_stream)
                }
                replica::Next::Idle => return self.idle(),
            },
        };
        if stored.is_err() || !is_stream {
            self.live = None;
        }
        if stored.is_err() {
            self.reach = None;
        } else if let Some(reach) = &self.reach {
            self.status.set_complete(reach.complete());
        }
        stored.map(|()| Followed::Batch { is_state })
    }

    /// Nothing has come. If that is because there is nothing, the copy is complete now. Another process may have taken over
    /// the store, and then waits until this one leaves the exchange.
    fn idle(&mut self) -> Result<Followed, FollowingError> {
        let backend = self.store.backend();
        if backend.is_remote() && self.asked_store.elapsed() >= STORE_INTERVAL {
            self.asked_store = Instant::now();
            backend.check_writable()?;
        }
        if self.is_up_to_date()
            && self.status.feed.get().lag_commits() == 0
            && let Some(reach) = &mut self.reach
        {
            reach.has_all((self.clock)());
            self.status.set_complete(reach.complete());
            if reach.is_due() {
                let mut set = ChangeSet::new();
                reach.write(&mut set);
                let stored = self.store.commit(&set).and_then(super::committed);
                if stored.is_err() {
                    self.reach = None;
                }
                stored?;
            }
        }
        Ok(Followed::Idle)
    }

    /// Compares with the bank and with what merchants have shown, and looks for what is overdue. `None` if the rows are
    /// not checked yet.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn compare(&mut self, outside: Outside) -> Result<Option<AuditOutcome>, FollowingError> {
        let (now, threads) = ((self.clock)(), self.threads);
        let copied = match &self.reach {
            Some(reach) => reach.complete(),
            None => Reach::of(&self.store)?.complete(),
        };
        let Some(live) = self.live()? else { return Ok(None) };
        let options = Options {
            now,
            internal: true,
            in_order: false,
            threads,
            bank: outside.bank,
            confirmations: outside.confirmations,
            copied: Some(copied),
        };
        Ok(Some(live.compare(&options, outside.asked, &Progress::default())?))
    }

    /// All findings with their stories.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn findings(&self) -> Result<Vec<findings::TrackedFinding>, StoreError> {
        findings::all(&self.store)
    }
}

/// Checks what has come.
struct Checking<'a> {
    store: &'a Store,
    live: &'a mut Option<Live>,
    now: Timestamp,
}

impl Checking<'_> {
    /// The rows to store about changes, which lead to a state at `next`.
    fn results(
        self,
        changes: Vec<RowChange>,
        next: Option<u64>,
        is_stream: bool,
    ) -> Result<ChangeSet, FollowingError> {
        match (self.live, next) {
            (Some(live), Some(next)) if is_stream => {
                let snapshots = live.state().map_or(0, |row| row.snapshots);
                Ok(live.apply(changes, CopyPosition { next, snapshots }, self.now)?)
            }
            _ => {
                // Other rules are checked when the copy is complete.
                let mut noted = Changes::default();
                increment::rewritten(&changes)?.into_iter().for_each(|finding| noted.found(finding, false));
                let mut set = ChangeSet::new();
                noted.write(self.store, self.now, &mut set)?;
                Ok(set)
            }
        }
    }
}

/// The changes of a batch of the stream.
fn stream_changes(batch: &Batch) -> Vec<RowChange> {
    let version = |row: &Option<Vec<u8>>, serial| row.clone().map(|row| Version { row, serial });
    let change = |change: &feed::RowChange| RowChange {
        table: change.table,
        key: change.key.clone(),
        old: version(&change.old, change.serial),
        new: version(&change.new, change.serial),
    };
    batch.changes.iter().map(change).collect()
}

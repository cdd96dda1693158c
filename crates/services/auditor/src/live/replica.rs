//! Follows an exchange whose rows are in PostgreSQL, through the publication of its changes.
//!
//! The first copy is fuzzy ([`batzen_postgres::replica`]): it is a state of the database only once the changes that came
//! while it was made are applied, too. From then on, each batch is whole transactions.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::audit::{RowChange, Version};
use batzen_crypto::{EddsaSignature, ShortHash};
use batzen_feed::Clock;
use batzen_feed::client::{FeedError, SharedProgress};
use batzen_postgres::Target;
use batzen_postgres::replica::{Change as Replicated, Lsn, Replica, ReplicaError, Transaction};
use batzen_protocol::Timestamp;
use batzen_store::{
    Change, ChangeSet, CommitOutcome, List, RawRecord, RowVersion, Store, StoreError, TableDef,
};
use batzen_tables::auditor::copy::{FeedPositionKey, FeedPositionRow, FeedPositions};
use batzen_tables::auditor::results::{ReplicaPositionKey, ReplicaPositionRow, ReplicaPositions};
use batzen_tables::exchange::AUDITED;

/// Changes that are asked for at once. Transactions are whole, so there may be more.
const CHANGES_AT_ONCE: u32 = 10_000;
/// Changes of several transactions that are committed together. A database takes about twice as many new rows at once, and
/// results are among them.
const CHANGES_MAX: usize = 32_768;
/// Rows that are deleted in one commit after a copy was made again.
const DELETED_AT_ONCE: u32 = 4_096;
/// The pause between two questions while there is nothing new.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval at which a database without changes is told that the copy has everything.
const IDLE_CONFIRM: Duration = Duration::from_secs(10);

const POSITION: FeedPositionKey = FeedPositionKey { id: 0 };
const REPLICA: ReplicaPositionKey = ReplicaPositionKey { id: 0 };

/// Options to follow a database.
#[derive(Clone)]
pub struct ReplicaOptions {
    /// The exchange's database.
    pub(crate) target: Target,
    /// The schema of its tables.
    pub(crate) schema: String,
    /// The name of the replication slot.
    pub(crate) slot: String,
    pub(crate) clock: Clock,
    /// Number of rows that are stored in one commit, about: transactions stay whole. `None`: as many as is quickest.
    pub rows_at_once: Option<NonZeroU32>,
}

impl ReplicaOptions {
    /// As many as this, or fewer if a number was set.
    fn at_once(&self, most: u32) -> u32 {
        self.rows_at_once.map_or(most, |rows| rows.get().min(most))
    }
}

/// Changes that are committed together.
pub(super) struct Taken {
    /// One row may change several times.
    pub(crate) changes: Vec<RowChange>,
    /// Whether the copy is a state of the database before and after them. Otherwise their order means nothing.
    pub(crate) is_stream: bool,
    /// Whether they are differences between two states, and not parts of a first copy.
    pub(crate) is_judged: bool,
    position: ReplicaPositionRow,
    is_whole: bool,
    snapshots: u32,
    /// When the last of them was committed.
    time_micros: Option<u64>,
}

impl Taken {
    /// The position after them, if the copy is a state of the database then.
    pub(super) fn next(&self) -> Option<u64> {
        self.is_whole.then_some(self.position.lsn)
    }

    /// When the last of them was committed, by the database's clock.
    pub(super) fn time(&self) -> Option<Timestamp> {
        self.time_micros.map(Timestamp::from_micros)
    }
}

/// The next step.
pub(super) enum Next {
    Taken(Taken),
    Idle,
}

/// A copy that is being made.
struct Copying {
    rows: std::sync::mpsc::Receiver<Result<(&'static TableDef, Vec<RawRecord>), ReplicaError>>,
    /// The position before it.
    at: Lsn,
    hasher: RandomState,
    /// The hashes of the keys that it has, if the store had rows before.
    seen: Option<HashSet<u64>>,
    /// The rows that the database no longer has.
    missing: Option<Vec<RowChange>>,
}

/// Follows a database.
pub(super) struct ReplicaFollower {
    store: Store,
    options: ReplicaOptions,
    replica: Option<Replica>,
    position: Option<ReplicaPositionRow>,
    feed: Option<FeedPositionRow>,
    copying: Option<Copying>,
    progress: Arc<SharedProgress>,
    is_up_to_date: bool,
    confirmed: Instant,
    /// Whether a commit failed, so that only the store knows the position.
    is_unsure: bool,
}

fn away(error: ReplicaError) -> FeedError {
    match error {
        ReplicaError::Server(error) => FeedError::Connection(error.to_string()),
        ReplicaError::SetUp(text) | ReplicaError::Forbidden(text) => FeedError::Contradiction(text),
    }
}

impl ReplicaFollower {
    pub(super) fn new(options: ReplicaOptions, store: Store) -> Result<Self, StoreError> {
        let position = store.get::<ReplicaPositions>(&REPLICA)?.map(|found| found.row);
        let feed = store.get::<FeedPositions>(&POSITION)?.map(|found| found.row);
        let progress = Arc::new(SharedProgress::default());
        if let Some(row) = &position {
            progress.update(|progress| (progress.next, progress.end) = (row.lsn, row.lsn));
        }
        Ok(Self {
            store,
            options,
            replica: None,
            position,
            feed,
            copying: None,
            progress,
            is_up_to_date: false,
            confirmed: Instant::now(),
            is_unsure: false,
        })
    }

    pub(super) fn progress(&self) -> Arc<SharedProgress> {
        Arc::clone(&self.progress)
    }

    pub(super) fn is_up_to_date(&self) -> bool {
        self.is_up_to_date
    }

    fn is_whole(&self) -> bool {
        self.feed.as_ref().is_some_and(|row| row.is_whole)
    }

    /// The next changes, or nothing within this time.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Next, FeedError> {
        let next = self.wait_for_next(wait);
        if next.is_err() {
            (self.replica, self.copying, self.is_up_to_date) = (None, None, false);
            self.progress.update(|progress| progress.is_connected = false);
        }
        next
    }

    fn connect(&mut self) -> Result<&mut Replica, FeedError> {
        if self.replica.is_none() {
            let ReplicaOptions { target, schema, slot, .. } = &self.options;
            let mut replica = Replica::open(target, schema, AUDITED, slot).map_err(away)?;
            if !replica.has_slot().map_err(away)? {
                replica.make_slot().map_err(away)?;
                // What happened before is not known: everything is copied, and compared with what is here.
                if let Some(position) = &mut self.position {
                    position.is_copied = false;
                }
            }
            self.replica = Some(replica);
            self.progress.update(|progress| progress.is_connected = true);
        }
        Ok(self.replica.as_mut().expect("it has just been set"))
    }

    fn wait_for_next(&mut self, wait: Duration) -> Result<Next, FeedError> {
        let deadline = Instant::now() + wait;
        if self.is_unsure {
            self.position = self.store.get::<ReplicaPositions>(&REPLICA)?.map(|found| found.row);
            self.feed = self.store.get::<FeedPositions>(&POSITION)?.map(|found| found.row);
            self.is_unsure = false;
        }
        self.connect()?;
        if !self.position.as_ref().is_some_and(|row| row.is_copied) {
            return self.copy();
        }
        loop {
            let is_whole = self.is_whole();
            let replica = self.replica.as_mut().expect("it is connected");
            // Before the changes are read: whatever was committed until then is among them.
            let end = replica.flushed().map_err(away)?;
            let mut transactions = replica.peek(self.options.at_once(CHANGES_AT_ONCE)).map_err(away)?;
            let position = self.position.clone().expect("it is copied");
            let count = transactions.len();
            transactions.retain(|transaction| transaction.end > position.lsn);
            if transactions.is_empty() && count > 0 {
                // They came again, since a crash of either side came before they were confirmed. There may be more.
                replica.confirm(position.lsn).map_err(away)?;
                continue;
            }
            let mut changes: usize = transactions.iter().map(|transaction| transaction.changes.len()).sum();
            while changes > CHANGES_MAX && transactions.len() > 1 {
                // They come again.
                changes -= transactions.pop().map_or(0, |transaction| transaction.changes.len());
            }
            if !transactions.is_empty() {
                return self.take(transactions, position).map(Next::Taken);
            }
            if !is_whole && end >= position.whole_at {
                // Nothing was committed since the copy was made.
                let position = ReplicaPositionRow { lsn: end.max(position.lsn), ..position };
                return Ok(Next::Taken(self.taken(Vec::new(), position, None)));
            }
            self.is_up_to_date = is_whole;
            self.progress.update(|progress| {
                (progress.end, progress.behind) = (progress.next, Duration::ZERO);
            });
            if is_whole && self.confirmed.elapsed() > IDLE_CONFIRM {
                replica.confirm(end).map_err(away)?;
                self.confirmed = Instant::now();
            }
            if Instant::now() >= deadline {
                return Ok(Next::Idle);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn taken(
        &self,
        changes: Vec<RowChange>,
        position: ReplicaPositionRow,
        time_micros: Option<u64>,
    ) -> Taken {
        Taken {
            changes,
            is_stream: self.is_whole(),
            is_judged: self.is_whole(),
            is_whole: position.lsn >= position.whole_at,
            position,
            snapshots: self.feed.as_ref().map_or(1, |row| row.snapshots),
            time_micros,
        }
    }

    /// Applies transactions to the rows of the copy.
    fn take(&self, transactions: Vec<Transaction>, position: ReplicaPositionRow) -> Result<Taken, FeedError> {
        let last = transactions.last().expect("there is one");
        let (lsn, time) = (last.end, last.time_micros);
        let changes: Vec<Replicated> =
            transactions.into_iter().flat_map(|transaction| transaction.changes).collect();
        let mut rows = self.rows_of(changes.iter().map(|change| (change.table, change.key.clone())))?;
        let mut out = Vec::with_capacity(changes.len());
        for Replicated { table, key, row, serial } in changes {
            let slot = rows.get_mut(&(table.id, key.clone())).expect("every key was read");
            let old = slot.take();
            let row = row.map(|parts| parts.complete(old.as_deref())).transpose().map_err(away)?;
            if self.is_whole() && old.is_none() && row.is_none() {
                return Err(FeedError::Contradiction(format!(
                    "the database deletes a row of {} that it has never had",
                    table.name
                )));
            }
            slot.clone_from(&row);
            if old != row {
                let version = |row: Option<Vec<u8>>| row.map(|row| Version { row, serial });
                out.push(RowChange { table, key, old: version(old), new: version(row) });
            }
        }
        Ok(self.taken(out, ReplicaPositionRow { lsn, ..position }, Some(time)))
    }

    /// The rows of the copy under these keys.
    #[allow(clippy::type_complexity, reason = "a map")]
    fn rows_of(
        &self,
        names: impl Iterator<Item = (&'static TableDef, Vec<u8>)>,
    ) -> Result<HashMap<(u16, Vec<u8>), Option<Vec<u8>>>, StoreError> {
        let mut keys: HashMap<u16, (&'static TableDef, HashSet<Vec<u8>>)> = HashMap::new();
        for (table, key) in names {
            keys.entry(table.id).or_insert((table, HashSet::new())).1.insert(key);
        }
        let mut rows = HashMap::new();
        for (table, keys) in keys.into_values() {
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            let found = self.store.backend().get_many(table, &keys)?;
            for (key, row) in keys.into_iter().zip(found) {
                rows.insert((table.id, key), row.map(|row| row.row));
            }
        }
        Ok(rows)
    }

    /// The next part of a copy of all rows.
    fn copy(&mut self) -> Result<Next, FeedError> {
        let had_copy = self.feed.is_some();
        if self.copying.is_none() {
            let mut snapshot = self.connect()?.snapshot().map_err(away)?;
            let at = snapshot.at;
            let (sender, rows) = std::sync::mpsc::sync_channel(4);
            let rows_at_once = self.options.at_once(u32::MAX) as usize;
            std::thread::spawn(move || {
                let mut send = |table| {
                    snapshot.rows::<Ended>(table, &mut |mut rows| {
                        while rows.len() > rows_at_once {
                            let rest = rows.split_off(rows_at_once);
                            sender.send(Ok((table, rows))).map_err(|_| Ended::Receiver)?;
                            rows = rest;
                        }
                        sender.send(Ok((table, rows))).map_err(|_| Ended::Receiver)
                    })
                };
                let ended = AUDITED.iter().try_for_each(|table| send(table));
                if let Err(Ended::Failed(error)) = ended {
                    // If nobody listens any more, nobody is told.
                    let _ = sender.send(Err(error));
                }
            });
            let seen = had_copy.then(HashSet::new);
            self.copying = Some(Copying { rows, at, hasher: RandomState::new(), seen, missing: None });
        }
        let copying = self.copying.as_mut().expect("it has just been set");
        let at = copying.at;
        let position = ReplicaPositionRow { lsn: 0, whole_at: at, is_copied: false };
        let snapshots = self.feed.as_ref().map_or(0, |row| row.snapshots);
        let taken = |changes, position, snapshots| Taken {
            changes,
            is_stream: false,
            is_judged: had_copy,
            position,
            is_whole: false,
            snapshots,
            time_micros: None,
        };
        match copying.rows.recv() {
            Ok(Err(error)) => Err(away(error)),
            Ok(Ok((table, records))) => {
                if let Some(seen) = &mut copying.seen {
                    let hashes =
                        records.iter().map(|record| copying.hasher.hash_one((table.id, &record.key)));
                    seen.extend(hashes);
                }
                let keys: Vec<Vec<u8>> = records.iter().map(|record| record.key.clone()).collect();
                let known = self.store.backend().get_many(table, &keys)?;
                let changes = records.into_iter().zip(known).filter_map(|(record, known)| {
                    let old = known.map(|known| Version { row: known.row, serial: record.serial });
                    let new = Version { row: record.row, serial: record.serial };
                    let is_new = old.as_ref().is_none_or(|old| old.row != new.row);
                    is_new.then_some(RowChange { table, key: record.key, old, new: Some(new) })
                });
                Ok(Next::Taken(taken(changes.collect(), position, snapshots)))
            }
            // All rows are here.
            Err(_) => {
                if copying.missing.is_none() {
                    copying.missing = Some(match &copying.seen {
                        Some(seen) => missing(&self.store, seen, &copying.hasher)?,
                        None => Vec::new(),
                    });
                }
                let missing = copying.missing.as_mut().expect("it has just been set");
                let deleted_at_once = self.options.at_once(DELETED_AT_ONCE) as usize;
                let part = missing.split_off(missing.len().saturating_sub(deleted_at_once));
                let is_last = missing.is_empty();
                if is_last {
                    self.copying = None;
                }
                let position = ReplicaPositionRow { is_copied: is_last, ..position };
                Ok(Next::Taken(taken(part, position, snapshots + u32::from(is_last))))
            }
        }
    }

    /// Stores changes together with the results of their checks, and confirms them then.
    pub(super) fn commit(&mut self, taken: Taken, results: ChangeSet) -> Result<(), FeedError> {
        let Taken { changes, position, is_whole, snapshots, time_micros, .. } = taken;
        let mut set = ChangeSet::with_capacity(changes.len() + results.len() + 2);
        let count = changes.len() as u64;
        for RowChange { table, key, old, new } in changes {
            set.push(match (old.map(|old| old.row), new.map(|new| new.row)) {
                (None, Some(row)) => Change::Insert { table, key, row },
                (Some(old_row), Some(row)) => {
                    Change::Update { table, key, old_row, version: NO_VERSION, row }
                }
                (Some(old_row), None) => Change::Delete { table, key, old_row, version: NO_VERSION },
                (None, None) => continue,
            });
        }
        let time = (self.options.clock)();
        let feed = FeedPositionRow {
            exchange_store: [0; 16],
            next: position.lsn,
            head: ShortHash::from_bytes([0; 32]),
            is_whole,
            tables: List(AUDITED.iter().map(|table| table.id).collect()),
            snapshots,
            batches: self.feed.as_ref().map_or(0, |row| row.batches) + 1,
            time,
            signature: EddsaSignature::from_bytes([0; 64]),
            exchange_signature: EddsaSignature::from_bytes([0; 64]),
        };
        match &self.feed {
            None => set.insert::<FeedPositions>(&POSITION, &feed),
            Some(old) => set.update::<FeedPositions>(&POSITION, old, &feed),
        }
        match self.store.get::<ReplicaPositions>(&REPLICA)?.map(|found| found.row) {
            None => set.insert::<ReplicaPositions>(&REPLICA, &position),
            Some(old) if old == position => {}
            Some(old) => set.update::<ReplicaPositions>(&REPLICA, &old, &position),
        }
        set.append(results);
        if self.store.commit(&set)? != CommitOutcome::Committed {
            return Err(FeedError::Contradiction("another process writes to the auditor's store".to_owned()));
        }
        let behind = time_micros.map_or(0, |micros| time.as_micros().saturating_sub(micros));
        self.progress.update(|progress| {
            progress.next = position.lsn;
            // How much more there is, is known only when nothing is left.
            progress.end = position.lsn + 1;
            progress.behind = Duration::from_micros(behind);
            progress.batches += 1;
            progress.changes += count;
            progress.snapshots = snapshots;
        });
        let lsn = position.lsn;
        (self.feed, self.position) = (Some(feed), Some(position));
        if lsn > 0
            && let Some(replica) = &mut self.replica
            && let Err(error) = replica.confirm(lsn)
        {
            // It is stored: what comes again is left out.
            tracing::debug!(%error, "the database was not told of a stored batch");
            self.replica = None;
        }
        self.confirmed = Instant::now();
        Ok(())
    }

    /// Begins again at the next call, from where the store is: what was taken is not stored, or it is not known whether it
    /// is.
    pub(super) fn forget(&mut self) {
        (self.replica, self.copying) = (None, None);
        (self.is_unsure, self.is_up_to_date) = (true, false);
    }
}

const NO_VERSION: Option<RowVersion> = None;

/// Why a snapshot's rows are not sent on.
enum Ended {
    Receiver,
    Failed(ReplicaError),
}

impl From<ReplicaError> for Ended {
    fn from(error: ReplicaError) -> Self {
        Self::Failed(error)
    }
}

/// The rows of the copy that a snapshot does not have.
fn missing(store: &Store, seen: &HashSet<u64>, hasher: &RandomState) -> Result<Vec<RowChange>, StoreError> {
    let mut missing = Vec::new();
    let frozen = store.freeze(AUDITED)?;
    for table in AUDITED {
        frozen.scan(table, &mut |record| {
            if !seen.contains(&hasher.hash_one((table.id, &record.key))) {
                let old = Version { row: record.row, serial: record.serial };
                missing.push(RowChange { table, key: record.key, old: Some(old), new: None });
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(missing)
}

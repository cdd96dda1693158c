//! The auditor's side: it follows an exchange into a store of its own.
//!
//! [`Follower::next`] returns a batch of changes with the rows before and after, and [`Follower::commit`] stores it
//! together with the caller's own changes, the position and the signed head of the chain, in one commit. So a kill at
//! any moment loses and repeats nothing.

mod link;
mod thin;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, SetHash, ShortHash};
use batzen_protocol::Timestamp;
use batzen_signer::address::Address;
use batzen_signer::channel::{ChannelError, Connect};
use batzen_store::{
    Change, ChangeSet, CommitOutcome, FeedChange, FeedFrame, List, RowVersion, Store, StoreError, TableDef,
};
use batzen_tables::auditor::copy::{
    FeedFindingKey, FeedFindingRow, FeedFindings, FeedHeadKey, FeedHeadRow, FeedHeads, FeedPositionKey,
    FeedPositionRow, FeedPositions,
};
use batzen_tables::exchange::AUDITED;

use crate::Clock;
use crate::chain::{self, Position, SignedHead, Signer};
use crate::change::{self, ChangeError};
use crate::copy::{self, RowsDigest};
use crate::io::IoError;
use crate::message::{Answer, Malformed, Mark, Reason};
use crate::metrics::Progress;
use link::Link;

type Result<T, E = FeedError> = std::result::Result<T, E>;

/// Names a row: its table's number, and its key.
type RowName = (u16, Vec<u8>);
/// A row's bytes, and its version if it is in the store.
type KnownRow = (Vec<u8>, Option<RowVersion>);

/// The most bytes of changes in one batch: more than an exchange commits at once.
const BATCH_BYTES_MAX: usize = 256 << 20;
/// Number of rows deleted in one commit because a snapshot lacks them.
const DELETED_ROWS_MAX: usize = 4_096;
/// Time that the exchange may be silent. It sends something every second.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Options for following an exchange.
#[derive(Clone)]
pub struct FollowerOptions {
    /// Where the exchange ships its changes.
    pub exchange: Address,
    /// The exchange's key.
    pub exchange_key: EddsaPublicKey,
    /// The auditor's key, with which it authenticates and signs heads.
    pub key: EddsaPrivateKey,
    /// The clock.
    pub clock: Clock,
}

batzen_protocol::enumeration! {
    /// Faults in the changes that an exchange has shipped.
    pub enum FindingKind {
        /// The exchange computes another chain than the auditor has seen.
        Rewritten = 1 => "rewritten",
        /// The exchange has fewer commits than the auditor has seen.
        Lost = 2 => "lost",
        /// The exchange has another store.
        OtherStore = 3 => "other-store",
        /// The exchange has other rows than it has shipped.
        Differs = 4 => "differs",
    }
}

/// Why the exchange is not followed.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The auditor's own store.
    #[error("the auditor's store: {0}")]
    Store(#[from] StoreError),
    /// The exchange is not reached, or the connection ended. Trying again helps.
    #[error("the exchange: {0}")]
    Connection(String),
    /// The exchange refuses the auditor.
    #[error("the exchange refuses: {text}")]
    Refused {
        /// Why.
        reason: Reason,
        /// In words.
        text: String,
    },
    /// A finding, which is recorded in the auditor's store.
    #[error("{text}")]
    Finding {
        /// The findings.
        kind: FindingKind,
        /// In words.
        text: String,
    },
    /// The exchange sent data that contradict what it has signed, or what the auditor has.
    #[error("{0}")]
    Contradiction(String),
    /// The auditor's program is too old.
    #[error("{0}")]
    Change(#[from] ChangeError),
}

impl FeedError {
    /// Returns whether another attempt would fail, too.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            // A database may be away for a while, and a full disk may get space.
            Self::Connection(_) | Self::Store(StoreError::Unavailable(_) | StoreError::Full(_)) => false,
            Self::Refused { reason, .. } => !matches!(reason, Reason::Busy | Reason::Failed),
            Self::Store(_) | Self::Finding { .. } | Self::Contradiction(_) | Self::Change(_) => true,
        }
    }
}

impl From<IoError> for FeedError {
    fn from(error: IoError) -> Self {
        Self::Connection(error.to_string())
    }
}

impl From<Malformed> for FeedError {
    fn from(error: Malformed) -> Self {
        Self::Connection(error.to_string())
    }
}

fn contradiction(text: impl Into<String>) -> FeedError {
    FeedError::Contradiction(text.into())
}

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// The table.
    pub table: &'static TableDef,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The row before, in the layout of this program.
    pub old: Option<Vec<u8>>,
    /// The row after; `None` if it was deleted.
    pub new: Option<Vec<u8>>,
    /// The row's serial at the exchange. The auditor's store has serials of its own.
    pub serial: u64,
    /// The version of the old row in the auditor's store, if this is its first change in the batch.
    version: Option<RowVersion>,
}

/// Changes that are committed together.
#[derive(Debug)]
#[must_use = "it is committed with Follower::commit"]
pub struct Batch {
    /// The changes in their order. One row may change several times.
    pub changes: Vec<RowChange>,
    /// Number of frames of the exchange that they come from; 0 in a snapshot.
    pub frames: u64,
    /// Whether they come from a snapshot. Then the order of the changes means nothing.
    pub is_snapshot: bool,
    /// After a batch that ends at a state of the exchange: the position, signed by the exchange. In the middle of a
    /// snapshot there is none, and relations between rows do not hold.
    pub head: Option<SignedHead>,
    /// The mark's statement about the exchange.
    mark: Option<(u64, u64)>,
    /// The exchange's store.
    store: [u8; 16],
}

impl Batch {
    /// The number of the frame that the exchange writes next, as it was when it sent the last of these changes.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.mark.map(|(end, _)| end)
    }
}

/// The result of comparing all rows of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// The number of the frame before which both were read.
    pub(crate) next: u64,
    /// Number of audited rows that the auditor has.
    pub rows: u64,
    /// Number of rows that the exchange has.
    pub exchange_rows: u64,
    /// Whether they are the same rows.
    pub is_equal: bool,
}

/// The next step.
#[derive(Debug)]
pub enum Next {
    /// Changes to be committed.
    Batch(Batch),
    /// The answer to [`Follower::ask_comparison`].
    Compared(Comparison),
    /// Nothing, within the time.
    Idle,
}

/// The progress of a follower, for other threads.
#[derive(Debug, Default)]
pub struct SharedProgress(Mutex<Progress>);

impl SharedProgress {
    /// Returns its progress.
    #[must_use]
    pub fn get(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it.
    pub fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The position of a store, if it has one.
///
/// # Errors
/// When the store cannot be read.
pub fn position(store: &Store) -> Result<Option<FeedPositionRow>, StoreError> {
    Ok(store.get::<FeedPositions>(&FeedPositionKey { id: 0 })?.map(|stored| stored.row))
}

/// Returns the findings about the exchange's stream, in the order of its frames.
///
/// # Errors
/// When the store cannot be read.
pub fn findings(store: &Store) -> Result<Vec<(FeedFindingKey, FeedFindingRow)>, StoreError> {
    let mut found: Vec<_> =
        store.all::<FeedFindings>()?.into_iter().map(|found| (found.key, found.row)).collect();
    found.sort_by_key(|(key, _)| (key.next, key.kind));
    Ok(found)
}

/// The data being received.
enum Phase {
    /// Changes since the last mark.
    Stream { frames: Vec<FeedFrame>, part: Option<FeedFrame>, bytes: usize },
    /// Rows of a snapshot.
    Snapshot(Box<Snapshot>),
}

struct Snapshot {
    next: u64,
    rows: SetHash,
    /// If the store had rows before: the hashes of the keys that the snapshot has.
    seen: Option<Vec<u64>>,
    hasher: RandomState,
    /// Once all rows are here: what is to be deleted, and the mark.
    end: Option<(VecDeque<RowChange>, Mark)>,
}

/// Follows an exchange. Its methods block, and must not be called on a thread that runs asynchronous tasks.
pub struct Follower {
    store: Store,
    options: FollowerOptions,
    connect: Connect,
    runtime: tokio::runtime::Runtime,
    tables: &'static [&'static TableDef],
    position: Option<FeedPositionRow>,
    link: Option<Link>,
    phase: Phase,
    /// Whether a batch was returned that is not committed yet.
    is_outstanding: bool,
    /// Whether a commit failed, so that only the store knows the position.
    is_unsure: bool,
    asks_comparison: bool,
    /// Whether the exchange has said on this connection that there is nothing more.
    is_up_to_date: bool,
    progress: Arc<SharedProgress>,
}

const STREAM: Phase = Phase::Stream { frames: Vec::new(), part: None, bytes: 0 };

impl Follower {
    /// Prepares to follow an exchange into this store, from where it stopped before.
    ///
    /// # Errors
    /// If the key cannot be used or the store cannot be read.
    pub fn new(options: FollowerOptions, store: Store) -> Result<Self> {
        let connect = Connect::new(&options.key, vec![options.exchange_key]);
        let connect = connect.map_err(|error: ChannelError| FeedError::Connection(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| FeedError::Connection(error.to_string()))?;
        let position = position(&store)?;
        let progress = Arc::new(SharedProgress::default());
        if let Some(row) = &position {
            progress.update(|progress| {
                (progress.next, progress.end, progress.snapshots) = (row.next, row.next, row.snapshots);
            });
        }
        Ok(Self {
            store,
            options,
            connect,
            runtime,
            tables: AUDITED,
            position,
            link: None,
            phase: STREAM,
            is_outstanding: false,
            is_unsure: false,
            asks_comparison: false,
            is_up_to_date: false,
            progress,
        })
    }

    /// Returns its progress, for other threads.
    #[must_use]
    pub fn progress(&self) -> Arc<SharedProgress> {
        Arc::clone(&self.progress)
    }

    /// Asks the exchange for the digest of all its audited rows. The answer comes from [`Follower::next`], after the
    /// changes up to then.
    pub fn ask_comparison(&mut self) {
        self.asks_comparison = true;
    }

    /// Returns whether the exchange has said on this connection that it has nothing more.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.is_up_to_date
    }

    /// Returns the head that the auditor has seen and signed.
    fn seen(&self) -> Option<SignedHead> {
        let row = self.position.as_ref().filter(|row| row.next > 0)?;
        let position = Position { store: row.exchange_store, next: row.next, head: row.head };
        Some(SignedHead { position, time: row.time, signature: row.signature })
    }

    /// Returns whether the copy is a state of the exchange, of the tables that this program copies.
    fn is_whole(&self) -> bool {
        let ids = copy::ids(self.tables);
        self.position.as_ref().is_some_and(|row| row.is_whole && row.tables.0 == ids)
    }

    /// Waits for the next batch, at most this long. Connects if necessary. After an error, the next call connects
    /// again.
    ///
    /// # Errors
    /// See [`FeedError`].
    pub fn next(&mut self, wait: Duration) -> Result<Next> {
        let next = self.wait_for_next(wait);
        match &next {
            Ok(next) => self.is_outstanding = matches!(next, Next::Batch(_)),
            Err(_) => self.disconnect(),
        }
        next
    }

    fn disconnect(&mut self) {
        (self.link, self.phase, self.is_outstanding) = (None, STREAM, false);
        self.is_up_to_date = false;
        self.progress.update(|progress| progress.is_connected = false);
    }

    fn wait_for_next(&mut self, wait: Duration) -> Result<Next> {
        if self.is_outstanding {
            // The last batch was not committed: it is sent again.
            self.disconnect();
        }
        if self.is_unsure {
            self.position = position(&self.store)?;
            if let Some(row) = &self.position {
                self.progress
                    .update(|progress| (progress.next, progress.snapshots) = (row.next, row.snapshots));
            }
            self.is_unsure = false;
        }
        let deadline = Instant::now() + wait;
        self.connect()?;
        if let Some(batch) = self.deletions() {
            return Ok(Next::Batch(batch));
        }
        loop {
            let link = self.link.as_mut().expect("it is connected");
            if std::mem::take(&mut self.asks_comparison) {
                self.runtime.block_on(link.ask_comparison())?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(answer) = self.runtime.block_on(link.answer(left, SILENCE_MAX))? else {
                return Ok(Next::Idle);
            };
            match answer {
                Answer::Changes { sequence, is_last, bytes } => {
                    self.add_changes(sequence, is_last, &bytes)?;
                }
                Answer::Rows(bytes) => return Ok(Next::Batch(self.rows(&bytes)?)),
                Answer::Mark(mark) => return Ok(Next::Batch(self.end_batch(mark)?)),
                Answer::Idle { end, behind_micros } => {
                    self.tell(end, behind_micros);
                    self.is_up_to_date |= self.is_whole() && self.progress.get().lag_commits() == 0;
                    let link = self.link.as_mut().expect("it is connected");
                    self.runtime.block_on(link.stay_alive())?;
                }
                Answer::Digest { rows, digest, layouts } => {
                    return self.compare(RowsDigest { rows, digest }, &layouts).map(Next::Compared);
                }
                Answer::Refusal { reason, next, head, text } => {
                    return Err(self.refused(reason, next, head, text)?);
                }
                Answer::Welcome { .. } => return Err(Malformed.into()),
            }
        }
    }

    fn tell(&self, end: u64, behind_micros: u64) {
        self.progress.update(|progress| {
            progress.end = end.max(progress.next);
            progress.behind = if progress.end > progress.next {
                Duration::from_micros(behind_micros)
            } else {
                Duration::ZERO
            };
        });
    }

    fn connect(&mut self) -> Result<()> {
        if self.link.is_some() {
            return Ok(());
        }
        let seen = self.seen();
        let is_whole = self.is_whole();
        // Without a position the stream starts with the first frame, which needs a store without rows.
        let wants_snapshot = !is_whole && (self.position.is_some() || self.has_rows()?);
        let ids = copy::ids(self.tables);
        let (options, connect) = (&self.options, &self.connect);
        let linked =
            self.runtime.block_on(Link::connect(connect, &options.exchange, ids, seen, wants_snapshot));
        let (link, answer) = linked?;
        let (store, next, is_snapshot) = match answer {
            Answer::Welcome { store, next, is_snapshot } => (store, next, is_snapshot),
            Answer::Refusal { reason, next, head, text } => {
                return Err(self.refused(reason, next, head, text)?);
            }
            _ => return Err(Malformed.into()),
        };
        if let Some(SignedHead { position, .. }) = seen {
            if position.store != store {
                return Err(self.found(FindingKind::OtherStore, None, OTHER_STORE.to_owned())?);
            }
            if next < position.next {
                return Err(self.found(FindingKind::Lost, None, lost(position.next, next))?);
            }
        }
        let expected = seen.map_or(1, |seen| seen.position.next);
        self.phase = if is_snapshot {
            let seen = self.has_rows()?.then(Vec::new);
            let (rows, hasher) = (SetHash::default(), RandomState::new());
            Phase::Snapshot(Box::new(Snapshot { next, rows, seen, hasher, end: None }))
        } else if wants_snapshot || next != expected {
            return Err(Malformed.into());
        } else {
            STREAM
        };
        let mut link = link;
        link.store = store;
        self.link = Some(link);
        self.progress.update(|progress| progress.is_connected = true);
        Ok(())
    }

    fn has_rows(&self) -> Result<bool, StoreError> {
        for table in self.tables {
            if self.store.backend().count(table)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records a finding, and returns it as an error.
    fn found(&self, kind: FindingKind, exchange_head: Option<ShortHash>, text: String) -> Result<FeedError> {
        let (next, head) =
            self.position.as_ref().map_or((0, ShortHash::from_bytes([0; 32])), |row| (row.next, row.head));
        let key = FeedFindingKey { next, kind: kind as u8 };
        if self.store.get::<FeedFindings>(&key)?.is_none() {
            let time = (self.options.clock)();
            let row = FeedFindingRow { text: text.clone(), head, exchange_head, time };
            let mut changes = ChangeSet::new();
            changes.insert::<FeedFindings>(&key, &row);
            if self.store.commit(&changes)? != CommitOutcome::Committed {
                return Err(contradiction("another process writes to the auditor's store"));
            }
        }
        Ok(FeedError::Finding { kind, text })
    }

    fn refused(&self, reason: Reason, next: u64, head: Option<ShortHash>, text: String) -> Result<FeedError> {
        let seen = self.position.as_ref().map_or(0, |row| row.next);
        match reason {
            Reason::Rewritten => self.found(FindingKind::Rewritten, head, text),
            Reason::Lost => self.found(FindingKind::Lost, head, lost(seen, next)),
            Reason::OtherStore => self.found(FindingKind::OtherStore, head, OTHER_STORE.to_owned()),
            _ => Ok(FeedError::Refused { reason, text }),
        }
    }

    fn add_changes(&mut self, sequence: u64, is_last: bool, encoded: &[u8]) -> Result<()> {
        let Phase::Stream { frames, part, bytes } = &mut self.phase else { return Err(Malformed.into()) };
        *bytes += encoded.len();
        if *bytes > BATCH_BYTES_MAX {
            return Err(contradiction("the exchange sends larger commits than it can have made"));
        }
        let mut frame = part.take().unwrap_or(FeedFrame { sequence, changes: Vec::new() });
        let last = frames.last().map(|frame| frame.sequence);
        if frame.sequence != sequence || last.is_some_and(|last| last >= sequence) {
            return Err(Malformed.into());
        }
        frame.changes.extend(change::take_all(encoded, self.tables)?);
        if is_last {
            frames.push(frame);
        } else {
            *part = Some(frame);
        }
        Ok(())
    }

    /// Converts changes of the exchange to changes of this store's rows. In a snapshot, rows that are the
    /// same are left out.
    fn row_changes(&self, changes: impl Iterator<Item = FeedChange>) -> Result<Vec<RowChange>> {
        let changes: Vec<FeedChange> = changes.collect();
        let mut keys: HashMap<u16, (&'static TableDef, Vec<Vec<u8>>)> = HashMap::new();
        for change in &changes {
            keys.entry(change.table.id).or_insert((change.table, Vec::new())).1.push(change.key.clone());
        }
        let mut known: HashMap<RowName, Option<KnownRow>> = HashMap::new();
        for (table, mut keys) in keys.into_values() {
            keys.sort_unstable();
            keys.dedup();
            let rows = self.store.backend().get_many(table, &keys)?;
            for (key, row) in keys.into_iter().zip(rows) {
                known.insert((table.id, key), row.map(|row| (row.row, Some(row.version))));
            }
        }
        let mut out = Vec::with_capacity(changes.len());
        for change in changes {
            let decoded = change.current_row();
            let new = decoded.map_err(|error| {
                contradiction(format!("the exchange sent a malformed row of {}: {error}", change.table.name))
            })?;
            let FeedChange { table, key, serial, .. } = change;
            let slot = known.get_mut(&(table.id, key.clone())).expect("every key was read");
            let (old, version) = slot.take().map_or((None, None), |(row, version)| (Some(row), version));
            if old.is_none() && new.is_none() {
                return Err(contradiction(format!(
                    "the exchange deletes a row of {} that it has never shipped",
                    table.name
                )));
            }
            if old == new {
                *slot = old.map(|row| (row, version));
                continue;
            }
            *slot = new.clone().map(|row| (row, None));
            out.push(RowChange { table, key, old, new, serial, version });
        }
        Ok(out)
    }

    fn check_mark(&self, mark: &Mark) -> Result<()> {
        let link = self.link.as_ref().expect("it is connected");
        if mark.head.position.store != link.store
            || !mark.head.is_by(Signer::Exchange, &self.options.exchange_key)
        {
            return Err(contradiction("the exchange has not signed the changes that it shipped"));
        }
        Ok(())
    }

    fn end_batch(&mut self, mark: Mark) -> Result<Batch> {
        self.check_mark(&mark)?;
        let store = mark.head.position.store;
        match std::mem::replace(&mut self.phase, STREAM) {
            Phase::Stream { frames, part, .. } => {
                let seen = self.seen().map(|seen| seen.position);
                let (mut head, from) = match seen {
                    Some(seen) => (seen.head, seen.next),
                    None => (chain::start(&store, 1, &copy::ids(self.tables), &SetHash::default()), 1),
                };
                let is_in_order = part.is_none()
                    && frames.first().is_none_or(|frame| frame.sequence >= from)
                    && frames.last().map_or(from, |frame| frame.sequence + 1) <= mark.head.position.next;
                head = frames.iter().fold(head, |head, frame| chain::after(&head, frame));
                if !is_in_order || head != mark.head.position.head {
                    return Err(contradiction("the exchange has signed something else than it shipped"));
                }
                let count = frames.len() as u64;
                let changes = self.row_changes(frames.into_iter().flat_map(|frame| frame.changes))?;
                let (mark, head) = (Some((mark.end, mark.behind_micros)), Some(mark.head));
                Ok(Batch { changes, frames: count, is_snapshot: false, head, mark, store })
            }
            Phase::Snapshot(mut snapshot) => {
                let Snapshot { next, rows, seen, hasher, end } = &mut *snapshot;
                let head = chain::start(&store, *next, &copy::ids(self.tables), rows);
                if mark.head.position != (Position { store, next: *next, head }) || end.is_some() {
                    return Err(contradiction("the exchange has signed something else than it shipped"));
                }
                let missing = match seen.take() {
                    Some(seen) => self.missing(seen, hasher)?,
                    None => VecDeque::new(),
                };
                *end = Some((missing, mark));
                self.phase = Phase::Snapshot(snapshot);
                Ok(self.deletions().expect("all rows are here"))
            }
        }
    }

    /// The rows that a snapshot does not have.
    fn missing(&self, mut seen: Vec<u64>, hasher: &RandomState) -> Result<VecDeque<RowChange>> {
        seen.sort_unstable();
        let mut missing = VecDeque::new();
        let frozen = self.store.freeze(self.tables)?;
        for table in self.tables {
            frozen.scan(table, &mut |record| {
                if seen.binary_search(&hasher.hash_one((table.id, &record.key))).is_err() {
                    missing.push_back(RowChange {
                        table,
                        key: record.key,
                        old: Some(record.row),
                        new: None,
                        serial: record.serial,
                        version: Some(record.version),
                    });
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(missing)
    }

    /// At the end of a snapshot: the next rows to delete. The last batch has the head.
    fn deletions(&mut self) -> Option<Batch> {
        let Phase::Snapshot(snapshot) = &mut self.phase else { return None };
        let (missing, mark) = snapshot.end.as_mut()?;
        let changes: Vec<RowChange> = missing.drain(..missing.len().min(DELETED_ROWS_MAX)).collect();
        let store = mark.head.position.store;
        let is_last = missing.is_empty();
        let (head, told) = (is_last.then_some(mark.head), Some((mark.end, mark.behind_micros)));
        if is_last {
            self.phase = STREAM;
        }
        Some(Batch { changes, frames: 0, is_snapshot: true, head, mark: told, store })
    }

    /// A part of a snapshot.
    fn rows(&mut self, encoded: &[u8]) -> Result<Batch> {
        let rows = change::take_all(encoded, self.tables)?;
        let Phase::Snapshot(snapshot) = &mut self.phase else { return Err(Malformed.into()) };
        if snapshot.end.is_some() || rows.iter().any(|row| row.row.is_none()) {
            return Err(Malformed.into());
        }
        let mut bytes = Vec::new();
        for row in &rows {
            bytes.clear();
            change::put(row, &mut bytes);
            snapshot.rows.add(&[&bytes]);
            if let Some(seen) = &mut snapshot.seen {
                seen.push(snapshot.hasher.hash_one((row.table.id, &row.key)));
            }
        }
        let store = self.link.as_ref().expect("it is connected").store;
        let changes = self.row_changes(rows.into_iter())?;
        Ok(Batch { changes, frames: 0, is_snapshot: true, head: None, mark: None, store })
    }

    /// Stores a batch together with the caller's own changes, and then acknowledges it.
    ///
    /// # Errors
    /// When the store fails, or the caller's changes are refused. Nothing is stored then, and the batch comes again; but a
    /// database whose connection was lost may have stored it, which the next call finds out.
    pub fn commit(&mut self, batch: Batch, extra: ChangeSet) -> Result<()> {
        let committed = self.store_batch(batch, extra);
        match committed {
            Ok(acknowledged) => {
                self.is_outstanding = false;
                if let (Some(ack), Some(link)) = (acknowledged, self.link.as_mut())
                    && let Err(error) = self.runtime.block_on(link.acknowledge(ack))
                {
                    // It is stored: the next connection says so.
                    tracing::debug!(%error, "the exchange was not told of a stored batch");
                    self.disconnect();
                }
                Ok(())
            }
            Err(error) => {
                self.disconnect();
                self.is_unsure = true;
                Err(error)
            }
        }
    }

    fn store_batch(&mut self, batch: Batch, extra: ChangeSet) -> Result<Option<SignedHead>> {
        let Batch { changes, frames, is_snapshot, head, mark, store } = batch;
        let mut set = ChangeSet::with_capacity(changes.len() + extra.len() + 8);
        let count = changes.len() as u64;
        for RowChange { table, key, old, new, version, .. } in changes {
            set.push(match (old, new) {
                (None, Some(row)) => Change::Insert { table, key, row },
                (Some(old_row), Some(row)) => Change::Update { table, key, old_row, version, row },
                (Some(old_row), None) => Change::Delete { table, key, old_row, version },
                (None, None) => unreachable!("such changes are refused"),
            });
        }
        let old = self.position.as_ref();
        let time = (self.options.clock)();
        let signed = head.map(|head| head.position.sign(Signer::Auditor, time, &self.options.key));
        let row = match (&signed, &head) {
            (Some(own), Some(theirs)) => FeedPositionRow {
                exchange_store: store,
                next: own.position.next,
                head: own.position.head,
                is_whole: true,
                tables: List(copy::ids(self.tables)),
                snapshots: old.map_or(0, |row| row.snapshots) + u32::from(is_snapshot),
                batches: old.map_or(0, |row| row.batches) + 1,
                time: own.time,
                signature: own.signature,
                exchange_signature: theirs.signature,
            },
            // What was seen before the snapshot still holds.
            _ => FeedPositionRow { is_whole: false, ..old.cloned().unwrap_or_else(|| nothing(store)) },
        };
        let key = FeedPositionKey { id: 0 };
        match old {
            None => set.insert::<FeedPositions>(&key, &row),
            Some(old) => set.update::<FeedPositions>(&key, old, &row),
        }
        if signed.is_some() {
            self.keep_head(&row, &mut set)?;
        }
        set.append(extra);
        match self.store.commit(&set)? {
            CommitOutcome::Committed => {}
            CommitOutcome::Conflict(rows) => {
                let table = rows.first().map_or("", |(table, _)| table.name);
                return Err(contradiction(format!(
                    "a new row of {table} exists already in the auditor's store"
                )));
            }
        }
        self.progress.update(|progress| {
            (progress.next, progress.snapshots) = (row.next, row.snapshots);
            progress.batches += u64::from(frames > 0 || is_snapshot);
            progress.changes += count;
        });
        self.position = Some(row);
        if let Some((end, behind_micros)) = mark {
            self.tell(end, behind_micros);
        }
        Ok(signed)
    }

    /// Keeps a signed head, and fewer of the older ones.
    fn keep_head(&self, row: &FeedPositionRow, set: &mut ChangeSet) -> Result<(), StoreError> {
        let FeedPositionRow { next, head, time, signature, exchange_signature, batches, .. } = row.clone();
        let kept = FeedHeadRow { next, head, time, signature, exchange_signature };
        set.insert::<FeedHeads>(&FeedHeadKey { batch: batches }, &kept);
        let dropped: Vec<FeedHeadKey> =
            thin::dropped(batches).into_iter().map(|batch| FeedHeadKey { batch }).collect();
        for (key, stored) in dropped.iter().zip(self.store.get_many::<FeedHeads>(&dropped)?) {
            if let Some(stored) = stored {
                set.delete_read::<FeedHeads>(key, (&stored.row, Some(stored.version)));
            }
        }
        Ok(())
    }

    fn compare(&self, theirs: RowsDigest, layouts: &[u8]) -> Result<Comparison> {
        if layouts != copy::layouts(self.tables) {
            return Err(contradiction("rows are compared only between the same versions of the program"));
        }
        let frozen = self.store.freeze(self.tables)?;
        let own = copy::digest(&*frozen, self.tables)?;
        let next = self.position.as_ref().map_or(0, |row| row.next);
        let is_equal = own == theirs;
        if !is_equal {
            let text = format!(
                "the exchange has other rows than it shipped: {} before commit {next}, and {} were shipped",
                theirs.rows, own.rows
            );
            // It is in the answer, too.
            self.found(FindingKind::Differs, None, text)?;
        }
        Ok(Comparison { next, rows: own.rows, exchange_rows: theirs.rows, is_equal })
    }
}

const OTHER_STORE: &str = "the exchange has another store than the one that the auditor has followed: its history has started again";

fn lost(seen: u64, end: u64) -> String {
    format!(
        "the exchange has lost what it shipped: commit {} was seen, and the exchange has only those before {end}",
        seen.saturating_sub(1)
    )
}

/// The position while the first snapshot is being loaded.
fn nothing(store: [u8; 16]) -> FeedPositionRow {
    FeedPositionRow {
        exchange_store: store,
        next: 0,
        head: ShortHash::from_bytes([0; 32]),
        is_whole: false,
        tables: List(Vec::new()),
        snapshots: 0,
        batches: 0,
        time: Timestamp::ZERO,
        signature: EddsaSignature::from_bytes([0; 64]),
        exchange_signature: EddsaSignature::from_bytes([0; 64]),
    }
}

//! One auditor's connection.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPublicKey, EddsaSignature, SetHash, ShortHash};
use batzen_protocol::Timestamp;
use batzen_signer::channel::Channel;
use batzen_store::{Feed, FeedChange, FeedCursor, FeedFrame, FrozenRows, Hold, Store, StoreError, TableDef};
use tokio::io::WriteHalf;
use tokio::sync::mpsc;

use super::judge::{self, Start, refusal};
use super::{ServerState, hold_name, short_name};
use crate::chain::{self, Position, SignedHead, Signer};
use crate::change;
use crate::copy::{self, RowsDigest};
use crate::io::{Half, IoError, Receiver, send};
use crate::lag::Lag;
use crate::message::{Answer, Hello, Mark, Reason, Request};
use crate::note::Note;

/// Time that a step of the other side may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that an auditor may take to check and store a batch.
const ACK_TIMEOUT: Duration = Duration::from_secs(600);
/// About how many bytes of journal a batch has.
const BATCH_BYTES: usize = 1 << 20;
/// About how many bytes of changes a message has.
const PART_BYTES: usize = 256 << 10;
/// Interval at which new commits are looked for.
const POLL: Duration = Duration::from_millis(10);
/// Interval of messages to an auditor without news. Frames without audited changes move its position as
/// often.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the hold moves. That syncs a file.
const HOLD_INTERVAL: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] IoError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("the auditor is too far behind: it has to start with a snapshot")]
    Gone,
    #[error("the auditor sent {0}")]
    Unexpected(&'static str),
    #[error("{0}")]
    Refused(String),
}

pub(super) async fn serve(shared: &Arc<ServerState>, channel: Channel, auditor: EddsaPublicKey) {
    let name = short_name(&auditor);
    let (reader, writer) = tokio::io::split(channel);
    let receiver = Receiver::of_requests(reader);
    let mut session = Session {
        shared: Arc::clone(shared),
        receiver,
        writer,
        auditor,
        name: name.clone(),
        tables: Vec::new(),
        ids: Vec::new(),
        lag: Lag::default(),
        acknowledged: 1,
    };
    let ended = tokio::select! {
        biased;
        () = shared.drain.draining() => return,
        ended = session.run() => ended,
    };
    match ended {
        Ok(()) => {}
        Err(Ended::Refused(text)) => {
            shared.metrics.refused.inc();
            tracing::error!(auditor = name, "refused an auditor: {text}");
        }
        Err(error) => tracing::info!(auditor = name, %error, "an auditor's connection ended"),
    }
}

struct Session {
    shared: Arc<ServerState>,
    receiver: Receiver<Half>,
    writer: WriteHalf<Channel>,
    auditor: EddsaPublicKey,
    name: String,
    tables: Vec<&'static TableDef>,
    ids: Vec<u16>,
    lag: Lag,
    /// The number of the first frame that the auditor has not acknowledged.
    acknowledged: u64,
}

/// Runs what blocks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading the journal does not panic")
}

/// A batch, and the chain's head after it.
type Batch = (FeedCursor, ShortHash, Vec<FeedFrame>);

/// Reads the next frames; up to `until` if there is one.
fn read(
    store: &Store,
    mut cursor: FeedCursor,
    mut head: ShortHash,
    tables: &[&'static TableDef],
    until: Option<u64>,
) -> Result<Batch, Ended> {
    let feed = store.feed()?;
    let (mut frames, mut bytes) = (Vec::new(), 0);
    while until.is_none_or(|until| cursor.next() < until) && bytes < BATCH_BYTES {
        // One frame at a time, to end exactly there.
        let bytes_max = if until.is_some() { 1 } else { BATCH_BYTES };
        match feed.read(&mut cursor, tables, bytes_max)? {
            Feed::Frames(more) => {
                for frame in more {
                    head = chain::after(&head, &frame);
                    bytes += frame.changes.iter().map(change::bytes_of).sum::<usize>();
                    frames.push(frame);
                }
            }
            Feed::Gone | Feed::Ahead { .. } => return Err(Ended::Gone),
        }
        if until.is_none() {
            break;
        }
    }
    Ok((cursor, head, frames))
}

impl Session {
    async fn send(&mut self, answer: &Answer) -> Result<(), Ended> {
        let bytes = answer.to_bytes();
        self.shared.metrics.bytes.add(bytes.len() as u64);
        Ok(send(&mut self.writer, &bytes, STEP_TIMEOUT).await?)
    }

    async fn refuse(&mut self, answer: Answer) -> Result<(), Ended> {
        let Answer::Refusal { text, .. } = &answer else { unreachable!("it refuses") };
        let text = text.clone();
        self.send(&answer).await?;
        Err(Ended::Refused(text))
    }

    async fn run(&mut self) -> Result<(), Ended> {
        let Request::Hello(hello) = self.receiver.request(STEP_TIMEOUT).await? else {
            return Err(Ended::Unexpected("no hello"));
        };
        let shared = Arc::clone(&self.shared);
        let Some(_slot) = shared.enter(self.auditor) else {
            let text = "this auditor already has a connection; it ends a minute after its last message";
            return self.refuse(refusal(Reason::Busy, 0, None, text)).await;
        };
        match judge::tables(&hello.tables) {
            Ok(tables) => (self.tables, self.ids) = (tables, hello.tables.clone()),
            Err(text) => return self.refuse(refusal(Reason::Tables, 0, None, text)).await,
        }
        match self.judge(hello.clone()).await {
            Err(Ended::Store(error)) => {
                tracing::error!(auditor = self.name, %error, "the auditor's position cannot be checked");
                self.refuse(refusal(Reason::Failed, 0, None, "the exchange cannot read its journal")).await
            }
            Err(other) => Err(other),
            Ok(Err(answer)) => {
                if let Answer::Refusal { reason: Reason::Rewritten | Reason::Lost, .. } = &answer {
                    self.shared.metrics.update(&self.name, |state| state.is_contradicted = true);
                }
                self.refuse(answer).await
            }
            Ok(Ok(start)) => {
                self.shared.metrics.update(&self.name, |state| {
                    (state.is_connected, state.is_contradicted) = (true, false);
                });
                self.ship(start, hello.seen).await
            }
        }
    }

    async fn judge(&mut self, hello: Hello) -> Result<Result<Start, Answer>, Ended> {
        let (store, auditor, tables) = (self.shared.store.clone(), self.auditor, self.tables.clone());
        blocking(move || Ok(judge::judge(store.feed()?, &auditor, &hello, &tables)?)).await
    }

    /// Holds a position. False if the journal no longer has it.
    async fn hold(
        &mut self,
        next: u64,
        head: ShortHash,
        acknowledged: Option<(Timestamp, EddsaSignature)>,
    ) -> Result<bool, Ended> {
        let note = Note { head, acknowledged, tables: self.ids.clone() }.to_bytes();
        let (name, bytes_max) = (hold_name(&self.auditor), self.shared.hold_bytes_max);
        let store = self.shared.store.clone();
        blocking(move || Ok(store.feed()?.hold(Hold { name, sequence: next, note, bytes_max })?)).await
    }

    async fn ship(&mut self, start: Start, seen: Option<SignedHead>) -> Result<(), Ended> {
        let (cursor, head) = match start {
            Start::Stream(cursor, head) => {
                let acknowledged = seen.map(|seen| (seen.time, seen.signature));
                if self.hold(cursor.next(), head, acknowledged).await? {
                    let (store, next) = (self.shared.store.feed()?.id(), cursor.next());
                    self.send(&Answer::Welcome { store, next, is_snapshot: false }).await?;
                    self.acknowledged = next;
                    (cursor, head)
                } else {
                    self.snapshot().await?
                }
            }
            Start::Snapshot => self.snapshot().await?,
        };
        tracing::info!(auditor = self.name, next = cursor.next(), "an auditor follows");
        self.stream(cursor, head).await
    }

    /// Ships all rows.
    async fn snapshot(&mut self) -> Result<(FeedCursor, ShortHash), Ended> {
        self.shared.metrics.snapshots.inc();
        let (store, tables) = (self.shared.store.clone(), self.tables.clone());
        let (next, frozen) = blocking(move || Ok::<_, Ended>(store.feed()?.snapshot(&tables)?)).await?;
        // From here on, the journal stays. The head is known when all rows were read.
        if !self.hold(next, ShortHash::from_bytes([0; 32]), None).await? {
            return Err(Ended::Gone);
        }
        let id = self.shared.store.feed()?.id();
        self.send(&Answer::Welcome { store: id, next, is_snapshot: true }).await?;
        let (sender, mut parts) = mpsc::channel(2);
        let tables = self.tables.clone();
        let scanning = tokio::task::spawn_blocking(move || scan(&*frozen, &tables, &sender));
        loop {
            match tokio::time::timeout(IDLE_INTERVAL, parts.recv()).await {
                Ok(Some(part)) => self.send(&Answer::Rows(part)).await?,
                Ok(None) => break,
                Err(_) => self.send(&Answer::Idle { end: next, behind_micros: 0 }).await?,
            }
        }
        let rows = scanning.await.expect("reading rows does not panic")?;
        let head = chain::start(&id, next, &self.ids, &rows);
        if !self.hold(next, head, None).await? {
            return Err(Ended::Gone);
        }
        self.mark(next, head).await?;
        let ack = self.acknowledgement(next, head).await?;
        self.hold(next, head, Some((ack.time, ack.signature))).await?;
        Ok((FeedCursor::before(next), head))
    }

    /// Time that the auditor is behind a number, and the number of the next frame.
    fn behind(&mut self, next: u64) -> (u64, u64) {
        let end = match self.shared.store.feed() {
            Ok(feed) => feed.end(),
            Err(_) => next,
        };
        let now = Instant::now();
        self.lag.saw(end, now);
        let behind = self.lag.behind(next, now);
        let acknowledged = self.acknowledged;
        self.shared.metrics.update(&self.name, |state| {
            (state.next, state.end, state.behind) = (acknowledged, end, behind);
        });
        (end, u64::try_from(behind.as_micros()).unwrap_or(u64::MAX))
    }

    async fn mark(&mut self, next: u64, head: ShortHash) -> Result<(), Ended> {
        let store = self.shared.store.feed()?.id();
        let position = Position { store, next, head };
        let head = position.sign(Signer::Exchange, (self.shared.clock)(), &self.shared.key);
        let (end, behind_micros) = self.behind(self.acknowledged);
        self.send(&Answer::Mark(Mark { head, end, behind_micros })).await
    }

    async fn acknowledgement(&mut self, next: u64, head: ShortHash) -> Result<SignedHead, Ended> {
        let deadline = Instant::now() + ACK_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receiver.request(left).await? {
                Request::Ack(ack) => {
                    let is_ours = ack.position.next == next && ack.position.head == head;
                    if !is_ours || !ack.is_by(Signer::Auditor, &self.auditor) {
                        return Err(Ended::Unexpected("a wrong acknowledgement"));
                    }
                    self.acknowledged = next;
                    self.behind(next);
                    return Ok(ack);
                }
                Request::Alive => {}
                Request::Hello(_) | Request::Compare => return Err(Ended::Unexpected("no acknowledgement")),
            }
        }
    }

    async fn changes(&mut self, frames: Vec<FeedFrame>) -> Result<(), Ended> {
        for FeedFrame { sequence, changes } in frames {
            self.shared.metrics.changes.add(changes.len() as u64);
            let mut bytes = Vec::new();
            for change in &changes {
                if !bytes.is_empty() && bytes.len() + change::bytes_of(change) > PART_BYTES {
                    let part = std::mem::take(&mut bytes);
                    self.send(&Answer::Changes { sequence, is_last: false, bytes: part }).await?;
                }
                change::put(change, &mut bytes);
            }
            self.send(&Answer::Changes { sequence, is_last: true, bytes }).await?;
        }
        Ok(())
    }

    /// Ships batch after batch.
    async fn stream(&mut self, mut cursor: FeedCursor, mut head: ShortHash) -> Result<(), Ended> {
        let mut marked = cursor.next();
        let mut held = Instant::now();
        let mut unheld: Option<SignedHead> = None;
        let mut idle_since = Instant::now();
        let mut heard = Instant::now();
        let mut comparing: Option<(u64, Box<dyn FrozenRows>)> = None;
        loop {
            let until = comparing.as_ref().map(|(next, _)| *next);
            let mut frames = Vec::new();
            if self.shared.store.feed()?.end() > cursor.next() {
                let (store, tables) = (self.shared.store.clone(), self.tables.clone());
                let from = cursor.clone();
                (cursor, head, frames) = blocking(move || read(&store, from, head, &tables, until)).await?;
            }
            let is_due = cursor.next() > marked
                && (!frames.is_empty()
                    || idle_since.elapsed() >= IDLE_INTERVAL
                    || until == Some(cursor.next()));
            if is_due {
                self.changes(frames).await?;
                marked = cursor.next();
                self.mark(marked, head).await?;
                unheld = Some(self.acknowledgement(marked, head).await?);
                heard = Instant::now();
                idle_since = heard;
            }
            if let Some(ack) = unheld.take_if(|_| held.elapsed() >= HOLD_INTERVAL) {
                if !self.hold(marked, head_of(&ack), Some((ack.time, ack.signature))).await? {
                    return Err(Ended::Gone);
                }
                held = Instant::now();
            }
            if let Some((_, frozen)) = comparing.take_if(|(next, _)| *next == marked) {
                self.compare(frozen).await?;
                heard = Instant::now();
                continue;
            }
            let end = self.shared.store.feed()?.end();
            if end > cursor.next() {
                continue;
            }
            // Everything is read: wait for more, or for the auditor.
            if idle_since.elapsed() >= IDLE_INTERVAL {
                idle_since = Instant::now();
                let (end, behind_micros) = self.behind(marked.max(cursor.next()));
                self.send(&Answer::Idle { end, behind_micros }).await?;
            }
            match self.receiver.request(POLL).await {
                Err(IoError::Timeout) if heard.elapsed() < STEP_TIMEOUT => {}
                Ok(Request::Alive) => heard = Instant::now(),
                Ok(Request::Compare) => {
                    heard = Instant::now();
                    let (store, tables) = (self.shared.store.clone(), self.tables.clone());
                    let frozen = blocking(move || Ok::<_, Ended>(store.feed()?.snapshot(&tables)?)).await?;
                    comparing = Some(frozen);
                }
                Ok(_) => return Err(Ended::Unexpected("something unexpected")),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn compare(&mut self, frozen: Box<dyn FrozenRows>) -> Result<(), Ended> {
        let tables = self.tables.clone();
        let mut scanning = tokio::task::spawn_blocking(move || copy::digest(&*frozen, &tables));
        let RowsDigest { rows, digest } = loop {
            match tokio::time::timeout(IDLE_INTERVAL, &mut scanning).await {
                Ok(scanned) => break scanned.expect("reading rows does not panic")?,
                Err(_) => {
                    let (end, behind_micros) = self.behind(self.acknowledged);
                    self.send(&Answer::Idle { end, behind_micros }).await?;
                }
            }
        };
        self.send(&Answer::Digest { rows, digest, layouts: copy::layouts(&self.tables) }).await
    }
}

fn head_of(ack: &SignedHead) -> ShortHash {
    ack.position.head
}

/// Reads all rows in parts. Returns their hash. Ends early if nobody takes the parts.
fn scan(
    frozen: &dyn FrozenRows,
    tables: &[&'static TableDef],
    parts: &mpsc::Sender<Vec<u8>>,
) -> Result<SetHash, StoreError> {
    let mut rows = SetHash::default();
    let (mut part, mut one) = (Vec::new(), Vec::new());
    let mut is_wanted = true;
    for &table in tables {
        frozen.scan(table, &mut |record| {
            let change = FeedChange {
                table,
                layout: table.layout(),
                key: record.key,
                row: Some(record.row),
                serial: record.serial,
            };
            one.clear();
            change::put(&change, &mut one);
            rows.add(&[&one]);
            if !part.is_empty() && part.len() + one.len() > PART_BYTES {
                is_wanted = parts.blocking_send(std::mem::take(&mut part)).is_ok();
            }
            part.extend_from_slice(&one);
            if is_wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if !is_wanted {
            return Ok(rows);
        }
    }
    if !part.is_empty() {
        // If nobody takes it, the session has ended.
        let _ = parts.blocking_send(part);
    }
    Ok(rows)
}

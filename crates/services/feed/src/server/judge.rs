//! Judging what an auditor says that it has seen.

use batzen_crypto::{EddsaPublicKey, SetHash, ShortHash};
use batzen_store::{CommitFeed, Feed, FeedCursor, Hold, StoreError, TableDef};
use batzen_tables::exchange::AUDITED;

use super::hold_name;
use crate::chain::{self, Position, SignedHead, Signer};
use crate::message::{Answer, Hello, Reason, VERSION};
use crate::note::Note;

/// Where the stream starts.
pub(super) enum Start {
    /// At this cursor, with the head of the chain there.
    Stream(FeedCursor, ShortHash),
    Snapshot,
}

pub(super) fn refusal(reason: Reason, next: u64, head: Option<ShortHash>, text: impl Into<String>) -> Answer {
    Answer::Refusal { reason, next, head, text: text.into() }
}

/// The tables with these numbers.
pub(super) fn tables(ids: &[u16]) -> Result<Vec<&'static TableDef>, String> {
    let find = |id: &u16| {
        let table = AUDITED.iter().copied().find(|table| table.id == *id);
        table.ok_or_else(|| format!("the exchange has no table {id} for auditors: install the newer version"))
    };
    if ids.is_empty() {
        return Err("no tables are asked for".into());
    }
    ids.iter().map(find).collect()
}

/// The note of an auditor's hold, if it is of a chain over these tables.
fn note_of(hold: &Hold, tables: &[u16]) -> Option<Note> {
    let note = Note::from_bytes(&hold.note)?;
    // Without a head, a snapshot was under way.
    (note.tables == tables && note.head != ShortHash::from_bytes([0; 32])).then_some(note)
}

/// The head of the chain at a number, computed from one before it. `None` if the journal no longer has the frames.
fn head_at(
    feed: &dyn CommitFeed,
    (mut cursor, mut head): (FeedCursor, ShortHash),
    next: u64,
    tables: &[&'static TableDef],
) -> Result<Option<(FeedCursor, ShortHash)>, StoreError> {
    while cursor.next() < next {
        // One frame at a time, to end exactly there.
        match feed.read(&mut cursor, tables, 1)? {
            Feed::Frames(frames) => {
                head = frames.iter().fold(head, |head, frame| chain::after(&head, frame));
            }
            Feed::Gone | Feed::Ahead { .. } => return Ok(None),
        }
    }
    Ok(Some((cursor, head)))
}

/// The text of a contradiction, the same on both sides.
fn rewritten(next: u64) -> String {
    format!(
        "the exchange has rewritten what it shipped: commit {} and those before it are not those that the auditor has seen",
        next.saturating_sub(1)
    )
}

/// Compares what the auditor has seen with the journal.
fn verify(
    feed: &dyn CommitFeed,
    hold: Option<&Hold>,
    seen: &Position,
    (ids, tables): (&[u16], &[&'static TableDef]),
) -> Result<Result<Start, Answer>, StoreError> {
    let Some((hold, note)) = hold.and_then(|hold| Some((hold, note_of(hold, ids)?))) else {
        return Ok(Ok(Start::Snapshot));
    };
    let held = (FeedCursor::before(hold.sequence), note.head);
    if hold.sequence <= seen.next {
        return Ok(Ok(match head_at(feed, held, seen.next, tables)? {
            None => Start::Snapshot,
            Some((cursor, head)) if head == seen.head => Start::Stream(cursor, head),
            Some((_, head)) => {
                return Ok(Err(refusal(Reason::Rewritten, seen.next, Some(head), rewritten(seen.next))));
            }
        }));
    }
    // The auditor's store is older than what it has acknowledged: its operator has restored a backup.
    let start = (FeedCursor::before(seen.next), seen.head);
    Ok(match head_at(feed, start.clone(), hold.sequence, tables)? {
        None => Ok(Start::Snapshot),
        Some((_, head)) if head == note.head => Ok(Start::Stream(start.0, start.1)),
        Some(_) => Err(refusal(Reason::Rewritten, hold.sequence, Some(note.head), rewritten(hold.sequence))),
    })
}

/// Decides what an auditor gets. Blocks.
pub(super) fn judge(
    feed: &dyn CommitFeed,
    auditor: &EddsaPublicKey,
    hello: &Hello,
    tables: &[&'static TableDef],
) -> Result<Result<Start, Answer>, StoreError> {
    let (id, end) = (feed.id(), feed.end());
    if hello.version != VERSION {
        let text = format!("the auditor speaks version {} and the exchange version {VERSION}", hello.version);
        return Ok(Err(refusal(Reason::Version, 0, None, text)));
    }
    let Some(seen) = &hello.seen else {
        if hello.wants_snapshot {
            return Ok(Ok(Start::Snapshot));
        }
        let mut first = FeedCursor::before(1);
        let is_there = feed.read(&mut first, tables, 1)? != Feed::Gone;
        let head = chain::start(&id, 1, &hello.tables, &SetHash::default());
        return Ok(Ok(if is_there { Start::Stream(FeedCursor::before(1), head) } else { Start::Snapshot }));
    };
    let SignedHead { position, .. } = seen;
    if position.store != id {
        let text = "the auditor has followed another exchange, or the exchange has started with a new store";
        return Ok(Err(refusal(Reason::OtherStore, position.next, None, text)));
    }
    if !seen.is_by(Signer::Auditor, auditor) {
        let text = "the auditor has not signed the head that it has sent";
        return Ok(Err(refusal(Reason::Signature, position.next, None, text)));
    }
    if position.next > end {
        let text = format!(
            "the exchange has lost what it shipped: the auditor has seen commit {}, and the exchange has only those before {end}",
            position.next - 1
        );
        return Ok(Err(refusal(Reason::Lost, end, None, text)));
    }
    if hello.wants_snapshot {
        return Ok(Ok(Start::Snapshot));
    }
    let holds = feed.holds();
    let hold = holds.iter().find(|hold| hold.name == hold_name(auditor));
    verify(feed, hold, position, (&hello.tables, tables))
}

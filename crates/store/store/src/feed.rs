//! The committed changes of a store in their order, for a copy elsewhere.
//!
//! A reader asks for the changes of some tables from a number on, and is told where to go on. It says which number it
//! still needs with a *hold*, which the store keeps across restarts. If what it needs is gone nevertheless, it takes a
//! snapshot and goes on from there.

use crate::{DecodeError, FrozenRows, Result, StoreError, TableDef};

/// The longest name of a hold, in bytes.
pub(crate) const HOLD_NAME_BYTES_MAX: usize = 64;
/// The longest note of a hold, in bytes.
pub const HOLD_NOTE_BYTES_MAX: usize = 1_024;
/// Number of holds that a store has at most.
pub(crate) const HOLDS_MAX: usize = 16;

/// The new state of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedChange {
    /// Its table.
    pub table: &'static TableDef,
    /// The layout of the row's bytes; 0 for a deletion.
    pub layout: u8,
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The row's bytes as they were committed; `None` if the row was deleted.
    pub row: Option<Vec<u8>>,
    /// The row's serial.
    pub serial: u64,
}

impl FeedChange {
    /// The row in the layout that this program uses.
    ///
    /// # Errors
    /// If it is not a row of its layout, or a newer program wrote it.
    pub fn current_row(&self) -> std::result::Result<Option<Vec<u8>>, DecodeError> {
        self.row.as_ref().map(|row| self.table.upgraded(self.layout, &self.key, row)).transpose()
    }
}

/// Commits that became durable together, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedFrame {
    /// Its number. Numbers ascend, but not all have changes of the wanted tables.
    pub sequence: u64,
    /// The changes of the wanted tables, at least one.
    pub changes: Vec<FeedChange>,
}

/// The next part of the feed for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feed {
    /// The next frames with changes of the wanted tables. Everything before the cursor's number has been read now.
    Frames(Vec<FeedFrame>),
    /// The store no longer has all changes from the cursor's number on: take a snapshot.
    Gone,
    /// The store has never reached the cursor's number.
    Ahead {
        /// The number of its next frame.
        end: u64,
    },
}

/// The position of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedCursor {
    pub(crate) next: u64,
    /// Where the next frame is, if it is known: a segment and an offset.
    pub(crate) place: Option<(u32, u64)>,
}

impl FeedCursor {
    /// Before the frame with this number. The first frame of a store has number 1.
    #[must_use]
    pub const fn before(sequence: u64) -> Self {
        Self { next: sequence, place: None }
    }

    /// The number of the next frame to be read.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }
}

/// Keeps what a reader still needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The reader.
    pub name: String,
    /// The number of the first frame that it needs.
    pub sequence: u64,
    /// The note that the reader's server wants to keep with it.
    pub note: Vec<u8>,
    /// The most bytes on disk that are kept only for this reader. Beyond that the hold is dropped.
    pub bytes_max: u64,
}

impl Hold {
    pub(crate) fn check(&self) -> Result<()> {
        let is_name = !self.name.is_empty()
            && self.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_name || self.name.len() > HOLD_NAME_BYTES_MAX || self.note.len() > HOLD_NOTE_BYTES_MAX {
            return Err(StoreError::Backend(format!(
                "{:?} cannot be the name of a hold with this note",
                self.name
            )));
        }
        Ok(())
    }
}

/// A store that can tell its committed changes in their order.
pub trait CommitFeed: Send + Sync {
    /// The random number that identifies the store and its copies.
    fn id(&self) -> [u8; 16];

    /// The number of the next frame. Everything before it is durable. Does not block.
    fn end(&self) -> u64;

    /// Reads on from a cursor and moves it: until there is no more, or about this many bytes were read. Blocks.
    ///
    /// # Errors
    /// When the disk fails or its data is damaged.
    fn read(&self, cursor: &mut FeedCursor, tables: &[&'static TableDef], bytes_max: usize) -> Result<Feed>;

    /// All rows of these tables as they are before the frame with the returned number. Blocks.
    ///
    /// # Errors
    /// When the disk fails or its data is damaged.
    fn snapshot(&self, tables: &[&'static TableDef]) -> Result<(u64, Box<dyn FrozenRows>)>;

    /// Sets or moves a hold, and makes it durable. Returns false, without any effect, if the store no longer has all
    /// changes from its number on. Blocks.
    ///
    /// # Errors
    /// When the disk fails, a name or note is too long, or there are too many holds.
    fn hold(&self, hold: Hold) -> Result<bool>;

    /// Ends a hold, if there is one with this name. Blocks.
    ///
    /// # Errors
    /// When the disk fails.
    fn release(&self, name: &str) -> Result<()>;

    /// The holds. One that needed too much space is no longer among them.
    fn holds(&self) -> Vec<Hold>;
}

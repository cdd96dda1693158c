//! Snapshots: the state as of a record, in rows of bounded size, so that a ledger opens without reading its
//! whole log, and knows the ids of all transfers without having them in memory.
//!
//! A snapshot is made from the one before and the part of the log in between ([`Delta`]): it never touches the
//! machine, so the lane does not wait for it. It is written in steps, each a commit of its own:
//!
//! 1. The head names the *target*, the record up to which the next snapshot goes.
//! 2. Pages of accounts are replaced. Each says as of which record it is.
//! 3. Everything else is added where the current snapshot does not look.
//! 4. The head moves to the target, which makes the snapshot current.
//!
//! If the process ends in between, the next one reads the same part of the log again: with it, the pages that
//! were not replaced yet lead to the same state, and the remaining steps are repeated.
//!
//! Ids are in sorted *runs* ([`runs`]), one for each snapshot. Four of one level are merged into one of the next
//! ([`merge`]). Nothing is derived from a snapshot but what the log says, too: it can be deleted, and
//! verification compares it with the log. See docs/decisions/0022-ledger-snapshots.md.

mod check;
mod delta;
mod head;
mod load;
mod merge;
mod pages;
mod put;
mod runs;
mod taking;
mod thread;
mod work;

pub(crate) use check::Check;
use delta::Delta;
pub(crate) use delta::Unresolved;
pub(crate) use head::Head;
pub(crate) use load::{Loaded, clear, load};
pub(crate) use pages::{GROUP_RECORDS, rows_of_group};
pub(crate) use runs::Ids;
pub(crate) use thread::SnapshotThread;
pub(crate) use work::Snapshots;

/// Size of an index entry in a run, in bytes: eight of hash, five of record number and status.
const ENTRY_BYTES: usize = 13;

/// A snapshot begins when the log has grown by this much since the last one, in bytes. That many are read when
/// the ledger opens, and the ids in them are in memory: about a million transfers.
pub(crate) const SNAPSHOT_LOG_BYTES_MIN: u64 = 32 << 20;

/// With many accounts the log may grow by more, up to this much, so that not most of what is written are
/// accounts.
pub(crate) const SNAPSHOT_LOG_BYTES_MAX: u64 = 128 << 20;

/// A row of the log costs more than its records when it is read: as much as this many bytes.
pub(crate) const ROW_WEIGHT_BYTES: u64 = 64;

/// Options for snapshots.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOptions {
    /// See `SNAPSHOT_LOG_BYTES_MIN`.
    pub log_bytes_min: u64,
    /// See `SNAPSHOT_LOG_BYTES_MAX`.
    pub log_bytes_max: u64,
    /// Entries in a page of ids. One page is read to look for a known id.
    pub page_entries: usize,
    /// Pages with one filter.
    pub section_pages: usize,
    /// Number of entries of resolved pending transfers that a snapshot may keep, besides as many as are
    /// unresolved.
    pub pending_slack: u64,
    /// The most bytes that one commit of a snapshot writes, unless a single row is larger. It shares the disk
    /// with commits that somebody waits for.
    pub commit_bytes: usize,
    /// The key that a new ledger hashes ids with; random if there is none. For tests that must be repeatable.
    pub hash_key: Option<[u8; 16]>,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            log_bytes_min: SNAPSHOT_LOG_BYTES_MIN,
            log_bytes_max: SNAPSHOT_LOG_BYTES_MAX,
            page_entries: 1024,
            // A filter of a few hashes more would be rounded up to a larger one.
            section_pages: 126,
            pending_slack: 4096,
            commit_bytes: 512 << 10,
            hash_key: None,
        }
    }
}

impl SnapshotOptions {
    /// By how much the log may grow before the next snapshot, if the state takes this much.
    pub(crate) fn log_bytes(&self, state_bytes: u64) -> u64 {
        state_bytes.clamp(self.log_bytes_min, self.log_bytes_max)
    }
}

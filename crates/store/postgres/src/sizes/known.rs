//! The last answer about the sizes of the tables.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Row counts and sizes of the tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    /// Rows of each table by its number.
    pub(crate) rows: HashMap<u16, u64>,
    /// All tables with their indexes, in bytes.
    pub(crate) bytes: u64,
}

/// The last answer.
#[derive(Debug, Default)]
pub(crate) struct Known {
    state: Mutex<SizesState>,
}

#[derive(Debug, Default)]
pub(super) struct SizesState {
    pub(super) sizes: Option<Arc<Sizes>>,
    pub(super) good_until: Option<Instant>,
    pub(super) is_asking: bool,
    /// Whether the server did not answer the last time, so that nobody waits for it.
    pub(super) has_failed: bool,
}

impl Known {
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, SizesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

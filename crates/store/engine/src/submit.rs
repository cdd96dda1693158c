//! Why a lane made no decision on a submission.

use std::sync::Arc;

use batzen_store::StoreError;

/// Why a lane made no decision on a command. (A refusal by a rule is a decision, not an error.)
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full. Nothing was done; try again later.
    #[error("too many commands are waiting: try again later")]
    Overloaded,
    /// The lane has stopped. If it had accepted the command before, the command may have taken effect.
    #[error("the store is shutting down")]
    Stopped,
    /// The store could not be read or written. The command had no effect, unless the store is
    /// [unavailable](StoreError::Unavailable): then the outcome is unknown, and a repetition finds out.
    #[error("store: {0}")]
    Store(Arc<StoreError>),
}

//! Why a measurement could not be made.

use std::path::{Path, PathBuf};

use crate::bench::results::result::ResultError;

/// The result of a step of a measurement.
pub(crate) type Result<T, E = BenchError> = std::result::Result<T, E>;

/// Why a measurement could not be made. Requests that fail during the run are no such error; the result
/// counts them.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Arguments that contradict each other or this machine.
    #[error("{0}")]
    Usage(String),
    /// A file or directory cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The services of the measurement could not be set up: one did not start, or a reserve was not funded.
    #[error("{0}")]
    SetUp(String),
    /// A service under test ended before it was stopped.
    #[error("{name} ended by itself ({status}): {last_words}")]
    Ended {
        /// The service.
        name: String,
        /// Its exit status.
        status: String,
        /// The end of its output.
        last_words: String,
    },
    /// The server's answer violates the protocol.
    #[error("wrong answer: {0}")]
    WrongAnswer(String),
    /// A result cannot be read or written.
    #[error(transparent)]
    Result(#[from] ResultError),
    /// Interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// An error on a file.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// A step of the set-up that failed.
    pub(crate) fn set_up(what: &str, reason: impl std::fmt::Display) -> Self {
        Self::SetUp(format!("{what}: {reason}"))
    }
}

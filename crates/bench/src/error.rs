//! Why a measurement could not be made.

use std::path::{Path, PathBuf};

use crate::results::result::ResultError;

/// Why a measurement could not be made. Requests that fail while it runs are no such reason: they are
/// counted.
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
    /// The world of the measurement could not be set up: a service did not start, a reserve was not funded.
    #[error("{0}")]
    SetUp(String),
    /// A service of the world ended before it was stopped.
    #[error("{name} ended by itself ({status}): {last_words}")]
    Ended {
        /// Which one.
        name: String,
        /// How.
        status: String,
        /// The end of what it said.
        last_words: String,
    },
    /// What the server answered is not what the protocol demands.
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
    /// An error at a file.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// A step of the set-up that failed.
    pub fn set_up(what: &str, reason: impl std::fmt::Display) -> Self {
        Self::SetUp(format!("{what}: {reason}"))
    }
}

//! What can be wrong with a configuration.

use crate::Source;
use std::{fmt, path::PathBuf};

/// What is wrong with a configuration, in words for who wrote it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A line is not well-formed.
    #[error("{at}: {reason}")]
    Syntax {
        /// Where.
        at: Source,
        /// What is wrong.
        reason: String,
    },
    /// A required option is missing.
    #[error("[{section}] {option} is missing: expected {expected}")]
    Missing {
        /// The section, in upper case.
        section: Box<str>,
        /// The option, in upper case.
        option: Box<str>,
        /// What is expected.
        expected: Box<str>,
    },
    /// A value is not what it should be.
    #[error("{at}: [{section}] {option}: expected {expected}, found {found}")]
    Invalid {
        /// Where the value stands.
        at: Source,
        /// The section, in upper case.
        section: Box<str>,
        /// The option, in upper case.
        option: Box<str>,
        /// What is expected.
        expected: Box<str>,
        /// What stands there, in quotes and shortened, or what is wrong with it.
        found: Box<str>,
    },
    /// A name or value cannot be written in the dialect.
    #[error("[{section}] {option}: {reason}")]
    Unwritable {
        /// The section as given.
        section: String,
        /// The option as given.
        option: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl fmt::Display for crate::UnknownOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: [{}] {} is not an option of this section", self.source, self.section, self.option)?;
        match &self.nearest {
            Some(nearest) => write!(f, " (did you mean {nearest}?)"),
            None => Ok(()),
        }
    }
}

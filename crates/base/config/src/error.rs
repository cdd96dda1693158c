//! Errors of a configuration.

use crate::Source;
use std::{fmt, path::PathBuf};

/// An error in a configuration, in words for its author.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A line is not well-formed.
    #[error("{at}: {reason}")]
    Syntax {
        /// Where.
        at: Source,
        /// The fault.
        reason: String,
    },
    /// A required option is missing.
    #[error("[{section}] {option} is missing: expected {expected}")]
    Missing {
        /// The section, in upper case.
        section: Box<str>,
        /// The option, in upper case.
        option: Box<str>,
        /// The expected form.
        expected: Box<str>,
    },
    /// A value is invalid.
    #[error("{at}: [{section}] {option}: expected {expected}, found {found}")]
    Invalid {
        /// The position of the value.
        at: Source,
        /// The section, in upper case.
        section: Box<str>,
        /// The option, in upper case.
        option: Box<str>,
        /// The expected form.
        expected: Box<str>,
        /// The found value, in quotes and shortened, or what is wrong with it.
        found: Box<str>,
    },
    /// A name or value cannot be written in the dialect.
    #[error("[{section}] {option}: {reason}")]
    Unwritable {
        /// The section as given.
        section: String,
        /// The option as given.
        option: String,
        /// The fault.
        reason: &'static str,
    },
}

impl fmt::Display for crate::UnknownSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, section, nearest } = self;
        write!(f, "{source}: no program reads section [{section}] (did you mean [{nearest}]?)")
    }
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

//! Why results cannot be read or written.

use std::path::PathBuf;

/// The most results that an error lists.
const NAMED: usize = 3;

/// Why results cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// A file cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The directory contains no result.
    #[error(
        "{path}: there is no result.json here, so it is no result of `batzen-lab bench`{}",
        named(below),
        path = path.display()
    )]
    NoResult {
        /// The directory.
        path: PathBuf,
        /// Results below it.
        below: Vec<PathBuf>,
    },
    /// `result.json` is not JSON of the expected form.
    #[error(
        "{path}: damaged, or not written by `batzen-lab bench`: {source} (measure again, or leave the directory out)",
        path = path.display()
    )]
    Json {
        /// The file.
        path: PathBuf,
        /// The fault, and its place.
        source: serde_json::Error,
    },
    /// The result was written by another version of Batzen.
    #[error(
        "{path}: schema {found} is unknown; this program reads schema {known} (rerun the measurement, or use the \
         version that made it)",
        path = path.display()
    )]
    UnknownSchema {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
        /// The version that this program reads.
        known: u64,
    },
    /// A line of a series or of a histogram is not of the expected form.
    #[error("{path}:{line}: {what}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
}

/// The part of an error that lists the results below a directory.
fn named(below: &[PathBuf]) -> String {
    if below.is_empty() {
        return String::new();
    }
    let names: Vec<String> = below.iter().take(NAMED).map(|path| path.display().to_string()).collect();
    let more = if below.len() > NAMED { ", …" } else { "" };
    format!("; results below it: {}{more}", names.join(", "))
}

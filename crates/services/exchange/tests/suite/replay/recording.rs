//! Recorded exchanges of messages, one on each line of a file.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A request with its answer.
#[derive(Debug, Clone, serde::Deserialize)]
pub(crate) struct Line {
    pub step: u64,
    pub server: String,
    pub request: Request,
    pub response: Response,
}

#[derive(Debug, Clone, serde::Deserialize)]
pub(crate) struct Request {
    pub method: String,
    pub path: String,
    /// JSON, or the text itself if it is neither an object nor an array, or null if there is none.
    pub body: Value,
    #[serde(default)]
    pub headers: serde_json::Map<String, Value>,
}

#[derive(Debug, Clone, serde::Deserialize)]
pub(crate) struct Response {
    pub status: u16,
    #[serde(default)]
    pub headers: serde_json::Map<String, Value>,
    pub body: Value,
}

impl Request {
    /// The segments of the path.
    pub(crate) fn segments(&self) -> Vec<&str> {
        self.path.split('?').next().unwrap_or_default().split('/').filter(|part| !part.is_empty()).collect()
    }

    /// An argument of the query.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path.split_once('?')?;
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1.into()
    }
}

impl Line {
    pub(crate) fn is_ok(&self) -> bool {
        (200..300).contains(&self.response.status)
    }
}

/// All lines of a file: one exchange with one set of keys.
pub(crate) struct Scenario {
    pub name: String,
    pub lines: Vec<Line>,
}

/// The project's own recordings.
pub(super) fn own_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../base/protocol/tests/vectors/http")
}

impl Scenario {
    pub(crate) fn read(directory: &Path, name: &str) -> Self {
        let path = directory.join(format!("{name}.jsonl"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        Self { name: name.to_owned(), lines: lines.map(|line| serde_json::from_str(line).unwrap()).collect() }
    }

    /// The names of the recordings in a directory.
    pub(crate) fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The requests that the exchange received.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.server == "exchange")
    }
}

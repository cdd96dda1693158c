//! Writes data to standard output and to files.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::bench::BenchError;
use crate::bench::error::Result;

/// A value as indented JSON with a line end.
pub(crate) fn json(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("string keys and finite numbers");
    text.push('\n');
    text
}

/// Writes to standard output. A closed pipe is no error.
///
/// # Errors
/// When it cannot be written to for another reason.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(BenchError::io(Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}

/// Replaces a file atomically: readers see either the old or the new one.
pub(crate) fn replace_file(path: &Path, text: &str) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    // The error names the file that the user knows, not the temporary one.
    std::fs::write(temporary, text)
        .and_then(|()| std::fs::rename(temporary, path))
        .inspect_err(|_| drop(std::fs::remove_file(temporary)))
        .map_err(BenchError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent/report.html");
        let error = replace_file(&absent, "text").unwrap_err().to_string();
        assert!(error.contains("absent/report.html: No such file"), "{error}");
        // A directory is in the way.
        let taken = directory.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        assert!(replace_file(&taken, "text").is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}

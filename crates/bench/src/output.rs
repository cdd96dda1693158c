//! Standard output: data, and nothing else.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::BenchError;

/// A value as indented JSON with a line end.
pub fn json(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("string keys and finite numbers");
    text.push('\n');
    text
}

/// Writes to standard output. A reader that has gone has seen enough.
///
/// # Errors
/// When it cannot be written to for another reason.
pub fn print(text: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(BenchError::io(Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}

/// Writes a file as a whole: readers see the old or the new one.
///
/// # Errors
/// When it cannot be written.
pub fn replace_file(path: &Path, text: &str) -> Result<(), BenchError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    std::fs::write(temporary, text).map_err(BenchError::io(temporary))?;
    std::fs::rename(temporary, path).map_err(BenchError::io(path))
}

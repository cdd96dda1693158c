//! Log lines on standard error or in a file, with the level names that operators of payment services know.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::otlp::Exporter;

/// A log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(LevelFilter);

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text.to_ascii_uppercase().as_str() {
            "NONE" => LevelFilter::OFF,
            "ERROR" => LevelFilter::ERROR,
            "WARNING" | "WARN" => LevelFilter::WARN,
            "MESSAGE" | "INFO" => LevelFilter::INFO,
            "DEBUG" => LevelFilter::DEBUG,
            "TRACE" => LevelFilter::TRACE,
            _ => return Err("expected NONE, ERROR, WARNING, MESSAGE, INFO, DEBUG or TRACE".into()),
        }))
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Lines for people
    Text,
    /// One JSON object per line, for collectors of logs
    Json,
}

/// The log file of this process, if it has one.
static LOG_FILE: OnceLock<LogFile> = OnceLock::new();

/// A log file that can be renamed meanwhile.
struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    fn open(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { path: path.to_owned(), file: Mutex::new(open_file(path)?) })
    }

    /// Goes on in the file that now has the name, or a new one.
    fn reopen(&self) -> anyhow::Result<()> {
        let file = open_file(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn open_file(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.with_context(|| format!("open log file {}", path.display()))
}

/// Returns whether the log is a file.
pub(crate) fn has_file() -> bool {
    LOG_FILE.get().is_some()
}

/// Opens the log file again, after a tool has renamed it. If that fails, the log goes on in the old file and says so.
pub(crate) fn reopen() {
    match LOG_FILE.get().map(LogFile::reopen) {
        Some(Ok(())) => tracing::info!("the log goes on in a file that was opened again"),
        Some(Err(error)) => tracing::error!(%error, "the log goes on in the old file"),
        None => {}
    }
}

/// Starts logging, and the export of spans if there is an exporter. Colours only on a terminal and without
/// `NO_COLOR`.
///
/// # Errors
/// When the log file cannot be opened.
pub(crate) fn init(
    level: Level,
    format: Format,
    file: Option<&Path>,
    exporter: Option<Exporter>,
) -> anyhow::Result<()> {
    let writer = match file {
        Some(path) => {
            let file = LogFile::open(path)?;
            let log = LOG_FILE.get_or_init(|| file);
            BoxMakeWriter::new(move || log)
        }
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_writer(writer);
    let lines = match format {
        Format::Text => {
            let colours =
                file.is_none() && std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colours).with_filter(level.0).boxed()
        }
        // The fields of an event and of the request around it are members of the object.
        Format::Json => lines.json().flatten_event(true).with_filter(level.0).boxed(),
    };
    // Spans come from lines up to DEBUG, whatever the level of the log.
    let spans = exporter.map(|exporter| exporter.with_filter(LevelFilter::DEBUG));
    tracing_subscriber::registry().with(lines).with(spans).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_log_file_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let (path, renamed) = (dir.path().join("log"), dir.path().join("log.1"));
        let log = LogFile::open(&path).unwrap();
        let write = |line: &str| writeln!(&log, "{line}").unwrap();
        write("1");
        std::fs::rename(&path, &renamed).unwrap();
        write("2");
        log.reopen().unwrap();
        write("3");
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&renamed).as_str(), read(&path).as_str()), ("1\n2\n", "3\n"));
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(log.reopen().is_err());
        write("4");
    }

    #[test]
    fn levels_have_the_names_operators_use() {
        for (text, level) in [
            ("NONE", LevelFilter::OFF),
            ("error", LevelFilter::ERROR),
            ("WARNING", LevelFilter::WARN),
            ("MESSAGE", LevelFilter::INFO),
            ("INFO", LevelFilter::INFO),
            ("DEBUG", LevelFilter::DEBUG),
            ("TRACE", LevelFilter::TRACE),
        ] {
            assert_eq!(text.parse(), Ok(Level(level)));
        }
        assert!("LOUD".parse::<Level>().is_err());
    }
}

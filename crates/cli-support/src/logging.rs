//! Log lines on standard error or in a file, with the level names that operators of payment services know.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;

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
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("open log file {}", path.display()))?;
            BoxMakeWriter::new(Mutex::new(file))
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

//! Writes data to standard output and everything else to standard error. Colours and animation appear only on
//! terminals.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use serde::Serialize;

use super::errors::ErrorReport;

/// The form of the output.
pub(super) struct Output {
    json: bool,
    color: bool,
}

impl Output {
    pub(super) fn new(json: bool, no_color: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let color = !json && !no_color && !set("NO_COLOR") && !dumb && std::io::stdout().is_terminal();
        Self { json, color }
    }

    /// Prints the result: `data` as JSON, or `text`.
    pub(super) fn result(&self, data: &impl Serialize, text: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, data)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{}", text.trim_end())?;
        }
        out.flush()?;
        Ok(())
    }

    pub(super) fn bold(&self, text: impl std::fmt::Display) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_string() }
    }

    pub(super) fn dim(&self, text: impl std::fmt::Display) -> String {
        if self.color { format!("\x1b[2m{text}\x1b[0m") } else { text.to_string() }
    }

    /// Prints a note for people that is not part of the result.
    pub(super) fn note(&self, text: &str) {
        if !self.json {
            eprintln!("{text}");
        }
    }

    /// Reports an error on standard error, as one JSON object if JSON is requested.
    pub(super) fn error(&self, report: &ErrorReport) {
        if self.json {
            let fallback = || serde_json::json!({ "error": report.error });
            eprintln!("{}", serde_json::to_value(report).unwrap_or_else(|_| fallback()));
            return;
        }
        eprintln!("batzen wallet: {}", report.error);
        if let Some(hint) = &report.hint {
            eprintln!("  hint: {hint}");
        }
    }

    /// A QR code of `text`, if the output is a terminal or `force` is set.
    pub(super) fn qr(&self, text: &str, force: bool) -> anyhow::Result<Option<String>> {
        if self.json || !(force || std::io::stdout().is_terminal()) {
            return Ok(None);
        }
        let code = QrCode::new(text.as_bytes()).context("the text is too long for a QR code")?;
        // Inverted, because terminals are mostly dark, and a QR code is dark on light.
        let image = code
            .render::<Dense1x2>()
            .dark_color(Dense1x2::Light)
            .light_color(Dense1x2::Dark)
            .quiet_zone(true)
            .build();
        Ok(Some(image))
    }

    /// A progress line on standard error while an operation takes time; silent if that is not a terminal.
    pub(super) fn progress(&self, text: impl Into<String>) -> ProgressBar {
        if self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message(text.into());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    /// Shows such a line while a request is under way.
    pub(super) async fn during<T>(&self, text: impl Into<String>, request: impl Future<Output = T>) -> T {
        let bar = self.progress(text);
        let answer = request.await;
        bar.finish_and_clear();
        answer
    }

    /// Asks for confirmation. Without a terminal, `--yes` is required.
    pub(super) fn confirm(&self, question: &str, yes: bool) -> anyhow::Result<()> {
        if yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            bail!("{question} Standard input is not a terminal; add --yes to agree");
        }
        eprint!("{question} [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            Ok(())
        } else {
            bail!("not done");
        }
    }
}

/// Returns whether the reader has closed our output.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}

/// A day as text: `2025-03-01` in UTC.
pub(super) fn day(time: batzen_wallet::Timestamp) -> String {
    date(time).split_whitespace().next().unwrap_or_default().to_owned()
}

/// A date and time as text: `2025-03-01 14:05:09` in UTC.
pub(super) fn date(time: batzen_wallet::Timestamp) -> String {
    time.to_string()
}

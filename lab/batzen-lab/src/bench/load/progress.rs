//! Progress on standard error, if it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows progress on standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    is_shown: bool,
}

/// A progress bar; dropping it removes it from the terminal.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Progress {
    /// Progress that is shown, or silent.
    pub(crate) fn new(is_shown: bool) -> Self {
        Self { is_shown }
    }

    fn start(self, template: &str, message: &str, total: Option<u64>) -> Bar {
        if !self.is_shown {
            return Bar(ProgressBar::hidden());
        }
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(message.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar(bar)
    }

    /// A spinner for work of unknown length.
    pub(crate) fn waiting(self, message: &str) -> Bar {
        self.start("{spinner} {msg} ({elapsed})", message, None)
    }

    /// A bar for work of `total` steps.
    pub(crate) fn bar(self, message: &str, total: u64) -> Bar {
        self.start("{msg} {wide_bar} {pos}/{len} {eta}", message, Some(total))
    }

    /// A bar for a load of known duration; the steps are milliseconds.
    pub(crate) fn timed(self, message: &str, time: Duration) -> Bar {
        let total = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.start("{wide_msg} {bar:30} {elapsed}", message, Some(total))
    }
}

impl Bar {
    /// Sets the number of steps done.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Adds one step.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// The number of steps done.
    pub(crate) fn position(&self) -> u64 {
        self.0.position()
    }

    /// Changes the message.
    pub(crate) fn say(&self, message: String) {
        self.0.set_message(message);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

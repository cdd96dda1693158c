//! Progress on a terminal, silence elsewhere.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};

/// Returns whether progress may be shown: standard error is a terminal that understands it.
pub fn is_interactive() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Shows how far a work of unknown length has come, if `is_shown`, until it is dropped.
pub struct Counter(Option<ProgressBar>);

impl Counter {
    /// A counter at zero. `message` says what is counted.
    #[must_use]
    pub fn new(is_shown: bool, message: &'static str) -> Self {
        let style =
            ProgressStyle::with_template("{msg} {pos}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        Self(is_shown.then(|| ProgressBar::no_length().with_style(style).with_message(message)))
    }

    /// Shows a new count.
    pub fn set(&self, count: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(count);
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of key creation, if `is_shown`.
pub fn of_keys(is_shown: bool) -> Arc<dyn Fn(usize, usize) + Send + Sync> {
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    Arc::new(move |done, total| {
        tracing::info!(done, total, "denomination keys created");
        if !is_shown {
            return;
        }
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total as u64).with_style(style).with_message("creating keys")
        });
        shown.set_length(total as u64);
        shown.set_position(done as u64);
        if done >= total {
            shown.finish_and_clear();
            *bar = None;
        }
    })
}

//! How the demonstration goes, told to people (lines) or kept for programs.

use std::io::Write as _;
use std::time::Instant;

use serde::Serialize;

/// What a step did.
pub struct Done {
    /// How many of the things that the step is about.
    pub count: usize,
    /// In plain words.
    pub words: String,
}

/// The result of a step, for programs.
#[derive(Serialize)]
struct Step {
    name: &'static str,
    ok: bool,
    count: usize,
    milliseconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The steps so far.
pub struct Steps {
    is_silent: bool,
    steps: Vec<Step>,
}

impl Steps {
    /// Tells them as they happen, unless they are for programs.
    pub const fn new(is_silent: bool) -> Self {
        Self { is_silent, steps: Vec::new() }
    }

    /// Takes a step and tells what came of it.
    ///
    /// # Errors
    /// The step's own.
    pub fn step<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> anyhow::Result<(T, Done)>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        let outcome = work();
        let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (result, ok, count, error, words) = match outcome {
            Ok((result, done)) => (Ok(result), true, done.count, None, done.words),
            Err(error) => {
                let text = format!("{error:#}");
                (Err(error.context(name)), false, 0, Some(text.clone()), format!("FAILED: {text}"))
            }
        };
        if !self.is_silent {
            // That nobody listens any more must not keep the books from being closed.
            let _ = writeln!(std::io::stdout(), "{name:<12}{milliseconds:>7} ms  {words}");
        }
        self.steps.push(Step { name, ok, count, milliseconds, error });
        result
    }

    /// For programs.
    ///
    /// # Errors
    /// Never: names and numbers have a JSON form.
    pub fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(&self.steps)
    }
}

//! The steps of the demo: printed line by line for people, or kept for programs.

use std::io::Write as _;
use std::time::Instant;

use serde::Serialize;

/// The result of a successful step.
pub(crate) struct StepSummary {
    /// The number of items in the step.
    pub(crate) count: usize,
    /// One line for people.
    pub(crate) summary: String,
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
pub(crate) struct Steps {
    is_silent: bool,
    steps: Vec<Step>,
}

impl Steps {
    /// Prints each step as it ends, unless the output is for programs.
    pub(crate) const fn new(is_silent: bool) -> Self {
        Self { is_silent, steps: Vec::new() }
    }

    /// Runs a step and prints its result.
    pub(crate) fn step<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> anyhow::Result<(T, StepSummary)>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        let outcome = work();
        let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (result, ok, count, error, summary) = match outcome {
            Ok((result, done)) => (Ok(result), true, done.count, None, done.summary),
            Err(error) => {
                let text = format!("{error:#}");
                (Err(error.context(name)), false, 0, Some(text.clone()), format!("FAILED: {text}"))
            }
        };
        if !self.is_silent {
            // A closed standard output must not stop the demo before the books are closed.
            let _ = writeln!(std::io::stdout(), "{name:<12}{milliseconds:>7} ms  {summary}");
        }
        self.steps.push(Step { name, ok, count, milliseconds, error });
        result
    }

    /// The steps for programs.
    pub(crate) fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(&self.steps)
    }
}

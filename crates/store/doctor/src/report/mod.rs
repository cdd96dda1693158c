//! Reports of findings and facts as text and as JSON.
//!
//! The JSON report is the [`Examination`] itself as JSON: `severity`, `findings`,
//! `tuning`, `facts`.

pub(crate) mod table;
pub mod text;

pub use text::{Style, text};

use crate::Examination;

/// The report as JSON.
pub fn json(examination: &Examination) -> serde_json::Value {
    // Plain structures with names as keys, which can always be written as JSON.
    serde_json::to_value(examination)
        .unwrap_or_else(|error| serde_json::json!({ "error": error.to_string() }))
}

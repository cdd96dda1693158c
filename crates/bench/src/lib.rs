//! Measures Batzen: scenarios run against the product's own processes, the ceilings of the machine beside them, and what
//! becomes of the figures: a result directory a run, reports, comparisons, tables.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod affinity;
pub mod ceiling;
pub mod compare;
mod error;
pub mod limits;
pub mod machine;
pub mod meter;
pub mod options;
mod output;
pub mod report;
pub mod result;
pub mod scenarios;
pub mod svg;
pub mod table;

pub use error::BenchError;

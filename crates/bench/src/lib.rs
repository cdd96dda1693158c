//! Measures Batzen: scenarios run against the product's own processes, the ceilings of the machine beside them, and what
//! becomes of the figures: a result directory a run, reports, comparisons, tables.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod affinity;
pub mod ceiling;
pub mod change;
pub mod coins;
pub mod compare;
pub mod database;
mod error;
pub mod limits;
pub mod load;
pub mod machine;
pub mod measure;
pub mod meter;
pub mod moments;
pub mod options;
mod output;
pub mod payments;
pub mod prepared;
pub mod procfs;
pub mod progress;
pub mod random;
pub mod report;
pub mod result;
pub mod scenarios;
pub mod scrape;
pub mod session;
pub mod svg;
pub mod table;
pub mod wire;
pub mod world;

pub use error::BenchError;

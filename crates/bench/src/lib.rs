//! Measures Batzen: runs scenarios against processes of the program itself, measures the ceilings of the
//! machine, and reports.
//!
//! | module | contents |
//! |---|---|
//! | [`load`] | the load generator, what it sends, and what is measured meanwhile |
//! | [`scenarios`] | what is measured: a module for each command of `batzen bench` |
//! | [`results`] | the files of a run, and what is made of them: reports, comparisons, tables |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

mod error;
pub mod load;
pub mod results;
pub mod scenarios;

pub use error::BenchError;

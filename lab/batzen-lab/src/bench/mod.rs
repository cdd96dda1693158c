//! Measures Batzen: runs scenarios against processes of the program itself, measures the ceilings of the
//! machine, and reports.
//!
//! | module | contents |
//! |---|---|
//! | `load` | the load generator, its requests, and the measurements during the load |
//! | [`scenarios`] | the scenarios: a module for each command of `batzen-lab bench` |
//! | [`results`] | the files of a run, and reports, comparisons and tables of them |
//! | [`plan`] | what a wanted load needs, computed from the results |

mod error;
pub(crate) mod load;
pub mod plan;
pub mod results;
pub mod scenarios;

pub use error::BenchError;

//! Shared by the programs and their commands.
//!
//! | module | contents |
//! |---|---|
//! | [`program`] | the frame of a program: its log, exit codes, error lines |
//! | [`allocator`] | the allocator of every program |
//! | `logging`, `otlp` | log lines, and spans for a collector |
//! | [`examples`], [`manual`] | examples in the help; man pages and completions |
//! | [`services`] | options of every service, its clock, directories, signals and runtime |
//! | [`store_args`] | options that choose a service's store |
//! | [`switch_ledger`] | the ledger of a switch: in its own process, or elsewhere |
//! | [`numbers`] | counts, rates, durations and sizes as people read them |
//! | [`progress`] | progress bars on a terminal |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod allocator;
pub mod examples;
mod logging;
pub mod manual;
pub mod numbers;
mod otlp;
pub mod program;
pub mod progress;
pub mod services;
pub mod store_args;
pub mod switch_ledger;

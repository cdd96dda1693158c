//! Shared by the commands of the binary.
//!
//! | module | contents |
//! |---|---|
//! | [`services`] | options of every service, its clock, directories, signals and runtime |
//! | [`store_args`] | options that choose a service's store |
//! | [`switch_ledger`] | the ledger of a switch: in its own process, or elsewhere |
//! | [`numbers`] | counts, rates, durations and sizes as people read them |
//! | [`progress`] | progress bars on a terminal |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod numbers;
pub mod progress;
pub mod services;
pub mod store_args;
pub mod switch_ledger;

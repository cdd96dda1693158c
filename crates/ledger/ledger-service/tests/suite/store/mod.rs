//! The durable ledger.

mod conformance;
mod crash;
mod simulation;
mod snapshots;
mod verification;
mod world;

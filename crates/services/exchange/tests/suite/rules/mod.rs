//! The money rules: unit tests, the acceptance scenarios of the workers, and random sequences of commands
//! against a naive model.
#![allow(missing_docs)]

mod aggregation;
mod archive;
mod archive_crash;
mod archive_runs;
mod coins;
mod compare;
mod garbage;
mod generate;
mod kyc;
mod leases;
mod model;
mod nodes;
mod postgres;
mod purses;
mod recoups;
mod refreshes;
mod reserves;
mod two_nodes;
mod world;

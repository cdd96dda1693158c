//! The money rules: each by itself, the acceptance scenarios of the workers, and random command sequences
//! against a naive model.
#![allow(missing_docs)]

mod aggregation;
mod coins;
mod compare;
mod generate;
mod leases;
mod model;
mod nodes;
mod postgres;
mod recoups;
mod refreshes;
mod reserves;
mod two_nodes;
mod world;

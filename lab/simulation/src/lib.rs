//! The whole system in one thread from one seed: exchange, bank, ledger and wallets over simulated disks, a
//! simulated network and simulated clocks. For tests only; see `docs/simulation.md`.
//!
//! Real: the exchange with its API and workers, the merchant backend with its API, the engine's batches, the embedded store, the bank's rules
//! and chart, the ledger's machine, log and recovery, the wallet's core, the protocol's bodies and all
//! cryptography. Simulated: the bank's API ([`bank`]), the ledger's socket ([`ledger`]), the wallet's driver and
//! file ([`customer`]), threads, timers, disks, network and clocks.
//!
//! A seed determines a mix of customers and faults ([`swarm`]). A run simulates hours of time ([`world`]),
//! ends with a power loss, and is checked from the outside ([`check`]). The same seed gives the same events,
//! bit for bit.

mod audit;
pub mod bank;
pub mod check;
pub mod customer;
pub mod drive;
pub mod exchange;
pub mod host;
pub mod keys;
pub mod ledger;
pub mod marks;
pub mod message;
pub mod officer;
pub mod operator;
mod outside;
pub mod privacy;
pub mod random;
mod service;
pub mod shop;
pub mod swarm;
pub mod world;

pub use marks::Marks;
pub use swarm::Bug;
pub use world::{Ending, Report, run};

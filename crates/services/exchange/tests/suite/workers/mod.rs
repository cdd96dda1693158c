//! The background workers against a real bank over HTTP, with injected failures.
#![allow(missing_docs)]

mod acceptance;
mod aggregator;
mod chaos;
mod closer;
mod proxy;
mod service;
mod transfer;
mod wirewatch;
mod world;

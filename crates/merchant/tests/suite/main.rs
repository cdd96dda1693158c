//! The merchant backend over HTTP: every answer of its endpoints.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;
mod instances;
mod orders;
mod refunds;
mod rules;
mod status;
mod stock_rules;
mod wallets;

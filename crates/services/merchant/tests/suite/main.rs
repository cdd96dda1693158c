//! The merchant backend over HTTP: every answer of its endpoints.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod audits;
mod common;
mod exchange;
mod extras;
mod instances;
mod kyc;
mod orders;
mod pay;
mod refunds;
mod rows;
mod rules;
mod status;
mod stock;
mod stock_rules;
mod strangers;
mod tips;
mod transfers;
mod wallets;
mod webui;

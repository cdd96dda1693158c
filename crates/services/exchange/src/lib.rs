//! The e-cash exchange: money rules, key lifecycle, HTTP API and workers.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod api;
pub mod app;
mod calendar;
pub mod config;
pub mod core;
mod crypto;
pub mod dashboard;
pub mod error;
pub mod history;
pub mod keys;
pub mod kyc;
pub mod metrics;
pub mod notices;
pub mod offline;
pub mod play_money;
pub mod reads;
pub mod rules;
pub mod service;
pub mod storage;
pub mod workers;

//! The e-cash exchange: money rules, key lifecycle, HTTP API and workers.
pub mod rules;

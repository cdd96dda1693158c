//! The bank.
pub mod rules;

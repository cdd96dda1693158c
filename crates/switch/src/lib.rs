#![cfg_attr(test, allow(clippy::unwrap_used))]
//! The switch.
pub mod errors;
pub mod fulfilment;
pub mod messages;
pub mod values;

//! The kit of every service: opening its store, and the clients of other services.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod storage;
pub mod wire_gateway;

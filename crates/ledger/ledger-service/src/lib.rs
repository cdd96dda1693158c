//! The ledger as a service: [`store`] keeps the state machine durable, [`net`] puts a ledger behind a socket.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

pub mod net;
pub mod store;

//! The bank's interfaces: wire gateway, bank integration, bank access.

mod access;
mod gateway;
mod integration;

pub use access::*;
pub use gateway::*;
pub use integration::*;

/// The protocol version that the bank interfaces announce.
pub const BANK_PROTOCOL_VERSION: &str = "0:0:0";

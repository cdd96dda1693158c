//! The ledger behind a socket.

mod api;
mod chaos;
mod cluster;
mod common;
mod framing;
mod fuzz_smoke;
mod wire;

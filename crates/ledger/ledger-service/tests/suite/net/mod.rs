//! The ledger behind a socket.

mod api;
mod chaos;
mod cluster;
mod common;
mod framing;
mod wire;

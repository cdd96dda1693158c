//! The ledger behind a socket.

mod api;
mod chaos;
mod cluster;
mod common;
mod deadlines;
mod framing;
mod wire;

//! A ledger behind a socket.
//!
//! | module | content |
//! |---|---|
//! | [`frame`] | the binary protocol's frames: header, checksums, hello, errors (`docs/ledger-protocol.md`) |
//! | [`body`] | records in bodies |
//! | `server` | serves any [`Ledger`](batzen_ledger::Ledger) over TCP and local sockets; requests of many connections share a batch |
//! | [`client`] | [`LedgerClient`], a ledger behind a socket: batches small requests, repeats after broken connections |
//! | [`client::cluster`] | the same for a cluster with a client library of its own |
//! | [`api`] | the HTTP interface: JSON, event stream, OpenAPI (`docs/ledger-api.md`) |
//! | [`json`] | records as JSON |
//! | `tigerbeetle` | a TigerBeetle cluster as a ledger (feature `tigerbeetle`) |
//! | `connect` | connects to the ledger at an address |
//! | `address` | addresses of ledgers on a command line: `tcp://`, `unix://`, `tigerbeetle://`, `embedded` |
//!
//! Nothing here is authenticated or encrypted: listen on a local socket, the loopback interface, or a private
//! network.

pub(crate) mod address;
pub mod api;
pub mod body;
pub mod client;
mod connect;
pub mod dashboard;
pub mod frame;
#[doc(hidden)]
pub mod fuzz_entry;
pub mod json;
pub(crate) mod server;
#[cfg(feature = "tigerbeetle")]
pub mod tigerbeetle;
mod write;

pub use address::LedgerAddress;
pub use client::{ClientOptions, LedgerClient};
pub use connect::{connect, connect_when_ready};
pub use server::{LedgerServer, NetOptions, NetStats};

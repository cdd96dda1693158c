//! A ledger behind a socket.
//!
//! | module | what |
//! |---|---|
//! | [`frame`] | the binary protocol's frames: header, checksums, hello, errors (`docs/ledger-protocol.md`) |
//! | [`body`] | records in bodies |
//! | [`server`] | serves any [`Ledger`](batzen_ledger::Ledger) over TCP and local sockets, many connections' requests in one batch |
//! | [`client`] | [`LedgerClient`](client::LedgerClient), which is a ledger again: batches small requests, repeats after broken connections |
//! | [`address`] | how a ledger is named on a command line: `tcp://`, `unix://`, `tigerbeetle://`, `embedded` |
//!
//! Nothing here is authenticated or encrypted: listen on a local socket, the loopback interface, or a network of one's own.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
pub mod body;
pub mod client;
pub mod frame;
pub mod server;

pub use address::{LedgerAddress, connect};
pub use client::{ClientOptions, LedgerClient};
pub use server::{LedgerServer, NetOptions, NetStats};

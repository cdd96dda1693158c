//! The HTTP server of every service.
//!
//! [`Server`] runs its own accept loop over hyper's HTTP/1.1 connection state machine. It handles everything
//! that is the same for all services: deadlines; limits on headers, bodies, connections and requests in
//! flight; inflation of request bodies within a limit; compression of responses; the CORS headers; JSON error
//! bodies; responses for panics; and a bounded shutdown. A service only supplies a [`Handler`], usually with
//! a [`Routes`] table in front.
//!
//! Nothing here is global, and nothing reads the environment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aside;
mod browsers;
pub mod client;
pub mod codec;
mod codes;
mod conn;
mod crowd;
mod date;
mod drain;
mod html;
mod listen;
mod networks;
mod pace;
pub mod plot;
mod proxies;
mod request;
mod request_log;
mod response;
mod routes;
mod server;
mod service;
mod shares;
mod stats;
mod waiters;

pub use crate::codec::{deflate, inflate};
pub use batzen_protocol::ErrorCode;
pub use browsers::{OwnNames, Reach};
pub use bytes::Bytes;
pub use date::http_date;
pub use drain::Drain;
pub use html::escape_html;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
pub use listen::{Bound, Listen, Listener, Socket, client_host, inherited_fd};
pub use networks::{Networks, is_public};
pub use proxies::TrustedProxies;
pub use request::{Head, Request};
pub use response::Response;
pub use routes::{Routes, Style};
pub use server::{Drained, Server};
pub use service::{Admission, Handler, ServerOptions};
pub use shares::{ClientKey, PeerLimit, PeerShare};
pub use stats::{Stats, StatsSnapshot};
pub use waiters::{Waiter, Waiters, Woken};

//! The HTTP frame of every service, and the client that speaks to them.
//!
//! The server side ([`Server`]) runs its own accept loop over hyper's HTTP/1.1 connection state machine and owns
//! everything that is the same for all services: deadlines that really fire, limits on headers, bodies, connections
//! and requests in flight, inflation of request bodies under a cap, compression of answers, the CORS headers, JSON
//! error answers, panics turned into answers, and a drain that ends within a bound. A service only supplies a
//! [`Handler`], usually with a [`Routes`] table in front.
//!
//! The client side ([`Client`]) keeps status, headers and body of an answer together in a [`Reply`], so that no
//! decoding step ever loses the HTTP status.
//!
//! Nothing here is global, and nothing reads the environment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod client;
mod codes;
mod concurrent;
mod conn;
mod crowd;
mod dashboard;
mod date;
mod direct;
mod drain;
pub mod fuzz_entry;
pub mod gateway;
mod listen;
mod metrics_page;
mod operations;
mod pace;
mod page;
mod proxies;
mod request;
mod response;
mod retry;
mod routes;
mod server;
mod service;
mod shares;
mod stats;
mod waiters;

pub use batzen_protocol::{ErrorBody, ErrorCode, ErrorDetail};
pub use body::{InflateError, deflate, inflate};
pub use bytes::Bytes;
pub use client::{Call, Client, ClientError, ClientOptions, Reply};
pub use dashboard::dashboard;
pub use date::http_date;
pub use drain::Drain;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
pub use listen::{Bound, Listen, Listener, Sharing, Socket, inherited_fd};
pub use metrics_page::MetricsPage;
pub use operations::{OUTCOMES, Operations, Running};
pub use page::StaticPage;
pub use proxies::{InvalidProxy, TrustedProxies};
pub use request::{Head, Peer, Request};
pub use response::Response;
pub use retry::{RetryPolicy, retry};
pub use routes::{Matched, Routes, Style};
pub use server::{Drained, Server};
pub use service::{Admission, Handler, ServerOptions};
pub use stats::{Stats, StatsSnapshot};
pub use waiters::{TooManyWaiters, Waiter, Waiters, Woken};

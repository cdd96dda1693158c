//! The HTTP client of every program.
//!
//! [`Client`] keeps status, headers and body of a response together in a [`Reply`], so that no decoding step
//! loses the HTTP status. [`DirectClient`] posts many idempotent requests to one URL, and needs few
//! connections if the server works on many requests of a connection at once.
//!
//! Nothing here is global, and nothing reads the environment.

mod client;
mod concurrent;
mod direct;
#[cfg(feature = "testing")]
pub mod fuzz_entry;
mod retry;

pub use crate::codec::correlation;
pub use bytes::Bytes;
pub use client::{Call, Client, ClientError, ClientOptions, Reply, basic_auth, url_encoded};
pub use direct::{DirectClient, DirectOptions};
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
pub use retry::Backoff;

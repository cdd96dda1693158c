//! The HTTP client of every program.
//!
//! [`Client`] keeps status, headers and body of a response together in a [`Reply`], so that no decoding step
//! loses the HTTP status.
//!
//! Nothing here is global, and nothing reads the environment.

mod destinations;
mod requests;
mod retry;

pub use crate::codec::correlation;
pub use bytes::Bytes;
pub use destinations::Destinations;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
pub use requests::{Call, Client, ClientError, ClientOptions, Reply, Transport, url_encoded};
pub use retry::Backoff;

//! HTTP/1.1 messages as bytes. All our code that frames messages itself uses this module: the switch's
//! callbacks, the simulated participants and the load generator. Hyper frames all others.
//!
//! | module | contents |
//! |---|---|
//! | `head` | parses a message at the start of a buffer: its head, and where it ends |
//! | `correlation` | ids that connect the logs of several services |
//! | `zlib` | bodies with `Content-Encoding: deflate` |
//!
//! Pure functions of their input: no I/O, no clock. New correlation ids are the exception: they are random.

pub mod correlation;
#[cfg(feature = "testing")]
pub mod fuzz_entry;
mod head;
mod zlib;

pub use head::{FramingError, MessageLimits, Request, Response, frame_request, frame_response};
pub(crate) use zlib::{InflateError, inflate_with};
pub use zlib::{deflate, inflate};

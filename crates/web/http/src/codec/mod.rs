//! HTTP/1.1 messages as bytes. All our code that frames messages itself uses this crate: the server and the
//! client of concurrent requests, the switch's callbacks, the simulated participants and the load generator.
//! Hyper frames all others.
//!
//! | module | contents |
//! |---|---|
//! | `head` | parses a message at the start of a buffer: its head, and where it ends |
//! | `concurrent` | messages of the protocol with many requests under way on one connection |
//! | `correlation` | ids that connect the logs of several services |
//! | `zlib` | bodies with `Content-Encoding: deflate` |
//!
//! Pure functions of their input: no I/O, no clock. New correlation ids are the exception: they are random.

pub mod concurrent;
pub mod correlation;
mod head;
#[cfg(feature = "testing")]
pub mod testing;
mod zlib;

pub use head::{
    EMPTY_FIELD, FIELDS_MAX, Field, Framing, FramingError, MessageLimits, Request, RequestHead, Response,
    ResponseHead, frame_request, frame_response, parse_request_head, parse_response_head,
};
pub use zlib::{InflateError, deflate, inflate, inflate_with};

//! The wire format and signed data: amounts, times, payto URIs, JSON bodies, signature payloads, error codes.
//!
//! Everything here is a pure function of its input: no I/O, no clock, no randomness.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod amount;
pub mod api;
pub mod calendar;
pub mod canonical;
pub mod denominations;
pub mod econtract;
mod enumeration;
mod error_code;
#[doc(hidden)]
pub mod fuzz_entry;
pub mod liabilities;
pub mod limits;
mod openapi;
pub mod payto;
mod refusals;
pub mod signatures;
mod taler_uri;
mod text;
pub mod time;

pub use amount::{Amount, AmountError, Currency, Money, MoneySum};
pub use api::{ParseError, parse_body};
pub use error_code::{ErrorBody, ErrorCode, ErrorDetail};
pub use payto::PaytoUri;
pub use taler_uri::TalerUri;
pub use text::{Base32Data, hash_text};
pub use time::{Duration, Timestamp};

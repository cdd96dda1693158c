//! What goes over the wire and what is signed: amounts, times, payto URIs, JSON bodies, signature payloads, error codes.

pub mod amount;
pub mod error_code;
mod text;
pub mod time;

pub use amount::{Amount, AmountError, Currency, Money};
pub use error_code::{ErrorBody, ErrorCode, ErrorDetail};
pub use time::{Duration, Timestamp};

//! Bodies of requests and answers.
//!
//! Reading ignores unknown members and takes `null` for an absent optional one; writing leaves absent members
//! out. Members are in the order in which an exchange checks them, which is also the order by which errors
//! number them.

pub mod bank;
pub mod exchange;
pub mod offline;
mod parse;

pub use exchange::errors;
pub use parse::{FieldError, ParseError, field_error, parse_body};

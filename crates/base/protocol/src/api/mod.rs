//! Bodies of requests and answers.
//!
//! Reading ignores unknown members and treats `null` as an absent optional member; writing omits absent
//! members. Members are in the order in which an exchange checks them, which is also how errors number them.

pub mod auditor;
pub mod bank;
pub mod exchange;
pub mod merchant;
pub mod offline;
mod parse;

pub use exchange::errors;
pub use parse::{FieldError, ParseError, field_error, parse_body};

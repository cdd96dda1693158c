//! Simulated participants of a switch: payers and payees in one process, for demonstrations, tests and
//! measurements.
//!
//! Each participant has its own address for callbacks and its own connections to the switch, with one request
//! under way on each. Payers send prepares, one by one (`Fsps::send`) or as a load at a rate or in a closed
//! loop ([`Fsps::load`]); payees recompute the fulfilment from the packet and answer according to the
//! [`Behaviour`] of the transfer. A request that is refused for overload or lost with its connection is
//! repeated byte for byte. A payer that hears nothing sends a query after the expiration.
//!
//! Everything runs on a few threads over `epoll`: the simulators share a machine with the switch under test,
//! so their work must be small compared with its work.
//!
//! | module | contents |
//! |---|---|
//! | [`hub`] | the operators: onboarding, funds, windows, settlements |
//! | `ilp` | packet, fulfilment, condition |
//! | `order` | orders to the participants: single transfers, loads, behaviours |
//! | `outcome` | how transfers and loads ended |
//! | `book` | transfers under way |
//! | `text`, `message` | texts, HTTP/1.1 requests and JSON in reused buffers |
//! | `worker`, `outgoing`, `incoming` | a thread: its loop, requests to the switch, callbacks from it |

mod book;
mod fsps;
pub mod hub;
pub(crate) mod ilp;
mod incoming;
mod message;
pub(crate) mod order;
pub(crate) mod outcome;
mod outgoing;
#[cfg(test)]
mod tests;
mod text;
mod worker;

pub use fsps::{Fsps, FspsConfig};
pub(crate) use order::Order;
pub use order::{Behaviour, Load, Mix, Schedule, UnknownBehaviour};
pub use outcome::{Notice, Report, TransferOutcome};
pub use text::TransferId;

/// The largest message to and from a switch.
const MESSAGE_LIMITS: batzen_http::codec::MessageLimits =
    batzen_http::codec::MessageLimits { head_bytes_max: 64 << 10, body_bytes_max: 5 << 20 };

//! The wallet's core: no I/O, no clock, no randomness of its own.
//!
//! A wallet is a `WalletState` with operations. `next` returns the next request of an operation, `receive`
//! turns the answer into [`Change`]s, and [`plan`] begins operations that are due. A driver makes changes
//! durable, applies them, and only then sends the next request. Random bytes come from an [`Entropy`]; the
//! time is an argument.
//!
//! `planchet`, `refresh::Session` and `select` need no state. Load generators and other wallets can use
//! them.

pub(crate) mod age;
pub mod coin;
pub mod discretion;
pub(crate) mod encoding;
mod entropy;
mod error;
pub mod evidence;
pub mod exchange;
pub mod http;
mod id;
pub(crate) mod kyc;
pub mod liabilities;
mod machine;
mod operation;
pub mod payment;
pub(crate) mod planchet;
mod proof;
pub mod purchase;
pub mod purse;
pub(crate) mod recoup;
pub mod refresh;
pub mod refund;
mod row;
pub(crate) mod select;
mod spend;
pub mod state;
pub mod tip;
pub mod url;
pub mod views;
pub mod withdraw;

pub(crate) use entropy::OsEntropy;
pub use entropy::{Entropy, SeededEntropy};
pub use error::CoreError;
pub(crate) use error::bad_input;
pub(crate) use evidence::dispute;
pub use exchange::Exchange;
pub use id::OpId;
pub use machine::{Next, next, plan, receive, record_error};
pub use state::{Change, WalletState};

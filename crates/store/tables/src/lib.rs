//! Rows, keys, shard keys and lookups of every service. They are in a crate of their own so that the auditor
//! and the tools can read them without the services.
//!
//! There is one module per service. Table numbers are stored on disk: they never change and are never reused.
//! The exchange has 1 to 99, the bank 100 to 199, the switch 200 to 299, the ledger 300 to 399, the merchant
//! 400 to 499, the auditor 500 to 599.

pub mod auditor;
pub mod bank;
pub mod exchange;
pub mod ledger;
pub mod merchant;
mod only;
pub mod switch;

pub use only::SingletonKey;

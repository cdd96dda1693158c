//! Rows, keys, shard keys and lookups of every service, so that the auditor and the tools read them without
//! the service.
//!
//! One module a service. Table numbers are stored on disk: they never change and are never reused. The
//! exchange has 1 to 99, the bank 100 to 199, the switch 200 to 299, the ledger 300 to 399.

pub mod bank;
pub mod exchange;
pub mod ledger;
pub mod switch;

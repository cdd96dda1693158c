//! The durable ledger: the state machine of `batzen-ledger` in memory, its log in an embedded store.
//!
//! The log is all that is stored, and everything in memory is what it adds up to: accounts with balances, unresolved pending
//! transfers with their queue, and an index of transfer ids. A batch is executed in memory, its records are appended to the log
//! in one durable commit, and only then is it answered. A batch that cannot be stored is undone.
//!
//! | module | what |
//! |---|---|
//! | [`DurableLedger`] | the ledger as the services use it |
//! | [`Joint`] | what it decides as a part of somebody else's commit |
//! | [`machine`] | the machine with its log, for a lane or a simulation to drive |
//! | [`log`] | which row of the store holds which records |
//! | [`codec`] | how records become bytes |
//! | [`recovery`] | opening and verifying |

pub mod codec;
mod durable;
mod joint;
pub mod log;
pub mod machine;
mod metrics;
pub mod recovery;

pub use durable::{DurableLedger, DurableOptions, Inspection, system_clock};
pub use joint::Joint;
pub use machine::{DurableMachine, Request, Response};
pub use metrics::LedgerMetrics;
pub use recovery::{RecoveryError, VerifyReport, verify, verify_directory};

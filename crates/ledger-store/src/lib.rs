//! The durable ledger: the state machine of `batzen-ledger` in memory, its log in an embedded store.
//!
//! Only the log is stored. The state in memory follows from it: accounts with balances, unresolved pending
//! transfers with their queue, and an index of transfer ids. A batch is executed in memory, its records are
//! appended to the log in one durable commit, and only then is it answered. A batch that cannot be stored is
//! undone.
//!
//! | module | content |
//! |---|---|
//! | [`DurableLedger`] | the ledger as the services use it |
//! | [`Joint`] | its part in a commit of another service to the same store |
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
pub use machine::{
    CreateAccounts, CreateTransfers, DurableMachine, FindCursor, LocateTransfers, LookupAccounts,
    QueryAccounts, Request, Response, TypedRequest,
};
pub use metrics::LedgerMetrics;
pub use recovery::{RecoveryError, VerifyReport, verify, verify_directory};

//! The durable ledger: the state machine of `batzen-ledger` in memory, its log in an embedded store.
//!
//! The log is the truth, and everything else follows from it. Memory has the accounts with balances, the
//! unresolved pending transfers with their queue, and the ids of recent transfers. Snapshots in the same store
//! have the same as of some record, and the ids of all transfers before. A batch is executed in memory, its records are
//! appended to the log in one durable commit, and only then is it answered. A batch that cannot be stored is
//! undone.
//!
//! | module | content |
//! |---|---|
//! | [`DurableLedger`] | the ledger as the services use it |
//! | [`Joint`] | its part in a batch: of its own lane, or of another service with the same store |
//! | [`machine`] | the machine with its log, for a lane or a simulation to drive |
//! | [`log`] | which row of the store holds which records |
//! | [`codec`] | how records become bytes |
//! | `walk` | reads the log from where its index ends |
//! | `recovery` | opening and verifying |
//! | `snapshot` | the state as of a record, and the ids of old transfers |

mod block;
pub mod codec;
mod durable;
mod joint;
pub mod log;
pub mod machine;
mod metrics;
pub(crate) mod recovery;
pub(crate) mod snapshot;
mod walk;

pub use durable::{DurableLedger, DurableOptions, Inspection, system_clock};
pub use joint::Joint;
pub use machine::{
    CreateAccounts, CreateTransfers, DurableMachine, LookupAccounts, QueryAccounts, Request, Response,
    TypedRequest,
};
pub use recovery::{VerifyReport, verify, verify_directory};
pub use snapshot::SnapshotOptions;
pub use walk::RecoveryError;

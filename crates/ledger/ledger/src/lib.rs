//! Two-phase double-entry ledger: records, rules, and the interface to ask a ledger.
//!
//! | module | what |
//! |---|---|
//! | [`record`] | accounts and transfers: 128 bytes each, little endian, as existing clients of this family lay them out |
//! | `status` | the result of each event of a batch, with the numbers on the wire |
//! | `query` | filters of reads, balances, change events |
//! | [`machine`] | the rules: a pure state machine from operations to results and a log of records |
//! | `memory` | [`MemoryLedger`], the machine in memory, for tests of programs that use a ledger |
//! | `conformance` | requirements on every backend, as a test (feature `conformance`) |
//! | `testing` | what tests with ledgers of their own need (feature `conformance`) |
//! | [`Ledger`] | the interface that a bank or a switch uses, with any backend |
//! | [`RetryingLedger`] | the same, with requests that are repeated until they are answered |
//! | [`Outbox`] | carries a service's durable intents to its ledger, and the answers to its books |
//!
//! Amounts count the smallest unit of the account's ledger. All arithmetic is checked. Only `retry` and
//! `outbox` read a clock; nothing here draws random numbers or does I/O.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod interface;
pub mod machine;
mod memory;
mod outbox;
mod query;
pub mod record;
mod retry;
mod status;
#[cfg(any(test, feature = "conformance"))]
pub mod testing;

pub use interface::{Answer, Ledger, LedgerError, in_parts};
pub use memory::MemoryLedger;
pub use outbox::{Booking, Intents, Outbox, OutboxQueue, OutboxTask, Sent};
pub use query::{
    AccountBalance, AccountFilter, ChangeEvent, ChangeFilter, ChangeKind, QueryFilter, SEARCH_MAX, Search,
    Unfinished,
};
pub use record::{Account, AccountFlags, Transfer, TransferFlags};
pub use retry::{RetryingLedger, answered};
pub use status::{CreateAccountStatus, CreateResult, CreateTransferStatus};

/// The most events in one request, and the most records in one answer. A constant of the interface, shared by
/// all ledgers of this family: with 128-byte records this many fit into a message of 1 MiB.
pub const BATCH_EVENTS_MAX: usize = 8189;

/// As an amount: "as much as available" (balancing transfers, posting). As an id: never valid.
pub const AMOUNT_MAX: u128 = u128::MAX;

/// Nanoseconds in a second: timeouts are in seconds, timestamps in nanoseconds since the epoch.
pub const NS_PER_S: u64 = 1_000_000_000;

//! The auditor's tables. `service` has what its HTTP service and its programs keep: the audited exchanges, and what
//! merchants have shown. [`copy`] has its copy of an exchange's rows, which is a store of its own,
//! and [`results`] what its checks gave, in the same store.
//!
//! | table | primary key | other lookups |
//! |---|---|---|
//! | `auditor_state` | a constant | – |
//! | `auditor_exchanges` | master key | – |
//! | `auditor_signing_keys` | master key, signing key, validity | master key |
//! | `auditor_revocations` | master key, signing key | master key |
//! | `auditor_deposit_confirmations` | hash of what identifies one | exchange and serial, in order |
//!
//! The copy's own tables have the numbers 500 to 509 and 540 to 549, the service 510 to 539.

pub mod copy;
pub mod results;
pub(crate) mod service;

pub use service::*;

use batzen_store::{Table, TableDef};

/// Every table of the auditor, for tools and backends that set up schemas.
pub const ALL: &[&TableDef] = &[
    AuditorStates::DEF,
    AuditedExchanges::DEF,
    SigningKeys::DEF,
    SigningKeyRevocations::DEF,
    DepositConfirmations::DEF,
];

/// The tables that stay when an auditor starts over: no check writes them, and merchants show a confirmation only once.
pub const KEPT: &[&TableDef] = &[
    AuditorStates::DEF,
    AuditedExchanges::DEF,
    SigningKeys::DEF,
    SigningKeyRevocations::DEF,
    DepositConfirmations::DEF,
];

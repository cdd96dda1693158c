//! The audit of an exchange: every row is checked again, with rules of its own.
//!
//! The auditor trusts that rows can be read, and nothing that is in them. Signatures are verified again; balances,
//! remaining values and sums are computed again; and what should have been paid by now is looked for. None of the
//! exchange's own rules is used.
//!
//! Every row adds to accounts: of its coin, reserve, purse, transfer and denomination (`books`). Rows may come in any
//! order and on any thread, because sums do not depend on it. A change takes the old row off and adds the new one. When
//! all rows have been posted, each account must be balanced ([`Rule`]). What is not is a [`Finding`].
//!
//! | module | contents |
//! |---|---|
//! | `finding` | findings, and the rules with their meaning and advice |
//! | `terms` | what the master key signed |
//! | `books` | the accounts |
//! | `post` | what each row adds to them, and the signatures that it needs |
//! | `claims` | signatures, verified in batches |
//! | `conclude` | what must hold in the end |
//! | `sheet` | the balance sheet |
//! | `wire` | the bank's records against the exchange's |
//! | `totals` | the sums, as a store keeps them |
//! | `history` | what was seen before against what is there now |
//! | `changes`, `increment` | audits changes |
//! | `parts` | splits changes into parts that threads audit apart |
//! | [`forward`] | the sums of long histories, which increments do not read again |
//! | [`report`] | reports, ours and the protocol's |
//! | `run` | reads all rows, on many threads |

pub(crate) mod books;
mod changes;
mod claims;
mod conclude;
pub(crate) mod finding;
pub mod forward;
pub(crate) mod history;
pub(crate) mod increment;
mod parts;
mod post;
pub mod report;
pub(crate) mod run;
mod scope;
pub(crate) mod sheet;
pub(crate) mod terms;
pub(crate) mod totals;
pub(crate) mod wire;

pub(crate) use changes::net;
pub use changes::{RowChange, Version};
pub use conclude::Confirmation;
pub(crate) use finding::RowName;
pub use finding::{Check, Finding, List, Rule, Severity};
pub use history::History;
pub use increment::{Auditor, Increment};
pub(crate) use run::DenomResult;
pub use run::{AuditError, AuditOutcome, Base, Options, Progress, Verdict, audit, resume};
pub use sheet::{Net, Sheet};
pub use terms::{Subject, Terms, read_terms};
pub use totals::Totals;
pub(crate) use wire::Settled;
pub(crate) use wire::{AccountResult, OpenPairs};
pub use wire::{BankAccount, BankCredit, BankDebit};

//! The scenarios. Each is a module with its arguments and a function from them to a
//! [`Run`](crate::bench::results::result::Run).
//!
//! Modules that scenarios share:
//!
//! | module | contents |
//! |---|---|
//! | [`options`] | options of all scenarios |
//! | `target` | an exchange, or another service, that runs already |
//! | `world` | a bank and an exchange in processes of their own, with keys, accounts and funded reserves; a merchant backend |
//! | `session` | wallets as scripts: withdraw, pay, refresh |
//! | `database` | PostgreSQL under the exchange |
//! | [`ceiling`] | the throughput of the mandatory cryptography alone |
//! | [`limits`] | `batzen-lab bench limits`: what one core of this machine can do |

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::bench::results::result::utc_now;

pub mod aggregator;
pub mod audit;
mod auditor;
pub mod ceiling;
pub(crate) mod database;
pub mod deposit;
mod fill;
pub mod history;
pub mod hostile;
pub mod lanes;
pub mod ledger;
pub mod limits;
mod merchant;
pub mod options;
pub mod p2p;
pub mod partitions;
pub mod pay;
pub mod pgbench;
pub mod scale;
mod service;
pub(crate) mod session;
pub mod startup;
pub mod store;
pub mod switch;
pub(crate) mod target;
pub mod transfer;
pub mod wallets;
pub mod wirewatch;
pub mod withdraw;
mod workers;
pub(crate) mod world;

/// The facts about its program that every scenario needs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The program, which also provides the server under test.
    pub program: PathBuf,
    /// The version of the program.
    pub version: String,
    /// The commit it was built from, or `unknown`.
    pub commit: String,
    /// Becomes true when the user interrupts the run.
    pub interrupted: Arc<AtomicBool>,
    /// The command line, quoted for a shell.
    pub command: String,
    /// Whether standard error is a terminal.
    pub shows_progress: bool,
}

/// The default directory of a run: `bench-results/SCENARIO-TIME`.
#[must_use]
pub(crate) fn default_directory(scenario: &str) -> PathBuf {
    let time = utc_now().replace([':', '-'], "").replace('T', "-").replace('Z', "");
    PathBuf::from("bench-results").join(format!("{scenario}-{time}"))
}

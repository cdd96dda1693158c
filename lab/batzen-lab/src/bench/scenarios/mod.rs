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

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bench::BenchError;
use crate::bench::error::Result;
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
pub(crate) mod workers;
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

impl Context {
    /// Fails if the user interrupts the run.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`].
    pub(crate) fn go_on(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}

/// A directory that is removed in the end, in this one or in the system's for temporary files.
pub(crate) fn temporary(prefix: &str, dir: Option<&Path>) -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    let place = dir.map_or_else(|| builder.tempdir(), |dir| builder.tempdir_in(dir));
    place.map_err(|error| BenchError::set_up("cannot make a directory", error))
}

/// The default directory of a run: `bench-results/SCENARIO-TIME`.
pub(crate) fn default_directory(scenario: &str) -> PathBuf {
    let time = utc_now().replace([':', '-'], "").replace('T', "-").replace('Z', "");
    PathBuf::from("bench-results").join(format!("{scenario}-{time}"))
}

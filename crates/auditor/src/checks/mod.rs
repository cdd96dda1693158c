//! Runs the checks on an exchange's rows: reads the configuration, the rows and the bank's history.

mod bank;
mod config;
mod text;

use std::num::NonZeroUsize;

use batzen_audit::report::Context;
use batzen_audit::{AuditError, BankAccount, Options, Outcome, Progress};
use batzen_protocol::Timestamp;
use batzen_storage::StoreConfig;
use batzen_store::StoreError;

pub use bank::BankError;
pub use config::{Account, CheckConfig};
pub use text::text;

/// What to check.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where the exchange's rows are, or a copy of them.
    pub store: StoreConfig,
    /// Whether balances that the exchange stores are checked, too.
    pub internal: bool,
    /// How many threads verify; `None`: one for each core.
    pub threads: Option<NonZeroUsize>,
    /// The time.
    pub now: Timestamp,
}

/// Why the checks could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The rows cannot be opened.
    #[error("the exchange's rows at {place}: {error}")]
    Open {
        /// Where they are.
        place: StoreConfig,
        /// Why.
        error: StoreError,
    },
    /// The rows cannot be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The bank did not answer.
    #[error(transparent)]
    Bank(#[from] BankError),
}

/// Reads what the bank has about the exchange's accounts. `ignores_missing`: an account that the bank does not know yet
/// has no history.
///
/// # Errors
/// If a bank does not answer, or does not let the auditor read.
pub async fn read_bank(config: &CheckConfig, ignores_missing: bool) -> Result<Vec<BankAccount>, CheckError> {
    Ok(bank::read(config, ignores_missing).await?)
}

/// Checks everything. Blocks.
///
/// # Errors
/// If the rows cannot be opened or read, or `progress` says to stop.
pub fn check(
    config: &CheckConfig,
    request: &Request,
    bank: Vec<BankAccount>,
    progress: &Progress,
) -> Result<(Outcome, Context), CheckError> {
    let started = Timestamp::from_system_time(std::time::SystemTime::now());
    let store = request
        .store
        .open(&batzen_storage::EXCHANGE, 1)
        .map_err(|error| CheckError::Open { place: request.store.clone(), error })?;
    let threads = request.threads.or_else(|| std::thread::available_parallelism().ok());
    let options = Options {
        now: request.now,
        internal: request.internal,
        threads: threads.map_or(1, NonZeroUsize::get),
        bank,
    };
    let outcome = batzen_audit::audit(&store, &config.subject, &options, progress)?;
    store.close().map_err(|error| CheckError::Open { place: request.store.clone(), error })?;
    let ended = Timestamp::from_system_time(std::time::SystemTime::now());
    let context = Context { currency: config.subject.currency, started, ended, internal: request.internal };
    Ok((outcome, context))
}

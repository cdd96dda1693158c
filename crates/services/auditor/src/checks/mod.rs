//! Runs the checks on an exchange's rows: reads the configuration, the rows and the bank's history.

mod bank;
mod config;
mod page;
mod report;
mod text;
mod trend;

use std::num::NonZeroUsize;

use crate::audit::report::Context;
use crate::audit::{AuditError, BankAccount, Confirmation, Options, Progress};
use batzen_crypto::EddsaPublicKey;
use batzen_protocol::Timestamp;
use batzen_service::storage::StoreConfig;
use batzen_store::{Store, StoreError};

use crate::AuditorConfig;
use crate::books::{Books, BooksError};
use crate::confirmation::CONFIRMATIONS_MAX;
use crate::live::{self, Live, Since};

pub use crate::live::{Outside, require_rows};

pub use bank::BankError;
pub use config::{Account, CheckConfig};
pub use report::{Report, Timeline, text_of};

/// The checks to make.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where the exchange's rows are, or a copy of them.
    pub store: StoreConfig,
    /// Whether it is the copy that the auditor made by following the exchange. Then only what changed since is checked.
    pub is_own_copy: bool,
    /// Whether all rows of the own copy are checked again.
    pub whole: bool,
    /// Whether balances that the exchange stores are checked, too.
    pub internal: bool,
    /// Number of threads that verify; `None`: one for each core.
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
    /// The auditor's own rows cannot be read.
    #[error(transparent)]
    Books(#[from] BooksError),
    /// The bank did not answer.
    #[error(transparent)]
    Bank(#[from] BankError),
}

/// Reads what the bank has about the exchange's accounts, after what it had before. `ignores_missing`: an account that
/// the bank does not know yet has no history.
///
/// # Errors
/// If a bank does not answer, or does not let the auditor read.
pub async fn read_bank(
    config: &CheckConfig,
    since: &Since,
    ignores_missing: bool,
) -> Result<Vec<BankAccount>, CheckError> {
    Ok(bank::read(config, since, ignores_missing).await?)
}

/// Reads what merchants have shown after the confirmation with a number (0: all), from the auditor's store or its
/// running service.
///
/// # Errors
/// If neither can be reached.
pub fn read_confirmations(
    config: &AuditorConfig,
    master_pub: EddsaPublicKey,
    mut after: u64,
) -> Result<Vec<Confirmation>, CheckError> {
    let books = Books::open(config)?;
    let mut all = Vec::new();
    loop {
        let page = books.confirmations(master_pub, after, CONFIRMATIONS_MAX)?;
        let Some(last) = page.last() else { break };
        after = last.serial;
        all.extend(page.into_iter().map(Confirmation::from));
    }
    books.close()?;
    Ok(all)
}

/// Checks everything. Blocks. `ask` reads what bank and merchants say, after what they said before.
///
/// # Errors
/// If the rows cannot be opened or read, `progress` says to stop, or `ask` fails.
pub fn check<E: From<CheckError>>(
    config: &CheckConfig,
    request: &Request,
    ask: impl FnOnce(&Since) -> Result<Outside, E>,
    progress: &Progress,
) -> Result<Report, E> {
    let started = Timestamp::from_system_time(std::time::SystemTime::now());
    let service = if request.is_own_copy {
        &batzen_service::storage::AUDITOR_COPY
    } else {
        &batzen_service::storage::EXCHANGE
    };
    let failed = |error| CheckError::Open { place: request.store.clone(), error };
    let store = request.store.open(service, 1).map_err(failed)?;
    let threads = request.threads.or_else(|| std::thread::available_parallelism().ok());
    let mut options = Options {
        now: request.now,
        internal: request.internal,
        in_order: true,
        threads: threads.map_or(1, NonZeroUsize::get),
        bank: Vec::new(),
        confirmations: Vec::new(),
        copied: None,
    };
    let (outcome, timeline) = if request.is_own_copy {
        require_rows(&store).map_err(failed)?;
        let mut live = own_copy(config, request, (&store, options.threads), progress)?;
        let outside = ask(&live.since().map_err(failed)?)?;
        options.copied = Some(live::complete(&store).map_err(failed)?);
        (options.bank, options.confirmations) = (outside.bank, outside.confirmations);
        let outcome = live.compare(&options, outside.asked, progress).map_err(CheckError::Audit)?;
        (outcome, Some(Timeline::read(&store, request.now).map_err(failed)?))
    } else {
        let outside = ask(&Since::default())?;
        (options.bank, options.confirmations) = (outside.bank, outside.confirmations);
        let outcome = crate::audit::audit(&store, &config.subject, &options, progress);
        (outcome.map_err(CheckError::Audit)?, None)
    };
    store.close().map_err(failed)?;
    let ended = Timestamp::from_system_time(std::time::SystemTime::now());
    let context = context(config, (started, ended), request.internal);
    Ok(Report { outcome, context, exchange_url: config.subject.base_url.clone(), timeline })
}

/// The results of the own copy, with all rows checked if they have to be.
fn own_copy(
    config: &CheckConfig,
    request: &Request,
    (store, threads): (&Store, usize),
    progress: &Progress,
) -> Result<Live, CheckError> {
    let subject = &config.subject;
    let known =
        if request.whole { None } else { Live::open(store, subject, threads).map_err(AuditError::Store)? };
    Ok(match known {
        Some(live) => live,
        None => Live::check_all(store, subject, threads, request.now, progress)?,
    })
}

/// The context of a report. `internal`: whether stored balances were checked, too.
#[must_use]
pub fn context(config: &CheckConfig, (started, ended): (Timestamp, Timestamp), internal: bool) -> Context {
    Context { currency: config.subject.currency, started, ended, internal, tiny: config.tiny }
}

//! Examines a live PostgreSQL server, and reports in plain words what is wrong and what to type.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | measurements as plain data: one connection, read-only transactions with a time limit, each probe separate |
//! | [`findings`] | pure rules: facts → findings with severity, measurement, reason, and what to type |
//! | [`tuning`] | pure: machine and facts → the settings that this server should have, as a `postgresql.conf` fragment |
//! | [`report`] | reports of findings and facts as text and JSON |
//! | [`watch`] | the live view |
//! | `words` | readable sizes, time spans and shares |
//!
//! Facts that cannot be read (for lack of a permission or an extension) are reported as a
//! [`Gap`](facts::Gap), never as a failure. The doctor changes nothing: statements that write are executed in
//! transactions that are rolled back.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod facts;
pub mod findings;
pub mod report;
pub mod tuning;
pub mod watch;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use facts::{Facts, Look, LookError};
use findings::{Finding, Limits, Severity};
use tuning::Advice;

/// Options: the server, and facts that the doctor cannot read.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connection string: a URL or `key=value` pairs.
    pub database: String,
    /// Bytes of memory that the server may use. Default: the memory of the machine (or its control group), if
    /// the server is local.
    pub memory: Option<u64>,
    /// Cores that the server may use. Default: as for the memory.
    pub cores: Option<u32>,
    /// A directory on the disk whose syncs are measured. Default: the write-ahead log's, if the server is
    /// local and it is permitted.
    pub fsync_dir: Option<PathBuf>,
    /// Time between the two samples from which rates are computed.
    pub sample: Duration,
    /// The time limit of each probe.
    pub timeout: Duration,
    /// The age above which a session counts as long.
    pub limits: Limits,
}

impl Options {
    /// Options for this database with default limits.
    pub fn new(database: impl Into<String>) -> Self {
        Self {
            database: database.into(),
            memory: None,
            cores: None,
            fsync_dir: None,
            sample: Duration::from_secs(2),
            // Less than the connection's time limit for answers.
            timeout: Duration::from_secs(8),
            limits: Limits::default(),
        }
    }
}

/// The result of an examination.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Examination {
    /// The worst of the findings.
    pub severity: Severity,
    /// The findings, worst first, passed checks last.
    pub findings: Vec<Finding>,
    /// The advised settings.
    pub tuning: Vec<Advice>,
    /// The facts.
    pub facts: Facts,
}

impl Examination {
    /// Applies the rules to facts.
    pub(crate) fn of(facts: Facts, limits: &Limits) -> Self {
        let tuning = tuning::advise(&facts);
        let findings = findings::find(&facts, &tuning, limits);
        let severity = findings.first().map_or(Severity::Ok, |finding| finding.severity);
        Self { severity, findings, tuning, facts }
    }
}

/// Examines a server once.
///
/// # Errors
/// If there is no server, or the login fails.
pub fn examine(options: &Options) -> Result<Examination, LookError> {
    let look = Look::connect(options)?;
    let facts = facts::read(&look, options)?;
    Ok(Examination::of(facts, &options.limits))
}

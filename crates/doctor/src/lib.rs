//! Reads a live PostgreSQL server and says in plain words what is wrong and what to type.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | what was measured, as plain data, and how it is read: one connection, read-only transactions with a time limit, each probe on its own |
//! | [`findings`] | pure rules: facts → findings with severity, measurement, reason, and what to type |
//! | [`tuning`] | pure: machine and facts → the settings that this server should have, as a `postgresql.conf` fragment |
//! | [`report`] | findings and facts for people and for programs |
//! | [`watch`] | the live view |
//! | [`words`] | sizes, spans and shares as people write them |
//!
//! What cannot be read (a missing permission, an extension that is not there) is a stated [`Gap`](facts::Gap), never a failure.
//! Nothing is changed: statements that write are executed in transactions that are rolled back.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod facts;
pub mod findings;
pub mod report;
pub mod tuning;
pub mod watch;
pub mod words;

use std::path::PathBuf;
use std::time::Duration;

use facts::{Facts, Look, LookError};
use findings::{Finding, Limits, Severity};
use tuning::Advice;

/// Where to look, and what the doctor is told because it cannot see it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connection string: a URL or `key=value` pairs.
    pub database: String,
    /// Bytes of memory that the server may use. Default: what the machine (or its control group) has, if the server is local.
    pub memory: Option<u64>,
    /// Cores that the server may use. Default: as for the memory.
    pub cores: Option<u32>,
    /// A directory on the disk whose syncs are measured. Default: the write-ahead log's, if the server is local and it is permitted.
    pub fsync_dir: Option<PathBuf>,
    /// Time between the two samples from which rates are computed.
    pub sample: Duration,
    /// How long any one probe may take in the server.
    pub timeout: Duration,
    /// When a session counts as long.
    pub limits: Limits,
}

impl Options {
    /// Looks at this database with the usual limits.
    pub fn new(database: impl Into<String>) -> Self {
        Self {
            database: database.into(),
            memory: None,
            cores: None,
            fsync_dir: None,
            sample: Duration::from_secs(2),
            // Less than the connection waits for an answer.
            timeout: Duration::from_secs(8),
            limits: Limits::default(),
        }
    }
}

/// Everything that one look at a server gave.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Examination {
    /// The worst of the findings.
    pub severity: Severity,
    /// What the rules found, worst first, passed checks last.
    pub findings: Vec<Finding>,
    /// What this server's settings should be.
    pub tuning: Vec<Advice>,
    /// What was measured.
    pub facts: Facts,
}

impl Examination {
    /// Applies the rules to facts.
    pub fn of(facts: Facts, limits: &Limits) -> Self {
        let tuning = tuning::advise(&facts);
        let findings = findings::find(&facts, &tuning, limits);
        let severity = findings.first().map_or(Severity::Ok, |finding| finding.severity);
        Self { severity, findings, tuning, facts }
    }
}

/// Looks at a server once.
///
/// # Errors
/// When there is no server that lets us in.
pub fn examine(options: &Options) -> Result<Examination, LookError> {
    let look = Look::connect(options)?;
    let facts = facts::read(&look, options)?;
    Ok(Examination::of(facts, &options.limits))
}

//! The connection to the server, and probes.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use batzen_postgres::{Connection, PgError, Target};
use serde::de::DeserializeOwned;

use super::Gap;
use crate::Options;

/// If the doctor is suspended, it must not hold locks that payments wait for: the server ends its session
/// after this time.
const STOPPED_MAX: Duration = Duration::from_secs(10);

/// Why the server could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The connection string is invalid.
    #[error("the database's address cannot be read: {0}")]
    Address(String),
    /// There was no answer, or the login failed.
    #[error("no connection to the database: {0}")]
    Connection(String),
    /// The server is too old, or what answered is not PostgreSQL.
    #[error("{0}")]
    Server(String),
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The server's error, on one line.
    #[error("{0}")]
    Server(String),
    /// The server gave no row.
    #[error("no answer")]
    NoAnswer,
    /// The answer is not of the expected form.
    #[error("malformed answer: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The answer to `EXPLAIN` is not a query plan.
    #[error("the answer is not a query plan")]
    NotAPlan,
}

type Rows = Vec<Vec<Option<String>>>;

/// An error on one line.
fn line(error: &PgError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A connection, and the gaps in what it can read.
pub struct Look {
    connection: RefCell<Connection>,
    is_closed: Cell<bool>,
    timeout: Duration,
    gaps: RefCell<Vec<Gap>>,
}

impl Look {
    /// Connects.
    ///
    /// # Errors
    /// If the address is wrong, there is no answer, or the login fails.
    pub fn connect(options: &Options) -> Result<Self, LookError> {
        let target = Target::parse(&options.database).map_err(|error| LookError::Address(line(&error)))?;
        let connection = Connection::open(&target.application("batzen-doctor"));
        Ok(Self {
            connection: RefCell::new(connection.map_err(|error| LookError::Connection(line(&error)))?),
            is_closed: Cell::new(false),
            timeout: options.timeout,
            gaps: RefCell::default(),
        })
    }

    /// Returns whether the connection is lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Records a gap.
    pub(crate) fn gap(&self, what: &str, why: impl Into<String>, remedy: Option<&str>) {
        let gap = Gap { what: what.to_owned(), why: why.into(), remedy: remedy.map(str::to_owned) };
        let mut gaps = self.gaps.borrow_mut();
        if !gaps.contains(&gap) {
            gaps.push(gap);
        }
    }

    /// The gaps so far.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        self.gaps.borrow().clone()
    }

    fn run(&self, sql: &str) -> Result<Rows, QueryError> {
        self.connection.borrow_mut().query_text(sql).map_err(|error| {
            if error.ends_connection() {
                self.is_closed.set(true);
            }
            QueryError::Server(line(&error))
        })
    }

    /// Runs statements in one transaction with a time limit, rolls it back, and returns the rows of the last
    /// one.
    ///
    /// # Errors
    /// [`QueryError::Server`].
    pub fn undone(&self, statements: &[&str], is_read_only: bool) -> Result<Rows, QueryError> {
        let limit = self.timeout.as_millis();
        let mode = if is_read_only { "READ ONLY" } else { "READ WRITE" };
        self.run(&format!(
            "BEGIN TRANSACTION {mode}; SET LOCAL statement_timeout = {limit}; SET LOCAL lock_timeout = {}; \
            SET LOCAL idle_in_transaction_session_timeout = {}; SET LOCAL jit = off",
            limit.min(1000),
            STOPPED_MAX.as_millis()
        ))?;
        let mut rows = Ok(Vec::new());
        for statement in statements {
            rows = self.run(statement);
            if rows.is_err() {
                break;
            }
        }
        // A lost connection rolls back, too, and is noticed at the next probe.
        let _ = self.run("ROLLBACK");
        rows
    }

    /// The rows of a query, in its own read-only transaction with a time limit. Columns are matched with
    /// fields by name, through JSON; a field whose column is missing in this version has its default.
    ///
    /// # Errors
    /// Why there are no rows.
    pub(crate) fn query<T: DeserializeOwned>(&self, query: &str) -> Result<Vec<T>, QueryError> {
        let wrapped = format!("SELECT coalesce(json_agg(q), '[]'::json)::text FROM ({query}) q");
        let rows = self.undone(&[&wrapped], true)?;
        let text = rows.first().and_then(|row| row.first()?.as_deref()).ok_or(QueryError::NoAnswer)?;
        Ok(serde_json::from_str(text)?)
    }

    /// As [`Look::query`]; what cannot be read is a gap.
    pub(crate) fn probe<T: DeserializeOwned>(&self, what: &str, query: &str) -> Vec<T> {
        match self.query(query) {
            Ok(rows) => rows,
            Err(error) => {
                let why = error.to_string();
                let remedy = why.contains("permission denied").then_some(GRANT);
                self.gap(what, why, remedy);
                Vec::new()
            }
        }
    }

    /// As [`Look::probe`], for queries that give one row.
    pub(crate) fn probe_one<T: DeserializeOwned>(&self, what: &str, query: &str) -> Option<T> {
        self.probe(what, query).into_iter().next()
    }
}

/// The command that lets a role see the activity of others, without permitting changes.
pub(crate) const GRANT: &str = "GRANT pg_monitor TO your_role;   -- as a superuser";

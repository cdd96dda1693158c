//! The connection to the server, and probes.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use batzen_postgres::{Connection, PgError, Target};
use serde::de::DeserializeOwned;

use super::Gap;
use crate::Options;

/// A doctor that is stopped in the middle must not hold rows that payments wait for: the server ends its session then.
const STOPPED_MAX: Duration = Duration::from_secs(10);

/// Why nothing could be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The connection string makes no sense.
    #[error("the database's address cannot be read: {0}")]
    Address(String),
    /// Nobody answered, or we were not let in.
    #[error("no connection to the database: {0}")]
    Connection(String),
    /// The server is too old, or what answered is not PostgreSQL.
    #[error("{0}")]
    Server(String),
}

/// An error on one line.
fn line(error: &PgError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One connection, and what could not be seen through it.
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
    /// When the address is wrong, nobody answers, or we are not let in.
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

    /// Whether the connection is lost.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Notes something that is not known.
    pub fn gap(&self, what: &str, why: impl Into<String>, remedy: Option<&str>) {
        let gap = Gap { what: what.to_owned(), why: why.into(), remedy: remedy.map(str::to_owned) };
        let mut gaps = self.gaps.borrow_mut();
        if !gaps.contains(&gap) {
            gaps.push(gap);
        }
    }

    /// What is not known so far.
    pub fn gaps(&self) -> Vec<Gap> {
        self.gaps.borrow().clone()
    }

    fn run(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        self.connection.borrow_mut().query_text(sql).map_err(|error| {
            if error.ends_connection() {
                self.is_closed.set(true);
            }
            line(&error)
        })
    }

    /// Runs statements in one transaction with a time limit, of which nothing stays whatever they do, and gives the rows of the
    /// last one.
    ///
    /// # Errors
    /// One line with the server's words.
    pub fn undone(
        &self,
        statements: &[&str],
        is_read_only: bool,
    ) -> Result<Vec<Vec<Option<String>>>, String> {
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
        // A lost connection has undone it, too, and shows at the next probe.
        let _ = self.run("ROLLBACK");
        rows
    }

    /// The rows of a query, in a read-only transaction of its own with a time limit. Columns are matched with fields by name,
    /// through JSON: a version that lacks a column gives a field its default.
    ///
    /// # Errors
    /// One line with the server's words.
    pub fn query<T: DeserializeOwned>(&self, query: &str) -> Result<Vec<T>, String> {
        let wrapped = format!("SELECT coalesce(json_agg(q), '[]'::json)::text FROM ({query}) q");
        let rows = self.undone(&[&wrapped], true)?;
        let text = rows.first().and_then(|row| row.first()?.as_deref()).ok_or("no answer")?;
        serde_json::from_str(text).map_err(|error| format!("an answer that makes no sense: {error}"))
    }

    /// As [`Look::query`]; what cannot be read is a gap.
    pub fn probe<T: DeserializeOwned>(&self, what: &str, query: &str) -> Vec<T> {
        match self.query(query) {
            Ok(rows) => rows,
            Err(why) => {
                let remedy = why.contains("permission denied").then_some(GRANT);
                self.gap(what, why, remedy);
                Vec::new()
            }
        }
    }

    /// As [`Look::probe`], for queries that give one row.
    pub fn probe_one<T: DeserializeOwned>(&self, what: &str, query: &str) -> Option<T> {
        self.probe(what, query).into_iter().next()
    }
}

/// What lets a role see what others do, without letting it change anything.
pub const GRANT: &str = "GRANT pg_monitor TO your_role;   -- as a superuser";

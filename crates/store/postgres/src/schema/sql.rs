//! A session for work on schemas: it accepts statements and returns text.

use super::error::SchemaError;
use crate::Connection;

/// A session with a server.
pub trait Sql {
    /// Runs statements, separated by semicolons, as one transaction unless they say otherwise.
    ///
    /// # Errors
    /// The server's error.
    fn script(&mut self, sql: &str) -> Result<(), SchemaError>;

    /// The rows that a statement returns, each value as text.
    ///
    /// # Errors
    /// The server's error.
    fn rows(&mut self, sql: &str) -> Result<Vec<Row>, SchemaError>;

    /// The only row that a statement returns, if there is one.
    ///
    /// # Errors
    /// The server's error.
    fn row(&mut self, sql: &str) -> Result<Option<Row>, SchemaError> {
        Ok(self.rows(sql)?.into_iter().next())
    }
}

/// A row, each value as PostgreSQL writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row(pub Vec<Option<String>>);

impl Row {
    /// A text; empty if it is absent.
    #[must_use]
    pub fn text(&self, at: usize) -> &str {
        self.optional(at).unwrap_or_default()
    }

    /// A text that may be absent.
    #[must_use]
    pub fn optional(&self, at: usize) -> Option<&str> {
        self.0.get(at).and_then(Option::as_deref)
    }

    /// A number; 0 if it is absent.
    #[must_use]
    pub fn number(&self, at: usize) -> i64 {
        self.text(at).parse().unwrap_or(0)
    }

    /// Returns whether it is true.
    #[must_use]
    pub fn is_true(&self, at: usize) -> bool {
        self.text(at) == "t"
    }
}

impl Sql for Connection {
    fn script(&mut self, sql: &str) -> Result<(), SchemaError> {
        Ok(Self::script(self, sql)?)
    }

    fn rows(&mut self, sql: &str) -> Result<Vec<Row>, SchemaError> {
        Ok(self.query_text(sql)?.into_iter().map(Row).collect())
    }
}

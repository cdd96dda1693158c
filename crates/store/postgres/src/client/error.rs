//! Errors between this process and the server.

use std::io;

/// An error that the server reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL` (the connection ends) or `PANIC`.
    pub(crate) severity: String,
    /// The five characters of the SQLSTATE.
    pub(crate) code: String,
    pub(crate) message: String,
    /// Its detail, often empty. Always empty for errors about values (22, 23), since it would show the row.
    pub(crate) detail: String,
    /// The function of the server that reported it, which has the same name in all languages.
    pub(crate) routine: String,
}

/// Why an operation on a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// The server reported an error. The connection can be used unless the severity says otherwise.
    #[error("{}: {} ({}){}{}", .0.severity, .0.message, .0.code, if .0.detail.is_empty() { "" } else { ": " }, .0.detail)]
    Server(Box<ServerError>),
    /// The connection was lost or could not be opened. It is unknown whether the current transaction took
    /// effect.
    #[error("{what}: {source}")]
    Io {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server sent something unexpected.
    #[error("unexpected answer of the server: {0}")]
    Protocol(String),
    /// The address or its settings are wrong.
    #[error("{0}")]
    Config(String),
}

impl PgError {
    pub(crate) fn io(what: &str, source: io::Error) -> Self {
        Self::Io { what: what.to_owned(), source }
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }

    /// The SQLSTATE, if the server gave one.
    #[must_use]
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Server(error) => Some(&error.code),
            _ => None,
        }
    }

    /// Returns whether the connection can no longer be used.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        match self {
            Self::Server(error) => error.severity != "ERROR",
            Self::Io { .. } | Self::Protocol(_) => true,
            Self::Config(_) => false,
        }
    }

    /// Returns whether the server is temporarily unavailable (lost, starting, stopping, a standby, out of
    /// connections), so that another attempt may succeed.
    #[must_use]
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::Io { .. } => true,
            // 08: connection exceptions; 53300: too many connections; 57P01 to 57P05: shut down, crashed,
            // starting, dropped or idle; 25006: a standby, or a primary that is about to step down.
            Self::Server(error) => {
                error.code.starts_with("08")
                    || error.code.starts_with("57P0")
                    || ["53300", "25006"].contains(&error.code.as_str())
                    || is_node_away(error)
            }
            Self::Protocol(_) | Self::Config(_) => false,
        }
    }

    /// Returns whether the schema has changed meanwhile, so that another attempt may succeed: an outdated
    /// plan or an unknown prepared statement, or a row for the default partition of a queue when its day got
    /// its own partition (23514; there are no other check constraints).
    pub(crate) fn is_schema_change(&self) -> bool {
        self.is_outdated_plan() || self.code() == Some("23514")
    }

    /// Returns whether a prepared statement's columns have changed (0A000, which also says that Citus cannot
    /// plan a statement), or it does not exist (26000).
    pub(crate) fn is_outdated_plan(&self) -> bool {
        match self {
            Self::Server(error) if error.code == "0A000" => error.routine == "RevalidateCachedQuery",
            _ => self.code() == Some("26000"),
        }
    }

    /// Returns whether the transaction conflicted with another one and may be run again: 40001, 40P01, or a
    /// lock timeout.
    #[must_use]
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self.code(), Some("40001" | "40P01" | "55P03"))
    }
}

/// Returns whether an error of a Citus coordinator says that it lost a node, or that a node is down. Most of these have
/// the code of internal errors.
fn is_node_away(error: &ServerError) -> bool {
    const SAID: [&str; 4] = [
        "failure on connection marked as essential",
        "connection to the remote node",
        "could not establish any connections to the node",
        "failed to execute task",
    ];
    error.code == "XX000" && SAID.iter().any(|said| error.message.contains(said))
}

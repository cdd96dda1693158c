//! What can go wrong between this process and the server.

use std::io;

use batzen_store::StoreError;

/// An error that the server reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL` (the connection ends) or `PANIC`.
    pub severity: String,
    /// The five characters of the SQLSTATE.
    pub code: String,
    /// What it says.
    pub message: String,
    /// More of it, often empty. Never of errors about values (22, 23): it would show the row.
    pub detail: String,
}

/// Why a connection failed to do something.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// The server refused; the connection goes on unless the severity says otherwise.
    #[error("{}: {} ({}){}{}", .0.severity, .0.message, .0.code, if .0.detail.is_empty() { "" } else { ": " }, .0.detail)]
    Server(Box<ServerError>),
    /// The connection was lost or could not be made. What was under way may have taken effect or not.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server said something that this program does not understand.
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
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Server(error) => Some(&error.code),
            _ => None,
        }
    }

    /// Whether the connection is of no use any more.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        match self {
            Self::Server(error) => error.severity != "ERROR",
            Self::Io { .. } | Self::Protocol(_) => true,
            Self::Config(_) => false,
        }
    }

    /// Whether the server is away for now (lost, starting, stopping, a standby, out of connections): worth another attempt.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self {
            Self::Io { .. } => true,
            // 08: connection exceptions; 53300: too many connections; 57P01 to 57P05: shut down, crashed, starting, dropped or idle;
            // 25006: a standby, or a primary about to step down.
            Self::Server(error) => {
                error.code.starts_with("08")
                    || error.code.starts_with("57P0")
                    || ["53300", "25006"].contains(&error.code.as_str())
            }
            Self::Protocol(_) | Self::Config(_) => false,
        }
    }

    /// Whether the tables' form has changed on the way, so that the same will do another time: a plan that is out of date
    /// (0A000), a statement that the session does not know (26000), a row that was on its way to a queue's part for the rest
    /// when its day got a part of its own (23514; there are no other constraints of that kind).
    pub(crate) fn met_new_schema(&self) -> bool {
        matches!(self.code(), Some("0A000" | "26000" | "23514"))
    }

    /// Whether the transaction met another one and may be run again: 40001, 40P01, and a lock that was not had in time.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.code(), Some("40001" | "40P01" | "55P03"))
    }
}

impl From<PgError> for StoreError {
    fn from(error: PgError) -> Self {
        match &error {
            // Disk full; out of memory heals by itself too.
            PgError::Server(server) if ["53100", "53200"].contains(&server.code.as_str()) => {
                Self::Full(error.to_string())
            }
            _ if error.is_away() => Self::Unavailable(error.to_string()),
            _ => Self::Backend(error.to_string()),
        }
    }
}

//! Errors about a database's schema, with the command that helps.

use batzen_store::StoreError;

use crate::PgError;

/// Why a schema cannot be used or changed.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The server refused a statement, or cannot be reached.
    #[error("PostgreSQL: {0}")]
    Server(#[from] PgError),
    /// The server is older than the statements require.
    #[error("PostgreSQL {found} is too old: 15 or newer is needed")]
    OldServer {
        /// The server's version, as the server reports it.
        found: String,
    },
    /// The schema has not been created yet.
    #[error("the database holds no {schema}: create it with `batzen {schema} dbinit`")]
    Missing {
        /// The service's schema.
        schema: String,
    },
    /// A newer program has migrated the database.
    #[error(
        "the schema {schema} is of version {found}, and this program knows versions up to {known}: use the program that \
         migrated it, or a newer one"
    )]
    Newer {
        /// The service's schema.
        schema: String,
        /// The version in the database.
        found: i32,
        /// The program's version.
        known: i32,
    },
    /// The database has not been migrated since the program was replaced.
    #[error(
        "the schema {schema} is of version {found}, and this program needs {known}: stop all services and type `batzen \
         {schema} dbinit`"
    )]
    Older {
        /// The service's schema.
        schema: String,
        /// The version in the database.
        found: i32,
        /// The program's version.
        known: i32,
    },
    /// The tables differ from the program's, although the version is the same.
    #[error("the schema {schema} differs from what this program expects: {}. {hint}", .differences.join("; "))]
    Differs {
        /// The service's schema.
        schema: String,
        /// One line each.
        differences: Vec<String>,
        /// The remedy.
        hint: String,
    },
    /// The rows come from another cluster, which has other transaction ids.
    #[error(
        "the schema {schema} was restored from another cluster: type `batzen {schema} dbinit` before anything runs on it"
    )]
    Moved {
        /// The service's schema.
        schema: String,
    },
    /// Services are running on the schema.
    #[error("the schema {schema} is in use: stop these first: {}", .sessions.join(", "))]
    InUse {
        /// The service's schema.
        schema: String,
        /// The sessions, in words.
        sessions: Vec<String>,
    },
    /// The request cannot be met.
    #[error("{0}")]
    Refused(String),
}

impl From<SchemaError> for StoreError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Server(error) => error.into(),
            other => Self::Backend(other.to_string()),
        }
    }
}

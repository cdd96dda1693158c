//! Errors of the client as errors of a store.

use batzen_store::StoreError;

use crate::PgError;

impl From<PgError> for StoreError {
    fn from(error: PgError) -> Self {
        match &error {
            // The disk is full or memory is exhausted. Both may resolve themselves.
            PgError::Server(server) if ["53100", "53200"].contains(&server.code.as_str()) => {
                Self::Full(error.to_string())
            }
            _ if error.is_away() => Self::Unavailable(error.to_string()),
            _ => Self::Backend(error.to_string()),
        }
    }
}

//! Opens an exchange's store: for the service, its worker programs and its tools. Any number of them may
//! share a database.

use batzen_store::{Store, StoreError};

pub use batzen_service::storage::StoreConfig;

/// Opens the store of an exchange, for `lanes` lanes that commit at the same time.
///
/// # Errors
/// [`StoreError::InUse`] if another process has an embedded store open; otherwise the reason why the database
/// cannot be used, with the command that fixes it.
pub fn open(config: &StoreConfig, lanes: usize) -> Result<Store, StoreError> {
    config.open(&batzen_service::storage::EXCHANGE, lanes)
}

/// Opens the store of an exchange for a command that only reads.
///
/// # Errors
/// As [`open`].
pub fn open_to_read(config: &StoreConfig) -> Result<Store, StoreError> {
    config.open_to_read(&batzen_service::storage::EXCHANGE)
}

//! Where an exchange keeps its rows: for the service, its worker programs and its tools. Any number of them may share a
//! database.

use batzen_store::{Store, StoreError};

pub use batzen_storage::StoreConfig;

/// Opens the store of an exchange, for so many lanes that commit at the same time.
///
/// # Errors
/// [`StoreError::InUse`] if another process has an embedded store open; whatever keeps the database from being used, with what
/// to type.
pub fn open(config: &StoreConfig, lanes: usize) -> Result<Store, StoreError> {
    config.open(&batzen_storage::EXCHANGE, lanes)
}

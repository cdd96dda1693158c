//! Reads of committed rows outside of any batch.

use batzen_engine::run_blocking;
use batzen_store::{Store, StoreError};

/// Reads rows. Reads of a database block, so they run on threads that may block.
///
/// # Errors
/// When the store cannot be read.
pub async fn read<T: Send + 'static>(
    store: &Store,
    read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if store.backend().is_remote() { read_aside(store, read).await } else { read(store) }
}

/// Reads so many rows that even the rows of an embedded store are read on a thread that may block.
///
/// # Errors
/// When the store cannot be read.
pub async fn read_aside<T: Send + 'static>(
    store: &Store,
    read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let store = store.clone();
    run_blocking(move || read(&store)).await.expect("reading does not outlive the runtime")
}

//! The end of a service, after its drain has fired.

use std::sync::Arc;
use std::time::Duration;

use batzen_engine::{Lane, Rules};
use batzen_http::Drained;
use batzen_store::{Store, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::App;

/// Time that commands of disconnected clients may take at the end.
pub const LAST_COMMITS: Duration = Duration::from_secs(5);

/// Waits until HTTP servers have ended.
pub async fn ended(serving: impl IntoIterator<Item = JoinHandle<Drained>>) {
    for server in serving {
        if let Err(error) = server.await {
            tracing::error!(%error, "HTTP server ended abnormally");
        }
    }
}

/// Waits until the HTTP servers have ended and no page is being written, then until the commands of disconnected clients
/// have ended, for at most [`LAST_COMMITS`].
///
/// Returns the state of the service, unless some command still holds it.
pub async fn end<A: App>(app: Arc<A>, serving: impl IntoIterator<Item = JoinHandle<Drained>>) -> Option<A> {
    ended(serving).await;
    app.monitor().idle().await;
    let deadline = Instant::now() + LAST_COMMITS;
    while Arc::strong_count(&app) > 1 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Arc::into_inner(app)
}

/// Makes everything accepted durable and closes the store. A lane that some command still holds is left as it is.
///
/// # Errors
/// When the store's last checkpoint cannot be written. Everything answered is durable regardless.
pub async fn close<R: Rules>(lane: Option<Lane<R>>, store: Store) -> Result<(), StoreError> {
    let close = move || {
        if let Some(lane) = lane {
            lane.close();
        }
        store.close()
    };
    tokio::task::spawn_blocking(close).await.expect("closing the store does not panic")
}

//! Connects to the ledger at an address.

use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::{Ledger, LedgerError};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::net::address::{AddressError, LedgerAddress};
use crate::net::client::{ClientOptions, LedgerClient};

/// Time that [`connect_when_ready`] tries.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Its pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Connects to a ledger. Must be called within a tokio runtime, which then drives the connection.
///
/// # Errors
/// [`LedgerError::Refused`] for a malformed address, a ledger of another version, an embedded ledger (which
/// the caller opens itself), or a backend that was not built in. [`LedgerError::Busy`] if no server can be
/// reached.
pub fn connect(url: &str) -> BoxFuture<'_, Result<Arc<dyn Ledger>, LedgerError>> {
    Box::pin(connect_url(url))
}

/// Connects to a ledger elsewhere that may be starting, too: tries for half a minute.
///
/// # Errors
/// As [`connect`].
pub async fn connect_when_ready(address: &LedgerAddress) -> Result<Arc<dyn Ledger>, LedgerError> {
    let url = address.to_string();
    let deadline = Instant::now() + WAIT_MAX;
    let mut is_reported = false;
    loop {
        match connect(&url).await {
            Ok(ledger) => return Ok(ledger),
            Err(error @ LedgerError::Refused(_)) => return Err(error),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(error) if !is_reported => {
                tracing::warn!(%error, "cannot reach the ledger at {url} yet");
                is_reported = true;
            }
            Err(error) => tracing::debug!(%error, "cannot reach the ledger at {url} yet"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn connect_url(url: &str) -> Result<Arc<dyn Ledger>, LedgerError> {
    let address: LedgerAddress =
        url.parse().map_err(|error: AddressError| LedgerError::Refused(error.to_string()))?;
    match address {
        LedgerAddress::Embedded => {
            Err(LedgerError::Refused("an embedded ledger is opened, not connected to".to_owned()))
        }
        LedgerAddress::Tcp(_) | LedgerAddress::Unix(_) => {
            let client = LedgerClient::connect(address, ClientOptions::default()).await?;
            Ok(Arc::new(client))
        }
        LedgerAddress::TigerBeetle { cluster, addresses } => connect_tigerbeetle(cluster, &addresses).await,
    }
}

#[cfg(feature = "tigerbeetle")]
async fn connect_tigerbeetle(cluster: u128, addresses: &str) -> Result<Arc<dyn Ledger>, LedgerError> {
    use crate::net::tigerbeetle;
    let client = tigerbeetle::connect(tigerbeetle::TigerBeetle::new(cluster, addresses)).await?;
    Ok(client)
}

#[cfg(not(feature = "tigerbeetle"))]
#[allow(clippy::unused_async, reason = "with the feature it waits")]
async fn connect_tigerbeetle(cluster: u128, addresses: &str) -> Result<Arc<dyn Ledger>, LedgerError> {
    let _ = (cluster, addresses);
    Err(LedgerError::Refused(
        "TigerBeetle support was not built in: build with --features tigerbeetle".to_owned(),
    ))
}

//! Addresses of ledgers: `embedded`, `tcp://host:port`, `unix:///path`,
//! `tigerbeetle://[cluster@]address,address`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::{Ledger, LedgerError};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::net::client::{ClientOptions, LedgerClient};

/// How long [`connect_when_ready`] tries.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Its pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Address of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerAddress {
    /// In the caller's own process.
    Embedded,
    /// A ledger server: `host:port`.
    Tcp(String),
    /// A ledger server on this machine.
    Unix(PathBuf),
    /// A TigerBeetle cluster.
    TigerBeetle {
        /// The cluster's id.
        cluster: u128,
        /// The replicas' addresses, separated by commas.
        addresses: String,
    },
}

/// Text that is not an address of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an address of a ledger: expected embedded, tcp://host:port, unix:///path or tigerbeetle://address,address"
)]
pub struct AddressError(String);

impl FromStr for LedgerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError(text.to_owned());
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        match text.split_once("://").ok_or_else(error)? {
            ("tcp", rest) => {
                let rest = rest.trim_end_matches('/');
                let (host, port) = rest.rsplit_once(':').ok_or_else(error)?;
                port.parse::<u16>().ok().filter(|_| !host.is_empty()).ok_or_else(error)?;
                Ok(Self::Tcp(rest.to_owned()))
            }
            ("unix", path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            ("tigerbeetle", rest) => {
                let rest = rest.trim_end_matches('/');
                let (cluster, addresses) = match rest.split_once('@') {
                    Some((cluster, addresses)) => (cluster.parse().map_err(|_| error())?, addresses),
                    None => (0, rest),
                };
                if addresses.is_empty() || addresses.split(',').any(str::is_empty) {
                    return Err(error());
                }
                Ok(Self::TigerBeetle { cluster, addresses: addresses.to_owned() })
            }
            _ => Err(error()),
        }
    }
}

impl fmt::Display for LedgerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::TigerBeetle { cluster: 0, addresses } => write!(f, "tigerbeetle://{addresses}"),
            Self::TigerBeetle { cluster, addresses } => write!(f, "tigerbeetle://{cluster}@{addresses}"),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in [
            "embedded",
            "tcp://127.0.0.1:3001",
            "tcp://[::1]:3001",
            "tcp://ledger.example:1",
            "unix:///run/ledger.sock",
            "tigerbeetle://3000",
            "tigerbeetle://10.0.0.1:3000,10.0.0.2:3000",
            "tigerbeetle://7@3000,3001,3002",
        ] {
            assert_eq!(text.parse::<LedgerAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "3000",
            "http://x:1",
            "tcp://",
            "tcp://x",
            "tcp://:1",
            "tcp://x:99999",
            "unix://",
            "tigerbeetle://",
            "tigerbeetle://a,,b",
            "tigerbeetle://x@3000",
        ] {
            assert!(text.parse::<LedgerAddress>().is_err(), "{text}");
        }
    }
}

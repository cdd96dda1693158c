//! Addresses of ledgers: `embedded`, `tcp://host:port`, `unix:///path`,
//! `tigerbeetle://[cluster@]address,address`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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

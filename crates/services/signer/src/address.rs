//! Addresses of signers: `tcp://host:port` or `unix:///path`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use batzen_http::Listen;

/// Permissions of a signer's local socket. Its directory and the keys control access.
const SOCKET_MODE: u32 = 0o660;

/// Address of a signer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// A local socket.
    Unix(PathBuf),
}

/// Text that is not an address of a signer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of a signer: expected tcp://host:port or unix:///path")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError(text.to_owned());
        match text.split_once("://").ok_or_else(error)? {
            ("tcp", rest) => {
                let (host, port) = rest.trim_end_matches('/').rsplit_once(':').ok_or_else(error)?;
                port.parse::<u16>().ok().filter(|_| !host.is_empty()).ok_or_else(error)?;
                Ok(Self::Tcp(format!("{host}:{port}")))
            }
            ("unix", path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Address {
    /// The listener for this address.
    pub fn listen(&self) -> Listen {
        match self {
            Self::Tcp(address) => {
                let (host, port) = address.rsplit_once(':').expect("addresses have a port");
                Listen::tcp(Some(host.to_owned()), port.parse().expect("ports are numbers"))
            }
            Self::Unix(path) => Listen::Unix { path: path.clone(), mode: SOCKET_MODE },
        }
    }
}

/// Parses a list of addresses, separated by commas or spaces.
///
/// # Errors
/// The first text that is not an address.
pub fn parse_list(text: &str) -> Result<Vec<Address>, AddressError> {
    let parts = text.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty());
    parts.map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let list = parse_list("tcp://a.example:7000, tcp://[::1]:7001/ unix:///run/s.sock").unwrap();
        let text: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["tcp://a.example:7000", "tcp://[::1]:7001", "unix:///run/s.sock"]);
        for wrong in ["http://a:1", "tcp://a", "tcp://:1", "tcp://a:port", "unix://x", "a:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}

//! The way from clients to a service, as a configuration describes it.

use std::fmt;
use std::path::PathBuf;

use batzen_config::{Config, ConfigError, Expected};
use batzen_http::{Listen, OwnNames, TrustedProxies};

/// The permissions of a local socket: for the proxy's group.
pub const SOCKET_MODE: u32 = 0o660;

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenConfig {
    /// TCP; port 0 picks a free one.
    Tcp {
        /// The address or host name. `None`: all addresses.
        host: Option<String>,
        /// The port.
        port: u16,
    },
    /// A local socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

impl ListenConfig {
    /// The same for a server, and whether several processes may share its port.
    #[must_use]
    pub fn listen(&self, share_port: bool) -> Listen {
        match self {
            Self::Tcp { host, port } => Listen::Tcp { host: host.clone(), port: *port, share_port },
            Self::Unix { path, mode } => Listen::Unix { path: path.clone(), mode: *mode },
        }
    }

    /// Replaces the address and the port of TCP, as far as they are given.
    pub fn choose(&mut self, bind: Option<String>, port: Option<u16>) {
        if let Self::Tcp { host, port: configured } = self {
            *configured = port.unwrap_or(*configured);
            *host = bind.or_else(|| host.take());
        }
    }
}

impl fmt::Display for ListenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { port, .. } => write!(f, "port {port}"),
            Self::Unix { path, .. } => path.display().fmt(f),
        }
    }
}

/// Reads `UNIXPATH_MODE` of a section: the permissions of its local socket.
///
/// # Errors
/// If they are not three octal digits, with their place.
pub fn socket_mode(config: &Config, section: &str) -> Result<u32, ConfigError> {
    let read = |text: &str| {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| Expected::new("permissions as three octal digits"))
    };
    Ok(config.get_with(section, "UNIXPATH_MODE", read)?.unwrap_or(SOCKET_MODE))
}

/// Reads `TRUSTED_PROXIES` and `HOSTNAMES` of a section.
///
/// # Errors
/// The option that is invalid, with its place.
pub fn front(config: &Config, section: &str) -> Result<(TrustedProxies, OwnNames), ConfigError> {
    let proxies = |text: &str| text.parse().map_err(|_| Expected::new(TrustedProxies::EXPECTED));
    let names = |text: &str| text.parse().map_err(|_| Expected::new(OwnNames::EXPECTED));
    Ok((
        config.get_with(section, "TRUSTED_PROXIES", proxies)?.unwrap_or_default(),
        config.get_with(section, "HOSTNAMES", names)?.unwrap_or_default(),
    ))
}

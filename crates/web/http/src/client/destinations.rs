//! The addresses that a client connects to: all, or those that somebody outside may name.

use crate::networks::{Networks, is_public};
use http::Uri;
use hyper_util::client::legacy::connect::dns::Name;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{io, vec};
use tower_service::Service;

/// The addresses that a client connects to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destinations {
    /// All addresses: the URLs come from the configuration.
    #[default]
    All,
    /// Addresses on the public Internet and in these networks: others name the URLs, and must not reach what is inside.
    Public(Networks),
}

/// An address that the client must not connect to. The innermost cause of such a connection's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its address is not on the public Internet")]
pub(super) struct NotPublic;

impl Destinations {
    fn permits(&self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::Public(networks) => is_public(address) || networks.contains(address),
        }
    }

    /// Checks a host that is an address, since no resolver sees it. Names are checked when they are resolved.
    pub(super) fn check(&self, uri: &Uri) -> Result<(), NotPublic> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        match host.parse::<IpAddr>() {
            Ok(address) if !self.permits(address) => Err(NotPublic),
            _ => Ok(()),
        }
    }
}

/// Resolves names to the addresses that are permitted, for each connection: a name that had a public address when it
/// was looked at may have another one now.
#[derive(Clone)]
pub(super) struct Resolver(pub(super) Destinations);

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let destinations = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let is_known = !found.is_empty();
            let permitted: Vec<_> =
                found.into_iter().filter(|found| destinations.permits(found.ip())).collect();
            if permitted.is_empty() && is_known {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, NotPublic));
            }
            Ok(permitted.into_iter())
        })
    }
}

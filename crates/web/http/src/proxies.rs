//! The proxies that are trusted to name the client of a request.

use crate::networks::{Network, Networks, items};
use crate::request::Peer;
use http::{HeaderMap, HeaderName};
use std::{fmt, net::IpAddr, str::FromStr};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The proxies in front of a server whose `X-Forwarded-For` is trusted: addresses (`192.0.2.1`), networks
/// (`10.0.0.0/8`, `2001:db8::/32`) and `unix` (clients on the local socket), separated by blanks or commas.
///
/// ```
/// let proxies: batzen_http::TrustedProxies = "127.0.0.1, 10.0.0.0/8, unix".parse().unwrap();
/// assert_eq!(proxies.to_string(), "127.0.0.1/32 10.0.0.0/8 unix");
/// assert!("10.0.0.0/33".parse::<batzen_http::TrustedProxies>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Networks,
    local: bool,
}

/// The text is not a list of proxies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address, nor a network such as 10.0.0.0/8, nor unix")]
pub struct InvalidProxy(String);

impl FromStr for TrustedProxies {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, InvalidProxy> {
        let is_unix = |item: &&str| item.eq_ignore_ascii_case("unix");
        let network = |item: &str| item.parse::<Network>().map_err(|_| InvalidProxy(item.to_owned()));
        Ok(Self {
            networks: items(text).filter(|item| !is_unix(item)).map(network).collect::<Result<_, _>>()?,
            local: items(text).any(|item| is_unix(&item)),
        })
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blank = if self.local && !self.networks.is_empty() { " " } else { "" };
        write!(f, "{}{blank}{}", self.networks, if self.local { "unix" } else { "" })
    }
}

impl TrustedProxies {
    /// The expected format, for messages about options.
    pub const EXPECTED: &str = "addresses, networks such as 10.0.0.0/8, or unix, separated by blanks";

    /// Returns whether the peer of a connection is a trusted proxy.
    pub(crate) fn trusts(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.networks.contains(address.ip()),
            Peer::Unix => self.local,
        }
    }

    /// The client of a request that a trusted proxy forwards: the last address in `X-Forwarded-For` that does
    /// not belong to a trusted proxy. An untrusted peer wrote the addresses before it. `None` if there is no
    /// such address; text that is not an address ends the search.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        for value in headers.get_all(FORWARDED_FOR).iter().rev() {
            for item in value.to_str().ok()?.rsplit(',') {
                let item = item.trim();
                let address: IpAddr = item.trim_matches(['[', ']']).parse().ok()?;
                if !self.networks.contains(address) {
                    return Some(address);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn proxies(text: &str) -> TrustedProxies {
        text.parse().unwrap()
    }

    fn peer(text: &str) -> Peer {
        Peer::Tcp((text.parse::<IpAddr>().unwrap(), 1).into())
    }

    #[test]
    fn networks_contain_their_addresses() {
        let trusted = proxies("10.1.0.0/16 192.0.2.7,2001:db8::/32");
        for (address, want) in [
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("::ffff:10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.6", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
        ] {
            assert_eq!(trusted.trusts(&peer(address)), want, "{address}");
        }
        assert!(!trusted.trusts(&Peer::Unix) && proxies("unix").trusts(&Peer::Unix));
        assert!(proxies("0.0.0.0/0 ::/0").trusts(&peer("198.51.100.1")));
        assert!(proxies("::/0").trusts(&peer("2001:db8::1")) && !proxies("::/0").trusts(&peer("10.0.0.1")));
        for text in ["nonsense", "10.0.0.0/x", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0/8"] {
            assert!(text.parse::<TrustedProxies>().is_err(), "{text}");
        }
        assert_eq!(proxies(" "), TrustedProxies::default());
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_trusted() {
        let trusted = proxies("10.0.0.0/8");
        for (fields, want) in [
            (&["203.0.113.9"][..], Some("203.0.113.9")),
            (&["198.51.100.1, 203.0.113.9"], Some("203.0.113.9")),
            (&["198.51.100.1, 203.0.113.9, 10.0.0.2"], Some("203.0.113.9")),
            (&["198.51.100.1", "203.0.113.9,10.0.0.2"], Some("203.0.113.9")),
            (&["[2001:db8::1]"], Some("2001:db8::1")),
            (&["203.0.113.9, unknown"], None),
            (&["10.0.0.3"], None),
            (&[""], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(FORWARDED_FOR, HeaderValue::from_static(field));
            }
            assert_eq!(trusted.client(&headers), want.map(|text| text.parse().unwrap()), "{fields:?}");
        }
    }
}

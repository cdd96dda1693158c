//! The proxies that are trusted to name the client of a request.

use crate::request::Peer;
use http::{HeaderMap, HeaderName};
use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

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
    networks: Arc<[Network]>,
    local: bool,
}

/// The text is not a list of proxies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address, nor a network such as 10.0.0.0/8, nor unix")]
pub struct InvalidProxy(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let same = |ours: u128, theirs: u128, width: u8| {
            let shift = u32::from(width - self.prefix_bits);
            ours.checked_shr(shift).unwrap_or(0) == theirs.checked_shr(shift).unwrap_or(0)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same(u128::from(ours.to_bits()), u128::from(theirs.to_bits()), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, InvalidProxy> {
        let invalid = || InvalidProxy(text.to_owned());
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match bits {
            None => width,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= width).ok_or_else(invalid)?,
        };
        Ok(Self { address, prefix_bits })
    }
}

impl FromStr for TrustedProxies {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, InvalidProxy> {
        let mut networks = Vec::new();
        let mut local = false;
        for item in text.split(|c: char| c == ',' || c.is_whitespace()).filter(|item| !item.is_empty()) {
            if item.eq_ignore_ascii_case("unix") {
                local = true;
            } else {
                networks.push(item.parse()?);
            }
        }
        Ok(Self { networks: networks.into(), local })
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blank = "";
        for Network { address, prefix_bits } in &*self.networks {
            write!(f, "{blank}{address}/{prefix_bits}")?;
            blank = " ";
        }
        if self.local { write!(f, "{blank}unix") } else { Ok(()) }
    }
}

impl TrustedProxies {
    /// The expected format, for messages about options.
    pub const EXPECTED: &str = "addresses, networks such as 10.0.0.0/8, or unix, separated by blanks";

    fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// Returns whether the peer of a connection is a trusted proxy.
    pub(crate) fn trusts(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.contains(address.ip()),
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
                if !self.contains(address) {
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

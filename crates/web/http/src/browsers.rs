//! Limits on the requests of pages in browsers.
//!
//! A browser sends requests of any page to every address that its user can reach: a service on the loopback interface,
//! on a private network, or behind a proxy that lets the user in. Such a request comes with the authority of its place,
//! and its page did not have to know a secret. So every endpoint has a [`Reach`], and a request without a credential for an
//! endpoint that is not for everybody must come from a program or from the service's own pages.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderName, Method, header};

use crate::codes::FrameError;
use crate::request::{Head, Peer};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The pages in browsers that may use an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Pages of every site read its answers: wallets need it. What it answers is public, or the request proves a right to
    /// it by a signature or a secret of its own.
    Everyone,
    /// No page of another site reads its answers, but any may lead its user here. Requests have no effect, or prove their
    /// right by a signature or a secret of their own.
    Page,
    /// Only programs and the service's own pages use it.
    #[default]
    Own,
}

/// The names under which a service is reached, without ports. Addresses, `localhost`, names below it and names without a
/// dot are always among them: no page of a stranger has such an origin.
///
/// ```
/// let names: batzen_http::OwnNames = "shop.example, www.shop.example".parse().unwrap();
/// assert!(names.contains("shop.example:8080") && names.contains("[::1]:80") && names.contains("localhost"));
/// assert!(!names.contains("attacker.example"));
/// assert!("https://shop.example".parse::<batzen_http::OwnNames>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNames(Arc<[String]>);

/// The text is not a list of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name such as shop.example")]
pub struct InvalidName(String);

impl FromStr for OwnNames {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let names = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
        let name = |name: &str| {
            let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
            if is_name { Ok(name.to_ascii_lowercase()) } else { Err(InvalidName(name.to_owned())) }
        };
        Ok(Self(names.map(name).collect::<Result<_, _>>()?))
    }
}

impl OwnNames {
    /// The expected format, for messages about options.
    pub const EXPECTED: &str = "names such as shop.example, without ports, separated by blanks";

    /// The same with the name in a base URL, or with the name itself.
    #[must_use]
    pub fn and(&self, url: &str) -> Self {
        let authority = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or("");
        Self(self.0.iter().cloned().chain([name_of(authority)]).collect())
    }

    /// Returns whether a `Host` header names this service.
    #[must_use]
    pub fn contains(&self, host: &str) -> bool {
        let name = name_of(host);
        name.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || name.ends_with(".localhost")
            || self.is_configured(&name)
    }

    fn is_configured(&self, name: &str) -> bool {
        self.0.iter().any(|own| own == name)
    }
}

/// The name in `Host` or in the authority of a URL: without port, brackets and final dot, in lower case.
fn name_of(authority: &str) -> String {
    let name = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns whether a request may have been led here by a name that is not the service's: a page whose name its owner has
/// pointed to this address counts as the service's own page. Browsers connect neither to local sockets nor as a proxy on
/// another machine.
pub(crate) fn is_misdirected(head: &Head, names: &OwnNames, is_proxy: bool) -> bool {
    let is_browser = match head.peer {
        Peer::Unix => false,
        Peer::Tcp(address) => !is_proxy || address.ip().to_canonical().is_loopback(),
    };
    is_browser && head.header(header::HOST).is_some_and(|host| !names.contains(host))
}

/// Refuses requests that a page of another site may have sent with the authority of its place. A bearer token is no such
/// authority: only a page that knows it can send it, and only after a preflight request.
pub(crate) fn check(head: &Head, has_body: bool, names: &OwnNames) -> Result<(), (FrameError, String)> {
    if head.bearer_token().is_some() {
        return Ok(());
    }
    if is_cross_site(head, names) {
        let detail = "pages of other sites may not use this endpoint in a browser".to_owned();
        return Err((FrameError::CrossSite, detail));
    }
    // Pages cannot add the header to a simple request. Browsers add passwords that their user has given to this service.
    if head.headers.contains_key(header::AUTHORIZATION) {
        return Ok(());
    }
    if has_body && head.method != Method::GET && !is_json(head.header(header::CONTENT_TYPE)) {
        let detail =
            "without an Authorization header the body needs Content-Type: application/json".to_owned();
        return Err((FrameError::MediaTypeUnsupported, detail));
    }
    if head.is_misdirected { Err((FrameError::Misdirected, misdirection(head))) } else { Ok(()) }
}

/// The detail of an answer to a misdirected request.
pub(crate) fn misdirection(head: &Head) -> String {
    let host = name_of(head.header(header::HOST).unwrap_or_default());
    format!("this service does not know the name {host}: if it is its own, configure HOSTNAMES = {host}")
}

/// Returns whether a type is JSON: no form and no page can send it without a preflight request.
fn is_json(content_type: Option<&str>) -> bool {
    let kind =
        content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn is_cross_site(head: &Head, names: &OwnNames) -> bool {
    let origin = head.header(header::ORIGIN);
    // The user has installed it.
    if origin.is_some_and(|origin| origin.contains("-extension://")) {
        return false;
    }
    match head.header(SEC_FETCH_SITE) {
        Some("same-origin" | "none") => false,
        // Following a link shows the page to its user alone.
        Some(_) => head.method != Method::GET || head.header(SEC_FETCH_MODE) != Some("navigate"),
        None => origin.is_some_and(|origin| !is_own_origin(origin, head, names)),
    }
}

fn is_own_origin(origin: &str, head: &Head, names: &OwnNames) -> bool {
    let Some((_, authority)) = origin.split_once("://") else { return false };
    let hosts = [header::HOST, FORWARDED_HOST].map(|name| head.header(name));
    hosts.iter().flatten().any(|host| host.eq_ignore_ascii_case(authority))
        || names.is_configured(&name_of(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: Method, fields: &[(&str, &str)]) -> Head {
        let mut head = Head::local(method, "/");
        head.peer = Peer::Tcp(([127, 0, 0, 1], 1).into());
        for (name, value) in fields {
            head.headers.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        head
    }

    fn verdict(method: Method, fields: &[(&str, &str)]) -> Option<FrameError> {
        let names = "shop.example".parse().unwrap();
        let mut head = head(method, fields);
        head.is_misdirected = is_misdirected(&head, &names, false);
        check(&head, true, &names).err().map(|(error, _)| error)
    }

    #[test]
    fn programs_and_own_pages_are_served_and_others_are_not() {
        let (json, form) = (("content-type", "application/json"), ("content-type", "text/plain"));
        let (local, own) = (("host", "127.0.0.1:3002"), ("host", "shop.example"));
        let (token, basic) = (("authorization", "Bearer x"), ("authorization", "Basic eDp4"));
        let cross = ("sec-fetch-site", "cross-site");
        for (fields, want) in [
            (&[local, json][..], None),
            (&[local, ("content-type", "application/vnd.x+json; version=1.0")], None),
            (&[local, form], Some(FrameError::MediaTypeUnsupported)),
            (&[local], Some(FrameError::MediaTypeUnsupported)),
            (&[local, form, token], None),
            (&[local, form, basic], None),
            (&[local, form, basic, cross], Some(FrameError::CrossSite)),
            (&[local, json, cross], Some(FrameError::CrossSite)),
            (&[local, json, ("sec-fetch-site", "same-site")], Some(FrameError::CrossSite)),
            (&[local, json, ("sec-fetch-site", "same-origin"), ("origin", "https://shop.example")], None),
            (&[local, json, ("origin", "http://127.0.0.1:3002")], None),
            (&[local, json, ("origin", "http://127.0.0.1:3003")], Some(FrameError::CrossSite)),
            (&[local, json, ("origin", "https://shop.example")], None),
            (&[local, json, ("origin", "null")], Some(FrameError::CrossSite)),
            (&[local, json, ("origin", "moz-extension://8f1"), cross], None),
            (&[own, json, ("origin", "https://shop.example")], None),
            (&[("host", "attacker.example:3002"), json], Some(FrameError::Misdirected)),
            (&[("host", "localhost.attacker.example"), json], Some(FrameError::Misdirected)),
            (&[("host", "attacker.example:3002"), json, token], None),
        ] {
            assert_eq!(verdict(Method::POST, fields), want, "{fields:?}");
        }
        let link = [local, cross, ("sec-fetch-mode", "navigate")];
        assert_eq!(verdict(Method::GET, &link), None);
        assert_eq!(verdict(Method::POST, &[link[0], json, link[1], link[2]]), Some(FrameError::CrossSite));
        assert_eq!(
            verdict(Method::GET, &[local, cross, ("sec-fetch-mode", "no-cors")]),
            Some(FrameError::CrossSite)
        );
    }

    #[test]
    fn a_browser_comes_neither_by_a_local_socket_nor_as_a_distant_proxy() {
        let names = OwnNames::default().and("https://bank.example/town/");
        let mut head = head(Method::GET, &[("host", "attacker.example")]);
        assert!(is_misdirected(&head, &names, false) && is_misdirected(&head, &names, true));
        head.peer = Peer::Tcp(([10, 0, 0, 1], 1).into());
        assert!(is_misdirected(&head, &names, false) && !is_misdirected(&head, &names, true));
        head.peer = Peer::Unix;
        assert!(!is_misdirected(&head, &names, false));
        for host in
            ["bank.example", "BANK.example.:8082", "x.localhost", "10.0.0.7:80", "[fe80::1]:80", "bank"]
        {
            assert!(names.contains(host), "{host}");
        }
        assert!(!names.contains("bank.example.org") && !names.contains("127.0.0.1.nip.example"));
    }
}

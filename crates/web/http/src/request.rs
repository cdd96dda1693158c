//! The request that a handler receives: the decoded head and the inflated body.

use crate::{
    browsers::misdirection,
    codes::FrameError,
    crowd::{Polls, Waiting},
    drain::{Drain, Early},
    response::Response,
    routes::Pattern,
    shares::Hold,
};
use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine as _, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};

use smallvec::SmallVec;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::Deref,
    str::FromStr,
    sync::Arc,
};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client on a local socket.
    Unix,
}

impl Peer {
    /// Its address; `None` on a local socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip().to_canonical()),
            Self::Unix => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("local socket"),
        }
    }
}

/// A request without its body.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method. `HEAD` appears as `GET`: handlers answer both in the same way, and the server omits the
    /// body.
    pub method: Method,
    /// Whether the request was `HEAD`.
    pub is_head: bool,
    /// The path without the query, still percent-encoded.
    pub path: String,
    segments: Segments,
    /// The query, still percent-encoded.
    pub raw_query: Option<String>,
    /// The pairs of the query, decoded (`+` is a space), in order.
    pub query: Vec<(String, String)>,
    /// The header fields.
    pub headers: HeaderMap,
    /// The other end of the connection.
    pub peer: Peer,
    /// Whether `Host` is a name that is not the service's. Only for endpoints of [`Reach::Own`](crate::Reach::Own).
    pub(crate) is_misdirected: bool,
    /// The client's address: the peer's, or the one that a trusted proxy names
    /// ([`crate::ServerOptions::trusted_proxies`]). None on a local socket.
    pub client: Option<IpAddr>,
}

impl Head {
    pub(crate) fn new(
        method: Method,
        uri: &http::Uri,
        headers: HeaderMap,
        peer: Peer,
        client: Option<IpAddr>,
    ) -> Self {
        let is_head = method == Method::HEAD;
        let path = uri.path().to_owned();
        Self {
            method: if is_head { Method::GET } else { method },
            is_head,
            segments: Segments::of(&path),
            raw_query: uri.query().map(str::to_owned),
            query: pairs(uri.query().unwrap_or("")),
            path,
            headers,
            peer,
            is_misdirected: false,
            client,
        }
    }

    /// A head without a connection, for tests and for calls within a process. `target` is path and query.
    #[must_use]
    pub fn local(method: Method, target: &str) -> Self {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let is_head = method == Method::HEAD;
        Self {
            method: if is_head { Method::GET } else { method },
            is_head,
            segments: Segments::of(path),
            raw_query: query.map(str::to_owned),
            query: pairs(query.unwrap_or("")),
            path: path.to_owned(),
            headers: HeaderMap::new(),
            peer: Peer::Unix,
            is_misdirected: false,
            client: None,
        }
    }

    /// A segment of the path, percent-decoded, or `""` beyond the last one. Repeated and trailing slashes do not
    /// count, but a path that starts with two slashes has an empty first segment.
    #[must_use]
    pub fn segment(&self, index: usize) -> &str {
        self.segments.get(&self.path, index).unwrap_or("")
    }

    /// Number of segments that the path has.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments.places.len()
    }

    /// The segments of the path, see [`Head::segment`].
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.segment_count()).map(|index| self.segment(index))
    }

    /// The bytes of the raw path after its first segment and the slash that ends it.
    pub(crate) fn path_remainder(&self) -> &str {
        self.path.strip_prefix('/').unwrap_or(&self.path).split_once('/').map_or("", |(_, rest)| rest)
    }

    /// The text of a header field, if it is visible ASCII.
    #[must_use]
    pub fn header(&self, name: impl AsHeader) -> Option<&str> {
        name.get(&self.headers)
    }

    /// Returns whether the client has the version with this entity tag, by `If-None-Match` (RFC 9110, section 13.1.2):
    /// compared weakly, also in lists, `*` for any, and without quotes, as wallets of 2022 write it.
    #[must_use]
    pub fn has_version(&self, etag: &str) -> bool {
        fn bare(tag: &str) -> &str {
            let tag = tag.trim();
            tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
        }
        let is_known = |tag: &str| tag.trim() == "*" || bare(tag).eq_ignore_ascii_case(bare(etag));
        self.header(crate::header::IF_NONE_MATCH).is_some_and(|known| known.split(',').any(is_known))
    }

    /// The first value of a query parameter, if it is given.
    #[must_use]
    pub fn query_text(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// An optional query parameter.
    ///
    /// # Errors
    /// The response to send if it does not parse: 400, code 26, with the parameter's name as detail.
    pub fn query_opt<T: FromStr>(&self, name: &str) -> Result<Option<T>, Response> {
        self.query_text(name)
            .map(|text| text.parse().map_err(|_| Response::frame_error(FrameError::ParameterMalformed, name)))
            .transpose()
    }

    /// A required query parameter.
    ///
    /// # Errors
    /// The response to send if it is missing (400, code 25) or does not parse (400, code 26).
    pub fn query_required<T: FromStr>(&self, name: &str) -> Result<T, Response> {
        self.query_opt(name)?.ok_or_else(|| Response::frame_error(FrameError::ParameterMissing, name))
    }

    /// A query parameter parsed by `read`, which returns `None` for a malformed value.
    ///
    /// # Errors
    /// 400, code 26, with the parameter's name as detail.
    pub fn query_with<T>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Response> {
        self.query_text(name)
            .map(|text| read(text).ok_or_else(|| Response::frame_error(FrameError::ParameterMalformed, name)))
            .transpose()
    }

    /// Returns whether the client accepts responses compressed with deflate: `Accept-Encoding` is exactly `*`
    /// or has the token `deflate` (not with `q=0`).
    pub(crate) fn accepts_deflate(&self) -> bool {
        let values = self.headers.get_all(http::header::ACCEPT_ENCODING);
        values.iter().filter_map(|value| value.to_str().ok()).any(|value| {
            value.trim() == "*"
                || value.split(',').any(|item| {
                    let mut parts = item.split(';');
                    let token = parts.next().unwrap_or("").trim();
                    let refused = parts.any(|parameter| {
                        parameter
                            .trim()
                            .strip_prefix("q=")
                            .and_then(|q| q.trim().parse::<f32>().ok())
                            .is_some_and(|q| q <= 0.0)
                    });
                    token.eq_ignore_ascii_case("deflate") && !refused
                })
        })
    }

    /// User name and password of HTTP basic authentication (RFC 7617), if well-formed.
    #[must_use]
    pub fn basic_auth(&self) -> Option<(String, String)> {
        let (scheme, rest) = self.headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let text = String::from_utf8(BASE64.decode(rest.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        Some((user.to_owned(), password.to_owned()))
    }

    /// Requires that the request names this service. A service calls it before it lets somebody act who shows no
    /// credential, or one that it does not check: the page of a stranger whose name leads here can send any header.
    ///
    /// # Errors
    /// The response to send: 421, code 44, with the name.
    pub fn require_own_name(&self) -> Result<(), Response> {
        if !self.is_misdirected {
            return Ok(());
        }
        Err(Response::frame_error(FrameError::Misdirected, &misdirection(self)))
    }

    /// The token of `Authorization: Bearer …`, if there is one.
    #[must_use]
    pub fn bearer_token(&self) -> Option<&str> {
        let (scheme, rest) = self.headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    }
}

/// The name of a header field: text or a [`HeaderName`].
pub trait AsHeader {
    /// Its value in `headers`.
    fn get(self, headers: &HeaderMap) -> Option<&str>;
}

impl AsHeader for &str {
    fn get(self, headers: &HeaderMap) -> Option<&str> {
        headers.get(self)?.to_str().ok()
    }
}

impl AsHeader for HeaderName {
    fn get(self, headers: &HeaderMap) -> Option<&str> {
        headers.get(self)?.to_str().ok()
    }
}

/// A request for a handler. Dereferences to its [`Head`].
#[derive(Debug)]
pub struct Request {
    /// The request without its body.
    pub head: Head,
    /// The body, already inflated.
    pub body: Bytes,
    /// Fires when the service shuts down, or when this request must stop waiting because too many are
    /// waiting. The handler then answers with the current state.
    pub drain: Drain,
    /// The pattern of its endpoint.
    pub(crate) pattern: Option<Arc<Pattern>>,
    pub(crate) slot: Option<Hold>,
    pub(crate) _body_hold: Option<Hold>,
    pub(crate) place: Option<PollContext>,
}

/// The state that a request needs in order to wait after it has left its slot.
#[derive(Debug)]
pub(crate) struct PollContext {
    pub(crate) polls: Arc<Polls>,
    pub(crate) early: Arc<Early>,
    pub(crate) waiting: Option<Waiting>,
}

impl Deref for Request {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Request {
    /// A request without a connection, for tests and for calls within a process.
    #[must_use]
    pub fn local(method: Method, target: &str, body: impl Into<Bytes>) -> Self {
        Self {
            head: Head::local(method, target),
            body: body.into(),
            drain: Drain::new(),
            pattern: None,
            slot: None,
            _body_hold: None,
            place: None,
        }
    }

    /// Leaves the slot of a request in flight. A long poll calls this before it waits, so that thousands of
    /// waiting clients do not block the others. `drain` fires at once if too many requests are waiting
    /// already (or the client has used up its share), and later if connections run out. The handler then
    /// answers with the current state.
    pub fn leave_slot(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let client = Arc::clone(slot.client());
        drop(slot);
        if let Some(place) = &mut self.place {
            place.waiting = place.polls.join(&client, &place.early);
        }
    }

    /// A parameter of the path, percent-decoded, or `""` if the endpoint has none with this name.
    #[must_use]
    pub fn param(&self, name: &str) -> &str {
        let place = self.pattern.as_ref().and_then(|pattern| pattern.segment_of(name));
        place.map_or("", |place| self.head.segment(place))
    }

    /// Returns whether it still has its slot.
    pub fn has_slot(&self) -> bool {
        self.slot.is_some()
    }
}

/// Where the segments of a path are. Most paths have no escapes, so their segments are parts of the path itself.
#[derive(Clone, Debug)]
struct Segments {
    /// The decoded segments, one after the other, if the path has escapes.
    decoded: Option<String>,
    /// Begin and end of each, in `decoded` or else in the path.
    places: SmallVec<[(usize, usize); SEGMENTS]>,
}

/// Most paths have at most this many segments.
const SEGMENTS: usize = 4;

impl Segments {
    /// Splits a path at its slashes, as [`Head::segment`] describes.
    fn of(path: &str) -> Self {
        let mut decoded = path.contains('%').then(String::new);
        let mut places = SmallVec::new();
        if path.starts_with("//") {
            places.push((0, 0));
        }
        let mut begin = 0;
        for segment in path.split('/') {
            let end = begin + segment.len();
            if !segment.is_empty() {
                places.push(match &mut decoded {
                    None => (begin, end),
                    Some(text) => {
                        let begin = text.len();
                        text.push_str(&decode(segment, false));
                        (begin, text.len())
                    }
                });
            }
            begin = end + 1;
        }
        Self { decoded, places }
    }

    /// A segment of `path`, of which this was made.
    fn get<'a>(&'a self, path: &'a str, index: usize) -> Option<&'a str> {
        let (begin, end) = *self.places.get(index)?;
        self.decoded.as_deref().unwrap_or(path).get(begin..end)
    }
}

/// The pairs of a query string. A name without `=` has an empty value.
fn pairs(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, true), decode(value, true))
        })
        .collect()
}

/// Decodes `%XX`. A malformed escape is kept. Bytes that are not UTF-8 become replacement characters, which
/// none of our parsers accepts.
fn decode(text: &str, plus_is_blank: bool) -> String {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|&b| b == b'%' || (plus_is_blank && b == b'+')) {
        return text.to_owned();
    }
    let hex = |b: Option<&u8>| b.and_then(|&b| char::from(b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        match (byte, hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits are one byte"));
                at += 3;
                continue;
            }
            (b'+', ..) if plus_is_blank => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Standard base64 with or without padding, since clients send both.
const BASE64: GeneralPurpose = {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&alphabet::STANDARD, config)
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_as_the_protocol_requires() {
        let cases: &[(&str, &[&str])] = &[
            ("/", &[]),
            ("", &[]),
            ("//", &[""]),
            ("/keys", &["keys"]),
            ("/keys/", &["keys"]),
            ("//keys", &["", "keys"]),
            ("/coins//AB//deposit//", &["coins", "AB", "deposit"]),
            ("/a%20b/%2F/%zz/100%", &["a b", "/", "%zz", "100%"]),
            ("/a+b", &["a+b"]),
            ("/%ff", &["\u{fffd}"]),
        ];
        for (path, want) in cases {
            let head = Head::local(Method::GET, path);
            assert_eq!(head.segments().collect::<Vec<_>>(), *want, "{path}");
            assert_eq!((head.segment_count(), head.segment(want.len())), (want.len(), ""), "{path}");
        }
        assert_eq!(Head::local(Method::GET, "/coins/AB//deposit").path_remainder(), "AB//deposit");
        assert_eq!(Head::local(Method::GET, "/keys").path_remainder(), "");
    }

    #[test]
    fn queries_are_decoded_and_errors_name_the_parameter() {
        let head = Head::local(Method::GET, "/x?delta=-5&start=&a+b=c%3D%26d&flag&delta=7");
        assert_eq!(head.query_required::<i64>("delta").unwrap(), -5);
        assert_eq!(head.query_text("a b"), Some("c=&d"));
        assert_eq!(head.query_text("flag"), Some(""));
        assert_eq!(head.query_opt::<u64>("none").unwrap(), None);
        let error = head.query_opt::<u64>("start").unwrap_err();
        assert_eq!((error.status, error.json_value()["code"].as_u64()), (400, Some(26)));
        assert_eq!(error.json_value()["detail"], "start");
        let error = head.query_required::<u64>("none").unwrap_err();
        assert_eq!((error.status, error.json_value()["code"].as_u64()), (400, Some(25)));
        assert_eq!(head.query_with("delta", |t| (t == "7").then_some(())).unwrap_err().status, 400);
    }

    #[test]
    fn authorization_and_encoding_headers() {
        let mut head = Head::local(Method::GET, "/");
        let set = |name: HeaderName, value: &str, head: &mut Head| {
            head.headers.insert(name, value.parse().unwrap());
        };
        assert_eq!(head.basic_auth(), None);
        set(http::header::AUTHORIZATION, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", &mut head);
        assert_eq!(head.basic_auth(), Some(("Aladdin".into(), "open sesame".into())));
        set(http::header::AUTHORIZATION, "Basic !!", &mut head);
        assert_eq!(head.basic_auth(), None);
        set(http::header::AUTHORIZATION, "bearer secret-token:x", &mut head);
        assert_eq!(head.bearer_token(), Some("secret-token:x"));
        for (value, want) in [
            ("*", true),
            ("gzip, deflate", true),
            ("deflate;q=0.5", true),
            ("deflate;q=0", false),
            ("gzip", false),
            ("gzip, *", false),
            ("deflated", false),
        ] {
            set(http::header::ACCEPT_ENCODING, value, &mut head);
            assert_eq!(head.accepts_deflate(), want, "{value}");
        }
    }
}

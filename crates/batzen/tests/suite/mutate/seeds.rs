//! Valid requests to start from, grouped by endpoint.

use std::io::Read as _;

use batzen_service::Reach;
use serde_json::Value;

use crate::mutate::dice::Dice;
use crate::mutate::proxy::Proxy;
use crate::mutate::routes::{self, Route};
use crate::mutate::text::Pool;
use crate::mutate::tree::Tree;

#[derive(Clone, Debug)]
pub(super) enum Body {
    None,
    Json(Tree),
    Bytes(Vec<u8>),
}

/// A request of a client.
#[derive(Clone, Debug)]
pub(super) struct Seed {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Body,
    /// Whether the service has answered it with success.
    pub is_valid: bool,
}

impl Seed {
    pub(super) fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Body::None,
            is_valid: false,
        }
    }

    pub(super) fn json(mut self, value: &Value) -> Self {
        self.body = Body::Json(value.into());
        let is_named = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if is_named { self } else { self.header("Content-Type", "application/json") }
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Parses the first request in `bytes`, and returns its length. `None` if it is incomplete, or differs
    /// from what our clients send.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let mut seed = Self::new(method, target);
        let (mut length, mut is_deflated) = (0, false);
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let (name, value) = (name.to_ascii_lowercase(), value.trim());
            match name.as_str() {
                "content-length" => length = value.parse().ok()?,
                "content-encoding" => is_deflated = value == "deflate",
                "transfer-encoding" | "upgrade" => return None,
                "host" | "connection" | "accept-encoding" | "user-agent" => {}
                _ => seed.headers.push((name, value.to_owned())),
            }
        }
        let body = bytes.get(end + 4..end + 4 + length)?;
        let mut inflated = Vec::new();
        let body = if is_deflated {
            flate2::read::ZlibDecoder::new(body).read_to_end(&mut inflated).ok()?;
            &inflated[..]
        } else {
            body
        };
        if !body.is_empty() {
            seed.body = match serde_json::from_slice::<Value>(body) {
                Ok(value) => Body::Json((&value).into()),
                Err(_) => Body::Bytes(body.to_vec()),
            };
        }
        Some((seed, end + 4 + length))
    }

    /// All requests in the bytes that a client has sent.
    pub(super) fn parse_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut seeds = Vec::new();
        while let Some((seed, length)) = Self::parse(bytes) {
            seeds.push(seed);
            bytes = &bytes[length..];
        }
        seeds
    }
}

/// The seeds of one listener.
pub(super) struct Seeds {
    pub routes: Vec<Route>,
    by_route: Vec<Vec<Seed>>,
    /// Requests that match no endpoint.
    strays: Vec<Seed>,
    pub pool: Pool,
}

impl Seeds {
    /// The most seeds kept per endpoint.
    const KEPT: usize = 48;

    pub(super) fn new(routes: Vec<Route>) -> Self {
        let by_route = routes.iter().map(|_| Vec::new()).collect();
        Self { routes, by_route, strays: Vec::new(), pool: Pool::default() }
    }

    pub(super) fn add(&mut self, seed: Seed) {
        for part in seed.path.split('/').filter(|part| !part.is_empty()) {
            self.pool.add(part);
        }
        if let Body::Json(tree) = &seed.body {
            let mut texts = Vec::new();
            tree.texts(&mut texts);
            texts.iter().for_each(|text| self.pool.add(text));
        }
        let route = self.routes.iter().position(|route| route.fits(&seed.method, &seed.path));
        let same = route.map_or(&mut self.strays, |route| &mut self.by_route[route]);
        if same.len() < Self::KEPT {
            same.push(seed);
        }
    }

    /// Takes what clients sent through a proxy, and checks that the service has answered a request to every endpoint
    /// with success; except to those in `refused`, to which only a request is required.
    pub(super) fn recorded(table: Vec<(String, Reach)>, proxy: &Proxy, refused: &[&str]) -> Self {
        let mut seeds = Self::new(routes::of(table));
        proxy.seeds().into_iter().for_each(|seed| seeds.add(seed));
        let mut missing = Vec::new();
        for (route, of_route) in seeds.routes.iter().zip(&seeds.by_route) {
            let (name, is_valid) = (route.to_string(), of_route.iter().any(|seed| seed.is_valid));
            let is_refused = refused.contains(&name.as_str());
            assert!(!(is_refused && is_valid), "{name} is not always refused");
            if of_route.is_empty() || !(is_valid || is_refused) {
                missing.push(format!("{name} ({} refused)", of_route.len()));
            }
        }
        assert!(missing.is_empty(), "no valid request reached: {missing:#?}");
        seeds
    }

    /// Replaces the token of the requests to these endpoints.
    pub(super) fn hold_back(&mut self, endpoints: &[&str], authorization: &str) {
        for (route, seeds) in self.routes.iter().zip(&mut self.by_route) {
            if endpoints.contains(&route.to_string().as_str()) {
                let headers = seeds.iter_mut().flat_map(|seed| &mut seed.headers);
                let tokens = headers.filter(|(name, _)| name == "authorization");
                tokens.for_each(|(_, value)| authorization.clone_into(value));
            }
        }
    }

    /// A request and the index of its endpoint; the last index is for requests without an endpoint.
    pub(super) fn pick(&self, dice: &mut Dice) -> (usize, &Seed) {
        loop {
            let route = dice.below(self.routes.len() + 1);
            if let Some(route_seeds) = self.by_route.get(route) {
                // Pages of many kilobytes that take no input would use most of the time.
                if self.routes[route].is_page() && !dice.chance(3) {
                    continue;
                }
                return (route, &route_seeds[dice.below(route_seeds.len())]);
            }
            if !self.strays.is_empty() {
                return (route, &self.strays[dice.below(self.strays.len())]);
            }
        }
    }
}

//! A table of endpoints, and the right error for each request that matches none of them.

use std::sync::Arc;

use crate::{
    codes::FrameError,
    request::{Head, Request},
    response::Response,
};
use http::{Method, header};

/// The errors of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The exchange's errors, checked by first segment (404 / 21), then method (405 / 20), then number of
    /// segments (404 / 1002), then operation (404 / 1001). A path remainder over 511 bytes is 414 / 31.
    ByFirstSegment,
    /// The errors of the bank and most other services: a path that matches no pattern is 404 / 21; one that
    /// matches with another method is 405 / 20.
    ByPath,
}

/// The longest path remainder (after the first segment) that [`Style::ByFirstSegment`] accepts, in bytes.
const MAX_PATH_REMAINDER_BYTES: usize = 511;

#[derive(Debug)]
struct Route<E> {
    method: Method,
    pattern: Arc<Pattern>,
    endpoint: E,
}

/// The routes with the same first segment.
#[derive(Debug)]
struct Family {
    first: String,
    /// Their indexes, in order.
    places: Vec<usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Parameter(String),
}

/// The path of an endpoint.
#[derive(Debug)]
pub(crate) struct Pattern(Vec<Part>);

impl Pattern {
    fn of(text: &str) -> Self {
        let part = |part: &str| match part.strip_prefix(':') {
            Some(name) => Part::Parameter(name.to_owned()),
            None => Part::Literal(part.to_owned()),
        };
        Self(text.split('/').filter(|part| !part.is_empty()).map(part).collect())
    }

    /// The index of the segment that is a parameter with this name.
    pub(crate) fn segment_of(&self, parameter: &str) -> Option<usize> {
        self.0.iter().position(|part| matches!(part, Part::Parameter(name) if name == parameter))
    }

    fn matches(&self, head: &Head) -> bool {
        self.0.len() == head.segment_count()
            && self.0.iter().zip(head.segments()).all(|(part, segment)| match part {
                Part::Literal(literal) => literal == segment,
                Part::Parameter(_) => true,
            })
    }
}

/// The endpoint that a request is for, with the parameters from its path in order.
#[derive(Debug, PartialEq, Eq)]
pub struct Matched<'a, E> {
    /// The table's value for the endpoint.
    pub endpoint: &'a E,
    /// The path's parameters, percent-decoded.
    pub params: Vec<&'a str>,
}

/// A table of endpoints.
///
/// ```
/// use batzen_http::{Head, Method, Routes, Style};
/// let routes = Routes::new(Style::ByFirstSegment)
///     .route(Method::GET, "/keys", "keys")
///     .route(Method::POST, "/reserves/:reserve_pub/withdraw", "withdraw");
/// let head = Head::local(Method::POST, "/reserves/ABC/withdraw/");
/// let matched = routes.resolve(&head).unwrap();
/// assert_eq!((*matched.endpoint, matched.params), ("withdraw", vec!["ABC"]));
/// assert_eq!(routes.resolve(&Head::local(Method::GET, "/config")).unwrap_err().status, 404);
/// ```
#[derive(Debug)]
pub struct Routes<E> {
    style: Style,
    routes: Vec<Route<E>>,
    /// The routes that start with a literal (`""` for the root).
    by_first: Vec<Family>,
}

impl<E> Routes<E> {
    /// An empty table.
    #[must_use]
    pub const fn new(style: Style) -> Self {
        Self { style, routes: Vec::new(), by_first: Vec::new() }
    }

    /// Adds an endpoint. `pattern` is a path whose segments are literals or `:parameters`. Earlier entries
    /// win, so literals go before parameters.
    ///
    /// # Panics
    /// If the pattern does not start with a slash, or its first segment is a parameter in a table by first
    /// segment. Tables are constant, so the first start reveals such a bug.
    #[must_use]
    pub fn route(mut self, method: Method, pattern: &str, endpoint: E) -> Self {
        assert!(pattern.starts_with('/'), "a pattern begins with a slash: {pattern}");
        let pattern = Arc::new(Pattern::of(pattern));
        let first = match pattern.0.first() {
            None => Some(String::new()),
            Some(Part::Literal(literal)) => Some(literal.clone()),
            Some(Part::Parameter(_)) => None,
        };
        assert!(
            self.style == Style::ByPath || first.is_some(),
            "the first segment of an endpoint is a literal"
        );
        if let Some(first) = first {
            let place = self.routes.len();
            match self.by_first.iter_mut().find(|family| family.first == first) {
                Some(family) => family.places.push(place),
                None => self.by_first.push(Family { first, places: vec![place] }),
            }
        }
        self.routes.push(Route { method, pattern, endpoint });
        self
    }

    /// Finds the endpoint for a request.
    ///
    /// # Errors
    /// The response to send instead: an error of the [`Style`], or 204 for `OPTIONS` on an endpoint that
    /// exists.
    pub fn resolve<'a>(&'a self, head: &'a Head) -> Result<Matched<'a, E>, Response> {
        let route = self.find(head)?;
        let parts = route.pattern.0.iter().zip(head.segments());
        let params = parts
            .filter(|(part, _)| matches!(part, Part::Parameter(_)))
            .map(|(_, segment)| segment)
            .collect();
        Ok(Matched { endpoint: &route.endpoint, params })
    }

    /// As [`Routes::resolve`]. The handler reads the parameters with [`Request::param`].
    ///
    /// # Errors
    /// As [`Routes::resolve`].
    pub fn dispatch(&self, request: &mut Request) -> Result<&E, Response> {
        let route = self.find(&request.head)?;
        request.pattern = Some(Arc::clone(&route.pattern));
        Ok(&route.endpoint)
    }

    /// As [`Routes::resolve`], without the parameters.
    ///
    /// # Errors
    /// As [`Routes::resolve`].
    pub fn endpoint(&self, head: &Head) -> Result<&E, Response> {
        self.find(head).map(|route| &route.endpoint)
    }

    /// The endpoints with the path of a request, with the method that a preflight request (`OPTIONS`) asks for if it names
    /// one.
    pub fn asked_for<'a>(&'a self, head: &'a Head) -> impl Iterator<Item = &'a E> {
        let method = head.header(header::ACCESS_CONTROL_REQUEST_METHOD);
        let is_asked = move |route: &&Route<E>| {
            method.is_none_or(|method| method == route.method.as_str()) && route.pattern.matches(head)
        };
        self.routes.iter().filter(is_asked).map(|route| &route.endpoint)
    }

    fn find(&self, head: &Head) -> Result<&Route<E>, Response> {
        match self.style {
            Style::ByFirstSegment => self.find_by_first(head),
            Style::ByPath => self.find_by_path(head),
        }
    }

    fn find_by_first(&self, head: &Head) -> Result<&Route<E>, Response> {
        // The first segment of the root is empty, so `//x` is the root with one segment too many.
        let first = head.segment(0);
        let Some(family) = self.by_first.iter().find(|family| family.first == first) else {
            return Err(Response::frame_error(FrameError::EndpointUnknown, &head.path));
        };
        let found = family.places.iter().map(|place| &self.routes[*place]);
        if head.method == Method::OPTIONS {
            return Err(Response::empty(204));
        }
        if !found.clone().any(|route| route.method == head.method) {
            return Err(method_invalid(found));
        }
        if head.path_remainder().len() > MAX_PATH_REMAINDER_BYTES {
            return Err(Response::frame_error(FrameError::UriTooLong, ""));
        }
        let mut length_seen = false;
        for route in found.filter(|route| route.method == head.method) {
            if route.pattern.matches(head) {
                return Ok(route);
            }
            length_seen |= route.pattern.0.len() == head.segment_count();
        }
        let code = if length_seen { FrameError::OperationUnknown } else { FrameError::WrongNumberOfSegments };
        Err(Response::frame_error(code, &head.path))
    }

    fn find_by_path(&self, head: &Head) -> Result<&Route<E>, Response> {
        let mut others = Vec::new();
        for route in &self.routes {
            if route.pattern.matches(head) {
                if route.method == head.method {
                    return Ok(route);
                }
                others.push(route);
            }
        }
        if others.is_empty() {
            return Err(Response::frame_error(FrameError::EndpointUnknown, &head.path));
        }
        if head.method == Method::OPTIONS {
            return Err(Response::empty(204));
        }
        Err(method_invalid(others.into_iter()))
    }
}

fn method_invalid<'a, E: 'a>(routes: impl Iterator<Item = &'a Route<E>>) -> Response {
    let mut methods: Vec<&str> = Vec::new();
    for route in routes {
        let method = route.method.as_str();
        if !methods.contains(&method) {
            methods.push(method);
            if route.method == Method::GET {
                methods.push("HEAD");
            }
        }
    }
    Response::frame_error(FrameError::MethodInvalid, "").with_header(header::ALLOW, &methods.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(
        routes: &Routes<&'static str>,
        method: Method,
        path: &str,
    ) -> Result<&'static str, (u16, u64)> {
        let head = Head::local(method, path);
        routes
            .resolve(&head)
            .map(|matched| *matched.endpoint)
            .map_err(|r| (r.status, r.json_value()["code"].as_u64().unwrap_or(0)))
    }

    #[test]
    fn exchange_style_errors() {
        let routes = Routes::new(Style::ByFirstSegment)
            .route(Method::GET, "/", "root")
            .route(Method::GET, "/keys", "keys")
            .route(Method::GET, "/reserves/:pub", "reserve")
            .route(Method::POST, "/reserves/:pub/withdraw", "withdraw")
            .route(Method::POST, "/reserves/:pub/status", "status")
            .route(Method::GET, "/management/keys", "future")
            .route(Method::POST, "/management/keys", "sign");
        let long = format!("/keys/{}", "x".repeat(512));
        let edge = format!("/reserves/{}", "x".repeat(511));
        let cases = [
            (Method::GET, "/", Ok("root")),
            (Method::HEAD, "/keys", Ok("keys")),
            (Method::GET, "/keys/", Ok("keys")),
            (Method::POST, "/reserves//AB///status/", Ok("status")),
            (Method::GET, "/management/keys", Ok("future")),
            (Method::POST, "/management/keys", Ok("sign")),
            (Method::GET, edge.as_str(), Ok("reserve")),
            (Method::GET, "/config", Err((404, 21))),
            (Method::OPTIONS, "/config", Err((404, 21))),
            (Method::OPTIONS, "/reserves", Err((204, 0))),
            (Method::POST, "/keys", Err((405, 20))),
            (Method::GET, "/keys/1", Err((404, 1002))),
            (Method::GET, "/reserves", Err((404, 1002))),
            (Method::GET, "//", Err((404, 1002))),
            (Method::GET, "//keys", Err((404, 1002))),
            (Method::POST, "/reserves/AB/nothing", Err((404, 1001))),
            (Method::GET, "/management/nothing", Err((404, 1001))),
            (Method::GET, long.as_str(), Err((414, 31))),
        ];
        for (method, path, want) in cases {
            assert_eq!(outcome(&routes, method.clone(), path), want, "{method} {path}");
        }
        let allow = |path: &str| {
            let head = Head::local(Method::PUT, path);
            routes.resolve(&head).unwrap_err().header(&header::ALLOW).unwrap().to_owned()
        };
        assert_eq!(allow("/reserves/AB"), "GET, HEAD, POST");
        assert_eq!(allow("/keys"), "GET, HEAD");
    }

    #[test]
    fn parameters_have_names() {
        let routes = Routes::new(Style::ByPath).route(Method::GET, "/a/:one/b/:two", ());
        let mut request = Request::local(Method::GET, "/a/x%20y//b/z/", "");
        assert_eq!(request.param("one"), "");
        routes.dispatch(&mut request).unwrap();
        assert_eq!(["one", "two", "three"].map(|name| request.param(name)), ["x y", "z", ""]);
    }

    #[test]
    fn bank_style_errors() {
        let routes = Routes::new(Style::ByPath)
            .route(Method::GET, "/config", "config")
            .route(Method::GET, "/:account/history/incoming", "incoming")
            .route(Method::POST, "/:account/transfer", "transfer");
        for (method, path, want) in [
            (Method::GET, "/config", Ok("config")),
            (Method::GET, "/2/history/incoming", Ok("incoming")),
            (Method::GET, "/2/history", Err((404, 21))),
            (Method::GET, "/", Err((404, 21))),
            (Method::GET, "/2/transfer", Err((405, 20))),
            (Method::OPTIONS, "/2/transfer", Err((204, 0))),
        ] {
            assert_eq!(outcome(&routes, method.clone(), path), want, "{method} {path}");
        }
    }
}

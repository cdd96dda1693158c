//! The endpoints of the services: their own route tables, so that no new endpoint can be forgotten here.

use batzen_service::Reach;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub method: String,
    /// Each segment is a literal or a `:parameter`.
    pub pattern: String,
}

/// Large answers to requests with little input, which would take up most of the time.
const PAGES: [&str; 9] = [
    "/metrics",
    "/dashboard",
    "/dashboard/:part",
    "/terms",
    "/privacy",
    "/keys",
    "/v1/openapi.json",
    "/openapi.json",
    "/management/keys",
];

impl Route {
    /// Returns whether a request matches this endpoint.
    pub(super) fn fits(&self, method: &str, path: &str) -> bool {
        let segments = |text: &str| -> Vec<String> {
            text.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
        };
        let (pattern, path) = (segments(&self.pattern), segments(path));
        method == self.method
            && pattern.len() == path.len()
            && pattern.iter().zip(&path).all(|(part, segment)| part.starts_with(':') || part == segment)
    }

    /// Returns whether it is a large page without parameters.
    pub(super) fn is_page(&self) -> bool {
        self.method == "GET" && PAGES.contains(&self.pattern.as_str())
    }

    /// Number of parameters in the path.
    pub(super) fn parameters(&self) -> usize {
        self.pattern.matches(':').count()
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.pattern)
    }
}

/// The endpoints of a service's table, such as `GET /coins/:coin_pub/link`. Of two patterns that fit a path, the
/// services prefer literal segments, and so does the order here.
pub(super) fn of(table: Vec<(String, Reach)>) -> Vec<Route> {
    let parts = |(endpoint, _): (String, Reach)| {
        let (method, pattern) = endpoint.split_once(' ').expect("an endpoint has a method");
        Route { method: method.to_owned(), pattern: pattern.to_owned() }
    };
    let mut routes: Vec<Route> = table.into_iter().map(parts).collect();
    routes.sort_by_key(Route::parameters);
    routes
}

//! The endpoints of the services, read from the route tables in the sources, so that no new endpoint can be
//! forgotten here.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub method: String,
    /// Each segment is a literal or a `:parameter`.
    pub pattern: String,
}

impl Route {
    fn new(method: &str, pattern: &str) -> Self {
        Self { method: method.to_uppercase(), pattern: pattern.to_owned() }
    }

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
        let pages = [
            "/metrics",
            "/dashboard",
            "/dashboard/:part",
            "/terms",
            "/privacy",
            "/keys",
            "/v1/openapi.json",
            "/management/keys",
        ];
        self.method == "GET" && pages.contains(&self.pattern.as_str())
    }
}

/// A source file without spaces and without its tests.
fn source(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

fn crates(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// The literals that follow a word, and the text between them.
fn after<'a>(text: &'a str, word: &str) -> Vec<(&'a str, &'a str)> {
    text.match_indices(word)
        .filter_map(|(at, _)| {
            let (between, rest) = text[at + word.len()..].split_once('"')?;
            Some((between, rest.split('"').next()?))
        })
        .collect()
}

/// Rows like `.get("/path", ..)` and `.post(&path("rest"), ..)` in a file, or in the files of a folder.
fn rows(path: &str) -> Vec<Route> {
    let path = crates(path);
    let mut files: Vec<PathBuf> = match path.is_dir() {
        true => std::fs::read_dir(path).unwrap().map(|file| file.unwrap().path()).collect(),
        false => vec![path],
    };
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let mut routes = Vec::new();
    for text in files.iter().map(|file| source(file)) {
        for method in ["get", "post", "put"] {
            for (between, pattern) in after(&text, &format!(".{method}(")) {
                match between {
                    "" if pattern.starts_with('/') => routes.push(Route::new(method, pattern)),
                    "&path(" => {
                        let of = |base: &&str| Route::new(method, &format!("{base}/{pattern}"));
                        routes.extend(GATEWAYS.iter().map(of));
                    }
                    _ => {}
                }
            }
        }
    }
    routes
}

/// The endpoints that the kit adds to every service.
fn pages() -> Vec<Route> {
    rows("web/service/src/app.rs")
}

pub(super) fn exchange() -> Vec<Route> {
    [rows("services/exchange/src/api"), pages()].concat()
}

/// The two base paths of a gateway.
const GATEWAYS: [&str; 2] = ["/taler-wire-gateway/:account", "/:account"];

pub(super) fn bank() -> Vec<Route> {
    let text = source(&crates("services/bank/src/api/gateway.rs"));
    assert!(
        text.contains(&format!("[{:?},{:?}]", GATEWAYS[0], GATEWAYS[1])),
        "the gateway's paths are others"
    );
    [rows("services/bank/src/api"), rows("services/bank/src/api/web"), pages()].concat()
}

pub(super) fn ledger() -> Vec<Route> {
    [rows("ledger/ledger-service/src/net/api"), pages()].concat()
}

pub(super) fn switch_operators() -> Vec<Route> {
    [rows("services/switch/src/api/admin"), pages()].concat()
}

/// The endpoints of transfers and bulk transfers.
pub(super) fn switch_participants() -> Vec<Route> {
    [rows("services/switch/src/api/participant.rs"), rows("services/switch/src/api/bulk.rs")].concat()
}

/// Checks that the tables were found in the sources; a changed notation shows up here.
#[test]
fn route_tables_are_read() {
    let has = |routes: &[Route], method: &str, pattern: &str| routes.contains(&Route::new(method, pattern));
    let exchange = exchange();
    assert!(exchange.len() >= 40, "{exchange:#?}");
    assert!(has(&exchange, "POST", "/reserves/:reserve_pub/batch-withdraw"), "{exchange:#?}");
    assert!(has(&exchange, "GET", "/keys") && has(&exchange, "POST", "/refreshes/:rch/:operation"));
    let bank = bank();
    assert!(bank.len() >= 32, "{bank:#?}");
    assert!(has(&bank, "POST", "/:account/transfer") && has(&bank, "POST", "/web/login"), "{bank:#?}");
    let ledger = ledger();
    assert!(ledger.len() >= 15 && has(&ledger, "GET", "/v1/events"), "{ledger:#?}");
    let operators = switch_operators();
    assert!(operators.len() >= 36 && has(&operators, "PUT", "/settlements/:id"), "{operators:#?}");
    let participants = switch_participants();
    assert_eq!(participants.len(), 8, "{participants:#?}");
    assert!(has(&participants, "PUT", "/bulkTransfers/:id/error"), "{participants:#?}");
}

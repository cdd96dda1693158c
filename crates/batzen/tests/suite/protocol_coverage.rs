//! `docs/protocol-coverage.md` lists every endpoint of the services that speak the protocol, and no other.
//!
//! A row's first cell has endpoints such as `` `GET, POST /management/keys` ``. A path without methods has those of the
//! path before it in the same cell. The second cell of an endpoint that does not exist begins with "no".

use std::collections::BTreeSet;
use std::path::Path;

use batzen_service::Reach;

/// An endpoint with `:` for each parameter, because the page names parameters as the protocol does.
fn anonymous(endpoint: &str) -> String {
    let segments = endpoint.split('/').map(|part| if part.starts_with([':', '$']) { ":" } else { part });
    segments.collect::<Vec<_>>().join("/")
}

/// The endpoints of a service, without the copies below a second base path.
fn served(endpoints: Vec<(String, Reach)>, first: &str, second: &str) -> BTreeSet<String> {
    let all: BTreeSet<String> = endpoints.iter().map(|(endpoint, _)| anonymous(endpoint)).collect();
    let is_copy = |endpoint: &&String| {
        let (method, path) = endpoint.split_once(' ').unwrap();
        let rest = path.strip_prefix(second);
        !second.is_empty() && rest.is_some_and(|rest| all.contains(&format!("{method} {first}{rest}")))
    };
    all.iter().filter(|endpoint| !is_copy(endpoint)).cloned().collect()
}

/// Cells of the rows in a section of the page: the first and the second of each.
fn rows<'a>(page: &'a str, service: &str) -> Vec<(&'a str, &'a str)> {
    let (_, section) = page.split_once(&format!("\n## {service}\n")).expect("a section of the service");
    let section = section.split("\n## ").next().unwrap_or(section);
    let cells = |line: &'a str| line.strip_prefix("| ")?.split_once(" | ");
    section.lines().filter_map(cells).collect()
}

/// The endpoints in a cell.
fn endpoints(cell: &str) -> Vec<String> {
    let mut methods: Vec<&str> = Vec::new();
    let mut endpoints = Vec::new();
    for code in cell.split('`').skip(1).step_by(2) {
        let Some(at) = code.find('/') else { continue };
        let (named, path) = code.split_at(at);
        if !named.is_empty() {
            methods = named.split([',', ' ']).filter(|method| !method.is_empty()).collect();
        }
        assert!(!methods.is_empty(), "`{code}` needs a method");
        endpoints.extend(methods.iter().map(|method| anonymous(&format!("{method} {path}"))));
    }
    endpoints
}

#[test]
fn the_page_lists_exactly_the_endpoints() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol-coverage.md");
    let page = std::fs::read_to_string(page).unwrap();
    let gateway = "/taler-wire-gateway/:";
    for (service, served) in [
        ("Exchange", served(batzen_exchange::api::endpoints(), "", "")),
        ("Bank", served(batzen_bank::endpoints(), gateway, "/:")),
        ("Merchant", served(batzen_merchant::endpoints(), "", "/instances/:")),
        ("Auditor", served(batzen_auditor::endpoints(), "", "")),
    ] {
        let mut listed = BTreeSet::new();
        for (cell, state) in rows(&page, service) {
            for endpoint in endpoints(cell) {
                if state.starts_with("no") {
                    assert!(!served.contains(&endpoint), "{service}: {endpoint} is not absent");
                } else {
                    assert!(listed.insert(endpoint.clone()), "{service}: {endpoint} is listed twice");
                }
            }
        }
        let missing: Vec<_> = served.difference(&listed).collect();
        let surplus: Vec<_> = listed.difference(&served).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "{service}: missing {missing:?}, surplus {surplus:?}"
        );
    }
}

#[test]
fn cells_are_read() {
    assert_eq!(
        endpoints("`GET, POST /a/$PUB`, `/b` (long poll)"),
        ["GET /a/:", "POST /a/:", "GET /b", "POST /b"]
    );
    assert_eq!(endpoints("wads between exchanges"), Vec::<String>::new());
    let twice =
        ["GET /x/:id", "GET /instances/:instance/x/:id", "GET /instances/:instance"].map(str::to_owned);
    let once = served(twice.map(|endpoint| (endpoint, Reach::Own)).to_vec(), "", "/instances/:");
    assert_eq!(once.into_iter().collect::<Vec<_>>(), ["GET /instances/:", "GET /x/:"]);
}

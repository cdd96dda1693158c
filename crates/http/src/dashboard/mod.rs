//! The dashboard: one page that reads the service's own `/metrics` every second and draws it.
//!
//! The page is part of the program and loads nothing else: style and script stand in it, and its policy allows just those
//! two (by their hashes) and requests to the server that it came from. The history is kept in the browser; the server
//! keeps no state for it. It shows no more than `/metrics` does.

use std::sync::LazyLock;

use crate::Response;
use crate::page::StaticPage;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

static PAGE: LazyLock<StaticPage> = LazyLock::new(|| StaticPage::new(HTML, STYLE, SCRIPT));

/// The page `/dashboard`. It finds the metrics beside itself, at whatever path a proxy puts it.
#[must_use]
pub fn dashboard() -> Response {
    PAGE.response()
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let response = dashboard();
        let page = std::str::from_utf8(&response.body).unwrap();
        assert!(page.contains(STYLE) && page.contains(SCRIPT) && !page.contains("/*S"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let found = page.replace("http://www.w3.org/2000/svg", "").contains(outside);
            assert!(!found, "the page names {outside}");
        }
        // What the policy would forbid.
        assert!(!page.contains("style=\"") && !page.contains("onclick"));
        let policy = response.header(&header::CONTENT_SECURITY_POLICY).unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}

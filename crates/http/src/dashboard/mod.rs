//! The dashboard: one page that reads the service's own `/metrics` every second and draws it.
//!
//! The page is part of the program and loads nothing else: style and script stand in it, and its policy allows just those
//! two (by their hashes) and requests to the server that it came from. The history is kept in the browser; the server
//! keeps no state for it. It shows no more than `/metrics` does.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header;
use sha2::{Digest, Sha256};

use crate::client::encode_base64;
use crate::{Response, deflate};

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

struct Page {
    html: Bytes,
    deflated: Bytes,
    policy: String,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let html = HTML.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
    let hash = |text: &str| format!("'sha256-{}'", encode_base64(&Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    Page { deflated: deflate(html.as_bytes()).into(), html: html.into(), policy }
});

/// The page `/dashboard`. It finds the metrics beside itself, at whatever path a proxy puts it.
#[must_use]
pub fn dashboard() -> Response {
    let page = &*PAGE;
    Response::bytes(200, "text/html; charset=utf-8", page.html.clone())
        .with_header(header::CONTENT_SECURITY_POLICY, &page.policy)
        .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .with_header(header::REFERRER_POLICY, "no-referrer")
        .with_header(header::CACHE_CONTROL, "no-cache")
        .with_deflated(page.deflated.clone())
}

#[cfg(test)]
mod tests {
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

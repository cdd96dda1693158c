//! Web pages, and what is on them.

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use batzen_http::{Bytes, Response, deflate, escape_html, header};
use sha2::{Digest, Sha256};

/// The policy of a page that loads files of its own server and sends requests to it, and nothing else.
pub const OWN_FILES_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                                    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Adds the headers of a page or a file with this policy, which a browser checks for changes each time.
#[must_use]
pub fn with_policy(response: Response, policy: &str) -> Response {
    response
        .with_header(header::CONTENT_SECURITY_POLICY, policy)
        .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .with_header(header::REFERRER_POLICY, "no-referrer")
        .with_header(header::CACHE_CONTROL, "no-cache")
}

/// A page without scripts, which no cache keeps. The title is text, and also the heading; `body` is HTML.
#[must_use]
pub fn html_page(status: u16, title: &str, style: &str, body: &str) -> Response {
    let title = escape_html(title);
    let html = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{style}</style></head>\
         <body><main><h1>{title}</h1>{body}</main></body></html>"
    );
    Response::bytes(status, "text/html; charset=utf-8", html)
        .with_header(header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'")
        .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .with_header(header::REFERRER_POLICY, FORM_REFERRER)
        .with_header(header::CACHE_CONTROL, "no-store")
}

/// The referrer policy of pages with forms: without a referrer, browsers send a form as of an unknown site.
const FORM_REFERRER: &str = "same-origin";

/// A page without scripts, which no cache keeps, with a form for its own server. `/*STYLE*/` in `html` is replaced with `style`.
#[must_use]
pub fn form_page(html: &str, style: &str) -> Response {
    let policy = format!(
        "default-src 'none'; style-src {}; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        hash(style)
    );
    Response::bytes(200, "text/html; charset=utf-8", html.replace("/*STYLE*/", style))
        .with_header(header::CONTENT_SECURITY_POLICY, &policy)
        .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .with_header(header::REFERRER_POLICY, FORM_REFERRER)
        .with_header(header::CACHE_CONTROL, "no-store")
}

/// The source by which a policy allows an inline text.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// A QR code's number of modules per side, and its dark modules as an SVG path of unit squares. None if the text is too
/// long for one.
#[must_use]
pub fn qr_code(text: &str) -> Option<(usize, String)> {
    let code = qrcode::QrCode::new(text).ok()?;
    let size = code.width();
    let mut path = String::new();
    for (index, color) in code.to_colors().into_iter().enumerate() {
        if color == qrcode::Color::Dark {
            let _ = write!(path, "M{} {}h1v1h-1z", index % size, index / size);
        }
    }
    Some((size, path))
}

/// A page with inline style and script. Its policy allows only those two (by their hashes) and requests to
/// its own server.
pub struct StaticPage {
    html: Bytes,
    deflated: Bytes,
    policy: String,
}

impl StaticPage {
    /// Replaces `/*STYLE*/` and `/*SCRIPT*/` in `html` with `style` and `script`.
    #[must_use]
    pub fn new(html: &str, style: &str, script: &str) -> Self {
        let html = html.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script);
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            hash(script),
            hash(style)
        );
        Self { deflated: deflate(html.as_bytes()).into(), html: html.into(), policy }
    }

    /// The page as a response.
    #[must_use]
    pub fn response(&self) -> Response {
        let page = Response::bytes(200, "text/html; charset=utf-8", self.html.clone());
        with_policy(page, &self.policy).with_deflated(self.deflated.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qr_codes_have_their_three_corners() {
        let (size, path) = qr_code("taler://withdraw/bank.test/taler-bank-integration/W7Q").unwrap();
        assert!(size >= 21);
        for corner in [(0, 0), (size - 1, 0), (0, size - 1)] {
            assert!(path.contains(&format!("M{} {}h1", corner.0, corner.1)));
        }
        assert_eq!(qr_code(&"x".repeat(1 << 13)), None);
    }

    #[test]
    fn titles_are_text() {
        let page = html_page(402, "a<b", "p{}", "<p>c</p>");
        let html = std::str::from_utf8(&page.body).unwrap();
        assert!(html.contains("<h1>a&lt;b</h1><p>c</p>") && html.contains("<style>p{}</style>"), "{html}");
    }
}

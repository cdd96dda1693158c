//! Web pages that are built into the program and load nothing else.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use batzen_http::{Bytes, Response, deflate, header};
use sha2::{Digest, Sha256};

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
        let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
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
        Response::bytes(200, "text/html; charset=utf-8", self.html.clone())
            .with_header(header::CONTENT_SECURITY_POLICY, &self.policy)
            .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
            .with_header(header::REFERRER_POLICY, "no-referrer")
            .with_header(header::CACHE_CONTROL, "no-cache")
            .with_deflated(self.deflated.clone())
    }
}

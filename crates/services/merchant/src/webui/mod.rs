//! The back office: the page with which a shop owner works, at `webui/` below each instance's base URL.
//!
//! It is a client of the private API like any other program, and knows nothing that the API does not say. Its files
//! are built into the program. They load nothing else, and have no inline scripts or styles. The browser keeps the
//! access token, in the storage of one tab.

use std::sync::LazyLock;

use batzen_http::{Bytes, Response, deflate, header};
use batzen_service::{OWN_FILES_POLICY, qr_code, with_policy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The name of the page itself among the files.
pub(crate) const PAGE: &str = "";

/// The name of the page at `/` among the files.
const HOME: &str = "home.html";

/// The longest text of a QR code, in bytes. Codes of longer texts are too fine for the cameras of phones.
const QR_TEXT_BYTES_MAX: usize = 1_024;

/// The links that get a QR code: those of wallets, and pages such as that of a template.
const SCHEMES: [&str; 4] = ["taler", "taler+http", "http", "https"];

/// Name, content type and text of every file.
const FILES: [(&str, &str, &str); 18] = [
    (HOME, HTML, include_str!("home.html")),
    (PAGE, HTML, include_str!("index.html")),
    ("style.css", CSS, include_str!("style.css")),
    ("app.js", SCRIPT, include_str!("app.js")),
    ("api.js", SCRIPT, include_str!("api.js")),
    ("dom.js", SCRIPT, include_str!("dom.js")),
    ("forms.js", SCRIPT, include_str!("forms.js")),
    ("money.js", SCRIPT, include_str!("money.js")),
    ("orders.js", SCRIPT, include_str!("orders.js")),
    ("order.js", SCRIPT, include_str!("order.js")),
    ("new-order.js", SCRIPT, include_str!("new-order.js")),
    ("accounts.js", SCRIPT, include_str!("accounts.js")),
    ("products.js", SCRIPT, include_str!("products.js")),
    ("programs.js", SCRIPT, include_str!("programs.js")),
    ("settings.js", SCRIPT, include_str!("settings.js")),
    ("templates.js", SCRIPT, include_str!("templates.js")),
    ("tips.js", SCRIPT, include_str!("tips.js")),
    ("transfers.js", SCRIPT, include_str!("transfers.js")),
];

static DEFLATED: LazyLock<Vec<Bytes>> =
    LazyLock::new(|| FILES.iter().map(|(_, _, text)| deflate(text.as_bytes()).into()).collect());

/// The page at the backend's own `/`, for people who look there.
pub(crate) fn home() -> Response {
    file(HOME).expect("it is in the table")
}

/// A file of the page; `None` if there is none of this name.
pub(crate) fn file(name: &str) -> Option<Response> {
    let place = FILES.iter().position(|(known, _, _)| *known == name)?;
    let (_, kind, text) = FILES[place];
    let response = Response::bytes(200, kind, text).with_deflated(DEFLATED[place].clone());
    Some(with_policy(response, OWN_FILES_POLICY))
}

/// The page's files are relative to it, so its URL must end with a slash.
pub(crate) fn with_slash() -> Response {
    Response::empty(301).with_header(header::LOCATION, "webui/")
}

#[derive(Deserialize, ToSchema)]
pub(crate) struct QrRequest {
    /// A link for wallets or browsers: taler, taler+http, http or https.
    #[schema(max_length = 1024)]
    uri: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct QrCode {
    /// Modules per side.
    size: usize,
    /// An SVG path of all dark modules, one unit each.
    path: String,
}

impl QrRequest {
    /// The code; `None` if the text is not what a wallet or a browser opens, or too long.
    pub(crate) fn code(&self) -> Option<QrCode> {
        let scheme = self.uri.split_once("://")?.0;
        if !SCHEMES.contains(&scheme) || self.uri.len() > QR_TEXT_BYTES_MAX {
            return None;
        }
        let (size, path) = qr_code(&self.uri)?;
        Some(QrCode { size, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts between `before` and the next quote.
    fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
        text.split(before).skip(1).map(|rest| rest.split('"').next().unwrap_or_default()).collect()
    }

    #[test]
    fn every_file_that_the_page_names_is_there_and_nothing_else_is_loaded() {
        let mut named = vec![HOME, PAGE];
        for (name, kind, text) in FILES {
            let references = match kind {
                HTML => [quoted(text, "src=\""), quoted(text, "href=\"")].concat(),
                SCRIPT => [quoted(text, "from \"./"), quoted(text, "import \"./")].concat(),
                _ => Vec::new(),
            };
            for file in references.into_iter().filter(|file| !file.starts_with("data:")) {
                // The page at `/` is one level above the others.
                let file = file.strip_prefix("webui/").unwrap_or(file);
                if name == HOME && file == "openapi.json" {
                    continue;
                }
                assert!(FILES.iter().any(|(known, _, _)| *known == file), "{name} names {file}");
                named.push(file);
            }
            for outside in ["=\"http", "=\"//", "@import", "url(", "import("] {
                assert!(!text.contains(outside), "{name} names {outside}");
            }
            // Things that the policy would forbid, or that would turn text into markup.
            for forbidden in [
                "style=\"",
                "onclick",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "localStorage",
            ] {
                assert!(!text.contains(forbidden), "{name}: {forbidden}");
            }
        }
        for (name, _, _) in FILES {
            assert!(named.contains(&name), "nothing uses {name}");
        }
    }

    #[test]
    fn files_are_sent_with_a_policy_without_inline_code() {
        for (name, kind, text) in FILES {
            let response = file(name).unwrap();
            assert_eq!(
                (&response.body[..], response.header(&header::CONTENT_TYPE)),
                (text.as_bytes(), Some(kind))
            );
            let policy = response.header(&header::CONTENT_SECURITY_POLICY).unwrap();
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        }
        assert!(file("other.js").is_none() && file("../mod.rs").is_none());
    }

    #[test]
    fn qr_codes_are_of_links_only() {
        let code = |uri: &str| QrRequest { uri: uri.to_owned() }.code();
        assert!(code("taler://pay/shop.example/1/").is_some());
        let long = format!("taler://pay/{}", "x".repeat(QR_TEXT_BYTES_MAX));
        assert!(
            code("mailto:a@shop.example").is_none() && code("data://x").is_none() && code(&long).is_none()
        );
        assert!(code(&long[..QR_TEXT_BYTES_MAX]).is_some());
    }
}

//! The dashboard: a page for people that shows the values of `/metrics`, now and over the last hour.
//!
//! A task of each service reads the service's own metrics every few seconds and adds them to
//! `history::History`, which computes rates and quantiles and keeps the last hour in rings of a fixed size.
//! The page requests that as JSON and draws it. All files are part of the program. The page's policy allows
//! nothing from elsewhere, and no inline script or style. It shows no more than `/metrics` does.
//!
//! A service's [`Layout`] defines the content. Charts are drawn by uPlot (`vendor/`).

mod common;
mod history;
mod layout;
mod reading;

use std::sync::LazyLock;

use batzen_http::{Bytes, Head, Response, deflate, header};
use batzen_protocol::ErrorCode;
use sha2::{Digest, Sha256};

use crate::page::{OWN_FILES_POLICY, with_policy};
pub use common::{BATCHES, COMMON, CRYPTOGRAPHY, NOW, OPERATIONS, PROCESS, STORE};
pub(crate) use history::History;
pub use history::{caption, short};
pub use layout::{
    Bad, Chart, Extra, Layout, Lines, Of, Only, Section, Table, Unit, Value, chart, each, gauge, quantile,
    rate, tile,
};
pub use reading::{Reading, Sample};

/// Time between two readings.
pub(crate) const INTERVAL: std::time::Duration = std::time::Duration::from_secs(history::INTERVAL_S);

/// The range that is shown unless another one is requested, in seconds.
const RANGE_S: u64 = 300;

/// A file that the page loads.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    body: &'static str,
    deflated: Bytes,
    /// Changes with the content, so that a browser may keep the file as long as it likes.
    version: String,
}

impl Asset {
    fn new(name: &'static str, content_type: &'static str, body: &'static str) -> Self {
        let version = Sha256::digest(body).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self { name, content_type, body, deflated: deflate(body.as_bytes()).into(), version }
    }

    fn response(&self) -> Response {
        Response::bytes(200, self.content_type, self.body)
            .with_header(header::CACHE_CONTROL, "public, max-age=31536000, immutable")
            .with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
            .with_deflated(self.deflated.clone())
    }
}

static ASSETS: LazyLock<[Asset; 4]> = LazyLock::new(|| {
    let (script, style) = ("text/javascript; charset=utf-8", "text/css; charset=utf-8");
    [
        Asset::new("uplot.css", style, include_str!("vendor/uPlot.min.css")),
        Asset::new("page.css", style, include_str!("page.css")),
        Asset::new("uplot.js", script, include_str!("vendor/uPlot.iife.min.js")),
        Asset::new("page.js", script, include_str!("page.js")),
    ]
});

/// The page, at `/dashboard` and at `/dashboard/`. The links to its files are relative, so a proxy may serve
/// it at any path.
static PAGES: LazyLock<[(Bytes, Bytes); 2]> = LazyLock::new(|| {
    ["dashboard/", ""].map(|base| {
        let mut html = include_str!("page.html").replace("{base}", base);
        html = html.replace("{up}", if base.is_empty() { "../" } else { "" });
        for asset in ASSETS.iter() {
            let link = format!("{base}{}", asset.name);
            html = html.replace(&format!("\"{link}\""), &format!("\"{link}?v={}\"", asset.version));
        }
        (html.clone().into(), deflate(html.as_bytes()).into())
    })
});

fn page(has_slash: bool) -> Response {
    let (html, deflated) = &PAGES[usize::from(has_slash)];
    let page = Response::bytes(200, "text/html; charset=utf-8", html.clone());
    with_policy(page, OWN_FILES_POLICY).with_deflated(deflated.clone())
}

/// Answers requests for `/dashboard` and everything below it.
pub(crate) fn answer(head: &Head, history: &std::sync::Mutex<History>) -> Response {
    match head.segment(1) {
        "" => page(head.path.ends_with('/')),
        "history" => {
            let range = head.query_with("range", |text| text.parse().ok());
            match range {
                Ok(seconds) => {
                    let history = history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let json = history.json(seconds.unwrap_or(RANGE_S));
                    drop(history);
                    Response::json(200, &json).with_header(header::CACHE_CONTROL, "no-store")
                }
                Err(refusal) => refusal,
            }
        }
        name => match ASSETS.iter().find(|asset| asset.name == name) {
            Some(asset) => asset.response(),
            None => Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, &head.path),
        },
    }
}

#[cfg(test)]
mod tests {
    use batzen_http::Method;

    use super::*;

    fn get(path: &str) -> Response {
        answer(
            &Head::local(Method::GET, path),
            &std::sync::Mutex::new(History::new(&Layout { sections: COMMON, work: &[] })),
        )
    }

    fn text(response: &Response) -> &str {
        std::str::from_utf8(&response.body).unwrap()
    }

    #[test]
    fn the_page_loads_its_own_files_and_nothing_else() {
        for (path, base) in [("/dashboard", "/"), ("/dashboard/", "/dashboard/")] {
            let response = get(path);
            let page = text(&response);
            let links: Vec<&str> = ["src=\"", "rel=\"stylesheet\" href=\""]
                .iter()
                .flat_map(|start| page.split(start).skip(1))
                .map(|rest| rest.split('"').next().unwrap())
                .collect();
            assert_eq!(links.len(), ASSETS.len(), "{links:?}");
            for link in links {
                let (file, version) =
                    link.split_once("?v=").unwrap_or_else(|| panic!("{link} has no version"));
                assert_eq!(version.len(), 12);
                let file = get(&format!("{base}{file}"));
                assert_eq!(file.status, 200, "{link}");
                assert!(file.header(&header::CACHE_CONTROL).unwrap().contains("immutable"));
            }
            // Things that the policy would forbid.
            for forbidden in ["<style", "style=\"", "onclick", "<script>", "http://", "https://"] {
                assert!(!page.contains(forbidden), "{forbidden}");
            }
            let policy = response.header(&header::CONTENT_SECURITY_POLICY).unwrap();
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        }
        assert_eq!(get("/dashboard/other").status, 404);
    }

    #[test]
    fn own_files_name_nothing_outside() {
        for asset in ASSETS.iter().filter(|asset| asset.name.starts_with("page")) {
            let body = asset.body.replace("http://www.w3.org/2000/svg", "");
            for outside in ["http://", "https://", "@import", "url(", "innerHTML"] {
                assert!(!body.contains(outside), "{} names {outside}", asset.name);
            }
        }
    }

    #[test]
    fn the_licence_of_the_charts_is_beside_them() {
        assert!(include_str!("vendor/uPlot.LICENSE").contains("MIT License"));
        assert!(include_str!("vendor/uPlot.iife.min.js").contains("uPlot (v1.6.32)"));
    }

    #[test]
    fn a_range_is_a_number_of_seconds() {
        let range = |text: &str| get(&format!("/dashboard/history{text}"));
        assert_eq!(range("").json_value()["range_s"], 300);
        assert_eq!(range("?range=301").json_value()["range_s"], 900);
        assert_eq!(range("?range=99999").json_value()["range_s"], 3600);
        assert_eq!(range("?range=x").status, 400);
    }
}

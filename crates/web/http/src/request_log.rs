//! One log line for each request: method, path, status, time, and a correlation id, which is also in every
//! line that the handler logs meanwhile.
//!
//! Requests that change something and errors are logged at INFO, others at DEBUG. Keys, hashes, account names
//! and addresses of clients are not logged: a path shows only the words that are part of the interface. So a
//! log does not link a withdrawal to a payment. A client that used one id for both would, so a service says
//! for which requests the client's id may be logged ([`Handler::logs_given_correlation_id`]); others get an id
//! of their own.
//!
//! [`Handler::logs_given_correlation_id`]: crate::Handler::logs_given_correlation_id

use std::fmt::Write;
use std::time::Instant;

use crate::codec::correlation::{CORRELATION_ID, is_correlation_id, new_correlation_id};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tracing::{Level, Span};

use crate::request::Head;

/// The longest word of an interface in a path.
const WORD_BYTES_MAX: usize = 24;
/// The next segment is the name of an account or an operator.
const BEFORE_NAMES: [&str; 4] = ["accounts", "account", "taler-wire-gateway", "operators"];
/// All further segments may name participants or people, such as `/parties/ALIAS/zoe`.
const ABOVE_NAMES: [&str; 2] = ["participants", "parties"];

/// A request that may be logged.
pub(crate) struct Entry {
    /// The client's id, which the response repeats.
    given: Option<HeaderValue>,
    line: Option<Line>,
}

struct Line {
    method: Method,
    path: String,
    id: String,
    began: Instant,
    span: Span,
}

impl Entry {
    /// The entry of a request. `logs_given_id`: whether the client's id may be logged.
    pub(crate) fn new(head: &Head, logs_given_id: impl FnOnce() -> bool) -> Self {
        let sent = head.headers.get(CORRELATION_ID);
        let given = sent.filter(|id| is_correlation_id(id.as_bytes())).cloned();
        if sent.is_some() && given.is_none() {
            // Not a warning: clients could fill the log.
            tracing::debug!("malformed correlation id ignored");
        }
        // The status is not known yet, so lines are prepared for either level.
        if !tracing::enabled!(Level::INFO) || (is_read(&head.method) && !tracing::enabled!(Level::DEBUG)) {
            return Self { given, line: None };
        }
        let shown = given.as_ref().and_then(|id| id.to_str().ok()).filter(|_| logs_given_id());
        let id = shown.map_or_else(new_correlation_id, str::to_owned);
        let span = tracing::info_span!("request", %id);
        let (method, path) = (head.method.clone(), shape(&head.path));
        Self { given, line: Some(Line { method, path, id, began: Instant::now(), span }) }
    }

    /// The span of the handler's own log lines.
    pub(crate) fn span(&self) -> Span {
        self.line.as_ref().map_or_else(Span::none, |line| line.span.clone())
    }

    /// Adds the client's id to the header of the response.
    pub(crate) fn echo(&mut self, headers: &mut HeaderMap) {
        if let Some(id) = self.given.take() {
            headers.insert(HeaderName::from_static(CORRELATION_ID), id);
        }
    }

    /// Logs the request with its status.
    pub(crate) fn finish(self, status: u16) {
        let Some(Line { method, path, id, began, .. }) = self.line else { return };
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        if is_read(&method) && status < 400 {
            tracing::debug!(%method, path, status, micros, id, "request");
        } else {
            tracing::info!(%method, path, status, micros, id, "request");
        }
    }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// A path with `*` for every segment that is not a word of an interface: lower case, no digits, short. Names
/// look like words, so what follows a segment of [`BEFORE_NAMES`] is replaced as well, and everything below
/// [`ABOVE_NAMES`].
pub(crate) fn shape(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let (mut before, mut is_below) = ("", false);
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        let is_version = segment.len() <= 3 && segment.starts_with('v');
        let is_word = segment.len() <= WORD_BYTES_MAX
            && segment.bytes().all(|byte| byte.is_ascii_lowercase() || b"-_.".contains(&byte));
        let is_name = is_below || BEFORE_NAMES.contains(&before);
        let shown = if (is_word || is_version) && !is_name { segment } else { "*" };
        let _ = write!(text, "/{shown}");
        is_below |= ABOVE_NAMES.contains(&segment);
        before = segment;
    }
    if text.is_empty() { "/".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_show_no_keys_and_no_names() {
        let key = "0QHNJ8AWTJ1GNJ7AR0ZSC9TPBYZ04TTYYWJ5S4NQK9DV2T3QS8W0";
        for (path, shown) in [
            (format!("/reserves/{key}/withdraw"), "/reserves/*/withdraw"),
            (format!("//coins/{key}/deposit/"), "/coins/*/deposit"),
            ("/".to_owned(), "/"),
            ("/keys".to_owned(), "/keys"),
            (
                "/taler-wire-gateway/alice/history/incoming".to_owned(),
                "/taler-wire-gateway/*/history/incoming",
            ),
            (
                "/taler-bank-access/accounts/bob/withdrawals/x1/confirm".to_owned(),
                "/taler-bank-access/accounts/*/withdrawals/*/confirm",
            ),
            ("/parties/ALIAS/zoe".to_owned(), "/parties/*/*"),
            ("/participants/alpha/limits".to_owned(), "/participants/*/*"),
            ("/v1/transfers".to_owned(), "/v1/transfers"),
            ("/transfers/7".to_owned(), "/transfers/*"),
            (format!("/{}", "a".repeat(30)), "/*"),
        ] {
            assert_eq!(shape(&path), shown, "{path}");
        }
    }
}

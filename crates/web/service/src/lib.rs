//! The kit of every service: its store, routes, metrics, health, notices and shutdown, and clients of other services.
//!
//! A service implements [`App`] for its state and lists its endpoints in a [`Table`]: one row and one function each.
//! [`Api`] dispatches, counts and limits requests, and answers `/health`, `/ready`, `/metrics` and `/dashboard`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

mod access;
mod answers;
mod app;
mod attempts;
pub mod dashboard;
mod front;
mod guesses;
mod metrics_page;
mod operations;
mod own_pages;
mod page;
mod readiness;
mod reads;
mod shutdown;
pub mod storage;
mod table;
mod topics;
pub mod wire_gateway;

pub use access::{Denied, TOKEN_PREFIX, require_holder, weak_token};
pub use answers::{Failures, body, large_body, malformed, path_value};
pub use app::{App, Monitor, fill_dashboard};
pub use attempts::{Attempts, Rate};
pub use batzen_http::{Reach, escape_html};
pub use front::{ListenConfig, SOCKET_MODE, front, socket_mode};
pub use guesses::{Attempt, Guesses, TooMany};
pub use own_pages::{OwnPages, PagesAddress};
pub use page::{OWN_FILES_POLICY, StaticPage, form_page, html_page, qr_code, with_policy};
pub use readiness::Readiness;
pub use reads::{read, read_aside};
pub use shutdown::{LAST_COMMITS, close, end, ended};
pub use table::{Answer, Api, Checked, Endpoint, IntoResponse, Row, Table};
pub use topics::{Poll, Tag, Topic, TopicKey, poll_deadline, tag};

//! Limits that both sides must know.

use std::time::Duration;

/// Requests of one connection that may be under way.
pub const REQUESTS_MAX: usize = 1024;
/// How long a request for the listing waits for a change: its answer is a sign of life as well.
pub const LISTING_WAIT: Duration = Duration::from_secs(10);

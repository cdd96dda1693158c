//! Limits that both sides know.

use std::time::Duration;

/// The maximum number of requests under way on one connection.
pub(crate) const REQUESTS_MAX: usize = 1024;
/// Time that a request for the listing waits for a change. Its answer also shows that the signer is alive.
pub(crate) const LISTING_WAIT: Duration = Duration::from_secs(10);

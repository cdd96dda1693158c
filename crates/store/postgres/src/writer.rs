//! A connection that commits.

use crate::client::Connection;

/// A connection that commits, and its row in `writers`.
#[derive(Debug)]
pub(crate) struct Writer {
    pub connection: Connection,
    /// The condition on `pg_stat_activity` that only the connection's server process meets.
    pub session: String,
    pub id: i64,
    pub epoch: i64,
    /// The last batch that was sent.
    pub batch: i64,
}

//! Counters, two samples of which give rates; sessions, and which waits for which.

use serde::{Deserialize, Serialize};

use super::Server;
use super::look::Look;

/// A sample of the counters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counters {
    /// The time of the sample, in seconds since 1970, by the server's clock. 0: could not be read.
    pub at: f64,
    /// Transactions committed, in all databases.
    pub commits: u64,
    /// Transactions rolled back.
    pub(crate) rollbacks: u64,
    /// Pages found in `shared_buffers`.
    pub(crate) blocks_hit: u64,
    /// Pages read from the operating system.
    pub(crate) blocks_read: u64,
    /// Bytes of the write-ahead log ever written (received, on a standby).
    pub(crate) wal_bytes: f64,
    /// Checkpoints by `checkpoint_timeout`.
    pub(crate) checkpoints_timed: u64,
    /// Checkpoints because `max_wal_size` was reached, or on request.
    pub(crate) checkpoints_requested: u64,
    /// Pages written by checkpoints.
    pub(crate) buffers_checkpoint: u64,
    /// Pages written by the background writer.
    pub(crate) buffers_clean: u64,
    /// Pages that sessions had to write themselves; `None` where the server does not count it.
    pub(crate) buffers_backend: Option<u64>,
    /// Seconds since these counters were reset.
    pub(crate) checkpoints_age: f64,
    /// Times that the buffers of the write-ahead log were full; `None` before version 14.
    pub(crate) wal_buffers_full: Option<u64>,
    /// Whole pages in the write-ahead log.
    pub(crate) wal_full_pages: Option<u64>,
    /// Bytes of the write-ahead log since these counters were reset.
    pub(crate) wal_counted_bytes: Option<f64>,
    /// Syncs of the write-ahead log.
    pub(crate) wal_syncs: Option<u64>,
    /// Seconds spent in them, if `track_wal_io_timing` is on.
    pub(crate) wal_sync_time: Option<f64>,
    pub(crate) deadlocks: u64,
}

/// Rates per second between two samples.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rates {
    /// Seconds between the samples.
    pub(crate) seconds: f64,
    /// Commits and rollbacks a second.
    pub transactions: f64,
    /// Pages accessed between the samples.
    pub(crate) blocks: u64,
    /// The share of them that was in `shared_buffers`; `None` if none was accessed.
    pub(crate) hit: Option<f64>,
    /// Bytes of the write-ahead log a second.
    pub(crate) wal: f64,
    /// Syncs of the write-ahead log a second.
    pub(crate) wal_syncs: Option<f64>,
}

impl Rates {
    /// Zero if the samples are inconsistent: a counter that decreased was reset in between.
    pub(crate) fn between(before: &Counters, after: &Counters) -> Self {
        let seconds = after.at - before.at;
        if before.at == 0.0 || after.at == 0.0 || seconds <= 0.0 {
            return Self::default();
        }
        let since = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64;
        let hit = after.blocks_hit.saturating_sub(before.blocks_hit);
        let blocks = hit + after.blocks_read.saturating_sub(before.blocks_read);
        let transactions = since(after.commits, before.commits) + since(after.rollbacks, before.rollbacks);
        let syncs = after.wal_syncs.zip(before.wal_syncs);
        Self {
            seconds,
            transactions: transactions / seconds,
            blocks,
            hit: (blocks > 0).then(|| hit as f64 / blocks as f64),
            wal: (after.wal_bytes - before.wal_bytes).max(0.0) / seconds,
            wal_syncs: syncs.map(|(later, earlier)| since(later, earlier) / seconds),
        }
    }
}

/// Reads the counters. Each part fails alone.
pub(crate) fn counters(look: &Look, server: &Server) -> Counters {
    let wal = if server.in_recovery { "pg_last_wal_replay_lsn()" } else { "pg_current_wal_lsn()" };
    let query = format!(
        "SELECT extract(epoch FROM clock_timestamp())::float8 AS at,
            coalesce(sum(xact_commit), 0)::bigint AS commits, coalesce(sum(xact_rollback), 0)::bigint AS rollbacks,
            coalesce(sum(blks_hit), 0)::bigint AS blocks_hit, coalesce(sum(blks_read), 0)::bigint AS blocks_read,
            coalesce(sum(deadlocks), 0)::bigint AS deadlocks,
            coalesce(pg_wal_lsn_diff({wal}, '0/0'), 0)::float8 AS wal_bytes
        FROM pg_stat_database"
    );
    let mut counters: Counters = look.probe_one("transactions and pages", &query).unwrap_or_default();
    // Version 17 moved the checkpointer's counters to their own view, and no longer counts pages written by
    // sessions there.
    let query = if server.version_num >= 170_000 {
        "SELECT c.num_timed AS checkpoints_timed, c.num_requested AS checkpoints_requested,
            c.buffers_written AS buffers_checkpoint, b.buffers_clean,
            coalesce(extract(epoch FROM clock_timestamp() - c.stats_reset), 0)::float8 AS checkpoints_age
        FROM pg_stat_checkpointer c, pg_stat_bgwriter b"
    } else {
        "SELECT checkpoints_timed, checkpoints_req AS checkpoints_requested, buffers_checkpoint, buffers_clean, buffers_backend,
            coalesce(extract(epoch FROM clock_timestamp() - stats_reset), 0)::float8 AS checkpoints_age
        FROM pg_stat_bgwriter"
    };
    if let Some(read) = look.probe_one::<Counters>("checkpoints", query) {
        counters.checkpoints_timed = read.checkpoints_timed;
        counters.checkpoints_requested = read.checkpoints_requested;
        counters.buffers_checkpoint = read.buffers_checkpoint;
        counters.buffers_clean = read.buffers_clean;
        counters.buffers_backend = read.buffers_backend;
        counters.checkpoints_age = read.checkpoints_age;
    }
    // From version 18 on the times are in pg_stat_io.
    let query = match server.version_num {
        ..140_000 => return counters,
        140_000..180_000 => {
            "SELECT wal_buffers_full, wal_fpi AS wal_full_pages, wal_bytes::float8 AS wal_counted_bytes, wal_sync AS wal_syncs,
                CASE WHEN current_setting('track_wal_io_timing')::bool THEN wal_sync_time / 1000 END AS wal_sync_time
            FROM pg_stat_wal"
        }
        _ => {
            "SELECT w.wal_buffers_full, w.wal_fpi AS wal_full_pages, w.wal_bytes::float8 AS wal_counted_bytes,
                i.syncs::bigint AS wal_syncs,
                CASE WHEN current_setting('track_wal_io_timing')::bool THEN i.time / 1000 END AS wal_sync_time
            FROM pg_stat_wal w, (SELECT sum(fsyncs) AS syncs, sum(fsync_time) AS time FROM pg_stat_io WHERE object = 'wal') i"
        }
    };
    if let Some(read) = look.probe_one::<Counters>("the write-ahead log's counters", query) {
        counters.wal_buffers_full = read.wal_buffers_full;
        counters.wal_full_pages = read.wal_full_pages;
        counters.wal_counted_bytes = read.wal_counted_bytes;
        counters.wal_syncs = read.wal_syncs;
        counters.wal_sync_time = read.wal_sync_time;
    }
    counters
}

/// A process of the server: a client's session or a background process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Its process.
    pub(crate) pid: i32,
    /// Its role; empty for the server's own.
    pub(crate) role: String,
    /// Its database; empty for the server's own.
    pub(crate) database: String,
    /// Its application name.
    pub(crate) application: String,
    /// The client's address; empty over a local socket.
    pub(crate) client: String,
    /// `client backend`, `autovacuum worker`, `walsender`, …
    pub(crate) kind: String,
    /// `active`, `idle`, `idle in transaction`, …; empty if the role may not see it.
    pub(crate) state: String,
    /// The event that it waits for, as `type: event`.
    pub(crate) wait: Option<String>,
    /// Its statement, or the last one.
    pub(crate) query: String,
    /// Seconds since its transaction began.
    pub(crate) transaction_age: Option<f64>,
    /// Seconds since its statement began.
    pub(crate) query_age: Option<f64>,
    /// Seconds since its state changed.
    pub(crate) state_age: Option<f64>,
    /// The age in transactions of its snapshot, which prevents the removal of dead rows.
    pub(crate) snapshot_age: Option<u64>,
    /// The processes that it waits for, if it waits for a lock.
    pub blocked_by: Vec<i32>,
}

impl Session {
    /// Returns whether it is a client's session.
    pub(crate) fn is_client(&self) -> bool {
        self.kind == "client backend"
    }

    /// Returns whether it is idle in an open transaction.
    pub(crate) fn is_idle_in_transaction(&self) -> bool {
        self.state.starts_with("idle in transaction")
    }
}

/// Reads all sessions except the doctor's.
pub(crate) fn sessions(look: &Look) -> Vec<Session> {
    let query = "SELECT a.pid, coalesce(a.usename, '')::text AS role, coalesce(a.datname, '')::text AS database,
            coalesce(a.application_name, '') AS application, coalesce(host(a.client_addr), '') AS client,
            coalesce(a.backend_type, '') AS kind, coalesce(a.state, '') AS state,
            a.wait_event_type || ': ' || a.wait_event AS wait, left(coalesce(a.query, ''), 2000) AS query,
            extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS transaction_age,
            extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS query_age,
            extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS state_age,
            age(a.backend_xmin)::bigint AS snapshot_age,
            to_json(CASE WHEN a.wait_event_type = 'Lock' THEN pg_blocking_pids(a.pid) ELSE '{}' END) AS blocked_by
        FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() ORDER BY a.pid";
    look.probe("the sessions", query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_zero_when_a_sample_is_missing_or_counters_went_back() {
        let early = Counters { at: 10.0, commits: 100, blocks_hit: 50, ..Counters::default() };
        let late =
            Counters { at: 12.0, commits: 300, blocks_hit: 80, blocks_read: 10, ..Counters::default() };
        let rates = Rates::between(&early, &late);
        assert_eq!((rates.transactions, rates.blocks, rates.hit), (100.0, 40, Some(0.75)));
        let reset = Counters { at: 12.0, commits: 1, ..Counters::default() };
        assert_eq!(Rates::between(&early, &reset).transactions, 0.0);
        assert_eq!(Rates::between(&Counters::default(), &late).transactions, 0.0);
        assert_eq!(Rates::between(&late, &late).hit, None);
    }
}

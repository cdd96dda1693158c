//! Replication, slots, archiver, prepared transactions.

use serde::{Deserialize, Serialize};

use super::Server;
use super::look::Look;

/// Replication, archiving and prepared transactions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// Standbys and subscribers.
    pub standbys: Vec<Standby>,
    pub(crate) slots: Vec<ReplicationSlot>,
    /// The archiver, if the server archives.
    pub(crate) archiver: Option<Archiver>,
    /// Prepared transactions.
    pub prepared: Vec<Prepared>,
    /// On a standby: seconds since the last replayed transaction, while there is more to replay.
    pub(crate) replay_lag: Option<f64>,
}

/// A receiver of the write-ahead log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Standby {
    /// Its application name.
    pub(crate) name: String,
    /// Its address.
    pub(crate) client: String,
    /// `streaming`, `catchup`, …
    pub(crate) state: String,
    /// `sync`, `async`, `quorum`, `potential`.
    pub(crate) sync: String,
    /// Bytes that it has not replayed.
    pub(crate) lag_bytes: Option<u64>,
    /// Seconds from commit to replay there.
    pub(crate) lag_seconds: Option<f64>,
}

/// A replication slot, for which the write-ahead log is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReplicationSlot {
    pub(crate) name: String,
    /// `physical` or `logical`.
    pub(crate) kind: String,
    /// Whether a receiver is connected.
    pub(crate) is_active: bool,
    /// Bytes kept for it.
    pub(crate) kept: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(crate) wal_status: Option<String>,
    /// The age in transactions of the oldest row that it protects from removal.
    pub(crate) xmin_age: Option<u64>,
}

/// The archiver of the write-ahead log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Archiver {
    /// Files copied.
    pub(crate) archived: u64,
    /// Attempts that failed.
    pub(crate) failed: u64,
    /// Whether the last attempt failed.
    pub(crate) is_failing: bool,
    /// Seconds since the last file was copied.
    pub(crate) last_age: Option<f64>,
    /// The file that failed last.
    pub(crate) last_failed: Option<String>,
}

/// A prepared transaction.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepared {
    pub name: String,
    pub(crate) database: String,
    pub(crate) owner: String,
    /// Seconds since it was prepared.
    pub(crate) age: f64,
}

pub(crate) fn read(look: &Look, server: &Server) -> Stream {
    let here = if server.in_recovery { "pg_last_wal_replay_lsn()" } else { "pg_current_wal_lsn()" };
    let standbys = look.probe(
        "standbys",
        &format!(
            "SELECT coalesce(application_name, '') AS name, coalesce(host(client_addr), '') AS client,
                    coalesce(state, '') AS state, coalesce(sync_state, '') AS sync,
                    greatest(pg_wal_lsn_diff({here}, replay_lsn), 0)::bigint AS lag_bytes,
                    extract(epoch FROM replay_lag)::float8 AS lag_seconds
                FROM pg_stat_replication"
        ),
    );
    let slots = look.probe(
        "replication slots",
        &format!(
            "SELECT slot_name::text AS name, slot_type AS kind, active AS is_active,
                    greatest(pg_wal_lsn_diff({here}, restart_lsn), 0)::bigint AS kept, wal_status,
                    greatest(age(xmin), age(catalog_xmin))::bigint AS xmin_age
                FROM pg_replication_slots"
        ),
    );
    let archiver = look.probe_one(
        "the archiver",
        "SELECT archived_count AS archived, failed_count AS failed,
                coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false) AS is_failing,
                extract(epoch FROM clock_timestamp() - last_archived_time)::float8 AS last_age,
                last_failed_wal AS last_failed
            FROM pg_stat_archiver WHERE current_setting('archive_mode') <> 'off'",
    );
    let prepared = look
        .probe(
            "prepared transactions",
            "SELECT gid AS name, database::text, owner::text, extract(epoch FROM clock_timestamp() - prepared)::float8 AS age
            FROM pg_prepared_xacts ORDER BY prepared",
        );
    #[derive(Deserialize)]
    struct Lag {
        lag: Option<f64>,
    }
    let replay: Option<Lag> = look
        .probe_one(
            "the standby's lag",
            "SELECT CASE WHEN pg_is_in_recovery() AND pg_last_wal_receive_lsn() IS DISTINCT FROM pg_last_wal_replay_lsn()
                THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 END AS lag",
        );
    Stream { standbys, slots, archiver, prepared, replay_lag: replay.and_then(|row| row.lag) }
}

//! Facts about a Citus cluster, from its coordinator.

use serde::{Deserialize, Serialize};

use super::look::Look;

/// The cluster that the connected database belongs to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Citus {
    /// The version of the extension.
    pub(crate) version: String,
    pub nodes: Vec<Node>,
}

/// A node, which may be the coordinator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its host and port, as the coordinator reaches it.
    pub name: String,
    /// Whether it has the metadata of all tables.
    pub is_synced: bool,
    /// Whether it answers.
    pub answers: bool,
    /// `max_prepared_transactions`; `None` if it did not say.
    pub prepared_max: Option<u64>,
    /// `synchronous_commit`; empty if it did not say.
    pub synchronous_commit: String,
}

/// Reads the cluster; `None` if the database is in none.
pub(crate) fn read(look: &Look) -> Option<Citus> {
    let query = "SELECT extversion AS version FROM pg_extension WHERE extname = 'citus'";
    let mut citus: Citus = look.query(query).ok()?.pop()?;
    citus.nodes = look.probe(
        "the nodes of the Citus cluster",
        "SELECT n.nodename || ':' || n.nodeport AS name, n.hasmetadata AND n.metadatasynced AS is_synced,
            coalesce(r.success, false) AS answers,
            CASE WHEN r.success THEN split_part(r.result, ' ', 1)::bigint END AS prepared_max,
            CASE WHEN r.success THEN split_part(r.result, ' ', 2) ELSE '' END AS synchronous_commit
        FROM pg_dist_node n LEFT JOIN (
            SELECT w.nodeid, w.success, w.result FROM run_command_on_all_nodes($$SELECT
                current_setting('max_prepared_transactions') || ' ' || current_setting('synchronous_commit')$$,
                give_warning_for_connection_errors := true) w) r ON r.nodeid = n.nodeid
        WHERE n.isactive AND n.noderole = 'primary' ORDER BY n.nodeid",
    );
    Some(citus)
}

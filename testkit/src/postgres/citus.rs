//! A Citus cluster: a coordinator and workers, each a throw-away cluster of its own on this machine.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::postgres::cluster::SUPERUSER;
use crate::postgres::process::wait_until;
use crate::postgres::{Cluster, ClusterError, ClusterOptions, Installation};

/// Advice for a machine without the extension.
pub const CITUS_MISSING: &str =
    "the Citus suite did not run: the extension is not installed (docs/postgresql.md#citus)";

/// A coordinator and its workers. Every node has the metadata of all tables.
#[derive(Debug)]
pub struct CitusCluster {
    coordinator: Cluster,
    workers: Vec<Cluster>,
    databases: AtomicU32,
    /// Nodes are joined one database at a time: two at once would change the same rows.
    joining: Mutex<()>,
}

impl CitusCluster {
    /// Returns whether the extension is installed for the PostgreSQL that clusters are made from.
    #[must_use]
    pub fn is_installed() -> bool {
        let Ok(installation) = Installation::find() else { return false };
        // Debian keeps a `pg_config` of each version beside its programs.
        let Ok(output) = installation.command("pg_config").arg("--sharedir").output() else { return false };
        let shared = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        !shared.is_empty() && std::path::Path::new(&shared).join("extension/citus.control").is_file()
    }

    /// Starts a coordinator and this many workers. They have no database with the extension yet.
    ///
    /// # Errors
    /// PostgreSQL or the extension is not installed, or a server does not start.
    pub fn start(workers: usize, options: &ClusterOptions) -> Result<Self, ClusterError> {
        let options = options
            .clone()
            .set("shared_preload_libraries", "citus")
            .set("max_prepared_transactions", "200")
            .set("max_connections", "300")
            // Each database has a process for its maintenance.
            .set("max_worker_processes", "200")
            .set("citus.recover_2pc_interval", "1s")
            .set("citus.node_conninfo", "sslmode=prefer")
            // The coordinator connects to itself to move shards, with the password for this address.
            .set("citus.local_hostname", "127.0.0.1")
            .set("citus.enable_statistics_collection", "off");
        let coordinator = Cluster::start_peer(&options, None)?;
        let start = |_| Cluster::start_peer(&options, Some(&coordinator));
        let workers = (0..workers).map(start).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { coordinator, workers, databases: AtomicU32::new(0), joining: Mutex::default() })
    }

    /// Creates a database on all nodes, and joins them. Returns its address at the coordinator.
    ///
    /// # Errors
    /// A node refuses.
    pub fn create_database(&self, name: &str) -> Result<String, ClusterError> {
        let _alone = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        for node in std::iter::once(&self.coordinator).chain(&self.workers) {
            node.sql(SUPERUSER, &format!("CREATE DATABASE \"{name}\""))?;
            node.sql(name, "CREATE EXTENSION citus")?;
        }
        let add = |function: &str, node: &Cluster| {
            self.coordinator.sql(name, &format!("SELECT {function}('127.0.0.1', {})", node.port())).map(drop)
        };
        add("citus_set_coordinator_host", &self.coordinator)?;
        self.workers.iter().try_for_each(|worker| add("citus_add_node", worker))?;
        let synced = "SELECT bool_and(hasmetadata AND metadatasynced) FROM pg_dist_node";
        wait_until("the sync of metadata", || Ok(self.coordinator.sql(name, synced)? == "t"))?;
        Ok(self.coordinator.url(name))
    }

    /// Creates a database with a new name; see [`CitusCluster::create_database`].
    ///
    /// # Errors
    /// A node refuses.
    pub fn fresh_database(&self) -> Result<String, ClusterError> {
        self.create_database(&format!("citus_{}", self.databases.fetch_add(1, Ordering::Relaxed)))
    }

    /// The coordinator, and then the workers.
    pub fn nodes(&self) -> impl Iterator<Item = &Cluster> {
        std::iter::once(&self.coordinator).chain(&self.workers)
    }

    pub fn coordinator(&self) -> &Cluster {
        &self.coordinator
    }

    /// The coordinator, to stop or kill it.
    pub fn coordinator_mut(&mut self) -> &mut Cluster {
        &mut self.coordinator
    }

    pub fn workers(&self) -> &[Cluster] {
        &self.workers
    }

    /// The workers, to stop or kill them.
    pub fn workers_mut(&mut self) -> &mut [Cluster] {
        &mut self.workers
    }
}

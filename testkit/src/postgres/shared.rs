//! One cluster for all tests of a process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::postgres::{CITUS_MISSING, CitusCluster, Cluster, ClusterOptions};

static SHARED: OnceLock<Cluster> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The cluster that all tests of this process share; the first caller starts it. Each test takes its own
/// database ([`fresh_database`]). It ends with the process.
///
/// # Panics
/// If it cannot be started. The message says what to install if PostgreSQL is missing.
pub fn shared() -> &'static Cluster {
    SHARED.get_or_init(|| {
        // These tests simulate failures of the server, not of the machine, so nothing needs a sync.
        let options = ClusterOptions::unsynced();
        Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"))
    })
}

static CITUS: OnceLock<Option<CitusCluster>> = OnceLock::new();

/// The Citus cluster, with two workers, that all tests of this process share. `None` if the extension is not
/// installed, which the first caller says in one line.
///
/// # Panics
/// If it is installed, but does not start.
pub fn shared_citus() -> Option<&'static CitusCluster> {
    let start = || {
        if !CitusCluster::is_installed() {
            eprintln!("{CITUS_MISSING}");
            return None;
        }
        let options = ClusterOptions::unsynced();
        Some(CitusCluster::start(2, &options).unwrap_or_else(|error| panic!("{error}")))
    };
    CITUS.get_or_init(start).as_ref()
}

/// Creates an empty database in the shared cluster and returns its address.
///
/// # Panics
/// When it cannot be created.
pub fn fresh_database() -> String {
    let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    shared().create_database(&name).unwrap_or_else(|error| panic!("{error}"))
}

//! One cluster for all tests of a process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Cluster, ClusterOptions};

static SHARED: OnceLock<Cluster> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The cluster that all tests of this process share, started by the first who asks. Each takes a database of its own
/// ([`fresh_database`]). It ends with the process.
///
/// # Panics
/// When it cannot be started: the message says what to install if PostgreSQL is missing.
pub fn shared() -> &'static Cluster {
    SHARED.get_or_init(|| {
        // Tests look for what is lost with the server, not with the machine's power.
        let options = ClusterOptions { fsync: false, ..ClusterOptions::default() };
        Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// The address of a new, empty database in the shared cluster.
///
/// # Panics
/// When it cannot be made.
pub fn fresh_database() -> String {
    let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    shared().create_database(&name).unwrap_or_else(|error| panic!("{error}"))
}

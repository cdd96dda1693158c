//! Throw-away PostgreSQL clusters for demos, measurements and tests.
//!
//! A [`Cluster`] is a real server made from the programs that the distribution has installed: `initdb`, its
//! own data directory, its own port, its own Unix socket. It touches nothing else on the machine, in
//! particular no cluster of the distribution. It ends with the program that started it, even if that is
//! killed.
//!
//! | module | content |
//! |---|---|
//! | `install` | the installed programs and the user that runs them: PostgreSQL refuses to run as root |
//! | `cluster` | start, stop, kill and restart; databases and addresses |
//! | `citus` | a Citus cluster: a coordinator and workers |
//! | `replica` | standbys, and their promotion |
//! | `process` | a postmaster with all its children, and the guard that stops it after its owner |
//! | `shared` | one cluster for all tests of a process |
//! | `pooler` | PgBouncer in front of a cluster |
//! | `proxy` | a TCP proxy that cuts connections at a chosen moment; `wire` parses as much of the protocol as that needs |

mod citus;
mod cluster;
mod install;
mod pooler;
mod process;
mod proxy;
mod replica;
mod shared;
mod wire;

use std::path::PathBuf;

pub use citus::{CITUS_MISSING, CitusCluster};
pub use cluster::{Cluster, ClusterOptions, Mode};
pub use install::Installation;
pub(crate) use install::MISSING;
pub use pooler::{PoolMode, Pooler};
pub use proxy::{Moment, Proxy, Rest};
pub use shared::{fresh_database, shared, shared_citus};

/// Why a cluster could not be started or controlled.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// PostgreSQL is not installed.
    #[error("{MISSING}")]
    Missing,
    /// The installed one is too old.
    #[error("PostgreSQL {0} is installed, but Batzen needs 15 or later: sudo apt-get install postgresql")]
    TooOld(u32),
    /// The current user is root, and there is no other user to run it as.
    #[error("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")]
    NoUser,
    /// A program of PostgreSQL failed.
    #[error("{program}: {text}")]
    Program {
        /// Its name.
        program: &'static str,
        /// Its output.
        text: String,
    },
    /// The server did not start.
    #[error("PostgreSQL did not start: {0}")]
    Start(String),
    /// Something took too long.
    #[error("{0} took more than two minutes")]
    Slow(&'static str),
    /// A file or process operation failed.
    #[error("{path}: {error}")]
    Io {
        /// Its name.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
}

impl ClusterError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }
}

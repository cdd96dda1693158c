//! Throw-away PostgreSQL clusters: of demonstrations, measurements and tests.
//!
//! A [`Cluster`] is a real server made from the programs that the distribution has installed: `initdb`, its own data
//! directory, its own port, its own Unix socket. Nothing else on the machine is touched, above all no cluster that the
//! distribution runs. It ends with its owner, however that ends.
//!
//! | module | what it holds |
//! |---|---|
//! | `install` | where the programs are, and as whom they run: PostgreSQL refuses to run as root |
//! | `cluster` | start, stop, kill and start again; databases and addresses |
//! | `replica` | standbys, and their promotion |
//! | `process` | a postmaster with all its children, and the guard that ends it after its owner |
//! | `shared` | one cluster for all tests of a process |
//! | `proxy` | a TCP proxy that cuts connections at a chosen moment; `wire` knows the protocol as far as that takes |

mod cluster;
mod install;
mod process;
mod proxy;
mod replica;
mod shared;
mod wire;

use std::path::PathBuf;

pub use cluster::{Cluster, ClusterOptions, Mode};
pub use install::{Installation, MISSING};
pub use proxy::{Moment, Proxy, Rest};
pub use shared::{fresh_database, shared};

/// Why there is no cluster, or why it did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// PostgreSQL is not installed.
    #[error("{MISSING}")]
    Missing,
    /// The installed one is too old.
    #[error("PostgreSQL {0} is installed, but Batzen needs 15 or later: sudo apt-get install postgresql")]
    TooOld(u32),
    /// We are root, and there is nobody else to run it as.
    #[error("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody")]
    NoUser,
    /// A program of PostgreSQL failed.
    #[error("{program}: {text}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What it said.
        text: String,
    },
    /// The server did not come up.
    #[error("PostgreSQL did not start: {0}")]
    Start(String),
    /// Something took too long.
    #[error("{0} took more than two minutes")]
    Slow(&'static str),
    /// A file or a process.
    #[error("{path}: {error}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl ClusterError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }
}

//! Why an exchange cannot start.

use batzen_store::StoreError;

use crate::config::ConfigError;
use crate::keys::KeyError;

/// Why an exchange cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be opened.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// Private keys cannot be loaded or created.
    #[error("keys: {0}")]
    Keys(#[from] KeyError),
    /// The port or socket cannot be bound.
    #[error("{0}")]
    Listen(std::io::Error),
    /// The legal documents cannot be read.
    #[error("{directory}: {source}")]
    Documents {
        /// Where they should be.
        directory: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The set-up by itself failed.
    #[error("set-up: {0}")]
    Setup(String),
}

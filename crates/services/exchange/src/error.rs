//! Reasons why an exchange cannot start.

use batzen_store::StoreError;

use crate::config::ConfigError;
use crate::keys::{KeyError, KeyRoundError};

/// Reasons why an exchange cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be opened.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// Private keys cannot be loaded or created.
    #[error("keys: {0}")]
    Keys(#[from] KeyError),
    /// The key that encrypts customers' attributes cannot be read or created.
    #[error("identification of customers: {0}")]
    Kyc(String),
    /// The port or socket cannot be bound.
    #[error("{0}")]
    Listen(std::io::Error),
    /// The legal documents cannot be read.
    #[error("{directory}: {source}")]
    Documents {
        /// Their directory.
        directory: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The first round of key maintenance or the stand-alone set-up failed.
    #[error("set-up: {0}")]
    Setup(#[from] KeyRoundError),
}

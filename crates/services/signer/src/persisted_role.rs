//! The role of a signer, which survives restarts.
//!
//! Every promotion has a higher epoch than all that were known before. If two signers both consider
//! themselves primary, the one with the lower epoch gives way when it sees the other.

use std::path::Path;

use crate::files::{KeyFileError, create_private_directory, write_private_file};
use crate::service_config::Role;

/// The role of a signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PersistedRole {
    /// Whether it is the primary, which creates keys.
    pub(crate) role: Role,
    /// The number of the promotion that set the role; 0 if the configuration set it.
    pub(crate) epoch: u64,
}

impl PersistedRole {
    /// The stored role, or else the configured one.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn load(path: &Path, configured: Role) -> Result<Self, KeyFileError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).ok_or_else(|| KeyFileError::Damaged {
                path: path.to_owned(),
                reason: "expected a role and an epoch, such as: primary 3",
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self { role: configured, epoch: 0 })
            }
            Err(source) => Err(KeyFileError::Io { path: path.to_owned(), source }),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (role, epoch) = text.trim().split_once(' ')?;
        Some(Self { role: Role::from_name(role)?, epoch: epoch.parse().ok()? })
    }

    /// Stores the role.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn store(self, path: &Path) -> Result<(), KeyFileError> {
        if let Some(directory) = path.parent() {
            create_private_directory(directory)?;
        }
        write_private_file(path, format!("{} {}\n", self.role.name(), self.epoch).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_outlasts_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("signer/state");
        let configured = PersistedRole::load(&path, Role::Follower).unwrap();
        assert_eq!(configured, PersistedRole { role: Role::Follower, epoch: 0 });
        let promoted = PersistedRole { role: Role::Primary, epoch: 7 };
        promoted.store(&path).unwrap();
        assert_eq!(PersistedRole::load(&path, Role::Follower).unwrap(), promoted);
        std::fs::write(&path, "primary").unwrap();
        assert!(PersistedRole::load(&path, Role::Follower).is_err());
    }
}

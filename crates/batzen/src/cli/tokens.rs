//! Access tokens, and the files that hold them.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use batzen_crypto::{base32, fill_random};
use batzen_service::{TOKEN_PREFIX, weak_token};

/// Size of a token's random part, in bytes.
const TOKEN_BYTES: usize = 32;

/// A new token.
pub(super) fn random() -> String {
    let mut random = [0; TOKEN_BYTES];
    fill_random(&mut random);
    format!("{TOKEN_PREFIX}{}", base32::encode(&random))
}

/// Writes a token into a new file that only its owner can read.
///
/// # Errors
/// The system's error, also if there is such a file.
pub(super) fn write(path: &Path, token: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    file.sync_all()
}

/// Reads the token in a file.
///
/// # Errors
/// The file cannot be read, or its token can be guessed.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let token = text.trim();
    if let Some(why) = weak_token(token) {
        bail!("{}: {why}", path.display());
    }
    Ok(token.to_owned())
}

/// Reads the token in a file, which is made if it is missing.
///
/// # Errors
/// As [`read`].
pub(super) fn read_or_make(path: &Path) -> anyhow::Result<String> {
    match write(path, &random()) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => read(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_missing_file_is_made_once_and_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = read_or_make(&path).unwrap();
        assert!(token.len() > 40 && token.starts_with(TOKEN_PREFIX), "{token}");
        assert_eq!(read_or_make(&path).unwrap(), token);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "secret-token:x\n").unwrap();
        assert!(read_or_make(&path).unwrap_err().to_string().contains("guessed"));
        assert!(read_or_make(&dir.path().join("none/token")).is_err());
    }
}

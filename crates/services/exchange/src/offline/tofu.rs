//! Trust on first use: the security modules' keys must not change after they were first seen.

use std::path::Path;

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::api::exchange::FutureKeys;

use super::{OfflineConfig, OfflineError};
use batzen_signer::files::{self, KeyFileError};

/// The public keys of the three security modules. All zero: the module has not announced itself yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleKeys {
    /// Announces RSA denomination keys.
    pub(crate) rsa: EddsaPublicKey,
    /// Announces CS denomination keys.
    pub(crate) cs: EddsaPublicKey,
    /// Announces online signing keys.
    pub(crate) eddsa: EddsaPublicKey,
}

impl ModuleKeys {
    const SIZE: usize = 96;

    /// The keys as an exchange announces them.
    pub(crate) fn announced(keys: &FutureKeys) -> Self {
        Self {
            rsa: keys.denom_secmod_public_key,
            cs: keys.denom_secmod_cs_public_key,
            eddsa: keys.signkey_secmod_public_key,
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.rsa, self.cs, self.eddsa].iter().flat_map(|key| *key.as_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let key = |index: usize| {
            let part = &bytes[index * 32..(index + 1) * 32];
            EddsaPublicKey::from_bytes(part.try_into().expect("a third of 96 bytes"))
        };
        Self { rsa: key(0), cs: key(1), eddsa: key(2) }
    }
}

fn load(path: &Path) -> Result<Option<ModuleKeys>, OfflineError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let bytes: &[u8; ModuleKeys::SIZE] =
                bytes.as_slice().try_into().map_err(|_| KeyFileError::Damaged {
                    path: path.to_path_buf(),
                    reason: "three public keys have exactly 96 bytes",
                })?;
            Ok(Some(ModuleKeys::from_bytes(bytes)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeyFileError::Io { path: path.to_path_buf(), source }.into()),
    }
}

/// Checks one module: known key, pinned key, announced key. Returns the key to remember.
fn check_one(
    name: &str,
    known: EddsaPublicKey,
    pinned: Option<EddsaPublicKey>,
    announced: EddsaPublicKey,
) -> Result<EddsaPublicKey, OfflineError> {
    if announced.is_zero() {
        return Ok(known);
    }
    if !known.is_zero() {
        if known == announced {
            return Ok(known);
        }
        return Err(OfflineError::Refused(format!(
            "the {name} security module has the key {announced}, but was known with {known}"
        )));
    }
    match pinned {
        Some(pinned) if pinned != announced => Err(OfflineError::Refused(format!(
            "the {name} security module has the key {announced}, but {pinned} is configured"
        ))),
        _ => Ok(announced),
    }
}

/// Checks announced module keys against the remembered ones (or, the first time, the configured ones), and
/// remembers new ones.
///
/// # Errors
/// [`OfflineError::Refused`] when a key has changed.
pub(crate) fn check_modules(config: &OfflineConfig, announced: &ModuleKeys) -> Result<(), OfflineError> {
    let nothing =
        ModuleKeys { rsa: EddsaPublicKey::ZERO, cs: EddsaPublicKey::ZERO, eddsa: EddsaPublicKey::ZERO };
    let known = match &config.secm_tofu_file {
        Some(path) => load(path)?.unwrap_or(nothing),
        None => nothing,
    };
    let checked = ModuleKeys {
        rsa: check_one("RSA", known.rsa, config.pinned_rsa, announced.rsa)?,
        cs: check_one("CS", known.cs, config.pinned_cs, announced.cs)?,
        eddsa: check_one("EdDSA", known.eddsa, config.pinned_eddsa, announced.eddsa)?,
    };
    if checked != known
        && let Some(path) = &config.secm_tofu_file
    {
        if let Some(directory) = path.parent() {
            files::create_private_directory(directory)?;
        }
        files::write_private_file(path, &checked.to_bytes())?;
    }
    Ok(())
}

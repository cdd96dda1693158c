//! Transfer of private keys between signers of one exchange: what the primary exports, and what a follower
//! stores and erases.

use batzen_crypto::denom::Cipher;
use batzen_crypto::{CryptoError, ExpandedSigner};
use zeroize::Zeroizing;

use super::{HeldKey, KeyError, SecurityModules, SigningKey, decode, kind_of};
use crate::config::ModuleKind;
use crate::files::{self, KeyKind, StoredKey};
use crate::listing::{DenomInfo, SigningInfo};

/// A private key in transfer between signers of one exchange.
pub enum Secret {
    /// The modules' own keys: RSA, Clause Blind Schnorr, EdDSA.
    Modules([Zeroizing<[u8; 32]>; 3]),
    Denomination(Cipher, String, StoredKey),
    /// An online signing key.
    Signing(StoredKey),
}

impl SecurityModules {
    /// The modules' own private keys, for a follower.
    pub(crate) fn export_own(&self) -> Option<Secret> {
        let own = self.own.get()?;
        let seed = |kind| {
            let key: &ExpandedSigner = own.of(kind)?;
            Some(Zeroizing::new(*key.private_key().as_bytes()))
        };
        let [rsa, cs, eddsa] = ModuleKind::ALL.map(seed);
        Some(Secret::Modules([rsa?, cs?, eddsa?]))
    }

    /// A denomination's private key, for a follower.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub(crate) fn export(key: &HeldKey) -> Result<Secret, CryptoError> {
        let stored =
            StoredKey { anchor: key.info.anchor, duration: key.stored, secret: key.secret.to_bytes()? };
        Ok(Secret::Denomination(key.cipher(), key.info.section.clone(), stored))
    }

    /// An online signing key, for a follower.
    pub(crate) fn export_signing(key: &SigningKey) -> Secret {
        let secret = Zeroizing::new(key.signer.private_key().as_bytes().to_vec());
        Secret::Signing(StoredKey { anchor: key.info.anchor, duration: key.stored, secret })
    }

    /// Takes over a private key from the primary signer: stores it, then holds it. The modules' own keys are
    /// taken over once and never replaced.
    ///
    /// # Errors
    /// If it cannot be stored, or is malformed.
    pub(crate) async fn adopt(&self, secret: &Secret) -> Result<(), KeyError> {
        let _guard = self.lock_key_files().await?;
        match secret {
            Secret::Modules(keys) => {
                if self.own.get().is_none() {
                    for (path, key) in self.own_paths.iter().zip(keys) {
                        if let Some(directory) = path.parent() {
                            files::create_private_directory(directory)?;
                        }
                        files::write_private_file(path, key.as_slice())?;
                    }
                    self.create_own()?;
                }
                Ok(())
            }
            Secret::Denomination(cipher, section, stored) => {
                let directory = self.directory(*cipher).join(section);
                // Never store a key that would not load.
                decode(*cipher, &stored.secret)
                    .map_err(|source| KeyError::Crypto { path: directory.clone(), source })?;
                files::store(&directory, kind_of(*cipher), stored)?;
                self.insert_denomination(*cipher, section, stored)
            }
            Secret::Signing(stored) => {
                files::store(self.eddsa_dir(), KeyKind::Eddsa, stored)?;
                self.insert_signing(stored)
            }
        }
    }

    /// Erases every key for which neither `keeps` nor `keeps_signing` holds: keys that the primary no longer
    /// has.
    ///
    /// # Errors
    /// If a file cannot be erased.
    pub(crate) async fn retain(
        &self,
        keeps: impl Fn(&DenomInfo) -> bool + Send,
        keeps_signing: impl Fn(&SigningInfo) -> bool + Send,
    ) -> Result<usize, KeyError> {
        let _guard = self.lock_key_files().await?;
        let mut erased = 0;
        for key in self.denominations() {
            if !keeps(&key.info) {
                self.forget(&key);
                self.erase_file(&key.info)?;
                erased += 1;
            }
        }
        for key in self.signing_keys() {
            if !keeps_signing(&key.info) {
                self.lock().signing.remove(&key.info.anchor);
                files::erase(self.eddsa_dir(), key.info.anchor)?;
                erased += 1;
            }
        }
        Ok(erased)
    }
}

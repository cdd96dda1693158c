//! Taking turns on the key files: services that share a machine share them. Who creates, replaces or erases keys does so alone,
//! in his process and among all that have the files open, and begins with what others have done; so no key is made twice, and
//! none is in one process' memory alone.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use batzen_crypto::denom::Cipher;
use batzen_engine::run_long;

use super::{KeyError, SecurityModules, kind_of};
use crate::files::{self, KeyFileError, KeyKind, StoredKey};

/// A start that meets a file in the moment in which another process erases it looks again so often ...
const LOOKS_MAX: u32 = 20;
/// ... after this time.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Whose turn it is.
#[derive(Default)]
pub(super) struct Turns {
    here: tokio::sync::Mutex<()>,
    /// Keys that were taken up and not told of.
    taken_up: AtomicUsize,
}

/// The right to change keys. The lock among processes ends with the file.
pub(super) struct Turn<'a> {
    _here: tokio::sync::MutexGuard<'a, ()>,
    _everywhere: File,
}

impl SecurityModules {
    /// Waits for the turn, perhaps as long as another process makes keys, and takes up what others have made.
    pub(super) async fn turn(&self) -> Result<Turn<'_>, KeyError> {
        let here = self.turns.here.lock().await;
        let directory = self.eddsa_dir.clone();
        let file = files::open_lock(&directory)?;
        let file = if files::try_lock(&file, &directory)? {
            file
        } else {
            let wait = move || files::lock(&file, &directory).map(|()| file);
            run_long("keys-lock", wait).await?
        };
        self.take_up(true)?;
        Ok(Turn { _here: here, _everywhere: file })
    }

    /// Takes up the keys that other processes on these files have made or replaced. Says how many there were since the last
    /// time that it was asked.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub async fn refresh(&self) -> Result<usize, KeyError> {
        let _turn = self.turn().await?;
        Ok(self.turns.taken_up.swap(0, Relaxed))
    }

    /// Loads all keys without waiting: another process may be making some for a long time.
    pub(super) fn load_at_start(&self) -> Result<(), KeyError> {
        let lock = files::open_lock(&self.eddsa_dir)?;
        let is_alone = files::try_lock(&lock, &self.eddsa_dir)?;
        let mut looks = 0;
        while let Err(error) = self.take_up(is_alone) {
            looks += 1;
            if is_alone || looks == LOOKS_MAX {
                return Err(error);
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        self.turns.taken_up.store(0, Relaxed);
        Ok(())
    }

    fn take_up(&self, cleans: bool) -> Result<(), KeyError> {
        if self.own.get().is_none() {
            return Ok(());
        }
        for cipher in [Cipher::Rsa, Cipher::Cs] {
            self.take_up_sections(cipher, cleans)?;
        }
        for stored in files::load(&self.eddsa_dir, KeyKind::Eddsa, cleans)? {
            let held = self.lock().signing.get(&stored.anchor).cloned();
            let is_held = held.is_some_and(|key| {
                key.stored == stored.duration
                    && key.signer.private_key().as_bytes().as_slice() == stored.secret.as_slice()
            });
            if !is_held {
                self.insert_signing(&stored)?;
                self.turns.taken_up.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    fn take_up_sections(&self, cipher: Cipher, cleans: bool) -> Result<(), KeyError> {
        let root = self.directory(cipher);
        let io = |source| KeyFileError::Io { path: root.clone(), source };
        let entries = match std::fs::read_dir(root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(io)?,
        };
        for entry in entries {
            let entry = entry.map_err(io)?;
            let Ok(section) = entry.file_name().into_string() else { continue };
            if !entry.path().is_dir() || section.starts_with('.') {
                continue;
            }
            for stored in files::load(&entry.path(), kind_of(cipher), cleans)? {
                if !self.holds(cipher, &section, &stored) {
                    self.insert_denomination(cipher, &section, &stored)?;
                    self.turns.taken_up.fetch_add(1, Relaxed);
                }
            }
        }
        Ok(())
    }

    fn holds(&self, cipher: Cipher, section: &str, stored: &StoredKey) -> bool {
        let keys = self.lock();
        let held = keys.denoms.get(&(cipher, section.to_owned())).and_then(|keys| keys.get(&stored.anchor));
        held.is_some_and(|key| {
            key.stored == stored.duration && key.secret.to_bytes().is_ok_and(|bytes| *bytes == *stored.secret)
        })
    }
}

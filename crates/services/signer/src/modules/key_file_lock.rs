//! The lock on the key files, which services on one machine share. Only its holder creates, replaces or
//! erases keys, and it first loads the keys that other processes have written. So no key is created twice,
//! and no key is in the memory of only one process. Each directory of keys has its own lock: a process that
//! holds one kind of keys shares it with a process that holds all.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use batzen_crypto::denom::Cipher;
use batzen_engine::run_long;

use super::{KeyError, SecurityModules, kind_of};
use crate::config::ModuleKind;
use crate::files::{self, KeyFileError, KeyKind, StoredKey};

/// Number of times that a start loads the files again if another process erases one meanwhile ...
const LOADS_MAX: u32 = 20;
/// ... and the pause between two attempts.
const LOAD_PAUSE: Duration = Duration::from_millis(50);

/// The lock, within this process and among processes.
#[derive(Default)]
pub(super) struct KeyFileLock {
    process: tokio::sync::Mutex<()>,
    /// Keys loaded since the last [`SecurityModules::refresh`].
    taken_up: AtomicUsize,
}

/// Permits its holder to change keys. The locks between processes end with the files.
pub(super) struct KeyFileGuard<'a> {
    _process: tokio::sync::MutexGuard<'a, ()>,
    _machine: Vec<File>,
}

impl SecurityModules {
    /// Waits for the lock, possibly while another process creates keys, and loads the keys of other
    /// processes.
    pub(super) async fn lock_key_files(&self) -> Result<KeyFileGuard<'_>, KeyError> {
        let process_guard = self.key_file_lock.process.lock().await;
        let mut locks = Vec::new();
        // Every process takes them in the same order.
        for directory in self.lock_directories()? {
            let file = files::open_lock(&directory)?;
            if files::try_lock(&file, &directory)? {
                locks.push(file);
            } else {
                let wait = move || files::lock(&file, &directory).map(|()| file);
                locks.push(run_long("keys-lock", wait).await?);
            }
        }
        self.take_up(true)?;
        Ok(KeyFileGuard { _process: process_guard, _machine: locks })
    }

    /// Loads the keys that other processes have created or replaced in these files. Returns their number
    /// since the last call.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub async fn refresh(&self) -> Result<usize, KeyError> {
        let _guard = self.lock_key_files().await?;
        Ok(self.key_file_lock.taken_up.swap(0, Relaxed))
    }

    /// Loads all keys without waiting for the lock: another process may hold it for a long time.
    pub(super) fn load_at_start(&self) -> Result<(), KeyError> {
        let mut locks = Vec::new();
        let mut is_alone = true;
        for directory in self.lock_directories()? {
            let lock = files::open_lock(&directory)?;
            is_alone &= files::try_lock(&lock, &directory)?;
            locks.push(lock);
        }
        let mut loads = 0;
        while let Err(error) = self.take_up(is_alone) {
            loads += 1;
            if is_alone || loads == LOADS_MAX {
                return Err(error);
            }
            std::thread::sleep(LOAD_PAUSE);
        }
        self.key_file_lock.taken_up.store(0, Relaxed);
        Ok(())
    }

    /// The directories to lock, each once, even if the configuration names one twice.
    fn lock_directories(&self) -> Result<Vec<PathBuf>, KeyFileError> {
        let mut directories = Vec::new();
        for directory in self.held_directories() {
            files::create_private_directory(directory)?;
            let io = |source| KeyFileError::Io { path: directory.to_owned(), source };
            directories.push(directory.canonicalize().map_err(io)?);
        }
        directories.sort();
        directories.dedup();
        Ok(directories)
    }

    fn take_up(&self, cleans: bool) -> Result<(), KeyError> {
        if self.own.get().is_none() {
            return Ok(());
        }
        for cipher in [Cipher::Rsa, Cipher::Cs] {
            if self.holds_kind(ModuleKind::of_cipher(cipher)) {
                self.take_up_sections(cipher, cleans)?;
            }
        }
        if !self.holds_kind(ModuleKind::Eddsa) {
            return Ok(());
        }
        for stored in files::load(self.eddsa_dir(), KeyKind::Eddsa, cleans)? {
            let held = self.lock().signing.get(&stored.anchor).cloned();
            let is_held = held.is_some_and(|key| {
                key.stored == stored.duration
                    && key.signer.private_key().as_bytes().as_slice() == stored.secret.as_slice()
            });
            if !is_held {
                self.insert_signing(&stored)?;
                self.key_file_lock.taken_up.fetch_add(1, Relaxed);
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
                    self.key_file_lock.taken_up.fetch_add(1, Relaxed);
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

//! Private keys on disk: one file per key, `DIRECTORY/START_SECONDS`, readable only by the owner.
//!
//! A file appears complete or not at all (temporary file, fsync, rename, fsync of the directory). With its
//! checksum, a damaged key is an error at the start and not a source of wrong signatures.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use batzen_crypto::hash::sha512_parts;
use batzen_protocol::{Duration, Timestamp};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"BTZKEY\x00\x01";
const CHECKSUM_SIZE: usize = 32;
const HEADER_SIZE: usize = MAGIC.len() + 1 + 8;
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Kind of the key in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// An RSA denomination key.
    Rsa = 1,
    /// A Clause Blind Schnorr denomination key.
    Cs = 2,
    /// An online signing key.
    Eddsa = 3,
}

/// One key as stored.
pub struct StoredKey {
    /// The start of its use, in whole seconds, which is the file's name.
    pub(crate) anchor: Timestamp,
    /// Time that it is used.
    pub(crate) duration: Duration,
    /// The private key in the encoding of its kind.
    pub(crate) secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredKey").field("anchor", &self.anchor).finish_non_exhaustive()
    }
}

/// Why key files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The operating system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a key of the expected kind, or is damaged.
    #[error("{path}: {reason}; move it away to have the key replaced")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: &'static str,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> KeyFileError + '_ {
    move |source| KeyFileError::Io { path: path.to_path_buf(), source }
}

/// Creates a directory for secrets (mode 0700), with its parents, if it does not exist.
pub fn create_private_directory(path: &Path) -> Result<(), KeyFileError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))
}

/// Writes a file that only the owner can read. After a crash at any moment, the file is either complete or
/// missing. An existing file is replaced.
pub fn write_private_file(path: &Path, content: &[u8]) -> Result<(), KeyFileError> {
    let directory = path.parent().expect("private files live in a directory");
    let name = path.file_name().expect("private files have a name").to_string_lossy();
    let temporary = directory.join(format!(".{name}{TEMPORARY_SUFFIX}"));
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(at(path))
}

/// Creates a file that only the owner can read, unless it exists. If several processes do so at once, exactly
/// one succeeds. False if it existed.
pub fn create_private_file(path: &Path, content: &[u8]) -> Result<bool, KeyFileError> {
    let directory = path.parent().expect("private files live in a directory");
    let name = path.file_name().expect("private files have a name").to_string_lossy();
    let mut unique = [0; 8];
    batzen_crypto::fill_random(&mut unique);
    let temporary = directory.join(format!(".{name}.{:016x}{TEMPORARY_SUFFIX}", u64::from_le_bytes(unique)));
    let create = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        // A hard link fails if the name exists; a rename would replace it.
        let linked = fs::hard_link(&temporary, path);
        fs::remove_file(&temporary)?;
        match linked {
            Ok(()) => File::open(directory)?.sync_all().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    };
    create().map_err(at(path))
}

/// Name of the lock file in a directory of keys. A process locks it to change the keys.
const LOCK_FILE: &str = ".lock";

/// Opens the lock file of a directory of keys. Creates it if it is missing.
pub(crate) fn open_lock(directory: &Path) -> Result<File, KeyFileError> {
    create_private_directory(directory)?;
    let path = directory.join(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    file.map_err(at(&path))
}

/// Takes a lock if it is free. The lock ends with the file, and so with the process.
pub(crate) fn try_lock(file: &File, directory: &Path) -> Result<bool, KeyFileError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(at(directory)(source)),
    }
}

/// Waits for a lock.
pub(crate) fn lock(file: &File, directory: &Path) -> Result<(), KeyFileError> {
    file.lock().map_err(at(directory))
}

fn file_path(directory: &Path, anchor: Timestamp) -> PathBuf {
    let secs = anchor.as_secs().expect("keys have a finite start");
    debug_assert_eq!(Timestamp::from_secs(secs), anchor, "anchors are whole seconds");
    directory.join(secs.to_string())
}

/// Stores a key. Replaces one with the same anchor (a revoked one), whose bytes are overwritten as far as the
/// file system permits. A crash leaves either the old or the new key.
pub fn store(directory: &Path, kind: KeyKind, key: &StoredKey) -> Result<(), KeyFileError> {
    create_private_directory(directory)?;
    let path = file_path(directory, key.anchor);
    let replaced = OpenOptions::new().write(true).open(&path).ok();
    let mut content = Zeroizing::new(Vec::with_capacity(HEADER_SIZE + key.secret.len() + CHECKSUM_SIZE));
    content.extend_from_slice(MAGIC);
    content.push(kind as u8);
    content.extend_from_slice(&key.duration.to_nbo());
    content.extend_from_slice(&key.secret);
    let checksum = sha512_parts(&[&content]);
    content.extend_from_slice(&checksum.as_bytes()[..CHECKSUM_SIZE]);
    write_private_file(&path, &content)?;
    replaced.map_or(Ok(()), |file| overwrite(&file).map_err(at(&path)))
}

/// Writes zeros over a file's content.
fn overwrite(mut file: &File) -> io::Result<()> {
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    file.write_all(&vec![0; size])?;
    file.sync_all()
}

fn parse(path: &Path, kind: KeyKind, anchor: Timestamp, content: &[u8]) -> Result<StoredKey, KeyFileError> {
    let damaged = |reason| KeyFileError::Damaged { path: path.to_path_buf(), reason };
    if content.len() < HEADER_SIZE + CHECKSUM_SIZE {
        return Err(damaged("too short for a key"));
    }
    let (body, checksum) = content.split_at(content.len() - CHECKSUM_SIZE);
    if !body.starts_with(MAGIC) {
        return Err(damaged("not a key file of this program"));
    }
    if sha512_parts(&[body]).as_bytes()[..CHECKSUM_SIZE] != *checksum {
        return Err(damaged("the checksum is wrong"));
    }
    if body[MAGIC.len()] != kind as u8 {
        return Err(damaged("a key of another kind"));
    }
    let duration: [u8; 8] = body[MAGIC.len() + 1..HEADER_SIZE].try_into().expect("eight bytes of the header");
    Ok(StoredKey {
        anchor,
        duration: Duration::from_nbo(duration),
        secret: Zeroizing::new(body[HEADER_SIZE..].to_vec()),
    })
}

/// Loads all keys of a directory, oldest first. `cleans` is for the holder of the lock: it removes left-overs
/// of interrupted writes. Without the lock, another process may be writing them. Files with other names are
/// ignored. A missing directory has no keys.
pub fn load(directory: &Path, kind: KeyKind, cleans: bool) -> Result<Vec<StoredKey>, KeyFileError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(directory)(error)),
    };
    let mut keys = Vec::new();
    for entry in entries {
        let path = entry.map_err(at(directory))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX) {
            if cleans {
                fs::remove_file(&path).map_err(at(&path))?;
            }
            continue;
        }
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(secs) = name.parse::<u64>() else { continue };
        let content = Zeroizing::new(fs::read(&path).map_err(at(&path))?);
        keys.push(parse(&path, kind, Timestamp::from_secs(secs), &content)?);
    }
    keys.sort_by_key(|key| key.anchor);
    Ok(keys)
}

/// Erases a key: overwrites the file's bytes, then removes the file. It is not an error if the file no longer
/// exists.
///
/// Overwriting is best effort: file systems and disks may keep old copies.
pub(crate) fn erase(directory: &Path, anchor: Timestamp) -> Result<(), KeyFileError> {
    let path = file_path(directory, anchor);
    let erase = || {
        match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => overwrite(&file?)?,
        }
        fs::remove_file(&path)?;
        File::open(directory)?.sync_all()
    };
    erase().map_err(at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn key(secs: u64, byte: u8) -> StoredKey {
        StoredKey {
            anchor: Timestamp::from_secs(secs),
            duration: Duration::from_secs(77),
            secret: Zeroizing::new(vec![byte; 40]),
        }
    }

    #[test]
    fn stored_keys_load_again_and_erased_keys_are_gone() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("COIN_A");
        assert!(load(&directory, KeyKind::Rsa, true).unwrap().is_empty());
        for secs in [30, 4, 200] {
            store(&directory, KeyKind::Rsa, &key(secs, secs as u8)).unwrap();
        }
        store(&directory, KeyKind::Rsa, &key(30, 99)).unwrap();
        let mode = fs::metadata(directory.join("30")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        let loaded = load(&directory, KeyKind::Rsa, true).unwrap();
        assert!(!format!("{loaded:?}").contains("99"), "secrets are not printed");
        let seen: Vec<_> = loaded.iter().map(|key| (key.anchor.as_secs().unwrap(), key.secret[0])).collect();
        assert_eq!(seen, [(4, 4), (30, 99), (200, 200)]);
        assert_eq!(loaded[0].duration, Duration::from_secs(77));
        erase(&directory, Timestamp::from_secs(30)).unwrap();
        erase(&directory, Timestamp::from_secs(30)).unwrap();
        assert_eq!(load(&directory, KeyKind::Rsa, true).unwrap().len(), 2);
    }

    #[test]
    fn damaged_files_are_errors_and_other_files_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        store(path, KeyKind::Cs, &key(5, 1)).unwrap();
        fs::write(path.join(".6.tmp"), b"half").unwrap();
        fs::write(path.join("README"), b"hello").unwrap();
        assert_eq!(load(path, KeyKind::Cs, false).unwrap().len(), 1);
        assert!(path.join(".6.tmp").exists(), "another process may be writing it");
        assert_eq!(load(path, KeyKind::Cs, true).unwrap().len(), 1);
        assert!(!path.join(".6.tmp").exists() && path.join("README").exists());
        assert!(matches!(load(path, KeyKind::Eddsa, true), Err(KeyFileError::Damaged { .. })));
        let good = fs::read(path.join("5")).unwrap();
        for index in [0, 8, 12, 20, good.len() - 1] {
            let mut bad = good.clone();
            bad[index] ^= 1;
            fs::write(path.join("5"), &bad).unwrap();
            assert!(load(path, KeyKind::Cs, true).is_err(), "flipped bit in byte {index}");
        }
        fs::write(path.join("5"), &good[..10]).unwrap();
        assert!(load(path, KeyKind::Cs, true).is_err());
    }
}

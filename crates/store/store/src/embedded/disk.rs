//! The few file operations that the store needs, behind traits, so that tests can make any of them fail.

use std::any::Any;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use crate::{Result, StoreError};

/// An open file. Like those of the system, reads and writes may be partial.
pub trait DiskFile: Send + Sync {
    /// Reads at an offset; 0 at the end.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at an offset.
    ///
    /// # Errors
    /// The system's error.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Returns once everything written is durable, including the size.
    ///
    /// # Errors
    /// The system's error. It is then unknown what is durable: never retry.
    fn sync(&self) -> io::Result<()>;
    /// Truncates or extends the file.
    ///
    /// # Errors
    /// The system's error.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// The file's size in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn size(&self) -> io::Result<u64>;
}

/// A file system.
pub trait Disk: Send + Sync {
    /// Creates a directory and its parents if missing, readable only by the owner.
    ///
    /// # Errors
    /// The system's error. The same holds for all methods below.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Locks a file (created if missing) until the result is dropped; `None` if it is locked already.
    ///
    /// # Errors
    /// The system's error.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;
    /// Opens an existing file.
    ///
    /// # Errors
    /// The system's error.
    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates an empty file, or empties an existing one.
    ///
    /// # Errors
    /// The system's error.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// The names of the files in a directory.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Renames a file over another.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns once the directory's entries are durable.
    ///
    /// # Errors
    /// The system's error.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// The free space below a directory in bytes, if known.
    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        let _ = dir;
        None
    }
    /// Returns whether what is written outlives the process.
    fn keeps(&self) -> bool {
        true
    }
}

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl DiskFile for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, buf, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Self::set_len(self, bytes)
    }
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Disk for RealDisk {
    fn free_bytes(&self, dir: &Path) -> Option<u64> {
        let stat = rustix::fs::statvfs(dir).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let existing = path.ancestors().find(|ancestor| ancestor.is_dir()).map(Path::to_owned);
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        // A directory's content is durable only if its own entry is.
        for made in path.ancestors().take_while(|ancestor| Some(*ancestor) != existing.as_deref()) {
            let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
            self.sync_dir(parent.unwrap_or(Path::new(".")))?;
        }
        Ok(())
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(writable).open(path)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        Ok(Arc::new(options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// Turns a system error into a store error; a full disk has its own error.
pub(crate) fn io_error(action: &'static str, file: &Path, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full(format!("cannot {action} {}", file.display()))
        }
        _ => StoreError::Io { action, file: file.to_owned(), source },
    }
}

/// Writes all of `buf`, even if single writes are partial.
pub(crate) fn write_all_at(file: &dyn DiskFile, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.write_at(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                buf = &buf[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends. Returns how much was read.
pub(crate) fn read_full_at(file: &dyn DiskFile, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Reads a whole file.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path) -> Result<Vec<u8>> {
    let read = || {
        let file = disk.open(path, false)?;
        let mut bytes = vec![0; usize::try_from(file.size()?).map_err(|_| io::ErrorKind::FileTooLarge)?];
        let n = read_full_at(&*file, &mut bytes, 0)?;
        bytes.truncate(n);
        Ok(bytes)
    };
    read().map_err(|source| io_error("read", path, source))
}

/// Replaces a small file atomically: readers see the old or the new content, even after a crash.
pub(crate) fn replace_file(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.tmp")));
    let write = || {
        let file = disk.create(&temporary)?;
        write_all_at(&*file, bytes, 0)?;
        file.sync()?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(dir)
    };
    write().map_err(|source| io_error("write", &path, source))
}

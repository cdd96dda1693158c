//! A file system for reading: nothing that is written to it reaches the disk.
//!
//! Opening a store repairs its end, creates files and takes a lock. Commands that only read must not change a store, and
//! must work where they could not: on a read-only mount, a backup, another user's files. So their writes stay in memory,
//! and the lock is shared among readers.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile, RealDisk};

/// Changed parts of a file are kept in pieces of this size.
const PAGE_BYTES: usize = 4_096;

/// The files of the system, as they are, under changes in memory.
#[derive(Default)]
pub(crate) struct ViewDisk {
    /// Files that were opened or created; `None`: removed.
    files: Mutex<BTreeMap<PathBuf, Option<Arc<ViewFile>>>>,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ViewDisk {
    /// The file under a name.
    fn find(&self, path: &Path) -> io::Result<Arc<ViewFile>> {
        let mut files = guard(&self.files);
        if let Some(known) = files.get(path) {
            return known.clone().ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let file = Arc::new(ViewFile::of(File::open(path)?)?);
        files.insert(path.to_owned(), Some(Arc::clone(&file)));
        Ok(file)
    }
}

impl Disk for ViewDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        path.metadata().map(drop)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = match OpenOptions::new().read(true).open(path) {
            Ok(file) => file,
            // A copy may be without it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Box::new(()))),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn open(&self, path: &Path, _: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.find(path)?)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(ViewFile::default());
        guard(&self.files).insert(path.to_owned(), Some(Arc::clone(&file)));
        Ok(file)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = RealDisk.list(dir)?;
        for (path, file) in guard(&self.files).iter().filter(|(path, _)| path.parent() == Some(dir)) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            names.retain(|known| *known != name);
            if file.is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.find(from)?;
        let mut files = guard(&self.files);
        files.insert(from.to_owned(), None);
        files.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        guard(&self.files).insert(path.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn keeps(&self) -> bool {
        false
    }
}

/// A file of the system under its changes.
#[derive(Default)]
struct ViewFile {
    base: Option<File>,
    changes: Mutex<Changes>,
}

#[derive(Default)]
struct Changes {
    bytes: u64,
    /// Number of bytes of the file below that still count.
    base_bytes: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl ViewFile {
    fn of(base: File) -> io::Result<Self> {
        let bytes = base.metadata()?.len();
        let changes = Mutex::new(Changes { bytes, base_bytes: bytes, pages: BTreeMap::new() });
        Ok(Self { base: Some(base), changes })
    }

    /// Fills a part of a page from below.
    fn read_base(&self, changes: &Changes, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.fill(0);
        let below = changes.base_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        match &self.base {
            Some(base) if below > 0 => base.read_exact_at(&mut buf[..below], offset),
            _ => Ok(()),
        }
    }
}

/// The page of an offset, and the place in it.
fn place(offset: u64) -> (u64, usize) {
    (offset / PAGE_BYTES as u64, (offset % PAGE_BYTES as u64) as usize)
}

impl DiskFile for ViewFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let changes = guard(&self.changes);
        let wanted = changes.bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        if changes.pages.is_empty() {
            self.read_base(&changes, &mut buf[..wanted], offset)?;
            return Ok(wanted);
        }
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let (page, start) = place(at);
            let part = &mut buf[done..wanted.min(done + PAGE_BYTES - start)];
            match changes.pages.get(&page) {
                Some(page) => part.copy_from_slice(&page[start..start + part.len()]),
                None => self.read_base(&changes, part, at)?,
            }
            done += part.len();
        }
        Ok(wanted)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut changes = guard(&self.changes);
        let mut done = 0;
        if buf.is_empty() {
            return Ok(0);
        }
        while done < buf.len() {
            let (page, start) = place(offset + done as u64);
            let part = &buf[done..buf.len().min(done + PAGE_BYTES - start)];
            if !changes.pages.contains_key(&page) {
                let mut bytes = Box::new([0; PAGE_BYTES]);
                self.read_base(&changes, &mut bytes[..], page * PAGE_BYTES as u64)?;
                changes.pages.insert(page, bytes);
            }
            let bytes = changes.pages.get_mut(&page).expect("it is there");
            bytes[start..start + part.len()].copy_from_slice(part);
            done += part.len();
        }
        changes.bytes = changes.bytes.max(offset + buf.len() as u64);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut changes = guard(&self.changes);
        if bytes < changes.bytes {
            let (page, start) = place(bytes);
            changes.pages.retain(|number, _| *number <= page);
            if let Some(last) = changes.pages.get_mut(&page) {
                last[start..].fill(0);
            }
        }
        changes.base_bytes = changes.base_bytes.min(bytes);
        changes.bytes = bytes;
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(guard(&self.changes).bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_view_behaves_like_a_file(
            base in 0usize..20_000,
            steps in proptest::collection::vec((0u8..3, 0u64..20_000, 0usize..9_000), 1..20),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (path, other) = (dir.path().join("a"), dir.path().join("b"));
            let bytes: Vec<u8> = (0..base).map(|n| (n % 251) as u8 + 1).collect();
            std::fs::write(&path, &bytes).unwrap();
            std::fs::write(&other, &bytes).unwrap();
            let (view, real) = (ViewDisk::default().open(&path, true).unwrap(), RealDisk.open(&other, true).unwrap());
            for (step, offset, length) in steps {
                let (mut seen, mut expected) = (vec![9; length], vec![9; length]);
                match step {
                    0 => {
                        view.write_at(&vec![step; length], offset).unwrap();
                        real.write_at(&vec![step; length], offset).unwrap();
                    }
                    1 => {
                        view.set_len(offset).unwrap();
                        real.set_len(offset).unwrap();
                    }
                    _ => {
                        let (n, m) = (view.read_at(&mut seen, offset).unwrap(), real.read_at(&mut expected, offset).unwrap());
                        prop_assert_eq!(&seen[..n], &expected[..m]);
                    }
                }
                prop_assert_eq!(view.size().unwrap(), real.size().unwrap());
            }
            prop_assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing is written");
        }
    }

    #[test]
    fn names_change_in_memory_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), b"1").unwrap();
        let view = ViewDisk::default();
        view.create(&path("new")).unwrap().write_at(b"23", 0).unwrap();
        view.rename(&path("new"), &path("b")).unwrap();
        view.remove(&path("a")).unwrap();
        assert_eq!(view.list(dir.path()).unwrap(), ["b"]);
        assert_eq!(view.open(&path("b"), false).unwrap().size().unwrap(), 2);
        assert!(view.open(&path("a"), false).is_err() && view.open(&path("new"), false).is_err());
        assert_eq!(RealDisk.list(dir.path()).unwrap(), ["a"]);
    }
}

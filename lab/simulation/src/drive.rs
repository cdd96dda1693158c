//! The disk of one simulated machine: [`SimDisk`] with kills, misdirected writes and a planted bug.
//!
//! A *kill* ends the process: what was written stays visible, durable or not. A *power loss* keeps what was
//! synced, and an arbitrary part of the rest.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::embedded::{Disk, DiskFile};

#[derive(Default)]
struct Control {
    /// The process dies in the call after this many.
    dies_in: Option<u64>,
    is_dead: bool,
    /// The write after this many is misdirected.
    misdirects_in: Option<u64>,
    /// Whether a write was misdirected.
    misdirected: bool,
    /// Whether that has been reported.
    misdirection_told: bool,
    skips_syncs: bool,
    /// The write after this many is short.
    shortens_in: Option<u64>,
    /// Whether a write has failed for lack of space.
    was_full: bool,
    /// Handles of earlier processes are invalid.
    incarnation: u64,
    locked: bool,
}

const PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;

/// A disk whose owner can die at any call. Clones are handles on the same disk.
#[derive(Clone)]
pub struct Drive {
    disk: SimDisk,
    control: Arc<Mutex<Control>>,
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

/// The effect of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Whole,
    /// Write a part, then the process dies.
    Part,
}

impl Drive {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { disk: SimDisk::new(seed), control: Arc::default() }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the process die at the `n`-th call that changes something, counted from 1.
    pub fn die_at(&self, n: u64) {
        self.control().dies_in = Some(n);
    }

    /// Misdirects the `n`-th write, counted from 1, to another place in its file.
    pub fn misdirect_at(&self, n: u64) {
        self.control().misdirects_in = Some(n);
    }

    /// Returns whether a write was misdirected.
    #[must_use]
    pub fn was_misdirected(&self) -> bool {
        self.control().misdirected
    }

    /// Makes the `n`-th call from now fail.
    pub fn fail_at(&self, n: u64) {
        self.disk.fail_at(n, Fault::Error);
    }

    /// Makes the `n`-th write from now short, so that the writer must continue it.
    pub fn shorten_at(&self, n: u64) {
        self.control().shortens_in = Some(n);
    }

    /// Limits further use to this many bytes; `None` for no limit.
    pub fn limit(&self, more_bytes: Option<u64>) {
        self.disk.set_capacity(more_bytes.map(|more| self.disk.used() + more));
    }

    /// Plants a bug: syncs save nothing from now on.
    pub fn lie_about_syncs(&self) {
        self.disk.lie_about_syncs();
    }

    /// Plants or removes a bug that skips syncs of the journal.
    pub fn skip_syncs(&self, skips: bool) {
        self.control().skips_syncs = skips;
    }

    /// Returns whether a write was misdirected; true only once.
    #[must_use]
    pub fn is_newly_misdirected(&self) -> bool {
        let mut control = self.control();
        control.misdirected && !std::mem::replace(&mut control.misdirection_told, true)
    }

    /// Returns whether a write has failed for lack of space since the last call.
    #[must_use]
    pub fn was_full(&self) -> bool {
        std::mem::take(&mut self.control().was_full)
    }

    /// A copy of the disk's state, for a planted bug.
    #[must_use]
    pub fn snapshot(&self) -> SimDisk {
        self.disk.copy()
    }

    /// Restores an earlier state, for a planted bug. The process must be dead.
    pub fn put_back(&mut self, disk: SimDisk) {
        self.disk = disk;
    }

    /// Prepares for the next process. With `power_loss`, only durable data and an arbitrary part of the rest
    /// are left.
    pub fn revive(&self, power_loss: bool) {
        let mut control = self.control();
        control.dies_in = None;
        control.shortens_in = None;
        control.is_dead = false;
        control.locked = false;
        control.incarnation += 1;
        if power_loss {
            self.disk.restart();
        }
    }

    /// Returns whether the process has died within a call.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.control().is_dead
    }

    fn turn(&self, incarnation: u64) -> io::Result<Turn> {
        let mut control = self.control();
        if control.is_dead || control.incarnation != incarnation {
            return Err(dead());
        }
        match &mut control.dies_in {
            Some(1) => {
                control.dies_in = None;
                control.is_dead = true;
                Ok(Turn::Part)
            }
            Some(n) => {
                *n -= 1;
                Ok(Turn::Whole)
            }
            None => Ok(Turn::Whole),
        }
    }

    fn change<T>(&self, incarnation: u64, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.turn(incarnation)? {
            Turn::Whole => change(),
            Turn::Part => Err(dead()),
        }
    }
}

/// One process's handle on the disk.
pub struct Mount {
    drive: Drive,
    incarnation: u64,
}

impl Mount {
    /// A handle for the process that starts now.
    #[must_use]
    pub fn new(drive: &Drive) -> Self {
        Self { drive: drive.clone(), incarnation: drive.control().incarnation }
    }

    fn file(&self, path: &Path, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let is_segment = path.extension().is_some_and(|extension| extension == "seg");
        Arc::new(OpenFile { inner, is_segment, drive: self.drive.clone(), incarnation: self.incarnation })
    }
}

impl Disk for Mount {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.drive.disk.create_dir(path)
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut control = self.drive.control();
        if control.is_dead {
            return Err(dead());
        }
        if std::mem::replace(&mut control.locked, true) {
            return Ok(None);
        }
        Ok(Some(Box::new(())))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(path, self.drive.disk.open(path, writable)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.drive.change(self.incarnation, || self.drive.disk.create(path))?;
        Ok(self.file(path, inner))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.drive.disk.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.drive.change(self.incarnation, || self.drive.disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.drive.change(self.incarnation, || self.drive.disk.remove(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.drive.change(self.incarnation, || self.drive.disk.sync_dir(dir))
    }
}

impl Control {
    /// Counts a write and returns whether it is the short one.
    fn is_short_now(&mut self) -> bool {
        self.shortens_in = self.shortens_in.map(|n| n - 1);
        self.shortens_in == Some(0) && self.shortens_in.take().is_some()
    }
}

/// Returns the part of a write that is done when the process is killed during it: some or all of the whole
/// pages.
fn killed_part(bytes: usize, offset: u64) -> usize {
    let middle = (offset + bytes as u64 / 2) / PAGE_BYTES * PAGE_BYTES;
    match middle.checked_sub(offset) {
        Some(part) if part > 0 => usize::try_from(part).expect("less than the write"),
        _ if (offset >> 3) & 1 == 0 => bytes,
        _ => 0,
    }
}

/// Returns the part of a write that a short write writes: whole sectors, or everything if it is within one
/// sector.
fn sector_part(bytes: usize, offset: u64) -> usize {
    let middle = (offset + bytes as u64 / 2) / SECTOR_BYTES * SECTOR_BYTES;
    match middle.checked_sub(offset) {
        Some(part) if part > 0 => usize::try_from(part).expect("less than the write"),
        _ => bytes,
    }
}

struct OpenFile {
    inner: Arc<dyn DiskFile>,
    /// Whether it is a part of the journal.
    is_segment: bool,
    drive: Drive,
    incarnation: u64,
}

impl DiskFile for OpenFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.drive.is_dead() {
            return Err(dead());
        }
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        if self.drive.turn(self.incarnation)? == Turn::Part {
            let _ = self.inner.write_at(&buf[..killed_part(buf.len(), offset)], offset);
            return Err(dead());
        }
        if self.drive.control().is_short_now() {
            let part = sector_part(buf.len(), offset);
            return self.inner.write_at(&buf[..part], offset);
        }
        let astray = {
            let mut control = self.drive.control();
            match &mut control.misdirects_in {
                Some(1) => {
                    control.misdirects_in = None;
                    control.misdirected = true;
                    true
                }
                Some(n) => {
                    *n -= 1;
                    false
                }
                None => false,
            }
        };
        if astray {
            // To the sector before it, or to the one after it if there is none.
            let elsewhere = if offset >= 512 { offset - 512 } else { offset + 512 };
            let mut written = 0;
            while written < buf.len() {
                written += self.inner.write_at(&buf[written..], elsewhere + written as u64)?;
            }
            return Ok(buf.len());
        }
        let written = self.inner.write_at(buf, offset);
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            self.drive.control().was_full = true;
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        self.drive.change(self.incarnation, || {
            let is_skipped = self.is_segment && self.drive.control().skips_syncs;
            if is_skipped { Ok(()) } else { self.inner.sync() }
        })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.drive.change(self.incarnation, || self.inner.set_len(bytes))
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }
}

/// The path under which every process keeps its store.
#[must_use]
pub fn directory() -> PathBuf {
    PathBuf::from("/data")
}

//! A file system in memory with injected faults, for crash and fault tests.
//!
//! It distinguishes between what processes see and what is durable. A power loss keeps what was synced, and
//! an arbitrary part of the rest: any subset of the written sectors, any prefix of the directory changes. A
//! killed process leaves everything visible, durable or not.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile};

const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: u64 = 4096;

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A write is short; the caller must write the rest.
    ShortWrite,
    /// The disk is full after a part of a write.
    Full,
    /// The operation fails, after a part of a write. A failed sync loses an arbitrary part of the data, and
    /// the next sync does not save it.
    Error,
    /// Power loss or kill: this operation (after a part of a write) and all later ones fail until
    /// [`SimDisk::restart`] or [`SimDisk::kill`].
    Crash,
    /// A write goes to the sector before its place, or after it if there is none, and is reported as done;
    /// then as [`Fault::Crash`]. Other operations only crash.
    Astray,
}

#[derive(Debug, Clone)]
enum Pending {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug, Clone, Default)]
struct FileState {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Set(PathBuf, u64),
    Remove(PathBuf),
}

type Names = BTreeMap<PathBuf, u64>;

fn apply(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Set(path, file) => {
            names.insert(path.clone(), *file);
        }
        NameChange::Remove(path) => {
            names.remove(path);
        }
    }
}

#[derive(Debug, Clone, Default)]
struct SimState {
    files: BTreeMap<u64, FileState>,
    names: Names,
    names_durable: Names,
    names_pending: Vec<NameChange>,
    file_next: u64,
    locks: BTreeSet<PathBuf>,
    /// Handles from before a crash are invalid.
    generation: u64,
    crashed: bool,
    calls: u64,
    /// The bytes passed to writes.
    written: u64,
    fault: Option<(u64, Fault)>,
    capacity: Option<u64>,
    /// A planted bug: syncs do nothing.
    lying: bool,
    random: u64,
}

/// The simulated file system. Clones are handles on the same one.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<SimState>>,
}

fn failure(what: &'static str) -> io::Error {
    io::Error::other(what)
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl SimState {
    /// A small generator (SplitMix64): reproducible, and good enough to pick sectors.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Counts a call that changes something, and returns whether it fails.
    fn call(&mut self) -> io::Result<Option<Fault>> {
        if self.crashed {
            return Err(failure("the machine is down"));
        }
        self.calls += 1;
        match self.fault {
            Some((at, fault)) if at == self.calls => {
                self.fault = None;
                self.crashed = matches!(fault, Fault::Crash | Fault::Astray);
                Ok(Some(fault))
            }
            _ => Ok(None),
        }
    }

    /// For calls that happen as a whole or not at all.
    fn whole_call(&mut self) -> io::Result<()> {
        match self.call()? {
            None | Some(Fault::ShortWrite) => Ok(()),
            Some(Fault::Full) => Err(full()),
            Some(Fault::Error) => Err(failure("injected failure")),
            Some(Fault::Crash | Fault::Astray) => Err(failure("power loss")),
        }
    }

    fn used(&self) -> u64 {
        let mut live: BTreeSet<u64> = self.names.values().copied().collect();
        live.extend(self.names_durable.values());
        live.iter().map(|file| (self.files[file].seen.len() as u64).div_ceil(PAGE_BYTES) * PAGE_BYTES).sum()
    }

    fn change_names(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.names_pending.push(change);
    }

    /// Prepares for the next process.
    fn start_anew(&mut self) {
        self.locks.clear();
        self.generation += 1;
        self.crashed = false;
        self.fault = None;
    }

    /// Saves a file's pending writes. What a failed sync has lost is no longer pending: it stays visible, as
    /// in a page cache, but is saved only if it is written again.
    fn save(&mut self, file: u64) {
        let file = self.files.get_mut(&file).expect("files stay");
        for change in file.pending.drain(..) {
            match change {
                Pending::SetLen(bytes) => file.durable.resize(bytes, 0),
                Pending::Write { offset, bytes } => put(&mut file.durable, offset, &bytes),
            }
        }
    }

    /// Saves an arbitrary part of a file's pending writes.
    fn settle(&mut self, file: u64) {
        let pending = std::mem::take(&mut self.files.get_mut(&file).expect("files stay").pending);
        for change in pending {
            match change {
                Pending::SetLen(bytes) => {
                    if self.random().is_multiple_of(2) {
                        self.files.get_mut(&file).expect("files stay").durable.resize(bytes, 0);
                    }
                }
                Pending::Write { offset, bytes } => {
                    let mut start = 0;
                    while start < bytes.len() {
                        let end = ((offset + start) / SECTOR_BYTES + 1) * SECTOR_BYTES - offset;
                        let end = end.min(bytes.len());
                        if self.random().is_multiple_of(2) {
                            let durable = &mut self.files.get_mut(&file).expect("files stay").durable;
                            put(durable, offset + start, &bytes[start..end]);
                        }
                        start = end;
                    }
                }
            }
        }
    }
}

fn put(data: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if data.len() < offset + bytes.len() {
        data.resize(offset + bytes.len(), 0);
    }
    data[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl SimDisk {
    /// An empty disk whose arbitrary choices depend on a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let disk = Self::default();
        disk.lock().random = seed;
        disk
    }

    fn lock(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An independent copy of the current disk.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.lock().clone();
        state.locks.clear();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes the `n`-th call from now (counted from 1) that changes something fail.
    pub fn fail_at(&self, n: u64, fault: Fault) {
        let mut state = self.lock();
        state.fault = Some((state.calls + n, fault));
    }

    /// Returns whether the fault is still to happen.
    #[must_use]
    pub fn is_fault_pending(&self) -> bool {
        self.lock().fault.is_some()
    }

    /// Number of calls that have changed something so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Number of bytes that have been written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.lock().written
    }

    /// Limits the disk's size in bytes.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// The space in use, in bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Plants a bug: syncs save nothing from now on.
    pub fn lie_about_syncs(&self) {
        self.lock().lying = true;
    }

    /// Simulates a power loss: unsynced data survives in part, open handles become invalid, locks are
    /// released.
    pub fn restart(&self) {
        let mut state = self.lock();
        let files: Vec<u64> = state.files.keys().copied().collect();
        for file in files {
            state.settle(file);
        }
        let pending = std::mem::take(&mut state.names_pending);
        let kept = usize::try_from(state.random() % (pending.len() as u64 + 1)).expect("few");
        for change in &pending[..kept] {
            apply(&mut state.names_durable, change);
        }
        state.names = state.names_durable.clone();
        for file in state.files.values_mut() {
            file.seen = file.durable.clone();
        }
        state.start_anew();
    }

    /// Simulates a kill of the process: everything written stays visible, nothing becomes durable, open
    /// handles become invalid, locks are released.
    pub fn kill(&self) {
        self.lock().start_anew();
    }

    /// The paths of all files.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.lock().names.keys().cloned().collect()
    }

    /// A file's content.
    ///
    /// # Panics
    /// When there is no such file.
    #[must_use]
    pub fn content(&self, path: &Path) -> Vec<u8> {
        let state = self.lock();
        state.files[&state.names[path]].seen.clone()
    }

    /// Changes a file's content without a handle.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn tamper(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let number = state.names[path];
        let file = state.files.get_mut(&number).expect("files stay");
        assert!(file.pending.is_empty(), "tamper with files at rest");
        change(&mut file.seen);
        file.durable = file.seen.clone();
    }
}

struct SimFile {
    disk: SimDisk,
    file: u64,
    generation: u64,
}

impl SimFile {
    fn state(&self) -> io::Result<MutexGuard<'_, SimState>> {
        let state = self.disk.lock();
        if state.generation == self.generation {
            Ok(state)
        } else {
            Err(failure("a handle from before the crash"))
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state()?;
        let data = &state.files[&self.file].seen;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        let n = buf.len().min(data.len() - start);
        buf[..n].copy_from_slice(&data[start..start + n]);
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        let fault = state.call()?;
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = (offset + buf.len()) as u64;
        let have = (state.files[&self.file].seen.len() as u64).div_ceil(PAGE_BYTES) * PAGE_BYTES;
        let more = (end.div_ceil(PAGE_BYTES) * PAGE_BYTES).saturating_sub(have);
        if state.capacity.is_some_and(|capacity| state.used() + more > capacity) {
            return Err(full());
        }
        let offset = match fault {
            Some(Fault::Astray) => offset.checked_sub(SECTOR_BYTES).unwrap_or(offset + SECTOR_BYTES),
            _ => offset,
        };
        // A failing write still writes a part: whole pages, so that no sector is incomplete.
        let half = (offset + buf.len() / 2) / SECTOR_BYTES * SECTOR_BYTES;
        let part = match fault {
            None | Some(Fault::Astray) => buf.len(),
            Some(Fault::ShortWrite) => buf.len() / 2,
            Some(_) => half.saturating_sub(offset),
        };
        state.written += part as u64;
        let bytes = buf[..part].to_vec();
        let file = state.files.get_mut(&self.file).expect("files stay");
        put(&mut file.seen, offset, &bytes);
        file.pending.push(Pending::Write { offset, bytes });
        match fault {
            None | Some(Fault::Astray) => Ok(part),
            Some(Fault::ShortWrite) => Ok(part.max(usize::from(buf.len() == 1))),
            Some(Fault::Full) => Err(full()),
            Some(Fault::Error) => Err(failure("injected failure")),
            Some(Fault::Crash) => Err(failure("power loss")),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let fault = state.call()?;
        match fault {
            Some(Fault::Error | Fault::Full) => {
                state.settle(self.file);
                return Err(if fault == Some(Fault::Full) { full() } else { failure("injected failure") });
            }
            Some(Fault::Crash | Fault::Astray) => return Err(failure("power loss")),
            Some(Fault::ShortWrite) | None => {}
        }
        if !state.lying {
            state.save(self.file);
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.whole_call()?;
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let file = state.files.get_mut(&self.file).expect("files stay");
        file.seen.resize(bytes, 0);
        file.pending.push(Pending::SetLen(bytes));
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.state()?.files[&self.file].seen.len() as u64)
    }
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    generation: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.lock();
        if state.generation == self.generation {
            state.locks.remove(&self.path);
        }
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut state = Self::lock(self);
        if state.crashed {
            return Err(failure("the machine is down"));
        }
        if !state.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(SimLock {
            disk: self.clone(),
            path: path.to_owned(),
            generation: state.generation,
        })))
    }

    fn open(&self, path: &Path, _: bool) -> io::Result<Arc<dyn DiskFile>> {
        let state = Self::lock(self);
        let file = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { disk: self.clone(), file, generation: state.generation }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = Self::lock(self);
        state.whole_call()?;
        let file = state.file_next;
        state.file_next += 1;
        state.files.insert(file, FileState::default());
        state.change_names(NameChange::Set(path.to_owned(), file));
        Ok(Arc::new(SimFile { disk: self.clone(), file, generation: state.generation }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = Self::lock(self);
        let own = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(own.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = Self::lock(self);
        state.whole_call()?;
        let file = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        // Atomic on a journaling file system: a crash never leaves only a part of it.
        apply(&mut state.names, &NameChange::Remove(from.to_owned()));
        apply(&mut state.names, &NameChange::Set(to.to_owned(), file));
        state.names_pending.push(NameChange::Set(to.to_owned(), file));
        state.names_pending.push(NameChange::Remove(from.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = Self::lock(self);
        state.whole_call()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = Self::lock(self);
        state.whole_call()?;
        if !state.lying {
            state.names_durable = state.names.clone();
            state.names_pending.clear();
        }
        Ok(())
    }
}

//! The directory of what is published. Everything is written beside its place, synced and renamed, so that whoever
//! reads the directory, at any moment, sees whole epochs only. An epoch is published once the index names it.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use batzen_crypto::HashCode;
use batzen_protocol::liabilities::files::{self, Index, Published};
use batzen_protocol::liabilities::{Bucket, Fault, Kind, Statement, Tree};

/// The ending of all documents.
const ENDING: &str = "json";
/// The directory in which an epoch is built.
const BUILDING: &str = ".building";
/// Locked while an epoch is built.
const LOCK: &str = ".lock";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what was written.
    #[error("{path}: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// Another process builds an epoch.
    #[error("another process is publishing in {0}")]
    InUse(PathBuf),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FilesError {
    let path = path.to_owned();
    |source| FilesError::Io { path, source }
}

fn damaged(path: &Path, reason: impl ToString) -> FilesError {
    FilesError::Damaged { path: path.to_owned(), reason: reason.to_string() }
}

/// The file of a document.
pub(crate) fn file(dir: &Path, document: &str) -> PathBuf {
    dir.join(format!("{document}.{ENDING}"))
}

fn sync_dir(dir: &Path) -> Result<(), FilesError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), FilesError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(at(path))
}

/// Reads a document. `None` if there is none.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FilesError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            batzen_protocol::liabilities::parse(&bytes).map(Some).map_err(|reason| damaged(path, reason))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// Reads the index. `None` before the first epoch.
pub(crate) fn index(dir: &Path) -> Result<Option<Index>, FilesError> {
    read(&file(dir, files::INDEX))
}

fn statement(dir: &Path, epoch: u64) -> Result<Statement, FilesError> {
    let path = file(dir, &files::statement(epoch));
    read(&path)?.ok_or_else(|| damaged(&path, "it is missing"))
}

/// The directory while this process builds an epoch in it.
pub(super) struct Directory {
    dir: PathBuf,
    master_pub: batzen_crypto::EddsaPublicKey,
    statements: Vec<Statement>,
    _lock: File,
}

impl Directory {
    /// Opens it, creating it if it is missing, and finishes what an interrupted process has begun.
    pub(super) fn open(dir: &Path, master_pub: batzen_crypto::EddsaPublicKey) -> Result<Self, FilesError> {
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let lock_path = dir.join(LOCK);
        let lock = File::create(&lock_path).map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FilesError::InUse(dir.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(&lock_path)(error)),
        }
        let index = index(dir)?.unwrap_or(Index { master_pub, epochs: Vec::new() });
        let index_path = file(dir, files::INDEX);
        if index.master_pub != master_pub {
            return Err(damaged(&index_path, "it belongs to another exchange"));
        }
        let mut all: Vec<Statement> = Vec::with_capacity(index.epochs.len());
        for published in &index.epochs {
            let found = statement(dir, published.epoch)?;
            let path = file(dir, &files::statement(published.epoch));
            check(&found, all.last(), master_pub).map_err(|fault| damaged(&path, fault))?;
            if found.statement.hash() != published.h_statement {
                return Err(damaged(&path, "the index names another statement"));
            }
            all.push(found);
        }
        let mut directory = Self { dir: dir.to_owned(), master_pub, statements: all, _lock: lock };
        let building = directory.building();
        match std::fs::remove_dir_all(&building) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&building)(error)),
            _ => {}
        }
        // An epoch is renamed to its place once it is whole; perhaps the index does not name it yet.
        let next = directory.next();
        if directory.dir.join(next.to_string()).exists() {
            let found = statement(dir, next)?;
            check(&found, directory.last(), master_pub)
                .map_err(|fault| damaged(&file(dir, &files::statement(next)), fault))?;
            directory.list(found)?;
        }
        Ok(directory)
    }

    fn building(&self) -> PathBuf {
        self.dir.join(BUILDING)
    }

    pub(super) fn last(&self) -> Option<&Statement> {
        self.statements.last()
    }

    /// The number of the next epoch.
    pub(super) fn next(&self) -> u64 {
        self.statements.len() as u64 + 1
    }

    /// The hashes of all leaves of a denomination that earlier epochs count, sorted. Every bucket is checked: a leaf that
    /// went unnoticed would be counted twice.
    pub(super) fn counted(
        &self,
        h_denom_pub: &HashCode,
        kind: Kind,
    ) -> Result<Vec<batzen_crypto::ShortHash>, FilesError> {
        let mut hashes = Vec::new();
        for statement in &self.statements {
            let body = &statement.statement;
            let Some(part) = body.entry(h_denom_pub).map(|entry| entry.part(kind)) else { continue };
            if part.root.count == 0 {
                continue;
            }
            for place in 0..1u32 << part.bits {
                let name = files::bucket(body.epoch, h_denom_pub, kind, place, part.bits);
                let path = file(&self.dir, &name);
                let bucket: Bucket = read(&path)?.ok_or_else(|| damaged(&path, "it is missing"))?;
                bucket.check(place, part.bits, &part.root).map_err(|fault| damaged(&path, fault))?;
                hashes.extend(bucket.leaves.iter().map(|leaf| leaf.hash));
            }
        }
        hashes.sort_unstable();
        Ok(hashes)
    }

    /// Writes the buckets of a tree of the next epoch.
    pub(super) fn write_tree(
        &self,
        h_denom_pub: &HashCode,
        kind: Kind,
        tree: &Tree,
    ) -> Result<(), FilesError> {
        if tree.leaves().is_empty() {
            return Ok(());
        }
        let denom_dir = self.building().join(h_denom_pub.to_string());
        let dir = denom_dir.join(kind.name());
        std::fs::create_dir_all(&dir).map_err(at(&dir))?;
        for place in 0..tree.buckets() {
            let path = file(&dir, &files::bucket_name(place, tree.bits()));
            write(&path, &batzen_protocol::liabilities::to_json(&tree.bucket(place)))?;
        }
        sync_dir(&dir)?;
        sync_dir(&denom_dir)
    }

    /// Publishes the next epoch, whose trees are written.
    pub(super) fn publish(&mut self, statement: Statement) -> Result<(), FilesError> {
        let building = self.building();
        std::fs::create_dir_all(&building).map_err(at(&building))?;
        let path = file(&building, files::INDEX);
        check(&statement, self.last(), self.master_pub).map_err(|fault| damaged(&path, fault))?;
        write(&path, &batzen_protocol::liabilities::to_json(&statement))?;
        sync_dir(&building)?;
        let place = self.dir.join(self.next().to_string());
        std::fs::rename(&building, &place).map_err(at(&place))?;
        sync_dir(&self.dir)?;
        self.list(statement)
    }

    /// Names the next epoch, which is in its place, in the index.
    fn list(&mut self, statement: Statement) -> Result<(), FilesError> {
        self.statements.push(statement);
        let published = |statement: &Statement| Published {
            epoch: statement.statement.epoch,
            end: statement.statement.end,
            h_statement: statement.statement.hash(),
        };
        let index =
            Index { master_pub: self.master_pub, epochs: self.statements.iter().map(published).collect() };
        let (beside, path) = (self.dir.join(".index"), file(&self.dir, files::INDEX));
        // A rename that was interrupted before its sync may be lost, and so may what it would show.
        sync_dir(&self.dir)?;
        write(&beside, &batzen_protocol::liabilities::to_json(&index))?;
        std::fs::rename(&beside, &path).map_err(at(&path))?;
        sync_dir(&self.dir)
    }
}

fn check(
    statement: &Statement,
    before: Option<&Statement>,
    master_pub: batzen_crypto::EddsaPublicKey,
) -> Result<(), Fault> {
    statement.check_signature(&master_pub)?;
    statement.statement.check_after(before.map(|before| &before.statement))
}

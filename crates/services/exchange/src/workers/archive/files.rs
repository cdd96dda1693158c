//! The stores of runs: where they are, and what is in them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use batzen_crypto::{HashCode, SetHash};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Store, StoreError, Table, TableDef};
use batzen_tables::exchange::{
    self, ArchiveCounts, ArchiveRunKey, ArchiveRunRow, ArchiveRuns, Coins, Deposits, MeltByRc, Melts,
    Prepared, PurseDeposits, RecoupRefreshCredits, RecoupRefreshes, Recoups, Refunds, ReserveOpenDeposits,
    Reveals, WireOut,
};

use super::ArchiveError;

/// The tables whose rows leave. An archive also has copies of what explains them: denominations, revocations,
/// accounts, the run and its counts.
pub(crate) const MOVED: [&TableDef; 13] = [
    Coins::DEF,
    Deposits::DEF,
    Refunds::DEF,
    Melts::DEF,
    MeltByRc::DEF,
    Reveals::DEF,
    Recoups::DEF,
    RecoupRefreshes::DEF,
    RecoupRefreshCredits::DEF,
    WireOut::DEF,
    Prepared::DEF,
    PurseDeposits::DEF,
    ReserveOpenDeposits::DEF,
];

/// Opens the stores of runs.
pub trait Archives {
    /// The store of a run. One that is new must not exist yet; every other must.
    ///
    /// # Errors
    /// When it cannot be opened, or is not there.
    fn open(&self, run: u32, is_new: bool) -> Result<Store, StoreError>;
}

/// A directory with a store for each run.
#[derive(Debug, Clone)]
pub struct ArchiveDir(PathBuf);

impl ArchiveDir {
    /// The archives in a directory, which is created if it is missing.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// The directory of a run's store.
    #[must_use]
    pub fn of_run(&self, run: u32) -> PathBuf {
        self.0.join(format!("run-{run:06}"))
    }

    /// Removes a run's store.
    ///
    /// # Errors
    /// When files cannot be removed. Nothing happens if they are gone.
    pub fn remove(&self, run: u32) -> std::io::Result<()> {
        match std::fs::remove_dir_all(self.of_run(run)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

impl Archives for ArchiveDir {
    fn open(&self, run: u32, is_new: bool) -> Result<Store, StoreError> {
        let dir = self.of_run(run);
        if !is_new && !EmbeddedStore::exists(&dir) {
            return Err(StoreError::Backend(format!("{} is not there", dir.display())));
        }
        open_store(&dir)
    }
}

fn open_store(dir: &Path) -> Result<Store, StoreError> {
    EmbeddedStore::open(dir, exchange::ALL, Options::default()).map(Store::new)
}

/// The contents of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The digest of the set of all rows that left.
    pub digest: HashCode,
    /// Their number and bytes, by number of the table.
    pub tables: Vec<(&'static TableDef, u64, u64)>,
}

impl Contents {
    /// The number of all rows, and their bytes.
    pub(crate) fn rows(&self) -> (u64, u64) {
        self.tables.iter().fold((0, 0), |(rows, bytes), table| (rows + table.1, bytes + table.2))
    }
}

/// Reads everything that left.
///
/// # Errors
/// When the archive cannot be read.
pub fn contents(archive: &Store) -> Result<Contents, StoreError> {
    let mut hash = SetHash::default();
    let mut tables = Vec::with_capacity(MOVED.len());
    for table in MOVED {
        let (mut rows, mut bytes) = (0, 0);
        archive.backend().scan(table, &mut |record| {
            hash.add(&[&table.id.to_be_bytes(), &record.key, &record.row]);
            rows += 1;
            bytes += (record.key.len() + record.row.len()) as u64;
            ControlFlow::Continue(())
        })?;
        tables.push((table, rows, bytes));
    }
    Ok(Contents { digest: hash.digest(), tables })
}

/// Compares the contents of an archive with what a run took: the run's row, and the counts by table that
/// `records` has, the store or the archive itself.
///
/// # Errors
/// When the records cannot be read.
pub(super) fn differences(
    contents: &Contents,
    records: &Store,
    run: u32,
    row: &ArchiveRunRow,
) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    let counts = records.lookup::<ArchiveCounts>(ArchiveCounts::BY_RUN, &run)?;
    for (table, rows, bytes) in &contents.tables {
        let of_table = counts.iter().filter(|found| found.key.table == table.id);
        let taken = of_table.fold((0, 0), |sum, found| (sum.0 + found.row.rows, sum.1 + found.row.bytes));
        if taken != (*rows, *bytes) {
            found.push(format!(
                "has {rows} rows of {} with {bytes} bytes, but took {} with {}",
                table.name, taken.0, taken.1
            ));
        }
    }
    if contents.rows() != (row.rows, row.bytes) {
        found.push(format!("has {} rows, but took {}", contents.rows().0, row.rows));
    }
    if row.digest.is_some_and(|digest| digest != contents.digest) {
        found.push("has other rows than it took: their digest differs".to_owned());
    }
    Ok(found)
}

/// Compares an archive with its own record of what the run took, and with that of the exchange's store if it is at
/// hand. Returns the run, and every difference.
///
/// # Errors
/// When something cannot be read, or the directory is no archive.
pub fn examine(
    dir: &Path,
    records: Option<&Store>,
) -> Result<(u32, ArchiveRunRow, Contents, Vec<String>), ArchiveError> {
    let in_archive = |source| ArchiveError::Store { place: "the archive", source };
    let archive = EmbeddedStore::open_to_read(dir, exchange::ALL, Options::default());
    let archive = archive.map(Store::new).map_err(in_archive)?;
    let row = archive.all::<ArchiveRuns>().map_err(in_archive)?.pop();
    let Some(found) = row else {
        return Err(in_archive(StoreError::Backend(format!("{} is no archive", dir.display()))));
    };
    let (run, row) = (found.key.run, found.row);
    let contents = contents(&archive).map_err(in_archive)?;
    let mut different = if row.is_open() {
        // Its counts are written at the end.
        Vec::new()
    } else {
        differences(&contents, &archive, run, &row).map_err(in_archive)?
    };
    if let Some(store) = records {
        let in_store = |source| ArchiveError::Store { place: "the exchange's store", source };
        match store.get::<ArchiveRuns>(&ArchiveRunKey { run }).map_err(in_store)? {
            Some(stored) if stored.row.id != row.id => {
                different.push("belongs to another exchange's store".to_owned());
            }
            Some(stored) => {
                for difference in differences(&contents, store, run, &stored.row).map_err(in_store)? {
                    if !different.contains(&difference) {
                        different.push(difference);
                    }
                }
            }
            None => different.push("is unknown to the exchange's store".to_owned()),
        }
    }
    archive.close().map_err(in_archive)?;
    Ok((run, row, contents, different))
}

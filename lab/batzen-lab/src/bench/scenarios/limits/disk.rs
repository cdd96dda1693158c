//! The disk: commits of the embedded store, and plain durable writes.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{
    ChangeSet, CommitOutcome, IndexDef, IndexEntries, IndexKind, Store, Table, TableDef, record,
};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::meter::thread_cpu_time;

/// Commits of a number of rows. Each row has a random 32-byte key and 200 bytes with a random secondary key,
/// and is looked up before the insert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreLimit {
    pub(crate) rows_per_commit: usize,
    /// Rows per second, including the wait for the disk.
    pub(crate) rows_per_s: f64,
    /// CPU time of the committing thread, µs.
    pub(crate) cpu_us_per_row: f64,
    /// Median duration of a commit including its lookups, µs.
    pub(crate) commit_p50_us: f64,
    /// 99th percentile of the same, µs.
    pub(crate) commit_p99_us: f64,
    /// Bytes written per row.
    pub(crate) journal_bytes_per_row: f64,
    /// Bytes of index memory per row.
    pub(crate) index_bytes_per_row: f64,
}

/// Overwriting a number of bytes in a file of zeros, and waiting until they are durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SyncLimit {
    /// Bytes written each time.
    pub(crate) bytes: usize,
    /// Median, µs.
    pub(crate) p50_us: f64,
    /// 99th percentile, µs.
    pub(crate) p99_us: f64,
}

record! {
    /// The key.
    pub key struct LimitKey {
        /// Random.
        pub(crate) id: [u8; 32],
    }
}
record! {
    /// The row.
    pub struct LimitRow {
        /// Random, the secondary key.
        pub(crate) group: [u8; 32],
        /// Payload.
        pub(crate) body: [u8; 168],
    }
}

struct Rows;

impl Table for Rows {
    const DEF: &'static TableDef =
        &TableDef::of::<Self>(1, "rows").indexed(&[IndexDef::new(1, "by_group", IndexKind::Hash)]);
    type Key = LimitKey;
    type Row = LimitRow;
    fn index_entries(_: &LimitKey, row: &LimitRow, out: &mut IndexEntries) {
        out.add(1, &row.group);
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    batzen_crypto::fill_random(&mut bytes);
    bytes
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::set_up("the store cannot be measured", error)
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A histogram of microseconds up to an hour; longer times count as an hour.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("bounds in order, three digits")
}

fn temporary(directory: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("batzen-limits-").tempdir_in(directory).map_err(BenchError::io(directory))
}

/// Commits of 1,000 and of 100 rows.
pub(super) fn commits(directory: &Path, quick: bool) -> Result<Vec<StoreLimit>> {
    let time = if quick { Duration::from_millis(200) } else { Duration::from_secs(3) };
    [1_000, 100].into_iter().map(|rows| commits_of(directory, rows, time)).collect()
}

fn commits_of(directory: &Path, rows: usize, time: Duration) -> Result<StoreLimit> {
    let directory = temporary(directory)?;
    let store = EmbeddedStore::open(directory.path(), &[Rows::DEF], Options::default()).map_err(failed)?;
    let store = Store::new(store);
    let mut durations = histogram();
    let (mut cpu, mut wall, mut commits) = (Duration::ZERO, Duration::ZERO, 0_usize);
    // The first commits open segments and enlarge tables.
    const WARM_UP: usize = 5;
    for round in 0_usize.. {
        let row = |_| (LimitKey { id: random() }, LimitRow { group: random(), body: [7; 168] });
        let batch: Vec<(LimitKey, LimitRow)> = (0..rows).map(row).collect();
        let (start, cpu_start) = (Instant::now(), thread_cpu_time());
        let keys: Vec<LimitKey> = batch.iter().map(|(key, _)| key.clone()).collect();
        if store.get_many::<Rows>(&keys).map_err(failed)?.iter().any(Option::is_some) {
            return Err(failed("a random key was there before"));
        }
        let mut changes = ChangeSet::new();
        for (key, row) in &batch {
            changes.insert::<Rows>(key, row);
        }
        match store.commit(&changes).map_err(failed)? {
            CommitOutcome::Committed => {}
            other => return Err(failed(format!("a commit was not made: {other:?}"))),
        }
        if round >= WARM_UP {
            wall += start.elapsed();
            cpu += thread_cpu_time().saturating_sub(cpu_start);
            durations.saturating_record(us(start.elapsed()));
            commits += 1;
        }
        if wall >= time {
            break;
        }
    }
    let stats = store.stats();
    let measured = (commits * rows) as f64;
    let all = ((commits + WARM_UP) * rows) as f64;
    store.close().map_err(failed)?;
    Ok(StoreLimit {
        rows_per_commit: rows,
        rows_per_s: measured / wall.as_secs_f64(),
        cpu_us_per_row: cpu.as_secs_f64() * 1e6 / measured,
        commit_p50_us: durations.value_at_quantile(0.5) as f64,
        commit_p99_us: durations.value_at_quantile(0.99) as f64,
        journal_bytes_per_row: stats.written_bytes_total as f64 / all,
        index_bytes_per_row: stats.index_bytes as f64 / all,
    })
}

/// Size of the file that is overwritten, which is first filled with zeros.
const FILE_BYTES: usize = 64 << 20;

/// 8 kB, a small batch, and 256 kB, a large one.
pub(super) fn syncs(directory: &Path, quick: bool) -> Result<Vec<SyncLimit>> {
    let directory = temporary(directory)?;
    let path = directory.path().join("zeros");
    let io = |error| BenchError::io(&path)(error);
    let file = OpenOptions::new().create_new(true).write(true).open(&path).map_err(io)?;
    let zeros = vec![0; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset as u64).map_err(io)?;
    }
    file.sync_all().map_err(io)?;
    let mut limits = Vec::new();
    for (bytes, times) in [(8 << 10, 1_000), (256 << 10, 400)] {
        let data: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        let mut durations = histogram();
        for round in 0..if quick { times / 10 } else { times } {
            let offset = (round * bytes) % FILE_BYTES;
            let start = Instant::now();
            file.write_all_at(&data, offset as u64).map_err(io)?;
            file.sync_data().map_err(io)?;
            durations.saturating_record(us(start.elapsed()));
        }
        limits.push(SyncLimit {
            bytes,
            p50_us: durations.value_at_quantile(0.5) as f64,
            p99_us: durations.value_at_quantile(0.99) as f64,
        });
    }
    Ok(limits)
}

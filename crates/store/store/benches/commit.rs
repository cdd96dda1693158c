//! Durable commits of 1,000 and of 100 rows: 32-byte random keys, 200-byte rows, one secondary index, each
//! row looked up before the insert.
//!
//! `cargo bench -p batzen-store`; the store is in a temporary directory (`TMPDIR` chooses the disk).
//! Criterion counts rows per second; the CPU time and the share of time spent waiting for the disk are
//! printed at the end.

use std::hint::black_box;
use std::time::Instant;

use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{
    ChangeSet, CommitOutcome, IndexDef, IndexEntries, IndexKind, Store, Table, TableDef, record,
};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

record! {
    /// The row's key.
    pub key struct BenchKey {
        /// Random.
        pub id: [u8; 32],
    }
}
record! {
    /// The row.
    pub struct BenchRow {
        /// Random, the secondary key.
        pub group: [u8; 32],
        /// Payload.
        pub body: [u8; 168],
    }
}

struct Rows;

impl Table for Rows {
    const DEF: &'static TableDef =
        &TableDef::of::<Self>(1, "rows").indexed(&[IndexDef::new(1, "by_group", IndexKind::Hash)]);
    type Key = BenchKey;
    type Row = BenchRow;
    fn index_entries(_: &BenchKey, row: &BenchRow, out: &mut IndexEntries) {
        out.add(1, &row.group);
    }
}

struct Random(u64);

impl Random {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}

/// The CPU time of this process in microseconds, from the kernel's accounting (in hundredths of a second).
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    // Without the pid, the name and the state (not a number), utime and stime are the 11th and 12th fields.
    fields.get(10).zip(fields.get(11)).map_or(0, |(user, system)| (user + system) * 10_000)
}

fn commits(c: &mut Criterion) {
    for rows in [1000_usize, 100] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::new(
            EmbeddedStore::open(directory.path(), &[Rows::DEF], Options::default()).expect("it opens"),
        );
        let mut random = Random(rows as u64);
        let mut group = c.benchmark_group("commit");
        group.throughput(Throughput::Elements(rows as u64));
        let (mut batches, mut busy_us) = (0_u64, 0_u128);
        let cpu_start = cpu_us();
        group.bench_function(BenchmarkId::from_parameter(rows), |b| {
            let prepare = || -> Vec<(BenchKey, BenchRow)> {
                let row =
                    |_| (BenchKey { id: random.bytes() }, BenchRow { group: random.bytes(), body: [7; 168] });
                (0..rows).map(row).collect()
            };
            let run = |batch: Vec<(BenchKey, BenchRow)>| {
                let start = Instant::now();
                let keys: Vec<BenchKey> = batch.iter().map(|(key, _)| key.clone()).collect();
                assert!(
                    black_box(store.get_many::<Rows>(&keys).expect("it works")).iter().all(Option::is_none)
                );
                let mut changes = ChangeSet::new();
                for (key, row) in &batch {
                    changes.insert::<Rows>(key, row);
                }
                assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                busy_us += start.elapsed().as_micros();
                batches += 1;
            };
            b.iter_batched(prepare, run, BatchSize::PerIteration);
        });
        group.finish();
        let (stats, total) = (store.stats(), batches * rows as u64);
        println!(
            "{rows} rows a commit: {total} rows, wall {:.2} us a row of which disk {:.2}, process CPU {:.2} us a row (workload included), \
             index {} bytes a row, journal {} bytes a row",
            busy_us as f64 / total as f64,
            stats.sync_us_total as f64 / total as f64,
            (cpu_us() - cpu_start) as f64 / total as f64,
            stats.index_bytes / total,
            stats.written_bytes_total / total,
        );
    }
}

fn reads(c: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::new(
        EmbeddedStore::open(directory.path(), &[Rows::DEF], Options::default()).expect("it opens"),
    );
    let mut random = Random(1);
    let mut keys = Vec::new();
    for _ in 0..100 {
        let mut changes = ChangeSet::new();
        for _ in 0..1000 {
            let key = BenchKey { id: random.bytes() };
            changes.insert::<Rows>(&key, &BenchRow { group: random.bytes(), body: [7; 168] });
            keys.push(key);
        }
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    }
    let mut group = c.benchmark_group("get_many");
    group.throughput(Throughput::Elements(1000));
    let mut at = 0;
    group.bench_function("1000 of 100000", |b| {
        b.iter(|| {
            at = (at + 7919) % 99_000;
            black_box(store.get_many::<Rows>(&keys[at..at + 1000]).expect("it works"))
        });
    });
    group.finish();
}

/// Measures how long opening takes, with a checkpoint and from the journal alone. The results are printed and
/// not sampled, because one opening takes long enough.
fn opening(_: &mut Criterion) {
    const ROWS: usize = 500_000;
    let directory = tempfile::tempdir().expect("a directory");
    let open = || EmbeddedStore::open(directory.path(), &[Rows::DEF], Options::default()).expect("it opens");
    let mut random = Random(2);
    let store = Store::new(open());
    for _ in 0..ROWS / 1000 {
        let mut changes = ChangeSet::new();
        for _ in 0..1000 {
            changes.insert::<Rows>(
                &BenchKey { id: random.bytes() },
                &BenchRow { group: random.bytes(), body: [7; 168] },
            );
        }
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
    }
    let start = Instant::now();
    store.close().expect("it works");
    println!("{ROWS} rows: checkpoint written in {:?}", start.elapsed());
    drop(store);
    let start = Instant::now();
    drop(open());
    println!("{ROWS} rows: opened with a checkpoint in {:?}", start.elapsed());
    std::fs::remove_file(directory.path().join("checkpoint.idx")).expect("it was written");
    let start = Instant::now();
    drop(open());
    println!("{ROWS} rows: opened from the journal alone in {:?}", start.elapsed());
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50);
    targets = commits, reads, opening
}
criterion_main!(benches);

//! Rows with values in common, of which the journal has each only once in a while: references must survive
//! segments, compaction, crashes and programs that do not know the table.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, ChangeSet, CommitOutcome, Record as _, Result, Table, TableDef, record, table};

use crate::common::{DIR, Random, sim_options, soak_factor};

record! {
    /// Identifies a receipt.
    pub key struct ReceiptKey {
        /// A value that receipts of one commit may have in common.
        pub coin: [u8; 32],
        /// A value that many receipts have in common.
        pub shop: [u8; 32],
        /// A number.
        pub n: u32,
    }
}
record! {
    pub struct ReceiptRow {
        /// A number.
        pub amount: u64,
        /// A value that many receipts have in common.
        pub salt: [u8; 16],
        /// A value that many receipts have in common.
        pub account: [u8; 32],
        /// Anything.
        pub note: String,
    }
}

table! {
    Receipts(950, "receipts"): ReceiptKey => ReceiptRow,
        shared(&["shop", "salt", "account"]), shared_in_commit(&["coin"]);
    BY_ACCOUNT = 1, "by_account", Hash;
    |_, row, out| {
        out.add(Self::BY_ACCOUNT, &row.account);
    }
}

const ALL: &[&TableDef] = &[Items::DEF, Receipts::DEF];

type Rows = BTreeMap<ReceiptKey, ReceiptRow>;

fn open(disk: &SimDisk) -> Result<EmbeddedStore> {
    EmbeddedStore::open(Path::new(DIR), ALL, sim_options(disk))
}

/// A value of 16 to 32 bytes that is the same for equal numbers.
fn value<const N: usize>(kind: u8, n: u64) -> [u8; N] {
    let mut bytes = [kind; N];
    let random = (n << 8 | u64::from(kind)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes[..8].copy_from_slice(&random.to_be_bytes());
    bytes
}

fn receipt(random: &mut Random, coin: u64) -> (ReceiptKey, ReceiptRow) {
    let shop = random.below(5);
    let n = u32::try_from(random.below(4)).expect("small");
    (ReceiptKey { coin: value(1, coin), shop: value(2, shop), n }, receipt_row(random, shop))
}

fn receipt_row(random: &mut Random, shop: u64) -> ReceiptRow {
    ReceiptRow {
        amount: random.below(1 << 40),
        // Some shops have several accounts.
        salt: value(3, shop + random.below(2)),
        account: value(4, shop + random.below(2)),
        note: "n".repeat(usize::try_from(random.below(30)).expect("small")),
    }
}

/// A commit of a few receipts of one coin, some new, some changed, some deleted.
fn changes(random: &mut Random, rows: &mut Rows) -> ChangeSet {
    let mut changes = ChangeSet::new();
    let coin = random.below(40);
    for _ in 0..=random.below(5) {
        let (key, new) = receipt(random, coin);
        match rows.get(&key).cloned() {
            None => {
                changes.insert::<Receipts>(&key, &new);
                rows.insert(key, new);
            }
            Some(old) if random.below(3) == 0 => {
                changes.delete::<Receipts>(&key, &old);
                rows.remove(&key);
            }
            Some(old) => {
                changes.update::<Receipts>(&key, &old, &new);
                rows.insert(key, new);
            }
        }
    }
    changes
}

fn read(store: &EmbeddedStore) -> Rows {
    let mut rows = Rows::new();
    let scanned = store.scan(Receipts::DEF, &mut |record| {
        let key = ReceiptKey::decode(&record.key).expect("it is a key");
        rows.insert(key, ReceiptRow::decode(&record.row).expect("it is a row"));
        ControlFlow::Continue(())
    });
    scanned.expect("the store is sound");
    rows
}

/// Rows read one by one, and by index, are those of the scan.
fn check(store: &EmbeddedStore, rows: &Rows) {
    assert!(read(store) == *rows);
    let keys: Vec<Vec<u8>> = rows.keys().map(batzen_store::Record::to_bytes).collect();
    let read = store.get_many(Receipts::DEF, &keys).expect("it works");
    for (row, read) in rows.values().zip(read) {
        assert_eq!(read.expect("it exists").row, row.to_bytes());
    }
    for n in 0..7 {
        let account: [u8; 32] = value(4, n);
        let found = store.lookup_many(Receipts::DEF, Receipts::BY_ACCOUNT, &[account.to_vec()]);
        let expected = rows.values().filter(|row| row.account == account).count();
        assert_eq!(found.expect("it works")[0].len(), expected);
    }
}

fn no_problems(disk: &SimDisk) {
    let report = EmbeddedStore::inspect(DIR, disk, &mut |_| ()).expect("there is a store");
    assert_eq!(report.problems, Vec::<String>::new());
}

#[test]
fn random_histories_match_the_model() {
    for seed in 0..20 * soak_factor() {
        let disk = SimDisk::new(seed);
        let mut random = Random(seed << 40);
        let mut rows = Rows::new();
        let mut compacted = 0;
        for _ in 0..6 {
            let store = open(&disk).expect("it opens");
            check(&store, &rows);
            for _ in 0..60 {
                let changes = changes(&mut random, &mut rows);
                assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
                match random.below(20) {
                    0 => store.checkpoint().expect("it works"),
                    1..=4 => store.maintain().expect("it works"),
                    _ => {}
                }
            }
            check(&store, &rows);
            compacted += Backend::stats(&store).compacted_total;
            drop(store);
            disk.restart();
            no_problems(&disk);
        }
        assert!(compacted > 0, "records were moved to other segments");
    }
}

/// A program that does not know the table moves its records to other segments.
#[test]
fn unknown_records_are_moved_whole() {
    for seed in 0..10 * soak_factor() {
        let disk = SimDisk::new(seed);
        let mut random = Random(seed << 40);
        let mut rows = Rows::new();
        let mut compacted = 0;
        for round in 0..6 {
            let store = open(&disk).expect("it opens");
            for n in 0..40 {
                let commit = changes(&mut random, &mut rows);
                assert_eq!(store.commit(&commit).expect("it works"), CommitOutcome::Committed);
                // These die, so that segments are worth compacting.
                let mut other = ChangeSet::new();
                other.insert::<Items>(&key(round, n), &row(&"long".repeat(40), None));
                assert_eq!(store.commit(&other).expect("it works"), CommitOutcome::Committed);
                let mut other = ChangeSet::new();
                other.delete::<Items>(&key(round, n), &row(&"long".repeat(40), None));
                assert_eq!(store.commit(&other).expect("it works"), CommitOutcome::Committed);
            }
            drop(store);
            let narrow = EmbeddedStore::open(Path::new(DIR), TABLES, sim_options(&disk)).expect("it opens");
            narrow.maintain().expect("it works");
            narrow.checkpoint().expect("it works");
            compacted += Backend::stats(&narrow).compacted_total;
            drop(narrow);
            disk.restart();
            no_problems(&disk);
            check(&open(&disk).expect("it opens"), &rows);
        }
        assert!(compacted > 0, "records were moved to other segments");
    }
}

/// A fault at any call to the disk, then a power loss: the store has the rows of the last acknowledged commit, or of
/// the one after it.
fn faults_lose_nothing(fault: Fault) {
    let session = |disk: &SimDisk, seed: u64, states: &mut Vec<Rows>| -> Result<()> {
        let store = open(disk)?;
        let mut random = Random(seed << 40);
        for _ in 0..60 {
            let mut rows = states.last().expect("never empty").clone();
            let commit = changes(&mut random, &mut rows);
            states.push(rows);
            assert_eq!(store.commit(&commit)?, CommitOutcome::Committed);
            if random.below(4) == 0 {
                store.maintain()?;
            }
        }
        Backend::close(&store)
    };
    for seed in 1..=3 * soak_factor() {
        let whole = SimDisk::new(seed);
        session(&whole, seed, &mut vec![Rows::new()]).expect("no fault");
        for n in (1..=whole.calls()).step_by(3) {
            let disk = SimDisk::new(seed.wrapping_mul(31).wrapping_add(n));
            disk.fail_at(n, fault);
            let mut states = vec![Rows::new()];
            let ended = session(&disk, seed, &mut states);
            disk.restart();
            let store = open(&disk).expect("it opens");
            let rows = read(&store);
            let last = states.len() - 1;
            let is_right = rows == states[last] || (ended.is_err() && last > 0 && rows == states[last - 1]);
            assert!(is_right, "{fault:?} at call {n} of seed {seed}");
            check(&store, &rows);
        }
    }
}

#[test]
fn crash_at_many_calls_loses_nothing() {
    faults_lose_nothing(Fault::Crash);
}

#[test]
fn error_at_many_calls_loses_nothing() {
    faults_lose_nothing(Fault::Error);
}

#[test]
fn full_disk_at_many_calls_loses_nothing() {
    faults_lose_nothing(Fault::Full);
}

/// Several writers share a journal of short segments: many commits are ready for a segment when the journal has gone
/// on to the next one.
#[test]
fn commits_of_several_writers_move_on_together() {
    const WRITERS: u64 = 4;
    const COMMITS: u64 = 400;
    let disk = SimDisk::new(7);
    let options = Options { background: true, ..sim_options(&disk) };
    let store = Arc::new(EmbeddedStore::open(Path::new(DIR), ALL, options).expect("it opens"));
    let write = |writer: u64| {
        let store = Arc::clone(&store);
        std::thread::spawn(move || {
            let mut random = Random(writer << 40);
            let mut rows = Rows::new();
            for n in 0..COMMITS {
                let mut changes = ChangeSet::new();
                for part in 0..2 {
                    // Coins of one writer, shops of all.
                    let shop = random.below(5);
                    let coin = value(1, writer * COMMITS + n);
                    let key = ReceiptKey { coin, shop: value(2, shop), n: part };
                    let row = receipt_row(&mut random, shop);
                    changes.insert::<Receipts>(&key, &row);
                    rows.insert(key, row);
                }
                assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
            }
            rows
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(write).collect();
    let rows: Rows = writers.into_iter().flat_map(|writer| writer.join().expect("it ends")).collect();
    check(&store, &rows);
    Backend::close(&*store).expect("it closes");
    drop(store);
    disk.restart();
    no_problems(&disk);
    check(&open(&disk).expect("it opens"), &rows);
}

/// Values that many rows have in common take little space.
#[test]
fn shared_values_are_written_once_a_segment() {
    let disk = SimDisk::new(1);
    let options = Options { segment_bytes_first: 1 << 20, segment_bytes_max: 1 << 20, ..sim_options(&disk) };
    let store = EmbeddedStore::open(Path::new(DIR), ALL, options).expect("it opens");
    let mut sizes = Vec::new();
    for n in 0..10 {
        let before = Backend::stats(&store).live_bytes;
        let mut changes = ChangeSet::new();
        let key = ReceiptKey { coin: value(1, n), shop: value(2, 1), n: 0 };
        let row = ReceiptRow { amount: 1, salt: value(3, 1), account: value(4, 1), note: String::new() };
        changes.insert::<Receipts>(&key, &row);
        assert_eq!(store.commit(&changes).expect("it works"), CommitOutcome::Committed);
        sizes.push(Backend::stats(&store).live_bytes - before);
    }
    assert!(sizes[1..].iter().all(|size| size + 64 <= sizes[0]), "{sizes:?}");
}

crate::repeat_without_index_memory!(random_histories_match_the_model, unknown_records_are_moved_whole);

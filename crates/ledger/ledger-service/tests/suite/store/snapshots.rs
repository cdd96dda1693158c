//! Snapshots: nothing that a ledger answers depends on them, and verification compares all of them with the log.

use std::path::Path;
use std::sync::Arc;

use batzen_ledger::machine::History;
use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFilter, CreateTransferStatus as S, Transfer, TransferFlags as F,
};
use batzen_ledger_service::store::log::LogReader;
use batzen_ledger_service::store::{
    CreateAccounts, CreateTransfers, DurableMachine, RecoveryError, SnapshotOptions, TypedRequest, verify,
};
use batzen_service::storage::StoreConfig;
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Change, ChangeSet, CommitOutcome, RawRecord, Record, Store, Table, TableDef};
use batzen_tables::ledger::{
    ALL, DERIVED, LedgerAccounts, LedgerIdFilters, LedgerIdPages, LedgerSnapshotKey, LedgerSnapshotRow,
    LedgerSnapshots,
};

use crate::store::world::tiny_snapshots;

const NEVER: SnapshotOptions = tiny_snapshots(u64::MAX);

fn store() -> Store {
    let options = Options { disk: Arc::new(SimDisk::new(1)), background: false, ..Options::default() };
    Store::new(EmbeddedStore::open(Path::new("/ledger"), ALL, options).unwrap())
}

const ACCOUNTS: u128 = 150;

fn send(ledger: &mut DurableMachine, events: Vec<Transfer>) -> Vec<S> {
    let now = ledger.machine().clock() + 1_000;
    let answer = ledger.execute(&CreateTransfers(events).into(), now).unwrap();
    ledger.commit().unwrap();
    CreateTransfers::answer(answer).into_iter().map(|result| result.status).collect()
}

/// Payments, reservations that stay open, and some that are posted or voided by a later batch.
fn batch(number: u128) -> Vec<Transfer> {
    let pay = |id: u128| Transfer {
        id,
        // The first account has a long history.
        debit_account_id: if id.is_multiple_of(2) { 1 } else { 2 + (id * 7 + 1 + id % 40) % (ACCOUNTS - 1) },
        credit_account_id: 2 + (id * 7 + id % 40) % (ACCOUNTS - 1),
        amount: 1 + id % 5_000,
        ledger: 1,
        code: 1,
        ..Transfer::default()
    };
    let id = |n: u128| 1_000 * (number + 1) + n;
    let resolve = |n, pending_id, flags| {
        let amount = if flags == F::POST_PENDING_TRANSFER { AMOUNT_MAX } else { 0 };
        Transfer { id: id(n), pending_id, amount, flags, ..Transfer::default() }
    };
    let mut events: Vec<Transfer> = (0..20).map(|n| pay(id(n))).collect();
    events.extend((20..26).map(|n| Transfer { flags: F::PENDING, ..pay(id(n)) }));
    // This one is refused for good.
    events.push(Transfer { debit_account_id: 999, ..pay(id(26)) });
    events.push(resolve(27, id(20), F::POST_PENDING_TRANSFER));
    if number > 0 {
        events.push(resolve(28, id(21) - 1_000, F::POST_PENDING_TRANSFER));
        events.push(resolve(29, id(22) - 1_000, F::VOID_PENDING_TRANSFER));
    }
    if number > 3 {
        events.push(resolve(30, id(23) - 4_000, F::VOID_PENDING_TRANSFER));
    }
    events
}

fn open_accounts(ledger: &mut DurableMachine) {
    for ids in (1..=ACCOUNTS).collect::<Vec<_>>().chunks(50) {
        let account = |id: &u128| Account { id: *id, ledger: 1, code: 1, ..Account::default() };
        let now = ledger.machine().clock() + 1_000;
        ledger.execute(&CreateAccounts(ids.iter().map(account).collect()).into(), now).unwrap();
        ledger.commit().unwrap();
    }
}

fn maintain(ledger: &mut DurableMachine) {
    while ledger.maintain().unwrap() {}
}

/// A ledger with some batches, and all of the work of snapshots done after each.
fn filled(store: &Store, options: SnapshotOptions, batches: u128) -> DurableMachine {
    let mut ledger = DurableMachine::open_with(store.clone(), options).unwrap();
    open_accounts(&mut ledger);
    for number in 0..batches {
        send(&mut ledger, batch(number));
        maintain(&mut ledger);
    }
    ledger
}

fn head(store: &Store) -> Option<LedgerSnapshotRow> {
    store.get::<LedgerSnapshots>(&LedgerSnapshotKey::ONLY).unwrap().map(|stored| stored.row)
}

/// All transfers of all batches are known, with the statuses that they had first. Can be called for some rounds.
fn check_known(ledger: &mut DurableMachine, batches: u128, round: u128) {
    for number in 0..batches {
        let known = send(ledger, batch(number));
        for (event, status) in batch(number).iter().zip(known) {
            let burnt = event.debit_account_id == 999;
            assert_eq!(status, if burnt { S::IdAlreadyFailed } else { S::Exists }, "{}", event.id);
        }
        // What was resolved stays resolved, whichever run knows it.
        let late = |n: u128, flags| Transfer {
            id: 1_000_000 * (round + 1) + number * 100 + n,
            pending_id: 1_000 * (number + 1) + n,
            amount: if flags == F::POST_PENDING_TRANSFER { AMOUNT_MAX } else { 0 },
            flags,
            ..Transfer::default()
        };
        let later = [late(20, F::POST_PENDING_TRANSFER), late(21, F::VOID_PENDING_TRANSFER)];
        let statuses = send(ledger, later.to_vec());
        let expected = match round {
            _ if number + 1 < batches => S::PendingTransferAlreadyPosted,
            0 => S::Created,
            _ => S::PendingTransferAlreadyVoided,
        };
        assert_eq!(statuses, [S::PendingTransferAlreadyPosted, expected], "batch {number}");
        if number + 1 < batches {
            let statuses = send(ledger, vec![late(22, F::POST_PENDING_TRANSFER)]);
            assert_eq!(statuses, [S::PendingTransferAlreadyVoided], "batch {number}");
        }
    }
}

#[test]
fn the_ids_of_old_transfers_are_on_disk() {
    let store = store();
    let mut ledger = filled(&store, tiny_snapshots(1), 24);
    let snapshot = ledger.log().inspect_snapshot();
    assert_eq!(snapshot.records, ledger.machine().counts().records);
    assert!((1..=8).contains(&snapshot.id_runs), "{} runs after 24 snapshots", snapshot.id_runs);
    check_known(&mut ledger, 24, 0);
    maintain(&mut ledger);
    verify(&store).unwrap();
    let mut again = DurableMachine::open_with(store.clone(), tiny_snapshots(1)).unwrap();
    assert_eq!(again.machine().digest(), ledger.machine().digest());
    assert_eq!(again.machine().clock(), ledger.machine().clock());
    drop(ledger);
    check_known(&mut again, 24, 1);
}

#[test]
fn every_backend_has_snapshots() {
    let url = batzen_testkit::postgres::fresh_database();
    for place in [StoreConfig::Memory, StoreConfig::postgres(url)] {
        let store = place.open(&batzen_service::storage::LEDGER, 1).unwrap();
        let mut ledger = filled(&store, tiny_snapshots(1), 9);
        check_known(&mut ledger, 9, 0);
        verify(&store).unwrap();
        let digest = ledger.machine().digest();
        drop(ledger);
        let mut again = DurableMachine::open_with(store.clone(), tiny_snapshots(1)).unwrap();
        assert_eq!(again.machine().digest(), digest);
        maintain(&mut again);
        let snapshot = again.log().inspect_snapshot();
        assert!((1..=8).contains(&snapshot.id_runs), "{place:?}: {snapshot:?}");
        check_known(&mut again, 9, 1);
        verify(&store).unwrap();
        drop(again);
        store.close().unwrap();
    }
}

/// With all ids on disk, memory has the last ones only.
#[test]
fn memory_does_not_grow_with_transfers() {
    let store = store();
    let mut ledger = filled(&store, tiny_snapshots(1), 30);
    // The machine forgets ids when it commits after their snapshot.
    send(&mut ledger, batch(30));
    let few = ledger.machine().memory().ids;
    let all = filled(&self::store(), NEVER, 31).machine().memory().ids;
    assert!(few * 3 < all, "{few} bytes with snapshots, {all} without");
    let rows = ledger.log().memory_bytes();
    let all_rows = filled(&self::store(), NEVER, 31).log().memory_bytes();
    assert!(rows < all_rows, "{rows} bytes with snapshots, {all_rows} without");
}

#[test]
fn an_older_ledger_gets_snapshots_while_it_opens() {
    let store = store();
    let before = filled(&store, NEVER, 12);
    let (digest, counts) = (before.machine().digest(), before.machine().counts());
    assert_eq!(head(&store), None);
    drop(before);
    let mut ledger = DurableMachine::open_with(store.clone(), tiny_snapshots(3_000)).unwrap();
    assert_eq!((ledger.machine().digest(), ledger.machine().counts()), (digest, counts));
    let snapshot = ledger.log().inspect_snapshot();
    assert!(snapshot.records > counts.records / 2, "{snapshot:?} of {counts:?}");
    verify(&store).unwrap();
    check_known(&mut ledger, 12, 0);
}

/// Between any two steps of the work the snapshot is sound, and a process that begins there continues it.
#[test]
fn every_step_can_be_the_last() {
    let store = store();
    let mut ledger = DurableMachine::open_with(store.clone(), tiny_snapshots(1)).unwrap();
    open_accounts(&mut ledger);
    let (mut steps, mut continued, mut number, mut left) = (0, 0, 0, 0);
    while number < 20 {
        let more = ledger.maintain().unwrap();
        steps += 1;
        verify(&store).unwrap_or_else(|error| panic!("step {steps}: {error}"));
        let again = DurableMachine::open_with(store.clone(), NEVER).unwrap();
        assert_eq!(again.machine().digest(), ledger.machine().digest(), "step {steps}");
        assert_eq!(again.machine().counts(), ledger.machine().counts(), "step {steps}");
        let filter = AccountFilter::all(7);
        let cursors =
            [&ledger, &again].map(|ledger| format!("{:?}", ledger.machine().account_cursor(&filter)));
        assert_eq!(cursors[0], cursors[1], "step {steps}");
        if let Some(target) = head(&store).map(|head| head.target).filter(|target| *target > 0) {
            continued += 1;
            // Sometimes the next process goes on, once for each snapshot.
            if steps % 7 == 0 && left < target {
                left = target;
                drop(ledger);
                ledger = DurableMachine::open_with(store.clone(), tiny_snapshots(1)).unwrap();
            }
        }
        if !more {
            send(&mut ledger, batch(number));
            number += 1;
        }
    }
    assert!(steps > 200 && continued > 100, "{steps} steps, {continued} within a snapshot");
    maintain(&mut ledger);
    // Of merged runs and of those that were begun twice, nothing is left.
    let found = head(&store).unwrap();
    assert!(found.old_runs.is_empty(), "{found:?}");
    let runs = ledger.log().inspect_snapshot().id_runs;
    let mut of_pages: Vec<u64> =
        store.all::<LedgerIdPages>().unwrap().iter().map(|page| page.key.run).collect();
    let mut of_filters: Vec<u64> =
        store.all::<LedgerIdFilters>().unwrap().iter().map(|filter| filter.key.run).collect();
    for runs_of in [&mut of_pages, &mut of_filters] {
        runs_of.sort_unstable();
        runs_of.dedup();
        assert_eq!(runs_of.len() as u64, runs);
    }
}

/// Readers with an older list of runs still find their rows.
#[test]
fn runs_stay_as_long_as_they_are_read() {
    let store = store();
    let mut ledger = filled(&store, tiny_snapshots(1), 15);
    let log = Arc::clone(ledger.log());
    let reader = LogReader::new(&log);
    let known = |reader: &LogReader<'_>, id| {
        let mut found = Vec::new();
        let hash = ledger_hash(&store, id);
        reader.find_ids(&[hash], &mut |_, number, _| found.push(number)).unwrap();
        found
    };
    let before = known(&reader, 1_003);
    assert_eq!(before.len(), 1);
    let runs = log.inspect_snapshot().id_runs;
    for number in 15..32 {
        send(&mut ledger, batch(number));
        maintain_some(&mut ledger);
        assert_eq!(known(&reader, 1_003), before, "after batch {number}");
    }
    assert!(!head(&store).unwrap().old_runs.is_empty(), "the {runs} runs of the reader are not deleted");
    drop(reader);
    maintain(&mut ledger);
    assert!(head(&store).unwrap().old_runs.is_empty());
}

/// The work, but at most so much that a run which cannot be deleted does not keep it going.
fn maintain_some(ledger: &mut DurableMachine) {
    for _ in 0..200 {
        if !ledger.maintain().unwrap() {
            break;
        }
    }
}

fn ledger_hash(store: &Store, id: u128) -> u64 {
    batzen_ledger::machine::IdHasher::new(&head(store).unwrap().hash_key).hash(id)
}

fn rows(store: &Store, table: &'static TableDef) -> Vec<RawRecord> {
    let mut rows = Vec::new();
    store
        .freeze(&[table])
        .unwrap()
        .scan(table, &mut |record| {
            rows.push(record);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows
}

/// Replaces a row, or deletes it.
fn put(store: &Store, table: &'static TableDef, key: &[u8], row: Option<Vec<u8>>) {
    let old = store.backend().get_many(table, &[key.to_vec()]).unwrap().remove(0);
    let mut changes = ChangeSet::new();
    let key = key.to_vec();
    changes.push(match (old, row) {
        (None, Some(row)) => Change::Insert { table, key, row },
        (Some(old), Some(row)) => {
            Change::Update { table, key, old_row: old.row, version: Some(old.version), row }
        }
        (Some(old), None) => Change::Delete { table, key, old_row: old.row, version: Some(old.version) },
        (None, None) => return,
    });
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
}

/// A ledger in the middle of a snapshot: some pages of accounts are as of the next one.
fn half_way(store: &Store) -> DurableMachine {
    let mut ledger = filled(store, tiny_snapshots(1), 7);
    send(&mut ledger, batch(7));
    send(&mut ledger, batch(8));
    let of_target = || {
        let target = head(store).unwrap().target;
        let pages = store.all::<LedgerAccounts>().unwrap();
        pages.iter().filter(|page| target > 0 && page.row.records == target).count()
    };
    while of_target() == 0 {
        assert!(ledger.maintain().unwrap());
    }
    assert_eq!(of_target(), 1, "one of three pages");
    ledger
}

#[test]
fn verification_finds_every_change_of_a_snapshot() {
    let store = store();
    let ledger = half_way(&store);
    drop(ledger);
    verify(&store).unwrap();
    let (mut found, mut tables) = (0, 0);
    for table in DERIVED.iter().copied().filter(|table| table.id != LedgerSnapshots::DEF.id) {
        let all = rows(&store, table);
        assert!(!all.is_empty(), "{} has rows", table.name);
        tables += 1;
        for RawRecord { key, row, .. } in all {
            let mut variants = vec![None];
            for at in (0..row.len()).step_by(5) {
                let mut changed = row.clone();
                changed[at] ^= 1 << (at % 8);
                variants.push(Some(changed));
            }
            for changed in variants {
                // A fingerprint that no hash of the run uses may have any value.
                let may_pass = table.id == LedgerIdFilters::DEF.id && changed.is_some();
                put(&store, table, &key, changed);
                match verify(&store) {
                    Err(RecoveryError::Snapshot(_) | RecoveryError::Store(_)) => found += 1,
                    Err(error) => panic!("{}: another error: {error}", table.name),
                    Ok(_) => assert!(may_pass, "{}: a change of {key:?} is not found", table.name),
                }
                put(&store, table, &key, Some(row.clone()));
            }
        }
    }
    verify(&store).unwrap();
    assert!(found > 1_000 && tables == DERIVED.len() - 1, "{found} changes were found");
}

#[test]
fn verification_finds_a_wrong_head() {
    let store = store();
    drop(half_way(&store));
    let sound = head(&store).unwrap();
    let changes: [fn(&mut LedgerSnapshotRow); 14] = [
        |row| row.hash_key[3] ^= 1,
        |row| row.records -= 1,
        |row| row.target += 1,
        |row| row.target = 0,
        |row| row.log_rows += 1,
        |row| row.accounts -= 1,
        |row| row.transfers += 1,
        |row| row.burnt += 1,
        |row| row.pendings += 1,
        |row| row.digest ^= 1 << 70,
        |row| row.last_movement -= 1,
        |row| row.pending_rows_from += 1,
        |row| row.pending_rows_to -= 1,
        |row| row.runs[0] ^= 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut row = sound.clone();
        change(&mut row);
        put(&store, LedgerSnapshots::DEF, &LedgerSnapshotKey::ONLY.to_bytes(), Some(row.to_bytes()));
        let found = verify(&store);
        assert!(found.is_err(), "change {number} is not found");
    }
    put(&store, LedgerSnapshots::DEF, &LedgerSnapshotKey::ONLY.to_bytes(), Some(sound.to_bytes()));
    verify(&store).unwrap();
}

/// The log has everything, so a snapshot that cannot be right is rebuilt.
#[test]
fn a_damaged_snapshot_is_rebuilt() {
    let (mut rebuilt, mut noticed) = (0, 0);
    for (n, table) in DERIVED.iter().copied().enumerate() {
        for is_deleted in [true, false] {
            let store = store();
            let before = half_way(&store);
            let (digest, counts) = (before.machine().digest(), before.machine().counts());
            drop(before);
            let sound = head(&store).unwrap();
            let RawRecord { key, mut row, .. } = rows(&store, table).remove(0);
            // The last byte of every row ends its last column.
            *row.last_mut().unwrap() ^= 0x40;
            put(&store, table, &key, if is_deleted { None } else { Some(row) });
            // A new snapshot is recognized by its key.
            let options = SnapshotOptions { hash_key: Some([9; 16]), ..tiny_snapshots(1) };
            let opened = DurableMachine::open_with(store.clone(), options);
            let mut ledger = opened.unwrap_or_else(|error| panic!("{}: {error}", table.name));
            assert_eq!((ledger.machine().digest(), ledger.machine().counts()), (digest, counts));
            if head(&store).is_none_or(|head| head.hash_key != sound.hash_key) {
                rebuilt += 1;
                send(&mut ledger, batch(9));
                maintain(&mut ledger);
                verify(&store).unwrap_or_else(|error| panic!("{n}, {}: {error}", table.name));
                check_known(&mut ledger, 10, 0);
            } else {
                // Read only when they are needed: what cannot be read is no answer.
                noticed += 1;
                assert!(
                    ["ledger_id_pages", "ledger_rows"].contains(&table.name),
                    "damage to {} is noticed when the ledger opens",
                    table.name
                );
                assert!(verify(&store).is_err());
                if table.id == LedgerIdPages::DEF.id {
                    let refused = (0..8).any(|number| {
                        let now = ledger.machine().clock() + 1_000;
                        let refused = ledger.execute(&CreateTransfers(batch(number)).into(), now).is_err();
                        ledger.undo();
                        refused
                    });
                    assert!(refused, "no answer comes from a damaged page");
                }
            }
        }
    }
    assert!(rebuilt >= 10 && noticed == 4, "{rebuilt} rebuilt, {noticed} noticed later");
}

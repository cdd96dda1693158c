//! Logs that were tampered with, all checksums correct: opening or verification finds each of them.

use std::path::Path;

use batzen_ledger::machine::{History, LogRecord, Machine, Movement};
use batzen_ledger::{Account, AccountFlags, Transfer, TransferFlags};
use batzen_ledger_service::store::codec::{self, Identity};
use batzen_ledger_service::store::log::LogReader;
use batzen_ledger_service::store::{CreateAccounts, CreateTransfers, DurableMachine, RecoveryError, verify};
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{ChangeSet, CommitOutcome, Store};
use batzen_tables::ledger::{ALL, LedgerLog, LedgerLogKey, LedgerLogRow};

fn store() -> Store {
    let disk = std::sync::Arc::new(SimDisk::new(1));
    let options = Options { disk, background: false, ..Options::default() };
    Store::new(EmbeddedStore::open(Path::new("/ledger"), ALL, options).unwrap())
}

/// The records of a small ledger: a bank, two accounts that cannot be overdrawn, payments and a reservation.
fn records() -> Vec<LogRecord> {
    let mut ledger = DurableMachine::open(store()).unwrap();
    let limit = AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS;
    let account = |id, flags| Account { id, ledger: 1, code: 1, flags, ..Account::default() };
    let accounts = vec![account(1, AccountFlags::NONE), account(2, limit), account(3, limit)];
    ledger.execute(&CreateAccounts(accounts).into(), 1_000).unwrap();
    let pay = |id, debit, credit, amount| Transfer {
        id,
        debit_account_id: debit,
        credit_account_id: credit,
        amount,
        ledger: 1,
        code: 1,
        ..Transfer::default()
    };
    let transfers = vec![
        pay(10, 1, 2, 100),
        pay(11, 2, 3, 60),
        Transfer { flags: TransferFlags::PENDING, timeout: 5, ..pay(12, 2, 3, 40) },
        pay(13, 2, 3, 1),
        pay(14, 1, 3, 5),
    ];
    ledger.execute(&CreateTransfers(transfers).into(), 2_000).unwrap();
    ledger.commit().unwrap();
    let reader = LogReader::new(ledger.log());
    (0..reader.len()).map(|number| reader.record(number).unwrap()).collect()
}

/// Writes records as a log. Its digests are correct if the machine accepts the records.
fn written(records: &[LogRecord]) -> Store {
    let store = store();
    let mut machine = Machine::new(&[0; 16]);
    for record in records {
        let _ = machine.restore(record);
    }
    let digest = machine.digest().to_u128();
    let mut changes = ChangeSet::new();
    let mut first = 0;
    for block in records.chunk_by(|a, b| codec::is_account(a) == codec::is_account(b)) {
        let mut coded = Vec::new();
        codec::encode(first, block, &mut coded);
        changes.insert::<LedgerLog>(
            &LedgerLogKey { first },
            &LedgerLogRow { clock: 9_000, digest, records: coded },
        );
        first += block.len() as u64;
    }
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    store
}

fn changed(number: usize, change: impl FnOnce(&mut Movement)) -> Vec<LogRecord> {
    let mut records = records();
    let LogRecord::Movement(movement) = &mut records[number] else { panic!("a movement stands there") };
    change(movement);
    records
}

fn is_opened(records: &[LogRecord]) -> bool {
    DurableMachine::open(written(records)).is_ok()
}

fn verdict(records: &[LogRecord]) -> String {
    match verify(&written(records)) {
        Ok(_) => "sound".to_owned(),
        Err(error @ RecoveryError::Divergence(_)) => error.to_string(),
        Err(error) => panic!("another kind of error: {error}"),
    }
}

#[test]
fn a_sound_log_passes() {
    let records = records();
    assert_eq!(records.len(), 8, "three accounts, four movements, a burnt id");
    assert!(matches!(records[6], LogRecord::Burnt { id: 13, .. }));
    assert!(is_opened(&records));
    assert_eq!(verdict(&records), "sound");
    assert_eq!(
        Identity::of(&match records[0] {
            LogRecord::Account(a) => a,
            _ => panic!("an account"),
        })
        .id,
        1
    );
}

#[test]
fn an_inconsistent_log_does_not_open() {
    let cases = [
        changed(4, |m| m.transfer.amount += 1),
        changed(4, |m| m.credit.balances.credits_posted += 1),
        changed(4, |m| m.debit.previous = 0),
        changed(5, |m| m.debit.balances.debits_pending = 0),
        changed(7, |m| m.timestamp -= 5),
        [&records()[..4], &records()[5..]].concat(),
        [records(), records()[7..].to_vec()].concat(),
    ];
    for (number, records) in cases.iter().enumerate() {
        assert!(!is_opened(records), "case {number} opens");
        assert_ne!(verdict(records), "sound", "case {number}");
    }
}

/// Verification finds records that are consistent but break a rule.
#[test]
fn records_that_break_a_rule_are_found() {
    let unlimited = || {
        let mut records = records();
        let LogRecord::Account(account) = &mut records[1] else { panic!("an account") };
        account.flags = AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS;
        for record in &mut records {
            if let LogRecord::Movement(movement) = record {
                for side in [&mut movement.debit, &mut movement.credit] {
                    if side.account == 1 {
                        side.flags = AccountFlags::CREDITS_MUST_NOT_EXCEED_DEBITS;
                    }
                }
            }
        }
        records
    };
    let without_burnt_id = || {
        let mut records = records();
        records[6] = LogRecord::Burnt { id: 11, timestamp: records[6].timestamp() };
        records
    };
    let code = changed(7, |m| m.transfer.code = 0);
    for (name, records) in [("limit", unlimited()), ("burnt", without_burnt_id()), ("code", code)] {
        assert_ne!(verdict(&records), "sound", "{name}");
    }
}

#[test]
fn a_wrong_digest_is_found() {
    let records = records();
    let store = written(&records);
    let key = LedgerLogKey { first: 3 };
    let old = store.get::<LedgerLog>(&key).unwrap().unwrap().row;
    let mut changes = ChangeSet::new();
    changes.update::<LedgerLog>(&key, &old, &LedgerLogRow { digest: old.digest ^ 1, ..old.clone() });
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
    assert!(matches!(verify(&store), Err(RecoveryError::Digest(_))));
    assert!(matches!(DurableMachine::open(store), Err(RecoveryError::Digest(_))));
}

//! Audits what the recordings left, untouched and altered: every kind of operation, with real signatures.

use std::collections::{BTreeMap, BTreeSet};

use batzen_audit::{Finding, History, Options, Outcome, Progress, Subject, audit, read_terms};
use batzen_protocol::Timestamp;
use batzen_store::memory::MemoryBackend;
use batzen_store::{
    Change, ChangeSet, ColumnDef, ColumnKind, CommitOutcome, RawRecord, Store, TableDef, Value,
    decode_values, encode_values,
};
use batzen_tables::exchange::AUDITED;

use crate::replay::recording::{Scenario, own_directory};
use crate::replay::stage::Stage;

/// The exchange of a stage, as its auditor knows it.
fn subject(stage: &Stage) -> Subject {
    let core = &stage.running.app().core;
    Subject {
        currency: core.config.currency,
        master_pub: core.master_public_key,
        base_url: core.config.base_url.clone(),
        round_unit: core.config.currency_round_unit.units(),
        auditor: None,
    }
}

/// Audits rows.
fn audited(subject: &Subject, store: &Store, now: Timestamp) -> Outcome {
    let options = Options { now, internal: true, threads: 1, bank: Vec::new() };
    audit(store, subject, &options, &Progress::default()).unwrap()
}

/// Nothing is found in the books of an honest exchange.
pub async fn expect_nothing(stage: &Stage) {
    stage.pay_out().await;
    let outcome = audited(&subject(stage), &stage.running.app().core.store, stage.now());
    let faults: Vec<_> = outcome.faults().collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(outcome.sheet.difference().units, 0);
}

/// All rows of the audited tables.
#[derive(Clone)]
struct Copy(Vec<(&'static TableDef, RawRecord)>);

impl Copy {
    fn of(store: &Store) -> Self {
        let mut all = Vec::new();
        for table in AUDITED {
            let scanned = store.backend().scan(table, &mut |record| {
                all.push((*table, record));
                std::ops::ControlFlow::Continue(())
            });
            scanned.unwrap();
        }
        // Serials are given in the order of inserts.
        all.sort_by_key(|(_, record)| record.serial);
        Self(all)
    }

    fn store(&self) -> Store {
        let store = Store::new(MemoryBackend::new());
        let mut changes = ChangeSet::new();
        for (table, record) in &self.0 {
            let (key, row) = (record.key.clone(), record.row.clone());
            changes.push(Change::Insert { table, key, row });
        }
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        store
    }
}

/// Another value of the same kind.
fn altered(column: &ColumnDef, value: &Value) -> Value {
    match value {
        Value::Null => match column.column.kind {
            ColumnKind::Fixed(n) => Value::Bytes(vec![7; n]),
            ColumnKind::Bytes => Value::Bytes(vec![7]),
            ColumnKind::Text => Value::Text("changed".to_owned()),
            ColumnKind::Timestamp => Value::Timestamp(1_700_000_000_000_000),
            ColumnKind::Bool => Value::Bool(true),
            ColumnKind::U128 => Value::U128(1),
            ColumnKind::Amount => Value::Amount { units: 1, fraction: 0 },
            ColumnKind::I64 => Value::I64(1),
            _ => Value::U64(1),
        },
        Value::U64(n) => Value::U64(if *n == 0 { 1 } else { n - 1 }),
        Value::I64(n) => Value::I64(n - 1),
        Value::U128(n) => Value::U128(n.checked_sub(1).unwrap_or(1)),
        Value::Bool(flag) => Value::Bool(!flag),
        Value::Bytes(bytes) => {
            let mut bytes = bytes.clone();
            // The last byte but seven: within the payload of every encoding, and not a length.
            let at = bytes.len().saturating_sub(8);
            match bytes.get_mut(at) {
                Some(byte) => *byte ^= 1,
                None => bytes.push(1),
            }
            Value::Bytes(bytes)
        }
        Value::Text(text) => Value::Text(format!("{text}x")),
        Value::Amount { units, fraction } if *units == 0 && *fraction == 0 => {
            Value::Amount { units: 0, fraction: 1_000_000 }
        }
        Value::Amount { units, fraction } if *units == 0 => {
            Value::Amount { units: 0, fraction: fraction - 1 }
        }
        Value::Amount { units, fraction } => Value::Amount { units: units - 1, fraction: *fraction },
        Value::Timestamp(time) => Value::Timestamp(time.saturating_sub(1_000_000)),
    }
}

/// What an auditor finds who has seen the rows before.
fn findings(subject: &Subject, seen: &Store, changed: &Store, now: Timestamp) -> Vec<Finding> {
    let outcome = audited(subject, changed, now);
    let mut all: Vec<Finding> = outcome.faults().cloned().collect();
    let frozen = changed.freeze(AUDITED).unwrap();
    let terms = read_terms(&*frozen, subject).unwrap();
    all.extend(History { seen, current: changed, terms: &terms, now }.compare().unwrap());
    all
}

/// The recordings that have rows in every audited table between them.
const RECORDINGS: [&str; 4] = ["p2p-rsa", "revocation-rsa", "exchange-api-rsa", "wallet-p2p"];
/// Tables that have no rows in the recordings.
const WITHOUT_ROWS: [&str; 6] =
    ["auditors", "auditor_denoms", "drains", "collected_sums", "archive_runs", "archive_counts"];

/// Every single alteration of a row is found, and the rule that finds it says what it is about.
async fn alterations_are_found(name: &str, met: &mut BTreeSet<&'static str>) {
    let scenario = Scenario::read(&own_directory(), name);
    let player = crate::replay::player::Player::new(scenario, crate::replay::master(&own_directory())).await;
    let mut taken = None;
    player
        .play(async |stage: &Stage| {
            stage.pay_out().await;
            let copy = Copy::of(&stage.running.app().core.store);
            taken = Some((subject(stage), copy, stage.now()));
        })
        .await;
    let (subject, copy, now) = taken.unwrap();
    let seen = copy.store();
    assert_eq!(findings(&subject, &seen, &seen, now), [], "{name}: untouched");
    let mut by_rule: BTreeMap<&str, u64> = BTreeMap::new();
    let mut missed = Vec::new();
    let mut done: BTreeMap<u16, u32> = BTreeMap::new();
    for (at, (table, record)) in copy.0.iter().enumerate() {
        met.insert(table.name);
        let count = done.entry(table.id).or_default();
        *count += 1;
        // A few rows of each table are enough: what they have in common is their columns.
        if *count > 2 {
            continue;
        }
        let mut check = |what: String, changed: Copy, by_rule: &mut BTreeMap<&str, u64>| {
            let found = findings(&subject, &seen, &changed.store(), now);
            if found.is_empty() {
                missed.push(format!("{}: {what}", table.name));
            }
            for finding in found {
                *by_rule.entry(finding.rule.info().name).or_default() += 1;
            }
        };
        let mut removed = copy.clone();
        removed.0.remove(at);
        let may_go = ["aggregates", "kyc_requirements"].contains(&table.name);
        if !may_go {
            check("removed".to_owned(), removed, &mut by_rule);
        }
        let values = decode_values(table.row_columns, &record.row).unwrap();
        for (index, column) in table.row_columns.iter().enumerate() {
            let mut values = values.clone();
            values[index] = altered(column, &values[index]);
            let Ok(row) = encode_values(table.row_columns, &values) else { continue };
            if is_allowed(table, column.name, &decode_values(table.row_columns, &record.row).unwrap()[index])
            {
                continue;
            }
            let mut changed = copy.clone();
            changed.0[at].1.row = row;
            check(format!("{} changed", column.name), changed, &mut by_rule);
        }
    }
    println!("{name}: {by_rule:?}");
    assert!(missed.is_empty(), "{name}: nothing is found: {missed:#?}");
}

/// Changes that an honest exchange makes as well, so that nobody can tell who made them.
fn is_allowed(table: &TableDef, column: &str, old: &Value) -> bool {
    match (table.name, column) {
        // The bank accepted a transfer, or it failed.
        ("prepared", "finished") => *old == Value::Null,
        ("prepared", "failed") => true,
        // The customer was asked again.
        ("kyc_requirements", "asked") => true,
        _ => false,
    }
}

#[tokio::test]
async fn every_alteration_is_found() {
    let mut met = BTreeSet::new();
    for name in RECORDINGS {
        alterations_are_found(name, &mut met).await;
    }
    let missing: Vec<_> = AUDITED.iter().map(|table| table.name).filter(|name| !met.contains(name)).collect();
    println!("tables without rows: {missing:?}");
    assert!(missing.iter().all(|name| WITHOUT_ROWS.contains(name)), "{missing:?}");
}

//! Audits what the recordings left: every kind of operation, with real signatures. `tampering` alters their rows.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use batzen_auditor::audit::forward::{Forward, ForwardSource};
use batzen_auditor::audit::report::{Context, protocol};
use batzen_auditor::audit::{
    AuditOutcome, Auditor, BankAccount, BankCredit, BankDebit, Base, Check, Finding, Increment, Options,
    Progress, RowChange, Subject, Totals, Version, audit, read_terms, resume,
};
use batzen_crypto::EddsaPublicKey;
use batzen_exchange::core::Core;
use batzen_protocol::{Duration, Timestamp};
use batzen_store::memory::MemoryBackend;
use batzen_store::{
    Change, ChangeSet, CommitOutcome, RawRecord, Store, StoreError, TableDef, decode_values, encode_values,
};
use batzen_tables::exchange::{
    AUDITED, Auditors, ClosingKey, ClosingRow, Prepared, PreparedRow, ReservesIn, WireAccounts,
    WireTargetKey, WireTargets, WtidKey,
};

use crate::replay::recording::{Scenario, own_directory};
use crate::replay::stage::Stage;
use crate::tampering::alteration::altered;
use crate::tampering::{BOOKS, Books, books};

/// An exchange, as its auditor knows it.
pub(crate) fn subject(core: &Core) -> Subject {
    Subject {
        currency: core.config.currency,
        master_pub: core.master_public_key,
        base_url: core.config.base_url.clone(),
        round_unit: core.config.currency_round_unit.units(),
        auditor: None,
    }
}

/// The options of an audit of the rows alone.
pub(crate) fn options(now: Timestamp) -> Options {
    Options {
        now,
        internal: true,
        in_order: true,
        threads: 1,
        bank: Vec::new(),
        confirmations: Vec::new(),
        copied: None,
    }
}

/// Audits rows.
fn audited(subject: &Subject, store: &Store, now: Timestamp) -> AuditOutcome {
    audit(store, subject, &options(now), &Progress::default()).unwrap()
}

/// Nothing is found in the books of an honest exchange.
pub(crate) async fn expect_nothing(stage: &Stage) {
    stage.pay_out().await;
    let outcome = audited(&subject(&stage.running.app().core), &stage.running.app().core.store, stage.now());
    let faults: Vec<_> = outcome.faults().collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(outcome.sheet.difference().units, 0);
}

/// All rows of the audited tables.
#[derive(Clone)]
pub(crate) struct Copy(pub Vec<(&'static TableDef, RawRecord)>);

impl Copy {
    pub(crate) fn of(store: &Store) -> Self {
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
        self.readable_store().expect("rows that can be read")
    }

    /// A store with these rows; an error if one of them cannot be read.
    fn readable_store(&self) -> Result<Store, StoreError> {
        let store = Store::new(MemoryBackend::new());
        let mut changes = ChangeSet::new();
        for (table, record) in &self.0 {
            let (key, row) = (record.key.clone(), record.row.clone());
            changes.push(Change::Insert { table, key, row });
        }
        assert_eq!(store.commit(&changes)?, CommitOutcome::Committed);
        Ok(store)
    }
}

/// Plays a recording, and takes the rows that it leaves.
pub(crate) async fn rows_of(name: &str) -> (Subject, Copy, Timestamp) {
    let scenario = Scenario::read(&own_directory(), name);
    let player = crate::replay::player::Player::new(scenario, crate::replay::master(&own_directory())).await;
    let mut taken = None;
    player
        .play(async |stage: &Stage| {
            stage.pay_out().await;
            let copy = Copy::of(&stage.running.app().core.store);
            taken = Some((subject(&stage.running.app().core), copy, stage.now()));
        })
        .await;
    let (mut subject, copy, now): (Subject, Copy, Timestamp) = taken.unwrap();
    // The exchange's auditor audits it.
    let auditor = copy.store().all::<Auditors>().unwrap().into_iter().next();
    subject.auditor = auditor.map(|found| (found.key.auditor_pub, found.row.url));
    (subject, copy, now)
}

/// The findings of increments: everything that still holds.
#[derive(Default)]
struct Open(Vec<Finding>);

impl Open {
    fn note(&mut self, increment: Increment) {
        let gone = |finding: &Finding, all: &[Finding]| all.iter().any(|other| other.is_same(finding));
        self.0.retain(|finding| !gone(finding, &increment.resolved) && !gone(finding, &increment.found));
        self.0.extend(increment.found);
    }
}

fn version(record: &RawRecord) -> Option<Version> {
    Some(Version { row: record.row.clone(), serial: record.serial })
}

fn sorted(mut findings: Vec<Finding>) -> Vec<String> {
    // Which of several deposits is the one that differs depends on the order.
    let mut names: Vec<String> = findings
        .drain(..)
        .map(|finding| format!("{} {} {}", finding.rule.info().name, finding.row.table, finding.subject))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[tokio::test]
async fn increments_give_what_a_whole_audit_gives() {
    let mut long_histories = [0, 0];
    for name in BOOKS {
        let Books { subject, copy, now } = books(name).await;
        let now = *now;
        let complete = copy.store();
        let terms = read_terms(&*complete.freeze(AUDITED).unwrap(), subject).unwrap();
        let expected = audited(subject, &complete, now);
        // A coin's payment for a reserve is found by its coin only, so it must come with the request.
        // With how many rows a history is long: from 1 on, from 3 on, never.
        let chunks: &[(usize, i64)] = if ["young", "old"].contains(&name) {
            &[(usize::MAX, i64::MAX)]
        } else {
            &[(1, 0), (7, 2), (100, i64::MAX)]
        };
        for &(chunk, short_history_rows) in chunks {
            let seen = Store::new(MemoryBackend::new());
            let mut closings = BTreeMap::new();
            let mut kept = Kept::default();
            let (mut totals, mut open) = (Totals::default(), Open::default());
            for records in copy.0.chunks(chunk) {
                let changes: Vec<RowChange> = records
                    .iter()
                    .map(|(table, record)| RowChange {
                        table,
                        key: record.key.clone(),
                        old: None,
                        new: version(record),
                    })
                    .collect();
                note_closings(&changes, &mut closings);
                let auditor = Auditor {
                    subject,
                    terms: &terms,
                    seen: &seen,
                    closings: &|wtids| {
                        Ok(wtids.iter().filter_map(|wtid| closings.get(wtid).copied()).collect())
                    },
                    forward: &kept,
                    short_history_rows,
                    now,
                    threads: chunk.min(3),
                };
                let increment = auditor.apply(&changes, &mut totals).unwrap();
                kept.note(&increment);
                open.note(increment);
                let mut set = ChangeSet::new();
                for (table, record) in records {
                    set.push(Change::Insert { table, key: record.key.clone(), row: record.row.clone() });
                }
                assert_eq!(seen.commit(&set).unwrap(), CommitOutcome::Committed);
            }
            let base = Base { totals: totals.clone(), findings: open.0, forward: kept.0.clone() };
            let resumed =
                resume(&seen, (subject, &terms), base, (&options(now), None), &Progress::default()).unwrap();
            assert_eq!(resumed.sheet, expected.sheet, "{name}, {chunk} at once");
            assert_eq!(resumed.overdue.units, expected.overdue.units);
            assert_eq!(resumed.base.totals, expected.base.totals, "{name}, {chunk} at once");
            assert_eq!(
                sorted(resumed.findings),
                sorted(expected.findings.clone()),
                "{name}, {chunk} at once"
            );
            long_histories[0] += kept.0.reserves.len();
            long_histories[1] += kept.0.transfers.len();
            let known = Known { seen: &seen, closings: &closings, kept: &kept, short_history_rows };
            changes_one_by_one(name, subject, copy, &known, (&totals, now), chunk);
        }
    }
    assert!(long_histories.iter().all(|count| *count > 3), "{long_histories:?}");
}

/// Sums of long histories.
#[derive(Default)]
struct Kept(Forward);

impl Kept {
    fn note(&mut self, increment: &Increment) {
        for reserve_pub in increment.forward_before.reserves.keys() {
            self.0.reserves.remove(reserve_pub).unwrap();
        }
        for wtid in increment.forward_before.transfers.keys() {
            self.0.transfers.remove(wtid).unwrap();
        }
        self.0.reserves.extend(&increment.forward.reserves);
        self.0.transfers.extend(&increment.forward.transfers);
    }
}

impl ForwardSource for Kept {
    fn read(
        &self,
        reserves: &HashSet<EddsaPublicKey>,
        transfers: &HashSet<batzen_crypto::Wtid>,
    ) -> batzen_store::Result<Forward> {
        let mut found = self.0.clone();
        found.reserves.retain(|reserve_pub, _| reserves.contains(reserve_pub));
        found.transfers.retain(|wtid, _| transfers.contains(wtid));
        Ok(found)
    }
}

/// The auditor's knowledge before a change.
struct Known<'a> {
    seen: &'a Store,
    closings: &'a Closers,
    kept: &'a Kept,
    short_history_rows: i64,
}

type Closers = BTreeMap<batzen_crypto::Wtid, EddsaPublicKey>;

fn note_closings(changes: &[RowChange], closings: &mut Closers) {
    use batzen_store::Record;
    for change in changes.iter().filter(|change| change.table.name == "closings") {
        let row = ClosingRow::decode(&change.new.as_ref().unwrap().row).unwrap();
        closings.insert(row.wtid, ClosingKey::decode(&change.key).unwrap().reserve_pub);
    }
}

/// An increment with one altered row finds what a whole audit of the altered rows finds.
fn changes_one_by_one(
    name: &str,
    subject: &Subject,
    copy: &Copy,
    known: &Known<'_>,
    (totals, now): (&Totals, Timestamp),
    step: usize,
) {
    let Known { seen, closings, kept, short_history_rows } = *known;
    let terms = read_terms(&*seen.freeze(AUDITED).unwrap(), subject).unwrap();
    let before: BTreeSet<String> = sorted(audited(subject, seen, now).findings).into_iter().collect();
    // Other rows for each chunk size.
    for (at, (table, record)) in copy.0.iter().enumerate().skip(step % 5).step_by(5) {
        // A change of the terms concerns everything, so it is a reason for a whole audit.
        if IS_TERMS.contains(&table.name) {
            continue;
        }
        let values = decode_values(table.row_columns, &record.row).unwrap();
        let Some(column) = table.row_columns.get(at % table.row_columns.len().max(1)) else { continue };
        let mut altered_values = values;
        let index = at % table.row_columns.len();
        altered_values[index] = altered(column, &altered_values[index]);
        let Ok(row) = encode_values(table.row_columns, &altered_values) else { continue };
        let mut changed = copy.clone();
        changed.0[at].1.row.clone_from(&row);
        // A row that cannot be read is found as such.
        let Ok(changed) = changed.readable_store() else { continue };
        let change = RowChange {
            table,
            key: record.key.clone(),
            old: version(record),
            new: Some(Version { row, serial: record.serial }),
        };
        let mut totals = totals.clone();
        let auditor = Auditor {
            subject,
            terms: &terms,
            seen,
            closings: &|wtids| Ok(wtids.iter().filter_map(|wtid| closings.get(wtid).copied()).collect()),
            forward: kept,
            short_history_rows,
            now,
            threads: 1,
        };
        let increment = auditor.apply(&[change], &mut totals).unwrap();
        let whole = audited(subject, &changed, now);
        assert_eq!(totals.sheet(subject), whole.sheet, "{name}: {} {}", table.name, column.name);
        let after: BTreeSet<String> = sorted(whole.findings).into_iter().collect();
        let found: BTreeSet<String> = sorted(increment.found).into_iter().collect();
        for finding in after.difference(&before) {
            let is_whole = [
                "emergency",
                "sheet",
                "drain-beyond-profit",
                "income-negative",
                "bank-short",
                "archive-count",
                "reserve-not-closed",
                "purse-not-closed",
                "transfer-unordered",
            ]
            .iter()
            .any(|rule| finding.starts_with(rule));
            let what = (name, table.name, column.name, finding);
            assert!(
                is_whole || found.contains(finding),
                "not found by the increment: {what:?}, only {found:?}"
            );
        }
    }
}

/// Tables that are read before all others.
pub(crate) const IS_TERMS: [&str; 10] = [
    "denominations",
    "revocations",
    "signing_keys",
    "wire_accounts",
    "wire_fees",
    "global_fees",
    "wire_targets",
    "auditor_denoms",
    "extensions",
    "auditors",
];

/// Returns the history of an honest bank: every credit that was booked, and every transfer that was decided.
fn honest_bank(copy: &Copy, payto_uri: &str, now: Timestamp) -> BankAccount {
    let store = copy.store();
    let uri = |h_payto| {
        let target = store.get::<WireTargets>(&WireTargetKey { h_payto }).unwrap();
        target.unwrap().row.payto_uri
    };
    let credits = store.all::<ReservesIn>().unwrap().into_iter().map(|found| BankCredit {
        row: found.key.bank_row,
        time: found.row.time,
        units: found.row.amount.units(),
        reserve_pub: found.key.reserve_pub,
        sender: uri(found.row.h_payto),
    });
    let debits = store.all::<Prepared>().unwrap().into_iter().enumerate().map(|(row, found)| BankDebit {
        row: row as u64 + 1,
        time: found.row.time,
        units: found.row.amount.units(),
        wtid: found.key.wtid,
        receiver: uri(found.row.h_payto),
    });
    BankAccount {
        section: "exchange-account-1".to_owned(),
        payto_uri: payto_uri.to_owned(),
        credits: Some(credits.collect()),
        debits: Some(debits.collect()),
        read: now,
    }
}

/// Longer than times of exchange and bank may differ.
const LONG: Duration = Duration::from_secs(20 * 60);

/// The known-answer scenarios of the protocol in which the bank's record differs (auditor chapter 11).
#[tokio::test]
async fn the_bank_is_compared() {
    let Books { subject, copy, now } = books("exchange-api-rsa").await;
    let now = *now;
    let store = copy.store();
    let account = store.all::<WireAccounts>().unwrap().remove(0).row.payto_uri;
    let bank = honest_bank(copy, &account, now);
    assert!(bank.credits.as_ref().is_some_and(|credits| !credits.is_empty()));
    assert!(bank.debits.as_ref().is_some_and(|debits| !debits.is_empty()));
    let report = |change: &dyn Fn(&mut Vec<BankCredit>, &mut Vec<BankDebit>)| {
        let mut bank = bank.clone();
        change(bank.credits.as_mut().unwrap(), bank.debits.as_mut().unwrap());
        let options = Options { bank: vec![bank], ..options(now) };
        let outcome = audit(&store, subject, &options, &Progress::default()).unwrap();
        let context =
            Context { currency: subject.currency, started: now, ended: now, internal: true, tiny: 0 };
        protocol(Check::Wire, &outcome, &context).unwrap()
    };
    let zero = format!("{}:0", subject.currency.as_str());
    let lists = [
        "wire_out_amount_inconsistencies",
        "reserve_in_amount_inconsistencies",
        "misattribution_in_inconsistencies",
        "row_inconsistencies",
        "row_minor_inconsistencies",
        "wire_format_inconsistencies",
    ];
    // Only these lists have entries.
    let expect = |scenario: &str, report: &serde_json::Value, full: &[&str]| {
        for list in lists {
            let is_full = !report[list].as_array().unwrap().is_empty();
            assert_eq!(is_full, full.contains(&list), "{scenario}: {list}: {report:#}");
        }
    };
    let untouched = report(&|_, _| {});
    expect("0", &untouched, &[]);
    assert_eq!(untouched["total_wire_in_delta_plus"], zero);

    let less = report(&|credits, _| credits[0].units += 5);
    expect("2", &less, &["reserve_in_amount_inconsistencies"]);
    assert_ne!(less["total_wire_in_delta_plus"], zero);
    assert_eq!(less["total_wire_in_delta_minus"], zero);
    let more = report(&|credits, _| credits[0].units -= 5);
    expect("3", &more, &["reserve_in_amount_inconsistencies"]);
    assert_eq!(more["total_wire_in_delta_plus"], zero);
    assert_ne!(more["total_wire_in_delta_minus"], zero);
    let subject_differs = report(&|credits, _| credits[0].reserve_pub = EddsaPublicKey::from_bytes([9; 32]));
    expect("8", &subject_differs, &["reserve_in_amount_inconsistencies"]);
    let entries = subject_differs["reserve_in_amount_inconsistencies"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry["diagnostic"] == "wire subject does not match"));
    assert_eq!(subject_differs["total_wire_in_delta_plus"], subject_differs["total_wire_in_delta_minus"]);
    let sender = report(&|credits, _| credits[0].sender = "payto://x-taler-bank/localhost/other".to_owned());
    expect("9", &sender, &["misattribution_in_inconsistencies"]);
    let date = report(&|credits, _| credits[0].time = Timestamp::from_secs(1));
    expect("10", &date, &["row_minor_inconsistencies"]);
    assert_eq!(date["row_minor_inconsistencies"][0]["diagnostic"], "execution date mismatch");
    let unknown = report(&|_, debits| {
        let wtid = batzen_crypto::Wtid::from_bytes([7; 32]);
        debits.push(BankDebit { wtid, row: 99, ..debits[0].clone() });
    });
    expect("11", &unknown, &["wire_out_amount_inconsistencies"]);
    let entry = &unknown["wire_out_amount_inconsistencies"][0];
    assert_eq!(entry["diagnostic"], "justification for wire transfer not found");
    assert_eq!(entry["amount_justified"], zero);
    for (scenario, change) in [("16 less", -1), ("16 more", 1)] {
        let paid = report(&|_, debits| {
            debits[0].units = debits[0].units.checked_add_signed(change).unwrap();
        });
        expect(scenario, &paid, &["wire_out_amount_inconsistencies"]);
        assert_eq!(paid["total_wire_out_delta_plus"] == zero, change < 0, "{scenario}");
        assert_eq!(paid["total_wire_out_delta_minus"] == zero, change > 0, "{scenario}");
    }
    let early = report(&|_, debits| debits[0].time = debits[0].time.saturating_sub(LONG));
    expect("a transfer before it was decided", &early, &["row_minor_inconsistencies"]);
    let twice = report(&|_, debits| debits.push(debits[0].clone()));
    expect("27", &twice, &["wire_format_inconsistencies"]);
    let invented = report(&|credits, _| drop(credits.remove(0)));
    expect("a credit that the bank does not have", &invented, &["reserve_in_amount_inconsistencies"]);

    // A transfer may wait for an unreachable bank, but the exchange cannot learn of it before.
    let mut late = bank.clone();
    let debit = &mut late.debits.as_mut().unwrap()[0];
    debit.time = debit.time.saturating_add(LONG);
    let (key, executed) = (WtidKey { wtid: debit.wtid }, debit.time);
    let order = store.get::<Prepared>(&key).unwrap().unwrap().row;
    for (finished, is_found) in [(None, false), (Some(order.time), true), (Some(executed), false)] {
        let waited = copy.store();
        let mut changes = ChangeSet::new();
        changes.update::<Prepared>(&key, &order, &PreparedRow { finished, ..order.clone() });
        assert_eq!(waited.commit(&changes).unwrap(), CommitOutcome::Committed);
        let bank = vec![late.clone()];
        let options = Options { bank, ..options(now) };
        let outcome = audit(&waited, subject, &options, &Progress::default()).unwrap();
        assert_eq!(outcome.faults().next().is_some(), is_found, "{finished:?}");
    }

    // What the bank did after the rows were copied is not judged.
    let mut later = bank.clone();
    let debits = later.debits.as_mut().unwrap();
    let wtid = batzen_crypto::Wtid::from_bytes([7; 32]);
    debits.push(BankDebit { wtid, row: 99, ..debits[0].clone() });
    let paid = debits[0].time;
    for (copied, is_found) in [(None, true), (Some(paid), false), (Some(Timestamp::NEVER), true)] {
        let bank = vec![later.clone()];
        let options = Options { bank, copied, ..options(now) };
        let outcome = audit(&store, subject, &options, &Progress::default()).unwrap();
        assert_eq!(outcome.faults().next().is_some(), is_found, "{copied:?}");
    }

    // What happened while the bank's history was read may be missing there.
    let mut early = bank.clone();
    let credits = early.credits.as_mut().unwrap();
    credits.sort_by_key(|credit| credit.row);
    let last = credits.pop().unwrap();
    for (read, is_found) in [(last.time, false), (Timestamp::NEVER, true)] {
        let bank = vec![BankAccount { read, ..early.clone() }];
        let options = Options { bank, ..options(now) };
        let outcome = audit(&store, subject, &options, &Progress::default()).unwrap();
        assert_eq!(outcome.faults().next().is_some(), is_found, "{read}");
    }
}

/// The change that a scenario makes to the rows.
enum Corruption {
    /// One row of a table has another value in a column.
    Column(&'static str, &'static str),
    /// All rows of a table are gone.
    All(&'static str),
    /// One row of a table is gone.
    One(&'static str),
}

/// The scenarios of the protocol in which rows differ, and the rule that finds each (auditor chapter 11).
const SCENARIOS: [(&str, Corruption, &str); 18] = [
    ("4, 26: another account", Corruption::Column("deposits", "h_payto"), "deposit-signature"),
    ("6, 28, 32: a coin's signature", Corruption::Column("coins", "denom_sig"), "coin-signature"),
    ("7: a withdrawal's signature", Corruption::Column("withdrawals", "reserve_sig"), "withdraw-signature"),
    ("12: no reveals", Corruption::All("reveals"), "melt-hanging"),
    ("13: a melt's signature", Corruption::Column("melts", "coin_sig"), "melt-signature"),
    ("14: a wire fee", Corruption::Column("wire_fees", "wire_fee"), "wire-fee-signature"),
    ("15: a salt", Corruption::Column("deposits", "wire_salt"), "deposit-signature"),
    ("18: no withdrawals", Corruption::All("withdrawals"), "emergency-count"),
    ("18: their reserves", Corruption::All("withdrawals"), "reserve-balance"),
    (
        "22: the time of a denomination",
        Corruption::Column("denominations", "expire_withdraw"),
        "denomination-signature",
    ),
    ("23: a transfer's amount", Corruption::Column("wire_out", "amount"), "transfer-deposits"),
    ("24: a deposit is gone", Corruption::One("deposits"), "coin-remaining"),
    ("25: a refund is gone", Corruption::One("refunds"), "refund-sum"),
    ("29: a withdraw fee", Corruption::Column("denominations", "fee_withdraw"), "denomination-signature"),
    ("30: a refresh fee", Corruption::Column("denominations", "fee_refresh"), "denomination-signature"),
    ("31: a deposit fee", Corruption::Column("denominations", "fee_deposit"), "denomination-signature"),
    ("an order to the bank", Corruption::Column("prepared", "amount"), "transfer-order"),
    ("no orders to the bank", Corruption::All("prepared"), "transfer-unordered"),
];

#[tokio::test]
async fn known_answers() {
    let Books { subject, copy, now } = books("exchange-api-rsa").await;
    for (scenario, corruption, rule) in SCENARIOS {
        let mut changed = copy.clone();
        match corruption {
            Corruption::All(table) => changed.0.retain(|(other, _)| other.name != table),
            Corruption::One(table) => {
                let at = changed.0.iter().position(|(other, _)| other.name == table).expect(scenario);
                changed.0.remove(at);
            }
            Corruption::Column(table, name) => {
                let found = changed.0.iter_mut().find(|(other, _)| other.name == table);
                let (table, record) = found.expect(scenario);
                let columns = table.row_columns;
                let index = columns.iter().position(|column| column.name == name).expect(scenario);
                let mut values = decode_values(columns, &record.row).unwrap();
                values[index] = altered(&columns[index], &values[index]);
                record.row = encode_values(columns, &values).unwrap();
            }
        }
        let outcome = audited(subject, &changed.store(), *now);
        let rules: BTreeSet<&str> = outcome.findings.iter().map(|finding| finding.rule.info().name).collect();
        assert!(rules.contains(rule), "{scenario}: {rules:?}");
        // A second audit gives the same result.
        assert_eq!(audited(subject, &changed.store(), *now).findings, outcome.findings, "{scenario}");
    }
}

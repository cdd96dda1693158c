//! Each single change of a row that an auditor reads is found, by the rule that says what is wrong.
//!
//! A dishonest operator removes a row, adds a row again under another key, or alters a column. [`rules.txt`](rules.txt) says,
//! for each column of each audited table, which rule finds that. What nothing else confirms is found by comparison with
//! an earlier copy of the rows; the file gives the reason.
//!
//! | module | contents |
//! |---|---|
//! | [`alteration`] | changes of a row |
//! | [`expected`] | reads `rules.txt` |
//! | [`places`] | stores that are altered: in memory, a directory, a database (with SQL) |
//! | [`scenario`] | rows that the recordings lack: transient aggregates, payouts of profit, archives, removed rows |

pub(crate) mod alteration;
mod expected;
mod places;
mod scenario;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

use batzen_auditor::audit::{AuditError, History, Progress, Subject, Terms, audit, read_terms};
use batzen_protocol::Timestamp;
use batzen_store::{RawRecord, Store, StoreError, TableDef};
use batzen_tables::exchange::AUDITED;
use tokio::sync::OnceCell;

use crate::replay::audit::{Copy, IS_TERMS, options, rows_of};
use alteration::{Alteration, alterations};
use expected::EXPECTED;
use places::{AlterableStore, Directory, Memory, Postgres};

/// An exchange's rows, with what its auditor knows.
pub(crate) struct Books {
    pub subject: Subject,
    pub copy: Copy,
    pub now: Timestamp,
}

impl Books {
    fn alterations(&self, table: &'static TableDef, record: &RawRecord) -> Vec<Alteration> {
        let is_taken =
            |key: &[u8]| self.copy.0.iter().any(|(other, record)| other.id == table.id && record.key == key);
        alterations(table, record, &is_taken)
    }

    /// Returns whether there are rows of a table that is not among these.
    fn has_more_tables_than(&self, met: &BTreeSet<&'static str>) -> bool {
        self.copy.0.iter().any(|(table, _)| !met.contains(table.name))
    }
}

/// Everything that has rows, in this order. Between them, every audited table has some.
pub(crate) const BOOKS: [&str; 9] = [
    "young",
    "old",
    "p2p-rsa",
    "revocation-rsa",
    "exchange-api-rsa",
    "wallet-p2p",
    "kyc",
    "auditor",
    "management",
];
/// Number of rows of each table that are altered in memory. What rows have in common is their columns.
const ROWS: usize = 2;

static MADE: [OnceCell<Books>; BOOKS.len()] = [const { OnceCell::const_new() }; BOOKS.len()];

/// One of [`BOOKS`], made once for all tests of the process, which only read it.
pub(crate) async fn books(name: &str) -> &'static Books {
    let at = BOOKS.iter().position(|known| *known == name).expect("it is listed");
    MADE[at].get_or_init(|| make(name)).await
}

async fn make(name: &str) -> Books {
    match name {
        "young" => scenario::young().await,
        "old" => scenario::old().await,
        recording => {
            let (subject, copy, now) = rows_of(recording).await;
            Books { subject, copy, now }
        }
    }
}

/// The rules that find something.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// In the rows alone.
    alone: BTreeSet<&'static str>,
    /// Compared with those before.
    compared: BTreeSet<&'static str>,
}

impl Found {
    fn unreadable() -> Self {
        Self { alone: BTreeSet::from([UNREADABLE]), compared: BTreeSet::new() }
    }
}

/// Stands for rows that cannot be read, which stops an audit with an error that names them.
const UNREADABLE: &str = "unreadable";

fn terms_of(books: &Books, store: &Store) -> Terms {
    read_terms(&*store.freeze(AUDITED).unwrap(), &books.subject).unwrap()
}

/// The findings of an auditor in changed rows. `terms` are those before, if the change does not concern them: it takes long to
/// check their signatures.
fn look(books: &Books, seen: &Store, changed: &Store, terms: Option<&Terms>) -> Found {
    let options = options(books.now);
    let mut found = Found::default();
    match audit(changed, &books.subject, &options, &Progress::default()) {
        Ok(outcome) => {
            found.alone.extend(outcome.faults().map(|finding| finding.rule.info().name));
            // Rows that the audit does not decode are decoded here.
        }
        Err(AuditError::Store(_)) => return Found::unreadable(),
        Err(AuditError::Stopped) => panic!("nobody stopped it"),
    }
    let changed_terms = terms.is_none().then(|| terms_of(books, changed));
    let terms = terms.or(changed_terms.as_ref()).expect("one of them");
    let history = History { seen, current: changed, terms, now: books.now };
    match history.compare() {
        Ok(findings) => found.compared.extend(findings.iter().map(|finding| finding.rule.info().name)),
        Err(_) => drop(found.compared.insert(UNREADABLE)),
    }
    found
}

/// The changes that were not found as expected.
#[derive(Default)]
struct Report {
    place: String,
    wrong: BTreeMap<(usize, String), BTreeSet<String>>,
    altered: u64,
    /// The lines of `rules.txt` that were met.
    met: BTreeSet<((&'static str, &'static str), usize)>,
}

impl Report {
    fn judge(&mut self, table: &'static TableDef, alteration: &Alteration, found: &Found) {
        self.altered += 1;
        let what = alteration.to_string();
        let expected = EXPECTED.iter().find(|(key, _)| **key == (table.name, what.as_str()));
        let fitting = expected.and_then(|(key, ways)| {
            let (index, _) = ways.iter().enumerate().find(|(_, by)| by.fits(found))?;
            Some((*key, index))
        });
        let is_right = fitting.is_some();
        self.met.extend(fitting);
        if !is_right {
            let order = AUDITED.iter().position(|other| other.id == table.id).unwrap();
            let key = (order, format!("{} {what}", table.name));
            let text = format!("{:?} / {:?}", found.alone, found.compared);
            self.wrong.entry(key).or_default().insert(text);
        }
    }

    fn end(self) {
        println!("{}: {} alterations", self.place, self.altered);
        let mut text = String::new();
        for ((_, what), found) in &self.wrong {
            for found in found {
                text.push_str(&format!("{what}: {found}\n"));
            }
        }
        assert!(text.is_empty(), "{}: found otherwise than rules.txt says:\n{text}", self.place);
    }
}

/// Alters the first rows of each table in memory.
fn in_memory(name: &str, books: &Books, met: &mut BTreeSet<&'static str>, report: &mut Report) {
    let mut place = Memory::new(&books.copy);
    let terms = terms_of(books, place.seen());
    assert_eq!(look(books, place.seen(), place.seen(), Some(&terms)), Found::default(), "{name}: untouched");
    let mut done: BTreeMap<u16, usize> = BTreeMap::new();
    for (at, (table, record)) in books.copy.0.iter().enumerate() {
        met.insert(table.name);
        let count = done.entry(table.id).or_default();
        *count += 1;
        if *count > ROWS {
            continue;
        }
        let kept = (!IS_TERMS.contains(&table.name)).then_some(&terms);
        for alteration in books.alterations(table, record) {
            let mut found = None;
            place.altered(at, &alteration, &mut |seen, changed| {
                found = Some(look(books, seen, changed, kept));
            });
            report.judge(table, &alteration, &found.unwrap_or_else(Found::unreadable));
        }
    }
}

#[tokio::test]
async fn each_change_of_a_row_in_memory_is_found() {
    let (mut met, mut report) = (BTreeSet::new(), Report { place: "memory".to_owned(), ..Report::default() });
    for name in BOOKS {
        let books = books(name).await;
        in_memory(name, books, &mut met, &mut report);
    }
    let without: Vec<_> = AUDITED.iter().map(|table| table.name).filter(|name| !met.contains(name)).collect();
    assert_eq!(without, [""; 0], "tables without rows");
    // Which of several lines a row meets may depend on the order in which keys were made.
    let is_met = |key| report.met.iter().any(|(met, _)| *met == key);
    let unmet: Vec<_> = EXPECTED.keys().copied().filter(|key| !is_met(*key)).collect();
    report.end();
    assert!(unmet.is_empty(), "changes in rules.txt without a row: {unmet:?}");
}

/// The rows of a table by key, or none if one of them cannot be read.
fn rows_by_key(store: &Store, table: &'static TableDef) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut rows = BTreeMap::new();
    let scanned = store.freeze(&[table]).unwrap().scan(table, &mut |record| {
        rows.insert(record.key, record.row);
        ControlFlow::Continue(())
    });
    match scanned {
        Ok(()) => Some(rows),
        Err(StoreError::Decode { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Alters the first row of each table that an earlier part did not have. A whole audit takes long here, so only the
/// first change of each kind has one in each table. For the others it is enough that a reader sees the same rows
/// as in memory: the findings depend on nothing else.
fn in_place(
    books: &Books,
    place: &mut dyn AlterableStore,
    met: &mut BTreeSet<&'static str>,
    report: &mut Report,
) {
    let terms = terms_of(books, place.seen());
    assert_eq!(look(books, place.seen(), place.seen(), Some(&terms)), Found::default(), "untouched");
    let mut memory = Memory::new(&books.copy);
    for (at, (table, record)) in books.copy.0.iter().enumerate() {
        if !met.insert(table.name) {
            continue;
        }
        let mut audited = HashSet::new();
        let kept = (!IS_TERMS.contains(&table.name)).then_some(&terms);
        for alteration in books.alterations(table, record) {
            let rows_in = |store: &mut dyn AlterableStore| {
                let mut rows = None;
                store.altered(at, &alteration, &mut |_, changed| rows = rows_by_key(changed, table));
                rows
            };
            // A row that memory refuses is one that nobody can read. Stores may show it without a look at its meaning.
            let expected = rows_in(&mut memory);
            if audited.insert(std::mem::discriminant(&alteration)) || expected.is_none() {
                let mut found = None;
                place.altered(at, &alteration, &mut |seen, changed| {
                    found = Some(look(books, seen, changed, kept));
                });
                report.judge(table, &alteration, &found.unwrap_or_else(Found::unreadable));
            } else {
                assert_eq!(rows_in(place), expected, "{}: {} {alteration}", report.place, table.name);
            }
        }
    }
}

#[tokio::test]
async fn each_change_of_a_row_in_a_directory_is_found() {
    let (mut met, mut report) =
        (BTreeSet::new(), Report { place: "directory".to_owned(), ..Report::default() });
    for name in BOOKS {
        let books = books(name).await;
        if books.has_more_tables_than(&met) {
            in_place(books, &mut Directory::new(&books.copy), &mut met, &mut report);
        }
    }
    assert_eq!(met.len(), AUDITED.len());
    report.end();
}

#[tokio::test]
async fn each_change_of_a_row_in_postgresql_is_found() {
    let (mut met, mut report) =
        (BTreeSet::new(), Report { place: "PostgreSQL".to_owned(), ..Report::default() });
    for name in BOOKS {
        let books = books(name).await;
        if books.has_more_tables_than(&met) {
            in_place(books, &mut Postgres::new(&books.copy), &mut met, &mut report);
        }
    }
    assert_eq!(met.len(), AUDITED.len());
    report.end();
}

#[test]
fn every_column_of_every_audited_table_has_a_rule() {
    let mut wanted = BTreeSet::new();
    for table in AUDITED {
        wanted.insert((table.name, "removed".to_owned()));
        wanted.extend(table.key_columns.iter().map(|column| (table.name, format!("+{}", column.name))));
        wanted.extend(table.row_columns.iter().map(|column| (table.name, column.name.to_owned())));
    }
    let listed: BTreeSet<_> = EXPECTED.keys().map(|(table, what)| (*table, (*what).to_owned())).collect();
    let missing: Vec<_> = wanted.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&wanted).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}, unknown: {unknown:?}");
}

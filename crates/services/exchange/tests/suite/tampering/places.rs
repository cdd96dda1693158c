//! Stores that are altered behind the exchange's back.

use std::path::{Path, PathBuf};

use batzen_postgres::schema::{DbinitOptions, HISTORY, Sql, dbinit::dbinit};
use batzen_postgres::{Connection, Layout, PgOptions, Target, layout};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::memory::MemoryBackend;
use batzen_store::{
    Change, ChangeSet, ColumnDef, ColumnKind, CommitOutcome, Store, StoreError, TableDef, Value, vshard,
};
use batzen_tables::exchange as tables;

use super::alteration::Alteration;
use crate::replay::audit::Copy;

/// A store whose rows can be altered one at a time.
pub(super) trait AlterableStore {
    /// The rows as they were.
    fn seen(&self) -> &Store;

    /// Alters row `at` of the copy, shows the rows before and after, and takes the change back. Shows nothing if the store
    /// refuses the change, because nobody could read the row.
    fn altered(&mut self, at: usize, alteration: &Alteration, look: &mut dyn FnMut(&Store, &Store));
}

/// Inserts all rows in their order.
fn fill(store: &Store, copy: &Copy) {
    let mut changes = ChangeSet::new();
    for (table, record) in &copy.0 {
        changes.push(Change::Insert { table, key: record.key.clone(), row: record.row.clone() });
    }
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
}

/// The change as a commit.
fn change(copy: &Copy, at: usize, alteration: &Alteration) -> ChangeSet {
    let (table, record) = &copy.0[at];
    let (key, old_row, version) = (record.key.clone(), record.row.clone(), None);
    let mut changes = ChangeSet::new();
    changes.push(match alteration {
        Alteration::Removed => Change::Delete { table, key, old_row, version },
        Alteration::Added { key, .. } => Change::Insert { table, key: key.clone(), row: old_row },
        Alteration::Column { row, .. } => Change::Update { table, key, old_row, version, row: row.clone() },
    });
    changes
}

/// Commits; false if the store refuses the change, because nobody could read the row.
fn commit(store: &Store, changes: &ChangeSet) -> bool {
    match store.commit(changes) {
        Ok(CommitOutcome::Committed) => true,
        Err(StoreError::Decode { .. }) => false,
        other => panic!("{other:?}"),
    }
}

pub(super) struct Memory<'a> {
    copy: &'a Copy,
    seen: Store,
}

impl<'a> Memory<'a> {
    pub(super) fn new(copy: &'a Copy) -> Self {
        let seen = Store::new(MemoryBackend::new());
        fill(&seen, copy);
        Self { copy, seen }
    }
}

impl AlterableStore for Memory<'_> {
    fn seen(&self) -> &Store {
        &self.seen
    }

    fn altered(&mut self, at: usize, alteration: &Alteration, look: &mut dyn FnMut(&Store, &Store)) {
        let changed = Store::new(MemoryBackend::new());
        fill(&changed, self.copy);
        if commit(&changed, &change(self.copy, at, alteration)) {
            look(&self.seen, &changed);
        }
    }
}

/// In a directory. The change is committed by the store itself: its file has checksums, and a byte that changed by itself
/// is another matter.
pub(super) struct Directory<'a> {
    copy: &'a Copy,
    root: tempfile::TempDir,
    seen: Store,
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn open_dir(dir: &Path) -> Store {
    Store::new(EmbeddedStore::open(dir, tables::ALL, Options::default()).unwrap())
}

impl<'a> Directory<'a> {
    pub(super) fn new(copy: &'a Copy) -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = open_dir(&root.path().join("base"));
        fill(&store, copy);
        store.close().unwrap();
        copy_dir(&root.path().join("base"), &root.path().join("seen"));
        let seen = open_dir(&root.path().join("seen"));
        Self { copy, root, seen }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }
}

impl AlterableStore for Directory<'_> {
    fn seen(&self) -> &Store {
        &self.seen
    }

    fn altered(&mut self, at: usize, alteration: &Alteration, look: &mut dyn FnMut(&Store, &Store)) {
        let dir = self.path("changed");
        copy_dir(&self.path("base"), &dir);
        let changed = open_dir(&dir);
        let is_readable = commit(&changed, &change(self.copy, at, alteration));
        changed.close().unwrap();
        drop(changed);
        if is_readable {
            let changed = open_dir(&dir);
            look(&self.seen, &changed);
            changed.close().unwrap();
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// In a database, with the statements of its administrator.
pub(super) struct Postgres<'a> {
    copy: &'a Copy,
    sql: Connection,
    sip_key: [u8; 16],
    seen: Store,
    current: Store,
}

const SCHEMA: &str = "exchange";

fn open_database(url: &str) -> Store {
    Store::new(batzen_postgres::open(&PgOptions::new(url, SCHEMA, tables::ALL)).unwrap())
}

impl<'a> Postgres<'a> {
    pub(super) fn new(copy: &'a Copy) -> Self {
        let url = batzen_testkit::postgres::fresh_database();
        let connect = |url: &str| Connection::open_session(&Target::parse(url).unwrap()).unwrap();
        let options = DbinitOptions { partitions: Some(2), ..DbinitOptions::default() };
        dbinit(&mut connect(&url), SCHEMA, tables::ALL, &options, &HISTORY).unwrap();
        let store = open_database(&url);
        fill(&store, copy);
        store.close().unwrap();
        drop(store);
        // The earlier copy has the same serials.
        let name = url.rsplit_once('/').map(|(_, name)| name.split('?').next().unwrap_or(name)).unwrap();
        let seen_name = format!("{name}_seen");
        batzen_testkit::postgres::shared()
            .sql("postgres", &format!("CREATE DATABASE {seen_name} TEMPLATE {name}"))
            .unwrap();
        let seen = open_database(&batzen_testkit::postgres::shared().url(&seen_name));
        let mut sql = connect(&url);
        let key = sql.row("SELECT encode(sip_key, 'hex') FROM exchange.meta").unwrap().unwrap();
        let sip_key = u128::from_str_radix(key.text(0), 16).unwrap().to_be_bytes();
        Self { copy, sql, sip_key, seen, current: open_database(&url) }
    }

    /// The row's number among those of its table: serials grow with it.
    fn place(&self, at: usize) -> usize {
        let table = self.copy.0[at].0;
        self.copy.0[..at].iter().filter(|(other, _)| other.id == table.id).count()
    }
}

/// The columns of a value as they are written in SQL.
fn literals(column: &ColumnDef, value: &Value) -> Vec<String> {
    let hex = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("'\\x{digits}'::bytea")
    };
    match value {
        Value::Null if column.column.kind == ColumnKind::Amount => vec!["NULL".to_owned(); 2],
        Value::Null => vec!["NULL".to_owned()],
        Value::U64(n) | Value::Timestamp(n) => vec![n.cast_signed().to_string()],
        Value::I64(n) => vec![n.to_string()],
        Value::U128(n) => vec![hex(&n.to_be_bytes())],
        Value::Bool(flag) => vec![flag.to_string()],
        Value::Bytes(bytes) => vec![hex(bytes)],
        Value::Text(text) => vec![format!("'{}'", text.replace('\'', "''"))],
        Value::Amount { units, fraction } => vec![units.cast_signed().to_string(), fraction.to_string()],
    }
}

/// `name = value` for each column of the database that a record's column has.
fn assignments(name: &str, column: &ColumnDef, value: &Value) -> String {
    let values = literals(column, value);
    let names = match values.len() {
        1 => vec![name.to_owned()],
        _ => vec![format!("{name}_val"), format!("{name}_frac")],
    };
    let pairs = names.iter().zip(values).map(|(name, value)| format!("{} = {value}", layout::quoted(name)));
    pairs.collect::<Vec<_>>().join(", ")
}

impl AlterableStore for Postgres<'_> {
    fn seen(&self) -> &Store {
        &self.seen
    }

    fn altered(&mut self, at: usize, alteration: &Alteration, look: &mut dyn FnMut(&Store, &Store)) {
        let table: &'static TableDef = self.copy.0[at].0;
        let layout = Layout::new(table, SCHEMA, 2).unwrap();
        let (name, serial) = (layout.table(), layout::quoted(layout.serial));
        let offset = self.place(at);
        self.sql
            .script(&format!(
                "CREATE TEMP TABLE saved AS SELECT * FROM {name} ORDER BY {serial} OFFSET {offset} LIMIT 1;
                 CREATE TEMP TABLE added AS SELECT * FROM saved"
            ))
            .unwrap();
        let this = format!("{serial} = (SELECT {serial} FROM saved)");
        let statements = match alteration {
            Alteration::Removed => format!("DELETE FROM {name} WHERE {this}"),
            Alteration::Column { column, value, .. } => {
                let set = assignments(&layout::row_name(table, column), column, value);
                format!("UPDATE {name} SET {set} WHERE {this}")
            }
            Alteration::Added { column, value, key } => {
                let set = assignments(column.name, column, value);
                let vshard = vshard(&self.sip_key, table.shard_key(key));
                format!(
                    "UPDATE added SET {set}, vshard = {vshard}, {serial} = {SCHEMA}.bz_serial();
                     INSERT INTO {name} SELECT * FROM added"
                )
            }
        };
        self.sql.script(&statements).unwrap_or_else(|error| panic!("{statements}: {error}"));
        look(&self.seen, &self.current);
        self.sql
            .script(&format!(
                "DELETE FROM {name} WHERE {serial} IN (SELECT {serial} FROM added UNION SELECT {serial} FROM saved);
                 INSERT INTO {name} SELECT * FROM saved; DROP TABLE saved; DROP TABLE added"
            ))
            .unwrap();
    }
}

//! The changes of a publication's tables in commit order, for a copy in another store.
//!
//! A logical replication slot keeps what was not confirmed, so nothing is missed. Changes are read with SQL functions
//! instead of a replication connection: they give whole transactions, a limited number at once, and
//! [`Replica::confirm`] says when they are safe elsewhere. What was not confirmed comes again.
//!
//! A first copy is *fuzzy*: the slot is made first, then a [`Snapshot`] is read. Changes between the two are in both, so
//! until the position of the snapshot, inserts may find their rows, and deletions may not. From then on the copy is a
//! state of the database.
//!
//! Source of the format: PostgreSQL documentation, chapter 55.9 (logical replication message formats), protocol
//! version 1 with binary values.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use batzen_store::{RawRecord, TableDef};

use crate::client::Columns;
use crate::client::{Connection, Statement};
use crate::codec::{pull, split, width};
use crate::layout::quoted;
use crate::schema::replication::publication;
use crate::schema::shape::literal;
use crate::schema::{Sql as _, layouts};
use crate::{Layout, PgError, Target};

/// Number of rows of a snapshot that are fetched at once.
const ROWS_AT_ONCE: i32 = 2_000;
/// The most bytes of changes that are read at once: more than an exchange commits at once.
const BATCH_BYTES_MAX: usize = 1 << 30;
/// Time that an answer may take: decoding begins with the oldest transaction that was not confirmed.
const PATIENCE: Duration = Duration::from_secs(600);
/// Microseconds between 1970 and 2000, the epoch of PostgreSQL.
const EPOCH_MICROS: u64 = 946_684_800_000_000;
/// The SQLSTATE of what exists already.
const DUPLICATE_OBJECT: &str = "42710";

/// A position in the server's log.
pub type Lsn = u64;

/// Why changes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The server.
    #[error(transparent)]
    Server(#[from] PgError),
    /// The set-up, with what to do.
    #[error("{0}")]
    SetUp(String),
    /// The database was changed in a way that no exchange does.
    #[error("{0}")]
    Forbidden(String),
}

impl ReplicaError {
    /// Returns whether another attempt may succeed.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Server(error) if error.is_away())
    }
}

/// A row as a change has it: large values that did not change are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    table: &'static TableDef,
    /// The bytes of each column of the record.
    columns: Vec<Option<Vec<u8>>>,
}

impl Parts {
    /// The row's bytes. `old`: the row before.
    ///
    /// # Errors
    /// If a value is missing, and there is no row before.
    pub fn complete(self, old: Option<&[u8]>) -> Result<Vec<u8>, ReplicaError> {
        let mut row = Vec::with_capacity(self.columns.iter().flatten().map(Vec::len).sum());
        let mut before = Vec::new();
        for (at, column) in self.columns.into_iter().enumerate() {
            if let Some(bytes) = column {
                row.extend_from_slice(&bytes);
                continue;
            }
            if before.is_empty() {
                let old = old.ok_or_else(|| {
                    PgError::protocol(format!("an unchanged value of {}, and no row before", self.table.name))
                })?;
                let damaged = |error: batzen_store::DecodeError| PgError::protocol(error.to_string());
                split(self.table.row_columns, old, &mut before).map_err(damaged)?;
            }
            row.extend_from_slice(before[at]);
        }
        Ok(row)
    }
}

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its table.
    pub table: &'static TableDef,
    /// Its key.
    pub key: Vec<u8>,
    /// The row after it; `None`: it was deleted.
    pub row: Option<Parts>,
    /// The row's serial; 0 if it was deleted.
    pub serial: u64,
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The position after it.
    pub end: Lsn,
    /// When it was committed, in microseconds since 1970.
    pub time_micros: u64,
    /// Its changes of the followed tables, in order.
    pub changes: Vec<Change>,
}

/// A table as messages describe it.
struct Relation {
    table: &'static TableDef,
    /// Where the columns of key and row are in a tuple, in the order of the layout.
    key: Vec<usize>,
    row: Vec<usize>,
    serial: usize,
}

/// Follows a publication.
pub struct Replica {
    target: Target,
    connection: Connection,
    schema: String,
    slot: String,
    tables: HashMap<String, Layout>,
    peek: Statement,
}

/// All rows of the published tables at one moment.
pub struct Snapshot {
    connection: Connection,
    /// The position: all transactions that the snapshot contains end before it.
    pub at: Lsn,
    tables: HashMap<&'static str, Layout>,
}

fn lsn(text: &str) -> Result<Lsn, PgError> {
    let wrong = || PgError::protocol(format!("{text} is no position of the log"));
    let (high, low) = text.split_once('/').ok_or_else(wrong)?;
    let part = |text: &str| u64::from_str_radix(text, 16).map_err(|_| wrong());
    Ok(part(high)? << 32 | part(low)?)
}

fn lsn_text(lsn: Lsn) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

impl Replica {
    /// Connects. `schema` is that of the service whose tables are followed.
    ///
    /// # Errors
    /// If the server is unreachable, the publication is missing or has other tables, or the user may not follow it: with what
    /// to do.
    pub fn open(
        target: &Target,
        schema: &str,
        tables: &[&'static TableDef],
        slot: &str,
    ) -> Result<Self, ReplicaError> {
        let mut connection = Connection::open(target)?;
        connection.set_timeout(PATIENCE);
        let failed = |error: crate::schema::SchemaError| ReplicaError::SetUp(error.to_string());
        let name = publication(schema);
        let user = connection.row("SELECT current_user").map_err(failed)?;
        let user = user.map_or_else(String::new, |row| row.text(0).to_owned());
        let published: Vec<String> = connection
            .rows(&format!(
                "SELECT tablename FROM pg_publication_tables WHERE pubname = {} AND schemaname = {}",
                literal(&name),
                literal(schema)
            ))
            .map_err(failed)?
            .iter()
            .map(|row| row.text(0).to_owned())
            .collect();
        let set_up = format!("type `batzen exchange replication --setup --reader {user}` at the exchange");
        let layouts = layouts(tables, schema, 0).map_err(failed)?;
        if let Some(missing) = layouts.iter().find(|layout| !published.contains(&layout.name)) {
            return Err(ReplicaError::SetUp(if published.is_empty() {
                format!("the database does not publish its changes as {name}: {set_up}")
            } else {
                format!("{name} does not publish {}: {set_up} again", missing.name)
            }));
        }
        let may_follow = connection
            .row("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
            .map_err(failed)?;
        if !may_follow.is_some_and(|row| row.is_true(0)) {
            return Err(ReplicaError::SetUp(format!(
                "{user} may not follow the database: type `ALTER ROLE {user} REPLICATION` there"
            )));
        }
        let peek = Statement::new(format!(
            "SELECT data FROM pg_logical_slot_peek_binary_changes({}, NULL, $1::bigint::int, 'proto_version', '1', \
             'publication_names', {}, 'binary', 'true')",
            literal(slot),
            literal(&name)
        ));
        Ok(Self {
            target: target.clone(),
            connection,
            schema: schema.to_owned(),
            slot: slot.to_owned(),
            tables: layouts.into_iter().map(|layout| (layout.name.clone(), layout)).collect(),
            peek,
        })
    }

    fn text(&mut self, sql: &str) -> Result<Option<String>, PgError> {
        let rows = self.connection.query_text(sql)?;
        Ok(rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
    }

    /// Up to where the log is safe on the server's disk. Whatever was committed before it, [`Replica::peek`] shows.
    ///
    /// # Errors
    /// The server's.
    pub fn flushed(&mut self) -> Result<Lsn, ReplicaError> {
        // The log that is only written is not decoded yet.
        let text = self.text("SELECT pg_current_wal_flush_lsn()")?;
        Ok(lsn(&text.unwrap_or_default())?)
    }

    /// Returns whether the slot is there and has everything since it was confirmed last.
    ///
    /// # Errors
    /// The server's.
    pub fn has_slot(&mut self) -> Result<bool, ReplicaError> {
        let found = self.text(&format!(
            "SELECT wal_status FROM pg_replication_slots WHERE slot_name = {} AND slot_type = 'logical' \
             AND plugin = 'pgoutput' AND database = current_database()",
            literal(&self.slot)
        ))?;
        Ok(found.is_some_and(|status| status != "lost"))
    }

    /// Makes the slot. One that has lost changes is replaced.
    ///
    /// # Errors
    /// The server's.
    pub fn make_slot(&mut self) -> Result<(), ReplicaError> {
        let slot = literal(&self.slot);
        self.connection.query_text(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {slot} AND wal_status = 'lost'"
        ))?;
        match self
            .connection
            .query_text(&format!("SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')"))
        {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(DUPLICATE_OBJECT) => Err(ReplicaError::SetUp(format!(
                "there is a replication slot {} already, of another kind or database: set [auditor-feed] SLOT",
                self.slot
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Drops the slot, so that the server keeps nothing for it.
    ///
    /// # Errors
    /// The server's, such as that it is in use.
    pub fn drop_slot(&mut self) -> Result<(), ReplicaError> {
        let slot = literal(&self.slot);
        self.connection.query_text(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {slot}"
        ))?;
        Ok(())
    }

    /// The rows of all tables at one moment.
    ///
    /// # Errors
    /// The server's.
    pub fn snapshot(&mut self) -> Result<Snapshot, ReplicaError> {
        let mut connection = Connection::open(&self.target)?;
        connection.set_timeout(PATIENCE);
        connection.script(
            "SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1",
        )?;
        // After the snapshot: whatever it contains was committed before this position.
        let at = lsn(&self.text("SELECT pg_current_wal_insert_lsn()")?.unwrap_or_default())?;
        let tables = self.tables.values().map(|layout| (layout.def.name, layout.clone())).collect();
        Ok(Snapshot { connection, at, tables })
    }

    /// The next transactions that were not confirmed: as many as have about `changes_max` changes. Empty if there are
    /// none.
    ///
    /// # Errors
    /// The server's; or [`ReplicaError::Forbidden`] if a table was emptied.
    pub fn peek(&mut self, changes_max: u32) -> Result<Vec<Transaction>, ReplicaError> {
        let mut messages: Vec<Vec<u8>> = Vec::new();
        let mut left = BATCH_BYTES_MAX;
        self.connection.queue(&self.peek, |params| params.int8(changes_max.into()));
        self.connection.run(&mut |_, mut columns| {
            let message = columns.bytes()?;
            left = left.checked_sub(message.len()).ok_or_else(|| {
                PgError::protocol("the database has committed more changes at once than an exchange does")
            })?;
            messages.push(message.to_vec());
            Ok(())
        })?;
        let mut decoder = Decoder { schema: &self.schema, tables: &self.tables, relations: HashMap::new() };
        decoder.transactions(&messages)
    }

    /// Confirms that everything before a position is safe elsewhere.
    ///
    /// # Errors
    /// The server's.
    pub fn confirm(&mut self, position: Lsn) -> Result<(), ReplicaError> {
        let (slot, position) = (literal(&self.slot), literal(&lsn_text(position)));
        // A position that was confirmed already is an error.
        self.connection.query_text(&format!(
            "SELECT pg_replication_slot_advance(slot_name, {position}) FROM pg_replication_slots \
             WHERE slot_name = {slot} AND confirmed_flush_lsn < {position}"
        ))?;
        Ok(())
    }
}

impl Snapshot {
    /// Passes the rows of a table to `visit`, in parts.
    ///
    /// # Errors
    /// The server's, or that of `visit`.
    ///
    /// # Panics
    /// If the table is not followed.
    pub fn rows<E: From<ReplicaError>>(
        &mut self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(Vec<RawRecord>) -> Result<(), E>,
    ) -> Result<(), E> {
        let layout = self.tables.get(table.name).expect("the table is followed");
        let columns = layout.key.iter().chain(&layout.row).map(crate::SqlColumn::quoted);
        let list: Vec<String> = std::iter::once(quoted(layout.serial)).chain(columns).collect();
        let sql = format!("SELECT {} FROM {}", list.join(", "), layout.table());
        let server = |error: PgError| E::from(ReplicaError::Server(error));
        // Opening a portal closes one of the same name that an earlier table left open.
        self.connection.script("CLOSE ALL").map_err(server)?;
        self.connection.open_portal("rows", &sql).map_err(server)?;
        loop {
            let mut rows = Vec::new();
            let more = self.connection.fetch("rows", ROWS_AT_ONCE, &mut |_, mut columns| {
                let serial = columns.int8()?.cast_unsigned();
                let (mut key, mut row) = (Vec::with_capacity(32), Vec::with_capacity(128));
                pull(table.key_columns, &mut columns, &mut key)?;
                pull(table.row_columns, &mut columns, &mut row)?;
                rows.push(RawRecord { key, row, serial, version: batzen_store::RowVersion::default() });
                Ok(())
            });
            let more = more.map_err(server)?;
            visit(rows)?;
            if !more {
                return Ok(());
            }
        }
    }
}

/// Takes the parts of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], PgError> {
        let (taken, rest) =
            self.0.split_at_checked(bytes).ok_or_else(|| PgError::protocol("a message ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PgError> {
        Ok(self.take(N)?.try_into().expect("it has this length"))
    }

    fn u8(&mut self) -> Result<u8, PgError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, PgError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, PgError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, PgError> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&mut self) -> Result<&'a str, PgError> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let text = self.take(end.ok_or_else(|| PgError::protocol("a name without end"))?)?;
        self.take(1)?;
        std::str::from_utf8(text).map_err(|_| PgError::protocol("a name that is not UTF-8"))
    }
}

/// A value of a tuple.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Null,
    /// It is as before.
    Unchanged,
    /// It is here in the message.
    At(Range<usize>),
}

/// The values of a tuple, which are in these bytes.
struct Tuple<'a> {
    message: &'a [u8],
    values: Vec<Value>,
}

impl<'a> Tuple<'a> {
    fn read(message: &'a [u8], reader: &mut Reader<'a>) -> Result<Self, PgError> {
        let count = reader.u16()?;
        let mut values = Vec::with_capacity(count.into());
        for _ in 0..count {
            values.push(match reader.u8()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b'b' => {
                    let length = usize::try_from(reader.u32()?).expect("32 bits fit");
                    let start = message.len() - reader.0.len();
                    reader.take(length)?;
                    Value::At(start..start + length)
                }
                other => return Err(PgError::protocol(format!("a value of kind {}", other.escape_ascii()))),
            });
        }
        Ok(Self { message, values })
    }

    /// The bytes of one column of a record, which is in these columns of the tuple. `None`: unchanged.
    fn column(&self, def: &batzen_store::ColumnDef, at: &[usize]) -> Result<Option<Vec<u8>>, PgError> {
        let mut ranges = Vec::with_capacity(at.len());
        for at in at {
            ranges.push(match self.values.get(*at) {
                Some(Value::Null) => None,
                Some(Value::At(range)) => Some(range.clone()),
                Some(Value::Unchanged) => return Ok(None),
                None => return Err(PgError::protocol("a tuple has fewer columns than its table")),
            });
        }
        let mut bytes = Vec::new();
        pull(std::slice::from_ref(def), &mut Columns::at(self.message, &ranges), &mut bytes)?;
        Ok(Some(bytes))
    }

    fn columns(
        &self,
        defs: &[batzen_store::ColumnDef],
        at: &[usize],
    ) -> Result<Vec<Option<Vec<u8>>>, PgError> {
        let mut rest = at;
        let mut columns = Vec::with_capacity(defs.len());
        for def in defs {
            let (own, after) = rest.split_at(width(def));
            columns.push(self.column(def, own)?);
            rest = after;
        }
        Ok(columns)
    }
}

struct Decoder<'a> {
    schema: &'a str,
    tables: &'a HashMap<String, Layout>,
    /// `None`: a table that is published, and not followed.
    relations: HashMap<u32, Option<Relation>>,
}

impl Decoder<'_> {
    fn transactions(&mut self, messages: &[Vec<u8>]) -> Result<Vec<Transaction>, ReplicaError> {
        let mut done = Vec::new();
        let mut open: Option<Transaction> = None;
        for message in messages {
            let mut reader = Reader(message);
            let kind = reader.u8()?;
            match kind {
                b'B' => {
                    reader.u64()?;
                    let time_micros = reader.u64()?.saturating_add(EPOCH_MICROS);
                    open = Some(Transaction { end: 0, time_micros, changes: Vec::new() });
                }
                b'C' => {
                    reader.take(1 + 8)?;
                    let end = reader.u64()?;
                    let transaction = open.take().ok_or_else(|| PgError::protocol("an end without begin"))?;
                    done.push(Transaction { end, ..transaction });
                }
                b'R' => self.relation(&mut reader)?,
                b'I' | b'U' | b'D' => {
                    let change = self.change(kind, message, &mut reader)?;
                    let transaction =
                        open.as_mut().ok_or_else(|| PgError::protocol("a change without begin"))?;
                    transaction.changes.extend(change);
                }
                b'T' => {
                    let count = reader.u32()?;
                    reader.take(1)?;
                    for _ in 0..count {
                        let number = reader.u32()?;
                        if let Some(Some(relation)) = self.relations.get(&number) {
                            return Err(ReplicaError::Forbidden(format!(
                                "somebody has emptied the exchange's table {}",
                                relation.table.name
                            )));
                        }
                    }
                }
                // Origins, types and messages of others.
                _ => {}
            }
        }
        if open.is_some() {
            return Err(PgError::protocol("a transaction without end").into());
        }
        Ok(done)
    }

    fn relation(&mut self, reader: &mut Reader<'_>) -> Result<(), ReplicaError> {
        let number = reader.u32()?;
        let (schema, name) = (reader.text()?, reader.text()?);
        reader.take(1)?;
        let count = reader.u16()?;
        let mut names = Vec::with_capacity(count.into());
        for _ in 0..count {
            reader.take(1)?;
            names.push(reader.text()?);
            reader.take(4 + 4)?;
        }
        let layout = self.tables.get(name).filter(|_| schema == self.schema);
        let Some(layout) = layout else {
            self.relations.insert(number, None);
            return Ok(());
        };
        let known: Vec<String> = layout.columns().into_iter().map(|column| column.name).collect();
        if let Some(new) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
            return Err(ReplicaError::SetUp(format!(
                "the exchange's table {name} has a column {new}, which this program does not know: install the newer version"
            )));
        }
        let place = |column: &str| {
            names.iter().position(|name| *name == column).ok_or_else(|| {
                ReplicaError::SetUp(format!(
                    "the exchange's table {name} has no column {column}: migrate it (`batzen exchange dbinit`)"
                ))
            })
        };
        let places = |columns: &[crate::SqlColumn]| {
            columns.iter().map(|column| place(&column.name)).collect::<Result<Vec<_>, _>>()
        };
        let relation = Relation {
            table: layout.def,
            key: places(&layout.key)?,
            row: places(&layout.row)?,
            serial: place(layout.serial)?,
        };
        self.relations.insert(number, Some(relation));
        Ok(())
    }

    fn change<'m>(
        &self,
        kind: u8,
        message: &'m [u8],
        reader: &mut Reader<'m>,
    ) -> Result<Vec<Change>, ReplicaError> {
        let number = reader.u32()?;
        let relation = self.relations.get(&number);
        let Some(relation) = relation.ok_or_else(|| PgError::protocol("a change of an unknown table"))?
        else {
            return Ok(Vec::new());
        };
        let table = relation.table;
        let key = |tuple: &Tuple<'_>| {
            let columns = tuple.columns(table.key_columns, &relation.key)?;
            let columns: Option<Vec<Vec<u8>>> = columns.into_iter().collect();
            Ok::<_, PgError>(columns.ok_or_else(|| PgError::protocol("a key without a value"))?.concat())
        };
        let mut changes = Vec::new();
        let mut part = reader.u8()?;
        if matches!(part, b'K' | b'O') {
            let old = Tuple::read(message, reader)?;
            changes.push(Change { table, key: key(&old)?, row: None, serial: 0 });
            if kind == b'D' {
                return Ok(changes);
            }
            part = reader.u8()?;
        }
        if part != b'N' {
            return Err(PgError::protocol("a change without a row").into());
        }
        let new = Tuple::read(message, reader)?;
        let new_key = key(&new)?;
        // The old key is there only if it differs, or if the whole old row is sent.
        changes.retain(|change| change.key != new_key);
        let serial = match new.values.get(relation.serial) {
            Some(Value::At(range)) if range.len() == 8 => {
                u64::from_be_bytes(message[range.clone()].try_into().expect("it has eight bytes"))
            }
            _ => return Err(PgError::protocol("a row without a serial").into()),
        };
        let parts = Parts { table, columns: new.columns(table.row_columns, &relation.row)? };
        changes.push(Change { table, key: new_key, row: Some(parts), serial });
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_are_written_as_the_server_does() {
        for (number, text) in [(0, "0/0"), (0x16_B374_D848, "16/B374D848"), (u64::MAX, "FFFFFFFF/FFFFFFFF")] {
            assert_eq!(lsn_text(number), text);
            assert_eq!(lsn(text).unwrap(), number);
        }
        assert!(lsn("x").is_err() && lsn("1").is_err() && lsn("1/x").is_err());
    }

    proptest! {
        #[test]
        fn any_messages_are_judged(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..6)) {
            let tables = HashMap::new();
            let mut decoder = Decoder { schema: "exchange", tables: &tables, relations: HashMap::new() };
            let _ = decoder.transactions(&messages);
        }
    }
}

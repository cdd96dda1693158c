//! Whole tables: all rows of one snapshot, streamed; counts; and the positions of a queue, page by page.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use batzen_store::{FrozenRows, IndexKind, RawRecord, Result, StoreError, TableDef};

use crate::client::Connection;
use crate::database::Database;
use crate::layout::quoted;
use crate::read::{bounds, pull_record};

/// Number of rows that are fetched at once: enough to make round trips negligible, and few enough for memory.
const ROWS_AT_ONCE: i32 = 2_000;

/// Number of positions that are read at once.
const POSITIONS_AT_ONCE: usize = 10_000;

/// Number of positions that are read first: many readers only look for the first one.
const POSITIONS_AT_FIRST: usize = 32;

/// A transaction on its own connection, whose snapshot contains the rows.
pub(crate) struct Frozen {
    connection: Mutex<Connection>,
    /// The tables, each with the statement that reads all its rows.
    tables: Vec<(&'static TableDef, String)>,
    tag: u32,
}

impl FrozenRows for Frozen {
    fn scan(
        &self,
        table: &'static TableDef,
        visit: &mut dyn FnMut(RawRecord) -> ControlFlow<()>,
    ) -> Result<()> {
        let found = self.tables.iter().find(|(known, _)| *known == table);
        let (_, all) =
            found.ok_or_else(|| StoreError::Backend(format!("table {} was not frozen", table.name)))?;
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // Opening the portal closes one of the same name that an earlier scan left open.
        connection.script("CLOSE ALL")?;
        connection.open_portal("rows", all)?;
        loop {
            // Visit the rows after releasing the connection, because the visitor may be slow and may use the
            // store.
            let mut rows = Vec::new();
            let more = connection.fetch("rows", ROWS_AT_ONCE, &mut |_, mut columns| {
                rows.push(pull_record(table, &mut columns, self.tag)?);
                Ok(())
            })?;
            for row in rows {
                if visit(row).is_break() {
                    return Ok(());
                }
            }
            if !more {
                return Ok(());
            }
        }
    }
}

impl Database {
    pub(crate) fn freeze(&self, tables: &[&'static TableDef]) -> Result<Frozen> {
        let texts = tables.iter().map(|table| Ok((*table, self.statements(table)?.all.clone())));
        let tables = texts.collect::<Result<Vec<_>>>()?;
        if self.lost.load(Ordering::Acquire) {
            return Err(self.is_lost());
        }
        let mut patience = self.patience();
        let connection = loop {
            let attempt = self.connect().and_then(|mut connection| {
                if let Some(citus) = &self.citus {
                    connection.script("SET idle_in_transaction_session_timeout = 0")?;
                    let writers = format!("{}.writers", quoted(&self.options.schema));
                    citus.take_snapshots(&self.target, &mut self.connect()?, &mut connection, &writers)?;
                    connection.set_timeout(Duration::from_secs(600));
                    return Ok(connection);
                }
                // The first statement takes the snapshot.
                connection.script(
                    "SET idle_in_transaction_session_timeout = 0; SET enable_seqscan = on; BEGIN ISOLATION LEVEL REPEATABLE \
                     READ READ ONLY; SELECT 1",
                )?;
                connection.set_timeout(Duration::from_secs(600));
                Ok(connection)
            });
            match attempt {
                Ok(connection) => break connection,
                Err(error) => patience.wait(error)?,
            }
        };
        Ok(Frozen { connection: Mutex::new(connection), tables, tag: self.tag })
    }

    pub(crate) fn count_rows(&self, table: &'static TableDef) -> Result<u64> {
        let statements = self.statements(table)?;
        let mut rows = 0;
        self.with_reader(|connection| {
            connection.queue(&statements.count, |_| {});
            connection.run(&mut |_, mut columns| {
                rows = columns.int8()?.cast_unsigned();
                Ok(())
            })
        })?;
        Ok(rows)
    }

    pub(crate) fn positions(
        &self,
        table: &'static TableDef,
        index: u8,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let kind = table.assert_ordered(index);
        let statements = self.statements(table)?;
        let Some((mut from, to)) = bounds(from, to) else { return Ok(()) };
        let statement = statements.positions(index, to.is_some());
        // Ask before reading the entries, so that everything below this serial is decided in them.
        let kind = if statements.is_in_order() { IndexKind::Ordered } else { kind };
        let decided = if kind == IndexKind::Serial { self.decided_below()? } else { u64::MAX };
        let is_decided = |position: &[u8]| {
            kind != IndexKind::Serial
                || position.last_chunk().is_some_and(|serial| u64::from_be_bytes(*serial) < decided)
        };
        let mut limit = POSITIONS_AT_FIRST;
        loop {
            let mut page: Vec<Vec<u8>> = Vec::new();
            self.with_reader(|connection| {
                page.clear();
                connection.queue(statement, |params| {
                    params.bytes(&from);
                    if let Some(to) = &to {
                        params.bytes(to);
                    }
                    params.int8(limit.try_into().expect("small"));
                });
                connection.run(&mut |_, mut columns| {
                    page.push(columns.bytes()?.to_vec());
                    Ok(())
                })
            })?;
            let is_last = page.len() < limit;
            limit = POSITIONS_AT_ONCE;
            for position in page.iter().filter(|position| is_decided(position)) {
                if visit(position).is_break() {
                    return Ok(());
                }
            }
            match page.pop() {
                Some(last) if !is_last => from = [last.as_slice(), &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }
}

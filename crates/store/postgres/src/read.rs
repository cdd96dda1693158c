//! Reads: a whole plan in one pipeline, under one snapshot, on a connection of the readers' pool.

use std::collections::HashMap;
use std::ops::{Bound, Range};
use std::time::{Duration, Instant};

use batzen_store::{
    DecodeError, IndexEntries, IndexKind, RawRecord, RawRow, Read, ReadAnswer, Result, RowVersion,
    StoreError, TableDef,
};

use crate::PgError;
use crate::client::{Array, Columns, Connection, Statement};
use crate::codec::{pull, push, split};
use crate::database::{Database, bind_error};
use crate::layout::{IndexForm, SqlType};
use crate::statements::Statements;

/// Number of times that a queue is read again if some of its rows are not decided yet, and the pause before
/// each time.
const HORIZON_LOOKS: u32 = 5;
const HORIZON_WAIT: Duration = Duration::from_millis(2);

/// A read in progress: how its rows are collected.
struct Asked<'a> {
    statements: &'a Statements,
    read: &'a Read,
    answer: ReadAnswer,
    /// For a lookup in a hash index: the places of each value's rows.
    places: HashMap<&'a [u8], Vec<usize>>,
    /// The requested key (or key prefix) at each ordinal, in the order of the primary key, and so of pages
    /// and partitions.
    order: Vec<usize>,
    /// The ranges of `order`, one for each statement.
    pieces: Vec<Range<usize>>,
}

/// Keys of a table (or prefixes of keys) as arrays: `vshard` and `columns` database columns.
pub(crate) fn key_arrays(
    database: &Database,
    statements: &Statements,
    keys: &[&[u8]],
    columns: usize,
    with_shard: bool,
) -> Result<Vec<Array>> {
    let layout = &statements.layout;
    let mut arrays = Vec::with_capacity(columns + 1);
    if with_shard {
        arrays.push(Array::new(SqlType::Int2.oid()));
    }
    arrays.extend(layout.key[..columns].iter().map(|column| Array::new(column.sql.oid())));
    let mut parts = Vec::new();
    let mut defs = layout.def.key_columns;
    let mut width = 0;
    for (n, def) in layout.def.key_columns.iter().enumerate() {
        if width == columns {
            defs = &layout.def.key_columns[..n];
            break;
        }
        width += crate::codec::width(def);
    }
    let mut last = 0;
    for key in keys {
        let mut at = 0;
        if with_shard {
            let vshard = database.vshard(layout.def, key);
            // Otherwise statements would visit partitions repeatedly, and reads would miss some of them.
            assert!(last <= vshard, "rows must be in the order of their shards");
            last = vshard;
            arrays[0].push(&vshard.to_be_bytes());
            at = 1;
        }
        split(defs, key, &mut parts).map_err(|source| bind_error(layout.def, source))?;
        for (def, part) in defs.iter().zip(&parts) {
            let width = crate::codec::width(def);
            push(def, part, &mut arrays[at..at + width]).map_err(|source| bind_error(layout.def, source))?;
            at += width;
        }
    }
    Ok(arrays)
}

/// The range of positions to read: the start (included) and the end (excluded, if there is one). `None` if
/// the range is empty.
pub(crate) fn bounds(from: Bound<&[u8]>, to: Bound<&[u8]>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    // The successor of a byte string is the string with a zero byte appended.
    let next = |bytes: &[u8]| [bytes, &[0]].concat();
    let from = match from {
        Bound::Unbounded => Vec::new(),
        Bound::Included(bytes) => bytes.to_vec(),
        Bound::Excluded(bytes) => next(bytes),
    };
    let to = match to {
        Bound::Unbounded => None,
        Bound::Included(bytes) => Some(next(bytes)),
        Bound::Excluded(bytes) => Some(bytes.to_vec()),
    };
    to.as_ref().is_none_or(|to| from < *to).then_some((from, to))
}

/// Reads serial, version, key and row.
pub(crate) fn pull_record(
    table: &'static TableDef,
    columns: &mut Columns<'_>,
    tag: u32,
) -> std::result::Result<RawRecord, PgError> {
    let (serial, version) = pull_version(columns, tag)?;
    let (mut key, mut row) = (Vec::with_capacity(32), Vec::with_capacity(128));
    pull(table.key_columns, columns, &mut key)?;
    pull(table.row_columns, columns, &mut row)?;
    Ok(RawRecord { key, row, serial, version })
}

/// Returns whether the row still has this position in the index that is read.
fn has_position(
    def: &TableDef,
    read: &Read,
    record: &RawRecord,
    position: &[u8],
) -> std::result::Result<bool, PgError> {
    let Read::Range { index, .. } = read else { return Ok(true) };
    let mut entries = IndexEntries::new();
    let damaged = |error: DecodeError| PgError::protocol(error.to_string());
    (def.index_entries_raw)(&record.key, &record.row, &mut entries).map_err(damaged)?;
    let serial = record.serial.to_be_bytes();
    let rest = if def.index_def(*index).kind == IndexKind::Serial { serial.as_slice() } else { &record.key };
    let has = entries.iter().any(|(id, value)| id == *index && position.strip_prefix(value) == Some(rest));
    Ok(has)
}

fn pull_version(columns: &mut Columns<'_>, tag: u32) -> std::result::Result<(u64, RowVersion), PgError> {
    let serial = columns.int8()?.cast_unsigned();
    let version = columns.int4()?;
    Ok((serial, RowVersion::new(version.cast_unsigned().into(), serial, tag)))
}

impl<'a> Asked<'a> {
    fn new(database: &'a Database, read: &'a Read) -> Result<Self> {
        let (table, answer) = match read {
            Read::Rows { table, keys } => (table, ReadAnswer::Rows(vec![None; keys.len()])),
            Read::Groups { table, values, .. } => (table, ReadAnswer::Groups(vec![Vec::new(); values.len()])),
            Read::Range { table, index, .. } => {
                table.assert_ordered(*index);
                (table, ReadAnswer::Range(Vec::new()))
            }
        };
        let mut places: HashMap<&[u8], Vec<usize>> = HashMap::new();
        if let Read::Groups { values, .. } = read {
            values.iter().enumerate().for_each(|(n, value)| places.entry(value).or_default().push(n));
        }
        let statements = database.statements(table)?;
        let by_key: &[Vec<u8>] = match read {
            Read::Rows { keys, .. } => keys,
            Read::Groups { index, values, .. } if statements.is_by_primary_key(*index) => values,
            _ => &[],
        };
        let mut order: Vec<(u16, usize)> =
            by_key.iter().enumerate().map(|(at, key)| (database.vshard(table, key), at)).collect();
        order.sort_by_key(|(vshard, at)| (*vshard, &by_key[*at]));
        let vshards: Vec<u16> = order.iter().map(|(vshard, _)| *vshard).collect();
        let pieces = statements.layout.pieces(&vshards);
        let order = order.into_iter().map(|(_, at)| at).collect();
        Ok(Self { statements, read, answer, places, order, pieces })
    }

    /// Queues its statements. Returns, for each of them, the place of its first key in `order`.
    fn queue(&self, database: &Database, connection: &mut Connection) -> Result<Vec<usize>> {
        let statements = self.statements;
        let layout = &statements.layout;
        let mut by_key = |statement: &Statement, keys: &[Vec<u8>], columns| -> Result<Vec<usize>> {
            let of_piece = |piece: &Range<usize>| {
                let keys: Vec<&[u8]> =
                    self.order[piece.clone()].iter().map(|at| keys[*at].as_slice()).collect();
                let shard =
                    |key: Option<&&[u8]>| database.vshard(layout.def, key.expect("pieces are not empty"));
                let bounds = [shard(keys.first()), shard(keys.last())];
                Ok((key_arrays(database, statements, &keys, columns, true)?, bounds))
            };
            // All or none, because the caller counts the answers.
            let pieces = self.pieces.iter().map(of_piece).collect::<Result<Vec<_>>>()?;
            for (arrays, bounds) in &pieces {
                connection.queue(statement, |params| {
                    arrays.iter().for_each(|array| params.array(array));
                    if layout.partitions > 1 {
                        bounds.iter().for_each(|bound| params.int2(bound.cast_signed()));
                    }
                });
            }
            Ok(self.pieces.iter().map(|piece| piece.start).collect())
        };
        match self.read {
            Read::Rows { keys, .. } => return by_key(&statements.get, keys, layout.key.len()),
            Read::Groups { values, .. } if values.is_empty() => return Ok(Vec::new()),
            Read::Groups { index, values, .. } => {
                let statement = statements.lookup(*index);
                let arrays = match layout.index_layout(*index).form {
                    IndexForm::PrimaryKey { columns } => return by_key(statement, values, columns),
                    IndexForm::KeyPrefix { columns } => {
                        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
                        key_arrays(database, statements, &values, columns, false)?
                    }
                    _ => {
                        let mut hashes: Vec<i64> = values.iter().map(|value| database.hash(value)).collect();
                        hashes.sort_unstable();
                        hashes.dedup();
                        let mut array = Array::new(SqlType::Int8.oid());
                        hashes.iter().for_each(|hash| array.push(&hash.to_be_bytes()));
                        vec![array]
                    }
                };
                connection.queue(statement, |params| arrays.iter().for_each(|array| params.array(array)));
            }
            Read::Range { index, from, to, limit, descending, .. } => {
                let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                let Some((from, to)) = bounds(from, to).filter(|_| *limit > 0) else { return Ok(Vec::new()) };
                connection.queue(statements.range(*index, to.is_some(), *descending), |params| {
                    params.bytes(&from);
                    if let Some(to) = &to {
                        params.bytes(to);
                    }
                    params.int8(i64::try_from(*limit).unwrap_or(i64::MAX));
                });
            }
        }
        Ok(vec![0])
    }

    /// Discards the rows of an earlier attempt.
    fn clear(&mut self) {
        match &mut self.answer {
            ReadAnswer::Rows(rows) => rows.fill(None),
            ReadAnswer::Groups(groups) => groups.iter_mut().for_each(Vec::clear),
            ReadAnswer::Range(rows) => rows.clear(),
        }
    }

    /// Takes a row of the statement whose first key has this place in `order`.
    fn take(
        &mut self,
        database: &Database,
        first: usize,
        columns: &mut Columns<'_>,
    ) -> std::result::Result<(), PgError> {
        let def = self.statements.layout.def;
        let place = |columns: &mut Columns<'_>| {
            let ordinal = columns.int8()?;
            let at = usize::try_from(ordinal - 1).ok().and_then(|at| at.checked_add(first));
            at.ok_or_else(|| PgError::protocol(format!("ordinal {ordinal}")))
        };
        let beyond = || PgError::protocol("an answer to no statement");
        match (&mut self.answer, self.read) {
            (ReadAnswer::Rows(rows), _) => {
                let at = *self.order.get(place(columns)?).ok_or_else(beyond)?;
                let (serial, version) = pull_version(columns, database.tag)?;
                let mut row = Vec::with_capacity(128);
                pull(def.row_columns, columns, &mut row)?;
                database.saw(serial);
                rows[at] = Some(RawRow { row, serial, version });
            }
            (ReadAnswer::Groups(groups), Read::Groups { index, .. }) => {
                if self.statements.layout.index_layout(*index).column.is_none() {
                    let at = place(columns)?;
                    let at =
                        if self.order.is_empty() { at } else { *self.order.get(at).ok_or_else(beyond)? };
                    let record = pull_record(def, columns, database.tag)?;
                    groups.get_mut(at).ok_or_else(beyond)?.push(record);
                    return Ok(());
                }
                let record = pull_record(def, columns, database.tag)?;
                let mut entries = IndexEntries::new();
                let damaged = |error: DecodeError| PgError::protocol(error.to_string());
                (def.index_entries_raw)(&record.key, &record.row, &mut entries).map_err(damaged)?;
                // Two values may have the same hash, so compare the entries.
                let mut seen: Vec<&[u8]> = Vec::new();
                for (_, value) in entries.iter().filter(|(id, _)| id == index) {
                    if !seen.contains(&value) {
                        seen.push(value);
                        let places = self.places.get(value).into_iter().flatten();
                        places.for_each(|place| groups[*place].push(record.clone()));
                    }
                }
            }
            (ReadAnswer::Range(rows), _) => {
                let position = columns.bytes()?;
                let record = pull_record(def, columns, database.tag)?;
                // On Citus, the row may be younger than its entry in the queue.
                if database.citus.is_none() || has_position(def, self.read, &record, position)? {
                    rows.push(record);
                }
            }
            (ReadAnswer::Groups(_), _) => return Err(beyond()),
        }
        Ok(())
    }

    /// Returns whether the read is of a queue in commit order, which must have no gaps. On Citus, there are
    /// none.
    fn is_serial(&self) -> bool {
        if self.statements.is_in_order() {
            return false;
        }
        matches!(self.read, Read::Range { table, index, .. } if table.index_def(*index).kind == IndexKind::Serial)
    }
}

impl Database {
    /// Answers several reads under one snapshot, in one round trip.
    pub(crate) fn read_many(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>> {
        if self.direct.is_some() {
            let mut found = read_on_node(&[(self, reads)])?;
            return Ok(found.pop().expect("an answer for each part"));
        }
        if let Some(answers) = self.read_at_shards(reads)? {
            return Ok(answers);
        }
        let mut asked = reads.iter().map(|read| Asked::new(self, read)).collect::<Result<Vec<_>>>()?;
        let mut decided = 0;
        for look in 0.. {
            let horizon = self.read_once(&mut asked)?;
            let Some(horizon) = horizon.map(|horizon| horizon.max(decided)) else { break };
            let is_beyond = |record: &RawRecord| record.serial >= horizon;
            let hides = asked.iter().any(|asked| match &asked.answer {
                ReadAnswer::Range(rows) if asked.is_serial() => rows.iter().any(is_beyond),
                _ => false,
            });
            if !hides {
                break;
            }
            if look == HORIZON_LOOKS {
                for asked in &mut asked {
                    if asked.is_serial()
                        && let ReadAnswer::Range(rows) = &mut asked.answer
                    {
                        rows.retain(|record| !is_beyond(record));
                    }
                }
                break;
            }
            if look > 0 {
                std::thread::sleep(HORIZON_WAIT);
            }
            decided = self.decided_below()?;
        }
        Ok(answers(asked))
    }

    /// Runs one pipeline. If a queue was read, returns the serial below which everything is decided as of the
    /// pipeline's snapshot.
    fn read_once(&self, asked: &mut [Asked<'_>]) -> Result<Option<u64>> {
        let has_queue = asked.iter().any(Asked::is_serial);
        self.with_reader(|connection| {
            let mut failed = Ok(());
            let mut sent = Vec::with_capacity(asked.len());
            for (n, asked) in asked.iter_mut().enumerate() {
                asked.clear();
                match asked.queue(self, connection) {
                    Ok(firsts) => sent.extend(firsts.into_iter().map(|first| (n, first))),
                    Err(error) => failed = Err(error),
                }
            }
            if has_queue {
                connection.queue(&self.texts.horizon, |_| {});
            }
            let mut horizon = None;
            if !sent.is_empty() || has_queue {
                let start = Instant::now();
                connection.run(&mut |number, mut columns| match sent.get(number) {
                    Some((n, first)) => asked[*n].take(self, *first, &mut columns),
                    None => {
                        horizon = Some(self.serial_of(columns.int8()?));
                        Ok(())
                    }
                })?;
                self.counters.read_times.time(start.elapsed());
            }
            Ok(failed.map(|()| horizon))
        })?
    }

    /// Every serial below this one is decided: it is visible to any later snapshot, or will never exist. This
    /// is more exact than a snapshot's oldest transaction, which may belong to another database of the
    /// cluster.
    pub(crate) fn decided_below(&self) -> Result<u64> {
        let rows = self.with_reader(|connection| connection.query_text(&self.texts.transactions))?;
        let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<i64>().ok());
        let unexpected = || StoreError::Backend("transactions under way: unexpected answer".into());
        let mut rows = rows.iter();
        // The first row holds the snapshot's oldest and next transaction.
        let (oldest, next) = match rows.next().map(Vec::as_slice) {
            Some([oldest, next]) => {
                (number(oldest).ok_or_else(unexpected)?, number(next).ok_or_else(unexpected)?)
            }
            _ => return Err(unexpected()),
        };
        let mut running = Vec::new();
        for row in rows {
            let [Some(hidden), id] = row.as_slice() else { return Err(unexpected()) };
            if hidden == "true" {
                // For sessions that this user may not see, fall back to the snapshot.
                return Ok(self.serial_of(oldest));
            }
            running.extend(number(id));
        }
        Ok(self.serial_of(oldest_running(next, &running)))
    }

    /// The first serial of a transaction.
    fn serial_of(&self, transaction: i64) -> u64 {
        self.serial_base.saturating_add(transaction << 16).cast_unsigned()
    }

    /// The rows under these keys, by table and key.
    pub(crate) fn rows_by_key<'k>(
        &self,
        keys: &[(&'static TableDef, &'k [u8])],
    ) -> Result<HashMap<(u16, &'k [u8]), RawRow>> {
        let mut by_table: Vec<(&'static TableDef, Vec<&'k [u8]>)> = Vec::new();
        for (table, key) in keys {
            match by_table.iter_mut().find(|(known, _)| known == table) {
                Some((_, keys)) => keys.push(key),
                None => by_table.push((table, vec![key])),
            }
        }
        let owned = |keys: &[&[u8]]| keys.iter().map(|key| key.to_vec()).collect();
        let reads: Vec<Read> =
            by_table.iter().map(|(table, keys)| Read::Rows { table, keys: owned(keys) }).collect();
        let mut found = HashMap::new();
        for ((table, keys), answer) in by_table.iter().zip(self.read_many(&reads)?) {
            let ReadAnswer::Rows(rows) = answer else { unreachable!("rows were asked for") };
            found.extend(keys.iter().zip(rows).filter_map(|(key, row)| Some(((table.id, *key), row?))));
        }
        Ok(found)
    }
}

/// Answers reads of shards that are on one node under one snapshot, in one round trip. Each part has the way to its shard;
/// the first has the connection.
pub(crate) fn read_on_node(parts: &[(&Database, &[Read])]) -> Result<Vec<Vec<ReadAnswer>>> {
    let ways = || parts.iter().map(|(way, _)| (*way, way.direct()));
    let mut asked = Vec::with_capacity(parts.len());
    for (way, reads) in parts {
        asked.push(reads.iter().map(|read| Asked::new(way, read)).collect::<Result<Vec<_>>>()?);
    }
    let counters = &parts[0].0.counters;
    parts[0].0.with_reader(|connection| {
        let mut failed = Ok(());
        let mut sent = Vec::new();
        for (part, ((way, _), asked)) in ways().zip(&mut asked).enumerate() {
            for (n, asked) in asked.iter_mut().enumerate() {
                asked.clear();
                match asked.queue(way, connection) {
                    Ok(firsts) => sent.extend(firsts.into_iter().map(|first| (part, n, first))),
                    Err(error) => failed = Err(error),
                }
            }
        }
        ways().for_each(|(_, direct)| connection.queue(&direct.here, |_| {}));
        let start = Instant::now();
        let run = connection.run(&mut |number, mut columns| match sent.get(number) {
            Some((part, n, first)) => asked[*part][*n].take(parts[*part].0, *first, &mut columns),
            None => parts[number - sent.len()].0.direct().is_here(columns.int8()?),
        });
        if let Err(error) = &run {
            ways().for_each(|(_, direct)| direct.note(error));
        }
        run?;
        counters.read_times.time(start.elapsed());
        Ok(failed)
    })??;
    Ok(asked.into_iter().map(answers).collect())
}

/// The answers, with each group in the order of serials.
fn answers(asked: Vec<Asked<'_>>) -> Vec<ReadAnswer> {
    let mut answers: Vec<ReadAnswer> = asked.into_iter().map(|asked| asked.answer).collect();
    for answer in &mut answers {
        if let ReadAnswer::Groups(groups) = answer {
            groups.iter_mut().for_each(|group| group.sort_by_key(|record| record.serial));
        }
    }
    answers
}

/// The lowest of the ids of running transactions and `next`, the id after the last transaction that has
/// ended. Sessions show only the lower 32 bits of their ids, which are less than 2^31 apart, and often above
/// `next`.
fn oldest_running(next: i64, running: &[i64]) -> i64 {
    let low = |number: i64| u32::try_from(number & 0xffff_ffff).expect("32 bits");
    let whole = |id: &i64| next + i64::from(low(*id).wrapping_sub(low(next)).cast_signed());
    running.iter().map(whole).min().map_or(next, |oldest| oldest.min(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_transactions_bound_the_decided_serials() {
        // No transaction, one below, and some above the last that has ended.
        assert_eq!(oldest_running(1000, &[]), 1000);
        assert_eq!(oldest_running(1000, &[990, 1003]), 990);
        assert_eq!(oldest_running(1000, &[1000, 1001, 1002]), 1000);
        assert_eq!(oldest_running(1000, &[1001]), 1000);
        // Beyond 32 bits, and on both sides of the wraparound.
        let wrap = 7_i64 << 32;
        assert_eq!(oldest_running(wrap + 5, &[3]), wrap + 3);
        assert_eq!(oldest_running(wrap + 5, &[0xffff_fff0, 6]), wrap - 16);
        assert_eq!(oldest_running(wrap - 2, &[0xffff_ffff, 1]), wrap - 2);
    }
}

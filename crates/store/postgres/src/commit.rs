//! Commits: one pipeline, one implicit transaction, one round trip.
//!
//! The first statement updates the connection's row in `writers`, which records that the commit took place.
//! The others follow table by table, in the order of the tables' numbers, and with rows in the order of their
//! shards and keys, so that two commits never wait for each other in a circle: rows that must stay as they
//! were read, updates, deletes, inserts, queue entries. Each statement checks in the server how many rows it
//! has affected. If the count is wrong, the server rolls everything back, and the rows are read to find out
//! which one does not fit.
//!
//! If the connection is lost, it is unknown whether the commit took place. A new connection increases the
//! epoch of the writer's row. That waits for the old transaction to end, and makes any late copy of it fail.
//! The row's batch number then shows whether the commit took place.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use batzen_store::{ChangeSet, CommitOutcome, RawRow, Result, RowVersion, StoreError, TableDef};

use crate::batch::{Batch, Versions};
use crate::changes::{INSERTS_MAX, Net, judge, net};
use crate::citus::{self, Ended, recover};
use crate::client::Connection;
use crate::database::{Database, no_connection};
use crate::pool::PoolSlot;
use crate::schema::meta::EPOCH_COUNT;
use crate::writer::Writer;
use crate::{PgError, ServerError};

/// The maximum number of bytes in one commit.
pub(crate) const COMMIT_BYTES_MAX: u64 = 256 << 20;

/// Number of times that a set is sent again if it conflicted but fits the rows when they are read afterwards.
pub(crate) const RACES_MAX: u32 = 16;

/// Number of connections that may be lost during one commit. Otherwise a commit that crashes the server's
/// process every time would be sent for ever.
pub(crate) const LOSSES_MAX: u32 = 6;

/// Time after the loss of a node at which a part that is still prepared there is one that it left.
const PARTS_AFTER: Duration = Duration::from_millis(500);

/// The end of one attempt.
enum Attempt {
    Committed,
    /// A row did not have the expected version.
    Misfit,
    Failed(PgError),
    /// It is unknown whether it has taken effect.
    Unknown(PgError),
}

/// An error with a code of this program.
fn own_error(code: &str, message: &str) -> PgError {
    PgError::Server(Box::new(ServerError {
        severity: "ERROR".into(),
        code: code.into(),
        message: message.into(),
        ..ServerError::default()
    }))
}

/// The bytes of all keys and new rows.
pub(crate) fn bytes(set: &ChangeSet) -> usize {
    set.changes().iter().map(|change| change.key().len() + change.new_row().map_or(0, <[u8]>::len)).sum()
}

impl Database {
    pub(crate) fn commit(&self, set: &ChangeSet) -> Result<CommitOutcome> {
        if self.is_closed() {
            return Err(StoreError::Stopped("the store was closed".into()));
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(self.is_lost());
        }
        if set.is_empty() {
            return Ok(CommitOutcome::Committed);
        }
        match self.commit_at_shards(set)? {
            Some(outcome) => Ok(outcome),
            None => self.commit_by_coordinator(set),
        }
    }

    /// Commits on the server that the target leads to.
    pub(crate) fn commit_by_coordinator(&self, set: &ChangeSet) -> Result<CommitOutcome> {
        let bytes = bytes(set);
        let too_large = |limit: u64| StoreError::TooLarge { bytes: bytes as u64, limit };
        if bytes as u64 > COMMIT_BYTES_MAX {
            return Err(too_large(COMMIT_BYTES_MAX));
        }
        let Some(nets) = net(set) else {
            let fits = self.judge(set)?;
            return Ok(fits.expect("a set that contradicts itself fits no state"));
        };
        let inserts = nets.iter().filter(|net| net.inserted.is_some()).count();
        let is_plain = self.citus.is_none() && self.direct.is_none();
        let inserts_max = if is_plain { INSERTS_MAX } else { citus::INSERTS_MAX };
        if inserts > inserts_max {
            return Err(too_large((bytes / inserts * inserts_max) as u64));
        }
        let mut versions = HashMap::new();
        for round in 0..RACES_MAX {
            // If the known versions were wrong the first time, read all of them.
            match self.versions(&nets, round == 0, &mut versions)? {
                true => {}
                false => match self.judge(set)? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                },
            }
            if self.try_commit(&nets, &versions)? {
                self.counters.commits.inc();
                self.counters.changes.add(set.len() as u64);
                return Ok(CommitOutcome::Committed);
            }
            self.counters.races.inc();
            if let Some(outcome) = self.judge(set)? {
                return Ok(outcome);
            }
        }
        let table = nets[0].table.name;
        Err(StoreError::Backend(format!(
            "a change of {table} or of a table after it meets other rows than can be read: an index or a queue is damaged"
        )))
    }

    /// Reads the rows that the set names, and finds out why it does not fit; `None` if it does.
    pub(crate) fn judge(&self, set: &ChangeSet) -> Result<Option<CommitOutcome>> {
        let mut keys: Vec<(&'static TableDef, &[u8])> =
            set.changes().iter().map(|change| (change.table(), change.key())).collect();
        keys.sort_unstable_by_key(|(table, key)| (table.id, *key));
        keys.dedup();
        judge(set, &self.rows_by_key(&keys)?)
    }

    /// Finds the version of each row that must exist, from the change or by reading the row. False if a row
    /// differs from the expected one, or exists although it must not.
    pub(crate) fn versions<'a>(
        &self,
        nets: &[Net<'a>],
        trust: bool,
        versions: &mut Versions<'a>,
    ) -> Result<bool> {
        let known = |version: Option<RowVersion>| {
            let version = version.filter(|version| trust && version.birth() == self.tag)?;
            Some((i32::try_from(version.place()).ok()?, version.serial().cast_signed()))
        };
        versions.clear();
        let mut unknown = Vec::new();
        for net in nets {
            match (net.before, known(net.version)) {
                (Some(_), Some(version)) => {
                    versions.insert((net.table.id, net.key), version);
                }
                // The database cannot check a row that is inserted and deleted within the set.
                (None, _) if net.after.is_some() => {}
                _ => unknown.push(net),
            }
        }
        if unknown.is_empty() {
            return Ok(true);
        }
        let keys: Vec<(&'static TableDef, &[u8])> = unknown.iter().map(|net| (net.table, net.key)).collect();
        let found: HashMap<(u16, &[u8]), RawRow> = self.rows_by_key(&keys)?;
        for net in unknown {
            let row = found.get(&(net.table.id, net.key));
            if row.map(|row| row.row.as_slice()) != net.before {
                return Ok(false);
            }
            if let Some(row) = row {
                let version = i32::try_from(row.version.place()).expect("it was an integer");
                versions.insert((net.table.id, net.key), (version, row.serial.cast_signed()));
            }
        }
        Ok(true)
    }

    /// Commits, and replaces lost connections. False if a row did not have the expected version.
    fn try_commit(&self, nets: &[Net<'_>], versions: &Versions<'_>) -> Result<bool> {
        let batch = Batch::new(self, nets, versions)?;
        if batch.is_empty() {
            return Ok(true);
        }
        let mut patience = self.patience();
        let mut losses = 0;
        loop {
            let mut place = self.writers.take(patience.until).ok_or_else(no_connection)?;
            let mut writer = match self.writer_of(&mut place) {
                Ok(Some(writer)) => writer,
                Ok(None) => return Err(self.is_lost()),
                Err(error) => {
                    drop(place);
                    patience.wait(error)?;
                    continue;
                }
            };
            let attempt = match self.attempt(&mut writer, &batch) {
                Attempt::Failed(error) if error.ends_connection() || writer.connection.was_unsynced() => {
                    Attempt::Unknown(error)
                }
                attempt => attempt,
            };
            match attempt {
                Attempt::Committed => {
                    let is_partial = writer.connection.was_partial();
                    place.item = Some(writer);
                    drop(place);
                    if is_partial {
                        self.wait_for_parts()?;
                    }
                    return Ok(true);
                }
                Attempt::Misfit => {
                    place.item = Some(writer);
                    return Ok(false);
                }
                Attempt::Failed(error) if error.code() == Some("BZ002") => {
                    // The row was removed because it was unused for a long time, or another process has taken
                    // over the store. Registering again shows which.
                    tracing::info!(writer = writer.id, "the writer's row was removed");
                }
                Attempt::Unknown(error) => {
                    self.counters.reconnects.inc();
                    tracing::warn!(%error, "connection lost in a commit");
                    let took_place = self.resolve(&mut writer)? == writer.batch;
                    place.item = Some(writer);
                    if took_place {
                        self.counters.ambiguous_committed.inc();
                        return Ok(true);
                    }
                    self.counters.ambiguous_repeated.inc();
                    losses += 1;
                    if self.lost.load(Ordering::Acquire) {
                        return Err(self.is_lost());
                    }
                    if losses == LOSSES_MAX {
                        return Err(StoreError::Unavailable(format!(
                            "the connection was lost in each of {losses} attempts: {error}"
                        )));
                    }
                    // The server is back: the deadline starts again.
                    patience = self.patience();
                }
                Attempt::Failed(error) => {
                    if !writer.connection.is_broken() && !error.is_away() {
                        place.item = Some(writer);
                    }
                    drop(place);
                    patience.wait(error)?;
                }
            }
        }
    }

    /// The writer that is in a place of the pool, or a new one; `None` if another process has taken over the store.
    pub(crate) fn writer_of(
        &self,
        place: &mut PoolSlot<'_, Writer>,
    ) -> std::result::Result<Option<Writer>, PgError> {
        match place.item.take() {
            Some(writer) if !self.is_worn(&writer.connection) => Ok(Some(writer)),
            // The row can be kept, because no commit is under way.
            Some(writer) => {
                let (connection, session) = self.connect_writer()?;
                Ok(Some(Writer { connection, session, ..writer }))
            }
            None => self.register(),
        }
    }

    /// Sends the batch once.
    fn attempt(&self, writer: &mut Writer, batch: &Batch<'_>) -> Attempt {
        writer.batch += 1;
        let (id, epoch, number) = (writer.id, writer.epoch, writer.batch);
        let connection = &mut writer.connection;
        let statements = connection.statements;
        if self.citus.is_some() || self.direct.is_some() {
            let start = Instant::now();
            let ended = match (&self.citus, &self.direct) {
                (Some(citus), _) => {
                    citus.commit(connection, [number, id, epoch], batch, self.serial_base, &self.clock)
                }
                (_, Some(direct)) => direct.commit(connection, [number, id, epoch], batch, &self.clock),
                _ => unreachable!("one of both is there"),
            };
            self.counters.commit_times.time(start.elapsed());
            self.count(connection, statements);
            return match ended {
                Ended::Committed if connection.was_unsynced() => {
                    Attempt::Unknown(PgError::protocol("the server gave up waiting for its standby"))
                }
                Ended::Committed => Attempt::Committed,
                Ended::Misfit => Attempt::Misfit,
                // It is sent again with the shards of now.
                Ended::Split => {
                    self.refresh_placement(connection).map_or_else(Attempt::Failed, |()| Attempt::Misfit)
                }
                Ended::NoWriter => Attempt::Failed(own_error("BZ002", "the writer's row is gone")),
                Ended::Failed(error) => Attempt::Failed(error),
                Ended::Unknown(error) => Attempt::Unknown(error),
            };
        }
        connection.queue(&self.texts.writer, |params| {
            params.int8(number);
            params.int8(id);
            params.int8(epoch);
        });
        batch.queue(connection);
        let start = Instant::now();
        let result = connection.run(&mut |_, _| Ok(()));
        self.counters.commit_times.time(start.elapsed());
        self.count(connection, statements);
        match result {
            Ok(()) if connection.was_unsynced() => {
                Attempt::Failed(PgError::protocol("the server gave up waiting for its standby"))
            }
            Ok(()) => Attempt::Committed,
            Err(error) => match error.code() {
                // 23505: a row exists that must not exist.
                Some("BZ001" | "23505") => Attempt::Misfit,
                _ => Attempt::Failed(error),
            },
        }
    }

    /// Waits until Citus has recovered the parts of commits on a node that it lost. What was committed is not answered
    /// before all of it is visible.
    fn wait_for_parts(&self) -> Result<()> {
        tracing::warn!("a node was lost before its part of a commit was visible");
        let mut patience = self.patience();
        loop {
            // What is under way now is younger.
            std::thread::sleep(PARTS_AFTER);
            match self.with_reader(|connection| recover::is_partial(connection, PARTS_AFTER)) {
                Ok(false) => return Ok(()),
                Ok(true) | Err(StoreError::Unavailable(_)) => {
                    let error = PgError::io("wait for a lost node", std::io::ErrorKind::TimedOut.into());
                    patience.wait_whatever(&error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens a connection and sets it up for commits. Also returns the condition on `pg_stat_activity` that only its server
    /// process meets. The server is asked for it, because a pooler names other processes at login.
    pub(crate) fn connect_writer(&self) -> std::result::Result<(Connection, String), PgError> {
        let mut connection = self.connect()?;
        // Do not set statement_timeout: it would end the wait for a synchronous standby, and the commit would
        // be reported as done although the standby does not have it. Operators may set synchronous_commit
        // higher than `on`, but not lower.
        connection.script(
            "SET lock_timeout = '10s'; SELECT set_config(name, reset_val, false) FROM pg_settings \
             WHERE name = 'synchronous_commit' AND reset_val = 'remote_apply'",
        )?;
        let text = "SELECT format('pid = %s AND backend_start = %L', pid, backend_start) FROM pg_stat_activity \
                    WHERE pid = pg_backend_pid()";
        let session = connection.query_text(text)?.pop().and_then(|mut row| row.pop().flatten());
        let session = session.ok_or_else(|| PgError::protocol("a session without a process"))?;
        // The placement only makes commits cheaper. Whether the schema is still ours is checked elsewhere.
        match self.refresh_placement(&mut connection) {
            Err(error) if connection.is_broken() => return Err(error),
            Err(error) => tracing::warn!(%error, "the places of shards are not known"),
            Ok(()) => {}
        }
        Ok((connection, session))
    }

    /// Opens a connection with its own row in `writers`; `None` if another process has taken over the store.
    fn register(&self) -> std::result::Result<Option<Writer>, PgError> {
        let (mut connection, session) = self.connect_writer()?;
        let row = self.register_row(&mut connection)?;
        Ok(row.map(|(id, epoch)| Writer { connection, session, id, epoch, batch: 0 }))
    }

    /// Opens a new connection for a writer whose old one was lost during a commit, and returns the writer's
    /// last batch.
    ///
    /// Fails with [`StoreError::Unavailable`] whatever the server reports, because it is unknown whether the
    /// commit took effect, or with [`StoreError::Stopped`] if the schema no longer exists.
    pub(crate) fn resolve(&self, writer: &mut Writer) -> Result<i64> {
        // If the server has not noticed that the connection is lost, the old process may wait for the rest of
        // the pipeline for hours and keep its rows locked.
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {}", writer.session);
        // The epoch shows whether the row still belongs to this writer, in case the schema was recreated:
        // epochs start at a random number, and each loss adds one.
        let text = format!(
            "{} WHERE {}writer_id = {} AND epoch BETWEEN {} AND {} RETURNING epoch, batch",
            self.texts.fence,
            self.texts.of_writer,
            writer.id,
            writer.epoch,
            writer.epoch | EPOCH_COUNT
        );
        let mut patience = self.patience();
        loop {
            let attempt = self.connect_writer().and_then(|(mut connection, session)| {
                connection.script(&end)?;
                let rows = connection.query_text(&text)?;
                if connection.was_unsynced() {
                    return Err(PgError::io("wait for the standby", std::io::ErrorKind::TimedOut.into()));
                }
                // Check after increasing the epoch: a process that takes over the store from now on increases
                // it again.
                self.is_ours(&mut connection)?;
                Ok((connection, session, rows))
            });
            match attempt {
                Ok((connection, session, rows)) => {
                    let Some(row) = rows.first() else {
                        self.counters.ambiguous_unknown.inc();
                        if self.lost.load(Ordering::Acquire) {
                            return Err(self.is_lost());
                        }
                        return Err(StoreError::Unavailable(
                            "the database does not know the writer whose connection was lost".into(),
                        ));
                    };
                    let number = |at: usize| row.get(at)?.as_ref()?.parse().ok();
                    let (Some(epoch), Some(batch)) = (number(0), number(1)) else {
                        return Err(StoreError::Unavailable("the writer's row has no numbers".into()));
                    };
                    writer.connection = connection;
                    writer.session = session;
                    writer.epoch = epoch;
                    return Ok(batch);
                }
                Err(error) => {
                    if let Err(error) = patience.wait_whatever(&error) {
                        self.counters.ambiguous_unknown.inc();
                        return Err(error);
                    }
                }
            }
        }
    }
}

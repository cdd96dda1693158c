//! A commit over several shards in two phases, straight at their nodes.
//!
//! First, the commit takes the clocks of its shards, node after node in one order, so that two commits never wait for each
//! other in a circle. The highest number becomes that of all, so that the serials of the commit are in the order of its
//! rows. Then each node but the last prepares its part; the last one, the *home* of the commit, commits, which decides.
//! Then the others commit what they have prepared, and only then is the commit done.
//!
//! The name of a prepared part leads to the decision: to the writer's row at the home, whose batch number is that of
//! the commit if it took effect. A writer begins nothing else before all parts have ended. If that fails, the writer is
//! given up, and [`recover`] ends the parts.
//!
//! [`recover`]: crate::schema::prepared::recover

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use batzen_store::{ChangeSet, CommitOutcome, Result};

use crate::PgError;
use crate::batch::{Batch, Versions};
use crate::changes::{Net, net};
use crate::citus::direct::Direct;
use crate::citus::route::Changes;
use crate::citus::{INSERTS_MAX, Nodes};
use crate::commit::{COMMIT_BYTES_MAX, LOSSES_MAX, RACES_MAX, bytes};
use crate::database::{Database, no_connection};
use crate::pool::PoolSlot;
use crate::schema::prepared::name;
use crate::writer::Writer;

/// SQLSTATE of `COMMIT PREPARED` and `ROLLBACK PREPARED` when there is nothing of this name.
const NOTHING_PREPARED: &str = "42704";

/// Writes something to the log, and so waits until a synchronous standby has all that precedes it.
const SYNC: &str = "SELECT pg_logical_emit_message(true, 'batzen', '')";

/// The server gave up waiting for its synchronous standby.
fn unsynced() -> PgError {
    PgError::io("wait for the standby", std::io::ErrorKind::TimedOut.into())
}

/// The part of a commit in one shard.
struct Part<'a> {
    way: &'a Arc<Database>,
    nets: Vec<Net<'a>>,
    /// Where each change of the part is in the whole set.
    order: &'a [usize],
    versions: Versions<'a>,
}

/// A node with its parts of a commit. The first way has the connection.
struct Node<'a> {
    ways: Vec<&'a Arc<Database>>,
    batches: Vec<Batch<'a>>,
}

/// A node's turn: a connection, and the writer that has it.
struct Turn<'n, 'a> {
    node: &'n Node<'a>,
    place: PoolSlot<'n, Writer>,
    writer: Writer,
    /// The numbers of its shards' clocks.
    numbers: Vec<i64>,
}

/// The end of an attempt.
enum Attempt {
    Committed,
    /// A row did not have the expected version.
    Misfit,
    /// A shard is elsewhere. Nothing has taken effect.
    Moved,
    /// Nothing has taken effect.
    Failed(PgError),
}

impl Database {
    /// Commits changes of several shards, by the places of these. `None`: they must go through the coordinator.
    pub(crate) fn commit_across(
        &self,
        nodes: &Nodes<Database>,
        set: &ChangeSet,
        divided: &BTreeMap<u16, Changes>,
    ) -> Result<Option<CommitOutcome>> {
        // The coordinator's way says what is too large.
        if is_too_large(set) {
            return Ok(None);
        }
        let mut parts = Vec::with_capacity(divided.len());
        for (place, changes) in divided {
            let Some(way) = nodes.way(*place) else { return Ok(None) };
            // A set that contradicts itself fits no state.
            let Some(nets) = net(&changes.set) else { return Ok(None) };
            parts.push(Part { way, nets, order: &changes.order, versions: Versions::new() });
        }
        // In the order in which all commits take the clocks of shards.
        parts.sort_by_key(|part| part.direct().group);
        for round in 0..RACES_MAX {
            let mut fit = true;
            for part in &mut parts {
                match part.way.versions(&part.nets, round == 0, &mut part.versions) {
                    Ok(fits) => fit &= fits,
                    Err(_) if part.direct().has_moved() => {
                        self.look_again()?;
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
            if fit {
                match self.try_across(&parts)? {
                    Attempt::Committed => {
                        self.counters.commits.inc();
                        self.counters.changes.add(set.len() as u64);
                        return Ok(Some(CommitOutcome::Committed));
                    }
                    Attempt::Misfit => self.counters.races.inc(),
                    Attempt::Moved => {
                        self.look_again()?;
                        return Ok(None);
                    }
                    Attempt::Failed(error) => return Err(error.into()),
                }
            }
            if let Some(outcome) = self.judge(set)? {
                return Ok(Some(outcome));
            }
        }
        // The coordinator's way says which table is damaged.
        Ok(None)
    }

    /// Attempts a commit until it has an outcome.
    fn try_across(&self, parts: &[Part<'_>]) -> Result<Attempt> {
        let mut nodes = Vec::new();
        for parts in parts.chunk_by(|a, b| a.direct().group == b.direct().group) {
            let mut node = Node { ways: Vec::new(), batches: Vec::new() };
            for part in parts {
                let batch = Batch::in_order(part.way, &part.nets, &part.versions, part.order)?;
                if !batch.is_empty() {
                    node.ways.push(part.way);
                    node.batches.push(batch);
                }
            }
            if !node.ways.is_empty() {
                nodes.push(node);
            }
        }
        if nodes.is_empty() {
            return Ok(Attempt::Committed);
        }
        let mut patience = self.patience();
        let mut losses = 0;
        loop {
            if self.lost.load(Ordering::Acquire) {
                return Err(self.is_lost());
            }
            let attempt = match self.turns(&nodes, patience.until)? {
                Ok(Some(turns)) => self.attempt_across(turns)?,
                Ok(None) => return Err(self.is_lost()),
                Err(error) => Attempt::Failed(error),
            };
            if nodes.iter().flat_map(|node| &node.ways).any(|way| way.direct().has_moved()) {
                return Ok(Attempt::Moved);
            }
            let Attempt::Failed(error) = attempt else { return Ok(attempt) };
            if error.code() == Some("BZ002") {
                // The row was removed because it was unused for a long time, or recovery has ended what the writer did.
                tracing::info!("a writer's row was removed or changed");
                continue;
            }
            losses += u32::from(error.ends_connection());
            if losses == LOSSES_MAX {
                return Ok(Attempt::Failed(error));
            }
            patience.wait(error)?;
        }
    }

    /// A connection to each node. `Ok(Ok(None))` if the schema is no longer the one that was opened.
    #[allow(clippy::type_complexity, reason = "two kinds of errors: of the store, and of an attempt")]
    fn turns<'n, 'a>(
        &self,
        nodes: &'n [Node<'a>],
        until: Instant,
    ) -> Result<std::result::Result<Option<Vec<Turn<'n, 'a>>>, PgError>> {
        let mut turns = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut place = node.ways[0].writers.take(until).ok_or_else(no_connection)?;
            match node.ways[0].writer_of(&mut place) {
                Ok(Some(writer)) => turns.push(Turn { node, place, writer, numbers: Vec::new() }),
                other => {
                    turns.into_iter().for_each(Turn::keep);
                    return Ok(other.map(|_| None));
                }
            }
        }
        Ok(Ok(Some(turns)))
    }

    /// Runs a commit once. An error of the store: it is unknown whether it takes effect.
    fn attempt_across(&self, mut turns: Vec<Turn<'_, '_>>) -> Result<Attempt> {
        let start = Instant::now();
        for at in 0..turns.len() {
            let Err(error) = self.begin(&mut turns[at]) else { continue };
            return Ok(self.give_up(turns, at, error, None));
        }
        let number =
            turns.iter().flat_map(|turn| &turn.numbers).copied().max().expect("a clock for each shard");
        let home = turns.len() - 1;
        let name = name(
            &self.options.schema,
            turns[home].node.ways[0].direct().vshard,
            turns[home].writer.id,
            turns[home].writer.batch,
        );
        let prepare = format!("PREPARE TRANSACTION {name}");
        if let Some((at, error)) = self.prepare(&mut turns[..home], number, &prepare) {
            return Ok(self.give_up(turns, at, error, Some(&name)));
        }
        let is_committed = match self.write(&mut turns[home], number, "COMMIT") {
            Ok(()) if !turns[home].writer.connection.was_unsynced() => true,
            Err(error) if !error.ends_connection() => {
                return Ok(self.give_up(turns, home, error, Some(&name)));
            }
            _ => {
                self.counters.reconnects.inc();
                tracing::warn!("connection lost in a commit over several shards");
                let home = &mut turns[home];
                home.node.ways[0].resolve(&mut home.writer)? == home.writer.batch
            }
        };
        let home = turns.pop().expect("it is the last");
        // Until all parts are visible, nothing is answered.
        self.end(turns, &format!("{} PREPARED {name}", if is_committed { "COMMIT" } else { "ROLLBACK" }))?;
        home.keep();
        if !is_committed {
            self.counters.ambiguous_repeated.inc();
            return Ok(Attempt::Failed(PgError::io("commit", std::io::ErrorKind::ConnectionReset.into())));
        }
        self.counters.commit_times.time(start.elapsed());
        Ok(Attempt::Committed)
    }

    /// Takes a node's clocks.
    fn begin(&self, turn: &mut Turn<'_, '_>) -> std::result::Result<(), PgError> {
        turn.writer.batch += 1;
        let writer = [turn.writer.batch, turn.writer.id, turn.writer.epoch];
        let connection = &mut turn.writer.connection;
        let others: Vec<&Direct> = turn.node.ways[1..].iter().map(|way| way.direct()).collect();
        let statements = connection.statements;
        let begun = turn.node.ways[0].direct().begin(connection, writer, &others, &self.clock);
        self.count(connection, statements);
        turn.numbers = begun?;
        Ok(())
    }

    /// Sends the rows of a node.
    fn write(&self, turn: &mut Turn<'_, '_>, number: i64, end: &str) -> std::result::Result<(), PgError> {
        let connection = &mut turn.writer.connection;
        let statements = connection.statements;
        for (way, has) in turn.node.ways.iter().zip(&turn.numbers) {
            if *has < number {
                way.direct().queue_number(connection, number);
            }
        }
        turn.node.batches.iter().for_each(|batch| batch.queue(connection));
        connection.queue_once(end);
        let written = connection.run(&mut |_, _| Ok(()));
        self.count(connection, statements);
        written
    }

    /// As [`Self::write`], for a part that is prepared. After a fail-over it must still be there.
    fn prepare_one(
        &self,
        turn: &mut Turn<'_, '_>,
        number: i64,
        text: &str,
    ) -> std::result::Result<(), PgError> {
        self.write(turn, number, text)?;
        if turn.writer.connection.was_unsynced() { Err(unsynced()) } else { Ok(()) }
    }

    /// Sends the rows of all nodes but the home, at the same time. Returns an error with its node's place.
    fn prepare(&self, turns: &mut [Turn<'_, '_>], number: i64, text: &str) -> Option<(usize, PgError)> {
        if let [turn] = turns {
            return self.prepare_one(turn, number, text).err().map(|error| (0, error));
        }
        std::thread::scope(|scope| {
            let jobs: Vec<_> = turns
                .iter_mut()
                .map(|turn| scope.spawn(move || self.prepare_one(turn, number, text)))
                .collect();
            let written: Vec<_> =
                jobs.into_iter().map(|job| job.join().expect("writing does not panic")).collect();
            written.into_iter().enumerate().find_map(|(at, written)| Some((at, written.err()?)))
        })
    }

    /// Undoes all parts after a node's error. `name`: some may be prepared.
    fn give_up(&self, turns: Vec<Turn<'_, '_>>, at: usize, error: PgError, name: Option<&str>) -> Attempt {
        turns[at].node.ways.iter().for_each(|way| way.direct().note(&error));
        let undo = name.map(|name| format!("ROLLBACK PREPARED {name}"));
        for (number, mut turn) in turns.into_iter().enumerate() {
            // What cannot be undone now is undone by recovery.
            if turn.writer.connection.is_broken() || number == at && error.ends_connection() {
                // The node may have prepared its part, or do so yet.
                turn.forget_session(undo.as_deref());
                continue;
            }
            // One of both says that there is nothing to undo.
            let is_undone = turn.writer.connection.script("ROLLBACK").is_ok()
                && undo.as_ref().is_none_or(|undo| match turn.writer.connection.script(undo) {
                    Err(error) => error.code() == Some(NOTHING_PREPARED),
                    Ok(()) => true,
                });
            if is_undone && !(number == at && error.code() == Some("BZ002")) {
                turn.keep();
            }
        }
        match error.code() {
            // 23505: a row exists that must not exist.
            Some("BZ001" | "23505") => Attempt::Misfit,
            _ => Attempt::Failed(error),
        }
    }

    /// Ends all parts that are prepared, on all nodes at once.
    fn end(&self, turns: Vec<Turn<'_, '_>>, text: &str) -> Result<()> {
        if turns.len() < 2 {
            return turns.into_iter().try_for_each(|turn| self.end_one(turn, text));
        }
        std::thread::scope(|scope| {
            let jobs: Vec<_> =
                turns.into_iter().map(|turn| scope.spawn(move || self.end_one(turn, text))).collect();
            let ended: Vec<_> =
                jobs.into_iter().map(|job| job.join().expect("ending does not panic")).collect();
            ended.into_iter().collect()
        })
    }

    /// Ends a part that is prepared. If the node is lost, waits until it is back.
    fn end_one(&self, mut turn: Turn<'_, '_>, text: &str) -> Result<()> {
        let way = turn.node.ways[0];
        let mut patience = self.patience();
        let mut text = text;
        loop {
            let error = match turn.writer.connection.script(text) {
                // The standby has it once it has what is written after it.
                Ok(()) if turn.writer.connection.was_unsynced() => {
                    text = SYNC;
                    unsynced()
                }
                Ok(()) => break,
                // It was ended by an earlier attempt, or by recovery.
                Err(error) if error.code() == Some(NOTHING_PREPARED) => {
                    text = SYNC;
                    continue;
                }
                Err(error) => error,
            };
            patience.wait_whatever(&error)?;
            if turn.writer.connection.is_broken() {
                match way.connect_writer() {
                    Ok((connection, session)) => {
                        turn.writer.connection = connection;
                        turn.writer.session = session;
                    }
                    Err(error) => patience.wait_whatever(&error)?,
                }
            }
        }
        self.counters.round_trips.inc();
        turn.keep();
        Ok(())
    }
}

impl Part<'_> {
    fn direct(&self) -> &Direct {
        self.way.direct()
    }
}

impl Turn<'_, '_> {
    /// Gives the connection back.
    fn keep(mut self) {
        if !self.writer.connection.is_broken() {
            self.place.item = Some(self.writer);
        }
    }

    /// After the connection was lost: ends its session, and undoes what it may have prepared, if the node answers.
    fn forget_session(self, undo: Option<&str>) {
        let Ok(mut connection) = self.node.ways[0].connect() else { return };
        let end =
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {}", self.writer.session);
        let _ = connection.script(&end);
        if let Some(undo) = undo {
            let _ = connection.script(undo);
        }
    }
}

fn is_too_large(set: &ChangeSet) -> bool {
    set.len() > INSERTS_MAX || bytes(set) as u64 > COMMIT_BYTES_MAX
}

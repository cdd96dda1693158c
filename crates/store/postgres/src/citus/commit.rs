//! A batch as one transaction over the nodes, or straight at one shard.
//!
//! Over the nodes, three round trips: `BEGIN`, which also moves the clocks of the shards; the statements; and `COMMIT`, once
//! each statement has met as many rows as it had to. If the batch touches one node, Citus commits there alone,
//! otherwise in two phases.

use crate::PgError;
use crate::batch::{Batch, Serials};
use crate::citus::clock::Clock;
use crate::citus::direct::{self, Direct};
use crate::citus::{self, Citus};
use crate::client::Connection;
use crate::schema::citus::CLOCK_SHIFT;

/// Number of statements that come before those that return the clocks' numbers.
const BEFORE_CLOCKS: usize = 3;

/// The end of an attempt.
pub(crate) enum Ended {
    Committed,
    /// A row did not have the expected version.
    Misfit,
    /// The row of the writer is not there.
    NoWriter,
    /// There are other shards than were known. Nothing has taken effect.
    Split,
    /// Nothing has taken effect.
    Failed(PgError),
    /// `COMMIT` was sent, and it is unknown whether it has taken effect.
    Unknown(PgError),
}

impl<W> Citus<W> {
    /// Commits a batch. `writer` is the batch's number, the writer's id and its epoch.
    pub(crate) fn commit(
        &self,
        connection: &mut Connection,
        writer: [i64; 3],
        batch: &Batch<'_>,
        serial_base: i64,
        clock: &Clock,
    ) -> Ended {
        match self.write(connection, writer, batch, serial_base, clock) {
            Ok(None) => {}
            Ok(Some(ended)) => return self.undo(connection, ended),
            Err(error) => return self.undo(connection, Ended::Failed(error)),
        }
        connection.queue(&self.commit, |_| {});
        match connection.run(&mut |_, _| Ok(())) {
            Ok(()) => Ended::Committed,
            // An error of a node may arrive as an error of COMMIT, although the node has committed.
            Err(error) => Ended::Unknown(error),
        }
    }

    /// Runs everything but `COMMIT`; `None` if it may be committed.
    fn write(
        &self,
        connection: &mut Connection,
        writer: [i64; 3],
        batch: &Batch<'_>,
        serial_base: i64,
        clock: &Clock,
    ) -> Result<Option<Ended>, PgError> {
        connection.queue(&self.begin, |_| {});
        connection.queue(&self.settings, |_| {});
        // Whoever wants to see all nodes at one moment closes the fence.
        connection.queue(&self.hold, |params| params.int8(self.fence));
        // Every commit locks the clocks of its shards in the same order, before anything else in them: node by node.
        let mut places: Vec<(Option<u16>, u16)> = batch.places().collect();
        let nodes = self.nodes();
        let group = |place: u16| nodes.placement.shards().get(usize::from(place)).map(|shard| shard.group);
        places.sort_by_key(|(place, _)| (place.and_then(group), *place));
        for (_, row) in &places {
            self.move_clock(connection, *row, clock.next());
        }
        // With its clock, no shard can be split.
        connection.queue(&self.shards, |_| {});
        let mut numbers = Vec::with_capacity(places.len() + 1);
        connection.run(&mut |statement, mut columns| {
            if statement >= BEFORE_CLOCKS {
                numbers.push(columns.int8()?);
            }
            Ok(())
        })?;
        let shards = numbers.pop();
        if shards != i64::try_from(nodes.placement.shards().len()).ok() {
            return Ok(Some(Ended::Split));
        }
        if numbers.len() < places.len() {
            return Err(PgError::protocol("a shard has no clock: run dbinit --citus"));
        }
        // The serials of a commit are in the order of its rows, so it has one number.
        let number = numbers.iter().copied().max().unwrap_or(0);
        clock.saw(number);
        let base = serial_base.saturating_add(number << CLOCK_SHIFT);
        let serials: Serials = places
            .iter()
            .map(|(place, _)| (*place, base.saturating_add(citus::serial_of_place(*place))))
            .collect();
        connection.queue(&self.writer, |params| writer.iter().for_each(|value| params.int8(*value)));
        let mut wanted = vec![1];
        for ((_, row), _) in places.iter().zip(&numbers).filter(|(_, moved)| **moved < number) {
            self.move_clock(connection, *row, number);
            wanted.push(1);
        }
        batch.queue_on_citus(connection, &serials, &mut wanted);
        let mut met = Vec::with_capacity(wanted.len());
        connection.run_counting(&mut met)?;
        Ok(match (met.first(), met == wanted) {
            (_, true) => None,
            (Some(1), false) => Some(Ended::Misfit),
            _ => Some(Ended::NoWriter),
        })
    }

    fn move_clock(&self, connection: &mut Connection, row: u16, number: i64) {
        connection.queue(&self.clock, |params| {
            params.int2(row.cast_signed());
            params.int8(number);
        });
    }

    fn undo(&self, connection: &mut Connection, ended: Ended) -> Ended {
        if connection.is_broken() {
            return ended;
        }
        match connection.script("ROLLBACK") {
            Ok(()) => ended,
            Err(error) => Ended::Failed(error),
        }
    }
}

impl Direct {
    /// Commits a batch in one round trip. `writer` is the batch's number, the writer's id and its epoch.
    pub(crate) fn commit(
        &self,
        connection: &mut Connection,
        writer: [i64; 3],
        batch: &Batch<'_>,
        clock: &Clock,
    ) -> Ended {
        self.queue(connection, writer, &[], clock);
        batch.queue(connection);
        connection.queue(&self.commit, |_| {});
        let Err(error) = direct::run(connection, 0, clock) else { return Ended::Committed };
        self.note(&error);
        // The server skipped COMMIT.
        if !connection.is_broken()
            && let Err(error) = connection.script("ROLLBACK")
        {
            return Ended::Failed(error);
        }
        match error.code() {
            // 23505: a row exists that must not exist.
            Some("BZ001" | "23505") => Ended::Misfit,
            Some("BZ002") => Ended::NoWriter,
            _ => Ended::Failed(error),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::Target;
    use crate::client::Statement;

    /// The reason for `BEGIN`. If this fails, Citus has changed, and a commit may become one round trip.
    #[test]
    fn citus_keeps_what_precedes_a_failed_statement_of_a_pipeline() {
        let Some(cluster) = batzen_testkit::postgres::shared_citus() else { return };
        let mut sql = Connection::open(&Target::parse(&cluster.fresh_database().unwrap()).unwrap()).unwrap();
        sql.script("CREATE TABLE t (n bigint PRIMARY KEY)").unwrap();
        sql.script("SELECT create_distributed_table('t', 'n')").unwrap();
        let [begin, insert, fail] = ["BEGIN", "INSERT INTO t VALUES ($1::bigint)", "SELECT 1 / (SELECT 0)"]
            .map(|text| Statement::new(text.to_owned()));
        for (n, begins, left) in [(1, true, 0), (2, false, 1)] {
            if begins {
                sql.queue(&begin, |_| {});
            }
            sql.queue(&insert, |params| params.int8(n));
            sql.queue(&fail, |_| {});
            assert_eq!(sql.run(&mut |_, _| Ok(())).unwrap_err().code(), Some("22012"));
            if begins {
                sql.script("ROLLBACK").unwrap();
            }
            let found = sql.query_text(&format!("SELECT 1 FROM t WHERE n = {n}")).unwrap();
            assert_eq!(found.len(), left, "with BEGIN: {begins}");
        }
    }
}

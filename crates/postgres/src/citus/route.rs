//! Which way each commit and read takes: straight to the node of the shard that has all its rows, or through the
//! coordinator.

use std::collections::BTreeMap;
use std::sync::Arc;

use batzen_store::{Change, ChangeSet, CommitOutcome, Read, ReadAnswer, Result, TableDef, VSHARD_COUNT};

use crate::citus::Nodes;
use crate::database::Database;

/// A part of some reads that goes to one shard.
#[derive(Default)]
struct Part {
    reads: Vec<Read>,
    /// For each of them, which read it is a part of, and which of that read's keys or values it has.
    of: Vec<(usize, Vec<usize>)>,
}

/// Claims by the places of their shards; the place of all other changes, and these.
type Divided = (BTreeMap<u16, ChangeSet>, (u16, Option<ChangeSet>));

impl Database {
    /// The number of shards that lanes should have one each of; `None` if the tables are not distributed.
    pub fn shards(&self) -> Option<usize> {
        let nodes = self.citus.as_ref()?.nodes();
        Some(nodes.placement.shards().len()).filter(|shards| *shards > 0)
    }

    /// The lane of a virtual shard.
    pub fn lane(&self, vshard: u16, lanes: usize) -> usize {
        match (self.shards(), &self.citus) {
            (Some(shards), Some(citus)) => {
                usize::from(citus.nodes().placement.place(vshard)) * lanes / shards
            }
            _ => usize::from(vshard) * lanes / usize::from(VSHARD_COUNT),
        }
    }

    /// Commits a set whose rows are all in one shard, apart from claims, which are inserted in their shards before.
    /// `None`: it must go through the coordinator.
    pub fn commit_at_shard(&self, set: &ChangeSet) -> Result<Option<CommitOutcome>> {
        let Some(citus) = &self.citus else { return Ok(None) };
        let nodes = citus.nodes();
        let Some((claims, (place, main))) = self.claims_and_main(&nodes, set) else { return Ok(None) };
        let main = main.as_ref().unwrap_or(set);
        for (place, set) in claims.iter().map(|(place, set)| (*place, set)).chain([(place, main)]) {
            let Some(way) = way(&nodes, place) else { return Ok(None) };
            match way.commit(set) {
                Ok(CommitOutcome::Committed) => {}
                Err(_) if has_moved(way) => {
                    self.look_again()?;
                    return Ok(None);
                }
                other => return other.map(Some),
            }
        }
        Ok(Some(CommitOutcome::Committed))
    }

    /// Divides a set into claims, by shard, and the changes of one other shard; `None` for these: they are all there is.
    /// `None` if there are changes of several shards, or of tables that are on every node.
    fn claims_and_main(&self, nodes: &Nodes, set: &ChangeSet) -> Option<Divided> {
        let places = set.changes().iter().map(|change| {
            let table = change.table();
            table.is_sharded().then(|| nodes.placement.place(self.vshard(table, change.key())))
        });
        let places: Vec<u16> = places.collect::<Option<_>>()?;
        let first = *places.first()?;
        if places.iter().all(|place| *place == first) {
            return Some((BTreeMap::new(), (first, None)));
        }
        let is_claim = |change: &Change| matches!(change, Change::Insert { table, .. } if table.is_claim);
        let changes = || set.changes().iter().zip(&places);
        let mut others = changes().filter(|(change, _)| !is_claim(change)).map(|(_, place)| *place);
        let place = others.next()?;
        if others.any(|other| other != place) {
            return None;
        }
        let (mut claims, mut main) = (BTreeMap::<u16, ChangeSet>::new(), ChangeSet::new());
        for (change, at) in changes() {
            if *at == place { &mut main } else { claims.entry(*at).or_default() }.push(change.clone());
        }
        Some((claims, (place, Some(main))))
    }

    /// Reads rows whose shards are known by their keys. `None`: they must be read through the coordinator.
    pub fn read_at_shards(&self, reads: &[Read]) -> Result<Option<Vec<ReadAnswer>>> {
        let Some(citus) = &self.citus else { return Ok(None) };
        let nodes = citus.nodes();
        let Some(parts) = self.parts(&nodes, reads)? else { return Ok(None) };
        let Some(ways) = parts.keys().map(|place| way(&nodes, *place)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let mut answers: Vec<ReadAnswer> = reads.iter().map(empty_answer).collect();
        let mut fill = |part: Part, found: Vec<ReadAnswer>| {
            for ((read, places), answer) in part.of.into_iter().zip(found) {
                put(&mut answers[read], places, answer);
            }
        };
        let read = |way: &Database, part: &Part| way.read_many(&part.reads);
        let mut found = Vec::with_capacity(parts.len());
        // Usually there is one part.
        std::thread::scope(|scope| {
            let mut jobs = parts.values().zip(&ways);
            let first = jobs.next();
            let others: Vec<_> = jobs.map(|(part, way)| scope.spawn(move || read(way, part))).collect();
            found.extend(first.map(|(part, way)| read(way, part)));
            found.extend(others.into_iter().map(|job| job.join().expect("reading does not panic")));
        });
        if ways.iter().any(|way| has_moved(way)) {
            self.look_again()?;
            return Ok(None);
        }
        for (part, found) in parts.into_values().zip(found) {
            fill(part, found?);
        }
        Ok(Some(answers))
    }

    /// The parts of reads by shard; `None` if a read has no shard.
    fn parts(&self, nodes: &Nodes, reads: &[Read]) -> Result<Option<BTreeMap<u16, Part>>> {
        let mut parts: BTreeMap<u16, Part> = BTreeMap::new();
        let mut everywhere = Part::default();
        for (number, read) in reads.iter().enumerate() {
            let (table, keys): (&'static TableDef, &[Vec<u8>]) = match read {
                Read::Rows { table, keys } => (table, keys),
                Read::Groups { table, index, values }
                    if !table.is_sharded() || self.statements(table)?.is_by_primary_key(*index) =>
                {
                    (table, values)
                }
                _ => return Ok(None),
            };
            if !table.is_sharded() {
                everywhere.reads.push(read.clone());
                everywhere.of.push((number, (0..keys.len()).collect()));
                continue;
            }
            let mut by_place: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
            for (at, key) in keys.iter().enumerate() {
                by_place.entry(nodes.placement.place(self.vshard(table, key))).or_default().push(at);
            }
            for (place, at) in by_place {
                let keys = at.iter().map(|at| keys[*at].clone()).collect();
                let part = parts.entry(place).or_default();
                part.reads.push(match read {
                    Read::Groups { index, .. } => Read::Groups { table, index: *index, values: keys },
                    _ => Read::Rows { table, keys },
                });
                part.of.push((number, at));
            }
        }
        if !everywhere.reads.is_empty() {
            // Every node has these tables.
            let part = match parts.first_entry() {
                Some(entry) => entry.into_mut(),
                None => parts.entry(0).or_default(),
            };
            part.reads.extend(everywhere.reads);
            part.of.extend(everywhere.of);
        }
        Ok(Some(parts))
    }

    /// Reads again where the shards are, after one was not where it was thought to be.
    fn look_again(&self) -> Result<()> {
        let is_ours = self.with_reader(|connection| {
            // The tables of a shard are also gone if the schema was recreated.
            let is_ours = self.is_ours(connection)?;
            if is_ours {
                self.refresh_placement(connection)?;
            }
            Ok(is_ours)
        })?;
        if is_ours { Ok(()) } else { Err(self.is_lost()) }
    }
}

fn way(nodes: &Nodes, place: u16) -> Option<&Arc<Database>> {
    nodes.ways.get(usize::from(place))?.as_ref()
}

fn has_moved(way: &Database) -> bool {
    way.direct.as_ref().is_some_and(super::direct::Direct::has_moved)
}

fn empty_answer(read: &Read) -> ReadAnswer {
    match read {
        Read::Rows { keys, .. } => ReadAnswer::Rows(vec![None; keys.len()]),
        Read::Groups { values, .. } => ReadAnswer::Groups(vec![Vec::new(); values.len()]),
        Read::Range { .. } => ReadAnswer::Range(Vec::new()),
    }
}

/// Puts a part of an answer where it belongs.
fn put(answer: &mut ReadAnswer, places: Vec<usize>, found: ReadAnswer) {
    match (answer, found) {
        (ReadAnswer::Rows(rows), ReadAnswer::Rows(found)) => {
            places.into_iter().zip(found).for_each(|(place, row)| rows[place] = row);
        }
        (ReadAnswer::Groups(groups), ReadAnswer::Groups(found)) => {
            places.into_iter().zip(found).for_each(|(place, group)| groups[place] = group);
        }
        _ => unreachable!("answers are of the kind of their reads"),
    }
}

//! The way of each commit and read: straight to the node of the shard that has all its rows, or through the
//! coordinator.

use std::collections::{BTreeMap, VecDeque};

use batzen_store::{Change, ChangeSet, CommitOutcome, Read, ReadAnswer, Result, TableDef, VSHARD_COUNT};

use crate::citus::{Citus, Nodes};
use crate::database::Database;
use crate::read::read_on_node;

/// A part of some reads that goes to one shard.
#[derive(Default)]
struct Part {
    reads: Vec<Read>,
    /// For each of them, which read it is a part of, and which of that read's keys or values it has.
    of: Vec<(usize, Vec<usize>)>,
}

/// A set that is divided by shards.
struct Divided {
    /// The claims, by the places of their shards. They are inserted before the rest.
    claims: BTreeMap<Option<u16>, ChangeSet>,
    /// All other changes, by the places of their shards.
    rest: BTreeMap<u16, Changes>,
}

/// Changes of one shard.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) set: ChangeSet,
    /// Where each of them is in the whole set.
    pub(crate) order: Vec<usize>,
}

impl Database {
    /// The number of nodes that have shards; `None` if the tables are not distributed.
    pub(crate) fn nodes_with_shards(&self) -> Option<usize> {
        let nodes = self.citus.as_ref()?.nodes();
        Some(nodes.placement.groups().len()).filter(|nodes| *nodes > 0)
    }

    /// The lane of a virtual shard: each has some shards if there are as many lanes as shards, otherwise some nodes.
    pub(crate) fn lane(&self, vshard: u16, lanes: usize) -> usize {
        let Some(nodes) = self.citus.as_ref().map(Citus::nodes) else {
            return usize::from(vshard) * lanes / usize::from(VSHARD_COUNT);
        };
        let (shards, groups) = (nodes.placement.shards(), nodes.placement.groups());
        let place = usize::from(nodes.placement.place(vshard));
        match shards.get(place) {
            Some(shard) if lanes < shards.len() => {
                groups.iter().position(|group| *group == shard.group).unwrap_or(0) * lanes / groups.len()
            }
            _ => place * lanes / shards.len().max(1),
        }
    }

    /// Commits a set whose rows are all in shards, straight at their nodes. `None`: it must go through the coordinator.
    pub(crate) fn commit_at_shards(&self, set: &ChangeSet) -> Result<Option<CommitOutcome>> {
        let Some(citus) = &self.citus else { return Ok(None) };
        let nodes = citus.nodes();
        if nodes.ways.iter().all(Option::is_none) {
            return Ok(None);
        }
        let places: Vec<Option<u16>> = (set.changes().iter())
            .map(|change| {
                let table = change.table();
                table.is_sharded().then(|| nodes.placement.place(self.vshard(table, change.key())))
            })
            .collect();
        match places.first() {
            Some(Some(first)) if places.iter().all(|place| *place == Some(*first)) => {
                return self.commit_at_shard(&nodes, *first, set);
            }
            _ => {}
        }
        let Some(divided) = divide(set, &places) else { return Ok(None) };
        for (place, claims) in &divided.claims {
            let outcome = match place {
                Some(place) => self.commit_at_shard(&nodes, *place, claims)?,
                None => Some(self.commit_by_coordinator(claims)?),
            };
            match outcome {
                Some(CommitOutcome::Committed) => {}
                other => return Ok(other),
            }
        }
        match divided.rest.first_key_value() {
            Some((place, changes)) if divided.rest.len() == 1 => {
                self.commit_at_shard(&nodes, *place, &changes.set)
            }
            _ => self.commit_across(&nodes, set, &divided.rest),
        }
    }

    /// Commits a set whose rows are all in one shard.
    fn commit_at_shard(
        &self,
        nodes: &Nodes<Database>,
        place: u16,
        set: &ChangeSet,
    ) -> Result<Option<CommitOutcome>> {
        let Some(way) = nodes.way(place) else { return Ok(None) };
        match way.commit(set) {
            Err(_) if has_moved(way) => {
                self.look_again()?;
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// Reads rows whose shards are known by their keys. `None`: they must be read through the coordinator.
    pub(crate) fn read_at_shards(&self, reads: &[Read]) -> Result<Option<Vec<ReadAnswer>>> {
        let Some(citus) = &self.citus else { return Ok(None) };
        let nodes = citus.nodes();
        let Some(parts) = self.parts(&nodes, reads)? else { return Ok(None) };
        let Some(ways) = parts.keys().map(|place| nodes.way(*place)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let mut answers: Vec<ReadAnswer> = reads.iter().map(empty_answer).collect();
        let mut fill = |part: Part, found: Vec<ReadAnswer>| {
            for ((read, places), answer) in part.of.into_iter().zip(found) {
                put(&mut answers[read], places, answer);
            }
        };
        let mut on_nodes: BTreeMap<i32, Vec<(&Database, &[Read])>> = BTreeMap::new();
        let groups: Vec<i32> = ways.iter().map(|way| way.direct().group).collect();
        for ((part, way), group) in parts.values().zip(&ways).zip(&groups) {
            on_nodes.entry(*group).or_default().push((way, &part.reads));
        }
        let mut found: BTreeMap<i32, Result<VecDeque<_>>> = BTreeMap::new();
        let read = |parts: &[(&Database, &[Read])]| read_on_node(parts).map(VecDeque::from);
        // Usually there is one node.
        std::thread::scope(|scope| {
            let mut jobs = on_nodes.iter();
            let first = jobs.next();
            let others: Vec<_> =
                jobs.map(|(group, parts)| (*group, scope.spawn(move || read(parts)))).collect();
            found.extend(first.map(|(group, parts)| (*group, read(parts))));
            found.extend(
                others.into_iter().map(|(group, job)| (group, job.join().expect("reading does not panic"))),
            );
        });
        if ways.iter().any(|way| has_moved(way)) {
            self.look_again()?;
            return Ok(None);
        }
        let mut found = found
            .into_iter()
            .map(|(group, found)| Ok((group, found?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        for (part, group) in parts.into_values().zip(groups) {
            let found = found.get_mut(&group).and_then(VecDeque::pop_front);
            fill(part, found.expect("an answer for each part"));
        }
        Ok(Some(answers))
    }

    /// The parts of reads by shard; `None` if a read has no shard.
    fn parts(&self, nodes: &Nodes<Database>, reads: &[Read]) -> Result<Option<BTreeMap<u16, Part>>> {
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
    pub(crate) fn look_again(&self) -> Result<()> {
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

/// Divides a set by the places of its changes; `None` if something that is on every node is no claim.
fn divide(set: &ChangeSet, places: &[Option<u16>]) -> Option<Divided> {
    let is_claim = |change: &Change| matches!(change, Change::Insert { table, .. } if table.is_claim);
    let changes = || set.changes().iter().zip(places);
    let mut rest: BTreeMap<u16, Changes> = BTreeMap::new();
    for (_, place) in changes().filter(|(change, _)| !is_claim(change)) {
        rest.insert((*place)?, Changes::default());
    }
    let mut claims: BTreeMap<Option<u16>, ChangeSet> = BTreeMap::new();
    for (at, (change, place)) in changes().enumerate() {
        match place.and_then(|place| rest.get_mut(&place)) {
            Some(changes) => {
                changes.set.push(change.clone());
                changes.order.push(at);
            }
            None => claims.entry(*place).or_default().push(change.clone()),
        }
    }
    Some(Divided { claims, rest })
}

fn has_moved(way: &Database) -> bool {
    way.direct().has_moved()
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

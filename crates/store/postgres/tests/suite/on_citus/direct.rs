//! Straight to the node of a shard: what goes that way, and what happens when a shard is moved or split.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use batzen_postgres::schema::dbinit::dbinit;
use batzen_postgres::schema::maintain::{MaintainOptions, maintain};
use batzen_postgres::schema::{DbinitOptions, HISTORY, Sql};
use batzen_postgres::{Connection, PgOptions};
use batzen_store::conformance::{Items, TABLES, key, row};
use batzen_store::{ChangeSet, CommitOutcome, Store, Table, TableDef, record, table};
use batzen_tables::exchange;

use super::behaviour::Ends;
use super::{schema, url};
use crate::common::{connect, open, through};

fn set(groups: impl IntoIterator<Item = u32>, item: u32) -> ChangeSet {
    let mut changes = ChangeSet::new();
    groups.into_iter().for_each(|group| changes.insert::<Items>(&key(group, item), &row("x", None)));
    changes
}

/// Two workers have so many shards, unless somebody says otherwise.
const SHARDS: usize = 4;

/// Groups of items by the lane that has them, with so many lanes.
fn groups_by_lane(store: &Store, lanes: usize) -> BTreeMap<usize, Vec<u32>> {
    let mut groups: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for group in 0..200_u32 {
        let lane = store.backend().lane(&group.to_be_bytes(), lanes);
        groups.entry(lane).or_default().push(group);
    }
    assert_eq!(groups.len(), lanes, "every lane has some");
    groups
}

/// Groups of items by their shards.
pub(super) fn groups_by_shard(store: &Store) -> BTreeMap<usize, Vec<u32>> {
    groups_by_lane(store, SHARDS)
}

/// A lane has all shards of a node.
#[test]
fn a_lane_is_a_node() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let nodes = groups_by_lane(&store, store.backend().lanes_wanted().unwrap());
    let shards = groups_by_shard(&store);
    let mut sql = connect(url);
    let mut node_of = |group: u32| {
        let vshard = store.backend().vshard(&group.to_be_bytes());
        let clocks = format!("{}.shard_clocks", options.schema);
        let text = format!(
            "SELECT groupid FROM pg_dist_placement WHERE shardid = get_shard_id_for_distribution_column('{clocks}', {vshard}::smallint)"
        );
        sql.row(&text).unwrap().unwrap().number(0)
    };
    assert_eq!(nodes.len(), 2);
    for groups in nodes.values().chain(shards.values()) {
        let first = node_of(groups[0]);
        assert!(groups.iter().all(|group| node_of(*group) == first));
    }
}

/// The serials of rows, whichever way they came, follow the commits.
#[test]
fn serials_of_both_ways_follow_the_commits() {
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let groups = groups_by_shard(&store);
    let (one, other) = (groups[&0][0], groups[&1][0]);
    let mut last = 0;
    for item in 0..30_u32 {
        let changes = match item % 3 {
            0 => set([one], item),
            1 => set([one, other], item),
            _ => set([other], item),
        };
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        for group in if item % 3 == 2 {
            vec![other]
        } else if item % 3 == 1 {
            vec![one, other]
        } else {
            vec![one]
        } {
            let serial = store.get::<Items>(&key(group, item)).unwrap().unwrap().serial;
            assert!(serial > last, "item {item}: {serial} after {last}");
            last = serial;
        }
    }
    // A process that starts later goes on after all of them.
    drop(store);
    let store = open(&options);
    assert_eq!(store.commit(&set([other], 100)).unwrap(), CommitOutcome::Committed);
    assert!(store.get::<Items>(&key(other, 100)).unwrap().unwrap().serial > last);
}

/// Commits and reads in shards need nothing of the coordinator, in one shard as in all of them.
#[test]
fn commits_and_reads_of_shards_pass_by_the_coordinator() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let groups = groups_by_shard(&store);
    let mut sql = connect(url);
    let quick = |item: u32, store: &Store| {
        let all: Vec<u32> = groups.values().map(|groups| groups[5]).collect();
        let shards = groups.values().map(|groups| groups[..5].to_vec());
        for groups in shards.chain([all]) {
            assert_eq!(store.commit(&set(groups.clone(), item)).unwrap(), CommitOutcome::Committed);
            let keys: Vec<_> = groups.iter().map(|group| key(*group, item)).collect();
            assert!(store.get_many::<Items>(&keys).unwrap().iter().all(Option::is_some));
        }
    };
    quick(0, &store);
    // Tests beside this one use the same database, so count those of this store: what it asks the coordinator.
    sql.script("SELECT 1").unwrap();
    let sessions = format!(
        "SELECT coalesce(sum(extract(epoch FROM state_change - backend_start) * 1e6)::bigint, 0) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'batzen-{}'",
        options.schema
    );
    let asked = |sql: &mut Connection| sql.row(&sessions).unwrap().unwrap().number(0);
    let before = asked(&mut sql);
    (1..20).for_each(|item| quick(item, &store));
    assert_eq!(asked(&mut sql), before, "no session of the store in the coordinator was used");
    // A conflict is found there as well, and nothing of its commit stays on any node.
    assert!(matches!(store.commit(&set([groups[&0][0]], 3)).unwrap(), CommitOutcome::Conflict(_)));
    let fresh: Vec<u32> = groups.values().map(|groups| groups[6]).collect();
    let conflict = set(fresh.iter().copied().chain([groups[&0][0]]), 3);
    assert!(matches!(store.commit(&conflict).unwrap(), CommitOutcome::Conflict(_)));
    let keys: Vec<_> = fresh.iter().map(|group| key(*group, 3)).collect();
    assert!(store.get_many::<Items>(&keys).unwrap().iter().all(Option::is_none));
    assert_eq!(asked(&mut sql), before, "no session of the store in the coordinator was used");
}

record! {
    pub key struct ClaimKey { pub name: [u8; 4] }
}
record! {
    pub struct ClaimRow { pub owner: u32 }
}

table! {
    /// A table whose rows may be there before the rest of their commit.
    Claims(950, "claims"): ClaimKey => ClaimRow, shard(4), claims();
}

const WITH_CLAIMS: &[&TableDef] = &[Items::DEF, Claims::DEF];

/// A claim in another shard does not make a commit one over several shards. If the claim is taken, nothing else takes
/// effect; if the rest fails, the claim stays.
#[test]
fn claims_precede_the_rest_of_a_commit() {
    let Some(options) = schema(WITH_CLAIMS) else { return };
    let store = open(&options);
    let groups = groups_by_shard(&store);
    let (one, other) = (groups[&0][0], groups[&1][0]);
    let claiming = |item: u32, owner: u32| {
        let mut changes = set([one], item);
        changes.insert::<Claims>(&ClaimKey { name: other.to_be_bytes() }, &ClaimRow { owner });
        changes
    };
    let claim =
        || store.get::<Claims>(&ClaimKey { name: other.to_be_bytes() }).unwrap().map(|found| found.row.owner);
    // The rest fails: its row exists.
    assert_eq!(store.commit(&set([one], 1)).unwrap(), CommitOutcome::Committed);
    assert!(matches!(store.commit(&claiming(1, 7)).unwrap(), CommitOutcome::Conflict(_)));
    assert_eq!(claim(), Some(7), "a claim is harmless");
    // The claim is taken.
    assert!(matches!(store.commit(&claiming(2, 8)).unwrap(), CommitOutcome::Conflict(_)));
    assert!(store.get::<Items>(&key(one, 2)).unwrap().is_none());
    assert_eq!(claim(), Some(7));
    let mut free = ChangeSet::new();
    free.delete::<Claims>(&ClaimKey { name: other.to_be_bytes() }, &ClaimRow { owner: 7 });
    assert_eq!(store.commit(&free).unwrap(), CommitOutcome::Committed);
    assert_eq!(store.commit(&claiming(2, 8)).unwrap(), CommitOutcome::Committed);
    assert_eq!((claim(), store.get::<Items>(&key(one, 2)).unwrap().is_some()), (Some(8), true));
}

/// Held by tests that move or split shards: Citus refuses to do so for two tables of a database at once.
static MOVING: Mutex<()> = Mutex::new(());

/// Shards move to another node under load, and no commit fails or is lost.
#[test]
fn a_moved_shard_is_followed() {
    let Some(url) = url() else { return };
    let _alone = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let groups = groups_by_shard(&store);
    let (done, committed) = (AtomicBool::new(false), AtomicU32::new(0));
    let clock = format!("{}.shard_clocks", options.schema);
    std::thread::scope(|scope| {
        let load: Vec<_> = groups
            .values()
            .map(|groups| {
                let (store, done, committed) = (&store, &done, &committed);
                scope.spawn(move || {
                    let mut item = 0;
                    while !done.load(Ordering::SeqCst) {
                        let outcome = store.commit(&set(groups.iter().copied().take(3), item)).unwrap();
                        assert_eq!(outcome, CommitOutcome::Committed, "item {item}");
                        committed.fetch_add(3, Ordering::SeqCst);
                        item += 1;
                    }
                    item
                })
            })
            .collect();
        let ends = Ends(&done);
        let mut sql = connect(url);
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(200));
            let shard = sql
                .row(&format!(
                    "SELECT s.shardid, n.nodename, n.nodeport, o.nodename, o.nodeport FROM pg_dist_shard s
                     JOIN pg_dist_placement p USING (shardid) JOIN pg_dist_node n USING (groupid)
                     JOIN pg_dist_node o ON o.shouldhaveshards AND o.groupid <> n.groupid
                     WHERE s.logicalrelid = '{clock}'::regclass ORDER BY s.shardid OFFSET {} LIMIT 1",
                    round % 2
                ))
                .unwrap()
                .unwrap();
            let text = |at: usize| shard.text(at).to_owned();
            let mode = if round < 2 { "block_writes" } else { "force_logical" };
            sql.script(&format!(
                "SELECT citus_move_shard_placement({}, '{}', {}, '{}', {}, '{mode}')",
                text(0),
                text(1),
                text(2),
                text(3),
                text(4)
            ))
            .unwrap();
        }
        std::thread::sleep(Duration::from_millis(200));
        drop(ends);
        for (groups, items) in groups.values().zip(load) {
            let items = items.join().unwrap();
            for item in 0..items {
                let keys: Vec<_> = groups.iter().take(3).map(|group| key(*group, item)).collect();
                assert!(store.get_many::<Items>(&keys).unwrap().iter().all(Option::is_some), "item {item}");
            }
        }
    });
    assert_eq!(store.count::<Items>().unwrap(), u64::from(committed.load(Ordering::SeqCst)));
    let again = PgOptions { node: "again".into(), ..options };
    assert_eq!(open(&again).count::<Items>().unwrap(), u64::from(committed.load(Ordering::SeqCst)));
}

/// At its node, the tables of a shard have the plans of plain PostgreSQL: Citus does not see them.
#[test]
fn the_tables_of_a_shard_are_not_planned_by_citus() {
    let Some(url) = url() else { return };
    let Some(options) = schema(TABLES) else { return };
    let items = format!("{}.{}", options.schema, Items::DEF.name);
    let shard = connect(url)
        .row(&format!(
            "SELECT n.nodeport, s.shardid FROM pg_dist_shard s JOIN pg_dist_placement p USING (shardid)
             JOIN pg_dist_node n USING (groupid) WHERE s.logicalrelid = '{items}'::regclass LIMIT 1"
        ))
        .unwrap()
        .unwrap();
    let mut node = connect(&through(url, |_| u16::try_from(shard.number(0)).unwrap()));
    let mut plan = |table: &str| {
        let rows = node.rows(&format!("EXPLAIN DELETE FROM {table} WHERE vshard = 3")).unwrap();
        rows.iter().map(|row| row.text(0).to_owned()).collect::<Vec<_>>().join("\n")
    };
    assert!(plan(&items).contains("Citus"), "the distributed table is");
    let of_shard = plan(&format!("{items}_{}", shard.number(1)));
    assert!(!of_shard.contains("Citus") && of_shard.contains("Delete on"), "{of_shard}");
}

/// Number of shards that a table of this schema has.
fn shard_count(url: &str, schema: &str) -> usize {
    let text =
        format!("SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = '{schema}.shard_clocks'::regclass");
    usize::try_from(connect(url).row(&text).unwrap().unwrap().number(0)).unwrap()
}

/// Splits the shard of clocks at this place in two, with those beside it, and puts the second half on another node.
fn split(sql: &mut Connection, schema: &str, place: usize, mode: &str) {
    let shard = sql
        .row(&format!(
            "SELECT s.shardid, s.shardminvalue, s.shardmaxvalue, n.nodeid, o.nodeid FROM pg_dist_shard s
             JOIN pg_dist_placement p USING (shardid) JOIN pg_dist_node n USING (groupid)
             JOIN pg_dist_node o ON o.shouldhaveshards AND o.groupid <> n.groupid
             WHERE s.logicalrelid = '{schema}.shard_clocks'::regclass
             ORDER BY s.shardminvalue::int OFFSET {place} LIMIT 1"
        ))
        .unwrap()
        .unwrap();
    let [first, last] = [1, 2].map(|at| shard.text(at).parse::<i64>().unwrap());
    let point = first + (last - first) / 2;
    let [id, node, other] = [0, 3, 4].map(|at| shard.text(at).to_owned());
    let text = format!(
        "SELECT citus_split_shard_by_split_points({id}, ARRAY['{point}'], ARRAY[{node}, {other}], '{mode}')"
    );
    let until = Instant::now() + Duration::from_secs(60);
    // Citus also refuses while the tables of another test are distributed.
    while let Err(error) = sql.script(&text) {
        let is_busy = error.to_string().contains("could not acquire the lock required to split");
        assert!(is_busy && Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A shard is split under load: no commit fails or is lost, and the rows of the new shards appear in the order of their
/// serials. For this service alone: others may not notice, so all are to be stopped before (docs/postgresql.md).
#[test]
fn a_split_shard_is_followed() {
    let Some(url) = url() else { return };
    let _alone = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(options) = schema(TABLES) else { return };
    let store = open(&options);
    let before = shard_count(url, &options.schema);
    let groups: Vec<u32> = groups_by_shard(&store).values().flat_map(|groups| groups[..4].to_vec()).collect();
    let (items, clock) =
        (format!("{}.{}", options.schema, Items::DEF.name), format!("{}.shard_clocks", options.schema));
    let done = AtomicBool::new(false);
    let (counts, looks) = std::thread::scope(|scope| {
        let (store, done) = (&store, &done);
        let load: Vec<_> = groups
            .iter()
            .map(|group| {
                scope.spawn(move || {
                    let mut item = 0;
                    while !done.load(Ordering::SeqCst) {
                        let outcome = store.commit(&set([*group], item)).unwrap();
                        assert_eq!(outcome, CommitOutcome::Committed, "item {item}");
                        item += 1;
                    }
                    item
                })
            })
            .collect();
        let looker = scope.spawn(|| {
            let mut sql = connect(url);
            let mut looks = Vec::new();
            while !done.load(Ordering::SeqCst) {
                let rows = sql.rows(&format!("SELECT vshard, serial FROM {items}")).unwrap();
                looks.push(rows.iter().map(|row| (row.number(0), row.number(1))).collect::<Vec<_>>());
            }
            looks
        });
        let ends = Ends(done);
        let mut sql = connect(url);
        for (place, mode) in ["block_writes", "force_logical"].into_iter().enumerate() {
            std::thread::sleep(Duration::from_millis(300));
            split(&mut sql, &options.schema, place * 2, mode);
        }
        std::thread::sleep(Duration::from_millis(500));
        drop(ends);
        let counts: Vec<u32> = load.into_iter().map(|load| load.join().unwrap()).collect();
        (counts, looker.join().unwrap())
    });
    assert_eq!(shard_count(url, &options.schema), before + 2);
    assert_eq!(store.count::<Items>().unwrap(), counts.iter().copied().map(u64::from).sum::<u64>());
    for (group, items) in groups.iter().zip(&counts) {
        let keys: Vec<_> = (0..*items).map(|item| key(*group, item)).collect();
        assert!(store.get_many::<Items>(&keys).unwrap().iter().all(Option::is_some), "group {group}");
    }
    // The shards of now divide those of before, so their rows were in order then, too.
    let shards = connect(url)
        .rows(&format!(
            "SELECT v, get_shard_id_for_distribution_column('{clock}', v::smallint) FROM generate_series(0, 1023) v"
        ))
        .unwrap();
    let shard_of: BTreeMap<i64, i64> = shards.iter().map(|row| (row.number(0), row.number(1))).collect();
    let (mut last, mut seen) = (BTreeMap::<i64, i64>::new(), BTreeSet::new());
    for look in &looks {
        let mut highest = last.clone();
        for (vshard, serial) in look.iter().filter(|row| seen.insert(**row)) {
            let shard = shard_of[vshard];
            let before = last.get(&shard).copied().unwrap_or_default();
            assert!(*serial > before, "shard {shard}: {serial} appeared after {before}");
            let highest = highest.entry(shard).or_default();
            *highest = (*highest).max(*serial);
        }
        last = highest;
    }
    assert!(looks.len() > 5 && last.len() >= before, "{} looks, {last:?}", looks.len());
    for groups in groups_by_lane(&store, before + 2).values() {
        assert_eq!(store.commit(&set([groups[0]], u32::MAX)).unwrap(), CommitOutcome::Committed);
    }
}

/// A service that commits through the coordinator alone notices a split, too: it moves the clocks of the new shards.
#[test]
fn a_split_is_noticed_through_the_coordinator() {
    let Some(url) = url() else { return };
    let _alone = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(options) = schema(TABLES) else { return };
    let far = open(&PgOptions { at_shards: false, ..options.clone() });
    let groups: Vec<u32> = groups_by_shard(&far).values().flat_map(|groups| groups[..6].to_vec()).collect();
    let commit = |store: &Store, group: u32, item: u32| {
        assert_eq!(store.commit(&set([group], item)).unwrap(), CommitOutcome::Committed);
    };
    groups.iter().for_each(|group| commit(&far, *group, 0));
    split(&mut connect(url), &options.schema, 0, "block_writes");
    let near = open(&PgOptions { node: "near".into(), ..options.clone() });
    for group in groups {
        // Another service, which knows the new shards, is ahead.
        (1..30).for_each(|item| commit(&near, group, item));
        commit(&far, group, 30);
        let keys: Vec<_> = (0..=30).map(|item| key(group, item)).collect();
        let found = near.get_many::<Items>(&keys).unwrap();
        let serials: Vec<u64> = found.into_iter().map(|row| row.unwrap().serial).collect();
        assert!(serials.is_sorted_by(|a, b| a < b), "group {group}: {serials:?}");
    }
}

/// As an operator should split shards: all services are stopped, and need nothing else.
#[test]
fn services_that_start_after_a_split_go_on() {
    let Some(url) = url() else { return };
    let _alone = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(options) = schema(TABLES) else { return };
    let mut sql = connect(url);
    let commit_all = |stores: &[&Store], groups: &BTreeMap<usize, Vec<u32>>, from: u32| {
        for item in from..from + 20 {
            let store = stores[item as usize % stores.len()];
            let everywhere = groups.values().map(|groups| groups[1]);
            assert_eq!(store.commit(&set(everywhere, item)).unwrap(), CommitOutcome::Committed);
            for groups in groups.values() {
                assert_eq!(store.commit(&set([groups[0]], item)).unwrap(), CommitOutcome::Committed);
            }
        }
    };
    let items = format!("{}.{}", options.schema, Items::DEF.name);
    let serials = format!("SELECT count(*), count(DISTINCT serial), max(serial) FROM {items}");
    let (mut rows, mut highest) = (0, 0);
    for round in 0..3_u32 {
        // Two services.
        let (one, other) = (open(&options), open(&PgOptions { node: "other".into(), ..options.clone() }));
        let groups = groups_by_lane(&one, shard_count(url, &options.schema));
        assert_eq!(groups.len(), SHARDS + round as usize);
        commit_all(&[&one, &other], &groups, round * 100);
        let found = sql.row(&format!("{serials} WHERE serial > {highest}")).unwrap().unwrap();
        let new = 20 * 2 * i64::try_from(groups.len()).unwrap();
        assert_eq!((found.number(0), found.number(1)), (new, new), "all are after those of before");
        rows += new;
        highest = found.number(2);
        assert_eq!(sql.row(&serials).unwrap().unwrap().number(1), rows, "no serial is given twice");
        drop((one, other));
        split(&mut sql, &options.schema, 0, if round == 0 { "block_writes" } else { "force_logical" });
        let again = DbinitOptions { citus: true, ..DbinitOptions::default() };
        let until = Instant::now() + Duration::from_secs(20);
        let report = loop {
            // The sessions of a service end a moment after it.
            match dbinit(&mut sql, &options.schema, TABLES, &again, &HISTORY) {
                Ok(report) => break report,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(report.actions, [""; 0], "a split needs no dbinit");
    }
}

/// All tables of an exchange can be split, those with a partition for each day, too.
#[test]
fn the_tables_of_an_exchange_can_be_split() {
    let Some(url) = url() else { return };
    let _alone = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(options) = schema(exchange::ALL) else { return };
    let mut sql = connect(url);
    maintain(&mut sql, &options.schema, exchange::ALL, &MaintainOptions::default()).unwrap();
    let shards = || shard_count(url, &options.schema);
    let before = shards();
    split(&mut sql, &options.schema, 0, "block_writes");
    split(&mut sql, &options.schema, 3, "force_logical");
    assert_eq!(shards(), before + 2);
    let store = open(&options);
    store.backend().scan(exchange::Coins::DEF, &mut |_| ControlFlow::Continue(())).unwrap();
}

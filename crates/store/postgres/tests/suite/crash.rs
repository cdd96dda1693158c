//! Servers are killed and replaced under load. Afterwards, the store must contain the acknowledged commits
//! and nothing else.

use crate::common;
use batzen_store::conformance::random as model;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use batzen_postgres::{PgOptions, Sharing};
use batzen_store::conformance::TABLES;
use batzen_store::{CommitOutcome, Store};
use batzen_testkit::postgres::{Cluster, ClusterOptions};
use common::{SCHEMA, create, open};
use model::{Random, Rows, random_changes, read_rows, soak_factor};

/// Commits continuously while `disturb` runs, which can wait for further commits.
fn under_load(store: &Store, seed: u64, disturb: impl FnOnce(&dyn Fn(u64))) -> Rows {
    let (done, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let more = |count: u64| {
        let until = commits.load(Ordering::SeqCst) + count;
        while commits.load(Ordering::SeqCst) < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut rows, mut random) = (Rows::new(), Random(seed));
            while !done.load(Ordering::SeqCst) {
                let changes = random_changes(&mut random, &mut rows);
                assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
                commits.fetch_add(1, Ordering::SeqCst);
            }
            rows
        });
        disturb(&more);
        more(5);
        done.store(true, Ordering::SeqCst);
        load.join().unwrap()
    })
}

fn options(url: &str, sharing: Sharing) -> PgOptions {
    PgOptions { sharing, away_max: Duration::from_secs(120), ..PgOptions::new(url, SCHEMA, TABLES) }
}

#[test]
fn killed_server_loses_no_acknowledged_commit() {
    for sharing in [Sharing::Shared, Sharing::Exclusive] {
        let mut cluster = Cluster::start(&ClusterOptions::default()).unwrap();
        let url = cluster.create_database("killed").unwrap();
        create(&url, TABLES, 4);
        let store = open(&options(&url, sharing));
        let rows = under_load(&store, 3, |more| {
            for kill in 0..3 * soak_factor() {
                more(5 + kill * 7);
                cluster.kill9().unwrap();
                cluster.start_again().unwrap();
            }
        });
        assert_eq!(read_rows(&store).unwrap(), rows);
        drop(store);
        assert_eq!(read_rows(&open(&options(&url, sharing))).unwrap(), rows);
    }
}

#[test]
fn promoted_standby_has_every_acknowledged_commit() {
    let mut primary = Cluster::start(&ClusterOptions::default()).unwrap();
    let url = primary.create_database("promoted").unwrap();
    create(&url, TABLES, 0);
    let standby = primary.standby("second", true).unwrap();
    let store = open(&options(&primary.url_or(&standby, "promoted"), Sharing::Shared));
    let rows = under_load(&store, 4, |more| {
        more(30);
        primary.kill9().unwrap();
        standby.promote().unwrap();
    });
    assert_eq!(read_rows(&store).unwrap(), rows);
}
